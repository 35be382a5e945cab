"""TrainJob: a JobSet made from a runtime."""

import pytest

from sentinel.core.job.start import start
from sentinel.core.job.stop import stop
from sentinel.core.job.writes import Reason, Refusal
from tests.kubernetes.driven import come_back
from tests.operators.conftest import Drive
from tests.rig.api import ApiError, Object
from tests.rig.control_plane import ControlPlane
from tests.rig.kwok import Kwok
from tests.rig.operators.flow import Flow, condition, patch, template
from tests.rig.operators.jobset import JobSet
from tests.rig.operators.living import MARK, Living
from tests.rig.operators.trainer import Trainer

pytestmark = pytest.mark.operators("jobset", "trainer")
VERSION = "trainer.kubeflow.org/v1alpha1"


@pytest.fixture(scope="module")
def trainer(plane: ControlPlane) -> Trainer:
    JobSet(plane)
    return Trainer(plane)


def runtime() -> Object:
    pods = template("operators", "node")
    pods["spec"]["restartPolicy"] = "Never"
    labels = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    job = {"name": "node", "template": {"metadata": {"labels": labels}, "spec": {"template": pods}}}
    return {
        "apiVersion": VERSION,
        "kind": "TrainingRuntime",
        "metadata": {"name": "torch"},
        "spec": {
            "mlPolicy": {"numNodes": 1, "torch": {"numProcPerNode": "auto"}},
            "template": {"spec": {"replicatedJobs": [job]}},
        },
    }


def train_job() -> Object:
    return {
        "apiVersion": VERSION,
        "kind": "TrainJob",
        "metadata": {"name": "train"},
        "spec": {"runtimeRef": {"name": "torch", "kind": "TrainingRuntime"}, "trainer": {"numNodes": 3}},
    }


def test_trainjob(trainer: Trainer, kwok: Kwok) -> None:
    flow = Flow(trainer, kwok.end_pod, train_job(), 3, "jobset.sigs.k8s.io/jobset-name=train")
    flow.admin.apply([runtime()], namespace=flow.space)
    flow.go(patch(suspend=True), patch(suspend=False), condition("Complete"))


def test_the_trainers_webhooks_are_asked(trainer: Trainer) -> None:
    made = train_job()
    made["metadata"]["namespace"] = trainer.plane.namespace()  # where there is no such runtime
    with pytest.raises(ApiError, match="admission webhook"):
        trainer.admin.create(made)


def test_what_the_table_says_of_trainjobs_holds(trainer: Trainer, kwok: Kwok) -> None:
    """Stopped, kept off no node, and started; an edited size is found before a stop that would do nothing."""
    job = Living(trainer.admin, trainer.plane.namespace(), train_job())
    job.admin.apply([runtime()], namespace=job.space)
    job.create(3)
    job.stop()
    kept = start(job.seen(), hosts=("operators-0",))
    assert isinstance(kept, Refusal)
    assert kept.reason is Reason.LABEL_NEEDED
    job.start()
    job.running(3)
    job.admin.patch(job.path, {"spec": {"trainer": {"numNodes": 2}}})
    refused = stop(job.seen(), MARK)
    assert isinstance(refused, Refusal)
    assert refused.reason is Reason.SIZE_EDITED
    job.admin.patch(job.path, {"spec": {"trainer": {"numNodes": 3}}})
    job.stop()
    job.start()
    for one in job.running(3):
        kwok.end_pod(job.space, one.name, 0)
    job.ended("succeeded")


def test_a_trainjob_that_loses_a_rank_comes_back(trainer: Trainer, drive: Drive) -> None:
    """Also one that leaves its size to its runtime."""
    small = train_job()
    del small["spec"]["trainer"]
    jobs = [drive(train_job(), 3, runtime()), drive(small, 1, runtime())]
    come_back(jobs)
    for job in jobs:
        job.finish()
