"""Jobs that step and are left where they are, and what their owners are told."""

from typing import TYPE_CHECKING

import pytest

from tests.kubernetes.jobs_site import CUSTOM, NODES
from tests.kubernetes.test_interrupted_recoveries import RESUMES, in_phase, stages
from tests.kubernetes.test_job_faults import World, site
from tests.kubernetes.test_job_saves import goes_bad, world
from tests.kubernetes.test_leading_jobs import gang, kwok, plane

if TYPE_CHECKING:
    from tests.rig.api import Object

__all__ = ["kwok", "plane", "site", "world"]


@pytest.mark.parametrize(
    "pin",
    [{"nodeName": f"{NODES}-0"}, {"nodeSelector": {"kubernetes.io/hostname": f"{NODES}-0"}}],
    ids=["nodeName", "nodeSelector"],
)
def test_a_job_that_is_pinned_to_a_node_is_not_stopped_when_that_goes_bad_and_its_policy_says_so_before(
    site: World, pin: "Object"
) -> None:
    site.protect(**RESUMES)
    job = gang(1)
    job["spec"]["template"]["spec"] |= pin
    path = site.create(job)
    site.until(site.state("running"))
    limits = f"{CUSTOM}/namespaces/{site.space}/jobpolicies/all"

    def limited() -> "Object":
        told = site.admin.get(limits)["status"]["conditions"]
        return next((one for one in told if one["type"] == "Limited"), {})

    site.until(lambda: limited().get("reason") == "PinnedToNode")
    assert f"its pods can run on {NODES}-0 only" in limited()["message"]
    before = {pod["metadata"]["uid"] for pod in site.pods()}
    assert goes_bad(site) == f"{NODES}-0"
    site.until(in_phase(site, "KeptRunning"))
    assert site.incident()["reason"] == "PinnedToNode"
    assert site.incident()["sentence"].endswith(f"Not moved: its pods can run on {NODES}-0 only.")
    assert stages(site) == ["notice"]
    assert {pod["metadata"]["uid"] for pod in site.pods()} == before
    assert not site.admin.get(path)["spec"].get("suspend", False)
