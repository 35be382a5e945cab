"""`sentinel uninstall`: nothing of Sentinel's is left on nodes and jobs, and everything of others."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.agent_node import XID_79
from tests.e2e.box import Box
from tests.kubernetes.local_fleet import Fleet
from tests.kubernetes.people import Person, bind

if TYPE_CHECKING:
    from tests.rig.control_plane import ControlPlane

OTHER = {"key": "example.com/mine", "value": "x", "effect": "NoSchedule"}
MINE = {"type": "ExampleWell", "status": "True", "reason": "Fine", "message": "of somebody else"}
NOTHING = "Nothing of Sentinel's is left on nodes and jobs.\n"


@pytest.fixture
def fleet(plane: "ControlPlane", tmp_path: Path) -> Iterator[Fleet]:
    box = Box(tmp_path / "box")
    yield Fleet(plane, box, tmp_path)
    box.close()


def test_nothing_of_sentinels_is_left_on_nodes_and_everything_of_others(fleet: Fleet) -> None:
    admin = Person(fleet.plane, "root-of-all", bind(fleet.plane, "root-of-all", "cluster-admin"))
    controller = fleet.controller("one")
    controller.said("leads, epoch")
    bad, good = fleet.agent("un-bad", controller), fleet.agent("un-good", controller)
    assert good
    fleet.admin.patch(
        "/api/v1/nodes/un-bad",
        {"metadata": {"annotations": {"example.com/mine": "1"}}, "spec": {"taints": [OTHER]}},
    )
    fleet.admin.patch("/api/v1/nodes/un-bad/status", {"status": {"conditions": [MINE]}})
    bad.machine.log(XID_79)
    fleet.until(lambda: fleet.isolated("un-bad"))

    def own_conditions(name: str) -> list[str]:
        found = fleet.node(name)["status"].get("conditions", [])
        return [one["type"] for one in found if one["type"].startswith("Sentinel")]

    fleet.until(lambda: own_conditions("un-bad"))
    checked = admin.says("uninstall", "--check")
    assert checked.returncode == 1, checked.stderr
    assert (
        "node un-bad: taint sentinel.dev/quarantined=0001.cordoned, unschedulable by Sentinel, annotation "
        in (checked.stdout)
    )
    refused = admin.says("uninstall")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "still leads and would write it all again: first `helm uninstall`" in refused.stderr
    assert fleet.isolated("un-bad")

    controller.send(signal.SIGTERM)
    assert controller.code() == 0
    done = admin.says("uninstall")
    assert (done.returncode, done.stderr) == (0, "")
    assert "node un-bad: removed taint sentinel.dev/quarantined" in done.stdout
    assert NOTHING in done.stdout
    node = fleet.node("un-bad")
    assert not node["spec"].get("unschedulable")
    assert OTHER in node["spec"]["taints"]
    assert fleet.taints("un-bad") == []
    notes = node["metadata"]["annotations"]
    assert notes["example.com/mine"] == "1"
    assert not [name for name in notes if "sentinel" in name]
    assert "ExampleWell" in [one["type"] for one in node["status"]["conditions"]]
    assert own_conditions("un-bad") == []
    assert admin.says("uninstall", "--check").stdout.startswith("Records stay")
    assert admin.says("uninstall", "--check").returncode == 0
    assert len(fleet.records("un-bad")) == 1, "records stay"
