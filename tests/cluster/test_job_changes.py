"""When a job that stops or starts is worth reading again, by what the watches tell of it."""

from collections.abc import Sequence
from typing import Any

from sentinel.cluster.kubernetes.job_changes import Changes, all_may_end, all_may_run
from sentinel.cluster.kubernetes.objects import ContainerStatus, Meta, Pod, PodSpec, PodStatus
from sentinel.cluster.kubernetes.reflector import Change, Kind


def a_pod(name: str, phase: str = "Pending", told_to_end: bool = False, **states: str) -> Pod:
    """`states`: of its containers."""
    containers = tuple(ContainerStatus(name=one, state={state: {}}) for one, state in states.items())
    meta = Meta(name=name, uid=name, deletion_timestamp="2026-11-29T00:00:00Z" if told_to_end else None)
    return Pod(metadata=meta, spec=PodSpec(), status=PodStatus(phase=phase, container_statuses=containers))


def told(*changes: tuple[Pod | None, Pod | None], was: Changes = Changes()) -> Changes:  # noqa: B008  frozen
    for before, after in changes:
        was = was.of_pod(Change(Kind.CHANGED, "ns/a", before, after))
    return was


def test_a_start_is_read_again_when_as_many_pods_run_as_were_missing() -> None:
    made, placed = a_pod("a"), a_pod("a", main="waiting")
    runs = a_pod("a", "Running", main="running")
    other = a_pod("b", "Running", main="running")
    enough = all_may_run(2)
    so_far = told((None, made), (made, placed), (placed, runs))
    assert not enough(so_far)
    assert enough(told((None, other), was=so_far))
    assert not enough(told((None, other), was=so_far).since(so_far)), "those before are in the reading"


def test_a_pod_that_ends_or_starts_a_further_container_may_have_started_meanwhile() -> None:
    enough = all_may_run(1)
    assert enough(told((a_pod("a"), a_pod("a", "Failed"))))
    helped = a_pod("a", "Running", helper="running", main="waiting")
    assert enough(told((helped, a_pod("a", "Running", helper="running", main="running"))))
    assert enough(told((helped, a_pod("a", "Running", helper="running", main="terminated"))))
    assert enough(told((helped, a_pod("a", "Running", helper="waiting", main="running"))))
    assert not enough(told((a_pod("a", "Running", main="running"), None)))


def test_a_stop_is_read_again_when_all_pods_are_told_to_end_and_when_all_have_ended() -> None:
    lives, ends = a_pod("a", "Running"), a_pod("a", "Running", told_to_end=True)
    other, other_ends = a_pod("b", "Running"), a_pod("b", "Running", told_to_end=True)
    enough = all_may_end(as_read(lives, other))
    one = told((lives, ends), (ends, a_pod("a", "Running", told_to_end=True, main="terminated")))
    assert not enough(one)
    both = told((other, other_ends), was=one)
    assert enough(both)

    assert not all_may_end(as_read(ends, other))(told((ends, None))), "it was told before"
    enough = all_may_end(as_read(ends, other_ends))  # as it is read then
    assert not enough(told((ends, None), was=both).since(both))
    failed = a_pod("b", "Failed", told_to_end=True)
    gone = told((ends, None), (other_ends, failed), (failed, None), was=both).since(both)
    assert (gone.ended, enough(gone)) == (2, True)
    assert all_may_end(as_read(lives))(told((lives, a_pod("a", "Succeeded"))))


def test_a_job_that_is_edited_is_read_again_whatever_its_pods_do() -> None:
    edited = Changes().edit()
    assert all_may_run(64)(edited)
    assert all_may_end(as_read(a_pod("a")))(edited)
    assert edited.something()
    assert told((None, a_pod("a"))).something()
    assert not edited.since(edited).something()


def as_read(*pods: Pod) -> Sequence[dict[str, Any]]:
    return [
        {"metadata": {"name": pod.metadata.name, "deletionTimestamp": pod.metadata.deletion_timestamp}}
        for pod in pods
    ]
