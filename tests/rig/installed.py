"""Sentinel on a test cluster as `deploy/` ships it: its manifests, and pods from an image of this checkout."""

import fcntl
import hashlib
from pathlib import Path
from typing import Any

import yaml

from scripts.image import archive as image
from scripts.image.base import ImageError
from tests.rig.api import ApiError, Object
from tests.rig.control_plane import ControlPlane
from tests.rig.node import Node
from tests.rig.processes import RigError, until

REPO = Path(__file__).parents[2]
NAMESPACE = "sentinel-system"
FAKES = "198.18.255."  # addresses of pods on fake nodes, which say nothing
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
INPUTS = (
    "sentinel/**/*.py",
    "rules/**/*",
    "examples/**/*",
    "scripts/image/*.py",
    "pyproject.toml",
    "README.md",  # of which the metadata are made
    "LICENSE",
    "requirements.lock",
)


def sentinel_image() -> Path:
    """The archive, made once for each state of the sources (half a minute for the packages, then seconds)."""
    made = hashlib.sha256()
    for pattern in INPUTS:
        for path in sorted(REPO.glob(pattern)):
            if path.is_file() and path.suffix != ".pyc":
                made.update(f"{path.relative_to(REPO)}\0".encode() + path.read_bytes())
    archive = REPO / f"build/test-image/{made.hexdigest()[:16]}.tar"
    archive.parent.mkdir(parents=True, exist_ok=True)
    with open(archive.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker of the run may be making it
        if not archive.exists():
            for older in archive.parent.glob("*.tar"):
                older.unlink()
            try:
                image.make(say=lambda text: None).write(image.NAME, archive)
            except ImageError as error:
                raise RigError(f"no image: {error}") from None
    return archive


class Sentinel:
    """Two controllers and an agent on each node. The nodes must have the image."""

    def __init__(
        self,
        plane: ControlPlane,
        *,
        agent: Object | None = None,
        controller: Object | None = None,
        install: bool = True,
    ) -> None:
        """`agent`, `controller`: what differs in their settings.yaml. Without `install` it is installed already."""
        self.plane, self.admin = plane, plane.admin
        if not install:
            return
        self._settings = {"sentinel-agent": agent or {}, "sentinel-controller": controller or {}}
        self._apply("crds/*.yaml", "namespace.yaml", "rbac.yaml", "admission.yaml", "controller.yaml")
        until(lambda: self.admin.find(f"/api/v1/namespaces/{NAMESPACE}/configmaps/sentinel-ca"), self.story)
        self._apply("agent.yaml")

    def _apply(self, *patterns: str) -> None:
        for path in (path for pattern in patterns for path in sorted((REPO / "deploy").glob(pattern))):
            self.admin.apply(self._changed(one) for one in yaml.safe_load_all(path.read_text()) if one)

    def _changed(self, manifest: Object) -> Object:
        name = manifest["metadata"]["name"]
        if manifest["kind"] == "ConfigMap" and name in self._settings:
            settings = yaml.safe_load(manifest["data"]["settings.yaml"])
            manifest["data"]["settings.yaml"] = yaml.safe_dump({**settings, **self._settings[name]})
        return manifest

    def set(self, name: str, **changes: Any) -> None:
        """Other settings in a ConfigMap of `deploy/`: agents read them again, controllers when they are restarted."""
        path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{name}"
        settings = yaml.safe_load(self.admin.get(path)["data"]["settings.yaml"])
        self.admin.patch(path, {"data": {"settings.yaml": yaml.safe_dump({**settings, **changes})}})

    def wait(self, *nodes: Node) -> None:
        """Until a controller leads and hears the agents of these nodes."""
        until(lambda: all(self.reports(node) for node in nodes), self.story)

    def reports(self, node: Node) -> bool:
        page = node.run("busybox", "wget", "-qO-", "http://127.0.0.1:9810/metrics", check=False).stdout
        return "\nsentinel_controller_connected 1\n" in page

    def pods(self, part: str) -> list[Object]:
        """Of the agents or the controllers."""
        return self.admin.items(PODS, labelSelector=f"app.kubernetes.io/component={part}")

    def agent_on(self, node: str) -> Object | None:
        return next((pod for pod in self.pods("agent") if pod["spec"].get("nodeName") == node), None)

    def log(self, pod: Object) -> str:
        return str(self.admin.get(f"{PODS}/{pod['metadata']['name']}/log"))

    def node(self, name: str) -> Any:
        return self.admin.get(f"/api/v1/nodes/{name}")

    def quarantines(self, node: str = "") -> list[Object]:
        """Records, of one node or of all, in the order in which they were begun."""
        items = self.admin.items("/apis/sentinel.dev/v1alpha1/quarantines")
        found = [one["spec"] for one in items if node in ("", one["spec"]["node"])]
        return sorted(found, key=lambda one: (one["since"], one["id"]))

    def story(self) -> str:
        """What the pods say, for messages."""
        told = []
        for pod in (*self.pods("controller"), *self.pods("agent")):
            if pod["status"].get("podIP", "").startswith(FAKES):
                continue
            head = f"--- {pod['metadata']['name']}: {pod['status']}"
            try:
                told.append(f"{head[:1500]}\n{self.log(pod)[-2000:]}")
            except (ApiError, OSError) as error:
                told.append(f"{head[:1500]}\n{error}")
        return "\n".join(told)
