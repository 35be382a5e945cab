"""A node that came back, at a real API server: its job is told, less takes it out again, it is chosen last."""

from typing import TYPE_CHECKING

from msgspec import structs

from sentinel.core.health import Severity
from tests.kubernetes.jobs_site import NODES, Agents, JobSite
from tests.kubernetes.test_leading_jobs import end, gang, kwok, led, plane, site, uids
from tests.samples import XID_79, lost_gpu

if TYPE_CHECKING:
    from tests.rig.api import Object

__all__ = ["kwok", "plane", "site"]


def events(site: JobSite, job: str) -> "list[Object]":
    """What Sentinel tells of this job."""
    found = site.admin.items(f"/apis/events.k8s.io/v1/namespaces/{site.space}/events")
    return [one for one in found if one["regarding"].get("uid") == job]


def newest(site: JobSite, node: str) -> "Object":
    return max(site.records(node), key=lambda one: one["id"])


def healthy(site: JobSite, node: str) -> bool:
    conditions = {one["type"]: one["status"] for one in site.node(node)["status"]["conditions"]}
    return conditions.get("SentinelHealthy") == "True"


def gives_back(site: JobSite, agents: Agents, node: str) -> None:
    """It fails, and a person uncordons it when it is well."""
    agents.find(node, XID_79)
    site.until(lambda: site.isolated(node))
    agents.find(node, None)
    site.admin.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": False}})
    site.until(lambda: not site.taints(node) and healthy(site, node))


def test_a_job_that_starts_again_chooses_it_last_and_takes_it_where_there_is_no_other_room(
    site: JobSite,
) -> None:
    controller = led(site)
    agents = Agents(site, controller)
    found = site.admin.items("/api/v1/nodes", labelSelector=f"rig={NODES}")
    back, other, third = (node["metadata"]["name"] for node in found)
    gives_back(site, agents, back)
    blocker = site.block(nodeName=third)
    site.protect(restart={"maxRestarts": 3})
    path = site.create(gang(2))
    site.until(site.state("running"))
    assert on(site) == {back, other}, "its first start is not Sentinel's"

    site.admin.delete(blocker, gracePeriodSeconds=0)
    site.kwok.end_pod(site.space, site.pods()[0]["metadata"]["name"], 1)
    site.until(lambda: site.phases()[-1:] == ["Recovered"])
    assert on(site) == {other, third}
    assert site.admin.get(path)["metadata"]["annotations"]["sentinel.dev/chosen-last"] == back

    site.admin.patch(f"/api/v1/nodes/{third}", {"spec": {"unschedulable": True}})
    site.kwok.end_pod(site.space, site.pods()[0]["metadata"]["name"], 1)
    site.until(lambda: len(site.incidents()) == 2 and site.phases()[-1:] == ["Recovered"])
    assert on(site) == {back, other}
    site.finish()
    site.until(site.state("succeeded"))
    agents.close()
    end(controller)


def on(site: JobSite) -> set[str]:
    """The nodes of the job's pods."""
    return {pod["spec"]["nodeName"] for pod in site.pods()}


def test_a_job_is_told_of_a_node_on_probation_and_one_more_error_takes_it_out_for_a_person(
    site: JobSite,
) -> None:
    site.settings["fleet"] = {"probationSettle": "2s"}
    controller = led(site)
    agents = Agents(site, controller)
    node = site.admin.items("/api/v1/nodes", labelSelector=f"rig={NODES}")[1]["metadata"]["name"]
    gives_back(site, agents, node)
    site.protect(restart={"maxRestarts": 2})
    path = site.create(gang(3))  # one of eight GPUs on each node
    site.until(site.state("running"))
    job = site.admin.get(path)["metadata"]["uid"]
    site.until(lambda: [one for one in events(site, job) if one["reason"] == "NodesOnProbation"])
    (told,) = [one for one in events(site, job) if one["reason"] == "NodesOnProbation"]
    assert told["note"].startswith("On probation: ")
    assert f"{node} came back " in told["note"]
    assert "after XID 79 of " in told["note"]
    assert told["type"] == "Normal"

    before = uids(site.pods())

    error = lost_gpu(check="gpus", code="XID 94", summary="contained error", severity=Severity.WARNING)
    agents.find(node, error)
    site.until(lambda: site.isolated(node))
    record = newest(site, node)
    assert [line["reason"] for line in record["story"][:2]] == ["Settling", "OnProbation"]
    assert record["needs"]["repair"] == "person"
    assert "isolated again within 7 days of its return" in record["needs"]["sentence"]
    assert uids(site.pods()) == before

    release = {"metadata": {"annotations": {"sentinel.dev/release": "reseated"}}}
    site.admin.patch(f"/api/v1/nodes/{node}", release)
    site.until(lambda: not site.taints(node))
    assert newest(site, node)["baseline"]["findings"], "what stood is written down"
    agents.find(node, structs.replace(error, count=2))
    # It lived with the error until that occurred anew. The brake may hold it: three nodes an hour.
    site.until(lambda: newest(site, node)["id"] != record["id"])
    assert [one["code"] for one in newest(site, node)["findings"]] == ["XID 94"]

    agents.find(node, None)
    site.admin.patch(f"/api/v1/nodes/{node}", release)
    site.until(lambda: newest(site, node).get("ended") and not site.taints(node))
    site.finish()
    site.until(site.state("succeeded"))
    agents.close()
    end(controller)
