"""A container that failed is held on a real kubelet: looked into by kubectl, told by an agent, let go with its code."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from sentinel.cluster.kubernetes.agents import Agents
from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.job_cluster import JobCluster
from sentinel.cluster.kubernetes.job_io import JobRef
from sentinel.cluster.kubernetes.job_room import Rooms
from sentinel.core.agents.orders import PodRank, What
from sentinel.core.job import hold
from sentinel.core.model import ProtectedJob
from sentinel.core.policy_model import Policy
from sentinel.core.reports import Files, RankExit
from sentinel.transport.server import Server
from sentinel.transport.wire import Arrived
from sentinel.util.clock import system_now
from sentinel.util.errors import TemporaryError
from tests.e2e import test_node_jobs
from tests.e2e.agent_node import Node as AgentsNode
from tests.e2e.box import Box
from tests.e2e.held import MANIFEST
from tests.e2e.test_agent_controller import reports_to
from tests.e2e.test_node_holds import exits, follow
from tests.e2e.test_node_jobs import serving
from tests.gate.rights import needs_root
from tests.kubernetes.test_job_cluster import Plane, row
from tests.rig.operators.flow import Flow, condition, ends_on, template
from tests.transport.world import World, go
from tests.waits import eventually, until

if TYPE_CHECKING:
    from tests.rig.api import Object
    from tests.rig.control_plane import ControlPlane
    from tests.rig.node import Node

world = test_node_jobs.world

MOUNT = {"name": "sentinel", "mountPath": "/sentinel", "readOnly": True}
VOLUME = {"name": "sentinel", "configMap": {"name": "sentinel-hold", "defaultMode": 0o555}}
# It leaves an orphan, so that the wrapper, as the first process, is not alone. It waits without a child, which would
# be the rank: signals go to what a shell runs.
SCRIPT = """
echo evidence >/tmp/evidence
(sleep 600 &)
trap 'exit 42' USR1
mkfifo /tmp/never
echo ready
while :; do read -t 1 nothing <>/tmp/never; done
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[AgentsNode]:
    box = Box(tmp_path / "box")
    yield AgentsNode(box)
    box.close()


@pytest.fixture(scope="module")
@needs_root
def kubelet(control_plane: "ControlPlane") -> "Iterator[Node]":
    from tests.rig.node import Node

    made = Node(control_plane, "holds", labels={"rig": "holds"}, heartbeat_s=1)
    yield made
    made.remove()


class Held:
    """One pod as docs/hold.md shows it."""

    def __init__(self, plane: "ControlPlane", kubelet: "Node") -> None:
        self.plane, self.kubelet, self.space = plane, kubelet, plane.namespace()
        plane.admin.apply(MANIFEST.read_text(), namespace=self.space)
        container = {
            "name": "main",
            "image": "rig/busybox:1",
            "imagePullPolicy": "Never",
            "command": ["/sentinel/hold", "--", "sh", "-c", SCRIPT],
            "securityContext": {"runAsUser": 65532, "allowPrivilegeEscalation": False},
            "volumeMounts": [MOUNT],
        }
        spec = {
            "restartPolicy": "Never",
            "nodeName": kubelet.name,
            "terminationGracePeriodSeconds": 600,
            "containers": [container],
            "volumes": [VOLUME],
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train"}, "spec": spec}
        plane.admin.apply([pod], namespace=self.space)
        self.path = f"/api/v1/namespaces/{self.space}/pods/train"
        # The kubelet says a container's state up to a second after what the container said first.
        until(
            lambda: "ready" in self.log() and self.state().get("running"),
            lambda: f"{self.now()}\n{kubelet.rig.story()}",
        )

    def now(self) -> "Object":
        found: Object = self.plane.admin.get(self.path)
        return found

    def log(self) -> str:
        return "\n".join(self.kubelet.log_lines(self.now(), "main"))

    def exec(self, *command: str, check: bool = True) -> str:
        words = [self.plane.binaries.path("kubectl"), f"--kubeconfig={self.plane.kubeconfig}"]
        words += [f"--namespace={self.space}", "exec", "train", "--", *command]
        return subprocess.run(words, capture_output=True, text=True, check=check, timeout=180).stdout

    def rank(self) -> PodRank:
        pod = self.now()
        (status,) = pod["status"]["containerStatuses"]
        return PodRank(
            rank=0,
            namespace=self.space,
            pod="train",
            uid=pod["metadata"]["uid"],
            container="main",
            container_id=status["containerID"].rpartition("//")[2],
            hold=hold.wraps(pod["spec"]["containers"][0]),
        )

    def state(self) -> "Object":
        statuses = self.now()["status"].get("containerStatuses", [])
        found: Object = statuses[0]["state"] if statuses else {}
        return found

    def ended(self) -> int | None:
        code: int | None = self.state().get("terminated", {}).get("exitCode")
        return code


def test_a_container_that_failed_is_held_and_a_command_runs_in_it(
    control_plane: "ControlPlane", kubelet: "Node", node: AgentsNode, world: World, tmp_path: Path
) -> None:
    pod = Held(control_plane, kubelet)

    async def story() -> None:
        async with serving(node, world, kubelet.folder / "log/pods") as site:

            class Known:
                order = pod.rank()

                def close(self) -> None:
                    """The kubelet has ended it."""

            site.pods = [Known()]  # type: ignore[list-item]
            kept = follow(site, "follow-1", debug_hold_s=3600.0)
            sent = await site.answer(kept, site.ask("a", What.SIGNAL, signal="SIGUSR1"))
            assert (sent.sent, sent.refused) == ((0,), {})
            await eventually(lambda: [one.code for one in exits(site)] == [42])
            assert pod.ended() is None
            # A busy kubelet may close the stream of a short command before all that it said has gone through.
            seen = await eventually(lambda: asyncio.to_thread(pod.exec, "cat", "/tmp/evidence"), pod.log)
            assert seen == "evidence\n"
            await eventually(lambda: "the command ended with code 42" in pod.log(), pod.log)
            answer = await site.answer(kept, site.ask("b", What.RELEASE))
            assert answer.sent == (0,)
            await asyncio.to_thread(until, lambda: pod.ended() is not None, lambda: str(pod.now()))
            assert pod.ended() == 42
            assert [one.code for one in exits(site)] == [42]

    go(story())


def test_a_person_ends_the_hold_without_sentinel_and_a_deleted_pod_goes_at_once(
    control_plane: "ControlPlane", kubelet: "Node"
) -> None:
    pod = Held(control_plane, kubelet)
    pod.exec("sh", "-c", "kill -USR1 1")  # as a preStop hook may do it: it reaches the command
    until(lambda: "the command ended with code 42" in pod.log(), pod.log)
    pod.exec("kill", "1", check=False)  # the container's end may be the command's
    until(lambda: pod.ended() == 42, lambda: str(pod.now()))

    other = Held(control_plane, kubelet)
    (first,) = (pid for pid in kubelet.pids(other.now()) if b"hold\0--\0" in cmdline(pid))
    os.kill(first, 10)
    until(lambda: "the command ended with code 42" in other.log(), other.log)
    control_plane.admin.delete(other.path)
    until(lambda: control_plane.admin.find(other.path) is None, other.log)  # its grace is ten minutes


JOB = "research/job/train"
TRAINS = "echo 12345 >ckpt; (sleep 600 &); exec sleep 601"


def job(kubelet: "Node") -> "Object":
    pods = template(kubelet.name)
    spec = pods["spec"]
    spec |= {"restartPolicy": "Never", "volumes": [VOLUME]}
    (container,) = spec["containers"]
    container |= {
        "command": ["/sentinel/hold", "--", "sh", "-c", TRAINS],
        "workingDir": "/tmp",
        "volumeMounts": [MOUNT],
    }
    made = {
        "completionMode": "Indexed",
        "parallelism": 1,
        "completions": 1,
        "backoffLimit": 0,
        "template": pods,
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": made}


def test_a_jobs_files_are_seen_and_its_hold_is_ended_through_the_controllers_own_cluster(
    installed: "ControlPlane",
    controller: str,
    kubelet: "Node",
    node: AgentsNode,
    world: World,
) -> None:
    labels = "batch.kubernetes.io/job-name=train"
    flow = Flow(Plane(installed), ends_on(kubelet), job(kubelet), 1, labels)  # type: ignore[arg-type]
    flow.admin.apply(MANIFEST.read_text(), namespace=flow.space)
    flow.admin.create(flow.job)
    flow.running()
    made = flow.now()
    asked: list[Server] = []

    def take(arrived: Arrived) -> None:
        """The agent of the test has another name than the kubelet."""
        world.arrived.append(arrived)
        agents.arrived(structs.replace(arrived, node=kubelet.name))

    agents = Agents(lambda name: asked[0].orders_changed("node-1"))

    async def story() -> None:
        async with world, await Client.connect(controller) as client:
            server, port = await world.serve(orders=lambda name: agents.orders(kubelet.name), take=take)
            asked.append(server)
            reports_to(world, node, port)
            node.settings(listen="127.0.0.1:0", podLogs=str(kubelet.folder / "log/pods"))
            await asyncio.to_thread(node.start)
            cluster = JobCluster(client, agents, lambda: 1, Rooms(dict, dict, system_now))
            cluster.know(JOB, JobRef(row(made), flow.space, "train", made["metadata"]["uid"]))
            ranks = await cluster.adopt(JOB)
            policy = Policy(debug_hold_s=3600.0)
            cluster.follow(ProtectedJob(name=JOB, policy=policy, incarnation=1), ranks)

            found: Files = {}
            while not found:  # until the rank has begun
                with contextlib.suppress(TemporaryError):
                    found = await cluster.files(JOB, 1, ".", "ck*")
            assert {path: size for path, (size, _) in found.items()} == {"/tmp/ckpt": 6}
            assert (await cluster.signal_ranks(JOB, 1, [0], "SIGTERM")).sent == ()  # it does not catch it
            assert await cluster.let_go(JOB, 1) == ()

            (pod,) = flow.pods()
            (rank,) = (pid for pid in kubelet.pids(pod) if cmdline(pid) == b"sleep\x00601\x00")
            os.kill(rank, signal.SIGKILL)
            ends: list[RankExit] = await eventually(
                lambda: [gone for one in world.numbered() for _, gone in one.report.exits]
            )
            assert [(one.rank, one.incarnation, one.signal) for one in ends] == [(0, 1, signal.SIGKILL)]
            with pytest.raises(TemporaryError, match="gone"):
                await cluster.files(JOB, 1, ".", "ck*")
            assert await cluster.let_go(JOB, 1) == (0,)
            await asyncio.to_thread(flow.until_now, condition("Failed"))

    go(story())


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
