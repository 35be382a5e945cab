"""Holds the picture, applies policy, drives each recovery: fold → decide → record → act.

One thread, one loop: `fold` and `cycle` never wait. What takes time is an effect, a task of its own,
whose outcome comes back as an event.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import structlog
from msgspec import structs

from sentinel.cluster.base import Cluster, RankProcess, Records
from sentinel.controller.effects.perform import NodeLink, Performer
from sentinel.controller.jobs import numbers
from sentinel.controller.jobs.hang_looks import HangLooks
from sentinel.controller.jobs.mail import JobMail
from sentinel.controller.jobs.move_looks import MoveLooks
from sentinel.controller.jobs.save_looks import SaveLooks
from sentinel.core.decision import blindness, books, incidents, policy
from sentinel.core.decision.picture import JobPicture
from sentinel.core.health import CheckResult
from sentinel.core.job import orders as job_orders
from sentinel.core.job.orders import Action, Cancel, Extend, ReleaseHold, Retry
from sentinel.core.model import (
    FollowedOrder,
    Incident,
    JobEvent,
    JobState,
    Phase,
    ProtectedJob,
    ProvedCheckpoint,
    Quarantine,
)
from sentinel.core.policy_model import PROOF_RULE
from sentinel.core.recovery import transitions
from sentinel.core.recovery.events import Begin, CancelRequested, EndRequested, Event, SaveEnded
from sentinel.core.reports import LogMatch, RankExit, RankReport, Report
from sentinel.core.signals import length, times
from sentinel.core.stacks.stillness import Looks
from sentinel.core.timing.productive import lost_run_s
from sentinel.core.triage.verdict import FailureClass
from sentinel.metrics.registry import Metrics
from sentinel.util.clock import Clock

log = structlog.get_logger()

PROGRESS_S = 30.0
STOPPED_CODE = 130  # of a job that a person stopped, as a shell says it of Ctrl-C
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
            written=records.written,
            save_job=self._save_job,
            outcome=self._performed,
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
        self.mail = JobMail(self.pictures, records, wake_mail)
        self._quarantines = {one.entity: one for one in records.quarantines()}
        broke = partial(metrics.exception, "job")
        self._looks = (
            SaveLooks(cluster, clock, self._save_looked_at),
            MoveLooks(cluster, clock, self._fits_again, broke),
            HangLooks(cluster, clock, lambda picture: self.cycle((picture.job.name,)), broke),
        )
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
        picture.timing.hang.looks = Looks()
        picture.timing.start(job.incarnation, job.size, now)
        picture.timing.hang.relaunches.reset(job.inner_restarts)
        picture.lost_s = sum(lost_run_s(incident, job.baseline_ms) for incident in incidents)
        for incident in incidents:
            if not incident.phase.final:
                picture.incident = incident = self._rebased(incident)
            self.mail.keep(incident, job)
            if incident.incarnation != job.incarnation or not incident.key:
                continue
            if not incident.phase.final and not incident.attempt:
                picture.told.add(incident.key)
            if incident.phase == Phase.KEPT_RUNNING:
                picture.told.add(incident.key)
                ago_s = now.wall_s - (incident.closed_wall_s or now.wall_s)
                picture.keep_refused(incident, now.mono_s - max(0.0, ago_s))
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
            incident, effect = transitions.resume(incident, now, policy.terms(picture.job.policy))
            picture.incident = incident
            self.mail.keep(incident, picture.job)
            self._performer.perform(picture, incident, effect)
        if ranks or ended:
            self._node.follow(picture.job, [*ranks, *ended])
        if (
            picture.job.started_mono_s is None
            and ranks
            and (incident is None or incident.phase == Phase.VERIFYING)
        ):
            self._save_job(picture, structs.replace(picture.job, started_mono_s=now.mono_s))

    async def close(self) -> None:
        """End every effect that is under way. The job is not touched."""
        for looks in self._looks:
            await looks.close()
        await self._performer.close()
        for picture in self.pictures.values():
            self._record_progress(picture, force=True)

    # ------------------------------------------------------------ requests of people

    def request_end(self, name: str, end: EndRequested) -> None:
        picture = self.pictures[name]
        picture.end = end
        self._say(name, end.sentence)
        self.cycle((name,))

    def extend(self, name: str, seconds: float) -> ProtectedJob:
        picture = self.pictures[name]
        self._save_job(picture, structs.replace(picture.job, extra_s=picture.job.extra_s + seconds))
        self._event(picture.job, "Extended", f"maxDuration was extended by {seconds:.0f} s.")
        return picture.job

    def obey(self, name: str, action: Action, order: FollowedOrder) -> None:
        """What `job_orders.judge` made of a person's order. `order` goes into the job's record with what follows."""
        picture = self.pictures[name]
        if isinstance(action, ReleaseHold):
            raise ValueError("a hold is let go by who keeps it")
        picture.job = structs.replace(picture.job, order=order)
        if isinstance(action, Extend):
            self.extend(name, action.seconds)
        elif isinstance(action, Cancel):
            assert picture.incident is not None
            self._step(picture, picture.incident, CancelRequested(action.sentence))
        elif isinstance(action, Retry):
            picture.end = None
            picture.job = structs.replace(picture.job, exit_code=None)
            self._act(picture, job_orders.another_try(action.sentence))
        else:
            self._save_job(picture, picture.job)
            end = EndRequested(
                JobState.STOPPED,
                "Stopped",
                action.sentence,
                action.grace_s,
                save=action.save,
                code=STOPPED_CODE,
            )
            self.request_end(name, end)

    # ------------------------------------------------------------ folding

    def fold(self, report: Report) -> None:
        touched: set[str] = set()
        for rank in report.ranks:
            picture = self.pictures.get(rank.job)
            if picture is not None:
                if problem := picture.log_problem(rank, self._clock()):
                    self._tell_log_problem(picture, rank.rank, problem)
                picture.timing.fold(rank)
                if rank.state or rank.io_bytes is not None:  # a launcher has none of its own
                    picture.timing.hang.liveness.states[rank.rank] = rank.state
                if rank.restarts:
                    self._relaunched(picture, rank, report.now.mono_s)
                if rank.io_bytes is not None:
                    picture.timing.hang.liveness.observe_io(rank.rank, rank.io_bytes, report.now.mono_s)
        for match in report.matches:
            touched |= self._fold_match(match)
        changed = self._fold_checks(report.checks)
        for name, gone in report.exits:
            picture = self.pictures.get(name)
            if picture is not None and gone.incarnation == picture.job.incarnation:
                self._fold_exit(picture, gone)
                touched.add(name)
        # Iterations alone, five times a second, wait for the next turn: deciding costs more than folding them.
        if changed:
            self.cycle()
        elif touched:
            self.cycle(touched)

    def _relaunched(self, picture: JobPicture, rank: RankReport, at_s: float) -> None:
        """Its launcher acts: that is counted, and left alone while iterations may yet follow."""
        job = picture.job
        if rank.incarnation != job.incarnation or not picture.timing.relaunched(rank.restarts, at_s):
            return
        self._save_job(picture, structs.replace(job, inner_restarts=rank.restarts))
        sentence = (
            f"The launcher inside the pods has started its ranks again ({times(rank.restarts)} in this run). It is "
            f"left to it, if iterations follow within {length(job.policy.start_timeout_s)}."
        )
        self._event(job, "RestartedInside", sentence, warning=True)

    def _tell_log_problem(self, picture: JobPicture, rank: int, problem: str) -> None:
        """A log that was truncated is read on a moment later: only an event still tells of it."""
        if (key := f"log:{rank}:{problem}") not in picture.told:
            picture.told.add(key)
            self._event(picture.job, "LogProblem", f"The log of rank {rank}: {problem}.", warning=True)

    def _fold_match(self, match: LogMatch) -> set[str]:
        """The jobs that it is about."""
        touched = set()
        for name in (match.job,) if match.job else tuple(self.pictures):
            picture = self.pictures.get(name)
            if picture is None or match.incarnation != picture.job.incarnation:
                continue
            touched.add(name)
            if match.rule == PROOF_RULE:
                self._performer.prove(name, match)
            elif match.failure.startswith("activity:"):
                picture.timing.activity(match)
            else:
                picture.add_match(match)
                self._metrics.log_match(match.failure)
        return touched

    def _fold_checks(self, results: Sequence[CheckResult]) -> bool:
        """Do they find anything new? Nodes of a cluster are judged elsewhere, for all jobs."""
        return False

    def _isolations(self) -> list[Quarantine]:
        """The isolations that begin, change or end with what is known now; to be saved by the caller."""
        return []

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
            picture.timing.hang.exited.add(gone.rank)
        log.info("rank_ended", job=picture.job.name, rank=gone.rank, how=gone.describe())

    # ------------------------------------------------------------ the cycle

    def cycle(self, only: Iterable[str] | None = None) -> None:
        """Decide about every job, or `only` these: after each report of more than iterations, and now and then."""
        now = self._clock()
        self.turned_mono_s = now.mono_s
        for name in tuple(self.pictures if only is None else only):
            if (picture := self.pictures.get(name)) is None:
                continue
            picture.note(now)
            for _ in range(4):  # one decision may make room for the next; never for ever
                decision = self._allowed(picture, policy.decide(picture, now))
                self._metrics.decision(decision.reason)
                if isinstance(decision, policy.Nothing):
                    break
                self._act(picture, decision)
            if not picture.job.state.final:
                self._look_after(picture)

    def _allowed(self, picture: JobPicture, decision: policy.Decision) -> policy.Decision:
        """What others than the job's own policy say to it: `Nothing` in its place, with the reason."""
        return decision

    def _act(self, picture: JobPicture, decision: policy.Decision) -> None:
        now = self._clock()
        log.info("decided", job=picture.job.name, reason=decision.reason, sentence=decision.sentence)
        if isinstance(decision, policy.Finish):
            self._finish(picture, decision)
        elif isinstance(decision, policy.Feed):
            assert picture.incident is not None
            self._step(picture, picture.incident, decision.event)
        elif isinstance(decision, policy.Open):
            incident = incidents.open_incident(picture, decision, now, self._boot_id)
            if decision.key:
                picture.told.add(decision.key)
            picture.fits_again = ""
            owner, verdict = numbers.owner_of(picture.job.policy), incident.verdict
            self._metrics.incident(verdict.symptom, verdict.cause, owner, verdict.entity)
            if decision.since_s is not None:
                self._metrics.detected(verdict.symptom, max(0.0, now.mono_s - decision.since_s))
            self._step(picture, incident, Begin(decision.reason, decision.sentence), opened=True)

    def _step(self, picture: JobPicture, incident: Incident, event: Event, *, opened: bool = False) -> None:
        now = self._clock()
        job = picture.job
        moved, effect = transitions.step(incident, event, now, policy.terms(job.policy))
        if opened or (moved.phase.final and not incident.phase.final):
            moved = picture.paced(moved, now)
        settled = books.settle(job, None if opened else incident, moved, now)
        if opened:
            settled = structs.replace(settled, incidents=job.incidents + 1)
        if isinstance(event, SaveEnded) and event.result.proved_by:
            proved = ProvedCheckpoint(
                step=event.result.step, proof=event.result.proved_by[:500], wall_s=now.wall_s
            )
            settled = structs.replace(settled, checkpoint=proved)
        if settled.state == JobState.ERROR:
            settled = structs.replace(settled, exit_code=picture.exit_code(moved.verdict.rank))
        self._commit(picture, incident, moved, settled, opened=opened)
        picture.keep_refused(moved, now.mono_s)
        if moved.phase == Phase.KEPT_RUNNING and moved.save is not None and moved.save.ranks:
            picture.unproved = (moved, picture.timing.iterations)
        if moved.phase != incident.phase:
            self._performer.cancel(job.name)  # the phase that it was for is over
        self._performer.perform(picture, moved, effect)
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
        if job.incarnation == picture.job.incarnation:
            job = picture.with_steps(job)
        held = picture.job, picture.incident, dict(self._quarantines)
        started_new = job.incarnation != picture.job.incarnation
        picture.job = job = picture.with_end(job, self._clock())
        picture.incident = None if after.phase.final else after
        isolations = self._isolations()
        try:
            self._records.save(jobs=[job], incidents=[after], quarantines=isolations, events=events)
        except BaseException:  # what is not in the record did not happen
            picture.job, picture.incident, self._quarantines = held
            raise
        self._metrics.records_saved(2 + len(events) + len(isolations))
        self.mail.keep(after, job)
        if started_new:
            picture.begin_incarnation(self._clock())
        if events:
            self._say(job.name, incidents.tell(job, after, self._clock()))

    def _after_step(self, picture: JobPicture, before: Incident, after: Incident) -> None:
        numbers.count_step(self._metrics, picture.job, before, after, self._clock())
        if after.phase == Phase.RECOVERED and after.lost is not None:
            picture.lost_s += lost_run_s(after, picture.timing.step_ms)
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
        self.cycle((picture.job.name,))

    # ------------------------------------------------------------ records

    def _save_job(self, picture: JobPicture, job: ProtectedJob) -> None:
        picture.job = job = picture.with_end(job, self._clock())
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
        for rank in picture.logs_missed(self._clock()):
            self._tell_log_problem(picture, rank, "vanished")
        for looks in self._looks:
            looks.look_after(picture)
        self._degrade(picture, blindness.degraded(picture, self._clock()))

    def _fits_again(self, picture: JobPicture, incident: Incident) -> None:
        picture.fits_again = incident.key
        self.cycle((picture.job.name,))

    def _save_looked_at(self, picture: JobPicture, note: str) -> None:
        if note != picture.job.save_note:
            self._save_job(picture, structs.replace(picture.job, save_note=note))
            self._warn(picture.job, "NotSaveCapable", note)

    def _degrade(self, picture: JobPicture, modes: tuple[str, ...]) -> None:
        before = picture.job.degraded
        if modes != before:
            self._save_job(picture, structs.replace(picture.job, degraded=modes))
            self._warn(picture.job, "Degraded", "; ".join(mode for mode in modes if mode not in before))

    def _warn(self, job: ProtectedJob, reason: str, note: str) -> None:
        if note:
            self._event(job, reason, note, warning=True)
            self._say(job.name, note)

    def _progress_due(self, last_mono_s: float, now_mono_s: float) -> bool:
        """May what is learnt of a job (last step, baseline) be saved again, where nothing else of it is?"""
        return now_mono_s - last_mono_s >= PROGRESS_S

    def _record_progress(self, picture: JobPicture, *, force: bool = False) -> None:
        name, now_s = picture.job.name, self._clock().mono_s
        if force or self._progress_due(self._recorded_mono_s.get(name, 0.0), now_s):
            self._recorded_mono_s[name] = now_s
            if (changed := picture.with_progress()) != picture.job:
                self._save_job(picture, changed)
