"""When nodes became unschedulable, as a watch of the API server tells it to anybody."""

import ssl
import threading
import time
import urllib.request

import msgspec
from msgspec import Struct

from sentinel.cluster.kubernetes.objects import Node
from tests.bench.harness import wait_until
from tests.rig.api import Api


class _Event(Struct):
    type: str
    object: Node


class Watch:
    """A context manager. `out`: node -> time.monotonic() at which it was seen unschedulable; not, once it is back."""

    def __init__(self, admin: Api, node: str = "") -> None:
        path = f"{admin.url}/api/v1/nodes"
        select = f"&fieldSelector=metadata.name%3D{node}" if node else ""
        version = admin.get("/api/v1/nodes?limit=1")["metadata"]["resourceVersion"]
        request = urllib.request.Request(
            f"{path}?watch=1&resourceVersion={version}{select}",
            headers={"Authorization": f"Bearer {admin.token}", "Accept": "application/json"},
        )
        self.out: dict[str, float] = {}
        self.marked: set[str] = set()
        self._answer = urllib.request.urlopen(
            request, context=ssl.create_default_context(cafile=str(admin.ca))
        )
        self._thread = threading.Thread(target=self._follow, name="watch", daemon=True)
        self._thread.start()

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        self._answer.fp.raw._sock.shutdown(2)  # a read that waits ends
        self._thread.join()
        self._answer.close()

    def _follow(self) -> None:
        decode = msgspec.json.Decoder(_Event).decode
        for line in self._answer:
            now_s = time.monotonic()
            if not line.endswith(b"\n"):
                return  # it was cut off in the middle of it: the end
            node = decode(line).object
            name = node.metadata.name
            if node.spec.unschedulable:
                self.out.setdefault(name, now_s)
            else:
                self.out.pop(name, None)
            ours = any(taint.key == "sentinel.dev/quarantined" for taint in node.spec.taints)
            (self.marked.add if ours else self.marked.discard)(name)

    def wait_out(self, count: int, within_s: float) -> float:
        """Until so many are: when the last of them was seen, on time.monotonic()."""
        wait_until(lambda: len(self.out) >= count, within_s, f"{count} nodes unschedulable")
        return max(self.out.values())
