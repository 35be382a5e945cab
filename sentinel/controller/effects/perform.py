"""Performs effects: pre-check, save, stop, start. Each is a task whose outcome comes back as an event."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

import structlog
from msgspec import structs

from sentinel.cluster.base import Cluster, RankProcess
from sentinel.controller.effects.save import ProofWatch, save
from sentinel.core.decision import incidents
from sentinel.core.decision.picture import JobPicture
from sentinel.core.model import Incident, IncidentKind, Phase, ProtectedJob, SaveResult, Symptom
from sentinel.core.recovery import budget, transitions
from sentinel.core.recovery.events import (
    RESUMED_BY_OTHERS,
    DoPrecheck,
    DoSave,
    DoStart,
    DoStop,
    Effect,
    Event,
    JobGone,
    Plan,
    PrecheckPassed,
    PrecheckRefused,
    RanksStarted,
    SaveEnded,
    StartRefused,
    StopEnded,
    StopStuck,
    StopWaits,
)
from sentinel.core.reports import LogMatch
from sentinel.metrics.registry import Metrics
from sentinel.util.clock import Clock
from sentinel.util.errors import PermanentError, TemporaryError

log = structlog.get_logger()

BACK_OFF_LOOK_S = 0.5
START_SETTLES_S = 10.0  # how long a stop waits for a start that was already ordered


class NodeLink(Protocol):
    """What the controller asks of the agents."""

    async def drain(self, job: str) -> None:
        """Read the logs of the job, and those of the kernels under it, to their end and report."""

    def follow(self, job: ProtectedJob, ranks: list[RankProcess]) -> None:
        """These ranks belong to the job's running incarnation."""


class Performer:
    """At most one effect of a job is under way. `outcome(picture, event)` is called for one that is still wanted."""

    def __init__(
        self,
        cluster: Cluster,
        node: NodeLink,
        clock: Clock,
        *,
        metrics: Metrics,
        written: Callable[[str], Awaitable[None]],
        save_job: Callable[[JobPicture, ProtectedJob], None],
        outcome: Callable[[JobPicture, Event], None],
    ) -> None:
        self._cluster = cluster
        self._node = node
        self._clock = clock
        self._metrics = metrics
        self._written = written
        self._save_job = save_job
        self._outcome = outcome
        self._effects: dict[str, asyncio.Task[None]] = {}  # job -> the effect of its open incident
        self._starts: dict[str, asyncio.Task[list[RankProcess]]] = {}  # job -> its last start
        self._watches: dict[str, ProofWatch] = {}

    async def close(self) -> None:
        """End every effect that is under way. The job is not touched."""
        tasks: list[asyncio.Task[Any]] = [*self._effects.values(), *self._starts.values()]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError, TemporaryError, PermanentError):
                await task

    def prove(self, job: str, match: LogMatch) -> None:
        """A line of the policy's proof pattern."""
        watch = self._watches.get(job)
        if watch is not None:
            watch.feed(match)

    def perform(self, picture: JobPicture, incident: Incident, effect: Effect | None) -> None:
        if effect is None:
            return
        name = picture.job.name
        self.cancel(name)
        task = asyncio.create_task(
            self._effect(picture, incident, effect), name=f"{name}:{incident.phase.value}"
        )
        self._effects[name] = task

    def cancel(self, name: str) -> None:
        running = self._effects.pop(name, None)
        if running is not None and running is not asyncio.current_task():
            running.cancel()

    async def _effect(self, picture: JobPicture, incident: Incident, effect: Effect) -> None:
        kind = type(effect).__name__
        self._metrics.effect(kind)
        try:
            await self._written(picture.job.name)
            event = await self._done(picture, incident, effect)
        except Exception as error:  # the named boundary: an effect must never take the loop with it
            log.exception("effect_failed", job=picture.job.name, effect=kind)
            self._metrics.effect_failed(kind, permanent=True)
            event = _broken(effect, error)
        current = picture.incident
        newest = self._effects.get(picture.job.name) is asyncio.current_task()
        if current is None or not newest or not _answers(incident, current):
            log.info("outcome_too_late", job=picture.job.name, effect=kind)
            return
        if event is not None and transitions.accepts(current, event):
            self._outcome(picture, event)

    async def _done(self, picture: JobPicture, incident: Incident, effect: Effect) -> Event | None:
        if isinstance(effect, DoPrecheck):
            return await self._precheck(picture, incident, effect)
        if isinstance(effect, DoSave):
            return await self._save(picture, incident)
        if isinstance(effect, DoStop):
            return await self._stop(picture, incident, effect)
        if isinstance(effect, DoStart):
            return await self._start(picture, incident)
        return None

    async def _precheck(self, picture: JobPicture, incident: Incident, effect: DoPrecheck) -> Event:
        # The loop's clock stands while the machine is suspended and ours goes on: one long sleep would be too long.
        while (delay_s := effect.not_before_mono_s - self._clock().mono_s) > 0:  # noqa: ASYNC110
            await asyncio.sleep(min(delay_s, BACK_OFF_LOOK_S))
        size, excluded = incidents.wanted(picture, incident)
        room = await self._cluster.room(picture.job, size, excluded)
        if room.size == 0:
            return PrecheckRefused(room.reason, room.sentence)
        if short := incidents.too_small(incident, room.size):
            return PrecheckRefused("NoRoom", short)
        return PrecheckPassed(room.size, room.excluded, room.sentence)

    async def _save(self, picture: JobPicture, incident: Incident) -> Event:
        job = picture.job
        checkpoint = job.policy.resume.checkpoint if job.policy.resume else None
        if checkpoint is None:
            text = "the policy names no checkpoint signal"
            return SaveEnded(SaveResult(skipped=text), False, f"Not saved: {text}.")
        watch = self._watches[job.name] = ProofWatch()
        try:
            return await save(
                self._cluster,
                job.name,
                incident.incarnation,
                set(picture.alive),
                job.size,
                checkpoint,
                job.launch.cwd if job.launch else ".",
                watch,
                lambda: picture.timing.last_step,
                lambda: picture.finished,
                self._clock,
            )
        finally:
            if self._watches.get(job.name) is watch:
                del self._watches[job.name]

    async def _stop(self, picture: JobPicture, incident: Incident, effect: DoStop) -> Event:
        job = picture.job
        stacks: tuple[str, ...] = ()
        ordered = self._starts.get(job.name)
        if ordered is not None and not ordered.done():
            # The order may still be carried out: a stop before it would miss the ranks.
            await asyncio.wait({ordered}, timeout=START_SETTLES_S)
            ordered.cancel()
        if effect.stacks:
            stacks = await self._cluster.stacks(job.name, incident.incarnation, sorted(picture.alive))
        ends = partial(incidents.ends, picture)
        outcome = await self._cluster.stop(job.name, incident.incarnation, effect.grace_s, ends)
        if outcome.theirs and not ends():
            return JobGone(RESUMED_BY_OTHERS, outcome.waits)
        if outcome.waits:
            return StopWaits(outcome.waits, stacks, outcome.reason)
        if not outcome.gone:
            return StopStuck(outcome.stuck, stacks, outcome.ended)
        await self._node.drain(job.name)
        if picture.failed_exits:
            picture.stuck = await self._cluster.stuck(job.name, incident.incarnation)
        return StopEnded(self._plan(picture, incident), stacks, picture.reached)

    def _plan(self, picture: JobPicture, incident: Incident) -> Plan:
        """Decided only now: the whole evidence (every exit, every log to its end) is on the table."""
        now = self._clock()
        verdict = incident.verdict
        seen = verdict.symptom == Symptom.RANK_LOST and picture.failed_exits and not incident.paid
        if incident.kind == IncidentKind.FORCED and seen:
            verdict = picture.verdict(now)
        return budget.plan(picture.job, incident, verdict, picture.reached, now)

    async def _start(self, picture: JobPicture, incident: Incident) -> Event:
        room = await self._cluster.room(picture.job, incident.size, incident.excluded, starts=True)
        if room.size != incident.size:
            return StartRefused(room.reason or "NoRoom", room.sentence, permanent=False)
        env = room.env | incidents.resume_env(picture.job, incident)
        try:
            await self.start_ranks(picture, env, room.entities)
        except TemporaryError as error:
            text = f"The start failed: {error}"
            return StartRefused("StartFailed", text, permanent=False, tried=True)
        except PermanentError as error:
            return StartRefused(error.reason, str(error), permanent=True)
        pids = ", ".join(str(pid) for pid in list(picture.pids.values())[:8])
        ranks = "1 rank runs" if len(picture.alive) == 1 else f"{len(picture.alive)} ranks run"
        return RanksStarted(f"{ranks} (pid {pids})." if pids else f"{ranks}.")

    async def start_ranks(self, picture: JobPicture, env: dict[str, str], entities: dict[int, str]) -> None:
        job = picture.job
        # Shielded: an order that is on its way cannot be called back, so what follows must be able to wait for it.
        order = self._cluster.start(job.name, job.launch, job.incarnation, job.size, env, job.excluded)
        ordered = self._starts[job.name] = asyncio.create_task(order, name=f"{job.name}:start")
        ordered.add_done_callback(lambda task: task.cancelled() or task.exception())
        ranks = await asyncio.shield(ordered)
        picture.alive = {rank.rank for rank in ranks if rank.rank not in picture.exits}
        picture.pids = {rank.rank: rank.pid for rank in ranks if rank.pid}
        picture.entities = entities
        now = self._clock()
        started = structs.replace(picture.job, started_mono_s=now.mono_s, started_wall_s=now.wall_s)
        self._save_job(picture, started)
        self._node.follow(picture.job, ranks)


def _answers(asked: Incident, current: Incident) -> bool:
    """Is what an effect of the one brings an answer to the other? Room for another size than people want now is not."""
    if (current.id, current.phase) != (asked.id, asked.phase):
        return False
    return asked.phase is not Phase.PRECHECKING or current.from_size == asked.from_size


def _broken(effect: Effect, error: Exception) -> Event | None:
    """What an effect that broke means for its recovery."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(effect, DoPrecheck):
        return PrecheckRefused("PrecheckBroke", f"The pre-check broke: {text}")
    if isinstance(effect, DoStop):
        return StopStuck((f"the stop broke: {text}",))
    if isinstance(effect, DoStart):
        return StartRefused("StartBroke", f"The start broke: {text}", permanent=False, tried=True)
    if isinstance(effect, DoSave):
        return SaveEnded(SaveResult(skipped=text), False, f"The save broke: {text}")
    return None
