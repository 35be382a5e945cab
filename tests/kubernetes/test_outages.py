"""The API server, its database or the controllers are away for longer than the Lease: nothing is judged from that."""

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.agent_node import XID_79, Node
from tests.e2e.box import Running
from tests.kubernetes.conftest import protect_all, rank
from tests.kubernetes.kubelets import Kubelets
from tests.kubernetes.local_fleet import Fleet
from tests.waits import until

AWAY_S = 22.0  # longer than the controllers' Lease, and than a kubelet's may be old
LATER = 5  # renewals of others before one kubelet comes back, so that not all are silent together
TAKEN_OVER_S = 120.0  # eight times what is promised: the machine may be busy


class Outages:
    """Two controllers; nodes with agents, whose kubelets are a thread here."""

    def __init__(self, fleet: Fleet) -> None:
        from tests.rig.processes import free_port

        self.fleet, self.admin = fleet, fleet.admin
        room = {"atATime": {"atLeast": 10}, "perWindow": {"atLeast": 10}}
        brakes = {"isolations": room, "poolIsolations": room}
        fleet.settings["fleet"] = {"lease": "20s", "agentSilent": "30s", **brakes}
        self.controllers: list[Running] = []
        self._ports = {name: free_port() for name in ("one", "two")}
        self.start("one", "two")
        fleet.until(self.epochs)
        self.agents: dict[str, Node] = {}
        self.kubelets = Kubelets(fleet.admin)

    def join(self, *names: str) -> None:
        self.agents |= {name: self.fleet.agent(name, *self.controllers) for name in names}
        self.beat()

    def beat(self) -> None:
        self.kubelets.renewed = set(self.agents)

    def protected_pod(self, node: str) -> None:
        """Without it nobody is told that the node is silent."""
        namespace = self.fleet.plane.namespace("outage")
        self.admin.create(rank("llama-0", namespace, node))
        self.admin.create(protect_all(namespace))

    # ------------------------------------------------------------ what is seen

    def epochs(self) -> list[int]:
        """Of all who have led, in order."""
        lines = [line for one in self.controllers for line in one.err.splitlines()]
        return sorted(int(line.rpartition(" ")[2]) for line in lines if "leads, epoch" in line)

    def leads(self) -> Running | None:
        """Who leads, as they say."""
        for one in self.controllers:
            said = [line for line in one.err.splitlines() if "leads" in line]
            if one.process.poll() is None and said and "leads, epoch" in said[-1]:
                return one
        return None

    def kill(self, *controllers: Running) -> None:
        for one in controllers:
            os.kill(one.pid, signal.SIGKILL)
            one.process.wait(180)

    def start(self, *names: str) -> None:
        """Where agents know them, also after a restart."""
        for name in names:
            place = f"127.0.0.1:{self._ports[name]}"
            self.controllers.append(self.fleet.controller(name, "--agents", place))

    def record(self, name: str) -> dict[str, Any]:
        """The one isolation of this node."""
        (found,) = (one for one in self.fleet.records(name) if one["kind"] == "fault")
        return found  # type: ignore[no-any-return]

    def told(self, name: str) -> list[str]:
        """Of its silence: the reasons."""
        silences = [one for one in self.fleet.records(name) if one["kind"] == "silence"]
        return [line["reason"] for one in silences for line in one["story"]]


@pytest.fixture
def outages(fleet: Fleet) -> Iterator[Outages]:
    made = Outages(fleet)
    yield made
    made.kubelets.close()


def api_killed(outages: Outages) -> Callable[[], None]:
    server = outages.fleet.plane.api_server
    server.kill()
    return server.start


def etcd_killed(outages: Outages) -> Callable[[], None]:
    etcd = outages.fleet.plane.etcd
    etcd.kill()
    return etcd.start


def api_frozen(outages: Outages) -> Callable[[], None]:
    server = outages.fleet.plane.api_server
    server.freeze()
    return server.thaw


def controllers_killed(outages: Outages) -> Callable[[], None]:
    outages.kubelets.renewed = set()  # else kubelets would go on
    outages.kill(*outages.controllers)
    return lambda: outages.start("one", "two")


OUTAGES = {
    "api-killed": api_killed,
    "etcd-killed": etcd_killed,
    "api-frozen": api_frozen,
    "controllers-killed": controllers_killed,
}


def test_after_outages_what_was_decided_stands_and_only_findings_act(outages: Outages) -> None:
    """One node is isolated before, one breaks in each outage; the agent of one dies before, which alone is silent."""
    fleet = outages.fleet
    outages.join("found", "well", "deaf", *OUTAGES)
    outages.protected_pod("deaf")
    outages.agents["found"].machine.log(XID_79)
    fleet.until(lambda: fleet.isolated("found"))
    outages.agents["deaf"].box._children[-1].kill()
    for name, outage in OUTAGES.items():
        before = outages.epochs()
        ends = outage(outages)
        fleet.until(lambda: outages.kubelets.silence_s() > AWAY_S and outages.leads() is None)
        outages.agents[name].machine.log(XID_79)
        outages.kubelets.renewed = set()  # kubelets come back later than controllers
        ends()
        fleet.plane.wait_ready()
        until(lambda before=before: outages.epochs()[len(before) :], fleet.story, TAKEN_OVER_S)  # type: ignore[misc]
        outages.kubelets.renewed = set(outages.agents) - {"deaf"}
        back = outages.kubelets.renewals
        fleet.until(lambda back=back: outages.kubelets.renewals >= back + LATER)  # type: ignore[misc]
        outages.beat()
        fleet.until(lambda name=name: fleet.isolated(name))  # type: ignore[misc]
        assert "Unreachable" not in outages.told("deaf"), name

    outages.kubelets.renewed -= {"deaf"}
    fleet.until(lambda: "Unreachable" in outages.told("deaf"))  # what was not judged before is now
    for name in ("found", *OUTAGES):
        record = outages.record(name)
        assert record["state"] == "active"
        assert {line["state"] for line in record["story"]} == {"active"}
        assert fleet.isolated(name)
        assert not outages.told(name)
    assert not fleet.records("well")
    for name in ("well", "deaf"):
        assert not fleet.taints(name)
        assert not fleet.node(name)["spec"].get("unschedulable", False)
    said = fleet.story()
    assert "Traceback" not in said
    assert "broke and begins again" not in said


def test_a_standby_leads_soon_after_the_leader_is_killed_and_acts_on_what_was_found_meanwhile(
    outages: Outages,
) -> None:
    fleet = outages.fleet
    outages.join("found", "late", "well")
    outages.agents["found"].machine.log(XID_79)
    fleet.until(lambda: fleet.isolated("found"))
    leader, before = outages.leads(), outages.epochs()
    assert leader is not None
    name = "one" if leader is outages.controllers[0] else "two"
    outages.kill(leader)
    outages.agents["late"].machine.log(XID_79)
    until(lambda: outages.epochs()[len(before) :], fleet.story, TAKEN_OVER_S)
    fleet.until(lambda: fleet.isolated("late"))
    outages.start(name)
    assert fleet.isolated("found")
    assert not fleet.records("well")
    assert not fleet.taints("well")
    assert len(outages.epochs()) == len(before) + 1
