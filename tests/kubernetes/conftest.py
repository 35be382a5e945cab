"""What `deploy/` ships, applied to the real API server; everything then runs with the identities that it ships."""

import asyncio
import contextlib
import json
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.kubernetes.proxy import Proxy
from tests.rig.fixtures import shared

if TYPE_CHECKING:
    from tests.kubernetes.kubelets import Kubelets
    from tests.kubernetes.local_fleet import Fleet
    from tests.rig.api import Api
    from tests.rig.control_plane import ControlPlane

DEPLOY = Path(__file__).parents[2] / "deploy"
NAMESPACE = "sentinel-system"
NODES = "/api/v1/nodes"
QUARANTINES = "/apis/sentinel.dev/v1alpha1/quarantines"
LEASES = "/apis/coordination.k8s.io/v1/namespaces"
NODE_LEASES = f"{LEASES}/kube-node-lease/leases"
LEADER = f"{LEASES}/{NAMESPACE}/leases/sentinel-controller"
PAUSE = f"/api/v1/namespaces/{NAMESPACE}/configmaps/sentinel-pause"
CODES = f"/api/v1/namespaces/{NAMESPACE}/configmaps/sentinel-codes"


def manifests(pattern: str) -> list[dict[str, Any]]:
    return [
        document
        for path in sorted(DEPLOY.glob(pattern))
        for document in yaml.safe_load_all(path.read_text())
        if document
    ]


def install(plane: "ControlPlane") -> None:
    """What `deploy/` ships but the pods, served when this returns."""
    for pattern in ("crds/*.yaml", "namespace.yaml", "rbac.yaml", "admission.yaml"):
        plane.admin.apply(manifests(pattern))
    wait_served(plane.admin)


def wait_served(admin: "Api") -> None:
    """Until the custom resources are."""
    from tests.rig.api import ApiError
    from tests.rig.processes import until

    def served() -> bool:
        try:
            admin.items(QUARANTINES)
        except ApiError:  # not found, or its storage is being made
            return False
        return len(admin.get("/apis/sentinel.dev/v1alpha1")["resources"]) == 8  # each with its status

    until(served, "the custom resources are not served")


@pytest.fixture(scope="session")
def installed(control_plane: "ControlPlane") -> "ControlPlane":
    install(control_plane)
    return control_plane


@contextlib.contextmanager
def space_of(plane: "ControlPlane", prefix: str) -> Iterator[str]:
    """A namespace whose policies go with the test: each that is left is one more for later controllers to judge."""
    name = plane.namespace(prefix)
    yield name
    plane.admin.delete(f"/apis/sentinel.dev/v1alpha1/namespaces/{name}/jobpolicies")


@pytest.fixture(scope="module")
def own_plane(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[ControlPlane]":
    """For controllers: there is one Lease, which tests hold on the control plane of the run, and brakes count all."""
    from tests.rig.control_plane import ControlPlane
    from tests.rig.processes import Rig

    with (
        Rig(tmp_path_factory.mktemp("control-plane")) as rig,
        shared(ControlPlane(rig, controllers=False, scheduler=False)) as made,
    ):
        install(made)
        yield made


@pytest.fixture
def plane(own_plane: "ControlPlane") -> "ControlPlane":
    """The control plane of this file without what earlier tests left there. Nobody leads, so nobody has to wait."""
    admin = own_plane.admin
    for path in (NODES, NODE_LEASES, QUARANTINES):
        for one in admin.items(path):
            admin.delete(f"{path}/{one['metadata']['name']}")
    for one in admin.items("/api/v1/pods"):
        meta = one["metadata"]
        admin.delete(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}", gracePeriodSeconds=0)
    for path in (PAUSE, CODES):
        if admin.find(path):
            admin.delete(path)
    if admin.find(LEADER):
        admin.patch(LEADER, {"spec": {"holderIdentity": None}})
    else:
        new_lease(admin)
    return own_plane


@pytest.fixture
def fleet(plane: "ControlPlane", tmp_path: Path) -> "Iterator[Fleet]":
    from tests.e2e.box import Box
    from tests.kubernetes.local_fleet import Fleet

    box = Box(tmp_path / "box")
    yield Fleet(plane, box, tmp_path)
    box.close()


@pytest.fixture
def kubelets(fleet: "Fleet") -> "Iterator[Kubelets]":
    from tests.kubernetes.kubelets import Kubelets

    made = Kubelets(fleet.admin)
    yield made
    made.close()


@pytest.fixture
def behind(fleet: "Fleet") -> "Iterator[Proxy]":
    """A way to the API server for controllers of the fleet that go through it."""
    made = Proxy(fleet.plane.url, fleet.plane.identities.ca)
    yield made
    made.close()


@pytest.fixture
def admin(installed: "ControlPlane") -> "Api":
    return installed.admin


@pytest.fixture(scope="session")
def controller_token(installed: "ControlPlane") -> str:
    """Of the controller's service account: nothing is done as administrator but what tests do to the cluster."""
    return installed.token(NAMESPACE, "sentinel-controller")


def kubeconfig(path: Path, url: str, token: str, ca: Path | None = None) -> Path:
    cluster: dict[str, Any] = {"server": url}
    if ca is not None:
        cluster |= {"certificate-authority": str(ca), "tls-server-name": "kubernetes"}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(document))
    return path


def new_lease(admin: "Api", **spec: Any) -> None:
    """In place of that of earlier leaders."""
    if admin.find(LEADER):
        admin.delete(LEADER)
    meta = {"name": "sentinel-controller", "namespace": NAMESPACE}
    admin.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec})


EPOCH = 7


@pytest.fixture
def epoch(admin: "Api", controller_token: str) -> int:
    """A Lease that says that this epoch leads: without it the API server takes no write of the controller."""
    lead_by(admin, controller_token, EPOCH)
    return EPOCH


def lead_by(admin: "Api", controller_token: str, epoch: int) -> None:
    """The API server takes writes of this epoch when it returns."""
    from tests.rig.api import ApiError
    from tests.rig.processes import until

    new_lease(admin, holderIdentity="test", leaseTransitions=epoch, leaseDurationSeconds=3600)
    us = admin.with_token(controller_token)

    def taken() -> bool:
        try:
            us.call("POST", f"{QUARANTINES}?dryRun=All", quarantine("dry", epoch))
        except ApiError as e:
            if e.status != 403:
                raise
            return False
        return True

    until(taken, "the API server does not hear of the lease")


def quarantine(name: str, epoch: int) -> dict[str, Any]:
    needs = {"sentence": "a person"}
    return {
        "apiVersion": "sentinel.dev/v1alpha1",
        "kind": "Quarantine",
        "metadata": {"name": name, "annotations": {"sentinel.dev/epoch": str(epoch)}},
        "spec": {"id": name, "kind": "fault", "node": "n", "nodeUid": "u", "state": "active", "needs": needs},
    }


def rank(name: str, namespace: str, node: str, uid: str = "gone") -> dict[str, Any]:
    """A pod of the job with this uid; by default of one that nobody knows any more."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "llama", "uid": uid, "controller": True}
    meta = {"name": name, "namespace": namespace, "ownerReferences": [owner]}
    tolerations = [{"operator": "Exists"}]
    spec = {"nodeName": node, "containers": [{"name": "c", "image": "none"}], "tolerations": tolerations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def undriven(namespace: str) -> dict[str, Any]:
    """A job of which nobody makes or ends pods: what happens to those that a test makes is Sentinel's doing."""
    template = {"spec": {"containers": [{"name": "c", "image": "none"}], "restartPolicy": "Never"}}
    spec = {"managedBy": "example.com/nobody", "template": template}
    head = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "llama", "namespace": namespace}}
    return {**head, "spec": spec}


def with_job(plane: "ControlPlane", name: str, namespace: str, node: str) -> None:
    """Makes a pod of a job that is there."""
    (job,) = plane.admin.apply([undriven(namespace)])
    plane.admin.create(rank(name, namespace, node, job["metadata"]["uid"]))


def protect_all(namespace: str) -> dict[str, Any]:
    """A policy for every job there."""
    head = {"apiVersion": "sentinel.dev/v1alpha1", "kind": "JobPolicy"}
    return {**head, "metadata": {"name": "all", "namespace": namespace}, "spec": {"jobs": {}}}


@pytest.fixture
def controller(installed: "ControlPlane", controller_token: str, tmp_path: Path) -> str:
    """A kubeconfig of the controller's service account."""
    ca = installed.identities.ca
    return str(kubeconfig(tmp_path / "controller.kubeconfig", installed.url, controller_token, ca))


@pytest.fixture
def proxy(installed: "ControlPlane") -> Iterator[Proxy]:
    made = Proxy(installed.url, installed.identities.ca)
    yield made
    made.close()


@pytest.fixture
def behind_proxy(proxy: Proxy, controller_token: str, tmp_path: Path) -> str:
    """The same identity through the proxy."""
    return str(kubeconfig(tmp_path / "proxied.kubeconfig", proxy.url, controller_token))


def run(made: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(made, 300))
