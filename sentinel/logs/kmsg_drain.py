"""Keeps the ring of kernel messages empty while others work: a child process that only reads, never handles.

The ring of a machine can be 128 KiB: a flood fills it in 20 ms. A thread would be late: it needs the interpreter,
which a handling thread may hold while a busy machine gives its core to training.
"""

import contextlib
import fcntl
import os
import subprocess
import sys

import structlog

from sentinel.logs import kmsg_child
from sentinel.logs.kmsg import KmsgReader

log = structlog.get_logger(__name__)

PIPE_BYTES = 1 << 20
READ_BYTES = 64 << 10
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
        self.works = False

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    def start(self) -> None:
        ring = self._reader.fileno()
        command = [sys.executable, "-I", "-S", kmsg_child.__file__, str(ring), str(self._pipe)]
        null = subprocess.DEVNULL
        try:
            self._child = subprocess.Popen(
                command, stdin=null, stdout=null, stderr=null, pass_fds=(ring, self._pipe)
            )
        except OSError as error:
            log.warning("kernel_log_child_not_started", error=str(error))
            return
        self.works = True
        self._reader.read_with(self._read, BACKLOG_BYTES)

    def _read(self, ring: int, size: int) -> bytes:
        ended = self._child is None or self._child.poll() is not None
        try:
            return os.read(self.wake_fd, READ_BYTES)
        except BlockingIOError:
            if not ended:
                raise
        self.works = False
        self._reader.read_with(os.read)
        log.warning("kernel_log_child_ended", pid=self.pid)
        return b"\n"  # ends a line that was cut off

    def close(self) -> None:
        """End the child for good."""
        if self._pipe < 0:
            return
        self.works = False
        self._reader.read_with(os.read)
        if self._child is not None:
            self._child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(timeout=1.0)
        os.close(self.wake_fd)
        os.close(self._pipe)
        self.wake_fd = self._pipe = -1
