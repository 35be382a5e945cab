"""Real jobs under their real operators, stopped, kept off a node and started again as the controller's account may."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from sentinel.cluster.kubernetes import job_cluster, job_waits
from sentinel.cluster.kubernetes.agents import Agents
from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.errors import NotFound
from sentinel.cluster.kubernetes.job_cluster import JobCluster
from sentinel.cluster.kubernetes.job_io import JobRef
from sentinel.cluster.kubernetes.job_room import Rooms
from sentinel.cluster.kubernetes.objects import Meta, Pod
from sentinel.cluster.kubernetes.reflector import Change, Kind
from sentinel.core.agents.orders import ASK
from sentinel.core.job.kinds import JobKind, row_of
from sentinel.core.job.state import standing
from sentinel.core.model import Policy, ProtectedJob
from sentinel.core.reports import Answer, Report
from sentinel.rules.job_kinds import job_table
from sentinel.transport.wire import Arrived
from sentinel.util.clock import system_now
from sentinel.util.errors import PermanentError, TemporaryError
from tests.kubernetes.conftest import run
from tests.kubernetes.proxy import Fault, Proxy
from tests.kubernetes.test_uninstall import defined
from tests.kubernetes.test_uninstalled_jobs import WORKLOADS
from tests.rig.operators.flow import Flow, condition, template
from tests.rig.test_rig_operators import KINDS, job_set, training_job
from tests.waits import eventually, until

if TYPE_CHECKING:
    from tests.rig.api import Object
    from tests.rig.control_plane import ControlPlane
    from tests.rig.kwok import Kwok
    from tests.rig.operators.jobset import JobSet
    from tests.rig.operators.training_operator import TrainingOperator

NODES = "jobs-here"
JOB = "research/job/train"


@pytest.fixture(scope="module")
def kwok(installed: "ControlPlane") -> "Iterator[Kwok]":
    from tests.rig.kwok import Kwok

    made = Kwok(installed)
    made.nodes(NODES, 3)
    yield made
    made.remove(NODES)
    made.rig.forget(made.daemon)


def indexed(count: int) -> "Object":
    pods = template(NODES)
    pods["spec"] |= {"restartPolicy": "Never"}
    spec = {"completionMode": "Indexed", "parallelism": count, "completions": count, "template": pods}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": spec}


def row(job: "Object") -> JobKind:
    found = row_of(job_table().rows, job)
    assert found is not None
    return found


class Plane:
    """What Flow needs of an operator, for jobs of the control plane's own."""

    def __init__(self, plane: "ControlPlane") -> None:
        self.plane, self.admin = plane, plane.admin


Story = Callable[[JobCluster, Flow], Coroutine[Any, Any, None]]


def story_of(config: str, flow: Flow, story: Story, agents: Agents | None = None) -> None:
    """The job was created and runs; everything is done as the controller's account."""
    flow.admin.create(flow.job)
    flow.running()
    made = flow.now()

    async def opened() -> None:
        async with await Client.connect(config) as client:
            rooms = Rooms(dict, dict, system_now)
            cluster = JobCluster(client, agents or Agents(lambda node: None), lambda: 1, rooms)
            cluster.know(JOB, JobRef(row(made), flow.space, "train", made["metadata"]["uid"]))
            await story(cluster, flow)

    run(opened())


def used(flow: Flow) -> set[str]:
    return {pod["spec"]["nodeName"] for pod in flow.pods("Running")}


async def moves(cluster: JobCluster, flow: Flow) -> None:
    """Stopped by its kind's means, started again off a node, which is left again at the next start."""
    before = {pod["metadata"]["uid"] for pod in flow.pods()}
    ranks = await cluster.adopt(JOB)
    assert (await cluster.stop(JOB, 1, 1.0)).gone
    assert not [pod for pod in flow.pods() if pod["status"]["phase"] in ("Pending", "Running")]
    assert (await cluster.stop(JOB, 1, 1.0)).gone  # what was done is done
    started = await cluster.start(JOB, None, 2, len(ranks), {}, (f"{NODES}-0",))
    assert [one.rank for one in started] == [one.rank for one in ranks]
    assert used(flow) <= {f"{NODES}-1", f"{NODES}-2"}
    assert not before & flow.running()
    again = await cluster.start(JOB, None, 2, len(ranks), {}, (f"{NODES}-0",))
    assert again == started
    assert (await cluster.stop(JOB, 2, 1.0)).gone
    await cluster.start(JOB, None, 3, len(ranks), {}, (f"{NODES}-1",))
    assert used(flow) <= {f"{NODES}-0", f"{NODES}-2"}
    await asyncio.to_thread(flow.end, 0)


def test_an_indexed_job(installed: "ControlPlane", controller: str, kwok: "Kwok") -> None:
    labels = "batch.kubernetes.io/job-name=train"
    job = indexed(3)
    job["metadata"]["labels"] = {
        "kueue.x-k8s.io/queue-name": "gpus"
    }  # means nothing where Kueue is not installed
    flow = Flow(Plane(installed), kwok.end_pod, job, 3, labels)  # type: ignore[arg-type]
    story_of(controller, flow, moves)


def test_a_job_that_is_suspended_while_it_is_read_has_not_lost_its_pods(
    installed: "ControlPlane", proxy: Proxy, behind_proxy: str, kwok: "Kwok"
) -> None:
    """Its object is read before its pods: these are ending when they are, and nobody has suspended it yet."""

    def held(finalizers: list[str] | None) -> None:
        for pod in flow.pods():
            path = f"/api/v1/namespaces/{flow.space}/pods/{pod['metadata']['name']}"
            flow.admin.patch(path, {"metadata": {"finalizers": finalizers}})

    def suspend() -> None:
        held(["test-rig/held", "batch.kubernetes.io/job-tracking"])
        flow.admin.patch(flow.path, {"spec": {"suspend": True}})
        until(lambda: any("deletionTimestamp" in pod["metadata"] for pod in flow.pods()), flow.why)

    async def story(cluster: JobCluster, flow: Flow) -> None:
        proxy.faults.append(Fault("GET", "/pods?", when_come=suspend))
        seen = await cluster.read(JOB)
        assert any("deletionTimestamp" in pod["metadata"] for pod in seen.pods)
        assert standing(seen).stopped

    labels = "batch.kubernetes.io/job-name=train"
    flow = Flow(Plane(installed), kwok.end_pod, indexed(2), 2, labels)  # type: ignore[arg-type]
    story_of(behind_proxy, flow, story)
    held(None)


def test_only_a_job_that_names_a_queue_asks_each_time_for_a_kueue_that_is_not_installed(
    installed: "ControlPlane", proxy: Proxy, behind_proxy: str, kwok: "Kwok"
) -> None:
    def asked() -> int:
        return sum("/workloads?" in request for request in proxy.seen)

    async def story(cluster: JobCluster, flow: Flow) -> None:
        for _ in range(5):
            assert not (await cluster.read(JOB)).kueue
        before = asked()
        assert before < 5
        queue = {"kueue.x-k8s.io/queue-name": "gpus"}
        await asyncio.to_thread(flow.admin.patch, flow.path, {"metadata": {"labels": queue}})
        for _ in range(3):
            await cluster.read(JOB)
        assert asked() == before + 3

    labels = "batch.kubernetes.io/job-name=train"
    flow = Flow(Plane(installed), kwok.end_pod, indexed(1), 1, labels)  # type: ignore[arg-type]
    story_of(behind_proxy, flow, story)


async def forgets_the_dead(cluster: JobCluster, flow: Flow) -> None:
    before = flow.running()
    await cluster.adopt(JOB)
    for pod in flow.pods("Running"):
        flow.end_pod(flow.space, pod["metadata"]["name"], 1)
    await eventually(lambda: len(flow.pods("Failed")) == 2, "the pods have not failed")
    assert (await cluster.stop(JOB, 1, 1.0)).gone
    started = await cluster.start(JOB, None, 2, 2, {})
    assert [one.rank for one in started] == [0, 1]
    assert not before & {pod["metadata"]["uid"] for pod in flow.pods("Running")}
    await asyncio.to_thread(flow.end, 0)


def test_pods_that_had_failed_before_are_no_ranks_of_a_new_start(
    installed: "ControlPlane", controller: str, kwok: "Kwok"
) -> None:
    labels = "batch.kubernetes.io/job-name=train"
    flow = Flow(Plane(installed), kwok.end_pod, indexed(2), 2, labels)  # type: ignore[arg-type]
    story_of(controller, flow, forgets_the_dead)


def test_a_jobset(installed: "ControlPlane", controller: str, kwok: "Kwok", jobset: "JobSet") -> None:
    flow = Flow(jobset, kwok.end_pod, job_set(3, NODES), 3, "jobset.sigs.k8s.io/jobset-name=train")
    story_of(controller, flow, moves)


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_the_training_operator(
    installed: "ControlPlane",
    controller: str,
    kwok: "Kwok",
    training_operator: "TrainingOperator",
    kind: str,
) -> None:
    job = training_job(kind, NODES)
    count = sum(KINDS[kind][2].values())
    flow = Flow(training_operator, kwok.end_pod, job, count, "training.kubeflow.org/job-name=train")
    story_of(controller, flow, moves)


def test_ranks_that_had_ended_well_are_not_waited_for(
    installed: "ControlPlane", controller: str, kwok: "Kwok"
) -> None:
    async def story(cluster: JobCluster, flow: Flow) -> None:
        name = flow.pods("Running")[0]["metadata"]["name"]
        kwok.end_pod(flow.space, name, 0)
        await eventually(lambda: flow.now()["status"].get("completedIndexes"), "it is not counted")
        assert (await cluster.stop(JOB, 1, 1.0)).gone
        assert len(await cluster.start(JOB, None, 2, 3, {})) == 2
        assert len(cluster.nodes(JOB)) == 2, "nobody listens to what has ended"

    labels = "batch.kubernetes.io/job-name=train"
    flow = Flow(Plane(installed), kwok.end_pod, indexed(3), 3, labels)  # type: ignore[arg-type]
    story_of(controller, flow, story)


def test_what_a_person_suspended_is_the_persons_to_start_and_what_is_gone_is_said_to_be(
    installed: "ControlPlane", controller: str, kwok: "Kwok"
) -> None:
    async def story(cluster: JobCluster, flow: Flow) -> None:
        flow.admin.patch(flow.path, {"spec": {"suspend": True}})
        await eventually(lambda: not flow.pods(), "its pods do not go")
        assert (await cluster.stop(JOB, 1, 1.0)).gone
        with pytest.raises(TemporaryError, match="stopped by"):
            await cluster.start(JOB, None, 2, 2, {})
        flow.admin.delete(flow.path)
        await eventually(lambda: not flow.admin.find(flow.path), "it does not go")
        with pytest.raises(NotFound):
            await cluster.start(JOB, None, 2, 2, {})
        assert (await cluster.stop(JOB, 2, 1.0)).gone

    labels = "batch.kubernetes.io/job-name=train"
    flow = Flow(Plane(installed), kwok.end_pod, indexed(2), 2, labels)  # type: ignore[arg-type]
    story_of(controller, flow, story)


def test_a_job_that_has_failed_is_not_started_again(
    installed: "ControlPlane", controller: str, kwok: "Kwok"
) -> None:
    async def story(cluster: JobCluster, flow: Flow) -> None:
        flow.end(3)
        await eventually(lambda: condition("Failed")(flow.now()), "it does not fail")
        stopped = await cluster.stop(JOB, 1, 1.0)
        assert not stopped.gone
        assert "BackoffLimitExceeded" in stopped.ended
        with pytest.raises(PermanentError, match="failed"):
            await cluster.start(JOB, None, 2, 1, {})

    job = indexed(1)
    job["spec"]["backoffLimit"] = 0
    labels = "batch.kubernetes.io/job-name=train"
    flow = Flow(Plane(installed), kwok.end_pod, job, 1, labels)  # type: ignore[arg-type]
    story_of(controller, flow, story)


def test_a_job_that_fails_while_it_is_started_is_waited_for_no_longer(
    installed: "ControlPlane", controller: str, kwok: "Kwok"
) -> None:
    """Its operator ends what is left of it; what a rank that has failed tells of it is looked at as of any other."""

    async def story(cluster: JobCluster, flow: Flow) -> None:
        assert (await cluster.stop(JOB, 1, 1.0)).gone
        kwok.daemon.freeze()
        try:
            starts = asyncio.create_task(cluster.start(JOB, None, 2, 2, {}))
            await eventually(lambda: len(flow.pods("Pending")) == 2 or starts.done(), "no pods are made")
            flow.admin.patch(flow.path, {"spec": {"activeDeadlineSeconds": 1}})
            await eventually(lambda: condition("FailureTarget")(flow.now()), "it does not fail")
        finally:
            kwok.daemon.thaw()
        with pytest.raises(PermanentError, match=r"DeadlineExceeded.* It cannot be started again\."):
            await starts

    labels = "batch.kubernetes.io/job-name=train"
    flow = Flow(Plane(installed), kwok.end_pod, indexed(2), 2, labels)  # type: ignore[arg-type]
    story_of(controller, flow, story)


def test_a_stop_that_the_kind_refuses_says_why_and_is_tried_again_when_its_pods_change(
    installed: "ControlPlane", controller: str, kwok: "Kwok"
) -> None:
    async def story(cluster: JobCluster, flow: Flow) -> None:
        looked = list[str]()
        cluster.look_again = looked.append
        first = await cluster.stop(JOB, 1, 1.0)
        assert (first.gone, first.reason) == (False, "NoOwner")
        assert cluster.refuses(JOB)
        assert looked == [JOB], "what has come back of it by now is told by no watch any more"
        assert "nobody would make it again" in first.waits
        assert flow.pods("Running"), "it is not touched"
        again = asyncio.create_task(cluster.stop(JOB, 1, 1.0))
        pod_changed = Change(Kind.GONE, f"{flow.space}/train", Pod(Meta(name="train")), None)
        flow.admin.delete(flow.path, gracePeriodSeconds=0)
        await eventually(lambda: cluster.changed(JOB, pod_changed) or again.done(), "it does not look again")
        assert (await again).gone

    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train", "labels": {"my": "pod"}}}
    flow = Flow(Plane(installed), kwok.end_pod, {**pod, **template(NODES)}, 1, "my=pod")  # type: ignore[arg-type]
    story_of(controller, flow, story)


def test_who_starts_a_job_that_stops_is_left_to_it_but_where_it_is_to_end_for_good(
    installed: "ControlPlane", controller: str, kwok: "Kwok", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_cluster, "STOP_SLACK_S", 1.0)

    async def story(cluster: JobCluster, flow: Flow) -> None:
        await cluster.adopt(JOB)
        kwok.daemon.freeze()
        assert not (await cluster.stop(JOB, 1, 1.0)).gone
        flow.admin.patch(flow.path, {"spec": {"suspend": False}})
        assert not (await cluster.stop(JOB, 1, 1.0, lambda: True)).theirs
        assert flow.now()["spec"]["suspend"] is True

        flow.admin.patch(flow.path, {"spec": {"suspend": False}})
        generation = flow.now()["metadata"]["generation"]
        left = await cluster.stop(JOB, 1, 1.0)
        assert (left.gone, left.theirs) == (False, True)
        assert left.waits.startswith("It was started by ")
        after = flow.now()["metadata"]
        assert after["generation"] == generation, "its spec was not written"
        assert "sentinel.dev/stopped" not in after.get("annotations", {})
        kwok.daemon.thaw()

    labels = "batch.kubernetes.io/job-name=train"
    flow = Flow(Plane(installed), kwok.end_pod, indexed(2), 2, labels)  # type: ignore[arg-type]
    try:
        story_of(controller, flow, story)
    finally:
        kwok.daemon.thaw()


@pytest.fixture
def queues(installed: "ControlPlane") -> Iterator[str]:
    """Kueue is installed, and the test plays its controllers; the path of all its Workloads."""
    path = "/apis/kueue.x-k8s.io/v1beta1/workloads"
    defined(installed, WORKLOADS, path)
    yield path
    installed.admin.delete(installed.admin.path_of(WORKLOADS))
    until(lambda: not installed.admin.find(path), lambda: f"{path} is still served")


def queued(installed: "ControlPlane", kwok: "Kwok") -> tuple[Flow, str]:
    """A job of two in a queue, and the path of its Workload."""
    job = indexed(2)
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "gpus"}
    flow = Flow(Plane(installed), kwok.end_pod, job, 2, "batch.kubernetes.io/job-name=train")  # type: ignore[arg-type]
    return flow, f"/apis/kueue.x-k8s.io/v1beta1/namespaces/{flow.space}/workloads/job-train"


def let_in(flow: Flow) -> None:
    """Kueue has made its Workload, and let it run."""
    labels = {"kueue.x-k8s.io/job-uid": flow.now()["metadata"]["uid"]}
    meta = {"name": "job-train", "namespace": flow.space, "labels": labels}
    spec = {"active": True, "podSets": [{"name": "main", "count": 2}], "queueName": "gpus"}
    head = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Workload"}
    flow.admin.create({**head, "metadata": meta, "spec": spec})


def test_a_job_that_its_queue_lets_in_while_it_is_told_to_stop_was_started_by_nobody(
    installed: "ControlPlane", queues: str, proxy: Proxy, behind_proxy: str, kwok: "Kwok"
) -> None:
    def lets_in() -> None:
        flow.admin.patch(workload, {"metadata": {"labels": {"let": "in"}}})
        flow.admin.patch(flow.path, {"spec": {"suspend": False}})

    async def story(cluster: JobCluster, flow: Flow) -> None:
        let_in(flow)
        await cluster.adopt(JOB)
        flow.admin.patch(flow.path, {"spec": {"suspend": True}})  # it was preempted, and waits for its turn
        proxy.faults.append(Fault("PATCH", "/workloads/job-train", when_come=lets_in))
        stopping = asyncio.create_task(cluster.stop(JOB, 1, 1.0))
        await eventually(
            lambda: stopping.done() or not flow.admin.get(workload)["spec"]["active"], "it is not stopped"
        )
        flow.admin.patch(flow.path, {"spec": {"suspend": True}})  # as Kueue obeys
        assert (await stopping).gone
        assert flow.admin.get(workload)["spec"]["active"] is False

    flow, workload = queued(installed, kwok)
    story_of(behind_proxy, flow, story)


def test_for_a_queued_job_that_a_person_switched_on_again_no_room_is_sought_and_it_is_looked_at(
    installed: "ControlPlane", queues: str, controller: str, kwok: "Kwok"
) -> None:
    async def story(cluster: JobCluster, flow: Flow) -> None:
        looked_at = list[str]()
        let_in(flow)
        await cluster.adopt(JOB)
        cluster.look_again = looked_at.append
        stopping = asyncio.create_task(cluster.stop(JOB, 1, 1.0))
        await eventually(lambda: not flow.admin.get(workload)["spec"]["active"], "it is not switched off")
        flow.admin.patch(flow.path, {"spec": {"suspend": True}})  # as Kueue obeys
        assert (await stopping).gone
        job = ProtectedJob(name=JOB, policy=Policy(), size=2)
        assert (await cluster.room(job, 2, ())).reason != "NotOurs"
        flow.admin.patch(
            f"{workload}?fieldManager=kubectl", {"spec": {"active": True}}
        )  # not as Kueue itself
        room = await cluster.room(job, 2, ())
        assert (room.size, room.reason, looked_at) == (0, "NotOurs", [JOB])
        assert (
            "while Sentinel's recovery of it waited. It waits for its turn in Kueue's queue gpus."
            in room.sentence
        )
        assert await cluster.leave(JOB)
        assert (await cluster.room(job, 2, ())).size == 2, "it is theirs by now, and waits for its turn"

    flow, workload = queued(installed, kwok)
    story_of(controller, flow, story)


def agents_that_see(process: str, able: list[int]) -> Agents:
    """On each node one process of the job is left, whenever they are asked. `able`: whether it may still run, now."""

    def changed(node: str) -> None:
        for order in made.orders(node).items:
            if order.kind == ASK:
                told = Answer(order=order.id, texts=(process,), able=able[0])
                report = Report(node=node, boot_id="", sequence=1, now=system_now(), answers=(told,))
                made.arrived(
                    Arrived(
                        node=node, node_uid="", session="", sequence=1, full=False, late=False, report=report
                    )
                )

    made = Agents(changed)
    return made


def test_only_what_has_outlived_its_time_is_stuck_and_no_job_is_failed_for_an_api_server_that_is_away(
    installed: "ControlPlane",
    proxy: Proxy,
    behind_proxy: str,
    kwok: "Kwok",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_cluster, "AWAY_S", 1.0)
    monkeypatch.setattr(job_cluster, "STOP_SLACK_S", 1.0)
    monkeypatch.setattr(job_waits, "STOP_SLACK_S", 1.0)

    able = [1]

    def away(is_so: bool) -> None:
        proxy.weather = lambda method, path: Fault(answer=503) if is_so else None

    def ending() -> bool:
        return all("deletionTimestamp" in pod["metadata"] for pod in flow.pods())

    async def story(cluster: JobCluster, flow: Flow) -> None:
        async def gone() -> bool:
            return (await cluster.stop(JOB, 1, 1.0)).gone

        await cluster.adopt(JOB)
        away(True)
        looked = list[str]()
        cluster.look_again = looked.append
        assert (await cluster.stop(JOB, 1, 1.0)).waits == job_cluster.AWAY
        assert not cluster.refuses(JOB), "whoever started it again meanwhile, this recovery goes on"
        assert looked == []
        away(False)

        kwok.daemon.freeze()
        installed.controller_manager.freeze()
        slow = await cluster.stop(JOB, 1, 1.0)
        assert slow.waits.startswith("2 of its pods are not being ended yet"), slow
        installed.controller_manager.thaw()
        await eventually(ending, flow.why)

        asked = asyncio.create_task(cluster.stop(JOB, 1, 1.0))
        away(True)
        assert (await asked).waits == job_cluster.AWAY
        away(False)
        stuck = await cluster.stop(JOB, 1, 1.0)
        assert stuck.waits == ""
        assert "pid 7 in state D" in stuck.stuck
        able[0] = 0
        left, nodes = sorted(pod["metadata"]["name"] for pod in flow.pods()), sorted(used(flow))
        forced = await cluster.stop(JOB, 1, 1.0)
        assert forced.waits == (
            f"Pods that run nothing any more and do not end are removed by force: {', '.join(left)}. "
            f"Their nodes need a restart: {', '.join(nodes)}."
        )
        await eventually(gone, flow.why)
        assert not flow.pods(), "no kubelet has a part in it"
        kwok.daemon.thaw()

    labels = "batch.kubernetes.io/job-name=train"
    flow = Flow(Plane(installed), kwok.end_pod, indexed(2), 2, labels)  # type: ignore[arg-type]
    try:
        story_of(behind_proxy, flow, story, agents_that_see("pid 7 in state D", able))
    finally:
        installed.controller_manager.thaw()
        kwok.daemon.thaw()
