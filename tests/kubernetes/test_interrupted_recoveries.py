"""What comes in the middle of a recovery: more faults, an API server that is away, the leader's end, other policies."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from sentinel.core.health import Finding, Severity
from sentinel.core.recovery.moves import START_TRIES
from tests.e2e.box import Box, Running
from tests.kubernetes.conftest import NAMESPACE, kubeconfig
from tests.kubernetes.jobs_site import CUSTOM, Agents, JobSite, policy
from tests.kubernetes.local_fleet import Page
from tests.kubernetes.proxy import Fault, Proxy
from tests.kubernetes.test_leading_jobs import end, gang, kwok, led, names, plane
from tests.kubernetes.test_sized_jobs import CHECKPOINT, cordon, quota, spent, suspended
from tests.rig.operators.base import is_true
from tests.rig.processes import free_port
from tests.samples import lost_gpu

if TYPE_CHECKING:
    from tests.rig.api import Object
    from tests.rig.control_plane import ControlPlane
    from tests.rig.kwok import Kwok

__all__ = ["kwok", "plane"]


RESTARTS = {"restart": {"maxRestarts": 3}}
RESUMES = {"resume": {"maxResumes": 3, "gracefulStop": "1s", "checkpoint": CHECKPOINT}}
WHOLE = ["Stopping", "Prechecking", "Starting", "Verifying", "Recovered"]


class World(JobSite):
    """One leader for all tests of the file, or its successors; a proxy before the API server; agents of all nodes."""

    proxy: Proxy
    leader: Running
    leaders = 0
    port: int  # where agents find whoever leads
    find: Callable[[str, Finding | None], None]

    def lead(self) -> None:
        self.leaders += 1
        self.leader = led(self, f"leader-{self.leaders}", self.port)

    def mend(self, node: str) -> None:
        """No job of the next test meets what was found there, as from an agent that tells a new leader so late."""
        self.until_findings(self.leader, True)
        self.find(node, None)
        self.until_findings(self.leader, False)


@pytest.fixture(scope="module")
def world(plane: "ControlPlane", kwok: "Kwok", tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    box = Box(folder / "box")
    made = World(plane, kwok, box, folder)
    made.settings = {"listen": "127.0.0.1:0"}
    made.proxy, made.port = Proxy(plane.url, plane.identities.ca), free_port()
    token = plane.token(NAMESPACE, "sentinel-controller")
    made.kubeconfig = kubeconfig(folder / "proxied", made.proxy.url, token)
    made.lead()
    agents = Agents(made, made.leader)
    made.find = agents.find
    yield made
    end(made.leader)
    agents.close()
    box.close()
    made.proxy.close()


@pytest.fixture
def site(world: World) -> Iterator[World]:
    """In a namespace of its own."""
    world.space = world.plane.namespace()
    yield world
    world.kwok.daemon.thaw()
    world.close()


def running(site: JobSite, count: int = 2, **spec: Any) -> str:
    """A protected job runs; its path."""
    site.protect(**(spec or RESTARTS))
    path = site.create(gang(count))
    site.until(lambda: site.record().get("state") == "running" and len(site.pods()) == count)
    return path


def vanishes(site: JobSite, pod: "Object") -> None:
    """No kubelet has a part in it."""
    site.admin.delete(f"/api/v1/namespaces/{site.space}/pods/{pod['metadata']['name']}", gracePeriodSeconds=0)


def in_phase(site: JobSite, phase: str) -> Callable[[], bool]:
    return lambda: site.phases()[-1:] == [phase]


def stages(site: JobSite) -> list[str]:
    """Of the mails about the newest incident."""
    return [one["stage"] for one in site.incidents()[-1].get("mails", [])]


def reasons(site: World) -> list[str]:
    """Of the steps of the newest incident."""
    found = site.incidents()
    return [step["reason"] for step in found[-1].get("steps", [])] if found else []


def no_answers(site: World) -> None:
    """Nothing that is asked about the job is answered for a while, and then all of it. Leases and watches go on."""
    refused = threading.Semaphore(0)

    def away(method: str, path: str) -> Fault | None:
        asked = f"/namespaces/{site.space}/" in path and "sentinel.dev" not in path
        return Fault(answer=503, when_come=refused.release) if asked and method != "WATCH" else None

    site.proxy.weather = away
    pod = site.admin.items(f"/api/v1/namespaces/{site.space}/pods")[0]
    path = f"/api/v1/namespaces/{site.space}/pods/{pod['metadata']['name']}"
    site.admin.patch(path, {"metadata": {"annotations": {"touched": site.phases()[-1]}}})
    assert all(refused.acquire(timeout=120.0) for _ in range(5))
    site.proxy.weather = lambda method, path: None


def test_a_node_that_fails_while_ranks_stop_belongs_to_the_same_incident(site: World) -> None:
    running(site)
    first, second = site.pods()
    site.kwok.daemon.freeze()
    vanishes(site, first)
    site.until(in_phase(site, "Stopping"))
    cordon(site, second["spec"]["nodeName"])
    vanishes(site, second)
    site.kwok.daemon.thaw()
    site.until(in_phase(site, "Recovered"))
    assert site.phases() == WHOLE
    assert len(site.incidents()) == 1
    assert spent(site) == (1, 0)
    assert second["spec"]["nodeName"] not in {pod["spec"]["nodeName"] for pod in site.pods()}


def test_a_fault_of_the_new_ranks_goes_on_with_the_incident_and_is_paid_for(site: World) -> None:
    running(site, **RESTARTS, verifyAfter="10m")
    site.kwok.end_pod(site.space, names(site.pods())[0], 1)
    site.until(in_phase(site, "Verifying"))
    site.kwok.end_pod(site.space, names(site.pods())[1], 1)
    site.until(lambda: site.phases().count("Verifying") == 2)
    site.protect(**RESTARTS)  # for as long as a test waits
    site.until(in_phase(site, "Recovered"))
    assert site.phases() == [*WHOLE[:4], *WHOLE]
    incident = site.incident()
    assert "FaultAgain" in [step["reason"] for step in incident["steps"]]
    assert spent(site) == (2, 0)
    assert sorted(stages(site)) == ["recovered", "started"]


def test_an_api_server_that_does_not_answer_fails_neither_a_stop_nor_a_start(site: World) -> None:
    running(site)
    site.kwok.daemon.freeze()
    vanishes(site, site.pods()[0])
    site.until(in_phase(site, "Stopping"))
    no_answers(site)
    few = quota(site, 1)
    site.kwok.daemon.thaw()
    site.until(in_phase(site, "Starting"))
    site.until(lambda: len(site.pods()) == 1)
    no_answers(site)
    site.admin.delete(few)
    site.until(in_phase(site, "Recovered"))
    assert site.phases() == WHOLE
    assert spent(site) == (1, 0)


def test_a_first_start_is_gone_on_with_by_the_next_leader_before_and_after_it_was_ordered(
    site: World,
) -> None:
    site.protect(**RESTARTS)
    blockers = [site.block(f"blocker-{number}") for number in range(2)]
    path = site.create(suspended(2))
    site.until(lambda: site.incidents() and site.incidents()[-1].get("reason") == "NoRoom")
    site.leader.kill()
    site.kwok.daemon.freeze()
    for blocker in blockers:
        site.admin.delete(blocker, gracePeriodSeconds=0)
    site.lead()
    site.until(lambda: site.admin.get(path)["spec"]["suspend"] is False)
    site.until(lambda: site.phases()[-1:] == ["Starting"] and len(site.pods("Pending")) == 2)
    site.leader.kill()
    ordered = {pod["metadata"]["uid"] for pod in site.pods("Pending")}
    site.kwok.daemon.thaw()
    site.lead()
    site.until(in_phase(site, "Recovered"))
    incident = site.incident()
    assert (incident["reason"], stages(site)) == ("Started", [])
    assert {pod["metadata"]["uid"] for pod in site.pods()} == ordered, "it was not started twice"
    assert (spent(site), site.record()["incarnation"]) == ((0, 0), 1)


def test_a_leader_killed_between_save_and_suspend_is_followed_by_one_that_stops_what_was_saved(
    site: World,
) -> None:
    path = running(site, 1, **RESUMES)
    (before,) = site.pods()
    held = threading.Event()
    site.proxy.faults.append(Fault(method="PATCH", path="/jobs/train", hold=True, when_come=held.set))
    failing = lost_gpu(
        check="gpus", event=False, severity=Severity.DEGRADED
    )  # moved, and nothing is isolated
    site.find(before["spec"]["nodeName"], failing)
    assert held.wait(120.0)
    assert site.phases() == ["Prechecking", "Saving", "Stopping"]
    site.leader.kill()
    assert not site.admin.get(path)["spec"].get("suspend", False)
    site.proxy.faults.clear()
    site.lead()
    site.until(in_phase(site, "Recovered"))
    assert site.phases() == ["Prechecking", "Saving", *WHOLE[:1], *WHOLE[2:]]
    incident = site.incident()
    assert "saved checkpoint" in incident["save"]["provedBy"]
    assert site.pods()[0]["spec"]["nodeName"] != before["spec"]["nodeName"]
    assert spent(site) == (1, 0)
    site.mend(before["spec"]["nodeName"])


def test_a_start_that_was_ordered_is_gone_on_with_by_the_next_leader(site: World) -> None:
    """Pods that failed before it are none of its ranks: their kind leaves them for as long as the job is there. The new
    ones are not made yet, and there is no room for a start any more."""
    running(site)
    before = {pod["metadata"]["uid"] for pod in site.pods()}
    few = quota(site, 0)
    for name in names(site.pods()):
        site.kwok.end_pod(site.space, name, 1)
    site.until(in_phase(site, "Starting"))

    nodes = [node["metadata"]["name"] for node in site.admin.items("/api/v1/nodes")]

    def waited() -> set[str]:
        """The leaders that said what the start waits for."""
        found = site.admin.items(f"/api/v1/namespaces/{site.space}/events")
        return {one["reportingInstance"] for one in found if one["reason"] == "StartWaits"}

    site.until(lambda: len(waited()) == 1)
    site.leader.kill()
    for node in nodes:
        cordon(site, node)
    site.lead()
    site.until(lambda: len(waited()) == 2)
    for node in nodes:
        cordon(site, node, on=False)
    site.admin.delete(few)
    site.until(in_phase(site, "Recovered"))
    assert site.phases() == WHOLE
    assert not before & {pod["metadata"]["uid"] for pod in site.pods()}
    assert (spent(site), site.record()["incarnation"]) == ((1, 0), 2)


def test_a_recovery_whose_ranks_do_not_all_come_up_is_stopped_again_and_tried_again_at_no_cost(
    site: World,
) -> None:
    path = running(site, **RESTARTS, startTimeout="5s")
    before = {pod["metadata"]["uid"] for pod in site.pods()}
    few = quota(site, 1)
    site.kwok.end_pod(site.space, names(site.pods())[0], 1)
    site.until(lambda: "StartTimeout" in reasons(site))
    site.until(lambda: site.admin.get(path)["spec"]["suspend"] is True and not site.pods())
    site.until(lambda: "StartsAgain" in reasons(site))
    assert (site.record()["state"], spent(site)) == ("queued", (1, 0))
    site.protect(**RESTARTS, startTimeout="10m")
    site.admin.delete(few)
    site.until(in_phase(site, "Recovered"))
    late = reasons(site).count("StartTimeout")
    assert site.phases() == [*(WHOLE[:3] * (late + 1)), *WHOLE[3:]]
    assert (spent(site), site.record()["incarnation"]) == ((1, 0), 2 + late)
    assert stages(site) == ["started", "recovered"]
    assert len(site.incidents()) == 1
    pods = site.pods()
    assert len(pods) == 2
    assert not before & {pod["metadata"]["uid"] for pod in pods}


def test_a_recovery_whose_starts_never_come_up_is_given_up_after_the_last_of_its_tries(site: World) -> None:
    """Those between the first and the last, each after a longer pause, have been while an earlier leader led."""
    path = running(site, **RESTARTS, startTimeout="5s", owner={"emails": [f"{site.space}@example.com"]})
    quota(site, 1)
    site.kwok.end_pod(site.space, names(site.pods())[0], 1)
    site.until(lambda: "StartsAgain" in reasons(site))
    site.leader.kill()
    site.until(lambda: site.incident().get("failedStarts") == 1)
    records = f"{CUSTOM}/namespaces/{site.space}/protectedjobs"
    (record,) = site.admin.items(records)
    many = {"spec": {"incident": {"failedStarts": START_TRIES - 1}}}
    site.admin.patch(f"{records}/{record['metadata']['name']}", many)
    site.lead()
    site.until(site.state("error"))
    site.until(in_phase(site, "Failed"))
    incident = site.incident()
    why = f"Given up: {START_TRIES} starts in a row did not come up."
    assert (incident["reason"], incident["sentence"]) == ("StartFailed", why)
    assert (site.record()["reason"], why in site.record()["sentence"]) == ("StartFailed", True)
    assert incident["failedStarts"] == START_TRIES
    assert reasons(site).count("StartTimeout") == 2
    assert (spent(site), stages(site)) == ((1, 0), ["started", "gave-up"])
    assert (site.admin.get(path)["spec"]["suspend"], site.pods()) == (True, [])


def test_a_start_is_decided_again_where_the_job_was_changed_since_its_room_was_found(site: World) -> None:
    """Its owner edits it between the reading in which there was room and the write that starts it."""
    path = running(site)

    def edit() -> None:
        site.admin.patch(path, {"metadata": {"labels": {"edited": "meanwhile"}}})

    start = Fault(method="PATCH", path=path, says=b'"suspend":false', when_come=edit)
    site.proxy.faults.append(start)
    site.kwok.end_pod(site.space, names(site.pods())[0], 1)
    site.until(in_phase(site, "Recovered"))
    assert start.times == 0
    assert site.admin.get(path)["metadata"]["labels"]["edited"] == "meanwhile"
    assert site.phases() == WHOLE
    assert (spent(site), site.record()["incarnation"]) == ((1, 0), 2)


def test_a_rank_that_was_lost_and_replaced_while_nobody_led_is_lost_for_the_next_leader_too(
    site: World,
) -> None:
    running(site)
    site.until(lambda: len(site.record().get("placed", {}).get("ranks", ())) == 2)
    site.leader.kill()
    first, _ = names(site.pods())
    site.kwok.end_pod(site.space, first, 1)
    site.until(lambda: len(site.pods()) == 2 and first not in names(site.pods()))
    site.lead()
    site.until(in_phase(site, "Recovered"))
    assert site.phases() == WHOLE
    incident = site.incident()
    assert "exit code 1" in incident["verdict"]["sentence"]
    assert (spent(site), site.record()["incarnation"]) == ((1, 0), 2)


def test_ranks_that_run_though_their_job_was_told_to_stop_were_not_started_again_by_its_kind(
    site: World,
) -> None:
    """A lost rank was replaced already; the answer to the stop is lost, and nobody acts on it for a while."""
    path = running(site)
    site.until(lambda: len(site.record().get("placed", {}).get("ranks", ())) == 2)
    manager = site.plane.controller_manager
    assert manager is not None
    told: list[str] = []

    def weather(method: str, asked: str) -> Fault | None:
        if f"/namespaces/{site.space}/" not in asked or "sentinel.dev" in asked or method == "WATCH":
            return None
        if told:
            return Fault(answer=503)
        if method == "PATCH" and asked.startswith(path):
            told.append(asked)
            manager.freeze()
            return Fault(lose_reply=True)
        return None

    site.leader.kill()
    first, _ = names(site.pods())
    site.kwok.end_pod(site.space, first, 1)
    site.until(lambda: len(site.pods()) == 2 and first not in names(site.pods()))
    site.proxy.weather = weather
    try:
        site.lead()
        site.until(lambda: site.admin.get(path)["spec"]["suspend"] and "StopWaits" in reasons(site))
        site.proxy.weather = lambda method, path: None
        looked = len(site.proxy.seen)
        pod = f"/api/v1/namespaces/{site.space}/pods/{names(site.pods())[0]}"
        site.admin.patch(pod, {"metadata": {"annotations": {"touched": "now"}}})
        site.until(lambda: any(seen.startswith(f"GET {path}") for seen in site.proxy.seen[looked:]))
    finally:
        site.proxy.weather = lambda method, path: None
        manager.thaw()
    site.until(in_phase(site, "Recovered"))
    site.incident()
    assert "RestartedByItsKind" not in reasons(site)
    assert (spent(site), site.record()["incarnation"]) == ((1, 0), 2)


def led_by_the_first(count: int) -> "Object":
    """A job that has succeeded when its first rank has, as its kind says."""
    job = gang(count)
    job["spec"]["successPolicy"] = {"rules": [{"succeededIndexes": "0"}]}
    return job


@pytest.mark.parametrize("again", [True, False], ids=["another-has-its-name", "none-has-its-name"])
def test_a_recovery_of_a_job_that_is_deleted_while_nobody_leads_is_over_and_no_others(
    site: World, again: bool
) -> None:
    path = running(site)
    first, _ = site.pods()
    blocker = site.block()
    cordon(site, first["spec"]["nodeName"])
    vanishes(site, first)
    site.until(lambda: site.incidents() and site.incidents()[-1].get("reason") == "NoRoom")
    site.leader.kill()
    site.admin.delete(path, propagationPolicy="Background")
    site.until(lambda: site.found(path) is None and not site.pods())
    site.admin.delete(blocker, gracePeriodSeconds=0)
    made = site.create(gang(1)) if again else ""
    site.lead()
    site.until(in_phase(site, "Cancelled"))
    incident = site.incident()
    assert incident["reason"] == "JobDeleted"
    assert stages(site) == ["started"] or not stages(site)
    if not again:
        site.until(site.state("stopped"))
        return
    site.until(site.state("running"))
    (pod,) = site.pods()
    assert not site.admin.get(made)["spec"].get("suspend", False)
    assert spent(site) == (0, 0)
    site.kwok.end_pod(site.space, pod["metadata"]["name"], 1)
    site.until(lambda: [one["phase"] for one in site.incidents()] == ["Cancelled", "Recovered"])
    assert spent(site) == (1, 0)


def test_ranks_that_their_kind_ends_since_the_job_has_succeeded_are_no_loss(site: World) -> None:
    site.protect(**RESTARTS)
    site.create(led_by_the_first(2))
    site.until(lambda: site.record().get("state") == "running" and len(site.pods()) == 2)
    site.kwok.end_pod(site.space, names(site.pods())[0], 0)
    site.until(site.state("succeeded", "error"))
    assert (site.record()["state"], site.incidents()) == ("succeeded", [])


def ends_unheard(site: World) -> tuple[str, Fault]:
    """A job that has succeeded, as the Job controller does it: it deletes the other pods first and writes afterwards
    why. What is read of the job is what it was before, until the fault is taken away. Its path."""
    site.protect(**RESTARTS)
    path = site.create(led_by_the_first(2))
    site.until(lambda: site.record().get("state") == "running" and len(site.pods()) == 2)
    body = json.dumps(site.admin.get(path))
    before = Fault(method="GET", path=path, answer=200, body=body, times=1 << 30)
    site.proxy.faults.append(before)
    site.kwok.end_pod(site.space, names(site.pods())[0], 0)
    site.until(lambda: is_true(site.admin.get(path), "Complete"))
    return path, before


def test_a_rank_taken_away_before_its_kind_says_that_the_job_has_succeeded_is_no_loss(site: World) -> None:
    path, before = ends_unheard(site)
    looked = threading.Event()
    before.when_come = looked.set
    site.admin.patch(path, {"spec": {"ttlSecondsAfterFinished": 3600}})
    assert looked.wait(120.0)
    before.times = 0
    site.admin.patch(path, {"spec": {"ttlSecondsAfterFinished": 7200}})
    site.until(site.state("succeeded", "error"))
    assert (site.record()["state"], site.incidents()) == ("succeeded", [])


def test_a_job_that_has_succeeded_is_never_given_up_however_late_that_is_heard(site: World) -> None:
    _, before = ends_unheard(site)
    site.until(lambda: bool(site.incidents()))
    before.times = 0
    site.until(lambda: site.state("succeeded", "error")() and site.phases()[-1] in ("Cancelled", "Failed"))
    assert (site.record()["state"], site.incident()["reason"]) == ("succeeded", "JobFinished")
    assert "gave-up" not in stages(site)


def test_a_rank_that_ends_in_error_while_its_job_succeeds_gives_up_no_job(site: World) -> None:
    site.protect(**RESTARTS)
    path = site.create(led_by_the_first(2))
    site.until(lambda: site.record().get("state") == "running" and len(site.pods()) == 2)
    first, second = names(site.pods())
    held = threading.Event()
    site.proxy.faults.append(Fault(method="PATCH", path="/jobs/train", hold=True, when_come=held.set))
    site.kwok.end_pod(site.space, second, 1)
    assert held.wait(120.0)
    assert site.phases() == ["Stopping"]
    site.kwok.end_pod(site.space, first, 0)
    site.until(lambda: site.state("succeeded", "error")() and site.phases()[-1] in ("Cancelled", "Failed"))
    assert (site.record()["state"], site.incident()["reason"]) == ("succeeded", "JobFinished")
    assert "has succeeded (Complete" in site.record()["sentence"]
    assert (stages(site), spent(site)) == ([], (0, 0))
    assert not site.admin.get(path)["spec"].get("suspend", False)


def test_a_pod_that_its_kind_replaced_before_anybody_looked_is_a_lost_rank_of_all(site: World) -> None:
    running(site)
    site.until(lambda: len(site.record().get("placed", {}).get("ranks", ())) == 2)
    before = {pod["metadata"]["uid"] for pod in site.pods()}
    site.leader.kill()
    vanishes(site, site.pods()[0])
    site.until(lambda: len(site.pods()) == 2 and {pod["metadata"]["uid"] for pod in site.pods()} != before)
    site.lead()
    site.until(in_phase(site, "Recovered"))
    assert site.phases() == WHOLE
    assert not before & {pod["metadata"]["uid"] for pod in site.pods()}
    assert spent(site) == (1, 0)


def test_a_record_that_cannot_be_claimed_keeps_a_new_leader_from_no_other_job_and_is_told(
    site: World,
) -> None:
    running(site, 1, **RESTARTS)
    first = site.space
    site.space = site.plane.namespace()
    running(site, 1, **RESTARTS)
    site.leader.kill()
    behind = Fault(method="PATCH", path=f"/{first}/protectedjobs/", times=1 << 30, answer=503)
    site.proxy.faults.append(behind)
    site.lead()
    site.kwok.end_pod(site.space, names(site.pods())[0], 1)
    site.until(in_phase(site, "Recovered"))
    site.close()
    site.space = first
    lost = site.pods()[0]["metadata"]
    site.kwok.end_pod(first, lost["name"], 1)
    told = f"nothing is decided about {first}/job.batch/train: an earlier leader may still write its record: PATCH"
    site.until(lambda: f"in trouble for 20 s: {told}" in site.leader.err)
    assert site.incidents() == []
    behind.times = 0
    site.until(in_phase(site, "Recovered"))
    site.until(lambda: re.search(rf"over after \d+ s: {re.escape(told)}", site.leader.err))
    assert Page(site.leader).get("/readyz") == (200, "ok\n")


def test_a_job_that_cannot_leave_a_bad_node_says_so_and_leaves_it_when_there_is_room(site: World) -> None:
    running(site, 1, **RESUMES)
    (before,) = site.pods()
    bad = before["spec"]["nodeName"]
    blockers = [site.block(f"blocker-{number}") for number in range(2)]
    site.find(bad, lost_gpu(check="gpus", event=False, severity=Severity.DEGRADED))
    site.until(in_phase(site, "KeptRunning"))
    why = site.record()["sentence"]
    assert why.startswith("No room for 1 of 1 pods on 3 nodes")
    assert "It is tried again, in 20s at the earliest, when there is room and the cause still stands." in why
    assert (site.record()["state"], stages(site)) == ("running", ["notice"])

    freed = site.admin.get(blockers[0])["spec"]["nodeName"]
    site.admin.delete(blockers[0], gracePeriodSeconds=0)
    site.until(in_phase(site, "Recovered"))
    refused, moved = site.incidents()
    assert (refused["phase"], moved["refusals"]) == ("KeptRunning", 1)
    assert site.phases() == ["Prechecking", "Saving", *WHOLE[:1], *WHOLE[2:]]
    assert "saved checkpoint" in moved["save"]["provedBy"]
    assert [pod["spec"]["nodeName"] for pod in site.pods()] == [freed]
    assert (spent(site), stages(site)) == ((1, 0), ["started", "recovered"])
    site.mend(bad)


def test_a_recovery_goes_by_the_policy_that_is_in_force_and_is_ended_without_any(site: World) -> None:
    running(site)
    first, _ = site.pods()
    blocker = site.block()
    cordon(site, first["spec"]["nodeName"])
    vanishes(site, first)
    site.until(lambda: site.incidents() and site.incidents()[-1].get("reason") == "NoRoom")
    name = site.record()["policy"]["name"]

    newer = policy(site.space, restart={"maxRestarts": 7})
    newer["metadata"]["name"] = "newer"
    site.admin.apply([newer])
    site.until(lambda: conflicted(site, "newer").get("status") == "True")
    assert "The older policy all stays in force for Job" in conflicted(site, "newer")["message"]
    assert conflicted(site, "all")["status"] == "False"
    assert site.record()["policy"]["name"] == name == "all"

    site.admin.delete(f"{CUSTOM}/namespaces/{site.space}/jobpolicies/all")
    site.until(lambda: site.record()["policy"]["name"] == "newer")
    site.until(lambda: conflicted(site, "newer")["status"] == "False")
    assert site.incidents()[-1]["phase"] == "Prechecking"

    site.admin.delete(f"{CUSTOM}/namespaces/{site.space}/jobpolicies/newer")
    site.admin.delete(blocker, gracePeriodSeconds=0)
    site.until(in_phase(site, "Recovered"))
    assert site.phases() == [*WHOLE[:2], *WHOLE[1:]], "the reason why it waits is a line of the story"
    assert spent(site) == (1, 0)
    site.finish()
    path = f"/apis/batch/v1/namespaces/{site.space}/jobs/train"
    site.until(lambda: site.admin.get(path)["status"].get("succeeded") == 2)
    assert site.record()["state"] == "running", "let go: nothing is written of it any more"


def conflicted(site: JobSite, name: str) -> "Object":
    """The condition of this policy; {} before it has one."""
    found = site.admin.get(f"{CUSTOM}/namespaces/{site.space}/jobpolicies/{name}")
    told = found.get("status", {}).get("conditions", [])
    return next((one for one in told if one["type"] == "Conflicted"), {})


def test_a_job_that_others_preempt_pays_nothing_and_says_who_took_its_place(site: World) -> None:
    site.admin.apply([priority("low", 100), priority("high", 1000)])
    job = gang(1)
    job["spec"]["template"]["spec"]["priorityClassName"] = "low"
    site.protect(**RESTARTS)
    site.create(job)
    site.until(lambda: site.record().get("state") == "running" and len(site.pods()) == 1)
    blockers = [site.block(f"high-{number}", priorityClassName="high") for number in range(3)]
    site.until(lambda: site.incidents() and site.incidents()[-1].get("reason") == "NoRoom")
    incident = site.incident()
    verdict = incident["verdict"]
    assert (verdict["cause"], verdict["failure"], verdict["budget"]) == (
        "preemption",
        "pod-preempted",
        "free",
    )
    assert any(f"preempted by pod {site.space}/high-" in line for line in verdict["evidence"]), verdict
    for blocker in blockers:
        site.admin.delete(blocker, gracePeriodSeconds=0)
    site.until(in_phase(site, "Recovered"))
    assert spent(site) == (0, 1)


def priority(name: str, value: int) -> "Object":
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
    }
