"""The jobs in numbers for a scrape, counted a few at a time: no scrape waits while ranks are summed up."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from msgspec import structs

from sentinel.controller.jobs import costs as job_costs
from sentinel.controller.jobs.costs import Costs
from sentinel.core.decision.picture import JobPicture
from sentinel.core.model import Cause, Incident, Phase, ProtectedJob, Symptom
from sentinel.core.now import Now
from sentinel.core.policy_model import Policy
from sentinel.core.recovery.budget import restarts_left
from sentinel.metrics import declared
from sentinel.metrics.registry import NOBODY, JobNumbers, Metrics
from sentinel.util.clock import Clock
from sentinel.util.slices import in_slices

EVERY_S = 10.0  # scrapes come every 15 to 60 s
TAKE_UP_S = 120.0  # so long a new leader may take to follow the jobs of the one before


def owner_of(policy: Policy) -> str:
    """Who is asked about the job: the first address that its mails go to."""
    return policy.emails[0] if policy.emails else NOBODY


def count_step(metrics: Metrics, job: ProtectedJob, before: Incident, after: Incident, now: Now) -> None:
    """What one step of a recovery adds: how long its parts took, and what it cost."""
    if after.phase == Phase.RECOVERED and after.lost is not None:
        lost, blamed = after.lost, after.verdict.entity
        metrics.recovered(after.verdict.cause, lost.seconds, lost, owner_of(job.policy), blamed)
    again = after.verdict.symptom != Symptom.FIRST_START
    if after.phase == Phase.STARTING and before.phase != Phase.STARTING and again:
        metrics.restarted(after.verdict.cause, after.verdict.budget)
    if before.phase == Phase.STOPPING and after.phase != Phase.STOPPING:
        metrics.stopped(now.mono_s - before.phase_mono_s)
    if before.phase == Phase.STARTING and after.phase == Phase.VERIFYING:
        metrics.started(now.mono_s - before.phase_mono_s)
    if after.save is not None and before.save is None and not after.save.skipped:
        metrics.saved(after.save.took_s)


def numbers(picture: JobPicture, incidents: Iterable[Incident], now: Now) -> JobNumbers:
    """`incidents`: all records of the job."""
    job, timing, incident = picture.job, picture.timing, picture.incident
    restarts: Counter[Cause] = Counter()
    for one in incidents:
        restarts[one.verdict.cause] += one.attempt
    phase = None
    if incident is not None:
        since_wall_s = incident.steps[-1].wall_s if incident.steps else incident.opened_wall_s
        phase = (incident.phase.value, incident.verdict.cause.value, round(since_wall_s, 1))
    told = JobNumbers(
        owner=owner_of(job.policy),
        policy=job.policy.name,
        state=job.state,
        ranks=job.size,
        gpus=picture.gpus,
        incidents=job.incidents,
        restarts=dict(restarts),
        phase=phase,
    )
    return told if job.state.final else _running(told, picture, timing.last_at_s, now)


def _running(told: JobNumbers, picture: JobPicture, last_at_s: float | None, now: Now) -> JobNumbers:
    job, timing = picture.job, picture.timing
    hardware = [took_ms for rank in timing.ranks.values() if (took_ms := rank.hardware_ms) is not None]
    return structs.replace(
        told,
        iteration=picture.reached,
        iteration_wall_s=None if last_at_s is None else round(now.wall_s - now.mono_s + last_at_s, 1),
        step_ms=timing.step_ms,
        hardware_ms=max(hardware, default=None),
        ratio=timing.ratio,
        restarts_left=restarts_left(job, now),
        inner_restarts=job.inner_restarts,
        time_left_s=picture.time_left_s(now),
        productive_s=max(0.0, job.run_time_s(now) - picture.lost_s),
        wall_s=max(0.0, now.wall_s - job.created_wall_s),
    )


class JobMeter:
    """`run` is a task of whoever leads: with it all series of jobs end."""

    def __init__(
        self,
        metrics: Metrics,
        names: Callable[[], Collection[str]],
        pictures: Mapping[str, JobPicture],
        incidents: Callable[[str], Iterable[Incident]],
        held: Callable[[], int],
        clock: Clock,
        recorded: Callable[[], Iterable[ProtectedJob]] = tuple,
    ) -> None:
        """`names`: the protected jobs. `held`: how many of them a brake holds back. `recorded`: all that have a record,
        the latest version of each."""
        self._metrics, self._names, self._pictures = metrics, names, pictures
        self._incidents, self._held, self._clock = incidents, held, clock
        self._recorded = recorded
        self._shown: set[str] = set()
        self._began_mono_s = clock().mono_s

    async def run(self) -> None:
        self._began_mono_s = self._clock().mono_s
        try:
            while True:
                await self.count()
                await asyncio.sleep(EVERY_S)
        finally:
            for name in self._shown:
                self._metrics.job_gone(name)
            job_costs.forget(self._metrics)
            self._metrics.replace(declared.JOBS, {})
            self._metrics.replace(declared.JOBS_RECOVERING, {})
            self._metrics.replace(declared.JOBS_HELD, {})

    async def count(self) -> None:
        """All jobs once."""
        names = {name for name in self._names() if name in self._pictures}
        for name in self._shown - names:
            self._metrics.job_gone(name)
        self._shown = names
        async for name in in_slices(names, lambda: self._clock().mono_s):
            if (picture := self._pictures.get(name)) is not None:
                self._metrics.job(name, numbers(picture, self._incidents(name), self._clock()))
        states = Counter(self._pictures[name].job.state for name in names if name in self._pictures)
        self._metrics.jobs(states)
        open_ones = [name for name in names if name in self._pictures and self._pictures[name].incident]
        self._metrics.replace(declared.JOBS_RECOVERING, {(): len(open_ones)})
        self._metrics.replace(declared.JOBS_HELD, {(): self._held()})
        await self._costs()

    async def _costs(self) -> None:
        costs, unseen = Costs(), False
        async for job in in_slices(list(self._recorded()), lambda: self._clock().mono_s):
            picture = self._pictures.get(job.name)
            unseen = unseen or (picture is None and not job.state.final)
            now_job, gpus = (job, None) if picture is None else (picture.job, picture.gpus)
            costs.add(now_job, owner_of(now_job.policy), gpus, self._incidents(job.name), self._clock())
        begins = self._clock().mono_s - self._began_mono_s < TAKE_UP_S
        costs.show(self._metrics, time=not (unseen and begins))
