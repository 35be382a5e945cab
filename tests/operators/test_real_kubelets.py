"""Ranks on real kubelets of kinds that are stopped otherwise than by `suspend`: no replicas, a command."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gate.rights import needs_root
from tests.kubernetes.real_cluster import Cluster
from tests.kubernetes.real_training import Kind, Training
from tests.rig.api import Object
from tests.rig.control_plane import ControlPlane
from tests.rig.operators.lws import LeaderWorkerSet
from tests.rig.operators.volcano import Volcano

pytestmark = pytest.mark.operators("lws", "volcano")


def groups(ranks: int, pods: Object) -> Object:
    pods["spec"]["restartPolicy"] = "Always"  # it allows no other
    spec = {"replicas": 1, "leaderWorkerTemplate": {"size": ranks, "workerTemplate": pods}}
    return {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "spec": spec}


def tasks(ranks: int, pods: Object) -> Object:
    spec = {
        "schedulerName": "volcano",
        "minAvailable": ranks,
        "tasks": [{"name": "worker", "replicas": ranks, "template": pods}],
    }
    return {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "spec": spec}


LWS = Kind("LeaderWorkerSet", "leaderworkerset.sigs.k8s.io/worker-index", groups)
VOLCANO = Kind("Job.batch.volcano.sh", "volcano.sh/task-index", tasks)


@pytest.fixture(scope="module")
@needs_root
def cluster(plane: ControlPlane) -> Cluster:
    LeaderWorkerSet(plane)
    Volcano(plane)
    return Cluster(plane)


@pytest.fixture
def training(request: pytest.FixtureRequest, cluster: Cluster, tmp_path: Path) -> Iterator[Training]:
    made = Training(cluster, tmp_path, request.param)
    yield made
    made.close()
    cluster.mend()


@pytest.mark.parametrize("training", [LWS, VOLCANO], indirect=True, ids=lambda kind: kind.name)
def test_a_gpu_that_falls_off_the_bus_moves_the_job_behind_a_saved_checkpoint(training: Training) -> None:
    training.start(ranks=2)
    training.leaves_a_lost_gpu(1)
    assert len({uid for uid, _ in training.line()}) == 2
    assert training.every_step_counts()
