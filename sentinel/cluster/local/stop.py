"""Ending all that belongs to an incarnation.

SIGTERM goes to the ranks first and not to their helpers: a data loader that dies under a rank makes its
program raise in the middle of the save that SIGTERM asked for. A shell passes nothing on, so what it runs
gets the signal too. A launcher, or `time`, may end and leave its ranks behind: they hear of it then, and have what is
left of the grace. When the ranks are gone, helpers that outlived them get SIGTERM and a tenth of the grace
(at most 5 s); then, and in any case when the grace is over, SIGKILL goes to everything until nothing is left.

The ranks that srun starts are children of Slurm's daemons. When srun is killed its only child, which it has for that,
has Slurm end them, here and on other nodes: that one is killed last.
"""

import signal

import structlog

from sentinel.cluster.base import StopOutcome
from sentinel.cluster.local.processes import (
    Proc,
    find_ranks,
    is_srun,
    read_proc,
    scan,
    send_signal,
    starts_ranks,
    through_shells,
    where,
)
from sentinel.cluster.local.status import boottime_s
from sentinel.cluster.local.tracked import Tracked

log = structlog.get_logger(__name__)

SHEPHERD_S = 15.0  # that srun's child is given; it asks Slurm's controller
STUCK_AFTER_S = 30.0  # after SIGKILL: freeing pinned memory of a big process takes seconds
HELPER_GRACE_SHARE = 0.1
HELPER_GRACE_MAX_S = 5.0
POLL_S = 0.02  # while unsupervised members are waited for, and between sweeps of SIGKILL


async def stop_all(tracked: Tracked, grace_s: float, stuck_after_s: float = STUCK_AFTER_S) -> StopOutcome:
    """Returns as soon as nothing is left, at the latest after `grace_s` + `stuck_after_s`."""
    if tracked.stopping_since_s is None:
        tracked.stopping_since_s = boottime_s()
    tracked.wake_supervisor()
    if grace_s > 0:
        await _terminate(tracked, boottime_s() + grace_s, grace_s)
    return await _kill(tracked, stuck_after_s)


def terminate(proc: Proc) -> None:
    """SIGTERM, and SIGCONT whatever its state seems to be: a stopped process only sees SIGTERM once it goes on."""
    send_signal(proc.pid, proc.start_ticks, signal.SIGTERM, signal.SIGCONT)


async def _terminate(tracked: Tracked, deadline_s: float, grace_s: float) -> None:
    ranks = [
        proc
        for slot in tracked.running()
        if (proc := read_proc(slot.pid)) and slot.start_ticks == proc.start_ticks
    ]
    inner: dict[int, Proc] = {}
    below: dict[int, Proc] = {}
    if starters := [
        proc for proc in ranks if starts_ranks(proc.pid)
    ]:  # else a scan is not worth its milliseconds
        table = scan()
        own = {proc.pid for proc in ranks}
        inner = {proc.pid: proc for proc in through_shells(ranks, table) if proc.pid not in own}
        found = [proc for one in starters for proc in find_ranks(one, table).values()]
        below = {proc.pid: proc for proc in found if proc.pid not in own}
    with tracked.watching((inner | below).values()) as alive:
        for proc in [*ranks, *inner.values()]:
            terminate(proc)
        await tracked.wait(lambda: not tracked.running() and alive.isdisjoint(inner), deadline_s)
        if tracked.gone() or boottime_s() >= deadline_s:
            return
        for proc in tracked.members():
            terminate(proc)
        await tracked.wait(lambda: not alive, deadline_s)
    if tracked.gone() or boottime_s() >= deadline_s:
        return
    helper_deadline_s = min(deadline_s, boottime_s() + min(HELPER_GRACE_MAX_S, grace_s * HELPER_GRACE_SHARE))
    await _wait_gone(tracked, helper_deadline_s)


async def _wait_gone(tracked: Tracked, deadline_s: float) -> bool:
    """Told by a supervisor; without one, by looking again."""
    while not tracked.gone():
        now_s = boottime_s()
        if now_s >= deadline_s:
            return False
        await tracked.wait(
            tracked.gone, deadline_s if tracked.supervised else min(deadline_s, now_s + POLL_S)
        )
    return True


async def _kill(tracked: Tracked, stuck_after_s: float) -> StopOutcome:
    """SIGKILL in sweeps: between two looks at /proc a process may have forked."""
    killed: set[tuple[int, int]] = set()
    shepherds: set[tuple[int, int]] = set()
    spared_s = boottime_s() + min(SHEPHERD_S, stuck_after_s / 2)
    limit_s = boottime_s() + stuck_after_s
    pause_s = POLL_S
    while not tracked.gone():
        tracked.wake_supervisor()
        rest = tracked.members()
        shepherds |= _shepherds(rest, tracked)
        for proc in rest:
            if (proc.pid, proc.start_ticks) in shepherds and boottime_s() < spared_s:
                continue
            if send_signal(proc.pid, proc.start_ticks, signal.SIGKILL):
                killed.add((proc.pid, proc.start_ticks))
        if boottime_s() >= limit_s:
            stuck = tuple(where(proc) for proc in rest[:20]) or ("the supervisor does not reap its children",)
            log.warning("stop_stuck", job=tracked.job, incarnation=tracked.incarnation, stuck=stuck)
            return StopOutcome(gone=False, killed=len(killed), stuck=stuck)
        await _wait_gone(tracked, min(limit_s, boottime_s() + pause_s))
        pause_s = min(0.5, pause_s * 2)
    # Without a supervisor our own look at /proc can be ahead of the loop's news of the same deaths.
    await tracked.wait(lambda: not tracked.running(), boottime_s() + 1.0)
    return StopOutcome(gone=True, killed=len(killed))


def _shepherds(members: list[Proc], tracked: Tracked) -> set[tuple[int, int]]:
    """The children of srun that are srun too, also where it is gone: pid and start time of each."""
    started = {slot.pid for slot in tracked.status.slots.values()} if tracked.status else set()
    parents = {proc.pid for proc in members}
    own = {proc.pid: proc for proc in members if is_srun(proc)}
    return {
        (proc.pid, proc.start_ticks)
        for proc in own.values()
        if proc.ppid in own or (proc.ppid not in parents and proc.pid not in started)
    }
