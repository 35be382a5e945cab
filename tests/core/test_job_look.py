"""One look at a job of a cluster: who runs, who has ended, who has stopped it."""

from typing import Any

from msgspec import structs

from sentinel.core.job.kinds import JobKind
from sentinel.core.job.look import Look, Place, failed_ranks, look
from sentinel.core.job.owned_pods import row_of_owner, stand_in
from sentinel.core.job.state import STOPPED, Seen, preemptor_uid
from sentinel.core.policy_model import Policy, Resume
from sentinel.rules.job_kinds import job_table

INDEX = "batch.kubernetes.io/job-completion-index"


def row() -> JobKind:
    return next(one for one in job_table().rows if one.kind == "Job" and one.group == "batch" and one.index)


def job(count: int = 2, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 30}}
    spec = {
        "completionMode": "Indexed",
        "parallelism": count,
        "completions": count,
        "template": template,
        **spec,
    }
    meta = {"name": "train", "namespace": "ns", "uid": "job", "labels": {"team": "nlp"}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec, "status": {}}


def pod(
    rank: int, uid: str = "", phase: str = "Running", state: str = "running", **more: Any
) -> dict[str, Any]:
    told = {"running": {"startedAt": "2026-01-01T00:00:00Z"}, "terminated": {"exitCode": 1}}[state]
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    status = {
        "phase": phase,
        "containerStatuses": [
            {"name": "main", "restartCount": more.pop("restarts", 0), "state": {state: told}}
        ],
    }
    meta = {
        "name": f"train-{rank}",
        "namespace": "ns",
        "uid": uid or f"pod-{rank}",
        "labels": {INDEX: str(rank)},
    }
    return {
        "metadata": {**meta, **more},
        "spec": {"nodeName": f"node-{rank}", "containers": [container]},
        "status": status,
    }


def seen_by(*pods: dict[str, Any], of: dict[str, Any] | None = None, policy: Policy | None = None) -> Look:
    made = Seen(row=row(), job=of or job(), pods=pods, kueue=False)
    places = {0: Place("pod-0", "node-0"), 1: Place("pod-1", "node-1")}
    return look(made, places, 2, {}, policy or Policy(), {})


def test_all_run_and_nothing_has_happened() -> None:
    found = seen_by(pod(0), pod(1))
    assert (found.up, found.ended, found.withdrawn, found.replaced, found.gpus) == (True, (), "", False, 16)
    assert found.labels == {"team": "nlp"}


def test_a_pod_that_failed_and_was_replaced_keeps_no_gpu_busy() -> None:
    assert seen_by(pod(0), pod(1), pod(1, "before", "Failed", "terminated")).gpus == 16


def test_a_container_that_ended_a_pod_that_is_gone_and_one_that_the_kubelet_started_again_are_ends() -> None:
    (ended,) = seen_by(pod(0, phase="Failed", state="terminated"), pod(1)).ended
    assert (ended[0], ended[1].code) == (0, 1)
    (gone,) = seen_by(pod(0)).ended
    assert (gone[0], gone[1].failure) == (1, "pod-deleted")
    (again,) = seen_by(pod(0), pod(1, restarts=1)).ended
    assert again[0] == 1


def test_of_a_pod_that_is_gone_its_events_still_say_who_took_its_place() -> None:
    preempted = {"reason": "Preempted", "related": {"namespace": "other", "name": "urgent"}}
    seen = Seen(row=row(), job=job(), pods=(pod(0),), kueue=False)
    found = look(seen, {1: Place("pod-1", "node-1")}, 2, {}, Policy(), {"pod-1": [preempted]})
    ((_, gone),) = found.ended
    assert (gone.failure, gone.sentence) == ("pod-preempted", "Its pod was preempted by pod other/urgent.")
    said = "Preempted to accommodate a workload (UID: 1, JobUID: 2) due to prioritization in the ClusterQueue"
    stopped = {"reason": "Stopped", "message": said}  # as Kueue 0.14 says it of pods
    ((_, gone),) = look(seen, {1: Place("pod-1", "node-1")}, 2, {}, Policy(), {"pod-1": [stopped]}).ended
    assert (gone.failure, gone.sentence) == (
        "pod-preempted",
        f"Its pod was taken back by its queue ({said}).",
    )


def test_pods_that_its_operator_made_anew_are_no_riddle() -> None:
    found = seen_by(pod(0, "other-0"), pod(1, "other-1"))
    assert (found.replaced, found.renewed) == (True, True)
    assert {one.failure for _, one in found.ended} == {"pod-deleted"}
    assert not seen_by(pod(0, "other-0", phase="Pending"), pod(1)).replaced


def test_a_pod_that_its_operator_replaced_alone_is_a_lost_rank_for_the_others() -> None:
    found = seen_by(pod(0, "other-0"), pod(1))
    assert (found.up, found.replaced, found.renewed) == (True, True, False)
    assert [(rank, one.failure) for rank, one in found.ended] == [(0, "pod-deleted")]
    late = pod(0, deletionTimestamp="2026-01-01T00:00:00Z", creationTimestamp="2026-01-01T00:00:00Z")
    both = seen_by(late, pod(0, "other-0", creationTimestamp="2026-01-02T00:00:00Z"), pod(1))
    assert (both.up, both.renewed, both.ended) == (True, False, ()), "it has not ended yet"


def test_who_stopped_it_makes_the_difference() -> None:
    by_a_person = job(suspend=True)
    assert "not by Sentinel" in seen_by(of=by_a_person).withdrawn
    by_us = job(suspend=True)
    by_us["metadata"]["annotations"] = {STOPPED: "job:1"}
    assert seen_by(of=by_us).withdrawn == ""


def test_a_job_whose_place_in_a_queue_was_taken_back_says_for_which_one() -> None:
    uid = "0b6f2a52-8a2c-4a43-a0a7-0d9c4c1c7f11"
    said = f"Preempted to accommodate a workload (UID: w-1, JobUID: {uid}) due to prioritization in the ClusterQueue"
    taken = {"type": "Preempted", "status": "True", "reason": "InClusterQueue", "message": said}
    workload = {"spec": {"active": True, "queueName": "gpus"}, "status": {"conditions": [taken]}}
    seen = Seen(row=row(), job=job(suspend=True), pods=(), workload=workload)
    assert preemptor_uid(seen) == uid
    assert uid in look(seen, {}, 2, {}, Policy(), {}).withdrawn, "as long as its name is not known"
    named = structs.replace(seen, preemptor="Job other/urgent")
    assert look(named, {}, 2, {}, Policy(), {}).withdrawn == (
        "Kueue's queue gpus took its place back: Preempted to accommodate Job other/urgent due to prioritization in "
        "the ClusterQueue. It runs on when its turn comes again."
    )
    taken["status"] = "False"
    assert preemptor_uid(seen) == ""
    assert look(seen, {}, 2, {}, Policy(), {}).withdrawn == (
        "It was stopped by Kueue, not by Sentinel, and waits to be started again."
    )


def test_a_rank_that_ended_well_for_good_is_not_waited_for() -> None:
    done = pod(0, phase="Succeeded")
    assert seen_by(done, pod(1)).up
    assert not seen_by(pod(1)).up


def test_a_rank_that_had_ended_well_before_the_incarnation_is_done_and_one_that_ends_in_it_has_ended() -> (
    None
):
    def after_start(*pods: dict[str, Any], of: dict[str, Any]) -> Look:
        made = Seen(row=row(), job=of, pods=pods, kueue=False)
        return look(made, {1: Place("pod-1", "node-1")}, 2, {}, Policy(), {})

    assert after_start(pod(0, phase="Succeeded"), pod(1), of=job()).done == (0,)
    assert after_start(pod(1), of={**job(), "status": {"completedIndexes": "0"}}).done == (0,), (
        "its pod is gone"
    )
    ending = pod(0, phase="Succeeded")
    ending["metadata"]["deletionTimestamp"] = "2026-11-30T00:00:00Z"
    assert after_start(ending, pod(1), of=job()).done == (), "another one will be made"
    same = pod(0, phase="Succeeded")
    same["metadata"]["uid"] = "pod-1"
    assert after_start(same, of=job()).done == (), "a rank of this incarnation, by another number"
    beyond = {**job(), "status": {"completedIndexes": "0,2-3"}}
    assert after_start(pod(1), of=beyond).done == (0,), "indexes that it has no ranks for"
    found = after_start(pod(0, phase="Succeeded"), pod(1, phase="Succeeded"), of=job())
    assert (found.done, [rank for rank, _ in found.ended]) == ((0,), [1])


def test_of_a_job_with_more_completions_than_pods_at_a_time_those_that_are_through_are_none_of_its_ranks() -> (
    None
):
    """Four of eight have ended and four run, when a leader sees it for the first time: it has not succeeded."""
    of = {**job(), "status": {"completedIndexes": "0-3"}}
    made = Seen(row=row(), job=of, pods=tuple(pod(rank) for rank in range(4, 8)), kueue=False)
    places = {rank: Place(f"pod-{rank}", f"node-{rank}") for rank in range(4, 8)}
    assert look(made, places, 4, {}, Policy(), {}).done == ()


def test_what_a_job_cannot_have_of_its_policy_is_remarked() -> None:
    asked = Policy(resume=Resume(graceful_stop_s=600.0), restart=None, debug_hold_s=60.0)
    found = seen_by(pod(0), pod(1), policy=asked).remarks
    assert set(found) == {"HoldUnavailable", "GraceTooShort"}
    assert "30 s" in found["GraceTooShort"]
    assert "so a job that is given up is stopped at once" in found["HoldUnavailable"]
    assert seen_by(pod(0), pod(1)).remarks == {}


def test_more_pods_of_an_owner_that_is_not_read_are_a_new_size_and_fewer_are_lost_ranks() -> None:
    made = row_of_owner(job_table().fallback, "example.com/v1", "GangJob")
    places = {rank: Place(f"pod-{rank}", f"node-{rank}") for rank in range(2)}

    def told(*pods: dict[str, Any]) -> Look:
        owner = stand_in(made, "ns", "train", "gang", pods)
        return look(Seen(row=made, job=owner, pods=pods), places, 2, {}, Policy(), {})

    same = told(pod(0), pod(1))
    assert (same.standing.size, same.up, same.pods, same.vanishes) == (None, True, 2, False)
    more = told(pod(0), pod(1), pod(2, state="terminated", phase="Pending"))
    assert (more.standing.size, more.up) == (3, False), "not all of them run yet"
    assert told(pod(0), pod(1), pod(2)).up
    fewer = told(pod(0))
    assert (fewer.standing.size, fewer.up, fewer.vanishes) == (None, False, False)
    assert [rank for rank, _ in fewer.ended] == [1]
    going = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert told(pod(0, **going), pod(1, **going)).vanishes
    assert told(pod(0, **going), pod(1, phase="Failed")).vanishes
    assert not told(pod(0, **going), pod(1)).vanishes
    assert told().vanishes


def test_what_ended_so_soon_was_started_and_what_is_being_deleted_is_in_the_way() -> None:
    soon = pod(1, state="terminated", phase="Failed")
    assert seen_by(pod(0), soon).up, "it is judged by its end, not waited for"
    going = pod(1, state="terminated", phase="Failed", deletionTimestamp="2026-01-01T00:00:00Z")
    assert not seen_by(pod(0), going).up, "of those that a stop took, until its owner has made others"
    done = pod(1, phase="Succeeded", deletionTimestamp="2026-01-01T00:00:00Z")
    assert seen_by(pod(0), done).up, "it ended well, and no other one is made"


def test_a_rank_that_failed_tells_of_a_job_that_failed_and_its_launcher_or_what_had_no_node_does_not() -> (
    None
):
    failed = pod(1, state="terminated", phase="Failed")
    assert failed_ranks(Seen(row=row(), job=job(), pods=(pod(0), failed))) == [1]
    failed["spec"]["nodeName"] = ""
    assert failed_ranks(Seen(row=row(), job=job(), pods=(pod(0), failed))) == []
    mpi = next(one for one in job_table().rows if one.kind == "MPIJob" and one.version == "v1")
    groups = {name: {"replicas": 1, "template": job()["spec"]["template"]} for name in ("Launcher", "Worker")}
    made = {**job(), "kind": "MPIJob", "spec": {"mpiReplicaSpecs": groups}}
    launcher = pod(0, phase="Failed")
    launcher["metadata"]["labels"] = {mpi.role_label: "launcher", "training.kubeflow.org/replica-index": "0"}
    assert failed_ranks(Seen(row=mpi, job=made, pods=(launcher,))) == []
    launcher["metadata"]["labels"][mpi.role_label] = "worker"
    assert failed_ranks(Seen(row=mpi, job=made, pods=(launcher,))) == [0]
