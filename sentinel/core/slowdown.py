"""Whose fault is a lasting slowdown? Told from hardware times before and since, of each rank against itself.

The ranks of a job step together, so all of them take longer whoever is slow. Only the hardware time of the one whose
card is slow grows by about as much as the iteration does, unless hardware time counts the waiting for others too.
Ranks are compared with themselves, so it does not matter that stages of a pipeline are unequal.
"""

from collections.abc import Iterable, Sequence
from enum import Enum

from msgspec import Struct

from sentinel.core.change_point import NEW, OF_MEDIAN, Change
from sentinel.core.model import Symptom
from sentinel.core.performance import RankTiming, median
from sentinel.core.signals import TimingSignal, names

SHARE = 0.5  # of what the iteration has grown by: who has grown by as much itself is slow itself
SURE = 4.0  # times the spread of its median
LEAST_VALUES = 5  # hardware times since the change
MOST_OWN = 0.5  # of the ranks: where more have grown, it is no matter of single cards
MOST_TOLD = 4  # ranks in the evidence
PATIENCE_S = 30.0  # with the reports of other ranks


class Whose(Enum):
    RANKS = "ranks"  # theirs, by their own hardware times
    NOBODY = "nobody"  # hardware works as long as before: links, data or processors
    ALL = "all"  # it works longer on most ranks alike
    UNTOLD = "untold"  # no hardware times


class Grown(Struct, frozen=True, gc=False):
    """Medians of the hardware time of one rank."""

    rank: int
    before_ms: float
    after_ms: float


class Blame(Struct, frozen=True):
    whose: Whose
    grown: tuple[Grown, ...] = ()  # those that have grown by their share, the most grown first


def blame(change: Change, ranks: Iterable[RankTiming]) -> Blame | None:
    """None: not all `ranks` that tell hardware times have told enough of them since the change."""
    told = 0
    grown = []
    for rank in ranks:
        if rank.before is None:
            continue
        since = rank.hardware_since(change.at_s)
        if len(since) < LEAST_VALUES:
            return None
        told += 1
        before_ms, deviation_ms = rank.before
        after_ms = median(since)
        least_ms = max(SHARE * (change.after_ms - change.before_ms), SURE * OF_MEDIAN * deviation_ms)
        if after_ms - before_ms >= least_ms:
            grown.append(Grown(rank.rank, before_ms, after_ms))
    if not told:
        return Blame(Whose.UNTOLD)
    if not grown:
        return Blame(Whose.NOBODY)
    if told > 1 and len(grown) > MOST_OWN * told:
        return Blame(Whose.ALL, tuple(grown))
    return Blame(Whose.RANKS, tuple(sorted(grown, key=lambda one: one.before_ms - one.after_ms)))


def signal(
    change: Change, ranks: Sequence[RankTiming], number: int, limit: float, waited_s: float
) -> TimingSignal | None:
    """`number`: how many slowdowns of the job were told before this one. `waited_s`: since it was found."""
    found = blame(change, ranks)
    if found is None and waited_s < PATIENCE_S:
        return None
    own = found.grown if found is not None and found.whose is Whose.RANKS else ()
    one = own[0] if len(own) == 1 and len(ranks) > 1 else None
    since = "For some time" if change.step is None else f"Since iteration {change.step}"
    sentence = (
        f"{since} an iteration takes {100 * (change.growth - 1):.2g} % longer: {change.after_ms:.5g} ms in place of "
        f"{change.before_ms:.5g} ms. {_whose(found, len(ranks))}"
    )
    return TimingSignal(
        symptom=Symptom.SLOWDOWN if one is None else Symptom.STRAGGLER,
        key=f"slowdown:{number}" if one is None else f"straggler:{one.rank}",
        rank=None if one is None else one.rank,
        value=change.growth,
        threshold=limit,
        sentence=sentence,
        evidence=tuple(
            f"rank {one.rank}: hardware time {one.before_ms:.5g} ms before, {one.after_ms:.5g} ms since"
            for one in own[:MOST_TOLD]
        ),
        confidence=f"by itself the median of {NEW} of its iterations differs by {change.spread_ms:.2g} ms",
    )


def _whose(found: Blame | None, ranks: int) -> str:
    if found is None:
        return "Not all ranks have told their hardware times since, so whose fault it is is not known."
    longer = ""
    if found.grown:
        first = found.grown[0]
        longer = f"{first.after_ms:.5g} ms in place of {first.before_ms:.5g} ms"
    match found.whose:
        case Whose.UNTOLD:
            return "No hardware times are printed, so nothing tells whose fault it is."
        case Whose.NOBODY:
            whose = "No rank's hardware time has grown" if ranks > 1 else "The hardware time has not grown"
            return f"{whose}: the time is lost in links, the loading of data or processors."
        case Whose.ALL:
            return (
                f"The hardware time has grown on most ranks alike ({longer}): each iteration has more work to do, or "
                "hardware time counts the waiting for others."
            )
        case Whose.RANKS if ranks == 1:
            return f"Its hardware works longer in it: {longer}."
        case Whose.RANKS if len(found.grown) == 1:
            alone = found.grown[0].rank
            return f"Rank {alone} alone works longer in it: hardware time {longer}; the others wait for it."
        case Whose.RANKS:
            which = names([one.rank for one in found.grown])
            return f"Of {ranks} ranks {which} work longer in it (hardware time {longer}); the others wait for them."
