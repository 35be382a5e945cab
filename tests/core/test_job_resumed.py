"""Whether somebody else lets a job run that Sentinel has told to stop, and what is left of Sentinel's mark then."""

from typing import Any

import pytest
from msgspec import structs

from sentinel.core.job.start import settle, start
from sentinel.core.job.state import Seen, standing, switched_on
from sentinel.core.job.stop import STOPS, marked, resumed, stop, theirs
from tests.core.job_objects import Json, applied, gone, merged, pod, seen, writes
from tests.core.job_traps import DLROVER, INDEXED, LWS, MARK, PODS, PYTORCH, RAYJOB, VOLCANO, with_trap

STOP = MARK["sentinel.dev/stopped"]
QUEUED = {"kueue.x-k8s.io/queue-name": "gpus"}


def by_mark(one: Seen, mark: str = STOP) -> bool:
    """Was it resumed, as a leader knows it who has not seen it stopped?"""
    return resumed(one, stopped=marked(one, mark))


def changed(one: Seen, **spec: Any) -> Seen:
    """By somebody else."""
    return structs.replace(one, job=merged(one.job, {"spec": spec}))


def workload(active: bool) -> Json:
    meta = {"namespace": "lab", "name": "job-train", "uid": "u-workload", "resourceVersion": "40"}
    head = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Workload", "metadata": meta}
    return {**head, "spec": {"queueName": "gpus", "active": active}}


def switched(one: Seen, active: bool) -> Seen:
    """Its Workload, by somebody else."""
    return structs.replace(one, workload=merged(one.workload, {"spec": {"active": active}}))


@pytest.mark.parametrize(
    ("title", "lets_run"),
    [
        (INDEXED, {"suspend": False}),
        (PYTORCH, {"runPolicy": {"suspend": False}}),
        (RAYJOB, {"suspend": False}),
        (DLROVER, {"suspend": False}),
        (LWS, {"replicas": 2}),
    ],
)
def test_a_job_that_runs_with_the_mark_of_its_stop_was_resumed_by_somebody_else(
    title: str, lets_run: Json
) -> None:
    before = seen(title)
    assert not by_mark(before), "it was not told to stop yet"
    told = applied(before, stop(before, STOP))
    assert not by_mark(told)
    again = changed(told, **lets_run)
    assert by_mark(again)
    assert not by_mark(again, "lab.train-0002"), "the mark is that of an earlier stop"
    assert not by_mark(applied(again, settle(again))), "nor is one without any"
    assert resumed(applied(again, settle(again)), stopped=True), "but for who has seen it stopped"


def test_a_command_that_is_not_obeyed_yet_was_not_taken_back() -> None:
    told = applied(seen(VOLCANO), stop(seen(VOLCANO), STOP))
    assert standing(told).mark == STOP
    assert not by_mark(told)
    again = seen(VOLCANO, status__state__phase="Running", metadata__annotations=MARK)
    assert resumed(again, stopped=True)


def test_what_its_operator_makes_again_at_once_was_resumed_by_nobody() -> None:
    assert not resumed(seen(PODS), stopped=True)


def test_a_job_that_has_ended_was_not_resumed() -> None:
    ended = seen(INDEXED, status__conditions=[{"type": "Complete", "status": "True"}])
    assert not resumed(ended, stopped=True)


def test_who_resumed_it_is_named_with_the_pods_that_still_end() -> None:
    ending = pod("train-0", {}, deletionTimestamp="2026-01-01T00:00:00Z")
    again = seen(INDEXED, pods=(ending, pod("train-1", {})), spec__suspend=False)
    again.job["metadata"]["managedFields"] = [
        {"manager": "kubectl-patch", "time": "t", "fieldsV1": {"f:spec": {"f:suspend": {}}}}
    ]
    assert theirs(again, STOPS) == (
        "It was started by kubectl-patch, while Sentinel was stopping it. It is left to run. "
        "Pods that still end: train-0."
    )


@pytest.mark.parametrize("title", with_trap("kueue-owns-suspend"))
def test_a_workload_that_somebody_else_switches_on_again_bears_no_mark_for_the_next_stop(title: str) -> None:
    before = seen(title, metadata__labels=QUEUED, workload=workload(active=True))
    assert not switched_on(before)
    off = gone(applied(before, stop(before, STOP)))
    assert not switched_on(off)
    assert not by_mark(off)
    on = switched(off, active=True)
    assert switched_on(on)
    assert by_mark(on)
    (only,) = writes(settle(on))
    assert only.plural == "workloads"
    assert only.body == {"metadata": {"annotations": None}}
    theirs_again = switched(applied(on, settle(on)), active=False)
    assert (standing(theirs_again).stopped, standing(theirs_again).stopped_by) == (True, "")
    assert not switched_on(applied(off, start(off))), "Sentinel itself wipes its mark when it starts it"


@pytest.mark.parametrize(("writer", "by_others"), [("kubectl-edit", True), ("kueue", False)])
def test_a_workload_that_kueue_writes_anew_was_switched_on_by_nobody(writer: str, by_others: bool) -> None:
    """It may take the job's new pods over, and `active` with them."""
    before = seen(INDEXED, metadata__labels=QUEUED, workload=workload(active=True))
    off = changed(gone(applied(before, stop(before, STOP))), suspend=True)
    on = switched(off, active=True)
    assert on.workload is not None
    on.workload["metadata"]["managedFields"] = [
        {"manager": "kueue", "time": "1", "fieldsV1": {"f:spec": {"f:podSets": {}, "f:active": {}}}},
        {"manager": writer, "time": "2", "fieldsV1": {"f:spec": {"f:active": {}}}},
    ]
    assert switched_on(on) is by_others
    assert resumed(on, stopped=True) is by_others


def test_a_queued_job_that_was_switched_on_again_is_said_to_wait_for_its_turn() -> None:
    on = seen(INDEXED, pods=(), metadata__labels=QUEUED, spec__suspend=True, workload=workload(active=True))
    assert theirs(on, STOPS) == (
        "It was started by somebody, while Sentinel was stopping it. "
        "It waits for its turn in Kueue's queue gpus."
    )
