"""The job outlives Sentinel: what is known after Sentinel, the supervisor, or both were killed."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from sentinel.cluster.local.processes import read_proc
from sentinel.cluster.local.status import SLOT_BYTES, read_status
from sentinel.util.errors import TemporaryError
from tests.cluster.local_jobs import Site, alive, python, with_site
from tests.waits import eventually

SLEEP = ("sleep", "600")
SENTINEL_SIDE = """
import asyncio, sys
from pathlib import Path
from tests.cluster.local_jobs import Site, python

async def main():
    site = Site(Path(sys.argv[1]))
    await site.start(tuple(sys.argv[2:]), nproc=2)
    print("started", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def start_elsewhere(root: Path, command: tuple[str, ...]) -> subprocess.Popen[str]:
    """Start the job from another process, in a session of its own as a terminal gives one."""
    process = subprocess.Popen(
        [sys.executable, "-c", SENTINEL_SIDE, str(root), *command],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout
    assert process.stdout.readline() == "started\n"
    process.stdout.close()
    return process


def wait_for_file(path: Path) -> tuple[str, ...]:
    code = f"""
        import os, sys, time
        while not os.path.exists({str(path)!r}):
            time.sleep(0.01)
        sys.exit(40 + int(os.environ['RANK']))
    """
    return python(code)


@with_site
async def test_exit_statuses_survive_a_killed_sentinel(site: Site) -> None:
    """One rank ends while nobody looks, the other after the job was adopted."""
    go = site.root / "go"
    sentinel = start_elsewhere(site.root, wait_for_file(go))
    sentinel.kill()
    sentinel.wait()
    status = read_status(site.cluster.job_dir("job"))
    assert status
    os.kill(status.slots[0].pid, signal.SIGKILL)
    await eventually(lambda: not alive(status.slots[0].pid))
    adopted = await site.cluster.adopt("job")
    assert adopted.supervisor_alive
    assert (adopted.incarnation, adopted.ended_unknown, adopted.rebooted) == (1, (), False)
    assert [(exit.rank, exit.signal) for exit in adopted.exits] == [(0, signal.SIGKILL)]
    assert [(rank.rank, rank.pid) for rank in adopted.ranks] == [(1, status.slots[1].pid)]
    go.touch()
    assert (await site.ended(1)).code == 41
    assert [exit.rank for exit in site.exits] == [1]  # what adopt told is not told again


@with_site
async def test_the_supervisor_leaves_and_the_statuses_stay(site: Site) -> None:
    go = site.root / "go"
    sentinel = start_elsewhere(site.root, wait_for_file(go))
    sentinel.kill()
    sentinel.wait()
    status = read_status(site.cluster.job_dir("job"))
    assert status
    go.touch()
    await eventually(lambda: read_proc(status.header.supervisor) is None, "the end of the idle supervisor")
    adopted = await site.cluster.adopt("job")
    assert sorted((exit.rank, exit.code) for exit in adopted.exits) == [(0, 40), (1, 41)]
    assert (adopted.ranks, adopted.supervisor_alive) == ([], False)
    ranks = await site.start(SLEEP, incarnation=2)
    assert alive(ranks[0].pid)


@with_site
async def test_neither_hangup_nor_interrupt_of_the_session_reaches_the_job(site: Site) -> None:
    sentinel = start_elsewhere(site.root, SLEEP)
    os.killpg(sentinel.pid, signal.SIGINT)
    sentinel.wait()
    status = read_status(site.cluster.job_dir("job"))
    assert status
    os.kill(status.header.supervisor, signal.SIGHUP)
    os.kill(status.header.supervisor, signal.SIGTERM)
    assert all(alive(slot.pid) for slot in status.slots.values())
    adopted = await site.cluster.adopt("job")
    assert adopted.supervisor_alive
    assert len(adopted.ranks) == 2


@with_site
async def test_without_its_supervisor_the_end_of_a_rank_is_seen_but_its_status_is_unknown(site: Site) -> None:
    ranks = await site.start(SLEEP, nproc=2)
    os.kill(site.supervisor_pid(), signal.SIGKILL)
    await eventually(lambda: site.lost == ["job"], "word of the lost supervisor")
    assert site.exits == []
    assert all(alive(rank.pid) for rank in ranks)
    os.kill(ranks[0].pid, signal.SIGKILL)
    assert (await site.ended(0)).unknown
    assert (await site.cluster.stop("job", 1, 5.0)).gone
    assert (await site.ended(1)).stopped_by_us
    site.exits.clear()
    await site.start(("true",), incarnation=2)  # a new supervisor comes to life
    assert (await site.ended()).code == 0


@with_site
async def test_sentinel_and_supervisor_killed_leave_a_job_that_is_adopted_and_stopped_whole(
    site: Site,
) -> None:
    code = """
        import os, time
        if os.fork() == 0:
            os.setsid()
            if os.fork():
                os._exit(0)
            time.sleep(600)
        os.wait()
        print('ready')
        time.sleep(600)
    """
    sentinel = start_elsewhere(site.root, python(code))
    await site.logged("ready", rank=0)
    await site.logged("ready", rank=1)
    status = read_status(site.cluster.job_dir("job"))
    assert status
    sentinel.kill()
    sentinel.wait()
    os.kill(status.header.supervisor, signal.SIGKILL)
    os.kill(status.slots[1].pid, signal.SIGKILL)
    await eventually(lambda: not alive(status.slots[1].pid) and not alive(status.header.supervisor))
    adopted = await site.cluster.adopt("job")
    assert not adopted.supervisor_alive
    assert adopted.ended_unknown == (1,)
    assert [(exit.rank, exit.unknown) for exit in adopted.exits] == [(1, True)]
    assert [rank.rank for rank in adopted.ranks] == [0]
    pids = site.cluster.processes("job", 1)
    assert len(pids) == 3  # one rank, and two daemons that no tree leads to
    assert (await site.cluster.stop("job", 1, 2.0)).gone
    assert not any(alive(pid) for pid in pids)
    assert (await site.ended(0)).unknown


def change_slot(folder: Path, incarnation: int, index: int, old: str, new: str) -> None:
    path = folder / f"status.{incarnation % 2}"
    data = bytearray(path.read_bytes())
    line = data[index * SLOT_BYTES : (index + 1) * SLOT_BYTES].decode().rstrip()
    assert old in line
    data[index * SLOT_BYTES : (index + 1) * SLOT_BYTES] = (
        line.replace(old, new).ljust(SLOT_BYTES - 1).encode() + b"\n"
    )
    path.write_bytes(data)


@with_site
async def test_a_pid_that_was_reused_is_nobody_of_ours(site: Site) -> None:
    (rank,) = await site.start(SLEEP)
    os.kill(site.supervisor_pid(), signal.SIGKILL)
    await eventually(lambda: site.lost)
    old, new = f'"start_ticks":{rank.start_ticks}', f'"start_ticks":{rank.start_ticks - 1}'
    change_slot(site.cluster.job_dir("job"), 1, 1, old, new)
    later = Site(site.root)
    adopted = await later.cluster.adopt("job")
    assert (adopted.ranks, adopted.ended_unknown) == ([], (0,))
    assert (await later.cluster.signal_ranks("job", 1, [0], "SIGUSR1")).refused == {0: "gone"}
    assert alive(rank.pid)
    later.cluster.close()


@with_site
async def test_after_a_reboot_nothing_is_taken_for_a_rank_and_nothing_is_killed(site: Site) -> None:
    ranks = await site.start(SLEEP, nproc=2)
    os.kill(site.supervisor_pid(), signal.SIGKILL)
    await eventually(lambda: site.lost)
    status = read_status(site.cluster.job_dir("job"))
    assert status
    change_slot(site.cluster.job_dir("job"), 1, 0, status.header.boot_id, "0" * len(status.header.boot_id))
    later = Site(site.root)
    adopted = await later.cluster.adopt("job")
    assert adopted.rebooted
    assert adopted.ended_unknown == (0, 1)
    assert (await later.cluster.stop("job", 1, 5.0)).gone
    assert all(alive(rank.pid) for rank in ranks)
    later.cluster.close()


@with_site
async def test_a_newer_sentinel_takes_over_and_the_older_one_falls_silent(site: Site) -> None:
    (rank,) = await site.start(SLEEP)
    newer = Site(site.root)
    assert (await newer.cluster.adopt("job")).supervisor_alive
    os.kill(rank.pid, signal.SIGKILL)
    assert (await newer.ended()).signal == signal.SIGKILL
    assert site.exits == []
    assert site.lost == []
    newer.cluster.close()


@with_site
async def test_adopting_what_was_never_started_finds_nothing(site: Site) -> None:
    adopted = await site.cluster.adopt("job")
    assert (adopted.incarnation, adopted.ranks, adopted.exits) == (0, [], [])


@with_site
async def test_a_supervisor_that_was_launched_twice_is_one(site: Site) -> None:
    """Either may be cut off by the other, both even; who asks again finds what was started."""
    second = Site(site.root)
    results = await asyncio.gather(site.start(SLEEP), second.start(SLEEP), return_exceptions=True)
    assert all(isinstance(result, list | TemporaryError) for result in results), results
    started = [result for result in results if isinstance(result, list)]
    started += [await one.start(SLEEP) for one in (second, site)]
    assert len({rank.pid for ranks in started for rank in ranks}) == 1
    second.cluster.close()
