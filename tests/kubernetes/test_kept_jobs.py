"""Jobs that step and are left where they are, and what their owners are told."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.kubernetes.jobs_site import CUSTOM, NODES
from tests.kubernetes.light_agents import Ranks
from tests.kubernetes.test_interrupted_recoveries import RESUMES, in_phase, running, stages
from tests.kubernetes.test_job_faults import World, node_of, site
from tests.kubernetes.test_job_saves import goes_bad, world
from tests.kubernetes.test_leading_jobs import gang, kwok, plane
from tests.kubernetes.test_sized_jobs import spent

if TYPE_CHECKING:
    from tests.rig.api import Object

SLOW = {"performance": {"maxHardwareRatio": 0.8, "over": 4}}

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


def slow(site: World) -> None:
    """More iterations of the only rank, nearly all of whose time is the hardware's. Written until its agent follows the
    pod."""
    for pod in site.pods():
        site.agents.ranks(node_of(pod), Ranks(count=30, hardware_ms=900))


def told_slow(site: World, *phases: str) -> Callable[[], bool]:
    """Until its incidents are in these."""

    def look() -> bool:
        if not (found := [one["phase"] for one in site.incidents()][: len(phases)] == [*phases]):
            slow(site)
        return found

    return look


def test_a_job_that_is_slower_than_its_policy_asks_is_told_of_and_left_alone(site: World) -> None:
    running(site, 1, **RESUMES, **SLOW, hang={"after": "30m"})
    before = {pod["metadata"]["uid"] for pod in site.pods()}
    site.until(told_slow(site, "KeptRunning"))
    incident = site.incidents()[0]
    assert (incident["reason"], incident["verdict"]["symptom"]) == ("AlertOnly", "slow")
    assert "0.9" in incident["verdict"]["sentence"]
    assert {pod["metadata"]["uid"] for pod in site.pods()} == before
    assert (spent(site), stages(site)) == ((0, 0), ["notice"])


def test_a_slow_job_is_rescheduled_once_and_not_again_when_that_did_not_help(site: World) -> None:
    asked = {"performance": {**SLOW["performance"], "action": "RescheduleAndAlert"}}
    running(site, 1, **RESUMES, **asked, hang={"after": "30m"})
    before = {pod["metadata"]["uid"] for pod in site.pods()}
    site.until(told_slow(site, "Recovered"))
    moved = site.incidents()[0]
    assert (moved["kind"], moved["verdict"]["symptom"]) == ("chosen", "slow")
    assert moved["save"]["provedBy"]
    after = {pod["metadata"]["uid"] for pod in site.pods()}
    assert not before & after
    site.until(told_slow(site, "Recovered", "KeptRunning"))
    _, second = site.incidents()
    assert second["reason"] == "MoveDidNotHelp"
    assert "Not restarted: the last restart for its performance did not help." in second["sentence"]
    assert {pod["metadata"]["uid"] for pod in site.pods()} == after
    assert sum(spent(site)) == 1
    assert stages(site) == ["notice"]
