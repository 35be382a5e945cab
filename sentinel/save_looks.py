"""Can a running job save when it is told to? Looked at once in each incarnation, as soon as it trains."""

from collections.abc import Callable

import structlog

from sentinel.clock import Clock
from sentinel.cluster.base import Cluster
from sentinel.core.picture import JobPicture
from sentinel.errors import PermanentError, TemporaryError
from sentinel.job_tasks import JobTasks

log = structlog.get_logger()

SAVE_CHECK_AFTER_S = 10.0  # a program needs a moment to install its signal handler


class SaveLooks:
    """`found(picture, note)`: why it cannot; "": it can."""

    def __init__(self, cluster: Cluster, clock: Clock, found: Callable[[JobPicture, str], None]) -> None:
        self._cluster, self._clock, self._found = cluster, clock, found
        self._checked: dict[str, int] = {}  # job -> incarnation whose handlers were looked at
        self._tasks = JobTasks("save")

    def look_after(self, picture: JobPicture) -> None:
        job, now = picture.job, self._clock()
        checkpoint = job.policy.resume.checkpoint if job.policy.resume else None
        if checkpoint is None or self._checked.get(job.name) == job.incarnation or not picture.alive:
            return
        started = job.started_mono_s
        ready = picture.timing.has_timing or (
            started is not None and now.mono_s - started > SAVE_CHECK_AFTER_S
        )
        if not ready or picture.incident is not None:
            return
        self._checked[job.name] = job.incarnation
        self._tasks.start(job.name, self._look(picture, checkpoint.signal))

    async def _look(self, picture: JobPicture, signal: str) -> None:
        """Said when the job starts, and not in the night when a save is needed."""
        incarnation = picture.job.incarnation
        try:
            capable = await self._cluster.save_capable(picture.job.name, incarnation, signal)
        except (TemporaryError, PermanentError) as error:
            log.warning("handlers_unknown", job=picture.job.name, error=str(error))
            self._checked.pop(picture.job.name, None)  # the next turn looks again
            return
        job = picture.job
        if job.incarnation != incarnation or job.state.final:
            return
        deaf = sorted(rank for rank, catches in capable.items() if not catches)
        note = f"not save-capable: rank {', '.join(map(str, deaf))} does not catch {signal}" if deaf else ""
        self._found(picture, note)

    def forget(self, job: str) -> None:
        self._tasks.forget(job)
        self._checked.pop(job, None)

    async def close(self) -> None:
        await self._tasks.close()
