"""Looks where the ranks of a silent job stand, before its silence is called a hang."""

from collections.abc import Callable

import structlog

from sentinel.cluster.base import Cluster
from sentinel.core.decision.picture import JobPicture
from sentinel.core.model import Phase
from sentinel.util.clock import Clock
from sentinel.util.tasks import JobTasks

log = structlog.get_logger()


class HangLooks:
    """`looked(picture)`: there is something new to decide. `broke()`: a look at one job did."""

    def __init__(
        self, cluster: Cluster, clock: Clock, looked: Callable[[JobPicture], None], broke: Callable[[], None]
    ) -> None:
        self._cluster, self._clock, self._looked, self._broke = cluster, clock, looked, broke
        self._tasks = JobTasks("hang")

    def look_after(self, picture: JobPicture) -> None:
        job = picture.job.name
        runs = picture.incident is None or picture.incident.phase == Phase.VERIFYING
        if runs and not self._tasks.busy(job) and picture.timing.hang.look_due(self._clock()):
            self._tasks.start(job, self._look(picture))

    async def _look(self, picture: JobPicture) -> None:
        job = picture.job
        try:
            texts = await self._cluster.stacks(job.name, job.incarnation, sorted(picture.alive))
        except Exception:  # the named boundary of one job: nothing was seen
            log.exception("hang_look_broke", job=job.name)
            self._broke()
            texts = ()
        if picture.job.incarnation == job.incarnation and not picture.job.state.final:
            picture.timing.hang.looked(texts, self._clock())
            self._looked(picture)

    def forget(self, job: str) -> None:
        self._tasks.forget(job)

    async def close(self) -> None:
        await self._tasks.close()
