"""People who may do what `deploy/` lets them, and nothing else: with kubectl and with the command line."""

import json
import subprocess
from typing import TYPE_CHECKING, Any

from tests.e2e.box import SENTINEL
from tests.kubernetes.conftest import NAMESPACE

if TYPE_CHECKING:
    from tests.rig.control_plane import ControlPlane


def bind(plane: "ControlPlane", user: str, role: str, to: str = "") -> str:
    """The path of the user's kubeconfig: who may do what `role` says, and nothing else. `to`: another one may too."""
    rbac = "rbac.authorization.k8s.io"
    subject = [{"kind": "User", "name": to or user, "apiGroup": rbac}]
    bindings: list[dict[str, Any]] = [{"kind": "ClusterRoleBinding", "metadata": {"name": user}}]
    reference = {"apiGroup": rbac, "kind": "ClusterRole", "name": role}
    bindings[0]["roleRef"] = reference
    if role in ("sentinel-operator", "sentinel-controller"):
        meta = {"name": user, "namespace": NAMESPACE}
        bindings.append({"kind": "RoleBinding", "metadata": meta, "roleRef": {**reference, "kind": "Role"}})
    plane.admin.apply([{"apiVersion": f"{rbac}/v1", "subjects": subject, **one} for one in bindings])
    return str(plane.user_kubeconfig(user, "people"))


class Person:
    def __init__(self, plane: "ControlPlane", name: str, kubeconfig: str) -> None:
        self.plane, self.name, self.kubeconfig = plane, name, kubeconfig
        self.home = str(plane.rig.folder / f"home-of-{name}")  # kubectl makes it

    def kubectl(self, *words: str) -> "subprocess.CompletedProcess[str]":
        command = [self.plane.binaries.path("kubectl"), "--kubeconfig", self.kubeconfig, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=180, env={"HOME": self.home})

    def says(self, *words: str, timeout_s: float = 180.0) -> "subprocess.CompletedProcess[str]":
        """`sentinel WORDS` as this person, on a machine without a Sentinel of its own."""
        env = {"HOME": self.home, "KUBECONFIG": self.kubeconfig, "PATH": "/usr/bin:/bin"}
        return subprocess.run([SENTINEL, *words], capture_output=True, text=True, timeout=timeout_s, env=env)

    def status(self) -> dict[str, Any]:
        done = self.says("status", "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)  # type: ignore[no-any-return]

    def did(self, *words: str) -> str:
        done = self.kubectl(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout
