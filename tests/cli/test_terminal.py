"""The job's output, Sentinel's messages and the live line, on real pipes, files and pseudo-terminals."""

import asyncio
import contextlib
import fcntl
import os
import pty
import select
import struct
import termios
import time
import tty
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec import structs

from sentinel.console.terminal import REDRAW_S, Live, Terminal
from tests.cli.screen import Screen

DEADLINE_S = 120.0
LIVE = Live(state="running", step=41, step_ms=3317.8, ratio=0.6637, restarts_left=2, time_left_s=7260.0)
LINE = "sentinel: running · iteration 41 · 3.32 s/step · hardware ratio 0.66 · 2 restarts left · 2h 01m left"


def test_iterations_that_a_log_does_not_name_are_told_as_so_many() -> None:
    unnamed = structs.replace(LIVE, step=None, iterations=41)
    assert unnamed.text() == LINE.replace("iteration 41", "41 iterations")


class Fd:
    """One end of something, closed at the end of the test."""

    def __init__(self, number: int) -> None:
        self.number = number

    def fileno(self) -> int:
        return self.number

    def read(self, until: Callable[[bytes], bool]) -> bytes:
        """What can be read until the condition holds; fails at the deadline."""
        data = b""
        limit_s = time.monotonic() + DEADLINE_S
        while not until(data):
            assert time.monotonic() < limit_s, data
            if select.select([self.number], [], [], 0.05)[0]:
                data += os.read(self.number, 65536)
        return data

    def read_all(self) -> bytes:
        """Everything up to the end of the file; for a pipe whose writer was closed."""
        data = b""
        while piece := os.read(self.number, 65536):
            data += piece
        return data

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.number)


@pytest.fixture
def pipes() -> Iterator[Callable[[], tuple[Fd, Fd]]]:
    made: list[Fd] = []

    def make() -> tuple[Fd, Fd]:
        ends = tuple(Fd(number) for number in os.pipe())
        made.extend(ends)
        return ends[0], ends[1]

    yield make
    for end in made:
        end.close()


@pytest.fixture
def terminal_pair() -> Iterator[tuple[Fd, Fd]]:
    """The two ends of a pseudo-terminal of 80 columns that translates no line ends."""
    master, slave = pty.openpty()
    tty.setraw(slave)
    resize(slave, 80)
    ends = Fd(master), Fd(slave)
    yield ends
    for end in ends:
        end.close()


def resize(fd: int, columns: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def shown(data: bytes, columns: int = 80) -> list[str]:
    """The screen after these bytes of a raw terminal, where a newline does not return the carriage."""
    return Screen(columns).feed(data.replace(b"\n", b"\r\n")).lines


# ---------------------------------------------------------------- pipes and files


def test_one_rank_passes_byte_for_byte(pipes: Callable[[], tuple[Fd, Fd]]) -> None:
    (out, out_end), (err, err_end) = pipes(), pipes()
    terminal = Terminal(out_end, err_end, 1)
    told = bytes(range(256)) + b"\r 10%\r 20%" + b"no newline at the end"
    terminal.output(0, told)
    terminal.close()
    out_end.close()
    err_end.close()
    assert out.read_all() == told
    assert err.read_all() == b""


def test_several_ranks_have_prefixes_and_the_last_line_is_finished(
    pipes: Callable[[], tuple[Fd, Fd]],
) -> None:
    (out, out_end), (_, err_end) = pipes(), pipes()
    terminal = Terminal(out_end, err_end, 2)
    terminal.output(0, b"zero\nhalf")
    terminal.output(1, b"one\n")
    terminal.close()
    out_end.close()
    assert out.read_all() == b"[rank 0] zero\n[rank 1] one\n[rank 0] half\n"


def test_a_job_that_comes_back_with_more_ranks_gets_prefixes(pipes: Callable[[], tuple[Fd, Fd]]) -> None:
    (out, out_end), (_, err_end) = pipes(), pipes()
    terminal = Terminal(out_end, err_end, 1)
    terminal.output(0, b"alone\n")
    terminal.output(1, b"one\n")
    terminal.output(0, b"zero\n")
    terminal.close()
    out_end.close()
    assert out.read_all() == b"alone\n[rank 1] one\n[rank 0] zero\n"


def test_a_partial_line_of_several_ranks_is_shown_by_the_timer(pipes: Callable[[], tuple[Fd, Fd]]) -> None:
    (out, out_end), (_, err_end) = pipes(), pipes()

    async def job() -> bytes:
        terminal = Terminal(out_end, err_end, 2)
        terminal.output(1, b"Password: ")
        data = await asyncio.to_thread(out.read, lambda data: data.endswith(b": "))
        terminal.close()
        return data

    assert asyncio.run(job()) == b"[rank 1] Password: "


def test_sentinels_messages_go_to_stderr_as_one_clean_line(pipes: Callable[[], tuple[Fd, Fd]]) -> None:
    (out, out_end), (err, err_end) = pipes(), pipes()
    terminal = Terminal(out_end, err_end, 1)
    terminal.say("rank 0 said \x1b[2J\x1b]0;owned\x07\nsentinel: a lie \ud800")
    terminal.close()
    out_end.close()
    err_end.close()
    assert err.read_all().decode() == "sentinel: rank 0 said �[2J�]0;owned� sentinel: a lie �\n"
    assert out.read_all() == b""


def test_there_is_no_live_line_in_a_pipe(
    pipes: Callable[[], tuple[Fd, Fd]], terminal_pair: tuple[Fd, Fd]
) -> None:
    """Not even when stderr is a terminal: the reader of the pipe may write there too."""
    (_, out_end), (master, slave) = pipes(), terminal_pair
    terminal = Terminal(out_end, slave, 1)
    terminal.live(LIVE)
    terminal.tick()
    terminal.say("end")
    terminal.close()
    assert master.read(lambda data: b"end" in data) == b"sentinel: end\n"


def test_a_stopped_reader_costs_output_but_no_time_and_is_told(pipes: Callable[[], tuple[Fd, Fd]]) -> None:
    (out, out_end), (err, err_end) = pipes(), pipes()
    terminal = Terminal(out_end, err_end, 1, buffer_bytes=200_000)
    line = b"x" * 999 + b"\n"
    for _ in range(2000):  # 2 MB into 64 KiB of pipe and 200 kB of buffer, read by nobody
        terminal.output(0, line)
    terminal.tick()
    note = err.read(lambda data: data.endswith(b"\n")).decode()
    assert "bytes of output are not shown here (its reader is slow)" in note
    dropped = int(note.split()[1])
    assert 2_000_000 - dropped <= 64 * 1024 + 200_000 + 65536
    # The reader goes on: what was taken comes out in whole lines, and new output as well.
    data = out.read(lambda data: len(data) >= 2_000_000 - dropped)
    terminal.output(0, b"again\n")
    data += out.read(lambda data: data.endswith(b"again\n"))
    assert data.removesuffix(b"again\n") == line * ((2_000_000 - dropped) // 1000)
    terminal.close()


def test_closing_does_not_wait_for_a_reader_that_stopped(pipes: Callable[[], tuple[Fd, Fd]]) -> None:
    (_, out_end), (_, err_end) = pipes(), pipes()
    terminal = Terminal(out_end, err_end, 1)
    terminal.output(0, b"x" * 500_000)
    started_s = time.monotonic()
    terminal.close(timeout_s=0.1)
    assert time.monotonic() - started_s < DEADLINE_S


def test_closing_gives_a_slow_reader_the_rest(pipes: Callable[[], tuple[Fd, Fd]]) -> None:
    (out, out_end), (_, err_end) = pipes(), pipes()

    async def job() -> bytes:
        terminal = Terminal(out_end, err_end, 1)
        terminal.output(0, b"x" * 500_000)
        reader = asyncio.create_task(asyncio.to_thread(out.read, lambda data: len(data) == 500_000))
        await asyncio.to_thread(terminal.close, DEADLINE_S)
        return await reader

    assert len(asyncio.run(job())) == 500_000


def test_a_broken_pipe_is_the_end_of_showing_and_of_nothing_else(pipes: Callable[[], tuple[Fd, Fd]]) -> None:
    (out, out_end), (err, err_end) = pipes(), pipes()
    terminal = Terminal(out_end, err_end, 1)
    out.close()
    for _ in range(100):
        terminal.output(0, b"nobody reads this\n")
        terminal.tick()
    terminal.say("still here")
    terminal.close()
    err_end.close()
    assert err.read_all() == b"sentinel: still here\n"


def test_a_file_gets_everything(tmp_path: Path, pipes: Callable[[], tuple[Fd, Fd]]) -> None:
    _, err_end = pipes()
    with open(tmp_path / "out", "wb") as file:
        terminal = Terminal(file, err_end, 1, buffer_bytes=10)
        for _ in range(100):
            terminal.output(0, b"x" * 100_000)
        terminal.close()
    assert (tmp_path / "out").stat().st_size == 10_000_000


def test_a_full_disk_is_told_with_its_reason(pipes: Callable[[], tuple[Fd, Fd]], tmp_path: Path) -> None:
    err, err_end = pipes()
    import resource
    import signal

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with open(tmp_path / "out", "wb") as file:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
            terminal = Terminal(file, err_end, 1)
            terminal.output(0, b"x" * 3000)
            terminal.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    err_end.close()
    assert b"2000 bytes of output are not shown here (File too large)" in err.read_all()


def test_a_pipe_that_somebody_made_non_blocking_loses_nothing(pipes: Callable[[], tuple[Fd, Fd]]) -> None:
    (out, out_end), (_, err_end) = pipes(), pipes()
    os.set_blocking(out_end.fileno(), False)
    terminal = Terminal(out_end, err_end, 1)
    terminal.output(0, b"x" * 500_000)
    assert len(out.read(lambda data: len(data) >= 500_000)) == 500_000
    terminal.close()


def test_nothing_is_written_after_detach(pipes: Callable[[], tuple[Fd, Fd]]) -> None:
    (out, out_end), (err, err_end) = pipes(), pipes()
    terminal = Terminal(out_end, err_end, 2)
    terminal.detach()
    terminal.output(0, b"line\n")
    terminal.say("word")
    terminal.tick()
    terminal.close()
    out_end.close()
    err_end.close()
    assert out.read_all() == err.read_all() == b""


# ---------------------------------------------------------------- a terminal


def test_the_live_line_stands_under_the_output(terminal_pair: tuple[Fd, Fd]) -> None:
    master, slave = terminal_pair
    resize(slave.fileno(), 120)
    clock = Clock()
    terminal = Terminal(slave, slave, 1, clock=clock)
    terminal.live(LIVE)
    terminal.tick()
    data = master.read(lambda data: data.endswith(b"\r"))
    for number in range(3):
        clock.now_s += REDRAW_S
        terminal.output(0, b"line %d\n" % number)
        data += master.read(lambda data: data.endswith(b"\r"))
    assert shown(data, 120) == ["line 0", "line 1", "line 2", LINE]
    terminal.close()
    data += master.read(lambda data: data.endswith(b"\x1b[J"))
    assert shown(data, 120) == ["line 0", "line 1", "line 2"]


def test_a_message_leaves_the_live_line_below_it(terminal_pair: tuple[Fd, Fd]) -> None:
    master, slave = terminal_pair
    resize(slave.fileno(), 120)
    terminal = Terminal(slave, slave, 1, clock=Clock())
    terminal.live(LIVE)
    terminal.tick()
    terminal.output(0, b"half a line")
    terminal.say("the message")
    terminal.tick()
    terminal.output(0, b"\nmore\n")
    terminal.close()
    data = master.read(lambda data: data.endswith(b"more\n"))
    assert shown(data[: data.index(b"message") + 8], 120) == ["half a line", "sentinel: the message"]
    assert shown(data, 120) == ["half a line", "sentinel: the message", "", "more"]


@pytest.mark.parametrize("before", [b"", b"whole line\n", b"half a line"])
def test_a_message_leaves_nothing_of_the_live_line_behind(
    terminal_pair: tuple[Fd, Fd], before: bytes
) -> None:
    master, slave = terminal_pair
    resize(slave.fileno(), 120)
    clock = Clock()
    terminal = Terminal(slave, slave, 1, clock=clock)
    terminal.output(0, before)
    clock.now_s += REDRAW_S
    terminal.live(LIVE)
    terminal.tick()
    terminal.say("short")
    data = master.read(lambda data: data.count(LINE.encode()) == 2)
    data += master.read(lambda more: more.endswith(b"\r") or data.endswith(b"\r"))
    told = [before.decode().strip()] if before else []
    assert shown(data, 120) == [*told, "sentinel: short", LINE]
    terminal.close()


def test_a_progress_bar_goes_on_above_the_live_line(terminal_pair: tuple[Fd, Fd]) -> None:
    master, slave = terminal_pair
    resize(slave.fileno(), 120)
    clock = Clock()
    terminal = Terminal(slave, slave, 1, clock=clock)
    terminal.output(0, b"\n" * 30)  # the bottom of the screen, where drawing scrolls
    terminal.live(LIVE)
    data = b""
    for percent in (10, 20, 30):
        clock.now_s += REDRAW_S
        terminal.output(0, b"\r%d%% |###" % percent)
        terminal.tick()
        data += master.read(lambda data: data.endswith(b"\x1b8"))
        assert shown(data, 120)[-2:] == [f"{percent}% |###", LINE]
    terminal.close()
    data += master.read(lambda data: data.endswith(b"\x1b8"))
    assert shown(data, 120)[-1] == "30% |###"


def test_the_terminal_is_written_at_most_five_times_a_second(terminal_pair: tuple[Fd, Fd]) -> None:
    master, slave = terminal_pair
    clock = Clock()
    terminal = Terminal(slave, slave, 1, clock=clock)
    for number in range(1000):  # one second
        clock.now_s += 0.001
        terminal.live(Live(state="running", step=number))
        terminal.output(0, b"line %d\n" % number)
    terminal.close()
    data = master.read(lambda data: b"line 999\n" in data)
    assert 4 <= data.count(b"iteration") <= 6
    assert shown(data)[-1] == "line 999"


def test_the_live_line_is_cut_to_the_width_and_follows_a_resize(terminal_pair: tuple[Fd, Fd]) -> None:
    master, slave = terminal_pair
    clock = Clock()
    terminal = Terminal(slave, slave, 1, clock=clock)
    terminal.live(LIVE)
    terminal.tick()
    first = master.read(lambda data: data.endswith(b"\r"))
    assert shown(first) == [LINE[:78] + "…"]
    resize(slave.fileno(), 40)
    clock.now_s += REDRAW_S
    terminal.tick()
    second = master.read(lambda data: data.endswith(b"\r"))
    assert second.startswith(b"\r\x1b[J")
    assert shown(second, 40) == [LINE[:38] + "…"]
    terminal.close()


def test_control_characters_reach_no_line_of_ours(terminal_pair: tuple[Fd, Fd]) -> None:
    master, slave = terminal_pair
    terminal = Terminal(slave, slave, 1, clock=Clock())
    terminal.live(Live(state="\x1b[31mowned\x07"))
    terminal.tick()
    assert shown(master.read(lambda data: data.endswith(b"\r"))) == ["sentinel: �[31mowned�"]
    terminal.close()


def test_a_terminal_that_hangs_up_ends_the_showing(terminal_pair: tuple[Fd, Fd]) -> None:
    master, slave = terminal_pair
    terminal = Terminal(slave, slave, 1)
    master.close()
    for _ in range(10):
        terminal.output(0, b"line\n")
        terminal.say("word")
        terminal.live(LIVE)
        terminal.tick()
    terminal.close()
