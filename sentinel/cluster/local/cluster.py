"""The Cluster protocol on one machine: each job has a supervisor of its own that outlives Sentinel."""

import asyncio
import contextlib
import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from sentinel.cluster.base import RankProcess, SignalOutcome, StopOutcome
from sentinel.cluster.local import flight, stacks
from sentinel.cluster.local.files import Unseen, files
from sentinel.cluster.local.order import free_port, order_fields, refusal
from sentinel.cluster.local.processes import (
    Proc,
    Use,
    below_wrappers,
    catches_signal,
    find_ranks,
    find_workers,
    is_launcher,
    is_shell,
    read_proc,
    scan,
    send_signal,
    tree_use,
)
from sentinel.cluster.local.spawned import spawned
from sentinel.cluster.local.status import Slot, Status, boot_id, read_status
from sentinel.cluster.local.stop import STUCK_AFTER_S, stop_all
from sentinel.cluster.local.tracked import Tracked
from sentinel.core.model import Launch
from sentinel.core.reports import Files, RankExit
from sentinel.core.stacks.flight_record import Stuck
from sentinel.util.errors import PermanentError, TemporaryError


class Adopted(Struct, frozen=True, kw_only=True):
    """What was found of a job. `incarnation` 0: it never started. `exits` are told here and not to `on_exit`.

    `ranks` run, `ended` are those of `exits`, whose logs may hold what nobody has read yet.

    `ended_unknown`: ranks (also in `exits`) whose end nobody saw: the supervisor was killed, or the machine
    was started again (`rebooted`).
    """

    incarnation: int = 0
    ranks: list[RankProcess] = []
    ended: list[RankProcess] = []
    exits: list[RankExit] = []
    supervisor_alive: bool = False
    ended_unknown: tuple[int, ...] = ()
    rebooted: bool = False
    half_started: bool = False  # the supervisor was killed in the middle of the start: some ranks never ran


class LocalCluster:
    """All of a job's files lie in STATE_DIR/jobs/JOB. Call from one asyncio loop; close() touches no job."""

    def __init__(
        self,
        state_dir: Path,
        on_exit: Callable[[str, RankExit], None],
        on_supervisor_lost: Callable[[str], None] = lambda job: None,
        *,
        stuck_after_s: float = STUCK_AFTER_S,
    ) -> None:
        self._jobs_dir = Path(state_dir).absolute() / "jobs"
        self._on_exit, self._on_lost = on_exit, on_supervisor_lost
        self._stuck_after_s = stuck_after_s
        self._tracked: dict[str, Tracked] = {}

    # ------------------------------------------------------------ the protocol

    async def start(
        self,
        job: str,
        launch: Launch | None,
        incarnation: int,
        size: int,
        env: dict[str, str],
        excluded: Sequence[str] = (),
    ) -> list[RankProcess]:
        """Start `size` ranks together, or find them started. Raises PermanentError or TemporaryError.

        `launch.env` and then `env` are the whole environment; SENTINEL_JOB, SENTINEL_INCARNATION,
        SENTINEL_RUN and, with `nproc`, the rank variables are added.
        """
        assert launch is not None  # a local job has a command
        tracked = await self._attached(job)
        tracked.refresh()
        if tracked.incarnation == incarnation:
            if _half_started(tracked.status):
                raise TemporaryError("the job's supervisor was killed while it started the ranks")
            asyncio.get_running_loop().call_soon(tracked.tell_pending)
            return self._ranks(job, tracked.status)
        if not tracked.supervised and not tracked.gone():  # a supervisor that lives refuses by itself
            raise TemporaryError(f"processes of incarnation {tracked.incarnation} still run")
        folder = self.job_dir(job)
        logs = [self.log_path(job, incarnation, rank) for rank in range(size)]
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.makedirs(os.path.dirname(logs[0]), exist_ok=True)
        except OSError as error:
            raise refusal("log", error.errno or 0, log=logs[0]) from None
        last_port = tracked.status.header.port if tracked.status else 0
        port = free_port(other_than=last_port) if launch.nproc is not None else 0
        run = secrets.token_hex(8)
        own = {"SENTINEL_JOB": job, "SENTINEL_INCARNATION": str(incarnation), "SENTINEL_RUN": run}
        here = os.path.dirname(logs[0])
        flight.prune(os.path.dirname(here), incarnation)
        prefix = os.path.join(here, flight.PREFIX)
        own |= flight.wanted(prefix, launch.env | env)
        fields = order_fields(launch, incarnation, size, env | own, run, port, logs)
        link = await tracked.supervisor()
        answer = await link.start(fields)
        if answer.stage:
            names = {
                "command": launch.command[0],
                "program": os.path.join(launch.cwd, os.fsdecode(fields[5])),
            }
            raise refusal(
                answer.stage,
                answer.errno,
                cwd=launch.cwd,
                log=logs[answer.rank],
                folder=str(folder),
                **names,
            )
        tracked.begin(incarnation)
        if tracked.incarnation != incarnation:
            raise TemporaryError("the status file of the job vanished while it was started")
        return self._ranks(job, tracked.status)

    async def stop(
        self, job: str, incarnation: int, grace_s: float, ends: Callable[[], bool] = lambda: False
    ) -> StopOutcome:
        """End all processes of the incarnation; see stop.py for who gets what. Never raises, never hangs.

        `ends` says nothing here: nobody else starts it.
        """
        tracked = await self._attached(job)
        tracked.refresh()
        tracked.tell_pending()
        if tracked.incarnation > incarnation:
            return StopOutcome(gone=True)  # it was stopped before the next one started
        if tracked.incarnation < incarnation and tracked.gone():
            return StopOutcome(gone=True)  # it never started; what is left of an older one is ended, too
        return await stop_all(tracked, grace_s, self._stuck_after_s)

    async def signal_ranks(
        self, job: str, incarnation: int, ranks: Iterable[int], name: str
    ) -> SignalOutcome:
        """Send a signal (`SIGUSR1`) to ranks that catch it, never to launchers or helpers."""
        signo = signal.Signals[name]
        found = self.find_ranks(job, incarnation)
        sent: list[int] = []
        refused: dict[int, str] = {}
        for rank in ranks:
            proc = found.get(rank)
            if proc is None or proc.dead:
                refused[rank] = "gone"
            elif not catches_signal(proc.pid, signo):
                refused[rank] = f"does not catch {name}"
            elif send_signal(proc.pid, proc.start_ticks, signo):
                sent.append(rank)
            else:
                refused[rank] = "gone"
        return SignalOutcome(sent=tuple(sent), refused=refused)

    async def stacks(self, job: str, incarnation: int, ranks: Iterable[int]) -> tuple[str, ...]:
        """One text per rank, bounded in time and size; where a stack cannot be had, the reason."""
        found = self.find_ranks(job, incarnation)
        own = set(ranks)
        # A launcher's ranks have numbers of their own.
        wanted = own if found.keys() <= own else found.keys()
        texts = await stacks.collect({rank: found.get(rank) for rank in sorted(wanted)})
        top = next(iter(found.values())) if len(found) == len(texts) == 1 else None
        below = await spawned(top, texts[0]) if top else {}
        return await stacks.collect(below) if below else texts

    async def stuck(self, job: str, incarnation: int) -> Stuck | None:
        return await flight.stuck_in(os.path.dirname(self.log_path(job, incarnation, 0)))

    async def release(self, job: str) -> None:
        """The supervisor ends as soon as nothing of the job is left. Its files stay."""
        tracked = self._tracked.pop(job, None)
        if tracked:
            if tracked.link:
                tracked.link.quit()
            tracked.detach()

    # ------------------------------------------------------------ besides the protocol

    async def adopt(self, job: str) -> Adopted:
        """After Sentinel was killed: find the job's newest incarnation and follow it from now on."""
        tracked = await self._attached(job)
        if tracked.status is None:
            return Adopted(supervisor_alive=tracked.link is not None)
        exits, tracked.pending = tracked.pending, []
        running = {slot.rank for slot in tracked.running()}
        return Adopted(
            incarnation=tracked.incarnation,
            ranks=[rank for rank in self._ranks(job, tracked.status) if rank.rank in running],
            ended=[rank for rank in self._ranks(job, tracked.status) if rank.rank not in running],
            exits=exits,
            supervisor_alive=tracked.supervised,
            ended_unknown=tuple(sorted(tracked.ended_unknown)),
            rebooted=tracked.status.header.boot_id != boot_id(),
            half_started=_half_started(tracked.status),
        )

    async def save_capable(self, job: str, incarnation: int, name: str) -> dict[int, bool]:
        """Which living ranks catch the signal `name` now."""
        signo = signal.Signals[name]
        found = self.find_ranks(job, incarnation)
        return {
            rank: catches_signal(proc.pid, signo) for rank, proc in sorted(found.items()) if not proc.dead
        }

    async def files(self, job: str, incarnation: int, cwd: str, pattern: str) -> Files:
        """From a thread: a file system that hangs must not hold up the loop that protects the job."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Files] = loop.create_future()

        def tell(found: Files | Unseen) -> None:
            if answer.done():
                return
            if isinstance(found, Unseen):
                answer.set_exception(TemporaryError(str(found)))
            else:
                answer.set_result(found)

        def work() -> None:
            try:
                found: Files | Unseen = files(cwd, pattern)
            except Unseen as why:
                found = why
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(tell, found)

        # A daemon: one that hangs in the kernel must not keep the process from ending.
        threading.Thread(target=work, name="files", daemon=True).start()
        return await answer

    def find_ranks(self, job: str, incarnation: int) -> dict[int, Proc]:
        """The living ranks: those we started or, where CMD is a launcher, those that it started, by their numbers.

        Launchers that know nothing of each other number alike; then they are counted through.
        """
        found = self.find_workers(job, incarnation)
        ordered = [(number, proc) for _, own in sorted(found.items()) for number, proc in sorted(own.items())]
        if len({number for number, _ in ordered}) == len(ordered):
            return dict(sorted(ordered))
        return {number: proc for number, (_, proc) in enumerate(ordered)}

    def find_workers(self, job: str, incarnation: int) -> dict[int, dict[int, Proc]]:
        """Of each living rank that we started: itself by its own number or, where CMD is a launcher, its workers."""
        status = self._status(job)
        if status is None or status.header.incarnation != incarnation or status.header.boot_id != boot_id():
            return {}
        alive = {
            slot.rank: proc
            for slot in status.slots.values()
            if (proc := read_proc(slot.pid)) and proc.start_ticks == slot.start_ticks and not proc.dead
        }
        table = scan() if alive else {}
        if not status.header.port:
            return {rank: find_ranks(proc, table) for rank, proc in alive.items()}
        # A port was given: the ranks are ours, unless each of them is a launcher.
        tops = {rank: below_wrappers(proc, table) for rank, proc in alive.items()}
        may_be = {rank: is_launcher(top.pid) or is_shell(top.pid) for rank, top in tops.items()}
        below = {rank: find_workers(top, table) if may_be[rank] else {} for rank, top in tops.items()}
        if below and all(below.values()):
            return below
        return {rank: {rank: top} for rank, top in tops.items()}

    def processes(self, job: str, incarnation: int) -> list[int]:
        """Pids of everything that belongs to the incarnation, ranks and helpers."""
        tracked = self._tracked.get(job)
        if tracked is None or tracked.incarnation != incarnation:
            return []
        return [proc.pid for proc in tracked.members()]

    def use(self, job: str, incarnation: int) -> dict[int, Use]:
        """I/O and CPU of each living rank with all its descendants: one scan of /proc."""
        found = self.find_ranks(job, incarnation)
        return tree_use({rank: proc.pid for rank, proc in found.items()}, scan())

    def job_dir(self, job: str) -> Path:
        """Raises PermanentError for a name that is no file name."""
        if not job or job in (".", "..") or "/" in job or "\0" in job or len(os.fsencode(job)) > 200:
            raise PermanentError(f"{job!r} cannot name a job: it must be usable as a file name", "BadName")
        return self._jobs_dir / job

    def log_path(self, job: str, incarnation: int, rank: int) -> str:
        return str(self.job_dir(job) / "logs" / str(incarnation) / f"rank-{rank}.log")

    def close(self) -> None:
        """Let go of every job; they and their supervisors go on."""
        for tracked in self._tracked.values():
            tracked.detach()
        self._tracked.clear()

    # ------------------------------------------------------------ inside

    async def _attached(self, job: str) -> Tracked:
        tracked = self._tracked.get(job)
        if tracked is None:
            tracked = Tracked(job, self.job_dir(job), self._on_exit, self._on_lost)
            await tracked.attach()
            self._tracked[job] = tracked
        return tracked

    def _status(self, job: str) -> Status | None:
        tracked = self._tracked.get(job)
        return tracked.status if tracked else read_status(self.job_dir(job))

    def _ranks(self, job: str, status: Status | None) -> list[RankProcess]:
        slots = sorted(status.slots.values(), key=lambda slot: slot.rank) if status else []
        return [self._rank(job, status, slot) for slot in slots if status]

    def _rank(self, job: str, status: Status, slot: Slot) -> RankProcess:
        return RankProcess(
            rank=slot.rank,
            pid=slot.pid,
            start_ticks=slot.start_ticks,
            log_path=self.log_path(job, status.header.incarnation, slot.rank),
            started_mono_s=slot.started_mono_s,
        )


def _half_started(status: Status | None) -> bool:
    return status is not None and len(status.slots) < status.header.size
