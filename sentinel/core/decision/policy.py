"""`decide(picture, now)`: what to do about one job, nothing included, and why. Pure."""

from typing import TypeAlias

from msgspec import Struct, structs

from sentinel.core.decision import diverged
from sentinel.core.decision.books import MOVE_DID_NOT_HELP
from sentinel.core.decision.picture import JobPicture
from sentinel.core.health import Finding, Severity
from sentinel.core.model import (
    BadSteps,
    Budget,
    Cause,
    Incident,
    IncidentKind,
    JobState,
    Lost,
    Phase,
    ProtectedJob,
    Restartable,
    Symptom,
    Verdict,
)
from sentinel.core.now import Now
from sentinel.core.policy_model import Policy
from sentinel.core.recovery import transitions
from sentinel.core.recovery.budget import spent_budget
from sentinel.core.recovery.events import DeadlinePassed, EndRequested, Event, Fault, JobFinished, Progressed
from sentinel.core.recovery.move_again import Refused
from sentinel.core.recovery.moves import Terms
from sentinel.core.reports import MOVES, PACED, LogMatch
from sentinel.core.timing import slowdown
from sentinel.core.timing.job_timing import TimingSignal

DAY_S = 86_400.0
MOVES_FOR_PERFORMANCE = 2  # in 24 h
MOST_SLOWDOWNS = (
    3  # told of an incarnation: whose work grows by plan, or who is slow again and again, is known for it
)
PACE_S = 10.0  # longest wait for iterations that show the pace of a job that is well again
UNTOLD_STEPS = 20  # iterations without a step number after which the loss is told without one
ENDED_BY_SAVE = "EndedBySave"  # reason of the recovery of ranks that a signal to save has ended


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
    end: EndRequested | None = None
    size: int | None = None
    excluded: tuple[str, ...] | None = None
    bad_steps: BadSteps | None = None
    since_s: float | None = None  # of a fault with a first trace: when, by the monotonic clock


class Feed(Struct, frozen=True):
    """An event for the open incident."""

    reason: str
    sentence: str
    event: Event


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
        lost = _decide_lost_rank(picture, now)
        if picture.end is None or not isinstance(lost, Nothing):
            return lost
        return _end(picture, picture.end)  # only told of, in observe mode: what is left of the job is stopped
    told = picture.loss_lost
    # Of one that ends with exit code 0 too. What is not read yet may tell that the loss is a number again.
    if told and diverged.KEY not in picture.told and (picture.finished or not picture.is_behind(told.rank)):
        return _decide_lost_loss(picture, told, now)
    told = picture.norm_lost
    if told is not None and not picture.told & {diverged.KEY, diverged.NORM_KEY}:
        verdict = diverged.diverged(told, picture.failures, ended=picture.finished)
        return _notice(picture, diverged.NORM_REASON, verdict, diverged.NORM_KEY, told.at_s)
    if picture.finished:
        if (saved := picture.ended_by_save()) is not None:
            return _resumes_after_save(saved)
        sentence = picture.succeeded_as or "All ranks ended with exit code 0."
        return Finish("Succeeded", sentence, JobState.SUCCEEDED, 0)
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
    hurries = picture.end is not None and (
        picture.end.grace_s < incident.grace_s or (incident.phase == Phase.SAVING and not picture.end.save)
    )
    if picture.end is not None and hurries:
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
        event = Fault(verdict, picture.reached)
        return _feed(incident, "RankLost", verdict.sentence, event)
    # Ranks that end while they save are judged by the save, ranks that end while they start by the start.
    waits: Decision = Nothing("InProgress", f"The recovery is in phase {incident.phase.value}.")
    if incident.phase == Phase.VERIFYING:
        waits = _verify(picture, incident, now)
    # One that was through before anybody could see its iterations move has told from where it went on.
    if (
        running
        and picture.finished
        and not isinstance(waits, Feed)
        and transitions.accepts(incident, JobFinished())
    ):
        return _feed(incident, "JobFinished", "All ranks ended with exit code 0.", JobFinished())
    late = incident.deadline_mono_s is not None and now.mono_s >= incident.deadline_mono_s
    if late and isinstance(waits, Nothing):
        return _feed(incident, "DeadlinePassed", "The phase took too long.", DeadlinePassed())
    return waits


def _feed(incident: Incident, reason: str, sentence: str, event: Event) -> Decision:
    if not transitions.accepts(incident, event):
        return Nothing("InProgress", f"The recovery is in phase {incident.phase.value}.")
    return Feed(reason, sentence, event)


def _verify(picture: JobPicture, incident: Incident, now: Now) -> Decision:
    timing = picture.timing
    for signal in timing.signals(picture.known(now)):
        restarts = signal.symptom == Symptom.HANG and picture.job.policy.hang.action == "RestartAndAlert"
        if restarts and not signal.doubt:
            verdict = picture.verdict(now, signal)
            return Feed("Hang", verdict.sentence, Fault(verdict, picture.reached))
    if len(picture.alive) < picture.job.size - len(picture.exits):
        return Nothing("InProgress", "Not all ranks are up.")
    since = incident.opened_mono_s
    if picture.silent_since_s is not None and incident.verdict.symptom != Symptom.RETRY:
        since = picture.silent_since_s
    since_fault_s = now.mono_s - since
    first = timing.first_step
    iterated = picture.job.best_step is not None or incident.failed_step is not None
    if timing.has_timing or timing.hang.timed_before or iterated:
        count = max((rank.count for rank in timing.ranks.values()), default=0)
        # A log that named its steps before names them again: only then is the loss known. Of one that names none the
        # pace is waited for a moment, which is all that it can tell.
        least = MOVES if timing.steps_told or now.mono_s - incident.phase_mono_s >= PACE_S else PACED
        if count < (UNTOLD_STEPS if picture.job.steps_told and not timing.steps_told else least):
            return Nothing("InProgress", "Waits for iterations to move.")
        return Feed("Recovered", "", _progressed(picture, incident, first, since_fault_s))
    if now.mono_s - incident.phase_mono_s < picture.job.policy.verify_after_s:
        return Nothing("InProgress", "Waits for the ranks to stay up.")
    return Feed("Recovered", "", _progressed(picture, incident, None, since_fault_s))


def _progressed(
    picture: JobPicture, incident: Incident, first: int | None, since_fault_s: float
) -> Progressed:
    job = picture.job
    # What was counted of an earlier start is no step.
    undone = [s for s in (incident.failed_step, incident.top_step) if s is not None and job.steps_told]
    failed = max(undone, default=None)
    resumed = max(0, first - 1) if first is not None else None
    steps = max(0, failed - resumed) if failed is not None and resumed is not None else None
    lost = Lost(
        steps=steps,
        seconds=since_fault_s,
        gpu_seconds=since_fault_s * picture.gpus,
        resumed_from=resumed,
    )
    if resumed is None and picture.timing.has_timing:
        sentence = "Stepping again."
    elif resumed is None:
        sentence = f"All ranks stayed up for {job.policy.verify_after_s:.0f} s."
    elif resumed is not None and resumed <= 1 and failed is not None and failed > 2:
        sentence = f"Stepping again, but from the beginning: no checkpoint was loaded, {repeated(failed)}."
    else:
        sentence = f"Stepping again from step {resumed}"
        sentence += f": {repeated(steps)}." if steps is not None else "."
    bad = incident.bad_steps
    # Of a log that tells not each step the first ones after the start may not have been read.
    sure = resumed is not None and failed is not None and bad is not None and 2 * resumed > bad.first + failed
    if sure:
        sentence += (
            " Its checkpoint is one of those with the NaN loss: the program does not obey SENTINEL_BAD_STEPS."
        )
    return Progressed(lost, sentence)


def repeated(steps: int) -> str:
    return "1 step is repeated" if steps == 1 else f"{steps} steps are repeated"


def _expiry(picture: JobPicture) -> EndRequested:
    policy = picture.job.policy
    allowed = (policy.max_duration_s or 0.0) + picture.job.extra_s
    return EndRequested(
        JobState.EXPIRED,
        "Expired",
        f"The job has run for its {allowed:.0f} s (maxDuration).",
        policy.graceful_stop_s,
        save=True,
    )


def _end(picture: JobPicture, end: EndRequested) -> Open:
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
        ENDED_BY_SAVE, sentence, IncidentKind.FORCED, verdict, size=saved.size, excluded=saved.excluded
    )


def _decide_lost_rank(picture: JobPicture, now: Now) -> Decision:
    verdict = picture.verdict(now)
    since_s = min(gone.at_s if gone.ended_s is None else gone.ended_s for gone in picture.failed_exits)
    if picture.job.policy.mode == "observe":
        if len(picture.exits) >= picture.job.size:
            code = next((e.code for e in picture.failed_exits if e.code is not None), None)
            return Finish(
                "Observed", f"{verdict.sentence} (observe mode: nothing is done)", JobState.ERROR, code
            )
        return _notice(picture, "Observed", verdict, f"observed:{verdict.failure}", since_s)
    return Open("RankLost", verdict.sentence, IncidentKind.FORCED, verdict, since_s=since_s)


def _decide_lost_loss(picture: JobPicture, told: LogMatch, now: Now) -> Decision:
    policy, reason, then = picture.job.policy, "LossNotANumber", ""
    if policy.nan_loss.action == "RestartAndAlert" and policy.mode != "observe" and not picture.finished:
        verdict = diverged.diverged(told, picture.failures, ended=False)
        refusal = diverged.refusal(picture.job, told, verdict, picture.reached, now)
        if not refusal:
            then = (
                f"The job is restarted, to resume from a checkpoint of step {told.good_step} or an older one."
            )
            verdict = diverged.diverged(told, picture.failures, ended=False, then=then)
            bad_steps = diverged.bad_steps(told)
            return Open(
                reason,
                verdict.sentence,
                IncidentKind.FORCED,
                verdict,
                bad_steps=bad_steps,
                since_s=told.at_s,
            )
        then = f"The job goes on, and is not restarted: {refusal}"
    verdict = diverged.diverged(told, picture.failures, ended=picture.finished, then=then)
    return _notice(picture, reason, verdict, diverged.KEY, told.at_s)


def _notice(
    picture: JobPicture, reason: str, verdict: Verdict, key: str, since_s: float | None = None
) -> Decision:
    if key in picture.told:
        return Nothing("AlreadyTold", verdict.sentence)
    return Open(reason, verdict.sentence, IncidentKind.NOTICE, verdict, key, since_s=since_s)


def _decide_running(picture: JobPicture, now: Now) -> Decision:
    """The ranks are alive: signals of timing first, then findings, then growth."""
    outcome: Decision = Nothing("Healthy", "The job runs and nothing speaks against it.")
    signals = picture.timing.signals(picture.known(now))
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
    if may_grow(picture, now) and picture.grows_to > picture.job.size:
        return _grow(picture)
    return outcome


def _decide_signal(picture: JobPicture, signal: TimingSignal, now: Now) -> Decision:
    policy = picture.job.policy
    verdict = picture.verdict(now, signal)
    observe = policy.mode == "observe"
    if signal.doubt:
        sentence = (
            f"{verdict.sentence} It may be well: {signal.doubt}. So it is not restarted; `hang.after` in the policy "
            "names a time after which it is."
        )
        return _notice(picture, "MayBeWell", structs.replace(verdict, sentence=sentence), signal.key)
    since_s = picture.timing.last_at_s if signal.symptom == Symptom.HANG else None
    if signal.symptom == Symptom.HANG and policy.hang.action == "RestartAndAlert" and not observe:
        return Open("Hang", verdict.sentence, IncidentKind.FORCED, verdict, since_s=since_s)
    if signal.symptom == Symptom.SLOW and policy.performance.action == "RescheduleAndAlert" and not observe:
        # This incarnation was not moved for it, and the owner knows why.
        if signal.key in picture.told and not _again(picture, signal.key, now):
            return Nothing("AlreadyTold", verdict.sentence)
        reason, refusal = _refuse_performance_move(picture, verdict, now)
        if not reason:
            return Open("Slow", verdict.sentence, IncidentKind.CHOSEN, verdict, key=signal.key)
        verdict = structs.replace(verdict, sentence=f"{verdict.sentence} Not restarted: {refusal}")
        return _notice(picture, reason, verdict, signal.key)
    if (
        signal.symptom == Symptom.SLOWDOWN
        and sum(key.startswith(slowdown.KEY) for key in picture.told) >= MOST_SLOWDOWNS
    ):
        return Nothing("AlreadyTold", verdict.sentence)
    return _notice(picture, "Observed" if observe else "AlertOnly", verdict, signal.key, since_s)


def _refuse_performance_move(picture: JobPicture, verdict: Verdict, now: Now) -> tuple[str, str]:
    """(reason, sentence), both empty where the job may be moved."""
    job = picture.job
    if job.policy.resume is None:
        return "NotResumable", "the policy has no `resume`."
    if picture.pinned:
        return "PinnedToNode", _pinned(picture)
    if job.performance_frozen:
        return "AlertOnly", job.performance_frozen
    if job.failures and job.failures[-1].failure == verdict.failure and not picture.was_fast:
        return MOVE_DID_NOT_HELP, "the last restart for its performance did not help."
    ran_s = job.run_time_s(now)
    recent = [at for at in job.performance_moves_run_s if ran_s - at < DAY_S]
    if len(recent) >= MOVES_FOR_PERFORMANCE:
        return "AlertOnly", f"it was restarted for its performance {len(recent)} times in its last 24 h."
    spent = spent_budget(job, verdict.budget, now)
    return ("BudgetExhausted", spent) if spent else ("", "")


def _decide_finding(picture: JobPicture, finding: Finding, now: Now) -> Decision:
    """A finding about what this job uses, a GPU or a whole node, while the job still steps."""
    key = _key(finding)
    job = picture.job
    if finding.place not in picture.places:
        return Nothing("NotOurs", f"{finding.summary}: not used by this job.")
    if finding.place in job.excluded:
        return Nothing("AlreadyAvoided", f"{finding.place} is already left out.")
    verdict = structs.replace(picture.verdict(now), entity=finding.place)
    since_s = None if key in picture.refused else _first_seen_s(finding, job, now)
    if job.policy.mode == "observe" or (key in picture.told and not _again(picture, key, now)):
        return _notice(picture, "Observed", verdict, key, since_s)
    if job.policy.resume is None:
        return _notice(picture, "NotResumable", verdict, key, since_s)
    if picture.pinned:
        verdict = structs.replace(verdict, sentence=f"{verdict.sentence} Not moved: {_pinned(picture)}")
        return _notice(picture, "PinnedToNode", verdict, key, since_s)
    if spent := spent_budget(job, verdict.budget, now):
        verdict = structs.replace(verdict, sentence=f"{verdict.sentence} Not moved: {spent}")
        return _notice(picture, "BudgetExhausted", verdict, key, since_s)
    return Open(
        "NodeFault",
        verdict.sentence,
        IncidentKind.CHOSEN,
        verdict,
        key=key,
        excluded=(*job.excluded, finding.place),
        since_s=since_s,
    )


def _first_seen_s(finding: Finding, job: ProtectedJob, now: Now) -> float | None:
    """As a fault of this job's ranks: not before they were started. None of what stands since no moment: a drain that a
    person asked for, a counter that grew to be worse."""
    if not finding.event or not finding.first_seen_wall_s:
        return None
    seen_s = now.mono_s - max(0.0, now.wall_s - finding.first_seen_wall_s)
    return max(seen_s, job.started_mono_s or seen_s)


def _pinned(picture: JobPicture) -> str:
    return f"its pods can run on {picture.pinned} only."


def _key(finding: Finding) -> str:
    return "finding:" + ":".join(finding.key)


def _again(picture: JobPicture, key: str, now: Now) -> bool:
    """Is a move that was refused tried once more?"""
    before = picture.refused.get(key)
    return before is not None and picture.fits_again == key and now.mono_s >= before.again_mono_s


def waits_to_move(picture: JobPicture, now: Now) -> Refused | None:
    """The move that was refused and would be made if there were room: what it was for still stands."""
    job = picture.job
    if picture.incident is not None or job.state != JobState.RUNNING or job.policy.mode == "observe":
        return None
    found = [_key(one) for one in picture.findings if one.place in picture.places]
    signals = [signal.key for signal in picture.timing.signals(picture.known(now))]
    return next((picture.refused[key] for key in (*signals, *found) if key in picture.refused), None)


def may_grow(picture: JobPicture, now: Now) -> bool:
    """Would room for more ranks be a reason to stop it? It runs, smaller than at first, long enough, and can prove a
    save."""
    job, elastic = picture.job, picture.job.policy.elastic
    checkpoint = job.policy.resume.checkpoint if job.policy.resume else None
    return bool(
        elastic
        and elastic.allow_grow
        and not job.elastic_frozen
        and job.size < job.original_size
        and job.state == JobState.RUNNING
        and picture.incident is None
        and checkpoint is not None
        and checkpoint.proof is not None
        and job.policy.mode != "observe"
        and job.run_time_s(now) >= job.grows_after_run_s
    )


def kept_out(picture: JobPicture) -> tuple[str, ...]:
    """What the job avoids and is not well again."""
    return () if picture.entities_back else picture.job.excluded


def _grow(picture: JobPicture) -> Decision:
    job = picture.job
    verdict = Verdict(
        symptom=Symptom.RESIZE,
        cause=Cause.UNKNOWN,
        failure="resize",
        scope="job",
        sentence=f"There is room again: the job can grow from {job.size} to {picture.grows_to} ranks.",
        budget=Budget.FREE,
        restart=Restartable.YES,
    )
    return Open(
        "Grow",
        verdict.sentence,
        IncidentKind.CHOSEN,
        verdict,
        size=picture.grows_to,
        excluded=kept_out(picture),
    )
