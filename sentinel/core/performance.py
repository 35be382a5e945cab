"""How fast one rank steps: a bounded window, a learnt baseline, a histogram.

Folding is made of C-level builtins, because a log read in one go brings hundreds of thousands of
iterations, and gives the same state however a stream of iterations was cut into reports.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from math import inf, isfinite, isnan, nan, sqrt
from operator import attrgetter, itemgetter, sub

from msgspec import Struct

from sentinel.core.reports import Iteration

# The first logged iterations of an incarnation compile, tune and fill caches. Three: torch.compile
# and XLA compile in the first one or two, recompile for an odd shape in the next; a longer warm-up that
# shows as single spikes is left out by `WindowStats` anyhow.
WARM_UP = 3

# An iteration this many times as long as the window's median is a spike (checkpoint, evaluation). When
# more than a quarter of the window is like that these are no single spikes, and all count.
SPIKE = 2.0
SPIKE_SHARE = 0.25

# 5 % wide buckets from 1 µs to over 11 days: a percentile is off by at most 2.5 %.
_GROWTH = 1.05
_BOUNDS = [1e-3]
while _BOUNDS[-1] < 1e9:
    _BOUNDS.append(_BOUNDS[-1] * _GROWTH)

# Stalls are looked for among this many of the longest gaps.
MAX_GAPS = 32

LEAST_MARKED = 5  # hardware times before a change from which its median is taken
KEPT_S = 60.0  # between two windows of which they are kept for a change that is found later

_TO_SIGMA = 1.4826  # median distance from the median → standard deviation, of a normal distribution
_AT = attrgetter("at_s")
_E2E = attrgetter("e2e_ms")
_STEP = attrgetter("step")


def median(values: Sequence[float]) -> float:
    """The median of at least one value. (`statistics` imports much more than this needs.)"""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def deviation(values: Sequence[float]) -> float:
    """The standard deviation of at least one value, by the median distance from the median: outliers do not count."""
    middle = median(values)
    return _TO_SIGMA * median([abs(value - middle) for value in values])


def medians_of_others(values: Mapping[int, float]) -> dict[int, float]:
    """For each of at least two the median of all others. Sorted once: a job may have thousands of ranks."""
    ordered = sorted(values.items(), key=itemgetter(1))
    count = len(ordered) - 1
    found: dict[int, float] = {}
    for place, (key, _) in enumerate(ordered):
        lower, upper = (count - 1) // 2, count // 2  # among the others
        at = (ordered[lower + (lower >= place)][1], ordered[upper + (upper >= place)][1])
        found[key] = sum(at) / 2
    return found


class WindowStats(Struct, frozen=True, gc=False):
    """One window of iterations without its single spikes. `ratio` is sum hardware / sum end-to-end.

    The low and high values are those of the older and the newer half: what holds for both is sustained.
    """

    count: int
    step_ms: float
    hardware_ms: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    step_low_ms: float = 0.0
    hardware_low_ms: float | None = None


def window_stats(window: Sequence[Iteration]) -> WindowStats | None:
    """None: nothing in the window has a step time."""
    if not window:
        return None
    kept = _without_spikes(window)
    e2e = [i.e2e_ms or 0.0 for i in kept]
    middle = len(kept) // 2
    older, newer = kept[:middle] or kept, kept[middle:]
    ratios = [ratio for half in (older, newer) if (ratio := _ratio(half)) is not None]
    hardware = (_hardware(older), _hardware(newer))
    return WindowStats(
        count=len(window),
        step_ms=median(e2e),
        hardware_ms=_hardware(kept),
        ratio=_ratio(kept),
        ratio_low=min(ratios) if len(ratios) == 2 else None,
        ratio_high=max(ratios) if len(ratios) == 2 else None,
        step_low_ms=min(median(e2e[:middle] or e2e), median(e2e[middle:])),
        hardware_low_ms=min(h for h in hardware if h is not None) if None not in hardware else None,
    )


def _without_spikes(window: Sequence[Iteration]) -> list[Iteration]:
    limit = SPIKE * median([i.e2e_ms or 0.0 for i in window])
    kept = [i for i in window if (i.e2e_ms or 0.0) <= limit]
    return kept if len(kept) >= (1 - SPIKE_SHARE) * len(window) else list(window)


def _ratio(part: Sequence[Iteration]) -> float | None:
    hardware_ms = e2e_ms = 0.0
    for i in part:
        if i.hardware_ms is not None and i.e2e_ms:
            hardware_ms += i.hardware_ms
            e2e_ms += i.e2e_ms
    return hardware_ms / e2e_ms if e2e_ms else None


def _hardware(part: Sequence[Iteration]) -> float | None:
    values = [i.hardware_ms for i in part if i.hardware_ms is not None]
    return median(values) if values else None


def _clean(iteration: Iteration) -> Iteration:
    """A hardware time that is no number is none: one broken line must not poison a window."""
    hardware = iteration.hardware_ms
    if hardware is None or (0 <= hardware < inf):
        return iteration
    return Iteration(iteration.at_s, iteration.step, None, iteration.e2e_ms)


class Gap(Struct, frozen=True, order=True, gc=False):
    """A time without an iteration of one rank. Ordered by length first."""

    gap_s: float
    at_s: float  # when the next iteration ended it
    rank: int
    count: int  # iterations of this rank before it


class Histogram:
    """Step times in fixed logarithmic buckets: bounded memory, percentiles within 2.5 %."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.count = 0
        self.max_ms = 0.0
        self.min_ms = inf

    def add(self, values_ms: Sequence[float], times: int = 1) -> None:
        if not values_ms:
            return
        self.max_ms = max(self.max_ms, max(values_ms))
        self.min_ms = min(self.min_ms, min(values_ms))
        self.count += times * len(values_ms)
        if times != 1:
            for value in values_ms:
                self.counts[bisect_left(_BOUNDS, value)] += times
        elif len(values_ms) < 64:
            self.counts.update([bisect_left(_BOUNDS, value) for value in values_ms])
        else:  # sorting and cutting at the bounds is cheaper than a search for each value
            ordered = sorted(values_ms)
            start = 0
            while start < len(ordered):
                bucket = bisect_left(_BOUNDS, ordered[start])
                end = bisect_right(ordered, _BOUNDS[bucket], start) if bucket < len(_BOUNDS) else len(ordered)
                self.counts[bucket] += end - start
                start = end

    def quantile_ms(self, share: float) -> float | None:
        """The value under which `share` (0..1) of all step times lie; None without any."""
        if not self.count:
            return None
        if share >= 1:
            return self.max_ms
        wanted, seen, bucket = share * self.count, 0, 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= wanted:
                break
        value = _BOUNDS[min(bucket, len(_BOUNDS) - 1)] / sqrt(_GROWTH)
        return min(max(value, self.min_ms), self.max_ms)


class RankTiming:
    """What the log of one rank told in this incarnation. Of a cluster's ranks a controller holds tens of thousands."""

    __slots__ = (
        "_gaps",
        "_group",
        "_group_before_s",
        "_histogram",
        "_kept",
        "_stats",
        "_stats_stale",
        "_timed",
        "_unknown",
        "_warm_left",
        "_window",
        "before",
        "caught_up",
        "count",
        "first_at_s",
        "first_step",
        "last_at_s",
        "last_step",
        "learnt",
        "log_problem",
        "over",
        "pause_since_s",
        "rank",
        "steps_told",
        "unsure",
    )

    def __init__(self, rank: int, over: int, histogram: Histogram, gaps: list[Gap]) -> None:
        self.rank = rank
        self.unsure = False  # what is told may be no iterations
        self.over = max(1, over)
        self.count = 0
        self.first_step: int | None = None
        self.last_step: int | None = None
        self.steps_told = False  # False: steps are counted from 1, not what the program calls them
        self.first_at_s: float | None = None
        self.last_at_s: float | None = None
        self.caught_up: bool | None = None  # None: no report came yet
        self.log_problem = ""
        self._window = array("d")  # at_s, hardware_ms (NaN: None) and e2e_ms of each iteration of `window`
        self.learnt: WindowStats | None = (
            None  # of the first `over` good iterations: the baseline of this rank
        )
        self.before: tuple[float, float] | None = (
            None  # hardware time before the job's last change: median, deviation
        )
        self._kept = array("d")  # of the two newest windows that are KEPT_S apart: when, median, deviation
        self.pause_since_s: float | None = None  # an activity whose pause no iteration has shown yet
        self._unknown = 0  # iterations of the log before the first that is known
        self._warm_left = WARM_UP
        self._timed = False  # an end-to-end time was printed: from then on none is estimated
        self._group: tuple[float, int] | None = None  # open group of untimed iterations: (at_s, steps)
        self._group_before_s: float | None = None
        self._histogram = histogram
        self._gaps = gaps
        self._stats: WindowStats | None = None
        self._stats_stale = False

    @property
    def steps_apart(self) -> float:
        """Steps from one logged iteration to the next: many programs log every tenth."""
        if self.count < 2 or not self.steps_told:
            return 1.0
        return max(1.0, ((self.last_step or 0) - (self.first_step or 0)) / (self.count - 1))

    @property
    def apart_s(self) -> float:
        """The usual time from one logged iteration to the next."""
        return self.steps_apart * (self.step_ms or 0.0) / 1000

    @property
    def reached(self) -> int:
        """The number of the newest iteration in its log."""
        return self._unknown + self.count

    # ------------------------------------------------------------ folding

    def fold(self, iterations: Sequence[Iteration], before: int = 0) -> Sequence[Iteration]:
        """`before`: how many its log has told before these; read where these are the first that are known. Those that
        say how fast it is: with a time, after the warm-up, without pauses."""
        if not iterations:
            return iterations
        if not self.count:
            self._unknown = before
        self._note_gaps(iterations)
        reached = self.last_step
        self._count_steps(iterations)
        self.last_at_s = iterations[-1].at_s
        if self.first_at_s is None:
            self.first_at_s = iterations[0].at_s
        timed = self._timed_of(iterations, reached)
        warm = min(self._warm_left, len(timed))
        self._warm_left -= warm
        good = self._without_pauses(timed[warm:] if warm else timed)
        self._keep(good)
        return good

    def _note_gaps(self, iterations: Sequence[Iteration]) -> None:
        """Keep the longest gaps of the job; the list is shared between ranks and incarnations."""
        last = self.last_at_s
        least = self._gaps[-1].gap_s if len(self._gaps) == MAX_GAPS else 0.0
        if last is not None and last <= iterations[0].at_s and iterations[-1].at_s - last < least:
            return  # time moved too little for any gap that matters
        ats = list(map(_AT, iterations))
        if last is not None:
            ats.insert(0, last)
        base = self.count + len(iterations) - len(ats) + 1
        deltas = list(map(sub, ats[1:], ats))
        if not deltas or max(deltas) <= least:
            return
        for k, d in enumerate(deltas):
            if least < d < inf:
                self._note_gap(Gap(d, ats[k + 1], self.rank, base + k))

    def _note_gap(self, gap: Gap) -> None:
        gaps = self._gaps  # longest first; most that are new belong near the end
        place = len(gaps)
        while place and gaps[place - 1] < gap:
            place -= 1
        gaps.insert(place, gap)
        del gaps[MAX_GAPS:]

    def _count_steps(self, iterations: Sequence[Iteration]) -> None:
        n = len(iterations)
        if self.first_step is None:
            self.first_step = iterations[0].step if iterations[0].step is not None else self._unknown + 1
        if not self.steps_told:  # the first number that is told says how those before it are numbered
            for k, iteration in enumerate(iterations):
                if iteration.step is not None:
                    self.first_step = max(0, iteration.step - self.count - k)
                    break
        after = 0
        if iterations[-1].step is None:  # count on from the last step that was told
            after = next((k for k in range(n) if iterations[n - 1 - k].step is not None), n)
        if after == n:
            self.last_step = (self._unknown if self.last_step is None else self.last_step) + n
        else:
            told = iterations[n - 1 - after].step
            self.last_step = (told or 0) + after
            self.steps_told = True
        self.count += n

    def _timed_of(self, iterations: Sequence[Iteration], before: int | None) -> Sequence[Iteration]:
        """The iterations that have an end-to-end time: told, else estimated from when they came."""
        values = list(map(_E2E, iterations))
        try:
            clean = min(values) > 0 and isfinite(sum(values))
        except TypeError:  # a None among them
            clean = False
        if clean:
            self._timed = True
            self._histogram.add(values)
            return iterations
        timed: Sequence[Iteration] = [i for i in iterations if i.e2e_ms is not None and 0 < i.e2e_ms < inf]
        estimated: list[Iteration] = []
        if not self._timed:
            end = next((k for k, v in enumerate(values) if v is not None and 0 < v < inf), len(iterations))
            estimated = self._estimate(iterations[:end], before)
        if timed:
            self._timed = True
            self._histogram.add([i.e2e_ms for i in timed if i.e2e_ms is not None])
        return [*estimated, *timed]

    def _estimate(self, iterations: Sequence[Iteration], before: int | None) -> list[Iteration]:
        """Step times of a log that prints none: time between readings / steps that came meanwhile.

        Iterations read at one moment form a group; it closes when a later one comes.
        """
        closed: list[Iteration] = []
        if self.caught_up is False:  # read late: when a line was read does not say when it was written
            self._group = self._group_before_s = None
            return closed
        step = before
        for at_s, group in groupby(iterations, _AT):
            steps = 0
            for told in map(_STEP, group):
                steps += told - step if told is not None and step is not None and told > step else 1
                step = told if told is not None else (step or 0) + 1
            if self._group is not None and at_s == self._group[0]:
                self._group = (at_s, self._group[1] + steps)
                continue
            if self._group is not None and self._group_before_s is not None:
                took_ms = 1000 * (self._group[0] - self._group_before_s) / self._group[1]
                if 0 < took_ms < inf:
                    closed.append(Iteration(self._group[0], None, None, took_ms))
                    self._histogram.add([took_ms], self._group[1])
            if self._group is not None:
                self._group_before_s = self._group[0]
            self._group = (at_s, steps)
        return closed

    def _without_pauses(self, timed: Sequence[Iteration]) -> Sequence[Iteration]:
        """Leave out what an activity (a save, an evaluation) made slow: all until one came after it."""
        since = self.pause_since_s
        if since is None or not timed or timed[-1].at_s < since:
            return timed
        start = bisect_left(timed, since, key=_AT)
        end = bisect_right(timed, since, start, key=_AT)
        if end < len(timed):
            self.pause_since_s = None
        return [*timed[:start], *timed[end + 1 :]]

    def _keep(self, good: Sequence[Iteration]) -> None:
        if not good:
            return
        if self.learnt is None:
            missing = self.over - len(self._window) // 3
            self._fill(good[:missing])
            good = good[missing:]
            if self.full:
                self.learnt = window_stats(self.window)
        self._fill(good[-self.over :])
        self._stats_stale = True
        self._keep_hardware()

    def _fill(self, good: Sequence[Iteration]) -> None:
        for one in map(_clean, good):
            hardware_ms = nan if one.hardware_ms is None else one.hardware_ms
            self._window.extend((one.at_s, hardware_ms, one.e2e_ms or 0.0))
        del self._window[: -3 * self.over]

    def pause(self, at_s: float) -> None:
        """An activity began or ended at `at_s`: the iteration that shows its pause says nothing of speed."""
        window = self.window
        later = bisect_right(window, at_s, key=_AT)
        first = bisect_left(window, at_s, key=_AT)
        if later < len(window):  # reports came before the activity's line did
            end = later + 1
        else:
            self.pause_since_s = at_s
            end = len(window)
        if first < end:
            del self._window[3 * first : 3 * end]
            self._stats_stale = True

    def _keep_hardware(self) -> None:
        """What its hardware takes now, for a change that is found later."""
        if not self.full or (self._kept and (self.last_at_s or 0.0) - self._kept[-3] < KEPT_S):
            return
        window = self.window
        if hardware_ms := [i.hardware_ms for i in window if i.hardware_ms is not None]:
            self._kept.extend((window[-1].at_s, median(hardware_ms), deviation(hardware_ms)))
            del self._kept[:-6]

    def mark(self, at_s: float) -> None:
        """The job's step time has changed then: what its hardware took shortly before is kept, where it told that."""
        self.before = None
        hardware_ms = [i.hardware_ms for i in self.window if i.at_s < at_s and i.hardware_ms is not None]
        if len(hardware_ms) >= min(LEAST_MARKED, self.over):
            self.before = median(hardware_ms), deviation(hardware_ms)
            return
        for place in range(len(self._kept) - 3, -1, -3):
            if self._kept[place] < at_s:
                self.before = self._kept[place + 1], self._kept[place + 2]
                return

    # ------------------------------------------------------------ reading

    def hardware_since(self, at_s: float) -> list[float]:
        return [i.hardware_ms for i in self.window if i.at_s >= at_s and i.hardware_ms is not None]

    @property
    def window(self) -> list[Iteration]:
        """The newest `over` good ones, without their numbers."""
        values = iter(self._window)
        return [
            Iteration(at_s, None, None if isnan(hardware_ms) else hardware_ms, e2e_ms)
            for at_s, hardware_ms, e2e_ms in zip(values, values, values, strict=True)
        ]

    @property
    def full(self) -> bool:
        return len(self._window) == 3 * self.over

    @property
    def stats(self) -> WindowStats | None:
        if self._stats_stale:
            self._stats = window_stats(self.window)
            self._stats_stale = False
        return self._stats

    @property
    def step_ms(self) -> float | None:
        """Median end-to-end time of the window."""
        return self.stats.step_ms if self.stats else None

    @property
    def e2e_ms(self) -> float | None:
        return self.step_ms

    @property
    def hardware_ms(self) -> float | None:
        return self.stats.hardware_ms if self.stats else None

    @property
    def ratio(self) -> float | None:
        """Sum of hardware time / sum of end-to-end time of the window, 0..1, without single spikes."""
        return self.stats.ratio if self.stats else None

    @property
    def rate_per_s(self) -> float | None:
        return 1000.0 / self.step_ms if self.step_ms else None


def learnt_baseline(ranks: Iterable[RankTiming]) -> tuple[float, float | None] | None:
    """(step ms, ratio) as medians over the ranks that have learnt theirs; None while one still learns."""
    stats = []
    for rank in ranks:
        if not rank.count:
            continue
        if (one := rank.learnt) is None:
            return None
        stats.append(one)
    if not stats:
        return None
    ratios = [s.ratio for s in stats if s.ratio is not None]
    return median([s.step_ms for s in stats]), median(ratios) if ratios else None
