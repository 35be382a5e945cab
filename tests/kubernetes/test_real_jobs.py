"""Training jobs on real kubelets: nodes and ranks break, and every job ends Succeeded with the right count of steps."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sentinel.rights import RIGHTS
from tests.e2e.agent_node import XID_79
from tests.gate.rights import needs_root
from tests.kubernetes.bare_agent import BareAgent, looked
from tests.kubernetes.real_cluster import Cluster
from tests.kubernetes.real_training import BATCH, STATEFUL, Training
from tests.notify.mail_world import MailServer
from tests.rig.fixtures import shared

if TYPE_CHECKING:
    from tests.rig.control_plane import ControlPlane


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[ControlPlane]":
    from tests.rig.control_plane import ControlPlane
    from tests.rig.processes import Rig

    with Rig(tmp_path_factory.mktemp("cluster")) as rig, shared(ControlPlane(rig)) as made:
        yield made


@pytest.fixture(scope="module")
def mails(plane: "ControlPlane") -> Iterator[MailServer]:
    """Where pods reach it."""
    with MailServer(host=plane.network.address) as server:
        yield server


@pytest.fixture(scope="module")
@needs_root
def cluster(plane: "ControlPlane", mails: MailServer) -> Cluster:
    place = {"host": plane.network.address, "port": mails.port, "tls": "none"}
    return Cluster(plane, mail={**place, "sender": "s@example.com", "admins": ["admins@example.com"]})


@pytest.fixture
def training(request: pytest.FixtureRequest, cluster: Cluster, tmp_path: Path) -> "Iterator[Training]":
    """A batch Job, or of what kind the test's parameter says."""
    made = Training(cluster, tmp_path, getattr(request, "param", BATCH))
    yield made
    made.close()
    cluster.mend()


def test_a_gpu_an_agent_a_rank_a_node_and_the_controller_are_lost_in_one_go(
    training: Training, mails: MailServer
) -> None:
    cluster = training.cluster
    training.start(ranks=4, hang={"after": "10s"})
    training.until(lambda: training.record().get("state") == "running")
    training.until(lambda: training.steps() > 20)
    training.save(ranks=4)
    by_node = training.ranks_by_node()
    lost, broken, left = sorted(by_node, key=lambda node: len(by_node[node]))
    assert by_node[lost]
    agent = cluster.sentinel.agent_on(left.name)
    assert agent is not None
    leader = next(
        pod for pod in cluster.sentinel.pods("controller") if pod["metadata"]["name"] == cluster.leader()
    )
    cluster.kill(leader, agent)  # the leader first: nobody is to act before all of it is lost
    training.freeze(by_node[left][0])
    lost.kill()
    broken.kernel_says(XID_79)
    training.until(lambda: cluster.isolated(broken))
    training.until(lambda: "Unfenced" in cluster.told(lost.name, "silence"))
    training.until(lambda: training.phases()[-1:] == ["KeptRunning"])
    assert len({uid for uid, _ in training.line()}) == 1, "nothing was started beside the lost node"
    cluster.order(lost.name, "confirm-dead")
    training.until(lambda: training.phases()[-1:] == ["Recovered"])
    assert {pod["spec"]["nodeName"] for pod in training.pods()} == {left.name}
    assert training.went_on_from_its_checkpoint()
    assert training.succeeds()

    training.until(
        lambda: all(mail["state"] != "waiting" for one in training.incidents() for mail in one["mails"])
    )
    kept, restarted = training.incidents()
    assert (kept["kind"], kept["verdict"]["entity"], kept["reason"]) == (
        "chosen",
        broken.name,
        "SaveNotAsked",
    )
    assert f"nobody answers on {lost.name}" in kept["sentence"]
    assert (restarted["kind"], restarted["verdict"]["failure"]) == ("forced", "node-lost")
    assert restarted["verdict"]["entity"] == lost.name
    assert "a person said that it is dead" in str(restarted["verdict"])
    assert restarted["steps"][-1]["phase"] == "Recovered"
    assert training.record()["usedInfrastructure"] == 1
    told = {(one["id"], mail["stage"]): mail["state"] for one in (kept, restarted) for mail in one["mails"]}
    assert set(told.values()) == {"sent"}
    assert {stage for _, stage in told} == {"started", "notice", "recovered"}
    about = [str(mail["Message-ID"]) for _, mail in mails.mails if training.space in str(mail["Subject"])]
    assert len(about) == len(set(about)) == len(told), "one mail for each incident and stage"
    expected = {(broken, "fault"): ["FatalFinding"], (lost, "silence"): ["Unfenced", "RemovedByForce"]}
    for (node, kind), reasons in expected.items():
        (record,) = (one for one in cluster.sentinel.quarantines(node.name) if one["kind"] == kind)
        ids = [
            str(mail["Message-ID"]) for _, mail in mails.mails if f"<{record['id']}." in mail["Message-ID"]
        ]
        assert [id.split(".")[1] for id in ids] == reasons


def test_a_gpu_that_falls_off_the_bus_moves_the_job_behind_a_saved_checkpoint(training: Training) -> None:
    training.start(ranks=4)
    training.leaves_a_lost_gpu(3)
    assert training.succeeds()


@pytest.mark.parametrize("training", [STATEFUL], indirect=True, ids=["StatefulSet"])
def test_pods_of_an_owner_that_knows_no_stop_leave_it_by_eviction(training: Training) -> None:
    training.start(ranks=2)
    training.leaves_a_lost_gpu(1)
    assert len({uid for uid, _ in training.line()}) == 2, "rank 0 was made anew too, though its node is well"
    assert training.every_step_counts()


def test_a_drain_moves_the_job_of_a_node_behind_its_checkpoint_and_costs_it_nothing(
    training: Training,
) -> None:
    training.start(ranks=2)
    training.until(lambda: training.record().get("state") == "running")
    training.until(lambda: training.steps() > 5)
    node = training.node_of(0)
    training.cluster.order(node.name, "drain")
    training.until(lambda: training.phases()[-1:] == ["Recovered"])
    incident = training.moved()
    assert incident["verdict"]["failure"] == "drain"
    assert "saved checkpoint" in incident["save"]["provedBy"]
    assert node.name not in {pod["spec"]["nodeName"] for pod in training.pods()}
    record = training.record()
    assert (record.get("usedJob", 0), record.get("usedInfrastructure", 0), record["usedFree"]) == (0, 0, 1)
    assert training.succeeds()


def test_an_agent_without_privileged_names_each_right_that_it_lacks_and_does_what_the_others_allow(
    training: Training,
) -> None:
    """Of a rank of another user, which is no root's."""
    cluster = training.cluster
    training.start(ranks=1, user=1234)
    training.until(lambda: training.record().get("state") == "running")
    training.until(lambda: training.steps() > 5)
    first = training.node_of(0)
    usual = looked(cluster, first)
    assert usual.unknown == {}

    with BareAgent(cluster, first):
        seen = looked(cluster, first)
        assert seen.unknown.keys() == {"kernel"}
        assert "a privileged container" in seen.unknown["kernel"]
        assert seen.findings <= usual.findings
        cluster.order(first.name, "drain")
        training.until(lambda: training.phases()[-1:] == ["Recovered"])
        assert "saved checkpoint" in training.moved()["save"]["provedBy"]
    cluster.order(first.name, "release")
    training.until(lambda: not cluster.taints(first))

    second = training.node_of(0)
    usual = looked(cluster, second)
    with BareAgent(cluster, second, []) as agent:
        seen = looked(cluster, second)
        lacks = {"kernel": "a privileged container", "disk": "CAP_SYS_PTRACE", "reboot": "CAP_SYS_PTRACE"}
        assert seen.unknown.keys() == lacks.keys()
        assert all(lacks[check] in why for check, why in seen.unknown.items()), seen.unknown
        assert seen.findings <= usual.findings, "nothing of the container is taken for a fault of the node"
        (line,) = (line for line in agent.log.splitlines() if "lacks rights" in line)
        assert all(f"without {right.name}:".replace("`", "") in line for right in RIGHTS), line
        cluster.order(second.name, "drain")
        training.until(lambda: training.phases()[-1:] == ["KeptRunning"])
        skipped = training.incidents()[-1]["save"]["skipped"]
        assert "not permitted: a process of another user needs CAP_KILL" in skipped


def test_a_rank_that_hangs_a_killed_agent_and_a_killed_leader_cost_the_job_one_restart(
    training: Training,
) -> None:
    # The other ranks end while nobody looks, as on a busy machine: the one that hangs is told all the same.
    training.start(ranks=4, steps=150, hang={"after": "5s"})
    training.until(lambda: training.record().get("state") == "running")
    training.until(lambda: training.steps() > 20)
    leader = training.cluster.leader()
    node = training.node_of(1)
    training.freeze(1)
    pods = "/api/v1/namespaces/sentinel-system/pods"
    training.admin.delete(f"{pods}/{leader}", gracePeriodSeconds=0)
    agent = f"labelSelector=app.kubernetes.io/component=agent&fieldSelector=spec.nodeName={node.name}"

    def ended_unseen() -> bool:
        training.admin.delete(f"{pods}?{agent}", gracePeriodSeconds=0)
        return len(training.pods("Succeeded")) == 3

    training.until(ended_unseen)
    training.until(lambda: training.phases()[-1:] == ["Recovered"], 200.0)
    (incident,) = training.incidents()
    assert incident["verdict"]["symptom"] == "hang"
    assert training.record()["usedInfrastructure"] == 1
    training.until(lambda: training.record().get("state") == "succeeded")
    assert training.every_step_counts(150)


def test_an_elastic_job_goes_on_without_a_drained_node_and_has_it_again_when_it_is_back(
    training: Training,
) -> None:
    offers = training.cluster.nodes[0]
    cores = float(training.admin.get(f"/api/v1/nodes/{offers.name}")["status"]["allocatable"]["cpu"])
    training.start(
        ranks=3,
        cpu=f"{cores * 550:.0f}m",  # one rank on each node
        elastic={"minNodes": 1, "growAfter": "1s"},
    )
    training.until(lambda: training.record().get("state") == "running")
    training.until(lambda: training.steps() > 5)
    node = training.node_of(2)
    training.cluster.order(node.name, "drain")
    training.until(lambda: training.phases()[-1:] == ["Recovered"])
    assert (training.record()["size"], len(training.pods())) == (2, 2)
    training.cluster.order(node.name, "release")
    training.until(lambda: training.record()["size"] == 3 and training.phases()[-1:] == ["Recovered"])
    grown = training.incidents()[-1]
    assert (grown["verdict"]["symptom"], grown["size"]) == ("resize", 3)
    assert "saved checkpoint" in grown["save"]["provedBy"]
    assert node.name in {pod["spec"]["nodeName"] for pod in training.pods()}
    assert [training.record().get(name, 0) for name in ("usedJob", "usedInfrastructure", "usedFree")] == [
        0,
        0,
        2,
    ]
    assert training.succeeds()
