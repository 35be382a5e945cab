"""The person's terminal: the job's output, Sentinel's own messages, and a live line.

Nothing here may hold up the protection of the job. A file takes what is written; a pipe or a terminal
is written to by a thread with a bounded buffer, because its reader may have stopped, and because making
it non-blocking would do so for every process that shares it. What does not fit is not shown, and that
is said: the logs of the ranks hold all of it.
"""

import asyncio
import os
import select
import stat
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from sentinel.console.prefix import Prefixer
from sentinel.core.signals import how_far
from sentinel.web.words import duration, fit, milliseconds, printable, ratio, width

REDRAW_S = 0.2  # on a terminal: output and live line are written at most five times a second
BUFFER_BYTES = 1 << 20
TELL_S = 10.0  # how often it is said that output is not shown
DRAIN_S = 2.0  # how long `close` waits for a slow reader


class HasFileno(Protocol):
    def fileno(self) -> int: ...


class Live(Struct, frozen=True, kw_only=True):
    """What the live line shows. Numbers that are None are left out."""

    state: str
    step: int | None = None
    iterations: int | None = None  # since its start; shown where its log names no steps
    step_ms: float | None = None
    ratio: float | None = None
    restarts_left: int | None = None
    time_left_s: float | None = None

    def text(self) -> str:
        parts = [self.state]
        if self.step is not None:
            parts.append(how_far(self.step, told=True))
        elif self.iterations is not None:
            parts.append(how_far(self.iterations, told=False))
        if self.step_ms is not None:
            parts.append(f"{milliseconds(self.step_ms)}/step")
        if self.ratio is not None:
            parts.append(f"hardware ratio {ratio(self.ratio)}")
        if self.restarts_left is not None:
            parts.append(f"{self.restarts_left} restart{'s' if self.restarts_left != 1 else ''} left")
        if self.time_left_s is not None:
            parts.append(f"{duration(self.time_left_s)} left")
        return "sentinel: " + " · ".join(parts)


class Terminal:
    """Writes for one job. Call it on the event loop; a timer of its own flushes what waits.

    `ranks`: how many the job has; one rank's output is passed as it is, that of several line by line
    with a prefix. After `detach`, a broken pipe or a terminal that hung up, it goes on silently.
    """

    def __init__(
        self,
        stdout: HasFileno,
        stderr: HasFileno,
        ranks: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        self._clock = clock
        self._err_fd = stderr.fileno()
        err_tty = os.isatty(self._err_fd)
        self._shared = err_tty and os.isatty(stdout.fileno())
        # Whoever reads the pipe may write to the same terminal (tee does), over the live line.
        self._tty = err_tty and not _is_pipe(stdout.fileno())
        self._err = _sink(self._err_fd, buffer_bytes)
        # One terminal for both: one writer, or output and live line would get mixed up.
        self._out = self._err if self._shared else _sink(stdout.fileno(), buffer_bytes)
        self._prefixer = Prefixer() if ranks > 1 else None
        self._pending = bytearray()  # output that waits for the next redraw
        self._at_line_start = True  # where the cursor of the shared terminal stands
        self._live: Live | None = None
        self._drawn = ""  # the live line as it stands on the terminal
        self._drawn_columns = 0
        self._written_s = float("-inf")
        self._told_dropped = 0
        self._told_s = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def output(self, rank: int, data: bytes) -> None:
        """Output of a rank, as it was read of its log: any bytes, cut anywhere."""
        if self._closed or self._out.gone:
            return
        if rank > 0 and self._prefixer is None:
            self._prefixer = Prefixer()  # the job came back larger than it was
        shown = self._prefixer.feed(rank, data, self._clock()) if self._prefixer else data
        if shown:
            self._show(shown)
        self._arm()

    def say(self, text: str) -> None:
        """One line of Sentinel's own on stderr. Control characters in it are not passed on."""
        if self._closed or self._err.gone:
            return
        line = f"sentinel: {printable(text)}\n".encode("utf-8", "replace")
        if self._shared:
            self._flush()
            # The job's unfinished line stays as it is, and goes on under ours.
            start = b"" if self._at_line_start else b"\n"
            self._err.write(self._erase() + start + line)
            self._at_line_start = True
            self._draw()
        else:
            self._err.write(self._erase() + line)
            self._draw()

    def live(self, live: Live | None) -> None:
        """What the live line shows from now on; None: no line. Ignored where stderr is no terminal."""
        self._live = live
        if self._tty and not self._closed:
            self._arm(soon=True)

    def detach(self) -> None:
        """The terminal is gone (SIGHUP): write nothing more, to nobody."""
        self._closed = True
        self._cancel_timer()
        self._out.abandon()
        self._err.abandon()

    def close(self, timeout_s: float = DRAIN_S) -> None:
        """Show what waits, take the live line away, and give a slow reader `timeout_s`. Blocks so long."""
        if self._closed:
            return
        self._cancel_timer()
        if self._prefixer:
            self._pending += self._prefixer.flush(self._clock(), end=True)
        self._live = None
        self._flush()
        self._tell_dropped(end=True)
        self._err.write(self._erase())
        self._closed = True
        deadline_s = time.monotonic() + timeout_s
        self._out.close(deadline_s)
        self._err.close(deadline_s)

    # ------------------------------------------------------------ when things are written

    def tick(self) -> None:
        """Write what is due: unfinished lines, waiting output, the live line."""
        self._timer = None
        if self._closed:
            return
        if self._prefixer:
            self._pending += self._prefixer.flush(self._clock())
        self._tell_dropped()
        self._flush()
        self._draw()
        self._arm()

    def _arm(self, *, soon: bool = False) -> None:
        """Have `tick` called when something waits for it."""
        waits = soon or self._pending or self._out.dropped > self._told_dropped
        waits = waits or (self._prefixer is not None and self._prefixer.waits)
        if not waits or self._timer is not None:
            return
        delay_s = max(0.0, self._written_s + REDRAW_S - self._clock()) if soon or self._pending else REDRAW_S
        try:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.tick)
        except RuntimeError:
            return  # no loop runs: whoever calls us calls `tick` too

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _show(self, data: bytes) -> None:
        if not self._shared:
            self._out.write(data)
            return
        self._pending += data
        due = self._clock() >= self._written_s + REDRAW_S
        if due or len(self._pending) >= 65536:
            self._flush()
            if due:
                self._draw()

    def _flush(self) -> None:
        """Write the waiting output of a shared terminal, the live line out of its way."""
        if not self._pending:
            return
        data = bytes(self._pending)
        self._pending.clear()
        if self._shared:
            self._written_s = self._clock()
            data = self._erase() + data
        if self._out.write(data) and self._shared:
            self._at_line_start = data.endswith(b"\n")

    def _tell_dropped(self, *, end: bool = False) -> None:
        """Say what was not shown, at most every TELL_S, and on a shared terminal when it takes lines again."""
        new_bytes = self._out.dropped - self._told_dropped
        due = end or (self._clock() >= self._told_s + TELL_S and not (self._shared and self._out.behind))
        if new_bytes and due:
            self._told_dropped = self._out.dropped
            self._told_s = self._clock()
            self.say(
                f"{new_bytes} bytes of output are not shown here ({self._out.why}); the rank logs have them"
            )

    # ------------------------------------------------------------ the live line

    def _draw(self) -> None:
        if not self._tty or self._closed or self._err.gone:
            return
        columns = _columns(self._err_fd)
        text = fit(printable(self._live.text()), columns - 1) if self._live and columns > 20 else ""
        if text == self._drawn and columns == self._drawn_columns:
            return
        data = self._erase()
        if text and _in_foreground(self._err_fd) and not self._err.behind:
            line = text.encode("utf-8", "replace")
            if self._at_line_start:
                data += b"\x1b[2m" + line + b"\x1b[0m\r"
            else:
                # The job's line is unfinished (a progress bar): draw under it and return. IND and CUU make
                # room first, since a saved position would be wrong after scrolling.
                data += b"\x1bD\x1b[A\x1b7\x1b[B\r\x1b[2K\x1b[2m" + line + b"\x1b[0m\x1b8"
            self._drawn, self._drawn_columns = text, columns
        if data:
            self._written_s = self._clock()
            self._err.write(data)

    def _erase(self) -> bytes:
        if not self._drawn:
            return b""
        rows = -(-width(self._drawn) // max(1, _columns(self._err_fd)))  # more than one where it was narrowed
        self._drawn, self._drawn_columns = "", 0
        if self._at_line_start:
            return b"\r\x1b[J"
        return b"\x1b7" + b"\x1b[B\r\x1b[2K" * rows + b"\x1b8"


class Sink(Protocol):
    """Where bytes go. `write` never blocks for a reader; False: not taken. `gone`: nobody is there any more."""

    gone: bool
    dropped: int  # bytes that were not taken
    why: str  # they were not

    @property
    def behind(self) -> bool: ...
    def write(self, data: bytes) -> bool: ...
    def abandon(self) -> None: ...
    def close(self, deadline_s: float) -> None: ...


def _sink(fd: int, buffer_bytes: int) -> Sink:
    try:
        regular = stat.S_ISREG(os.fstat(fd).st_mode)
    except OSError:
        regular = True  # closed: the first write finds it gone
    return FileSink(fd) if regular else ThreadSink(fd, buffer_bytes)


class FileSink:
    """A regular file: it takes everything, or says that the disk is full."""

    behind = False

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.gone = False
        self.dropped = 0
        self.why = ""

    def write(self, data: bytes) -> bool:
        view = memoryview(data)
        while view and not self.gone:
            try:
                view = view[os.write(self._fd, view) :]
            except OSError as error:
                self.dropped += len(view)
                self.why = error.strerror or "error"
                return False
        return True

    def abandon(self) -> None:
        self.gone = True

    def close(self, deadline_s: float) -> None:
        self.gone = True


class ThreadSink:
    """A pipe, terminal or socket, written by a daemon thread that may block as long as it likes."""

    def __init__(self, fd: int, buffer_bytes: int) -> None:
        self._fd = fd
        self._buffer_bytes = buffer_bytes
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ending = False
        self.gone = False
        self.dropped = 0
        self.why = "its reader is slow"

    @property
    def behind(self) -> bool:
        return self._queued > self._buffer_bytes // 4

    def write(self, data: bytes) -> bool:
        if not data or self.gone:
            return not data
        with self._wake:
            # A single piece larger than the buffer is taken when nothing else waits.
            if self._queued and self._queued + len(data) > self._buffer_bytes:
                self.dropped += len(data)
                return False
            self._queue.append(data)
            self._queued += len(data)
            self._wake.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="terminal", daemon=True)
            self._thread.start()
        return True

    def abandon(self) -> None:
        with self._wake:
            self.gone = self._ending = True
            self._queue.clear()
            self._queued = 0
            self._wake.notify()

    def close(self, deadline_s: float) -> None:
        with self._wake:
            self._ending = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join(max(0.0, deadline_s - time.monotonic()))
        self.abandon()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._queue and not self._ending:
                    self._wake.wait()
                if not self._queue:
                    return
                data = self._queue.popleft()
            view = memoryview(data)
            try:
                while view and not self.gone:
                    try:
                        view = view[os.write(self._fd, view[:65536]) :]
                    except BlockingIOError:  # another process made it non-blocking
                        _wait_writable(self._fd)
            except OSError:  # broken pipe, or a terminal that hung up
                self.abandon()
                return
            with self._wake:
                self._queued = max(0, self._queued - len(data))


def _wait_writable(fd: int) -> None:
    waiter = select.poll()
    waiter.register(fd, select.POLLOUT)
    waiter.poll(200)


def _is_pipe(fd: int) -> bool:
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _columns(fd: int) -> int:
    try:
        return os.get_terminal_size(fd).columns or 80
    except OSError:
        return 80


def _in_foreground(fd: int) -> bool:
    """Whether the terminal is ours now: a job in the background must not draw over the shell's prompt."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return True  # not our controlling terminal: nobody else's prompt is there
