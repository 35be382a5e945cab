"""Each test leaves nothing: what is still there afterwards fails it by name, and is ended.

A plugin that `tests/conftest.py` names. Processes are known by a mark in the environment that they inherit, wherever
they hang by then; mounts, control groups and loop devices by the folder of the test or the number of its process. A
network namespace lives no longer than its processes. What fixtures of many tests start is theirs and not looked for.

The tests that run beside see none of a test's mounts: a namespace that one of them makes for long would keep a copy,
and with it the disk behind the mount.
"""

import contextlib
import ctypes
import itertools
import os
import signal
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

MARK = "TESTED_BY"
PATIENCE_S = 60.0  # for what is about to end
LOADING_S = 1.0  # a program is loaded long before
NOTHING = "nothing"
# Only what starts programs can leave some: most tests start none.
STARTS = {"subprocess.Popen", "os.fork", "os.posix_spawn", "os.system", "os.exec"}

NEW_MOUNTS, RECURSIVELY, AS_SLAVE = 0x20000, 0x4000, 0x80000  # CLONE_NEWNS, MS_REC, MS_SLAVE

MARKED = pytest.StashKey[str]()
_numbers = itertools.count(1)
_started: list[str] = []


def _note(event: str, _: object) -> None:
    if event in STARTS and not _started:
        _started.append(event)


sys.addaudithook(_note)


def pytest_configure() -> None:
    """Mounts of this process and its children are theirs alone, and end with them. Without the right: as they were."""
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() == 0 and libc.unshare(NEW_MOUNTS) == 0:
        libc.mount(None, b"/", None, RECURSIVELY | AS_SLAVE, None)


@pytest.fixture(autouse=True)
def _marked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, behind the fixtures of many tests, every process that is started carries the mark of this test."""
    _started.clear()
    request.node.stash[MARKED] = f"{os.getpid()}-{next(_numbers)}"
    monkeypatch.setenv(MARK, request.node.stash[MARKED])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    yield
    mark = item.stash.get(MARKED, "")
    if not mark or not _started:
        return
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    deadline = time.monotonic() + PATIENCE_S
    while (found := left(mark, folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in marked(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if found:
        pytest.fail("left behind:\n" + "\n".join(found), pytrace=False)


def left(mark: str, folder: Path | None) -> list[str]:
    """What of a test is still there, each in a line. `folder`: that of its files."""
    found = [f"process {pid}: {command}" for pid, command in marked(mark).items()]
    places = [str(folder)] if folder is not None else []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if any(line.split()[4].startswith(place) for place in places):
            found.append(f"mount: {line}")
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            if any(file.read_text().startswith(place) for place in places):
                found.append(f"loop device {file.parts[3]}: {file.read_text().strip()}")
    groups = Path("/sys/fs/cgroup")
    name = f"sentinel-test-{os.getpid()}"
    return [*found, *(f"control group: {path}" for path in (*groups.glob(name), *groups.glob(f"*/{name}")))]


def marked(mark: str) -> dict[int, str]:
    """Living processes with this mark: pid -> command line."""
    wanted = f"{MARK}={mark}".encode()
    found = {}
    looked_at = {os.getpid()}
    # One of which the parent has ended meanwhile is in a later list alone.
    while new := {int(entry) for entry in os.listdir("/proc") if entry.isdecimal()} - looked_at:
        looked_at |= new
        for pid in new:
            process = Path(f"/proc/{pid}")
            with contextlib.suppress(OSError):
                if wanted in _environment(process).split(b"\0"):
                    words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found[pid] = words.strip()
    return found


def _environment(process: Path) -> bytes:
    """It is empty for a moment where the process begins a program, until that is loaded."""
    deadline, before = time.monotonic() + LOADING_S, ""
    while not (found := (process / "environ").read_bytes()):
        runs = _program(process)
        if runs == NOTHING or (runs and runs == before) or time.monotonic() > deadline:
            break
        before = runs
        time.sleep(0.001)
    return found


def _program(process: Path) -> str:
    """`startcode`, the 26th field (proc_pid_stat(5)): set once the environment is (fs/binfmt_elf.c of Linux), for each
    program that is begun another one, by chance; "" until then. What has no memory (`vsize`, the 23rd: a zombie, a
    thread of the kernel) loads nothing."""
    state_and_on = (process / "stat").read_text().rpartition(")")[2].split()
    if state_and_on[20] == "0":
        return NOTHING
    return state_and_on[23] if state_and_on[23] != "0" else ""
