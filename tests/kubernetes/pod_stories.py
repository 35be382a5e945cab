"""Pods that end, or do not come up, in every way that a real cluster knows: made, broken, and read as it prints them.

python -m tests.kubernetes.pod_stories FOLDER    # writes them as tests/core/pods has them
"""

import contextlib
import copy
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.rig.api import Object
    from tests.rig.control_plane import ControlPlane
    from tests.rig.node import Node

KEEP = "test.sentinel.dev/keep"  # a finalizer: what a deleted pod ended with can be read as long as it holds
STEPS = "trap '' TERM; while :; do sleep 0.1; done"
SAVES = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
NO_IMAGE = "127.0.0.1:5999/team/missing:1"  # the node's own; a registry answers there that has nothing
NO_PERMISSION = "127.0.0.1:5999/secret/train:1"
NO_REGISTRY = "registry.invalid/team/train:1"
LOW, HIGH = "pods-low", "pods-high"
DEADLINE_S = 120.0
TAINT = {"key": "repair", "value": "now", "effect": "NoExecute"}


def container(script: str = STEPS, name: str = "main", **more: Any) -> "Object":
    made = {
        "name": name,
        "image": "rig/busybox:1",
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
    }
    return made | more


def pod(*containers: "Object", **spec: Any) -> "Object":
    """Of one rank that starts once, and has a second to end."""
    made = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1} | spec
    return made | {"containers": list(containers or (container(),))}


def volume(**source: Any) -> "Object":
    return pod(container(**DATA), volumes=[{"name": "data", **source}])


def reads(kind: str, name: str, key: str) -> "Object":
    return {"name": "SETTING", "valueFrom": {f"{kind}KeyRef": {"name": name, "key": key}}}


def probed(**probe: Any) -> "Object":
    return container(**{kind: {"periodSeconds": 1, "exec": {"command": ["false"]}} for kind in probe})


DATA = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
CPU = {"resources": {"requests": {"cpu": "1500m"}}}  # of two processors
MEMORY = {"resources": {"limits": {"memory": "24Mi"}}}
EATS = "exec dd if=/dev/zero of=/dev/shm/eaten bs=1M count=60"

# Pods on the first node that need nothing but their creation, by name.
MADE: dict[str, "Object"] = {
    "exit-0": pod(container("exit 0")),
    "exit-3": pod(container("exit 3")),
    "shell-137": pod(container("sh -c 'kill -9 $$$$'; exit $?")),  # Kubernetes makes one $ of two
    "sigsegv": pod(container("sh -c 'kill -11 $$$$'; exit $?")),
    "oom": pod(container(EATS, **MEMORY)),
    "oom-worker": pod(container("sh -c '" + EATS + "'; exit 1", **MEMORY)),
    "oom-worker-0": pod(container("sh -c '" + EATS + "'; exit 0", **MEMORY)),
    "sidecar-runs": pod(container("exit 5"), container(name="sidecar")),
    "sidecar-failed": pod(container(), container("exit 9", name="sidecar")),
    "init-failed": pod(container(), initContainers=[container("exit 7", name="prepare")]),
    "init-oom": pod(container(), initContainers=[container(EATS, name="prepare", **MEMORY)]),
    "init-runs": pod(
        container(), initContainers=[container("exit 0", name="first"), container(name="prepare")]
    ),
    "init-loops": pod(
        container(), initContainers=[container("exit 7", name="prepare")], restartPolicy="OnFailure"
    ),
    "no-command": pod(container(command=["/bin/train"])),
    "no-command-again": pod(container(command=["/bin/train"]), restartPolicy="OnFailure"),
    "restarts": pod(container("exit 4"), restartPolicy="OnFailure"),
    "restarted": pod(
        container("[ -e /data/x ] || { touch /data/x; exit 6; }; " + STEPS, **DATA),
        volumes=[{"name": "data", "emptyDir": {}}],
        restartPolicy="OnFailure",
    ),
    "restarts-oom": pod(container(EATS, **MEMORY), restartPolicy="Always"),
    "ends-well-again": pod(container("exit 0"), restartPolicy="Always"),
    "not-alive": pod(probed(livenessProbe=True), restartPolicy="Always"),
    "not-ready": pod(probed(readinessProbe=True)),
    "not-started": pod(probed(startupProbe=True)),
    "deadline": pod(activeDeadlineSeconds=1),
    "no-image": pod(container(image=NO_IMAGE, imagePullPolicy="Always")),
    "no-permission": pod(container(image=NO_PERMISSION, imagePullPolicy="Always")),
    "no-registry": pod(container(image=NO_REGISTRY, imagePullPolicy="Always")),
    "no-image-here": pod(container(image="rig/missing:1")),
    "bad-image-name": pod(container(image="Not/An Image")),
    "no-config-map": pod(container(env=[reads("configMap", "missing", "lr")])),
    "no-secret-all": pod(container(envFrom=[{"secretRef": {"name": "missing"}}])),
    "no-key": pod(container(env=[reads("configMap", "kube-root-ca.crt", "lr")])),
    "volume-no-config-map": volume(configMap={"name": "missing"}),
    "volume-no-secret": volume(secret={"secretName": "missing"}),
    "volume-no-folder": volume(hostPath={"path": "/no/such/folder", "type": "Directory"}),
    "volume-no-server": volume(nfs={"server": "127.0.0.1", "path": "/none"}),
    "no-runtime": pod(runtimeClassName="pods-none"),
    "gated": pod(schedulingGates=[{"name": "example.com/quota"}, {"name": "example.com/topology"}]),
    "no-claim": volume(persistentVolumeClaim={"claimName": "missing"}),
    "no-gpus": pod(container(resources={"limits": {"nvidia.com/gpu": "8"}})),
    "no-scheduler": pod(schedulerName="nobody"),
    "too-big": pod(container(resources={"requests": {"cpu": "1000"}})),  # bound by hand: the node refuses it
    "wrong-node": pod(nodeSelector={"no": "such-label"}),  # the same
    "empty-dir-full": pod(
        container("dd if=/dev/zero of=/data/x bs=1M count=5; " + STEPS, **DATA),
        volumes=[{"name": "data", "emptyDir": {"sizeLimit": "1Mi"}}],
    ),
}
BOUND = ("too-big", "wrong-node")
# Those that run until somebody does something: on the first node, with the finalizer.
RUNNING: dict[str, "Object"] = {
    "sigkill": pod(),
    "evicted": pod(),
    "evicted-saves": pod(container(SAVES)),
    "deleted": pod(),
    "deleted-saves": pod(container(SAVES)),
    "ending": pod(terminationGracePeriodSeconds=3600),
    "preempted": pod(container(**CPU), priorityClassName=LOW),
}


class Stories:
    """Two real nodes and a namespace. `tell` runs all stories; then each pod can be read."""

    def __init__(self, plane: "ControlPlane") -> None:
        from tests.rig.node import Node

        self.plane, self.admin, self.rig = plane, plane.admin, plane.rig
        self.space = plane.namespace("research")
        self.first, self.second = (Node(plane, f"pods-{n}", heartbeat_s=1) for n in range(2))
        self.first.daemon(
            "registry", sys.executable, "-m", "tests.kubernetes.empty_registry", "5999", env=HERE
        )

    def close(self) -> None:
        for one in self.admin.items(f"/api/v1/namespaces/{self.space}/pods"):
            self.let_go(one["metadata"]["name"])
        for node in (self.first, self.second):
            node.remove()

    # ------------------------------------------------------------ objects

    def path(self, name: str) -> str:
        return f"/api/v1/namespaces/{self.space}/pods/{name}"

    def now(self, name: str) -> "Object":
        found: Object = self.admin.get(self.path(name))
        return found

    def events(self, name: str) -> "list[Object]":
        selector = f"involvedObject.name={name}"
        return self.admin.items(f"/api/v1/namespaces/{self.space}/events", fieldSelector=selector)

    def until(self, name: str, holds: "Callable[[Object], Any]") -> "Object":
        from tests.rig.processes import until

        def looked() -> "Object":
            found = self.now(name)
            return found if holds(found) else {}

        def why() -> str:
            return f"{name}: {json.dumps(self.now(name)['status'])}\n{self.events(name)}\n{self.rig.story()}"

        return until(looked, why, DEADLINE_S, every_s=0.1)

    def create(self, name: str, spec: "Object", node: "Node", *, bound: str = "", keep: bool = False) -> None:
        """`bound`: to this node, past the scheduler."""
        where: Object = {"nodeName": bound} if bound else {}
        if not bound and "nodeSelector" not in spec:
            where = {"nodeSelector": {"kubernetes.io/hostname": node.name}}
        metadata = {"name": name, "namespace": self.space, **({"finalizers": [KEEP]} if keep else {})}
        made = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": copy.deepcopy(spec) | where}
        self.admin.create(made)

    def let_go(self, name: str) -> None:
        from tests.rig.api import ApiError

        with contextlib.suppress(ApiError):
            self.admin.patch(self.path(name), {"metadata": {"finalizers": None}})
            self.admin.delete(self.path(name), gracePeriodSeconds=0)

    # ------------------------------------------------------------ what is done to them

    def begin(self) -> None:
        """All pods, at once."""
        for name, value in ((LOW, -1000), (HIGH, 1000)):
            meta = {"name": name}
            self.admin.apply(
                [
                    {
                        "apiVersion": "scheduling.k8s.io/v1",
                        "kind": "PriorityClass",
                        "metadata": meta,
                        "value": value,
                    }
                ]
            )
        runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "none"}
        self.admin.apply([runtime | {"metadata": {"name": "pods-none"}}])
        for name, spec in RUNNING.items():
            self.create(name, spec, self.first, keep=True)
        self.plane.node("pods-gone")  # nobody looks after it, and it goes
        self.create("orphaned", pod(), self.first, bound="pods-gone", keep=True)
        self.admin.delete("/api/v1/nodes/pods-gone")  # the garbage collector waits 40 s, and looks every 20
        for name, spec in MADE.items():
            self.create(name, spec, self.first, bound=self.first.name if name in BOUND else "")

    def runs(self, name: str) -> "Object":
        return self.until(name, lambda one: one["status"]["phase"] == "Running")

    def gone(self, name: str) -> "Object":
        """It has ended, and only the finalizer keeps it."""
        return self.until(name, lambda one: _terminated(one) and "deletionTimestamp" in one["metadata"])

    def act(self) -> None:
        """On the first node; each pod is to be read afterwards."""
        for name in RUNNING:
            self.runs(name)
        self.kill("sigkill")
        for name in ("evicted", "evicted-saves"):
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
            self.admin.call("POST", f"{self.path(name)}/eviction", body)
        for name in ("deleted", "deleted-saves", "ending"):
            self.admin.delete(self.path(name))
        self.until(
            "too-big", lambda one: one["status"]["phase"] == "Failed"
        )  # or the scheduler makes room there
        self.create("preempts", pod(container(**CPU), priorityClassName=HIGH), self.first)
        for name in ("evicted", "evicted-saves", "deleted", "deleted-saves", "preempted"):
            self.gone(name)

    def kill(self, name: str) -> None:
        """The first process of the container, from outside."""
        for pid in self.first.pids(self.now(name)):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if b"while :" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)

    def on_second(self, name: str, spec: "Object | None" = None) -> "Object":
        """It bears what `taint` writes: the kubelet may see that for a while after it has been taken off."""
        tolerated = {"tolerations": [{"key": TAINT["key"], "operator": "Exists"}]}
        self.create(name, (spec or pod()) | tolerated, self.second, keep=True)
        return self.runs(name)

    def taint(self) -> "Object":
        """The second node gets a taint that ends what does not tolerate it."""
        self.create("tainted", pod(), self.second, keep=True)
        self.runs("tainted")
        path = f"/api/v1/nodes/{self.second.name}"
        self.admin.patch(path, {"spec": {"taints": [TAINT]}})
        ended = self.gone("tainted")
        self.admin.patch(path, {"spec": {"taints": None}})
        return ended

    def press(self) -> "Object":
        """The second node's kubelet is told to keep nearly all memory free."""
        # One without a request would be refused by the kubelet that starts, if it is that quick.
        self.on_second("pressed", pod(container(resources={"requests": {"memory": "1Mi"}})))
        path = self.second.folder / "kubelet.json"
        usual = path.read_text()
        document = json.loads(usual)
        document["evictionHard"]["memory.available"] = "99%"
        path.write_text(json.dumps(document))
        self.restart_kubelet()
        ended = self.until("pressed", lambda one: one["status"]["phase"] == "Failed")
        path.write_text(usual)
        self.restart_kubelet()
        return ended

    def restart_kubelet(self) -> None:
        self.second.kubelet.stop()
        self.second.kubelet.start()
        self.second.wait_ready()

    def reboot(self) -> "Object":
        """The second node loses its power and gets it back."""
        self.on_second("rebooted")
        self.second.kill()
        self.second.start()
        return self.until("rebooted", lambda one: one["status"]["phase"] == "Failed")


HERE = {"PYTHONPATH": str(Path(__file__).parents[2])}


def _terminated(one: "Object") -> bool:
    statuses = one["status"].get("containerStatuses", [])
    return bool(statuses) and all("terminated" in status["state"] for status in statuses)


# ---------------------------------------------------------------- as files

DROPPED = {
    "metadata": ("managedFields", "resourceVersion", "generation", "selfLink"),
    "spec": (
        *("volumes", "affinity", "nodeSelector", "tolerations", "serviceAccount", "serviceAccountName"),
        *("dnsPolicy", "enableServiceLinks", "preemptionPolicy", "priority", "securityContext"),
    ),
    "status": ("hostIP", "hostIPs", "podIP", "podIPs", "qosClass", "observedGeneration"),
}
DROPPED_OF_CONTAINERS = ("imageID", "containerID", "volumeMounts", "allocatedResources", "user", "resources")
NOISE = ("MissingClusterDNS", "Scheduled", "Created", "Started", "Pulled")


def trimmed(one: "Object", events: "list[Object]", space: str) -> "Object":
    """What says how it ended or what it waits for."""
    for part, names in DROPPED.items():
        one[part] = {key: value for key, value in one[part].items() if key not in names}
    for kind in ("containers", "initContainers"):
        for spec in one["spec"].get(kind, []):
            for key in ("volumeMounts", "terminationMessagePath", "terminationMessagePolicy", "command"):
                spec.pop(key, None)
    for kind in ("containerStatuses", "initContainerStatuses"):
        for status in one["status"].get(kind, []):
            for key in DROPPED_OF_CONTAINERS:
                status.pop(key, None)
            for state in (*status["state"].values(), *status.get("lastState", {}).values()):
                state.pop("containerID", None)
    kept = ("PodScheduled", "DisruptionTarget", "Ready")
    conditions = [found for found in one["status"].get("conditions", []) if found["type"] in kept]
    one["status"]["conditions"] = [
        {key: value for key, value in found.items() if key not in ("lastProbeTime", "observedGeneration")}
        for found in conditions
    ]
    told = [event for event in events if event["reason"] not in NOISE]
    for event in told:
        event["metadata"] = {"creationTimestamp": event["metadata"]["creationTimestamp"]}
        for key in ("source", "reportingComponent", "reportingInstance", "involvedObject", "action"):
            event.pop(key, None)
    whole = json.dumps({"pod": one, "events": told}, indent=1).replace(space, "research")
    found: Object = json.loads(whole)
    return found


def main(folder: Path) -> None:
    from tests.core.pod_shapes import ENDS, UP, WAITS, told
    from tests.rig.control_plane import ControlPlane
    from tests.rig.processes import Rig

    folder.mkdir(parents=True, exist_ok=True)
    with Rig() as rig:
        stories = Stories(ControlPlane(rig))
        stories.begin()
        for act in (stories.act, stories.taint, stories.press, stories.reboot):
            act()
        for name in (*ENDS, *WAITS, *UP):
            one = stories.until(name, lambda one, name=name: told(name, one, stories.events(name)))
            written = trimmed(one, stories.events(name), stories.space)
            (folder / f"{name}.json").write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
