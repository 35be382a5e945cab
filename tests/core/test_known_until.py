"""Silence of a log whose reader has not told it yet is no silence of its rank."""

import pytest

from sentinel.core.decision import policy
from sentinel.core.decision.picture import JobPicture
from sentinel.core.model import IncidentKind, JobState, ProtectedJob
from sentinel.core.now import Now
from sentinel.core.policy_model import Hang, Policy
from sentinel.core.reports import Iteration, RankReport
from sentinel.rules.failures import failure_classes


def stepping(until_s: int) -> JobPicture:
    job = ProtectedJob(
        name="j", policy=Policy(hang=Hang(after_s=5.0)), state=JobState.RUNNING, incarnation=1, size=1
    )
    picture = JobPicture(job, failure_classes())
    picture.alive = {0}
    picture.timing.start(1, 1, Now(0.0, 1e9))
    steps = [Iteration(float(n), n, 80.0, 100.0) for n in range(1, until_s + 1)]
    picture.timing.fold(RankReport(job="j", incarnation=1, rank=0, iterations=steps))
    return picture


@pytest.mark.parametrize(
    ("known_until_s", "hangs"), [(None, True), (110.0, True), (102.0, False), (0.0, False)]
)
def test_only_silence_that_is_known_is_a_hang(known_until_s: float | None, hangs: bool) -> None:
    picture = stepping(100)
    picture.known_until_s = known_until_s
    decision = policy.decide(picture, Now(110.0, 1e9 + 110.0))
    assert (isinstance(decision, policy.Open) and decision.kind is IncidentKind.FORCED) is hangs


def test_the_moment_that_is_known_is_one_on_both_clocks() -> None:
    picture = stepping(1)
    picture.known_until_s = 90.0
    assert picture.known(Now(100.0, 1000.0)) == Now(90.0, 990.0)
    assert picture.known(Now(80.0, 980.0)) == Now(80.0, 980.0)
