"""Does what a log says between its iterations show that the program gets on? A line that only repeats does not."""

import re
from collections import OrderedDict
from collections.abc import Iterator
from enum import StrEnum

TAIL_BYTES = 4096  # of what one poll has read, the newest
LINE_BYTES = 300
SHOWN = 120  # characters of a line that people see
KEPT_SHAPES = 2048  # more lines than a tail can hold


class Sign(StrEnum):
    NONE = ""
    TEXT = "text"  # a text that did not come before, or a lone number that goes up: a monitor prints that too
    BAR = "bar"  # something that has an end has come closer to it, or a bar goes on whose end is not known


_WORDS = (
    rb"(?:epoch|step|batch|sample|example|iter|iteration|item|sequence|doc|document|chunk|shard|file|row|image|record"
    rb"|prompt|token|episode|trial|fold)"
)
_UNIT = rb"(?! ?(?:[kKMGT]i?B|[WC])\b)"
# "3/20" (no date, no path, no memory), "3 of 20", "15%"
_BARS = re.compile(
    rb"(?<![\w./-])(?<!\d:)(\d{1,12}) {0,4}(?:/| of ) {0,4}(?:\d{1,12}|\?)" + _UNIT + rb"(?![\w/-]|\.\d)"
    rb"|(?<![\w.])(\d{1,3}(?:\.\d{1,6})?) ?%"
)
# "1200it [" (a bar without an end), "batch 12", "samples_seen=12", "12 batches"
_COUNTERS = re.compile(
    rb"(?<!\w)(\d{1,12})\w{1,8} \["
    rb"|(?i:(?<![a-z])" + _WORDS + rb"(?:e?s)?(?:_idx|_seen)?[\"'\s:#=\[(_-]{1,8}(\d{1,12})(?!\d))"
    rb"|(?i:(?<![\w.])(\d{1,12}) {1,4}" + _WORDS + rb"(?:e?s)?(?!\w))"
)
# Who waits, tries again or watches counts on too.
_WAITS = re.compile(
    rb"(?i)retr(?:y|ies)|attempt|wait(?:s|ed|ing)\b|heartbeat|watchdog|health|\bmonitor|usage|limit|no progress"
)
_WATCHES = re.compile(rb"(?i)wait|\bused\b|\butil|\bidle\b|elapsed|time ?out|statsd|wandb|upload")
_THOUSANDS = re.compile(rb"(?<=\d),(?=\d{3})")
# What changes from line to line and is no other text: numbers, addresses, stamps; the blanks and blocks of a bar.
_VARIES = re.compile(rb"(?<![\w.+-])(?=[a-zA-Z_.+-]{0,64}\d)[\w.+-]+|[^\x21-\x7e]+|[#=>.-]{2,}")
_RANK = re.compile(rb"\s*(?:\[\w{1,16}\]:? ?|\d{1,5}: )+")


class _Counter:
    """One number of lines of one shape. What goes up and down (a use of the CPU) counts nothing, unless it has an end:
    short evaluations begin anew as often as they go on."""

    def __init__(self, value: float, ends: bool) -> None:
        self._value, self._ups, self._downs = value, 0, 0
        self._least_ups = 0 if ends else 2  # for each down

    def counts_on(self, value: float) -> bool:
        went_up = value > self._value
        self._ups += went_up
        self._downs += value < self._value  # the next evaluation begins at 0
        self._value = value
        if self._ups + self._downs > 32:
            self._ups, self._downs = self._ups // 2, self._downs // 2
        return went_up and self._ups >= self._least_ups * self._downs


class Life:
    """Of one log. Memory: the numbers of KEPT_SHAPES lines."""

    def __init__(self) -> None:
        self.line = ""  # the newest of those that were the last sign
        self._seen: OrderedDict[tuple[bytes, int, int], tuple[list[_Counter], list[_Counter]]] = OrderedDict()

    def look(self, text: bytes) -> Sign:
        """Whole lines, the newest last. The strongest sign of them."""
        found = Sign.NONE
        for whole in _lines(text):
            line = _THOUSANDS.sub(b"", whole)
            bars, counters = _numbers(_BARS, line), _numbers(_COUNTERS, line)
            rank = _RANK.match(line)
            shape = hash(_VARIES.sub(b"", line))
            key = (rank.group() if rank else b"", shape, 100 * len(bars) + len(counters))
            known = self._seen.pop(key, None)
            if known is None:
                known = [_Counter(*one) for one in bars], [_Counter(one, False) for one, _ in counters]
                sign = Sign.TEXT
            else:  # all of them are told
                higher = 0
                closer = sum(counter.counts_on(one) for counter, (one, _) in zip(known[0], bars, strict=True))
                for counter, (one, is_bar) in zip(known[1], counters, strict=True):
                    went_up = counter.counts_on(one)
                    higher, closer = higher + went_up, closer + (went_up and is_bar)
                sign = Sign.BAR if closer else Sign.TEXT if higher else Sign.NONE
            self._seen[key] = known
            if len(self._seen) > KEPT_SHAPES:
                self._seen.popitem(last=False)
            if sign is Sign.NONE or (found is Sign.BAR and sign is not Sign.BAR) or _WAITS.search(line):
                continue
            if sign is Sign.BAR or _WATCHES.search(line) is None:
                found, self.line = sign, whole.decode(errors="replace").strip()[:SHOWN]
        return found


def _numbers(pattern: re.Pattern[bytes], line: bytes) -> list[tuple[float, bool]]:
    """Each number, and whether it is of the pattern's first kind."""
    return [(float(next(filter(None, groups))), bool(groups[0])) for groups in pattern.findall(line)]


def _lines(text: bytes) -> Iterator[bytes]:
    if len(text) > TAIL_BYTES:
        text = text[-TAIL_BYTES:].partition(b"\n")[2]
    for line in text.split(b"\n"):
        if line.strip():
            yield line[:LINE_BYTES]
