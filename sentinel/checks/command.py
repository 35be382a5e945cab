"""Runs a program that may hang, flood or leave children behind: bounded in time and output, killed with its group."""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from msgspec import Struct

MAX_OUTPUT_BYTES = 1 << 20  # of stdout; what comes after it is read and dropped
MAX_ERROR_BYTES = 1 << 14
KILL_WAIT_S = 1.0  # a process that outlives SIGKILL so long hangs in the kernel


_running: set["subprocess.Popen[bytes]"] = set()


class CommandHangs(Exception):
    """The program did not end in time and was killed; `stuck` is the process if even that did not end it."""

    def __init__(self, message: str, stuck: subprocess.Popen[bytes] | None) -> None:
        super().__init__(message)
        self.stuck = stuck


class Output(Struct, frozen=True):
    """What a program left behind. A negative `code` is the signal that ended it."""

    code: int
    stdout: bytes
    stderr: bytes
    truncated: bool  # more than the bound was printed

    def first_line(self) -> str:
        """The first line that says anything, of stderr or else of stdout, as printable text of one line."""
        for data in (self.stderr, self.stdout):
            for line in data[:4096].decode(errors="replace").splitlines():
                if line.strip():
                    return "".join(c if c.isprintable() else " " for c in line.strip())[:200]
        return ""


def run(
    command: Sequence[str],
    deadline_s: float,
    max_bytes: int = MAX_OUTPUT_BYTES,
    environment: Mapping[str, str] | None = None,
) -> Output:
    """Run `command` to its end. Raises OSError if it cannot be started and CommandHangs after `deadline_s`.

    It runs in a session and process group of its own, in /, without input. Whatever it left in its group
    is killed when it ends: no check leaves processes behind.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        cwd="/",
        env=None if environment is None else {**os.environ, **environment},
    )
    _running.add(process)
    reader = _Reader(process, max_bytes)
    try:
        in_time = reader.until_end(time.monotonic() + deadline_s)
        # Before the process is reaped: its number, which is the group's, is not given to another until then.
        _kill(process)
        _running.discard(process)
        try:
            code = process.wait(timeout=KILL_WAIT_S)
        except subprocess.TimeoutExpired:
            raise CommandHangs(
                f"{command[0]}: pid {process.pid} hangs in the kernel and cannot be killed", process
            ) from None
        if not in_time:
            raise CommandHangs(
                f"{command[0]}: no end within {deadline_s:g} s (pid {process.pid} killed)", None
            )
        return Output(code, bytes(reader.stdout), bytes(reader.stderr), reader.truncated)
    finally:
        reader.close()


def end_all() -> None:
    """End what runs now: for a process that ends and waits for no command any more."""
    for process in tuple(_running):
        _kill(process)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


class _Reader:
    """Reads both streams of a process until it ends. What its children still hold open is not waited for."""

    def __init__(self, process: subprocess.Popen[bytes], max_bytes: int) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.stdout, self.stderr = bytearray(), bytearray()
        self.truncated = False
        self._streams = (process.stdout, process.stderr)
        self._pidfd = os.pidfd_open(process.pid)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._pidfd, selectors.EVENT_READ)
        bounds = ((process.stdout, self.stdout, max_bytes), (process.stderr, self.stderr, MAX_ERROR_BYTES))
        for stream, kept, bound in bounds:
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, (kept, bound))

    def until_end(self, until_s: float) -> bool:
        """False: the process was still there at `until_s` (monotonic)."""
        while True:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return False
            ended = False
            for key, _ in self._selector.select(left_s):
                if key.fd == self._pidfd:
                    ended = True
                else:
                    self._read(key.fd, *key.data)
            if ended:
                for key in list(self._selector.get_map().values()):
                    while (
                        key.fd != self._pidfd and time.monotonic() < until_s and self._read(key.fd, *key.data)
                    ):
                        pass
                return True

    def _read(self, descriptor: int, kept: bytearray, bound: int) -> bool:
        """Take what is there. False: nothing is, or it was the end."""
        try:
            data = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            self._selector.unregister(descriptor)
            return False
        self.truncated |= len(kept) + len(data) > bound
        kept += data[: max(0, bound - len(kept))]
        return True

    def close(self) -> None:
        self._selector.close()
        os.close(self._pidfd)
        for stream in self._streams:
            stream.close()
