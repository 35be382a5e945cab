"""Real kubelets run real pods; nodes are lost, cut off and rebooted as machines are."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.gate.rights import needs_root
from tests.rig.api import Object
from tests.rig.control_plane import ControlPlane
from tests.rig.image import host_python
from tests.rig.node import Node
from tests.rig.processes import until

JOB = """
apiVersion: batch/v1
kind: Job
metadata: {{name: {name}}}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 20
      nodeSelector: {{kubernetes.io/hostname: {node}}}
      containers:
      - {{name: main, image: "rig/busybox:1", imagePullPolicy: Never, command: [sh, -c, {script!r}]}}
"""


class Pods:
    """The pods of one namespace."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane, self.space = plane, plane.namespace()

    def job(self, name: str, node: Node, script: str) -> None:
        self.plane.admin.apply(JOB.format(name=name, node=node.name, script=script), namespace=self.space)

    def of(self, job: str) -> Object:
        """The one pod of a job, {} before it is made."""
        found = self.plane.admin.items(
            f"/api/v1/namespaces/{self.space}/pods", labelSelector=f"job-name={job}"
        )
        return found[0] if found else {}

    def until(self, job: str, what: Callable[[Object], object]) -> Object:
        def looked() -> Object:
            pod = self.of(job)
            return pod if pod and what(pod) else {}

        return until(looked, lambda: f"{self.of(job)}\n{self.plane.rig.story()}")


def phase(wanted: str) -> Callable[[Object], bool]:
    return lambda pod: pod["status"].get("phase") == wanted


def texts(node: Node, pod: Object) -> list[str]:
    """What the container wrote: CRI lines without time, stream and tag."""
    return [line.split(" ", 3)[3] for line in node.log_lines(pod, "main")]


@pytest.fixture(scope="module")
@needs_root
def nodes(control_plane: ControlPlane) -> Iterator[list[Node]]:
    made = [Node(control_plane, f"real-{n}", heartbeat_s=1) for n in range(3)]
    yield made
    for node in made:
        node.remove()


@pytest.fixture
def pods(control_plane: ControlPlane) -> Pods:
    return Pods(control_plane)


def test_a_jobs_pod_runs_and_its_log_and_exit_code_are_seen(nodes: list[Node], pods: Pods) -> None:
    pods.job("train", nodes[0], "echo step 1; echo oops >&2; exit 3")
    pod = pods.until("train", phase("Failed"))
    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
    lines = [line.split(" ", 1)[1] for line in nodes[0].log_lines(pod, "main")]
    assert sorted(lines) == ["stderr F oops", "stdout F step 1"]
    path = f"/api/v1/namespaces/{pods.space}/pods/{pod['metadata']['name']}/log"
    assert "step 1" in pods.plane.admin.get(path)


def test_a_deleted_pod_gets_sigterm_and_time_to_save(nodes: list[Node], pods: Pods) -> None:
    pods.job("train", nodes[0], "trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.1; done")
    pod = pods.until("train", lambda pod: "up" in texts(nodes[0], pod))
    log = nodes[0].folder / "log/pods"
    kept = os.open(
        next(log.glob(f"{pods.space}_*/main/0.log")), os.O_RDONLY
    )  # the kubelet removes it with the pod
    try:
        pods.plane.admin.delete(pods.plane.admin.path_of(pod | {"apiVersion": "v1", "kind": "Pod"}))
        until(lambda: b"saved" in os.pread(kept, 10000, 0), pods.plane.rig.story)
    finally:
        os.close(kept)


def test_the_processes_of_a_pod_are_known_by_its_cgroup_and_get_signals(
    nodes: list[Node], pods: Pods
) -> None:
    pods.job("train", nodes[1], "trap 'echo got it' USR1; echo up; while :; do sleep 0.1; done")
    pod = pods.until("train", lambda pod: "up" in texts(nodes[1], pod))
    for pid in nodes[1].pids(pod):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a sleep that has ended since
            if b"trap" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGUSR1)
    until(lambda: "got it" in texts(nodes[1], pod), lambda: str(texts(nodes[1], pod)))


def test_a_pod_reaches_the_projects_python_through_mounts(nodes: list[Node], pods: Pods, repo: Path) -> None:
    volumes, mounts = host_python(repo)
    container = {
        "name": "main",
        "image": "rig/busybox:1",
        "imagePullPolicy": "Never",
        "command": [sys.executable, "-c", "import msgspec, sentinel; print(sentinel.__name__, 'imported')"],
        "volumeMounts": mounts,
    }
    spec = {
        "restartPolicy": "Never",
        "nodeName": nodes[0].name,
        "containers": [container],
        "volumes": volumes,
    }
    meta = {"name": "python", "labels": {"job-name": "python"}}
    pods.plane.admin.apply(
        [{"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}], namespace=pods.space
    )
    pod = pods.until("python", phase("Succeeded"))
    assert texts(nodes[0], pod) == ["sentinel imported"]


def test_a_node_that_is_cut_off_goes_on_alone_and_one_that_is_lost_does_not(
    nodes: list[Node], pods: Pods
) -> None:
    lives, dies = nodes[1], nodes[2]
    for node in (lives, dies):
        pods.job(node.name, node, "n=0; while :; do echo $n; n=$((n + 1)); sleep 0.1; done")
    running = {node.name: pods.until(node.name, phase("Running")) for node in (lives, dies)}
    until(lambda: lease(pods.plane, lives), pods.plane.rig.story)
    lives.cut()
    dies.kill()
    assert not dies.pids(running[dies.name])
    before = len(lives.log_lines(running[lives.name], "main"))
    until(
        lambda: len(lives.log_lines(running[lives.name], "main")) > before + 3, "the cut off pod stands still"
    )
    renewed = lease(pods.plane, lives)
    lives.heal()
    until(lambda: lease(pods.plane, lives) > renewed, pods.plane.rig.story)
    assert phase("Running")(pods.of(dies.name)), "nobody told the API server that the pod is dead"

    old = dies.boot_id
    dies.start()
    assert (
        pods.plane.admin.get(f"/api/v1/nodes/{dies.name}")["status"]["nodeInfo"]["bootID"]
        == dies.boot_id
        != old
    )
    pods.until(dies.name, phase("Failed"))
    assert phase("Running")(pods.of(lives.name))


def lease(plane: ControlPlane, node: Node) -> str:
    path = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node.name}"
    found = plane.admin.find(path)
    return str(found["spec"]["renewTime"]) if found else ""


def test_a_node_sees_its_own_machine(nodes: list[Node]) -> None:
    for node in nodes[:2]:
        assert node.run("hostname").stdout.strip() == node.name
        assert node.run("cat", "/proc/sys/kernel/random/boot_id").stdout.strip() == node.boot_id
        assert "eth0" in node.run("ls", "/sys/class/net").stdout.split()
    assert nodes[0].boot_id != nodes[1].boot_id
    nodes[0].run("busybox", "ping", "-c", "1", "-W", "10", nodes[1].address)
