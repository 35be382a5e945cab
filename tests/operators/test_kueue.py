"""Kueue holds `suspend` of the jobs in its queues; they are stopped and started by their Workload."""

import time

import pytest

from sentinel.core.job.state import KUEUE, STOPPED, standing
from sentinel.util.documents import time_of
from tests.kubernetes.driven import RECOVERED, Driven, come_back
from tests.operators.conftest import Drive
from tests.rig.api import Object
from tests.rig.control_plane import ControlPlane
from tests.rig.kwok import Kwok
from tests.rig.operators.flow import Change, Flow, condition, template
from tests.rig.operators.jobset import JobSet
from tests.rig.operators.kueue import Kueue
from tests.rig.operators.living import Living
from tests.rig.operators.lws import LeaderWorkerSet
from tests.rig.processes import until

pytestmark = pytest.mark.operators("jobset", "lws", "kueue")
GROUP = "kueue.x-k8s.io"
RANKS = 3
QUOTA = 4  # CPUs, one for each rank: room for one job


@pytest.fixture(scope="module")
def kueue(plane: ControlPlane) -> Kueue:
    JobSet(plane)
    LeaderWorkerSet(plane)
    return Kueue(plane)


def queue(space: str, **spec: object) -> list[Object]:
    """A queue of this namespace alone, with a quota. `spec`: more of the ClusterQueue's."""
    version = f"{GROUP}/v1beta1"
    quota = {
        "coveredResources": ["cpu"],
        "flavors": [{"name": "default", "resources": [{"name": "cpu", "nominalQuota": QUOTA}]}],
    }
    return [
        {"apiVersion": version, "kind": "ResourceFlavor", "metadata": {"name": "default"}},
        {
            "apiVersion": version,
            "kind": "ClusterQueue",
            "metadata": {"name": space},
            "spec": {"namespaceSelector": {}, "resourceGroups": [quota], **spec},
        },
        {
            "apiVersion": version,
            "kind": "LocalQueue",
            "metadata": {"name": "queue", "namespace": space},
            "spec": {"clusterQueue": space},
        },
    ]


def pods(nodes: str) -> Object:
    made = template(nodes)
    made["spec"]["restartPolicy"] = "Never"
    made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
    return made


def batch_job(name: str, nodes: str = "operators") -> Object:
    spec = {"completionMode": "Indexed", "parallelism": RANKS, "completions": RANKS, "template": pods(nodes)}
    meta = {"name": name, "labels": {f"{GROUP}/queue-name": "queue"}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}


def groups(name: str) -> Object:
    """Two of two pods each, which Kueue lets in behind gates."""
    made = template("operators")
    made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name, "labels": {f"{GROUP}/queue-name": "queue"}},
        "spec": {"replicas": 2, "leaderWorkerTemplate": {"size": 2, "workerTemplate": made}},
    }


def job_set(name: str) -> Object:
    job = {"name": "worker", "template": {"spec": batch_job(name)["spec"]}}
    meta = {"name": name, "labels": {f"{GROUP}/queue-name": "queue"}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": meta,
        "spec": {"replicatedJobs": [job]},
    }


def workloads(flow: Flow | Driven) -> list[Object]:
    """Of the flow's job."""
    found = flow.admin.items(f"/apis/{GROUP}/v1beta1/namespaces/{flow.space}/workloads")
    uid = flow.admin.get(flow.path)["metadata"]["uid"]
    return [each for each in found if uid in [owner["uid"] for owner in each["metadata"]["ownerReferences"]]]


def active(value: bool) -> Change:
    def act(flow: Flow) -> None:
        (found,) = workloads(flow)
        name = found["metadata"]["name"]
        path = f"/apis/{GROUP}/v1beta1/namespaces/{flow.space}/workloads/{name}"
        flow.admin.patch(path, {"spec": {"active": value}})

    return act


def start(kueue: Kueue, kwok: Kwok, made: Object, selector: str) -> Flow:
    flow = Flow(kueue, kwok.end_pod, made, RANKS, selector)
    flow.admin.apply(queue(flow.space))
    return flow


def test_batch_job(kueue: Kueue, kwok: Kwok) -> None:
    flow = start(kueue, kwok, batch_job("train"), "job-name=train")
    flow.go(active(False), active(True), condition("Complete"))


def test_jobset(kueue: Kueue, kwok: Kwok) -> None:
    flow = start(kueue, kwok, job_set("train"), "jobset.sigs.k8s.io/jobset-name=train")
    flow.go(active(False), active(True), condition("Completed"))


def test_a_job_waits_for_quota_and_a_stopped_one_gives_it_back(kueue: Kueue, kwok: Kwok) -> None:
    first = start(kueue, kwok, batch_job("first"), "job-name=first")
    second = Flow(kueue, kwok.end_pod, batch_job("second"), RANKS, "job-name=second", space=first.space)
    first.admin.create(first.job)
    first.running()
    second.admin.create(second.job)
    until(lambda: workloads(second), second.why)
    second.admin.patch(second.path, {"spec": {"suspend": False}})  # past the queue: taken back
    until(lambda: second.now()["spec"]["suspend"] and not second.pods(), second.why)
    active(False)(first)
    second.running()
    active(True)(first)
    until(lambda: "QuotaReserved" in str(workloads(first)[0]["status"]), first.why)
    assert first.now()["spec"]["suspend"]
    assert not first.pods()
    second.end()
    second.until_now(condition("Complete"))
    first.running()
    first.end()
    first.until_now(condition("Complete"))


@pytest.mark.parametrize("made", [batch_job("train"), job_set("train")], ids=["Job", "JobSet"])
def test_what_the_table_says_of_queued_jobs_holds(kueue: Kueue, kwok: Kwok, made: Object) -> None:
    """Stopped and started through the queue, off a node; what Kueue holds back is Kueue's."""
    job = Living(kueue.admin, kueue.plane.namespace(), made)
    job.admin.apply(queue(job.space))
    host = job.create(RANKS)[0].node
    job.stop()
    other = Flow(kueue, kwok.end_pod, batch_job("other"), RANKS, "job-name=other", space=job.space)
    other.admin.create(other.job)
    other.running()
    job.start(hosts=(host,), waits=True)
    assert standing(job.seen()).stopped_by == KUEUE, "it waits for its turn, and nobody else starts it"
    other.end()
    found = job.running(RANKS)
    assert host not in {one.node for one in found}
    for one in found:
        kwok.end_pod(job.space, one.name, 0)
    job.ended("succeeded")


def writers(job: Driven, *field: str) -> set[str]:
    """The field managers that have written this field of the job's spec."""
    path = [f"f:{name}" for name in ("spec", *field)]
    found = set()
    for entry in job.admin.get(job.path)["metadata"]["managedFields"]:
        inside = entry["fieldsV1"]
        for name in path:
            inside = inside.get(name) if inside is not None else None
        if inside is not None:
            found.add(entry["manager"])
    return found


def test_a_queued_job_that_loses_a_rank_comes_back_through_its_queue(
    kueue: Kueue, kwok: Kwok, drive: Drive
) -> None:
    jobs = []
    for made in (batch_job("train"), job_set("train")):
        space = kueue.plane.namespace()
        jobs.append(drive(made, RANKS, *queue(space), space=space))
    come_back(jobs)
    for job in jobs:
        assert writers(job, "suspend") == {"kueue"}, "Kueue's field is written by nobody else"
        (workload,) = workloads(job)
        assert workload["spec"]["active"]
        assert STOPPED not in workload["metadata"].get("annotations", {})
        job.finish()


def test_with_a_full_quota_a_recovery_waits_for_its_turn_and_then_comes_back(
    kueue: Kueue, kwok: Kwok, drive: Drive
) -> None:
    """What it needs is taken meanwhile by the job that waited, on the nodes and in the quota: that job runs to its end.
    However long that takes, no start of the first one has failed."""
    kwok.nodes("room", QUOTA, capacity={"cpu": "1"})
    space = kueue.plane.namespace()
    first = drive(batch_job("first", "room"), RANKS, *queue(space), space=space)
    first.begin(jobs={"name": "first"}, startTimeout="10s", precheck={"wait": "10s"})
    first.until_state("running")
    before = first.uids()
    other = Flow(kueue, kwok.end_pod, batch_job("other", "room"), RANKS, "job-name=other", space=space)
    other.admin.create(other.job)
    until(lambda: workloads(other), other.why)

    def within_quota() -> bool:
        pods = first.admin.items(f"/api/v1/namespaces/{space}/pods")
        assert len([pod for pod in pods if pod["status"].get("phase") == "Running"]) <= QUOTA
        return True

    def waits_since() -> float:
        (told,) = first.incidents() or [{}]
        found = [step for step in told.get("steps", []) if step["reason"] == "Queued"]
        return time_of(found[0]["time"]) if found else 0.0

    first.lose()
    since_s = until(lambda: within_quota() and waits_since(), first.story)
    assert "insufficient unused quota" in first.incidents()[0]["sentence"], first.story()
    until(lambda: within_quota() and len(other.pods("Running")) == RANKS, other.why)
    until(lambda: within_quota() and time.time() > since_s + 15, first.story)  # longer than any of its times
    assert first.way() == RECOVERED[:3], first.story()
    other.end()
    until(lambda: within_quota() and first.phases()[-1:] == ["Recovered"], first.story)
    other.until_now(condition("Complete"))
    assert not before & first.uids()
    assert len(first.incidents()) == 1
    assert writers(first, "suspend") == {"kueue"}
    first.finish()


def test_groups_in_a_queue_wait_for_their_turn_behind_gates_and_then_come_back(
    kueue: Kueue, kwok: Kwok, drive: Drive
) -> None:
    """What they leave is taken by the job that waited: it runs to its end, and no start of theirs has failed."""
    space = kueue.plane.namespace()
    first = drive(groups("first"), QUOTA, *queue(space), space=space)
    first.begin(jobs={"name": "first"}, startTimeout="10s")
    first.until_state("running")
    before = first.uids()
    other = Flow(kueue, kwok.end_pod, batch_job("other"), RANKS, "job-name=other", space=space)
    other.admin.create(other.job)
    until(lambda: workloads(other), other.why)
    assert not other.pods()

    def within_quota() -> bool:
        pods = first.admin.items(f"/api/v1/namespaces/{space}/pods")
        assert len([pod for pod in pods if pod["status"].get("phase") == "Running"]) <= QUOTA
        return True

    def queued() -> list[Object]:
        return [
            step for one in first.incidents() for step in one.get("steps", []) if step["reason"] == "Queued"
        ]

    first.lose(137)
    until(lambda: within_quota() and queued(), first.story)
    assert "Kueue's queue queue" in first.incidents()[0]["sentence"], first.story()
    since_s = time_of(queued()[0]["time"])
    until(lambda: within_quota() and len(other.pods("Running")) == RANKS, other.why)
    until(
        lambda: within_quota() and time.time() > since_s + 15, first.story
    )  # longer than its start may take
    assert first.way() == RECOVERED[:3], first.story()
    other.end()
    until(lambda: within_quota() and first.phases()[-1:] == ["Recovered"], first.story)
    first.running(QUOTA)
    assert not before & first.uids()
    assert len(first.incidents()) == 1
    assert first.admin.get(first.path)["spec"]["replicas"] == 2


def queue_with_priorities(space: str) -> list[Object]:
    priority = {"kind": "WorkloadPriorityClass", "metadata": {"name": "urgent"}, "value": 100}
    preemption = {"withinClusterQueue": "LowerPriority"}
    return [*queue(space, preemption=preemption), {"apiVersion": f"{GROUP}/v1beta1", **priority}]


def urgent_job(kueue: Kueue, kwok: Kwok, space: str) -> Flow:
    """It takes the place of what is in its queue."""
    urgent = Flow(kueue, kwok.end_pod, batch_job("urgent"), RANKS, "job-name=urgent", space=space)
    urgent.job["metadata"]["labels"][f"{GROUP}/priority-class"] = "urgent"
    urgent.admin.create(urgent.job)
    return urgent


@pytest.mark.parametrize("made", [batch_job("train"), job_set("train")], ids=["Job", "JobSet"])
def test_a_job_that_its_queue_preempts_pays_nothing_and_is_still_protected_when_its_turn_comes(
    kueue: Kueue, kwok: Kwok, drive: Drive, made: Object
) -> None:
    space = kueue.plane.namespace()
    job = drive(made, RANKS, *queue_with_priorities(space), space=space)
    job.begin(jobs={"name": "train"})
    job.until_state("running")
    before = job.uids()
    urgent = urgent_job(kueue, kwok, space)
    others = urgent.running()
    job.until_state("queued")
    until(lambda: f"to accommodate Job {space}/urgent due to" in job.record()["sentence"], job.story)
    assert others == urgent.running()
    urgent.end()
    urgent.until_now(condition("Complete"))
    job.until_state("running")
    job.running(RANKS)
    assert not before & job.uids()
    assert writers(job, "suspend") == {"kueue"}
    (workload,) = workloads(job)
    assert workload["spec"]["active"]
    assert STOPPED not in workload["metadata"].get("annotations", {})
    assert job.incidents() == [], job.story()
    used = ("usedInfrastructure", "usedJob", "usedFree")
    assert not any(job.record().get(name) for name in used), job.story()
    job.lose()
    until(lambda: job.phases()[-1:] == ["Recovered"], job.story)
    assert len(job.incidents()) == 1
    assert any(job.record().get(name) for name in used), job.story()
    job.finish()


def test_a_group_that_its_queue_preempts_brings_all_of_them_back_at_no_cost_when_its_turn_comes(
    kueue: Kueue, kwok: Kwok, drive: Drive
) -> None:
    """Kueue takes back as many groups as it needs; the ranks that are left are stopped too, and wait with them."""
    space = kueue.plane.namespace()
    job = drive(groups("train"), QUOTA, *queue_with_priorities(space), space=space)
    job.begin(jobs={"name": "train"})
    job.until_state("running")
    before = job.uids()
    urgent = urgent_job(kueue, kwok, space)
    others = urgent.running()
    until(lambda: job.phases()[-1:] == ["Starting"], job.story)
    assert "taken back by its queue (Preempted to accommodate" in str(job.incidents()[0]["verdict"]), (
        job.story()
    )
    assert others == urgent.running()
    urgent.end()
    urgent.until_now(condition("Complete"))
    until(lambda: job.phases()[-1:] == ["Recovered"], job.story)
    job.running(QUOTA)
    assert not before & job.uids()
    assert len(job.incidents()) == 1
    used = {name: job.record().get(name, 0) for name in ("usedInfrastructure", "usedJob", "usedFree")}
    assert used == {"usedInfrastructure": 0, "usedJob": 0, "usedFree": 1}, job.story()
