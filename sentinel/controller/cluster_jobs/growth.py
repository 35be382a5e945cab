"""Looks now and then whether jobs that run with fewer ranks than at first could have more."""

import asyncio

import structlog

from sentinel.cluster.kubernetes.job_cluster import JobCluster
from sentinel.controller.jobs.of_cluster import JobsController
from sentinel.core.model import ProtectedJob
from sentinel.metrics.registry import Metrics
from sentinel.util.clock import Clock
from sentinel.util.errors import PermanentError, TemporaryError

log = structlog.get_logger(__name__)

LOOK_S = 5.0
STANDS_S = 10.0  # for as long room must be seen: what is being replaced leaves room for a moment
AT_ONCE = 8


class JobGrowth:
    def __init__(
        self, controller: JobsController, cluster: JobCluster, clock: Clock, metrics: Metrics
    ) -> None:
        self._controller, self._cluster, self._clock, self._metrics = controller, cluster, clock, metrics
        self._since: dict[str, tuple[int, float]] = {}  # job -> for how many there is room, and since when

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            asked = self._controller.candidates()
            self._since = {job.name: self._since[job.name] for job, _ in asked if job.name in self._since}
            for start in range(0, len(asked), AT_ONCE):
                some = asked[start : start + AT_ONCE]
                await asyncio.gather(*(self._look(job, excluded) for job, excluded in some))

    async def _look(self, job: ProtectedJob, excluded: tuple[str, ...]) -> None:
        try:
            size = await self._cluster.room_to_grow(job, excluded)
        except (TemporaryError, PermanentError) as error:
            log.warning("room_not_looked_for", job=job.name, error=str(error))
            return
        except Exception:  # the named boundary of one job: the others are looked at
            log.exception("growth_broke", job=job.name)
            self._metrics.exception("job")
            return
        if size <= job.size:
            self._since.pop(job.name, None)
            return
        now_s = self._clock().mono_s
        least, since_s = self._since.get(job.name, (size, now_s))
        self._since[job.name] = min(least, size), since_s
        if now_s - since_s >= STANDS_S:
            self._controller.room_for(job.name, min(least, size))
