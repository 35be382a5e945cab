"""The job's books: its record after its incident moved. State, run time, budgets, failures, size. Pure."""

from msgspec import structs

from sentinel.core.decision.diverged import widened
from sentinel.core.model import (
    HANG,
    Budget,
    Failure,
    Incident,
    IncidentKind,
    JobState,
    Phase,
    ProtectedJob,
    Symptom,
)
from sentinel.core.now import Now
from sentinel.core.recovery.budget import KEPT_FAILURES, budget_is_reset
from sentinel.core.recovery.events import CANCELLED_BY_PERSON
from sentinel.core.stacks.reading import paused_in, read

MOVE_DID_NOT_HELP = "MoveDidNotHelp"  # reason of a notice: from then on slowness is only told
GROW_AGAIN_S = 6 * 3600.0  # of run time, after a growth that came to nothing


def settle(job: ProtectedJob, before: Incident | None, after: Incident, now: Now) -> ProtectedJob:
    """The job's record after its incident moved: state, budgets, failures, size. Saved with the incident.

    `before` None: the incident was opened by this move.
    """
    if before is None and after.kind == IncidentKind.NOTICE:
        return _freeze_performance(job, after)
    # Somebody else changed what the job asks for.
    if before is not None and after.from_size != before.from_size:
        job = structs.replace(job, size=after.from_size, original_size=after.from_size)
    if before is not None and before.phase == after.phase and before.incarnation == after.incarnation:
        return job
    gave_up = after.phase in (Phase.KEPT_RUNNING, Phase.CANCELLED)
    if gave_up and after.verdict.symptom == Symptom.RESIZE:
        job = structs.replace(job, grows_after_run_s=job.run_time_s(now) + GROW_AGAIN_S)
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
        "inner_restarts": 0,
        "degraded": (),  # was told of the incarnation that is over
    }
    if incident.bad_steps is not None:
        reached = max(incident.failed_step or 0, incident.top_step or 0)
        changes["bad_steps"] = widened(incident.bad_steps, job.bad_steps, reached)
    changes |= {k: v for k, v in _clock_stopped(job, now).items() if k == "run_s"}
    if job.policy.elastic is None:
        changes["original_size"] = incident.size
    else:
        fell_back = incident.failed_starts > 0 and incident.size < job.original_size
        pause_s = max(GROW_AGAIN_S if fell_back else 0.0, job.policy.elastic.grow_after_s)
        changes["grows_after_run_s"] = job.run_time_s(now) + pause_s
    if not paid:
        if verdict.budget == Budget.FREE:
            changes["used_free"] = job.used_free + 1
        elif verdict.budget == Budget.INFRASTRUCTURE:
            changes["used_infrastructure"] = job.used_infrastructure + 1
        else:
            changes["used_job"] = job.used_job + 1
        failure = Failure(
            wall_s=now.wall_s,
            run_s=job.run_time_s(now),
            failure=verdict.failure,
            budget=verdict.budget,
            step=incident.failed_step,
            checkpoint_step=job.checkpoint.step if job.checkpoint else None,
            entity=verdict.entity,
            place=verdict.place,
            pause=paused_in(map(read, incident.stacks)) if verdict.failure == HANG else "",
        )
        changes["failures"] = (*job.failures, failure)[-KEPT_FAILURES:]
        if verdict.symptom == Symptom.SLOW:
            changes["performance_moves_run_s"] = (*job.performance_moves_run_s, job.run_time_s(now))[-10:]
    return structs.replace(job, **changes)


def _state_of(job: ProtectedJob, incident: Incident) -> tuple[JobState, int | None]:
    phase = incident.phase
    if phase == Phase.ENDED and incident.end_state is not None:
        return incident.end_state, incident.end_code
    if phase in (Phase.FAILED, Phase.EXHAUSTED):
        return JobState.ERROR, None
    if incident.kind == IncidentKind.FORCED and phase == Phase.PRECHECKING:
        return JobState.QUEUED, None
    if incident.kind == IncidentKind.FORCED and incident.reason == CANCELLED_BY_PERSON:  # nothing of it runs
        return JobState.STOPPED, None
    return JobState.RUNNING, None
