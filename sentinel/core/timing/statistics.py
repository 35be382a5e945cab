"""Medians, deviations and histograms of what many iterations took."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf, sqrt
from operator import itemgetter

# 5 % wide buckets from 1 µs to over 11 days: a percentile is off by at most 2.5 %.
_GROWTH = 1.05
_BOUNDS = [1e-3]
while _BOUNDS[-1] < 1e9:
    _BOUNDS.append(_BOUNDS[-1] * _GROWTH)

_TO_SIGMA = 1.4826  # median distance from the median → standard deviation, of a normal distribution


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
