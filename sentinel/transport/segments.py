"""One lane of the spool: records in files of fixed size, whose room on disk is taken before it is needed.

A record is a header (magic, length, CRC-32, sequence number; little endian) and its bytes. The rest of a
file is zeros. A damaged record is passed over: reading goes on at the next magic number whose record is whole.
"""

import os
import struct
import zlib
from collections import deque
from collections.abc import Iterator

from msgspec import Struct

SEGMENT_BYTES = 512 << 10
MAGIC = b"SPO1"
HEADER = struct.Struct("<4sIIQ")
SUFFIX = ".seg"


class Record(Struct, frozen=True):
    sequence: int
    payload: bytes
    end: int  # offset behind it in its file


class Scan(Struct):
    """What `records` met besides good ones."""

    torn: int = 0


def pack(sequence: int, payload: bytes) -> bytes:
    check = zlib.crc32(payload, zlib.crc32(sequence.to_bytes(8, "little")))
    return HEADER.pack(MAGIC, len(payload), check, sequence) + payload


def records(data: bytes, base: int, scan: Scan) -> Iterator[Record]:
    """All whole records of `data`, which begins at offset `base` of its file."""
    at = 0
    whole = True
    while True:
        found = data.find(MAGIC, at)
        if found < 0 or found + HEADER.size > len(data):
            break
        if found > at and whole:
            scan.torn += 1
        _, length, check, sequence = HEADER.unpack_from(data, found)
        begin = found + HEADER.size
        payload = data[begin : begin + length]
        if len(payload) == length and check == zlib.crc32(
            payload, zlib.crc32(sequence.to_bytes(8, "little"))
        ):
            whole = True
            at = begin + length
            yield Record(sequence, payload, base + at)
        else:
            if whole:
                scan.torn += 1
            whole = False
            at = found + 1


class Segment(Struct, eq=False):
    """One file. `end`: where the next record goes; `waiting`: its records that are not acknowledged."""

    path: str
    end: int = 0
    read: int = 0  # offset up to which it was read
    waiting: int = 0
    last: int = 0  # sequence number of its newest record


class Lane:
    """The segments of one kind, oldest first; the newest is written. Every method may raise OSError."""

    def __init__(self, folder: str, prefix: str) -> None:
        self._folder = folder
        self._prefix = prefix
        self._fd = -1
        self._serial = 0
        self._read: tuple[Segment, Iterator[Record], int] | None = None  # int: offset behind what was loaded
        self.segments: deque[Segment] = deque()
        self.torn = 0

    def open(self, acked: int) -> int:
        """Take up what a predecessor left. Returns the highest sequence number seen."""
        highest = 0
        names = sorted(
            n for n in os.listdir(self._folder) if n.startswith(self._prefix) and n.endswith(SUFFIX)
        )
        for name in names:
            path = os.path.join(self._folder, name)
            try:
                with open(path, "rb") as file:
                    data = file.read(SEGMENT_BYTES)
            except OSError:  # lost as a whole, and no reason to lose the others
                self.torn += 1
                continue
            scan = Scan()
            segment = Segment(path)
            for record in records(data, 0, scan):
                segment.end = record.end
                segment.last = max(segment.last, record.sequence)
                segment.waiting += record.sequence > acked
            self.torn += scan.torn
            highest = max(highest, segment.last)
            serial = name[len(self._prefix) : -len(SUFFIX)]
            self._serial = max(self._serial, int(serial) if serial.isdigit() else 0)
            self.segments.append(segment)
        self.trim(acked)
        if self.segments:
            self._open_last()
        return highest

    def _open_last(self) -> None:
        self._fd = os.open(self.segments[-1].path, os.O_RDWR | os.O_CLOEXEC)

    def fits(self, size: int) -> bool:
        """Whether the newest segment has room for a record of so many packed bytes."""
        return self._fd >= 0 and self.segments[-1].end + size <= SEGMENT_BYTES

    def grow(self) -> None:
        """Begin a new segment, or the newest one anew if nothing in it is needed."""
        if self._fd >= 0 and not self.segments[-1].waiting and len(self.segments) == 1:
            segment = self.segments[-1]
            os.ftruncate(self._fd, 0)
            segment.end = segment.read = 0
            self._forget(segment)
            self._reserve(self._fd)
            return
        path = os.path.join(self._folder, f"{self._prefix}{self._serial + 1:010d}{SUFFIX}")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            self._reserve(fd)
        except OSError:
            os.close(fd)
            os.unlink(path)
            raise
        self._serial += 1
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        self.segments.append(Segment(path))

    def _reserve(self, fd: int) -> None:
        os.posix_fallocate(fd, 0, SEGMENT_BYTES)

    def write(self, sequence: int, packed: bytes) -> None:
        segment = self.segments[-1]
        if os.pwrite(self._fd, packed, segment.end) != len(packed):
            raise OSError("a record was written in part")
        segment.end += len(packed)
        segment.waiting += 1
        segment.last = sequence

    def read(self, acked: int) -> tuple[Record, Segment] | None:
        """The next record that was not read yet and is not acknowledged."""
        while True:
            if self._read is not None:
                segment, chunk, end = self._read
                for record in chunk:
                    if record.sequence > acked:
                        return record, segment
                segment.read = end  # whatever was damaged behind its last whole record
                self._read = None
            unread = next((s for s in self.segments if s.read < s.end), None)
            if unread is None:
                return None
            fd = os.open(unread.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = os.pread(fd, unread.end - unread.read, unread.read)
            finally:
                os.close(fd)
            self._read = (unread, records(data, unread.read, Scan()), unread.end)

    def rewind(self) -> None:
        """Read from the oldest record again."""
        self._read = None
        for segment in self.segments:
            segment.read = 0

    def drop_oldest(self) -> int:
        """Give up the oldest segment. Returns how many records were lost with it."""
        segment = self.segments.popleft()
        self._forget(segment)
        if not self.segments and self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        os.unlink(segment.path)
        return segment.waiting

    def trim(self, acked: int) -> None:
        """Delete the files in which nothing waits, but the newest."""
        for segment in self.segments:
            if segment.last <= acked:
                segment.waiting = 0  # what was damaged in it will never be acknowledged
        while len(self.segments) > 1 and not self.segments[0].waiting:
            self.drop_oldest()

    def _forget(self, segment: Segment) -> None:
        if self._read is not None and self._read[0] is segment:
            self._read = None

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
