"""Pods of owners whose kinds Sentinel does not know, under `sentinel controller` and the owners' real controllers."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sentinel.core.health import Severity
from tests.kubernetes.jobs_site import CHECKPOINT, CUSTOM, NODES, Agents, JobSite
from tests.kubernetes.local_fleet import Page
from tests.kubernetes.people import Person, bind
from tests.kubernetes.test_job_mail import mail_by, told
from tests.kubernetes.test_leading_jobs import end, gang, kwok, led, made_at, names, plane, uids
from tests.notify.mail_world import MailServer
from tests.rig.operators.flow import template
from tests.samples import lost_gpu

if TYPE_CHECKING:
    from tests.rig.api import Object
    from tests.rig.control_plane import ControlPlane
    from tests.rig.kwok import Kwok

__all__ = ["kwok", "plane"]

MOVES = {"maxResumes": 5, "gracefulStop": "1s", "checkpoint": CHECKPOINT}
RECOVERED = ["Stopping", "Prechecking", "Starting", "Verifying", "Recovered"]
OWNERS = ("statefulsets", "replicasets", "daemonsets")


class Site(JobSite):
    """Its job is that of pods with a label, whoever makes them."""

    def pods(self, phase: str = "Running", labels: str = "app=train") -> "list[Object]":
        found = super().pods(phase, labels)
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def protect(self, **spec: Any) -> None:
        super().protect(**{"jobs": {"kinds": ["Pod"]}, **spec})

    def limited(self) -> tuple[str, str, str]:
        """What the policy's status says of jobs that cannot have what it asks for."""
        status = self.admin.get(f"{CUSTOM}/namespaces/{self.space}/jobpolicies/all").get("status", {})
        for one in status.get("conditions", []):
            if one["type"] == "Limited":
                return one["status"], one["reason"], one["message"]
        return "", "", ""

    def jobs(self) -> "dict[str, Object]":
        """The records by the names of owners."""
        found = self.admin.items(f"{CUSTOM}/namespaces/{self.space}/protectedjobs")
        return {one["spec"]["name"].rpartition("/")[2]: one["spec"] for one in found}

    def close(self) -> None:
        for plural in OWNERS:
            path = f"/apis/apps/v1/namespaces/{self.space}/{plural}"
            self.admin.delete(path, propagationPolicy="Background")
        super().close()


@pytest.fixture
def site(plane: "ControlPlane", kwok: "Kwok", tmp_path: Path) -> Iterator[Site]:
    with made_at(Site, plane, kwok, tmp_path) as made:
        yield made


def owner(kind: str, replicas: int, name: str = "train", gpus: int = 8, **more: Any) -> "Object":
    pods = template(NODES)
    pods["metadata"] = {"labels": {"app": name}}
    pods["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": pods, **more}
    if kind == "DaemonSet":
        del spec["replicas"]
    if kind == "StatefulSet":
        spec["serviceName"] = name
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def budget(least: int) -> "Object":
    """So many pods of the job must be there, whoever evicts others."""
    spec = {"minAvailable": least, "selector": {"matchLabels": {"app": "train"}}}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "few"},
        "spec": spec,
    }


def on(site: Site) -> set[str]:
    return {pod["spec"]["nodeName"] for pod in site.pods()}


def lose(site: Site) -> None:
    """The only pod ends in error. Its owner stands still until that is seen: what it makes again before is no fault."""
    known, owners = len(site.incidents()), site.plane.controller_manager
    assert owners is not None
    owners.freeze()
    site.kwok.end_pod(site.space, "train-0", 1)
    site.until(lambda: len(site.incidents()) > known)
    owners.thaw()


def cordon(site: Site, *nodes: str, cordoned: bool = True) -> None:
    for node in nodes:
        site.admin.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": cordoned}})


def test_a_stateful_set_leaves_a_node_that_goes_bad(site: Site) -> None:
    with MailServer() as server:
        site.settings |= {"mail": mail_by(server)}
        controller = led(site)
        agents = Agents(site, controller)
        site.protect(resume=MOVES)
        site.create(owner("StatefulSet", 2))
        site.until(site.state("running"))
        assert site.record()["name"] == f"{site.space}/statefulset.apps/train"
        assert (site.record()["size"], site.record()["incarnation"]) == (2, 1), "they come one after another"
        before, bad = uids(site.pods()), site.pods()[0]["spec"]["nodeName"]
        agents.find(bad, lost_gpu(check="gpus", event=False))
        site.until(lambda: site.phases()[-1:] == ["Recovered"])
        assert len(site.pods()) == 2
        assert not before & uids(site.pods())
        assert bad not in on(site)
        assert "saved checkpoint" in site.incident()["save"]["provedBy"]
        site.until(lambda: len(told(server, site)) == 2)
        assert {stage for _, stage in told(server, site)} == {"started", "recovered"}
        anna = Person(site.plane, "pods-anna", bind(site.plane, "pods-anna", "sentinel-reader"))
        shown = json.loads(anna.says("status", "-o", "json", "-n", site.space, "train").stdout)
        assert "statefulset.apps/train" in json.dumps(shown)
        agents.close()
        end(controller)


def test_a_job_that_nothing_keeps_off_a_bad_node_moves_when_that_takes_no_pods(site: Site) -> None:
    controller = led(site)
    agents = Agents(site, controller)
    site.protect(resume=MOVES)
    site.create(owner("StatefulSet", 1))
    site.until(site.state("running"))
    before, (bad,) = uids(site.pods()), on(site)
    agents.find(bad, lost_gpu(check="gpus", event=False, severity=Severity.DEGRADED))
    site.until(lambda: site.incidents())
    site.until(lambda: "which still takes pods" in json.dumps(site.incidents()))
    assert f"Nothing in a StatefulSet keeps its pods off {bad}" in json.dumps(site.incidents())
    assert uids(site.pods()) == before
    cordon(site, bad)
    site.until(lambda: site.incidents()[-1]["phase"] == "Recovered")
    assert bad not in on(site)
    agents.close()
    end(controller)


def test_pods_that_came_again_are_waited_for_only_where_they_got_a_bad_node(site: Site) -> None:
    """One other node is bad and takes pods: first they do not come there, then they do, and must go once more."""
    controller = led(site)
    agents = Agents(site, controller)
    site.protect(resume=MOVES)
    site.create(owner("StatefulSet", 1))
    site.until(site.state("running"))
    (first,) = on(site)
    second, third = sorted({f"{NODES}-{number}" for number in range(3)} - {first})
    cordon(site, third)
    blocker = site.block()  # takes the second
    agents.find(second, lost_gpu(check="gpus", event=False, severity=Severity.DEGRADED))
    page = Page(controller)
    told = {"node": second, "pool": "", "component": "gpu", "severity": "degraded", "code": "XID 79"}
    site.until(lambda: page.number("node_finding", **told) == 1)
    lose(site)
    site.until(lambda: site.phases()[-1:] == ["Recovered"])
    # The pre-check may come before its owner has made the pod again, and is made once more then.
    assert list(dict.fromkeys(site.phases())) == RECOVERED
    assert on(site) == {first}

    site.admin.delete(blocker, gracePeriodSeconds=0)
    cordon(site, first)
    lose(site)
    site.until(lambda: on(site) == {second})
    why = f"Nothing in a StatefulSet keeps its pods off {second}, which still takes pods"
    site.until(lambda: why in json.dumps(site.incidents()[-1]))
    cordon(site, third, cordoned=False)
    cordon(site, second)
    site.until(lambda: len(site.incidents()) == 2 and site.phases()[-1:] == ["Recovered"])
    assert on(site) == {third}
    agents.close()
    end(controller)


def test_mails_go_to_whom_the_pods_name_also_while_there_is_none(site: Site) -> None:
    with MailServer() as server:
        site.settings |= {"mail": mail_by(server)}
        controller = led(site)
        site.protect(restart={"maxRestarts": 2}, owner={"emails": []})
        made = owner("StatefulSet", 1)
        made["spec"]["template"]["metadata"]["annotations"] = {"sentinel.dev/owner": "anna@example.com"}
        site.create(made)
        site.until(site.state("running"))
        lose(site)
        site.until(lambda: site.phases()[-1:] == ["Recovered"])
        site.until(lambda: len(told(server, site)) == 2)
        assert {to for to_all, _ in told(server, site).values() for to in to_all} == {"anna@example.com"}
        end(controller)


def test_two_owners_are_two_jobs_and_what_needs_no_recovery_is_none(site: Site) -> None:
    """Pods of a known kind and of each node, and pods that nobody would make again."""
    controller = led(site)
    site.protect(restart={"maxRestarts": 2})
    job = gang(1, gpus=1)
    job["metadata"]["name"] = "known"
    site.create(job)
    alone = site.block("alone")
    site.create(owner("DaemonSet", 0, "each", gpus=1))
    site.create(owner("StatefulSet", 2, gpus=2))
    site.create(owner("StatefulSet", 1, "other", gpus=2))
    site.until(lambda: [one["state"] for one in site.jobs().values()] == ["running"] * 2)
    assert set(site.jobs()) == {"train", "other"}
    said = f"Pod {site.space}/alone has no owner: evicted, nobody would make it again."
    site.until(lambda: site.limited() == ("True", "NoOwner", said))
    before, others = uids(site.pods()), uids(site.pods(labels="app=other"))
    site.kwok.end_pod(site.space, "train-1", 1)
    site.until(lambda: site.phases()[-1:] == ["Recovered"])
    assert not before & uids(site.pods())
    assert uids(site.pods(labels="app=other")) == others
    assert site.incident()["job"] == f"{site.space}/statefulset.apps/train"
    site.admin.delete(alone, gracePeriodSeconds=0)
    site.until(lambda: site.limited()[0] == "False")
    end(controller)


def test_without_their_word_in_a_policy_pods_of_unknown_owners_are_left_alone(site: Site) -> None:
    controller = led(site)
    site.protect(jobs={}, restart={"maxRestarts": 2})
    site.create(owner("StatefulSet", 1, gpus=1))
    job = gang(1, gpus=1)
    job["metadata"]["name"] = "known"
    site.create(job)
    site.until(lambda: site.pods() and site.jobs().get("known", {}).get("state") == "running")
    assert set(site.jobs()) == {"known"}
    end(controller)


def test_a_deleted_owner_is_no_lost_rank(site: Site) -> None:
    controller = led(site)
    site.protect(restart={"maxRestarts": 2})
    path = site.create(owner("StatefulSet", 2, gpus=4))
    site.create(owner("StatefulSet", 2, "other", gpus=4))
    site.until(lambda: [one["state"] for one in site.jobs().values()] == ["running"] * 2)
    site.admin.delete(path, propagationPolicy="Background")
    site.until(
        lambda: not site.admin.items(f"/api/v1/namespaces/{site.space}/pods", labelSelector="app=train")
    )
    site.kwok.end_pod(site.space, "other-0", 1)  # what comes behind it is seen, and told
    site.until(lambda: site.phases()[-1:] == ["Recovered"])
    assert site.incident()["job"] == f"{site.space}/statefulset.apps/other"
    assert site.jobs()["train"]["state"] == "running", "its owner may make pods again"
    end(controller)


def test_a_successor_evicts_what_a_killed_leader_had_not_evicted_yet(site: Site) -> None:
    controller = led(site)
    site.protect(restart={"maxRestarts": 2})
    site.create(owner("ReplicaSet", 3, gpus=4))
    site.until(site.state("running"))
    before = uids(site.pods())
    path = site.create(budget(1))
    site.until(lambda: site.admin.get(path)["status"].get("disruptionsAllowed") == 2)
    nodes = [f"{NODES}-{number}" for number in range(3)]
    cordon(
        site, *nodes
    )  # what takes the place of an evicted pod does not run, and the last one may not be evicted
    site.kwok.end_pod(site.space, names(site.pods())[0], 1)
    site.until(lambda: len(before & uids(site.pods())) == 1)
    controller.send(signal.SIGKILL)
    controller.code()
    assert site.phases() == ["Stopping"]
    site.admin.delete(path)
    cordon(site, *nodes, cordoned=False)
    second = led(site, "two")
    site.until(lambda: site.phases()[-1:] == ["Recovered"])
    assert site.phases() == RECOVERED
    assert len(site.pods()) == 3
    assert not before & uids(site.pods())
    end(second)


def test_a_lost_rank_of_a_replica_set_starts_all_of_them_again(site: Site) -> None:
    controller = led(site)
    site.protect(restart={"maxRestarts": 2})
    path = site.create(owner("ReplicaSet", 2, gpus=4))
    site.until(site.state("running"))
    before = uids(site.pods())
    site.kwok.end_pod(site.space, names(site.pods())[0], 1)
    site.until(lambda: site.phases()[-1:] == ["Recovered"])
    assert site.phases() == RECOVERED
    assert len(site.pods()) == 2
    assert not before & uids(site.pods())
    site.admin.patch(path, {"spec": {"replicas": 3}})
    site.until(lambda: site.record()["size"] == 3)
    assert site.record()["reason"] == "Resized"
    assert len(site.incidents()) == 1
    end(controller)


def test_a_disruption_budget_slows_a_stop_down_and_new_pods_are_not_evicted_for_it(site: Site) -> None:
    controller = led(site)
    site.protect(restart={"maxRestarts": 2})
    site.create(owner("ReplicaSet", 2, gpus=4))
    site.until(site.state("running"))
    before, path = uids(site.pods()), site.create(budget(1))
    site.until(lambda: site.admin.get(path)["status"].get("disruptionsAllowed") == 1)
    site.kwok.end_pod(site.space, names(site.pods())[0], 1)
    site.until(lambda: site.phases()[-1:] == ["Recovered"])
    assert site.phases() == RECOVERED
    assert len(site.pods()) == 2
    assert not before & uids(site.pods())
    end(controller)
