"""Does what a log says between its iterations show that the program gets on? A line that only repeats does not."""

import re
from collections import OrderedDict
from collections.abc import Iterator

TAIL_BYTES = 4096  # of what one poll has read, the newest
LINE_BYTES = 300
KEPT_SHAPES = 64

_WORDS = rb"(?:epoch|step|batch|sample|example|iter|iteration|item|sequence|doc|document|chunk|shard|file)"
# "3/20" (no date, no path), "15%", "1200it [", "batch 12", "12 batches": how far something has come
_COUNTERS = re.compile(
    rb"(?<![\w.:/-])(\d{1,12}) ?/ ?\d{1,12}(?![\w./-])|(?<![\w.])(\d{1,3}(?:\.\d{1,6})?) ?%|(?<!\w)(\d{1,12})it \["
    rb"|(?i:(?<!\w)" + _WORDS + rb"(?:e?s)?[ :#=]{1,3}(\d{1,12})(?![\w.]))"
    rb"|(?i:(?<![\w.])(\d{1,12}) " + _WORDS + rb"(?:e?s)?(?!\w))"
)
# What changes from line to line and is no other text: numbers, addresses, stamps; the blocks of a bar.
_VARIES = re.compile(rb"[\w.+-]*\d[\w.+-]*|[^\x20-\x7e]+|[#=>-]{3,}")


class _Counter:
    """One number of lines of one shape. What goes up and down (a use of the CPU) counts nothing."""

    def __init__(self, value: float) -> None:
        self._value, self._ups, self._downs = value, 0, 0

    def counts_on(self, value: float) -> bool:
        went_up = value > self._value
        self._ups += went_up
        self._downs += value < self._value  # the next evaluation begins at 0
        self._value = value
        return went_up and self._ups >= 2 * self._downs


class Life:
    """Of one log. Memory: KEPT_SHAPES lines without their numbers."""

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, list[_Counter]] = OrderedDict()

    def look(self, text: bytes) -> bool:
        """Whole lines, the newest last: is there one of a text that did not come before, or one that counts on?"""
        alive = False
        for line in _lines(text):
            values = [float(next(filter(None, found))) for found in _COUNTERS.findall(line)]
            shape = b"%d %s" % (len(values), _VARIES.sub(b"", line))
            known = self._seen.pop(shape, None)
            if known is None:
                alive, known = True, [_Counter(value) for value in values]
            elif sum(
                counter.counts_on(value) for counter, value in zip(known, values, strict=True)
            ):  # all are told
                alive = True
            self._seen[shape] = known
        while len(self._seen) > KEPT_SHAPES:
            self._seen.popitem(last=False)
        return alive


def _lines(text: bytes) -> Iterator[bytes]:
    for line in text[-TAIL_BYTES:].split(b"\n"):
        if line.strip():
            yield line[:LINE_BYTES]
