"""Thousands of objects of a real API server, written into its etcd as copies of one that the server itself has stored.

The API server serves, watches and changes them as all others; only that it made them is left out, which would take
minutes of both cores. Renewals of the kubelets' leases come the same way: written through the API server ten
thousand nodes would take a core more than these machines have, and what a controller sees of it is the same.
"""

import base64
import http.client
import json
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from tests.rig.control_plane import ControlPlane

# Keys of one transaction: etcd takes 128. Objects of one transaction have one version, and a list that comes between
# them misses some: only leases, of which the next renewal is told ten seconds later, are written so.
AT_ONCE = 100
BOOT = "boot"  # what the agents of load.py say, so that the kubelet says the same
RENEWED_S = 1_767_225_600  # of the lease that is copied
SPACES = [f"team-{number:02d}" for number in range(20)]
INDEX = "batch.kubernetes.io/job-completion-index"
LEASES = "/registry/leases/kube-node-lease/"


def node_name(number: int) -> str:
    """All of one length, so that a copy is the same bytes but for the name."""
    return f"node-{number:06d}"


class Bulk:
    """Nodes `node-000000` and on with their leases, and jobs with their pods on them."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self.uids: list[str] = []  # of the nodes
        self._node = self._lease = b""
        self._local = threading.local()

    def nodes(self, count: int) -> None:
        """Until there are so many."""
        if not self.uids:
            self._templates()
        have = len(self.uids)
        new = range(have, max(have, count))
        self.uids += [str(uuid.uuid4()) for _ in new]
        self.restore(new)
        self.renew(new)

    def restore(self, numbers: Iterable[int]) -> None:
        """These nodes as they were made."""
        self._put((f"/registry/minions/{node_name(k)}", self._copy_of_node(k)) for k in numbers)

    def _copy_of_node(self, number: int) -> bytes:
        mine = self._node.replace(node_name(0).encode(), node_name(number).encode())
        return mine.replace(self._node_uid, self.uids[number].encode())

    def renew(self, numbers: Iterable[int]) -> None:
        """These kubelets say that they live."""
        now = _varint(int(time.time()))
        made = self._lease.replace(_varint(RENEWED_S), now)
        rows = (
            (LEASES + node_name(k), made.replace(node_name(0).encode(), node_name(k).encode()))
            for k in numbers
        )
        self._put(rows, AT_ONCE)

    def jobs(self, jobs: int, each: int, nodes: int) -> None:
        """Indexed Jobs of so many running pods, one on a node, on the first so many nodes; in turns in SPACES."""
        admin, name, when = self._plane.admin, "job-000000", "2026-01-01T00:00:00Z"
        space = SPACES[0]
        for one in SPACES:
            admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": one}})
        container = {"name": "main", "image": "train", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
        spec = {"automountServiceAccountToken": False, "restartPolicy": "Never", "containers": [container]}
        asked = {"completionMode": "Indexed", "parallelism": each, "completions": each, "backoffLimit": 0}
        head = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": space}}
        job = admin.create({**head, "spec": {**asked, "template": {"spec": spec}}})
        path = f"/apis/batch/v1/namespaces/{space}/jobs/{name}/status"
        admin.patch(path, {"status": {"active": each, "ready": each, "startTime": when}})
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "controller": True}
        meta = {
            "name": f"{name}-000",
            "namespace": space,
            "labels": {"batch.kubernetes.io/job-name": name, "job-name": name},
            "annotations": {INDEX: "0"},
            "ownerReferences": [{**owner, "uid": job["metadata"]["uid"]}],
        }
        first = {"apiVersion": "v1", "kind": "Pod", "metadata": meta}
        pod = admin.create({**first, "spec": {**spec, "nodeName": node_name(0)}})
        container_id = "a" * 64
        runs = {
            "name": "main",
            "image": "train",
            "imageID": "train",
            "containerID": f"containerd://{container_id}",
            "ready": True,
            "started": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": when}},
        }
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": when}
        status = {"phase": "Running", "startTime": when, "conditions": [ready], "containerStatuses": [runs]}
        admin.patch(f"/api/v1/namespaces/{space}/pods/{name}-000/status", {"status": status})
        stored_job = self._read(f"/registry/jobs/{space}/{name}")
        stored_pod = self._read(f"/registry/pods/{space}/{name}-000")
        job_uid, pod_uid = job["metadata"]["uid"], pod["metadata"]["uid"]

        def copies() -> Iterator[tuple[str, bytes]]:
            for number in range(jobs):
                mine, team = f"job-{number:06d}", SPACES[number % len(SPACES)]
                both = {name: mine, space: team, job_uid: str(uuid.uuid4())}
                for index in range(each):
                    own = {
                        f"{name}-000": f"{mine}-{index:03d}",
                        f"{INDEX}\x12\x010": f"{INDEX}\x12\x01{index}",  # a string of one byte, as protobuf has it
                        node_name(0): node_name((number * each + index) % nodes),
                        container_id: uuid.uuid4().hex * 2,
                        pod_uid: str(uuid.uuid4()),
                    }
                    yield f"/registry/pods/{team}/{mine}-{index:03d}", _replaced(stored_pod, own | both)
                yield f"/registry/jobs/{team}/{mine}", _replaced(stored_job, both)

        self._put(copies())

    def _templates(self) -> None:
        admin, name = self._plane.admin, node_name(0)
        has = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8"}
        conditions = [
            {"type": kind, "status": status, "reason": "Kubelet", "message": "kubelet says so"}
            for kind, status in (("Ready", "True"), ("MemoryPressure", "False"), ("DiskPressure", "False"))
        ]
        labels = {f"example.com/label-{k}": f"value-{k}" for k in range(20)} | {
            "kubernetes.io/hostname": name
        }
        node = admin.create(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": labels},
                "status": {
                    "capacity": has,
                    "allocatable": has,
                    "conditions": conditions,
                    "nodeInfo": {"bootID": BOOT, "machineID": "0" * 32, "kubeletVersion": "v1"},
                    "images": [
                        {"names": [f"registry.example.com/image-{k}@sha256:{'0' * 64}"]} for k in range(20)
                    ],
                },
            }
        )
        # Admission has said that it is not ready, which nobody takes back here; nodes with GPUs often have this one.
        taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
        admin.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": [taint]}})
        self._node_uid = node["metadata"]["uid"].encode()
        admin.call(
            "POST",
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases",
            {
                "metadata": {"name": name, "namespace": "kube-node-lease"},
                "spec": {
                    "holderIdentity": name,
                    "leaseDurationSeconds": 40,
                    "renewTime": "2026-01-01T00:00:00.000000Z",
                },
            },
        )
        self._node, self._lease = self._read(f"/registry/minions/{name}"), self._read(LEASES + name)
        assert _varint(RENEWED_S) in self._lease, "a lease is stored in another way than was thought"

    # ------------------------------------------------------------ etcd

    def _call(self, path: str, **body: Any) -> Any:
        """One call of etcd's JSON gateway. Raises OSError."""
        kept: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if kept is None:
            host = self._plane.etcd_url.removeprefix("http://")
            kept = self._local.connection = http.client.HTTPConnection(host, timeout=60)
        kept.request("POST", f"/v3/kv/{path}", json.dumps(body))
        answer = kept.getresponse()
        text = answer.read()
        assert answer.status == 200, text
        return json.loads(text)

    def _read(self, key: str) -> bytes:
        return base64.b64decode(self._call("range", key=_base64(key.encode()))["kvs"][0]["value"])

    def _put(self, rows: Iterable[tuple[str, bytes]], at_once: int = 1) -> None:
        puts = [
            {"requestPut": {"key": _base64(key.encode()), "value": _base64(value)}} for key, value in rows
        ]
        for start in range(0, len(puts), at_once):
            self._call("txn", success=puts[start : start + at_once])


def _replaced(stored: bytes, pairs: dict[str, str]) -> bytes:
    for old, new in pairs.items():
        assert old.encode() in stored, f"{old!r} is stored in another way than was thought"
        stored = stored.replace(old.encode(), new.encode())
    return stored


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _varint(number: int) -> bytes:
    """As protobuf writes a number."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes((*out, number))
