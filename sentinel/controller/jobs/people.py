"""Follows what people order of jobs, while this process leads: taken up → judged → done and saved → answered.

An order is followed with the save that holds its id (`ProtectedJob.order`), and answered after that save. Who is
killed in between is followed by one who reads the id and only answers.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Protocol

import structlog

from sentinel.core.job.orders import Action, JobOrder, Refused, judge
from sentinel.core.model import FollowedOrder, Incident, ProtectedJob
from sentinel.metrics.registry import Metrics
from sentinel.util.clock import Clock
from sentinel.util.errors import PermanentError, TemporaryError

log = structlog.get_logger(__name__)

UNKNOWN_S = 60.0  # a new leader has policies judged and looks at each job before it knows of it
WRITTEN_S = 5.0  # for a job's record: longer, and its order is answered in a later turn


class Desk(Protocol):
    """Where orders stand. Its writes raise TemporaryError and PermanentError."""

    @property
    def standing(self) -> tuple[JobOrder, ...]: ...
    def take(self) -> Mapping[str, Awaitable[None]]: ...
    async def answer(self, order: JobOrder, *, done: bool, sentence: str) -> None: ...


class Hands(Protocol):
    """Who looks after the jobs."""

    def job(self, name: str) -> ProtectedJob | None: ...
    def open_incident(self, name: str) -> Incident | None: ...

    def held(self, name: str) -> bool:
        """Is it kept for a look inside?"""

    def obey(self, name: str, action: Action, order: FollowedOrder) -> None:
        """Do it, and note `order` with it for the job's next save. Never waits."""

    async def written(self, name: str) -> None:
        """Returns when everything that was noted of the job is saved."""

    def declined(self, name: str, sentence: str) -> None:
        """For an event of the job."""


class People:
    """`turn` is called when the desk has something, and every few seconds."""

    def __init__(self, desk: Desk, hands: Hands, clock: Clock, metrics: Metrics) -> None:
        self.failures = 0
        self._desk, self._hands, self._clock, self._metrics = desk, hands, clock, metrics
        self._unknown: dict[str, float] = {}  # order -> since when nothing is known of its job

    async def turn(self) -> bool:
        """Follow what stands, then take up what waits. False: something failed, and is tried with the next turn."""
        before = self.failures
        standing = {order.id for order in self._desk.standing}
        self._unknown = {id: since_s for id, since_s in self._unknown.items() if id in standing}
        await asyncio.gather(
            *(self._went_well("answer", order.job, self._follow(order)) for order in self._desk.standing)
        )
        await asyncio.gather(
            *(self._went_well("order", job, work) for job, work in self._desk.take().items())
        )
        return self.failures == before

    async def _follow(self, order: JobOrder) -> None:
        job = self._hands.job(order.job)
        if job is not None and job.order is not None and job.order.id == order.id:
            await self._written(order.job)
            return await self._desk.answer(order, done=True, sentence=job.order.sentence)
        now_s = self._clock().mono_s
        if job is None and now_s - self._unknown.setdefault(order.id, now_s) < UNKNOWN_S:
            return
        incident = self._hands.open_incident(order.job) if job is not None else None
        held = job is not None and self._hands.held(order.job)
        action = judge(order, job, incident, self._clock(), held=held)
        sentence, done = action.sentence, not isinstance(action, Refused)
        log.info("job_order", job=order.job, order=order.kind, by=order.by, done=done, sentence=sentence)
        if isinstance(action, Refused):
            self._hands.declined(order.job, sentence)
        else:
            self._hands.obey(order.job, action, FollowedOrder(order.id, sentence))
            await self._written(order.job)
        await self._desk.answer(order, done=done, sentence=sentence)

    async def _written(self, job: str) -> None:
        """It is done already, and answered as soon as it is saved: in this turn or in a later one."""
        try:
            async with asyncio.timeout(WRITTEN_S):
                await self._hands.written(job)
        except TimeoutError:
            raise TemporaryError(f"the record of {job} is not saved within {WRITTEN_S:g} s", 0.0) from None

    async def _went_well(self, effect: str, job: str, work: Awaitable[None]) -> None:
        """What fails is counted, and holds up no other."""
        try:
            await work
            self._metrics.effect(effect)
        except (TemporaryError, PermanentError) as error:
            self._failed(effect, job, error)
        except Exception as error:  # boundary: what one order breaks holds up no other
            log.exception("job_order_broke", job=job)
            self._metrics.exception(effect)
            self._failed(effect, job, error)

    def _failed(self, effect: str, job: str, error: Exception) -> None:
        self.failures += 1
        self._metrics.effect_failed(effect, permanent=isinstance(error, PermanentError))
        log.warning("job_order_failed", job=job, error=f"{type(error).__name__}: {error}")
