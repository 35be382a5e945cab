"""A child process that answers one line for one line, and is killed when it does not."""

import os
import select
import subprocess
import time
from collections.abc import Sequence

from msgspec import Struct

MAX_LINE_BYTES = 4 << 20


class ChildHangs(Exception):
    """No answer in time. The child was killed; `unkillable` says that it is stuck in the kernel."""

    def __init__(self, message: str, unkillable: bool) -> None:
        super().__init__(message)
        self.unkillable = unkillable


class ChildBroke(Exception):
    """The child ended, could not be started or answered nonsense."""


class LineChild:
    """Started at the first request and kept; started again after it broke or was killed.

    A child that even SIGKILL does not end (it hangs inside the driver) is not replaced while it exists:
    a new one would hang beside it.
    """

    def __init__(self, command: Sequence[str], *, wakes: bool = False) -> None:
        """`wakes`: the child gets a descriptor as its last argument; what it writes there makes wake_fd readable."""
        self._command = list(command)
        self._wake_pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if wakes else None
        self._process: subprocess.Popen[bytes] | None = None
        self._stuck: subprocess.Popen[bytes] | None = None
        self._buffer = b""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def wake_fd(self) -> int | None:
        """The same for all successors of a child, so that whoever waits on it need not know of them."""
        return self._wake_pipe[0] if self._wake_pipe is not None else None

    def drain_wakes(self) -> None:
        """Make wake_fd unreadable until the next wake."""
        if self._wake_pipe is not None:
            try:
                os.read(self._wake_pipe[0], 1 << 16)
            except BlockingIOError:
                pass

    def ask(self, request: bytes, deadline_s: float) -> bytes:
        """Send one line, return the line that answers it. Raises ChildHangs or ChildBroke."""
        if self._stuck is not None:
            if self._stuck.poll() is None:
                raise ChildHangs(f"pid {self._stuck.pid} is stuck in the kernel and cannot be killed", True)
            self._stuck = None
        process = self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(request + b"\n")
            process.stdin.flush()
        except OSError:
            raise self._broke() from None
        return self._answer(process, time.monotonic() + deadline_s, deadline_s)

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.stop()
            wake = [] if self._wake_pipe is None else [self._wake_pipe[1]]
            try:
                self._process = subprocess.Popen(
                    [*self._command, *map(str, wake)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    pass_fds=wake,
                )
            except OSError as error:
                raise ChildBroke(f"{self._command[0]}: {error.strerror}") from None
        return self._process

    def _answer(self, process: subprocess.Popen[bytes], until_s: float, deadline_s: float) -> bytes:
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        answers = select.poll()  # select(2) knows no descriptor above 1023, and an agent may have more
        answers.register(descriptor, select.POLLIN)
        while b"\n" not in self._buffer:
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not answers.poll(left_s * 1000):
                pid = process.pid
                unkillable = not self._kill()
                raise ChildHangs(f"no answer within {deadline_s:g} s (pid {pid} killed)", unkillable)
            data = os.read(descriptor, 1 << 16)
            if not data or len(self._buffer) > MAX_LINE_BYTES:
                raise self._broke()
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _kill(self) -> bool:
        """End the child now. False: it is stuck in the kernel."""
        process, self._process, self._buffer = self._process, None, b""
        if process is None:
            return True
        process.kill()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:  # an unsent request to a child that is gone
                    pass
        try:
            process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            self._stuck = process
            return False
        return True

    def _broke(self) -> ChildBroke:
        process = self._process
        self._kill()
        return ChildBroke(f"the child ended with status {process.returncode if process else None}")

    def abandon(self) -> None:
        """End the child, also from another thread than that which asks: to that one it broke."""
        if (process := self._process) is not None:
            process.kill()

    def stop(self) -> None:
        """End the child; the next request starts a new one."""
        self._kill()

    def close(self) -> None:
        """End the child for good."""
        self._kill()
        if self._wake_pipe is not None:
            for descriptor in self._wake_pipe:
                os.close(descriptor)
            self._wake_pipe = None


class ChildMemory(Struct):
    """The memory of a check that asks a child (`Kept.own`): the child, and what more the check adds."""

    child: LineChild | None = None  # None: nothing was asked yet

    def abandon(self) -> None:
        if self.child is not None:
            self.child.abandon()

    def close(self) -> None:
        if self.child is not None:
            self.child.close()
