"""The wrapper that holds containers, under the shells that images have."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.cluster.local.processes import Proc, children_of, cmdline, find_ranks, read_proc, scan
from sentinel.core.job.hold import held_code
from tests.e2e.held import hold_script
from tests.waits import until

SHELLS = ("dash", "bash", "busybox")  # as an image's /bin/sh
BURSTS = 5000  # under bash one in some hundred ended it once
PASSED = ("HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "TERM")
LISTENS = """
import os, signal, sys
for name in sys.argv[1:]:
    signal.signal(getattr(signal, "SIG" + name), lambda number, _: os.write(1, b"got %d\\n" % number))
os.write(1, b"ready\\n")
while True:
    signal.pause()
"""
SUBREAPER = "import ctypes, os, sys; ctypes.CDLL(None).prctl(36, 1); os.execvp(sys.argv[1], sys.argv[1:])"


def children(pid: int) -> list[Proc]:
    return children_of(scan()).get(pid, [])


class Wrapped:
    """A command under the wrapper; what both print goes to files."""

    def __init__(self, script: Path, shell: str, folder: Path) -> None:
        self.script, self.shell, self.folder = script, shell, folder
        self.sh = folder / "sh"
        self.sh.symlink_to(shutil.which(shell) or "")
        self.before: list[str] = []
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *command: str, hold: str = "1h", **more: str) -> "Wrapped":
        out, err = (self.folder / name for name in ("out", "err"))
        self.process = subprocess.Popen(
            [*self.before, str(self.sh), str(self.script), "--", *command],
            env={**os.environ, "SENTINEL_HOLD": hold, **more},
            stdin=subprocess.PIPE,
            stdout=out.open("wb"),
            stderr=err.open("wb"),
            start_new_session=True,
        )
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def out(self) -> str:
        return (self.folder / "out").read_text()

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text()

    def held(self) -> int | None:
        """With which code its command ended, as an agent sees it."""
        codes = [held_code(cmdline(child.pid)) for child in children_of(scan()).get(self.pid, ())]
        return next((code for code in codes if code is not None), None)

    def until_held(self, code: int) -> None:
        until(lambda: self.held() is not None, lambda: self.err)
        assert self.held() == code

    def send(self, name: str) -> None:
        os.kill(self.pid, getattr(signal, f"SIG{name}"))

    def code(self) -> int:
        assert self.process is not None
        return self.process.wait(180)

    def close(self) -> None:
        if self.process is not None:
            if self.process.poll() is None:
                self.send("STOP")  # else it would hold what is killed here
                for child in children_of(scan()).get(self.pid, ()):
                    os.kill(child.pid, signal.SIGKILL)
            self.process.kill()
            self.process.wait(180)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)  # the nap of ten seconds that the wrapper leaves behind
            if self.process.stdin is not None:
                self.process.stdin.close()


@pytest.fixture(params=SHELLS)
def wrapped(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Wrapped]:
    made = Wrapped(hold_script(tmp_path), request.param, tmp_path)
    yield made
    made.close()


def test_a_command_that_ends_well_is_not_held_and_its_input_and_arguments_are_its_own(
    wrapped: Wrapped,
) -> None:
    script = 'printf "%s;" "$@"; cat'
    wrapped.start("sh", "-c", script, "zero", "a b", "", "*")
    assert wrapped.process is not None
    assert wrapped.process.stdin is not None
    wrapped.process.stdin.write(b"input")
    wrapped.process.stdin.close()
    assert wrapped.code() == 0
    assert (wrapped.out, wrapped.err) == ("a b;;*;input", "")


def test_every_signal_reaches_the_command_and_the_wrapper_lives_on(wrapped: Wrapped) -> None:
    wrapped.start(sys.executable, "-ISu", "-c", LISTENS, *PASSED)
    until(lambda: "ready" in wrapped.out)
    for count, name in enumerate(PASSED, 1):
        wrapped.send(name)
        until(lambda count=count: wrapped.out.count("got") == count, lambda: wrapped.out)
        assert f"got {getattr(signal, f'SIG{name}').value}\n" in wrapped.out
    assert wrapped.held() is None


def test_a_signal_whose_default_ends_a_program_ends_this_one_too(wrapped: Wrapped) -> None:
    """But where neither sh nor env can bring SIGINT back: docs/hold.md says so."""
    wrapped.start(sys.executable, "-ISu", "-c", LISTENS)
    until(lambda: "ready" in wrapped.out)
    wrapped.send("INT")
    if wrapped.shell == "busybox":
        wrapped.send("TERM")
    assert wrapped.code() == (128 + signal.SIGTERM if wrapped.shell == "busybox" else 128 + signal.SIGINT)


def test_an_error_is_held_shown_and_let_go_with_its_own_code(wrapped: Wrapped) -> None:
    wrapped.start("sh", "-c", "exit 3")
    wrapped.until_held(3)
    until(lambda: "the command ended with code 3" in wrapped.err)  # said after the child has begun
    for name in ("HUP", "USR1", "USR2", "ALRM"):  # of somebody who does not know that it has ended
        wrapped.send(name)
    assert wrapped.held() == 3
    wrapped.send("TERM")
    assert wrapped.code() == 3


@pytest.mark.parametrize("held", [True, False], ids=["held", "running"])
def test_signals_that_come_close_together_end_nothing(wrapped: Wrapped, held: bool) -> None:
    """A shell may say of one that came just before it waits that it came while it waited."""
    ignores = "import signal; [signal.signal(s, signal.SIG_IGN) for s in (1, 10, 12, 14)]; "
    lives = f"{ignores}print('ready', flush=True); signal.pause()"
    wrapped.start(*(("sh", "-c", "exit 3") if held else (sys.executable, "-ISc", lives)))
    if held:
        wrapped.until_held(3)
    else:
        until(lambda: "ready" in wrapped.out)
    assert wrapped.process is not None
    for count in range(BURSTS):
        for name in ("HUP", "USR1", "USR2", "ALRM"):
            wrapped.send(name)
        if count % 20 == 0:
            time.sleep(0.001)  # so that it waits again in between
        assert wrapped.process.poll() is None, f"after {count} bursts"
    assert wrapped.held() == (3 if held else None)
    wrapped.send("TERM")
    assert wrapped.code() == (3 if held else 128 + signal.SIGTERM)


def test_a_death_by_signal_is_told_as_shells_tell_it(wrapped: Wrapped) -> None:
    wrapped.start("sh", "-c", "kill -KILL $$")
    wrapped.until_held(137)
    wrapped.send("TERM")
    assert wrapped.code() == 137


@pytest.mark.parametrize(("hold", "code"), [("1", 4), ("1s", 4), ("0", 4), ("0h", 4)])
def test_the_hold_ends_by_itself(wrapped: Wrapped, hold: str, code: int) -> None:
    wrapped.start("sh", "-c", "exit 4", hold=hold)
    assert wrapped.code() == code
    assert ("kept for 1 s" in wrapped.err) is hold.startswith("1")


@pytest.mark.parametrize("hold", ["4 h", "soon", "-1", "1.5h", "h", "09s", "99999999d", "$(id)"])
def test_a_time_that_is_none_is_told_and_four_hours_are_taken(wrapped: Wrapped, hold: str) -> None:
    wrapped.start("sh", "-c", "exit 4", hold=hold)
    until(lambda: "kept for 14400 s" in wrapped.err)
    assert f"SENTINEL_HOLD={hold} is no time" in wrapped.err


def test_a_command_that_was_asked_to_end_is_not_held(wrapped: Wrapped) -> None:
    script = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done"
    wrapped.start("sh", "-c", script)
    until(lambda: "ready" in wrapped.out)
    wrapped.send("TERM")
    assert wrapped.code() == 9


def test_a_command_that_is_not_there_is_held_with_the_usual_code(wrapped: Wrapped) -> None:
    wrapped.start("no-such-program", PATH="/usr/bin:/bin")  # with a folder that is forbidden it would be 126
    wrapped.until_held(127)
    assert "no-such-program" in wrapped.err


@pytest.mark.parametrize("arguments", [[], ["--"], ["true"], ["-x", "--", "true"]])
def test_wrong_use_is_said(wrapped: Wrapped, arguments: list[str]) -> None:
    done = subprocess.run([wrapped.sh, wrapped.script, *arguments], capture_output=True, text=True)
    assert done.returncode == 125
    assert "usage: " in done.stderr


def test_a_flood_of_signals_loses_neither_command_nor_code(wrapped: Wrapped) -> None:
    script = """
import os, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: None)
print("ready", os.getpid(), flush=True)
for _ in range(300):  # of the flood it gets many as one
    signal.pause()
os._exit(6)
"""
    wrapped.start(sys.executable, "-ISu", "-c", script)
    until(lambda: "ready" in wrapped.out)

    def flooded() -> bool:
        for _ in range(20):
            wrapped.send("USR1")
        return wrapped.held() is not None

    until(
        flooded, lambda: f"{wrapped.out} {wrapped.err} {[cmdline(one.pid) for one in children(wrapped.pid)]}"
    )
    code = wrapped.held()
    wrapped.send("TERM")
    assert wrapped.code() == code
    if wrapped.shell == "bash" and code == 128 + signal.SIGUSR1:  # bash may lose it, rarely
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(wrapped.out.split()[1]), signal.SIGKILL)
    else:
        assert code == 6


def test_a_rank_is_the_command_and_never_the_wrapper_or_an_orphan_that_it_took_in(wrapped: Wrapped) -> None:
    """As the first process of a container it gets every orphan."""
    wrapped.before = [sys.executable, "-ISc", SUBREAPER]
    script = "(sleep 600 &); echo ready; exec sleep 601"
    wrapped.start("sh", "-c", script, RANK="3", LOCAL_RANK="0")
    until(lambda: "ready" in wrapped.out)

    def children() -> list[list[str]]:
        return sorted(cmdline(child.pid) for child in children_of(scan()).get(wrapped.pid, ()))

    until(lambda: children() == [["sleep", "600"], ["sleep", "601"]], lambda: str(children()))
    root = read_proc(wrapped.pid)
    assert root is not None
    (found,) = find_ranks(root, scan()).items()
    assert (found[0], cmdline(found[1].pid)) == (3, ["sleep", "601"])


def test_as_the_first_process_it_reaps_orphans_and_takes_all_with_it_when_it_is_killed(
    wrapped: Wrapped,
) -> None:
    spaces = ("--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")
    wrapped.before = ["unshare", *spaces]
    wrapped.start("sh", "-c", "(sleep 0.2 &); (sleep 600 &); exit 5")

    def inside() -> list[str]:
        children = children_of(scan())
        below = [two for one in children.get(wrapped.pid, ()) for two in children.get(one.pid, ())]
        return [f"{' '.join(cmdline(one.pid))} {one.state}" for one in below]

    def settled() -> bool:
        found = inside()
        return len(found) == 2 and any("--held 5" in one for one in found)

    until(settled, lambda: str(inside()))
    assert not any(one.endswith("Z") for one in inside())
    (first,) = children_of(scan())[wrapped.pid]
    (orphan,) = (one for one in children_of(scan())[first.pid] if cmdline(one.pid)[0] == "sleep")
    os.kill(first.pid, signal.SIGKILL)
    wrapped.code()
    until(lambda: read_proc(orphan.pid) is None)
