"""Room for a whole job: by the scheduler's filters, all pods or none, and a sentence that says what is missing."""

from typing import Any

import pytest

from sentinel.core.job.room import Placement, RoomNode, RoomTaint, free, place, quantity, requests

GPU = "nvidia.com/gpu"


def pod(gpus: int = 8, **spec: Any) -> dict[str, Any]:
    resources = {"limits": {GPU: str(gpus)}} if gpus else {}
    return {"spec": {"containers": [{"name": "main", "resources": resources}], **spec}}


def node(name: str, gpus: float = 8, **fields: Any) -> RoomNode:
    labels = {"kubernetes.io/hostname": name, **fields.pop("labels", {})}
    return RoomNode(name=name, labels=labels, free={GPU: gpus, "cpu": 96.0, "pods": 110.0}, **fields)


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": required}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("text", "value"),
    [("8", 8), ("500m", 0.5), ("1Ti", 2**40), ("1e3", 1000), ("1.5Gi", 1.5 * 2**30), ("2k", 2000), (4, 4), ("", 0),
     ("many", 0), (None, 0), ("5E", 5e18), ("100Mi", 100 * 2**20)],
)  # fmt: skip
def test_quantities(text: object, value: float) -> None:
    assert quantity(text) == pytest.approx(value)


def test_a_pod_asks_for_its_containers_together_or_for_its_largest_init_container() -> None:
    both = pod(2)
    both["spec"]["containers"].append({"name": "side", "resources": {"requests": {"cpu": "500m", GPU: "1"}}})
    both["spec"]["initContainers"] = [{"name": "first", "resources": {"requests": {"cpu": "4"}}}]
    assert requests(both) == {GPU: 3.0, "cpu": 4.0, "pods": 1.0}


def test_what_pods_ask_for_is_not_free_any_more() -> None:
    left = free({GPU: "8", "cpu": "96", "pods": "110"}, [requests(pod(6)), requests(pod(0))])
    assert (left[GPU], left["pods"]) == (2, 108)


def test_all_pods_get_a_node_or_none_does() -> None:
    found = place([pod()] * 2, [node("a"), node("b")])
    assert found.fits
    assert sorted(found.nodes.values()) == ["a", "b"]
    short = place([pod()] * 3, [node("a"), node("b")])
    assert not short.fits
    assert short.nodes == {}
    assert short.sentence == "No room for 1 of 3 pods on 2 nodes: 2 without enough nvidia.com/gpu."


def test_small_pods_leave_whole_nodes_free() -> None:
    nodes = [node("empty"), node("used", 4)]
    assert place([pod(4)], nodes).nodes == {0: "used"}
    assert place([pod(4), pod(8)], nodes).nodes == {0: "used", 1: "empty"}


@pytest.mark.parametrize(
    ("refusing", "reason"),
    [
        (node("a", schedulable=False), "1 unschedulable"),
        (node("a", taints=(RoomTaint("broken"),)), "1 with the taint broken"),
        (node("a", 7), "1 without enough nvidia.com/gpu"),
        (RoomNode(name="a", labels={}, free={"cpu": 1.0, "pods": 1.0}), "1 without enough nvidia.com/gpu"),
    ],
)
def test_a_node_that_does_not_take_the_pod_is_named_by_why(refusing: RoomNode, reason: str) -> None:
    assert place([pod()], [refusing]).sentence == f"No room for 1 of 1 pods on 1 nodes: {reason}."


def test_a_node_that_is_left_out_is_not_used() -> None:
    assert place([pod()], [node("a"), node("b")], excluded=["a"]).nodes == {0: "b"}
    assert "1 left out" in place([pod()], [node("a")], excluded=["a"]).sentence


@pytest.mark.parametrize(
    ("toleration", "fits"),
    [
        ({"key": "rig", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "rig", "value": "fake"}, True),
        ({"key": "rig", "value": "real"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "rig", "operator": "Exists", "effect": "NoExecute"}, False),
    ],
)
def test_taints_are_tolerated_as_the_scheduler_has_it(toleration: dict[str, str], fits: bool) -> None:
    tainted = node("a", taints=(RoomTaint("rig", "fake"), RoomTaint("soft", "", "PreferNoSchedule")))
    assert place([pod(tolerations=[toleration])], [tainted]).fits is fits


@pytest.mark.parametrize(
    ("spec", "fits"),
    [
        ({"nodeSelector": {"pool": "h100"}}, True),
        ({"nodeSelector": {"pool": "a100"}}, False),
        (affinity(expression("pool", "In", "h100", "h200")), True),
        (affinity(expression("kubernetes.io/hostname", "NotIn", "a")), False),
        (affinity(expression("kubernetes.io/hostname", "NotIn", "b")), True),
        (affinity(expression("missing", "NotIn", "x")), True),
        (affinity(expression("missing", "Exists")), False),
        (affinity(expression("pool", "DoesNotExist")), False),
        (affinity(expression("cards", "Gt", "4")), True),
        (affinity(expression("cards", "Gt", "8")), False),
        (affinity(expression("cards", "Lt", "8")), False),
        (affinity(expression("pool", "In", "a100"), expression("pool", "In", "h100")), True),
        (affinity({}), False),
        (
            affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}),
            True,
        ),
    ],
)
def test_nodes_are_selected_as_the_scheduler_has_it(spec: dict[str, Any], fits: bool) -> None:
    there = node("a", labels={"pool": "h100", "cards": "8"})
    assert place([pod(**spec)], [there]).fits is fits


def test_no_pods_need_no_room() -> None:
    assert place([], []) == Placement()


def test_pods_that_name_their_node_have_room_there_only() -> None:
    found = place([pod(4, nodeName="b"), pod(4)], [node("a"), node("b")])
    assert found.nodes[0] == "b"
    refused = place([pod(nodeName="b")], [node("a"), node("b")], excluded=("b",))
    assert refused.sentence == "No room for 1 of 1 pods on 2 nodes: 1 not the one that they name, 1 left out."
