"""What tells that a launcher has started its ranks again: other processes, and torchrun's own number."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sentinel.cluster.local.processes import Proc, children_of, read_proc, scan
from sentinel.cluster.local.relaunch import TORCHRUN, Relaunches
from tests.waits import until

NAP = "import sys; sys.stdin.read()"
SCRIPT = "while read line; do kill $! 2>/dev/null; sleep 60 & done; kill $!"


class Programs:
    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._latest = 0

    def start(
        self, restarts: int | None = None, ranked: bool = True, script: bool = False
    ) -> tuple[Proc, subprocess.Popen[bytes]]:
        """One that began after all others did."""
        env = os.environ | ({} if restarts is None else {TORCHRUN: str(restarts)})
        env |= {"RANK": "0", "LOCAL_RANK": "0"} if ranked else {}
        while True:
            command = ["sh", "-c", SCRIPT, "-ISc"] if script else [sys.executable, "-ISc", NAP]
            running = subprocess.Popen(command, stdin=subprocess.PIPE, env=env)
            self._stack.callback(running.wait)
            self._stack.callback(running.kill)
            started = Path(f"/proc/{running.pid}/cmdline")
            until(lambda started=started: b"-ISc" in started.read_bytes())  # before it is another program
            proc = read_proc(running.pid)
            assert proc is not None
            if proc.start_ticks > self._latest:
                self._latest = proc.start_ticks
                return proc, running


@pytest.fixture
def programs() -> Iterator[Programs]:
    with ExitStack() as stack:
        yield Programs(stack)


def end(running: subprocess.Popen[bytes]) -> None:
    running.kill()
    running.wait()


def test_ranks_that_come_one_after_the_other_are_no_restart(programs: Programs) -> None:
    seen = Relaunches()
    launcher, _ = programs.start(ranked=False)
    first, _ = programs.start()
    second, _ = programs.start()
    assert seen.count("c", {0: launcher}) == 0  # it stands for its ranks before there are any
    assert seen.count("c", {0: first}) == 0
    assert seen.count("c", {0: first, 1: second}) == 0


def test_another_process_in_the_place_of_one_that_is_gone_is_a_restart(programs: Programs) -> None:
    seen = Relaunches()
    launcher, _ = programs.start(ranked=False)
    first, running = programs.start()
    assert seen.count("c", {0: first}) == 0
    end(running)
    assert seen.count("c", {0: launcher}) == 0  # none is there yet
    again, running = programs.start()
    assert seen.count("c", {5: again}) == 1  # a launcher may number them anew
    assert seen.count("c", {5: again}) == 1
    assert seen.count("other", {5: again}) == 0
    end(running)
    third, _ = programs.start()
    assert seen.count("c", {0: third}) == 2


def test_torchruns_own_number_tells_what_nobody_saw(programs: Programs) -> None:
    seen = Relaunches()
    rank, running = programs.start(restarts=3)
    assert seen.count("c", {0: rank}) == 3
    end(running)
    again, _ = programs.start(restarts=4)
    assert seen.count("c", {0: again}) == 4
    seen.forget(["c"])
    odd, _ = programs.start()
    assert seen.count("c", {0: odd}) == 0


def test_programs_that_a_script_runs_one_after_the_other_are_no_restart(programs: Programs) -> None:
    """Each look at a rank that is a shell finds what that runs just now."""
    seen = Relaunches()
    shell, running = programs.start(script=True)
    before = 0
    for _ in range(3):
        assert running.stdin is not None
        running.stdin.write(b"next\n")
        running.stdin.flush()
        child = until(lambda before=before: other_child(shell, before))
        assert seen.count("c", {0: child}) == 0
        before = child.pid
    running.stdin.close()
    running.wait()
    plain, first = programs.start(ranked=False)
    assert seen.count("d", {0: plain}) == 0
    end(first)
    after, _ = programs.start(ranked=False)
    assert seen.count("d", {0: after}) == 0


def other_child(shell: Proc, than: int) -> Proc | None:
    children = children_of(scan()).get(shell.pid, ())
    return next((child for child in children if not child.dead and child.pid != than), None)
