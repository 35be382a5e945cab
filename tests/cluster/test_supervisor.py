"""The supervisor's own promises: statuses on a full disk, a Sentinel that does not read, memory kills."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.cluster.local import supervisor
from sentinel.cluster.local.cluster import LocalCluster
from sentinel.cluster.local.status import SLOT_BYTES, parse_status, read_status
from sentinel.core.reports import Orphan
from tests.cluster.local_jobs import Site, python, with_site
from tests.waits import eventually

SLEEP = ("sleep", "600")


@with_site
async def test_a_disk_that_fills_up_loses_no_exit_status_and_hinders_no_restart(site: Site) -> None:
    """No file of the supervisor may grow any more: the same as no block being left."""
    ranks = await site.start(SLEEP, nproc=2)
    size_bytes = 4 * SLOT_BYTES
    resource.prlimit(site.supervisor_pid(), resource.RLIMIT_FSIZE, (size_bytes, size_bytes))
    folder = site.cluster.job_dir("job")
    sizes = [(folder / name).stat().st_size for name in ("status.0", "status.1")]
    assert sizes == [size_bytes] * 2  # also the file of the next incarnation has its blocks already
    for incarnation in (1, 2, 3):
        os.kill(ranks[0].pid, signal.SIGKILL)
        assert (await site.cluster.stop("job", incarnation, 5.0)).gone
        status = read_status(folder)
        assert status
        assert status.header.incarnation == incarnation
        assert [status.slots[rank].signal for rank in (0, 1)] == [signal.SIGKILL, signal.SIGTERM]
        ranks = await site.start(SLEEP, incarnation + 1, nproc=2)
    assert [(folder / name).stat().st_size for name in ("status.0", "status.1")] == [size_bytes] * 2


@with_site
async def test_exits_are_kept_for_a_sentinel_that_does_not_read(site: Site) -> None:
    """The supervisor never waits for Sentinel: here one that stands still while ranks die."""
    ranks = await site.start(SLEEP, nproc=64)
    tracked = site.cluster._tracked["job"]
    assert tracked.link
    assert tracked.link._transport
    tracked.link._transport.pause_reading()
    for rank in ranks:
        os.kill(rank.pid, signal.SIGKILL)
    folder = site.cluster.job_dir("job")
    await eventually(lambda: all(slot.signal for slot in read_status(folder).slots.values()))
    tracked.link._transport.resume_reading()
    await eventually(lambda: len(site.exits) == 64)


@with_site
async def test_nonsense_on_the_socket_only_costs_the_connection(site: Site) -> None:
    (rank,) = await site.start(SLEEP)
    link = site.cluster._tracked["job"].link
    assert link
    assert link._transport
    link._transport.write(b"\xff\xff\xff\xff" + b"x" * 100)
    await eventually(lambda: link.closed)
    await eventually(lambda: site.cluster._tracked["job"].supervised, "a new connection")
    os.kill(rank.pid, signal.SIGKILL)
    assert (await site.ended()).signal == signal.SIGKILL
    assert site.lost == []


def test_a_status_file_that_was_cut_off_or_is_blank_is_no_status() -> None:
    assert parse_status(b"") is None
    assert parse_status(b" " * SLOT_BYTES * 3) is None
    head = supervisor.HEADER % (1, 2, "run", "boot", 0, 5, 1.0, 2.0)
    status = parse_status(head.encode().ljust(SLOT_BYTES) + b'{"rank":0,"pid":')
    assert status
    assert status.slots == {}


def test_the_longest_lines_fit_their_slots() -> None:
    big = 2**31 - 1
    rank = supervisor.RANK_SLOT % (
        9999,
        big,
        2**53,
        1e9,
        4e9,
        "null",
        "64",
        "false",
        "1000000000.000000",
        "4000000000.000000",
    )
    head = supervisor.HEADER % (99999, 9999, "f" * 16, "f" * 36, 65535, big, 1e9, 4e9)
    orphan = supervisor.ORPHAN % (big, "null", "64", "false")
    orphans = f"[{','.join([orphan] * supervisor.MAX_ORPHANS)}]"
    assert max(len(rank), len(head), len(orphans)) < SLOT_BYTES


@pytest.mark.parametrize(
    ("own", "file", "text", "kills"),
    [
        (b"0::/job.slice\n", "job.slice/memory.events", "oom 3\noom_kill 2\n", 2),
        (b"0::/not/seen/from/here\n", "memory.events", "low 0\noom_kill 1\n", 1),
        (b"5:cpu:/a\n4:memory:/a\n0::/\n", "memory/a/memory.oom_control", "under_oom 0\noom_kill 4\n", 4),
    ],
)
def test_memory_kills_are_read_from_the_control_group(
    tmp_path: Path, own: bytes, file: str, text: str, kills: int
) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert supervisor.oom_kills(str(tmp_path), own) == kills


@with_site
async def test_a_plain_sigkill_is_not_taken_for_a_memory_kill(site: Site) -> None:
    (rank,) = await site.start(SLEEP)
    os.kill(rank.pid, signal.SIGKILL)
    assert not (await site.ended()).oom_killed


ORPHANS = """
import os, signal
for how in ("kill", "exit", "well", "alive"):
    pid = os.fork()
    if not pid:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "alive":
            os.read(os.open("go", os.O_RDONLY), 1)
        os._exit(3 if how == "exit" else 0 if how == "well" else 9)
    if how != "alive":
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    print(pid, flush=True)
os._exit(1)
"""


@with_site
async def test_processes_that_had_failed_when_their_parent_ended_are_told_with_its_end(site: Site) -> None:
    """By the supervisor, and by its file to a Sentinel that was not there. What ends afterwards explains nothing."""
    os.mkfifo(site.root / "go")
    await site.start(python(ORPHANS))
    gone = await site.ended()
    killed, exited, _, alive = map(int, site.log().split())
    told = (Orphan(killed, None, signal.SIGKILL, False), Orphan(exited, 3, None, False))
    assert (gone.code, gone.orphans) == (1, told)
    fd = os.open(site.root / "go", os.O_WRONLY)
    os.close(fd)
    tracked = site.cluster._tracked["job"]
    await eventually(tracked.gone, f"the end of {alive}")
    status = read_status(site.cluster.job_dir("job"))
    assert status
    assert status.orphans == told
    other = LocalCluster(site.root, lambda job, exit: None)
    adopted = await other.adopt("job")
    other.close()
    assert [exit.orphans for exit in adopted.exits] == [told]


@with_site
async def test_orphans_are_of_one_incarnation_and_only_the_newest_are_kept(site: Site) -> None:
    many = ORPHANS.replace('("kill", "exit", "well", "alive")', f'("exit",) * {supervisor.MAX_ORPHANS + 2}')
    await site.start(python(many))
    pids = [int(word) for word in (await site.ended(), site.log())[1].split()]
    assert [one.pid for one in site.exits[0].orphans] == pids[2:]
    await eventually(site.cluster._tracked["job"].gone)
    await site.start(("false",), incarnation=2)
    await eventually(lambda: len(site.exits) == 2)
    assert (site.exits[1].code, site.exits[1].orphans) == (1, ())


def test_the_supervisor_imports_only_what_the_interpreter_has_built_in() -> None:
    code = f"""
import sys
before = set(sys.modules)
sys.argv = ["supervisor"]
exec(compile(open({supervisor.__file__!r}).read(), "supervisor", "exec"), {{"__name__": "supervisor"}})
print(*sorted(set(sys.modules) - before))
"""
    printed = subprocess.run(
        [sys.executable, "-I", "-S", "-E", "-c", code], capture_output=True, text=True, check=True
    )
    assert set(printed.stdout.split()) <= {"_socket", "select"}
