"""The kubelets of nodes that are only objects: one thread that renews their leases."""

import threading
import time
from http.client import HTTPException
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.rig.api import Api


class Kubelets:
    """Those of the nodes in `renewed` live. `renewals`: how often all of them were renewed."""

    def __init__(self, admin: "Api") -> None:
        self.renewed: set[str] = set()
        self.renewals = 0
        self._admin = admin
        self._last_s = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        from tests.rig.api import ApiError

        while not self._ended.wait(1.0):
            renewing = sorted(self.renewed)
            try:
                for name in renewing:
                    self._renew(name)
            except (ApiError, OSError, HTTPException):
                continue  # the API server is away
            self.renewals += bool(renewing)

    def _renew(self, name: str) -> None:
        now = time.time()
        text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1e6):06d}Z"
        head = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        meta = {"name": name, "namespace": "kube-node-lease"}
        self._admin.apply([{**head, "metadata": meta, "spec": {"renewTime": text}}])
        self._last_s = time.monotonic()

    def silence_s(self) -> float:
        """How long no kubelet renewed its lease."""
        return time.monotonic() - self._last_s

    def close(self) -> None:
        self._ended.set()
        self._thread.join(180)
