"""Agents and controllers as `deploy/` ships them, as pods on real kubelets: nodes break, and jobs go on stepping."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.agent_node import XID_79
from tests.gate.rights import needs_root
from tests.kubernetes.conftest import NAMESPACE, manifests
from tests.kubernetes.real_cluster import Cluster
from tests.rig.fixtures import shared

if TYPE_CHECKING:
    from tests.rig.api import Object


@pytest.fixture(scope="module")
@needs_root
def cluster(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Cluster]":
    from tests.rig.control_plane import ControlPlane
    from tests.rig.processes import Rig

    with Rig(tmp_path_factory.mktemp("cluster")) as rig, shared(ControlPlane(rig)) as plane:
        meta = {"name": "sentinel-fence", "namespace": NAMESPACE}
        program = {"kind": "ConfigMap", "metadata": meta, "data": {"fence-node": "#!/bin/sh\n"}}
        plane.admin.apply([*manifests("namespace.yaml"), {"apiVersion": "v1", **program}])
        yield Cluster(plane)


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """A folder that all nodes have, as a network file system is one."""
    folder = tmp_path / "checkpoints"
    folder.mkdir(mode=0o777)
    return folder


def writers(folder: Path) -> list[str]:
    """Who wrote checkpoints, in turn: one that writes again after another did is there twice."""
    lines = (folder / "line").read_text().splitlines()
    return [who for who, _ in groupby(line.split()[0] for line in lines)]


def numbers(folder: Path) -> list[int]:
    """Of whole lines: the last one may be being written."""
    text = (folder / "line").read_text()
    return [int(line.split()[1]) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def began(pid: int) -> int:
    """In ticks since the boot."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def test_the_shipped_pods_run_with_what_the_manifests_give_them_and_no_more(cluster: Cluster) -> None:
    controllers = cluster.sentinel.pods("controller")
    assert len({pod["spec"]["nodeName"] for pod in controllers}) == 2
    for pod in (*controllers, *(cluster.sentinel.agent_on(node.name) for node in cluster.nodes)):
        assert pod is not None
        (status,) = pod["status"]["containerStatuses"]
        assert status["restartCount"] == 0
        node = next(node for node in cluster.nodes if node.name == pod["spec"]["nodeName"])
        ours = (pid for pid in node.pids(pod) if b"sentinel" in Path(f"/proc/{pid}/cmdline").read_bytes())
        pid = min(ours, key=began)  # the others are its children, of a moment
        root = next(
            line for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines() if line.split()[4] == "/"
        )
        assert "ro" in root.split()[5].split(",")
        state = dict(
            line.split(":\t")
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if ":\t" in line
        )
        if pod in controllers:
            assert (state["Uid"].split()[0], state["CapEff"], state["CapBnd"]) == (
                "65532",
                "0" * 16,
                "0" * 16,
            )
            assert (state["NoNewPrivs"], state["Seccomp"]) == ("1", "2")
            inside = Path("/proc") / str(pid) / "root"
            program = (inside / "etc/sentinel-fence/fence-node").stat()  # of nobody else
            assert (program.st_gid, program.st_mode & 0o777) == (65532, 0o550)
    assert not cluster.sentinel.quarantines()
    said = [cluster.sentinel.log(pod) for pod in controllers]
    assert sum("leads, epoch" in text for text in said) == 1
    assert not any("Traceback" in text or "broke" in text for text in said)


def test_a_kernel_line_takes_the_node_out_of_service_and_the_job_there_steps_on(cluster: Cluster) -> None:
    node = cluster.nodes[0]
    pod = cluster.run("kernel", node.name)
    node.kernel_says(XID_79)
    cluster.until(lambda: cluster.isolated(node))
    record = cluster.until(lambda: cluster.record(node, "fault"))
    assert [one["code"] for one in record["findings"]] == ["XID 79"]
    assert pod["metadata"]["name"] in str(record["runningThere"])
    cluster.steps_on(node, pod)
    assert all(one["effect"] != "NoExecute" for one in cluster.sentinel.node(node.name)["spec"]["taints"])

    cluster.uncordon(node)
    cluster.until(lambda: not cluster.taints(node))
    assert cluster.until(lambda: cluster.record(node, "fault", "overridden"))["endedBy"] == "uncordoned"
    cluster.steps_on(node, pod)
    cluster.end("kernel")


# ---------------------------------------------------------------- cordons of others

CLAIM = {"key": "ToBeDeletedByClusterAutoscaler", "value": "1", "effect": "NoSchedule"}
UPGRADE = "nvidia.com/gpu-driver-upgrade-state"


def test_cordons_of_people_other_tools_and_upgrades_stay_when_sentinels_own_ends(cluster: Cluster) -> None:
    persons, tools, upgraded = cluster.nodes
    cluster.admin.patch(f"/api/v1/nodes/{persons.name}", {"spec": {"unschedulable": True}})
    for node in cluster.nodes:
        node.kernel_says(XID_79)
    for node in cluster.nodes:
        cluster.until(lambda node=node: cluster.isolated(node) and cluster.record(node, "fault"))
    taints = cluster.sentinel.node(tools.name)["spec"]["taints"]
    cluster.admin.patch(f"/api/v1/nodes/{tools.name}", {"spec": {"taints": [*taints, CLAIM]}})
    label = {"metadata": {"labels": {UPGRADE: "drain-required"}}}
    cluster.admin.patch(f"/api/v1/nodes/{upgraded.name}", label)
    for node in cluster.nodes:
        cluster.release(node)
        assert cluster.unschedulable(node)
    claims = [one["key"] for one in cluster.sentinel.node(tools.name)["spec"]["taints"]]
    assert CLAIM["key"] in claims

    cluster.admin.patch(f"/api/v1/nodes/{tools.name}", {"spec": {"taints": []}})
    cluster.admin.patch(f"/api/v1/nodes/{upgraded.name}", {"metadata": {"labels": {UPGRADE: None}}})
    for node in cluster.nodes:
        cluster.uncordon(node)
    before = len(cluster.sentinel.quarantines())
    for node in cluster.nodes:  # what is only Sentinel's own goes with it
        node.kernel_says(XID_79)
        cluster.until(lambda node=node: cluster.isolated(node) and cluster.record(node, "fault"))
        cluster.release(node)
        cluster.until(lambda node=node: not cluster.unschedulable(node))
    assert len(cluster.sentinel.quarantines()) == before + 3


# ---------------------------------------------------------------- a full disk


def test_a_disk_over_its_threshold_keeps_pods_off_until_it_is_under_it(cluster: Cluster) -> None:
    node = cluster.nodes[1]
    node.run("mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", "/var/lib/sentinel")
    agent = cluster.sentinel.agent_on(node.name)
    assert agent is not None
    cluster.admin.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{agent['metadata']['name']}")
    cluster.until(lambda: not cluster.sentinel.reports(node))
    cluster.sentinel.wait(node)
    pod = cluster.run("disk", node.name)
    ballast = "/var/lib/sentinel/ballast"
    # The agent writes too.
    node.run("sh", "-c", f"dd if=/dev/zero of={ballast} bs=1k; truncate -s -300K {ballast}")
    cluster.until(lambda: cluster.isolated(node))
    record = cluster.until(lambda: cluster.record(node, "disk-full"))
    assert [(one["code"], one["entity"]) for one in record["findings"]] == [
        ("disk-space", "/var/lib/sentinel")
    ]
    cluster.steps_on(node, pod)
    node.run("rm", ballast)
    cluster.until(lambda: not cluster.unschedulable(node) and not cluster.taints(node))
    assert cluster.until(lambda: cluster.record(node, "disk-full", "released"))["endedBy"] == "well"
    cluster.steps_on(node, pod)
    cluster.end("disk")


# ---------------------------------------------------------------- silence


def test_a_silent_node_is_not_dead_and_its_pods_are_removed_by_force_only_after_proof(
    cluster: Cluster, checkpoints: Path, tmp_path: Path
) -> None:
    """One is cut off and lives, one is lost and comes back, three are proved dead, and one has no agent."""
    leader = cluster.leader_node()
    cut, lost = (node for node in cluster.nodes if node.name != leader)
    bare, gone, booted, fenced = cluster.fakes[0], *(f"dead-{n}" for n in range(3))
    pods = {"cut": cluster.run("cut", cut.name, checkpoints)}
    (tmp_path / "lost").mkdir(mode=0o777)
    pods["lost"] = cluster.run("lost", lost.name, tmp_path / "lost")
    pods[bare] = cluster.run(bare, bare, nodeName=bare)

    cut.cut()
    lost.kill()
    for name in (gone, booted, fenced):
        pods[name] = cluster.silent(name)
    silent = {cut.name: "cut", lost.name: "lost", gone: gone, booted: booted, fenced: fenced}
    for name in silent:
        cluster.until(lambda name=name: "Unfenced" in cluster.told(name, "silence"))
    cluster.until(lambda: cluster.told(bare, "silence") == ["AgentSilent"])
    for name, short in silent.items():
        assert not cluster.removals(name)
        assert alive(cluster, pods[short])
    at = numbers(checkpoints)[-1]
    cluster.until(lambda: numbers(checkpoints)[-1] > at + 5)  # it lives, and writes

    cluster.order(lost.name, "confirm-dead")
    cluster.admin.delete(f"/api/v1/nodes/{gone}")
    boot = {"status": {"nodeInfo": {"bootID": "another"}}}
    cluster.admin.patch(f"/api/v1/nodes/{booted}/status", boot)
    taints = cluster.sentinel.node(fenced)["spec"].get("taints", [])
    off = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoSchedule"}
    cluster.admin.patch(f"/api/v1/nodes/{fenced}", {"spec": {"taints": [*taints, off]}})
    proofs = {
        lost.name: "confirm-dead",
        gone: "node-gone",
        booted: "new-boot-id",
        fenced: "out-of-service-taint",
    }
    for name, proof in proofs.items():
        cluster.until(lambda name=name, proof=proof: cluster.removals(name) == [proof])
        cluster.until(lambda name=name: not alive(cluster, pods[silent[name]]))
    assert alive(cluster, pods["cut"])
    assert not cluster.removals(cut.name)

    cut.heal()
    cluster.until(lambda: cluster.told(cut.name, "silence")[-1] == "SpeaksAgain")
    cluster.steps_on(cut, pods["cut"])
    assert writers(checkpoints) == [pods["cut"]["metadata"]["uid"]]
    found = numbers(checkpoints)  # its writer steps on
    assert found == list(range(1, len(found) + 1))
    # The lost rank's successor, elsewhere: where Sentinel is slow, that of the Job controller before its own.
    cluster.until(lambda: len(writers(tmp_path / "lost")) > 1)
    # Though Kubernetes gives it pods until it misses its kubelet.
    assert lost.name not in cluster.given("lost")[1:]

    lost.start()
    cluster.until(lambda: cluster.told(lost.name, "silence")[-1] == "SpeaksAgain")
    cluster.sentinel.wait(lost, cut)
    wrote = writers(tmp_path / "lost")
    assert wrote[0] == pods["lost"]["metadata"]["uid"]
    assert len(wrote) == len(set(wrote)), "nobody goes on when another has begun"
    assert not any(cluster.taints(node) for node in cluster.nodes)
    cluster.end("cut", "lost", *(bare, gone, booted, fenced))
    cluster.give_back(bare, booted, fenced)
    cluster.until(lambda: not [one for one in cluster.sentinel.quarantines() if one["state"] == "active"])


def alive(cluster: Cluster, pod: "Object") -> bool:
    """Is it there as it was, and does nobody end it?"""
    meta = pod["metadata"]
    found = cluster.admin.find(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}")
    return (
        found is not None
        and found["metadata"]["uid"] == meta["uid"]
        and "deletionTimestamp" not in found["metadata"]
    )
