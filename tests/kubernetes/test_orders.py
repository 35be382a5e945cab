"""What people order, with kubectl and with the command line: users who may do what `deploy/` lets them, and real
controllers and agents."""

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.agent_node import XID_79
from tests.e2e.box import Box
from tests.kubernetes.conftest import NAMESPACE, PAUSE, QUARANTINES, kubeconfig, protect_all, rank, with_job
from tests.kubernetes.local_fleet import Fleet
from tests.kubernetes.people import Person, bind
from tests.rig.api import ApiError

if TYPE_CHECKING:
    from tests.rig.control_plane import ControlPlane

ANSWER, ORDER = "sentinel.dev/answer", "sentinel.dev/order"
ONE = {"atATime": {"atLeast": 1}, "perWindow": {"atLeast": 100}}
WIDE = {"atATime": {"atLeast": 100}, "perWindow": {"atLeast": 100}}


class People(Fleet):
    """A fleet, and people who look after it."""

    def person(self, name: str, role: str = "sentinel-operator") -> "Person":
        return Person(self.plane, name, bind(self.plane, name, role))

    def annotations(self, name: str) -> dict[str, str]:
        return self.node(name)["metadata"].get("annotations", {})  # type: ignore[no-any-return]

    def answer(self, name: str) -> dict[str, Any]:
        return json.loads(self.annotations(name).get(ANSWER, "{}"))  # type: ignore[no-any-return]

    def answered(self, name: str, sentence: str) -> dict[str, Any]:
        """The answer in which this stands, once nothing is left of the order."""

        def found() -> dict[str, Any]:
            left = {key for key in self.annotations(name) if key.startswith("sentinel.dev/")}
            said = self.answer(name)
            return (
                said
                if sentence in said.get("sentence", "") and left <= {ANSWER, "sentinel.dev/epoch"}
                else {}
            )

        return self.until(found)  # type: ignore[no-any-return]

    def broken(self, name: str, *controllers: Any) -> Any:
        node = self.agent(name, *controllers)
        node.machine.log(XID_79)
        return node

    def events(self, name: str) -> set[str]:
        found = self.admin.items("/apis/events.k8s.io/v1/namespaces/default/events")
        return {one["reason"] for one in found if one["regarding"]["name"] == name}

    def open(self, name: str) -> list[dict[str, Any]]:
        return [one for one in self.records(name) if one["state"] in ("active", "held")]


@pytest.fixture
def fleet(plane: "ControlPlane", tmp_path: Path) -> Iterator[People]:
    box = Box(tmp_path / "box")
    yield People(plane, box, tmp_path)
    box.close()


def test_a_person_releases_and_holds_a_node_with_kubectl(fleet: People) -> None:
    controller = fleet.controller("one")
    controller.said("leads, epoch")
    fleet.broken("ord-a", controller)
    fleet.until(lambda: fleet.isolated("ord-a"))
    anna = fleet.person("anna")

    anna.did("annotate", "node", "ord-a", "sentinel.dev/release=the card was replaced")
    said = fleet.answered("ord-a", "was released by a person with kubectl-annotate")
    assert said["done"]
    assert not fleet.taints("ord-a")
    (record,) = fleet.records("ord-a")
    assert (record["state"], record["endedBy"], len(record["orders"])) == ("released", "person", 1)

    anna.did("annotate", "node", "ord-a", "sentinel.dev/hold=a look inside")
    assert fleet.answered("ord-a", "kept out of service by a person with kubectl-annotate: a look inside")[
        "done"
    ]
    fleet.until(lambda: fleet.isolated("ord-a"))
    anna.did("annotate", "node", "ord-a", "sentinel.dev/hold=again")
    assert not fleet.answered("ord-a", "is held already")["done"]
    fleet.until(lambda: {"ReleasedByPerson", "HeldByPerson", "OrderDeclined"} <= fleet.events("ord-a"))

    # A hold outlives its node object, and so does the way to end it.
    (hold,) = fleet.open("ord-a")
    fleet.admin.delete("/api/v1/nodes/ord-a")
    anna.did("annotate", "quarantine", hold["id"], "sentinel.dev/release=it is sold")
    fleet.until(lambda: not fleet.open("ord-a"))
    place = f"{QUARANTINES}/{hold['id']}"
    fleet.until(lambda: ANSWER in fleet.admin.get(place)["metadata"]["annotations"])
    assert ORDER not in fleet.admin.get(place)["metadata"]["annotations"]
    assert "Traceback" not in controller.err


def test_brakes_from_the_settings_hold_a_node_back_until_a_person_makes_room(fleet: People) -> None:
    fleet.settings["fleet"] = {"isolations": ONE, "poolIsolations": WIDE}
    controller = fleet.controller("one")
    controller.said("leads, epoch")
    anna, rita = fleet.person("anna"), fleet.person("rita", "sentinel-reader")
    fleet.broken("ord-b1", controller)
    fleet.until(lambda: fleet.isolated("ord-b1"))
    fleet.broken("ord-b2", controller)
    fleet.until(lambda: fleet.open("ord-b2"))
    fleet.until(lambda: fleet.unheard() == 0)
    told = "2 nodes: 1 in service though it should not be, 1 isolated; nothing is known against 0."
    # What the leader says of itself in its Lease is some seconds old, and stands in a line before.
    fleet.until(lambda: rita.says("status").stdout.splitlines()[1:2] == [told])

    shown = rita.says("status")
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert " leads (epoch " in lines[0]
    assert lines[2] == "No job is protected.", "jobs are told before the table of nodes"
    assert [line.split()[0] for line in lines if line.startswith("ord-")] == ["ord-b2", "ord-b1"]
    assert "as many nodes as are allowed at a time are out of service, and nobody" in shown.stdout
    assert "back when: the node must be restarted" in shown.stdout
    assert "XID 79" in shown.stdout
    assert not fleet.isolated("ord-b2")
    rows = {row["node"]: row for row in rita.status()["rows"]}
    assert rows["ord-b2"]["held_by"] == "at-a-time"

    freed = anna.says("release", "ord-b1", "--why", "its card was replaced")
    assert (freed.returncode, freed.stderr) == (0, "")
    assert freed.stdout.startswith("Node ord-b1 was released by anna: its card was replaced. What ")
    fleet.until(lambda: fleet.isolated("ord-b2"))
    assert not fleet.isolated("ord-b1")
    told = rita.says("status", "ord-b1").stdout
    assert "given back" in told
    assert "ReleasedByPerson" in told

    again = anna.says("release", "ord-b1")
    assert (again.returncode, again.stderr) == (1, "sentinel: Node ord-b1 is not isolated by Sentinel.\n")


def test_an_isolation_that_a_person_acknowledges_takes_no_room_from_the_next(fleet: People) -> None:
    fleet.settings["fleet"] = {"isolations": ONE, "poolIsolations": ONE}
    controller = fleet.controller("one")
    controller.said("leads, epoch")
    anna, rita = fleet.person("anna"), fleet.person("rita", "sentinel-reader")
    fleet.broken("ord-k1", controller)
    fleet.until(lambda: fleet.isolated("ord-k1"))
    fleet.broken("ord-k2", controller)
    fleet.until(lambda: [one.get("heldBy") for one in fleet.open("ord-k2")] == ["at-a-time"])
    assert rita.says("acknowledge", "ord-k1").returncode == 77, "she may not"

    said = anna.says("acknowledge", "ord-k1", "--why", "it is at the vendor's")
    sentence = "The isolation of node ord-k1 was acknowledged by anna: it is at the vendor's."
    assert (said.returncode, said.stdout, said.stderr) == (0, f"{sentence}\n", "")
    fleet.until(lambda: fleet.isolated("ord-k2"))
    assert fleet.isolated("ord-k1")
    (record,) = fleet.records("ord-k1")
    assert (record["acknowledged"], record["by"]) == (True, "anna")
    assert sentence in rita.says("status", "ord-k1").stdout
    again = anna.says("acknowledge", "ord-k1")
    assert (again.returncode, again.stderr) == (1, "sentinel: Node ord-k1 is acknowledged already.\n")

    # The same with kubectl, and by a leader who did not hear it.
    anna.did("annotate", "node", "ord-k2", "sentinel.dev/acknowledge=")
    assert fleet.answered("ord-k2", "was acknowledged by a person with kubectl-annotate")["done"]
    controller.kill()
    later = fleet.controller("two")
    later.said("leads, epoch")
    fleet.broken("ord-k3", later)
    fleet.until(lambda: fleet.isolated("ord-k3"))
    assert fleet.isolated("ord-k1")
    assert fleet.isolated("ord-k2")
    assert "Traceback" not in controller.err + later.err


def test_pause_stops_what_is_new_and_releases_go_on(fleet: People) -> None:
    controller = fleet.controller("one")
    controller.said("leads, epoch")
    anna = fleet.person("anna")
    fleet.broken("ord-c1", controller)
    fleet.until(lambda: fleet.isolated("ord-c1"))
    paused = anna.says("pause", "--why", "the switch is changed")
    assert (paused.returncode, paused.stdout.split(":")[0]) == (0, "Paused")
    assert "PAUSED by anna: the switch is changed. New isolations" in anna.says("status").stdout

    fleet.broken("ord-c2", controller)
    fleet.until(lambda: [one.get("heldBy") for one in fleet.open("ord-c2")] == ["paused"])
    assert anna.says("release", "ord-c1").returncode == 0
    assert not fleet.taints("ord-c1")
    assert not fleet.taints("ord-c2")
    assert anna.says("hold", "ord-c1", "--why", "a person may").returncode == 0
    fleet.until(lambda: fleet.isolated("ord-c1"))

    assert anna.says("pause", "--off").returncode == 0
    fleet.until(lambda: fleet.isolated("ord-c2"))
    assert anna.says("pause", "--off").stdout == "It was not paused.\n"

    # The same with kubectl.
    words = ("--from-literal=who=bert", "--from-literal=why=drill")
    anna.did("-n", NAMESPACE, "create", "configmap", "sentinel-pause", *words)
    fleet.until(lambda: (anna.status()["leader"] or {}).get("paused") == "bert: drill")
    anna.did("-n", NAMESPACE, "delete", "configmap", "sentinel-pause")
    fleet.until(lambda: "paused" not in anna.status()["leader"])
    assert "is paused: anna: the switch is changed" in controller.err
    assert "Traceback" not in controller.err


def test_pause_keeps_the_pods_of_a_dead_node_and_the_fencing_program_waiting(fleet: People) -> None:
    namespace = fleet.plane.namespace("paused")
    fleet.admin.create(protect_all(namespace))
    off, program = fleet.folder / "off", fleet.folder / "fence-node"
    program.write_text(f"#!/bin/sh\necho $1 >> {off}\n")
    program.chmod(0o755)
    room = {"perWindow": {"atLeast": 100}}
    fleet.settings["fleet"] = {
        "fence": {"command": [str(program)], "after": "1s"},
        "removals": room,
        "poolRemovals": room,
        "lease": "20s",
        "agentSilent": "30s",
        "togetherShare": 1,
    }
    controller = fleet.controller("one")
    controller.said("leads, epoch")
    anna = fleet.person("anna")
    assert anna.says("pause", "--why", "the switch is changed").returncode == 0
    dead, silent = names = ("ord-p1", "ord-p2")
    for name in names:
        fleet.plane.node(name)
        with_job(fleet.plane, f"on-{name}", namespace, name)
    taint = {"key": "node.kubernetes.io/out-of-service", "value": "off", "effect": "NoSchedule"}
    fleet.admin.patch(f"/api/v1/nodes/{dead}", {"spec": {"taints": [taint]}})

    def told(name: str) -> list[str]:
        return [line["reason"] for one in fleet.records(name) for line in one["story"]]

    def pods() -> set[str]:
        return {one["metadata"]["name"] for one in fleet.admin.items(f"/api/v1/namespaces/{namespace}/pods")}

    fleet.until(lambda: [told(name) for name in names] == [["Unreachable", "RemovalBraked"]] * 2)
    for name in names:
        (record,) = fleet.records(name)
        assert (record["state"], record["heldBy"], record.get("removals")) == ("active", "paused", None)
        assert f"1 pod on node {name} stays for now: Sentinel is paused." in record["sentence"]
    # What a person orders is followed meanwhile.
    fleet.plane.node("ord-p3")
    assert anna.says("hold", "ord-p3").returncode == 0
    fleet.until(lambda: fleet.isolated("ord-p3"))
    assert anna.says("release", "ord-p3").returncode == 0
    fleet.until(lambda: not fleet.taints("ord-p3"))
    assert pods() == {f"on-{name}" for name in names}
    assert not off.exists()
    assert "Fencing" not in told(silent)

    assert anna.says("pause", "--off").returncode == 0
    fleet.until(lambda: not pods())
    assert off.read_text() == f"{silent}\n"
    assert [one["removals"][0]["proof"] for name in names for one in fleet.records(name)] == [
        "out-of-service-taint",
        "fenced",
    ]
    assert "Traceback" not in controller.err


def test_one_pool_and_one_namespace_are_only_observed(fleet: People) -> None:
    fleet.settings["fleet"] = {
        "observePools": ["trial"],
        "observeNamespaces": ["spared"],
        "poolLabel": "example.com/rack",
        "lease": "20s",
        "agentSilent": "30s",
        "isolations": WIDE,
        "poolIsolations": WIDE,
        "removals": {"perWindow": {"atLeast": 100}},
        "poolRemovals": {"perWindow": {"atLeast": 100}},
    }
    controller = fleet.controller("one")
    assert "enforces, but observes pool trial, namespace spared" in controller.err
    controller.said("leads, epoch")
    anna = fleet.person("anna")
    fleet.plane.node("ord-d3")
    for namespace in ("spared", "other"):
        fleet.admin.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}])
        fleet.admin.create(protect_all(namespace))
        with_job(fleet.plane, "p", namespace, "ord-d3")
    for name, pool in (("ord-d1", "trial"), ("ord-d2", "real")):
        node = fleet.agent(name, controller)
        fleet.admin.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {"example.com/rack": pool}}})
        node.machine.log(XID_79)
    fleet.until(lambda: fleet.isolated("ord-d2") and fleet.open("ord-d1"))
    (record,) = fleet.open("ord-d1")
    assert (record["mode"], record["pool"], record["state"]) == ("observe", "trial", "active")
    assert not fleet.taints("ord-d1")
    rows = {row["node"]: row["state"] for row in anna.status()["rows"]}
    assert rows == {"ord-d1": "observed", "ord-d2": "isolated"}

    # Nobody answers for ord-d3: a person says that it is off. The order waits until it was listened for long enough.
    done = anna.says("confirm-dead", "ord-d3", "--wait", "60s")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Node ord-d3 is dead, says anna" in done.stdout
    fleet.until(lambda: not fleet.found("/api/v1/namespaces/other/pods/p"))
    assert fleet.found("/api/v1/namespaces/spared/pods/p")["metadata"].get("deletionTimestamp") is None
    (record,) = fleet.open("ord-d3")
    assert {one.get("mode", "enforce") for one in record["removals"]} == {"enforce", "observe"}
    heard = anna.says("confirm-dead", "ord-d2")
    assert (heard.returncode, "is not silent" in heard.stderr) == (1, True)


def test_a_drained_node_takes_nothing_new_and_its_jobs_are_named_until_they_have_left(fleet: People) -> None:
    controller = fleet.controller("one")
    controller.said("leads, epoch")
    anna = fleet.person("anna")
    for name in ("ord-g1", "ord-g2"):
        fleet.plane.node(name)
    fleet.admin.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "drained"}}])
    fleet.admin.create(protect_all("drained"))
    fleet.admin.create(rank("p", "drained", "ord-g1"))

    drained = anna.says("drain", "ord-g1", "--why", "a new switch")
    assert (drained.returncode, drained.stderr) == (0, "")
    assert drained.stdout.startswith("Node ord-g1 is drained by anna: a new switch. ")
    fleet.until(lambda: fleet.isolated("ord-g1"))
    fleet.until(lambda: len(fleet.open("ord-g1")[0].get("jobsLeft", [])) == 1)
    shown = anna.says("status").stdout
    assert "1 being drained" in shown
    assert "1 protected job left: " in shown
    assert "`sentinel drain ord-g1 --off` ends it" in shown
    assert fleet.found("/api/v1/namespaces/drained/pods/p"), "no running pod is touched by that"

    fleet.admin.delete("/api/v1/namespaces/drained/pods/p", gracePeriodSeconds=0)
    fleet.until(lambda: fleet.open("ord-g1")[0]["reason"] == "Drained")
    assert {row["node"]: row["state"] for row in anna.status()["rows"]} == {"ord-g1": "drained"}
    assert fleet.isolated("ord-g1")
    again = anna.says("drain", "ord-g1")
    assert (again.returncode, "is drained already" in again.stderr) == (1, True)
    back = anna.says("drain", "ord-g1", "--off")
    assert (back.returncode, back.stdout) == (0, "The drain of node ord-g1 was taken back by anna.\n")
    assert not fleet.taints("ord-g1")

    anna.did("annotate", "node", "ord-g2", "sentinel.dev/drain=its disks")
    assert fleet.answered("ord-g2", "is drained by a person with kubectl-annotate: its disks")["done"]
    anna.did("annotate", "node", "ord-g2", "sentinel.dev/drain-off=")
    assert fleet.answered("ord-g2", "The drain of node ord-g2 was taken back")["done"]
    assert "Traceback" not in controller.err


@contextlib.contextmanager
def no_answers(fleet: People, *names: str) -> Iterator[None]:
    """The API server refuses the answers of these nodes."""
    answered = f"'{ANSWER}' in object.metadata.?annotations.orValue({{}})"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]}
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": "no-answers"}}
    policy = {
        **head,
        "kind": "ValidatingAdmissionPolicy",
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": f"!(object.metadata.name in {[*names]} && {answered})"}],
        },
    }
    spec = {"policyName": "no-answers", "validationActions": ["Deny"]}
    binding = {**head, "kind": "ValidatingAdmissionPolicyBinding", "spec": spec}
    probe = {"metadata": {"annotations": {ANSWER: "x"}}}

    def denied() -> bool:
        try:
            fleet.admin.patch(f"/api/v1/nodes/{names[0]}?dryRun=All", probe)
        except ApiError as error:
            return error.status in (403, 422)
        return False

    fleet.admin.apply([policy, binding])
    try:
        fleet.until(denied)
        yield
    finally:
        for one in (binding, policy):
            fleet.admin.delete(fleet.admin.path_of(one))


def test_orders_are_followed_once_when_the_leader_is_killed_in_the_middle(fleet: People) -> None:
    first = fleet.controller("first")
    first.said("leads, epoch")
    second = fleet.controller("second")
    anna = fleet.person("anna")
    names = [f"ord-e{number}" for number in range(12)]
    for name in names:
        fleet.plane.node(name)
    answered, unanswered = names[:6], names[6:]
    with no_answers(fleet, *unanswered):
        anna.did("annotate", "node", *names, "sentinel.dev/hold=drill")
        fleet.until(lambda: all(fleet.answer(name) for name in answered))
        second.send(signal.SIGSTOP)  # so that nobody leads for as long as it takes
        os.kill(first.pid, signal.SIGKILL)
    assert not any(fleet.answer(name) for name in unanswered)
    waits = anna.says("release", names[0], "--wait", "2s")
    second.send(signal.SIGCONT)
    second.said("leads, epoch")
    for name in names[1:]:
        assert fleet.answered(name, "kept out of service")["done"]
        (record,) = fleet.records(name)
        assert (record["state"], record["kind"], len(record["orders"])) == ("active", "hold", 1)
        fleet.until(lambda name=name: fleet.isolated(name))  # type: ignore[misc]
    # What was ordered while nobody led stands, and is followed by the next.
    assert (waits.returncode, "the order stands" in waits.stderr) == (75, True)
    assert "no controller leads: first-" in waits.stderr
    fleet.answered(names[0], "was released by anna")
    (record,) = fleet.records(names[0])
    assert (record["state"], len(record["orders"])) == ("released", 2)


def test_an_order_whose_answer_was_not_written_is_not_followed_again_by_the_next_leader(
    fleet: People,
) -> None:
    """The leader is killed after the record was saved and before the order was taken away."""
    fleet.settings["fleet"] = {"isolations": WIDE, "poolIsolations": WIDE}
    first = fleet.controller("first")
    first.said("leads, epoch")
    second = fleet.controller("second")
    anna = fleet.person("anna")
    node = fleet.broken("ord-g", first, second)
    fleet.until(lambda: fleet.isolated("ord-g"))
    with no_answers(fleet, "ord-g", "ord-h"):
        anna.did("annotate", "node", "ord-g", "sentinel.dev/release=once")
        fleet.until(lambda: not fleet.open("ord-g") and not fleet.taints("ord-g"))
        node.machine.log(XID_79)  # it occurs anew
        fleet.until(lambda: fleet.isolated("ord-g"))
        fleet.plane.node("ord-h")
        anna.did("annotate", "node", "ord-h", "sentinel.dev/hold=once")
        fleet.until(lambda: fleet.isolated("ord-h"))
        anna.did("uncordon", "ord-h")
        fleet.until(lambda: not fleet.open("ord-h") and not fleet.taints("ord-h"))
        assert ORDER in fleet.annotations("ord-g")
        assert ORDER in fleet.annotations("ord-h")
        os.kill(first.pid, signal.SIGKILL)
    second.said("leads, epoch")
    assert fleet.answered("ord-g", "was released by a person with kubectl-annotate")["done"]
    released, again = sorted(fleet.records("ord-g"), key=lambda one: one["id"])
    assert (released["state"], len(released["orders"])) == ("released", 1)
    assert (again["state"], again.get("orders")) == ("active", None)
    assert fleet.isolated("ord-g")
    assert fleet.answered("ord-h", "is kept out of service by a person with kubectl-annotate")["done"]
    (hold,) = fleet.records("ord-h")
    assert (hold["state"], hold["endedBy"]) == ("overridden", "uncordoned")


def test_who_may_not_and_what_is_not_there_is_said_with_an_exit_code(fleet: People) -> None:
    nobody, rita, anna = (
        fleet.person("nobody", "view"),
        fleet.person("rita", "sentinel-reader"),
        fleet.person("anna"),
    )
    fleet.plane.node("ord-f")
    for words in (
        ("status",),
        ("hold", "ord-f"),
        ("release", "ord-f"),
        ("confirm-dead", "ord-f"),
        ("pause",),
    ):
        refused = nobody.says(*words)
        assert (refused.returncode, "you may not: " in refused.stderr) == (77, True), refused.stderr
    assert rita.says("status").returncode == 0
    for words in (("release", "ord-f"), ("confirm-dead", "ord-f"), ("pause",)):
        refused = rita.says(*words)
        assert (refused.returncode, '"rita" cannot' in refused.stderr) == (77, True), refused.stderr
    assert not fleet.found(PAUSE)

    # An agent's token, taken out of its pod, is nobody's.
    token = fleet.plane.node_token(NAMESPACE, "sentinel-agent", "ord-f")
    stolen = kubeconfig(fleet.folder / "agent", fleet.plane.url, token, fleet.plane.identities.ca)
    agent = Person(fleet.plane, "agent", str(stolen))
    assert agent.says("release", "ord-f").returncode == 77
    assert agent.says("pause").returncode == 77
    assert "forbidden" in agent.kubectl("annotate", "node", "ord-f", "sentinel.dev/release=").stderr.lower()

    for words in (("status", "nope"), ("hold", "nope"), ("release", "nope"), ("confirm-dead", "nope")):
        missing = anna.says(*words)
        assert (missing.returncode, "there is no node nope" in missing.stderr) == (1, True), missing.stderr
    alone = anna.says("hold", "ord-f", "--wait", "1s")
    assert (alone.returncode, "no controller leads" in alone.stderr) == (75, True)
    assert anna.status()["rows"][0]["state"] == "ordered"
    dead = kubeconfig(fleet.folder / "dead", "https://127.0.0.1:1", "x")
    away = Person(fleet.plane, "away", str(dead))
    for words in (("status",), ("release", "ord-f")):
        gone = away.says(*words)
        assert (gone.returncode, "no API server answers at https://127.0.0.1:1" in gone.stderr) == (69, True)
