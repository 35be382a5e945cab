"""With how many pods of ranks Sentinel may start a job, and who leaves its first start to Sentinel."""

import pytest

from sentinel.core.job.look import look
from sentinel.core.job.remarks import remarks
from sentinel.core.job.sizes import not_elastic, resizable, resized
from sentinel.core.job.start import start
from sentinel.core.job.state import ASKS_FOR_START, Seen, living, standing
from sentinel.core.job.stop import stop
from sentinel.core.job.writes import Refusal
from sentinel.core.policy_model import Checkpoint, Elastic, Policy, Precheck, Proof, Resume
from tests.core.job_objects import OBJECTS, applied, gone, obj, row_named, seen, template, writes

INDEXED, PYTORCH = "Job.batch/v1 (Indexed)", "PyTorchJob.kubeflow.org/v1"
ELASTIC = Policy(resume=Resume(graceful_stop_s=1.0), restart=None, elastic=Elastic(allow_grow=False))
RESIZED = {
    "Job.batch/v1 (Indexed)",
    "Job.batch/v1",
    "PyTorchJob.kubeflow.org/v1",
    "TFJob.kubeflow.org/v1",
    "MPIJob.kubeflow.org/v1",
    "MPIJob.kubeflow.org/v2beta1",
    "XGBoostJob.kubeflow.org/v1",
    "PaddleJob.kubeflow.org/v1",
    "MXJob.kubeflow.org/v1",
    "Job.batch.volcano.sh/v1alpha1",
    "RayCluster.ray.io/v1",
    "RayJob.ray.io/v1",
    "LeaderWorkerSet.leaderworkerset.x-k8s.io/v1",
}


def stopped(title: str) -> Seen:
    one = seen(title)
    told = gone(applied(one, stop(one, "m")))
    if told.row.stopped:
        told.job["status"] = {"state": {"phase": "Aborted"}}
    return told


def test_the_kinds_whose_size_changes() -> None:
    assert {title for title in OBJECTS if not_elastic(seen(title)) is None} == RESIZED


@pytest.mark.parametrize("title", sorted(RESIZED))
def test_a_start_takes_each_size_that_is_named_and_no_other(title: str) -> None:
    one = stopped(title)
    found = resizable(one, 1, 12)
    assert not isinstance(found, Refusal)
    assert 4 in found
    for size in range(1, 13):
        plan = start(one, size=size)
        assert (size in found) is not isinstance(plan, Refusal), (size, plan)
        if size in found:
            assert standing(resized(one, size)).size == size
            assert standing(applied(one, plan)).size == size
    assert list(resizable(one, 4, 4)) == [4]


def test_bounds_of_the_kind_and_what_goes_together_narrow_it() -> None:
    bounds = {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 4}}
    workers = seen(PYTORCH)
    workers.job["spec"] |= bounds
    found = resizable(workers, 1, 64)
    assert not isinstance(found, Refusal)
    assert found[-1] <= 5
    hosts = {"workerGroupSpecs": [{"groupName": "a", "replicas": 2, "numOfHosts": 4, "template": template()}]}
    ray = Seen(row=row_named("RayCluster.ray.io/v1"), job=obj("ray.io/v1", "RayCluster", hosts))
    assert list(resizable(ray, 1, 13)) == [4, 8, 12]
    assert list(resizable(ray, 9, 11)) == []


def test_a_job_of_a_queue_and_one_that_is_nearly_done_keep_their_size() -> None:
    queued = seen(INDEXED)
    queued.job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "lab"}
    refused = not_elastic(queued)
    assert refused is not None
    assert "Kueue" in refused.sentence
    half = seen(INDEXED, status__completedIndexes="0")
    assert not_elastic(half) is None
    assert isinstance(resizable(half, 1, 4), Refusal)


def test_what_elastic_cannot_do_for_a_job_is_said_in_its_policys_status() -> None:
    fixed = remarks(seen("JobSet.jobset.x-k8s.io/v1alpha2"), ELASTIC)
    assert "cannot be changed" in fixed["SizeFixed"]
    grows = Policy(resume=Resume(checkpoint=Checkpoint()), restart=None, elastic=Elastic())
    assert "proof" in remarks(seen(INDEXED), grows)["GrowNeedsProof"]
    proved = Resume(graceful_stop_s=1.0, checkpoint=Checkpoint(proof=Proof(log_pattern="saved")))
    able = remarks(seen(INDEXED), Policy(resume=proved, restart=None, elastic=Elastic()))
    assert set(able) == {"PrecheckOnlyTells"}


def test_a_precheck_holds_back_only_a_job_that_leaves_its_first_start_to_sentinel() -> None:
    asked = Policy(precheck=Precheck(checks=("gpu",)))
    assert remarks(seen(INDEXED), Policy()) == {}
    assert ASKS_FOR_START in remarks(seen(INDEXED), asked)["PrecheckOnlyTells"]
    one = seen(INDEXED, pods=(), spec__suspend=True)
    assert "PrecheckOnlyTells" in remarks(one, asked)
    one.job["metadata"]["annotations"] = {ASKS_FOR_START: "true"}
    assert remarks(one, asked) == {}
    assert look(one, {}, 1, {}, asked, {}).asks_for_start
    after = applied(one, start(one, size=2))
    assert (standing(after).stopped, standing(after).size) == (False, 2)
    assert remarks(after, asked) == {}
    queued = seen(INDEXED, pods=(), spec__suspend=True)
    queued.job["metadata"] |= {
        "annotations": {ASKS_FOR_START: "true"},
        "labels": {"kueue.x-k8s.io/queue-name": "lab"},
    }
    assert "queue" in remarks(queued, asked)["PrecheckOnlyTells"]
    assert not look(queued, {}, 1, {}, asked, {}).asks_for_start


def test_a_job_that_sentinel_has_stopped_is_not_taken_for_one_that_was_created_so() -> None:
    one = seen(PYTORCH)
    one.job["metadata"]["annotations"] = {ASKS_FOR_START: "started"}
    halted = gone(applied(one, stop(one, "lab.train-0001")))
    assert not look(halted, {}, 1, {}, Policy(), {}).asks_for_start
    assert standing(halted).stopped_by == "Sentinel"
    assert not living(halted.pods)
    assert writes(start(halted))
