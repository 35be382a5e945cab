"""The way of a job through its operator that each kind must be able to go, told by its pods and not by its words."""

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.rig.api import Object
from tests.rig.image import IMAGE
from tests.rig.node import Node
from tests.rig.operators.base import Operator, is_true
from tests.rig.processes import until

Change = Callable[["Flow"], object]
Ender = Callable[[str, str, int], object]  # ends a pod: namespace, name, exit code


def template(nodes: str, container: str = "main") -> Object:
    """Pods for the nodes with the label `rig: NODES`, fake or real, that run until they are ended."""
    main = {
        "name": container,
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done"],
    }
    tolerations = [{"key": "rig", "operator": "Exists"}]
    return {"spec": {"nodeSelector": {"rig": nodes}, "tolerations": tolerations, "containers": [main]}}


def ends_on(node: Node) -> Ender:
    """Ends pods of a real node, all of them with 0."""

    def end(space: str, name: str, code: int) -> None:
        assert code == 0
        pod = node.plane.admin.get(f"/api/v1/namespaces/{space}/pods/{name}")
        for pid in node.pids(pod):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    return end


def patch(**spec: object) -> Change:
    """A merge patch of the job's spec."""
    return lambda flow: flow.admin.patch(flow.path, {"spec": spec})


def condition(*kinds: str) -> Callable[[Object], bool]:
    return lambda job: is_true(job, *kinds)


@dataclass
class Flow:
    """One job, told by its pods."""

    operator: Operator
    end_pod: Ender  # `Kwok.end_pod`, or `ends_on(node)`
    job: Object
    count: int  # of pods that run at once
    selector: str  # of its pods
    space: str = ""  # by default one of its own

    def __post_init__(self) -> None:
        self.admin = self.operator.admin
        self.space = self.space or self.operator.plane.namespace()
        self.job["metadata"]["namespace"] = self.space
        self.path = self.admin.path_of(self.job)

    def pods(self, phase: str = "") -> list[Object]:
        found = self.admin.items(f"/api/v1/namespaces/{self.space}/pods", labelSelector=self.selector)
        return [pod for pod in found if phase in ("", pod["status"].get("phase"))]

    def running(self, count: int | None = None) -> set[str]:
        """Waits until all pods run, and no others are left; their UIDs."""
        wanted = self.count if count is None else count

        def all_run() -> bool:
            pods = self.pods()
            return len(pods) == wanted and all(
                pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
                for pod in pods
            )

        until(all_run, self.why)
        return {pod["metadata"]["uid"] for pod in self.pods()}

    def now(self) -> Object:
        found: Object = self.admin.get(self.path)
        return found

    def why(self) -> str:
        pods = [
            (p["metadata"]["name"], p["spec"].get("nodeName"), p["status"].get("phase")) for p in self.pods()
        ]
        job = self.admin.find(self.path) or {}
        events = self.admin.items(f"/api/v1/namespaces/{self.space}/events")
        said = [f"{e['involvedObject']['name']}: {e['reason']}: {e['message']}" for e in events]
        return "\n".join([f"{pods}", f"{job.get('spec')}", f"{job.get('status')}", *said])

    def end(self, code: int = 0, names: Sequence[str] = ()) -> None:
        """The containers of these pods, or of all, end."""
        for pod in self.pods("Running"):
            if not names or pod["metadata"]["name"] in names:
                self.end_pod(self.space, pod["metadata"]["name"], code)

    def running_again(self, before: set[str], kept: int) -> None:
        """Waits until all pods run and only so many of those before are among them."""
        until(lambda: len(before & {pod["metadata"]["uid"] for pod in self.pods()}) <= kept, self.why)
        assert len(before & self.running()) == kept

    def until_now(self, holds: Callable[[Object], object]) -> None:
        """Waits until the job is so."""
        until(lambda: holds(self.now()), self.why)

    def stop_and_start(self, stop: Change, start: Change) -> None:
        """Its pods run, are stopped to the last one, and others run."""
        first = self.running()
        stop(self)
        until(lambda: not self.pods(), self.why)
        start(self)
        self.running_again(first, 0)

    def go(self, stop: Change, start: Change, succeeded: Callable[[Object], bool]) -> None:
        """Created, runs, is suspended, resumes, succeeds."""
        self.admin.create(self.job)
        self.stop_and_start(stop, start)
        self.end(0)
        self.until_now(succeeded)
