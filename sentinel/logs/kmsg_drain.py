"""Keeps the ring of kernel messages empty while others work: a child process that only reads, never handles.

The ring of a machine can be 128 KiB: a flood fills it in 20 ms. A thread would be late: it needs the interpreter,
which a handling thread may hold while a busy machine gives its core to training.
"""

import contextlib
import fcntl
import os
import select
import subprocess
import sys
import time

import structlog

from sentinel.logs import kmsg_child
from sentinel.logs.kmsg import KmsgReader

log = structlog.get_logger(__name__)

PIPE_BYTES = 1 << 20
READ_BYTES = 64 << 10
STEP_S = 0.1
BACKLOG_BYTES = 256 << 10  # of the reader: what it has not asked for waits in the pipe, then in the child


class Drain:
    """Reads for `reader` once it is started; `wake_fd` is readable when something came.

    A child that has ended leaves the reader to itself: `works` is False, and what it had read and not passed on
    is missing in the numbers of the records. Another one may be started then.
    """

    def __init__(self, reader: KmsgReader) -> None:
        """Raises OSError where there is no descriptor left."""
        self.wake_fd, self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # more than /proc/sys/fs/pipe-max-size or than a user's share
            fcntl.fcntl(self.wake_fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._reader = reader
        self._child: subprocess.Popen[bytes] | None = None
        self._caught_up = 0  # how often the child said so
        self._tail = b""  # of what it wrote, where that may begin
        self.works = False

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    def start(self) -> None:
        ring = self._reader.fileno()
        command = [sys.executable, "-I", "-S", kmsg_child.__file__, str(ring), str(self._pipe)]
        null = subprocess.DEVNULL
        self._end_child()
        try:
            self._child = subprocess.Popen(
                command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=null,
                stderr=null,
                pass_fds=(ring, self._pipe),
            )
        except OSError as error:
            log.warning("kernel_log_child_not_started", error=str(error))
            return
        self.works = True
        self._reader.read_with(self._read, BACKLOG_BYTES)

    def _read(self, ring: int, size: int) -> bytes:
        ended = self._child is None or self._child.poll() is not None
        try:
            data = os.read(self.wake_fd, READ_BYTES)
        except BlockingIOError:
            if not ended:
                raise
        else:
            both = self._tail + data
            self._caught_up += both.count(kmsg_child.CAUGHT_UP)
            self._tail = both[1 - len(kmsg_child.CAUGHT_UP) :]
            return data
        self.works = False
        self._reader.read_with(os.read)
        log.warning("kernel_log_child_ended", pid=self.pid)
        return b"\n"  # ends a line that was cut off

    def catch_up(self, seconds: float) -> bool:
        """Wait until the reader has all that the ring holds now: on a busy machine the child may not have had its
        turn. False: not within this time, or its backlog is full."""
        if not self.works or self._child is None or self._child.stdin is None:
            return False
        before, end_s = self._caught_up, time.monotonic() + seconds
        with contextlib.suppress(OSError):  # it has ended, which the next read sees
            os.write(self._child.stdin.fileno(), b"?")
        waits = select.poll()
        waits.register(self.wake_fd, select.POLLIN)
        while True:
            self._reader.drain()
            if self._caught_up > before:
                return True
            if not self.works or self._reader.full or time.monotonic() > end_s:
                return False
            waits.poll(STEP_S * 1000)

    def _end_child(self) -> None:
        if self._child is not None:
            self._child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(timeout=1.0)
            if self._child.stdin is not None:
                self._child.stdin.close()

    def close(self) -> None:
        """End the child for good."""
        if self._pipe < 0:
            return
        self.works = False
        self._reader.read_with(os.read)
        self._end_child()
        os.close(self.wake_fd)
        os.close(self._pipe)
        self.wake_fd = self._pipe = -1
