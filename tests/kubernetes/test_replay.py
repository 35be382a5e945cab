"""A recording of a real controller's run, with faults, tells the decisions that its records tell."""

import json
import signal
from typing import Any

import pytest

from tests.e2e.agent_node import XID_79
from tests.kubernetes.conftest import protect_all, with_job
from tests.kubernetes.local_fleet import Fleet

WIDE = {"atATime": {"atLeast": 9}, "perWindow": {"atLeast": 9}}


def replay(fleet: Fleet, controller: str, code: int = 0, **settings: Any) -> dict[str, Any]:
    options = []
    if settings:
        file = fleet.folder / "other.yaml"
        head = {"apiVersion": "sentinel.dev/v1alpha1", "kind": "Settings"}
        file.write_text(json.dumps({**head, "fleet": {"causeNodes": 100_000, **settings}}))
        options = ["--settings", str(file)]
    folder = str(fleet.folder / controller / "recording")
    ended = fleet.box.sentinel("replay", "--fleet", folder, *options, "-o", "json")
    assert ended.returncode == code, ended.stderr
    return json.loads(ended.stdout)  # type: ignore[no-any-return]


def told(answer: dict[str, Any], how: str = "as recorded") -> set[tuple[str, str]]:
    return {(one["record"], one["reason"]) for one in answer["decisions"] if one["how"] == how}


def stories(fleet: Fleet, *nodes: str) -> set[tuple[str, str]]:
    """What the records themselves tell."""
    return {
        (record["id"], line["reason"])
        for node in nodes
        for record in fleet.records(node)
        for line in record["story"]
    }


def test_the_recording_of_a_run_with_faults_tells_what_its_records_tell(fleet: Fleet) -> None:
    controller = fleet.controller("recorded")
    controller.said("leads, epoch")
    bad = fleet.agent("replay-a", controller)
    worse = fleet.agent("replay-b", controller)
    third = fleet.agent("replay-c", controller)
    bad.machine.log(XID_79)
    fleet.until(lambda: fleet.isolated("replay-a"))
    worse.machine.log(XID_79)
    fleet.until(lambda: fleet.isolated("replay-b"))
    third.machine.log(XID_79)  # two at a time are allowed
    fleet.until(lambda: [one["state"] for one in fleet.records("replay-c")] == ["held"])
    fleet.admin.patch("/api/v1/nodes/replay-a", {"spec": {"unschedulable": False}})
    fleet.until(lambda: fleet.isolated("replay-c"))
    controller.send(signal.SIGTERM)
    assert controller.code() == 0, controller.err

    answer = replay(fleet, "recorded")
    assert not answer["differences"]
    nodes = ("replay-a", "replay-b", "replay-c")
    assert told(answer) >= stories(fleet, *nodes)
    assert ("replay-a-0001", "Uncordoned") in told(answer)
    assert ("replay-c-0001", "Braked") in told(answer)

    other = replay(fleet, "recorded", isolations=WIDE, poolIsolations=WIDE)
    assert ("replay-c-0001", "FatalFinding") in told(other, "only now")
    assert ("replay-c-0001", "Braked") in told(other, "only recorded")
    assert ("replay-a-0001", "FatalFinding") in told(other)


@pytest.mark.parametrize("scope", ["cluster", "pool"])
def test_what_is_only_observed_is_decided_recorded_and_told_and_touches_nothing(
    fleet: Fleet, scope: str
) -> None:
    observed = {"mode": "observe"} if scope == "cluster" else {"observePools": ["lab"]}
    fleet.settings["fleet"] = {**observed, "isolations": WIDE, "poolIsolations": WIDE}
    controller = fleet.controller(f"observing-{scope}")
    controller.said("leads, epoch")
    name = f"observed-{scope}"
    node = fleet.agent(name, controller)
    fleet.admin.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {"sentinel.dev/pool": "lab"}}})
    node.machine.log(XID_79)
    fleet.until(lambda: fleet.records(name))
    controller.said("would have been taken (observe mode) out of service")
    before = fleet.node(name)["metadata"]["resourceVersion"]
    (record,) = fleet.records(name)
    assert (record["mode"], record["state"]) == ("observe", "active")
    controller.send(signal.SIGTERM)
    assert controller.code() == 0
    assert not fleet.taints(name)
    assert fleet.node(name)["metadata"]["resourceVersion"] == before
    answer = replay(fleet, f"observing-{scope}")
    assert not answer["differences"]
    assert told(answer) >= stories(fleet, name)


def test_pods_of_a_namespace_that_is_only_observed_are_not_removed_and_it_is_told(fleet: Fleet) -> None:
    """Its node is gone, which proves it dead; the pod of the other namespace goes."""
    fleet.plane.node("replay-g")
    spaces = [fleet.plane.namespace(name) for name in ("watched", "served")]
    for space in spaces:
        fleet.admin.create(protect_all(space))
        with_job(fleet.plane, "llama-0", space, "replay-g")
    uid = fleet.node("replay-g")["metadata"]["uid"]
    silence = {
        "id": "replay-g-0001",
        "node": "replay-g",
        "nodeUid": uid,
        "kind": "silence",
        "state": "active",
    }
    head = {
        "apiVersion": "sentinel.dev/v1alpha1",
        "kind": "Quarantine",
        "metadata": {"name": "replay-g-0001"},
    }
    fleet.admin.create({**head, "spec": {**silence, "needs": {"sentence": "a person"}}})
    fleet.admin.delete("/api/v1/nodes/replay-g")
    wide = {"perWindow": {"atLeast": 9}}
    fleet.settings["fleet"] = {"observeNamespaces": [spaces[0]], "removals": wide, "poolRemovals": wide}
    controller = fleet.controller("half")
    controller.said("leads, epoch")
    fleet.until(lambda: fleet.found(f"/api/v1/namespaces/{spaces[1]}/pods/llama-0") is None)
    controller.said("would be removed by force (observe mode)")
    (record,) = fleet.records("replay-g")
    removed = {one["mode"]: one["pods"] for one in record["removals"]}
    assert [pod.split("/")[0] for pod in removed["observe"]] == [spaces[0]]
    controller.send(signal.SIGTERM)
    assert controller.code() == 0
    assert fleet.found(f"/api/v1/namespaces/{spaces[0]}/pods/llama-0") is not None
    answer = replay(fleet, "half")
    assert not answer["differences"]
    assert ("replay-g-0001", "RemovedByForce") in told(answer)
