"""What the tests of traps share: names of rows, and jobs in the states that traps need."""

from typing import Any

from sentinel.core.job.state import Seen
from sentinel.core.job.stop import stop
from sentinel.core.job.writes import Plan, Reason, Refusal
from sentinel.rules.job_kinds import job_table
from tests.core.job_objects import applied, gone, seen

INDEXED, PLAIN, PODS = "Job.batch/v1 (Indexed)", "Job.batch/v1", "Pod/v1"
JOBSET, TRAINJOB = "JobSet.jobset.x-k8s.io/v1alpha2", "TrainJob.trainer.kubeflow.org/v1alpha1"
PYTORCH, TF, MPI1 = "PyTorchJob.kubeflow.org/v1", "TFJob.kubeflow.org/v1", "MPIJob.kubeflow.org/v1"
XGBOOST, PADDLE = "XGBoostJob.kubeflow.org/v1", "PaddleJob.kubeflow.org/v1"
MPI2, VOLCANO = "MPIJob.kubeflow.org/v2beta1", "Job.batch.volcano.sh/v1alpha1"
CLUSTER, RAYJOB = "RayCluster.ray.io/v1", "RayJob.ray.io/v1"
LWS, KUBEDL = "LeaderWorkerSet.leaderworkerset.x-k8s.io/v1", "PyTorchJob.training.kubedl.io/v1alpha1"
DLROVER = "ElasticJob.elastic.iml.github.io/v1alpha1"
HOST = "kubernetes.io/hostname"
MARK = {"sentinel.dev/stopped": "lab.train-0001"}


def with_trap(trap: str) -> list[str]:
    return [row.title for row in job_table().rows if trap in row.traps]


def stopped(title: str, **changes: Any) -> Seen:
    before = seen(title, **changes)
    return gone(applied(before, stop(before, "lab.train-0001")))


def refused(answer: Plan | Refusal) -> Reason:
    assert isinstance(answer, Refusal)
    return answer.reason


def policied(title: str, policy: str) -> Seen:
    """Every group with this restart policy; "": none is written."""
    one = seen(title)
    for where in one.row.groups:
        for spec in one.job["spec"][where.at.split(".")[1]].values():
            spec.pop("restartPolicy", None)
            if policy:
                spec["restartPolicy"] = policy
    return one
