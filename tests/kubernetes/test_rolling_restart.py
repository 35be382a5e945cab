"""All of Sentinel is restarted at once, as an upgrade does it, under jobs that run: in a cluster of the test's own."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.gate.rights import needs_root
from tests.kubernetes.conftest import NAMESPACE
from tests.kubernetes.real_cluster import FLEET, Cluster, job

if TYPE_CHECKING:
    from tests.rig.api import Object

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
@needs_root
def cluster(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Cluster]":
    from tests.rig.control_plane import ControlPlane
    from tests.rig.processes import Rig

    with Rig(tmp_path_factory.mktemp("cluster")) as rig:
        yield Cluster(ControlPlane(rig))


JOBS = 100


def test_a_restart_of_all_agents_and_both_controllers_under_a_hundred_jobs_causes_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    agents = cluster.light_agents(tmp_path)
    names = [f"many-{n}" for n in range(JOBS)]
    for n, name in enumerate(names):
        real = n < len(cluster.nodes)
        where = cluster.nodes[n].name if real else cluster.fakes[n % len(cluster.fakes)]
        cluster.admin.apply([job(name, where, nodeName=where)], namespace=cluster.space)

    def running() -> "dict[str, Object]":
        pods = cluster.admin.items(f"/api/v1/namespaces/{cluster.space}/pods")
        return {pod["metadata"]["uid"]: pod for pod in pods if pod["status"]["phase"] == "Running"}

    cluster.until(lambda: len(running()) == JOBS)
    # Three times what the defaults are: all the nodes of a cluster are this machine, and they restart at once.
    cluster.sentinel.set("sentinel-controller", fleet=FLEET | {"agentSilent": "3m", "lease": "2m"})
    roll(cluster, "controller")  # which reads its settings when it begins
    cluster.until(lambda: all(name in agents.heard() for name in cluster.fakes))
    cluster.until(lambda: followed(cluster) == JOBS)
    rounds_pass(cluster)  # what is told of that is written
    before, records, events = running(), cluster.sentinel.quarantines(), cluster.events()
    leader = cluster.leader()

    def incidents() -> "list[Object]":
        return cluster.admin.items("/apis/sentinel.dev/v1alpha1/incidents")

    assert not incidents()

    agents.restart()
    roll(cluster, "agent", "controller")
    assert cluster.leader() != leader
    cluster.until(lambda: all(name in agents.heard() for name in cluster.fakes))
    rounds_pass(cluster)

    assert cluster.sentinel.quarantines() == records
    assert not incidents()
    assert cluster.events() == events
    assert not cluster.mails()
    after = running()
    assert after.keys() == before.keys()
    for pod in after.values():
        assert "deletionTimestamp" not in pod["metadata"]
        assert all(one["restartCount"] == 0 for one in pod["status"].get("containerStatuses", []))
    for node in cluster.admin.items("/api/v1/nodes"):
        assert not node["spec"].get("unschedulable", False)
        assert not [one for one in node["spec"].get("taints", []) if "sentinel" in one["key"]]
    agents.stop()
    cluster.end(*names)


def followed(cluster: Cluster) -> int:
    """How many jobs run, as their records say."""
    found = cluster.admin.items(f"/apis/sentinel.dev/v1alpha1/namespaces/{cluster.space}/protectedjobs")
    return sum(one["spec"].get("state") == "running" for one in found)


def rounds_pass(cluster: Cluster) -> None:
    seen = cluster.rounds() + 4
    cluster.until(lambda: cluster.rounds() >= seen)


def roll(cluster: Cluster, *parts: str) -> None:
    """Start all pods of these parts anew, as `kubectl rollout restart` does, and wait until they are ready."""

    def pods() -> "list[Object]":
        return [pod for part in parts for pod in cluster.sentinel.pods(part)]

    old = {pod["metadata"]["uid"] for pod in pods()}
    restarted = {"kubectl.kubernetes.io/restartedAt": str(time.time())}
    change = {"spec": {"template": {"metadata": {"annotations": restarted}}}}
    for part in parts:
        kind = "daemonsets" if part == "agent" else "deployments"
        cluster.admin.patch(f"/apis/apps/v1/namespaces/{NAMESPACE}/{kind}/sentinel-{part}", change)

    def rolled_out() -> bool:
        found = pods()
        return len(found) == len(old) and all(
            pod["metadata"]["uid"] not in old and ready(pod) for pod in found
        )

    cluster.until(rolled_out, 300.0)
    cluster.sentinel.wait(*cluster.nodes)


def ready(pod: "Object") -> bool:
    return any(
        one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", [])
    )
