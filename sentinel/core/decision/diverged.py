"""What is told of a job that trains on though its loss or its gradient is no number any more. Pure."""

from collections.abc import Mapping

from sentinel.core.model import BadSteps, ProtectedJob, Symptom, Verdict
from sentinel.core.now import Now
from sentinel.core.recovery.budget import plan_after_stop
from sentinel.core.reports import NORM_LOST, LogMatch
from sentinel.core.triage.rows import FailureClass, clean

KEY = "diverged"
NORM_KEY = "diverged:norm"
NORM_REASON = "GradientNotANumber"


def diverged(
    match: LogMatch, failures: Mapping[str, FailureClass], *, ended: bool, then: str = ""
) -> Verdict:
    """`match`: of LOSS_LOST or NORM_LOST. `then`: what is done about it; without it only the owner is told."""
    cls = failures[match.failure]
    what = "The gradient norm is NaN" if match.rule == NORM_LOST else "The loss is NaN or infinite"
    since = "in all of its last reports" if match.step is None else f"since step {match.step}"
    told = "The job goes on; Sentinel does nothing about it."
    if ended:
        then, told = "", "So the job ended, with exit code 0."
    return Verdict(
        symptom=Symptom.DIVERGED,
        cause=cls.cause,
        failure=cls.id,
        scope=cls.scope,
        sentence=f"{what} {since}. {then or told}",
        evidence=(f"rank {match.rank}: {clean(match.line)}",),
        advice=cls.advice,
        budget=cls.budget,
        restart=cls.restart,
    )


def bad_steps(match: LogMatch) -> BadSteps | None:
    """From behind the last sound report to the first one that is none."""
    if match.good_step is None:
        return None
    first = match.good_step + 1
    return BadSteps(first, max(first, match.step or first))


def refusal(job: ProtectedJob, match: LogMatch, verdict: Verdict, last_step: int | None, now: Now) -> str:
    """Why the job is not restarted from an older checkpoint, though its policy asks for it; empty where it is.

    Nothing is stopped that would not be started again.
    """
    bad = bad_steps(match)
    if bad is None:
        return (
            "its log names no steps that surely count on, so that nothing tells which checkpoints are older."
        )
    if job.policy.resume is None:
        return "the policy has no `resume`."
    before = job.bad_steps
    if before is not None and bad.last < before.first:
        return (
            f"it was so at steps {before.first} to {before.last} before, and is so even earlier after a restart "
            "from an older checkpoint."
        )
    if before is not None and bad.last <= before.last:
        return "it was so at these steps before, and a restart from an older checkpoint did not help."
    plan = plan_after_stop(job, verdict, last_step, now)
    return "" if plan.restart else plan.sentence.removeprefix("Not started again: ")


def widened(bad: BadSteps, before: BadSteps | None, stopped_at: int | None) -> BadSteps:
    """With all that the job may have saved until it was stopped, and what was bad before at the same steps."""
    reports_apart = bad.last - bad.first + 1  # the last steps may have been told of in no report
    last = max(bad.last, stopped_at or 0) + reports_apart
    if before is None or before.last < bad.first:
        return BadSteps(bad.first, last)
    return BadSteps(min(bad.first, before.first), max(last, before.last))
