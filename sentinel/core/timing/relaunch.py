"""Restarts that a launcher inside the pods (torchrun) makes of its ranks by itself: counted, and given time. Pure."""

from collections.abc import Mapping

from sentinel.core.timing.performance import WARM_UP, RankTiming


class Relaunches:
    """Of one incarnation."""

    def __init__(self) -> None:
        self.count = 0
        self._since_s: float | None = None  # when the first was seen since which no iteration came
        self._reached: dict[int, int] = {}  # iterations of each rank by then

    def reset(self, count: int = 0) -> None:
        """`count`: what an earlier leader has counted."""
        self.count = count
        self._since_s = None
        self._reached = {}

    def note(self, count: int, at_s: float, ranks: Mapping[int, RankTiming]) -> bool:
        """`count`: how often one pod's ranks were started again by now. False: so many were known."""
        if count <= self.count:
            return False
        self.count = count
        came = any(rank.count > self._reached.get(rank.rank, 0) for rank in ranks.values())
        # One after the other without an iteration in between gets no more time than a single one.
        if self._since_s is None or came:
            self._since_s = at_s
            self._reached = {rank.rank: rank.count for rank in ranks.values()}
        return True

    def waits_since_s(self, rank: RankTiming) -> float | None:
        """Since when this rank's first iteration after the restart is waited for; None: it is not."""
        return self._since_s if rank.count == self._reached.get(rank.rank, -1) else None

    def warms_up(self, rank: RankTiming) -> bool:
        """Is it in its first iterations after the restart? These may take as long as those after a start."""
        return self._since_s is not None and rank.count - self._reached.get(rank.rank, 0) <= WARM_UP
