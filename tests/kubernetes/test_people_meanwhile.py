"""What people do to a job's own object in the middle of its recovery: it is theirs, and holds."""

from collections.abc import Iterator
from typing import Any

import pytest

from sentinel.core.health import Severity
from tests.kubernetes.jobs_site import JobSite
from tests.kubernetes.test_interrupted_recoveries import (
    RESTARTS,
    RESUMES,
    World,
    in_phase,
    reasons,
    running,
    site,
    stages,
    vanishes,
    world,
)
from tests.kubernetes.test_leading_jobs import gang, kwok, names, plane, uids
from tests.kubernetes.test_sized_jobs import cordon, elastic, quota, sizes, spent, suspended
from tests.kubernetes.test_uninstall import defined
from tests.kubernetes.test_uninstalled_jobs import WORKLOADS
from tests.samples import lost_gpu

__all__ = ["kwok", "plane", "site", "world"]

MARK = "sentinel.dev/stopped"
SHORT_WAIT = {"precheck": {"wait": "20s"}}


def suspends(site: JobSite, path: str, on: bool) -> None:
    site.admin.patch(path, {"spec": {"suspend": on}})


def uncordon_all(site: JobSite) -> None:
    for node in site.admin.items("/api/v1/nodes", labelSelector="rig=train"):
        cordon(site, node["metadata"]["name"], on=False)


def waits_for_room(site: World, count: int = 2, **spec: Any) -> str:
    """A job of the last two nodes lost a rank and its node: Sentinel has stopped it, and looks for room; its path."""
    site.block()
    path = running(site, count, **(spec or RESTARTS))
    lost = site.pods()[0]
    cordon(site, lost["spec"]["nodeName"])
    vanishes(site, lost)
    site.until(lambda: site.incidents() and site.incidents()[-1].get("reason") == "NoRoom")
    assert site.admin.get(path)["spec"]["suspend"] is True
    return path


def test_a_job_that_a_person_resumes_while_it_waits_for_room_is_left_to_run_and_costs_nothing(
    site: World,
) -> None:
    path = waits_for_room(site, **RESTARTS, **SHORT_WAIT)
    suspends(site, path, False)
    site.until(in_phase(site, "Cancelled"))
    incident = site.incident()
    assert incident["reason"] == "ResumedByOthers"
    assert incident["sentence"].startswith("It was started by ")
    assert "while Sentinel's recovery of it waited" in incident["sentence"]
    assert (spent(site), stages(site)) == ((0, 0), ["started"])

    # There is room for one of its pods: it waits for the other like any job that its people started.
    site.until(lambda: "Not all of its 2 pods run yet" in site.record()["sentence"])
    assert (site.record()["state"], site.admin.get(path)["spec"]["suspend"]) == ("queued", False)
    uncordon_all(site)
    site.until(site.state("running"))
    assert site.record()["incarnation"] == 2
    assert len(site.incidents()) == 1

    # It is followed as ever: the next fault is a recovery of its own, at the usual cost.
    before = uids(site.pods())
    site.kwok.end_pod(site.space, names(site.pods())[0], 1)
    site.until(lambda: len(site.incidents()) == 2 and in_phase(site, "Recovered")())
    assert not before & uids(site.pods())
    assert spent(site) == (1, 0)


def stops(site: World, **spec: Any) -> tuple[str, set[str]]:
    """A job of two lost a rank: Sentinel has told it to stop, and its other pod still ends; its path, and the uids of
    its pods before."""
    path = running(site, **(spec or RESTARTS))
    before = uids(site.pods())
    site.kwok.daemon.freeze()
    vanishes(site, site.pods()[0])
    site.until(lambda: in_phase(site, "Stopping")() and site.admin.get(path)["spec"]["suspend"])
    site.until(lambda: ending(site) and ending(site) == there(site))
    return path, before


def there(site: JobSite, *, ending: bool = False) -> list[str]:
    """The names of its pods; `ending`: of those that were told to end."""
    found = site.admin.items(f"/api/v1/namespaces/{site.space}/pods", labelSelector="job-name")
    return sorted(names([pod for pod in found if not ending or "deletionTimestamp" in pod["metadata"]]))


def ending(site: JobSite) -> list[str]:
    return there(site, ending=True)


def test_a_job_that_a_person_resumes_while_its_ranks_stop_is_left_to_run_and_costs_nothing(
    site: World,
) -> None:
    path, before = stops(site)
    left = ending(site)
    suspends(site, path, False)
    site.until(in_phase(site, "Cancelled"))
    incident = site.incident()
    assert (incident["reason"], site.phases()) == ("ResumedByOthers", ["Stopping", "Cancelled"])
    assert incident["sentence"].startswith("It was started by ")
    assert "while Sentinel was stopping it. It is left to run." in incident["sentence"]
    assert incident["sentence"].endswith(f"Pods that still end: {', '.join(left)}.")
    assert ending(site) == left, "they are not waited for"
    site.kwok.daemon.thaw()
    site.until(site.state("running"))
    job = site.admin.get(path)
    assert (job["spec"]["suspend"], MARK in job["metadata"].get("annotations", {})) == (False, False)
    assert not before & uids(site.pods())
    assert (spent(site), stages(site), site.record()["incarnation"]) == ((0, 0), [], 2)

    # It is followed as ever: the next fault is a recovery of its own, at the usual cost.
    resumed = uids(site.pods())
    site.kwok.end_pod(site.space, names(site.pods())[0], 1)
    site.until(lambda: len(site.incidents()) == 2 and in_phase(site, "Recovered")())
    assert not resumed & uids(site.pods())
    assert spent(site) == (1, 0)


def test_a_job_that_a_person_resumes_while_it_stops_and_nobody_leads_is_not_stopped_by_the_next_leader(
    site: World,
) -> None:
    path, before = stops(site)
    site.leader.kill()
    suspends(site, path, False)
    generation = site.admin.get(path)["metadata"]["generation"]
    site.lead()
    site.until(in_phase(site, "Cancelled"))
    assert site.incident()["reason"] == "ResumedByOthers"
    site.kwok.daemon.thaw()
    site.until(site.state("running"))
    assert site.admin.get(path)["metadata"]["generation"] == generation, "it was not suspended in between"
    assert not before & uids(site.pods())
    assert spent(site) == (0, 0)


def test_a_move_that_a_person_ends_by_resuming_the_job_while_it_stops_is_over(site: World) -> None:
    path = running(site, 1, **RESUMES)
    (pod,) = site.pods()
    site.kwok.daemon.freeze()
    failing = lost_gpu(check="gpus", event=False, severity=Severity.DEGRADED)
    site.find(pod["spec"]["nodeName"], failing)
    site.until(lambda: in_phase(site, "Stopping")() and site.admin.get(path)["spec"]["suspend"])
    site.mend(pod["spec"]["nodeName"])
    suspends(site, path, False)
    site.until(in_phase(site, "Cancelled"))
    assert (site.incident()["kind"], site.incident()["reason"]) == ("chosen", "ResumedByOthers")
    site.kwok.daemon.thaw()
    site.until(site.state("running"))
    assert (len(site.incidents()), spent(site)) == (1, (0, 0))
    assert site.pods()[0]["metadata"]["uid"] != pod["metadata"]["uid"]


def test_who_suspends_a_job_again_that_he_had_resumed_is_known_to_have_done_so(site: World) -> None:
    """The mark of Sentinel's own stop is gone with the resume."""
    path = waits_for_room(site)
    suspends(site, path, False)
    site.until(in_phase(site, "Cancelled"))
    uncordon_all(site)
    site.until(site.state("running"))
    suspends(site, path, True)
    site.until(site.state("queued"))
    assert "not by Sentinel" in site.record()["sentence"]
    assert len(site.incidents()) == 1


def test_a_first_start_that_a_person_makes_himself_while_it_waits_is_over(site: World) -> None:
    site.protect(**RESTARTS)
    blockers = [site.block(f"blocker-{number}") for number in range(2)]
    path = site.create(suspended(2))
    site.until(lambda: site.incidents() and site.incidents()[-1].get("reason") == "NoRoom")
    suspends(site, path, False)
    site.until(in_phase(site, "Cancelled"))
    assert (site.incident()["reason"], stages(site)) == ("ResumedByOthers", [])
    for blocker in blockers:
        site.admin.delete(blocker, gracePeriodSeconds=0)
    site.until(site.state("running"))
    asked = site.admin.get(path)["metadata"]["annotations"]["sentinel.dev/precheck"]
    assert asked == "started", "who suspends it later starts it himself"


def scales(site: JobSite, path: str, count: int) -> None:
    site.admin.patch(path, {"spec": {"parallelism": count, "completions": count}})


def asks_for(site: JobSite, path: str) -> int:
    return int(site.admin.get(path)["spec"]["parallelism"])


def came_back_with(site: World, path: str, count: int) -> None:
    """At the cost of one restart, whatever was changed on the way."""
    site.until(in_phase(site, "Recovered"))
    site.until(lambda: sizes(site) == (count, count))
    assert (asks_for(site, path), len(site.pods()), len(site.incidents())) == (count, count, 1)
    assert (spent(site), sorted(stages(site))) == ((1, 0), ["recovered", "started"])
    site.finish()
    site.until(site.state("succeeded"))


def test_a_job_that_a_person_makes_smaller_while_it_waits_for_room_starts_where_that_fits(
    site: World,
) -> None:
    path = waits_for_room(site)
    scales(site, path, 1)
    came_back_with(site, path, 1)
    assert "Rescaled" in reasons(site)


def test_a_job_that_a_person_scales_while_its_ranks_stop_starts_with_that_size(site: World) -> None:
    path = running(site, **elastic(1))
    site.kwok.daemon.freeze()
    vanishes(site, site.pods()[0])
    site.until(lambda: in_phase(site, "Stopping")() and site.admin.get(path)["spec"]["suspend"])
    scales(site, path, 3)
    site.until(lambda: "Rescaled" in reasons(site))
    assert in_phase(site, "Stopping")()
    site.kwok.daemon.thaw()
    came_back_with(site, path, 3)


def test_a_job_that_a_person_scales_while_nobody_leads_starts_with_that_size(site: World) -> None:
    path = waits_for_room(site, **elastic(2))
    site.leader.kill()
    scales(site, path, 3)
    site.lead()
    site.until(lambda: "Rescaled" in reasons(site))
    site.protect(**elastic(3))  # else it may start with the two for which there is room first, and grow
    site.until(lambda: site.record()["policy"]["elastic"]["minNodes"] == 3)
    site.admin.delete(f"/api/v1/namespaces/{site.space}/pods/blocker", gracePeriodSeconds=0)
    uncordon_all(site)
    came_back_with(site, path, 3)


@pytest.mark.parametrize("count", [1, 3])
def test_a_job_that_a_person_scales_while_its_ranks_start_comes_up_with_that_size(
    site: World, count: int
) -> None:
    path = starts_in_part(site)
    scales(site, path, count)
    site.admin.delete(f"/api/v1/namespaces/{site.space}/resourcequotas/few")
    came_back_with(site, path, count)


def starts_in_part(site: World, **spec: Any) -> str:
    """Of a job of two that recovers one pod is up, and the other may not be made; its path."""
    path = running(site, **(spec or RESTARTS))
    site.kwok.daemon.freeze()
    vanishes(site, site.pods()[0])
    site.until(in_phase(site, "Stopping"))
    quota(site, 1)
    site.kwok.daemon.thaw()
    site.until(lambda: in_phase(site, "Starting")() and len(site.pods()) == 1)
    return path


def test_a_rank_that_is_lost_after_a_person_scaled_a_job_that_starts_is_a_fault_of_the_same_incident(
    site: World,
) -> None:
    path = starts_in_part(site, **RESTARTS, verifyAfter="10m")
    scales(site, path, 3)
    site.admin.delete(f"/api/v1/namespaces/{site.space}/resourcequotas/few")
    site.until(lambda: in_phase(site, "Verifying")() and sizes(site) == (3, 3))
    site.kwok.end_pod(site.space, names(site.pods())[2], 1)
    site.until(lambda: site.phases().count("Verifying") == 2)
    site.protect(**RESTARTS)
    site.until(in_phase(site, "Recovered"))
    assert "FaultAgain" in reasons(site)
    assert (len(site.incidents()), sizes(site), len(site.pods())) == (1, (3, 3), 3)
    assert spent(site) == (2, 0)


@pytest.fixture
def workloads(site: World) -> Iterator[str]:
    """Kueue is installed, and the test plays its controllers; the path of its Workloads in the namespace."""
    path = f"/apis/kueue.x-k8s.io/v1beta1/namespaces/{site.space}/workloads"
    defined(site.plane, WORKLOADS, path)
    yield path
    site.admin.delete(site.admin.path_of(WORKLOADS))
    site.until(lambda: not site.found("/apis/kueue.x-k8s.io"))


def in_queue(site: World, workloads: str) -> tuple[str, str]:
    """A job of two, as Kueue has let it in; its path, and that of its Workload."""
    site.protect(**RESTARTS)
    job = gang(2)
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "gpus"}
    job["spec"]["suspend"] = True
    path = site.create(job)
    uid = site.admin.get(path)["metadata"]["uid"]
    meta = {"name": "job-train", "namespace": site.space, "labels": {"kueue.x-k8s.io/job-uid": uid}}
    head = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Workload"}
    site.admin.create({**head, "metadata": meta, "spec": {"active": True, "queueName": "gpus"}})
    suspends(site, path, False)
    site.until(site.state("running"))
    return path, f"{workloads}/job-train"


def test_a_queued_job_that_a_person_switches_on_again_is_theirs_and_so_is_their_next_stop(
    site: World, workloads: str
) -> None:
    path, workload = in_queue(site, workloads)
    lost, other = site.pods()
    for node in site.admin.items("/api/v1/nodes", labelSelector="rig=train"):
        cordon(site, node["metadata"]["name"], on=node["metadata"]["name"] != other["spec"]["nodeName"])
    vanishes(site, lost)
    site.until(lambda: site.admin.get(workload)["spec"]["active"] is False)
    assert MARK in site.admin.get(workload)["metadata"]["annotations"]
    suspends(site, path, True)
    site.until(lambda: site.incidents()[-1].get("reason") == "NoRoom")
    site.admin.patch(workload, {"spec": {"active": True}})
    site.until(in_phase(site, "Cancelled"))
    incident = site.incident()
    assert incident["reason"] == "ResumedByOthers"
    assert (
        "while Sentinel's recovery of it waited. It waits for its turn in Kueue's queue gpus."
        in (incident["sentence"])
    )
    assert MARK not in site.admin.get(workload)["metadata"].get("annotations", {})

    uncordon_all(site)
    suspends(site, path, False)
    site.until(site.state("running"))
    site.admin.patch(workload, {"spec": {"active": False}})
    suspends(site, path, True)
    site.until(site.state("queued"))
    assert "not by Sentinel" in site.record()["sentence"]
    assert site.admin.get(workload)["spec"]["active"] is False
    assert (len(site.incidents()), spent(site)) == (1, (0, 0))


def test_a_queued_job_that_a_person_switches_on_again_while_its_ranks_stop_waits_for_its_turn(
    site: World, workloads: str
) -> None:
    path, workload = in_queue(site, workloads)
    site.kwok.daemon.freeze()
    vanishes(site, site.pods()[0])
    site.until(lambda: site.admin.get(workload)["spec"]["active"] is False)
    suspends(site, path, True)
    site.until(lambda: ending(site))
    site.admin.patch(workload, {"spec": {"active": True}})
    site.until(in_phase(site, "Cancelled"))
    incident = site.incident()
    assert (incident["reason"], site.phases()) == ("ResumedByOthers", ["Stopping", "Cancelled"])
    assert "It waits for its turn in Kueue's queue gpus." in incident["sentence"]
    assert site.admin.get(workload)["spec"]["active"] is True
    assert MARK not in site.admin.get(workload)["metadata"].get("annotations", {})
    site.kwok.daemon.thaw()
    site.until(lambda: not ending(site))
    suspends(site, path, False)
    site.until(site.state("running"))
    assert (len(site.incidents()), spent(site)) == (1, (0, 0))
