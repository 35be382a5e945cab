"""When a job is looked at again: each look is some requests to the API server, and there are thousands of jobs."""

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from sentinel.cluster.kubernetes.job_io import JobRef
from sentinel.controller.cluster_jobs.looks import APART_S, LOOKS, JobLooks, Tracked
from sentinel.core.job.look import Place, look
from sentinel.core.job.state import Seen
from sentinel.core.model import IncidentKind, JobState, Phase, ProtectedJob, Symptom
from sentinel.core.policy_model import Policy
from tests.core.recovery_events import incident, verdict
from tests.core.test_job_look import job, pod, row
from tests.waits import eventually

NAME, UID = "ns/job.batch/train", "u-train"


class Cluster:
    def __init__(self, seen: Seen, places: dict[int, Place]) -> None:
        self.seen, self.places = seen, places

    async def read(self, name: str) -> Seen:
        return self.seen

    async def ask_for_whom(self, name: str, read: Seen) -> None:
        """Nobody was preempted."""

    async def waits_for(self, name: str) -> str:
        return ""

    def look(self, name: str, read: Seen, size: int, asked: Policy) -> Any:
        return look(read, self.places, size, {}, asked, {})

    def nodes(self, name: str) -> dict[int, str]:
        return {rank: place.node for rank, place in self.places.items()}


def looked_at(cluster: Any, controller: Any) -> Tracked:
    records: Any = None
    ref = JobRef(row(), "ns", "train", UID)
    looks = JobLooks(controller, cluster, records, "boot", lambda *_: Policy(), lambda uid: "")
    tracked = Tracked(ref=ref, policy=Policy(), due_mono_s=1.0)
    asyncio.run(looks.look(NAME, tracked))
    return tracked


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.ERROR])
def test_a_job_that_runs_or_has_ended_is_looked_at_only_when_something_happens(state: JobState) -> None:
    """While it was being stopped it had to be looked at again soon."""
    seen = Seen(row=row(), job=job(), pods=(pod(0), pod(1)), kueue=False)
    picture = SimpleNamespace(
        job=ProtectedJob(name=NAME, uid=UID, policy=Policy(), state=state, size=2), incident=None, exits={}
    )
    controller: Any = SimpleNamespace(
        pictures={NAME: picture},
        runs=lambda name: not state.final,
        policy_is=lambda name, policy: None,
    )
    places = {rank: Place(f"pod-{rank}", f"node-{rank}") for rank in range(2)}
    tracked = looked_at(Cluster(seen, places), controller)
    assert tracked.due_mono_s == math.inf


RESUMED = {"sentinel.dev/stopped": f"{NAME}:4"}


@pytest.mark.parametrize(
    ("symptom", "notes", "meanwhile", "theirs"),
    [
        pytest.param(Symptom.RANK_LOST, RESUMED, {}, True, id="with Sentinel's mark"),
        pytest.param(Symptom.RANK_LOST, {}, {}, True, id="written anew, without the mark"),
        pytest.param(Symptom.FIRST_START, {}, {}, True, id="before its first start"),
        pytest.param(Symptom.RETRY, RESUMED, {}, True, id="before another try"),
        pytest.param(Symptom.RETRY, {}, {}, False, id="another try of one that was not stopped"),
        pytest.param(
            Symptom.RANK_LOST,
            RESUMED,
            {"phase": Phase.STARTING, "incarnation": 5},
            False,
            id="Sentinel has started it meanwhile",
        ),
    ],
)
def test_a_job_that_runs_again_while_its_recovery_waits_is_theirs_who_started_it(
    symptom: Symptom, notes: dict[str, str], meanwhile: dict[str, Any], theirs: bool
) -> None:
    asked = job()
    asked["metadata"]["annotations"] = notes
    waits = incident(IncidentKind.FORCED, verdict=verdict(symptom), phase=Phase.PRECHECKING)
    picture = SimpleNamespace(
        job=ProtectedJob(name=NAME, uid=UID, policy=Policy(), state=JobState.QUEUED, size=2),
        incident=waits,
        exits={},
    )
    over: list[str] = []

    def withdrawn(name: str, reason: str, sentence: str) -> None:
        over.append(reason)
        picture.incident = None

    controller: Any = SimpleNamespace(
        pictures={NAME: picture},
        runs=lambda name: False,
        policy_is=lambda name, policy: None,
        withdrawn=withdrawn,
        waits=lambda *said: None,
    )

    class Resumed(Cluster):
        async def leave(self, name: str) -> bool:
            picture.incident = structs.replace(waits, **meanwhile)
            return True

    looked_at(Resumed(Seen(row=row(), job=asked, kueue=False), {}), controller)
    assert over == (["ResumedByOthers"] if theirs else [])


def test_a_job_whose_pods_start_one_by_one_is_not_looked_at_for_each_of_them() -> None:
    tracked = Tracked(ref=JobRef(row(), "ns", "train", UID), policy=Policy())
    tracked.begun(10.0, APART_S)
    assert not tracked.changed
    assert 10.0 < tracked.again_mono_s <= 10.5
    tracked.failed("the API server does not answer", 10.1)  # its back-off is longer
    assert tracked.changed
    assert tracked.again_mono_s >= 12.0


def test_jobs_whose_agents_do_not_answer_hold_up_no_look_at_another() -> None:
    """Hundreds of jobs lose a rank at once, with their nodes."""
    jobs = [f"ns/job.batch/train-{n}" for n in range(LOOKS + 1)]
    seen = Seen(row=row(), job=job(), pods=(pod(0), pod(1, "Failed")), kueue=False)
    picture = SimpleNamespace(
        job=ProtectedJob(name=NAME, uid=UID, policy=Policy(), state=JobState.RUNNING, size=2),
        incident=None,
        exits={},
    )
    told: list[str] = []
    controller: Any = SimpleNamespace(
        pictures=dict.fromkeys(jobs, picture),
        runs=lambda name: True,
        policy_is=lambda name, policy: None,
        ended=lambda name, exits, report: told.append(name),
    )

    async def story() -> None:
        answer = asyncio.Event()
        waiting: list[str] = []

        class Silent(Cluster):
            async def drain(self, name: str) -> None:
                waiting.append(name)
                await answer.wait()

            def pod(self, name: str, rank: int) -> None:
                return None

        places = {rank: Place(f"pod-{rank}", f"node-{rank}") for rank in range(2)}
        records: Any = None
        cluster: Any = Silent(seen, places)
        looks = JobLooks(controller, cluster, records, "boot", lambda *_: Policy(), lambda uid: "")
        ref = JobRef(row(), "ns", "train", UID)
        async with asyncio.TaskGroup() as group:
            for name in jobs:
                group.create_task(looks.look(name, Tracked(ref=ref, policy=Policy())))
            await eventually(lambda: len(waiting) == len(jobs), "some wait for others")
            assert not told, "an end is told behind what the logs say"
            answer.set()
        assert sorted(told) == sorted(jobs)

    asyncio.run(story())
