"""How often a job of many pods is read while it is stopped and started."""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar, cast

import pytest

from sentinel.cluster.kubernetes import job_cluster, known_jobs
from sentinel.cluster.kubernetes.agents import Agents
from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.errors import Unavailable
from sentinel.cluster.kubernetes.job_cluster import JobCluster
from sentinel.cluster.kubernetes.job_io import JobRef, Queues
from sentinel.cluster.kubernetes.job_room import Rooms
from sentinel.cluster.kubernetes.objects import Meta, Pod, PodStatus
from sentinel.cluster.kubernetes.reflector import Change, Kind
from sentinel.core.job.kinds import row_of
from sentinel.core.job.state import Seen
from sentinel.core.job.writes import Plan
from sentinel.rules.job_kinds import job_table
from sentinel.util.clock import system_now
from tests.waits import turns

JOB, PODS = "ns/job.batch/train", 64
T = TypeVar("T")


def pod(index: int, generation: str, **status: Any) -> dict[str, Any]:
    labels = {"batch.kubernetes.io/job-completion-index": str(index)}
    meta = {"name": f"train-{index}", "namespace": "ns", "uid": f"{generation}-{index}", "labels": labels}
    return {"metadata": meta, "spec": {"nodeName": f"node-{index}"}, "status": {"phase": "Running", **status}}


def merged(into: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """As a merge patch is applied."""
    found = dict(into)
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key) or {}, value) if isinstance(value, dict) else value
    return found


class World:
    """`job` and `pods` are what the API server would tell."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads, self.writes = 0, list[Plan]()
        self.refuses = False  # to answer a write
        spec = {"completionMode": "Indexed", "parallelism": PODS, "completions": PODS, "suspend": False}
        self.job: dict[str, Any] = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "train", "namespace": "ns", "uid": "u", "resourceVersion": "1"},
            "spec": spec,
        }
        self.pods = [pod(index, "old") for index in range(PODS)]
        row = row_of(job_table().rows, self.job)
        assert row is not None

        async def read(client: Client, queues: Queues, ref: JobRef, ranks: int, gpus: bool) -> Seen:
            self.reads += 1
            return Seen(row=ref.row, job=self.job, pods=tuple(self.pods))

        async def carry_out(client: Client, plan: Plan, epoch: object) -> None:
            self.writes.append(plan)
            if self.refuses:
                self.refuses = False
                raise Unavailable("no answer", 0.0)
            for write in plan.writes:
                self.job = merged(self.job, write.body)

        monkeypatch.setattr(known_jobs, "read_job", read)
        monkeypatch.setattr(job_cluster, "carry_out", carry_out)
        monkeypatch.setattr(job_cluster, "ASK_AGAIN_S", 0.0)
        monkeypatch.setattr(known_jobs, "LOOK_S", 3600.0)
        monkeypatch.setattr(known_jobs, "TOGETHER_S", 0.0)
        rooms = Rooms(dict, dict, system_now)
        self.cluster = JobCluster(cast(Client, None), Agents(lambda node: None), lambda: 1, rooms)
        self.cluster.know(JOB, JobRef(row, "ns", "train", "u"))

    def told(self, before: Pod | None, after: Pod | None) -> None:
        self.cluster.changed(JOB, Change(Kind.CHANGED, "ns/train", before, after))

    def edited(self) -> None:
        """What the watch tells of a write of Sentinel."""
        self.cluster.changed(JOB, None)


def as_told(index: int, phase: str, leaves: bool = False) -> Pod:
    meta = Meta(name=f"train-{index}", deletion_timestamp="2026-11-29T00:00:00Z" if leaves else None)
    return Pod(meta, status=PodStatus(phase))


async def within(answer: Awaitable[T]) -> T:
    return await asyncio.wait_for(answer, 120.0)


def test_pods_that_end_and_start_one_by_one_are_read_when_the_last_of_them_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)

    async def story() -> None:
        stop = asyncio.create_task(world.cluster.stop(JOB, 1, 1.0))
        await turns()
        world.edited()
        for index in range(PODS):
            assert world.reads == 1, f"pod {index}"
            world.told(as_told(index, "Running"), as_told(index, "Running", leaves=True))
            await turns()
        assert world.reads == 2, "all are told to end: their time runs"
        world.pods = [
            one | {"metadata": one["metadata"] | {"deletionTimestamp": "2026-11-29T00:00:00Z"}}
            for one in world.pods
        ]
        world.told(as_told(0, "Running"), as_told(0, "Running", leaves=True))
        await turns()

        reads = world.reads
        world.pods = []
        for index in range(PODS):
            assert not stop.done()
            world.told(as_told(index, "Running", leaves=True), None)
            await turns()
        assert (await within(stop)).gone
        assert world.reads == reads + 1

        reads = world.reads
        start = asyncio.create_task(world.cluster.start(JOB, None, 2, PODS, {}))
        await turns()
        world.edited()
        await turns()
        assert world.reads == reads + 1, "what the stop has read last serves the start"
        for index in range(PODS):
            assert not start.done()
            world.told(None, as_told(index, "Pending"))
            if index == PODS - 1:
                world.pods = [pod(index, "new") for index in range(PODS)]
            world.told(as_told(index, "Pending"), as_told(index, "Running"))
            await turns()
        assert len(await within(start)) == PODS
        assert world.reads == reads + 2

    asyncio.run(story())


def test_what_was_not_answered_is_decided_on_another_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.refuses = True

    async def story() -> None:
        stop = asyncio.create_task(world.cluster.stop(JOB, 1, 1.0))
        while len(world.writes) < 2:
            await turns()
        assert world.reads == 2
        world.pods = []
        world.edited()
        world.edited()
        assert (await within(stop)).gone

    asyncio.run(story())
