"""What is known of the wrapper that holds containers: by its command line, its code, a pod's template."""

from typing import Any

import pytest
from msgspec import structs

from sentinel.core.job import hold
from sentinel.core.job.state import main_container
from sentinel.core.model import ProtectedJob
from sentinel.core.now import Now
from sentinel.core.policy_model import Policy
from tests.core.job_objects import seen
from tests.core.job_traps import policied

HELD = ["/bin/sh", "/sentinel/hold", "--held", "1", "14400"]


@pytest.mark.parametrize(
    ("container", "wrapped"),
    [
        ({"command": ["/sentinel/hold", "--", "python", "train.py"]}, True),
        ({"command": ["/sentinel/hold"], "args": ["--", "python", "train.py"]}, True),
        ({"command": ["sh", "/opt/tools/hold", "--", "python", "train.py"]}, True),
        ({"command": ["sh", "-c", "cd /job && exec /sentinel/hold -- python train.py"]}, True),
        ({"command": ["python", "train.py"]}, False),
        ({"command": ["python", "hold", "train.py"]}, False),
        ({"args": ["threshold", "--", "x"]}, False),
        ({"command": "hold -- x"}, False),
        ({"command": [1, None]}, False),
        ({}, False),
    ],
)
def test_a_container_uses_the_wrapper_when_its_command_says_so(
    container: dict[str, object], wrapped: bool
) -> None:
    assert hold.wraps(container) is wrapped


def test_a_job_can_be_held_when_the_container_that_trains_is_wrapped_in_every_pod() -> None:
    gpu = {"resources": {"limits": {"nvidia.com/gpu": 8}}}
    wrapped = {"spec": {"containers": [{}, {"command": ["/sentinel/hold", "--", "x"], **gpu}]}}
    beside = {"spec": {"containers": [{"command": ["/sentinel/hold", "--", "x"]}, gpu]}}
    assert hold.available(map(main_container, [wrapped, wrapped]))
    assert not hold.available(map(main_container, [wrapped, beside]))
    assert not hold.available([main_container({})])
    assert not hold.available([])


def test_the_command_line_tells_a_wrapper_and_how_its_command_ended() -> None:
    assert hold.runs(["/bin/sh", "/sentinel/hold", "--", "python", "train.py"])
    for other in ([], ["sh"], ["sh", "/sentinel/hold", "--"], ["sh", "hold", "x", "y"], HELD):
        assert not hold.runs(other)
    assert hold.held_code(HELD) == 1
    for other in (
        [],
        HELD[:4],
        ["sh", "/x/behold", *HELD[2:]],
        [*HELD[:3], "-1", "9"],
        [*HELD[:3], "x", "9"],
    ):
        assert hold.held_code(other) is None


def test_a_code_of_a_signal_is_told_as_the_signal() -> None:
    assert hold.rank_exit(2, 3, 7.0, 1).describe() == "exit code 1"
    assert hold.rank_exit(2, 3, 7.0, 137).describe() == "killed by signal 9"
    assert hold.rank_exit(2, 3, 7.0, 255).describe() == "exit code 255"
    assert hold.rank_exit(2, 3, 7.0, 128).code == 128


def test_a_job_is_held_for_as_long_as_its_policy_asks() -> None:
    now = Now(5.0, 1000.0)
    asks = ProtectedJob(name="x", policy=Policy(debug_hold_s=60.0))
    assert hold.hold_until_wall_s(asks, now) == 1060.0
    assert hold.hold_until_wall_s(ProtectedJob(name="x", policy=Policy()), now) is None


@pytest.mark.parametrize(
    ("title", "changes", "stays"),
    [
        ("PyTorchJob.kubeflow.org/v1", {"restartPolicy": "Never"}, True),
        ("PyTorchJob.kubeflow.org/v1", {"restartPolicy": "OnFailure"}, False),
        ("LeaderWorkerSet.leaderworkerset.x-k8s.io/v1", {}, False),
        ("Job.batch/v1 (Indexed)", {}, False),
        ("Job.batch/v1 (Indexed)", {"spec__backoffLimit": 0}, True),
        ("Job.batch/v1 (Indexed)", {"spec__backoffLimit": 0, "spec__backoffLimitPerIndex": 1}, False),
        ("Job.batch/v1 (Indexed)", {"spec__backoffLimit": 1}, False),
        ("Job.batch/v1 (Indexed)", {"spec__backoffLimit": 1, "status__failed": 2}, True),
    ],
)
def test_a_failed_pod_stays_without_the_wrapper_where_its_kind_makes_no_other(
    title: str, changes: dict[str, Any], stays: bool
) -> None:
    policy = changes.get("restartPolicy")
    seen_ = policied(title, policy) if policy else seen(title, **changes)
    failed = {"metadata": {"uid": "u", "labels": {}}, "spec": {}, "status": {"phase": "Failed"}}
    if seen_.row.role_label:
        failed["metadata"]["labels"] = {seen_.row.role_label: "worker"}
    assert hold.kept(structs.replace(seen_, pods=(failed,))) == ({"u"} if stays else set())
    going = {**failed, "metadata": {**failed["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    runs = {**failed, "status": {"phase": "Running"}}
    assert not hold.kept(structs.replace(seen_, pods=(going, runs)))
