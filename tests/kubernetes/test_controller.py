"""`sentinel controller` and `sentinel agent` at a real API server, with the identities that `deploy/` ships."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.box import Box, Running
from tests.e2e.box import until as come_true
from tests.e2e.test_agent import XID_79, Node
from tests.kubernetes.conftest import NAMESPACE, kubeconfig, manifests

if TYPE_CHECKING:
    from tests.rig.control_plane import ControlPlane

AUDIENCE = "sentinel-controller"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[ControlPlane]":
    """One of its own: there is one Lease for controllers, which other tests hold."""
    from tests.rig.control_plane import ControlPlane
    from tests.rig.processes import Rig

    with Rig(tmp_path_factory.mktemp("control-plane")) as rig:
        made = ControlPlane(rig, controllers=False, scheduler=False)
        for pattern in ("crds/*.yaml", "namespace.yaml", "rbac.yaml", "admission.yaml"):
            made.admin.apply(manifests(pattern))
        yield made


class Fleet:
    """Controllers and agents on one machine, whose nodes are objects that nobody looks after."""

    def __init__(self, plane: "ControlPlane", box: Box, tmp_path: Path) -> None:
        self.plane, self.box, self.folder = plane, box, tmp_path
        self.admin = plane.admin
        token = plane.token(NAMESPACE, "sentinel-controller")
        self.kubeconfig = kubeconfig(tmp_path / "kubeconfig", plane.url, token, plane.identities.ca)
        self.ports: dict[int, int] = {}

    def controller(self, name: str, *options: str) -> Running:
        self.box.env |= {"POD_NAME": name, "POD_IP": "127.0.0.1"}
        words = ["controller", "--kubeconfig", str(self.kubeconfig), "--agents", "127.0.0.1:0", *options]
        settings = self.folder / f"{name}.yaml"
        head = {"apiVersion": "sentinel.dev/v1alpha1", "kind": "Settings"}
        settings.write_text(json.dumps({**head, "stateDir": str(self.folder / name)}))
        running = self.box.start(*words, "--settings", str(settings))
        running.said("serves agents on port")
        self.ports[running.pid] = int(running.err.partition("on port ")[2].partition(",")[0])
        return running

    def agent(self, name: str, *controllers: Running) -> Node:
        """A node, and its agent with what a DaemonSet's pod there would hold."""
        self.plane.node(name)
        folder = self.folder / name
        folder.mkdir()
        (folder / "token").write_text(
            self.plane.node_token(NAMESPACE, "sentinel-agent", name, audience=AUDIENCE)
        )
        bundle = come_true(lambda: self.found("/api/v1/namespaces/sentinel-system/configmaps/sentinel-ca"))
        (folder / "ca.crt").write_text(bundle["data"]["ca.crt"])
        own = Box(folder / "box")
        node = Node(own)
        link = {
            "addresses": [f"127.0.0.1:{self.ports[one.pid]}" for one in controllers],
            "node": name,
            "tokenFile": str(folder / "token"),
            "caFile": str(folder / "ca.crt"),
        }
        node.settings(listen="127.0.0.1:0", controller=link)
        node.start()
        self.box._children += own._children
        return node

    def found(self, path: str) -> Any:
        return self.admin.find(path)

    def node(self, name: str) -> dict[str, Any]:
        return self.admin.get(f"/api/v1/nodes/{name}")  # type: ignore[no-any-return]

    def taints(self, name: str) -> list[tuple[str, str]]:
        taints = self.node(name)["spec"].get("taints", [])
        return [(taint["key"], taint["effect"]) for taint in taints if "sentinel" in taint["key"]]

    def isolated(self, name: str) -> bool:
        marked = self.taints(name) == [("sentinel.dev/quarantined", "NoSchedule")]
        return marked and self.node(name)["spec"].get("unschedulable", False)

    def records(self, name: str) -> list[dict[str, Any]]:
        found = self.admin.get("/apis/sentinel.dev/v1alpha1/quarantines")["items"]
        return [one["spec"] for one in found if one["spec"]["node"] == name]

    def story(self) -> str:
        return "\n".join(f"--- {one.process.args}\n{one.err[-3000:]}" for one in self.box._children)

    def until(self, what: Callable[[], Any]) -> Any:
        return come_true(what, self.story, 60.0)


@pytest.fixture
def fleet(plane: "ControlPlane", tmp_path: Path) -> Iterator[Fleet]:
    box = Box(tmp_path / "box")
    yield Fleet(plane, box, tmp_path)
    box.close()


def test_in_observe_mode_everything_is_recorded_and_nothing_touched(fleet: Fleet) -> None:
    controller = fleet.controller("watching", "--observe")
    controller.said("leads, epoch", 60.0)
    node = fleet.agent("fleet-e", controller)
    node.machine.log(XID_79)
    fleet.until(lambda: fleet.records("fleet-e"))
    (record,) = fleet.records("fleet-e")
    assert (record["mode"], record["state"]) == ("observe", "active")
    assert not fleet.taints("fleet-e")
    assert not fleet.node("fleet-e")["spec"].get("unschedulable", False)
    controller.send(signal.SIGTERM)
    assert controller.code() == 0


def test_a_fatal_finding_takes_its_node_out_of_service_and_a_persons_uncordon_gives_it_back(
    fleet: Fleet,
) -> None:
    controller = fleet.controller("one")
    controller.said("leads, epoch")
    node = fleet.agent("fleet-a", controller)
    fleet.plane.node("fleet-b")
    node.machine.log(XID_79)
    fleet.until(lambda: fleet.isolated("fleet-a"))

    (record,) = fleet.records("fleet-a")
    assert (record["state"], record["kind"], record["nodeUid"]) == (
        "active",
        "fault",
        fleet.node("fleet-a")["metadata"]["uid"],
    )
    assert [finding["code"] for finding in record["findings"]] == ["XID 79"]
    assert "fallen off the bus" in str(record["findings"])

    def conditions() -> dict[str, tuple[str, str]]:
        found = fleet.node("fleet-a")["status"].get("conditions", [])
        return {one["type"]: (one["status"], one["reason"]) for one in found}

    fleet.until(lambda: conditions().get("SentinelHealthy") == ("False", "FatalFinding"))
    assert not fleet.isolated("fleet-b")

    fleet.admin.patch("/api/v1/nodes/fleet-a", {"spec": {"unschedulable": False}})
    fleet.until(lambda: not fleet.taints("fleet-a"))
    (record,) = fleet.records("fleet-a")
    assert (record["state"], record["endedBy"]) == ("overridden", "uncordoned")
    assert not fleet.node("fleet-a")["spec"].get("unschedulable", False)
    controller.send(signal.SIGTERM)
    assert controller.code() == 0
    assert "Traceback" not in controller.err


def test_the_standby_goes_on_where_a_killed_leader_stood(fleet: Fleet) -> None:
    first = fleet.controller("first")
    first.said("leads, epoch")
    second = fleet.controller("second")
    node = fleet.agent("fleet-c", first, second)
    node.machine.log(XID_79)
    fleet.until(lambda: fleet.isolated("fleet-c"))
    os.kill(first.pid, signal.SIGKILL)
    fleet.admin.patch("/api/v1/nodes/fleet-c", {"spec": {"unschedulable": False}})
    second.said("leads, epoch", 60.0)
    fleet.until(lambda: not fleet.taints("fleet-c"))
    (record,) = fleet.records("fleet-c")
    assert record["state"] == "overridden"
    third = fleet.agent("fleet-d", second)
    third.machine.log(XID_79)
    fleet.until(lambda: fleet.isolated("fleet-d"))
