"""Reading /proc: what names may hold, what masks mean, and that a pid alone names nothing."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.cluster.local.processes import (
    Proc,
    catches,
    catches_signal,
    descendants,
    environ,
    has_entry,
    is_same,
    open_pidfd,
    parse_stat,
    read_proc,
    runs_no_more,
    scan,
    send_signal,
)
from tests.checks.fuse_stub import STATFS, FuseStub
from tests.gate.rights import needs_root
from tests.waits import until

# proc(5): fields of /proc/PID/stat; the name may hold anything, here what would end it too early.
STAT = (
    "4242 (a) b (c) S 17 4242 4240 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 1 0 987654 8192000 200 "
    "18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0\n"
)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"], env={"MARK": "here"})
    yield process
    process.kill()
    process.wait()


def test_a_name_with_brackets_and_spaces_does_not_shift_the_fields() -> None:
    proc = parse_stat(STAT)
    assert (proc.pid, proc.ppid, proc.sid, proc.state, proc.start_ticks) == (4242, 17, 4240, "S", 987654)
    assert proc.cpu_s == 300 / os.sysconf("SC_CLK_TCK")


def test_the_mask_of_caught_signals_is_read_bit_by_bit() -> None:
    status = "Name:\tx\nSigBlk:\tffffffffffffffff\nSigCgt:\t0000000180004a02\n"
    assert [n for n in range(1, 65) if catches(status, n)] == [2, 10, 12, 15, 32, 33]
    assert not catches("Name:\tx\n", signal.SIGUSR1)


def test_our_own_handlers_show() -> None:
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        assert catches_signal(os.getpid(), signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert not catches_signal(os.getpid(), signal.SIGUSR2)


def test_a_signal_goes_only_to_the_process_that_is_meant(sleeper: subprocess.Popen[bytes]) -> None:
    proc = read_proc(sleeper.pid)
    assert proc
    assert not send_signal(sleeper.pid, proc.start_ticks + 1, signal.SIGKILL)
    assert open_pidfd(sleeper.pid, proc.start_ticks + 1) is None
    assert is_same(sleeper.pid, proc.start_ticks)
    assert send_signal(sleeper.pid, proc.start_ticks, signal.SIGKILL)
    sleeper.wait()
    assert not is_same(sleeper.pid, proc.start_ticks)
    assert not send_signal(sleeper.pid, proc.start_ticks, signal.SIGKILL)


@pytest.mark.root
def test_a_process_of_another_user_is_refused_and_not_called_gone(sleeper: subprocess.Popen[bytes]) -> None:
    script = (
        "import os, sys\n"
        "from sentinel.cluster.local.processes import read_proc, why_not_sent\n"
        "os.setuid(65534)\n"
        "pid = int(sys.argv[1])\n"
        "print(why_not_sent(pid, read_proc(pid).start_ticks, 10))\n"
    )
    words = [sys.executable, "-c", script, str(sleeper.pid)]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert said == "not permitted: a process of another user needs CAP_KILL\n"
    assert sleeper.poll() is None


def test_the_environment_of_the_exec_is_matched_whole(sleeper: subprocess.Popen[bytes]) -> None:
    assert environ(sleeper.pid) == {"MARK": "here"}
    assert has_entry(sleeper.pid, b"MARK=here")
    assert not has_entry(sleeper.pid, b"MARK=her")
    assert environ(2**22 + 1) == {}


def test_descendants_are_found_at_any_depth_without_their_root() -> None:
    table = {pid: Proc(pid, ppid, 1, "S", 0, 0.0) for pid, ppid in ((1, 0), (2, 1), (3, 2), (4, 3), (9, 1))}
    assert [proc.pid for proc in descendants(table, [2])] == [3, 4]


def test_a_scan_finds_us(sleeper: subprocess.Popen[bytes]) -> None:
    table = scan()
    assert table[sleeper.pid].ppid == os.getpid()


@pytest.fixture
@needs_root
def server(tmp_path: Path) -> Iterator[FuseStub]:
    point = tmp_path / "nfs"
    point.mkdir()
    with FuseStub(point) as stub:
        yield stub


def test_a_process_that_was_killed_while_it_is_stuck_in_the_kernel_is_there_and_runs_no_more(
    server: FuseStub,
) -> None:
    server.hold = {STATFS}
    asks = f"import os; os.statvfs({str(server.point)!r})"
    process = subprocess.Popen([sys.executable, "-c", asks])
    try:
        until(lambda: server.held(STATFS))
        assert not runs_no_more(process.pid)
        process.kill()
        until(lambda: runs_no_more(process.pid))
        assert process.poll() is None, "it is not gone"
    finally:
        server.release()
        process.kill()
        process.wait(180)
    assert not runs_no_more(process.pid), "of one that is gone nothing is pending"
