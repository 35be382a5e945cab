"""Asks a short-lived child: a question to its standard input, a bounded answer from its standard output.

The child has a session of its own (Ctrl-C on a terminal is for the job). It is killed with its group at its time limit,
when it says too much and when who asks is cancelled; what it left in its group when it ended is, too. What its children
hold open is not waited for, nor, for long, one that hangs in the kernel.

It is started and reaped here, not by asyncio: there each child costs a thread (Python 3.11), `wait` also waits for the
pipes, and `kill` looks whether the child has ended, which reaps it behind the back of who waits for its exit status.
"""

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import structlog
from msgspec import Struct

log = structlog.get_logger()

KILLED_S = 2.0  # a child that outlives SIGKILL so long hangs in the kernel
CANCELLED_S = 0.1  # it is waited for, with all else standing still, where nobody has the time
COMPLAINT_BYTES = 4096  # that are kept of its errors: their end
READ_BYTES = 1 << 16
LEFT_BYTES = 1 << 20  # that are read when it has ended: its children may go on writing
NOT_KNOWN = "its exit status is not known"
LOST = 255  # so that Popen looks no more for an exit status that nobody has

Take = Callable[[bytes], None]

_left: list[subprocess.Popen[bytes]] = []  # not reaped yet: they outlived their kill


class Ended(Struct, frozen=True):
    """By itself. `code` below zero: by that signal. `complaint`: the end of its errors."""

    code: int
    answer: bytes
    complaint: str

    @property
    def last_line(self) -> str:
        """Of its errors: of a Python that broke, the exception."""
        return (self.complaint.splitlines() or ["it said nothing"])[-1]


class ChildError(Exception):
    """There is no answer. `complaint`: the end of its errors."""

    def __init__(self, message: str, complaint: str = "") -> None:
        super().__init__(message)
        self.complaint = complaint


class NotStarted(ChildError):
    pass


class OutOfTime(ChildError):
    pass


class SaidTooMuch(ChildError):
    """`begun`: as much of its answer as it may say."""

    def __init__(self, message: str, complaint: str, begun: bytes) -> None:
        super().__init__(message, complaint)
        self.begun = begun


def our_python(module: str) -> list[str]:
    """The command that calls `main` of a module of this Sentinel, whichever others are in its path. The working
    directory is not (a job's folder may hold a yaml.py), and what lies beside this Sentinel hides no other module."""
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); import sentinel; sys.path.append(sys.path.pop(0)); "
    )
    code += f"from {module} import main; sys.exit(main())"
    return [sys.executable, "-P", "-c", code, str(Path(__file__).parents[2])]


async def ask(
    command: Sequence[str],
    question: bytes = b"",
    *,
    limit_s: float,
    most_bytes: int = 0,
    take: Take | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> Ended:
    """Until it has ended. Raises ChildError, and what `take` raises.

    `take` gets each line of its answer as it comes; then `most_bytes` bounds a line, and the answer is what comes after
    the last one. `most_bytes` 0: it may say what it likes, and nobody listens.
    """
    try:
        child = _Child(command, question, most_bytes, take, env, cwd)
    except OSError as error:
        raise NotStarted(f"{command[0]}: {error.strerror}") from error
    except ValueError as error:  # a NUL in an argument
        raise NotStarted(f"{command[0]}: {error}") from error
    try:
        try:
            async with asyncio.timeout(limit_s) as limit:
                await child.until_end()
        except TimeoutError:
            if not limit.expired():
                raise
            if not child.has_ended():  # else this loop alone was late
                raise OutOfTime(f"no answer within {limit_s:g} s", child.complaint()) from None
        child.hear_out()
    finally:
        code = await child.end()
    if code is None:
        raise ChildError(NOT_KNOWN, child.complaint())
    return Ended(code, bytes(child.answer), child.complaint())


class _Child:
    def __init__(
        self,
        command: Sequence[str],
        question: bytes,
        most: int,
        take: Take | None,
        env: Mapping[str, str] | None,
        cwd: str | None,
    ) -> None:
        """Raises OSError, ValueError, ChildError."""
        self.answer, self._errors = bytearray(), bytearray()
        self._program, self._question, self._most, self._take = command[0], memoryview(question), most, take
        self._loop = asyncio.get_running_loop()
        self._turn, self._ended = asyncio.Event(), asyncio.Event()
        self._pidfd = -1
        _left[:] = [one for one in _left if one.poll() is None]
        self._process = process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if question else subprocess.DEVNULL,
            stdout=subprocess.PIPE if most else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            env=env,
            cwd=cwd,
        )
        self._streams = [one for one in (process.stdin, process.stdout, process.stderr) if one is not None]
        try:
            self._pidfd = os.pidfd_open(process.pid)
            self._loop.add_reader(self._pidfd, self._note_end)
            for stream in self._streams:
                os.set_blocking(stream.fileno(), False)
                listen = self._loop.add_writer if stream is process.stdin else self._loop.add_reader
                listen(stream.fileno(), self._turn.set)
        except OSError as error:  # no descriptor is left, or no more of them can be watched
            self._kill()
            _left.append(process)
            self._close_all()
            if isinstance(error, ProcessLookupError):  # where SIGCHLD is ignored it may be gone already
                raise ChildError(NOT_KNOWN) from error
            raise

    def has_ended(self) -> bool:
        """Now, seen by the loop or not."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def _note_end(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self._ended.set()
        self._turn.set()

    async def until_end(self) -> None:
        while not self._ended.is_set():
            self._turn.clear()
            await self._turn.wait()
            self._tell()
            self._listen()
            self._hear_errors()

    def hear_out(self) -> None:
        """It has ended."""
        left = LEFT_BYTES
        while left > 0 and (count := self._listen()):
            left -= count

    def _tell(self) -> None:
        stream = self._process.stdin
        if stream is None or stream.closed:
            return
        try:
            count = os.write(stream.fileno(), self._question[:READ_BYTES])
        except BlockingIOError:
            return
        except BrokenPipeError:  # it wants to hear no more; its answer may be good all the same
            count = len(self._question)
        self._question = self._question[count:]
        if not self._question:
            self._close(stream)

    def _listen(self) -> int:
        data = self._read(self._process.stdout)
        self.answer += data
        if self._take is not None and b"\n" in data:
            *lines, self.answer = self.answer.split(b"\n")
            for line in lines:
                self._check(line)
                self._take(bytes(line))
        self._check(self.answer)
        return len(data)

    def _check(self, said: bytearray) -> None:
        if len(said) > self._most:
            told = f"its answer is longer than {self._most} bytes"
            raise SaidTooMuch(told, self.complaint(), bytes(said[: self._most]))

    def _hear_errors(self) -> int:
        data = self._read(self._process.stderr)
        self._errors += data
        del self._errors[:-COMPLAINT_BYTES]
        return len(data)

    def _read(self, stream: IO[bytes] | None) -> bytes:
        """What is there now."""
        if stream is None or stream.closed:
            return b""
        try:
            data = os.read(stream.fileno(), READ_BYTES)
        except BlockingIOError:
            return b""
        if not data:
            self._close(stream)
        return data

    def complaint(self) -> str:
        left = LEFT_BYTES
        while left > 0 and (count := self._hear_errors()):
            left -= count
        return self._errors.decode(errors="replace").strip()

    def _close(self, stream: IO[bytes]) -> None:
        if not stream.closed:
            self._loop.remove_writer(stream.fileno())
            self._loop.remove_reader(stream.fileno())
            stream.close()

    def _close_all(self) -> None:
        for stream in self._streams:
            self._close(stream)
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)

    async def end(self) -> int | None:
        """Its exit status; None: it is not known."""
        self._kill()
        try:
            async with asyncio.timeout(KILLED_S):
                await self._ended.wait()
        except TimeoutError:
            log.warning("child_outlives_its_kill", pid=self._process.pid, program=self._program)
        except asyncio.CancelledError:  # once more: who cancels does not wait, and is not let wait long
            select.select([self._pidfd], [], [], CANCELLED_S)
            raise
        finally:
            self.complaint()
            code = self._reap()
            self._close_all()
        return code

    def _reap(self) -> int | None:
        """Not by `poll`: it takes a lost exit status for 0. Where SIGCHLD is ignored, the kernel keeps none."""
        try:
            end = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            self._process.returncode = LOST
            return None
        if end is None:
            _left.append(self._process)
            return None
        code = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
        self._process.returncode = code
        return code

    def _kill(self) -> None:
        """With its group. Before it is reaped: until then its number, which is the group's, is given to no other."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
