"""`sentinel uninstall`: nothing of Sentinel's is left on nodes and all of others' is; a reinstall judges anew."""

import os
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from sentinel.cli import uninstall
from sentinel.cluster.kubernetes.job_records import object_of
from sentinel.cluster.kubernetes.names import object_name
from sentinel.core.model import Cause, Incident, IncidentKind, JobState, StoredJob, Symptom, Verdict
from sentinel.core.policy_model import Policy
from sentinel.util.documents import to_document
from tests.e2e.agent_node import XID_79
from tests.e2e.box import SENTINEL
from tests.kubernetes.conftest import (
    LEADER,
    NAMESPACE,
    QUARANTINES,
    kubeconfig,
    new_lease,
    quarantine,
    undriven,
)
from tests.kubernetes.local_fleet import Fleet
from tests.kubernetes.people import Person, bind
from tests.kubernetes.proxy import Fault, Proxy
from tests.rig.api import ApiError
from tests.waits import until

if TYPE_CHECKING:
    from tests.rig.control_plane import ControlPlane

OTHER = {"key": "example.com/mine", "value": "x", "effect": "NoSchedule"}
WELL = {"type": "ExampleWell", "status": "True", "reason": "Fine", "message": "of somebody else"}
NOTHING = "Nothing is left to take away.\n"
CORDONED, FOUND_CORDONED = "0001.cordoned", "0001"  # what the taint says of who cordoned the node


def remover(plane: "ControlPlane") -> Person:
    """Who has the rights that docs/kubernetes.md names, and no others."""
    bind(plane, "un-reads", "sentinel-reader", to="un-remover")
    return Person(plane, "un-remover", bind(plane, "un-remover", "sentinel-controller"))


def marked(plane: "ControlPlane", name: str, value: str = CORDONED, *others: dict[str, str]) -> str:
    """A node as Sentinel leaves it behind; its path."""
    plane.node(name)
    path = f"/api/v1/nodes/{name}"
    taint = {"key": "sentinel.dev/quarantined", "value": value, "effect": "NoSchedule"}
    plane.admin.patch(
        path,
        {
            "metadata": {"annotations": {"sentinel.dev/epoch": "1", "example.com/mine": "1"}},
            "spec": {"taints": [*others, taint], "unschedulable": True},
        },
    )
    return path


def isolated(
    plane: "ControlPlane", node: str, number: int = 1, epoch: int = 1, **spec: Any
) -> dict[str, Any]:
    """The record of an isolation that is in force."""
    record = quarantine(f"{node}-{number:04d}", epoch)
    if there := plane.admin.find(f"/api/v1/nodes/{node}"):
        spec["nodeUid"] = there["metadata"]["uid"]
    record["spec"] |= {"node": node, **spec}
    return plane.admin.create(record)


def recorded(plane: "ControlPlane", job: str, state: JobState = JobState.QUEUED) -> str:
    """As a controller leaves the record of a job (NAMESPACE/KIND/NAME) that it had stopped to start it again; the mark
    of the stop."""
    why = Verdict(
        symptom=Symptom.HANG, cause=Cause.UNKNOWN, failure="hang", scope="node", sentence="It hung."
    )
    incident = Incident(id=f"{job}-0001", job=job, kind=IncidentKind.FORCED, verdict=why, incarnation=1)
    record = StoredJob(name=job, policy=Policy(name="all"), state=state, incarnation=1, incident=incident)
    head = {"apiVersion": "sentinel.dev/v1alpha1", "kind": "ProtectedJob"}
    meta = {"name": object_name(object_of(job)), "namespace": job.partition("/")[0]}
    plane.admin.create({**head, "metadata": meta, "spec": to_document(record)})
    return f"{job}:1"


def definition(group: str, version: str, kind: str) -> dict[str, Any]:
    """Of custom resources of others, with any fields."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    plural = f"{kind.lower()}s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": plural},
            "scope": "Namespaced",
            "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
        },
    }


def defined(plane: "ControlPlane", what: dict[str, Any], path: str) -> None:
    """They are served when this returns."""
    plane.admin.apply([what])

    def served() -> bool:
        try:
            return bool(plane.admin.find(path))
        except ApiError:  # its storage is being made
            return False

    until(served, lambda: f"{path} is not served")


def own_conditions(node: dict[str, Any]) -> list[str]:
    """Also those that Sentinel writes for node repair."""
    return sorted(
        one["type"]
        for one in node["status"].get("conditions", [])
        if one["type"] == "SentinelHealthy" or one["reason"].startswith("Sentinel")
    )


def test_nothing_of_sentinels_is_left_on_nodes_and_everything_of_others(fleet: Fleet) -> None:
    person = remover(fleet.plane)
    controller = fleet.controller("one")
    controller.said("leads, epoch")
    bad, good = fleet.agent("un-bad", controller), fleet.agent("un-good", controller)
    assert good
    fleet.admin.patch(
        "/api/v1/nodes/un-bad",
        {"metadata": {"annotations": {"example.com/mine": "1"}}, "spec": {"taints": [OTHER]}},
    )
    fleet.admin.patch("/api/v1/nodes/un-bad/status", {"status": {"conditions": [WELL]}})
    bad.machine.log(XID_79)
    fleet.until(lambda: fleet.isolated("un-bad"))
    fleet.until(lambda: len(own_conditions(fleet.node("un-bad"))) == 2)
    checked = person.says("uninstall", "--check")
    assert checked.returncode == 1, checked.stderr
    assert "isolation un-bad-0001: " in checked.stdout
    assert (
        "node un-bad: taint sentinel.dev/quarantined=0001.cordoned, unschedulable by Sentinel, "
        "annotation sentinel.dev/epoch, condition " in checked.stdout
    )
    for one in own_conditions(fleet.node("un-bad")):
        assert f"condition {one}" in checked.stdout
    refused = person.says("uninstall")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "still leads and would write it all again: first `helm uninstall`" in refused.stderr
    assert fleet.isolated("un-bad")

    controller.send(signal.SIGTERM)
    assert controller.code() == 0
    done = person.says("uninstall")
    assert (done.returncode, done.stderr) == (0, "")
    assert "isolation un-bad-0001: ended. Its record said: " in done.stdout
    assert "node un-bad: removed taint sentinel.dev/quarantined" in done.stdout
    assert NOTHING in done.stdout
    node = fleet.node("un-bad")
    assert not node["spec"].get("unschedulable")
    assert OTHER in node["spec"]["taints"]
    assert fleet.taints("un-bad") == []
    assert node["metadata"]["annotations"] == {"example.com/mine": "1"}
    assert "ExampleWell" in [one["type"] for one in node["status"]["conditions"]]
    assert own_conditions(node) == []
    again = person.says("uninstall", "--check")
    assert (again.returncode, again.stdout) == (
        0,
        f"{NOTHING}Records stay, and a new installation goes on with them: Quarantine 1.\n",
    )


def test_a_new_installation_isolates_the_node_whose_fault_stands_and_no_other(fleet: Fleet) -> None:
    """No record says that a person gave the node back, and none takes the fault for one that came again."""
    person = remover(fleet.plane)
    first = fleet.controller("one")
    first.said("leads, epoch")
    stands, mended = fleet.agent("un-stands", first), fleet.agent("un-mended", first)
    for one in (stands, mended):
        one.machine.log(XID_79)
    fleet.until(lambda: fleet.isolated("un-stands") and fleet.isolated("un-mended"))
    first.send(signal.SIGTERM)
    assert first.code() == 0
    assert person.says("uninstall").returncode == 0
    assert not fleet.isolated("un-stands")
    shown = fleet.admin.get(f"{QUARANTINES}/un-mended-0001")["status"]["conditions"]
    assert {one["type"]: one["status"] for one in shown} == {"Isolated": "False", "Ended": "True"}

    (agent,) = mended.box._children
    agent.send(signal.SIGTERM)
    assert agent.code() == 0
    shutil.rmtree(mended.folder)
    mended.machine.kmsg.write_text("")
    second = fleet.controller("two", "--agents", f"127.0.0.1:{fleet.ports[first.pid]}")
    second.said("leads, epoch")
    fleet.started(mended)
    fleet.until(lambda: fleet.isolated("un-stands"))
    before, after = sorted(fleet.records("un-stands"), key=lambda one: str(one["id"]))
    assert (before["state"], before["endedBy"], before["reason"]) == (
        "released",
        "uninstalled",
        "Uninstalled",
    )
    assert (after["state"], after["reason"], after.get("repeats", 0)) == ("active", "FatalFinding", 0)
    assert "person" not in after["needs"]["sentence"]

    fleet.until(lambda: own_conditions(fleet.node("un-stands")) and fleet.unheard() == 0)
    assert not fleet.isolated("un-mended")
    (record,) = fleet.records("un-mended")
    assert (record["state"], record["endedBy"], record.get("ignored")) == ("released", "uninstalled", None)


def test_what_others_cordoned_stays_so_and_it_is_said_who(plane: "ControlPlane") -> None:
    person = remover(plane)
    karpenter = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}
    paths = [marked(plane, "un-person", FOUND_CORDONED), marked(plane, "un-cloud", CORDONED, karpenter)]
    done = person.says("uninstall")
    assert done.returncode == 0, done.stderr
    assert (
        "node un-person: removed taint sentinel.dev/quarantined=0001, annotation sentinel.dev/epoch. "
        "It stays unschedulable: somebody else cordoned it.\n" in done.stdout
    )
    assert "It stays unschedulable: Karpenter cordoned it." in done.stdout
    for path in paths:
        spec = plane.admin.get(path)["spec"]
        assert spec["unschedulable"]
        assert "sentinel.dev/quarantined" not in [one["key"] for one in spec.get("taints", [])]


def test_many_nodes_that_bear_the_same_are_one_line(plane: "ControlPlane") -> None:
    for number in range(7):
        marked(plane, f"un-{number}")
    (line,) = remover(plane).says("uninstall", "--check").stdout.splitlines()
    assert line.startswith("node un-0, un-1, un-2, un-3, un-4 and 2 more: taint ")


@pytest.fixture
def far(fleet: Fleet, behind: Proxy) -> Person:
    """An administrator behind the proxy."""
    plane, name, rbac = fleet.plane, "un-far", "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": name, "namespace": NAMESPACE},
    }
    role = {"apiGroup": rbac, "kind": "ClusterRole", "name": "cluster-admin"}
    binding = {"apiVersion": f"{rbac}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name}}
    plane.admin.apply([account, {**binding, "roleRef": role, "subjects": [subject]}])
    config = kubeconfig(fleet.folder / name, behind.url, plane.token(NAMESPACE, name))
    return Person(plane, name, str(config))


def test_a_node_that_changes_meanwhile_is_read_again_and_one_that_goes_is_done(
    fleet: Fleet, behind: Proxy, far: Person
) -> None:
    admin = fleet.admin
    changed, gone = marked(fleet.plane, "un-changes"), marked(fleet.plane, "un-goes")

    def change() -> None:
        admin.patch(changed, {"metadata": {"labels": {"example.com/new": "1"}}})

    behind.faults += [
        Fault("PATCH", "un-changes", when_come=change),
        Fault("PATCH", "un-goes", when_come=lambda: admin.delete(gone)),
    ]
    done = far.says("uninstall")
    assert not [fault for fault in behind.faults if fault.times], "each came"
    assert (done.returncode, done.stderr) == (0, "")
    assert "node un-goes: gone meanwhile.\n" in done.stdout
    assert NOTHING in done.stdout
    node = admin.get(changed)
    assert not node["spec"].get("unschedulable")
    assert "sentinel.dev/epoch" not in node["metadata"]["annotations"]
    assert node["metadata"]["labels"]["example.com/new"] == "1"


def test_a_node_whose_isolation_could_not_be_ended_keeps_its_mark_until_it_can(
    fleet: Fleet, behind: Proxy, far: Person
) -> None:
    """Without it a new installation would say that a person gave the node back."""
    path = marked(fleet.plane, "un-kept")
    isolated(fleet.plane, "un-kept")
    behind.faults.append(Fault("PATCH", "un-kept-0001", answer=503))
    done = far.says("uninstall")
    assert done.returncode == 1
    assert done.stderr.startswith("sentinel: isolation un-kept-0001: ")
    assert NOTHING not in done.stdout
    assert fleet.isolated("un-kept")
    assert far.says("uninstall").returncode == 0
    assert not fleet.admin.get(path)["spec"].get("unschedulable")


def test_a_job_that_its_operator_starts_on_a_command_loses_its_mark_when_it_runs(
    fleet: Fleet, behind: Proxy, far: Person
) -> None:
    """Until then the mark says who stopped it."""
    admin, space = fleet.admin, fleet.plane.namespace()
    volcano = [
        definition("batch.volcano.sh", "v1alpha1", "Job"),
        definition("bus.volcano.sh", "v1alpha1", "Command"),
    ]
    jobs = f"/apis/batch.volcano.sh/v1alpha1/namespaces/{space}/jobs"
    commands = f"/apis/bus.volcano.sh/v1alpha1/namespaces/{space}/commands"
    for one, path in zip(volcano, (jobs, commands), strict=True):
        defined(fleet.plane, one, path)
    mark = recorded(fleet.plane, f"{space}/job.batch.volcano.sh/v")
    meta = {"name": "v", "namespace": space, "annotations": {"sentinel.dev/stopped": mark}}
    head = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": meta}
    admin.create({**head, "spec": {"tasks": []}, "status": {"state": {"phase": "Aborted"}}})

    def resume() -> None:
        admin.patch(f"{jobs}/v", {"status": {"state": {"phase": "Running"}}})

    behind.faults.append(Fault("POST", "/commands", when_passed=resume))
    done = far.says("uninstall")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Job {space}/v: started again.\n" in done.stdout
    assert [one["action"] for one in admin.items(commands)] == ["ResumeJob"]
    assert "sentinel.dev/stopped" not in admin.get(f"{jobs}/v")["metadata"].get("annotations", {})
    for one in volcano:
        admin.delete(admin.path_of(one))


def test_who_may_not_is_told_so_in_one_sentence(plane: "ControlPlane") -> None:
    path = marked(plane, "un-forbidden")
    rita = Person(plane, "un-rita", bind(plane, "un-rita", "sentinel-reader"))
    done = rita.says("uninstall")
    assert (done.returncode, done.stdout) == (77, "")
    assert done.stderr.startswith("sentinel: you may not: ")
    assert "docs/kubernetes.md#removing says which rights this takes" in done.stderr
    assert done.stderr.count("\n") == 1
    assert plane.admin.get(path)["spec"]["unschedulable"]


def test_who_may_not_list_jobs_sees_what_is_left_on_nodes_and_which_kinds_are_missing(
    plane: "ControlPlane",
) -> None:
    marked(plane, "un-seen")
    rita = Person(plane, "un-rita", bind(plane, "un-rita", "sentinel-reader"))
    done = rita.says("uninstall", "--check")
    assert done.returncode == 77
    assert "node un-seen: " in done.stdout
    assert NOTHING not in done.stdout
    assert "sentinel: jobs.batch could not be listed: " in done.stderr
    assert done.stderr.count("docs/kubernetes.md#removing") == 1


def test_no_controller_leads_while_it_works(fleet: Fleet, behind: Proxy, far: Person) -> None:
    """One that comes back meanwhile would isolate the nodes again, and take the missing mark for a person's word."""
    marked(fleet.plane, "un-led")
    held: list[str] = []

    def look() -> None:
        held.append(fleet.admin.get(LEADER)["spec"]["holderIdentity"])

    behind.faults.append(Fault("PATCH", "un-led", when_come=look))
    done = far.says("uninstall")
    assert (done.returncode, done.stderr) == (0, "")
    assert held[0].startswith("uninstall-")
    assert not fleet.admin.get(LEADER)["spec"].get("holderIdentity")


def test_where_the_controllers_are_in_another_namespace_nothing_is_done(fleet: Fleet, far: Person) -> None:
    path = marked(fleet.plane, "un-elsewhere")
    done = far.says("uninstall", "--system", "elsewhere")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"in namespace elsewhere, but in {NAMESPACE}: name it with --system" in done.stderr
    assert fleet.admin.get(path)["spec"]["unschedulable"]


def test_what_may_not_be_written_keeps_nothing_else_from_being_cleared(
    fleet: Fleet, behind: Proxy, far: Person
) -> None:
    """A webhook or a policy of somebody else's forbids one object."""
    denied, free = marked(fleet.plane, "un-denied"), marked(fleet.plane, "un-free")
    behind.faults.append(Fault("PATCH", "un-denied", answer=403))
    done = far.says("uninstall")
    assert done.returncode == 77
    assert done.stderr.startswith("sentinel: node un-denied: ")
    assert done.stderr.count("docs/kubernetes.md#removing") == 1
    assert NOTHING not in done.stdout
    assert fleet.admin.get(denied)["spec"]["unschedulable"]
    assert not fleet.admin.get(free)["spec"].get("unschedulable")


def test_a_node_that_a_person_holds_stays_cordoned_also_in_the_next_run(plane: "ControlPlane") -> None:
    path = marked(plane, "un-held")
    isolated(plane, "un-held", kind="hold", by="ann")
    done = remover(plane).says("uninstall")
    assert (done.returncode, done.stderr) == (0, "")
    assert "It stays unschedulable: ann holds it out of service.\n" in done.stdout
    spec = plane.admin.get(path)["spec"]
    assert spec["unschedulable"]
    assert not spec.get("taints")


def test_an_isolation_that_cannot_be_read_is_told_and_its_node_keeps_its_mark(plane: "ControlPlane") -> None:
    path = marked(plane, "un-odd")
    record = quarantine("un-odd-0001", 1)
    record["spec"] |= {"node": "un-odd", "id": "un-another-0001"}
    plane.admin.create(record)
    person = remover(plane)
    assert (
        "isolation un-odd-0001: cannot be read: it says that it is "
        in person.says("uninstall", "--check").stdout
    )
    done = person.says("uninstall")
    assert done.returncode == 1
    assert done.stderr.startswith("sentinel: isolation un-odd-0001: cannot be read: ")
    assert NOTHING not in done.stdout
    assert plane.admin.get(path)["spec"]["unschedulable"]


def test_a_status_that_could_not_be_written_is_written_by_the_next_run(
    fleet: Fleet, behind: Proxy, far: Person
) -> None:
    isolated(fleet.plane, "un-status")
    behind.faults.append(Fault("PATCH", "un-status-0001/status", answer=503))
    assert far.says("uninstall").returncode == 1
    assert far.says("uninstall").returncode == 0
    shown = fleet.admin.get(f"{QUARANTINES}/un-status-0001")["status"]["conditions"]
    assert {one["type"]: one["status"] for one in shown} == {"Isolated": "False", "Ended": "True"}


def test_cordons_of_bad_nodes_can_be_kept(plane: "ControlPlane") -> None:
    """`kubectl cordon` does nothing on a node that is cordoned already."""
    path = marked(plane, "un-bad")
    isolated(plane, "un-bad")
    person = remover(plane)
    checked = person.says("uninstall", "--check", "--keep-cordons").stdout
    assert (
        "node un-bad: taint sentinel.dev/quarantined=0001.cordoned, annotation sentinel.dev/epoch. "
        "It stays unschedulable, as you asked.\n" in checked
    )
    done = person.says("uninstall", "--keep-cordons")
    assert (done.returncode, done.stderr) == (0, "")
    node = plane.admin.get(path)
    assert node["spec"]["unschedulable"]
    assert not node["spec"].get("taints")
    assert person.says("uninstall").returncode == 0
    assert plane.admin.get(path)["spec"]["unschedulable"], "it is the person's now"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hold", "bad cable, mine"),
        ("drain", '{"why": "a new disk", "by": "ann"}'),
        ("order", '{"id": "x", "kind": "hold", "seen_wall_s": 1}'),
    ],
)
def test_a_node_that_a_person_has_ordered_to_hold_stays_cordoned(
    plane: "ControlPlane", name: str, value: str
) -> None:
    """While nobody led: nobody has followed it."""
    path = marked(plane, "un-asked")
    isolated(plane, "un-asked")
    plane.admin.patch(path, {"metadata": {"annotations": {f"sentinel.dev/{name}": value}}})
    done = remover(plane).says("uninstall")
    assert (done.returncode, done.stderr) == (0, "")
    assert "It stays unschedulable: a person has ordered to hold it.\n" in done.stdout
    node = plane.admin.get(path)
    assert node["spec"]["unschedulable"]
    assert list(node["metadata"]["annotations"]) == ["example.com/mine"]


def test_a_hold_of_an_earlier_installation_keeps_no_node_of_a_later_one(plane: "ControlPlane") -> None:
    """A person has uncordoned it since, and a fault has isolated it again."""
    path = marked(plane, "un-twice", "0002.cordoned")
    isolated(plane, "un-twice", kind="hold", by="ann", state="released", endedBy="uninstalled")
    isolated(plane, "un-twice", 2)
    done = remover(plane).says("uninstall")
    assert (done.returncode, done.stderr) == (0, "")
    assert not plane.admin.get(path)["spec"].get("unschedulable")


def test_a_controller_in_another_namespace_is_noticed_beside_an_old_lease_here(plane: "ControlPlane") -> None:
    path, space = marked(plane, "un-moved"), plane.namespace()
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    meta = {"name": "sentinel-controller", "namespace": space}
    (other,) = plane.admin.apply([{**lease, "metadata": meta, "spec": {"holderIdentity": "lives"}}])
    try:
        done = remover(plane).says("uninstall")
        assert (done.returncode, done.stdout) == (1, "")
        assert f"a controller leads, or was killed, in namespace {space}: " in done.stderr
        assert plane.admin.get(path)["spec"]["unschedulable"]
    finally:
        plane.admin.delete(plane.admin.path_of(other))


def test_records_of_a_later_epoch_than_that_of_the_lease_are_led_above(plane: "ControlPlane") -> None:
    """The namespace was deleted and made anew, and the records stayed."""
    new_lease(plane.admin, leaseTransitions=1)
    path = marked(plane, "un-later")
    isolated(plane, "un-later", epoch=50)
    done = remover(plane).says("uninstall")
    assert (done.returncode, done.stderr) == (0, "")
    assert not plane.admin.get(path)["spec"].get("unschedulable")
    lease = plane.admin.get(LEADER)["spec"]
    assert lease["leaseTransitions"] > 50
    assert not lease.get("holderIdentity")


@pytest.mark.parametrize("system", [NAMESPACE, "un-deleted"], ids=["the namespace stays", "it is gone"])
def test_it_works_where_no_lease_is_left(plane: "ControlPlane", system: str) -> None:
    path = marked(plane, "un-leaseless")
    isolated(plane, "un-leaseless")
    plane.admin.delete(LEADER)
    person = (
        remover(plane)
        if system == NAMESPACE
        else Person(plane, "un-adm", bind(plane, "un-adm", "cluster-admin"))
    )
    done = person.says("uninstall", "--system", system)
    assert (done.returncode, done.stderr) == (0, "")
    assert not plane.admin.get(path)["spec"].get("unschedulable")


def test_a_kind_of_jobs_that_cannot_be_listed_keeps_nothing_else_from_being_done(
    fleet: Fleet, behind: Proxy, far: Person
) -> None:
    """Its operator is gone, with the webhook that converts its objects."""
    path = marked(fleet.plane, "un-broken")
    behind.faults += [Fault("GET", "/jobsets", answer=500, times=2)]
    for words in (("uninstall", "--check"), ("uninstall",)):
        done = far.says(*words)
        assert done.returncode == 1
        assert "sentinel: jobsets.jobset.x-k8s.io could not be listed: " in done.stderr
        assert NOTHING not in done.stdout
    assert not fleet.admin.get(path)["spec"].get("unschedulable")
    assert far.says("uninstall").returncode == 0


def test_a_job_whose_record_cannot_be_read_is_named_and_is_left(
    fleet: Fleet, behind: Proxy, far: Person
) -> None:
    job = undriven(space := fleet.plane.namespace())
    job["spec"]["suspend"] = True
    job["metadata"]["annotations"] = {
        "sentinel.dev/stopped": recorded(fleet.plane, f"{space}/job.batch/llama")
    }
    path = fleet.admin.path_of(fleet.admin.create(job))
    behind.faults.append(Fault("GET", "/protectedjobs/llama.job.batch", answer=503))
    done = far.says("uninstall")
    assert done.returncode == 1
    assert done.stderr.startswith(f"sentinel: Job {space}/llama: ")
    assert NOTHING not in done.stdout
    assert fleet.admin.get(path)["spec"]["suspend"] is True
    assert far.says("uninstall").returncode == 0
    assert fleet.admin.get(path)["spec"]["suspend"] is False


def test_nobody_has_to_read_what_it_says(plane: "ControlPlane") -> None:
    """`sentinel uninstall | head -1`"""
    paths = [marked(plane, f"un-pipe-{number}") for number in range(30)]
    for number in range(30):
        isolated(plane, f"un-pipe-{number}")
    person = remover(plane)
    reader, writer = os.pipe()
    os.close(reader)
    env = {"HOME": person.home, "KUBECONFIG": person.kubeconfig, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [SENTINEL, "uninstall"], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=180, env=env
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
    assert not [path for path in paths if plane.admin.get(path)["spec"].get("unschedulable")]


def test_a_second_one_is_told_of_the_first() -> None:
    told = str(uninstall._led_by("uninstall-12ab"))
    assert told == "another `sentinel uninstall` is at work: wait for it"
