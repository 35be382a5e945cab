"""What a person's order about a job means: what is done, or why not."""

import pytest

from sentinel.core.job.orders import (
    Action,
    Cancel,
    Extend,
    JobOrder,
    JobOrderKind,
    Refused,
    ReleaseHold,
    Retry,
    Stop,
    judge,
    split,
)
from sentinel.core.model import Incident, IncidentKind, JobState, Phase, ProtectedJob
from sentinel.core.policy_model import Policy
from tests.core.recovery_events import NOW, a_job, incident

TWO_HOURS = Policy(max_duration_s=7200.0)


def order(kind: JobOrderKind, argument: str = "", **more: object) -> JobOrder:
    return JobOrder(id="1", kind=kind, job="j", argument=argument, **more)  # type: ignore[arg-type]


def asked(
    kind: JobOrderKind,
    argument: str = "",
    *,
    job: ProtectedJob | None = None,
    open: Incident | None = None,
    held: bool = False,
) -> Action | Refused:
    return judge(order(kind, argument, by="anna", why="a test."), job or a_job(), open, NOW, held=held)


@pytest.mark.parametrize(
    ("kind", "text", "argument", "why"),
    [
        ("extend", "2h", "2h", ""),
        ("extend", " 1h30m  the loss still falls", "1h30m", "the loss still falls"),
        ("extend", "soon", "soon", ""),
        ("stop", "now", "now", ""),
        ("stop", "90s the disk is full", "90s", "the disk is full"),
        ("stop", "it diverged", "", "it diverged"),
        ("retry", "2h later", "", "2h later"),
    ],
)
def test_the_time_comes_first_where_an_order_takes_one(kind: str, text: str, argument: str, why: str) -> None:
    assert split(kind, text) == (argument, why)


def test_a_running_job_is_extended_by_what_was_asked_for() -> None:
    done = asked(JobOrderKind.EXTEND, "90m", job=a_job(TWO_HOURS, extra_s=600.0))
    assert done == Extend(5400.0, "j may run 1h30m longer, 3h40m in all, says anna: a test.")


def test_an_expired_job_may_be_extended_and_then_tried_again() -> None:
    expired = a_job(TWO_HOURS, state=JobState.EXPIRED, run_s=7200.0, started_mono_s=None)
    refused = asked(JobOrderKind.RETRY, job=expired)
    assert refused == Refused("j has used up its maxDuration: `sentinel extend` it first.")
    extended = asked(JobOrderKind.EXTEND, "1h", job=expired)
    assert isinstance(extended, Extend)
    assert "`sentinel retry` starts it again" in extended.sentence
    longer = a_job(TWO_HOURS, state=JobState.EXPIRED, run_s=7200.0, extra_s=3600.0, started_mono_s=None)
    assert isinstance(asked(JobOrderKind.RETRY, job=longer), Retry)


@pytest.mark.parametrize(
    ("argument", "job", "why"),
    [
        ("2h", a_job(), "has no maxDuration"),
        ("soon", a_job(TWO_HOURS), "'soon' is no time"),
        ("", a_job(TWO_HOURS), "'' is no time"),
        ("0s", a_job(TWO_HOURS), "'0s' is no time"),
        ("400d", a_job(TWO_HOURS), "400d is more than 366d"),
        ("2h", a_job(TWO_HOURS, state=JobState.SUCCEEDED), "has ended: succeeded"),
    ],
)
def test_what_cannot_be_extended_says_why(argument: str, job: ProtectedJob, why: str) -> None:
    refused = asked(JobOrderKind.EXTEND, argument, job=job)
    assert isinstance(refused, Refused)
    assert why in refused.sentence


def test_a_job_whose_time_is_up_already_is_not_extended() -> None:
    ending = incident(IncidentKind.ENDING, phase=Phase.SAVING, sentence_of_end="The job has run for its 2h.")
    refused = asked(JobOrderKind.EXTEND, "2h", job=a_job(TWO_HOURS), open=ending)
    assert refused == Refused("j is being ended: The job has run for its 2h. Retry it after that.")


@pytest.mark.parametrize("state", [JobState.ERROR, JobState.STOPPED])
def test_a_job_that_was_given_up_or_stopped_is_tried_again(state: JobState) -> None:
    done = asked(JobOrderKind.RETRY, job=a_job(state=state))
    assert done == Retry("j is tried again, says anna: a test. The try costs no restart.")
    held = asked(JobOrderKind.RETRY, job=a_job(state=state), held=True)
    assert held == Refused("j is held for a look inside: `sentinel release` it first.")


@pytest.mark.parametrize(
    ("state", "open", "why"),
    [
        (JobState.RUNNING, None, "j runs."),
        (JobState.QUEUED, None, "waits for its start"),
        (JobState.SUCCEEDED, None, "has succeeded"),
        (JobState.QUEUED, incident(IncidentKind.FORCED, phase=Phase.PRECHECKING), "tries by itself"),
    ],
)
def test_what_runs_or_is_tried_already_is_not_retried(
    state: JobState, open: Incident | None, why: str
) -> None:
    refused = asked(JobOrderKind.RETRY, job=a_job(state=state), open=open)
    assert isinstance(refused, Refused)
    assert why in refused.sentence


@pytest.mark.parametrize(
    ("kind", "left"),
    [
        (IncidentKind.CHOSEN, "The job runs on."),
        (IncidentKind.FORCED, "The job stays stopped: `sentinel retry` starts it again."),
    ],
)
def test_a_recovery_that_waits_can_be_cancelled(kind: IncidentKind, left: str) -> None:
    done = asked(JobOrderKind.CANCEL, open=incident(kind, phase=Phase.PRECHECKING))
    assert done == Cancel(f"The recovery of j was cancelled, says anna: a test. {left}")


@pytest.mark.parametrize("phase", [Phase.SAVING, Phase.STOPPING, Phase.STARTING, Phase.VERIFYING])
def test_a_recovery_that_has_begun_to_touch_the_job_is_not_cancelled(phase: Phase) -> None:
    refused = asked(JobOrderKind.CANCEL, open=incident(IncidentKind.CHOSEN, phase=phase))
    assert isinstance(refused, Refused)
    assert phase.value in refused.sentence


def test_there_is_nothing_to_cancel_without_a_recovery_or_of_an_ending() -> None:
    assert asked(JobOrderKind.CANCEL) == Refused("No recovery of j is open.")
    ending = incident(IncidentKind.ENDING, phase=Phase.PRECHECKING)
    assert isinstance(asked(JobOrderKind.CANCEL, open=ending), Refused)


def test_a_job_is_stopped_with_its_policys_grace_unless_another_is_asked_for() -> None:
    done = asked(JobOrderKind.STOP)
    assert isinstance(done, Stop)
    assert (done.grace_s, done.save) == (60.0, True)
    assert "saved, if it can, and stopped" in done.sentence
    shorter, killed = asked(JobOrderKind.STOP, "10s"), asked(JobOrderKind.STOP, "now")
    assert isinstance(shorter, Stop)
    assert isinstance(killed, Stop)
    assert (shorter.grace_s, shorter.save, killed.grace_s, killed.save) == (10.0, True, 0.0, False)


def test_a_stop_can_only_be_hurried() -> None:
    ending = incident(IncidentKind.ENDING, phase=Phase.STOPPING, grace_s=60.0)
    assert isinstance(asked(JobOrderKind.STOP, open=ending), Refused)
    assert isinstance(asked(JobOrderKind.STOP, "5s", open=ending), Stop)
    assert isinstance(asked(JobOrderKind.STOP, "now", open=ending), Stop)
    assert isinstance(asked(JobOrderKind.STOP, job=a_job(state=JobState.ERROR)), Refused)
    assert isinstance(asked(JobOrderKind.STOP, job=a_job(state=JobState.QUEUED)), Refused)


def test_only_a_held_job_is_released() -> None:
    assert asked(JobOrderKind.RELEASE, held=True) == ReleaseHold("j is held no longer, says anna: a test.")
    assert asked(JobOrderKind.RELEASE) == Refused("j is not held for a look inside.")


def test_a_job_that_is_gone_takes_no_order() -> None:
    for kind in JobOrderKind:
        assert judge(order(kind), None, None, NOW) == Refused("j is not protected any more.")
