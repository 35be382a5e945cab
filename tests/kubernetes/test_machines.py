"""Machines that change under their records, and many with one fault, as a real controller hears of them from agents."""

import asyncio
from collections.abc import Callable
from typing import Any

from tests.chaos.fleet_nodes import SimNode
from tests.core.fleet_world import a_nic_finding
from tests.e2e.box import Running
from tests.kubernetes.conftest import NAMESPACE, NODES
from tests.kubernetes.local_fleet import AUDIENCE, Fleet, Page
from tests.kubernetes.people import Person, bind
from tests.samples import XID_79
from tests.waits import eventually

WIDE = {"atATime": {"atLeast": 100}, "perWindow": {"atLeast": 100}}
NETWORK = "network-incident"


class Renamed(SimNode):
    """The machine of another node, under a name of its own."""

    was: SimNode

    @property
    def boot_id(self) -> str:
        return self.was.boot_id


class Machines:
    """Nodes of one controller, of which this loop is the agents."""

    def __init__(self, fleet: Fleet, controller: Running) -> None:
        self.fleet = fleet
        self.bundle = fleet.folder / "agents-ca.crt"
        found = fleet.until(lambda: fleet.found(f"/api/v1/namespaces/{NAMESPACE}/configmaps/sentinel-ca"))
        self.bundle.write_text(found["data"]["ca.crt"])
        self.address = f"127.0.0.1:{fleet.ports[controller.pid]}"
        self.all: list[SimNode] = []

    def made(self, name: str, kind: type[SimNode] = SimNode) -> SimNode:
        node = kind(name, "", self.fleet.folder, (self.address,), str(self.bundle))
        self.all.append(node)
        return node

    def join(self, node: SimNode) -> None:
        self.fleet.plane.node(node.name)
        self.boot(node)
        node.start(self.fleet.plane.node_token(NAMESPACE, "sentinel-agent", node.name, audience=AUDIENCE))

    def boot(self, node: SimNode) -> None:
        """As its kubelet says it."""
        names = ("machineID", "systemUUID", "kernelVersion", "osImage", "containerRuntimeVersion")
        names += ("kubeletVersion", "kubeProxyVersion", "operatingSystem", "architecture")
        info = {**dict.fromkeys(names, ""), "bootID": node.boot_id}
        self.fleet.admin.patch(f"{NODES}/{node.name}/status", {"status": {"nodeInfo": info}})

    async def leave(self, node: SimNode) -> None:
        await node.stop()
        self.fleet.admin.delete(f"{NODES}/{node.name}")

    async def until(self, what: Callable[[], Any]) -> Any:
        return await eventually(what, self.fleet.story, every_s=0.2)

    def ended(self, node: SimNode) -> list[tuple[str, str]]:
        return [(one["state"], one.get("endedBy", "")) for one in self.fleet.records(node.name)]

    def in_service(self, node: SimNode) -> bool:
        shown = self.fleet.node(node.name)["spec"]
        return not self.fleet.taints(node.name) and not shown.get("unschedulable", False)

    def run(self, story: Callable[[], Any]) -> None:
        async def all_of_it() -> None:
            try:
                await story()
            finally:
                for node in self.all:
                    await node.stop()

        asyncio.run(all_of_it())


def reasons(record: dict[str, Any]) -> list[str]:
    """Of its story, in which every line has a sentence and the last one is what it is now."""
    story = record["story"]
    assert all(line["sentence"] for line in story)
    assert story[-1]["state"] == record["state"]
    return [line["reason"] for line in story]


def test_machines_that_are_renamed_replaced_rebooted_or_only_look_well_end_as_what_they_are(
    fleet: Fleet,
) -> None:
    fleet.settings["fleet"] = {"isolations": WIDE, "poolIsolations": WIDE, "releaseAfter": "1s"}
    controller = fleet.controller("one")
    controller.said("leads, epoch")
    machines = Machines(fleet, controller)
    renamed, replaced, again, rebooted, looks_well = (
        machines.made(name) for name in ("m-renamed", "m-replaced", "m-again", "m-rebooted", "m-looks-well")
    )
    broken, well = [*machines.all], machines.made("m-well")
    called = machines.made("m-called", Renamed)

    async def story() -> None:
        for node in (*broken, well):
            machines.join(node)
        for node in broken:
            node.breaks(XID_79)
        await machines.until(lambda: all(fleet.isolated(node.name) for node in broken))
        first = {node.name: fleet.records(node.name)[0] for node in broken}

        await machines.leave(renamed)
        called.was, called.found = renamed, renamed.found
        machines.join(called)
        await machines.leave(replaced)
        replaced.machine, replaced.found = 1, {}
        machines.join(replaced)
        await machines.leave(again)
        machines.join(again)
        looks_well.found = {}
        looks_well.tell()
        await rebooted.stop()
        rebooted.reboots()
        machines.boot(rebooted)
        rebooted.start((fleet.folder / f"{rebooted.name}.token").read_text())

        await machines.until(lambda: machines.ended(rebooted) == [("released", "well")])
        await machines.until(lambda: machines.in_service(rebooted))
        await machines.until(lambda: machines.ended(renamed) == [("released", "node-gone")])
        await machines.until(lambda: fleet.isolated("m-called"))
        # Gone or replaced: whether the controller looks in between is not guaranteed.
        await machines.until(
            lambda: machines.ended(replaced) in ([("released", "node-replaced")], [("released", "node-gone")])
        )
        await machines.until(lambda: fleet.isolated("m-again"))

        *before, record = fleet.records("m-again")
        assert record["nodeUid"] == fleet.node("m-again")["metadata"]["uid"] != first["m-again"]["nodeUid"]
        assert record["state"] == "active"
        assert [one["endedBy"] for one in before] == ["node-gone"] or "NodeRecreated" in reasons(record)
        (record,) = fleet.records("m-called")
        assert (record["state"], record["nodeUid"]) == (
            "active",
            fleet.node("m-called")["metadata"]["uid"],
        )
        assert "FatalFinding" in reasons(record)
        # As long well as the one that was rebooted, but in the boot in which it broke.
        assert machines.ended(looks_well) == [("active", "")]
        assert fleet.isolated("m-looks-well")
        assert machines.in_service(replaced)

        replaced.breaks(XID_79)
        await machines.until(lambda: fleet.isolated("m-replaced"))
        assert [one.get("repeats", 0) for one in fleet.records("m-replaced")] == [0, 0]
        assert machines.in_service(well)
        assert not fleet.records("m-well")
        for node in broken:
            for record in fleet.records(node.name):
                assert reasons(record)[0] == "FatalFinding"
        assert "Traceback" not in controller.err

    machines.run(story)


def test_one_network_fault_of_many_nodes_is_told_once_and_isolates_none_of_them(fleet: Fleet) -> None:
    # A node alone would wait for long: here four are soon together.
    fleet.settings["fleet"] = {"isolations": WIDE, "poolIsolations": WIDE, "networkSettle": "4m"}
    fleet.settings["listen"] = "127.0.0.1:0"
    controller = fleet.controller("one")
    controller.said("leads, epoch")
    page = Page(controller)
    rita = Person(fleet.plane, "rita-net", bind(fleet.plane, "rita-net", "sentinel-reader"))
    machines = Machines(fleet, controller)
    behind = [machines.made(f"net-{n}") for n in range(6)]
    burnt, well = machines.made("net-burnt"), machines.made("net-well")

    def held() -> list[str]:
        return [one.get("heldBy", "") for node in behind for one in fleet.records(node.name)]

    def mails(about: str) -> list[str]:
        outbox = fleet.folder / "one" / "outbox"
        return [one.name for one in outbox.iterdir() if about in one.name] if outbox.is_dir() else []

    async def story() -> None:
        for node in machines.all:
            machines.join(node)
        for node in behind:
            node.breaks(a_nic_finding())
        await machines.until(lambda: held() == [NETWORK] * 6)
        # A fault of its own takes a node out whatever the network does.
        burnt.breaks(a_nic_finding())
        burnt.breaks(XID_79)
        await machines.until(lambda: fleet.isolated("net-burnt"))
        await machines.until(lambda: page.number("brake_held_back", brake=NETWORK) == 6)
        assert page.number("network_incidents") == 1
        rows = {row["node"]: row for row in (await asyncio.to_thread(rita.status))["rows"]}
        assert {rows[node.name]["held_by"] for node in behind} == {NETWORK}
        await machines.until(lambda: mails("net-burnt"))
        await machines.until(lambda: mails("NetworkIncident"))
        assert all(machines.in_service(node) for node in (*behind, well))

        for node in behind:
            node.repaired()
        await machines.until(
            lambda: all(machines.ended(node)[-1:] == [("released", "well")] for node in behind)
        )
        await machines.until(lambda: page.number("network_incidents") == 0)
        assert len(mails("NetworkIncident")) == 1, "one message"
        assert all(machines.in_service(node) for node in (*behind, well))
        for node in behind:
            (record,) = fleet.records(node.name)
            assert "NetworkIncident" in reasons(record)
            assert reasons(record)[-1] == "NotNeeded"
            assert "acted" not in record
        assert not fleet.records("net-well")
        assert "Traceback" not in controller.err

    machines.run(story)
