"""What the owner is told of a job that trains on though its loss is no number any more. Pure."""

from collections.abc import Mapping

from sentinel.core.model import Symptom, Verdict
from sentinel.core.reports import LogMatch
from sentinel.core.triage_rows import FailureClass, clean

KEY = "diverged"


def diverged(match: LogMatch, failures: Mapping[str, FailureClass], *, ended: bool) -> Verdict:
    """Nobody but the owner knows whether to go on: nothing is done about it. `match`: that of LOSS_LOST."""
    cls = failures[match.failure]
    since = "in all of its last reports" if match.step is None else f"since step {match.step}"
    then = (
        "So the job ended, with exit code 0." if ended else "The job goes on; Sentinel does nothing about it."
    )
    return Verdict(
        symptom=Symptom.DIVERGED,
        cause=cls.cause,
        failure=cls.id,
        scope=cls.scope,
        sentence=f"The loss is NaN or infinite {since}. {then}",
        evidence=(f"rank {match.rank}: {clean(match.line)}",),
        advice=cls.advice,
        budget=cls.budget,
        restart=cls.restart,
    )
