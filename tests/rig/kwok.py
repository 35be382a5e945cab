"""Fake nodes by the thousand: kwok plays their kubelets as stages.yaml says."""

import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.rig.api import Object
from tests.rig.control_plane import ControlPlane
from tests.rig.processes import PATIENCE_S, Daemon

STAGES = Path(__file__).with_name("stages.yaml")
FAKE = "kwok.x-k8s.io/node"
EXIT, REASON = "test-rig/exit", "test-rig/reason"
GPU = "nvidia.com/gpu"
WRITERS = 8
CONDITIONS = [
    {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "fake"},
    *(
        {"type": kind, "status": "False", "reason": "KubeletHasSufficient", "message": "fake"}
        for kind in ("MemoryPressure", "DiskPressure", "PIDPressure")
    ),
]


class Kwok:
    """One kwok for one control plane. It looks after nodes that `nodes` made, and after pods on them."""

    def __init__(self, plane: ControlPlane, *, lease_s: int = 40) -> None:
        """`lease_s`: each node renews its lease four times in that. With 10 000 nodes the usual 40 take a core."""
        self.rig, self._plane = plane.rig, plane
        self.daemon: Daemon = plane.rig.daemon(
            "kwok",
            plane.binaries.path("kwok"),
            f"--kubeconfig={plane.user_kubeconfig('kwok', 'system:masters')}",
            f"--config={STAGES}",
            f"--manage-nodes-with-annotation-selector={FAKE}=fake",
            "--node-ip=198.18.255.254",  # reserved for benchmarks: nobody answers there
            "--cidr=198.19.0.0/16",
            f"--node-lease-duration-seconds={lease_s}",
            "--server-address=",
        )

    def nodes(
        self,
        prefix: str,
        count: int,
        *,
        labels: Mapping[str, str] | None = None,
        capacity: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Makes PREFIX-0, PREFIX-1, ... and waits until each of them can be used. Their names.

        Each carries the label `rig: PREFIX`, and the taint `rig=fake:NoSchedule` so that only pods that tolerate it
        come to them.
        """
        has = {
            "cpu": "96",
            "memory": "1Ti",
            "pods": "110",
            "ephemeral-storage": "1Ti",
            GPU: "8",
            **(capacity or {}),
        }

        def make(number: int) -> str:
            name = f"{prefix}-{number}"
            node = {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": name,
                    "labels": {"kubernetes.io/hostname": name, "rig": prefix, **(labels or {})},
                    "annotations": {FAKE: "fake"},
                },
                "spec": {"taints": [{"key": "rig", "value": "fake", "effect": "NoSchedule"}]},
                # All that its first life sign would say, which saves a write for each of thousands.
                "status": {
                    "capacity": has,
                    "allocatable": has,
                    "conditions": CONDITIONS,
                    "nodeInfo": {
                        "bootID": str(uuid.uuid4()),
                        "machineID": uuid.uuid4().hex,
                        "kubeletVersion": "kwok",
                    },
                },
            }
            self._plane.admin.create(node)
            return name

        with ThreadPoolExecutor(WRITERS) as pool:
            names = list(pool.map(make, range(count)))
        # Each costs; so does a look.
        deadline_s, every_s = PATIENCE_S + count / 5, 0.1 + count / 1000
        self.daemon.wait(lambda: len(self.ready(prefix)) >= count, deadline_s, every_s)
        return names

    def ready(self, prefix: str) -> list[str]:
        """Names of the nodes of this prefix that are ready, hold a lease, and have no taint of the control plane's."""
        leases = self._plane.admin.items("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases")
        held = {lease["metadata"]["name"] for lease in leases}
        nodes = self._plane.admin.items("/api/v1/nodes", labelSelector=f"rig={prefix}")
        return [
            name
            for node in nodes
            if (name := node["metadata"]["name"]) in held and is_ready(node) and not shunned(node)
        ]

    def end_pod(self, namespace: str, name: str, code: int, reason: str | None = None) -> None:
        """The containers of a fake pod end with this exit code; `reason` says more of it (OOMKilled)."""
        change = {"metadata": {"annotations": {EXIT: str(code), REASON: reason}}}
        self._plane.admin.patch(f"/api/v1/namespaces/{namespace}/pods/{name}", change)

    def remove(self, prefix: str) -> None:
        """All nodes of this prefix."""
        self._plane.admin.delete(f"/api/v1/nodes?labelSelector=rig%3D{prefix}")


def shunned(node: Object) -> bool:
    """Has a taint of the control plane's own, as a new node has until the controllers have seen that it is ready."""
    return any(taint["key"].startswith("node.kubernetes.io/") for taint in node["spec"].get("taints", []))


def is_ready(node: Object) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
