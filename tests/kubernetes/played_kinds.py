"""Kinds of jobs whose operators a test plays: custom resources, and who makes and ends the pods of one job."""

import contextlib
import http.client
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from tests.kubernetes.jobs_site import NODES, JobSite
from tests.kubernetes.test_uninstall import definition
from tests.rig.api import ApiError
from tests.rig.operators.flow import template

if TYPE_CHECKING:
    from tests.rig.api import Object

TURN_S = 0.2
RANKS = 2


MASTER = "elasticjob-train-dlrover-master"


def pods(gpus: int = 8) -> "Object":
    """By default each takes a whole node."""
    made = template(NODES)
    made["spec"] |= {"restartPolicy": "Never"}
    if gpus:
        made["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    return made


def _object(*required: str, **properties: "Object") -> "Object":
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


def _map(of: "Object") -> "Object":
    return {"type": "object", "additionalProperties": of}


def elastic_jobs() -> "Object":
    """The definition of ElasticJob with the fields that DLRover publishes, and no others: what is none of them an API
    server drops. Of pod templates and variables any field goes.

    Fields: go/elasticjob/api/v1alpha1/elasticjob_types.go, go/elasticjob/pkg/common/api/v1/types.go (JobStatus,
    ReplicaSpec) of github.com/intelligent-machine-learning/dlrover.
    """
    text, flag, whole = {"type": "string"}, {"type": "boolean"}, {"type": "integer"}
    count, time = {"type": "integer", "format": "int32"}, {"type": "string", "format": "date-time"}
    any_fields = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    replica = _object(
        replicas=count,
        template=any_fields,
        restartPolicy=text,
        restartCount=whole,
        autoScale=flag,
        restartTimeout=whole,
        priority=text,
        BatchScheduler=text,
    )
    spec = _object(
        "replicaSpecs",
        distributionStrategy=text,
        resourceLimits=_map(text),
        optimizeMode=text,
        brainService=text,
        replicaSpecs=_map(replica),
        envs=_map(any_fields),
        suspend=flag,
    )
    told = {"type": text, "status": text, "reason": text, "message": text}
    condition = _object("type", "status", **told, lastUpdateTime=time, lastTransitionTime=time)
    pods_of = dict.fromkeys(("initial", "pending", "active", "succeeded", "failed"), count)
    inner = _object(
        "conditions",
        "replicaStatuses",
        conditions={"type": "array", "items": condition},
        replicaStatuses=_map(_object(**pods_of, labelSelector=any_fields)),
        startTime=time,
        completionTime=time,
        lastReconcileTime=time,
    )
    made = definition("elastic.iml.github.io", "v1alpha1", "ElasticJob")
    (version,) = made["spec"]["versions"]
    version["subresources"] = {"status": {}}
    version["schema"]["openAPIV3Schema"] = _object(spec=spec, status=_object(status=inner, phase=text))
    return made


class Operator(threading.Thread, ABC):
    """Of one job it makes the pods that are missing, and those anew that have failed. While a test holds `at_work` it
    does nothing."""

    definitions: "ClassVar[list[Object]]"
    selector: ClassVar[str]  # of the pods
    deletes: ClassVar[bool] = True  # the pods of a job that is stopped

    def __init__(self, site: JobSite) -> None:
        super().__init__(daemon=True)
        self.admin, self.space = site.admin, site.space
        self.path = site.create(self.job())
        self.uid = self.admin.get(self.path)["metadata"]["uid"]
        self.at_work = threading.Lock()
        self._ended = threading.Event()
        self.start()

    @abstractmethod
    def job(self) -> "Object":
        """Its object, as an owner creates it."""

    @abstractmethod
    def labels(self) -> dict[str, dict[str, str]]:
        """By the names of the pods."""

    def wanted(self, job: "Object") -> bool:
        """Are its pods to run?"""
        return not job["spec"].get("suspend", False)

    def run(self) -> None:
        while not self._ended.wait(TURN_S):
            with self.at_work, contextlib.suppress(OSError, http.client.HTTPException, ApiError):
                self._turn()

    def end(self) -> None:
        self._ended.set()
        self.join()
        self.admin.delete(self.path)

    def _turn(self) -> None:
        runs = self.wanted(self.admin.get(self.path))
        path = f"/api/v1/namespaces/{self.space}/pods"
        there = {pod["metadata"]["name"]: pod for pod in self.admin.items(path, labelSelector=self.selector)}
        for name, labels in self.labels().items():
            if name not in there and runs:
                self._make(name, labels)
        for name, pod in there.items():
            over = pod["status"].get("phase") == "Failed" if runs else self.deletes
            if over and "deletionTimestamp" not in pod["metadata"]:
                self.admin.delete(f"{path}/{name}")

    def _make(self, name: str, labels: dict[str, str]) -> None:
        meta = {"name": name, "namespace": self.space, "labels": labels, "ownerReferences": [self._owner()]}
        self.admin.create(
            {"apiVersion": "v1", "kind": "Pod", "metadata": meta, **pods(0 if name == MASTER else 8)}
        )

    def _owner(self) -> "Object":
        head = self.job()
        owner = {"apiVersion": head["apiVersion"], "kind": head["kind"], "name": "train", "uid": self.uid}
        return {**owner, "controller": True}


class Trainer(Operator):
    """TrainJob, without the JobSet and the Jobs in between."""

    definitions: ClassVar = [definition("trainer.kubeflow.org", "v1alpha1", "TrainJob")]
    selector = "jobset.sigs.k8s.io/jobset-name=train"

    def job(self) -> "Object":
        return {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": "train"},
            "spec": {"runtimeRef": {"name": "torch"}, "trainer": {"numNodes": RANKS}},
        }

    def labels(self) -> dict[str, dict[str, str]]:
        group = {
            "jobset.sigs.k8s.io/jobset-name": "train",
            "jobset.sigs.k8s.io/replicatedjob-name": "node",
        }
        index = "batch.kubernetes.io/job-completion-index"
        return {f"train-node-{rank}": {**group, index: str(rank)} for rank in range(RANKS)}


class Volcano(Operator):
    """It obeys commands, and says in the job's status what it has obeyed."""

    definitions: ClassVar = [
        definition("batch.volcano.sh", "v1alpha1", "Job"),
        definition("bus.volcano.sh", "v1alpha1", "Command"),
        definition("scheduling.volcano.sh", "v1beta1", "PodGroup"),
    ]
    selector = "volcano.sh/job-name=train"
    full = False  # its queue lets in no PodGroup

    def job(self) -> "Object":
        return {
            "apiVersion": "batch.volcano.sh/v1alpha1",
            "kind": "Job",
            "metadata": {"name": "train"},
            "spec": {
                "minAvailable": RANKS,
                "tasks": [{"name": "worker", "replicas": RANKS, "template": pods()}],
            },
            "status": {"retryCount": 0, "state": {"phase": "Running"}},
        }

    def labels(self) -> dict[str, dict[str, str]]:
        group = {"volcano.sh/job-name": "train", "volcano.sh/task-spec": "worker"}
        return {
            f"train-worker-{rank}": {**group, "volcano.sh/task-index": str(rank)} for rank in range(RANKS)
        }

    def wanted(self, job: "Object") -> bool:
        commands = f"/apis/bus.volcano.sh/v1alpha1/namespaces/{self.space}/commands"
        for command in self.admin.items(commands):
            resumes = command["action"] == "ResumeJob"
            phase = ("Pending" if self.full else "Running") if resumes else "Aborted"
            status: dict[str, Any] = {"state": {"phase": phase}}
            status["retryCount"] = job["status"]["retryCount"] + resumes
            job = self.admin.patch(self.path, {"status": status})
            self.admin.delete(f"{commands}/{command['metadata']['name']}")
            if resumes:
                self.admin.apply([self._group("Pending")])
        if not self.full and job["status"]["state"]["phase"] == "Pending":
            job = self.admin.patch(self.path, {"status": {"state": {"phase": "Running"}}})
            self.admin.apply([self._group("Running")])
        return bool(job["status"]["state"]["phase"] == "Running")

    def _group(self, phase: str) -> "Object":
        return {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "metadata": {
                "name": f"train-{self.uid}",
                "namespace": self.space,
                "ownerReferences": [self._owner()],
            },
            "spec": {"queue": "gpus"},
            "status": {"phase": phase},
        }


class DLRover(Operator):
    """Its master, a pod without GPUs, makes the workers; `suspend` keeps it from that, and deletes none."""

    definitions: ClassVar = [elastic_jobs()]
    selector = "elasticjob.dlrover/name=train"
    deletes = False

    def job(self) -> "Object":
        worker = {"replicas": RANKS, "restartCount": 3, "template": pods()}
        return {
            "apiVersion": "elastic.iml.github.io/v1alpha1",
            "kind": "ElasticJob",
            "metadata": {"name": "train"},
            "spec": {
                "distributionStrategy": "AllreduceStrategy",
                "optimizeMode": "single-job",
                "replicaSpecs": {"worker": worker},
            },
        }

    def labels(self) -> dict[str, dict[str, str]]:
        name, kind = {"elasticjob.dlrover/name": "train"}, "elasticjob.dlrover/replica-type"
        ranks = ("elasticjob.dlrover/replica-index", "elasticjob.dlrover/rank-index")
        workers = {
            f"train-worker-{rank}": {**name, kind: "worker", **dict.fromkeys(ranks, str(rank))}
            for rank in range(RANKS)
        }
        return {MASTER: {**name, kind: "dlrover-master"}, **workers}


class KubeDL(Operator):
    """TFJob, which fails for good where its pods are evicted."""

    definitions: ClassVar = [definition("training.kubedl.io", "v1alpha1", "TFJob")]
    selector = "job-name=train,group-name=training.kubedl.io"

    def job(self) -> "Object":
        worker = {"replicas": RANKS, "restartPolicy": "ExitCode", "template": pods()}
        return {
            "apiVersion": "training.kubedl.io/v1alpha1",
            "kind": "TFJob",
            "metadata": {"name": "train"},
            "spec": {"tfReplicaSpecs": {"Worker": worker}},
        }

    def labels(self) -> dict[str, dict[str, str]]:
        group = {"job-name": "train", "group-name": "training.kubedl.io", "replica-type": "worker"}
        return {f"train-worker-{rank}": {**group, "replica-index": str(rank)} for rank in range(RANKS)}
