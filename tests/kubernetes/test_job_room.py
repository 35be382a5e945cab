"""Room by what is followed of nodes and pods: what others use and were promised is not free."""

from typing import Any

import msgspec
import pytest
from msgspec import structs

from sentinel.cluster.kubernetes.job_room import PROMISE_S, Rooms
from sentinel.cluster.kubernetes.objects import Node, Pod, PodStatus
from sentinel.core.now import Now

GPU = "nvidia.com/gpu"


def node(name: str, **spec: Any) -> Node:
    made = {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": f"host-{name}"}},
        "spec": spec,
        "status": {"allocatable": {"cpu": "96", "pods": "110", GPU: "8"}},
    }
    return msgspec.convert(made, Node)


def pod(name: str, on: str, gpus: int = 8, phase: str = "Running", **spec: Any) -> Pod:
    container = {"name": "main", "resources": {"limits": {GPU: str(gpus)}}}
    made = {
        "metadata": {"name": name, "uid": name, "namespace": "x"},
        "spec": {"nodeName": on, "containers": [container], **spec},
        "status": {"phase": phase},
    }
    return msgspec.convert(made, Pod)


class World:
    def __init__(self) -> None:
        self.nodes = {name: node(name) for name in ("a", "b", "c")}
        self.pods: dict[str, Pod] = {}
        self.now_s = 0.0
        self.rooms = Rooms(lambda: self.nodes, lambda: self.pods, lambda: Now(self.now_s, self.now_s))

    def find(
        self,
        job: str,
        count: int,
        own: tuple[str, ...] = (),
        excluded: tuple[str, ...] = (),
        first: tuple[dict[str, Any], ...] = (),
    ) -> str:
        """ "" where there is room, which is then promised."""
        self.now_s += 10.0
        container = {"name": "main", "resources": {"limits": {GPU: "8"}}}
        template = {"spec": {"containers": [container]}}
        found = self.rooms.find(job, [template] * count, own, excluded, first)
        self.rooms.kept(job)
        if found.fits:
            self.rooms.promise(job, [template] * count, found)
        return found.sentence


@pytest.fixture
def world() -> World:
    return World()


def test_pods_of_others_take_room_and_a_jobs_own_and_ended_ones_do_not(world: World) -> None:
    world.pods = {"x/one": pod("one", "a"), "x/two": pod("two", "b", phase="Succeeded")}
    assert world.find("job", 2) == ""
    assert "1 of 3 pods on 3 nodes: 3 without enough nvidia.com/gpu" in world.find("job", 3)
    assert world.find("job", 3, own=("one",)) == ""


def test_a_pod_for_which_others_were_preempted_has_its_room_before_it_is_bound(world: World) -> None:
    waits = pod("one", "", phase="Pending")
    world.pods = {"x/one": waits}
    assert world.find("job", 3) == ""
    world.pods = {"x/one": structs.replace(waits, status=PodStatus(phase="Pending", nominated_node_name="a"))}
    assert "1 of 3 pods" in world.find("job", 3)
    assert world.find("job", 2) == ""


def test_init_containers_and_overhead_count(world: World) -> None:
    first = {"name": "first", "resources": {"requests": {GPU: "8"}}}
    world.pods = {"x/one": pod("one", "a", 0, initContainers=[first])}
    assert world.find("job", 3) != ""
    world.pods = {"x/one": pod("one", "a", 0, overhead={GPU: "1"})}
    assert world.find("job", 3) != ""


def test_what_is_cordoned_or_left_out_has_no_room(world: World) -> None:
    world.nodes["c"] = node("c", unschedulable=True)
    assert world.find("job", 2) == ""
    assert "1 unschedulable" in world.find("job", 3)
    assert "1 left out" in world.find("job", 2, excluded=("a",))
    assert not world.rooms.schedulable("c")
    assert not world.rooms.schedulable("gone")
    assert world.rooms.hostname("a") == "host-a"


def test_a_place_that_was_found_is_kept_for_its_job_until_its_pods_are_there_or_it_took_too_long(
    world: World,
) -> None:
    assert world.find("first", 2) == ""
    assert world.find("second", 2) != ""
    assert world.find("second", 1) == ""
    assert world.find("first", 2) == ""  # it may ask again
    world.rooms.kept("first")
    assert world.find("second", 3) == ""
    world.now_s += PROMISE_S - 20.0
    world.rooms.still("second")
    assert world.find("first", 3) != ""
    world.now_s += PROMISE_S
    assert world.find("first", 3) == ""


def test_a_bad_node_concerns_only_pods_that_the_scheduler_would_give_to_it(world: World) -> None:
    """However full it is now."""
    world.nodes["b"] = node("b", taints=[{"key": "pool", "value": "other", "effect": "NoSchedule"}])
    world.nodes["c"] = node("c", unschedulable=True)
    world.pods = {"x/one": pod("one", "a")}
    pods = {"containers": [{"name": "main", "resources": {"limits": {GPU: "8"}}}]}
    bad = ("c", "b", "a", "gone")
    assert world.rooms.taking(bad, [{"spec": pods}]) == ["a"]
    tolerant = {"spec": {**pods, "tolerations": [{"operator": "Exists"}]}}
    assert world.rooms.taking(bad, [{"spec": pods}, tolerant]) == ["b", "a"]
    elsewhere = {"spec": {**pods, "nodeSelector": {"zone": "mars"}}}
    assert world.rooms.taking(bad, [elsewhere]) == []
    assert world.rooms.taking(bad, []) == ["b", "a"], "what its pods need is not known"


def test_what_waits_before_a_job_takes_its_room_first_where_it_can_go_there(world: World) -> None:
    whole = {"spec": {"containers": [{"name": "main", "resources": {"limits": {GPU: "8"}}}]}}
    nowhere = {"spec": {**whole["spec"], "nodeSelector": {"zone": "mars"}}}
    assert world.find("job", 3, first=(nowhere, nowhere)) == ""
    assert "1 of 3 pods" in world.find("job", 3, first=(nowhere, whole))
    assert world.find("job", 2, first=(nowhere, whole)) == ""
    assert "1 of 1 pods" in world.find("job", 1, first=(whole,) * 9)
