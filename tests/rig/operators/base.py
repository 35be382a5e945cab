"""What all operators of the rig have in common: built when asked for, installed, started, waited for."""

import json
import shutil
import ssl
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from tests.gate.rights import TO_MOUNT
from tests.rig.api import Object
from tests.rig.binaries import MODULES, Binaries, Manifests
from tests.rig.control_plane import ADMINS, ATTEMPTS, ControlPlane
from tests.rig.identities import base64_of
from tests.rig.processes import Daemon, RigError, free_port, until
from tests.rig.toolchain import cache_root

WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
# In a mount namespace of its own: another folder as /tmp. The program was opened before, it may be below /tmp.
OWN_TMP = 'exec 3<"$1" && mount --bind "$2" /tmp && shift 2 && exec /proc/self/fd/3 "$@"'


class Operator(ABC):
    """One operator on one control plane, ready when its constructor returns; it ends with the rig.

    `daemon`: stop, start, kill, freeze, thaw. Only one of a kind fits on a control plane.
    """

    name: ClassVar[str]  # also the folder of its Go module below go/
    programs: ClassVar[Mapping[str, str]]  # as in `Binaries`
    manifests: ClassVar[Manifests]
    # Webhooks for all pods would stop those of others: name of the webhook -> label that its objects have.
    only_with_label: ClassVar[Mapping[str, str]] = {}
    # Programs that look for their certificates in /tmp/k8s-webhook-server only get a /tmp of their own (needs root).
    own_tmp: ClassVar[bool] = False

    def __init__(self, plane: ControlPlane) -> None:
        """Raises NotBuilt, RigError."""
        self.plane, self.rig, self.admin = plane, plane.rig, plane.admin
        self.built = self.binaries()
        self.folder = self.rig.folder / "operators" / self.name
        certificates = self.folder / "tmp/k8s-webhook-server/serving-certs"
        certificates.mkdir(parents=True)
        self.certificates = certificates
        pair = plane.identities.server(f"{self.name}-webhook", "localhost", "127.0.0.1")
        for path, name in zip(pair, ("tls.crt", "tls.key"), strict=True):
            shutil.copy(path, certificates / name)
        kubeconfig = plane.user_kubeconfig(f"operator-{self.name}", ADMINS)
        self.kubeconfig = Path(shutil.copy(kubeconfig, self.folder / "tmp/kubeconfig"))
        self._install_resources()
        self.prepare()
        self.daemon = self._start()

    @classmethod
    def binaries(cls) -> Binaries:
        folder = MODULES / cls.name
        manifests = {f"{cls.name}.json": (folder, cls.manifests)}
        how = f"`python -m tests.rig.operators {cls.name}`"
        return Binaries({folder: cls.programs}, cache_root(), manifests, how)

    # ------------------------------------------------------------ what an operator says of itself

    def prepare(self) -> None:  # noqa: B027  most need nothing
        """Objects that it needs before it starts."""

    @abstractmethod
    def start(self) -> Daemon:
        """Starts its processes; the one that tells whether it is ready."""

    def is_ready(self) -> bool:
        return self.answers("readyz") and self.serves_webhooks()

    def webhook_name(self, document: Object) -> str:
        """Of a configuration of webhooks; empty: it is not installed.

        It is one of the rig's own: operators that manage certificates themselves must not find it.
        """
        return f"{self.name}.rig"

    # ------------------------------------------------------------ for those that say it

    def run(self, program: str, *options: str, env: Mapping[str, str] | None = None) -> Daemon:
        """One of its programs. It finds the API server by KUBECONFIG and may write to its own TMPDIR."""
        path = self.built.path(program)
        tmp = "/tmp" if self.own_tmp else str(self.folder / "tmp")
        command: list[str | Path] = [path, *options]
        if self.own_tmp:
            command = [
                "unshare",
                *TO_MOUNT,
                "--",
                "sh",
                "-c",
                OWN_TMP,
                "sh",
                path,
                self.folder / "tmp",
                *options,
            ]
        return self.rig.daemon(
            program, *command, env={"KUBECONFIG": f"{tmp}/kubeconfig", "TMPDIR": tmp, **(env or {})}
        )

    def write(self, name: str, document: object) -> Path:
        """A file of configuration; JSON is YAML."""
        path = self.folder / "tmp" / name
        path.write_text(json.dumps(document, indent=1))
        return path

    def configured(self, version: str, **more: object) -> str:
        """The option with its configuration, as operators of Kubernetes' own groups read it."""
        document = {
            "apiVersion": version,
            "kind": "Configuration",
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "clientConnection": {"qps": 500, "burst": 500},
            "metrics": {"bindAddress": "0"},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self.probe_port}"},
            "webhook": {"host": "127.0.0.1", "port": self.webhook_port, "certDir": str(self.certificates)},
            **more,
        }
        return f"--config={self.write('configuration.yaml', document)}"

    def namespace(self, name: str) -> None:
        self.admin.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}])

    def empty_secret(self, space: str, name: str) -> None:
        """For operators that make certificates themselves: they fill it, nobody uses it, none starts without it."""
        self.namespace(space)
        meta = {"name": name, "namespace": space}
        self.admin.apply([{"apiVersion": "v1", "kind": "Secret", "metadata": meta}])

    # ------------------------------------------------------------ starting

    def _documents(self) -> list[Object]:
        found: list[Object] = json.loads(self.built.path(f"{self.name}.json").read_text())
        return found

    def _install_resources(self) -> None:
        """Custom resources, served when this returns."""
        made = [d for d in self._documents() if d["kind"] == "CustomResourceDefinition"]
        paths = [self.admin.path_of(definition) for definition in made]
        self.admin.apply(made)
        until(
            lambda: all(is_true(self.admin.get(path), "Established") for path in paths),
            f"{paths} are not served",
        )

    def _install_webhooks(self) -> None:
        """Before the operator starts, so that the API server knows them when it is ready."""
        self.webhook_urls = []
        for document in self._documents():
            if document["kind"] in WEBHOOKS and (name := self.webhook_name(document)):
                for hook in document["webhooks"]:
                    self._direct(hook)
                    self.webhook_urls.append(hook["clientConfig"]["url"])
                self.admin.apply([{**document, "metadata": {"name": name}}])

    def _direct(self, hook: Object) -> None:
        """A webhook to this machine instead of to a service, which has no address here."""
        path = hook["clientConfig"]["service"]["path"]
        authority = base64_of(self.plane.identities.ca)
        url = f"https://127.0.0.1:{self.webhook_port}{path}"
        hook["clientConfig"] = {"url": url, "caBundle": authority}
        if label := self.only_with_label.get(hook["name"]):
            hook["objectSelector"] = {"matchExpressions": [{"key": label, "operator": "Exists"}]}

    def _start(self) -> Daemon:
        for _ in range(ATTEMPTS):
            self.webhook_port, self.probe_port = free_port(), free_port()
            self._install_webhooks()
            before = len(self.rig.daemons)
            daemon = self.start()
            try:
                daemon.wait(self.is_ready)
                return daemon
            except RigError:
                mine = self.rig.daemons[before:]
                if not any("address already in use" in each.tail(10_000) for each in mine):
                    raise
                for each in mine:
                    self.rig.forget(each)
        raise RigError(f"no port for {self.name}")

    def serves_webhooks(self) -> bool:
        """Each of them: they come after its readiness, and their paths after their port."""
        context = ssl.create_default_context(cafile=str(self.plane.identities.ca))
        for url in self.webhook_urls:
            try:
                urllib.request.urlopen(url, b"{}", timeout=5, context=context).close()
            except urllib.error.HTTPError as refused:
                if refused.code == 404:
                    return False
            except OSError:
                return False
        return True

    def answers(self, path: str) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.probe_port}/{path}", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def is_true(found: Object, *kinds: str) -> bool:
    """One of these conditions is true in the object's status."""
    conditions: Sequence[Object] = found.get("status", {}).get("conditions") or []
    return any(c["type"] in kinds and c["status"] == "True" for c in conditions)
