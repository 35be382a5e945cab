"""Ranks that are slower than their peers, each by what its role accounts for. The peers of a rank are all others."""

from collections.abc import Mapping, Sequence

from sentinel.core.model import Symptom
from sentinel.core.signals import TimingSignal
from sentinel.core.timing import roles
from sentinel.core.timing.performance import RankTiming, WindowStats
from sentinel.core.timing.statistics import medians_of_others

# More stragglers than this in one telling help nobody.
MAX_STRAGGLERS = 8


def role_shares(ranks: Sequence[RankTiming]) -> dict[int, float]:
    """By what factor each is slower than its peers since the start, for its role. Empty: no hardware times.

    Of hardware times alone: iterations of stages that wait for each other end together.
    """
    usual = {r.rank: r.learnt.hardware_ms for r in ranks if r.learnt is not None and r.learnt.hardware_ms}
    return roles.shares(usual) if len(usual) > 1 else {}


def stragglers(
    ranks: Sequence[RankTiming], limit: float, shares: Mapping[int, float], notes: tuple[str, ...]
) -> list[TimingSignal]:
    """`ranks`: those whose windows are full. `shares`: of roles, as known; else as these show them. `notes`: more for
    the evidence."""
    stats = {rank.rank: rank.stats for rank in ranks if rank.stats is not None}
    if len(stats) < 2:
        return []
    by_hardware = all(one.hardware_low_ms is not None for one in stats.values())
    usual = {rank: (one.hardware_ms if by_hardware else one.step_ms) or 0.0 for rank, one in stats.items()}
    of_peers = medians_of_others(usual)
    slow = [rank for rank in stats if 0 < limit * of_peers[rank] < _low_ms(stats[rank], by_hardware)]
    if slow and by_hardware:
        shares = shares or role_shares(ranks)
    found = []
    for rank in slow:
        peers_ms, share = of_peers[rank], shares.get(rank) if by_hardware else 1.0
        if share is None or _low_ms(stats[rank], by_hardware) <= limit * share * peers_ms:
            continue
        what = "hardware time" if by_hardware else "iteration"
        factor = usual[rank] / peers_ms
        was = f", and was {share:.3g} times at the start" if share > roles.APART else ""
        found.append(
            TimingSignal(
                symptom=Symptom.STRAGGLER,
                key=f"straggler:{rank}",
                rank=rank,
                value=factor,
                threshold=limit * share,
                sentence=f"Rank {rank} is a straggler: its {what} is {factor:.3g} times its peers' median{was}.",
                evidence=(
                    f"rank {rank}: {what} {usual[rank]:.6g} ms",
                    f"median of {len(stats) - 1} peers: {peers_ms:.6g} ms",
                    *notes,
                ),
                confidence="both halves of the window show it",
            )
        )
    return sorted(found, key=lambda signal: -signal.value)[:MAX_STRAGGLERS]


def _low_ms(stats: WindowStats, by_hardware: bool) -> float:
    """That of the faster half of the window."""
    return (stats.hardware_low_ms or 0.0) if by_hardware else stats.step_low_ms
