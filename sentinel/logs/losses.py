"""Has the loss become NaN or infinite for good? Looked at from the first such line on: a sound log costs nothing."""

import re
from collections.abc import Sequence

from msgspec import Struct

from sentinel.logs.formats import Format

# One step whose loss is no number is normal: mixed precision leaves it out, and the next one is sound. Once the weights
# are NaN no step is sound any more: so many reports in a row, of different steps, are no such step.
LEAST_REPORTS = 5
RANKS_APART = 10  # steps that one rank's line may come after another's, at most

# "loss: nan", "train/loss = nan", "loss nan,", "Loss nan (nan)", "loss: tensor(nan, ...)", "|    loss     | nan |".
_NAME = rb"(?i)(?:^|[\s,{|'\"(\[])(?:(?:train|training|total|main|lm)[ _/.-])?loss(?: train)?['\"]?"
_SIGN = rb"\s{0,8}[:=|]\s{0,8}['\"]?(?:tensor\()?"
_LOSS = re.compile(
    _NAME
    + rb"(?:"
    + _SIGN
    + rb"(nan|[-+]?inf)\b|\s{1,8}(nan|[-+]?inf)\s{0,4}(?:$|[|,;(]|\w+[ :=]{1,3}[-\d.])"
    rb"|(?:" + _SIGN + rb"|\s{1,8})[-+]?\.?\d)"
)
# A number of any loss of the training: the one that is no number is then not the one that it learns from.
_OF_A_PART = re.compile(rb"(?i)\b((?:\w{1,40}[/.])?\w{1,40})loss['\"]?(?:" + _SIGN + rb"|\s{1,8})[-+]?\.?\d")
_ASIDE = re.compile(
    rb"(?i)(?<![a-z])(?:val|valid|validation|eval|evaluation|test|dev|best|min|last)(?![a-z])"
)
# Before the word: not that of a step of the training.
_OTHER = re.compile(
    rb"(?i)(?<![\w/.-])(?:val|valid|validation|validating|eval|evaluation|evaluating|test|testing|early[ _-]?stopping)"
    rb"(?![\w/.-])|\btrial[ _:#=]{0,3}\d|(?:best|min|minimum|lowest|last|previous)[ _/:-]{0,2}$"
)
# Of the whole line: the step was left out, or it is one of an evaluation.
_LEFT_OUT = re.compile(rb"(?i)skip|overflow|reducing|\bscal(?:e|er|ing)\b|loss_scale")
_FIELD = re.compile(
    rb"(?i)\w*(?:\b|_)(?:scaler?['\"]?[ :=|]{1,4}['\"]?\d"
    rb"|(?:overflow|skipped)(?:[ _]\w+)?['\"]?[ :=]{1,4}(?:false|0)\b(?!\.))"
)
_MODE = re.compile(rb"(?i)['\"]?(?:mode|_type|split|phase)['\"]?\s?[:=]\s?['\"]?(?:val|eval|test)")


class Lost(Struct, frozen=True):
    """The first line of those whose loss is no number, and its step."""

    line: bytes
    step: int | None


class Losses:
    """Of one log. Which lines it gets at once makes no difference."""

    def __init__(self, formats: Sequence[Format]) -> None:
        self._formats = sorted(formats, key=lambda form: not form.owned)
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
            self._count(line, writers)
            least = LEAST_REPORTS * (1 if self._steps else max(1, writers))
            if not self._told and (self._steps or self._plain) >= least and self._first is not None:
                self._told = True
                found.append(self._first)
        return found

    def _count(self, line: bytes, writers: int) -> None:
        step = self._step_of(line)
        if self._first is None or (self._first.step is None and step is not None):
            self._first = Lost(line, step)
        if step is None:
            self._plain += 1
        elif self._newest is None or step > self._newest or _begins_anew(step, self._newest, writers):
            self._steps, self._newest = (
                self._steps + 1,
                step,
            )  # else another rank has told it, or a bar drawn anew

    def _step_of(self, line: bytes) -> int | None:
        told = (form.parse(line) for form in self._formats if form.literal in line)
        return next(
            (values.number for values in told if values is not None and values.number is not None), None
        )


def _begins_anew(step: int, newest: int, writers: int) -> bool:
    """Does each epoch count its steps from the beginning? Of several ranks one may only be a little behind."""
    return step * 2 <= newest and (writers <= 1 or newest - step >= RANKS_APART)


def _is_sound(line: bytes) -> bool | None:
    """Is the loss of the training, as this line tells it, a number? None: it tells none."""
    if _MODE.search(line) or _LEFT_OUT.search(_FIELD.sub(b"", line)):
        return None
    told = [found for found in _LOSS.finditer(line) if not _OTHER.search(line, 0, found.start() + 1)]
    if told:
        return any(found[1] is None and found[2] is None for found in told)
    parts = (found for found in _OF_A_PART.finditer(line) if not _ASIDE.search(found[1]))
    return True if any(not _OTHER.search(line, 0, found.start()) for found in parts) else None
