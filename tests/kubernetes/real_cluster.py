"""A cluster with Sentinel as `deploy/` ships it, for tests in which nodes break and jobs go on stepping."""

import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tests.kubernetes.conftest import LEADER, NAMESPACE

if TYPE_CHECKING:
    from tests.rig.api import Object
    from tests.rig.control_plane import ControlPlane
    from tests.rig.node import Node

DEADLINE_S = 120.0
# As administrators may set them: the shortest times, and room for all that these tests break on a handful of nodes.
MANY = {"atATime": {"atLeast": 50}, "perWindow": {"atLeast": 50}}
FLEET = {
    "agentSilent": "30s", "lease": "20s", "diskReleaseAfter": "3s", "repeatLimit": 50, "causeNodes": 50,
    "isolations": MANY, "poolIsolations": MANY, "disks": MANY, "poolDisks": MANY,
    "stops": {"perWindow": {"atLeast": 50}}, "poolStops": {"perWindow": {"atLeast": 50}},
    "removals": {"perWindow": {"atLeast": 50}}, "poolRemovals": {"perWindow": {"atLeast": 50}},
}  # fmt: skip
# A rank: it writes checkpoints as long as it lives, and names itself, so that a second writer would be seen.
RANK = """
trap 'exit 143' TERM
n=0
while :; do
  n=$((n + 1))
  echo "$POD_UID $n" >>/checkpoints/line
  echo "step $n"
  sleep 0.2
done
"""


def job(name: str, node: str, folder: Path | None = None, **spec: Any) -> "Object":
    """One rank; `node`: where it runs first. With a `folder` it writes its checkpoints there."""
    container = {
        "name": "main",
        "image": "rig/busybox:1",
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", RANK],
        "env": [{"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}],
        "volumeMounts": [{"name": "checkpoints", "mountPath": "/checkpoints"}],
    }
    where = {"hostPath": {"path": str(folder)}} if folder else {"emptyDir": {}}
    likes = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
    preferred = [{"weight": 100, "preference": likes}]
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}},
        "containers": [container],
        "volumes": [{"name": "checkpoints", **where}],
        # Kubernetes' own eviction from a node that is not ready comes after five minutes; these tests are over then.
        **spec,
    }
    made = {"backoffLimit": 6, "template": {"metadata": {"labels": {"team": "nlp"}}, "spec": pod}}
    labels = {"name": name, "labels": {"team": "nlp"}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": labels, "spec": made}


POLICY = """
apiVersion: sentinel.dev/v1alpha1
kind: JobPolicy
metadata: {name: all}
spec:
  jobs: {kinds: [Job]}
  owner: {emails: [owner@example.com]}
  restart: {maxRestarts: 3}
"""


class Cluster:
    """Three real nodes, some fake ones, and Sentinel. Tests leave every node healthy and heard."""

    def __init__(self, plane: "ControlPlane", **settings: Any) -> None:
        """`settings`: more of the controllers'."""
        from tests.rig.installed import Sentinel, sentinel_image
        from tests.rig.kwok import Kwok
        from tests.rig.node import Node

        image = sentinel_image()
        self.plane, self.admin = plane, plane.admin
        self.kwok = Kwok(plane)
        self.fakes = self.kwok.nodes("fake", 24)  # so that a handful of silent ones are not many of all
        _ = plane.network  # made by whoever asks first
        with ThreadPoolExecutor(3) as pool:
            made = [pool.submit(Node, plane, f"real-{n}", heartbeat_s=1, images=[image]) for n in range(3)]
            self.nodes = [one.result() for one in made]
        self.sentinel = Sentinel(plane, controller={"fleet": FLEET, **settings})
        self.sentinel.wait(*self.nodes)
        self.space = plane.namespace("jobs")
        self.admin.apply(POLICY, namespace=self.space)

    def until(self, what: Callable[[], Any], deadline_s: float = DEADLINE_S) -> Any:
        from tests.rig.processes import until

        def why() -> str:
            return f"{json.dumps(self.sentinel.quarantines())}\n{self.sentinel.story()}"

        return until(what, why, deadline_s, every_s=0.2)  # the API server shares these cores

    def run(self, name: str, node: str, folder: Path | None = None, **spec: Any) -> "Object":
        """A job's pod, stepping on its node."""
        self.admin.apply([job(name, node, folder, **spec)], namespace=self.space)
        pod = self.until(
            lambda: next((pod for pod in self.pods(name) if pod["status"]["phase"] == "Running"), None)
        )
        assert pod["spec"]["nodeName"] == node
        return pod  # type: ignore[no-any-return]

    def pods(self, name: str) -> "list[Object]":
        return self.admin.items(f"/api/v1/namespaces/{self.space}/pods", labelSelector=f"job-name={name}")

    def given(self, name: str) -> list[str]:
        """The nodes that the scheduler gave the pods of a job, in that order."""
        events = self.admin.items(f"/api/v1/namespaces/{self.space}/events", fieldSelector="reason=Scheduled")
        own = [one for one in events if one["involvedObject"]["name"].startswith(f"{name}-")]
        own.sort(key=lambda one: one["eventTime"])
        return [one["message"].rpartition(" ")[2] for one in own]

    def steps(self, node: "Node", pod: "Object") -> int:
        return len(node.log_lines(pod, "main"))

    def steps_on(self, node: "Node", pod: "Object") -> None:
        """It makes steps from now on, and it is the pod that it was."""
        before = self.steps(node, pod)
        self.until(lambda: self.steps(node, pod) > before + 3)
        name = pod["metadata"]["name"]
        now = self.admin.get(f"/api/v1/namespaces/{self.space}/pods/{name}")
        assert now["metadata"]["uid"] == pod["metadata"]["uid"]
        assert "deletionTimestamp" not in now["metadata"]
        assert now["status"]["containerStatuses"][0]["restartCount"] == 0

    def end(self, *names: str) -> None:
        """Jobs with their pods, also where no kubelet is left to end them."""
        for name in names:
            path = f"/apis/batch/v1/namespaces/{self.space}/jobs/{name}"
            self.admin.delete(path, propagationPolicy="Background")
        chosen = quote(f"job-name in ({','.join(names)})")
        path = f"/api/v1/namespaces/{self.space}/pods?labelSelector={chosen}"
        self.admin.delete(path, gracePeriodSeconds=0)
        self.until(lambda: not self.admin.items(path))

    def silent(self, name: str) -> "Object":
        """A node of which nothing was ever heard, with a pod of a protected job that once ran there."""
        self.plane.node(name)
        boot = {"status": {"nodeInfo": {"bootID": f"boot of {name}"}}}
        self.admin.patch(f"/api/v1/nodes/{name}/status", boot)
        self.admin.apply([job(name, name, nodeName=name)], namespace=self.space)
        (pod,) = self.until(lambda: self.pods(name))
        path = f"/api/v1/namespaces/{self.space}/pods/{pod['metadata']['name']}/status"
        return self.admin.patch(path, {"status": {"phase": "Running"}})  # type: ignore[no-any-return]

    def give_back(self, *names: str) -> None:
        for name in names:
            if name in self.fakes:
                self.fakes.remove(name)
            if self.admin.find(f"/api/v1/nodes/{name}"):
                self.admin.delete(f"/api/v1/nodes/{name}")

    # ------------------------------------------------------------ nodes

    def taints(self, node: "Node") -> list[tuple[str, str]]:
        spec = self.sentinel.node(node.name)["spec"]
        return [(one["key"], one["effect"]) for one in spec.get("taints", []) if "sentinel" in one["key"]]

    def unschedulable(self, node: "Node") -> bool:
        return bool(self.sentinel.node(node.name)["spec"].get("unschedulable", False))

    def isolated(self, node: "Node") -> bool:
        return self.unschedulable(node) and self.taints(node) == [("sentinel.dev/quarantined", "NoSchedule")]

    def record(self, node: "Node", kind: str, state: str = "active") -> "Object | None":
        """The newest of its kind, when it is in this state."""
        records = [one for one in self.sentinel.quarantines(node.name) if one["kind"] == kind]
        return records[-1] if records and records[-1]["state"] == state else None

    def told(self, node: str, kind: str) -> list[str]:
        """Reasons of the newest record of its kind, in the order in which they came."""
        records = [one for one in self.sentinel.quarantines(node) if one["kind"] == kind]
        return [line["reason"] for line in records[-1]["story"]] if records else []

    def uncordon(self, node: "Node") -> None:
        self.admin.patch(f"/api/v1/nodes/{node.name}", {"spec": {"unschedulable": False}})

    def order(self, node: str, what: str) -> None:
        """As `kubectl annotate` does it."""
        change = {"metadata": {"annotations": {f"sentinel.dev/{what}": "by a test"}}}
        self.admin.patch(f"/api/v1/nodes/{node}", change)

    def release(self, node: "Node") -> None:
        self.order(node.name, "release")
        self.until(lambda: not self.taints(node))
        self.until(lambda: self.record(node, "fault", "released"))

    def kill(self, *pods: "Object") -> None:
        """-9 to all that runs in them; their kubelets start it again."""
        for node in self.nodes:
            for pid in [pid for pod in pods for pid in node.pids(pod)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def mend(self) -> None:
        """All nodes as good as new, whatever a test has left behind, also one that failed."""
        for node in self.nodes:
            if not node.up or self.record(node, "fault"):  # what was found in another boot is over
                node.kill()
                node.start()
        self.sentinel.wait(*self.nodes)
        for node in self.nodes:
            if self.taints(node):
                self.order(node.name, "release")
                self.until(partial(self.untainted, node))

    def untainted(self, node: "Node") -> bool:
        return not self.taints(node)

    def removals(self, node: str) -> list[str]:
        """What proved that the pods of a silent node could be removed by force."""
        return [
            one["proof"] for record in self.sentinel.quarantines(node) for one in record.get("removals", [])
        ]

    # ------------------------------------------------------------ Sentinel

    def leader(self) -> str:
        """The pod that leads."""
        return str(self.admin.get(LEADER)["spec"].get("holderIdentity", "")).rpartition("-")[0]

    def rounds(self) -> float:
        """In which the leader has judged all nodes, as its metrics say."""
        page = f"/api/v1/namespaces/{NAMESPACE}/pods/{self.leader()}:9810/proxy/metrics"
        found = re.search(r'^sentinel_round_seconds_count{scope="all"} (\S+)$', self.admin.get(page), re.M)
        return float(found[1]) if found else 0.0

    def mails(self) -> float:
        """How many the controllers that run now have sent, or want to, as their metrics say."""
        count = 0.0
        for pod in self.sentinel.pods("controller"):
            page = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}:9810/proxy/metrics"
            told = re.findall(r"^sentinel_mails_(?:sent_total|waiting)\S* (\S+)$", self.admin.get(page), re.M)
            count += sum(map(float, told))
        return count

    def leader_node(self) -> str:
        pods = {pod["metadata"]["name"]: pod for pod in self.sentinel.pods("controller")}
        return str(self.until(lambda: pods.get(self.leader()))["spec"]["nodeName"])

    def events(self) -> list[tuple[str, str]]:
        """What Sentinel said of nodes."""
        items = self.admin.items("/apis/events.k8s.io/v1/events")
        ours = [one for one in items if one.get("reportingController") == "sentinel.dev/controller"]
        return sorted((one["regarding"]["name"], one["reason"]) for one in ours)

    def light_agents(self, folder: Path) -> "LightAgents":
        return LightAgents(self, folder)


class LightAgents:
    """Agents of all fake nodes in one process on a real node, from where the controllers' service is reached."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        plane, node = cluster.plane, cluster.nodes[0]
        agents = folder / "agents"
        for name in cluster.fakes:
            (agents / name).mkdir(parents=True)
            token = plane.node_token(NAMESPACE, "sentinel-agent", name, audience="sentinel-controller")
            (agents / name / "token").write_text(token)
        bundle = plane.admin.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/sentinel-ca")
        (folder / "ca.crt").write_text(bundle["data"]["ca.crt"])
        words = ("sentinel-controller:8443", folder / "ca.crt", agents)
        self._daemon = node.daemon(
            "light-agents",
            *(sys.executable, "-m", "tests.kubernetes.light_agents", *words),
            env={"PYTHONPATH": str(Path(__file__).parents[2])},
        )
        self._from = 0

    def heard(self) -> set[str]:
        """Nodes whose agent a controller takes reports of, since the last start."""
        lines = self._daemon.log.read_text()[self._from :].splitlines()
        return {words[0] for line in lines if len(words := line.split()) == 2}

    def restart(self) -> None:
        self.stop()
        self._from = len(self._daemon.log.read_text())
        self._daemon.start()

    def stop(self) -> None:
        self._daemon.stop()
