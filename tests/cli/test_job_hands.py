"""The end of a hold: what was kept for a look inside is stopped, however often that has to be asked for."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from sentinel.cluster.base import StopOutcome
from sentinel.controller.cluster_jobs import hands as job_hands
from sentinel.controller.cluster_jobs.hands import JobHands
from sentinel.core.job.orders import ReleaseHold
from sentinel.core.model import FollowedOrder, ProtectedJob
from sentinel.core.policy_model import Policy
from sentinel.util.errors import TemporaryError
from tests.waits import eventually

NAME = "ns/job.batch/train"


@pytest.mark.parametrize(
    "last",
    [
        pytest.param(StopOutcome(gone=True), id="nothing of it is left"),
        pytest.param(StopOutcome(gone=False, waits="It was started.", theirs=True), id="somebody starts it"),
    ],
)
def test_what_was_held_is_asked_to_end_until_nothing_of_it_is_left_to_end(
    monkeypatch: pytest.MonkeyPatch, last: StopOutcome
) -> None:
    monkeypatch.setattr(job_hands, "AGAIN_S", 0.0)
    picture = SimpleNamespace(job=ProtectedJob(name=NAME, policy=Policy(), incarnation=2))
    told: list[str] = []
    controller: Any = SimpleNamespace(
        pictures={NAME: picture},
        held=lambda name: True,
        hold_ends=lambda name, sentence: told.append(sentence),
        let_go=lambda name: told.append("over"),
    )
    answers: list[Any] = [
        TemporaryError("the API server is away", 0.0),
        StopOutcome(gone=False, waits="Its last pods have not had their time to end yet."),
        last,
    ]

    class Cluster:
        async def let_go(self, job: str, incarnation: int) -> tuple[int, ...]:
            return ()

        async def stop(self, job: str, incarnation: int, grace_s: float) -> StopOutcome:
            assert "over" not in told
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            assert isinstance(answer, StopOutcome)
            return answer

    async def scene() -> None:
        cluster: Any = Cluster()
        records: Any = None
        jobs: Any = None
        hands = JobHands(controller, cluster, records, jobs)
        hands.obey(
            NAME, ReleaseHold("It is held no longer."), FollowedOrder("order", "It is held no longer.")
        )
        hands.obey(
            NAME, ReleaseHold("It is held no longer."), FollowedOrder("again", "It is held no longer.")
        )
        await eventually(lambda: "over" in told, lambda: str(told))

    asyncio.run(scene())
    assert told == ["It is held no longer.", "over"], "one end, though it was asked for twice"
    assert answers == []
