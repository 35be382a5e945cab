"""A job that trains on real kubelets: each rank is a pod, and all save into one folder that every node has."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.e2e.agent_node import XID_79
from tests.kubernetes.jobs_site import JobRecords

if TYPE_CHECKING:
    from tests.kubernetes.real_cluster import Cluster
    from tests.rig.api import Object
    from tests.rig.node import Node

IMAGE = "localhost/sentinel:0.1.0"  # of this checkout, which the nodes have: a Python with nothing else
PYTHON = f"/usr/local/bin/python{sys.version_info.major}.{sys.version_info.minor}"
SPREAD = {
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "ScheduleAnyway",
    "labelSelector": {"matchLabels": {"app": "train"}},
}
# Rank 0 keeps the line of steps that were done; each rank saves its own part. A step is done once, or again after a
# restart from an older checkpoint, and never left out.
RANK = """
import os, signal, sys, time
rank, steps = os.environ["INDEX"], int(os.environ["STEPS"])
part, line, enough = f"/checkpoints/rank-{rank}", "/checkpoints/line", "/checkpoints/enough"
step = int(open(part).read()) if os.path.exists(part) else 0
print(f"resumes from step {step}", flush=True)
wanted = []
signal.signal(signal.SIGUSR1, lambda *_: wanted.append(1))
open(f"/checkpoints/ready-{rank}", "w").close()
while step < (int(open(enough).read()) if os.path.exists(enough) else steps):
    time.sleep(0.1)
    step += 1
    if rank == "0":
        with open(line, "a") as file:
            print(os.environ["POD_UID"], step, file=file)
    print(f"step: {step}")
    print("this iteration hardware time is 80.5 and e2e time is 100.25 ms.", flush=True)
    if wanted:
        wanted.clear()
        with open(f"{part}.new", "w") as file:
            file.write(str(step))
        os.rename(f"{part}.new", part)
        print(f"saved checkpoint at step {step}", flush=True)
"""


class Kind(NamedTuple):
    """`index`: the label of a pod that says which rank it is."""

    name: str  # in a policy
    index: str
    make: "Callable[[int, Object], Object]"  # of so many ranks that are such pods


def _batch(ranks: int, pods: "Object") -> "Object":
    spec = {
        "completionMode": "Indexed",
        "parallelism": ranks,
        "completions": ranks,
        "backoffLimit": 6,
        "template": pods,
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "spec": spec}


def _stateful(ranks: int, pods: "Object") -> "Object":
    pods["spec"]["restartPolicy"] = "Always"  # it allows no other
    spec = {
        "replicas": ranks,
        "podManagementPolicy": "Parallel",
        "serviceName": "train",
        "selector": {"matchLabels": pods["metadata"]["labels"]},
        "template": pods,
    }
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "spec": spec}


BATCH = Kind("Job", "batch.kubernetes.io/job-completion-index", _batch)
STATEFUL = Kind("Pod", "apps.kubernetes.io/pod-index", _stateful)


def job(
    space: str,
    folder: Path,
    ranks: int,
    steps: int,
    cpu: str = "",
    user: int = 0,
    kind: Kind = BATCH,
    **env: str,
) -> "Object":
    """`folder`: where it saves. `cpu`: what each rank requests. `user`: whose it is. `env`: more of its variables."""
    index = {"fieldRef": {"fieldPath": f"metadata.labels['{kind.index}']"}}
    container: dict[str, Any] = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": [PYTHON, "-u", "-c", RANK],
        "env": [
            {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
            {"name": "INDEX", "valueFrom": index},
            *({"name": name, "value": value} for name, value in {"STEPS": str(steps), **env}.items()),
        ],
        "volumeMounts": [{"name": "checkpoints", "mountPath": "/checkpoints"}],
    }
    if cpu:
        container["resources"] = {"requests": {"cpu": cpu}}
    pod = {
        "restartPolicy": "Never",
        "securityContext": {"runAsUser": user, "runAsGroup": user},
        "terminationGracePeriodSeconds": 5,
        "topologySpreadConstraints": [SPREAD],
        "containers": [container],
        "volumes": [{"name": "checkpoints", "hostPath": {"path": str(folder)}}],
    }
    made = kind.make(ranks, {"metadata": {"labels": {"app": "train"}}, "spec": pod})
    return {**made, "metadata": {"name": "train", "namespace": space}}


class Training(JobRecords):
    """One job in a namespace of its own, with a policy that resumes it."""

    def __init__(self, cluster: "Cluster", folder: Path, kind: Kind = BATCH) -> None:
        self.cluster, self.admin, self.kind = cluster, cluster.admin, kind
        self.space = cluster.plane.namespace("training")
        self.folder = folder / "checkpoints"
        self.folder.mkdir(mode=0o777)
        self.folder.chmod(0o777)
        self.path = ""

    def policy(self, **spec: Any) -> "Object":
        checkpoint = {"signal": "SIGUSR1", "timeout": "20s", "proof": {"logPattern": "saved checkpoint"}}
        asked = {
            "jobs": {"kinds": [self.kind.name]},
            "owner": {"emails": ["owner@example.com"]},
            "resume": {"maxResumes": 10, "gracefulStop": "5s", "checkpoint": checkpoint},
            **spec,
        }
        head = {"apiVersion": "sentinel.dev/v1alpha1", "kind": "JobPolicy"}
        return {**head, "metadata": {"name": "training", "namespace": self.space}, "spec": asked}

    def start(self, ranks: int, steps: int = 1_000_000, cpu: str = "", user: int = 0, **policy: Any) -> None:
        """`cpu`: what each rank requests. `user`: whose they are."""
        self.admin.apply([self.policy(**policy)])
        made = job(self.space, self.folder, ranks, steps, cpu, user, self.kind)
        self.path = self.admin.path_of(made)
        self.admin.create(made)

    def close(self) -> None:
        if self.path:
            self.admin.delete(self.path, propagationPolicy="Background")
        pods = f"/api/v1/namespaces/{self.space}/pods"
        self.admin.delete(pods, gracePeriodSeconds=0)
        self.until(lambda: not self.admin.items(pods))

    def succeeds(self) -> bool:
        """It makes some steps more and ends; was each done?"""
        steps = self.steps() + 20
        made = self.folder / "enough.new"
        made.write_text(str(steps))
        made.rename(self.folder / "enough")
        self.until(lambda: self.record().get("state") == "succeeded")
        return self.every_step_counts(steps)

    def leaves_a_lost_gpu(self, rank: int) -> "Object":
        """Behind a saved checkpoint, by the means of its kind; its incident."""
        self.until(lambda: self.record().get("state") == "running")
        self.until(lambda: self.steps() > 10)
        node = self.node_of(rank)
        node.kernel_says(XID_79)
        self.until(lambda: self.phases()[-1:] == ["Recovered"])
        phases = ["Prechecking", "Saving", "Stopping", "Starting", "Verifying", "Recovered"]
        assert self.phases() == phases, self.records_told()
        incident = self.moved()
        assert "saved checkpoint" in incident["save"]["provedBy"]
        assert "XID 79" in str(incident["verdict"])
        assert node.name not in {pod["spec"]["nodeName"] for pod in self.pods()}
        assert self.went_on_from_its_checkpoint()
        return incident

    def moved(self) -> "Object":
        """The newest incident. Moves before it were put off: on a busy machine an agent did not answer at once."""
        *put_off, newest = self.incidents()
        assert {one["reason"] for one in put_off} <= {"SaveNotAsked"}
        return newest

    # ------------------------------------------------------------ what is seen

    def pods(self, phase: str = "Running") -> "list[Object]":
        found = self.admin.items(f"/api/v1/namespaces/{self.space}/pods")
        return [pod for pod in found if pod["status"].get("phase") == phase]

    def node_of(self, rank: int) -> "Node":
        pod = self._pod(rank)
        return next(node for node in self.cluster.nodes if node.name == pod["spec"]["nodeName"])

    def _pod(self, rank: int) -> "Object":
        return next(pod for pod in self.pods() if pod["metadata"]["labels"][self.kind.index] == str(rank))

    def ranks_by_node(self) -> "dict[Node, list[int]]":
        ranks = sorted(int(pod["metadata"]["labels"][self.kind.index]) for pod in self.pods())
        found: dict[Node, list[int]] = {node: [] for node in self.cluster.nodes}
        for rank in ranks:
            found[self.node_of(rank)].append(rank)
        return found

    def freeze(self, rank: int) -> None:
        """Its process makes no step any more, and does not end."""
        self._signal(rank, signal.SIGSTOP)

    def save(self, ranks: int) -> None:
        """As somebody else than Sentinel may tell them to."""
        self.until(lambda: self._has_each("ready", ranks))
        for rank in range(ranks):
            self._signal(rank, signal.SIGUSR1)
        self.until(lambda: self._has_each("rank", ranks))

    def _has_each(self, name: str, ranks: int) -> bool:
        return all((self.folder / f"{name}-{rank}").exists() for rank in range(ranks))

    def _signal(self, rank: int, number: signal.Signals) -> None:
        for pid in self.node_of(rank).pids(self._pod(rank)):
            os.kill(pid, number)

    def line(self) -> list[tuple[str, int]]:
        file = self.folder / "line"
        words = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return [(uid, int(step)) for uid, step in words]

    def steps(self) -> int:
        return max((step for _, step in self.line()), default=0)

    def went_on_from_its_checkpoint(self) -> bool:
        """Rank 0 of the newest incarnation made the step first that follows on the last one that it had saved."""
        line, saved = self.line(), int((self.folder / "rank-0").read_text())
        return next(step for uid, step in line if uid == line[-1][0]) == saved + 1

    def every_step_counts(self, steps: int | None = None) -> bool:
        """No step was left out, and no two pods wrote at one time: who has written once is over when another does.
        `steps`: how many are done in the end; None: it goes on."""
        line = self.line()
        last = max(step for _, step in line) if steps is None else steps
        done = {step for _, step in line} == set(range(1, last + 1))
        writers = [uid for n, (uid, _) in enumerate(line) if n == 0 or line[n - 1][0] != uid]
        return done and len(writers) == len(set(writers))

    def until(self, what: Callable[[], Any], deadline_s: float = 150.0) -> Any:
        from tests.rig.processes import until

        def why() -> str:
            return f"{self.records_told()}\n{self.cluster.sentinel.story()}"

        return until(what, why, deadline_s, every_s=0.2)
