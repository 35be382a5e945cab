"""Restarted programs are told of it under real operators, by what the controller's account may do."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from sentinel.cluster.kubernetes.job_cluster import JobCluster
from sentinel.core.job.resume import ASKS_FOR_MAP, annotation_of
from tests.gate.rights import needs_root
from tests.kubernetes.conftest import DEPLOY, NAMESPACE
from tests.kubernetes.test_job_cluster import JOB, Plane, story_of
from tests.rig.operators.flow import Ender, Flow, ends_on, template
from tests.rig.test_rig_operators import job_set, training_job
from tests.waits import until

if TYPE_CHECKING:
    from tests.rig.api import Object
    from tests.rig.control_plane import ControlPlane
    from tests.rig.kwok import Kwok
    from tests.rig.node import Node
    from tests.rig.operators.jobset import JobSet
    from tests.rig.operators.training_operator import TrainingOperator

NODES = "told-here"
FIRST = {"SENTINEL_RESUME": "1", "SENTINEL_RESTARTS": "1", "SENTINEL_CHECKPOINT_STEP": "70", "PATH": "/bin"}
SECOND = {"SENTINEL_RESUME": "1", "SENTINEL_RESTARTS": "2", "SENTINEL_CAUSE": "gpu"}
SAYS = 'echo "told $SENTINEL_RESUME,$STEP,$SENTINEL_RESTARTS,$(cat /told/SENTINEL_CHECKPOINT_STEP 2>&1)"; '


@pytest.fixture(scope="module")
def kwok(installed: "ControlPlane") -> "Iterator[Kwok]":
    from tests.rig.kwok import Kwok

    made = Kwok(installed)
    made.nodes(NODES, 2)
    yield made
    made.remove(NODES)
    made.rig.forget(made.daemon)


@pytest.fixture(scope="module")
@needs_root
def node(installed: "ControlPlane") -> "Iterator[Node]":
    from tests.rig.node import Node

    made = Node(installed, "told-real", labels={"rig": "told-real"})
    yield made
    made.remove()


def batch_job(nodes: str, count: int = 2) -> "Object":
    pods = template(nodes)
    pods["spec"] |= {"restartPolicy": "Never"}
    spec = {"completionMode": "Indexed", "parallelism": count, "completions": count, "template": pods}
    meta = {"name": "train", "annotations": {ASKS_FOR_MAP: "true"}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}


def batch_flow(plane: "ControlPlane", end: Ender, job: "Object") -> Flow:
    count = job["spec"]["parallelism"]
    return Flow(Plane(plane), end, job, count, "batch.kubernetes.io/job-name=train")  # type: ignore[arg-type]


def told(flow: Flow) -> list[dict[str, str]]:
    """What each running pod is told by its annotations."""
    found = [pod["metadata"].get("annotations", {}) for pod in flow.pods("Running")]
    names = {annotation_of(name) for name in (*FIRST, *SECOND)}
    return [{key: value for key, value in one.items() if key in names} for one in found]


def as_notes(env: dict[str, str]) -> dict[str, str]:
    return {annotation_of(name): value for name, value in env.items() if name.startswith("SENTINEL_")}


async def start(cluster: JobCluster, incarnation: int, env: dict[str, str]) -> None:
    ranks = await cluster.adopt(JOB)
    assert (await cluster.stop(JOB, incarnation - 1, 1.0)).gone
    await cluster.start(JOB, None, incarnation, len(ranks), env)


async def two_starts(cluster: JobCluster, flow: Flow) -> None:
    await start(cluster, 2, FIRST)
    assert told(flow) == [as_notes(FIRST)] * flow.count
    await start(cluster, 3, SECOND)
    assert told(flow) == [as_notes(SECOND)] * flow.count
    await asyncio.to_thread(flow.end, 0)


def test_pods_of_a_pytorchjob(
    installed: "ControlPlane", controller: str, kwok: "Kwok", training_operator: "TrainingOperator"
) -> None:
    job = training_job("PyTorchJob", NODES)
    flow = Flow(training_operator, kwok.end_pod, job, 3, "training.kubeflow.org/job-name=train")
    story_of(controller, flow, two_starts)


def test_pods_of_a_jobset(installed: "ControlPlane", controller: str, kwok: "Kwok", jobset: "JobSet") -> None:
    flow = Flow(jobset, kwok.end_pod, job_set(2, NODES), 2, "jobset.sigs.k8s.io/jobset-name=train")
    story_of(controller, flow, two_starts)


def test_a_config_map_is_written_where_that_is_allowed_and_holds_up_no_start_where_not(
    installed: "ControlPlane", controller: str, kwok: "Kwok"
) -> None:
    async def story(cluster: JobCluster, flow: Flow) -> None:
        path = f"/api/v1/namespaces/{flow.space}/configmaps/train-sentinel"
        await start(cluster, 2, FIRST)
        assert told(flow) == [as_notes(FIRST)] * 2
        assert flow.admin.find(path) is None
        allow(flow)
        await start(cluster, 3, FIRST)
        assert flow.admin.get(path)["data"]["SENTINEL_CHECKPOINT_STEP"] == "70"
        await start(cluster, 4, SECOND)
        assert flow.admin.get(path)["data"] == SECOND
        assert told(flow) == [as_notes(SECOND)] * 2
        flow.admin.delete(flow.path, propagationPolicy="Background")
        await asyncio.to_thread(until, lambda: flow.admin.find(path) is None, lambda: "it stays", 60)

    story_of(controller, batch_flow(installed, kwok.end_pod, batch_job(NODES)), story)


def allow(flow: Flow) -> None:
    """As deploy/optional/resume-configmap.yaml says."""
    flow.admin.apply((DEPLOY / "optional/resume-configmap.yaml").read_text())
    (role,) = yaml.safe_load_all((DEPLOY / "optional/resume-configmap.yaml").read_text())
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "sentinel-resume-configmap", "namespace": flow.space},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": role["metadata"]["name"],
        },
        "subjects": [{"kind": "ServiceAccount", "name": "sentinel-controller", "namespace": NAMESPACE}],
    }
    flow.admin.apply([binding])


def test_a_program_on_a_real_kubelet_reads_all_of_it(
    installed: "ControlPlane", controller: str, node: "Node", tmp_path: Path
) -> None:
    """As docs/resume.md shows it."""
    job = batch_job(node.name, 1)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    container["command"][2] = SAYS + container["command"][2]
    by_path = {"fieldPath": "metadata.annotations['sentinel.dev/checkpoint-step']"}
    container["env"] = [{"name": "STEP", "valueFrom": {"fieldRef": by_path}}]
    container["envFrom"] = [{"configMapRef": {"name": "train-sentinel", "optional": True}}]
    container["volumeMounts"] = [{"name": "told", "mountPath": "/told"}]
    optional = {"name": "train-sentinel", "optional": True}
    job["spec"]["template"]["spec"]["volumes"] = [{"name": "told", "configMap": optional}]
    flow = batch_flow(installed, ends_on(node), job)

    def said() -> str:
        (pod,) = flow.pods("Running")
        lines = node.log_lines(pod, "main")
        return next((line.partition("told ")[2] for line in lines if "told " in line), "")

    async def story(cluster: JobCluster, flow: Flow) -> None:
        await asyncio.to_thread(until, lambda: said().startswith(",,,"), said)
        allow(flow)
        await start(cluster, 2, FIRST)
        await asyncio.to_thread(until, lambda: said() == "1,70,1,70", said)

    story_of(controller, flow, story)
