"""Objects and pods of every kind of jobs, as an API server would give them, as small as tests need them."""

import copy
from typing import Any

from sentinel.core.job.kinds import JobKind, row_of
from sentinel.core.job.paths import write
from sentinel.core.job.state import Seen
from sentinel.core.job.writes import Plan, Refusal, Verb, Write
from sentinel.rules.job_kinds import job_table

Json = dict[str, Any]
GPU = {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]}
CPU = {"containers": [{"name": "main"}]}


def template(spec: Json = GPU, **more: Any) -> Json:
    return {"spec": {**copy.deepcopy(spec), **more}}


def replica(replicas: int, spec: Json = GPU, **more: Any) -> Json:
    return {"replicas": replicas, "template": template(spec), **more}


def obj(api_version: str, kind: str, spec: Json, **more: Any) -> Json:
    meta = {"namespace": "lab", "name": "train", "uid": "u-train", "resourceVersion": "7", "generation": 2}
    return {"apiVersion": api_version, "kind": kind, "metadata": meta, "spec": spec, **more}


def kubeflow(kind: str, specs: str, groups: Json, **policy: Any) -> Json:
    return obj("kubeflow.org/v1", kind, {specs: groups, "runPolicy": policy})


def kubedl(kind: str, specs: str, groups: Json, group: str = "training.kubedl.io") -> Json:
    return obj(f"{group}/v1alpha1", kind, {specs: groups})


def workers(master: int = 1, others: int = 3, **more: Any) -> Json:
    return {"Master": replica(master, **more), "Worker": replica(others, **more)}


RAY = {
    "headGroupSpec": {"template": template(CPU)},
    "workerGroupSpecs": [
        {"groupName": "gpu", "replicas": 4, "minReplicas": 2, "maxReplicas": 8, "template": template()}
    ],
}

# One object of each row, by the row's title: each asks for 4 pods of ranks.
OBJECTS: dict[str, Json] = {
    "Job.batch/v1 (Indexed)": obj(
        "batch/v1",
        "Job",
        {"completionMode": "Indexed", "parallelism": 4, "completions": 4, "template": template()},
    ),
    "Job.batch/v1": obj(
        "batch/v1", "Job", {"completionMode": "NonIndexed", "parallelism": 4, "template": template()}
    ),
    "Pod/v1": obj("apps/v1", "StatefulSet", {}),
    "JobSet.jobset.x-k8s.io/v1alpha2": obj(
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        {
            "replicatedJobs": [
                {
                    "name": "driver",
                    "replicas": 1,
                    "template": {"spec": {"parallelism": 1, "template": template(CPU)}},
                },
                {
                    "name": "workers",
                    "replicas": 2,
                    "template": {"spec": {"parallelism": 2, "template": template()}},
                },
            ]
        },
    ),
    "TrainJob.trainer.kubeflow.org/v1alpha1": obj(
        "trainer.kubeflow.org/v1alpha1",
        "TrainJob",
        {"trainer": {"numNodes": 4}, "runtimeRef": {"name": "torch"}},
    ),
    "PyTorchJob.kubeflow.org/v1": kubeflow("PyTorchJob", "pytorchReplicaSpecs", workers()),
    "TFJob.kubeflow.org/v1": kubeflow(
        "TFJob",
        "tfReplicaSpecs",
        {"Chief": replica(1), "Worker": replica(3), "PS": replica(2, CPU), "Evaluator": replica(1)},
    ),
    "MPIJob.kubeflow.org/v1": kubeflow(
        "MPIJob", "mpiReplicaSpecs", {"Launcher": replica(1, CPU), "Worker": replica(4)}
    ),
    "XGBoostJob.kubeflow.org/v1": kubeflow("XGBoostJob", "xgbReplicaSpecs", workers()),
    "PaddleJob.kubeflow.org/v1": kubeflow("PaddleJob", "paddleReplicaSpecs", workers()),
    "MXJob.kubeflow.org/v1": kubeflow(
        "MXJob",
        "mxReplicaSpecs",
        {"Scheduler": replica(1, CPU), "Server": replica(2, CPU), "Worker": replica(4)},
    ),
    "MPIJob.kubeflow.org/v2beta1": obj(
        "kubeflow.org/v2beta1",
        "MPIJob",
        {"mpiReplicaSpecs": {"Launcher": replica(1, CPU), "Worker": replica(4)}, "runPolicy": {}},
    ),
    "Job.batch.volcano.sh/v1alpha1": obj(
        "batch.volcano.sh/v1alpha1",
        "Job",
        {
            "minAvailable": 6,
            "maxRetry": 3,
            "tasks": [
                {"name": "ps", "minAvailable": 2, **replica(2, CPU)},
                {"name": "master", "minAvailable": 1, **replica(1)},
                {"name": "worker", "minAvailable": 3, **replica(3)},
            ],
        },
    ),
    "RayCluster.ray.io/v1": obj("ray.io/v1", "RayCluster", RAY),
    "RayJob.ray.io/v1": obj(
        "ray.io/v1",
        "RayJob",
        {"rayClusterSpec": RAY, "shutdownAfterJobFinishes": True},
        status={"rayClusterName": "train-x7k"},
    ),
    "LeaderWorkerSet.leaderworkerset.x-k8s.io/v1": obj(
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        {"replicas": 2, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template()}},
    ),
    "PyTorchJob.training.kubedl.io/v1alpha1": kubedl(
        "PyTorchJob", "pytorchReplicaSpecs", workers(restartPolicy="ExitCode")
    ),
    "TFJob.training.kubedl.io/v1alpha1": kubedl(
        "TFJob", "tfReplicaSpecs", {"PS": replica(1, CPU), "Chief": replica(1), "Worker": replica(3)}
    ),
    "XGBoostJob.training.kubedl.io/v1alpha1": kubedl(
        "XGBoostJob", "xgbReplicaSpecs", workers(restartPolicy="ExitCode")
    ),
    "MPIJob.training.kubedl.io/v1alpha1": kubedl(
        "MPIJob",
        "mpiReplicaSpecs",
        {
            "Launcher": replica(1, CPU, restartPolicy="ExitCode"),
            "Worker": replica(4, restartPolicy="ExitCode"),
        },
    ),
    "XDLJob.training.kubedl.io/v1alpha1": kubedl(
        "XDLJob",
        "xdlReplicaSpecs",
        {
            "PS": replica(1, CPU, restartPolicy="ExitCode"),
            "Scheduler": replica(1, CPU, restartPolicy="ExitCode"),
            "Worker": replica(4, restartPolicy="ExitCode"),
        },
    ),
    "MarsJob.training.kubedl.io/v1alpha1": kubedl(
        "MarsJob",
        "marsReplicaSpecs",
        {"Scheduler": replica(1, CPU, restartPolicy="ExitCode"), "Worker": replica(4)},
    ),
    "ElasticDLJob.training.kubedl.io/v1alpha1": kubedl(
        "ElasticDLJob", "elasticdlReplicaSpecs", {"Master": replica(1, CPU, restartPolicy="ExitCode")}
    ),
    "ElasticBatchJob.inference.kubedl.io/v1alpha1": kubedl(
        "ElasticBatchJob",
        "elasticBatchReplicaSpecs",
        {"AIMaster": replica(1, CPU), "Worker": replica(4)},
        "inference.kubedl.io",
    ),
    "ElasticJob.elastic.iml.github.io/v1alpha1": obj(
        "elastic.iml.github.io/v1alpha1",
        "ElasticJob",
        {"replicaSpecs": {"worker": replica(4), "ps": replica(1, CPU)}},
    ),
}

# Labels and variables that tell pods, by title: (group or "", labels of pod n of it, variables).
PLAIN = {"": (4, True)}  # four pods that nothing numbers
TORCH = {"master": (1, True), "worker": (3, True)}
GROUPS: dict[str, dict[str, tuple[int, bool]]] = {  # group -> pods, with a GPU
    "Job.batch/v1 (Indexed)": PLAIN,
    "Job.batch/v1": PLAIN,
    "Pod/v1": PLAIN,
    "JobSet.jobset.x-k8s.io/v1alpha2": {"driver": (1, False), "workers": (4, True)},
    "TrainJob.trainer.kubeflow.org/v1alpha1": {"node": (4, True), "dataset-initializer": (1, False)},
    "PyTorchJob.kubeflow.org/v1": TORCH,
    "TFJob.kubeflow.org/v1": {
        "ps": (2, False),
        "worker": (3, True),
        "chief": (1, True),
        "evaluator": (1, True),
    },
    "MPIJob.kubeflow.org/v1": {"launcher": (1, False), "worker": (4, True)},
    "XGBoostJob.kubeflow.org/v1": TORCH,
    "PaddleJob.kubeflow.org/v1": TORCH,
    "MXJob.kubeflow.org/v1": {"scheduler": (1, False), "server": (2, False), "worker": (4, True)},
    "MPIJob.kubeflow.org/v2beta1": {"launcher": (1, False), "worker": (4, True)},
    "Job.batch.volcano.sh/v1alpha1": {"ps": (2, False), "master": (1, True), "worker": (3, True)},
    "RayCluster.ray.io/v1": {"headgroup": (1, False), "gpu": (4, True)},
    "RayJob.ray.io/v1": {"headgroup": (1, False), "gpu": (4, True)},
    "LeaderWorkerSet.leaderworkerset.x-k8s.io/v1": PLAIN,
    "PyTorchJob.training.kubedl.io/v1alpha1": TORCH,
    "TFJob.training.kubedl.io/v1alpha1": {"ps": (1, False), "chief": (1, True), "worker": (3, True)},
    "XGBoostJob.training.kubedl.io/v1alpha1": TORCH,
    "MPIJob.training.kubedl.io/v1alpha1": {"launcher": (1, False), "worker": (4, True)},
    "XDLJob.training.kubedl.io/v1alpha1": {"ps": (1, False), "scheduler": (1, False), "worker": (4, True)},
    "MarsJob.training.kubedl.io/v1alpha1": {"scheduler": (1, False), "worker": (4, True)},
    "ElasticDLJob.training.kubedl.io/v1alpha1": {"master": (1, False)},
    "ElasticBatchJob.inference.kubedl.io/v1alpha1": {"aimaster": (1, False), "worker": (4, True)},
    "ElasticJob.elastic.iml.github.io/v1alpha1": {
        "dlrover-master": (1, False),
        "ps": (1, False),
        "worker": (4, True),
    },
}


def row_named(title: str) -> JobKind:
    return next(row for row in job_table().rows if row.title == title)


def labels_of(row: JobKind, group: str, n: int) -> dict[str, str]:
    """As the operators label pod n of a group."""
    labels = {row.role_label: group} if row.role_label else {}
    if row.kind in ("JobSet", "LeaderWorkerSet"):  # two numbers: two pods in each part
        outer, inner = row.outer[0].partition(":")[2], row.index[0].partition(":")[2]
        return {**labels, outer: str(n // 2), inner: str(n % 2)}
    if row.kind == "ElasticJob" and group == "worker":
        labels["elasticjob.dlrover/rank-index"] = str(n)
    for source in row.index[:1]:
        labels[source.partition(":")[2]] = str(n)
    return labels


def pod(name: str, labels: dict[str, str], *, gpu: bool = True, phase: str = "Running", **more: Any) -> Json:
    owner = {"kind": "StatefulSet", "name": "train", "uid": "u-train", "controller": True}
    meta = {
        "namespace": "lab",
        "name": name,
        "uid": f"u-{name}",
        "resourceVersion": "3",
        "labels": labels,
        "ownerReferences": [owner],
    }
    return {
        "metadata": {**meta, **more},
        "spec": {**copy.deepcopy(GPU if gpu else CPU), "nodeName": f"node-{name}"},
        "status": {"phase": phase},
    }


def pods_of(title: str) -> tuple[Json, ...]:
    row = row_named(title)
    return tuple(
        pod(f"{group or 'pod'}-{n}", labels_of(row, group, n), gpu=gpu)
        for group, (count, gpu) in GROUPS[title].items()
        for n in range(count)
    )


def seen(title: str, *, pods: tuple[Json, ...] | None = None, **changes: Any) -> Seen:
    """The object of this row with its pods. `changes`: dots of a path as two underscores, status__phase="Aborted"."""
    job = copy.deepcopy(OBJECTS[title])
    extra = {name: changes.pop(name) for name in ("children", "workload", "kueue") if name in changes}
    for path, value in changes.items():
        write(job, path.replace("__", "."), value)
    row = row_of(job_table().rows, job)
    assert row is not None
    return Seen(row=row, job=job, pods=pods_of(title) if pods is None else pods, **extra)


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386, as an API server applies it."""
    if not isinstance(patch, dict):
        return patch
    target = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        else:
            target[name] = merged(target.get(name), value)
    return target


def applied(before: Seen, plan: Plan | Refusal) -> Seen:
    """What the job's object is after the plan; pods of its evictions are gone."""
    assert isinstance(plan, Plan), plan
    job, pods, workload = before.job, list(before.pods), before.workload
    version = int(job["metadata"]["resourceVersion"])
    for one in plan.writes:
        if one.verb in (Verb.EVICT, Verb.DELETE):
            pods = [there for there in pods if there["metadata"]["uid"] != one.uid]
        elif one.verb is Verb.PATCH and one.plural == "workloads":
            workload = merged(workload, one.request())
        elif one.verb is Verb.PATCH and one.uid == job["metadata"]["uid"]:
            body = one.request(str(version))
            assert body["metadata"]["resourceVersion"] == str(version), "a precondition that does not hold"
            job, version = merged(job, body), version + 1
            job["metadata"]["resourceVersion"] = str(version)
    return Seen(
        row=before.row,
        job=job,
        pods=tuple(pods),
        children=before.children,
        workload=workload,
        kueue=before.kueue,
    )


def writes(plan: Plan | Refusal) -> tuple[Write, ...]:
    assert isinstance(plan, Plan), plan
    return plan.writes


def gone(one: Seen) -> Seen:
    """The same with no pod left."""
    return Seen(row=one.row, job=one.job, children=one.children, workload=one.workload, kueue=one.kueue)
