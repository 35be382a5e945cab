"""When what was read of a job is read again."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from sentinel.cluster.kubernetes import known_jobs
from sentinel.cluster.kubernetes.agents import Agents
from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.job_io import JobRef, Queues
from sentinel.cluster.kubernetes.job_room import Rooms
from sentinel.cluster.kubernetes.known_jobs import KnownJobs
from sentinel.cluster.kubernetes.objects import Meta, Pod
from sentinel.cluster.kubernetes.reflector import Change, Kind
from sentinel.core.job.kinds import row_of
from sentinel.core.job.state import Seen
from sentinel.rules.job_kinds import job_table
from sentinel.util.clock import system_now
from tests.waits import turns

JOB = "ns/job.batch/train"
OBJECT = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train", "uid": "u"}, "spec": {}}


class World:
    """Each reading of the job is another one. `meanwhile` happens while it is read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads, self.now_s = 0, 1000.0
        self.meanwhile: Callable[[], None] = lambda: None
        row = row_of(job_table().rows, OBJECT)
        assert row is not None

        async def read(client: Client, queues: Queues, ref: JobRef, ranks: int, gpus: bool) -> Seen:
            self.reads += 1
            self.meanwhile()
            return Seen(row=ref.row, job=OBJECT)

        monkeypatch.setattr(known_jobs, "read_job", read)
        monkeypatch.setattr(known_jobs, "monotonic", lambda: self.now_s)
        rooms = Rooms(dict, dict, system_now)
        self.jobs = KnownJobs(cast(Client, None), Agents(lambda node: None), rooms)
        self.jobs.know(JOB, JobRef(row, "ns", "train", "u"))
        self.known = self.jobs._known(JOB)

    def changed(self) -> None:
        self.jobs.changed(
            JOB, Change(Kind.CHANGED, "ns/train-0", Pod(Meta(name="train-0")), Pod(Meta(name="train-0")))
        )


def test_a_change_that_comes_while_the_job_is_read_is_not_waited_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)

    async def story() -> None:
        async def read_and_turned(within_s: float, then: Callable[[], Awaitable[None]]) -> None:
            reading = await world.jobs._reading(world.known)
            await then()
            await asyncio.wait_for(world.jobs._turn(world.known, reading.changes, within_s=3600.0), within_s)

        async def nothing() -> None: ...

        async def another_look() -> None:
            world.meanwhile = lambda: None
            await world.jobs._reading(world.known)

        world.meanwhile = world.changed
        await read_and_turned(120.0, nothing)
        world.meanwhile = world.changed
        await read_and_turned(120.0, another_look)
        with pytest.raises(TimeoutError):
            await read_and_turned(0.2, nothing)  # no change came since

    asyncio.run(story())


def test_a_job_is_read_again_when_enough_has_changed_or_its_time_has_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)

    async def story() -> None:
        was = (await world.jobs._reading(world.known)).changes
        turn = asyncio.create_task(world.jobs._turn(world.known, was, lambda since: since.of_pods >= 3))
        for _ in range(2):
            world.changed()
            await turns()
        assert not turn.done()
        world.changed()
        await asyncio.wait_for(turn, 120.0)

        turn = asyncio.create_task(world.jobs._turn(world.known, world.known.changes, lambda since: False))
        await turns()
        world.now_s += known_jobs.LOOK_S - 0.1
        world.changed()
        await turns()
        assert not turn.done()
        world.now_s += 0.2
        world.changed()
        await asyncio.wait_for(turn, 120.0)

    asyncio.run(story())


def test_the_next_step_of_a_recovery_rests_on_what_the_one_before_has_read_where_nothing_came_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)

    async def lately() -> int:
        await world.jobs._reading_lately(world.known)
        return world.reads

    async def story() -> None:
        assert await lately() == 1
        assert await lately() == 1
        world.changed()
        assert await lately() == 2, "its pods have changed"
        world.now_s += known_jobs.LATELY_S - 0.1
        assert await lately() == 2
        world.now_s += 0.2
        assert await lately() == 3, "it may have changed without a word of its pods"
        await world.jobs._reading(world.known)
        assert await lately() == 4, "a look has read it meanwhile: that is the newest"
        world.meanwhile = world.changed
        await world.jobs._reading(world.known)
        assert await lately() == 6, "its pods have changed while it was read"
        world.meanwhile = lambda: None
        world.now_s += known_jobs.LATELY_S + 0.1
        await world.jobs._reading(world.known)
        assert world.known.last is None, "no recovery asks: its pods are not kept"

    asyncio.run(story())
