"""Saves on a cluster: those that a job's time asks for, and those that go wrong."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from sentinel.core.health import Severity
from tests.e2e.box import Box
from tests.kubernetes.jobs_site import CHECKPOINT, Agents
from tests.kubernetes.test_interrupted_recoveries import WHOLE, reasons, running, stages
from tests.kubernetes.test_job_faults import World, node_of, site
from tests.kubernetes.test_leading_jobs import end, kwok, led, plane
from tests.kubernetes.test_sized_jobs import spent
from tests.samples import lost_gpu

if TYPE_CHECKING:
    from tests.rig.api import Object
    from tests.rig.control_plane import ControlPlane
    from tests.rig.kwok import Kwok

__all__ = ["kwok", "plane", "site"]

MANY = {"perWindow": {"atLeast": 100, "share": 0}}
MOVED = ["Prechecking", "Saving", *WHOLE[:1], *WHOLE[2:]]


@pytest.fixture(scope="module")
def world(plane: "ControlPlane", kwok: "Kwok", tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One controller and its agents for all tests of the file, without a brake on stops."""
    folder = tmp_path_factory.mktemp("world")
    box = Box(folder / "box")
    made = World(plane, kwok, box, folder)
    made.settings = {"listen": "127.0.0.1:0", "fleet": {"stops": MANY, "poolStops": MANY}}
    made.controller = led(made)
    made.agents = Agents(made, made.controller)
    yield made
    end(made.controller)
    made.agents.close()
    box.close()


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
