"""What triage makes of the end of a pod: what ended it from outside explains it, from when it was told to end."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs

from sentinel.core.decision.picture import JobPicture
from sentinel.core.health import Component
from sentinel.core.job.paths import wall_s
from sentinel.core.job.pod_end import end, rank_exit
from sentinel.core.model import Budget, Cause, ProtectedJob, Restartable, Verdict
from sentinel.core.policy_model import Policy
from sentinel.core.reports import LogMatch, RankExit
from sentinel.core.triage.verdict import AGREED
from sentinel.rules.failures import failure_classes
from tests.core.pod_shapes import ENDS, changed, container, ended
from tests.core.test_triage import line, verdict, xid

FREE = ("pod-preempted", "pod-evicted", "taint-eviction")


def lost(name: str, rank: int = 3, at_s: float = 1999.0, **how: Any) -> RankExit:
    return rank_exit(ended(name), rank=rank, incarnation=1, at_s=at_s, **how)


def of(exits: Sequence[RankExit], lines: Sequence[LogMatch] = (), **more: Any) -> Verdict:
    return verdict(exits, lines, **more)


def test_every_class_that_a_pod_names_is_in_the_table() -> None:
    named = {ends.failure for ends in ENDS.values()} - {""}
    assert named <= AGREED
    budgets = {failure: failure_classes()[failure].budget for failure in named}
    assert {failure for failure, budget in budgets.items() if budget is Budget.FREE} == set(FREE)


@pytest.mark.parametrize("name", [name for name, ends in ENDS.items() if ends.failure])
def test_the_class_of_a_pods_end_is_the_verdict(name: str) -> None:
    v = of([lost(name)])
    row = failure_classes()[ENDS[name].failure]
    assert (v.failure, v.cause, v.budget, v.restart) == (row.id, row.cause, row.budget, row.restart)
    assert v.rank == 3
    assert any(f"rank 3: Pod research/{name} on node pods-" in text for text in v.evidence)


@pytest.mark.parametrize("failure", sorted({ends.failure for ends in ENDS.values()} - {""}))
def test_a_line_of_such_a_class_is_a_verdict_too(failure: str) -> None:
    assert of([RankExit(rank=3, incarnation=1, at_s=1999.0, code=1)], [line(failure, 3)]).failure == failure


def test_a_preemption_says_what_took_its_place() -> None:
    v = of([lost("preempted")])
    assert v.sentence == "Rank 3 was lost: a pod of higher priority took its place."
    assert "it was preempted by pod research/preempts; " in v.evidence[0]
    assert (v.cause, v.budget, v.restart) == (Cause.PREEMPTION, Budget.FREE, Restartable.YES)


def test_what_a_rank_prints_while_it_is_taken_down_explains_nothing() -> None:
    late = [
        line("user-exception", 3, at_s=1998.5, text="KeyboardInterrupt"),
        line("connection", 5, at_s=1998.9),
    ]
    exits = [lost("evicted", told_s=1998.0), RankExit(rank=5, incarnation=1, at_s=1999.5, code=1)]
    assert of(exits, late).failure == "pod-evicted"


def test_what_a_rank_had_printed_before_still_does() -> None:
    early = [line("cuda-oom", 3, at_s=1990.0)]
    assert of([lost("evicted", told_s=1998.0)], early).failure == "cuda-oom"


def test_a_deletion_after_another_rank_was_lost_is_the_operators_tidying() -> None:
    first = RankExit(rank=0, incarnation=1, at_s=1990.0, code=3)
    rest = [lost("deleted", rank, told_s=1990.4) for rank in range(1, 8)]
    noise = line("user-exception", 5, at_s=1990.6, text="KeyboardInterrupt")
    v = of([first, *rest], [*(line("connection", rank, at_s=1990.2) for rank in range(1, 4)), noise])
    assert (v.failure, v.rank) == ("user-exit", 0)
    hung = of([first, *rest], [line("nccl-timeout", 0, at_s=1989.0)])
    assert hung.failure != "pod-deleted"


def test_a_deletion_before_the_others_were_lost_is_why() -> None:
    others = [RankExit(rank=rank, incarnation=1, at_s=1995.0, code=1) for rank in range(3)]
    lines = [line("connection", rank, at_s=1994.0) for rank in range(3)]
    v = of([*others, lost("deleted", 3, at_s=1999.0, told_s=1990.0)], lines)
    assert (v.failure, v.rank) == ("pod-deleted", 3)


def test_what_followed_within_its_grace_is_no_reason() -> None:
    crash = RankExit(rank=5, incarnation=1, at_s=1995.0, signal=11)
    v = of([crash, lost("preempted", 3, at_s=1999.0, told_s=1990.0)])
    assert (v.failure, v.rank) == ("pod-preempted", 3)


def test_hardware_that_fell_out_just_before_is_believed_before_an_eviction() -> None:
    assert of([lost("tainted")], (), findings=[xid(79, 3)]).failure == "gpu-hardware"


def test_a_full_disk_does_not_explain_an_eviction() -> None:
    full = xid(79, 3, component=Component.DISK, entity="/scratch", code="disk-space", check="disk")
    evicted = structs.replace(lost("evicted-saves"), code=1)
    assert of([evicted], findings=[full]).failure == "pod-evicted"
    assert of([structs.replace(evicted, failure="", told_s=None)], findings=[full]).failure == "storage-full"


def test_an_end_by_our_own_stop_explains_nothing() -> None:
    v = of([RankExit(rank=0, incarnation=1, at_s=1990.0, code=3), lost("evicted", 1, ours=True)])
    assert (v.failure, v.rank) == ("user-exit", 0)


def test_of_ends_that_one_look_shows_the_pods_own_clocks_tell_the_order() -> None:
    """All are seen at 100 s, which is 10:00:20 on the wall."""

    def seen(name: str, rank: int, finished: str, told: str = "", grace_s: int = 0) -> RankExit:
        pod = changed(name)
        container(pod)["state"]["terminated"]["finishedAt"] = f"2026-11-22T{finished}Z"
        if told:
            pod["metadata"] |= {
                "deletionTimestamp": f"2026-11-22T{told}Z",
                "deletionGracePeriodSeconds": grace_s,
            }
        found = end(pod)
        assert found is not None
        now_wall_s = wall_s({"at": "2026-11-22T10:00:20Z"}, "at")
        return rank_exit(found, rank=rank, incarnation=1, at_s=100.0, now_wall_s=now_wall_s)

    own = seen("exit-3", 5, "10:00:10")
    assert (own.at_s, own.ended_s, own.told_s) == (100.0, 90.0, None)
    tidied = [seen("exit-3", rank, "10:00:14", "10:00:42", 30) for rank in range(3)]
    assert {one.told_s for one in tidied} == {92.0}
    assert of([*tidied, own]).failure == "user-exit"
    hidden = [seen("exit-3", rank, "10:00:14", "10:00:16") for rank in range(3)]
    assert {one.told_s for one in hidden} == {94.0}, "not after its own end"
    assert of([*hidden, own]).failure == "user-exit"
    assert of([seen("exit-3", 0, "10:00:06", "10:00:34", 30), own]).failure == "pod-deleted"
    assert of([seen("exit-3", 0, "10:00:14"), seen("exit-3", 1, "10:00:12")]).rank == 1


def test_without_a_clock_the_times_are_those_of_the_look() -> None:
    gone = rank_exit(ended("preempted"), rank=0, incarnation=1, at_s=100.0)
    assert (gone.at_s, gone.told_s, gone.ended_s) == (100.0, None, None)
    assert of([gone]).failure == "pod-preempted"


def test_a_job_whose_ranks_were_told_to_end_is_not_finished() -> None:
    picture = JobPicture(ProtectedJob(name="j", policy=Policy()), failure_classes())
    picture.exits = {0: rank_exit(ended("evicted-saves"), rank=0, incarnation=1, at_s=1.0)}
    assert not picture.finished
    assert picture.exit_code(0) is None


def test_a_card_of_another_node_did_not_end_what_its_own_node_took_along() -> None:
    gone = RankExit(rank=3, incarnation=1, at_s=1999.0, failure="node-lost", evidence="Node two was lost.")
    nodes = {1: "one", 3: "two"}
    elsewhere = of([gone], findings=[xid(79, 1, node="one")], entities=nodes)
    assert (elsewhere.failure, elsewhere.rank, elsewhere.entity) == ("node-lost", 3, "two")
    here = of([gone], findings=[xid(79, 3, node="two")], entities=nodes)
    assert here.failure == "gpu-hardware"
