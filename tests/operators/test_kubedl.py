"""KubeDL's kinds have no `suspend`; with ExitCode a pod that was evicted comes back."""

import pytest

from sentinel.core.job.start import keep_off_nodes
from tests.kubernetes.driven import come_back
from tests.operators.conftest import Drive
from tests.rig.api import Object
from tests.rig.control_plane import ControlPlane
from tests.rig.kwok import Kwok
from tests.rig.operators.flow import Flow, condition, template
from tests.rig.operators.kubedl import KubeDL
from tests.rig.operators.living import Living
from tests.rig.processes import until

pytestmark = pytest.mark.operators("kubedl")
# Kind -> group, field of its replicas, container, replicas.
KINDS: dict[str, tuple[str, str, str, dict[str, int]]] = {
    "PyTorchJob": ("training", "pytorchReplicaSpecs", "pytorch", {"Master": 1, "Worker": 2}),
    "TFJob": ("training", "tfReplicaSpecs", "tensorflow", {"Chief": 1, "PS": 1, "Worker": 1}),
    "XGBoostJob": ("training", "xgbReplicaSpecs", "xgboostjob", {"Master": 1, "Worker": 2}),
    "ElasticBatchJob": (
        "inference",
        "elasticBatchReplicaSpecs",
        "elasticbatch",
        {"AIMaster": 1, "Worker": 2},
    ),
}


@pytest.fixture(scope="module")
def kubedl(plane: ControlPlane) -> KubeDL:
    return KubeDL(plane)


def job(kind: str) -> Object:
    group, field, container, replicas = KINDS[kind]
    roles = {
        role: {"replicas": count, "restartPolicy": "ExitCode", "template": template("operators", container)}
        for role, count in replicas.items()
    }
    return {
        "apiVersion": f"{group}.kubedl.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": "train", "annotations": {"aimaster": "ready"}},  # as an AIMaster says of itself
        "spec": {field: roles, "cleanPodPolicy": "None"},
    }


@pytest.mark.parametrize("kind", KINDS)
def test_kind(kubedl: KubeDL, kwok: Kwok, kind: str) -> None:
    flow = Flow(kubedl, kwok.end_pod, job(kind), 3, "job-name=train")
    flow.admin.create(flow.job)
    first = flow.running()
    name = "train-worker-0"
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    flow.admin.call("POST", f"/api/v1/namespaces/{flow.space}/pods/{name}/eviction", eviction)
    flow.running_again(first, 2)
    flow.end()
    flow.until_now(condition("Succeeded"))


@pytest.mark.parametrize(("kind", "size"), [("PyTorchJob", 3), ("XGBoostJob", 3), ("ElasticBatchJob", 2)])
def test_what_the_table_says_of_kubedls_kinds_holds(kubedl: KubeDL, kwok: Kwok, kind: str, size: int) -> None:
    """Kept off a node first; then evicted, after which its operator makes all of them anew by itself."""
    made = Living(kubedl.admin, kubedl.plane.namespace(), job(kind))
    before = made.create(size)
    made.do(lambda seen: keep_off_nodes(seen, [before[0].node]))
    made.evict()
    after = [one for one in made.running(size) if one.rank is not None]
    assert before[0].node not in {one.node for one in after}
    assert not {one.uid for one in after} & {one.uid for one in before}
    for one in made.running(size):
        kwok.end_pod(made.space, one.name, 0)
    made.ended("succeeded")


def test_kubedls_jobs_that_lose_a_rank_come_back_with_all_of_their_ranks_anew(
    kubedl: KubeDL, drive: Drive
) -> None:
    sizes = {"PyTorchJob": 3, "XGBoostJob": 3, "ElasticBatchJob": 2}
    jobs = [drive(job(kind), size) for kind, size in sizes.items()]
    come_back(jobs, 137)
    for one in jobs:
        one.finish()


def test_a_tfjob_of_kubedl_is_left_to_its_operator_with_the_reason(kubedl: KubeDL, drive: Drive) -> None:
    """Evicting its pods would fail it: its operator alone brings the lost one back."""
    made = drive(job("TFJob"), 2)
    made.begin()
    made.until_state("running")
    made.lose(137)
    until(lambda: made.way() == ["Stopping", "Cancelled"], made.story)
    (incident,) = made.incidents()
    assert {"EvictionFails", "RestartedByItsKind"} <= {step["reason"] for step in incident["steps"]}
    made.running(2)
    made.until_state("running")
