"""Has the loss become NaN or infinite for good? Looked at from the first such line on: a sound log costs nothing."""

import re
from collections.abc import Sequence

from msgspec import Struct

from sentinel.logs.formats import Format

# One step whose loss is no number is normal: mixed precision leaves it out, and the next one is sound. Once the weights
# are NaN no step is sound any more: so many reports in a row, of different steps, are no such step.
LEAST_REPORTS = 5

_LOSS = re.compile(
    rb"(?i)(?:^|[\s,{|'\"])(?:lm[ _])?loss['\"]?\s{0,8}[:=]\s{0,8}['\"]?(?:(nan|[-+]?inf)\b|[-+]?\.?\d)"
)
# Before the word: not that of a step of the training.
_OTHER = re.compile(
    rb"(?i)(?:val|valid|validation|eval|evaluation|test|best|min|minimum|lowest|last|previous)[ _/:-]{0,2}$"
)
_WORD_BYTES = 16


class Lost(Struct, frozen=True):
    """The first line of those whose loss is no number, and its step."""

    line: bytes
    step: int | None


class Losses:
    """Of one log. Which lines it gets at once makes no difference."""

    def __init__(self, formats: Sequence[Format]) -> None:
        self._formats = formats
        self._begin()

    def _begin(self) -> None:
        self._first: Lost | None = None
        self._newest: int | None = None  # step
        self._steps, self._plain = 0, 0  # reports in a row that name a step, and that do not
        self._told = False

    @property
    def watching(self) -> bool:
        """Was the newest loss no number? Then every line counts."""
        return self._first is not None

    def look(self, text: bytes, writers: int) -> list[Lost]:
        """Whole lines. What to tell, once for each time that it begins. `writers`: so many processes may print."""
        found: list[Lost] = []
        for line in text.split(b"\n"):
            sound = _is_sound(line)
            if sound is None:
                continue
            if sound:
                self._begin()
                continue
            self._count(line)
            least = LEAST_REPORTS * (1 if self._steps else max(1, writers))
            if not self._told and (self._steps or self._plain) >= least and self._first is not None:
                self._told = True
                found.append(self._first)
        return found

    def _count(self, line: bytes) -> None:
        step = self._step_of(line)
        if self._first is None or (self._first.step is None and step is not None):
            self._first = Lost(line, step)
        if step is None:
            self._plain += 1
        elif (
            self._newest is None or step > self._newest
        ):  # not one that another rank has told, or a bar drawn anew
            self._steps, self._newest = self._steps + 1, step

    def _step_of(self, line: bytes) -> int | None:
        told = (form.parse(line) for form in self._formats if form.literal in line)
        return next((values.step for values in told if values is not None and values.step is not None), None)


def _is_sound(line: bytes) -> bool | None:
    """Is the loss of the training, as this line tells it, a number? None: it tells none."""
    told = [
        found
        for found in _LOSS.finditer(line)
        if not _OTHER.search(line[max(0, found.start() - _WORD_BYTES) : found.start()])
    ]
    return None if not told else any(found[1] is None for found in told)
