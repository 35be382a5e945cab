"""One Sentinel per job: its lock, its address, and what others may ask of it over a Unix socket."""

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import structlog
from msgspec import Struct

log = structlog.get_logger()

ANSWER_S = 10.0
STARTING_S = 10.0  # from taking the job's lock to listening: one reads its settings and records first
MAX_REQUEST_BYTES = 4096


class Presence(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`sentinel.json`: who protects the job now."""

    pid: int
    start_ticks: int
    url: str = ""


class Lock:
    """Held as long as this process protects the job; a killed process holds nothing."""

    def __init__(self, folder: Path, name: str = "lock") -> None:
        self._path = folder / name
        self._fd: int | None = None

    def take(self, wait_s: float = 0.0) -> bool:
        deadline = time.monotonic() + wait_s
        while not self._try():
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        return True

    def _try(self) -> bool:
        while True:
            folder = self._path.parent
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except (FileExistsError, FileNotFoundError):
                if folder.exists() and not folder.is_dir():
                    raise
                continue  # the folder was set aside just now
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._names(fd):
                    self._fd = fd
                    return True
            except OSError as error:
                os.close(fd)
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
                return False
            os.close(fd)

    def _names(self, fd: int) -> bool:
        """A folder that was set aside meanwhile takes its lock with it: that one guards nothing any more."""
        try:
            named = os.stat(self._path)
        except FileNotFoundError:
            return False
        mine = os.fstat(fd)
        return (named.st_dev, named.st_ino) == (mine.st_dev, mine.st_ino)

    @property
    def held(self) -> bool:
        return self._fd is not None

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def write_presence(folder: Path, presence: Presence) -> None:
    temporary = folder / f".sentinel.json.{os.getpid()}"
    try:
        temporary.write_bytes(msgspec.json.encode(presence))
        os.replace(temporary, folder / "sentinel.json")
    except OSError as error:  # a full disk: only `status` misses it
        log.warning("presence_not_written", error=str(error))


# ---------------------------------------------------------------- asking

_SHORT = "/proc/self/fd/{}/{}"  # a socket's path may have 107 bytes only; the folder's descriptor shortens it


def ask_holder(folder: Path, request: dict[str, Any], lock: Lock) -> dict[str, Any] | None:
    """Ask the Sentinel that holds the job's lock, which may just be starting. None: it does not answer, or it is gone:
    then `lock` is taken."""
    deadline = time.monotonic() + STARTING_S
    while (answer := ask(folder, request)) is None and not lock.take() and time.monotonic() < deadline:
        time.sleep(0.05)
    return answer


def ask(folder: Path, request: dict[str, Any], timeout_s: float = ANSWER_S) -> dict[str, Any] | None:
    """Ask the Sentinel that protects the job. None: nobody listens, or it did not answer in time."""
    try:
        folder_fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(timeout_s)
            link.connect(_SHORT.format(folder_fd, "control.sock"))
            link.sendall(json.dumps(request).encode() + b"\n")
            with link.makefile("rb") as answers:
                line = answers.readline(1 << 20)
        answer = json.loads(line) if line else None
        return answer if isinstance(answer, dict) else None
    except (OSError, ValueError):
        return None
    finally:
        os.close(folder_fd)


Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


async def listen(folder: Path, handle: Handler) -> asyncio.AbstractServer:
    """Answer requests, one JSON line each. Only the owner of the folder reaches the socket."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                line = await reader.readline()
                request = json.loads(line)
                answer = await handle(request if isinstance(request, dict) else {})
        except (ValueError, TimeoutError, OSError) as error:
            answer = {"ok": False, "text": f"not understood: {error}"}
        with contextlib.suppress(OSError):
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()

    folder_fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(folder / "control.sock")
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        bound.bind(_SHORT.format(folder_fd, "control.sock"))
        os.chmod(folder / "control.sock", 0o600)
    finally:
        os.close(folder_fd)
    return await asyncio.start_unix_server(serve, sock=bound, limit=MAX_REQUEST_BYTES)
