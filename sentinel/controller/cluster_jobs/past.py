"""What jobs have met on which nodes: whose a fault is that nothing explains is told by those of other jobs."""

from collections.abc import Callable, Iterable

from sentinel.core.model import Incident
from sentinel.core.triage.case import Struck
from sentinel.core.triage.past import struck
from sentinel.util.clock import Clock

KEPT_S = 1.0  # a rack that fails hits many jobs, and each of them asks several times


class JobPast:
    """`incidents`: those of all jobs, also of jobs that are gone."""

    def __init__(self, incidents: Callable[[], Iterable[Incident]], clock: Clock) -> None:
        self._incidents, self._clock = incidents, clock
        self._struck: tuple[Struck, ...] = ()
        self._asked_mono_s = float("-inf")

    def struck(self) -> tuple[Struck, ...]:
        now = self._clock()
        if now.mono_s - self._asked_mono_s >= KEPT_S:
            self._asked_mono_s = now.mono_s
            self._struck = struck(self._incidents(), now)
        return self._struck
