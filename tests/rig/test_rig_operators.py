"""Under the real operators a job of each kind is created, runs, is suspended, resumes and succeeds."""

from collections.abc import Iterator

import pytest

from tests.gate.rights import needs_root
from tests.rig.api import ApiError, Object
from tests.rig.control_plane import ControlPlane
from tests.rig.kwok import Kwok
from tests.rig.node import Node
from tests.rig.operators.flow import Ender, Flow, condition, ends_on, patch, template
from tests.rig.operators.jobset import JobSet
from tests.rig.operators.training_operator import TrainingOperator


@pytest.fixture(scope="module")
def kwok(control_plane: ControlPlane) -> Iterator[Kwok]:
    made = Kwok(control_plane)
    made.nodes("operators", 2)
    yield made
    made.remove("operators")
    made.rig.forget(made.daemon)


@pytest.fixture(scope="module")
@needs_root
def node(control_plane: ControlPlane) -> Iterator[Node]:
    made = Node(control_plane, "operators-real", labels={"rig": "operators-real"})
    yield made
    made.remove()


def job_set(workers: int, nodes: str = "operators") -> Object:
    pods = template(nodes)
    pods["spec"]["restartPolicy"] = "Never"
    job = {"completionMode": "Indexed", "parallelism": workers, "completions": workers, "template": pods}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "train"},
        "spec": {"replicatedJobs": [{"name": "worker", "template": {"spec": job}}]},
    }


def go_jobset(jobset: JobSet, end: Ender, nodes: str) -> None:
    flow = Flow(jobset, end, job_set(3, nodes), 3, "jobset.sigs.k8s.io/jobset-name=train")
    flow.go(patch(suspend=True), patch(suspend=False), condition("Completed"))


def test_jobset(jobset: JobSet, kwok: Kwok) -> None:
    go_jobset(jobset, kwok.end_pod, "operators")


def test_jobset_on_a_real_node(jobset: JobSet, node: Node) -> None:
    go_jobset(jobset, ends_on(node), node.name)


def test_jobsets_webhooks_are_asked(jobset: JobSet) -> None:
    made = job_set(1)
    made["metadata"]["namespace"] = jobset.plane.namespace()
    made["spec"]["successPolicy"] = {"operator": "All", "targetReplicatedJobs": ["no-such-job"]}
    with pytest.raises(ApiError, match="admission webhook"):
        jobset.admin.create(made)


# Kind -> name of its container, field of its replicas, replicas.
KINDS: dict[str, tuple[str, str, dict[str, int]]] = {
    "PyTorchJob": ("pytorch", "pytorchReplicaSpecs", {"Master": 1, "Worker": 2}),
    "TFJob": ("tensorflow", "tfReplicaSpecs", {"Chief": 1, "PS": 1, "Worker": 2}),
    "MPIJob": ("mpi", "mpiReplicaSpecs", {"Launcher": 1, "Worker": 2}),
    "XGBoostJob": ("xgboost", "xgbReplicaSpecs", {"Master": 1, "Worker": 2}),
    "PaddleJob": ("paddle", "paddleReplicaSpecs", {"Master": 1, "Worker": 2}),
}


def training_job(kind: str, nodes: str = "operators") -> Object:
    container, field, replicas = KINDS[kind]
    roles = {
        role: {"replicas": count, "restartPolicy": "Never", "template": template(nodes, container)}
        for role, count in replicas.items()
    }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": kind,
        "metadata": {"name": "train"},
        "spec": {"runPolicy": {"suspend": False}, field: roles},
    }


def go_training_job(operator: TrainingOperator, end: Ender, nodes: str, kind: str) -> None:
    count = sum(KINDS[kind][2].values())
    flow = Flow(operator, end, training_job(kind, nodes), count, "training.kubeflow.org/job-name=train")
    flow.go(patch(runPolicy={"suspend": True}), patch(runPolicy={"suspend": False}), condition("Succeeded"))


@pytest.mark.parametrize("kind", KINDS)
def test_training_operator(training_operator: TrainingOperator, kwok: Kwok, kind: str) -> None:
    go_training_job(training_operator, kwok.end_pod, "operators", kind)


@pytest.mark.parametrize(
    "kind", ["PyTorchJob", "MPIJob"]
)  # those that put a container of their own before ours
def test_training_operator_on_a_real_node(training_operator: TrainingOperator, node: Node, kind: str) -> None:
    go_training_job(training_operator, ends_on(node), node.name, kind)


def test_the_training_operators_webhooks_are_asked(training_operator: TrainingOperator) -> None:
    made = training_job("PyTorchJob")
    made["metadata"] |= {
        "namespace": training_operator.plane.namespace(),
        "name": "0-is-no-name-of-a-service",
    }
    with pytest.raises(ApiError, match="admission webhook"):
        training_operator.admin.create(made)
