"""Ray: a RayCluster never ends by itself; a RayJob makes a new cluster for each start."""

from collections.abc import Callable

import pytest

from tests.kubernetes.driven import come_back
from tests.operators.conftest import Drive
from tests.rig.api import Object
from tests.rig.control_plane import ControlPlane
from tests.rig.kwok import Kwok
from tests.rig.operators.flow import Flow, patch, template
from tests.rig.operators.kuberay import KubeRay
from tests.rig.operators.living import Living
from tests.rig.processes import until

pytestmark = pytest.mark.operators("kuberay")


@pytest.fixture(scope="module")
def kuberay(plane: ControlPlane) -> KubeRay:
    return KubeRay(plane)


def cluster() -> Object:
    worker = {
        "groupName": "gpu",
        "replicas": 2,
        "minReplicas": 1,
        "maxReplicas": 4,
        "rayStartParams": {},
        "template": template("operators", "ray-worker"),
    }
    head = {"rayStartParams": {}, "template": template("operators", "ray-head")}
    return {"headGroupSpec": head, "workerGroupSpecs": [worker]}


def ray_job() -> Object:
    return {
        "entrypoint": "python train.py",
        "submissionMode": "HTTPMode",
        "shutdownAfterJobFinishes": True,
        "rayClusterSpec": cluster(),
    }


def made(kind: str, spec: Object) -> Object:
    return {"apiVersion": "ray.io/v1", "kind": kind, "metadata": {"name": "train"}, "spec": spec}


def test_raycluster(kuberay: KubeRay, kwok: Kwok) -> None:
    flow = Flow(kuberay, kwok.end_pod, made("RayCluster", cluster()), 3, "ray.io/cluster=train")
    flow.admin.create(flow.job)
    flow.stop_and_start(patch(suspend=True), patch(suspend=False))


def deployment(*wanted: str) -> Callable[[Object], bool]:
    return lambda job: job.get("status", {}).get("jobDeploymentStatus") in wanted


def test_rayjob(kuberay: KubeRay, kwok: Kwok) -> None:
    kuberay.dashboard.status = "RUNNING"
    flow = Flow(kuberay, kwok.end_pod, made("RayJob", ray_job()), 3, "ray.io/is-ray-node=yes")
    flow.admin.create(flow.job)
    flow.until_now(deployment("Running"))
    before = flow.now()["status"]
    flow.stop_and_start(patch(suspend=True), patch(suspend=False))
    flow.until_now(deployment("Running"))
    after = flow.now()["status"]
    assert (before["rayClusterName"], before["jobId"]) != (after["rayClusterName"], after["jobId"])
    kuberay.dashboard.status = "SUCCEEDED"
    flow.until_now(deployment("Complete"))
    until(lambda: not flow.pods(), flow.why)


def test_what_the_table_says_of_rayclusters_holds(kuberay: KubeRay, kwok: Kwok) -> None:
    job = Living(kuberay.admin, kuberay.plane.namespace(), made("RayCluster", cluster()))
    host = job.create(2)[0].node
    job.stop()
    job.start(size=3, hosts=(host,))
    assert host not in {one.node for one in job.running(3)}


def test_what_the_table_says_of_rayjobs_holds(kuberay: KubeRay, kwok: Kwok) -> None:
    kuberay.dashboard.status = "RUNNING"
    job = Living(kuberay.admin, kuberay.plane.namespace(), made("RayJob", ray_job()))
    host = job.create(2)[0].node
    job.stop()
    job.start(size=3, hosts=(host,))
    assert host not in {one.node for one in job.running(3)}
    kuberay.dashboard.status = "SUCCEEDED"
    job.ended("succeeded")


def test_a_raycluster_that_loses_a_worker_comes_back(kuberay: KubeRay, drive: Drive) -> None:
    come_back([drive(made("RayCluster", cluster()), 2)], operator=kuberay.daemon)


def test_a_rayjob_that_loses_a_worker_comes_back_in_a_new_cluster(kuberay: KubeRay, drive: Drive) -> None:
    kuberay.dashboard.status = "RUNNING"
    job = drive(made("RayJob", ray_job()), 2)
    come_back([job], operator=kuberay.daemon)
    kuberay.dashboard.status = "SUCCEEDED"
    job.until_state("succeeded")


def test_a_rayjob_that_cannot_be_suspended_is_left_to_its_operator_with_the_reason(
    kuberay: KubeRay, drive: Drive
) -> None:
    kuberay.dashboard.status = "RUNNING"
    job = drive(made("RayJob", {**ray_job(), "shutdownAfterJobFinishes": False}), 2)
    job.begin()
    job.until_state("running")
    kuberay.daemon.freeze()
    job.lose()
    until(lambda: job.incidents() and job.incidents()[0]["reason"] == "FieldNeeded", job.story)
    kuberay.daemon.thaw()
    until(lambda: job.way() == ["Stopping", "Cancelled"], job.story)
    (incident,) = job.incidents()
    told = {step["reason"]: step["sentence"] for step in incident["steps"]}
    assert "shutdownAfterJobFinishes" in told["FieldNeeded"]
    assert "RestartedByItsKind" in told, "its operator alone has brought the lost one back"
    job.running(2)
    job.until_state("running")
