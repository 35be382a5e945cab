"""Performs effects: pre-check, save, stop, start. Each is a task whose outcome comes back as an event."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Protocol

import structlog
from msgspec import structs

from sentinel.clock import Clock
from sentinel.cluster.base import Cluster, RankProcess
from sentinel.core import budget, policy, recovery
from sentinel.core.model import Incident, IncidentKind, LogMatch, ProtectedJob, SaveResult, Symptom
from sentinel.core.picture import JobPicture
from sentinel.core.recovery import Event
from sentinel.effects.save import ProofWatch, SaveOutcome, save
from sentinel.errors import PermanentError, TemporaryError
from sentinel.metrics import Metrics

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
        save_job: Callable[[JobPicture, ProtectedJob], None],
        outcome: Callable[[JobPicture, Event], None],
        wake_mail: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._node = node
        self._clock = clock
        self._metrics = metrics
        self._save_job = save_job
        self._outcome = outcome
        self._wake_mail = wake_mail
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

    def perform(self, picture: JobPicture, incident: Incident, effects: tuple[recovery.Effect, ...]) -> None:
        name = picture.job.name
        for effect in effects:
            if isinstance(effect, recovery.DoMail):
                self._wake_mail()
                continue
            self.cancel(name)
            task = asyncio.create_task(
                self._effect(picture, incident, effect), name=f"{name}:{incident.phase.value}"
            )
            self._effects[name] = task

    def cancel(self, name: str) -> None:
        running = self._effects.pop(name, None)
        if running is not None and running is not asyncio.current_task():
            running.cancel()

    async def _effect(self, picture: JobPicture, incident: Incident, effect: recovery.Effect) -> None:
        kind = type(effect).__name__
        self._metrics.effect(kind)
        try:
            event = await self._done(picture, incident, effect)
        except Exception as error:  # the named boundary: an effect must never take the loop with it
            log.exception("effect_failed", job=picture.job.name, effect=kind)
            self._metrics.effect_failed(kind, permanent=True)
            event = _broken(effect, error)
        current = picture.incident
        newest = self._effects.get(picture.job.name) is asyncio.current_task()
        if current is None or current.id != incident.id or current.phase != incident.phase or not newest:
            log.info("outcome_too_late", job=picture.job.name, effect=kind)
            return
        if event is not None and recovery.accepts(current, event):
            self._outcome(picture, event)

    async def _done(self, picture: JobPicture, incident: Incident, effect: recovery.Effect) -> Event | None:
        if isinstance(effect, recovery.DoPrecheck):
            return await self._precheck(picture, incident, effect)
        if isinstance(effect, recovery.DoSave):
            return await self._save(picture, incident)
        if isinstance(effect, recovery.DoStop):
            return await self._stop(picture, incident, effect)
        if isinstance(effect, recovery.DoStart):
            return await self._start(picture, incident)
        return None

    async def _precheck(self, picture: JobPicture, incident: Incident, effect: recovery.DoPrecheck) -> Event:
        # The loop's clock stands while the machine is suspended and ours goes on: one long sleep would be too long.
        while (delay_s := effect.not_before_mono_s - self._clock().mono_s) > 0:  # noqa: ASYNC110
            await asyncio.sleep(min(delay_s, BACK_OFF_LOOK_S))
        size, excluded = policy.wanted(picture, incident)
        room = await self._cluster.room(picture.job, size, excluded)
        if room.size == 0:
            return recovery.PrecheckRefused(room.reason, room.sentence)
        if short := policy.too_small(incident, room.size):
            return recovery.PrecheckRefused("NoRoom", short)
        return recovery.PrecheckPassed(room.size, room.excluded, room.sentence)

    async def _save(self, picture: JobPicture, incident: Incident) -> Event:
        job = picture.job
        checkpoint = job.policy.resume.checkpoint if job.policy.resume else None
        if checkpoint is None:
            outcome = _no_checkpoint()
            return recovery.SaveEnded(outcome.result, outcome.counts, outcome.sentence)
        watch = self._watches[job.name] = ProofWatch()
        try:
            outcome = await save(
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
        return recovery.SaveEnded(outcome.result, outcome.counts, outcome.sentence)

    async def _stop(self, picture: JobPicture, incident: Incident, effect: recovery.DoStop) -> Event:
        job = picture.job
        stacks: tuple[str, ...] = ()
        ordered = self._starts.get(job.name)
        if ordered is not None and not ordered.done():
            # The order may still be carried out: a stop before it would miss the ranks.
            await asyncio.wait({ordered}, timeout=START_SETTLES_S)
            ordered.cancel()
        if effect.stacks:
            stacks = await self._cluster.stacks(job.name, incident.incarnation, sorted(picture.alive))
        outcome = await self._cluster.stop(job.name, incident.incarnation, effect.grace_s)
        if not outcome.gone:
            return recovery.StopStuck(outcome.stuck, stacks)
        await self._node.drain(job.name)
        return recovery.StopEnded(self._plan(picture, incident), stacks, picture.timing.last_step)

    def _plan(self, picture: JobPicture, incident: Incident) -> recovery.Plan:
        """Decided only now: the whole evidence (every exit, every log to its end) is on the table."""
        now = self._clock()
        verdict = incident.verdict
        seen = verdict.symptom == Symptom.RANK_LOST and picture.failed_exits and not incident.paid
        if incident.kind == IncidentKind.FORCED and seen:
            verdict = picture.verdict(now)
        return budget.plan(picture.job, incident, verdict, picture.timing.last_step, now)

    async def _start(self, picture: JobPicture, incident: Incident) -> Event:
        room = await self._cluster.room(picture.job, incident.size, incident.excluded)
        if room.size != incident.size:
            return recovery.StartRefused(room.reason or "NoRoom", room.sentence, permanent=False)
        env = room.env | policy.resume_env(picture.job, incident)
        try:
            await self.start_ranks(picture, env, room.entities)
        except TemporaryError as error:
            text = f"The start failed: {error}"
            return recovery.StartRefused("StartFailed", text, permanent=False, tried=True)
        except PermanentError as error:
            return recovery.StartRefused(error.reason, str(error), permanent=True)
        pids = ", ".join(str(pid) for pid in list(picture.pids.values())[:8])
        ranks = "1 rank runs" if len(picture.pids) == 1 else f"{len(picture.pids)} ranks run"
        return recovery.RanksStarted(f"{ranks} (pid {pids}).")

    async def start_ranks(self, picture: JobPicture, env: dict[str, str], entities: dict[int, str]) -> None:
        job = picture.job
        assert job.launch is not None
        # Shielded: an order that is on its way cannot be called back, so what follows must be able to wait for it.
        order = self._cluster.start(job.name, job.launch, job.incarnation, job.size, env)
        ordered = self._starts[job.name] = asyncio.create_task(order, name=f"{job.name}:start")
        ordered.add_done_callback(lambda task: task.cancelled() or task.exception())
        ranks = await asyncio.shield(ordered)
        picture.alive = {rank.rank for rank in ranks if rank.rank not in picture.exits}
        picture.pids = {rank.rank: rank.pid for rank in ranks}
        picture.entities = entities
        self._save_job(picture, structs.replace(picture.job, started_mono_s=self._clock().mono_s))
        self._node.follow(picture.job, ranks)


def _no_checkpoint() -> SaveOutcome:
    text = "the policy names no checkpoint signal"
    return SaveOutcome(SaveResult(skipped=text), False, f"Not saved: {text}.")


def _broken(effect: recovery.Effect, error: Exception) -> Event | None:
    """What an effect that broke means for its recovery."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(effect, recovery.DoPrecheck):
        return recovery.PrecheckRefused("PrecheckBroke", f"The pre-check broke: {text}")
    if isinstance(effect, recovery.DoStop):
        return recovery.StopStuck((f"the stop broke: {text}",))
    if isinstance(effect, recovery.DoStart):
        return recovery.StartRefused("StartBroke", f"The start broke: {text}", permanent=False, tried=True)
    if isinstance(effect, recovery.DoSave):
        return recovery.SaveEnded(SaveResult(skipped=text), False, f"The save broke: {text}")
    return None
