"""How the record of a recovery moves: into which phase, until when, whom it tells, and what it then asks for."""

from typing import TypeAlias

from msgspec import Struct, structs

from sentinel.core.machine import lengthened
from sentinel.core.model import Incident, IncidentKind, Phase, Stage, StageMail, Step, Symptom
from sentinel.core.now import Now
from sentinel.core.policy_model import Checkpoint
from sentinel.core.recovery.events import DoPrecheck, DoSave, DoStart, DoStop, Effect

Result: TypeAlias = tuple[Incident, Effect | None]

RETRY_PRECHECK_S = 10.0
PRECHECK_S = 60.0  # of a job that still steps: it must not wait for an answer that never comes
FIRST_START_WAIT_S = 7 * 86_400.0  # nothing of such a job is lost while it waits for room
FIRST_START_RETRY_S = 15.0  # many may wait, and each asks the API
UNFENCED_S = 7 * 86_400.0  # for proof that a silent node is dead, before the recovery is given up
QUEUE_S = 30 * 86_400.0  # for its turn in a queue of others, which decides when it starts
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


def enter(
    incident: Incident,
    phase: Phase,
    now: Now,
    reason: str,
    sentence: str,
    deadline_s: float | None = None,
    **changes: object,
) -> Incident:
    entry = Step(phase=phase, wall_s=now.wall_s, reason=reason, sentence=sentence)
    return structs.replace(
        incident,
        phase=phase,
        reason=reason,
        sentence=sentence,
        phase_mono_s=now.mono_s,
        deadline_mono_s=None if deadline_s is None else now.mono_s + deadline_s,
        closed_wall_s=now.wall_s if phase.final else None,
        steps=lengthened(incident.steps, entry, MAX_STEPS),
        **changes,
    )


def tell(incident: Incident, stage: Stage) -> Incident:
    if any(mail.stage == stage for mail in incident.mails):
        return incident
    if first_start(incident) and stage is not Stage.GAVE_UP:
        return incident  # that a job starts as it was asked to is no news
    return structs.replace(incident, mails=(*incident.mails, StageMail(stage=stage)))


def first_start(incident: Incident) -> bool:
    return incident.verdict.symptom == Symptom.FIRST_START


def room_wait_s(incident: Incident, terms: Terms) -> float:
    """How long what does not run waits for room or repair."""
    return FIRST_START_WAIT_S if first_start(incident) else terms.precheck_wait_s


def look_again(incident: Incident, now: Now) -> DoPrecheck:
    return DoPrecheck(now.mono_s + (FIRST_START_RETRY_S if first_start(incident) else RETRY_PRECHECK_S))


def stop_effect(incident: Incident) -> DoStop:
    hang = incident.kind == IncidentKind.FORCED and incident.verdict.symptom == Symptom.HANG
    return DoStop(grace_s=incident.grace_s, stacks=hang and not incident.stacks)


def stopping(incident: Incident, now: Now, terms: Terms, reason: str, sentence: str) -> Result:
    incident = enter(incident, Phase.STOPPING, now, reason, sentence, incident.grace_s + terms.stop_slack_s)
    return incident, stop_effect(incident)


def saving(incident: Incident, now: Now, terms: Terms, reason: str, sentence: str) -> Result:
    timeout_s = terms.checkpoint.timeout_s if terms.checkpoint else 0.0
    incident = enter(incident, Phase.SAVING, now, reason, sentence, timeout_s + SAVE_SLACK_S)
    return incident, DoSave()


def starting(incident: Incident, now: Now, terms: Terms, reason: str, sentence: str) -> Result:
    incident = enter(
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
    return incident, DoStart(incident.incarnation, incident.size, incident.excluded)


def close(incident: Incident, phase: Phase, now: Now, reason: str, sentence: str) -> Result:
    incident = enter(incident, phase, now, reason, sentence)
    if phase == Phase.KEPT_RUNNING or (phase == Phase.ENDED and reason != "Stopped"):
        incident = tell(incident, Stage.NOTICE)
    elif phase == Phase.RECOVERED:
        incident = tell(incident, Stage.RECOVERED)
    elif phase in (Phase.FAILED, Phase.EXHAUSTED):
        incident = tell(incident, Stage.GAVE_UP)
    return incident, None
