"""How long a job's iterations took, over all the time that it is watched, in bounded memory. No clock."""

from array import array
from collections.abc import Sequence
from math import isfinite, nan

from msgspec import Struct

from sentinel.core.now import Now
from sentinel.core.reports import Iteration

MOST = 240  # slots; each is twice as long when they are used up, so that 120 to 240 tell of any length
FIRST_S = 1.0  # of a slot


class CoursePoint(Struct, frozen=True, omit_defaults=True, gc=False):
    """The iterations of some time. `ratio`: hardware time / step time, 0..1; None: no hardware time is told."""

    wall_s: float  # the middle of that time
    step_ms: float  # mean
    ratio: float | None = None
    count: int = 1


class Course:
    """Of one rank, the lowest that tells times: the ranks of a job step together. A slot takes 12 bytes."""

    __slots__ = ("_counts", "_rank", "_ratios", "_since_s", "_slot_s", "_steps_ms")

    def __init__(self) -> None:
        self._rank: int | None = None
        self._since_s = 0.0
        self._slot_s = FIRST_S
        self._steps_ms = array("f")
        self._ratios = array("f")  # NaN: none
        self._counts = array("I")

    def restart(self) -> None:
        """Another incarnation: other ranks may tell times. What was seen is kept."""
        self._rank = None

    def fold(self, rank: int, iterations: Sequence[Iteration]) -> bool:
        """Those that have a time, in the order of the log. Is it this rank that tells the course of the job?"""
        if not iterations or (self._rank is not None and rank > self._rank):
            return False
        self._rank = rank
        timed = [one for one in iterations if isfinite(one.at_s)]
        if timed and not self._counts:
            self._since_s = timed[0].at_s
        for one in timed:
            if one.e2e_ms is not None:
                self._add(self._place(one.at_s), one.e2e_ms, _ratio(one), 1)
        return True

    def _place(self, at_s: float) -> int:
        """The slot of this moment; makes it, and room for it."""
        place = max(0, int((at_s - self._since_s) / self._slot_s))
        while place >= MOST:
            self._halve()
            place //= 2
        while len(self._counts) <= place:
            self._steps_ms.append(0.0)
            self._ratios.append(nan)
            self._counts.append(0)
        return place

    def _add(self, place: int, step_ms: float, ratio: float, count: int) -> None:
        known = self._counts[place]
        share = count / (known + count)
        self._counts[place] = known + count
        self._steps_ms[place] += share * (step_ms - self._steps_ms[place])
        old = self._ratios[place]
        self._ratios[place] = ratio if old != old else old if ratio != ratio else old + share * (ratio - old)

    def _halve(self) -> None:
        slots = list(zip(self._steps_ms, self._ratios, self._counts, strict=True))
        self._slot_s *= 2
        half = (len(slots) + 1) // 2
        self._steps_ms = array("f", [0.0]) * half
        self._ratios = array("f", [nan]) * half
        self._counts = array("I", [0]) * half
        for place, (step_ms, ratio, count) in enumerate(slots):
            if count:
                self._add(place // 2, step_ms, ratio, count)

    def points(self, now: Now) -> tuple[CoursePoint, ...]:
        """The oldest first; a time without iterations has none."""
        began_s = now.wall_s - now.mono_s + self._since_s
        return tuple(
            CoursePoint(
                wall_s=round(min(now.wall_s, began_s + (place + 0.5) * self._slot_s), 3),
                step_ms=round(self._steps_ms[place], 3),
                ratio=None if (ratio := self._ratios[place]) != ratio else round(ratio, 4),
                count=count,
            )
            for place, count in enumerate(self._counts)
            if count
        )


def _ratio(one: Iteration) -> float:
    hardware_ms = one.hardware_ms
    if hardware_ms is None or not one.e2e_ms or not 0 <= hardware_ms <= one.e2e_ms:
        return nan
    return hardware_ms / one.e2e_ms
