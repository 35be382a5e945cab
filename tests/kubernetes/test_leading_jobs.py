"""Jobs that policies protect, under `sentinel controller` and their real operators."""

import asyncio
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from sentinel.core.health import Severity
from sentinel.transport.api_server import answers
from tests.e2e.box import Box, Running
from tests.kubernetes.conftest import LEADER, NAMESPACE, PAUSE, install
from tests.kubernetes.jobs_site import CHECKPOINT, CUSTOM, NODES, UNBRAKED, Agents, JobSite
from tests.kubernetes.local_fleet import Page
from tests.kubernetes.people import Person, bind
from tests.rig.fixtures import shared
from tests.rig.operators.flow import template
from tests.samples import lost_gpu

if TYPE_CHECKING:
    from tests.rig.api import Object
    from tests.rig.control_plane import ControlPlane
    from tests.rig.kwok import Kwok


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[ControlPlane]":
    """One of its own: there is one Lease for controllers, which other tests hold."""
    from tests.rig.control_plane import ControlPlane
    from tests.rig.processes import Rig

    with Rig(tmp_path_factory.mktemp("control-plane")) as rig, shared(ControlPlane(rig)) as made:
        install(made)
        yield made


@pytest.fixture(scope="module")
def kwok(plane: "ControlPlane") -> "Kwok":
    from tests.rig.kwok import Kwok

    made = Kwok(plane)
    made.nodes(NODES, 3)
    return made


S = TypeVar("S", bound=JobSite)


@contextmanager
def made_at(kind: type[S], plane: "ControlPlane", kwok: "Kwok", folder: Path) -> Iterator[S]:
    box = Box(folder / "box")
    made = kind(plane, kwok, box, folder)
    made.settings = {"listen": "127.0.0.1:0"}
    yield made
    box.close()
    made.close()


@pytest.fixture
def site(plane: "ControlPlane", kwok: "Kwok", tmp_path: Path) -> Iterator[JobSite]:
    with made_at(JobSite, plane, kwok, tmp_path) as made:
        yield made


def gang(count: int, gpus: int = 8) -> "Object":
    pods = template(NODES)
    pods["spec"] |= {"restartPolicy": "Never"}
    pods["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    spec = {"completionMode": "Indexed", "parallelism": count, "completions": count, "template": pods}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": spec}


def led(site: JobSite, name: str = "one", port: int = 0) -> Running:
    """`port`: where agents find it, also its successor."""
    controller = site.controller(name, "--agents", f"127.0.0.1:{port}")
    controller.said("leads, epoch")
    return controller


def end(controller: Running) -> None:
    """It gives the Lease back, so that the next test need not wait for it."""
    controller.send(signal.SIGTERM)
    assert controller.code() == 0
    assert "Traceback" not in controller.err
    assert "broke" not in controller.err


def names(pods: "list[Object]") -> list[str]:
    return [pod["metadata"]["name"] for pod in pods]


def uids(pods: "list[Object]") -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def events(site: JobSite, about: "list[Object]") -> "list[Object]":
    """Sentinel's about these objects, as the API server lists them; about nodes those that name a job of this site."""
    return [
        one
        for one in site.admin.items("/apis/events.k8s.io/v1/events")
        if one.get("reportingController") == "sentinel.dev/controller"
        and one["regarding"]["uid"] in uids(about)
        and (one["regarding"]["kind"] != "Node" or site.space in one["note"])
    ]


def notes(site: JobSite, about: "list[Object]") -> list[str]:
    return [one["note"] for one in events(site, about)]


def described(site: JobSite, kind: str, name: str) -> list[str]:
    """Sentinel's lines of `kubectl describe`."""
    kubectl = [str(site.plane.binaries.path("kubectl")), "--kubeconfig", str(site.plane.kubeconfig)]
    command = [*kubectl, "-n", site.space, "describe", kind, name]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert shown.returncode == 0, shown.stderr
    return [line for line in shown.stdout.splitlines() if "sentinel.dev/controller" in line]


def reasons(lines: list[str]) -> list[str]:
    return [line.split()[1] for line in lines]


def job_of(site: JobSite) -> "Object":
    return site.admin.get(f"/apis/batch/v1/namespaces/{site.space}/jobs/train")


def told_by_describe(site: JobSite, lost: "Object") -> None:
    """What `kubectl describe` says of the job, of the pod that was lost, of its node, and of a pod that runs now."""
    name, node = lost["metadata"]["name"], lost["spec"]["nodeName"]
    now = site.pods()
    site.until(lambda: any("Recovered: " in note for note in notes(site, now)))
    phases = {note.partition(":")[0] for note in notes(site, [job_of(site)])}
    assert {"Stopping", "Prechecking", "Starting", "Verifying", "Recovered"} <= phases
    (of_pod,) = notes(site, [lost])
    assert "Stopping: " in of_pod
    (of_node,) = notes(site, [site.node(node)])
    assert of_node.startswith(f"Job {site.space}/job.batch/train, pod {name}: ")
    assert of_node.endswith(of_pod)
    assert len(notes(site, now)) == 1, "of one of them, not of each rank"
    for kind, of, said in (("job", "train", "Recovered"), ("pod", name, of_pod), ("node", node, of_node)):
        lines = described(site, kind, of)
        assert any(said in line for line in lines), lines


def test_a_lost_rank_starts_all_ranks_again(site: JobSite) -> None:
    controller = led(site)
    site.protect(restart={"maxRestarts": 2})
    path = site.create(gang(2))
    site.until(site.state("running"))
    before, lost = uids(site.pods()), site.pods()[0]
    site.kwok.end_pod(site.space, names(site.pods())[0], 1)
    site.until(lambda: site.phases()[-1:] == ["Recovered"])
    _numbers_are_those_of_the_records(site, Page(controller))
    assert len(site.pods()) == 2
    assert not before & uids(site.pods())
    told_by_describe(site, lost)
    assert site.phases() == ["Stopping", "Prechecking", "Starting", "Verifying", "Recovered"]
    assert site.record()["usedJob"] == 1
    assert site.admin.get(path)["spec"]["suspend"] is False
    site.finish()
    site.until(site.state("succeeded"))
    end(controller)


def test_ranks_that_are_lost_together_are_told_of_once_and_in_the_order_of_what_was_done(
    site: JobSite,
) -> None:
    """However many they are: each step once on the job; where it began, on one of its pods and on that one's node."""
    controller = led(site)
    site.protect(restart={"maxRestarts": 2})
    job = gang(6, gpus=4)
    job["spec"]["backoffLimitPerIndex"] = 3  # else the operator waits longer for each pod that has failed
    site.create(job)
    site.until(site.state("running"))
    before, makes_others = site.pods(), site.plane.controller_manager
    assert makes_others is not None
    makes_others.freeze()
    controller.send(signal.SIGSTOP)
    for name in names(before[:4]):
        site.kwok.end_pod(site.space, name, 1)
    site.until(lambda: len(site.pods("Failed")) == 4)
    controller.send(signal.SIGCONT)
    site.until(site.incidents)
    makes_others.thaw()
    site.until(lambda: site.phases()[-1:] == ["Recovered"])
    assert site.phases() == ["Stopping", "Prechecking", "Starting", "Verifying", "Recovered"]
    incident = site.incident()
    assert re.match("Rank [0-3] was lost, then 3 more: ", incident["verdict"]["sentence"])
    site.until(lambda: notes(site, site.pods()))
    assert len(notes(site, site.pods())) == 1
    first = before[incident["verdict"]["rank"]]
    assert len(notes(site, before)) == len(notes(site, [first])) == 1
    assert str(notes(site, [first])).count(incident["verdict"]["sentence"]) == 1
    node = site.node(first["spec"]["nodeName"])
    assert len(notes(site, site.admin.items("/api/v1/nodes"))) == len(notes(site, [node])) == 1

    of_job = events(site, [job_of(site)])
    assert of_job == sorted(of_job, key=lambda one: str(one["eventTime"]))
    told = [(one["reason"], one["note"]) for one in of_job if one["reason"] != "StartWaits"]
    steps = [(step["reason"], f"{step['phase']}: {step['sentence']}") for step in incident["steps"]]
    assert told[[reason for reason, _ in told].index("RankLost") :] == steps
    # Where the operator has combined some of its own kubectl may change the order.
    shown = described(site, "job", "train")
    assert sorted(reasons(shown)) == sorted(one["reason"] for one in of_job), shown
    end(controller)


def _numbers_are_those_of_the_records(site: JobSite, page: Page) -> None:
    record, incident = site.record(), site.incident()
    job, cause, lost = record["name"], incident["verdict"]["cause"], incident["lost"]
    site.until(lambda: page.number("job_restarts_total", job_name=job, cause=cause) == 1)
    site.until(lambda: page.number("time_to_recover_seconds_sum", cause=cause))
    symptom, budget = incident["verdict"]["symptom"], incident["verdict"]["budget"]
    assert page.number("time_to_detect_seconds_count", symptom=symptom) == 1
    assert page.number("incidents_total", symptom=symptom, cause=cause) == 1
    assert page.number("restarts_total", cause=cause, budget=budget) == 1
    for step in ("stop", "start"):
        assert page.number(f"time_to_{step}_seconds_count") == 1
        assert 0 < (page.number(f"time_to_{step}_seconds_sum") or 0.0) < lost["seconds"]
    assert page.number("lost_steps_total", cause=cause) in (None, 0), "it names no steps"
    assert page.number("lost_seconds_total", cause=cause) == lost["seconds"]
    assert page.number("job_incidents_total", job_name=job) == incident["attempt"] == 1
    assert page.number("job_state", job_name=job, state="running") == 1
    assert (page.number("job_gpus", job_name=job), page.number("job_ranks", job_name=job)) == (16, 2)
    assert page.number("job_restarts_left", job_name=job) == 1
    assert page.number("jobs", state="running") == 1
    assert page.number("lost_gpu_seconds_total", cause=cause, owner="owner@example.com") == lost["gpuSeconds"]
    assert page.number("time_to_recover_seconds_sum", cause=cause) == lost["seconds"]
    assert 0 < (page.number("job_ettr_ratio", job_name=job) or 0) <= 1
    namespace, kind, _ = job.split("/")
    who = {"owner": "owner@example.com", "policy": "all", "job_namespace": namespace, "job_kind": kind}
    assert page.number("job_info", job_name=job, **who) == 1
    assert page.number("job_phase_since_timestamp_seconds", job_name=job) is None
    assert page.number("gpus", pool="", state="not-heard") == 24
    assert page.number("mails_waiting", about="jobs") is not None


def test_a_successor_goes_on_with_the_recovery_where_it_stood(site: JobSite) -> None:
    controller = led(site)
    site.protect(restart={"maxRestarts": 2})
    site.create(gang(2))
    site.until(site.state("running"))
    site.kwok.end_pod(site.space, names(site.pods())[0], 1)
    site.until(lambda: "Stopping" in site.phases())
    controller.kill()
    second = led(site, "two")
    site.until(lambda: site.phases()[-1:] == ["Recovered"])
    assert len(site.incidents()) == 1
    assert site.record()["usedJob"] == 1
    assert len(site.pods()) == 2
    end(second)


def test_what_a_person_stops_is_no_fault_and_runs_on_when_they_start_it(site: JobSite) -> None:
    controller = led(site)
    site.protect()
    path = site.create(gang(2))
    site.until(site.state("running"))
    site.admin.patch(path, {"spec": {"suspend": True}})
    site.until(site.state("queued"))
    assert "not by Sentinel" in site.record()["sentence"]
    site.admin.patch(path, {"spec": {"suspend": False}})
    site.until(site.state("running"))
    assert site.record()["incarnation"] == 2
    assert not site.incidents()
    site.admin.delete(path, propagationPolicy="Background")
    site.until(site.state("stopped"))
    assert site.record()["reason"] == "JobDeleted"
    assert not site.incidents()
    end(controller)


def test_what_a_job_has_used_is_still_known_when_its_policy_was_gone_for_a_while(site: JobSite) -> None:
    controller = led(site)
    page = Page(controller)
    site.protect(restart={"maxRestarts": 3})
    site.create(gang(1))
    site.until(site.state("running"))
    lost = [site.pods()[0]["metadata"]]
    site.kwok.end_pod(site.space, lost[0]["name"], 1)
    site.until(lambda: site.phases()[-1:] == ["Recovered"])

    site.admin.delete(f"{CUSTOM}/namespaces/{site.space}/jobpolicies/all")
    site.until(lambda: page.number("jobs", state="running") == 0)
    site.protect(restart={"maxRestarts": 3})
    site.until(lambda: page.number("jobs", state="running") == 1)
    lost.append(site.pods()[0]["metadata"])
    site.kwok.end_pod(site.space, lost[1]["name"], 1)
    site.until(lambda: [one["phase"] for one in site.incidents()] == ["Recovered"] * 2)
    assert [one["id"].rpartition("-")[2] for one in site.incidents()] == ["0001", "0002"]
    assert site.record()["usedJob"] == 2
    assert not {one["uid"] for one in lost} & uids(site.pods())
    end(controller)


def test_a_job_that_fails_again_and_again_is_given_up_when_its_budget_is_spent(site: JobSite) -> None:
    controller = led(site)
    site.protect(restart={"maxRestarts": 1})
    path = site.create(gang(2))
    site.until(site.state("running"))
    site.kwok.end_pod(site.space, names(site.pods())[0], 1)
    site.until(lambda: site.phases()[-1:] == ["Recovered"])
    site.kwok.end_pod(site.space, names(site.pods())[0], 1)
    site.until(lambda: site.phases()[-1:] == ["Exhausted"])
    assert site.record()["state"] == "error"
    assert site.admin.get(path)["spec"]["suspend"] is True
    assert not site.pods()
    end(controller)


def test_a_job_deleted_in_the_middle_of_its_recovery_ends_it(site: JobSite) -> None:
    controller = led(site)
    site.protect(restart={"maxRestarts": 3})
    blocker = site.block()
    path = site.create(gang(2))
    site.until(site.state("running"))
    victim = site.pods()[0]
    site.admin.patch(f"/api/v1/nodes/{victim['spec']['nodeName']}", {"spec": {"unschedulable": True}})
    site.kwok.end_pod(site.space, victim["metadata"]["name"], 1)
    site.until(lambda: site.incidents() and site.incidents()[-1]["reason"] == "NoRoom")
    site.admin.delete(path, propagationPolicy="Background")
    site.until(lambda: site.phases()[-1:] == ["Cancelled"])
    assert site.record()["state"] == "stopped"
    site.admin.delete(blocker, gracePeriodSeconds=0)

    site.until(lambda: not site.pods())
    site.create(gang(2))  # another one of the same name is protected by the same leader
    site.until(site.state("running"))
    site.kwok.end_pod(site.space, site.pods()[0]["metadata"]["name"], 1)
    site.until(lambda: len(site.incidents()) == 2 and site.phases()[-1:] == ["Recovered"])
    end(controller)


def test_people_order_more_time_an_end_and_another_try(site: JobSite) -> None:
    controller = led(site)
    site.protect(maxDuration="1h", restart={"maxRestarts": 3}, debugHold="1h")
    path = site.create(gang(2))
    site.until(site.state("running"))
    limits = f"{CUSTOM}/namespaces/{site.space}/jobpolicies/all"

    def limited() -> "dict[str, str]":
        told = site.admin.get(limits)["status"]["conditions"]
        return next((one for one in told if one["type"] == "Limited"), {})

    site.until(lambda: limited().get("reason") == "HoldUnavailable")
    assert "do not run the hold wrapper" in limited()["message"]
    site.order("extend", "2h the loss still falls")
    site.until(lambda: site.record().get("extraSeconds") == 7200)
    site.order("stop", "now it is a test")
    site.until(site.state("stopped"))
    assert not site.pods()
    assert site.admin.get(path)["spec"]["suspend"] is True
    site.order("retry", "it was a mistake")
    site.until(lambda: len(site.pods()) == 2 and site.record()["state"] == "running")
    assert site.record().get("usedJob", 0) == 0
    site.finish()
    site.until(site.state("succeeded"))
    end(controller)


def test_a_job_whose_time_is_up_is_stopped_and_told(site: JobSite) -> None:
    controller = led(site)
    site.protect(maxDuration="3s")
    site.create(gang(1))
    site.until(site.state("expired"))
    site.until(lambda: not site.pods())
    site.until(lambda: site.phases() == ["Stopping", "Ended"])
    end(controller)


def test_mails_go_to_the_owner_that_the_job_names(site: JobSite) -> None:
    controller = led(site)
    site.protect(owner={"emails": []})
    job = gang(1)
    job["metadata"]["annotations"] = {"sentinel.dev/owner": "ann@example.com"}
    site.create(job)
    site.until(site.state("running"))
    assert site.record()["policy"]["emails"] == ["ann@example.com"]
    end(controller)


def test_the_agent_of_a_rank_is_told_after_how_long_it_ends_it_and_when_no_more(site: JobSite) -> None:
    controller = led(site)
    site.protect(restart={"maxRestarts": 2}, lostNode={"selfFence": "2m"})
    site.create(gang(1))
    site.until(site.state("running"))
    (pod,) = site.pods()
    address, ca_file = site.plane.url.removeprefix("https://"), str(site.plane.identities.ca)
    assert asyncio.run(answers(address, ca_file)) == ""  # without a token
    node = site.agent_on(pod["spec"]["nodeName"], controller, apiServer=address, apiServerCaFile=ca_file)
    agent = site.started(node)

    def confirmed(pods: int) -> bool:
        lines = node.get(agent, "/metrics")[1].splitlines()
        return [float(one.split()[1]) for one in lines if one.startswith("sentinel_self_fence_pods ")] == [
            pods
        ]

    site.until(lambda: confirmed(1))
    site.protect(restart={"maxRestarts": 2}, lostNode={"forceAfter": "10m"})  # while it runs
    site.until(lambda: confirmed(0))
    site.protect(restart={"maxRestarts": 2}, lostNode={"selfFence": "3m"})
    site.until(lambda: confirmed(1))
    site.protect(restart={"maxRestarts": 2}, lostNode={"selfFence": "3m"}, mode="observe")
    site.until(lambda: confirmed(0))
    end(controller)


def test_a_job_that_steps_waits_for_the_brake_on_stops_and_says_so_and_moves_when_there_is_room(
    site: JobSite,
) -> None:
    """Two jobs on nodes that are drained, and a brake of one."""

    def stops(most: int) -> None:
        allowed = {"perWindow": {"atLeast": most, "share": 0}, "window": "24h"}
        site.settings["fleet"] = {"stops": allowed, "poolStops": allowed}

    def jobs() -> "dict[str, Object]":
        found = site.admin.items(f"{CUSTOM}/namespaces/{site.space}/protectedjobs")
        return {one["spec"]["name"].rpartition("/")[2]: one["spec"] for one in found}

    def order(node: str, what: str) -> None:
        site.admin.patch(
            f"/api/v1/nodes/{node}", {"metadata": {"annotations": {f"sentinel.dev/{what}": "drill"}}}
        )

    def moved() -> list[str]:
        return [one["job"].rpartition("/")[2] for one in site.incidents() if one["phase"] == "Recovered"]

    stops(1)
    controller = led(site)
    agents = Agents(site, controller)
    site.protect(resume={"maxResumes": 5, "gracefulStop": "1s", "checkpoint": CHECKPOINT})
    for name in ("train", "other"):
        job = gang(1, gpus=4)
        job["metadata"]["name"] = name
        site.create(job)
    site.until(lambda: [one["state"] for one in jobs().values()] == ["running"] * 2)
    drained = {pod["spec"]["nodeName"] for pod in site.pods()}
    for node in drained:
        order(node, "drain")
    site.until(lambda: len(moved()) == 1)
    (waits,) = {"train", "other"} - set(moved())
    site.until(lambda: jobs()[waits]["reason"] == "HeldBack")
    why = "Not acted on yet: 1 jobs that still stepped were stopped within 1440 min, of 1 that are allowed"
    assert why in jobs()[waits]["sentence"]
    assert jobs()[waits]["state"] == "running"
    assert [one["job"].rpartition("/")[2] for one in site.incidents()] == moved()
    rita = Person(site.plane, "rita-stops", bind(site.plane, "rita-stops", "sentinel-reader"))
    listed = rita.says("status", "-n", site.space).stdout  # other spaces have jobs of these names too
    shown = next(line for line in listed.splitlines() if f" {waits} " in line)
    assert why in shown
    on = {pod["metadata"]["labels"]["job-name"]: pod["spec"]["nodeName"] for pod in site.pods()}
    assert on[waits] in drained
    order(on[waits], "drain-off")
    site.until(lambda: jobs()[waits]["reason"] == "NotNeeded")
    order(on[waits], "drain")
    site.until(lambda: jobs()[waits]["reason"] == "HeldBack")
    end(controller)
    agents.close()

    stops(2)
    second = led(site, "two")
    agents = Agents(site, second)
    site.until(lambda: sorted(moved()) == ["other", "train"])
    assert jobs()[waits]["reason"] != "HeldBack"
    assert not drained & {pod["spec"]["nodeName"] for pod in site.pods()}
    for node in drained:
        order(node, "drain-off")
    site.until(lambda: not any(site.taints(node) for node in drained))
    agents.close()
    end(second)


def paused(site: JobSite) -> None:
    """As a person does it with kubectl; the leader goes by it when this returns."""
    meta = {"name": PAUSE.rpartition("/")[2], "namespace": NAMESPACE}
    site.admin.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})
    site.until(lambda: "sentinel.dev/paused" in site.admin.get(LEADER)["metadata"].get("annotations", {}))


def test_a_lost_rank_stops_no_other_while_sentinel_is_paused_and_is_recovered_from_after_it(
    site: JobSite,
) -> None:
    controller = led(site)
    site.protect(restart={"maxRestarts": 2})
    path = site.create(gang(2))
    site.until(site.state("running"))
    paused(site)
    lost, other = site.pods()
    site.kwok.end_pod(site.space, lost["metadata"]["name"], 1)
    site.until(lambda: site.record().get("reason") == "HeldBack")
    assert "Not acted on yet: Sentinel is paused: a person." in site.record()["sentence"]
    assert site.record()["state"] == "running"
    site.until(lambda: len(site.pods()) == 2)  # the Job itself has made another one by now
    assert site.record()["reason"] == "HeldBack"
    assert not site.incidents()
    assert other["metadata"]["uid"] in uids(site.pods())
    assert site.admin.get(path)["spec"].get("suspend", False) is False

    site.admin.delete(PAUSE)
    site.until(lambda: site.phases()[-1:] == ["Recovered"])
    assert site.phases() == ["Stopping", "Prechecking", "Starting", "Verifying", "Recovered"]
    assert len(site.incidents()) == 1
    assert not {lost["metadata"]["uid"], other["metadata"]["uid"]} & uids(site.pods())
    assert site.record()["reason"] != "HeldBack"
    end(controller)


def test_a_job_stays_on_a_node_that_goes_bad_while_sentinel_is_paused_and_leaves_it_after_that(
    site: JobSite,
) -> None:
    site.settings["fleet"] = UNBRAKED
    controller = led(site)
    agents = Agents(site, controller)
    site.protect(resume={"maxResumes": 5, "gracefulStop": "1s", "checkpoint": CHECKPOINT})
    path = site.create(gang(2))
    site.until(site.state("running"))
    paused(site)
    before = uids(site.pods())
    bad = site.pods()[0]["spec"]["nodeName"]
    agents.find(bad, lost_gpu(check="gpus", event=False, severity=Severity.DEGRADED))
    site.until(lambda: site.record().get("reason") == "HeldBack")
    assert "Not acted on yet: Sentinel is paused: a person." in site.record()["sentence"]
    assert not site.incidents()
    assert uids(site.pods()) == before
    assert site.admin.get(path)["spec"].get("suspend", False) is False

    site.admin.delete(PAUSE)
    site.until(lambda: site.phases()[-1:] == ["Recovered"])
    assert len(site.incidents()) == 1
    assert "saved checkpoint" in site.incident()["save"]["provedBy"]
    assert bad not in {pod["spec"]["nodeName"] for pod in site.pods()}
    agents.close()
    end(controller)
