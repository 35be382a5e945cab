"""Following one file by polling, across truncation, rotation, disappearance and our own restarts.

With nothing new a poll costs one fstat of the open descriptor and one stat of the path.
"""

import contextlib
import errno
import os
import re
import stat
import zlib
from pathlib import Path

import structlog
from msgspec import Struct

from sentinel.logs.punch import hold_room, punch_hole

log = structlog.get_logger(__name__)

BEHIND = "it is written faster than it is read: until that is over it takes more on disk than keepBytes"
FULL = (
    "its disk is full: the oldest of it is dropped as far as it was read, so that the job can go on writing"
)
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
LEAST_HELD_BYTES = 64 << 10  # a traceback
TAIL_BYTES = 32  # of what was read last, to see that a file grew and was not written anew
# What rotation appends to a name: ".1", "-20250413", ".20240101-120000"; compressed files cannot be read on
_ROTATED = re.compile(r"[.-][0-9][0-9T_.:-]{0,40}")


class FilePosition(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where reading stood. `tail_crc` is of the (at most 32) bytes before `offset`, `mtime_ns` the file's."""

    device: int
    inode: int
    offset: int
    tail_bytes: int = 0
    tail_crc: int = 0
    mtime_ns: int = 0


class Follower:
    """Reads what is new in one file.

    `problem` names the present trouble in words ("" for none), `at_end` says that everything reachable
    was read, `switched` that what the last `read` returned begins a new file or a truncated one.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        position: FilePosition | None = None,
        keep_bytes: int | None = None,
        ahead_bytes: int = 0,
    ) -> None:
        """`ahead_bytes`: room that its writer finds taken on a full disk; of `keep_bytes` at most a quarter."""
        self._fd = -1
        self._path = os.fspath(path)
        self._resume = position
        self._keep_bytes = keep_bytes
        self._ahead_bytes = ahead_bytes if keep_bytes is None else min(ahead_bytes, keep_bytes // 4)
        self._held_end = self._size = 0
        self._full_problem = ""
        self._stat_key = (0, 0)  # device, inode of the open file
        self._queue: list[str] = []  # rotated files that come before the path itself
        self._tail = b""
        self._mtime_ns = 0
        self._moved_polls = 0
        self._punched = 0
        self._hole_problem = ""
        self._behind_problem = ""
        self._problem = "not there yet"
        self.offset = 0
        self.at_end = False
        self.switched = False

    @property
    def problem(self) -> str:
        return "; ".join(
            filter(None, (self._problem, self._hole_problem, self._behind_problem, self._full_problem))
        )

    def read(self, limit_bytes: int) -> bytes:
        """The next bytes, at most `limit_bytes`. Never raises OSError: `problem` says what happened."""
        self.switched = False
        try:
            return self._read(limit_bytes)
        except OSError as error:
            self._problem = f"cannot be read: {error.strerror or error}"
            self.at_end = False
            self._reopen_later()  # a stale handle does not heal by itself
            return b""

    def _read(self, limit_bytes: int) -> bytes:
        if self._fd < 0 and not self._open_first():
            self.at_end = False
            return b""
        status = os.fstat(self._fd)
        size, self._mtime_ns = status.st_size, status.st_mtime_ns
        self._size = size
        if size != self.offset and not self._grew(size):
            log.info("log_truncated", path=self._path, read_bytes=self.offset, size_bytes=size)
            self._problem, self.switched = "truncated", True
            self._start_at_data(size)
        if size <= self.offset:
            return self._nothing_new(status)
        data = os.pread(self._fd, min(limit_bytes, size - self.offset), self.offset)
        self.offset += len(data)
        unread_bytes = size - self.offset
        self._behind_problem = BEHIND if self._keep_bytes and unread_bytes > self._keep_bytes else ""
        self._tail = data[-TAIL_BYTES:] if len(data) >= TAIL_BYTES else (self._tail + data)[-TAIL_BYTES:]
        self._moved_polls = 0
        self.at_end = self.offset >= size and not self._queue
        if status.st_nlink == 0:  # removed under a writer that is never idle: nobody else can read this
            self._problem = "vanished"
        elif not self.switched and self._problem != "vanished":
            self._problem = ""
        return data

    def _grew(self, size: int) -> bool:
        """Is the file the one that was read, with something added? Truncated and refilled it is not."""
        if size < self.offset:
            return False
        return os.pread(self._fd, len(self._tail), self.offset - len(self._tail)) == self._tail

    def _nothing_new(self, status: os.stat_result) -> bytes:
        self.at_end = not self._queue
        try:
            named = os.stat(self._path)
        except FileNotFoundError:
            if not self._queue:
                self._problem = "vanished"
                return b""
        else:
            if (named.st_dev, named.st_ino) == self._stat_key:
                if self._problem == "vanished":
                    self._problem = ""
                return b""
        # The writer may still hold the old file: leave it after two polls in a row without news.
        self._moved_polls += 1
        self.at_end = False
        if self._moved_polls >= 2:
            self._next_file(status)
        return b""

    # ------------------------------------------------------------ opening

    def _open_first(self) -> bool:
        position = self._resume
        if position is None:
            return self._open(self._path, 0, missing_is_problem=True)
        for candidate in (self._path, *(path for path, _ in self._rotated())):
            if self._is_at(candidate, position) and self._open(candidate, position.offset):
                self._resume = None
                if candidate != self._path:
                    self._queue = self._newer_than(position.mtime_ns)
                return True
        self._queue = self._newer_than(position.mtime_ns)
        first = self._queue.pop(0) if self._queue else self._path
        opened = self._open(first, 0, missing_is_problem=True)
        if opened:
            self._resume = None
            self.switched = True
            self._problem = "replaced"
            log.info("log_replaced", path=self._path, continued_with=first)
        return opened

    def _is_at(self, path: str, position: FilePosition) -> bool:
        try:
            status = os.stat(path)
            if (status.st_dev, status.st_ino) != (position.device, position.inode):
                return False
            if status.st_size < position.offset:
                return False
            with open(path, "rb", buffering=0) as file:
                tail = os.pread(file.fileno(), position.tail_bytes, position.offset - position.tail_bytes)
        except OSError:
            return False
        return zlib.crc32(tail) == position.tail_crc

    def _open(self, path: str, offset: int, missing_is_problem: bool = False) -> bool:
        flags = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        try:
            fd = os.open(path, flags | (os.O_RDWR if self._keep_bytes or self._ahead_bytes else os.O_RDONLY))
        except FileNotFoundError:
            if missing_is_problem and self._problem != "vanished":
                self._problem = "not there yet"
            return False
        except OSError as error:
            if not self._keep_bytes and not self._ahead_bytes:
                raise
            self._ahead_bytes = 0
            if self._keep_bytes:
                self._stop_punching(error)
            fd = os.open(path, flags | os.O_RDONLY)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(fd)
            self._problem = "not a regular file"
            return False
        self._close()
        self._fd = fd
        self._stat_key = (status.st_dev, status.st_ino)
        self._problem = ""
        self._moved_polls = 0
        if offset:
            self._held_end = 0
            self.offset = offset
            before = min(TAIL_BYTES, offset)
            self._tail = os.pread(fd, before, offset - before)
            self._punched = offset
        else:
            self._start_at_data(status.st_size)
        return True

    def _start_at_data(self, size: int) -> None:
        """Skip a hole at the beginning: a writer that does not append leaves one after a truncation."""
        self._held_end = 0
        self.offset = 0
        if size:
            with contextlib.suppress(OSError):
                self.offset = os.lseek(self._fd, 0, os.SEEK_DATA)
        self._punched = self.offset
        self._tail = b""

    def _next_file(self, status: os.stat_result) -> None:
        if not self._queue and (self._stat_key != self._key(self._path)):
            self._queue = self._newer_than(status.st_mtime_ns)
        old_key = self._stat_key
        while self._queue:
            following = self._queue.pop(0)
            if self._key(following) != old_key and self._open(following, 0):
                self.switched = True
                return
        if self._open(self._path, 0):
            self.switched = True

    def _key(self, path: str) -> tuple[int, int] | None:
        try:
            status = os.stat(path)
        except OSError:
            return None
        return (status.st_dev, status.st_ino)

    def _rotated(self) -> list[tuple[str, os.stat_result]]:
        """Rotated siblings of the path, oldest first."""
        real = Path(os.path.realpath(self._path))
        found = []
        try:
            with os.scandir(real.parent) as entries:
                for entry in entries:
                    if entry.name.startswith(real.name) and _ROTATED.fullmatch(entry.name[len(real.name) :]):
                        with contextlib.suppress(OSError):
                            found.append((entry.path, entry.stat()))
        except OSError:
            return []
        return sorted(found, key=lambda item: item[1].st_mtime_ns)

    def _newer_than(self, mtime_ns: int) -> list[str]:
        """Rotated files that were written after the one last read."""
        own = self._stat_key
        return [
            path
            for path, status in self._rotated()
            if status.st_mtime_ns >= mtime_ns and (status.st_dev, status.st_ino) != own
        ]

    # ------------------------------------------------------------ position, holes, end

    def position(self, behind_bytes: int = 0) -> FilePosition | None:
        """The position `behind_bytes` before what was read, to be saved; None before the file was there."""
        if self._fd < 0:
            return self._resume
        offset = self.offset - behind_bytes
        before = min(TAIL_BYTES, offset)
        try:
            tail = os.pread(self._fd, before, offset - before)
            mtime_ns = os.fstat(self._fd).st_mtime_ns
        except OSError:
            return None
        device, inode = self._stat_key
        return FilePosition(
            device=device,
            inode=inode,
            offset=offset,
            tail_bytes=before,
            tail_crc=zlib.crc32(tail),
            mtime_ns=mtime_ns,
        )

    def free_behind(self, behind_bytes: int) -> None:
        """Give back blocks so that at most `keep_bytes` of what was read stay on the disk; hold some for the writer."""
        self._hold_ahead(behind_bytes)
        if not self._keep_bytes or self._hole_problem or self._fd < 0:
            return
        consumed = self.offset - behind_bytes
        may_stay = self._keep_bytes - self._ahead_bytes
        if consumed - self._punched <= may_stay:
            return
        try:
            # half of what may stay goes at once, so that this happens seldom; the tail must stay readable
            end = min(consumed - may_stay // 2, consumed - TAIL_BYTES)
            self._punched = punch_hole(self._fd, self._punched, end)
        except OSError as error:
            self._stop_punching(error)

    def _hold_ahead(self, behind_bytes: int) -> None:
        """A program that prints dies of a full disk: so the blocks of its next lines are always taken, in the end in
        place of its oldest ones."""
        if not self._ahead_bytes or self._fd < 0 or self._held_end - self._size >= self._ahead_bytes // 2:
            return
        held_bytes = self._ahead_bytes
        try:
            hold_room(self._fd, self._size, held_bytes)
            self._full_problem = ""
        except OSError as error:
            if error.errno not in NO_ROOM:
                self._ahead_bytes = 0  # not on this file system
                return
            self._full_problem = FULL
            end = min(self.offset - behind_bytes - TAIL_BYTES, self._punched + self._ahead_bytes)
            with contextlib.suppress(OSError):
                self._punched = punch_hole(self._fd, self._punched, end)
            held_bytes = self._hold_what_there_is()
        self._held_end = max(self._held_end, self._size + held_bytes)

    def _hold_what_there_is(self) -> int:
        """On a disk that is all but full: how many bytes could be held."""
        length_bytes = self._ahead_bytes
        while length_bytes >= LEAST_HELD_BYTES:
            with contextlib.suppress(OSError):
                hold_room(self._fd, self._size, length_bytes)
                return length_bytes
            length_bytes //= 2
        return 0

    def give_back(self) -> None:
        """The writer has ended: what was held for it is free. Whoever still wrote could lose a line."""
        if self._ahead_bytes and self._fd >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, os.fstat(self._fd).st_size)
        self._held_end = 0

    def _stop_punching(self, error: OSError) -> None:
        self._keep_bytes = None
        self._hole_problem = f"its size cannot be bounded: {error.strerror or error}"
        log.warning("log_holes_refused", path=self._path, error=str(error))

    def _reopen_later(self) -> None:
        """The next poll opens the path anew and goes on where this one stood."""
        if self._fd < 0:
            return
        device, inode = self._stat_key
        self._resume = FilePosition(
            device=device,
            inode=inode,
            offset=self.offset,
            tail_bytes=len(self._tail),
            tail_crc=zlib.crc32(self._tail),
            mtime_ns=self._mtime_ns,
        )
        self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):  # what is stale may refuse this too; the number is free then
                os.close(self._fd)
            self._fd = -1

    def close(self) -> None:
        self._close()

    def __del__(self) -> None:
        """Who lets go of it without closing it leaks nothing, as with a file."""
        self._close()
