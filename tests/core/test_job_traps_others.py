"""Traps of Volcano, Ray, LeaderWorkerSet, KubeDL, DLRover and Kueue. The test of trap a-b-c is test_a_b_c."""

from typing import Any

import pytest
from msgspec import structs

from sentinel.core.job.kinds import Loss
from sentinel.core.job.limits import limits, on_loss
from sentinel.core.job.ranks import selector
from sentinel.core.job.sizes import not_elastic
from sentinel.core.job.start import keep_off_nodes, settle, start
from sentinel.core.job.state import Seen, behind_gates, in_line, standing, ungrouped
from sentinel.core.job.stop import stop
from sentinel.core.job.writes import Plan, Reason, Refusal, Verb
from tests.core.job_objects import (
    Json,
    applied,
    gone,
    labels_of,
    pod,
    replica,
    row_named,
    seen,
    template,
    writes,
)
from tests.core.job_traps import (
    CLUSTER,
    DLROVER,
    HOST,
    LWS,
    MARK,
    RAYJOB,
    VOLCANO,
    policied,
    refused,
    stopped,
    with_trap,
)

# ---------------------------------------------------------------- Volcano


def test_command_not_field() -> None:
    mark, command = writes(stop(seen(VOLCANO), "lab.train-0001"))
    assert mark.body["metadata"]["annotations"] == MARK, "and its precondition is the command's too"
    assert "spec" not in mark.body
    assert (command.verb, command.group, command.plural) == (Verb.CREATE, "bus.volcano.sh", "commands")
    assert command.body["action"] == "AbortJob"
    assert command.body["target"]["uid"] == command.uid == "u-train"
    assert command.body["metadata"]["ownerReferences"] == [command.body["target"]]
    assert writes(stop(seen(VOLCANO), "lab.train-0001"))[1].name == command.name, (
        "a repeat makes no second one"
    )
    aborted = seen(VOLCANO, pods=(), status__state__phase="Aborted", metadata__annotations=MARK)
    check, resume = writes(start(aborted))
    assert check.request() == {"metadata": {"uid": "u-train", "resourceVersion": "7"}}
    assert resume.body["action"] == "ResumeJob"
    running = seen(VOLCANO, status__state__phase="Running", metadata__annotations=MARK)
    (left_over,) = writes(settle(running))
    assert left_over.body["metadata"] == {"annotations": None}
    by_a_person = seen(VOLCANO, pods=(), status__state__phase="Aborted")
    assert refused(start(by_a_person)) is Reason.NOT_OURS


def test_ended_outlives_abort() -> None:
    row, owner = seen(VOLCANO).row, [{"kind": "Job", "name": "train", "uid": "u-train", "controller": True}]
    failed = pod("train-worker-1", labels_of(row, "worker", 1), phase="Failed", ownerReferences=owner)
    aborted = seen(VOLCANO, pods=(failed,), status__state__phase="Aborted", metadata__annotations=MARK)
    first, *_, last = writes(start(aborted))
    assert (first.verb, first.name, last.plural) == (Verb.DELETE, "train-worker-1", "commands")


def test_no_pods_in_queue() -> None:
    for phase in ("", "Pending"):
        group = {"spec": {"queue": "gpus"}, "status": {"phase": phase} if phase else {}}
        waits = structs.replace(seen(VOLCANO, pods=()), pod_group=group)
        assert ungrouped(waits) == "It waits for its turn in Volcano's queue gpus."
        assert not ungrouped(structs.replace(seen(VOLCANO), pod_group=group)), "its pods run"
    let_in = {"spec": {"queue": "gpus"}, "status": {"phase": "Inqueue"}}
    assert not ungrouped(structs.replace(seen(VOLCANO, pods=()), pod_group=let_in))
    assert not ungrouped(seen(VOLCANO, pods=()))


def test_resume_costs_a_retry() -> None:
    for used, left in ((0, 2), (1, 1)):
        one = seen(VOLCANO, status__retryCount=used)
        assert [own.left for own in limits(one)] == [left]
        assert writes(stop(one, "m"))
    last = seen(VOLCANO, status__retryCount=2)
    said = stop(last, "m")
    assert refused(said) is Reason.RETRIES_USED, "the next resume would reach 3 and fail it"
    aborted = seen(
        VOLCANO, pods=(), status={"state": {"phase": "Aborted"}, "retryCount": 2}, metadata__annotations=MARK
    )
    assert refused(start(aborted)) is Reason.RETRIES_USED
    fresh = seen(VOLCANO, pods=(), status__state__phase="Aborted", metadata__annotations=MARK)
    plan = start(fresh)
    assert isinstance(plan, Plan)
    assert plan.costs == 1


def test_template_always_fixed() -> None:
    aborted = seen(VOLCANO, pods=(), status__state__phase="Aborted", metadata__annotations=MARK)
    assert refused(keep_off_nodes(aborted, ["n1"])) is Reason.CANNOT_KEEP_OFF
    assert all("spec" not in one.body for one in writes(start(aborted)) if one.verb is Verb.PATCH)


def test_shrink_all_three() -> None:
    def aborted(**more: Any) -> Seen:
        return seen(VOLCANO, pods=(), status__state__phase="Aborted", metadata__annotations=MARK, **more)

    patch, _ = writes(start(aborted(), size=2))
    assert patch.body["spec"]["minAvailable"] == 4, "2 parameter servers, a master, a worker"
    assert [(task["replicas"], task["minAvailable"]) for task in patch.body["spec"]["tasks"]] == [
        (2, 2), (1, 1), (1, 1),
    ]  # fmt: skip
    grown, _ = writes(start(aborted(), size=6))
    assert grown.body["spec"]["minAvailable"] == 8, "all together before, all together after"
    loose, _ = writes(start(aborted(spec__minAvailable=3), size=6))
    assert "minAvailable" not in loose.body["spec"], "three were enough, and still are"


def test_shrunk_while_stopped_hangs() -> None:
    status = {"state": {"phase": "Aborted"}, "minAvailable": 6}
    aborted = seen(VOLCANO, pods=(), status=status, metadata__annotations=MARK)
    renew, patch, resume = writes(start(aborted, size=2))
    assert (renew.part, renew.body) == ("status", {"status": {"minAvailable": 4}})
    assert (patch.follows, patch.body["spec"]["minAvailable"]) == (True, 4)
    assert resume.body["action"] == "ResumeJob"


def test_evicted_comes_back() -> None:
    assert on_loss(seen(VOLCANO), "worker") is Loss.REPLACED
    for action, loss in (("RestartJob", Loss.JOB), ("RestartTask", Loss.GROUP), ("AbortJob", Loss.FAILS)):
        assert (
            on_loss(seen(VOLCANO, spec__policies=[{"event": "PodEvicted", "action": action}]), "worker")
            is loss
        )
    listed = [{"events": ["TaskCompleted", "PodEvicted"], "action": "RestartJob"}]
    assert on_loss(seen(VOLCANO, spec__policies=listed), "worker") is Loss.JOB
    within = [{"name": "worker", "policies": [{"event": "*", "action": "RestartJob"}], **replica(1)}]
    assert on_loss(seen(VOLCANO, spec__tasks=within), "worker") is Loss.JOB
    other = [{"event": "TaskCompleted", "action": "CompleteJob"}]
    assert on_loss(seen(VOLCANO, spec__policies=other), "worker") is Loss.REPLACED


# ---------------------------------------------------------------- Ray, LeaderWorkerSet


@pytest.mark.parametrize("title", with_trap("never-ends"))
def test_never_ends(title: str) -> None:
    done = [{"type": kind, "status": "True"} for kind in ("Complete", "Succeeded", "Failed", "Available")]
    now = standing(seen(title, status__conditions=done))
    assert (now.ended, now.over) == ("", False)


@pytest.mark.parametrize("title", with_trap("replicas-are-clamped"))
def test_replicas_are_clamped(title: str) -> None:
    one = stopped(title)
    assert refused(start(one, size=9)) is refused(start(one, size=1)) is Reason.OUT_OF_BOUNDS
    assert writes(start(one, size=8))


def test_shrink_takes_any() -> None:
    assert writes(start(seen(CLUSTER), size=2)) == ()


def test_group_suspend_is_ignored() -> None:
    (patch,) = writes(stop(seen(CLUSTER), "m"))
    assert patch.body["spec"] == {"suspend": True}


def test_shutdown_is_needed() -> None:
    said = stop(seen(RAYJOB, spec__shutdownAfterJobFinishes=False), "m")
    assert refused(said) is Reason.FIELD_NEEDED
    assert isinstance(said, Refusal)
    assert "spec.shutdownAfterJobFinishes: true" in said.sentence
    assert writes(stop(seen(RAYJOB), "m"))


def test_resume_is_a_new_cluster() -> None:
    row = row_named(RAYJOB)
    assert selector(row, seen(RAYJOB).job) == "ray.io/cluster=train-x7k"
    assert selector(row, seen(RAYJOB, status__rayClusterName="train-p2m").job) == "ray.io/cluster=train-p2m"
    assert selector(row, seen(RAYJOB, status__rayClusterName="").job) is None, "not made yet"


def test_size_by_resume() -> None:
    assert writes(start(seen(RAYJOB), size=2)) == ()
    (patch,) = writes(start(stopped(RAYJOB), size=2))
    assert patch.body["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replicas"] == 2
    assert patch.body["spec"]["suspend"] is False


def test_stop_is_zero_replicas() -> None:
    (patch,) = writes(stop(seen(LWS), "lab.train-0001"))
    assert patch.body["spec"] == {"replicas": 0}
    assert patch.body["metadata"]["annotations"] == {**MARK, "sentinel.dev/size": "2"}
    (back,) = writes(start(stopped(LWS)))
    assert back.body["spec"] == {"replicas": 2}
    assert back.body["metadata"] == {"annotations": None}
    (smaller,) = writes(start(stopped(LWS), size=2))
    assert smaller.body["spec"] == {"replicas": 1}


def test_eviction_takes_the_group() -> None:
    assert on_loss(seen(LWS), "") is Loss.GROUP
    assert on_loss(seen(LWS, spec__leaderWorkerTemplate__restartPolicy="None"), "") is Loss.REPLACED


def test_template_restarts_groups() -> None:
    assert refused(keep_off_nodes(seen(LWS), ["n1"])) is Reason.NOT_STOPPED
    assert writes(start(seen(LWS), size=2)) == ()
    both = {"size": 2, "workerTemplate": template(), "leaderTemplate": template()}
    one = stopped(LWS, spec__leaderWorkerTemplate=both)
    (patch,) = writes(start(one, hosts=["n1"]))
    assert str(patch.body["spec"]["leaderWorkerTemplate"]).count(HOST) == 2, "leaders too"
    single = stopped(LWS, spec__replicas=1)
    (wider,) = writes(start(single, size=3))
    assert wider.body["spec"] == {"replicas": 1, "leaderWorkerTemplate": {"size": 3}}


# ---------------------------------------------------------------- KubeDL, DLRover, Kueue


@pytest.mark.parametrize("title", with_trap("only-exit-code-survives"))
def test_only_exit_code_survives(title: str) -> None:
    spared = row_named(title).spare
    good = policied(title, "ExitCode")
    assert {one.verb for one in writes(stop(good, "m"))} <= {Verb.EVICT}
    for policy in ("Never", "OnFailure", "Always"):
        one = policied(title, policy)
        said = stop(one, "m")
        assert refused(said) is Reason.EVICTION_FAILS
        assert isinstance(said, Refusal)
        assert not any(name in said.sentence for name in spared)


@pytest.mark.parametrize("title", with_trap("evicting-all-fails"))
def test_evicting_all_fails(title: str) -> None:
    said = stop(policied(title, "ExitCode"), "m")
    assert refused(said) is Reason.EVICTION_FAILS
    assert isinstance(said, Refusal)
    assert "chief-0" in said.sentence


@pytest.mark.parametrize("title", with_trap("job-name-is-shared"))
def test_job_name_is_shared(title: str) -> None:
    row = row_named(title)
    assert selector(row, seen(title).job) == f"job-name=train,group-name={row.group}"


@pytest.mark.parametrize("title", with_trap("cron-suspend-is-no-stop"))
def test_cron_suspend_is_no_stop(title: str) -> None:
    one = policied(title, "ExitCode")
    one.job["spec"]["cronPolicy"] = {"suspend": True}
    assert not standing(one).stopped
    assert all(write.verb is Verb.EVICT for write in writes(stop(one, "m")))


def test_suspend_deletes_nothing() -> None:
    first, *rest = writes(stop(seen(DLROVER), "m"))
    assert first.body["spec"] == {"suspend": True}, "before the evictions, so that none is made anew"
    assert {one.verb for one in rest} == {Verb.EVICT}
    half = seen(DLROVER, spec__suspend=True, metadata__annotations=MARK)
    assert {one.verb for one in writes(stop(half, "m"))} == {Verb.EVICT}, "it goes on where a crash left it"
    (patch,) = writes(start(stopped(DLROVER)))
    assert patch.body["spec"] == {"suspend": False}


def test_master_eviction_fails() -> None:
    one = seen(DLROVER)
    assert on_loss(one, "dlrover-master") is Loss.FAILS
    evicted = {write.name for write in writes(stop(one, "m")) if write.verb is Verb.EVICT}
    assert evicted == {"worker-0", "worker-1", "worker-2", "worker-3", "ps-0"}


def workload(**more: Any) -> Json:
    meta = {"namespace": "lab", "name": "job-train-a1b2", "uid": "u-workload", "resourceVersion": "40"}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {**meta, **more.pop("metadata", {})},
        "spec": {"queueName": "gpus", "active": True, **more},
    }


QUEUED = {"kueue.x-k8s.io/queue-name": "gpus"}


@pytest.mark.parametrize("title", with_trap("kueue-owns-suspend"))
def test_kueue_owns_suspend(title: str) -> None:
    assert refused(stop(seen(title, metadata__labels=QUEUED), "m")) is Reason.QUEUE_UNKNOWN
    one = seen(title, metadata__labels=QUEUED, workload=workload())
    assert standing(one).queue == "gpus"
    (only,) = writes(stop(one, "lab.train-0001"))
    assert (only.group, only.version, only.plural, only.uid) == (
        "kueue.x-k8s.io", "v1beta1", "workloads", "u-workload",
    )  # fmt: skip
    assert only.body == {"spec": {"active": False}, "metadata": {"annotations": MARK}}
    off = gone(applied(one, stop(one, "lab.train-0001")))
    assert (standing(off).stopped, standing(off).stopped_by) == (True, "Sentinel")
    (on,) = writes(start(off))
    assert on.body == {"spec": {"active": True}, "metadata": {"annotations": None}}
    waits = seen(title, pods=(), metadata__labels=QUEUED, workload=workload())
    if waits.row.suspend:
        at = waits.row.suspend.replace(".", "__")
        waits = seen(title, pods=(), metadata__labels=QUEUED, workload=workload(), **{at: True})
        waits.job["metadata"]["annotations"] = {"sentinel.dev/precheck": "true"}
        assert refused(start(waits)) is Reason.NOT_OURS, "it waits for its turn"
        assert in_line(waits) == "It waits for its turn in Kueue's queue gpus."
        (off,) = writes(stop(waits, "lab.train-0001"))
        assert off.body["spec"] == {"active": False}, "else its queue would start it when its turn comes"
    unlabelled = seen(title, workload=workload())
    assert writes(stop(unlabelled, "m"))[0].plural == "workloads", "Kueue may manage jobs that name no queue"
    without = seen(title, metadata__labels=QUEUED, kueue=False)
    assert standing(without).queue == ""
    assert all(one.plural != "workloads" for one in writes(stop(without, "m")))


def test_kueue_gates_pods() -> None:
    one = seen(LWS, metadata__labels=QUEUED)
    (only,) = writes(stop(one, "lab.train-0001"))
    assert (only.plural, only.body["spec"]) == ("leaderworkersets", {"replicas": 0}), (
        "its object is its owner's"
    )
    off = gone(applied(one, stop(one, "lab.train-0001")))
    assert (standing(off).stopped_by, standing(off).queue) == ("Sentinel", "")
    (on,) = writes(start(off))
    assert on.body["spec"] == {"replicas": 2}
    assert refused(start(off, hosts=["n1"])) is Reason.CANNOT_KEEP_OFF, "Kueue refuses another affinity"
    assert refused(not_elastic(off)) is Reason.SIZE_FIXED
    held = pod("serve-0", {})
    held["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    waits = seen(LWS, pods=(held, pod("serve-1", {})), metadata__labels=QUEUED)
    assert behind_gates(waits) == "1 of its 2 pods wait for their turn in Kueue's queue gpus."
    without = seen(LWS, pods=(held,), metadata__labels=QUEUED, kueue=False)
    assert behind_gates(without) == ""
    assert writes(start(gone(applied(without, stop(without, "m"))), hosts=["n1"]))
