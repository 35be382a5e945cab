"""What an agent has to tell and nobody has acknowledged yet: on disk, numbered, bounded.

Two lanes of files, one for events (exits, log matches, event findings), one for progress, read together by
sequence number. When the spool is full the oldest progress goes first, a file at a time, and events only
when no progress is left; what is lost is counted by kind. Nothing is flushed to the medium: records survive
the agent's death but not always the machine's, after which they would be of another boot anyhow. On a full
disk records go into the room that each lane's file has taken beforehand, then into a bounded piece of memory.
"""

import hashlib
import os
import secrets
import struct
import zlib
from collections import deque
from enum import StrEnum

import structlog
from msgspec import Struct

from sentinel.transport.segments import SEGMENT_BYTES, Lane, Record, Segment, pack
from sentinel.transport.wire import Dropped

log = structlog.get_logger(__name__)

MAX_BYTES = 16 << 20
MIN_SEGMENTS = 4
MEMORY_BYTES = 1 << 20
# Numbers are taken from the disk in blocks, so that none is used twice after a kill; gaps mean nothing.
BLOCK = 1024

_META = struct.Struct("<4s16s8sQQI")  # magic, session, digest of the boot id, acknowledged, reserved, CRC-32
_META_MAGIC = b"SPM1"


class Kind(StrEnum):
    PROGRESS = "progress"
    EVENT = "event"


class _Offered(Struct, frozen=True):
    sequence: int
    segment: Segment | None  # None: in memory


class _InMemory(Struct, frozen=True):
    sequence: int
    kind: Kind
    payload: bytes


class Spool:
    """Made once per process; its folder belongs to it. No method raises OSError: what the disk does is counted."""

    def __init__(self, folder: str, boot_id: str, *, max_bytes: int = MAX_BYTES) -> None:
        self.dropped: dict[Kind, int] = {Kind.PROGRESS: 0, Kind.EVENT: 0}
        self.disk_errors = 0
        self._folder = folder
        self._boot = hashlib.blake2b(boot_id.encode(), digest_size=8).digest()
        self._max_segments = max(MIN_SEGMENTS, max_bytes // SEGMENT_BYTES)
        self._lanes = {Kind.EVENT: Lane(folder, "event-"), Kind.PROGRESS: Lane(folder, "progress-")}
        self._memory: deque[_InMemory] = deque()
        self._memory_bytes = 0
        self._ahead: dict[Kind, tuple[Record, Segment]] = {}  # read, not given out yet
        self._offered: deque[_Offered] = deque()
        self._given = 0  # highest sequence number given out since the last rewind
        self._meta_fd = -1
        self._session = secrets.token_bytes(16)
        self.acked = 0
        self._next = 1
        self._reserved = 0
        self._open()

    # ------------------------------------------------------------ at the start

    def _open(self) -> None:
        highest = 0
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            self._meta_fd = os.open(
                os.path.join(self._folder, "meta"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
            self._read_meta()
        except OSError as error:
            self._trouble("spool_unusable", error)
        for kind, lane in self._lanes.items():
            try:
                highest = max(highest, lane.open(self.acked))
                if not lane.segments:
                    lane.grow()
            except OSError as error:
                self._trouble("spool_unusable", error, kind=kind.value)
        self._next = max(self._reserved, highest, self.acked) + 1
        self._reserve()

    def _read_meta(self) -> None:
        data = os.pread(self._meta_fd, _META.size, 0)
        if len(data) != _META.size:
            return
        magic, session, boot, acked, reserved, check = _META.unpack(data)
        if magic != _META_MAGIC or check != zlib.crc32(data[:-4]):
            return
        self.acked, self._reserved = acked, reserved
        if boot == self._boot:  # the numbers of another boot go on, under another name
            self._session = session

    def _write_meta(self) -> bool:
        data = _META.pack(_META_MAGIC, self._session, self._boot, self.acked, self._reserved, 0)[:-4]
        try:
            os.pwrite(self._meta_fd, data + zlib.crc32(data).to_bytes(4, "little"), 0)
        except OSError as error:
            self._trouble("spool_meta_unwritten", error)
            return False
        return True

    def _reserve(self) -> None:
        """Take the next block of numbers. If the disk cannot keep that, they are numbers of a new session."""
        self._reserved = self._next + BLOCK
        if not self._write_meta():
            self._session = secrets.token_bytes(16)

    def _trouble(self, event: str, error: OSError, **more: str) -> None:
        self.disk_errors += 1
        # The 1st, 2nd, 4th, 8th ...: a flood of them fills no log.
        if self.disk_errors & (self.disk_errors - 1) == 0:
            log.warning(event, folder=self._folder, error=error.strerror, errors=self.disk_errors, **more)

    # ------------------------------------------------------------ what others see

    @property
    def session(self) -> str:
        return self._session.hex()

    @property
    def last(self) -> int:
        """The newest sequence number."""
        return self._next - 1

    @property
    def waiting(self) -> int:
        """Records that are not acknowledged."""
        return sum(s.waiting for lane in self._lanes.values() for s in lane.segments) + len(self._memory)

    @property
    def more(self) -> bool:
        """Whether there are records that were not given out since the last rewind."""
        return self.last > self._given and self._peek() is not None

    @property
    def torn(self) -> int:
        return sum(lane.torn for lane in self._lanes.values())

    def lost(self) -> Dropped:
        return Dropped(progress=self.dropped[Kind.PROGRESS], events=self.dropped[Kind.EVENT])

    # ------------------------------------------------------------ in

    def append(self, kind: Kind, payload: bytes) -> int:
        """Keep a record, or count it as dropped. Returns its sequence number."""
        sequence = self._next
        self._next += 1
        if sequence >= self._reserved:
            self._reserve()
        packed = pack(sequence, payload)
        lane = self._lanes[kind]
        try:
            if not lane.fits(len(packed)):
                if not self._make_room(kind):
                    self.dropped[kind] += 1
                    return sequence
                self._grow(kind)
            lane.write(sequence, packed)
        except OSError as error:
            self._trouble("spool_write_failed", error)
            self._remember(_InMemory(sequence, kind, payload))
        return sequence

    def _make_room(self, kind: Kind) -> bool:
        """Give up old files until one more is allowed. False: progress never takes the place of events."""
        while sum(len(lane.segments) for lane in self._lanes.values()) >= self._max_segments:
            if not self._drop_oldest(kind):
                return False
        return True

    def _drop_oldest(self, kind: Kind) -> bool:
        progress, events = self._lanes[Kind.PROGRESS], self._lanes[Kind.EVENT]
        if progress.segments:
            self._ahead.pop(Kind.PROGRESS, None)
            self.dropped[Kind.PROGRESS] += progress.drop_oldest()
        elif kind is Kind.EVENT and len(events.segments) > 1:
            self._ahead.pop(Kind.EVENT, None)
            self.dropped[Kind.EVENT] += events.drop_oldest()
        else:
            return False
        return True

    def _grow(self, kind: Kind) -> None:
        """A new file; on a full disk the oldest progress makes room for it. Raises OSError."""
        try:
            self._lanes[kind].grow()
        except OSError:
            if not self._lanes[Kind.PROGRESS].segments:
                raise
            self._drop_oldest(kind)
            self._lanes[kind].grow()

    def _remember(self, record: _InMemory) -> None:
        self._memory.append(record)
        self._memory_bytes += len(record.payload)
        while self._memory_bytes > MEMORY_BYTES:
            victim = next((r for r in self._memory if r.kind is Kind.PROGRESS), self._memory[0])
            self._memory.remove(victim)
            self._memory_bytes -= len(victim.payload)
            self.dropped[victim.kind] += 1

    # ------------------------------------------------------------ out

    def batch(self, max_records: int, max_bytes: int) -> list[tuple[int, bytes]]:
        """The next records that were not given out yet, in order; the first one whatever its size."""
        given: list[tuple[int, bytes]] = []
        size = 0
        while len(given) < max_records:
            found = self._peek()
            if found is None:
                break
            kind, sequence, payload, segment = found
            size += len(payload)
            if given and size > max_bytes:
                break
            if kind is not None:
                del self._ahead[kind]
            given.append((sequence, payload))
            self._offered.append(_Offered(sequence, segment))
            self._given = sequence
        return given

    def _peek(self) -> tuple[Kind | None, int, bytes, Segment | None] | None:
        """The oldest record that was not given out, and where it is kept; kind None: in memory."""
        best: tuple[Kind | None, int, bytes, Segment | None] | None = None
        for kind, lane in self._lanes.items():
            if kind not in self._ahead:
                try:
                    read = lane.read(max(self.acked, self._given))
                except OSError as error:
                    self._trouble("spool_unreadable", error)
                    continue
                if read is None:
                    continue
                self._ahead[kind] = read
            record, segment = self._ahead[kind]
            if best is None or record.sequence < best[1]:
                best = (kind, record.sequence, record.payload, segment)
        kept = next((r for r in self._memory if r.sequence > self._given), None)
        if kept is not None and (best is None or kept.sequence < best[1]):
            best = (None, kept.sequence, kept.payload, None)
        return best

    def rewind(self) -> None:
        """Everything that is not acknowledged will be given out again: the connection is another one."""
        self._offered.clear()
        self._ahead.clear()
        self._given = 0
        for lane in self._lanes.values():
            lane.rewind()

    def ack(self, sequence: int) -> None:
        """All records up to `sequence` that were given out have arrived."""
        sequence = min(sequence, self._given)
        if sequence <= self.acked:
            return
        while self._offered and self._offered[0].sequence <= sequence:
            segment = self._offered.popleft().segment
            if segment is not None:
                segment.waiting -= 1
        while self._memory and self._memory[0].sequence <= sequence:
            self._memory_bytes -= len(self._memory.popleft().payload)
        self.acked = sequence
        for lane in self._lanes.values():
            try:
                lane.trim(self.acked)
            except OSError as error:
                self._trouble("spool_not_trimmed", error)
        self._write_meta()

    def give_up(self, sequence: int) -> None:
        """Count the record that was given out last as dropped: nobody can take it."""
        self.ack(sequence)
        self.dropped[Kind.EVENT] += 1

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()
        if self._meta_fd >= 0:
            os.close(self._meta_fd)
            self._meta_fd = -1
