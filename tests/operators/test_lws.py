"""LeaderWorkerSet has no `suspend`: it is stopped with no replicas. It never ends by itself."""

import pytest

from tests.kubernetes.driven import come_back
from tests.operators.conftest import Drive
from tests.rig.api import ApiError, Object
from tests.rig.control_plane import ControlPlane
from tests.rig.kwok import Kwok
from tests.rig.operators.flow import Flow, patch, template
from tests.rig.operators.living import Living
from tests.rig.operators.lws import LABEL, LeaderWorkerSet

pytestmark = pytest.mark.operators("lws")


@pytest.fixture(scope="module")
def lws(plane: ControlPlane) -> LeaderWorkerSet:
    return LeaderWorkerSet(plane)


def groups(size: int = 3) -> Object:
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "serve"},
        "spec": {
            "replicas": 2,
            "leaderWorkerTemplate": {"size": size, "workerTemplate": template("operators")},
        },
    }


def test_leaderworkerset(lws: LeaderWorkerSet, kwok: Kwok) -> None:
    flow = Flow(lws, kwok.end_pod, groups(), 6, f"{LABEL}=serve")
    flow.admin.create(flow.job)
    flow.stop_and_start(patch(replicas=0), patch(replicas=2))


def test_a_lost_pod_takes_its_group_along(lws: LeaderWorkerSet, kwok: Kwok) -> None:
    flow = Flow(lws, kwok.end_pod, groups(), 6, f"{LABEL}=serve")
    flow.admin.create(flow.job)
    before = flow.running()
    flow.admin.delete(f"/api/v1/namespaces/{flow.space}/pods/serve-0-1")
    flow.running_again(before, 3)


def test_the_webhooks_of_leaderworkerset_are_asked(lws: LeaderWorkerSet) -> None:
    made = groups(size=0)
    made["metadata"]["namespace"] = lws.plane.namespace()
    with pytest.raises(ApiError, match="admission webhook"):
        lws.admin.create(made)


def test_what_the_table_says_of_leaderworkersets_holds(lws: LeaderWorkerSet, kwok: Kwok) -> None:
    """Stopped by no replicas, started with as many, then with one group less, off a node."""
    job = Living(lws.admin, lws.plane.namespace(), groups())
    host = job.create(6)[0].node
    job.stop()
    job.start()
    job.running(6)
    job.stop()
    job.start(size=3, hosts=(host,))
    assert host not in {one.node for one in job.running(3)}


def test_groups_that_lose_a_rank_come_back_all_together(lws: LeaderWorkerSet, drive: Drive) -> None:
    """Its own operator makes the group of the lost pod anew: it is stopped before, so that only one of the two acts."""
    job = drive(groups(), 6)
    come_back([job], 137)
    now = job.admin.get(job.path)
    assert now["spec"]["replicas"] == 2
    assert "sentinel.dev/size" not in now["metadata"].get("annotations", {})
