"""Sentinel's own log: one JSON line per event, in a file of bounded size."""

import contextlib
import logging
import os
import stat
import threading
from pathlib import Path

import structlog

MAX_BYTES = 5_000_000


class LogFile:
    """At MAX_BYTES it becomes the older one and begins anew. What cannot be written is lost, and nothing else.

    Each line is one system call: a controller writes thousands in the seconds in which it isolates many nodes.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.RLock()
        self._file: int | None = None  # opened with the first line
        self._bytes, self._rolls = 0, True
        self._torn = False  # the last line was written in part: the disk is full

    def write(self, line: str) -> None:
        data = line.encode(errors="backslashreplace") + b"\n"
        with self._lock, contextlib.suppress(OSError):
            file = self._opened()
            if self._rolls and self._bytes and self._bytes + len(data) > MAX_BYTES:
                self._close()
                with contextlib.suppress(FileNotFoundError):  # somebody took it away
                    os.replace(self._path, f"{self._path}.1")
                file = self._opened()
            data = b"\n" + data if self._torn else data
            written = os.write(file, data)
            self._torn = written < len(data)
            self._bytes += written

    def close(self) -> None:
        with self._lock:
            self._close()

    def _opened(self) -> int:
        if self._file is None:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            there = os.fstat(self._file)
            self._bytes, self._torn = there.st_size, False
            self._rolls = stat.S_ISREG(there.st_mode)  # a link to /dev/stdout stays what it is
        return self._file

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    info = warning = error = critical = write  # what structlog calls


_NOWHERE = Path(os.devnull)
_to = LogFile(_NOWHERE)


def configure(path: Path | None) -> None:
    """Log events go to `path` (and one older file); None: nowhere. Raises OSError: there can be no such file."""
    global _to
    # Of libraries that log: a stderr that is gone is no reason to write to it.
    logging.raiseExceptions = False
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _to.close()
    _to = LogFile(path or _NOWHERE)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=lambda *args: _to,
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=False,
    )
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
