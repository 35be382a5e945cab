"""Holds the picture, applies policy, drives each recovery: fold → decide → record → act.

One thread, one loop: `fold` and `cycle` never wait. What takes time is an effect, a task of its own,
whose outcome comes back as an event.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping

import structlog
from msgspec import structs

from sentinel.clock import Clock
from sentinel.cluster.base import Cluster, RankProcess, Records
from sentinel.core import books, policy, quarantine, recovery
from sentinel.core.model import (
    Budget,
    Cause,
    Finding,
    Incident,
    IncidentKind,
    JobEvent,
    JobState,
    LogMatch,
    Phase,
    ProtectedJob,
    ProvedCheckpoint,
    Quarantine,
    RankExit,
    RankReport,
    Report,
    Severity,
    StageMail,
    Symptom,
    Verdict,
)
from sentinel.core.picture import JobPicture
from sentinel.core.recovery import Event
from sentinel.core.triage import FailureClass
from sentinel.effects.perform import NodeLink, Performer
from sentinel.errors import PermanentError, TemporaryError
from sentinel.metrics import Metrics

log = structlog.get_logger()

PROOF_RULE = "save-proof"  # the id under which the agent matches the policy's proof pattern
START_TRIES = 5
SAVE_CHECK_AFTER_S = 10.0  # a program needs a moment to install its signal handler
RECORD_EVERY_S = 30.0  # learnt numbers (last step, baseline) are saved at least so often
# Ended by our own stop: SIGTERM, SIGKILL, and the exit codes that programs give them.
_OURS = frozenset({15, 9, 0, 143, 137, 2, 130})


Say = Callable[[str, str], None]  # (job, sentence for people)


class Controller:
    def __init__(
        self,
        cluster: Cluster,
        records: Records,
        node: NodeLink,
        failures: Mapping[str, FailureClass],
        clock: Clock,
        boot_id: str,
        *,
        metrics: Metrics,
        say: Say,
        wake_mail: Callable[[], None],
        on_end: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._performer = Performer(
            cluster,
            node,
            clock,
            metrics=metrics,
            save_job=self._save_job,
            outcome=self._performed,
            wake_mail=wake_mail,
        )
        self._records = records
        self._node = node
        self._failures = failures
        self._clock = clock
        self._boot_id = boot_id
        self._metrics = metrics
        self._say = say
        self._on_end = on_end
        self.pictures: dict[str, JobPicture] = {}
        self.incidents: dict[str, Incident] = {}  # those with mail that waits, and the open ones
        self._findings: dict[str, tuple[Finding, ...]] = {}  # check -> what it finds
        self._quarantines = {one.entity: one for one in records.quarantines()}
        self._isolated: set[str] = set()  # entities that this Sentinel isolated
        self._released: set[str] = set()  # entities that a person released
        self._save_checked: dict[str, int] = {}  # job -> incarnation whose handlers were looked at
        self._recorded_mono_s: dict[str, float] = {}
        self.turned_mono_s = clock().mono_s

    # ------------------------------------------------------------ life

    def add(self, job: ProtectedJob, incidents: list[Incident]) -> JobPicture:
        """Take a job into the picture, with its open incident if a predecessor left one."""
        now = self._clock()
        if job.boot_id != self._boot_id:  # monotonic times of another boot mean nothing
            job = structs.replace(job, started_mono_s=None, boot_id=self._boot_id)
        picture = JobPicture(job, self._failures)
        self.pictures[job.name] = picture
        picture.timing.start(job.incarnation, job.size, now)
        for incident in incidents:
            if not incident.phase.final:
                picture.incident = incident = self._rebased(incident)
            if not incident.phase.final or any(m.state == "waiting" for m in incident.mails):
                self.incidents[incident.id] = incident
            if (
                incident.incarnation == job.incarnation
                and incident.phase == Phase.KEPT_RUNNING
                and incident.key
            ):
                picture.told.add(incident.key)
                if incident.save is not None and incident.save.ranks:
                    picture.unproved = (incident, 0)
        return picture

    def _rebased(self, incident: Incident) -> Incident:
        """A deadline of another boot starts anew, with its whole length."""
        if incident.boot_id == self._boot_id:
            return incident
        now = self._clock()
        deadline = incident.deadline_mono_s
        if deadline is not None:
            deadline = now.mono_s + max(0.0, deadline - incident.phase_mono_s)
        return structs.replace(
            incident,
            boot_id=self._boot_id,
            phase_mono_s=now.mono_s,
            opened_mono_s=now.mono_s - max(0.0, now.wall_s - incident.opened_wall_s),
            deadline_mono_s=deadline,
        )

    async def launch(self, name: str) -> None:
        """The first start of a job. Raises PermanentError with the reason where it cannot start."""
        picture = self.pictures[name]
        job = picture.job
        room = await self._cluster.room(job, job.size, job.excluded)
        if self._ended_unstarted(picture):
            return
        if room.size == 0:
            raise PermanentError(room.sentence, room.reason)
        self._event(job, "PrecheckPassed", room.sentence)
        job = structs.replace(
            job,
            incarnation=job.incarnation + 1,
            first_incarnation=job.incarnation + 1,
            size=room.size,
            excluded=room.excluded,
            state=JobState.RUNNING,
            reason="Started",
            sentence="The job runs.",
        )
        self._save_job(picture, job)
        picture.begin_incarnation(self._clock())
        await self._start_patiently(picture, room.env, room.entities)

    def adopt(
        self, name: str, ranks: list[RankProcess], ended: list[RankProcess], entities: dict[int, str]
    ) -> None:
        """Go on where a predecessor stood: the living ranks, those that `ended` meanwhile, the open recovery.

        How they ended is to be reported next, as of any rank: behind what their logs say.
        """
        picture = self.pictures[name]
        now = self._clock()
        picture.alive = {rank.rank for rank in ranks}
        picture.pids = {rank.rank: rank.pid for rank in (*ranks, *ended)}
        picture.entities = entities
        incident = picture.incident
        if incident is not None:
            _, effects = recovery.resume(incident, now, policy.terms(picture.job.policy))
            self._performer.perform(picture, incident, effects)
        if ranks or ended:
            self._node.follow(picture.job, [*ranks, *ended])
        if (
            picture.job.started_mono_s is None
            and ranks
            and (incident is None or incident.phase == Phase.VERIFYING)
        ):
            self._save_job(picture, structs.replace(picture.job, started_mono_s=now.mono_s))

    async def start_again(self, name: str) -> None:
        """A predecessor was killed between the record of the first start and the start itself."""
        picture = self.pictures[name]
        room = await self._cluster.room(picture.job, picture.job.size, picture.job.excluded)
        if room.size == 0:
            raise PermanentError(room.sentence, room.reason)
        await self._start_patiently(picture, room.env, room.entities)

    async def _start_patiently(
        self, picture: JobPicture, env: dict[str, str], entities: dict[int, str]
    ) -> None:
        """The first start has no recovery around it that would try again."""
        picture.starting = True
        try:
            for left in reversed(range(START_TRIES)):
                try:
                    return await self._performer.start_ranks(picture, env, entities)
                except TemporaryError as error:
                    self._metrics.effect_failed("DoStart", permanent=not left)
                    if not left:
                        raise PermanentError(f"the start failed: {error}", "StartFailed") from None
                    self._say(picture.job.name, f"the start failed, tries again: {error}")
                    await asyncio.sleep(error.delay_s)
                if self._ended_unstarted(picture):
                    return None
        finally:
            picture.starting = False

    def _ended_unstarted(self, picture: JobPicture) -> bool:
        """Ctrl-C may come before the first rank runs. Later it is the policy's to decide."""
        end = picture.end
        if end is not None:
            self._finish(picture, policy.Finish(end.reason, end.sentence, end.state, end.code))
        return end is not None

    def rebooted(self, name: str) -> None:
        """The machine was started again under the job: nothing of it is left, and that is no fault of its own."""
        picture = self.pictures[name]
        picture.exits.clear()
        picture.alive.clear()
        verdict = Verdict(
            symptom=Symptom.RANK_LOST,
            cause=Cause.NODE,
            failure="reboot",
            scope="node",
            sentence="The machine was started again while the job ran.",
            budget=Budget.INFRASTRUCTURE,
        )
        incident = picture.incident
        if incident is None:
            self._act(picture, policy.Open("Rebooted", verdict.sentence, IncidentKind.FORCED, verdict))
        elif recovery.accepts(incident, event := recovery.Fault(verdict, picture.job.last_step)):
            self._step(picture, incident, event)
        else:  # between two incarnations: the recovery goes on where it stood
            _, effects = recovery.resume(incident, self._clock(), policy.terms(picture.job.policy))
            self._performer.perform(picture, incident, effects)

    async def close(self) -> None:
        """End every effect that is under way. The job is not touched."""
        await self._performer.close()
        for picture in self.pictures.values():
            self._record_progress(picture, force=True)

    # ------------------------------------------------------------ requests of people

    def request_end(self, name: str, end: recovery.EndRequested) -> None:
        picture = self.pictures[name]
        picture.end = end
        self._say(name, end.sentence)
        self.cycle()

    def extend(self, name: str, seconds: float) -> ProtectedJob:
        picture = self.pictures[name]
        job = structs.replace(picture.job, extra_s=picture.job.extra_s + seconds)
        self._save_job(picture, job)
        self._event(job, "Extended", f"maxDuration was extended by {seconds:.0f} s.")
        return job

    def release(self, entity: str) -> None:
        """A person ended the findings of this entity: its isolation, too, ends by their hand."""
        self._released.add(entity)

    def degrade(self, name: str, note: str) -> None:
        """Name a degraded mode of the running incarnation; its successor starts without."""
        picture = self.pictures[name]
        if note not in picture.job.degraded:
            self._save_job(picture, structs.replace(picture.job, degraded=(*picture.job.degraded, note)))
            self._event(picture.job, "Degraded", note, warning=True)

    # ------------------------------------------------------------ folding

    def fold(self, report: Report) -> None:
        for rank in report.ranks:
            picture = self.pictures.get(rank.job)
            if picture is not None:
                self._note_log_problem(picture, rank)
                picture.timing.fold(rank)
                if rank.state:
                    picture.timing.observe_state(rank.rank, rank.state)
                if rank.io_bytes is not None:
                    picture.timing.observe_io(rank.rank, rank.io_bytes, report.now.mono_s)
        for match in report.matches:
            self._fold_match(match, report)
        changed = False
        for result in report.checks:
            changed |= result.findings != self._findings.get(result.check)
            self._findings[result.check] = result.findings
            self._metrics.check(result)
        if report.checks:
            self._fold_findings(changed)
        for name, gone in report.exits:
            picture = self.pictures.get(name)
            if picture is not None and gone.incarnation == picture.job.incarnation:
                self._fold_exit(picture, gone)
        # Iterations alone, five times a second, wait for the next turn: deciding costs more than folding them.
        if report.exits or report.matches or changed:
            self.cycle()

    def _note_log_problem(self, picture: JobPicture, rank: RankReport) -> None:
        """A log that was truncated is read on a moment later: only an event still tells of it."""
        key = f"log:{rank.rank}:{rank.log_problem}"
        if rank.log_problem in ("", "not there yet") or key in picture.told:
            return
        picture.told.add(key)
        text = f"The log of rank {rank.rank}: {rank.log_problem}."
        self._event(picture.job, "LogProblem", text, warning=True)

    def _fold_match(self, match: LogMatch, report: Report) -> None:
        for name, picture in self.pictures.items():
            if match.incarnation != picture.job.incarnation or match.job not in ("", name):
                continue
            if match.rule == PROOF_RULE:
                self._performer.prove(name, match)
            elif match.failure.startswith("activity:"):
                picture.timing.activity(match)
            else:
                picture.add_match(match)
                self._metrics.log_match(match.failure)

    def _fold_findings(self, news: bool) -> None:
        standing = [finding for found in self._findings.values() for finding in found]
        if news:
            self._metrics.findings(standing)
        for picture in self.pictures.values():
            picture.findings = standing
            out = set(picture.job.excluded)
            waits = any(self._waits_for_check(entity) for entity in out)
            picture.entities_back = (
                bool(out)
                and not waits
                and not any(f.entity in out and f.severity.order >= Severity.DEGRADED.order for f in standing)
            )
        changed = self._isolations(self.pictures.values())
        if changed:
            self._records.save(quarantines=changed)

    def _waits_for_check(self, entity: str) -> bool:
        """A check that isolated the entity has not looked again since Sentinel started."""
        record = self._quarantines.get(entity)
        return record is not None and any(f.check not in self._findings for f in record.findings)

    def _isolations(self, pictures: Iterable[JobPicture]) -> list[Quarantine]:
        """The isolations that begin, change or end with what is known now; to be saved by the caller."""
        left_out = {entity for picture in pictures for entity in picture.left_out}
        changed = quarantine.changes(
            self._quarantines,
            left_out,
            self._isolated,
            [finding for found in self._findings.values() for finding in found],
            self._findings.keys(),
            self._released,
            self._clock(),
            self._boot_id,
        )
        for record in changed:
            if record.ended_wall_s is None:
                self._quarantines[record.entity] = record
                self._isolated.add(record.entity)
            else:
                del self._quarantines[record.entity]
                self._isolated.discard(record.entity)
                self._released.discard(record.entity)
            log.info("isolation", entity=record.entity, needs=record.needs, ended_by=record.ended_by or None)
        return changed

    def _fold_exit(self, picture: JobPicture, gone: RankExit) -> None:
        incident = picture.incident
        how = gone.signal if gone.signal is not None else gone.code
        stopping = incident is not None and incident.phase == Phase.STOPPING
        # One that ended before the stop may be told only now, to a successor: it is what the stop is about.
        if incident is not None and stopping and gone.at_s >= incident.phase_mono_s and how in _OURS:
            gone = structs.replace(gone, stopped_by_us=True)
        picture.exits[gone.rank] = gone
        picture.alive.discard(gone.rank)
        if gone.ok:
            picture.timing.exited(gone.rank)
        log.info("rank_ended", job=picture.job.name, rank=gone.rank, how=gone.describe())

    # ------------------------------------------------------------ the cycle

    def cycle(self) -> None:
        """Decide about every job: after each report of more than iterations, and a few times a second."""
        now = self._clock()
        self.turned_mono_s = now.mono_s
        for picture in self.pictures.values():
            for _ in range(4):  # one decision may make room for the next; never for ever
                decision = policy.decide(picture, now)
                self._metrics.decision(decision.reason)
                if isinstance(decision, policy.Nothing):
                    break
                self._act(picture, decision)
            if not picture.job.state.final:
                self._look_after(picture)

    def _act(self, picture: JobPicture, decision: policy.Decision) -> None:
        now = self._clock()
        log.info("decided", job=picture.job.name, reason=decision.reason, sentence=decision.sentence)
        if isinstance(decision, policy.Finish):
            self._finish(picture, decision)
        elif isinstance(decision, policy.Feed):
            assert picture.incident is not None
            self._step(picture, picture.incident, decision.event)
        elif isinstance(decision, policy.Open):
            incident = policy.open_incident(picture, decision, now, self._boot_id)
            if decision.key:
                picture.told.add(decision.key)
            self._metrics.incident(incident.verdict.symptom, incident.verdict.cause)
            heard = picture.timing.last_at_s
            if heard is not None and decision.kind == IncidentKind.FORCED:
                self._metrics.detected(incident.verdict.symptom, max(0.0, now.mono_s - heard))
            self._step(picture, incident, recovery.Begin(decision.reason, decision.sentence), opened=True)

    def _step(self, picture: JobPicture, incident: Incident, event: Event, *, opened: bool = False) -> None:
        now = self._clock()
        job = picture.job
        moved, effects = recovery.step(incident, event, now, policy.terms(job.policy))
        settled = books.settle(job, None if opened else incident, moved, now)
        if opened:
            settled = structs.replace(settled, incidents=job.incidents + 1)
        if isinstance(event, recovery.SaveEnded) and event.result.proved_by:
            proved = ProvedCheckpoint(
                step=event.result.step, proof=event.result.proved_by[:500], wall_s=now.wall_s
            )
            settled = structs.replace(settled, checkpoint=proved)
        if settled.state == JobState.ERROR:
            settled = structs.replace(settled, exit_code=picture.exit_code(moved.verdict.rank))
        self._commit(picture, incident, moved, settled, opened=opened)
        if moved.phase == Phase.KEPT_RUNNING and moved.save is not None and moved.save.ranks:
            picture.unproved = (moved, picture.timing.iterations)
        if moved.phase != incident.phase:
            self._performer.cancel(job.name)  # the phase that it was for is over
        self._performer.perform(picture, moved, effects)
        self._after_step(picture, incident, moved)

    def _commit(
        self, picture: JobPicture, before: Incident, after: Incident, job: ProtectedJob, *, opened: bool
    ) -> None:
        """Save first; what people and metrics are told follows the record."""
        events = []
        if opened or after.steps != before.steps:
            last = after.steps[-1]
            events.append(
                JobEvent(
                    job=job.name,
                    wall_s=last.wall_s,
                    reason=last.reason,
                    sentence=f"{after.phase.value}: {last.sentence}",
                    incarnation=job.incarnation,
                    warning=after.phase in (Phase.FAILED, Phase.EXHAUSTED, Phase.KEPT_RUNNING),
                )
            )
        step = picture.timing.last_step if picture.timing.steps_told else None
        if step is not None and job.incarnation == picture.job.incarnation:
            job = structs.replace(job, last_step=step, best_step=max(step, job.best_step or 0))
        held = picture.job, picture.incident, dict(self._quarantines)
        started_new = job.incarnation != picture.job.incarnation
        picture.job = job
        picture.incident = None if after.phase.final else after
        isolations = self._isolations(self.pictures.values())
        try:
            self._records.save(jobs=[job], incidents=[after], quarantines=isolations, events=events)
        except BaseException:  # what is not in the record did not happen
            picture.job, picture.incident, self._quarantines = held
            raise
        self._metrics.records_saved(2 + len(events) + len(isolations))
        self.incidents[after.id] = after
        if after.phase.final and not any(m.state == "waiting" for m in after.mails):
            self.incidents.pop(after.id, None)
        if started_new:
            picture.begin_incarnation(self._clock())
        if events:
            self._say(job.name, policy.tell(job, after, self._clock()))

    def _after_step(self, picture: JobPicture, before: Incident, after: Incident) -> None:
        now = self._clock()
        if after.phase == Phase.RECOVERED and after.lost is not None:
            self._metrics.recovered(after.verdict.cause, after.lost.seconds, after.lost)
            repeated_s = (after.lost.steps or 0) * (picture.timing.step_ms or 0.0) / 1000
            picture.lost_s += after.lost.seconds + repeated_s
        if after.phase == Phase.STARTING and before.phase != Phase.STARTING:
            self._metrics.restarted(after.verdict.cause, after.verdict.budget)
        if before.phase == Phase.STOPPING and after.phase != Phase.STOPPING:
            self._metrics.stopped(now.mono_s - before.phase_mono_s)
        if before.phase == Phase.STARTING and after.phase == Phase.VERIFYING:
            self._metrics.started(now.mono_s - before.phase_mono_s)
        if after.save is not None and before.save is None:
            self._metrics.saved(after.save.took_s)
        if picture.job.state.final:
            self._on_end(picture.job.name)

    def _finish(self, picture: JobPicture, decision: policy.Finish) -> None:
        now = self._clock()
        self._record_progress(picture, force=True)
        job = picture.job
        started = job.started_mono_s
        ran_s = job.run_s + (max(0.0, now.mono_s - started) if started is not None else 0.0)
        job = structs.replace(
            job,
            state=decision.state,
            reason=decision.reason,
            sentence=decision.sentence,
            exit_code=decision.code,
            run_s=ran_s,
            started_mono_s=None,
        )
        self._save_job(picture, job)
        self._event(job, decision.reason, decision.sentence)
        self._say(job.name, f"{decision.state.value}: {decision.sentence}")
        self._on_end(job.name)

    def _performed(self, picture: JobPicture, event: Event) -> None:
        assert picture.incident is not None
        self._step(picture, picture.incident, event)
        self.cycle()

    # ------------------------------------------------------------ records

    def _save_job(self, picture: JobPicture, job: ProtectedJob) -> None:
        picture.job = job
        self._records.save(jobs=[job])
        self._metrics.records_saved(1)

    def _event(self, job: ProtectedJob, reason: str, sentence: str, *, warning: bool = False) -> None:
        event = JobEvent(
            job=job.name,
            wall_s=self._clock().wall_s,
            reason=reason,
            sentence=sentence,
            incarnation=job.incarnation,
            warning=warning,
        )
        self._records.save(events=[event])

    def _look_after(self, picture: JobPicture) -> None:
        fast = picture.was_fast and picture.job.fast_incarnation != picture.job.incarnation
        self._record_progress(picture, force=fast)
        job, now = picture.job, self._clock()
        checkpoint = job.policy.resume.checkpoint if job.policy.resume else None
        if checkpoint is None or self._save_checked.get(job.name) == job.incarnation or not picture.alive:
            return
        started = job.started_mono_s
        ready = picture.timing.has_timing or (
            started is not None and now.mono_s - started > SAVE_CHECK_AFTER_S
        )
        if not ready or picture.incident is not None:
            return
        self._save_checked[job.name] = job.incarnation
        capable = self._cluster.save_capable(job.name, job.incarnation, checkpoint.signal)
        deaf = sorted(rank for rank, catches in capable.items() if not catches)
        note = (
            f"not save-capable: rank {', '.join(map(str, deaf))} does not catch {checkpoint.signal}"
            if deaf
            else ""
        )
        if note != job.save_note:
            self._save_job(picture, structs.replace(job, save_note=note))
        if note:
            self._event(job, "NotSaveCapable", note, warning=True)
            self._say(job.name, note)

    def _record_progress(self, picture: JobPicture, *, force: bool = False) -> None:
        now = self._clock()
        last = self._recorded_mono_s.get(picture.job.name, 0.0)
        if not force and now.mono_s - last < RECORD_EVERY_S:
            return
        self._recorded_mono_s[picture.job.name] = now.mono_s
        learnt = picture.timing.baseline()
        step = picture.timing.last_step
        job = picture.job
        changed = structs.replace(
            job,
            last_step=step if step is not None else job.last_step,
            best_step=max(step, job.best_step or 0) if step is not None else job.best_step,
            baseline_ms=learnt[0] if learnt else job.baseline_ms,
            baseline_ratio=learnt[1] if learnt else job.baseline_ratio,
            fast_incarnation=job.incarnation if picture.was_fast else job.fast_incarnation,
        )
        if changed != job:
            self._save_job(picture, changed)

    # ------------------------------------------------------------ mail

    def pending_mail(self) -> list[tuple[Incident, ProtectedJob]]:
        found = []
        for incident in self.incidents.values():
            picture = self.pictures.get(incident.job)
            if picture is not None and any(m.state == "waiting" for m in incident.mails):
                found.append((incident, picture.job))
        return found

    def record_mail(self, incident_id: str, mail: StageMail) -> None:
        incident = self.incidents.get(incident_id)
        if incident is None:
            return
        mails = tuple(mail if m.stage == mail.stage else m for m in incident.mails)
        incident = structs.replace(incident, mails=mails)
        self._records.save(incidents=[incident])
        self.incidents[incident_id] = incident
        picture = self.pictures.get(incident.job)
        if picture is not None and picture.incident is not None and picture.incident.id == incident_id:
            picture.incident = incident
        if incident.phase.final and not any(m.state == "waiting" for m in mails):
            del self.incidents[incident_id]
