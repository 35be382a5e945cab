"""The step time of a job over all the time that it is watched: bounded, and true to what was seen."""

import sys
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.core.now import Now
from sentinel.core.policy_model import Policy
from sentinel.core.reports import Iteration, LogMatch, RankReport
from sentinel.core.timing.course import MOST, Course
from sentinel.core.timing.job_timing import JobTiming

WALL_S = 1_760_000_000.0  # at second 0 of the other clock


def now(mono_s: float) -> Now:
    return Now(mono_s, WALL_S + mono_s)


def steps(count: int, e2e_ms: float | None, *, after_s: float = 0.0, hardware_ms: float | None = None):  # type: ignore[no-untyped-def]
    apart_s = (e2e_ms or 1000.0) / 1000
    return [Iteration(after_s + apart_s * k, k, hardware_ms, e2e_ms) for k in range(1, count + 1)]


def watched(size: int = 1) -> JobTiming:
    timing = JobTiming(Policy(), size)
    timing.start(1, size, Now(0.0, WALL_S))
    return timing


def told(timing: JobTiming, iterations: Sequence[Iteration], rank: int = 0, incarnation: int = 1) -> None:
    timing.fold(
        RankReport(job="j", incarnation=incarnation, rank=rank, iterations=list(iterations), caught_up=True)
    )


def test_a_month_takes_no_more_room_than_an_hour_and_says_when_it_was_slow() -> None:
    course = Course()
    for day in range(30):
        slow = 2000.0 if day == 20 else 1000.0
        course.fold(0, [Iteration(86_400.0 * day + k, None, 500.0, slow) for k in range(0, 86_400, 20)])
    points = course.points(now(30 * 86_400.0))
    assert MOST // 2 <= len(points) <= MOST
    assert sum(one.count for one in points) == 30 * 86_400 // 20
    slow_days = {int((one.wall_s - WALL_S) // 86_400) for one in points if one.step_ms > 1900}
    assert slow_days == {20}
    assert {one.ratio for one in points if one.step_ms < 1001} == {0.5}
    held = sum(sys.getsizeof(getattr(course, name)) for name in Course.__slots__)
    assert held < 5000, "two thousand jobs take less than 10 MB"


@given(
    st.lists(st.tuples(st.floats(0, 1e5), st.floats(1.0, 1e6)), min_size=1, max_size=400),
    st.integers(1, 50),
)
def test_thinning_loses_no_iteration_and_keeps_the_mean(given: list[tuple[float, float]], cut: int) -> None:
    seen = [Iteration(at_s, None, None, e2e_ms) for at_s, e2e_ms in sorted(given)]
    course = Course()
    for start in range(0, len(seen), cut):
        course.fold(0, seen[start : start + cut])
    points = course.points(now(1e5))
    assert len(points) <= MOST
    assert sum(one.count for one in points) == len(seen)
    total = sum(one.count * one.step_ms for one in points)
    assert total == pytest.approx(sum(e2e_ms for _, e2e_ms in given), rel=1e-4)
    assert all(before.wall_s <= after.wall_s for before, after in pairwise(points))


def test_a_time_without_iterations_has_no_points() -> None:
    course = Course()
    course.fold(0, steps(60, 1000.0))
    course.fold(0, steps(60, 1000.0, after_s=600.0))
    seen = [one.wall_s - WALL_S for one in course.points(now(700.0))]
    assert not [at_s for at_s in seen if 70 < at_s < 590]
    assert max(seen) <= 700


def test_a_restart_goes_on_in_the_same_course_whichever_rank_tells_times_then() -> None:
    timing = watched(size=2)
    told(timing, steps(20, 1000.0))
    timing.start(2, 2, Now(100.0, WALL_S + 100.0))
    told(timing, steps(20, 2000.0, after_s=100.0), rank=1, incarnation=2)
    points = timing.course.points(now(200.0))
    assert {round(one.step_ms) for one in points if one.wall_s < WALL_S + 100} == {1000}
    assert {round(one.step_ms) for one in points if one.wall_s > WALL_S + 100} == {2000}


def test_it_is_that_of_the_lowest_rank_that_tells_times() -> None:
    timing = watched(size=3)
    told(timing, [], rank=0)
    told(timing, steps(10, 3000.0), rank=2)
    told(timing, steps(10, 1000.0, after_s=40.0), rank=1)
    told(timing, steps(10, 3000.0, after_s=40.0), rank=2)
    points = timing.course.points(now(100.0))
    assert {round(one.step_ms) for one in points if one.wall_s > WALL_S + 40} == {1000}
    assert {round(one.step_ms) for one in points if one.wall_s < WALL_S + 31} == {3000}


def test_warm_up_and_announced_pauses_are_no_slow_steps() -> None:
    timing = watched()
    told(timing, [Iteration(float(k), k, None, 60_000.0) for k in range(3)])
    told(timing, steps(10, 1000.0, after_s=10.0))
    timing.activity(
        LogMatch(rule="saving", failure="activity:saving", rank=0, incarnation=1, at_s=21.0, line="saving")
    )
    told(timing, [Iteration(50.0, 14, None, 30_000.0), *steps(5, 1000.0, after_s=50.0)])
    assert {round(one.step_ms) for one in timing.course.points(now(100.0))} == {1000}
