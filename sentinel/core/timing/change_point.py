"""A lasting change of a job's step time, found in its own history. No clock.

One number per iteration comes in, of one rank: the ranks of a job step together. Iterations shorter than `SAMPLE_S`
are taken together as one sample. A slowdown is found when the newest samples are slower than anything that the history
explains: their median stands above the one before by more than such medians differ among themselves, and nearly each
of them above the slowest that the job has shown. So a noisy job needs a large change, a steady one a small one, and
single slow iterations count for nothing. The same test over medians of samples finds what is too small for a few.
"""

from array import array
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf

from msgspec import Struct, structs

from sentinel.core.reports import Iteration
from sentinel.core.timing.statistics import deviation, median

SAMPLE_S = 1.0  # of step time, at least, in one sample
NEW = 10  # values: what has changed is seen after so many
BEFORE = 40  # values before those, against which they must stand: a slow drift does not
LEAST_BEFORE = 30  # of those: what has changed before is part of what is usual
OLDER = 120  # medians of NEW values that are the history before those
SURE = 6.0  # times the spread of such medians
ROUGH = 1.5  # times, while fewer than ENOUGH of them are known: their spread is a guess
ENOUGH = 12
SETTLE = 16  # samples after a start that are still settling: caches, buffers, clocks
SLOW = 2.0  # standard deviations above what is usual: such a sample is slow
WORSE = 1.1  # a slowdown that is slower yet by this factor is found again at once
PASSES = 20  # slow samples in a row, at most, that pass by themselves: a save behind the training, a burst of others
FAST = 3  # others in a row, and such a run has passed
PASSED = 2  # times as long as such have lasted in this job a slowdown must last
SCALES = 2  # samples; medians of NEW samples

OF_MEDIAN = (
    1.2533 / NEW**0.5
)  # standard deviation of the median of NEW values / theirs, of a normal distribution
_MOST_STEP = 2**62
_QUANTA_PER_S = (0.1, 0.01, 0.001)
_QUANTA_MS = (10.0, 1.0, 0.1)  # programs print seconds with two places, or more
_UNTOLD = -1
SHOWN = 20  # values on each side of a change, for people to look at


class Change(Struct, frozen=True, gc=False):
    """Since about the iteration `step`, which came at `at_s`, a step takes `after_ms` in place of `before_ms`."""

    at_s: float
    samples: int  # that have come since
    restarted: bool  # it began with a restart: what ranks did before is not known of each
    found_s: float  # when the last iteration came that proves it
    step: int | None
    before_ms: float
    after_ms: float
    spread_ms: float  # how far such medians of the job differ by themselves: one standard deviation
    around: tuple[tuple[float, float], ...] = ()  # (seconds, ms): some before it, and some of those since

    @property
    def growth(self) -> float:
        """A quotient above 1."""
        return self.after_ms / self.before_ms


class _Scale:
    """The newest values, when each began, and medians of those that were before them. 2 KB."""

    __slots__ = ("_ats_s", "_older", "_steps", "values")

    def __init__(self) -> None:
        self.values = array("d")
        self._ats_s = array("d")
        self._steps = array("q")
        self._older = array("f")

    def add(self, value: float, at_s: float, step: int) -> tuple[float, float, int] | None:
        """Where NEW have come since the last time: their median, and when the first of them began."""
        self.values.append(value)
        self._ats_s.append(at_s)
        self._steps.append(step)
        if len(self.values) == BEFORE + 3 * NEW:
            self._older.append(median(self.values[:NEW]))
            del self._older[:-OLDER], self.values[:NEW], self._ats_s[:NEW], self._steps[:NEW]
        if len(self.values) % NEW:
            return None
        return median(self.values[-NEW:]), self._ats_s[-NEW], self._steps[-NEW]

    def slower(self, least: float, lasting: int) -> Change | None:
        """`least`: the quotient that a change must have, above 1; `lasting`: how many values it must have lasted."""
        values = self.values
        if len(values) < BEFORE + NEW:
            return None
        usual, newest = median(values[:-NEW]), median(values[-NEW:])
        if newest < least * usual:
            return None
        since = self._since((usual + newest) / 2)
        new, before = values[since:], values[max(0, since - BEFORE) : since]
        if len(new) < max(NEW - 1, lasting) or len(before) < LEAST_BEFORE:
            return None
        before_ms, after_ms = median(before), median(new)
        medians = [*self._older, *(median(before[k : k + NEW]) for k in range(0, len(before) - NEW + 1, NEW))]
        apart_ms = min(max(SURE * deviation(before), (least - 1) * before_ms), (after_ms - before_ms) / 2)
        slowest_ms = max(*medians, sorted(before)[-len(before) // 5], before_ms + apart_ms)
        if sum(value <= slowest_ms for value in new) > len(new) // NEW:
            return None
        spread_ms = _spread_of_medians(before, new, medians)
        quantum_ms = _quantum_ms([*before, *new])
        if after_ms - before_ms < max((least - 1) * before_ms, SURE * spread_ms, 1.5 * quantum_ms):
            return None
        step = self._steps[since]
        return Change(
            at_s=self._ats_s[since],
            samples=len(new),
            restarted=False,
            found_s=self._ats_s[-1],
            step=None if step == _UNTOLD else step,
            before_ms=before_ms,
            after_ms=after_ms,
            spread_ms=spread_ms,
            around=self.around(since),
        )

    def around(self, since: int) -> tuple[tuple[float, float], ...]:
        shown = slice(max(0, since - SHOWN), since + SHOWN)
        return tuple(zip(self._ats_s[shown], self.values[shown], strict=True))

    @property
    def newest_s(self) -> float:
        return self._ats_s[-1]

    def slower_than(self, limit_ms: float) -> bool:
        return len(self.values) >= NEW and sum(value > limit_ms for value in self.values[-NEW:]) >= NEW - 1

    def faster_than(self, limit_ms: float) -> bool:
        return len(self.values) >= NEW and sum(value < limit_ms for value in self.values[-NEW:]) >= NEW - 1

    def _since(self, limit_ms: float) -> int:
        """The place from which on values are above it, but for fewer than FAST in a row."""
        since, fast = len(self.values), 0
        for place in range(len(self.values) - 1, -1, -1):
            if self.values[place] > limit_ms:
                since, fast = place, 0
            else:
                fast += 1
                if fast == FAST:
                    break
        return since


class _Passing:
    """How long slow samples last that pass by themselves. `longest`: in a row, of those that did."""

    __slots__ = ("_fast", "_run", "longest", "slow_ms")

    def __init__(self) -> None:
        self.longest = 0
        self.begin_anew()

    def begin_anew(self) -> None:
        self.slow_ms = inf  # a sample above this is slow
        self._run = self._fast = 0

    def add(self, value_ms: float) -> None:
        if value_ms > self.slow_ms:
            self._run, self._fast = self._run + 1, 0
            return
        self._fast += 1
        if self._fast == FAST:
            self.passed(self._run)
            self._run = 0

    def passed(self, lasted: int) -> None:
        if lasted <= PASSES:
            self.longest = max(self.longest, lasted)

    def learn(self, values: Sequence[float], least: float) -> None:
        """What is slow, from the newest values."""
        usual_ms = median(values)
        self.slow_ms = usual_ms + max((least - 1) / 2 * usual_ms, SLOW * deviation(values))


class StepHistory:
    """`change`: the slowdown that lasts, until steps are as fast again; None without one. 5 KB for each job."""

    __slots__ = (
        "_at_s",
        "_lasted",
        "_open_ms",
        "_passing",
        "_scales",
        "_settled",
        "_settling",
        "_step",
        "_sum_ms",
        "change",
    )

    def __init__(self) -> None:
        self.change: Change | None = None
        self._lasted = 0  # samples since it began
        self._open_ms: list[float] = []  # of the sample that is being filled
        self._sum_ms = 0.0
        self._at_s, self._step = 0.0, _UNTOLD
        self._settling = SETTLE
        self._settled = 0  # samples since it has settled
        self._passing = _Passing()
        self._scales = [_Scale() for _ in range(SCALES)]

    def restart(self) -> None:
        """Another incarnation, elsewhere perhaps: it is compared with what was, once it has settled."""
        if self.change is not None:
            self.change = None
            self._begin_anew()
        self.settle()

    def settle(self) -> None:
        self._open_ms, self._sum_ms, self._settling, self._settled = [], 0.0, SETTLE, 0

    def fold(self, iterations: Iterable[Iteration], least: float) -> bool:
        """Is one of these the last that proves a slowdown? `least`: the quotient from which one counts, above 1."""
        found = False
        for one in iterations:
            if one.e2e_ms is None:
                continue
            if not self._open_ms:
                self._at_s, self._step = one.at_s, _UNTOLD if one.step is None else min(one.step, _MOST_STEP)
            self._open_ms.append(one.e2e_ms)
            self._sum_ms += one.e2e_ms
            if self._sum_ms >= 1000 * SAMPLE_S:
                lower_median_ms = sorted(self._open_ms)[(len(self._open_ms) - 1) // 2]
                found |= self._sample(lower_median_ms, least)
                self._open_ms, self._sum_ms = [], 0.0
        return found

    def _sample(self, value_ms: float, least: float) -> bool:
        if self._settling:
            self._settling -= 1
            return False
        self._settled += 1
        self._lasted += 1
        self._passing.add(value_ms)
        told, samples = (value_ms, self._at_s, self._step), 1
        for scale in self._scales:
            block = scale.add(*told)
            lasting = PASSED * self._passing.longest // samples
            if (change := scale.slower(least, lasting)) is not None:
                self._found(structs.replace(change, samples=samples * change.samples))
                return True
            if block is None:
                break
            told, samples = block, samples * NEW
        newest = self._scales[0]
        if len(newest.values) % NEW == 0:
            self._passing.learn(newest.values, least)
        return self.change is not None and self._changes_again(self.change, newest)

    def _found(self, change: Change) -> None:
        restarted = change.samples >= self._settled
        self.change, self._lasted = structs.replace(change, restarted=restarted), change.samples
        self._begin_anew()

    def _changes_again(self, change: Change, newest: _Scale) -> bool:
        """Is it slower yet, before there is a history of the new speed? Where it is over, it is forgotten."""
        if newest.slower_than(WORSE * change.after_ms):
            after_ms = median(newest.values[-NEW:])
            around = newest.around(len(newest.values) - NEW)
            self.change = structs.replace(change, after_ms=after_ms, found_s=newest.newest_s, around=around)
            self._begin_anew()
            return True
        if newest.faster_than((change.before_ms + change.after_ms) / 2):
            self.change = None
            self._passing.passed(self._lasted - NEW)
            self._begin_anew()
        return False

    def _begin_anew(self) -> None:
        """The samples that come are compared with one another: those before were of another speed."""
        self._scales = [_Scale() for _ in range(SCALES)]
        self._passing.begin_anew()


def _spread_of_medians(before: Sequence[float], new: Sequence[float], medians: Sequence[float]) -> float:
    """How far medians of NEW values differ by chance: as their values do, and as such medians have done."""
    by_values = max(OF_MEDIAN * deviation(before), OF_MEDIAN * (NEW / len(new)) ** 0.5 * deviation(new))
    if len(medians) >= ENOUGH:
        return max(by_values, deviation(medians))
    # Too few to tell: neighbours that are alike tell that medians differ more than their values let expect.
    return max(ROUGH * _persistence(before) * by_values, (max(medians) - min(medians)) / 3)


def _persistence(values: Sequence[float]) -> float:
    """By how much a median differs more than that of values that know nothing of each other; at least 1."""
    middle = sum(values) / len(values)
    away = [value - middle for value in values]
    power = sum(a * a for a in away)
    alike = sum(a * b for a, b in pairwise(away)) / power if power else 0.0
    return ((1 + alike) / (1 - alike)) ** 0.5 if alike > 0 else 1.0


def _quantum_ms(values: Sequence[float]) -> float:
    """How exactly values are printed, in ms or as a rate: all are multiples of this power of ten. 0: none shows."""
    for quantum in _QUANTA_MS:
        if _multiples(values, quantum):
            return quantum
    rates = [1000 / value for value in values]
    for quantum in _QUANTA_PER_S:
        if _multiples(rates, quantum):
            return quantum * max(values) ** 2 / 1000
    return 0.0


def _multiples(values: Sequence[float], quantum: float) -> bool:
    return all(abs(value / quantum - round(value / quantum)) < 1e-6 for value in values)
