"""Step times like those of real training jobs, made from what was measured of them (jitter/profiles.toml)."""

import bisect
import math
import random
import tomllib
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

PROFILES = Path(__file__).parent / "jitter" / "profiles.toml"
_NORMAL = NormalDist()
SLOW = (
    1.3  # ratios are cut there where correlation was measured: iterations that take longer come by themselves
)


@dataclass(frozen=True)
class Profile:
    """One real job's step times, as ratios to the level they had then.

    quantiles[i] is the ratio that the share `shares[i]` of iterations stays below; correlation is that of one
    iteration with the next; levels are (iteration, ratio to the median) from which each level holds; spikes come
    each `spike_every` iterations and multiply the time.
    """

    name: str
    count: int
    median_ms: float
    shares: tuple[float, ...]
    quantiles: tuple[float, ...]
    correlation: float
    levels: tuple[tuple[int, float], ...]
    spike_every: int = 0
    spike_first: int = 0
    spike_ratio: float = 1.0

    def level(self, iteration: int) -> float:
        """The ratio to the job's median around which the times of that iteration lie."""
        place = bisect.bisect_right(self.levels, iteration, key=lambda level: level[0])
        return self.levels[max(place - 1, 0)][1]

    def ratio_below(self, share: float) -> float:
        """The ratio that this share of the iterations stays below."""
        place = min(max(bisect.bisect_right(self.shares, share), 1), len(self.shares) - 1)
        low, high = self.shares[place - 1], self.shares[place]
        part = (share - low) / (high - low)
        return self.quantiles[place - 1] + (self.quantiles[place] - self.quantiles[place - 1]) * part

    def share_below(self, ratio: float) -> float:
        """The share of the iterations that stay below this ratio: 0 to 1."""
        place = bisect.bisect_right(self.quantiles, ratio)
        if place in (0, len(self.quantiles)):
            return float(place > 0)
        low, high = self.quantiles[place - 1], self.quantiles[place]
        return self.shares[place - 1] + (self.shares[place] - self.shares[place - 1]) * (ratio - low) / (
            high - low
        )

    def series_ms(self, seed: int = 0, count: int | None = None, *, steady: bool = False) -> list[float]:
        """Step times in ms, the same for the same seed; `steady` leaves out the job's own changes of level."""
        source = random.Random(f"{self.name} {seed}")
        normal, times, usual = source.gauss(), [], self.share_below(SLOW)
        for iteration in range(self.count if count is None else count):
            ratio = self.ratio_below(usual * _NORMAL.cdf(normal))
            if source.random() > usual:
                ratio = self.ratio_below(source.uniform(usual, 1.0))
            if self.spike_every and iteration % self.spike_every == self.spike_first:
                ratio = self.spike_ratio
            times.append(self.median_ms * ratio * (1.0 if steady else self.level(iteration)))
            normal = self.correlation * normal + math.sqrt(1 - self.correlation**2) * source.gauss()
        return times


def profiles() -> list[Profile]:
    """All that were measured, by name."""
    told = tomllib.loads(PROFILES.read_text())
    shares = tuple(told.pop("shares"))
    return [
        Profile(
            name,
            one["count"],
            one["median_ms"],
            shares,
            tuple(one["quantiles"]),
            one["correlation"],
            tuple((at, ratio) for at, ratio in one["levels"]),
            **one.get("spikes", {}),
        )
        for name, one in sorted(told.items())
    ]
