"""What is kept of thousands of nodes and pods: each as it was told, what they share once."""

import msgspec

from sentinel.cluster.kubernetes import kept
from sentinel.cluster.kubernetes.objects import Node, Pod

POD = {
    "metadata": {
        "name": "train-0",
        "namespace": "research",
        "uid": "u-0",
        "labels": {"batch.kubernetes.io/controller-uid": "7d1c", "job-name": "train"},
        "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "7d1c"}],
    },
    "spec": {
        "nodeName": "gpu-7",
        "containers": [{"name": "main", "resources": {"requests": {"nvidia.com/gpu": "8"}}}],
        "initContainers": [{"name": "data"}],
        "overhead": {"cpu": "1"},
        "terminationGracePeriodSeconds": 45,
    },
    "status": {"phase": "Running", "containerStatuses": [{"name": "main", "restartCount": 2}]},
}
CONDITIONS = [
    {"type": "Ready", "status": "True", "message": "kubelet is posting ready status"},
    {"type": "Own", "status": "False", "reason": "Well", "lastTransitionTime": "2026-01-02T03:04:05Z"},
]


def read(kind: type, told: dict[str, object]) -> "Node | Pod":
    found: Node | Pod = msgspec.json.decode(msgspec.json.encode(told), type=kind)
    return found


def test_a_pod_is_kept_as_it_was_told_and_shares_what_others_say_alike() -> None:
    one, other = read(Pod, POD), read(Pod, POD)
    assert isinstance(one, Pod)
    assert isinstance(other, Pod)
    first, second = kept.pod(one), kept.pod(other)
    assert first == one
    assert first.spec.containers is second.spec.containers
    assert first.metadata.owner_references[0] is second.metadata.owner_references[0]
    for left, right in zip(first.metadata.labels.items(), second.metadata.labels.items(), strict=True):
        assert all(a is b for a, b in zip(left, right, strict=True))


def test_a_node_is_kept_without_the_conditions_that_nobody_looks_at() -> None:
    told = {"metadata": {"name": "gpu-7", "labels": {"pool": "a"}}, "status": {"conditions": CONDITIONS}}
    one = read(Node, told)
    assert isinstance(one, Node)
    found = kept.node({"Own"})(one)
    assert [condition.type for condition in found.status.conditions] == ["Own"]
    assert found.status.conditions[0] == one.status.conditions[1]
    assert (found.metadata, found.spec) == (one.metadata, one.spec)


def test_of_what_others_write_on_a_node_the_name_is_kept_and_of_what_sentinel_is_asked_there_all() -> None:
    notes = {"sentinel.dev/hold": "a new card", "example.com/config": "x" * 9000}
    one = read(Node, {"metadata": {"name": "gpu-7", "annotations": notes}})
    assert isinstance(one, Node)
    assert kept.node(())(one).metadata.annotations == {**notes, "example.com/config": ""}
