"""`decide(picture, now)`: what to do about one job, nothing included, and why. Pure."""

from collections.abc import Mapping
from typing import TypeAlias

from msgspec import Struct, structs

from sentinel.core import recovery
from sentinel.core.budget import KEPT_FAILURES, budget_is_reset, restarts_left, spent_budget
from sentinel.core.model import (
    Budget,
    Cause,
    Failure,
    Finding,
    Incident,
    IncidentKind,
    JobState,
    LogMatch,
    Lost,
    Now,
    Phase,
    Policy,
    ProtectedJob,
    RankExit,
    Restartable,
    Severity,
    Symptom,
    Verdict,
)
from sentinel.core.recovery import Terms
from sentinel.core.timing import JobTiming, TimingSignal
from sentinel.core.triage import FailureClass, triage

DAY_S = 86_400.0
MOVES_FOR_PERFORMANCE = 2  # in 24 h
MOVE_DID_NOT_HELP = "MoveDidNotHelp"
KEPT_MATCHES = 400
UNTOLD_STEPS = 20  # iterations without a step number after which the loss is told without one


class JobPicture:
    """All that is known of one job now. Folded by the controller, read by `decide`."""

    def __init__(self, job: ProtectedJob, failures: Mapping[str, FailureClass]) -> None:
        self.job = job
        self.failures = failures
        self.timing = JobTiming(
            job.policy,
            job.size,
            baseline_ms=job.baseline_ms,
            baseline_ratio=job.baseline_ratio,
            performance_frozen=job.performance_frozen,
        )
        self.incident: Incident | None = None
        self.exits: dict[int, RankExit] = {}  # of the running incarnation
        self.matches: list[LogMatch] = []  # of the running incarnation, bounded
        self.findings: list[Finding] = []
        self.alive: set[int] = set()
        self.pids: dict[int, int] = {}
        self.entities: dict[int, str] = {}  # rank -> the GPU it uses
        self.entities_back: bool = False  # a GPU that was left out is well again
        self.starting: bool = False  # the first start is under way: no recovery holds it
        self.end: recovery.EndRequested | None = None
        self.silent_since_s: float | None = None  # last iteration of the incarnation before the running one
        self.lost_s = 0.0  # told by recoveries: silence, and repeated iterations
        self.told: set[str] = set()  # keys of what this incarnation's owner was told
        self.was_fast: bool = False  # a whole window of this incarnation was within the thresholds
        self.unproved: tuple[Incident, int] | None = (
            None  # a save that was signalled, not proved; iterations then
        )

    def begin_incarnation(self, now: Now) -> None:
        self.exits.clear()
        self.matches.clear()
        self.alive.clear()
        self.pids.clear()
        self.told.clear()
        self.was_fast = False
        self.unproved = None
        self.silent_since_s = self.timing.last_at_s or self.silent_since_s
        self.timing.start(self.job.incarnation, self.job.size, now)

    def add_match(self, match: LogMatch) -> None:
        """Keeps the oldest half (the root comes first) and the newest."""
        self.matches.append(match)
        if len(self.matches) > KEPT_MATCHES:
            del self.matches[KEPT_MATCHES // 2]

    @property
    def failed_exits(self) -> list[RankExit]:
        return [e for e in self.exits.values() if not e.ok and not e.stopped_by_us]

    @property
    def finished(self) -> bool:
        """Every rank of the incarnation ended with exit code 0 by itself."""
        return len(self.exits) >= self.job.size and all(e.ok for e in self.exits.values())

    @property
    def left_out(self) -> tuple[str, ...]:
        """Entities that the job's ranks must not use, now or from their next start."""
        return (*self.job.excluded, *(self.incident.excluded if self.incident else ()))

    def exit_code(self, rank: int | None) -> int | None:
        """What the job itself ended with: of the rank to blame, else of the first that failed; 128 + signal."""
        failed = sorted(self.failed_exits, key=lambda gone: (gone.rank != rank, gone.at_s))
        for gone in failed:
            if not gone.unknown:
                return gone.code if gone.signal is None else 128 + gone.signal
        return None

    def ended_by_save(self) -> Incident | None:
        """The incident whose save signal ended the job: no iteration came since, and nothing proved the save."""
        if self.unproved is None:
            return None
        incident, iterations = self.unproved
        last_exit_s = max((gone.at_s for gone in self.exits.values()), default=0.0)
        if self.timing.has_timing:
            return incident if self.timing.iterations <= iterations else None
        soon = last_exit_s - incident.phase_mono_s <= self.job.policy.graceful_stop_s
        return incident if soon else None

    def run_time_s(self, now: Now) -> float:
        """Seconds that the job has run, over all its incarnations."""
        job = self.job
        running = now.mono_s - job.started_mono_s if job.started_mono_s is not None else 0.0
        return job.run_s + max(0.0, running)

    def time_left_s(self, now: Now) -> float | None:
        if self.job.policy.max_duration_s is None:
            return None
        return self.job.policy.max_duration_s + self.job.extra_s - self.run_time_s(now)

    def verdict(self, now: Now, signal: TimingSignal | None = None) -> Verdict:
        return triage(
            job=self.job.name,
            size=self.job.size,
            exits=list(self.exits.values()),
            matches=self.matches,
            findings=self.findings,
            signal=signal,
            last_steps={rank: timing.last_step for rank, timing in self.timing.ranks.items()},
            rank_entities=self.entities,
            rank_pids=self.pids,
            failures=self.failures,
            history=self.job.failures,
            now=now,
            last_iteration_s={
                rank: timing.last_at_s
                for rank, timing in self.timing.ranks.items()
                if timing.last_at_s is not None
            },
        )


# ---------------------------------------------------------------- decisions


class Nothing(Struct, frozen=True):
    reason: str
    sentence: str


class Open(Struct, frozen=True):
    """A new incident."""

    reason: str
    sentence: str
    kind: IncidentKind
    verdict: Verdict
    key: str = ""
    end: recovery.EndRequested | None = None
    size: int | None = None
    excluded: tuple[str, ...] | None = None


class Feed(Struct, frozen=True):
    """An event for the open incident."""

    reason: str
    sentence: str
    event: recovery.Event


class Finish(Struct, frozen=True):
    """The job ended by itself."""

    reason: str
    sentence: str
    state: JobState
    code: int | None


Decision: TypeAlias = Nothing | Open | Feed | Finish


def terms(policy: Policy) -> Terms:
    return Terms(
        checkpoint=policy.resume.checkpoint if policy.resume else None,
        graceful_stop_s=policy.graceful_stop_s,
        lost_rank_grace_s=policy.lost_rank_grace_s,
        start_timeout_s=policy.start_timeout_s,
        precheck_wait_s=policy.precheck.wait_s,
        verify_limit_s=max(3600.0, 2 * policy.verify_after_s),
    )


def decide(picture: JobPicture, now: Now) -> Decision:
    job, incident = picture.job, picture.incident
    if job.state.final:
        return Nothing("JobEnded", f"The job has ended: {job.state.value}.")
    if incident is not None:
        return _decide_in_incident(picture, incident, now)
    if job.state == JobState.QUEUED or picture.starting:
        return Nothing("NotStarted", "The job was not started yet.")
    if picture.failed_exits:
        return _decide_lost_rank(picture, now)
    if picture.finished:
        if (saved := picture.ended_by_save()) is not None:
            return _resumes_after_save(saved)
        return Finish("Succeeded", "All ranks ended with exit code 0.", JobState.SUCCEEDED, 0)
    if picture.end is not None:
        return _end(picture, picture.end)
    left = picture.time_left_s(now)
    if left is not None and left <= 0:
        ending = _end(picture, _expiry(picture))
        if job.policy.mode != "observe":
            return ending
        return _notice(picture, "Observed", ending.verdict, "expired")
    return _decide_running(picture, now)


def _decide_in_incident(picture: JobPicture, incident: Incident, now: Now) -> Decision:
    if picture.end is not None and incident.end_state is None:
        return _feed(incident, "EndRequested", picture.end.sentence, picture.end)
    if picture.end is not None and picture.end.grace_s < incident.grace_s:
        return _feed(incident, "EndHurried", picture.end.sentence, picture.end)
    left = picture.time_left_s(now)
    if left is not None and left <= 0 and incident.end_state is None:
        expiry = _expiry(picture)
        return _feed(incident, "Expired", expiry.sentence, expiry)
    running = incident.phase in (Phase.SAVING, Phase.STARTING, Phase.VERIFYING) or (
        incident.phase == Phase.PRECHECKING and incident.kind == IncidentKind.CHOSEN
    )
    if running and picture.failed_exits and picture.job.incarnation == incident.incarnation:
        verdict = picture.verdict(now)
        event = recovery.Fault(verdict, picture.timing.last_step)
        return _feed(incident, "RankLost", verdict.sentence, event)
    # Ranks that end while they save are judged by the save, ranks that end while they start by the start.
    if running and picture.finished and recovery.accepts(incident, recovery.JobFinished()):
        return _feed(incident, "JobFinished", "All ranks ended with exit code 0.", recovery.JobFinished())
    waits: Decision = Nothing("InProgress", f"The recovery is in phase {incident.phase.value}.")
    if incident.phase == Phase.VERIFYING:
        waits = _verify(picture, incident, now)
    late = incident.deadline_mono_s is not None and now.mono_s >= incident.deadline_mono_s
    if late and isinstance(waits, Nothing):
        return _feed(incident, "DeadlinePassed", "The phase took too long.", recovery.DeadlinePassed())
    return waits


def _feed(incident: Incident, reason: str, sentence: str, event: recovery.Event) -> Decision:
    if not recovery.accepts(incident, event):
        return Nothing("InProgress", f"The recovery is in phase {incident.phase.value}.")
    return Feed(reason, sentence, event)


def _verify(picture: JobPicture, incident: Incident, now: Now) -> Decision:
    timing = picture.timing
    for signal in timing.signals(now):
        if signal.symptom == Symptom.HANG and picture.job.policy.hang.action == "RestartAndAlert":
            verdict = picture.verdict(now, signal)
            return Feed("Hang", verdict.sentence, recovery.Fault(verdict, timing.last_step))
    if len(picture.alive) < picture.job.size - len(picture.exits):
        return Nothing("InProgress", "Not all ranks are up.")
    since = incident.opened_mono_s if picture.silent_since_s is None else picture.silent_since_s
    since_fault_s = now.mono_s - since
    first = timing.first_step if timing.steps_told else None
    if timing.has_timing or picture.job.best_step is not None:
        # One iteration may be a left-over line; two show that iterations move.
        count = max((rank.count for rank in timing.ranks.values()), default=0)
        # A log that named its steps before names them again: only then is the loss known.
        if count < 2 or (
            picture.job.best_step is not None and not timing.steps_told and count < UNTOLD_STEPS
        ):
            return Nothing("InProgress", "Waits for iterations to move.")
        return Feed("Recovered", "", _progressed(picture, incident, first, since_fault_s))
    if now.mono_s - incident.phase_mono_s < picture.job.policy.verify_after_s:
        return Nothing("InProgress", "Waits for the ranks to stay up.")
    return Feed("Recovered", "", _progressed(picture, incident, None, since_fault_s))


def _progressed(
    picture: JobPicture, incident: Incident, first: int | None, since_fault_s: float
) -> recovery.Progressed:
    job = picture.job
    undone = [step for step in (incident.failed_step, incident.top_step) if step is not None]
    failed = max(undone, default=None)
    resumed = max(0, first - 1) if first is not None else None
    steps = max(0, failed - resumed) if failed is not None and resumed is not None else None
    lost = Lost(
        steps=steps,
        seconds=since_fault_s,
        gpu_seconds=since_fault_s * (len(set(picture.entities.values())) or 0),
        resumed_from=resumed,
    )
    if resumed is None and picture.timing.has_timing:
        sentence = "Stepping again."
    elif resumed is None:
        sentence = f"All ranks stayed up for {job.policy.verify_after_s:.0f} s."
    elif resumed is not None and resumed <= 1 and failed is not None and failed > 2:
        sentence = (
            f"Stepping again, but from the beginning: no checkpoint was loaded, {failed} steps are repeated."
        )
    else:
        sentence = f"Stepping again from step {resumed}"
        sentence += f": {steps} steps are repeated." if steps is not None else "."
    return recovery.Progressed(lost, sentence)


def _expiry(picture: JobPicture) -> recovery.EndRequested:
    policy = picture.job.policy
    allowed = (policy.max_duration_s or 0.0) + picture.job.extra_s
    return recovery.EndRequested(
        JobState.EXPIRED,
        "Expired",
        f"The job has run for its {allowed:.0f} s (maxDuration).",
        policy.graceful_stop_s,
        save=True,
    )


def _end(picture: JobPicture, end: recovery.EndRequested) -> Open:
    verdict = Verdict(
        symptom=Symptom.ENDING,
        cause=Cause.UNKNOWN,
        failure="ending",
        scope="job",
        sentence=end.sentence,
        budget=Budget.FREE,
    )
    return Open(end.reason, end.sentence, IncidentKind.ENDING, verdict, end=end)


def _resumes_after_save(saved: Incident) -> Decision:
    """A save that makes the program exit 0 must never count as the job's success."""
    sentence = f"The ranks ended after the save signal of {saved.id}, not because the training was done."
    verdict = structs.replace(saved.verdict, sentence=f"{sentence} {saved.verdict.sentence}")
    return Open(
        "EndedBySave", sentence, IncidentKind.FORCED, verdict, size=saved.size, excluded=saved.excluded
    )


def _decide_lost_rank(picture: JobPicture, now: Now) -> Decision:
    verdict = picture.verdict(now)
    if picture.job.policy.mode == "observe":
        if len(picture.exits) >= picture.job.size:
            code = next((e.code for e in picture.failed_exits if e.code is not None), None)
            return Finish(
                "Observed", f"{verdict.sentence} (observe mode: nothing is done)", JobState.ERROR, code
            )
        return _notice(picture, "Observed", verdict, f"observed:{verdict.failure}")
    return Open("RankLost", verdict.sentence, IncidentKind.FORCED, verdict)


def _notice(picture: JobPicture, reason: str, verdict: Verdict, key: str) -> Decision:
    if key in picture.told:
        return Nothing("AlreadyTold", verdict.sentence)
    return Open(reason, verdict.sentence, IncidentKind.NOTICE, verdict, key)


def _decide_running(picture: JobPicture, now: Now) -> Decision:
    """The ranks are alive: signals of timing first, then findings, then growth."""
    outcome: Decision = Nothing("Healthy", "The job runs and nothing speaks against it.")
    signals = picture.timing.signals(now)
    if picture.timing.judged and not any(signal.symptom == Symptom.SLOW for signal in signals):
        picture.was_fast = True
    for signal in signals:
        decision = _decide_signal(picture, signal, now)
        if not isinstance(decision, Nothing):
            return decision
        outcome = decision
    for finding in picture.findings:
        if finding.severity.order < Severity.DEGRADED.order:
            continue
        decision = _decide_finding(picture, finding, now)
        if not isinstance(decision, Nothing):
            return decision
        outcome = decision
    if _may_grow(picture):
        return _grow(picture)
    return outcome


def _decide_signal(picture: JobPicture, signal: TimingSignal, now: Now) -> Decision:
    policy = picture.job.policy
    verdict = picture.verdict(now, signal)
    observe = policy.mode == "observe"
    if signal.symptom == Symptom.HANG and policy.hang.action == "RestartAndAlert" and not observe:
        return Open("Hang", verdict.sentence, IncidentKind.FORCED, verdict)
    if signal.symptom == Symptom.SLOW and policy.performance.action == "RescheduleAndAlert" and not observe:
        if signal.key in picture.told:  # this incarnation was not moved for it, and the owner knows why
            return Nothing("AlreadyTold", verdict.sentence)
        reason, refusal = _refuse_performance_move(picture, verdict, now)
        if not reason:
            return Open("Slow", verdict.sentence, IncidentKind.CHOSEN, verdict, key=signal.key)
        verdict = structs.replace(verdict, sentence=f"{verdict.sentence} Not restarted: {refusal}")
        return _notice(picture, reason, verdict, signal.key)
    return _notice(picture, "Observed" if observe else "AlertOnly", verdict, signal.key)


def _refuse_performance_move(picture: JobPicture, verdict: Verdict, now: Now) -> tuple[str, str]:
    """(reason, sentence), both empty where the job may be moved."""
    job = picture.job
    if job.policy.resume is None:
        return "NotResumable", "the policy has no `resume`."
    if job.performance_frozen:
        return "AlertOnly", job.performance_frozen
    if job.failures and job.failures[-1].failure == verdict.failure and not picture.was_fast:
        return MOVE_DID_NOT_HELP, "the last restart for its performance did not help."
    recent = [at for at in job.performance_moves_wall_s if now.wall_s - at < DAY_S]
    if len(recent) >= MOVES_FOR_PERFORMANCE:
        return "AlertOnly", f"it was restarted for its performance {len(recent)} times in 24 h."
    spent = spent_budget(job, verdict.budget, now)
    return ("BudgetExhausted", spent) if spent else ("", "")


def _decide_finding(picture: JobPicture, finding: Finding, now: Now) -> Decision:
    """A finding about a GPU that this job uses, while the job still steps."""
    key = "finding:" + ":".join(finding.key)
    job = picture.job
    if finding.component != "gpu" or finding.entity not in picture.entities.values():
        return Nothing("NotOurs", f"{finding.summary}: not used by this job.")
    if finding.entity in job.excluded:
        return Nothing("AlreadyAvoided", f"{finding.entity} is already left out.")
    verdict = structs.replace(picture.verdict(now), entity=finding.entity)
    if job.policy.mode == "observe" or key in picture.told:
        return _notice(picture, "Observed", verdict, key)
    if job.policy.resume is None:
        return _notice(picture, "NotResumable", verdict, key)
    if spent := spent_budget(job, verdict.budget, now):
        verdict = structs.replace(verdict, sentence=f"{verdict.sentence} Not moved: {spent}")
        return _notice(picture, "BudgetExhausted", verdict, key)
    return Open(
        "NodeFault",
        verdict.sentence,
        IncidentKind.CHOSEN,
        verdict,
        key=key,
        excluded=(*job.excluded, finding.entity),
    )


def _may_grow(picture: JobPicture) -> bool:
    job, elastic = picture.job, picture.job.policy.elastic
    return bool(
        elastic
        and elastic.allow_grow
        and not job.elastic_frozen
        and job.size < job.original_size
        and picture.entities_back
        and job.policy.resume
        and job.policy.mode != "observe"
        and "grow" not in picture.told
    )


def _grow(picture: JobPicture) -> Decision:
    job = picture.job
    verdict = Verdict(
        symptom=Symptom.RESIZE,
        cause=Cause.UNKNOWN,
        failure="resize",
        scope="job",
        sentence=f"A GPU is well again: the job can grow from {job.size} to {job.original_size} ranks.",
        budget=Budget.FREE,
        restart=Restartable.YES,
    )
    return Open(
        "Grow",
        verdict.sentence,
        IncidentKind.CHOSEN,
        verdict,
        key="grow",
        size=job.original_size,
        excluded=(),
    )


# ---------------------------------------------------------------- opening, and what goes with a recovery


def open_incident(picture: JobPicture, decision: Open, now: Now, boot_id: str) -> Incident:
    job, end = picture.job, decision.end
    checkpoint = job.policy.resume.checkpoint if job.policy.resume else None
    whole = len(picture.alive) >= job.size
    incident = Incident(
        id=f"{job.name}-{job.incidents + 1:04d}",
        job=job.name,
        kind=decision.kind,
        verdict=decision.verdict,
        opened_wall_s=now.wall_s,
        opened_mono_s=now.mono_s,
        phase_mono_s=now.mono_s,
        incarnation=job.incarnation,
        size=decision.size if decision.size is not None else job.size,
        from_size=job.size,
        excluded=decision.excluded if decision.excluded is not None else job.excluded,
        boot_id=boot_id,
        key=decision.key,
        failed_step=picture.timing.last_step if picture.timing.last_step is not None else job.last_step,
    )
    if end is None:
        return incident
    return structs.replace(
        incident,
        end_state=end.state,
        end_code=end.code,
        reason_of_end=end.reason,
        sentence_of_end=end.sentence,
        grace_s=end.grace_s,
        save_wanted=end.save and checkpoint is not None and whole,
    )


def wanted(picture: JobPicture, incident: Incident) -> tuple[int, tuple[str, ...]]:
    """(ranks, entities to avoid) of the next incarnation. An elastic job comes back as large as there is room."""
    job = picture.job
    back = job.excluded if picture.entities_back else ()  # what this incident flees stays out
    excluded = tuple(entity for entity in incident.excluded if entity not in back)
    if incident.kind == IncidentKind.CHOSEN:
        return incident.size, incident.excluded
    if job.elastic_frozen:
        return incident.from_size, incident.excluded
    if job.policy.elastic is not None and job.policy.elastic.allow_grow:
        return job.original_size, excluded
    return incident.from_size, excluded


def too_small(incident: Incident, size: int) -> str:
    """Why room for `size` ranks is no reason to stop a job that steps; empty where it is one.

    Only a failing GPU is worth coming back smaller: a slow job would be slower, one that grows must be larger.
    """
    if incident.kind != IncidentKind.CHOSEN:
        return ""
    slow = incident.verdict.symptom == Symptom.SLOW and size < incident.size
    grows = incident.verdict.symptom == Symptom.RESIZE and size <= incident.from_size
    return f"There is room for {size} of {incident.size} ranks only." if slow or grows else ""


def resume_env(job: ProtectedJob, incident: Incident) -> dict[str, str]:
    """What the restarted program is told in its environment."""
    env = {
        "SENTINEL_RESUME": "1",
        "SENTINEL_RESTARTS": str(incident.incarnation - job.first_incarnation),
        "SENTINEL_CAUSE": incident.verdict.cause.value,
    }
    if job.checkpoint is not None:
        env["SENTINEL_CHECKPOINT_PROOF"] = job.checkpoint.proof
        if job.checkpoint.step is not None:
            env["SENTINEL_CHECKPOINT_STEP"] = str(job.checkpoint.step)
    return env


def tell(job: ProtectedJob, incident: Incident, now: Now) -> str:
    """One line for the terminal: where the incident stands. A recovery is told with all that it cost."""
    if incident.phase == Phase.RECOVERED:
        return recovered_sentence(job, incident, now)
    line = f"{incident.id} {incident.phase.value}: {incident.sentence}"
    if incident.phase == Phase.STOPPING and incident.failed_step is not None:
        line += f" Last step {incident.failed_step}."
    return line


def recovered_sentence(job: ProtectedJob, incident: Incident, now: Now) -> str:
    """Cause, rank, last step, checkpoint resumed from, steps and time lost, restarts used and left."""
    verdict, lost = incident.verdict, incident.lost
    parts = [f"{incident.id} recovered: {verdict.sentence}", f"Cause: {verdict.cause.value}."]
    if verdict.rank is not None:
        parts.append(f"Rank {verdict.rank}.")
    if incident.failed_step is not None:
        parts.append(f"Last step {incident.failed_step}.")
    if lost is not None:
        if lost.resumed_from is not None:
            parts.append(f"Resumed from step {lost.resumed_from}.")
        repeated = f"{lost.steps} steps and " if lost.steps is not None else ""
        parts.append(f"Lost {repeated}{lost.seconds:.1f} s.")
    used = job.policy.max_starts - restarts_left(job, now)
    parts.append(f"Restarts: {used} used, {restarts_left(job, now)} left.")
    return " ".join(parts)


# ---------------------------------------------------------------- the job's books


def settle(job: ProtectedJob, before: Incident | None, after: Incident, now: Now) -> ProtectedJob:
    """The job's record after its incident moved: state, budgets, failures, size. Saved with the incident.

    `before` None: the incident was opened by this move.
    """
    if before is None and after.kind == IncidentKind.NOTICE:
        return _freeze_performance(job, after)
    if before is not None and before.phase == after.phase and before.incarnation == after.incarnation:
        return job
    if after.phase == Phase.PRECHECKING and after.reason == "ResizeFailed":
        why = f"the first start with {after.size} ranks failed: {after.verdict.sentence}"
        job = structs.replace(job, elastic_frozen=why)
    if after.phase == Phase.STARTING:
        job = _spend(job, after, now, paid=before is not None and before.paid)
    state, code = _state_of(job, after)
    changes: dict[str, object] = {"state": state, "reason": after.reason, "sentence": after.sentence}
    if code is not None:
        changes["exit_code"] = code
    if state.final or state == JobState.QUEUED:
        changes |= _clock_stopped(job, now)
    return structs.replace(job, **changes)


def _freeze_performance(job: ProtectedJob, notice: Incident) -> ProtectedJob:
    """Slow again right after a restart for slowness: the restart did not help, so it follows the job."""
    if notice.reason != MOVE_DID_NOT_HELP or job.performance_frozen:
        return job
    return structs.replace(job, performance_frozen="the last restart for its performance did not help.")


def _clock_stopped(job: ProtectedJob, now: Now) -> dict[str, object]:
    if job.started_mono_s is None:
        return {}
    return {"run_s": job.run_s + max(0.0, now.mono_s - job.started_mono_s), "started_mono_s": None}


def _spend(job: ProtectedJob, incident: Incident, now: Now, *, paid: bool) -> ProtectedJob:
    """A start is paid for once per fault: one that did not come up and is tried again costs nothing."""
    verdict = incident.verdict
    if budget_is_reset(job, now):
        job = structs.replace(job, used_infrastructure=0, used_job=0)
    changes: dict[str, object] = {
        "incarnation": incident.incarnation,
        "size": incident.size,
        "excluded": incident.excluded,
        "started_mono_s": None,
        "last_step": None,
        "degraded": (),  # was told of the incarnation that is over
    }
    changes |= {k: v for k, v in _clock_stopped(job, now).items() if k == "run_s"}
    if not paid:
        if verdict.budget == Budget.FREE:
            changes["used_free"] = job.used_free + 1
        elif verdict.budget == Budget.INFRASTRUCTURE:
            changes["used_infrastructure"] = job.used_infrastructure + 1
        else:
            changes["used_job"] = job.used_job + 1
        failure = Failure(
            wall_s=now.wall_s,
            failure=verdict.failure,
            budget=verdict.budget,
            step=incident.failed_step,
            checkpoint_step=job.checkpoint.step if job.checkpoint else None,
            entity=verdict.entity,
        )
        changes["failures"] = (*job.failures, failure)[-KEPT_FAILURES:]
        if verdict.symptom == Symptom.SLOW:
            changes["performance_moves_wall_s"] = (*job.performance_moves_wall_s, now.wall_s)[-10:]
    return structs.replace(job, **changes)


def _state_of(job: ProtectedJob, incident: Incident) -> tuple[JobState, int | None]:
    phase = incident.phase
    if phase == Phase.ENDED and incident.end_state is not None:
        return incident.end_state, incident.end_code
    if phase in (Phase.FAILED, Phase.EXHAUSTED):
        return JobState.ERROR, None
    if phase == Phase.PRECHECKING and incident.kind == IncidentKind.FORCED:
        return JobState.QUEUED, None
    return JobState.RUNNING, None
