"""What people do to a job's own object in the middle of its recovery: it is theirs, and holds."""

from typing import Any

from tests.kubernetes.jobs_site import JobSite
from tests.kubernetes.test_interrupted_recoveries import (
    RESTARTS,
    World,
    in_phase,
    running,
    site,
    stages,
    vanishes,
    world,
)
from tests.kubernetes.test_leading_jobs import kwok, names, plane, uids
from tests.kubernetes.test_sized_jobs import cordon, spent, suspended

__all__ = ["kwok", "plane", "site", "world"]

SHORT_WAIT = {"precheck": {"wait": "20s"}}


def suspends(site: JobSite, path: str, on: bool) -> None:
    site.admin.patch(path, {"spec": {"suspend": on}})


def waits_for_room(site: World, count: int = 2, **spec: Any) -> str:
    """A job of the last two nodes lost a rank and its node: Sentinel has stopped it, and looks for room; its path."""
    site.block()
    path = running(site, count, **RESTARTS, **spec)
    lost = site.pods()[0]
    cordon(site, lost["spec"]["nodeName"])
    vanishes(site, lost)
    site.until(lambda: site.incidents() and site.incidents()[-1].get("reason") == "NoRoom")
    assert site.admin.get(path)["spec"]["suspend"] is True
    return path


def test_a_job_that_a_person_resumes_while_it_waits_for_room_is_left_to_run_and_costs_nothing(
    site: World,
) -> None:
    path = waits_for_room(site, **SHORT_WAIT)
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
    for node in site.admin.items("/api/v1/nodes", labelSelector="rig=train"):
        cordon(site, node["metadata"]["name"], on=False)
    site.until(site.state("running"))
    assert site.record()["incarnation"] == 2
    assert len(site.incidents()) == 1

    # It is followed as ever: the next fault is a recovery of its own, at the usual cost.
    before = uids(site.pods())
    site.kwok.end_pod(site.space, names(site.pods())[0], 1)
    site.until(lambda: len(site.incidents()) == 2 and in_phase(site, "Recovered")())
    assert not before & uids(site.pods())
    assert spent(site) == (1, 0)


def test_who_suspends_a_job_again_that_he_had_resumed_is_known_to_have_done_so(site: World) -> None:
    """The mark of Sentinel's own stop is gone with the resume."""
    path = waits_for_room(site)
    suspends(site, path, False)
    site.until(in_phase(site, "Cancelled"))
    for node in site.admin.items("/api/v1/nodes", labelSelector="rig=train"):
        cordon(site, node["metadata"]["name"], on=False)
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
    suspends(site, path, True)
    site.until(site.state("queued"))
    assert len(site.incidents()) == 1, "who suspends it later starts it himself"
    assert "not by Sentinel" in site.record()["sentence"]
