"""The recovery of one incident: a pure state machine.

`step(incident, event, now) -> (incident, effects)`. TRANSITIONS is the whole machine: an event that has
no row for the phase raises, and so does a handler that ends in a phase its row does not name.
The caller saves the new record before it performs the effects; effects are idempotent, so after a
crash `resume(incident)` gives those of the current phase again.

    forced:  Detected → Stopping → Prechecking → Starting → Verifying → Recovered
    chosen:  Detected → Prechecking → Saving → Stopping → Starting → Verifying → Recovered
    ending:  Detected → Saving → Stopping → Ended
"""

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct, structs

from sentinel.core.events import (
    Begin,
    DeadlinePassed,
    DoMail,
    DoPrecheck,
    DoSave,
    DoStart,
    DoStop,
    Effect,
    EndRequested,
    Event,
    Fault,
    JobFinished,
    Plan,
    PrecheckPassed,
    PrecheckRefused,
    Progressed,
    RanksStarted,
    SaveEnded,
    StartRefused,
    StopEnded,
    StopStuck,
)
from sentinel.core.model import (
    Checkpoint,
    Incident,
    IncidentKind,
    Now,
    Phase,
    SaveResult,
    Stage,
    StageMail,
    Step,
    Symptom,
)

__all__ = [
    "MAX_STEPS",
    "RETRY_PRECHECK_S",
    "START_TRIES",
    "TRANSITIONS",
    "Begin",
    "DeadlinePassed",
    "DoMail",
    "DoPrecheck",
    "DoSave",
    "DoStart",
    "DoStop",
    "Effect",
    "EndRequested",
    "Event",
    "Fault",
    "JobFinished",
    "Plan",
    "PrecheckPassed",
    "PrecheckRefused",
    "Progressed",
    "RanksStarted",
    "Result",
    "SaveEnded",
    "StartRefused",
    "StopEnded",
    "StopStuck",
    "Terms",
    "UnexpectedEvent",
    "accepts",
    "resume",
    "step",
]

Result: TypeAlias = tuple[Incident, tuple[Effect, ...]]

RETRY_PRECHECK_S = 10.0
PRECHECK_S = 60.0  # of a job that still steps: it must not wait for an answer that never comes
START_TRIES = 5  # starts in a row of which not all ranks came up; a pause before each next one
# A save must be judged by its own time-out; this only bounds a judge that died.
SAVE_SLACK_S = 30.0
MAX_STEPS = 200  # of a story; a recovery that waits for days must not grow its record without end


class Terms(Struct, frozen=True, kw_only=True):
    """What the policy allows this recovery, so that `step` needs nothing else."""

    checkpoint: Checkpoint | None
    graceful_stop_s: float
    lost_rank_grace_s: float
    start_timeout_s: float
    precheck_wait_s: float
    stop_slack_s: float = 60.0
    # Compiling and loading a large model take tens of minutes; a hang after it is found much sooner.
    verify_limit_s: float = 3600.0


# ---------------------------------------------------------------- helpers


def _to(
    incident: Incident,
    phase: Phase,
    now: Now,
    reason: str,
    sentence: str,
    deadline_s: float | None = None,
    **changes: object,
) -> Incident:
    entry = Step(phase=phase, wall_s=now.wall_s, reason=reason, sentence=sentence)
    story = incident.steps
    if len(story) >= MAX_STEPS:
        story = story[: MAX_STEPS // 2] + story[-(MAX_STEPS // 2) + 1 :]
    return structs.replace(
        incident,
        phase=phase,
        reason=reason,
        sentence=sentence,
        phase_mono_s=now.mono_s,
        deadline_mono_s=None if deadline_s is None else now.mono_s + deadline_s,
        closed_wall_s=now.wall_s if phase.final else None,
        steps=(*story, entry),
        **changes,
    )


def _tell(incident: Incident, stage: Stage) -> Incident:
    if any(mail.stage == stage for mail in incident.mails):
        return incident
    return structs.replace(incident, mails=(*incident.mails, StageMail(stage=stage)))


def _stop_effect(incident: Incident) -> DoStop:
    hang = incident.kind == IncidentKind.FORCED and incident.verdict.symptom == Symptom.HANG
    return DoStop(grace_s=incident.grace_s, stacks=hang and not incident.stacks)


def _stopping(incident: Incident, now: Now, terms: Terms, reason: str, sentence: str) -> Result:
    incident = _to(incident, Phase.STOPPING, now, reason, sentence, incident.grace_s + terms.stop_slack_s)
    return incident, (_stop_effect(incident),)


def _saving(incident: Incident, now: Now, terms: Terms, reason: str, sentence: str) -> Result:
    timeout_s = terms.checkpoint.timeout_s if terms.checkpoint else 0.0
    incident = _to(incident, Phase.SAVING, now, reason, sentence, timeout_s + SAVE_SLACK_S)
    return incident, (DoSave(),)


def _starting(incident: Incident, now: Now, terms: Terms, reason: str, sentence: str) -> Result:
    incident = _to(
        incident,
        Phase.STARTING,
        now,
        reason,
        sentence,
        terms.start_timeout_s,
        incarnation=incident.incarnation + 1,
        attempt=incident.attempt + 1,
        paid=True,
    )
    return incident, (DoStart(incident.incarnation, incident.size, incident.excluded),)


def _close(incident: Incident, phase: Phase, now: Now, reason: str, sentence: str) -> Result:
    incident = _to(incident, phase, now, reason, sentence)
    if phase == Phase.KEPT_RUNNING or (phase == Phase.ENDED and reason != "Stopped"):
        incident = _tell(incident, Stage.NOTICE)
    elif phase == Phase.RECOVERED:
        incident = _tell(incident, Stage.RECOVERED)
    elif phase in (Phase.FAILED, Phase.EXHAUSTED):
        incident = _tell(incident, Stage.GAVE_UP)
    return incident, (DoMail(),) if any(m.state == "waiting" for m in incident.mails) else ()


# ---------------------------------------------------------------- handlers


def _begin(incident: Incident, event: Begin, now: Now, terms: Terms) -> Result:
    if incident.kind == IncidentKind.NOTICE:
        return _close(incident, Phase.KEPT_RUNNING, now, event.reason, event.sentence)
    if incident.kind == IncidentKind.FORCED:
        incident = structs.replace(incident, grace_s=terms.lost_rank_grace_s)
        return _stopping(incident, now, terms, event.reason, event.sentence)
    if incident.kind == IncidentKind.CHOSEN:
        incident = structs.replace(incident, grace_s=terms.graceful_stop_s)
        incident = _to(incident, Phase.PRECHECKING, now, event.reason, event.sentence, PRECHECK_S)
        return incident, (DoPrecheck(now.mono_s),)
    if incident.save_wanted:
        return _saving(incident, now, terms, event.reason, event.sentence)
    return _stopping(incident, now, terms, event.reason, event.sentence)


def _precheck_passed(incident: Incident, event: PrecheckPassed, now: Now, terms: Terms) -> Result:
    incident = structs.replace(incident, size=event.size, excluded=event.excluded)
    if incident.kind == IncidentKind.CHOSEN:
        incident = _tell(incident, Stage.STARTED)
        incident, effects = _saving(incident, now, terms, "RoomFound", event.sentence)
        return incident, (*effects, DoMail())
    return _starting(incident, now, terms, "PrecheckPassed", event.sentence)


def _precheck_refused(incident: Incident, event: PrecheckRefused, now: Now, terms: Terms) -> Result:
    if incident.kind == IncidentKind.CHOSEN:
        return _close(incident, Phase.KEPT_RUNNING, now, event.reason, event.sentence)
    if incident.sentence != event.sentence:  # a refusal that only repeats adds no line to the story
        deadline = incident.deadline_mono_s
        incident = _to(incident, Phase.PRECHECKING, now, event.reason, event.sentence)
        incident = structs.replace(incident, deadline_mono_s=deadline)
    return incident, (DoPrecheck(now.mono_s + RETRY_PRECHECK_S),)


def _precheck_late(incident: Incident, event: DeadlinePassed, now: Now, terms: Terms) -> Result:
    if incident.kind == IncidentKind.CHOSEN:
        sentence = "Not moved: the pre-check did not end in its time."
        return _close(incident, Phase.KEPT_RUNNING, now, "PrecheckTimeout", sentence)
    answered = len(incident.steps) > 1 and incident.steps[-2].phase != Phase.STOPPING
    if answered:  # the phase's last line is the refusal that lasted
        return _close(incident, Phase.FAILED, now, incident.reason, incident.sentence)
    return _close(incident, Phase.FAILED, now, "PrecheckTimeout", "The pre-check did not end in its time.")


def _save_ended(incident: Incident, event: SaveEnded, now: Now, terms: Terms) -> Result:
    incident = structs.replace(incident, save=event.result)
    if event.counts or incident.kind == IncidentKind.ENDING:
        reason = "Saved" if event.counts else "SaveUnproved"
        return _stopping(incident, now, terms, reason, event.sentence)
    return _close(incident, Phase.KEPT_RUNNING, now, "SaveUnproved", event.sentence)


def _save_late(incident: Incident, event: DeadlinePassed, now: Now, terms: Terms) -> Result:
    ended = SaveEnded(
        SaveResult(skipped="the save was never judged"), False, "The save did not end in its time."
    )
    return _save_ended(incident, ended, now, terms)


def _broke(incident: Incident, event: Fault, terms: Terms) -> Incident:
    """From now on it is a forced recovery, with the new fault's verdict."""
    undone = [step for step in (incident.top_step, incident.failed_step) if step is not None]
    return structs.replace(
        incident,
        kind=IncidentKind.FORCED,
        verdict=event.verdict,
        failed_step=event.failed_step,
        top_step=max(undone, default=None),
        grace_s=terms.lost_rank_grace_s,
    )


def _fault_while_saving(incident: Incident, event: Fault, now: Now, terms: Terms) -> Result:
    """A collective save would hang without the lost rank: what is left of the job is stopped."""
    incident = structs.replace(incident, save=SaveResult(skipped="a rank was lost while the job saved"))
    if incident.kind == IncidentKind.CHOSEN:
        incident = _broke(incident, event, terms)
    incident = structs.replace(incident, grace_s=terms.lost_rank_grace_s)
    return _stopping(incident, now, terms, "RankLost", event.verdict.sentence)


def _fault_again(incident: Incident, event: Fault, now: Now, terms: Terms) -> Result:
    """A fault of the incarnation that this recovery started: the same incident goes on."""
    incident = structs.replace(_broke(incident, event, terms), paid=False, stacks=())
    return _stopping(incident, now, terms, "FaultAgain", event.verdict.sentence)


def _fault_before_stop(incident: Incident, event: Fault, now: Now, terms: Terms) -> Result:
    """While a chosen stop still looked for room the job broke by itself, or the machine was started again."""
    return _stopping(_broke(incident, event, terms), now, terms, "RankLost", event.verdict.sentence)


def _stop_ended(incident: Incident, event: StopEnded, now: Now, terms: Terms) -> Result:
    plan = event.plan
    failed_step = incident.failed_step if event.last_step is None else event.last_step
    incident = structs.replace(incident, stacks=event.stacks or incident.stacks, failed_step=failed_step)
    if incident.end_state is not None:
        return _close(incident, Phase.ENDED, now, incident.reason_of_end, incident.sentence_of_end)
    incident = structs.replace(incident, verdict=plan.verdict)
    if incident.kind == IncidentKind.CHOSEN:
        return _starting(incident, now, terms, plan.reason, plan.sentence)
    if plan.failed_step is not None:
        incident = structs.replace(incident, failed_step=plan.failed_step)
    if not plan.restart:
        phase = Phase.EXHAUSTED if plan.exhausted else Phase.FAILED
        return _close(incident, phase, now, plan.reason, plan.sentence)
    incident = _tell(incident, Stage.STARTED)
    if plan.avoid and plan.avoid not in incident.excluded:
        incident = structs.replace(incident, excluded=(*incident.excluded, plan.avoid))
    incident = _to(
        incident, Phase.PRECHECKING, now, plan.reason, plan.sentence, plan.delay_s + terms.precheck_wait_s
    )
    return incident, (DoPrecheck(now.mono_s + plan.delay_s), DoMail())


def _stop_stuck(incident: Incident, event: StopStuck, now: Now, terms: Terms) -> Result:
    incident = structs.replace(incident, stacks=event.stacks or incident.stacks)
    sentence = "Processes that cannot be ended: " + "; ".join(event.stuck) + ". A reboot is needed."
    return _close(incident, Phase.FAILED, now, "StopStuck", sentence)


def _stop_late(incident: Incident, event: DeadlinePassed, now: Now, terms: Terms) -> Result:
    """What stops is bounded in time, so it broke: asked for once more, with no grace left to give."""
    if incident.grace_s > 0:
        incident = structs.replace(incident, grace_s=0.0)
        return _stopping(incident, now, terms, "StopTimeout", "The stop did not end in its time: killed now.")
    return _stop_stuck(incident, StopStuck(("the stop did not end in its time",)), now, terms)


def _ranks_started(incident: Incident, event: RanksStarted, now: Now, terms: Terms) -> Result:
    incident = structs.replace(incident, failed_starts=0)
    return _to(incident, Phase.VERIFYING, now, "RanksStarted", event.sentence, terms.verify_limit_s), ()


def _start_refused(incident: Incident, event: StartRefused, now: Now, terms: Terms) -> Result:
    """Nothing runs now, so what was a chosen stop has become a recovery that waits for its room."""
    if event.permanent:
        return _close(incident, Phase.FAILED, now, event.reason, event.sentence)
    if event.tried:
        return _start_failed(incident, now, terms, event.reason, event.sentence)
    incident = structs.replace(incident, kind=IncidentKind.FORCED)
    incident = _to(incident, Phase.PRECHECKING, now, event.reason, event.sentence, terms.precheck_wait_s)
    return incident, (DoPrecheck(now.mono_s + RETRY_PRECHECK_S),)


def _start_late(incident: Incident, event: DeadlinePassed, now: Now, terms: Terms) -> Result:
    return _start_failed(incident, now, terms, "StartTimeout", "Not all ranks came up in the start time.")


def _start_failed(incident: Incident, now: Now, terms: Terms, reason: str, sentence: str) -> Result:
    """Half-started: what is left is stopped, gives back its room and waits, at no cost to the budget."""
    incident = structs.replace(
        incident,
        kind=IncidentKind.FORCED,
        failed_starts=incident.failed_starts + 1,
        grace_s=terms.lost_rank_grace_s,
    )
    return _stopping(incident, now, terms, reason, sentence)


def _progressed(incident: Incident, event: Progressed, now: Now, terms: Terms) -> Result:
    incident = structs.replace(incident, lost=event.lost)
    return _close(incident, Phase.RECOVERED, now, "Recovered", event.sentence)


def _finished_while_verifying(incident: Incident, event: JobFinished, now: Now, terms: Terms) -> Result:
    return _close(incident, Phase.RECOVERED, now, "JobFinished", "The job ran to its end after the restart.")


def _finished_by_itself(incident: Incident, event: JobFinished, now: Now, terms: Terms) -> Result:
    return _close(
        incident, Phase.CANCELLED, now, "JobFinished", "The job ended by itself before it was stopped."
    )


def _verify_late(incident: Incident, event: DeadlinePassed, now: Now, terms: Terms) -> Result:
    sentence = (
        "The ranks run, but nothing shows that iterations move: whether the job recovered is not known."
    )
    return _close(incident, Phase.KEPT_RUNNING, now, "NotVerified", sentence)


def _with_end(incident: Incident, event: EndRequested) -> Incident:
    """The first request says how the job ends; a later one only shortens its time."""
    if incident.end_state is not None:
        return structs.replace(incident, grace_s=min(incident.grace_s, event.grace_s))
    return structs.replace(
        incident,
        kind=IncidentKind.ENDING,
        end_state=event.state,
        end_code=event.code,
        reason_of_end=event.reason,
        sentence_of_end=event.sentence,
        grace_s=event.grace_s,
    )


def _end_before_stop(incident: Incident, event: EndRequested, now: Now, terms: Terms) -> Result:
    """A job that still steps may save first. Where nothing runs a stop only makes sure of it."""
    looks_for_room = incident.phase == Phase.PRECHECKING and incident.kind == IncidentKind.CHOSEN
    steps = looks_for_room or incident.phase == Phase.VERIFYING
    incident = _with_end(incident, event)
    if steps and event.save and terms.checkpoint is not None:
        return _saving(incident, now, terms, event.reason, event.sentence)
    return _stopping(incident, now, terms, event.reason, event.sentence)


def _end_saving(incident: Incident, event: EndRequested, now: Now, terms: Terms) -> Result:
    """The save goes on unless the request leaves no time for it (Ctrl-C, and a second one)."""
    incident = _with_end(incident, event)
    if event.save:
        return incident, ()
    return _stopping(incident, now, terms, event.reason, event.sentence)


def _end_stopping(incident: Incident, event: EndRequested, now: Now, terms: Terms) -> Result:
    """The stop goes on, and the job ends where it would have been started again. Less grace: asked for again."""
    grace_s = incident.grace_s
    incident = structs.replace(_with_end(incident, event), grace_s=min(grace_s, event.grace_s))
    if event.grace_s < grace_s:
        return _stopping(incident, now, terms, event.reason, event.sentence)
    return incident, ()


Handler: TypeAlias = Callable[..., Result]
P = Phase

# (phase, event) -> (handler, phases it may lead to)
TRANSITIONS: dict[tuple[Phase, type], tuple[Handler, tuple[Phase, ...]]] = {
    (P.DETECTED, Begin): (_begin, (P.STOPPING, P.PRECHECKING, P.SAVING, P.KEPT_RUNNING)),
    (P.PRECHECKING, PrecheckPassed): (_precheck_passed, (P.SAVING, P.STARTING)),
    (P.PRECHECKING, PrecheckRefused): (_precheck_refused, (P.PRECHECKING, P.KEPT_RUNNING)),
    (P.PRECHECKING, DeadlinePassed): (_precheck_late, (P.KEPT_RUNNING, P.FAILED)),
    (P.PRECHECKING, Fault): (_fault_before_stop, (P.STOPPING,)),
    (P.PRECHECKING, JobFinished): (_finished_by_itself, (P.CANCELLED,)),
    (P.PRECHECKING, EndRequested): (_end_before_stop, (P.SAVING, P.STOPPING)),
    (P.SAVING, SaveEnded): (_save_ended, (P.STOPPING, P.KEPT_RUNNING)),
    (P.SAVING, DeadlinePassed): (_save_late, (P.STOPPING, P.KEPT_RUNNING)),
    (P.SAVING, Fault): (_fault_while_saving, (P.STOPPING,)),
    (P.SAVING, EndRequested): (_end_saving, (P.SAVING, P.STOPPING)),
    (P.STOPPING, StopEnded): (
        _stop_ended,
        (P.PRECHECKING, P.STARTING, P.ENDED, P.FAILED, P.EXHAUSTED),
    ),
    (P.STOPPING, StopStuck): (_stop_stuck, (P.FAILED,)),
    (P.STOPPING, DeadlinePassed): (_stop_late, (P.STOPPING, P.FAILED)),
    (P.STOPPING, EndRequested): (_end_stopping, (P.STOPPING,)),
    (P.STARTING, RanksStarted): (_ranks_started, (P.VERIFYING,)),
    (P.STARTING, StartRefused): (_start_refused, (P.PRECHECKING, P.STOPPING, P.FAILED)),
    (P.STARTING, Fault): (_fault_again, (P.STOPPING,)),
    (P.STARTING, DeadlinePassed): (_start_late, (P.STOPPING,)),
    (P.STARTING, EndRequested): (_end_before_stop, (P.STOPPING,)),
    (P.VERIFYING, Progressed): (_progressed, (P.RECOVERED,)),
    (P.VERIFYING, Fault): (_fault_again, (P.STOPPING,)),
    (P.VERIFYING, JobFinished): (_finished_while_verifying, (P.RECOVERED,)),
    (P.VERIFYING, DeadlinePassed): (_verify_late, (P.KEPT_RUNNING,)),
    (P.VERIFYING, EndRequested): (_end_before_stop, (P.SAVING, P.STOPPING)),
}


class UnexpectedEvent(Exception):
    """The machine has no row for this event in this phase: a bug, or an outcome that came too late."""


def step(incident: Incident, event: Event, now: Now, terms: Terms) -> Result:
    """Move `incident` by one event. Raises UnexpectedEvent where TRANSITIONS has no row."""
    row = TRANSITIONS.get((incident.phase, type(event)))
    if row is None:
        raise UnexpectedEvent(f"{type(event).__name__} in phase {incident.phase.value}")
    handler, targets = row
    moved, effects = handler(incident, event, now, terms)
    if moved.phase not in targets:
        raise UnexpectedEvent(f"{handler.__name__} led to {moved.phase.value}, which its row does not name")
    return moved, effects


def accepts(incident: Incident, event: Event) -> bool:
    return (incident.phase, type(event)) in TRANSITIONS


def resume(incident: Incident, now: Now, terms: Terms) -> Result:
    """After a crash or take-over: the effects of the phase that the record stands in, to be performed again.

    `incident.deadline_mono_s` must be of this boot. What is left of a back-off is waited for.
    """
    effects: tuple[Effect, ...] = ()
    if incident.phase == Phase.PRECHECKING:
        since_s = (incident.deadline_mono_s or 0.0) - terms.precheck_wait_s
        effects = (DoPrecheck(max(now.mono_s, since_s)),)
    elif incident.phase == Phase.SAVING:
        effects = (DoSave(),)
    elif incident.phase == Phase.STOPPING:
        effects = (_stop_effect(incident),)
    elif incident.phase == Phase.STARTING:
        effects = (DoStart(incident.incarnation, incident.size, incident.excluded),)
    if any(mail.state == "waiting" for mail in incident.mails):
        effects = (*effects, DoMail())
    return incident, effects
