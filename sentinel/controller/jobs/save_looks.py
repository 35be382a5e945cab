"""Can a running job save when it is told to? Looked at in each incarnation as soon as it trains, until it can."""

import math
from collections.abc import Callable
from typing import NamedTuple

import structlog

from sentinel.cluster.base import Cluster
from sentinel.core.decision.picture import JobPicture
from sentinel.util.clock import Clock
from sentinel.util.errors import PermanentError, TemporaryError
from sentinel.util.tasks import JobTasks

log = structlog.get_logger()

UNREAD_S = (
    600.0  # a program whose iterations are not read may load its model so long before it installs a handler
)
AGAIN_S, AGAIN_MOST_S = 60.0, 3600.0  # a rank that does not catch the signal may come to it later


class _Next(NamedTuple):
    """The next look at an incarnation."""

    incarnation: int
    at_mono_s: float
    pause_s: float = AGAIN_S


class SaveLooks:
    """`found(picture, note)`: why it cannot; "": it can."""

    def __init__(self, cluster: Cluster, clock: Clock, found: Callable[[JobPicture, str], None]) -> None:
        self._cluster, self._clock, self._found = cluster, clock, found
        self._next: dict[str, _Next] = {}  # by job
        self._tasks = JobTasks("save")

    def look_after(self, picture: JobPicture) -> None:
        job, now = picture.job, self._clock()
        checkpoint = job.policy.resume.checkpoint if job.policy.resume else None
        if checkpoint is None or not picture.alive or picture.incident is not None:
            return
        following = self._next.get(job.name)
        if following is None or following.incarnation != job.incarnation:
            started_s = job.started_mono_s
            if not (
                picture.timing.has_timing or (started_s is not None and now.mono_s - started_s > UNREAD_S)
            ):
                return
            following = _Next(job.incarnation, now.mono_s)
        if following.at_mono_s <= now.mono_s and not self._tasks.busy(job.name):
            pause_s = min(2 * following.pause_s, AGAIN_MOST_S)
            self._next[job.name] = _Next(job.incarnation, now.mono_s + following.pause_s, pause_s)
            self._tasks.start(job.name, self._look(picture, checkpoint.signal))

    async def _look(self, picture: JobPicture, signal: str) -> None:
        """Said when the job starts, and not in the night when a save is needed."""
        incarnation = picture.job.incarnation
        try:
            capable = await self._cluster.save_capable(picture.job.name, incarnation, signal)
        except (TemporaryError, PermanentError) as error:
            log.warning("handlers_unknown", job=picture.job.name, error=str(error))
            return
        job = picture.job
        if job.incarnation != incarnation or job.state.final:
            return
        deaf = sorted(rank for rank, catches in capable.items() if not catches)
        note = f"not save-capable: rank {', '.join(map(str, deaf))} does not catch {signal}" if deaf else ""
        if not deaf:
            self._next[job.name] = _Next(incarnation, math.inf)
        self._found(picture, note)

    def forget(self, job: str) -> None:
        self._tasks.forget(job)
        self._next.pop(job, None)

    async def close(self) -> None:
        await self._tasks.close()
