"""Which jobs can run on one node only."""

from typing import Any

import pytest

from sentinel.core.job.pin import pinned
from tests.core.job_objects import pods_of, seen
from tests.core.test_room import affinity, expression

JOB, ELSEWHERE = "Job.batch/v1 (Indexed)", "TrainJob.trainer.kubeflow.org/v1alpha1"
HOSTNAME = "kubernetes.io/hostname"
FIELD = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}


@pytest.mark.parametrize(
    ("spec", "node"),
    [
        ({"nodeName": "a"}, "a"),
        ({"nodeSelector": {HOSTNAME: "a", "pool": "x"}}, "a"),
        (affinity(expression(HOSTNAME, "In", "a")), "a"),
        (affinity(FIELD), "a"),
        (affinity(expression(HOSTNAME, "In", "a"), FIELD), "a"),
        (affinity(expression(HOSTNAME, "In", "a"), expression(HOSTNAME, "In", "b")), ""),
        (affinity(expression(HOSTNAME, "In", "a"), expression("pool", "In", "x")), ""),
        (affinity(expression(HOSTNAME, "In", "a", "b")), ""),
        (affinity(expression(HOSTNAME, "NotIn", "a")), ""),
        ({"nodeSelector": {"pool": "a"}}, ""),
        ({}, ""),
    ],
)
def test_a_job_is_pinned_by_what_its_template_asks_for(spec: dict[str, Any], node: str) -> None:
    assert pinned(seen(JOB, spec__template__spec=spec)) == node


def test_a_node_that_the_scheduler_has_named_pins_nothing() -> None:
    bound = tuple({**pod, "spec": {**pod["spec"], "nodeName": "a"}} for pod in pods_of(ELSEWHERE))
    asked = tuple({**pod, "spec": {**pod["spec"], "nodeSelector": {HOSTNAME: "a"}}} for pod in bound)
    assert pinned(seen(ELSEWHERE, pods=bound)) == ""
    assert pinned(seen(ELSEWHERE, pods=asked)) == "a"


def test_ranks_of_two_groups_are_pinned_only_where_they_name_the_same_node() -> None:
    path = "spec__pytorchReplicaSpecs__Master__template__spec__nodeName"
    one = seen("PyTorchJob.kubeflow.org/v1", **{path: "a"})
    assert pinned(one) == ""
    both = {path: "a", path.replace("Master", "Worker"): "a"}
    assert pinned(seen("PyTorchJob.kubeflow.org/v1", **both)) == "a"
