"""Saves on a cluster: those that a job's time asks for, and those that go wrong."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from sentinel.core.health import Severity
from tests.kubernetes.jobs_site import CHECKPOINT, UNBRAKED
from tests.kubernetes.light_agents import Saves
from tests.kubernetes.test_interrupted_recoveries import WHOLE, in_phase, reasons, running, stages
from tests.kubernetes.test_job_faults import World, lasting, node_of, site
from tests.kubernetes.test_leading_jobs import kwok, plane
from tests.kubernetes.test_sized_jobs import spent
from tests.samples import lost_gpu

if TYPE_CHECKING:
    from tests.rig.api import Object
    from tests.rig.control_plane import ControlPlane
    from tests.rig.kwok import Kwok

__all__ = ["kwok", "plane", "site"]

MOVED = ["Prechecking", "Saving", *WHOLE[:1], *WHOLE[2:]]


@pytest.fixture(scope="module")
def world(plane: "ControlPlane", kwok: "Kwok", tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """For all tests of the file."""
    with lasting(plane, kwok, tmp_path_factory.mktemp("world"), UNBRAKED) as made:
        yield made


def saves(**checkpoint: Any) -> dict[str, Any]:
    """None: without that."""
    asked = {key: value for key, value in {**CHECKPOINT, **checkpoint}.items() if value is not None}
    return {"resume": {"maxResumes": 3, "gracefulStop": "1s", "checkpoint": asked}}


def goes_bad(site: World) -> str:
    """The node of the first pod, which a job with `resume` leaves."""
    node = node_of(site.pods()[0])
    site.agents.find(node, lost_gpu(check="gpus", event=False, severity=Severity.DEGRADED))
    return node


def saved(site: World) -> "Object":
    """Of the newest incident."""
    return site.incidents()[-1].get("save", {})  # type: ignore[no-any-return]


def test_a_job_whose_time_is_up_is_told_to_save_before_it_is_stopped(site: World) -> None:
    path = running(site, **saves(), maxDuration="3s")
    site.until(site.state("expired"))
    site.until(lambda: site.phases() == ["Saving", "Stopping", "Ended"])
    assert "saved checkpoint" in saved(site)["provedBy"]
    assert (site.record()["checkpoint"]["step"], saved(site)["ranks"]) == (7, [0, 1])
    site.until(lambda: not site.pods())
    assert site.admin.get(path)["spec"]["suspend"] is True
    assert (site.incident()["reason"], spent(site), stages(site)) == ("Expired", (0, 0), ["notice"])


def test_a_job_whose_time_is_up_is_stopped_though_its_save_never_ends(site: World) -> None:
    site.agents.never_save()
    running(site, **saves(timeout="2s"), maxDuration="3s")
    site.until(site.state("expired"))
    site.until(lambda: site.phases() == ["Saving", "Stopping", "Ended"])
    assert (saved(site).get("provedBy", ""), saved(site)["ranks"]) == ("", [0, 1])
    assert "SaveUnproved" in reasons(site)
    site.until(lambda: not site.pods())
    assert (spent(site), stages(site)) == ((0, 0), ["notice"])


def test_the_time_of_a_job_that_runs_is_what_its_policy_says_now(site: World) -> None:
    running(site, 1, **saves(), maxDuration="15s")
    began_s = time.time()
    site.protect(**saves(), maxDuration="1h")
    site.until(lambda: site.record()["policy"]["maxDurationSeconds"] == 3600.0)
    site.until(lambda: time.time() - began_s > 20.0)
    site.protect(**saves(), maxDuration="2h")
    site.until(lambda: site.record()["policy"]["maxDurationSeconds"] == 7200.0)
    assert (site.record()["state"], site.incidents()) == ("running", [])
    site.protect(**saves(), maxDuration="5s")
    site.until(site.state("expired"))
    site.until(lambda: site.phases() == ["Saving", "Stopping", "Ended"])
    assert "has run for its 5 s (maxDuration)" in site.incident()["sentence"]


def test_a_job_that_moves_is_kept_running_where_its_save_never_ends_and_says_so_once(site: World) -> None:
    site.agents.never_save()
    path = running(site, **saves(timeout="2s"))
    before = {pod["metadata"]["uid"] for pod in site.pods()}
    goes_bad(site)
    site.until(in_phase(site, "KeptRunning"))
    incident = site.incident()
    assert (incident["reason"], site.phases()) == ("SaveUnproved", ["Prechecking", "Saving", "KeptRunning"])
    assert incident["sentence"].startswith("The save was not proved within 2 s")
    assert (saved(site).get("provedBy", ""), saved(site)["ranks"]) == ("", [0, 1])
    assert (site.record()["state"], site.record().get("checkpoint")) == ("running", None)
    assert {pod["metadata"]["uid"] for pod in site.pods()} == before
    assert not site.admin.get(path)["spec"].get("suspend", False)
    assert (spent(site), sorted(stages(site))) == ((0, 0), ["notice", "started"])


def test_a_job_that_names_no_proof_moves_after_the_time_for_its_save_and_the_record_says_so(
    site: World,
) -> None:
    site.agents.never_save()
    running(site, 1, **saves(timeout="2s", proof=None))
    bad = goes_bad(site)
    site.until(in_phase(site, "Recovered"))
    assert site.phases() == MOVED
    assert any("nothing proved it" in step["sentence"] for step in site.incident()["steps"])
    assert (saved(site).get("provedBy", ""), saved(site)["ranks"]) == ("", [0])
    assert site.record().get("checkpoint") is None
    assert node_of(site.pods()[0]) != bad
    assert (spent(site), stages(site)) == ((1, 0), ["started", "recovered"])


KILLED_BY_SIGNAL = 138  # 128 + SIGUSR1, which a rank without a handler dies of
STORE = {"proof": {"fileAppears": "/ckpt/*.pt"}}
READ_ONLY = Saves(line="", refuses="nobody can look for /ckpt/*.pt: Read-only file system")


def test_a_job_whose_store_cannot_be_read_is_not_stopped_and_moves_once_its_save_is_there(
    site: World,
) -> None:
    site.agents.store(READ_ONLY)
    running(site, **saves(**STORE, timeout="10m"))
    before = {pod["metadata"]["uid"] for pod in site.pods()}
    bad = goes_bad(site)
    site.until(lambda: in_phase(site, "Saving")() and site.agents.signalled(bad))
    assert {pod["metadata"]["uid"] for pod in site.pods()} == before
    site.agents.store(Saves(line=""))
    site.until(site.agents.looked)
    assert {pod["metadata"]["uid"] for pod in site.pods()} == before, "its store is well, and shows no save"
    site.agents.store(Saves(line="", files={"/ckpt/9.pt": (4096, 1)}))
    site.until(in_phase(site, "Recovered"))
    assert saved(site)["provedBy"].startswith("/ckpt/9.pt (4096 bytes")
    assert bad not in {node_of(pod) for pod in site.pods()}


def test_a_job_whose_store_stays_full_is_kept_running_with_the_reason_and_leaves_for_the_next_fault_when_it_is_well(
    site: World,
) -> None:
    site.agents.store(READ_ONLY)
    path = running(site, **saves(**STORE, timeout="8s"))
    before = {pod["metadata"]["uid"] for pod in site.pods()}
    bad = goes_bad(site)
    site.until(in_phase(site, "KeptRunning"))
    incident = site.incident()
    assert incident["reason"] == "SaveUnproved"
    assert incident["sentence"].startswith(f"The save was not proved within 8 s: {READ_ONLY.refuses}")
    assert "notice" in stages(site)
    assert {pod["metadata"]["uid"] for pod in site.pods()} == before
    assert not site.admin.get(path)["spec"].get("suspend", False)
    site.agents.hush()
    site.agents.never_save()
    site.protect(**saves(**STORE, timeout="10m"))
    site.until(lambda: site.record()["policy"]["resume"]["checkpoint"]["timeoutSeconds"] == 600.0)
    worse = lost_gpu(check="gpus", code="XID 48", event=False, severity=Severity.DEGRADED)
    site.agents.find(bad, worse)
    site.until(lambda: in_phase(site, "Saving")() and site.agents.signalled(bad))
    site.agents.store(Saves(line="", files={"/ckpt/9.pt": (4096, 1)}))
    site.until(in_phase(site, "Recovered"))
    assert saved(site)["provedBy"].startswith("/ckpt/9.pt")


def test_a_job_whose_ranks_end_at_the_signal_to_save_has_not_succeeded(site: World) -> None:
    """Its kind says so, and starts it no more: a person is told."""
    site.agents.never_save()
    running(site)
    site.protect(**saves(timeout="10m"))
    site.until(lambda: site.record()["policy"].get("resume"))
    bad = goes_bad(site)
    site.until(lambda: in_phase(site, "Saving")() and site.agents.signalled(bad))
    site.finish()
    site.until(site.state("error", "succeeded"))
    assert site.record()["state"] == "error"
    site.until(in_phase(site, "Failed"))
    assert "ended by themselves after the signal" in str(site.incident()["steps"])
    assert "has succeeded" in site.incident()["sentence"]
    assert saved(site)["ranks"] == [0, 1]
    assert stages(site)[-1] == "gave-up"


def test_a_job_whose_ranks_end_after_a_save_that_was_given_up_has_not_succeeded(site: World) -> None:
    site.agents.never_save()
    asked = saves(timeout="2s")
    asked["resume"]["gracefulStop"] = "10m"  # for as long as this the signal may still end them
    running(site, **asked)
    goes_bad(site)
    site.until(in_phase(site, "KeptRunning"))
    site.finish()
    site.until(site.state("error", "succeeded"))
    assert site.record()["state"] == "error"
    site.until(in_phase(site, "Failed"))
    incident = site.incidents()[-1]
    assert incident["steps"][0]["reason"] == "EndedBySave"
    assert "after the save signal of" in incident["verdict"]["sentence"]
    assert stages(site) == ["started", "gave-up"]


def test_a_save_whose_signal_kills_a_rank_goes_on_as_the_recovery_of_a_lost_rank(site: World) -> None:
    site.agents.never_save()
    running(site, **saves(timeout="10m"))
    before = {pod["metadata"]["uid"] for pod in site.pods()}
    bad = goes_bad(site)
    site.until(lambda: in_phase(site, "Saving")() and site.agents.signalled(bad))
    site.kwok.end_pod(site.space, site.pods()[1]["metadata"]["name"], KILLED_BY_SIGNAL)
    site.until(in_phase(site, "Recovered"))
    assert site.phases() == ["Prechecking", "Saving", *WHOLE]
    incident = site.incident()
    assert incident["kind"] == "forced"
    assert "killed by signal 10 (exit code 138)" in str(incident["verdict"]["evidence"])
    assert saved(site) == {"skipped": "a rank was lost while the job saved"}
    assert (incident["verdict"]["budget"], spent(site), site.record()["incarnation"]) == ("job", (1, 0), 2)
    assert stages(site) == ["started", "recovered"]
    pods = site.pods()
    assert len(pods) == 2
    assert not before & {pod["metadata"]["uid"] for pod in pods}
    assert bad not in {node_of(pod) for pod in pods}, "what it was to leave is left"
