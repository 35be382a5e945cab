"""What is told of a job that trains on though its loss or its gradient is no number any more. Pure."""

from collections.abc import Mapping

from sentinel.core.model import Symptom, Verdict
from sentinel.core.reports import NORM_LOST, LogMatch
from sentinel.core.triage_rows import FailureClass, clean

KEY = "diverged"
NORM_KEY = "diverged:norm"
NORM_REASON = "GradientNotANumber"


def diverged(match: LogMatch, failures: Mapping[str, FailureClass], *, ended: bool) -> Verdict:
    """Nobody but the owner knows whether to go on: nothing is done. `match`: of LOSS_LOST or NORM_LOST."""
    cls = failures[match.failure]
    what = "The gradient norm is NaN" if match.rule == NORM_LOST else "The loss is NaN or infinite"
    since = "in all of its last reports" if match.step is None else f"since step {match.step}"
    then = (
        "So the job ended, with exit code 0." if ended else "The job goes on; Sentinel does nothing about it."
    )
    return Verdict(
        symptom=Symptom.DIVERGED,
        cause=cls.cause,
        failure=cls.id,
        scope=cls.scope,
        sentence=f"{what} {since}. {then}",
        evidence=(f"rank {match.rank}: {clean(match.line)}",),
        advice=cls.advice,
        budget=cls.budget,
        restart=cls.restart,
    )
