"""Looks whether a move that was refused would be now: an incident is opened only when there is room for it, and when
its ranks can be told to save where that was what it failed at."""

import asyncio
import math
from collections.abc import Callable

import structlog
from msgspec import Struct

from sentinel.cluster.base import Cluster
from sentinel.controller.effects.save import told_to_save
from sentinel.core.decision import incidents, policy
from sentinel.core.decision.picture import JobPicture
from sentinel.core.model import Incident
from sentinel.core.recovery.move_again import Refused
from sentinel.util.clock import Clock
from sentinel.util.errors import PermanentError, TemporaryError
from sentinel.util.tasks import JobTasks

log = structlog.get_logger()

LOOK_S, LATEST_S = 10.0, 60.0  # between two looks at one job: the longer it waits the fewer
STANDS_S = 10.0  # room must be seen for so long: jobs that do not run look for it as often, and come first


class _Waits(Struct):
    due_mono_s: float
    since_mono_s: float = math.inf  # there is room


class MoveLooks:
    """`fits(picture, incident)`: the move that it refused would go well now. `broke()`: a look at one job did."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        fits: Callable[[JobPicture, Incident], None],
        broke: Callable[[], None],
    ) -> None:
        self._cluster, self._clock, self._fits, self._broke = cluster, clock, fits, broke
        self._waits: dict[str, _Waits] = {}
        self._tasks = JobTasks("move")
        self._one = asyncio.Lock()  # what one is given the next one does not see

    def look_after(self, picture: JobPicture) -> None:
        name, now = picture.job.name, self._clock()
        waiting = policy.waits_to_move(picture, now) if picture.refused else None
        if waiting is None:
            self.forget(name)
            return
        waits = self._waits.setdefault(name, _Waits(now.mono_s + LOOK_S))
        if not self._tasks.busy(name) and now.mono_s >= waits.due_mono_s:
            self._tasks.start(name, self._look(picture, waiting, waits))

    async def _look(self, picture: JobPicture, waiting: Refused, waits: _Waits) -> None:
        try:
            able = waiting.incident.save is None or await self._can_save(picture)
            async with self._one:
                found = able and await self._has_room(picture, waiting.incident)
                now_s = self._clock().mono_s
                waits.due_mono_s = now_s + min(LATEST_S, max(LOOK_S, (now_s - waiting.at_mono_s) / 10))
                waits.since_mono_s = min(waits.since_mono_s, now_s) if found else math.inf
                stands = now_s - waits.since_mono_s >= STANDS_S
                if found and not stands:
                    waits.due_mono_s = now_s + STANDS_S
                if stands and now_s >= waiting.again_mono_s:
                    self._fits(picture, waiting.incident)
                elif not found and picture.fits_again:
                    picture.fits_again = ""
                if picture.incident is None:
                    self._cluster.unpromise(picture.job.name)
        except Exception:  # the named boundary of one job: it is looked at again
            log.exception("move_look_broke", job=picture.job.name)
            self._broke()
            waits.due_mono_s = self._clock().mono_s + LATEST_S

    async def _can_save(self, picture: JobPicture) -> bool:
        job, resume = picture.job, picture.job.policy.resume
        if resume is None or resume.checkpoint is None or len(picture.alive) < job.size:
            return False
        try:
            capable = await self._cluster.save_capable(job.name, job.incarnation, resume.checkpoint.signal)
        except (TemporaryError, PermanentError):
            return False
        return any(capable[rank] for rank in told_to_save(capable, resume.checkpoint))

    async def _has_room(self, picture: JobPicture, incident: Incident) -> bool:
        size, excluded = incidents.wanted(picture, incident)
        room = await self._cluster.room(picture.job, size, excluded)
        return room.size > 0 and not incidents.too_small(incident, room.size)

    def forget(self, job: str) -> None:
        """Nothing of it waits to be moved; what waits no more must not hold room for itself."""
        self._waits.pop(job, None)
        self._tasks.forget(job)

    async def close(self) -> None:
        await self._tasks.close()
