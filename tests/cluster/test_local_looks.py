"""Real processes that wait, spin, compute, read and move: which of them stand still."""

import asyncio
import sys
import textwrap
from pathlib import Path

import pytest

from sentinel.agent.jobs import numbered
from sentinel.cluster.local import stacks
from sentinel.cluster.local.processes import Proc
from sentinel.core.stacks.stillness import Looks
from tests.cluster.local_jobs import Site, python, with_site
from tests.waits import eventually


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine starts py-spy slowly."""
    monkeypatch.setattr(stacks, "EACH_S", 60.0)
    monkeypatch.setattr(stacks, "TOTAL_S", 120.0)


async def two_looks(site: Site) -> Looks:
    looks, loop = Looks(), asyncio.get_running_loop()
    looks.fold(await site.cluster.stacks("job", 1, [0]), loop.time(), 0.0, ranks=1)
    looks.fold(await site.cluster.stacks("job", 1, [0]), loop.time(), 0.0, ranks=1)
    return looks


async def stands(site: Site, looks_are: str) -> None:
    """A busy machine may give a program or a look no time at first: so it is looked at again."""
    seen = ["nothing"]

    async def found() -> bool:
        looks = await two_looks(site)
        seen[0] = looks.doubt or "still"
        return looks_are in seen[0]

    await eventually(found, lambda: f"{looks_are!r}, last: {seen[0]!r}")


LOCKED = """
    import threading
    print('ready')
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
"""
# In a module of that name: a collective spins in one call while it waits for the GPU.
COLLECTIVE = """
    import hashlib
    def all_reduce():
        hashlib.pbkdf2_hmac("sha256", b"a", b"b", 2_000_000_000)
"""


@with_site
async def test_a_rank_that_waits_for_a_lock_stands_still(site: Site) -> None:
    await site.start(python(LOCKED))
    await site.logged("ready")
    await stands(site, "still")


@with_site
async def test_a_rank_that_spins_in_a_collective_stands_still(site: Site) -> None:
    package = site.root / "torch" / "distributed"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").write_text(textwrap.dedent(COLLECTIVE))
    program = site.root / "train.py"
    program.write_text("from torch.distributed import all_reduce\nprint('ready', flush=True)\nall_reduce()\n")
    await site.start((sys.executable, str(program)))
    await site.logged("ready")
    await stands(site, "still")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (
            "import hashlib\nprint('ready')\nhashlib.pbkdf2_hmac('sha256', b'a', b'b', 2_000_000_000)",
            "may compute",
        ),
        ("import signal\nprint('ready')\nsignal.pause()", "may wait for something outside the job"),
        ("f = open('/dev/zero', 'rb', 0)\nprint('ready')\nwhile True: f.read(1 << 20)", "reads or writes"),
        (
            "import subprocess, sys\nprint('ready')\n"
            "subprocess.run([sys.executable, '-c', 'while True: pass'], check=False)",
            "has helper processes that compute",
        ),
        (
            "import subprocess, sys\nprint('ready')\n"
            "while True: subprocess.run([sys.executable, '-S', '-c', 'sum(range(10**6))'], check=False)",
            "rank 0 ",
        ),
        (
            "import socket\nfrom concurrent.futures import ThreadPoolExecutor\n"
            "one, other = socket.socketpair()\nreader = other.makefile('rb')\n"
            "print('ready')\nThreadPoolExecutor(1).submit(reader.read, 1).result()",  # the answer of a far host
            "may wait for something outside the job",
        ),
    ],
)
def test_a_rank_that_may_be_at_work_does_not(code: str, why: str, tmp_path: Path) -> None:
    @with_site
    async def looked_at(site: Site) -> None:
        await site.start(python(code))
        await site.logged("ready")
        await stands(site, why)

    looked_at(tmp_path)


# It goes on where a file says so, and waits in a lock then.
PHASES = """
    import os, threading
    def first():
        while not os.path.exists('on'):
            threading.Event().wait(0.02)
    def second():
        print('on')
        threading.Event().wait()
    print('ready')
    first()
    second()
"""


@with_site
async def test_a_rank_that_has_moved_between_two_looks_does_not(site: Site) -> None:
    await site.start(python(PHASES))
    await site.logged("ready")
    looks = Looks()
    looks.fold(await site.cluster.stacks("job", 1, [0]), 100.0, 0.0, ranks=1)
    (site.root / "on").touch()
    await site.logged("on\n")
    looks.fold(await site.cluster.stacks("job", 1, [0]), 200.0, 0.0, ranks=1)
    assert (looks.count, looks.still_s) == (1, 0.0)
    assert "moves: it stood in " in looks.doubt
    assert "then in second (<string>:" in looks.doubt


@with_site
async def test_where_python_cannot_be_read_a_rank_that_sleeps_does_not(site: Site) -> None:
    await site.start(("sleep", "600"))
    await stands(site, "no stack can be had (")


def test_the_only_process_of_a_pod_has_the_number_of_the_pod() -> None:
    """RANK without LOCAL_RANK counts machines on some platforms: such a process is rank 0 to itself."""
    procs = [Proc(pid, 1, 1, "S", 1, 0.0) for pid in range(10, 14)]
    found = {0: {0: procs[0]}, 1: {0: procs[1]}, 2: {4: procs[2], 5: procs[3]}}
    assert numbered(found) == {0: procs[0], 1: procs[1], 4: procs[2], 5: procs[3]}
