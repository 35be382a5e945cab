"""What people order about one job of a cluster: read from its text, judged, and what is to be done. Pure.

    sentinel.dev/extend: "2h the loss still falls"  →  JobOrder  →  judge  →  Extend(7200, …) or Refused(…)

`FollowedOrder` in the job's record keeps an order from being followed twice.
"""

from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from sentinel.core.decision.policy import Open
from sentinel.core.model import (
    Budget,
    Cause,
    Incident,
    IncidentKind,
    JobState,
    Phase,
    ProtectedJob,
    Restartable,
    Symptom,
    Verdict,
)
from sentinel.core.now import Now
from sentinel.core.units import DURATION, duration_text, parse_duration

NOW = "now"  # argument of `stop`: neither save nor wait
LONGEST_S = 366 * 86_400.0  # that one order may grant


class JobOrderKind(StrEnum):
    EXTEND = "extend"
    RETRY = "retry"
    CANCEL = "cancel"
    STOP = "stop"
    RELEASE = "release"


class JobOrder(Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    kind: JobOrderKind
    job: str  # ProtectedJob.name
    argument: str = ""
    by: str = ""
    why: str = ""
    seen_wall_s: float = 0.0  # when a leader first saw it


class Extend(Struct, frozen=True):
    """More run time before maxDuration ends the job."""

    seconds: float
    sentence: str


class Retry(Struct, frozen=True):
    """One more try of a job that was given up, stopped or has expired. It costs no restart."""

    sentence: str


class Cancel(Struct, frozen=True):
    """The open recovery ends, and the job is left as it is: it runs on, or stays stopped."""

    sentence: str


class Stop(Struct, frozen=True):
    grace_s: float
    save: bool
    sentence: str


class ReleaseHold(Struct, frozen=True):
    """A job that is kept for a look inside is let go."""

    sentence: str


Action: TypeAlias = Extend | Retry | Cancel | Stop | ReleaseHold


class Refused(Struct, frozen=True):
    sentence: str


def split(kind: str, text: str) -> tuple[str, str]:
    """(argument, why) of what a person wrote as the value: the time comes first where the order takes one."""
    first, _, rest = text.strip().partition(" ")
    if kind == JobOrderKind.EXTEND or (kind == JobOrderKind.STOP and (first == NOW or _seconds(first))):
        return first, rest.strip()
    return "", text


def judge(
    order: JobOrder, job: ProtectedJob | None, incident: Incident | None, now: Now, *, held: bool = False
) -> Action | Refused:
    """`incident`: the open one. `held`: the job is kept for a look inside (debugHold)."""
    if job is None:
        return Refused(f"{order.job} is not protected any more.")
    if order.kind is JobOrderKind.EXTEND:
        return _extend(order, job, incident, now)
    if order.kind is JobOrderKind.RETRY:
        return _retry(order, job, incident, now, held=held)
    if order.kind is JobOrderKind.CANCEL:
        return _cancel(order, job, incident)
    if order.kind is JobOrderKind.STOP:
        return _stop(order, job, incident)
    if not held:
        return Refused(f"{job.name} is not held for a look inside.")
    return ReleaseHold(f"{job.name} is held no longer{_by(order)}.")


def _extend(order: JobOrder, job: ProtectedJob, incident: Incident | None, now: Now) -> Action | Refused:
    seconds = _seconds(order.argument)
    if not seconds:
        return Refused(f"{order.argument!r} is no time by which a job could be extended: {DURATION}.")
    if seconds > LONGEST_S:
        return Refused(f"{order.argument} is more than {duration_text(LONGEST_S)}.")
    if job.policy.max_duration_s is None:
        return Refused(f"{job.name} has no maxDuration: it may run as long as it likes.")
    if job.state.final and job.state is not JobState.EXPIRED:
        return Refused(f"{job.name} has ended: {job.state.value}.")
    if incident is not None and incident.end_state is not None:
        return Refused(f"{job.name} is being ended: {_told(incident.sentence_of_end)} Retry it after that.")
    allowed_s = job.policy.max_duration_s + job.extra_s + seconds
    sentence = (
        f"{job.name} may run {duration_text(seconds)} longer, {duration_text(allowed_s)} in all{_by(order)}."
    )
    if job.state is JobState.EXPIRED:
        sentence += " It has expired: `sentinel retry` starts it again."
    return Extend(seconds, sentence)


def _retry(
    order: JobOrder, job: ProtectedJob, incident: Incident | None, now: Now, *, held: bool
) -> Action | Refused:
    if incident is not None:
        return Refused(f"{job.name} is being recovered ({incident.phase.value}), which tries by itself.")
    if job.state is JobState.RUNNING:
        return Refused(f"{job.name} runs.")
    if job.state is JobState.QUEUED:
        return Refused(f"{job.name} waits for its start, which is tried by itself.")
    if job.state is JobState.SUCCEEDED:
        return Refused(f"{job.name} has succeeded: there is nothing to try again.")
    if held:
        return Refused(f"{job.name} is held for a look inside: `sentinel release` it first.")
    limit_s = job.policy.max_duration_s
    if limit_s is not None and job.run_time_s(now) >= limit_s + job.extra_s:
        return Refused(f"{job.name} has used up its maxDuration: `sentinel extend` it first.")
    return Retry(f"{job.name} is tried again{_by(order)}. The try costs no restart.")


def _cancel(order: JobOrder, job: ProtectedJob, incident: Incident | None) -> Action | Refused:
    if incident is None:
        return Refused(f"No recovery of {job.name} is open.")
    if incident.end_state is not None:
        return Refused(
            f"{job.name} is being ended, which cannot be taken back: `sentinel retry` starts it again."
        )
    if incident.phase is not Phase.PRECHECKING:
        return Refused(
            f"Too late: the recovery of {job.name} is in phase {incident.phase.value}, and would leave it half done. "
            "`sentinel stop` ends the job instead."
        )
    if incident.kind is IncidentKind.FORCED:
        left = "The job stays stopped: `sentinel retry` starts it again."
    else:
        left = "The job runs on."
    return Cancel(f"The recovery of {job.name} was cancelled{_by(order)}. {left}")


def _stop(order: JobOrder, job: ProtectedJob, incident: Incident | None) -> Action | Refused:
    if job.state.final:
        return Refused(f"{job.name} has already ended: {job.state.value}.")
    if incident is None and job.state is JobState.QUEUED:
        return Refused(f"{job.name} was not started yet.")
    now, grace_s = order.argument == NOW, job.policy.graceful_stop_s
    if now:
        grace_s = 0.0
    elif order.argument:
        asked_s = _seconds(order.argument)
        if asked_s is None:
            return Refused(f"{order.argument!r} is no time: {DURATION}.")
        grace_s = asked_s
    if incident is not None and incident.end_state is not None and not now and grace_s >= incident.grace_s:
        return Refused(f"{job.name} is being ended already: {_told(incident.sentence_of_end)}")
    how = "killed" if now else "saved, if it can, and stopped"
    return Stop(grace_s, not now, f"{job.name} is being {how}{_by(order)}.")


def another_try(sentence: str) -> Open:
    """The incident that Retry opens: it goes to the pre-check at once, since nothing of the job runs."""
    return _free_start(Symptom.RETRY, "Retry", sentence)


def first_start(sentence: str) -> Open:
    """The same for a job that was created suspended, for Sentinel to check, size and start it."""
    return _free_start(Symptom.FIRST_START, "FirstStart", sentence)


def _free_start(symptom: Symptom, reason: str, sentence: str) -> Open:
    verdict = Verdict(
        symptom=symptom,
        cause=Cause.UNKNOWN,
        failure=symptom.value,
        scope="job",
        sentence=sentence,
        budget=Budget.FREE,
        restart=Restartable.YES,
    )
    return Open(reason, sentence, IncidentKind.FORCED, verdict)


def _seconds(text: str) -> float | None:
    try:
        return parse_duration(text)
    except ValueError:
        return None


def _by(order: JobOrder) -> str:
    """In a sentence that ends behind it."""
    why = order.why.rstrip(". ")
    return f", says {order.by or 'a person'}" + (f": {why}" if why else "")


def _told(sentence: str) -> str:
    return sentence if sentence.endswith(".") else f"{sentence}."
