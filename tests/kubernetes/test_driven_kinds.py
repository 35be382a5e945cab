"""Each kind of job that `make test` has an operator for, recovered by `sentinel controller`."""

from typing import TYPE_CHECKING

import pytest

from sentinel.core.job.ranks import ranks
from tests.kubernetes.driven import RECOVERED, Driven, come_back
from tests.kubernetes.jobs_site import CHECKPOINT
from tests.kubernetes.local_fleet import Fleet
from tests.kubernetes.test_job_kinds_live import KINDS, batch_job, job_set, kubeflow_job
from tests.kubernetes.test_leading_jobs import plane
from tests.rig.processes import until

if TYPE_CHECKING:
    from tests.rig.control_plane import ControlPlane
    from tests.rig.kwok import Kwok
    from tests.rig.operators.training_operator import TrainingOperator

pytestmark = pytest.mark.operators("jobset", "training-operator")
NODES = "kinds"

__all__ = ["plane"]


@pytest.fixture(scope="module")
def kubeflow(plane: "ControlPlane") -> "TrainingOperator":
    from tests.rig.operators.jobset import JobSet
    from tests.rig.operators.training_operator import TrainingOperator

    JobSet(plane)
    return TrainingOperator(plane)


@pytest.fixture(scope="module")
def kwok(plane: "ControlPlane") -> "Kwok":
    from tests.rig.kwok import Kwok

    made = Kwok(plane)
    made.nodes(NODES, 3)
    return made


def test_every_kind_loses_a_rank_and_is_started_again_but_for_what_its_operator_has_failed_for_good(
    plane: "ControlPlane", fleet: Fleet, kwok: "Kwok", kubeflow: "TrainingOperator"
) -> None:
    fleet.controller("one").said("leads, epoch")
    made = {"indexed": (batch_job(True), 3), "plain": (batch_job(False), 3), "jobset": (job_set(), 4)}
    made |= {kind: (kubeflow_job(kind, "ExitCode"), KINDS[kind][3]) for kind in KINDS}
    jobs = [Driven(plane.admin, plane.namespace(), job, fleet, kwok, size) for job, size in made.values()]
    given_up = Driven(plane.admin, plane.namespace(), kubeflow_job("PyTorchJob", "Never"), fleet, kwok, 3)
    given_up.begin()
    done = Driven(plane.admin, plane.namespace(), kubeflow_job("PyTorchJob", "OnFailure"), fleet, kwok, 3)
    done.begin()
    # It replaces a lost pod at once; Jobs, and with them JobSets, wait for some seconds first.
    come_back(jobs, operator=kubeflow.daemon)
    given_up.lose(1)
    given_up.until_state("error")
    assert given_up.record()["reason"] == "EndedByItsKind"
    assert "Pods that run on: train-master-0, train-worker-0" in given_up.record()["sentence"]
    done.until_state("running")
    kwok.end_pod(done.space, "train-master-0", 0)
    done.until_state("succeeded")  # by its kind's word: its workers run on
    assert "Pods that run on: train-worker-0, train-worker-1." in done.record()["sentence"]
    assert len(done.uids()) == 3
    assert done.incidents() == []
    for job in jobs:
        job.finish()
    assert "Traceback" not in fleet.story()


def test_ranks_that_had_ended_well_before_a_fault_run_again_where_their_kind_has_it_so(
    plane: "ControlPlane", fleet: Fleet, kwok: "Kwok", kubeflow: "TrainingOperator"
) -> None:
    """And where not, the others are what a start waits for; the job's size is the same."""
    fleet.controller("one").said("leads, epoch")
    made = {"Job": (batch_job(True), 3), "JobSet": (job_set(), 4)}
    made["PyTorchJob"] = (kubeflow_job("PyTorchJob", "ExitCode"), 3)
    jobs = [Driven(plane.admin, plane.namespace(), job, fleet, kwok, size) for job, size in made.values()]
    for job in jobs:
        job.begin()
    for job in jobs:
        job.until_state("running")
    done = {job.space: next(one for one in ranks(job.seen()) if one.rank == 1) for job in jobs}
    before = {job.space: job.uids() for job in jobs}
    for job in jobs:
        kwok.end_pod(job.space, done[job.space].name, 0)
        until(lambda job=job: done[job.space].uid in ended_well(job), job.story)  # type: ignore[misc]
    kubeflow.daemon.freeze()
    for job in jobs:
        job.lose(137)
    for job in jobs:
        until(lambda job=job: job.phases(), job.story)  # type: ignore[misc]
    kubeflow.daemon.thaw()
    for job in jobs:
        until(lambda job=job: job.phases()[-1:] == ["Recovered"], job.story)  # type: ignore[misc]
        assert job.way() == RECOVERED, job.story()
        assert (job.record()["size"], job.record()["incarnation"]) == (job.size, 2)
        assert job.record()["state"] == "running"
        again = job.job["kind"] == "PyTorchJob"
        stays = set() if again else {done[job.space].uid}
        failed = {pod["metadata"]["uid"] for pod in job.seen().pods if pod["status"].get("phase") == "Failed"}
        assert (ended_well(job), before[job.space] & job.uids() - failed) == (stays, stays), job.story()
        runs = [one.rank for one in ranks(job.seen()) if one.rank is not None and not one.ended]
        assert sorted(runs) == [rank for rank in range(job.size) if again or rank != 1]
        assert len(job.incidents()) == 1
        job.finish()


def ended_well(job: Driven) -> set[str]:
    return {pod["metadata"]["uid"] for pod in job.seen().pods if pod["status"].get("phase") == "Succeeded"}


def test_a_pytorchjob_that_may_shrink_comes_back_smaller_without_a_node(
    plane: "ControlPlane", fleet: Fleet, kwok: "Kwok", kubeflow: "TrainingOperator"
) -> None:
    fleet.controller("one").said("leads, epoch")
    made = kubeflow_job("PyTorchJob", "ExitCode")
    for group in made["spec"]["pytorchReplicaSpecs"].values():  # a node for each of its pods
        group["template"]["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "8"}}
    job = Driven(plane.admin, plane.namespace(), made, fleet, kwok, 3)
    job.begin(resume={"maxResumes": 3, "checkpoint": CHECKPOINT}, elastic={"minNodes": 2})
    job.until_state("running")
    before = job.uids()
    (node,) = [one.node for one in ranks(job.seen()) if one.rank == 2]
    plane.admin.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
    kubeflow.daemon.freeze()
    job.lose()
    until(lambda: job.phases(), job.story)
    kubeflow.daemon.thaw()
    until(lambda: job.phases()[-1:] == ["Recovered"], job.story)
    assert node not in {one.node for one in job.running(2)}
    assert job.way() == RECOVERED, job.story()
    groups = job.seen().job["spec"]["pytorchReplicaSpecs"]
    assert {name: group["replicas"] for name, group in groups.items()} == {"Master": 1, "Worker": 1}
    assert (job.record()["size"], job.record()["originalSize"]) == (2, 3)
    assert not before & job.uids()
    assert len(job.incidents()) == 1
    plane.admin.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": None}})
    job.finish()
