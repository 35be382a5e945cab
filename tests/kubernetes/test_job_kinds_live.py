"""Jobs under their real operators: the table's ranks, stops, starts, sizes and nodes to be kept off hold."""

from collections.abc import Iterator

import pytest

from tests.rig.api import Object
from tests.rig.control_plane import ControlPlane
from tests.rig.kwok import Kwok
from tests.rig.operators.flow import template
from tests.rig.operators.jobset import JobSet
from tests.rig.operators.living import Living
from tests.rig.operators.training_operator import TrainingOperator

NODES = "kinds"


@pytest.fixture(scope="module")
def kwok(control_plane: ControlPlane) -> Iterator[Kwok]:
    made = Kwok(control_plane)
    made.nodes(NODES, 3)
    yield made
    made.remove(NODES)
    made.rig.forget(made.daemon)


def moved(job: Living, kwok: Kwok, size: int, smaller: int | None = None) -> None:
    """Created, stopped, started off the node of its rank 0, smaller where its kind can; then it succeeds. Of the two
    nodes that are left it chooses one last, so the other gets all of its pods."""
    host = job.create(size)[0].node
    first, last = (name for name in (f"{NODES}-{number}" for number in range(3)) if name != host)
    job.stop()
    job.start(size=smaller, hosts=(host,), last=(last,))
    found = job.running(smaller or size)
    assert {one.node for one in found} == {first}
    for one in found:
        kwok.end_pod(job.space, one.name, 0)
    job.ended("succeeded")


def batch_job(indexed: bool) -> Object:
    pods = template(NODES)
    pods["spec"]["restartPolicy"] = "Never"
    mode = {"completionMode": "Indexed"} if indexed else {}
    spec = {"parallelism": 3, "completions": 3, "template": pods, **mode}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": spec}


def test_an_indexed_job(control_plane: ControlPlane, kwok: Kwok) -> None:
    moved(Living(control_plane.admin, control_plane.namespace(), batch_job(True)), kwok, 3, 2)


def test_a_job_without_indexes(control_plane: ControlPlane, kwok: Kwok) -> None:
    moved(Living(control_plane.admin, control_plane.namespace(), batch_job(False)), kwok, 3)


def job_set() -> Object:
    pods = batch_job(True)["spec"]
    parts = [
        {"name": "driver", "replicas": 1, "template": {"spec": {**pods, "parallelism": 1, "completions": 1}}},
        {"name": "worker", "replicas": 2, "template": {"spec": {**pods, "parallelism": 2, "completions": 2}}},
    ]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "train"},
        "spec": {"replicatedJobs": parts},
    }


def test_a_jobset(jobset: JobSet, kwok: Kwok) -> None:
    moved(Living(jobset.admin, jobset.plane.namespace(), job_set()), kwok, 4)


# Kind -> name of its container, field of its groups, groups, ranks, and ranks when it is one worker smaller.
KINDS: dict[str, tuple[str, str, dict[str, int], int, int]] = {
    "PyTorchJob": ("pytorch", "pytorchReplicaSpecs", {"Master": 1, "Worker": 2}, 3, 2),
    "TFJob": ("tensorflow", "tfReplicaSpecs", {"Chief": 1, "PS": 1, "Worker": 2}, 3, 2),
    "MPIJob": ("mpi", "mpiReplicaSpecs", {"Launcher": 1, "Worker": 2}, 2, 1),
    "XGBoostJob": ("xgboost", "xgbReplicaSpecs", {"Master": 1, "Worker": 2}, 3, 2),
    "PaddleJob": ("paddle", "paddleReplicaSpecs", {"Master": 1, "Worker": 2}, 3, 2),
}


def kubeflow_job(kind: str, on_loss: str) -> Object:
    """`on_loss`: the restart policy of its replicas."""
    container, field, groups, _, _ = KINDS[kind]
    replicas = {
        name: {"replicas": count, "restartPolicy": on_loss, "template": template(NODES, container)}
        for name, count in groups.items()
    }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": kind,
        "metadata": {"name": "train"},
        "spec": {field: replicas},
    }


@pytest.mark.parametrize("kind", KINDS)
def test_the_training_operators_kinds(training_operator: TrainingOperator, kwok: Kwok, kind: str) -> None:
    size, smaller = KINDS[kind][3:]
    made = kubeflow_job(kind, "Never")
    moved(Living(training_operator.admin, training_operator.plane.namespace(), made), kwok, size, smaller)
