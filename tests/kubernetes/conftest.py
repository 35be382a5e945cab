"""What `deploy/` ships, applied to the real API server; everything then runs with the identities that it ships."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.kubernetes.proxy import Proxy

if TYPE_CHECKING:
    from tests.rig.api import Api
    from tests.rig.control_plane import ControlPlane

DEPLOY = Path(__file__).parents[2] / "deploy"
NAMESPACE = "sentinel-system"


def manifests(pattern: str) -> list[dict[str, Any]]:
    return [
        document
        for path in sorted(DEPLOY.glob(pattern))
        for document in yaml.safe_load_all(path.read_text())
        if document
    ]


@pytest.fixture(scope="session")
def installed(control_plane: "ControlPlane") -> "ControlPlane":
    from tests.rig.processes import until

    control_plane.admin.apply(manifests("crds/*.yaml") + manifests("namespace.yaml"))
    control_plane.admin.apply(manifests("rbac.yaml") + manifests("admission.yaml"))

    def served() -> bool:
        found = control_plane.admin.find("/apis/sentinel.dev/v1alpha1")
        return found is not None and len(found["resources"]) == 8  # each with its status

    until(served, "the custom resources are not served")
    return control_plane


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


EPOCH = 7


@pytest.fixture
def epoch(admin: "Api", controller_token: str) -> int:
    """A Lease that says that this epoch leads: without it the API server takes no write of the controller."""
    from tests.rig.api import ApiError
    from tests.rig.processes import until

    path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    if admin.find(f"{path}/sentinel-controller"):
        admin.delete(f"{path}/sentinel-controller")
    spec = {"holderIdentity": "test", "leaseTransitions": EPOCH, "leaseDurationSeconds": 3600}
    admin.call("POST", path, {"metadata": {"name": "sentinel-controller"}, "spec": spec})
    us = admin.with_token(controller_token)

    def taken() -> bool:
        try:
            us.call("POST", "/apis/sentinel.dev/v1alpha1/quarantines?dryRun=All", quarantine("dry", EPOCH))
        except ApiError as e:
            if e.status != 403:
                raise
            return False
        return True

    until(taken, "the API server does not hear of the lease")
    return EPOCH


def quarantine(name: str, epoch: int) -> dict[str, Any]:
    needs = {"sentence": "a person"}
    return {
        "apiVersion": "sentinel.dev/v1alpha1",
        "kind": "Quarantine",
        "metadata": {"name": name, "annotations": {"sentinel.dev/epoch": str(epoch)}},
        "spec": {"id": name, "kind": "fault", "node": "n", "nodeUid": "u", "state": "active", "needs": needs},
    }


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


async def eventually(holds: Callable[[], object], why: str, deadline_s: float = 60.0) -> None:
    end = asyncio.get_running_loop().time() + deadline_s
    while not holds():
        assert asyncio.get_running_loop().time() < end, why
        await asyncio.sleep(0.02)


def run(made: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(made, 100))
