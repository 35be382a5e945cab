"""How training programs print their iterations: data (rules/timing.toml; users add more), compiled."""

import contextlib
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from msgspec import Struct, structs

from sentinel.core.policy_model import TIMING_COUNTS, TimingFormat, groups_problem
from sentinel.core.reports import Iteration
from sentinel.logs.match import LINE_LIMIT_BYTES, check_pattern, compile_re2

NUMBER_LIMIT_DIGITS = 24
COUNT_LIMIT_DIGITS = 15


class TimingRow(TimingFormat, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A format as written in a file.

    `fallback`: any other format that tells the job's iterations goes before it. `progress_bar`: the same step
    may be drawn again, and a shorter bar inside a longer one (an evaluation) is not training. `each_epoch`: the
    steps begin anew in each epoch, which the line does not tell. `at_start`: such a line comes before the first step
    too.
    """

    literal: str = ""  # a string that every match contains; without it each line is looked at
    hint: str = ""  # a short pattern that every line has, where the literal is so common that it says little
    source: str
    progress_bar: bool = False
    fallback: bool = False
    each_epoch: bool = False
    at_start: bool = False
    first_epoch: int = 1


class Values(Struct, frozen=True, gc=False):
    """The numbers of one timing line."""

    step: int | None  # within its epoch, where `epoch` is told
    total: int | None
    hardware_ms: float | None
    e2e_ms: float | None
    epoch: int | None = None  # from 0; only where a line tells `step` and `total` too

    @property
    def number(self) -> int | None:
        """The step, counted on across epochs that are all as long as this one."""
        if self.step is None or self.total is None or self.epoch is None:
            return self.step
        return self.step + self.total * self.epoch


class Format:
    """A row, compiled. `rank` orders formats: the higher is the richer. `owned`: the job's owner named it."""

    def __init__(self, row: TimingRow, index: int, owned: bool = False) -> None:
        self.row = row
        self.index = index
        self.owned = owned
        self.literal = row.literal.encode()
        # Of other formats a number that comes again is another iteration: another rank may have told it (Writers), or
        # each epoch begins anew.
        self.once = owned or row.progress_bar or row.fallback

    # Compiled at the first use: most formats never occur.

    @cached_property
    def _regex(self) -> Any:
        return compile_re2(self.row.pattern)

    @cached_property
    def _unless(self) -> Any:
        return compile_re2(self.row.unless) if self.row.unless else None

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """Their names, in the order in which they stand in the pattern."""
        found = self._regex.groupindex
        return tuple(name.decode() for name in sorted(found, key=found.get))

    @cached_property
    def epochs_only(self) -> bool:
        return "epoch" in self.groups and "step" not in self.groups

    @cached_property
    def sure(self) -> bool:
        return self.owned or not (self.row.fallback or self.epochs_only)

    @cached_property
    def proves(self) -> bool:
        """Does a single line prove that an iteration was made?"""
        return self.sure and not self.row.at_start

    @cached_property
    def rank(self) -> tuple[int, int, bool, int]:
        has_hardware = not {"hardware_ms", "hardware_s"}.isdisjoint(self.groups)
        has_e2e = not {"e2e_ms", "e2e_s", "rate_per_s"}.isdisjoint(self.groups)
        worth = 3 if self.owned else 2 if self.sure else 0 if self.epochs_only else 1
        return worth, 2 * has_e2e + has_hardware, "step" in self.groups, -self.index

    @cached_property
    def _quick(self) -> re.Pattern[bytes] | None:
        pair = self.groups == ("hardware_ms", "e2e_ms") and not (self.row.unless or self.row.progress_bar)
        quick = quick_pattern(self.row.pattern) if pair else None
        return re.compile(quick + rb"[^\n]*+") if quick else None  # one match in a line

    def parse(self, line: bytes) -> Values | None:
        """The numbers of `line`, or None if it is not of this format."""
        if self._quick is not None and (quick := self._quick.search(line)) is not None:
            with contextlib.suppress(ValueError):  # not quite numbers: the careful way says what it is
                return Values(None, None, float(quick[1]), float(quick[2]))
        found = self._regex.search(line)
        if found is None or (self._unless is not None and self._unless.search(line) is not None):
            return None
        return self._values(dict(zip(self.groups, found.groups(), strict=True)))

    def _values(self, texts: dict[str, bytes | None]) -> Values | None:
        numbers: dict[str, float] = {}
        counts: dict[str, int] = {}
        for name, text in texts.items():
            if text is None:
                continue
            digits = text.replace(b",", b"")
            if len(digits) > (COUNT_LIMIT_DIGITS if name in TIMING_COUNTS else NUMBER_LIMIT_DIGITS):
                return None
            try:
                if name in TIMING_COUNTS:
                    counts[name] = int(digits)
                else:
                    numbers[name] = float(digits)
            except ValueError:
                return None  # "1.2.3": looks like the format and is not
        step, total = counts.get("epoch" if self.epochs_only else "step"), counts.get("total")
        epoch = None
        if step is not None and total is not None and "epoch" in counts and not self.epochs_only:
            epoch = max(0, counts["epoch"] - self.row.first_epoch)
        e2e_ms = _milliseconds(numbers, "e2e")
        if e2e_ms is None and numbers.get("rate_per_s"):
            e2e_ms = 1000.0 / numbers["rate_per_s"]
        values = Values(step, total, _milliseconds(numbers, "hardware"), e2e_ms, epoch)
        return values if (values.number or 0) < 10**COUNT_LIMIT_DIGITS else None

    def quick(self, text: bytes, at_s: float) -> list[Iteration] | None:
        """All Iterations of `text` at once, or None where only the careful way is exact."""
        if self._quick is None:
            return None
        try:
            return [Iteration(at_s, None, float(a), float(b)) for a, b in self._quick.findall(text)]
        except ValueError:
            return None

    def lines(self, text: bytes, known: Sequence[tuple[int, int]] = ()) -> Iterator[tuple[int, Values]]:
        """(offset of the line, its numbers) for every line of this format outside `known` spans of whole lines."""
        pos = self._find(text, 0)
        while pos >= 0:
            span = bisect_right(known, (pos, len(text))) - 1
            if span >= 0 and pos < known[span][1]:
                pos = self._find(text, known[span][1])
                continue
            line_start = text.rfind(b"\n", 0, pos) + 1
            line_end = text.find(b"\n", pos)
            if line_end < 0:
                line_end = len(text)
            values = self.parse(text[line_start : min(line_end, line_start + LINE_LIMIT_BYTES)])
            if values is not None:
                yield line_start, values
            pos = self._find(text, line_end + 1)

    def _find(self, text: bytes, begin: int) -> int:
        """Where the next line may be that is of this format; -1: nowhere. `begin`: of a line."""
        if self.literal:
            return text.find(self.literal, begin)
        found = self._regex.search(text, begin) if begin < len(text) else None
        return -1 if found is None else int(found.start())


def owned_row(form: TimingFormat, shipped: TimingRow | None = None) -> TimingRow:
    """A policy's format. Of a shipped one of its id that stays which it does not give, but for the literal and the
    hint: those are of the replaced pattern."""
    given = {name: value for name, value in structs.asdict(form).items() if value not in ("", None)}
    base = shipped or TimingRow(id=form.id, pattern=form.pattern, source="")
    return structs.replace(base, **given, literal="", hint="", source="the policy")


def check_row(row: TimingRow) -> list[str]:
    """What is wrong with a row."""
    problems = []
    for name, pattern in (("pattern", row.pattern), ("unless", row.unless), ("hint", row.hint)):
        problem = check_pattern(pattern) if pattern or name == "pattern" else None
        if problem:
            problems.append(f"{name}: {problem}")
    try:
        compiled = compile_re2(row.pattern)
    except ValueError:
        return problems
    if problem := groups_problem([name.decode() for name in compiled.groupindex], compiled.groups):
        problems.append(f"pattern: {problem}")
    return problems


_TOKEN = re.compile(
    r"\(\?P<\w+>(\[(?:0-9|\\d)[.,]*\]|\\d)\+\)|( \+|\\s\+)|\\([^\w\s])|([^\\^$.|?*+()\[\]{}])"
)


def quick_pattern(pattern: str) -> bytes | None:
    """The same pattern for `re.findall`, if it is nothing but fixed text, runs of blanks and numbers.

    All that reaches `re` is escaped fixed text and our own possessive number class: with no choice
    left to come back to, `re` is as linear as RE2 here, and five times as fast over many lines.
    None where the pattern has any other shape, or where a number could swallow what must follow it.
    """
    parts: list[bytes] = []
    pos = 0
    greedy = ""  # characters that the last part would have taken too
    while pos < len(pattern):
        token = _TOKEN.match(pattern, pos)
        if token is None:
            return None
        number, blanks, escaped, plain = token.groups()
        if number:
            if greedy.strip() or not parts:  # two numbers in a row; or nothing fixed to begin with
                return None
            inner = number.replace("\\d", "0-9").strip("[]")
            parts.append(b"([%s]{1,%d}+)" % (inner.encode(), NUMBER_LIMIT_DIGITS))
            greedy = "0123456789.,"
        elif blanks:
            if greedy == " ":
                return None
            parts.append(b"[ \\t]++" if blanks == "\\s+" else b" ++")
            greedy = " "
        else:
            char = escaped or plain
            if char in greedy or (greedy == " " and char.isspace()):
                return None
            parts.append(re.escape(char.encode()))
            greedy = ""
        pos = token.end()
    return b"".join(parts)


def _milliseconds(numbers: dict[str, float], name: str) -> float | None:
    if f"{name}_ms" in numbers:
        return numbers[f"{name}_ms"]
    seconds = numbers.get(f"{name}_s")
    return None if seconds is None else seconds * 1000.0
