"""How fast one rank steps: a bounded window, a learnt baseline, its longest gaps.

Folding is made of C-level builtins, because a log read in one go brings hundreds of thousands of
iterations, and gives the same state however a stream of iterations was cut into reports.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import groupby
from math import inf, isfinite, isnan, nan
from operator import attrgetter, sub

from msgspec import Struct

from sentinel.core.reports import Iteration
from sentinel.core.timing.statistics import Histogram, deviation, median

# The first logged iterations of an incarnation compile, tune and fill caches. Three: torch.compile
# and XLA compile in the first one or two, recompile for an odd shape in the next; a longer warm-up that
# shows as single spikes is left out by `WindowStats` anyhow.
WARM_UP = 3

# An iteration this many times as long as the window's median is a spike (checkpoint, evaluation). When
# more than a quarter of the window is like that these are no single spikes, and all count.
SPIKE = 2.0
SPIKE_SHARE = 0.25

# Stalls are looked for among this many of the longest gaps.
MAX_GAPS = 32

LEAST_MARKED = 5  # hardware times before a change from which its median is taken
KEPT_S = 60.0  # between two windows of which they are kept for a change that is found later

_AT = attrgetter("at_s")
_E2E = attrgetter("e2e_ms")
_STEP = attrgetter("step")


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


def window_stats(e2e_ms: Sequence[float], hardware_ms: Sequence[float]) -> WindowStats | None:
    """Of a window's iterations, the oldest first; NaN: its hardware time was not told. None: there is none."""
    count = len(e2e_ms)
    if not count:
        return None
    usual_ms = median(e2e_ms)
    if max(e2e_ms) > SPIKE * usual_ms:
        kept = [place for place, took_ms in enumerate(e2e_ms) if took_ms <= SPIKE * usual_ms]
        if len(kept) >= (1 - SPIKE_SHARE) * count:
            e2e_ms, hardware_ms = [e2e_ms[k] for k in kept], [hardware_ms[k] for k in kept]
            usual_ms = median(e2e_ms)
    middle = len(e2e_ms) // 2
    halves = [(e2e_ms[half], hardware_ms[half]) for half in (slice(middle or None), slice(middle, None))]
    ratios = [ratio for half in halves if (ratio := _ratio(*half)) is not None]
    hardware = [took_ms for half in halves if (took_ms := _hardware(half[1])) is not None]
    return WindowStats(
        count=count,
        step_ms=usual_ms,
        hardware_ms=_hardware(hardware_ms),
        ratio=_ratio(e2e_ms, hardware_ms),
        ratio_low=min(ratios) if len(ratios) == 2 else None,
        ratio_high=max(ratios) if len(ratios) == 2 else None,
        step_low_ms=min(median(half[0]) for half in halves),
        hardware_low_ms=min(hardware) if len(hardware) == 2 else None,
    )


def _ratio(e2e_ms: Sequence[float], hardware_ms: Sequence[float]) -> float | None:
    told = _told(hardware_ms)
    if len(told) < len(hardware_ms):
        e2e_ms = [took_ms for took_ms, one in zip(e2e_ms, hardware_ms, strict=True) if not isnan(one)]
    return sum(told) / sum(e2e_ms) if told else None


def _hardware(hardware_ms: Sequence[float]) -> float | None:
    told = _told(hardware_ms)
    return median(told) if told else None


def _told(hardware_ms: Sequence[float]) -> Sequence[float]:
    # Most programs tell it of each iteration, or of none: then one sum says so.
    return [one for one in hardware_ms if not isnan(one)] if isnan(sum(hardware_ms)) else hardware_ms


class Gap(Struct, frozen=True, order=True, gc=False):
    """A time without an iteration of one rank. Ordered by length first."""

    gap_s: float
    at_s: float  # when the next iteration ended it
    rank: int
    count: int  # iterations of this rank before it


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
        self.steps_told = (
            False  # False: both are counted from the start, not what the program calls its steps
        )
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
                self.learnt = window_stats(self._window[2::3], self._window[1::3])
        self._fill(good[-self.over :])
        self._stats_stale = True
        self._keep_hardware()

    def _fill(self, good: Sequence[Iteration]) -> None:
        for one in good:
            hardware_ms = one.hardware_ms
            if hardware_ms is None or not 0 <= hardware_ms < inf:  # one broken line must not poison a window
                hardware_ms = nan
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
            self._stats = window_stats(self._window[2::3], self._window[1::3])
            self._stats_stale = False
        return self._stats

    @property
    def step_ms(self) -> float | None:
        """Median end-to-end time of the window."""
        return None if (stats := self.stats) is None else stats.step_ms

    @property
    def e2e_ms(self) -> float | None:
        return self.step_ms

    @property
    def hardware_ms(self) -> float | None:
        return None if (stats := self.stats) is None else stats.hardware_ms

    @property
    def ratio(self) -> float | None:
        """Sum of hardware time / sum of end-to-end time of the window, 0..1, without single spikes."""
        return None if (stats := self.stats) is None else stats.ratio

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
