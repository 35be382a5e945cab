"""Old logs → what they told, in the order of time. Streams: memory is a few pieces of each log."""

import gzip
import heapq
import os
import re
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from msgspec import Struct

from sentinel.core.now import Now
from sentinel.core.reports import Iteration, LogMatch
from sentinel.logs.follow import FilePosition
from sentinel.logs.reader import READ_BYTES, RankLog
from sentinel.logs.ruleset import RuleSet
from sentinel.logs.text import stamp_wall_s
from sentinel.logs.writers import LABEL, MARK, apart
from sentinel.replay.rank_names import rank_of_name
from sentinel.replay.saved import is_binary

SNIFF_BYTES = 1 << 16
MOST_NULS = 1024  # times SNIFF_BYTES: of a hole that was copied
MERGED_BYTES = 1 << 15  # of a log of several ranks at once: within one such piece only stamps tell the order
TAIL_BYTES = 4096  # the last stamped line of a piece is looked for in so much of it
MAX_RANKS = 4096  # as of `run --nproc`; a larger number at the beginning of a line is no rank
DAY_S = 86_400.0
HALF_YEAR_S = 182 * DAY_S

_CRI = re.compile(rb"\d{4}-\d\d-\d\dT[0-9:.]+(?:Z|[+-]\d\d:\d\d) std(?:out|err) [PF]\b")


class LogError(Exception):
    """A log that cannot be replayed; the message names it and says why."""


class Told(Struct, frozen=True, gc=False):
    """One thing that a log told: an iteration, a match, or with neither only that it is `at_s` now."""

    at_s: float
    rank: int
    iteration: Iteration | None = None
    match: LogMatch | None = None
    stamped: bool = True  # the iterations of this log bear time stamps


class OldLog:
    """One log, opened and looked at. Raises LogError. Not `whole`: a packed one may be cut off, and ends there."""

    def __init__(self, path: str, *, whole: bool = True) -> None:
        self.path = path
        self.read_bytes = 0  # after decompression
        self.rank = 0
        self.cut_off = False
        self._whole = whole
        self.wall_s = time.time()
        self.latest_s = self.wall_s + DAY_S  # a later stamp is no time of writing
        try:
            self._file: BinaryIO = sys.stdin.buffer if path == "-" else open(path, "rb")  # noqa: SIM115
            if path != "-":
                self.wall_s = min(self.wall_s, os.fstat(self._file.fileno()).st_mtime)
            self._head = self._first_bytes()
        except IsADirectoryError:
            raise LogError(f"{path}: a folder; name the logs in it") from None
        except (OSError, EOFError, zlib.error) as error:
            raise LogError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
        if is_binary(self._head):
            raise LogError(f"{path}: binary, not a log")
        lines = [line for line in self._head.split(b"\n")[:-1] if line.strip()][:50]
        self.cri = bool(lines) and all(_CRI.match(line) for line in lines)
        labels = {found.group(2) for line in lines if (found := LABEL.match(line))}
        self.labelled = len(labels) > 1 and all(LABEL.match(line) for line in lines)
        self.first_stamp_s = next((s for line in lines if (s := self.stamp_s(line)) is not None), None)
        if self.first_stamp_s is not None:  # a copied file is younger than its lines, and glog tells no year
            self.wall_s = min(self.wall_s, self.first_stamp_s + HALF_YEAR_S)

    def _first_bytes(self) -> bytes:
        head = self._first_text()
        if b"\0" not in head:
            return head
        return head.replace(b"\0", b"").removeprefix(b"\xff\xfe").removeprefix(b"\xfe\xff")

    def _first_text(self) -> bytes:
        head = self._file.read(SNIFF_BYTES)
        if head[:2] == b"\x1f\x8b" and self.path != "-":
            self._file.seek(0)
            self._file = gzip.open(self._file, "rb")  # type: ignore[assignment]  # noqa: SIM115
            return self._read(SNIFF_BYTES)
        if head[:1] == b"\0" and self._file.seekable():  # a hole: its beginning was given back to the disk
            self._file.seek(os.lseek(self._file.fileno(), 0, os.SEEK_DATA))
            head = self._file.read(SNIFF_BYTES)
            for _ in range(MOST_NULS):
                if not head or head.strip(b"\0"):
                    break
                head = self._file.read(SNIFF_BYTES)
            head = head.lstrip(b"\0")
            return head[head.find(b"\n") + 1 :]
        return head

    @property
    def empty(self) -> bool:
        return not self._head

    def stamp_s(self, line: bytes) -> float | None:
        """The line's own time; None where it has none, or one that lies in the future."""
        stamp = stamp_wall_s(line, self.wall_s)
        return stamp if stamp is not None and 0 < stamp <= self.latest_s else None

    def pieces(self, size_bytes: int) -> Iterator[bytes]:
        """The whole log. Raises LogError where the rest cannot be read."""
        head = self._head
        self._head = b""
        for start in range(0, len(head), size_bytes):
            self.read_bytes += len(head[start : start + size_bytes])
            yield head[start : start + size_bytes]
        try:
            while piece := self._read(size_bytes):
                self.read_bytes += len(piece)
                yield piece.replace(b"\0", b"")
        except (OSError, EOFError, zlib.error) as error:  # EOFError: a packed file that was cut off
            raise LogError(f"{self.path}: {getattr(error, 'strerror', None) or error}") from None

    def _read(self, size_bytes: int) -> bytes:
        if self._whole:
            return self._file.read(size_bytes)
        try:
            return self._file.read1(size_bytes)  # type: ignore[attr-defined,no-any-return]
        except EOFError:
            self.cut_off = True
            return b""

    def last_stamp_s(self, piece: bytes) -> float | None:
        lines = piece[-TAIL_BYTES:].split(b"\n")[1:]
        return next((s for line in reversed(lines) if (s := self.stamp_s(line)) is not None), None)


class _Held:
    """What a RankLog reads here: bytes that are there already."""

    problem = ""
    switched = False
    at_end = True

    def __init__(self) -> None:
        self.data = b""

    def read(self, limit_bytes: int) -> bytes:
        data, self.data = self.data[:limit_bytes], self.data[limit_bytes:]
        return data

    def position(self, behind_bytes: int = 0) -> FilePosition | None:
        return FilePosition(device=0, inode=0, offset=0)

    def free_behind(self, behind_bytes: int) -> None:
        pass

    def close(self) -> None:
        pass


class RankReader:
    """One rank's lines → Told, on that rank's clock.

    The clock goes by the lines' own stamps if the first iteration has one; otherwise by the iterations'
    end-to-end times, and by other lines' stamps where the log began with one. It never goes back.
    """

    def __init__(self, log: OldLog, rank: int, ruleset: RuleSet, start_s: float) -> None:
        self.log = log
        self.rank = rank
        self.at_s = start_s
        self.synthetic: bool | None = None  # None: no iteration came yet
        self._anchored = log.first_stamp_s is not None
        self._held = _Held()
        self._reader = RankLog(
            log.path, ruleset, cri=log.cri, rank=rank, incarnation=1, stamps=True, source=self._held
        )

    @property
    def format(self) -> str:
        """The id of the timing format that made the iterations; "" before the first."""
        position = self._reader.position
        return position.format.primary if position else ""

    def take(self, piece: bytes, *, final: bool = False) -> list[Told]:
        self._held.data = piece
        now = Now(0.0, self.log.wall_s)
        told: list[Told] = []
        for start in range(0, len(piece) or 1, READ_BYTES):
            end = start + READ_BYTES >= len(piece)
            batch = self._reader.poll(now, READ_BYTES, final=final and end)
            stamps, after = batch.stamps or [], batch.after or []
            done = 0
            for match, before in zip(batch.matches, after, strict=True):
                told += map(self._iteration, batch.iterations[done:before], stamps[done:before])
                done = before
                told.append(self._match(match))
            told += map(self._iteration, batch.iterations[done:], stamps[done:])
        return told

    def pass_to(self, at_s: float | None) -> Told | None:
        """A line that tells nothing but the time."""
        if at_s is None or not self._follows_stamps or at_s <= self.at_s:
            return None
        self.at_s = at_s
        return Told(at_s, self.rank)

    @property
    def _follows_stamps(self) -> bool:
        return self._anchored or not self.synthetic

    def _iteration(self, iteration: Iteration, stamp_s: float | None) -> Told:
        if self.synthetic is None:
            self.synthetic = stamp_s is None
        if self.synthetic:
            self.at_s += max(0.0, min(iteration.e2e_ms or 0.0, DAY_S * 1000)) / 1000
        elif stamp_s is not None:
            self.at_s = max(self.at_s, min(stamp_s, self.log.latest_s))
        told = Iteration(self.at_s, iteration.step, iteration.hardware_ms, iteration.e2e_ms)
        return Told(self.at_s, self.rank, told, None, not self.synthetic)

    def _match(self, match: LogMatch) -> Told:
        stamp_s = match.stamp_wall_s
        if stamp_s is not None and self._follows_stamps and stamp_s <= self.log.latest_s:
            self.at_s = max(self.at_s, stamp_s)
        moved = LogMatch(
            rule=match.rule,
            failure=match.failure,
            rank=match.rank,
            incarnation=match.incarnation,
            at_s=self.at_s,
            stamp_wall_s=match.stamp_wall_s,
            line=match.line,
        )
        return Told(self.at_s, self.rank, None, moved)


class OldLogs:
    """All logs of one job. One alone may hold several ranks whose lines say whose they are."""

    def __init__(self, logs: Sequence[OldLog], ruleset: RuleSet) -> None:
        stamps = [log.first_stamp_s for log in logs if log.first_stamp_s is not None]
        self.start_s = min(stamps, default=0.0)
        self.logs = logs
        self._ruleset = ruleset
        self.readers = [] if len(logs) == 1 else [self._reader(log, log.rank) for log in logs]

    def _reader(self, log: OldLog, rank: int) -> RankReader:
        start_s = self.start_s if log.first_stamp_s is None else log.first_stamp_s
        return RankReader(log, rank, self._ruleset, start_s)

    def told(self) -> Iterator[Told]:
        """In the order of time, as far as the logs tell it."""
        if len(self.logs) == 1:
            yield from self._one()
        else:
            yield from heapq.merge(*self._streams(), key=lambda told: told.at_s)

    def _streams(self) -> Iterator[Iterator[Told]]:
        """A stderr that bears no times, beside a stdout of the same rank that does, is told behind it."""
        by_rank: dict[int, list[RankReader]] = {}
        for reader in self.readers:
            by_rank.setdefault(reader.rank, []).append(reader)
        for own in by_rank.values():
            stamped = [one for one in own if one.log.first_stamp_s is not None]
            if stamped and len(stamped) < len(own):
                yield self._behind(stamped[0], [one for one in own if one not in stamped])
                yield from map(self._of_rank, stamped[1:])
            else:
                yield from map(self._of_rank, own)

    def _behind(self, first: RankReader, others: Sequence[RankReader]) -> Iterator[Told]:
        yield from self._of_rank(first)
        for reader in others:
            reader.at_s = max(reader.at_s, first.at_s)
            yield from self._of_rank(reader)

    def _of_rank(self, reader: RankReader) -> Iterator[Told]:
        for piece in reader.log.pieces(READ_BYTES):
            yield from reader.take(piece)
            passed = reader.pass_to(reader.log.last_stamp_s(piece))
            if passed is not None:
                yield passed
        yield from reader.take(b"", final=True)

    def _one(self) -> Iterator[Told]:
        """A log of one rank, until a line says that it is another's."""
        log = self.logs[0]
        own = rank_of_name(log.path, bare=True)
        readers = {0: self._reader(log, 0)}
        self.readers = [readers[0]]
        rest = b""
        size = MERGED_BYTES if log.labelled or _tagged(log._head) else READ_BYTES
        pattern = LABEL if log.labelled else MARK
        for piece in log.pieces(size):
            cut = piece.rfind(b"\n") + 1
            if not cut and len(rest) < SNIFF_BYTES:
                rest += piece
                continue
            text, rest = rest + piece[: cut or len(piece)], piece[cut or len(piece) :]
            parts = _by_rank(text, pattern, own) if log.labelled or _tagged(text) else {0: text}
            for rank in parts.keys() - readers.keys():
                readers[rank] = self._reader(log, rank)
                self.readers.append(readers[rank])
            yield from self._in_order([(readers[rank], part) for rank, part in parts.items()])
            passed = readers[0].pass_to(log.last_stamp_s(piece))
            if passed is not None:
                yield passed
        if rest:
            parts = _by_rank(rest, pattern, own)
            yield from self._in_order([(readers.get(rank, readers[0]), part) for rank, part in parts.items()])
        yield from self._in_order([(reader, b"") for reader in self.readers], final=True)

    def _in_order(self, parts: list[tuple[RankReader, bytes]], *, final: bool = False) -> list[Told]:
        now_s = max(reader.at_s for reader in self.readers)
        told: list[Told] = []
        for reader, part in parts:
            if reader.synthetic is None:  # a rank that tells no time of its own is as late as its file
                reader.at_s = max(reader.at_s, now_s)
            told += reader.take(part, final=final)
        return told if len(parts) == 1 else sorted(told, key=lambda one: one.at_s)


def _tagged(piece: bytes) -> bool:
    return b"[default" in piece or b"[rank" in piece or b"]<std" in piece


def _by_rank(text: bytes, pattern: re.Pattern[bytes], own: int | None) -> dict[int, bytes]:
    """Lines by rank, without what says so. Lines that do not say are rank 0's, and those of rank `own`."""
    lines = apart(text).split(b"\n")
    rest = lines.pop()
    found: dict[int, list[bytes]] = {}
    for line in (*lines, rest) if rest else lines:
        tag = pattern.match(line)
        rank = int(tag.group(2) or tag.group(3)) if tag else MAX_RANKS
        if tag is None or rank >= MAX_RANKS:
            found.setdefault(0, []).append(line)
            continue
        found.setdefault(0 if rank == own else rank, []).append((tag.group(1) or b"") + line[tag.end() :])
    return {rank: b"\n".join([*own_lines, b""]) for rank, own_lines in found.items()}
