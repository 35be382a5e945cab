"""What the API tells of nodes and pods, in the words of the fleet."""

import msgspec
from msgspec.structs import replace

from sentinel.cluster.kubernetes.objects import Node, Pod
from sentinel.cluster.kubernetes.picture import node_picture, pod_picture
from sentinel.core.fleet.model import NodeMark, NodePicture, Taint
from sentinel.core.people.protection import Protection

NODE = b"""{"metadata": {"name": "a", "uid": "u1", "resourceVersion": "7", "labels": {"pool": "h100"},
"annotations": {"weave.works/kured-reboot-in-progress": "2026"}},
"spec": {"unschedulable": true, "taints": [
{"key": "sentinel.dev/quarantined", "value": "0003.cordoned", "effect": "NoSchedule", "timeAdded": null},
{"key": "example.com/x", "effect": "NoSchedule"}]},
"status": {"conditions": [
{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-11-21T10:00:00Z", "lastTransitionTime": null},
{"type": "SentinelHealthy", "status": "False", "reason": "FatalFinding", "message": "XID 79"}],
"nodeInfo": {"bootID": "b1", "kernelVersion": "6"}, "images": [{"names": ["x"]}]}}"""


def picture(known: NodePicture | None = None) -> NodePicture:
    one = msgspec.json.decode(NODE, type=Node)
    return node_picture(one, known, pool_label="pool", conditions={"SentinelHealthy"})


def test_a_node_is_told_as_the_api_has_it() -> None:
    found = picture()
    assert (found.uid, found.resource_version, found.pool, found.api_boot_id) == ("u1", "7", "h100", "b1")
    assert found.unschedulable
    assert found.mark == NodeMark(3, True)
    assert Taint("example.com/x", "", "NoSchedule") in found.taints
    assert found.claims == ("kured",)
    assert [one.type for one in found.conditions] == ["SentinelHealthy"]


def test_what_the_agent_told_stays_but_not_for_another_node_of_the_same_name() -> None:
    heard = replace(picture(), agent_mono_s=5.0, boot_id="b1", resource_version="6", unschedulable=False)
    assert picture(heard) == replace(picture(), agent_mono_s=5.0, boot_id="b1")
    assert picture(replace(heard, uid="u0")) == picture()


def test_pods_that_run_nowhere_or_have_ended_are_not_in_the_picture() -> None:
    def pod(phase: str, node: str) -> Pod:
        text = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"nodeName": node}}
        return msgspec.convert({**text, "status": {"phase": phase}}, Pod)

    running = pod_picture(pod("Running", "a"), "", None)
    assert running is not None
    assert running.id == "n/p/u"
    assert pod_picture(pod("Pending", ""), "", None) is None
    assert pod_picture(pod("Failed", "a"), "", None) is None
    assert pod_picture(pod("Succeeded", "a"), "", None) is None


def test_a_nodes_own_pods_are_nobodys_job() -> None:
    def pod(kind: str) -> Pod:
        owner = {"kind": kind, "name": "llama", "uid": "o", "controller": True}
        meta = {"name": "p", "namespace": "n", "uid": "u", "ownerReferences": [owner]}
        return msgspec.convert({"metadata": meta, "spec": {"nodeName": "a"}}, Pod)

    protection = Protection(force_after_s=60.0)
    told = {
        kind: pod_picture(pod(kind), "Job n/llama", protection)
        for kind in ("Job", "ReplicaSet", "DaemonSet", "Node")
    }
    harmed = {
        kind
        for kind, one in told.items()
        if one is not None and one.protected and one.force_after_s and one.job
    }
    assert harmed == {"Job", "ReplicaSet"}
