"""A recovery on paper: the same state machine, with room, save and start taken to succeed."""

from msgspec import Struct

from sentinel.core.decision import books, incidents, policy
from sentinel.core.decision.picture import JobPicture
from sentinel.core.model import Incident, IncidentKind, Phase, ProtectedJob, SaveResult, Step, Verdict
from sentinel.core.now import Now
from sentinel.core.policy_model import Policy
from sentinel.core.recovery import budget, transitions
from sentinel.core.recovery.events import (
    Begin,
    DoPrecheck,
    DoSave,
    DoStart,
    DoStop,
    Effect,
    Event,
    PrecheckPassed,
    RanksStarted,
    SaveEnded,
    StopEnded,
)


class Foreseen(Struct, frozen=True, kw_only=True):
    """One decision, and what would have followed. `at_s`: Unix seconds, or seconds since the log's beginning."""

    at_s: float
    reason: str
    kind: str
    sentence: str
    verdict: Verdict | None
    step: int | None
    then: tuple[Step, ...] = ()
    outcome: str = ""  # the last phase that would have been reached; "Verifying": it was started again
    plan: str = ""  # in words
    restarts_left: int | None = None
    save: str = ""
    grace_s: float | None = None


def foresee(picture: JobPicture, decision: policy.Open, now: Now) -> tuple[Foreseen, ProtectedJob]:
    """What would have followed, and the job's books after it."""
    job = picture.with_progress()
    incident = incidents.open_incident(picture, decision, now, "")
    terms = policy.terms(job.policy)
    begin = Begin(decision.reason, decision.sentence)
    moved, effect = transitions.step(incident, begin, now, terms)
    settled = books.settle(job, None, moved, now)
    while (event := _outcome(picture, settled, moved, effect, now)) is not None:
        before = moved
        moved, effect = transitions.step(moved, event, now, terms)
        settled = books.settle(settled, before, moved, now)
    told = Foreseen(
        at_s=now.mono_s,
        reason=decision.reason,
        kind=decision.kind.value,
        sentence=decision.sentence,
        verdict=moved.verdict if decision.kind != IncidentKind.ENDING else decision.verdict,
        step=picture.timing.last_step,
        then=moved.steps,
        outcome=moved.phase.value,
        plan=_plan_sentence(moved),
        restarts_left=budget.restarts_left(settled, now),
        save=_save_words(job.policy, moved),
        grace_s=None if decision.kind == IncidentKind.NOTICE else moved.grace_s,
    )
    return told, settled


def _outcome(
    picture: JobPicture, job: ProtectedJob, incident: Incident, effect: Effect | None, now: Now
) -> Event | None:
    if isinstance(effect, DoPrecheck):
        return PrecheckPassed(incident.size, incident.excluded, "Room is taken for granted.")
    if isinstance(effect, DoSave):
        if job.policy.resume is None or job.policy.resume.checkpoint is None:
            why = "the policy names no checkpoint signal"
            return SaveEnded(SaveResult(skipped=why), False, f"Not saved: {why}.")
        return SaveEnded(SaveResult(), True, "The save is taken to succeed.")
    if isinstance(effect, DoStop):
        last = picture.reached
        plan = budget.plan(job, incident, incident.verdict, last, now)
        return StopEnded(plan, (), last)
    if isinstance(effect, DoStart):
        return RanksStarted("The start is taken to succeed.")
    return None


def _plan_sentence(incident: Incident) -> str:
    """The line of the story that says whether and how it goes on."""
    if incident.phase.final:
        return incident.sentence
    for entry in reversed(incident.steps):
        if entry.phase in (Phase.PRECHECKING, Phase.STARTING) and entry.reason != "PrecheckPassed":
            return entry.sentence
    return incident.sentence


def _save_words(asked: Policy, incident: Incident) -> str:
    if not any(entry.phase == Phase.SAVING for entry in incident.steps):
        return ""
    checkpoint = asked.resume.checkpoint if asked.resume else None
    if checkpoint is None:
        return "no checkpoint signal in the policy"
    return f"{checkpoint.signal} to {checkpoint.ranks} ranks, at most {checkpoint.timeout_s:.0f} s"
