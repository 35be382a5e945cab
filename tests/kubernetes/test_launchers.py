"""A job's pods that are no ranks, on nodes of their own: launchers and parameter servers."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from sentinel.core.health import Component, Severity
from tests.e2e.box import Box
from tests.kubernetes.jobs_site import NODES, Agents
from tests.kubernetes.test_interrupted_recoveries import RESUMES, in_phase
from tests.kubernetes.test_job_faults import World, node_of, site
from tests.kubernetes.test_job_kinds_live import kubeflow_job
from tests.kubernetes.test_leading_jobs import end, kwok, led, plane
from tests.samples import lost_gpu

if TYPE_CHECKING:
    from tests.rig.api import Object
    from tests.rig.control_plane import ControlPlane
    from tests.rig.kwok import Kwok

__all__ = ["kwok", "plane", "site"]

pytestmark = pytest.mark.operators("training-operator")
OF_JOB = "training.kubeflow.org/job-name"


@pytest.fixture(scope="module")
def world(plane: "ControlPlane", kwok: "Kwok", tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    from tests.rig.operators.training_operator import TrainingOperator

    TrainingOperator(plane)
    folder = tmp_path_factory.mktemp("world")
    box = Box(folder / "box")
    made = World(plane, kwok, box, folder)
    made.settings = {"listen": "127.0.0.1:0"}
    made.controller = led(made)
    made.agents = Agents(made, made.controller)
    yield made
    end(made.controller)
    made.agents.close()
    box.close()


class Kubeflow:
    """A protected job of one worker and one pod that is no rank, on nodes of their own."""

    def __init__(self, site: World, kind: str, field: str, other: str) -> None:
        self.site, self.other = site, other
        job = kubeflow_job(kind, "Never")
        groups = job["spec"][field]
        job["spec"][field] = {name: groups[name] for name in (other, "Worker")}
        for name, group in job["spec"][field].items():
            spec = group["template"]["spec"]
            spec["nodeSelector"] = {"rig": NODES}
            spread = {"labelSelector": {"matchExpressions": [{"key": OF_JOB, "operator": "Exists"}]}}
            spread["topologyKey"] = "kubernetes.io/hostname"
            spec["affinity"] = {
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [spread]}
            }
            group["replicas"] = 1
            if name == "Worker":
                spec["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "8"}}
        site.protect(**RESUMES)
        self.path = site.create(job)
        site.until(site.state("running"))
        site.until(lambda: len(self.pods()) == 2)

    def pods(self) -> "dict[str, Object]":
        """By the name of their group, in lower case."""
        found = self.site.pods(labels=OF_JOB)
        return {pod["metadata"]["labels"]["training.kubeflow.org/replica-type"]: pod for pod in found}

    @property
    def beside(self) -> str:
        """The node of the pod that is no rank."""
        return node_of(self.pods()[self.other.lower()])

    def close(self) -> None:
        self.site.admin.delete(self.path, propagationPolicy="Background")
        self.site.until(lambda: not self.site.pods(labels=OF_JOB))


def test_a_node_on_which_only_a_launcher_runs_is_drained_of_its_job_too(site: World) -> None:
    job = Kubeflow(site, "MPIJob", "mpiReplicaSpecs", "Launcher")
    left, ranks = job.beside, node_of(job.pods()["worker"])
    order = {"metadata": {"annotations": {"sentinel.dev/drain": "a new switch"}}}
    site.admin.patch(f"/api/v1/nodes/{left}", order)
    site.until(in_phase(site, "Recovered"))
    incident = site.incident()
    assert (incident["kind"], incident["excluded"]) == ("chosen", [left])
    assert job.beside != left
    assert site.agents.signalled(ranks)
    assert not site.agents.signalled(left), "a launcher is not told to save"
    site.admin.patch(f"/api/v1/nodes/{left}", {"metadata": {"annotations": {"sentinel.dev/drain-off": ""}}})
    site.until(lambda: not site.taints(left))
    job.close()


def test_a_bad_gpu_beside_a_parameter_server_moves_nothing_and_a_host_that_goes_bad_does(site: World) -> None:
    job = Kubeflow(site, "TFJob", "tfReplicaSpecs", "PS")
    left = job.beside
    gpu = lost_gpu(check="gpus", event=False, severity=Severity.DEGRADED)
    site.agents.find(left, gpu)
    site.until_findings(site.controller, True)
    site.agents.find(
        left,
        lost_gpu(
            check="gpus",
            component=Component.SYSTEM,
            entity="host",
            code="mce",
            summary="Its memory has failed.",
            event=False,
            severity=Severity.DEGRADED,
        ),
    )
    site.until(in_phase(site, "Recovered"))
    incident = site.incident()
    assert (incident["kind"], incident["excluded"]) == ("chosen", [left])
    assert "mce" in incident["key"]
    assert "Its memory has failed" in incident["verdict"]["sentence"]
    assert job.beside != left
    job.close()
