"""Parts of a node's agent: whether it is well, and what it keeps."""

import asyncio
import configparser
import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
import tty
from pathlib import Path
from typing import Any

import pytest

from sentinel.agent import state as node_state
from sentinel.checks.runner import CheckRunner
from sentinel.console.said import LONGEST_BYTES, Said
from sentinel.service.health import BEAT_S, FROZEN_S, LAG_KEPT_S, STACKS_S, Health, LagMeter
from tests.checks.conftest import HandClock, Machine


def test_a_loop_that_was_held_up_is_told_for_a_minute() -> None:
    health = Health()
    health.beat(100.0, 0.0)
    assert health.problems(101.0, ()) == []
    health.beat(107.0, 6.0)
    assert health.problems(107.0, ()) == ["the event loop was held up for 6.0 s within the last minute"]
    health.beat(108.0 + LAG_KEPT_S, 0.0)
    assert health.problems(108.0 + LAG_KEPT_S, ()) == []


def test_a_loop_that_is_held_up_now_is_late_before_it_beats_again() -> None:
    health = Health()
    health.beat(100.0, 0.0)
    assert health.lag_s(111.0) == 10.0


def test_the_heart_beats_and_tells_who_listens() -> None:
    async def story() -> int:
        beaten = asyncio.Event()
        count = 0

        def on_beat() -> None:
            nonlocal count
            count += 1
            beaten.set()

        task = asyncio.create_task(LagMeter(Health(), on_beat).run())
        await asyncio.wait_for(beaten.wait(), 120)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return count

    assert asyncio.run(story()) == 1


def test_a_check_that_nobody_runs_any_more_is_late(tmp_path: Path) -> None:
    clock = HandClock()
    machine = Machine(tmp_path)
    runner = CheckRunner(machine.settings, clock=clock)
    assert runner.late(clock()) == []
    asyncio.run(runner.check_now(["memory"]))
    clock.mono_s += 60.0
    assert "memory" in runner.late(clock())
    asyncio.run(runner.check_now(["memory"]))
    assert "memory" not in runner.late(clock())
    assert "the check memory is not run any more" in Health().problems(0.0, ["memory"])
    runner.close()


def test_what_is_too_much_to_keep_leaves_what_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_state.write(tmp_path, b'{"a": 1}')
    monkeypatch.setattr(node_state, "MAX_BYTES", 1000)
    with pytest.raises(OSError, match="at most 1000"):
        node_state.write(tmp_path, b'"' + b"x" * 1000 + b'"')
    assert node_state.read(tmp_path) == b'{"a": 1}'


@pytest.mark.parametrize(
    "rubbish", [b"", b"\0\0", b"{}", b"\xff", b'{"version": 99, "saved_wall_s": 0, "checks": {}}']
)
def test_a_damaged_file_is_known_as_such(tmp_path: Path, rubbish: bytes) -> None:
    (tmp_path / node_state.FILE).write_bytes(rubbish)
    with pytest.raises(node_state.Damaged):
        node_state.read(tmp_path)


def test_nothing_kept_is_no_damage(tmp_path: Any) -> None:
    assert node_state.read(tmp_path) is None


FROZEN = """
import sys, time
from pathlib import Path
from sentinel.service.health import Watchdog

def the_disk_does_not_answer():
    time.sleep(600)

watchdog = Watchdog(Path(sys.argv[1]), frozen_s=0.5, tick_s=0.05)
for _ in range(40):
    watchdog.beat()
    time.sleep(0.02)
print("well", flush=True)
the_disk_does_not_answer()
"""


def test_a_frozen_agent_ends_and_leaves_where_it_hung(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FROZEN, str(tmp_path / "frozen.txt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (70, "well\n")
    assert "the_disk_does_not_answer" in (tmp_path / "frozen.txt").read_text()


def test_a_frozen_agent_ends_though_the_disk_of_its_state_hangs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "frozen.txt")  # which nobody opens on the other side
    program = FROZEN.replace(
        "watchdog =", "import sentinel.service.health as h; h.STACKS_S = 0.5; watchdog ="
    )
    command = [sys.executable, "-c", program, str(tmp_path / "frozen.txt")]
    assert subprocess.run(command, capture_output=True, timeout=300).returncode == 70


def test_systemd_lets_a_frozen_agent_say_where_it_hung(repo: Path) -> None:
    unit = configparser.ConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(repo / "examples/systemd/sentinel-agent.service")
    assert float(unit["Service"]["WatchdogSec"]) > FROZEN_S + STACKS_S + BEAT_S


def test_an_agent_that_was_stopped_for_longer_than_that_is_not_frozen(tmp_path: Path) -> None:
    """As by a debugger, or a machine that sleeps."""
    program = FROZEN.replace("range(40):", "range(100):\n    _ or print('runs', flush=True)")
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "frozen.txt")], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(2.0)
        process.send_signal(signal.SIGCONT)
        assert process.stdout.readline() == "well\n"
        process.kill()


SAYS = """
import sys
from sentinel.console.said import Said
say = Said("sentinel agent")
for number in range(100):
    say(f"line {number} " + "x" * 2000)
print("went on", flush=True)
sys.stdin.readline()
say("read again")
"""


def test_a_line_that_nobody_reads_holds_nobody_up() -> None:
    """A log that is not drained fills its pipe: lines are left out, and the next one that is read says how many."""
    read, write = os.pipe()
    words = [sys.executable, "-c", SAYS]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=write, text=True)
    os.close(write)
    assert process.stdout is not None
    assert process.stdout.readline() == "went on\n"
    os.set_blocking(read, False)
    seen = b""
    with contextlib.suppress(BlockingIOError):
        while data := os.read(read, 1 << 16):
            seen += data
    process.communicate("\n", timeout=120)
    last = os.read(read, 1 << 16).decode()
    os.close(read)
    written = seen.count(b"\n")
    assert 0 < written < 100
    assert seen.endswith(b"x\n"), "whole lines"
    assert last == f"sentinel agent: read again ({100 - written} before this were not read)\n"


@pytest.mark.parametrize("raw", [False, True])
def test_a_terminal_that_nobody_reads_holds_nobody_up(raw: bool) -> None:
    """It has room for a part of a line, and would wait for room for the rest."""
    terminal, inside = pty.openpty()
    if raw:
        tty.setraw(inside)
    words = [sys.executable, "-c", SAYS.replace("100", "1000")]
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=inside, text=True, timeout=120
    )
    assert done.stdout == "went on\n"
    assert os.get_blocking(inside), "it is shared with others"
    for descriptor in (terminal, inside):
        os.close(descriptor)


def test_a_long_line_is_cut_between_letters_and_says_what_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say = Said("agent")
    monkeypatch.setattr(sys, "stderr", None)
    say("nobody reads this")
    with open(tmp_path / "log", "wb") as log:
        monkeypatch.setattr(sys, "stderr", log)
        for text in ("x" + "é" * 5000, "é" * 5000):
            say(text)
    first, second, rest = (tmp_path / "log").read_bytes().split(b"\n")
    assert first.decode().endswith("é (1 before this were not read)")
    assert set(second.decode().removeprefix("agent: ")) == {"é"}
    assert (rest, max(len(first), len(second)) < LONGEST_BYTES) == (b"", True)


def test_who_closed_the_log_loses_the_lines_and_nothing_else() -> None:
    program = "import os\nfrom sentinel.console.said import Said\nos.close(2)\nSaid('agent')('lost')\nprint('went on')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "went on\n")
