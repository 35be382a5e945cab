"""Jobs whose size or first start is left to Sentinel: what it does where room is short, and when it is back."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.box import Box
from tests.kubernetes.conftest import PAUSE
from tests.kubernetes.jobs_site import CHECKPOINT, CUSTOM, Agents, JobSite
from tests.kubernetes.test_leading_jobs import end, gang, kwok, led, names, paused, plane

if TYPE_CHECKING:
    from tests.rig.api import Object
    from tests.rig.control_plane import ControlPlane
    from tests.rig.kwok import Kwok

__all__ = ["kwok", "plane"]


def elastic(least: int, **more: Any) -> dict[str, Any]:
    resume = {"maxResumes": 5, "gracefulStop": "1s", "checkpoint": CHECKPOINT}
    grows = {"minNodes": least, "growAfter": "1s"}
    return {"resume": resume, "elastic": grows, "startTimeout": "15s", **more}


@pytest.fixture(scope="module")
def world(plane: "ControlPlane", kwok: "Kwok", tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobSite]:
    """One controller and its agents for all tests of the file."""
    folder = tmp_path_factory.mktemp("world")
    box = Box(folder / "box")
    made = JobSite(plane, kwok, box, folder)
    controller = led(made)
    agents = Agents(made, controller)
    yield made
    end(controller)
    agents.close()
    box.close()


@pytest.fixture
def site(world: JobSite) -> Iterator[JobSite]:
    """In a namespace of its own."""
    world.space = world.plane.namespace()
    yield world
    world.close()


def suspended(count: int) -> "Object":
    job = gang(count)
    job["spec"]["suspend"] = True
    job["metadata"]["annotations"] = {"sentinel.dev/precheck": "true"}
    return job


def quota(site: JobSite, pods: int) -> str:
    """The estimate of room knows nothing of it; its path."""
    made = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "few", "namespace": site.space},
        "spec": {"hard": {"pods": str(pods)}},
    }
    site.admin.create(made)
    path = site.admin.path_of(made)
    site.until(lambda: site.admin.get(path).get("status", {}).get("hard"))
    return path


def cordon(site: JobSite, node: str, on: bool = True) -> None:
    site.admin.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": on or None}})


def loses(site: JobSite, node: str) -> None:
    """The node takes no pods any more, and the one there is deleted: the Job's own back-off is for those that fail."""
    cordon(site, node)
    (name,) = [pod["metadata"]["name"] for pod in site.pods() if pod["spec"]["nodeName"] == node]
    site.admin.delete(f"/api/v1/namespaces/{site.space}/pods/{name}", gracePeriodSeconds=0)


def sizes(site: JobSite) -> tuple[int, int]:
    record = site.record()
    return record["size"], record["originalSize"]


def spent(site: JobSite) -> tuple[int, int]:
    """Restarts that cost something, and free ones."""
    record = site.record()
    return record.get("usedJob", 0) + record.get("usedInfrastructure", 0), record.get("usedFree", 0)


def events(site: JobSite, reason: str) -> list[str]:
    found = site.admin.items(f"/api/v1/namespaces/{site.space}/events")
    about = [one for one in found if one["involvedObject"]["kind"] == "Job"]
    return [one["message"] for one in about if one["reason"] == reason]


def test_a_job_comes_back_smaller_without_a_node_and_grows_behind_a_proved_save_with_it(
    site: JobSite,
) -> None:
    site.protect(**elastic(2))
    path = site.create(gang(3))
    site.until(site.state("running"))
    assert sizes(site) == (3, 3)

    node = site.pods()[0]["spec"]["nodeName"]
    loses(site, node)
    site.until(lambda: site.phases()[-1:] == ["Recovered"])
    assert sizes(site) == (2, 3)
    spec = site.admin.get(path)["spec"]
    assert (spec["parallelism"], spec["completions"]) == (2, 2)
    assert len(site.pods()) == 2

    cordon(site, node, on=False)
    site.until(lambda: len(site.incidents()) == 2 and site.phases()[-1:] == ["Recovered"])
    grown = site.incidents()[-1]
    assert [step["phase"] for step in grown["steps"]] == [
        "Prechecking", "Saving", "Stopping", "Starting", "Verifying", "Recovered",
    ]  # fmt: skip
    assert "saved checkpoint" in grown["save"]["provedBy"]
    assert grown["verdict"]["symptom"] == "resize"
    assert sizes(site) == (3, 3)
    assert len(site.pods()) == 3
    assert spent(site) == (1, 1), "the growth costs nothing"
    site.finish()
    site.until(site.state("succeeded"))


def test_a_job_that_was_created_suspended_is_started_when_there_is_room_and_only_once(site: JobSite) -> None:
    site.protect(restart={"maxRestarts": 2}, startTimeout="5s", precheck={"checks": ["gpu"]})
    blocker = site.block()
    path = site.create(suspended(3))
    site.until(lambda: site.incidents() and site.incidents()[-1].get("reason") == "NoRoom")
    assert site.record()["state"] == "queued"
    assert "No room for 1 of 3 pods on 3 nodes" in site.incidents()[-1]["sentence"]
    site.until(lambda: any("No room for 1 of 3 pods" in text for text in events(site, "NoRoom")))
    assert site.admin.get(path)["spec"]["suspend"] is True

    # What its people change meanwhile holds, and what does not come up is stopped again.
    few = quota(site, 2)  # with the blocker one of its own
    site.admin.patch(path, {"spec": {"parallelism": 2, "completions": 2}})
    site.until(lambda: "StartTimeout" in [step.get("reason") for step in site.incidents()[-1]["steps"]])
    site.until(lambda: site.admin.get(path)["spec"]["suspend"] is True and not site.pods())
    site.admin.delete(few)
    site.protect(restart={"maxRestarts": 2}, startTimeout="1m", precheck={"checks": ["gpu"]})
    site.until(lambda: site.phases()[-1:] == ["Recovered"])
    assert sizes(site) == (2, 2)
    incident = site.incident()
    assert (incident["phase"], incident["reason"]) == ("Recovered", "Started")
    assert not incident.get("mails")
    record = site.record()
    assert [record.get(name, 0) for name in ("usedJob", "usedInfrastructure", "usedFree")] == [0, 0, 0]
    notes = site.pods()[0]["metadata"].get("annotations", {})
    assert "sentinel.dev/resume" not in notes, "it does not resume anything"

    site.admin.patch(path, {"spec": {"suspend": True}})
    site.until(site.state("queued"))
    assert "not by Sentinel" in site.record()["sentence"]
    site.admin.patch(path, {"metadata": {"annotations": {"sentinel.dev/precheck": "true"}}})
    site.until(lambda: len(site.incidents()) == 2 and site.phases()[-1:] == ["Recovered"])
    site.admin.delete(blocker, gracePeriodSeconds=0)


def test_an_elastic_job_starts_smaller_and_falls_back_where_more_does_not_come_up(site: JobSite) -> None:
    site.protect(**elastic(1))
    blocker = site.block()
    paused(site)
    path = site.create(suspended(3))
    site.until(lambda: site.record().get("reason") == "HeldBack")
    assert "paused" in site.record()["sentence"]
    assert not site.incidents()
    site.admin.delete(PAUSE)
    site.until(lambda: site.phases()[-1:] == ["Recovered"])
    assert sizes(site) == (2, 3)
    assert len(site.pods()) == 2
    site.until(
        lambda: any(
            "room for 2 pods on 2 nodes; it wants 3" in text for text in events(site, "PrecheckPassed")
        )
    )

    # What the estimate of room cannot see keeps its third pod from coming up: it has its two again, and rest.
    few = quota(site, 2)
    site.protect(**elastic(1, startTimeout="5s"))
    site.admin.delete(blocker, gracePeriodSeconds=0)
    site.until(lambda: len(site.incidents()) == 2 and site.phases()[-1:] == ["Starting"])
    assert site.incidents()[-1]["size"] == 3
    site.until(lambda: "StartTimeout" in [step["reason"] for step in site.incidents()[-1]["steps"]])
    site.protect(**elastic(1))
    site.until(lambda: site.phases()[-1:] == ["Recovered"])
    assert sizes(site) == (2, 3)
    assert site.record()["growsAfterRunSeconds"] > 6 * 3600
    assert spent(site) == (0, 1)
    site.admin.delete(few)
    site.admin.delete(path, propagationPolicy="Background")
    site.until(lambda: not site.pods())


def test_of_a_job_that_others_start_the_pre_check_is_only_told(site: JobSite) -> None:
    site.protect(**elastic(1))
    blockers = [
        site.block(f"blocker-{number}") for number in range(3)
    ]  # none of its pods comes up before the look
    other = gang(3)
    site.create(other)
    site.until(lambda: any("No room for 3 of 3 pods" in text for text in events(site, "NoRoom")))
    limits = f"{CUSTOM}/namespaces/{site.space}/jobpolicies/all"

    def limited() -> "dict[str, str]":
        told = site.admin.get(limits)["status"]["conditions"]
        return next((one for one in told if one["type"] == "Limited"), {})

    site.until(lambda: limited().get("reason") == "PrecheckOnlyTells")
    assert "job was not created suspended" in limited()["message"]
    site.until(lambda: len(names(site.pods(phase="Pending"))) == 3)
    for blocker in blockers:
        site.admin.delete(blocker, gracePeriodSeconds=0)


def test_a_job_whose_pods_may_not_be_made_says_why(site: JobSite) -> None:
    site.protect(restart={"maxRestarts": 2})
    few = quota(site, 1)
    site.create(gang(2))
    site.until(lambda: "exceeded quota: few" in site.record().get("sentence", ""))
    record = site.record()
    assert (record["state"], record["reason"]) == ("queued", "NotUp")
    assert "Not all of its 2 pods run yet. Pods are missing, which cannot be made: pods" in record["sentence"]
    site.admin.delete(few)
