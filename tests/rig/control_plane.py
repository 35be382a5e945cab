"""A real Kubernetes control plane: etcd and API server, with controller manager and scheduler where asked for."""

import contextlib
import json
import secrets
import urllib.error
import urllib.request
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.rig.api import Api, ApiError, Object
from tests.rig.binaries import Binaries, shipped
from tests.rig.identities import Identities
from tests.rig.network import Network
from tests.rig.processes import Daemon, Rig, RigError, free_port
from tests.rig.services import KUBERNETES

ISSUER = "https://kubernetes.default.svc.cluster.local"
ADMINS = "system:masters"
ATTEMPTS = 3  # a port that was free when it was chosen may be taken when it is used


class ControlPlane:
    """Comes up in its constructor and ends with its rig.

    `admin` speaks to the API server as administrator, `kubeconfig` is the same as a file. `etcd`, `api_server`,
    `controller_manager`, `scheduler` are `Daemon`s: stop, start, kill, freeze, thaw.
    """

    def __init__(
        self,
        rig: Rig,
        *,
        controllers: bool = True,
        scheduler: bool = True,
        api_options: Sequence[str] = (),
        controller_options: Sequence[str] = (),
        binaries: Binaries | None = None,
    ) -> None:
        """`api_options`, `controller_options`: more flags. Raises NotBuilt, RigError.

        Without `controllers` nobody makes the service account `default` of a namespace, and pods need none.
        """
        self.rig, self.binaries = rig, binaries or shipped()
        self.identities = Identities(rig.folder / "identities")
        self._tokens: list[str] = []
        admin = self._static_token("admin", ADMINS)
        self.etcd = self._start_etcd()
        self.api_server = self._start_api_server(admin, controllers, api_options)
        self.kubeconfig = self.identities.kubeconfig(rig.folder / "admin.kubeconfig", self.url, token=admin)
        self.controller_manager = self._start_controller_manager(controller_options) if controllers else None
        self.scheduler = self._start_scheduler() if scheduler else None
        if self.controller_manager:
            path = "/api/v1/namespaces/default/serviceaccounts/default"
            self.controller_manager.wait(lambda: self.admin.find(path))

    # ------------------------------------------------------------ processes

    def _static_token(self, user: str, group: str) -> str:
        token = secrets.token_hex(24)
        self._tokens.append(f'{token},{user},{user},"{group}"')
        return token

    def _start_etcd(self) -> Daemon:
        for _ in range(ATTEMPTS):
            self.etcd_url = f"http://127.0.0.1:{free_port()}"
            etcd = self.rig.daemon(
                "etcd",
                self.binaries.path("etcd"),
                "--name=rig",
                f"--data-dir={self.rig.folder}/etcd",
                f"--listen-client-urls={self.etcd_url}",
                f"--advertise-client-urls={self.etcd_url}",
                "--listen-peer-urls=http://127.0.0.1:0",
                "--initial-advertise-peer-urls=http://127.0.0.1:0",
                "--initial-cluster=rig=http://127.0.0.1:0",
                "--unsafe-no-fsync",  # nothing outlives the rig
                "--log-level=warn",
            )
            if self._came_up(etcd, self._etcd_answers):
                return etcd
        raise RigError("no port for etcd")

    def _etcd_answers(self) -> bool:
        with contextlib.suppress(OSError):
            return self._etcd("maintenance/status").get("header") is not None
        return False

    def _came_up(self, daemon: Daemon, ready: Any) -> bool:
        """False where its port was taken, to try another one."""
        try:
            daemon.wait(ready)
        except RigError:
            if "address already in use" not in daemon.tail():
                raise
            self.rig.forget(daemon)
            return False
        return True

    def _start_api_server(self, admin: str, controllers: bool, options: Sequence[str]) -> Daemon:
        tokens = self.rig.folder / "tokens.csv"
        tokens.touch(0o600)
        tokens.write_text("\n".join(self._tokens) + "\n")
        self.service_account_key = self.identities.key_pair("service-accounts")
        certificate, key = self.identities.server(
            "api-server", "kubernetes", "localhost", "127.0.0.1", KUBERNETES
        )
        kubelet_certificate, kubelet_key = self.identities.user("kube-apiserver-kubelet-client", ADMINS)
        if not controllers:
            options = ["--disable-admission-plugins=ServiceAccount", *options]
        for _ in range(ATTEMPTS):
            port = free_port()
            self.url = f"https://127.0.0.1:{port}"
            self.admin = Api(self.url, self.identities.ca, token=admin)
            server = self.rig.daemon(
                "kube-apiserver",
                self.binaries.path("kube-apiserver"),
                f"--etcd-servers={self.etcd_url}",
                "--bind-address=0.0.0.0",  # kubelets in network namespaces of their own come over a bridge
                f"--secure-port={port}",
                f"--tls-cert-file={certificate}",
                f"--tls-private-key-file={key}",
                f"--client-ca-file={self.identities.ca}",
                f"--token-auth-file={tokens}",
                "--anonymous-auth=false",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                f"--service-account-issuer={ISSUER}",
                f"--service-account-key-file={self.service_account_key}",
                f"--service-account-signing-key-file={self.service_account_key}",
                f"--kubelet-client-certificate={kubelet_certificate}",
                f"--kubelet-client-key={kubelet_key}",
                "--kubelet-preferred-address-types=InternalIP",
                "--service-cluster-ip-range=10.96.0.0/16",
                "--endpoint-reconciler-type=none",
                "--allow-privileged=true",
                "--profiling=false",
                *options,
            )
            if self._came_up(server, self.admin.is_ready):
                return server
        raise RigError("no port for the API server")

    def _start_controller_manager(self, options: Sequence[str]) -> Daemon:
        return self.rig.daemon(
            "kube-controller-manager",
            self.binaries.path("kube-controller-manager"),
            f"--kubeconfig={self.user_kubeconfig('system:kube-controller-manager')}",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={self.service_account_key}",
            f"--root-ca-file={self.identities.ca}",
            "--controllers=*,-ttl-controller",  # it writes to each new node once more, for nothing here
            "--kube-api-qps=500",  # by default a thousand new nodes keep their taint for a minute
            "--kube-api-burst=1000",
            "--leader-elect=false",
            "--secure-port=0",
            *options,
        )

    def _start_scheduler(self) -> Daemon:
        return self.rig.daemon(
            "kube-scheduler",
            self.binaries.path("kube-scheduler"),
            f"--kubeconfig={self.user_kubeconfig('system:kube-scheduler')}",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
            "--leader-elect=false",
            "--secure-port=0",
        )

    def wait_ready(self) -> None:
        """After a start or a thaw of the API server."""
        self.api_server.wait(self.admin.is_ready)

    def mend(self) -> str:
        """Starts again what has ended, with all that etcd holds, and lets go on what stands still; says what that was.

        RigError where it does not come up.
        """
        parts = [self.etcd, self.api_server, self.controller_manager, self.scheduler]
        frozen = [one for one in parts if one and one.running and one.frozen]
        for one in frozen:
            one.thaw()
        ended = [one for one in parts if one and not one.running]
        story = "\n".join([*(f"{one.name} stood still" for one in frozen), *(one.tail(500) for one in ended)])
        for one in ended:
            one.start()
        if story:
            self.wait_ready()
        return story

    @cached_property
    def network(self) -> Network:
        """Of the real nodes."""
        return Network(self.rig)

    # ------------------------------------------------------------ etcd

    def _etcd(self, path: str, **body: Any) -> Any:
        """One call of etcd's JSON gateway; OSError where it does not answer."""
        request = urllib.request.Request(
            f"{self.etcd_url}/v3/{path}", json.dumps(body).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def compact_etcd(self) -> int:
        """Forget all revisions before this one, which it returns: a watch from an older one gets 410."""
        revision = int(self._etcd("maintenance/status")["header"]["revision"])
        self._etcd("kv/compaction", revision=str(revision), physical=True)
        return revision

    # ------------------------------------------------------------ users

    def user(self, user: str, group: str = "rig") -> Api:
        """Somebody else; without RBAC rules for them they may do next to nothing."""
        return Api(self.url, self.identities.ca, files=self.identities.user(user, group))

    def user_kubeconfig(self, user: str, group: str = "rig", *, url: str = "") -> Path:
        """The same as a file."""
        path = self.rig.folder / f"{user.replace(':', '-')}.kubeconfig"
        return self.identities.kubeconfig(path, url or self.url, files=self.identities.user(user, group))

    def namespace(self, prefix: str = "test") -> str:
        """A new one, ready for pods."""
        name = f"{prefix}-{secrets.token_hex(4)}"
        self.admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        if self.controller_manager:
            path = f"/api/v1/namespaces/{name}/serviceaccounts/default"
            self.controller_manager.wait(lambda: self.admin.find(path))
        return name

    def service_account(self, namespace: str, name: str) -> None:
        meta = {"name": name, "namespace": namespace}
        self.admin.apply([{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}])

    def token(
        self,
        namespace: str,
        account: str,
        *,
        pod: Object | None = None,
        audience: str = "",
        seconds: int = 3600,
    ) -> str:
        """A token of a service account; with `pod` bound to it and to its node, as a projected volume has it."""
        spec: Object = {"expirationSeconds": seconds, "audiences": [audience] if audience else []}
        if pod:
            meta = pod["metadata"]
            spec["boundObjectRef"] = {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": meta["name"],
                "uid": meta["uid"],
            }
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        answer = self.admin.call("POST", path, request)
        return str(answer["status"]["token"])

    def node_token(
        self, namespace: str, account: str, node: str, *, audience: str = "", seconds: int = 3600
    ) -> str:
        """What a DaemonSet's pod on this node would hold; makes service account and pod where they are not there."""
        self.service_account(namespace, account)
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{account}-{node}", "namespace": namespace},
            "spec": {
                "serviceAccountName": account,
                "automountServiceAccountToken": False,
                "nodeName": node,
                "containers": [{"name": "agent", "image": "rig/busybox", "command": ["sleep", "1000000"]}],
                "tolerations": [{"operator": "Exists"}],
            },
        }
        try:
            made = self.admin.create(pod)
        except ApiError as e:
            if e.status != 409:
                raise
            made = self.admin.get(self.admin.path_of(pod))
        return self.token(namespace, account, pod=made, audience=audience, seconds=seconds)

    def node(self, name: str, **labels: str) -> Object:
        """A Node object that nobody looks after (no kubelet, no lease)."""
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        found: Object = self.admin.apply([node])[0]
        return found
