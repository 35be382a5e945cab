"""For how many pods there is room, at a real API server: what waits for a node comes before what wants to grow."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from sentinel.cluster.kubernetes.agents import Agents
from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.job_cluster import JobCluster
from sentinel.cluster.kubernetes.job_io import JobRef
from sentinel.cluster.kubernetes.job_room import Rooms
from sentinel.cluster.kubernetes.objects import Node, Pod
from sentinel.core.model import ProtectedJob
from sentinel.core.now import Now
from sentinel.core.policy_model import Elastic, Policy, Resume
from sentinel.util.clock import system_now
from tests.kubernetes.conftest import run
from tests.kubernetes.test_job_cluster import row
from tests.kubernetes.test_leading_jobs import gang
from tests.rig.operators.flow import template
from tests.rig.processes import until

if TYPE_CHECKING:
    from tests.rig.api import Object
    from tests.rig.control_plane import ControlPlane
    from tests.rig.kwok import Kwok

NODES, JOB = "sizes", "research/job/train"
ASKED = Policy(resume=Resume(), restart=None, elastic=Elastic(min_nodes=1))


@pytest.fixture(scope="module")
def kwok(installed: "ControlPlane") -> "Iterator[Kwok]":
    from tests.rig.kwok import Kwok

    made = Kwok(installed)
    made.nodes(NODES, 4)
    yield made
    made.remove(NODES)
    made.rig.forget(made.daemon)


def waiting(name: str, **spec: Any) -> "Object":
    """A pod for a whole node, which no scheduler of this cluster looks after."""
    pod = template(NODES)
    pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "8"}}
    pod["spec"] |= {"schedulerName": "nobody", **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, **pod}


class World:
    """A job that runs with two of its four ranks, and a clock that is never too early."""

    def __init__(self, plane: "ControlPlane") -> None:
        self.admin, self.space = plane.admin, plane.namespace()
        job = gang(2)
        job["spec"]["template"]["spec"]["nodeSelector"] = {"rig": NODES}
        job["metadata"]["namespace"] = self.space
        self.admin.create(job)
        self.object = self.admin.get(self.admin.path_of(job))
        self.pods = f"/api/v1/namespaces/{self.space}/pods"
        until(lambda: len(self.running()) == 2, "the job does not run")
        self.job = ProtectedJob(name=JOB, policy=ASKED, size=2, original_size=4)
        self.later_s = 0.0

    def close(self) -> None:
        """What would take room from the next test."""
        self.admin.delete(f"/apis/batch/v1/namespaces/{self.space}/jobs", propagationPolicy="Background")
        self.admin.delete(self.pods, gracePeriodSeconds=0)
        until(lambda: not self.admin.items(self.pods), "its pods are left")

    def running(self) -> "list[Object]":
        return [pod for pod in self.admin.items(self.pods) if pod["status"].get("phase") == "Running"]

    def make(self, pod: "Object") -> None:
        pod["metadata"]["namespace"] = self.space
        self.admin.create(pod)

    def now(self) -> Now:
        self.later_s += 60.0
        return Now(system_now().mono_s + self.later_s, 0.0)

    def cluster(self, client: Client) -> JobCluster:
        nodes = {
            one["metadata"]["name"]: msgspec.convert(one, Node) for one in self.admin.items("/api/v1/nodes")
        }
        pods = {one["metadata"]["uid"]: msgspec.convert(one, Pod) for one in self.admin.items("/api/v1/pods")}
        made = JobCluster(
            client, Agents(lambda node: None), lambda: 1, Rooms(lambda: nodes, lambda: pods, self.now)
        )
        made.know(JOB, JobRef(row(self.object), self.space, "train", self.object["metadata"]["uid"]))
        return made


@pytest.fixture
def world(installed: "ControlPlane", kwok: "Kwok") -> Iterator[World]:
    made = World(installed)
    yield made
    made.close()


def test_pods_that_wait_with_equal_or_higher_priority_come_before_a_job_that_would_grow(
    world: World, controller: str
) -> None:
    low = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "low"}}
    world.admin.apply([{**low, "value": -10}])

    async def story() -> None:
        async with await Client.connect(controller) as client:
            cluster = world.cluster(client)
            assert await cluster.room_to_grow(world.job, ()) == 4
            assert await cluster.room_to_grow(world.job, (f"{NODES}-3",)) == 3
            world.make(waiting("less-important", priorityClassName="low"))
            world.make(waiting("not-yet", schedulingGates=[{"name": "example.com/quota"}]))
            world.make(waiting("elsewhere", nodeSelector={"rig": "other"}))
            assert await cluster.room_to_grow(world.job, ()) == 4
            world.make(waiting("first"))
            assert await cluster.room_to_grow(world.job, ()) == 3
            world.make(waiting("second"))
            assert await cluster.room_to_grow(world.job, ()) == 2
            world.make(waiting("third"))
            # It would have its place only while the job is stopped: what the job has is not given away.
            assert await cluster.room_to_grow(world.job, ()) == 2
            room = await cluster.room(world.job, 4, ())
            assert (room.size, room.reason) == (2, "")
            assert "room for 2 pods on 2 nodes; it wants 4" in room.sentence

    run(story())


def test_a_job_that_may_shrink_never_gets_fewer_pods_than_its_least(world: World, controller: str) -> None:
    least = Policy(resume=Resume(), restart=None, elastic=Elastic(min_nodes=3))
    job = msgspec.structs.replace(world.job, policy=least, size=4)
    before = world.admin.get(world.admin.path_of(world.object))["spec"]

    async def story() -> None:
        async with await Client.connect(controller) as client:
            cluster = world.cluster(client)
            out = (f"{NODES}-0", f"{NODES}-1")
            refused = await cluster.room(job, 4, out)
            assert (refused.size, refused.reason) == (0, "NoRoom")
            assert refused.sentence.startswith("No room for 1 of 3 pods on ")
            assert "2 left out" in refused.sentence
            assert await cluster.room_to_grow(job, out) == 0
            # Nothing is held for it: another job gets what there is.
            assert (await cluster.room(job, 4, out[:1])).size == 3

    run(story())
    assert world.admin.get(world.admin.path_of(world.object))["spec"] == before
    assert len(world.running()) == 2


def test_a_job_without_elastic_has_the_size_of_its_object_or_none(world: World, controller: str) -> None:
    plain = msgspec.structs.replace(world.job, policy=Policy())
    frozen = msgspec.structs.replace(world.job, elastic_frozen="the first start with 3 ranks failed")

    async def story() -> None:
        async with await Client.connect(controller) as client:
            cluster = world.cluster(client)
            assert (await cluster.room(plain, 4, ())).size == 2
            out = tuple(f"{NODES}-{n}" for n in range(3))
            refused = await cluster.room(plain, 2, out)
            assert (refused.size, refused.reason) == (0, "NoRoom")
            assert (await cluster.room(frozen, 2, out)).size == 0
            assert (await cluster.room(world.job, 2, out)).size == 1

    run(story())
