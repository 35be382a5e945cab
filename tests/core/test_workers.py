"""The ranks below a launcher: which of them the others wait for, and what their hang is called."""

import pytest

from sentinel.core.model import Symptom
from sentinel.core.now import Now
from sentinel.core.policy_model import Hang, Policy
from sentinel.core.reports import Iteration, RankReport, Worker
from sentinel.core.stacks.workers import CHILDREN, Found, Workers
from sentinel.core.timing.job_timing import JobTiming


def of(*workers: Worker, rank: int = 0) -> Workers:
    found = Workers()
    found.fold(rank, workers)
    return found


@pytest.mark.parametrize(("state", "how"), [("T", "stopped by a signal"), ("D", "stuck in the kernel")])
def test_the_one_that_is_stopped_is_the_first(state: str, how: str) -> None:
    found = of(
        Worker(number=0, pid=40, state="R"),
        Worker(number=1, pid=41, state=state),
        Worker(number=2, pid=42, state="S"),
    )
    assert found.first_stopped([0]) == Found(0, 1, f"rank 1 (pid 41) is {how}")


def test_one_that_has_ended_is_told_until_the_others_get_on_without_it() -> None:
    found = of(Worker(number=0, pid=40, state="R"), Worker(number=1, pid=41, state="S"))
    found.fold(0, [Worker(number=1, pid=41)])
    assert found.first_stopped([0]) is None  # it may have been through
    assert found.gone([0]) == ["rank 1 (pid 41) has ended, its launcher has not"]
    found.progressed(0)
    assert found.gone([0]) == []


def test_a_rank_that_no_launcher_has_started_is_no_worker() -> None:
    found = of(Worker(number=3, pid=40, state="T"))
    assert (found.first_stopped([0]), found.pids(), found.below(0)) == (None, {}, False)


def test_of_several_that_are_stopped_none_is_the_first() -> None:
    found = of(Worker(number=0, pid=40, state="T"), Worker(number=1, pid=41, state="T"))
    assert found.first_stopped([0]) is None


@pytest.mark.parametrize(
    ("told", "first"),
    [
        ([(9, 90), (9, 90), (8, 80)], 2),
        ([(9, 90), (8, 80), (8, 80)], None),  # two are behind
        ([(9, 90), (9, 90), (9, 90)], None),
        ([(9, 90), (9, 90), (4, 80)], None),  # it prints less often
        ([(10, 90), (9, 90)], None),  # one printed a line more, and came no further
        ([(9, 90)], None),
    ],
)
def test_the_one_whose_newest_iteration_is_behind_is_the_first(
    told: list[tuple[int, int]], first: int | None
) -> None:
    found = of(*(Worker(number=k, told=count, step=step) for k, (count, step) in enumerate(told)))
    one = found.first_stopped([0])
    assert (one.number if one else None) == first
    if one is not None:
        assert one.why == "rank 2 stopped after iteration 80, others reached 90"


def test_lines_that_bear_the_numbers_of_one_machine_of_several_name_nobody() -> None:
    found = Workers()
    for rank in (0, 1):
        pids = [Worker(number=4 * rank + k, pid=40 + 4 * rank + k, state="S") for k in range(4)]
        lines = [Worker(number=k, told=50 - (rank and k == 3), step=50 - (rank and k == 3)) for k in range(4)]
        found.fold(rank, [*pids, *lines])
    assert found.first_stopped([0, 1]) is None


def test_what_was_seen_of_processes_and_what_lines_told_are_kept_together() -> None:
    found = of(Worker(number=0, pid=40, state="R"), Worker(number=1, pid=41, state="R"))
    found.fold(0, [Worker(number=0, told=3, step=3), Worker(number=1, told=2, step=2)])
    assert found.pids() == {40: (0, 0), 41: (0, 1)}
    found.fold(0, [Worker(number=1, pid=41, state="T")])
    assert found.first_stopped([0]) == Found(0, 1, "rank 1 (pid 41) is stopped by a signal")
    found.fold(0, [Worker(number=1, pid=41, state="S")])
    assert found.first_stopped([0]) == Found(
        0, 1, "rank 1 (pid 41) stopped after 2 iterations, others reached 3"
    )


def hang(timing: JobTiming) -> tuple[int | None, int | None, str, str]:
    (signal,) = [s for s in timing.signals(Now(60.0, 60.0)) if s.symptom is Symptom.HANG]
    return signal.rank, signal.worker, signal.sentence, signal.evidence[0]


def launchers(size: int) -> JobTiming:
    timing = JobTiming(Policy(hang=Hang(after_s=10.0)), size)
    timing.start(1, size, Now(0.0, 0.0))
    for rank in range(size):
        numbers = (2 * rank, 2 * rank + 1)
        timing.fold(
            RankReport(
                job="j",
                incarnation=1,
                rank=rank,
                iterations=[Iteration(1.0 + k, k + 1) for k in range(9)] if rank == 0 else [],
                workers=tuple(Worker(number=k, pid=40 + k, state="S") for k in numbers),
            )
        )
    return timing


def test_a_hang_below_one_launcher_names_the_rank_and_not_the_launcher() -> None:
    timing = launchers(1)
    assert hang(timing)[:3] == (None, None, "The job has made no iteration for 51 s after iteration 9.")
    stopped = Worker(number=1, pid=41, state="T")
    timing.fold(RankReport(job="j", incarnation=1, rank=0, workers=(stopped,)))
    assert hang(timing) == (
        0,
        1,
        "Rank 1 has made no iteration for 51 s after iteration 9.",
        "rank 1 (pid 41) is stopped by a signal",
    )


def test_below_several_launchers_the_rank_has_its_number_in_the_whole_job() -> None:
    timing = launchers(2)
    stopped = Worker(number=3, pid=43, state="T")
    timing.fold(RankReport(job="j", incarnation=1, rank=1, workers=(stopped,)))
    rank, worker, sentence, why = hang(timing)
    assert (rank, worker) == (1, 3)
    assert sentence.startswith("Rank 3 has made no iteration")
    assert why == "rank 3 (pid 43, below the launcher of rank 1) is stopped by a signal"


def test_children_without_numbers_are_remembered_after_they_are_gone() -> None:
    timing = launchers(1)
    for children in ((50, 51), (51,)):
        timing.fold(RankReport(job="j", incarnation=1, rank=0, children=children))
    assert timing.hang.workers.children == {50: 0, 51: 0}
    for pid in range(1000, 1000 + CHILDREN - 1):
        timing.fold(RankReport(job="j", incarnation=1, rank=0, children=(pid,)))
    assert set(timing.hang.workers.children) == {51, *range(1000, 1000 + CHILDREN - 1)}, "the newest"
    timing.start(2, 1, Now(100.0, 100.0))
    assert timing.hang.workers.children == {}


def test_a_new_incarnation_knows_nothing_of_the_workers_before() -> None:
    timing = launchers(1)
    timing.start(2, 1, Now(100.0, 100.0))
    assert timing.hang.workers.pids() == {}
