"""Volcano: its Job, queues and pod groups, with a scheduler of its own."""

from typing import ClassVar

from tests.rig.api import Object
from tests.rig.binaries import Manifests
from tests.rig.operators.base import Operator
from tests.rig.processes import Daemon, free_port

SPACE = "volcano-system"
PLUGINS = (
    ["priority", "gang", "conformance"],
    ["overcommit", "drf", "predicates", "proportion", "nodeorder"],
)
SCHEDULER = {
    "actions": "enqueue, allocate, backfill",
    "tiers": [{"plugins": [{"name": name} for name in tier]} for tier in PLUGINS],
}


class Volcano(Operator):
    """`daemon` is the controller manager; `scheduler` and `webhooks` are the others."""

    name = "volcano"
    programs: ClassVar = {
        "volcano-controller-manager": "volcano.sh/volcano/cmd/controller-manager",
        "volcano-scheduler": "volcano.sh/volcano/cmd/scheduler",
        "volcano-webhook-manager": "volcano.sh/volcano/cmd/webhook-manager",
    }
    manifests = Manifests("volcano.sh/volcano", ("installer/volcano-development.yaml",))

    def prepare(self) -> None:
        self.namespace(SPACE)

    def webhook_name(self, document: Object) -> str:
        """Its own names, since it writes into them; those for its jobs only, for others ask about all pods."""
        name = str(document["metadata"]["name"])
        return name if "-jobs-" in name else ""

    def start(self) -> Daemon:
        options = (f"--kubeconfig={self.kubeconfig}", "--kube-api-qps=500", "--kube-api-burst=500")
        self.webhooks = self.run(
            "volcano-webhook-manager",
            *options,
            "--enabled-admission=/jobs/mutate,/jobs/validate",
            f"--tls-cert-file={self.certificates}/tls.crt",
            f"--tls-private-key-file={self.certificates}/tls.key",
            f"--ca-cert-file={self.plane.identities.ca}",
            "--listen-address=127.0.0.1",
            f"--port={self.webhook_port}",
            "--webhook-namespace=volcano-system",
            "--webhook-service-name=volcano-admission-service",
            env=self._sockets("webhooks"),
        )
        health = (
            f"--healthz-address=127.0.0.1:{free_port()}",
            "--enable-healthz=true",
            "--leader-elect=false",
        )
        self.scheduler = self.run(
            "volcano-scheduler",
            *options,
            *health,
            f"--scheduler-conf={self.write('scheduler.conf', SCHEDULER)}",
            "--schedule-period=200ms",
            "--cache-dumper=false",
            env=self._sockets("scheduler"),
        )
        return self.run(
            "volcano-controller-manager",
            *options,
            f"--healthz-address=127.0.0.1:{self.probe_port}",
            "--enable-healthz=true",
            "--leader-elect=false",
            env=self._sockets("controllers"),
        )

    def _sockets(self, name: str) -> dict[str, str]:
        return {"DEBUG_SOCKET_DIR": str(self.folder / "tmp" / name)}

    def is_ready(self) -> bool:
        """The queue `default`, which the scheduler makes, is there and open, too."""
        queue = self.admin.find("/apis/scheduling.volcano.sh/v1beta1/queues/default")
        is_open = queue is not None and queue.get("status", {}).get("state") == "Open"
        return self.answers("healthz") and self.serves_webhooks() and is_open
