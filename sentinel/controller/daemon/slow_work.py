"""What a controller does now and then, by apscheduler: looks at certificates, the summary of the day.

It lives on the wall clock and keeps no deadline: leases, heartbeats and all that decides turn on loops of their own.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterator
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import structlog
from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, JobExecutionEvent
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.base import BaseTrigger
from msgspec import Struct

from sentinel.settings import WEEKDAYS

log = structlog.get_logger(__name__)

AGAIN_S = 30.0  # after it could not be done
LOOK_S = 60.0  # whether a clock was set back
JITTER = 0.1

Work = Callable[[], Awaitable[bool]]  # False: not done, and tried again soon


class _Job(Struct, frozen=True):
    trigger: "Every | Times"
    work: Work


class SlowWork:
    """`run` does it until it is cancelled. `broke` hears the name of a work that raised, as no work should.

    One that takes longer than its interval is not begun twice; what was missed, as while the machine slept, is done
    once, however late.
    """

    def __init__(self, broke: Callable[[str], None]) -> None:
        self._broke = broke
        self._jobs: dict[str, _Job] = {}
        self._scheduler: AsyncIOScheduler | None = None
        logging.getLogger("apscheduler").setLevel(logging.CRITICAL)  # `_ended` tells it

    def every(self, name: str, seconds: float, work: Work) -> None:
        """Before `run`, as `at`."""
        self._jobs[name] = _Job(Every(seconds), work)

    def at(self, name: str, times: "Times", work: Work) -> None:
        self._jobs[name] = _Job(times, work)

    def soon(self, name: str) -> None:
        """Now, and then as it was to be. Nothing where it is not known, or `run` does not run."""
        if self._scheduler is not None and self._scheduler.get_job(name) is not None:
            self._scheduler.modify_job(name, next_run_time=datetime.now(UTC))

    async def run(self) -> None:
        """Each is done once at the beginning."""
        defaults = {"coalesce": True, "max_instances": 1, "misfire_grace_time": None}
        self._scheduler = scheduler = AsyncIOScheduler(timezone=UTC, job_defaults=defaults)
        for name, job in self._jobs.items():
            scheduler.add_job(job.work, job.trigger, id=name, next_run_time=datetime.now(UTC))
        scheduler.add_listener(self._ended, EVENT_JOB_EXECUTED | EVENT_JOB_ERROR)
        scheduler.start()
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                self._plan_anew()
        finally:
            self._scheduler = None
            scheduler.shutdown(wait=False)

    def _plan_anew(self) -> None:
        """What waits for a time that a clock which was set back does not reach soon."""
        now = datetime.now(UTC)
        for name, job in self._jobs.items():
            planned = None if self._scheduler is None else self._scheduler.get_job(name)
            if planned is not None and planned.next_run_time > job.trigger.latest(now):
                planned.modify(next_run_time=job.trigger.get_next_fire_time(None, now))

    def _ended(self, event: JobExecutionEvent) -> None:
        if event.exception is not None:
            error = event.exception
            log.error("slow_work_broke", work=event.job_id, error=repr(error), trace=event.traceback)
            self._broke(event.job_id)
        if event.exception is None and event.retval:
            return
        job = None if self._scheduler is None else self._scheduler.get_job(event.job_id)
        if job is not None:
            job.modify(next_run_time=min(job.next_run_time, datetime.now(UTC) + timedelta(seconds=AGAIN_S)))


class Every(BaseTrigger):  # type: ignore[misc]  # apscheduler has no types
    """About every so many seconds from now on, whatever was missed: IntervalTrigger counts through all of that."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        return now + timedelta(seconds=self._seconds * random.uniform(1 - JITTER, 1 + JITTER))

    def latest(self, now: datetime) -> datetime:
        return now + timedelta(seconds=self._seconds * (1 + JITTER))


class Times(BaseTrigger):  # type: ignore[misc]
    """Times of a week. `at`: "08:00", by the clocks of `timezone`; `days`: of WEEKDAYS, none for every day.

    Not CronTrigger: of 3.11.3 it never returns in the hour that a clock goes twice. Here that hour counts once, and a
    time that a clock leaves out is an hour later.
    """

    def __init__(self, at: str, days: Collection[str], timezone: str) -> None:
        self.zone = ZoneInfo(timezone)
        self._at = time.fromisoformat(at)
        self._days = {WEEKDAYS.index(day) for day in days or WEEKDAYS}

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        return next(at for at in self._around(now, range(-1, 9)) if at > now)

    def latest(self, now: datetime) -> datetime:
        return self.get_next_fire_time(None, now)

    def last(self, after_wall_s: float, until_wall_s: float) -> float | None:
        """The newest of them after the one and up to the other, a week back at most."""
        until = datetime.fromtimestamp(until_wall_s, UTC)
        found = next(at for at in self._around(until, range(1, -9, -1)) if at <= until).timestamp()
        return found if found > after_wall_s else None

    def _around(self, now: datetime, days: range) -> Iterator[datetime]:
        """In UTC: times of one zone are compared by what their clocks show."""
        today = now.astimezone(self.zone).date()
        for day in (today + timedelta(days=number) for number in days):
            if day.weekday() in self._days:
                yield datetime.combine(day, self._at, self.zone).astimezone(UTC)
