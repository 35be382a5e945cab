"""When a job is looked at again: each look is some requests to the API server, and there are thousands of jobs."""

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest

from sentinel.cli.job_looks import JobLooks, Tracked
from sentinel.core.job_look import Place, look
from sentinel.core.job_state import Seen
from sentinel.core.model import JobState, ProtectedJob
from sentinel.core.policy_model import Policy
from tests.core.test_job_look import job, pod, row

NAME = "ns/job.batch/train"


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.ERROR])
def test_a_job_that_runs_or_has_ended_is_looked_at_only_when_something_happens(state: JobState) -> None:
    """While it was being stopped it had to be looked at again soon."""
    seen = Seen(row=row(), job=job(), pods=(pod(0), pod(1)), kueue=False)
    picture = SimpleNamespace(
        job=ProtectedJob(name=NAME, policy=Policy(), state=state, size=2), incident=None, exits={}
    )
    controller: Any = SimpleNamespace(
        pictures={NAME: picture},
        runs=lambda name: not state.final,
        policy_is=lambda name, policy: None,
    )
    places = {rank: Place(f"pod-{rank}", f"node-{rank}") for rank in range(2)}

    class Cluster:
        async def read(self, name: str) -> Seen:
            return seen

        async def ask_for_whom(self, name: str, read: Seen) -> None:
            """Nobody was preempted."""

        def look(self, name: str, read: Seen, size: int, asked: Policy) -> Any:
            return look(read, places, size, {}, asked, {})

        def nodes(self, name: str) -> dict[int, str]:
            return {rank: place.node for rank, place in places.items()}

    cluster: Any = Cluster()
    records: Any = None
    ref: Any = None
    looks = JobLooks(controller, cluster, records, "boot", lambda *_: Policy(), lambda uid: "")
    tracked = Tracked(ref=ref, policy=Policy(), due_mono_s=1.0)
    asyncio.run(looks.look(NAME, tracked))
    assert tracked.due_mono_s == math.inf
