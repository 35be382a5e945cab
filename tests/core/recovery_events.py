"""Events, verdicts and records that the tests of the recovery share."""

from sentinel.core import recovery
from sentinel.core.model import (
    Budget,
    Cause,
    Checkpoint,
    Incident,
    IncidentKind,
    JobState,
    Lost,
    Now,
    Phase,
    Policy,
    ProtectedJob,
    Resume,
    SaveResult,
    Symptom,
    Verdict,
)
from sentinel.core.recovery import Event, Plan

NOW = Now(1000.0, 1_700_000_000.0)
RESUMABLE = Policy(
    resume=Resume(max_resumes=3, graceful_stop_s=60.0, checkpoint=Checkpoint(timeout_s=120.0)), restart=None
)
RUNNING_PHASES = frozenset({Phase.SAVING, Phase.VERIFYING})


def verdict(
    symptom: Symptom = Symptom.RANK_LOST, budget: Budget = Budget.INFRASTRUCTURE, **more: object
) -> Verdict:
    given: dict[str, object] = {
        "cause": Cause.UNKNOWN,
        "failure": "killed",
        "scope": "node",
        "sentence": "Rank 1 was lost: killed by signal 9.",
    }
    return Verdict(symptom=symptom, budget=budget, **(given | more))  # type: ignore[arg-type]


def incident(kind: IncidentKind, **more: object) -> Incident:
    given: dict[str, object] = {
        "verdict": verdict(),
        "incarnation": 4,
        "size": 2,
        "from_size": 2,
        "failed_step": 100,
    }
    if kind == IncidentKind.ENDING:
        given |= {"end_state": JobState.STOPPED, "reason_of_end": "Stopped", "sentence_of_end": "Stopped."}
    return Incident(id="j-0001", job="j", kind=kind, **(given | more))  # type: ignore[arg-type]


def a_job(policy: Policy = RESUMABLE, **more: object) -> ProtectedJob:
    given: dict[str, object] = {
        "incarnation": 4,
        "size": 2,
        "original_size": 2,
        "state": JobState.RUNNING,
        "started_mono_s": 0.0,
    }
    return ProtectedJob(name="j", policy=policy, **(given | more))  # type: ignore[arg-type]


def plan(restart: bool, *, exhausted: bool = False, **more: object) -> Plan:
    return Plan(
        restart=restart,
        reason="Restart" if restart else "BudgetExhausted" if exhausted else "NotRestartable",
        sentence="What follows.",
        verdict=verdict(),
        exhausted=exhausted,
        **more,  # type: ignore[arg-type]
    )


def end(grace_s: float = 30.0, *, save: bool = False, state: JobState = JobState.STOPPED) -> Event:
    return recovery.EndRequested(state, "Stopped", "Stopped by a person.", grace_s, save, 130)


BEGIN = recovery.Begin("RankLost", "Rank 1 was lost.")
PASSED = recovery.PrecheckPassed(2, (), "The pre-check passed.")
REFUSED = recovery.PrecheckRefused("NoRoom", "No room.")
SAVED = recovery.SaveEnded(SaveResult(proved_by="a line", step=100), True, "Saved.")
UNPROVED = recovery.SaveEnded(SaveResult(), False, "Not proved.")
STOPPED = recovery.StopEnded(plan(True))
STUCK = recovery.StopStuck(("pid 42 (D in nvidia_close)",))
STARTED = recovery.RanksStarted("2 ranks run.")
NO_ROOM = recovery.StartRefused("NoRoom", "No room.", permanent=False)
START_FAILED = recovery.StartRefused("StartFailed", "The start failed.", permanent=False, tried=True)
NOT_FOUND = recovery.StartRefused("NotFound", "No such program.", permanent=True)
PROGRESSED = recovery.Progressed(Lost(steps=3), "Stepping again.")
FAULT = recovery.Fault(verdict(), 7)
FINISHED = recovery.JobFinished()
LATE = recovery.DeadlinePassed()

# One of each kind of event, and each variant that a handler tells apart.
EVENTS: tuple[Event, ...] = (
    BEGIN,
    PASSED,
    REFUSED,
    SAVED,
    UNPROVED,
    STOPPED,
    recovery.StopEnded(plan(False)),
    recovery.StopEnded(plan(False, exhausted=True)),
    STUCK,
    STARTED,
    NO_ROOM,
    START_FAILED,
    NOT_FOUND,
    PROGRESSED,
    FAULT,
    FINISHED,
    LATE,
    end(),
    end(save=True),
    end(0.0),
)
