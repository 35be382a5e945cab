"""Whose clock is wrong? The leader compares its own with those of the agents that it hears. Pure."""

import math
from statistics import median

from msgspec import Struct

OFF_S = 30.0  # what counts by this clock counts in minutes and hours
NEAR_S = 10.0  # to the median: such clocks agree with each other
MOST = 0.75  # of the agents that are heard agree
LEAST = 3  # agents; two clocks cannot outvote a third
FRESH_S = 60.0


class Off(Struct, frozen=True):
    """The agents' clocks are ahead of this one by so much (negative: behind), as `agree` of `heard` agents say."""

    offset_s: float
    agree: int
    heard: int

    @property
    def sentence(self) -> str:
        how = f"{abs(self.offset_s):.0f} s {'behind' if self.offset_s > 0 else 'ahead of'}"
        who = f"those of {self.agree} of {self.heard} nodes"
        return f"this controller's clock is {how} {who}: brakes, repeats and mails go by it"


class AgentClocks:
    """What each agent's clock showed more than ours when it was heard."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[float, float]] = {}

    def forget(self) -> None:
        self._heard.clear()

    def heard(self, node: str, agent_wall_s: float, wall_s: float, mono_s: float) -> None:
        if math.isfinite(agent_wall_s):
            self._heard[node] = (mono_s, agent_wall_s - wall_s)

    def offset_s(self, mono_s: float) -> float | None:
        """The median of those that were heard within the last minute."""
        fresh = self._fresh(mono_s)
        return median(fresh) if len(fresh) >= LEAST else None

    def off(self, mono_s: float) -> Off | None:
        """Are most of them another time, and the same? Then it is this clock that is wrong."""
        fresh = self._fresh(mono_s)
        if len(fresh) < LEAST or abs(middle := median(fresh)) <= OFF_S:
            return None
        agree = sum(abs(one - middle) <= NEAR_S for one in fresh)
        return Off(middle, agree, len(fresh)) if agree >= MOST * len(fresh) else None

    def _fresh(self, mono_s: float) -> list[float]:
        self._heard = {name: one for name, one in self._heard.items() if mono_s - one[0] <= FRESH_S}
        return [offset_s for _, offset_s in self._heard.values()]
