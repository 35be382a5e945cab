"""Has the loss become NaN or infinite for good, or the gradient norm NaN? Looked at from the first such line on: a
sound log costs nearly nothing."""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from msgspec import Struct

from sentinel.core.reports import LOSS_LOST, LOSS_SOUND, NORM_LOST
from sentinel.logs.formats import Format
from sentinel.logs.iterations import RANKS_APART

# One step whose loss is no number is normal: mixed precision leaves it out, and the next one is sound. Once the weights
# are NaN no step is sound any more: so many reports in a row, of different steps, are no such step.
LEAST_REPORTS = 5
# Of gradient norms many more: a loss scaler looks for its scale by leaving steps out whose gradient overflows. From
# 2^32 (Megatron) with two steps for each halving (DeepSpeed's hysteresis) that takes 64 to come down to 1.
LEAST_NORMS = 100
STEPS_APART = (
    10  # between two reports of a norm beside a sound loss; an average over more may hold a step left out
)
NUMBERS_OF_LINE = 16  # looked at of one line: a history that is printed as a whole has hundreds

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
# "'grad_norm': nan", " | grad norm: nan |", "gnorm=nan", "grad_norm nan (nan)", "global_norm: [nan]".
_NORM = re.compile(
    rb"(?i)(?:^|[\s,{|'\"(\[])(?:(?:train|training|global|total)[ _/.-])?"
    rb"(?:grad(?:ient)?[ _/.-]?norm|gnorm|global_norm)['\"]?"
    rb"(?:" + _SIGN + rb"\[?|\s{1,8})(?:(nan)\b|[-+]?(?:inf\b|\.?\d))"
)
# Found ten times as fast, each.
_MAYBE = [re.compile(word + rb"[^a-zA-Z]{1,20}(?:tensor\()?[nN][aA][nN]") for word in (rb"orm", rb"ORM")]
# "epoch 3", "Epoch: [3/90]", "epoch/iter: 3/60", "3epoch:"; not "'epoch': 0.12", beside which steps count on.
_EPOCH = re.compile(rb"(?i)epoch(?:/iter)?[^a-z]{0,6}?(?<![\d.])\d+(?!\d|\.\d)|\depoch")
# A number of any loss of the training: the one that is no number is then not the one that it learns from.
_OF_A_PART = re.compile(rb"(?i)\b((?:\w{1,40}[/.])?\w{1,40})loss['\"]?(?:" + _SIGN + rb"|\s{1,8})[-+]?\.?\d")
# The Trainer of Hugging Face prints 0 for a loss that is NaN (logging_nan_inf_filter).
_ZERO = re.compile(_NAME + rb"(?:" + _SIGN + rb"|\s{1,8})0(?:\.0*)?(?:e[-+]?0+)?(?![\d.])")
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
    rb"(?i)(?<!\w)\w*(?:\b|_)(?:scaler?['\"]?[ :=|]{1,4}['\"]?\d"
    rb"|(?:overflow|skipped)(?:[ _]\w+)?['\"]?[ :=]{1,4}(?:false|0)\b(?!\.))"
)
_MODE = re.compile(rb"(?i)['\"]?(?:mode|_type|split|phase)['\"]?\s?[:=]\s?['\"]?(?:val|eval|test)")


class Lost(Struct, frozen=True):
    """The first line of those whose number is none, and its step. `rule`: LOSS_LOST or NORM_LOST.

    LOSS_SOUND: the loss that was told as lost is a number again.
    """

    rule: str
    line: bytes
    step: int | None
    good_step: int | None = None  # of the report before it


class _Row:
    """Reports in a row whose number is none."""

    def __init__(self) -> None:
        self.first: tuple[bytes, int | None] | None = None  # line, step
        self.newest: int | None = None  # step
        self.steps, self.plain = 0, 0  # reports that name a step, and that do not
        self.told = False
        self._reached: list[int] = []  # steps of its reports, the first two that differ
        self._anew = False  # steps that begin anew in each epoch tell nothing of checkpoints

    def count(
        self, line: bytes, step: int | None, writers: int, *, reached: int | None = None, anew: bool = False
    ) -> None:
        """`reached`: the last step that was told before, where the line names none. `anew`: steps may begin anew."""
        at = reached if step is None else step
        if at is not None and len(self._reached) < 2 and at not in self._reached:
            self._reached.append(at)
        self._anew = self._anew or anew or (step is not None and step < (self.newest or 0) - RANKS_APART)
        if self.first is None or (self.first[1] is None and step is not None):
            self.first = line, step
        if step is None:
            self.plain += 1
        elif self.newest is None or step > self.newest or _begins_anew(step, self.newest, writers):
            self.steps, self.newest = self.steps + 1, step
        # else another rank has told it, or a bar drawn anew

    def lost(self, rule: str, least: int, writers: int) -> list[Lost]:
        """What to tell, once."""
        enough = self.steps >= least if self.steps else self.plain >= least * max(1, writers)
        if self.told or self.first is None or not enough:
            return []
        self.told = True
        return [Lost(rule, *self.first, self._good_step())]

    def _good_step(self) -> int | None:
        """Reports come as often before it as they did since."""
        if self._anew or not self._reached:
            return None
        apart = abs(self._reached[-1] - self._reached[0])
        return max(0, min(self._reached) - max(1, apart))


class Losses:
    """Of one log. Which lines it gets at once makes no difference."""

    def __init__(self, formats: Sequence[Format], *, lost: bool = False) -> None:
        """`lost`: of a reader before."""
        self._formats = sorted(formats, key=lambda form: not form.owned)
        self._loss, self._norm = _Row(), _Row()
        self.lost = lost  # the loss was told as lost, and is no number since
        self._learns = False  # the newest loss is a number, and not 0
        self._had_norm = False  # before its first NaN: who never tells another norm computes none

    @property
    def watching(self) -> bool:
        """Was the newest loss no number, or the newest norm? Then every line counts."""
        return self.lost or self._loss.first is not None or self._norm.first is not None

    def begins(self, text: bytes) -> bool:
        """Is there a NaN norm in it? Nothing else says so; of the loss a rule does."""
        maybe = any(pattern.search(text) for pattern in _MAYBE)
        return maybe and any(found[1] for found in _NORM.finditer(text))

    def look(
        self,
        text: bytes,
        writers: int,
        *,
        begun: bool = False,
        reached: int | None = None,
        told: Iterable[tuple[int, int | None]] = (),
        anew: bool = False,
    ) -> list[Lost]:
        """Whole lines. What to tell, once for each time that it begins. `writers`: so many processes may print.

        `begun`: the log has told iterations before; `reached`: the step of the last one that named it. `told`: those
        of `text`, (offset of the line, step). `anew`: its steps have fallen back.
        """
        found: list[Lost] = []
        coming = deque(told)
        start = end = 0
        for line in text.split(b"\n"):
            start, end = end, end + len(line) + 1
            while coming and coming[0][0] < start:
                begun, step = True, coming.popleft()[1]
                reached = reached if step is None else step
            if _MODE.search(line) or _LEFT_OUT.search(_FIELD.sub(b"", line)):
                continue
            sound, nan = _is_sound(line), _is_nan(line)
            if sound:
                self._loss = _Row()
                if self.lost:
                    self.lost = False
                    found.append(Lost(LOSS_SOUND, line, self._step_of(line)[0]))
            elif sound is False:
                step, in_epoch = self._step_of(line)
                self._loss.count(line, step, writers, reached=reached, anew=anew or in_epoch)
                found += self._loss.lost(LOSS_LOST, LEAST_REPORTS, writers)
                self.lost = self.lost or self._loss.told
            if sound is not None:
                self._learns = sound and not _ZERO.search(line)
            if nan is False:
                self._norm, self._had_norm = _Row(), True
            elif nan:
                found += self._look_at_norm(line, writers, begun)
        return found

    def _look_at_norm(self, line: bytes, writers: int, begun: bool) -> list[Lost]:
        row, (step, _) = self._norm, self._step_of(line)
        self._had_norm = self._had_norm or (row.first is None and begun)
        if self._learns and row.newest is not None and (step is None or step > row.newest + STEPS_APART):
            self._norm = row = _Row()
        row.count(line, step, writers)
        if self._loss.told or (self._learns and not (self._had_norm and row.steps)):
            return []  # the loss says it; or the norm may be one that nobody computes
        return row.lost(NORM_LOST, LEAST_NORMS, writers)

    def _step_of(self, line: bytes) -> tuple[int | None, bool]:
        """And whether it may be one of those that begin anew in each epoch."""
        for form in self._formats:
            values = form.parse(line) if form.literal in line else None
            if values is not None and values.number is not None:
                uncounted = values.epoch is None and _EPOCH.search(line) is not None
                return values.number, form.row.each_epoch or uncounted
        return None, False


def _begins_anew(step: int, newest: int, writers: int) -> bool:
    """Does each epoch count its steps from the beginning? Of several ranks one may only be a little behind."""
    return step * 2 <= newest and (writers <= 1 or newest - step >= RANKS_APART)


def _numbers(pattern: re.Pattern[bytes], line: bytes) -> Iterator[re.Match[bytes]]:
    return islice(pattern.finditer(line), NUMBERS_OF_LINE)


def _is_sound(line: bytes) -> bool | None:
    """Is the loss of the training, as this line tells it, a number? None: it tells none."""
    told = [found for found in _numbers(_LOSS, line) if not _OTHER.search(line, 0, found.start() + 1)]
    if told:
        return any(found[1] is None and found[2] is None for found in told)
    parts = (found for found in _numbers(_OF_A_PART, line) if not _ASIDE.search(found[1]))
    return True if any(not _OTHER.search(line, 0, found.start()) for found in parts) else None


def _is_nan(line: bytes) -> bool | None:
    """Is the gradient norm of this line NaN? None: it tells none."""
    told = [found for found in _numbers(_NORM, line) if not _OTHER.search(line, 0, found.start() + 1)]
    return all(found[1] for found in told) if told else None
