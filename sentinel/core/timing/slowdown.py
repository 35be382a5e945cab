"""Whose fault is a lasting slowdown? Told from hardware times before and since, of each rank against itself.

The ranks of a job step together, so all of them take longer whoever is slow. Only the hardware time of the one whose
card is slow grows by about as much as the iteration does, unless hardware time counts the waiting for others too.
Ranks are compared with themselves, so it does not matter that stages of a pipeline are unequal.
"""

from collections.abc import Iterable
from enum import Enum
from math import log

from msgspec import Struct

from sentinel.core.model import Symptom
from sentinel.core.signals import TimingSignal, length, names
from sentinel.core.timing.change_point import NEW, OF_MEDIAN, Change
from sentinel.core.timing.performance import RankTiming
from sentinel.core.timing.statistics import deviation, median

SHARE = 0.5  # of what the iteration has grown by: who has grown by as much itself is slow itself
SURE = 6.0  # times the spread of its median
LEAST_VALUES = 5  # hardware times since the change
MOST_OWN = 0.5  # of the ranks: where more have grown, it is no matter of single cards
MOST_TOLD = 4  # ranks in the evidence
MOST_TELL = 0.75  # of the ranks: where fewer tell hardware times, those that do may be like all others
LEVEL = 1.25  # a slowdown is told again when the job is slower yet by about this factor
KEY = "slowdown:"  # of signals
PATIENCE_S = 30.0  # with the reports of other ranks


class Whose(Enum):
    RANKS = "ranks"  # theirs, by their own hardware times
    NOBODY = "nobody"  # hardware works as long as before: links, data or processors
    ALL = "all"  # it works longer on most ranks alike
    UNTOLD = "untold"  # too few ranks tell hardware times


class Grown(Struct, frozen=True, gc=False):
    """Medians of the hardware time of one rank."""

    rank: int
    before_ms: float
    after_ms: float


class Blame(Struct, frozen=True):
    whose: Whose
    grown: tuple[Grown, ...] = ()  # those that have grown by their share, the most grown first

    @property
    def one(self) -> Grown | None:
        """The rank that has grown alone."""
        return self.grown[0] if self.whose is Whose.RANKS and len(self.grown) == 1 else None

    def straggles(self, limit: float | None) -> bool:
        """Is that rank slower by so much that it becomes a straggler by itself?"""
        return limit is not None and self.one is not None and self.one.after_ms > limit * self.one.before_ms


def enough(change: Change, rank: RankTiming) -> bool:
    """Has it told enough hardware times since? One that tells none has."""
    return rank.before is None or len(rank.hardware_since(change.at_s)) >= min(LEAST_VALUES, rank.over)


def blame(change: Change, ranks: Iterable[RankTiming], size: int) -> Blame:
    """`ranks`: all of the `size` ranks that tell iterations, each of which has told `enough`."""
    told = 0
    grown = []
    for rank in ranks:
        since_ms = rank.hardware_since(change.at_s)
        if rank.before is None or not since_ms:  # a pause that was announced takes what came with it
            continue
        told += 1
        before_ms, deviation_ms = rank.before
        after_ms = median(since_ms)
        chance_ms = OF_MEDIAN * max(deviation_ms, deviation(since_ms))
        least_ms = max(SHARE * (change.after_ms - change.before_ms), SURE * chance_ms)
        if after_ms - before_ms >= least_ms:
            grown.append(Grown(rank.rank, before_ms, after_ms))
    if told < MOST_TELL * size:
        return Blame(Whose.UNTOLD)
    if not grown:
        return Blame(Whose.NOBODY)
    if told > 1 and len(grown) > MOST_OWN * told:
        return Blame(Whose.ALL, tuple(grown))
    return Blame(Whose.RANKS, tuple(sorted(grown, key=lambda one: one.before_ms - one.after_ms)))


def signal(change: Change, found: Blame | None, size: int, limit: float, now_s: float) -> TimingSignal | None:
    """`found` None: not all ranks have told enough; they are waited for.

    How slow a job is is told once, in steps of LEVEL; that all its ranks work longer alike, once. No symptom of a
    straggler, which may count against a host: a rank's hardware time may be another's for which it waits.
    """
    if found is None and now_s - change.found_s < PATIENCE_S:
        return None
    one = found.one if found is not None and size > 1 else None
    own = found.grown if found is not None and found.whose is Whose.RANKS else ()
    since = f"Since iteration {change.step}"
    if change.restarted:
        since = "Since it was started again"
    elif change.step is None:
        since = f"For {length(now_s - change.at_s)}"
    sentence = (
        f"{since} an iteration takes {_percent(change.growth)} longer: {_instead(change.before_ms, change.after_ms)}. "
        f"{_whose(found, size)}"
    )
    alike = found is not None and found.whose is Whose.ALL
    return TimingSignal(
        symptom=Symptom.SLOWDOWN,
        key=f"{KEY}alike" if alike else f"{KEY}{int(log(change.after_ms, LEVEL))}",
        rank=None if one is None else one.rank,
        value=change.growth,
        threshold=limit,
        sentence=sentence,
        evidence=tuple(
            f"rank {one.rank}: hardware time {_instead(one.before_ms, one.after_ms)}"
            for one in own[:MOST_TOLD]
        ),
        confidence=f"medians of {NEW} of the job's iterations differ by {change.spread_ms:.2g} ms by themselves",
    )


def _whose(found: Blame | None, size: int) -> str:
    if found is None:
        return "Not all ranks have told their hardware times since, so whose fault it is is not known."
    longer = _instead(found.grown[0].before_ms, found.grown[0].after_ms) if found.grown else ""
    match found.whose:
        case Whose.UNTOLD:
            return "Not enough hardware times are known, before and since, to tell whose fault it is."
        case Whose.NOBODY:
            whose = "No rank's hardware time has grown" if size > 1 else "The hardware time has not grown"
            return f"{whose}: the time is lost in links, the loading of data or processors."
        case Whose.ALL:
            return (
                f"The hardware time has grown on most ranks alike ({longer}): each iteration has more work to do, or "
                "hardware time counts the waiting for others."
            )
        case Whose.RANKS if size == 1:
            return f"Its hardware works longer in it: {longer}."
        case Whose.RANKS if len(found.grown) == 1:
            alone = found.grown[0].rank
            return (
                f"Of {size} ranks the hardware time of rank {alone} alone has grown ({longer}): it is slower itself, "
                "or waits within that time for another."
            )
        case Whose.RANKS:
            which = names([one.rank for one in found.grown])
            return (
                f"Of {size} ranks the hardware time of {which} alone has grown ({longer}): look at what they share, a "
                "host or a link, or at who keeps them waiting."
            )


def _percent(growth: float) -> str:
    more = 100 * (growth - 1)
    return f"{more:.1f} %" if more < 10 else f"{more:.0f} %"


def _instead(before_ms: float, after_ms: float) -> str:
    places = 0 if after_ms >= 10_000 else 1
    return f"{after_ms:.{places}f} ms in place of {before_ms:.{places}f} ms"
