"""Events, verdicts and records that the tests of the recovery share."""

from sentinel.core.model import (
    Budget,
    Cause,
    Incident,
    IncidentKind,
    JobState,
    Lost,
    Phase,
    ProtectedJob,
    SaveResult,
    Symptom,
    Verdict,
)
from sentinel.core.now import Now
from sentinel.core.policy_model import Checkpoint, Policy, Resume
from sentinel.core.recovery.events import (
    Begin,
    CancelRequested,
    DeadlinePassed,
    EndRequested,
    Event,
    Fault,
    GivenUp,
    JobFinished,
    JobGone,
    Plan,
    PrecheckPassed,
    PrecheckRefused,
    Progressed,
    RanksStarted,
    Rescaled,
    SaveEnded,
    StartRefused,
    StartWaits,
    StopEnded,
    StopStuck,
    StopWaits,
)

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
    return EndRequested(state, "Stopped", "Stopped by a person.", grace_s, save, 130)


BEGIN = Begin("RankLost", "Rank 1 was lost.")
PASSED = PrecheckPassed(2, (), "The pre-check passed.")
REFUSED = PrecheckRefused("NoRoom", "No room.")
SAVED = SaveEnded(SaveResult(proved_by="a line", step=100), True, "Saved.")
UNPROVED = SaveEnded(SaveResult(), False, "Not proved.")
STOPPED = StopEnded(plan(True))
STUCK = StopStuck(("pid 42 (D in nvidia_close)",))
FAILED_BY_KIND = StopStuck((), ended="PyTorchJob train has failed. It cannot be started again.")
STARTED = RanksStarted("2 ranks run.")
NO_ROOM = StartRefused("NoRoom", "No room.", permanent=False)
START_FAILED = StartRefused("StartFailed", "The start failed.", permanent=False, tried=True)
NOT_FOUND = StartRefused("NotFound", "No such program.", permanent=True)
PROGRESSED = Progressed(Lost(steps=3), "Stepping again.")
FAULT = Fault(verdict(), 7)
FINISHED = JobFinished()
WAITS = StopWaits("Nobody answers on node-7.")
GONE = JobGone("JobDeleted", "The job was deleted.")
QUEUED, LET_IN = StartWaits("It waits for its turn in a queue."), StartWaits("")
RESCALED = Rescaled(3, "The job asks for 3 pods now.")
GIVEN_UP = GivenUp(plan(False))
EXHAUSTED = GivenUp(plan(False, exhausted=True))
LATE = DeadlinePassed()

# One of each kind of event, and each variant that a handler tells apart.
EVENTS: tuple[Event, ...] = (
    BEGIN,
    PASSED,
    REFUSED,
    SAVED,
    UNPROVED,
    STOPPED,
    StopEnded(plan(False)),
    StopEnded(plan(False, exhausted=True)),
    STUCK,
    FAILED_BY_KIND,
    STARTED,
    NO_ROOM,
    START_FAILED,
    NOT_FOUND,
    PROGRESSED,
    FAULT,
    FINISHED,
    WAITS,
    GONE,
    RESCALED,
    QUEUED,
    LET_IN,
    GIVEN_UP,
    EXHAUSTED,
    LATE,
    CancelRequested("Cancelled."),
    end(),
    end(save=True),
    end(0.0),
)
