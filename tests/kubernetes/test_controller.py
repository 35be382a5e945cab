"""`sentinel controller` and `sentinel agent` at a real API server, with the identities that `deploy/` ships."""

import contextlib
import os
import signal
import socket
from datetime import datetime
from pathlib import Path

import pytest

from sentinel.cli.replay_fleet import entries
from sentinel.core.fleet.replay import Replay
from tests.e2e.agent_node import XID_79
from tests.kubernetes.conftest import NAMESPACE, NODE_LEASES, protect_all, rank, with_job
from tests.kubernetes.flood import Hose
from tests.kubernetes.kubelets import Kubelets
from tests.kubernetes.local_fleet import AUDIENCE, Fleet, Page
from tests.kubernetes.people import Person, bind
from tests.kubernetes.proxy import Fault, Proxy
from tests.kubernetes.test_seen import mail_to
from tests.notify.mail_world import MailServer

WIDE = {"atATime": {"atLeast": 100}, "perWindow": {"atLeast": 100}}


def test_in_observe_mode_everything_is_recorded_and_nothing_touched(fleet: Fleet) -> None:
    controller = fleet.controller("watching", "--observe")
    controller.said("leads, epoch")
    node = fleet.agent("fleet-e", controller)
    node.machine.log(XID_79)
    fleet.until(lambda: fleet.records("fleet-e"))
    (record,) = fleet.records("fleet-e")
    assert (record["mode"], record["state"]) == ("observe", "active")
    assert not fleet.taints("fleet-e")
    assert not fleet.node("fleet-e")["spec"].get("unschedulable", False)
    controller.send(signal.SIGTERM)
    assert controller.code() == 0


def conditions(fleet: Fleet, node: str) -> dict[str, tuple[str, str]]:
    found = fleet.node(node)["status"].get("conditions", [])
    return {one["type"]: (one["status"], one["reason"]) for one in found}


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

    fleet.until(lambda: conditions(fleet, "fleet-a").get("SentinelHealthy") == ("False", "FatalFinding"))
    assert not fleet.isolated("fleet-b")

    fleet.until(lambda: fleet.unheard() == len(fleet.admin.items("/api/v1/nodes")) - 1)

    reader = Person(fleet.plane, "conny", bind(fleet.plane, "conny", "sentinel-reader"))
    name, waits = f"quarantine/{record['id']}", ("wait", "--timeout=120s")
    reader.did(*waits, name, "--for=condition=Isolated")
    fleet.admin.patch("/api/v1/nodes/fleet-a", {"spec": {"unschedulable": False}})
    fleet.until(lambda: not fleet.taints("fleet-a"))
    reader.did(*waits, name, "--for=condition=Ended")
    reader.did(*waits, name, "--for=condition=Isolated=False")
    (record,) = fleet.records("fleet-a")
    assert (record["state"], record["endedBy"]) == ("overridden", "uncordoned")
    assert not fleet.node("fleet-a")["spec"].get("unschedulable", False)
    controller.send(signal.SIGTERM)
    assert controller.code() == 0
    assert "Traceback" not in controller.err


def test_what_node_repair_acts_on_is_said_when_the_last_protected_pod_has_left(fleet: Fleet) -> None:
    controller = fleet.controller("repair")
    controller.said("leads, epoch")
    node = fleet.agent("fleet-r", controller)
    namespace = fleet.plane.namespace("repaired")
    with_job(fleet.plane, "llama-0", namespace, "fleet-r")
    fleet.admin.create(protect_all(namespace))
    policies = f"/apis/sentinel.dev/v1alpha1/namespaces/{namespace}/jobpolicies"
    fleet.until(lambda: all("conditions" in one.get("status", {}) for one in fleet.admin.items(policies)))
    node.machine.log(XID_79)
    fleet.until(lambda: conditions(fleet, "fleet-r").get("SentinelHealthy") == ("False", "FatalFinding"))
    assert fleet.isolated("fleet-r")
    assert "AcceleratedHardwareReady" not in conditions(fleet, "fleet-r"), (
        "a repair would cost the job its save"
    )
    fleet.admin.delete(f"/api/v1/namespaces/{namespace}/pods/llama-0", gracePeriodSeconds=0)
    repair = "AcceleratedHardwareReady"
    fleet.until(lambda: conditions(fleet, "fleet-r").get(repair) == ("False", "SentinelQuarantine"))
    fleet.admin.patch("/api/v1/nodes/fleet-r", {"spec": {"unschedulable": False}})
    fleet.until(lambda: conditions(fleet, "fleet-r").get(repair) == ("True", "SentinelReleased"))


def test_the_standby_goes_on_where_a_killed_leader_stood(fleet: Fleet) -> None:
    first = fleet.controller("first")
    first.said("leads, epoch")
    second = fleet.controller("second")
    node = fleet.agent("fleet-c", first, second)
    node.machine.log(XID_79)
    fleet.until(lambda: fleet.isolated("fleet-c"))
    os.kill(first.pid, signal.SIGKILL)
    fleet.admin.patch("/api/v1/nodes/fleet-c", {"spec": {"unschedulable": False}})
    second.said("leads, epoch")
    fleet.until(lambda: not fleet.taints("fleet-c"))
    (record,) = fleet.records("fleet-c")
    assert record["state"] == "overridden"
    third = fleet.agent("fleet-d", second)
    third.machine.log(XID_79)
    fleet.until(lambda: fleet.isolated("fleet-d"))


def test_what_the_api_server_does_not_write_of_one_node_holds_up_no_other_and_no_new_leader(
    fleet: Fleet, behind: Proxy
) -> None:
    """A request without an answer, a right that is missing, an error; the records of an earlier leader among them."""
    fleet.settings |= {"listen": "127.0.0.1:0", "fleet": {"isolations": WIDE, "poolIsolations": WIDE}}
    earlier = fleet.controller("earlier")
    earlier.said("leads, epoch")
    for name in ("wr-403", "wr-500", "wr-503", "wr-hang"):
        fleet.agent(name, earlier).machine.log(XID_79)
        fleet.until(lambda name=name: fleet.isolated(name))  # type: ignore[misc]
    os.kill(earlier.pid, signal.SIGKILL)
    fleet.admin.patch("/api/v1/nodes/wr-500", {"spec": {"unschedulable": False}})
    behind.faults = [
        Fault(method="PATCH", path="/nodes/wr-403", times=10_000, answer=403),
        Fault(method="PATCH", path="/quarantines/wr-403-0001", times=10_000, answer=403),
        Fault(method="PATCH", path="/quarantines/wr-500-0001", times=3, answer=500),
        Fault(method="PATCH", path="/quarantines/wr-503-0001", times=10_000, answer=503),
        Fault(method="PATCH", path="/quarantines/wr-hang-0001", times=10_000, hang=True),
        Fault(method="PATCH", path="/nodes/wr-hang", times=10_000, hang=True),
        Fault(method="PATCH", path="/nodes/wr-new", times=10_000, hang=True),
    ]
    fleet.goes_through(behind)
    leader = fleet.controller("later")
    leader.said("leads, epoch")
    hanging, other = fleet.agent("wr-new", leader), fleet.agent("wr-other", leader)
    unclaimed = (
        "nothing is decided about wr-503, for what an earlier leader may still write there cannot be fenced"
    )
    fleet.until(lambda: f"in trouble for 20 s: {unclaimed}" in leader.err)
    status, missing = Page(leader).get("/readyz")
    assert (status, unclaimed in missing) == (503, True)
    assert (Page(leader).number("effect_failures_total", effect="claim", kind="temporary") or 0) >= 3
    hanging.machine.log(XID_79)
    fleet.until(lambda: any("PATCH /api/v1/nodes/wr-new" in seen for seen in behind.seen))
    other.machine.log(XID_79)
    fleet.until(lambda: fleet.isolated("wr-other"))
    assert not fleet.isolated("wr-new")
    fleet.until(lambda: "Node wr-other was taken out of service" in leader.err)
    assert "Node wr-new was taken out of service" not in leader.err
    # What was answered with errors is claimed at last, and what a person did there is seen.
    fleet.until(lambda: fleet.records("wr-500")[0]["state"] == "overridden")
    assert fleet.records("wr-403")[0]["state"] == "active"
    behind.faults = []
    fleet.until(lambda: fleet.isolated("wr-new"))
    fleet.until(lambda: "Node wr-new was taken out of service" in leader.err)
    fleet.admin.patch("/api/v1/nodes/wr-hang", {"spec": {"unschedulable": False}})
    fleet.until(lambda: fleet.records("wr-hang")[0]["state"] == "overridden")
    assert "Traceback" not in leader.err


@pytest.mark.parametrize("answer", [422, 403, 500])
def test_that_a_node_is_out_of_service_is_said_when_it_is_recorded(
    fleet: Fleet, behind: Proxy, answer: int
) -> None:
    with MailServer() as server:
        fleet.settings |= {"mail": mail_to(server.port)}
        fleet.goes_through(behind)
        leader = fleet.controller(f"recorded-{answer}")
        leader.said("leads, epoch")
        name = f"rec-{answer}"
        agent = fleet.agent(name, leader)
        refused = Fault(method="POST", path="/quarantines", times=10_000, answer=answer)
        behind.faults = [refused]
        agent.machine.log(XID_79)
        fleet.until(
            lambda: f"in trouble for 20 s: {name} cannot be taken out of service, for that" in leader.err
        )
        claimed = "was taken out of service"
        assert (fleet.records(name), fleet.isolated(name), server.mails) == ([], False, [])
        assert claimed not in leader.err
        events = fleet.admin.items("/apis/events.k8s.io/v1/events")
        assert not [
            one for one in events if one["regarding"]["name"] == name and claimed in one.get("note", "")
        ]
        behind.faults = []
        fleet.until(lambda: fleet.isolated(name) and f"Node {name} {claimed}" in leader.err)
        fleet.until(lambda: len(server.mails) == 1)


@pytest.mark.parametrize("away", ["/openid/v1/jwks", "/tokenreviews"])
def test_an_agent_that_knows_only_the_standby_reaches_the_leader_whichever_way_tokens_are_judged(
    fleet: Fleet, behind: Proxy, away: str
) -> None:
    """The cluster's published keys judge them, or else its TokenReview: here one of both does not answer."""
    behind.faults.append(Fault(path=away, times=10_000, answer=503))
    fleet.goes_through(behind)
    first = fleet.controller("judge-one")
    first.said("leads, epoch")
    second = fleet.controller("judge-two")
    name = f"judged-{away.rpartition('/')[2]}"
    node = fleet.agent(name, second)
    node.machine.log(XID_79)
    fleet.until(lambda: fleet.isolated(name))


def test_a_wild_agent_holds_up_no_other_nodes_isolation(fleet: Fleet) -> None:
    fleet.settings["listen"] = "127.0.0.1:0"
    leader = fleet.controller("flooded")
    leader.said("leads, epoch")
    page = Page(leader)
    fleet.plane.node("wild")
    token = fleet.plane.node_token(NAMESPACE, "sentinel-agent", "wild", audience=AUDIENCE)
    hose = Hose(fleet.ports[leader.pid], fleet.bundle(fleet.folder / "ca.crt"), "wild", token)
    hose.start()
    try:
        fleet.until(lambda: page.number("transport_refused_total", reason="TooOften"))
        node = fleet.agent("tame", leader)
        node.machine.log(XID_79)
        fleet.until(lambda: fleet.isolated("tame"))
        assert hose.is_alive()
    finally:
        hose.shut()


def test_old_records_are_pruned_doubles_end_and_pods_of_a_node_that_is_gone_are_removed(fleet: Fleet) -> None:
    """A record of last month goes; a copy of an open one ends; a protected pod of a lost node goes with its proof."""
    fleet.plane.node("fleet-f")
    fleet.plane.node("fleet-g")
    namespace = fleet.plane.namespace("lost")
    with_job(fleet.plane, "llama-0", namespace, "fleet-g")
    fleet.admin.create(protect_all(namespace))
    uid = {name: fleet.node(name)["metadata"]["uid"] for name in ("fleet-f", "fleet-g")}
    needs = {"needs": {"sentence": "a person"}}
    open_silence = {"kind": "silence", "state": "active", "since": "2026-11-01T00:00:00Z", **needs}
    for number, more in enumerate(
        (
            {
                "node": "fleet-f",
                "kind": "fault",
                "state": "released",
                "ended": "2026-01-01T00:00:00Z",
                **needs,
            },
            {"node": "fleet-f", "kind": "hold", "state": "active", **needs},
            {"node": "fleet-f", "kind": "hold", "state": "active", **needs},
            {"node": "fleet-g", **open_silence},
        ),
        1,
    ):
        id = f"{more['node']}-{number:04d}"
        one = {"id": id, "nodeUid": uid[str(more["node"])], **more}
        head = {"apiVersion": "sentinel.dev/v1alpha1", "kind": "Quarantine", "metadata": {"name": id}}
        fleet.admin.create({**head, "spec": one})
    fleet.admin.delete("/api/v1/nodes/fleet-g")
    controller = fleet.controller("tidy")
    controller.said("leads, epoch")

    def states(node: str) -> dict[str, tuple[str, str]]:
        return {one["id"]: (one["state"], one.get("endedBy", "")) for one in fleet.records(node)}

    fleet.until(lambda: "fleet-f-0001" not in states("fleet-f"))
    fleet.until(lambda: states("fleet-f").get("fleet-f-0003") == ("released", "doubled"))
    assert states("fleet-f")["fleet-f-0002"][0] == "active"
    fleet.until(lambda: fleet.found(f"/api/v1/namespaces/{namespace}/pods/llama-0") is None)
    fleet.until(lambda: states("fleet-g")["fleet-g-0004"] == ("released", "dead"))
    (record,) = fleet.records("fleet-g")
    assert [removal["proof"] for removal in record["removals"]] == ["node-gone"]


def test_pods_that_no_policy_in_force_names_stay_on_a_node_that_is_gone(fleet: Fleet) -> None:
    """One policy only observes, one was refused, and one pod is nobody's."""
    observed, refused, nobodys, named = (
        fleet.plane.namespace(name) for name in ("seen", "refused", "free", "named")
    )
    watching, wrong = protect_all(observed), protect_all(refused)
    watching["spec"] = {"jobs": {}, "mode": "observe"}
    wrong["spec"] = {
        "jobs": {},
        "resume": {"checkpoint": {"signal": "SIGUSR1", "proof": {"logPattern": "("}}},
    }
    for policy in (watching, wrong, protect_all(named)):
        fleet.admin.create(policy)
    for namespace, node in (
        (observed, "fleet-h"),
        (refused, "fleet-h"),
        (nobodys, "fleet-h"),
        (named, "fleet-i"),
    ):
        with_job(fleet.plane, "llama-0", namespace, node)
    for node in ("fleet-h", "fleet-i"):
        made = fleet.plane.node(node)
        one = {"id": f"{node}-0001", "node": node, "nodeUid": made["metadata"]["uid"], "kind": "silence"}
        one |= {"state": "active", "since": "2026-11-01T00:00:00Z", "needs": {"sentence": "a person"}}
        head = {"apiVersion": "sentinel.dev/v1alpha1", "kind": "Quarantine", "metadata": {"name": one["id"]}}
        fleet.admin.create({**head, "spec": one})
        fleet.admin.delete(f"/api/v1/nodes/{node}")
    fleet.controller("careful").said("leads, epoch", 60.0)
    fleet.until(lambda: fleet.found(f"/api/v1/namespaces/{named}/pods/llama-0") is None)
    fleet.until(lambda: [one.get("removals") for one in fleet.records("fleet-h")] != [None])
    (record,) = fleet.records("fleet-h")
    (removal,) = record["removals"]
    assert (removal["mode"], [pod.partition("/")[0] for pod in removal["pods"]]) == ("observe", [observed])
    for namespace in (observed, refused, nobodys):
        assert fleet.found(f"/api/v1/namespaces/{namespace}/pods/llama-0") is not None


def test_pods_of_no_more_nodes_than_the_brake_allows_are_removed_by_force(fleet: Fleet) -> None:
    """Two nodes that are proved dead at once: the pods of one go, those of the other stay, and its record says why."""
    namespace = fleet.plane.namespace("braked")
    fleet.admin.create(protect_all(namespace))
    names = ("fleet-x", "fleet-y")
    for name in names:
        fleet.plane.node(name)
        with_job(fleet.plane, f"on-{name}", namespace, name)
        id = f"{name}-0001"
        spec = {"id": id, "node": name, "nodeUid": fleet.node(name)["metadata"]["uid"], "kind": "silence"}
        spec |= {"state": "active", "since": "2026-11-01T00:00:00Z", "needs": {"sentence": "a person"}}
        head = {"apiVersion": "sentinel.dev/v1alpha1", "kind": "Quarantine", "metadata": {"name": id}}
        fleet.admin.create({**head, "spec": spec})
    for name in names:
        fleet.admin.delete(f"/api/v1/nodes/{name}")
    one_in_a_day = {"perWindow": {"atLeast": 1, "share": 0}, "window": "24h"}
    fleet.settings["fleet"] = {"removals": one_in_a_day, "poolRemovals": one_in_a_day}
    fleet.controller("braked").said("leads, epoch")

    def told(name: str) -> list[str]:
        (record,) = fleet.records(name)
        return [line["reason"] for line in record.get("story", [])]

    fleet.until(lambda: sum("RemovalBraked" in told(name) for name in names) == 1)

    def left() -> list[str]:
        pods = {one["metadata"]["name"] for one in fleet.admin.items(f"/api/v1/namespaces/{namespace}/pods")}
        return [name for name in names if f"on-{name}" in pods]

    braked = [name for name in names if "RemovalBraked" in told(name)]
    fleet.until(lambda: left() == braked)
    fleet.until(
        lambda: all(fleet.records(name)[0].get("endedBy") == "dead" for name in names if name not in braked)
    )
    assert left() == braked
    assert not fleet.records(braked[0])[0].get("removals")


def test_pods_of_a_silent_node_go_when_the_fencing_program_has_powered_it_off_and_stay_when_it_fails(
    fleet: Fleet,
) -> None:
    namespace = fleet.plane.namespace("fenced")
    fleet.admin.create(protect_all(namespace))
    for name in ("fleet-on", "fleet-off"):
        fleet.plane.node(name)
        with_job(fleet.plane, f"on-{name}", namespace, name)
    off = fleet.folder / "off"
    program = fleet.folder / "fence-node"
    program.write_text(
        f'#!/bin/sh\n[ "$2" = fleet-off ] && echo "$@ $SENTINEL_NODE_UID $SENTINEL_RECORD" >> {off} && exit 0\n'
        "echo no route to the BMC >&2; exit 3\n"
    )
    program.chmod(0o755)
    room = {"perWindow": {"atLeast": 2}}
    fleet.settings["fleet"] = {
        "fence": {"command": [str(program), "--now"], "after": "1s"},
        "removals": room,
        "poolRemovals": room,
        "lease": "20s",
        "agentSilent": "30s",
        "togetherShare": 1,
    }
    controller = fleet.controller("fencing")
    controller.said("leads, epoch")

    def told(name: str) -> list[str]:
        return [line["reason"] for record in fleet.records(name) for line in record.get("story", [])]

    def pods() -> list[str]:
        return [one["metadata"]["name"] for one in fleet.admin.items(f"/api/v1/namespaces/{namespace}/pods")]

    fleet.until(lambda: "RemovedByForce" in told("fleet-off") and "FenceFailed" in told("fleet-on"))
    assert told("fleet-off") == ["Unreachable", "Fencing", "Fenced", "RemovedByForce"]
    assert told("fleet-on") == ["Unreachable", "Fencing", "FenceFailed"]
    fleet.until(lambda: pods() == ["on-fleet-on"])
    uid = fleet.node("fleet-off")["metadata"]["uid"]
    assert off.read_text() == f"--now fleet-off {uid} fleet-off-0001\n"
    (record,) = fleet.records("fleet-on")
    assert (record["fence"]["tries"], record["fence"]["state"]) == (1, "failed")
    assert "exit code 3: no route to the BMC." in record["sentence"]
    assert not record.get("removals")

    controller.send(signal.SIGTERM)
    assert controller.code() == 0
    rounds = list(Replay().run(entries([str(fleet.folder / "fencing" / "recording")])))
    assert all(each.decided == each.recorded for each in rounds)
    assert sum(one.reason.value == "Fencing" for each in rounds for one in each.decided) == 2


def test_pods_of_a_silent_node_go_on_the_word_of_their_policy_when_its_time_is_over_and_not_before(
    fleet: Fleet, kubelets: Kubelets
) -> None:
    """Two jobs, of which one has time left; a pod of a job that is gone stays in any case."""
    after_s = 45
    soon, later = fleet.plane.namespace("soon"), fleet.plane.namespace("later")
    for namespace, time in ((soon, f"{after_s}s"), (later, "24h")):
        policy = protect_all(namespace)
        policy["spec"]["lostNode"] = {"forceAfter": time}
        fleet.admin.create(policy)
    fleet.settings["fleet"] = {"lease": "20s", "agentSilent": "30s"}
    controller = fleet.controller("word")
    controller.said("leads, epoch")
    fleet.plane.node("fleet-w")
    agent = fleet.started(fleet.agent_on("fleet-w", controller))
    for namespace in (soon, later):
        with_job(fleet.plane, "llama-0", namespace, "fleet-w")
    fleet.admin.create(rank("nobodys", soon, "fleet-w"))
    kubelets.renewed = {"fleet-w"}
    fleet.until(lambda: kubelets.renewals > 2 and fleet.unheard() == 0)
    agent.kill()
    kubelets.renewed = set()

    def told() -> list[str]:
        return [line["reason"] for one in fleet.records("fleet-w") for line in one["story"]]

    def pods(namespace: str) -> set[str]:
        return {one["metadata"]["name"] for one in fleet.admin.items(f"/api/v1/namespaces/{namespace}/pods")}

    fleet.until(lambda: "Unfenced" in told())
    assert told()[-1] == "Unfenced", "it is silent, and its time is not over"
    assert pods(soon) == {"llama-0", "nobodys"}
    fleet.until(lambda: pods(soon) == {"nobodys"})
    assert pods(later) == {"llama-0"}
    (record,) = fleet.records("fleet-w")
    assert (record["state"], told()[-1]) == ("active", "RemovedByForce")
    (removal,) = record["removals"]
    assert removal["proof"] == "policy"
    assert [pod.split("/")[:2] for pod in removal["pods"]] == [[soon, "llama-0"]]
    assert "policy of their job says so" in record["sentence"]
    heard = fleet.admin.get(f"{NODE_LEASES}/fleet-w")["spec"]["renewTime"]
    silent = datetime.fromisoformat(removal["at"]) - datetime.fromisoformat(heard)
    assert silent.total_seconds() >= after_s


def test_with_few_open_files_the_api_server_is_reached_and_too_many_nodes_are_told_of(fleet: Fleet) -> None:
    fleet.before = ("prlimit", "--nofile=64:256")
    for number in range(128):
        fleet.plane.node(f"fleet-many-{number}")
    controller = fleet.controller("few")
    assert "256 " in next(
        line
        for line in Path(f"/proc/{controller.pid}/limits").read_text().split("\n")
        if "open files" in line
    )
    controller.said("leads, epoch")
    node = fleet.agent("fleet-few", controller)
    controller.said("at most 128 agents are served at once, for ")
    with contextlib.ExitStack() as strangers:
        for _ in range(500):
            address = ("127.0.0.1", fleet.ports[controller.pid])
            with contextlib.suppress(OSError):  # hung up on at once
                strangers.enter_context(socket.create_connection(address, timeout=60))
        node.machine.log(XID_79)
        fleet.until(lambda: fleet.isolated("fleet-few"))
    assert "leads no more" not in controller.err
    assert "Traceback" not in controller.err
