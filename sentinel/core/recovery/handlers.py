"""What each event does to the record of a recovery; `transitions.TRANSITIONS` says which is called in which phase."""

from msgspec import structs

from sentinel.core.model import Incident, IncidentKind, Phase, SaveResult, Stage, Symptom
from sentinel.core.now import Now
from sentinel.core.recovery.events import (
    CANCELLED_BY_PERSON,
    Begin,
    CancelRequested,
    DeadlinePassed,
    DoPrecheck,
    EndRequested,
    Fault,
    GivenUp,
    JobFinished,
    JobGone,
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
from sentinel.core.recovery.move_again import NOT_ASKED, pause_s
from sentinel.core.recovery.moves import (
    PRECHECK_S,
    QUEUE_S,
    UNFENCED_S,
    Result,
    Terms,
    close,
    enter,
    first_start,
    look_again,
    room_wait_s,
    saving,
    starting,
    stop_effect,
    stopping,
    tell,
)
from sentinel.core.stacks import verdict as stack_verdict
from sentinel.core.units import duration_text


def begin(incident: Incident, event: Begin, now: Now, terms: Terms) -> Result:
    if incident.kind == IncidentKind.NOTICE:
        return close(incident, Phase.KEPT_RUNNING, now, event.reason, event.sentence)
    # Nothing of it runs, and the try is free.
    if incident.verdict.symptom in (Symptom.RETRY, Symptom.FIRST_START):
        incident = structs.replace(incident, grace_s=terms.lost_rank_grace_s, paid=True)
        deadline_s = room_wait_s(incident, terms)
        incident = enter(incident, Phase.PRECHECKING, now, event.reason, event.sentence, deadline_s)
        return incident, DoPrecheck(now.mono_s)
    if incident.kind == IncidentKind.FORCED:
        incident = structs.replace(incident, grace_s=terms.lost_rank_grace_s)
        return stopping(incident, now, terms, event.reason, event.sentence)
    if incident.kind == IncidentKind.CHOSEN:
        incident = structs.replace(incident, grace_s=terms.graceful_stop_s)
        incident = enter(incident, Phase.PRECHECKING, now, event.reason, event.sentence, PRECHECK_S)
        return incident, DoPrecheck(now.mono_s)
    if incident.save_wanted:
        return saving(incident, now, terms, event.reason, event.sentence)
    return stopping(incident, now, terms, event.reason, event.sentence)


def precheck_passed(incident: Incident, event: PrecheckPassed, now: Now, terms: Terms) -> Result:
    incident = structs.replace(incident, size=event.size, excluded=event.excluded)
    if incident.kind == IncidentKind.CHOSEN:
        incident = tell(incident, Stage.STARTED)
        return saving(incident, now, terms, "RoomFound", event.sentence)
    return starting(incident, now, terms, "PrecheckPassed", event.sentence)


def precheck_refused(incident: Incident, event: PrecheckRefused, now: Now, terms: Terms) -> Result:
    if incident.kind == IncidentKind.CHOSEN:
        return _not_moved(incident, now, event.reason, event.sentence)
    if incident.sentence != event.sentence:  # a refusal that only repeats adds no line to the story
        deadline = incident.deadline_mono_s
        incident = enter(incident, Phase.PRECHECKING, now, event.reason, event.sentence)
        incident = structs.replace(incident, deadline_mono_s=deadline)
    return incident, look_again(incident, now)


def _not_moved(
    incident: Incident, now: Now, reason: str, sentence: str, when: str = "there is room"
) -> Result:
    if incident.key:
        pause = duration_text(pause_s(incident.refusals))
        sentence += f" It is tried again, in {pause} at the earliest, when {when} and the cause still stands."
    return close(incident, Phase.KEPT_RUNNING, now, reason, sentence)


def rescaled(incident: Incident, event: Rescaled, now: Now, terms: Terms) -> Result:
    """Looked at again at once: there may be room for this size."""
    deadline = incident.deadline_mono_s
    incident = structs.replace(incident, size=event.size, from_size=event.size)
    incident = enter(incident, Phase.PRECHECKING, now, "Rescaled", event.sentence)
    return structs.replace(incident, deadline_mono_s=deadline), DoPrecheck(now.mono_s)


def rescaled_stopping(incident: Incident, event: Rescaled, now: Now, terms: Terms) -> Result:
    """The stop goes on; what starts after it has this size."""
    began_s, deadline_s = incident.phase_mono_s, incident.deadline_mono_s
    incident = structs.replace(incident, size=event.size, from_size=event.size)
    incident = enter(incident, Phase.STOPPING, now, "Rescaled", event.sentence)
    return structs.replace(incident, phase_mono_s=began_s, deadline_mono_s=deadline_s), None


def precheck_late(incident: Incident, event: DeadlinePassed, now: Now, terms: Terms) -> Result:
    if incident.kind == IncidentKind.CHOSEN:
        sentence = "Not moved: the pre-check did not end in its time."
        return _not_moved(incident, now, "PrecheckTimeout", sentence)
    answered = len(incident.steps) > 1 and incident.steps[-2].phase != Phase.STOPPING
    if answered:  # the phase's last line is the refusal that lasted
        return close(incident, Phase.FAILED, now, incident.reason, incident.sentence)
    return close(incident, Phase.FAILED, now, "PrecheckTimeout", "The pre-check did not end in its time.")


def save_ended(incident: Incident, event: SaveEnded, now: Now, terms: Terms) -> Result:
    incident = structs.replace(incident, save=event.result)
    grows = incident.kind == IncidentKind.CHOSEN and incident.verdict.symptom == Symptom.RESIZE
    if grows and event.counts and not event.result.proved_by and not event.ended:
        sentence = f"{event.sentence} Only a proved save is a reason to stop a healthy job for more ranks."
        return close(incident, Phase.KEPT_RUNNING, now, "SaveUnproved", sentence)
    if event.counts or incident.kind == IncidentKind.ENDING:
        reason = "Saved" if event.counts else "SaveUnproved"
        return stopping(incident, now, terms, reason, event.sentence)
    if not event.asked:
        when = "its ranks can be told to save, there is room"
        return _not_moved(incident, now, NOT_ASKED, event.sentence, when)
    return close(incident, Phase.KEPT_RUNNING, now, "SaveUnproved", event.sentence)


def save_late(incident: Incident, event: DeadlinePassed, now: Now, terms: Terms) -> Result:
    ended = SaveEnded(
        SaveResult(skipped="the save was never judged"), False, "The save did not end in its time."
    )
    return save_ended(incident, ended, now, terms)


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


def fault_while_saving(incident: Incident, event: Fault, now: Now, terms: Terms) -> Result:
    """A collective save would hang without the lost rank: what is left of the job is stopped."""
    incident = structs.replace(incident, save=SaveResult(skipped="a rank was lost while the job saved"))
    if incident.kind == IncidentKind.CHOSEN:
        incident = _broke(incident, event, terms)
    incident = structs.replace(incident, grace_s=terms.lost_rank_grace_s)
    return stopping(incident, now, terms, "RankLost", event.verdict.sentence)


def fault_again(incident: Incident, event: Fault, now: Now, terms: Terms) -> Result:
    """A fault of the incarnation that this recovery started: the same incident goes on."""
    incident = structs.replace(_broke(incident, event, terms), paid=False, stacks=())
    return stopping(incident, now, terms, "FaultAgain", event.verdict.sentence)


def fault_before_stop(incident: Incident, event: Fault, now: Now, terms: Terms) -> Result:
    """While a chosen stop still looked for room the job broke by itself, or the machine was started again."""
    return stopping(_broke(incident, event, terms), now, terms, "RankLost", event.verdict.sentence)


def stop_ended(incident: Incident, event: StopEnded, now: Now, terms: Terms) -> Result:
    plan = event.plan
    failed_step = incident.failed_step if event.last_step is None else event.last_step
    incident = structs.replace(incident, stacks=event.stacks or incident.stacks, failed_step=failed_step)
    if incident.end_state is not None:
        return close(incident, Phase.ENDED, now, incident.reason_of_end, incident.sentence_of_end)
    verdict = stack_verdict.named(plan.verdict, incident.stacks, incident.from_size)
    incident = structs.replace(incident, verdict=verdict)
    if incident.kind == IncidentKind.CHOSEN:
        return starting(incident, now, terms, plan.reason, plan.sentence)
    if plan.failed_step is not None:
        incident = structs.replace(incident, failed_step=plan.failed_step)
    if not plan.restart:
        phase = Phase.EXHAUSTED if plan.exhausted else Phase.FAILED
        return close(incident, phase, now, plan.reason, plan.sentence)
    incident = tell(incident, Stage.STARTED)
    if plan.avoid and plan.avoid not in incident.excluded:
        incident = structs.replace(incident, excluded=(*incident.excluded, plan.avoid))
    wait_s = plan.delay_s + room_wait_s(incident, terms)
    incident = enter(incident, Phase.PRECHECKING, now, plan.reason, plan.sentence, wait_s)
    return incident, DoPrecheck(now.mono_s + plan.delay_s)


def stop_stuck(incident: Incident, event: StopStuck, now: Now, terms: Terms) -> Result:
    incident = structs.replace(incident, stacks=event.stacks or incident.stacks)
    if event.ended and incident.end_state is not None:
        return close(incident, Phase.ENDED, now, incident.reason_of_end, incident.sentence_of_end)
    if event.ended:
        return close(incident, Phase.FAILED, now, "EndedByItsKind", event.ended)
    sentence = "Processes that cannot be ended: " + "; ".join(event.stuck) + ". A reboot is needed."
    return close(incident, Phase.FAILED, now, "StopStuck", sentence)


def stop_waits(incident: Incident, event: StopWaits, now: Now, terms: Terms) -> Result:
    """Another start beside ranks that may still write would cost the checkpoint: only proof or a person ends it."""
    incident = structs.replace(incident, stacks=event.stacks or incident.stacks)
    if incident.sentence != event.sentence:
        incident = enter(incident, Phase.STOPPING, now, event.reason, event.sentence)
    incident = structs.replace(tell(incident, Stage.STARTED), deadline_mono_s=now.mono_s + UNFENCED_S)
    return incident, stop_effect(incident)


def given_up(incident: Incident, event: GivenUp, now: Now, terms: Terms) -> Result:
    """Its ranks are left as they are, for a look inside."""
    plan = event.plan
    if incident.end_state is not None:
        return close(incident, Phase.ENDED, now, incident.reason_of_end, incident.sentence_of_end)
    incident = structs.replace(incident, verdict=plan.verdict)
    if plan.failed_step is not None:
        incident = structs.replace(incident, failed_step=plan.failed_step)
    phase = Phase.EXHAUSTED if plan.exhausted else Phase.FAILED
    return close(incident, phase, now, plan.reason, plan.sentence)


def job_gone(incident: Incident, event: JobGone, now: Now, terms: Terms) -> Result:
    phase = Phase.CANCELLED if incident.end_state is None else Phase.ENDED
    return close(incident, phase, now, event.reason, event.sentence)


def stop_late(incident: Incident, event: DeadlinePassed, now: Now, terms: Terms) -> Result:
    """What stops is bounded in time, so it broke: asked for once more, with no grace left to give."""
    if incident.grace_s > 0:
        incident = structs.replace(incident, grace_s=0.0)
        return stopping(incident, now, terms, "StopTimeout", "The stop did not end in its time: killed now.")
    return stop_stuck(incident, StopStuck(("the stop did not end in its time",)), now, terms)


def ranks_started(incident: Incident, event: RanksStarted, now: Now, terms: Terms) -> Result:
    incident = structs.replace(incident, failed_starts=0)
    if first_start(incident):  # there are no earlier steps to compare with
        return close(incident, Phase.RECOVERED, now, "Started", event.sentence)
    return enter(incident, Phase.VERIFYING, now, "RanksStarted", event.sentence, terms.verify_limit_s), None


def start_waits(incident: Incident, event: StartWaits, now: Now, terms: Terms) -> Result:
    """The time for the start begins when the queue has let the job in."""
    if event.sentence:
        return enter(incident, Phase.STARTING, now, "Queued", event.sentence, QUEUE_S), None
    sentence = "Its queue has let it in."
    return enter(incident, Phase.STARTING, now, "LetIn", sentence, terms.start_timeout_s), None


def start_refused(incident: Incident, event: StartRefused, now: Now, terms: Terms) -> Result:
    """Nothing runs now, so what was a chosen stop has become a recovery that waits for its room."""
    if event.permanent:
        return close(incident, Phase.FAILED, now, event.reason, event.sentence)
    if event.tried:
        return _start_failed(incident, now, terms, event.reason, event.sentence)
    incident = structs.replace(incident, kind=IncidentKind.FORCED)
    wait_s = room_wait_s(incident, terms)
    incident = enter(incident, Phase.PRECHECKING, now, event.reason, event.sentence, wait_s)
    return incident, look_again(incident, now)


def start_late(incident: Incident, event: DeadlinePassed, now: Now, terms: Terms) -> Result:
    return _start_failed(incident, now, terms, "StartTimeout", "Not all ranks came up in the start time.")


def _start_failed(incident: Incident, now: Now, terms: Terms, reason: str, sentence: str) -> Result:
    """Half-started: what is left is stopped, gives back its room and waits, at no cost to the budget."""
    incident = structs.replace(
        incident,
        kind=IncidentKind.FORCED,
        failed_starts=incident.failed_starts + 1,
        grace_s=terms.lost_rank_grace_s,
    )
    return stopping(incident, now, terms, reason, sentence)


def progressed(incident: Incident, event: Progressed, now: Now, terms: Terms) -> Result:
    incident = structs.replace(incident, lost=event.lost)
    return close(incident, Phase.RECOVERED, now, "Recovered", event.sentence)


def finished_while_verifying(incident: Incident, event: JobFinished, now: Now, terms: Terms) -> Result:
    return close(incident, Phase.RECOVERED, now, "JobFinished", "The job ran to its end after the restart.")


def finished_by_itself(incident: Incident, event: JobFinished, now: Now, terms: Terms) -> Result:
    return close(
        incident, Phase.CANCELLED, now, "JobFinished", "The job ended by itself before it was stopped."
    )


def verify_late(incident: Incident, event: DeadlinePassed, now: Now, terms: Terms) -> Result:
    sentence = (
        "The ranks run, but nothing shows that iterations move: whether the job recovered is not known."
    )
    return close(incident, Phase.KEPT_RUNNING, now, "NotVerified", sentence)


def cancelled(incident: Incident, event: CancelRequested, now: Now, terms: Terms) -> Result:
    return close(incident, Phase.CANCELLED, now, CANCELLED_BY_PERSON, event.sentence)


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


def end_before_stop(incident: Incident, event: EndRequested, now: Now, terms: Terms) -> Result:
    """A job that still steps may save first. Where nothing runs a stop only makes sure of it."""
    looks_for_room = incident.phase == Phase.PRECHECKING and incident.kind == IncidentKind.CHOSEN
    steps = looks_for_room or incident.phase == Phase.VERIFYING
    incident = _with_end(incident, event)
    if steps and event.save and terms.checkpoint is not None:
        return saving(incident, now, terms, event.reason, event.sentence)
    return stopping(incident, now, terms, event.reason, event.sentence)


def end_saving(incident: Incident, event: EndRequested, now: Now, terms: Terms) -> Result:
    """The save goes on unless the request leaves no time for it (a second Ctrl-C, `stop --now`)."""
    incident = _with_end(incident, event)
    if event.save:
        return incident, None
    return stopping(incident, now, terms, event.reason, event.sentence)


def end_stopping(incident: Incident, event: EndRequested, now: Now, terms: Terms) -> Result:
    """The stop goes on, and the job ends where it would have been started again. Less grace: asked for again."""
    grace_s = incident.grace_s
    incident = structs.replace(_with_end(incident, event), grace_s=min(grace_s, event.grace_s))
    if event.grace_s < grace_s:
        return stopping(incident, now, terms, event.reason, event.sentence)
    return incident, None
