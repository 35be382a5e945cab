"""One rank's log: follow → match rules → parse timing lines → one batch for the fold."""

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Protocol

from msgspec import Struct

from sentinel.core.now import Now
from sentinel.core.reports import ACTIVITY, LOSS_SOUND, Iteration, LogMatch, Worker
from sentinel.logs.cri import CriDecoder
from sentinel.logs.follow import FilePosition, Follower
from sentinel.logs.iterations import MARK_BYTES, FormatState, TimingParser
from sentinel.logs.life import Life, Sign
from sentinel.logs.losses import Losses, Lost
from sentinel.logs.match import LINE_LIMIT_BYTES
from sentinel.logs.ruleset import RuleSet
from sentinel.logs.text import STANDS_BELOW, plain, remembered, shown, stamp_wall_s
from sentinel.logs.writers import MAX_EXPECTED, apart

READ_BYTES = 1 << 18  # at once: twice as fast as 1 MiB, since it stays in the CPU's cache
POLL_BYTES = 1 << 19  # in one poll, so that one flood keeps the others waiting for a few milliseconds only
NAN = "nan-loss"  # the class of lines whose loss is no number
KEPT_FIRST = 3  # matches kept of one rule: the first ones of each process that marks its lines, and the last
KEPT_PROCESSES = 64  # of which they are kept, at most


class Position(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a log was read to, with what the reader had learnt. Save it, hand it to the next RankLog."""

    file: FilePosition
    dropping: bool = False  # in the middle of an overlong line whose rest is not wanted
    cri_pending: dict[str, bytes] = {}
    format: FormatState = FormatState()
    iterations: int = 0  # told so far
    loss_lost: bool = False  # the loss was told as lost, and is no number since


class LogBatch(Struct, kw_only=True):
    """What one poll brought."""

    iterations: list[Iteration]  # in log order
    before: int  # iterations that the log has told before these
    matches: list[LogMatch]  # in log order; of one rule those that KEPT_FIRST tells in each 256 KiB read
    counts: dict[str, int]  # rule -> lines that matched, also those that are not in `matches`
    data: bytes  # the raw bytes that were read, for a terminal
    caught_up: bool  # the log was read to its end
    problem: str  # "" or a degraded mode in words: "not there yet", "truncated", "vanished", ...
    workers: dict[int, Worker]  # of a launcher, whose ranks mark their lines: what each told last
    unsure: bool = False  # its iterations are told in no format of a known trainer
    told_again: int = 0  # lines of iterations that another rank of the launcher had told
    sign: Sign = Sign.NONE  # that the program gets on, though no iteration was told
    sign_line: str = ""  # untrusted
    stamps: list[float | None] | None = None  # of each Iteration: its line's own time stamp, Unix seconds
    after: list[int] | None = (
        None  # of each LogMatch: how many of `iterations` come before it (with `stamps`)
    )


class Source(Protocol):
    """Where the bytes come from: a Follower, or in replay what was read already."""

    @property
    def problem(self) -> str: ...
    @property
    def switched(self) -> bool: ...
    @property
    def at_end(self) -> bool: ...

    def read(self, limit_bytes: int) -> bytes: ...
    def position(self, behind_bytes: int = 0) -> FilePosition | None: ...
    def free_behind(self, behind_bytes: int) -> None: ...
    def close(self) -> None: ...


class RankLog:
    """Follows the log of one rank. Memory: what one poll reads, 64 KiB of an unfinished line."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        ruleset: RuleSet,
        *,
        position: Position | None = None,
        keep_bytes: int | None = None,
        ahead_bytes: int = 0,
        cri: bool = False,
        rank: int = 0,
        incarnation: int = 0,
        stamps: bool = False,
        source: Source | None = None,
    ) -> None:
        """`keep_bytes`: punch holes behind the reader. `ahead_bytes`: hold room for the writer. `stamps`: also parse
        the stamps of timing lines (replay).

        `source`: read from there instead of following `path`.
        """
        self._rules = ruleset
        self._rank = rank
        self._incarnation = incarnation
        self._stamps = stamps
        self._follower: Source = source or Follower(
            path, position.file if position else None, keep_bytes, ahead_bytes
        )
        self._timing = TimingParser(ruleset.formats, position.format if position else None)
        self._cri = CriDecoder(position.cri_pending if position else None) if cri else None
        self._life = Life()
        self._losses = Losses(ruleset.formats, lost=position is not None and position.loss_lost)
        self._rest = b""  # the line whose end has not come
        self._tail = b""  # what stood before the text that is looked at
        self._dropping = position.dropping if position else False
        self._iterations = position.iterations if position else 0
        self._reached: int | None = None  # the last step that was told
        self.overlong_lines = 0

    @property
    def position(self) -> Position | None:
        """What to save; None before the file was there. Nothing is lost or read twice by resuming from it."""
        file = self._follower.position(len(self._rest))
        if file is None:
            return None
        return Position(
            file=file,
            dropping=self._dropping,
            cri_pending=self._cri.pending if self._cri else {},
            format=self._timing.state,
            iterations=self._iterations,
            loss_lost=self._losses.lost,
        )

    def poll(
        self, now: Now, limit_bytes: int = POLL_BYTES, final: bool = False, *, signs: bool = False
    ) -> LogBatch:
        """Read on, at most `limit_bytes`. Call again while not `caught_up`.

        `final`: the writer has ended, so that a last line without a line end counts too. `signs`: look for one that the
        program gets on.
        """
        batch = LogBatch(
            iterations=[],
            before=self._iterations,
            matches=[],
            counts={},
            data=b"",
            caught_up=False,
            problem="",
            workers={},
            stamps=[] if self._stamps else None,
            after=[] if self._stamps else None,
        )
        pieces: list[bytes] = []
        newest = b""
        left = limit_bytes
        while left > 0:
            data = self._follower.read(min(left, READ_BYTES))
            problem, switched, at_end = self._follower.problem, self._follower.switched, self._follower.at_end
            batch.problem = batch.problem or problem  # what a later piece has cured is still told once
            if data or switched:
                for text in self._whole_lines(data, switched):
                    self._take(text, now, batch)
                    newest = text or newest
                pieces.append(data)
                left -= len(data)
            if at_end or not (data or switched):
                break
        batch.data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        batch.caught_up = self._follower.at_end
        if final and batch.caught_up:
            self._take(self._unfinished(), now, batch)
        batch.workers, self._timing.progress = self._timing.progress, {}
        batch.told_again, self._timing.left_out = self._timing.left_out, 0
        batch.unsure = self._timing.unsure
        if signs and newest and not batch.iterations:
            batch.sign = self._life.look(newest)
            batch.sign_line = self._life.line if batch.sign else ""
        if pieces:
            self._follower.free_behind(len(self._rest))
        return batch

    def expect(self, writers: int) -> None:
        """So many processes may print into it."""
        self._timing.writers.expected = min(max(1, writers), MAX_EXPECTED)

    def labelled(self) -> None:
        """Its lines begin with `3: `, the number of the rank."""
        self._timing.writers.labelled = True

    def close(self, *, ended: bool = False) -> None:
        """`ended`: nobody writes any more."""
        if ended and isinstance(self._follower, Follower):
            self._follower.give_back()
        self._follower.close()

    # ------------------------------------------------------------ lines

    def _whole_lines(self, data: bytes, switched: bool) -> Iterator[bytes]:
        """`data` with what was left before, up to its last line end."""
        if switched:  # what the old file ended with will get no line end any more
            yield self._unfinished()
        if data and self._dropping:
            end = _first_line_end(data)
            if end < 0:
                data = b""
            else:
                data = data[end:]
                self._dropping = False
        if data:
            cut = data.rfind(b"\n") + 1
            if self._cri is None and (carriage := data.rfind(b"\r", cut)) >= 0:
                cut = carriage + 1
            if cut:
                text = self._rest + data[:cut] if self._rest else data[:cut]
                self._rest = data[cut:]
                yield self._decode(text)
            else:
                self._rest += data
            if len(self._rest) > LINE_LIMIT_BYTES:
                line, self._rest, self._dropping = self._rest[:LINE_LIMIT_BYTES], b"", True
                self.overlong_lines += 1
                yield self._decode(line + b"\n")

    def _unfinished(self) -> bytes:
        rest, self._rest, self._dropping = self._rest, b"", False
        text = self._decode(rest + b"\n") if rest else b""
        return text + plain(self._cri.flush()) if self._cri else text

    def _decode(self, text: bytes) -> bytes:
        return apart(plain(self._cri.decode(text) if self._cri else text))

    # ------------------------------------------------------------ what the lines tell

    def _take(self, text: bytes, now: Now, batch: LogBatch) -> None:
        if not text:
            return
        rules, formats = self._rules.present(text)
        begun = self._iterations > 0
        before = len(batch.iterations)
        lost = any(self._rules.rules[index].failure == NAN for index, _ in rules)
        looks = lost or self._losses.watching or self._losses.begins(text)
        offsets: list[int] = []  # of the lines that told iterations, where somebody asks for them
        pauses = any(self._rules.rules[index].failure.startswith(ACTIVITY) for index, _ in rules)
        asked = looks or pauses or batch.stamps is not None
        if formats:
            batch.iterations += self._timing.feed(
                text, formats, now.mono_s, batch.stamps, now.wall_s, offsets if asked else None
            )
        if self._cri is not None and batch.stamps is not None:
            # The runtime's stamps are of one clock and zone, what programs print may be of several.
            for k, offset in enumerate(offsets, before):
                batch.stamps[k] = stamp_wall_s(self._cri.stamp_at(offset), now.wall_s) or batch.stamps[k]
        self._iterations += len(batch.iterations) - before
        reached = self._reached
        self._reached = next(
            (one.step for one in reversed(batch.iterations[before:]) if one.step is not None), reached
        )
        if rules:
            # Who replays a log reads much of it at once, and asks what stands behind what.
            told_here = batch.iterations[before:] if batch.after is None else []
            starts = self._match(text, rules, now, batch, _newly_reached(offsets, told_here, reached))
            if batch.after is not None:
                batch.after += [before + bisect_left(offsets, start) for start in starts]
        self._tail = remembered(self._tail, text)
        if looks:
            steps = (one.step for one in batch.iterations[before:])
            told = zip(offsets, steps, strict=True)
            anew = self._timing.fell_back
            writers = self._timing.writers.expected
            lost_now = self._losses.look(text, writers, begun=begun, reached=reached, told=told, anew=anew)
            self._tell_losses(lost_now, now, batch)

    def _outrun(self, text: bytes, line_start: int, line: bytes, anew: list[int]) -> bool:
        """Has the job gone on behind this line? `anew`: where steps stand that had not been reached before.

        Where several print, one such step may be that of a rank that is ahead: then it has to be of the same rank."""
        behind = anew[bisect_right(anew, line_start) :]
        writers = self._timing.writers
        if len(behind) != 1 or not writers.several:
            return bool(behind)
        own = writers.number(line)
        return own is not None and own == writers.number(text[behind[0] : behind[0] + LINE_LIMIT_BYTES])

    def _tell_losses(self, found: Iterable[Lost], now: Now, batch: LogBatch) -> None:
        for lost in found:
            match = LogMatch(
                rule=lost.rule,
                failure=lost.rule if lost.rule == LOSS_SOUND else NAN,
                rank=self._rank,
                incarnation=self._incarnation,
                at_s=now.mono_s,
                line=shown(lost.line),
                step=lost.step,
                good_step=lost.good_step,
            )
            batch.matches.append(match)
            if batch.after is not None:
                batch.after.append(len(batch.iterations))

    def _match(
        self, text: bytes, present: list[tuple[int, int]], now: Now, batch: LogBatch, anew: list[int]
    ) -> list[int]:
        """The offsets of the lines that were kept. `anew`: see `_outrun`."""
        kept: list[tuple[int, int, int]] = []  # line start, line end, rule
        for index, start in present:
            count = 0
            last: tuple[int, int] | None = None
            whose: dict[int | None, int] = {}  # process below a launcher -> its matches
            for bounds in self._rules.patterns[index].lines(text, start):
                if self._rules.ignored(text[bounds[0] : bounds[1]], index):
                    continue
                below = self._rules.below.get(index)
                if below and not STANDS_BELOW[below](self._tail, text, bounds):
                    continue
                count += 1
                last = bounds
                number = self._timing.writers.number(text[bounds[0] : bounds[0] + MARK_BYTES])
                if number in whose or len(whose) < KEPT_PROCESSES:
                    whose[number] = whose.get(number, 0) + 1
                    if whose[number] <= KEPT_FIRST:
                        kept.append((*bounds, index))
                        last = None
            if last is not None:
                kept.append((*last, index))
            if count:
                rule_id = self._rules.rules[index].id
                batch.counts[rule_id] = batch.counts.get(rule_id, 0) + count
        for line_start, line_end, index in sorted(kept):
            line = text[line_start : min(line_end, line_start + LINE_LIMIT_BYTES)]
            rule = self._rules.rules[index]
            batch.matches.append(
                LogMatch(
                    rule=rule.id,
                    failure=rule.failure,
                    rank=self._rank,
                    incarnation=self._incarnation,
                    at_s=now.mono_s,
                    stamp_wall_s=self._stamp(line, line_start, now.wall_s),
                    line=shown(line),
                    outrun=rule.failure.startswith(ACTIVITY) and self._outrun(text, line_start, line, anew),
                )
            )
        return [line_start for line_start, _, _ in sorted(kept)]

    def _stamp(self, line: bytes, line_start: int, wall_s: float) -> float | None:
        own = stamp_wall_s(line, wall_s)
        if self._cri is not None and (own is None or self._stamps):
            return stamp_wall_s(self._cri.stamp_at(line_start), wall_s) or own
        return own


def _first_line_end(data: bytes) -> int:
    """Offset of the first line end, or -1. The end itself stays: it closes nothing and is an empty line."""
    newline, carriage = data.find(b"\n"), data.find(b"\r")
    if newline < 0 or carriage < 0:
        return max(newline, carriage)
    return min(newline, carriage)


def _newly_reached(offsets: list[int], told: list[Iteration], reached: int | None) -> list[int]:
    """The offsets of the iterations whose steps are beyond all that was reached; none where one tells no step."""
    found, highest = [], reached
    for offset, one in zip(offsets, told, strict=False):
        if one.step is None:
            return []
        if highest is None or one.step > highest:
            highest = one.step
            found.append(offset)
    return found
