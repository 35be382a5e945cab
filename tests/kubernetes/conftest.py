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

    control_plane.admin.apply(manifests("crds/*.yaml") + manifests("rbac.yaml"))

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
