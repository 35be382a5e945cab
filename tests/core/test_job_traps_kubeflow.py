"""Traps of the Kubeflow operators' kinds. The test of trap a-b-c is test_a_b_c."""

import pytest

from sentinel.cluster.kubernetes import job_room
from sentinel.core.job.kinds import Loss
from sentinel.core.job.limits import limits, on_loss
from sentinel.core.job.ranks import done_for_good, ranks
from sentinel.core.job.room import requests
from sentinel.core.job.start import keep_off_nodes, start
from sentinel.core.job.state import Seen, standing
from sentinel.core.job.stop import stop
from sentinel.core.job.writes import Reason, Refusal, Verb
from tests.core.job_objects import Json, gone, labels_of, pod, pods_of, row_named, seen, writes
from tests.core.job_traps import HOST, MARK, MPI1, MPI2, PYTORCH, policied, refused, stopped, with_trap

# ---------------------------------------------------------------- training-operator


@pytest.mark.parametrize("title", with_trap("finished-again"))
def test_finished_again(title: str) -> None:
    pods = tuple({**one, "status": {"phase": "Succeeded"}} for one in pods_of(title))
    one = seen(title, pods=pods)
    assert done_for_good(one, list(ranks(one))) == set()


@pytest.mark.parametrize("title", with_trap("eviction-fails-never"))
def test_eviction_fails_never(title: str) -> None:
    one = policied(title, "Never")
    assert on_loss(one, "worker") is Loss.FAILS
    assert {write.verb for write in writes(stop(one, "m"))} == {Verb.PATCH}
    failed = seen(title, status__conditions=[{"type": "Failed", "status": "True"}])
    assert "worker-1" in standing(failed).left_over
    assert refused(stop(failed, "m")) is Reason.ENDED, "`suspend` would do nothing"


@pytest.mark.parametrize("title", with_trap("operator-replaces-one"))
def test_operator_replaces_one(title: str) -> None:
    for policy in ("OnFailure", "Always", "ExitCode"):
        assert on_loss(policied(title, policy), "worker") is Loss.REPLACED
    default = Loss.REPLACED if row_named(title).kind in ("PyTorchJob", "PaddleJob") else Loss.FAILS
    assert on_loss(policied(title, ""), "worker") is default


@pytest.mark.parametrize("title", with_trap("leader-ends-the-job"))
def test_leader_ends_the_job(title: str) -> None:
    pods = pods_of(title)
    leader = next(one for one in pods if "worker" not in one["metadata"]["name"])
    ended = tuple({**one, "status": {"phase": "Succeeded"}} if one is leader else one for one in pods)
    over = standing(seen(title, pods=ended, status__conditions=[{"type": "Succeeded", "status": "True"}]))
    assert over.ended == "succeeded"
    assert "worker-0" in over.left_over
    assert leader["metadata"]["name"] not in over.left_over


@pytest.mark.parametrize("title", with_trap("template-for-new-pods"))
def test_template_for_new_pods(title: str) -> None:
    """It changes while the pods run, so that those that come after them find it changed."""
    (patch,) = writes(keep_off_nodes(seen(title), ["n1"]))
    assert HOST in str(patch.body)
    assert "suspend" not in str(patch.body)


def test_bounds_are_not_held() -> None:
    for title in with_trap("bounds-are-not-held"):
        one = stopped(title, spec__elasticPolicy={"minReplicas": 2, "maxReplicas": 4})
        assert writes(start(one, size=5)), "4 workers and a master"
        assert refused(start(one, size=6)) is refused(start(one, size=2)) is Reason.OUT_OF_BOUNDS


def test_no_worker_is_success() -> None:
    assert refused(start(stopped(PYTORCH), size=1)) is Reason.OUT_OF_BOUNDS
    assert size_of_workers(writes(start(stopped(PYTORCH), size=2))[0].body) == 1


def size_of_workers(body: Json) -> int:
    return body["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"]


@pytest.mark.parametrize("title", with_trap("world-size-is-old"))
def test_world_size_is_old(title: str) -> None:
    assert writes(start(seen(title), size=2)) == ()
    lingering = seen(title, metadata__annotations=MARK, spec__runPolicy={"suspend": True})
    assert refused(start(lingering, size=2)) is Reason.STILL_RUNNING, "told to stop, and its pods are there"
    assert writes(start(gone(lingering), size=2))


@pytest.mark.parametrize("title", with_trap("shrink-while-running-fails"))
def test_shrink_while_running_fails(title: str) -> None:
    assert writes(start(policied(title, "Never"), size=3)) == ()


@pytest.mark.parametrize("title", with_trap("deleted-pod-fails"))
def test_deleted_pod_fails(title: str) -> None:
    failed = [{"type": "Failed", "status": "True", "reason": "TFJobFailed"}]
    plan = stop(seen(title, status__conditions=failed), "a/b-0001")
    assert refused(plan) is Reason.ENDED
    assert isinstance(plan, Refusal)
    assert "Pods that run on:" in plan.sentence


@pytest.mark.parametrize("title", with_trap("one-name-two-versions"))
def test_one_name_two_versions(title: str) -> None:
    one, other = seen(MPI1), seen(MPI2)
    assert (one.row.plural, one.row.group) == (other.row.plural, other.row.group)
    assert one.row.role_label != other.row.role_label
    assert seen(title).row.title == title


def test_launcher_needs_disk() -> None:
    asked = [requests(one).get("ephemeral-storage", 0.0) for one in job_room.pods_of(seen(MPI1))]
    assert sorted(asked) == [0.0] * (len(asked) - 1) + [5 * 2**30], "the launcher alone"
    assert "initContainers" not in str(seen(MPI1).job), "nothing of it is written"


def test_finished_never_again() -> None:
    ours = [{"kind": "MPIJob", "name": "train", "uid": "u-train", "controller": True}]
    theirs = [{"kind": "Job", "name": "train-launcher", "uid": "u-launcher", "controller": True}]
    row = row_named(MPI2)
    ended = (
        pod("worker-1", labels_of(row, "worker", 1), phase="Succeeded", ownerReferences=ours),
        pod("launcher", labels_of(row, "launcher", 0), gpu=False, phase="Failed", ownerReferences=theirs),
    )
    one = stopped(MPI2)
    delete, patch = writes(start(Seen(row=one.row, job=one.job, pods=ended)))
    assert (delete.verb, delete.name, delete.body) == (
        Verb.DELETE, "worker-1", {"preconditions": {"uid": "u-worker-1"}},
    )  # fmt: skip
    assert patch.body["spec"] == {"runPolicy": {"suspend": False}}


def test_launcher_is_a_job() -> None:
    (patch,) = writes(keep_off_nodes(seen(MPI2), ["n1"]))
    assert list(patch.body["spec"]["mpiReplicaSpecs"]) == ["Worker"]
    (own,) = limits(seen(MPI2))
    assert (own.limit, own.used, own.left) == (6, None, None)
    assert on_loss(seen(MPI2), "worker") is Loss.REPLACED
