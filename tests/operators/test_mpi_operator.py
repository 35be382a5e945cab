"""MPIJob v2beta1: the launcher is a batch Job, and its end is the job's."""

import pytest

from sentinel.core.job.kinds import Role
from sentinel.core.job.ranks import ranks
from tests.kubernetes.driven import come_back
from tests.operators.conftest import Drive
from tests.rig.api import Object
from tests.rig.control_plane import ControlPlane
from tests.rig.kwok import Kwok
from tests.rig.operators.flow import Flow, condition, patch, template
from tests.rig.operators.living import Living
from tests.rig.operators.mpi_operator import MpiOperator
from tests.rig.processes import until

pytestmark = pytest.mark.operators("mpi-operator")


@pytest.fixture(scope="module")
def mpi_operator(plane: ControlPlane) -> MpiOperator:
    return MpiOperator(plane)


def mpi_job() -> Object:
    roles = {
        "Launcher": {"replicas": 1, "restartPolicy": "Never", "template": template("operators")},
        "Worker": {"replicas": 2, "restartPolicy": "Never", "template": template("operators")},
    }
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": "train"},
        "spec": {"runPolicy": {"suspend": False}, "mpiReplicaSpecs": roles},
    }


def test_mpijob(mpi_operator: MpiOperator, kwok: Kwok) -> None:
    flow = Flow(mpi_operator, kwok.end_pod, mpi_job(), 3, "training.kubeflow.org/job-name=train")
    flow.go(patch(runPolicy={"suspend": True}), patch(runPolicy={"suspend": False}), condition("Succeeded"))


def test_what_the_table_says_of_mpijobs_holds(mpi_operator: MpiOperator, kwok: Kwok) -> None:
    """A worker that had ended by itself runs again; its workers are kept off a node."""
    job = Living(mpi_operator.admin, mpi_operator.plane.namespace(), mpi_job())
    first, second = (one for one in job.create(2) if one.rank is not None)
    kwok.end_pod(job.space, second.name, 0)
    until(lambda: [one.ended for one in ranks(job.seen()) if one.rank == 1] == ["succeeded"], job.why)
    job.stop()
    job.start(hosts=(first.node,))
    found = job.running(2)
    assert first.node not in {one.node for one in found if one.rank is not None}
    launcher = next(one for one in found if one.role is Role.LAUNCHER)
    kwok.end_pod(job.space, launcher.name, 0)
    job.ended("succeeded")


def test_an_mpijob_that_loses_a_worker_comes_back_with_a_new_launcher(
    mpi_operator: MpiOperator, drive: Drive
) -> None:
    job = drive(mpi_job(), 2)
    come_back([job], 137)
    job.finish()
