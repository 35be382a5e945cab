"""Performance: ratios, growth, starving, stragglers, baselines; any cut into reports gives the same state."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.core.model import Symptom
from sentinel.core.now import Now
from sentinel.core.policy_model import Performance, Policy
from sentinel.core.reports import Iteration, LogMatch, RankReport
from sentinel.core.timing.job_timing import JobTiming
from sentinel.core.timing.statistics import median, medians_of_others

NOW = Now(10_000.0, 0.0)


def job(
    size: int = 1, baseline_ms: float | None = None, baseline_ratio: float | None = None, **asked: object
) -> JobTiming:
    policy = Policy(performance=Performance(**asked))  # type: ignore[arg-type]
    timing = JobTiming(policy, size, baseline_ms=baseline_ms, baseline_ratio=baseline_ratio)
    timing.start(1, size, Now(0.0, 0.0))
    return timing


def report(
    iterations: Sequence[Iteration], rank: int = 0, incarnation: int = 1, **more: object
) -> RankReport:
    return RankReport(job="j", incarnation=incarnation, rank=rank, iterations=list(iterations), **more)  # type: ignore[arg-type]


def steps(
    count: int, hardware: float | None, e2e: float | None, first: int = 1, at_s: float = 0.0
) -> list[Iteration]:
    pace_s = (e2e or 1000.0) / 1000
    return [Iteration(at_s + pace_s * (k + 1), first + k, hardware, e2e) for k in range(count)]


def symptoms(timing: JobTiming) -> list[str]:
    return [signal.key for signal in timing.signals(NOW) if signal.symptom is not Symptom.HANG]


def test_the_known_line_is_slow_under_a_threshold_of_066_and_left_alone_under_067() -> None:
    for limit, expected in ((0.66, ["slow:ratio"]), (0.67, [])):
        timing = job(max_hardware_ratio=limit)
        timing.fold(report([Iteration(float(k), None, 2201.521, 3317.794921875) for k in range(30)]))
        assert timing.ratio == pytest.approx(0.66355, abs=2e-5)
        assert symptoms(timing) == expected


def test_of_what_is_told_again_only_what_is_not_known_counts() -> None:
    """A reader that begins anew tells iterations 91 to 120; who knows 1 to 100 learns of 20."""
    again = report([Iteration(float(k), None, None, 100.0) for k in range(91, 121)], before=90, again=True)
    known, new = job(), job()
    known.fold(report([Iteration(float(k), None, None, 100.0) for k in range(1, 101)]))
    for timing in (known, new):
        timing.fold(again)
        assert timing.made == 120
        timing.fold(again)
        assert timing.made == 120
    assert (known.iterations, new.iterations) == (120, 30)


def test_a_slow_signal_names_its_numbers_and_keeps_its_key() -> None:
    timing = job(max_hardware_ratio=0.66)
    timing.fold(report(steps(30, 2201.521, 3317.795)))
    (first,) = timing.signals(Now(100.0, 0.0))
    assert first.value == pytest.approx(0.6635, abs=1e-4)
    assert first.threshold == 0.66
    assert "0.6635" in first.sentence
    assert "threshold of 0.66" in first.sentence
    timing.fold(report(steps(5, 2300, 3317.795, first=31, at_s=100.0)))
    (second,) = timing.signals(Now(120.0, 0.0))
    assert (second.key, second.symptom) == (first.key, Symptom.SLOW)


def test_nothing_is_said_before_the_window_is_full_after_the_warm_up() -> None:
    timing = job(max_hardware_ratio=0.5, over=20)
    timing.fold(report(steps(22, 90, 100)))
    assert symptoms(timing) == []
    timing.fold(report(steps(1, 90, 100, first=23, at_s=2.2)))
    assert symptoms(timing) == ["slow:ratio"]


def test_a_slow_warm_up_does_not_count() -> None:
    timing = job(max_hardware_ratio=0.8, max_step_growth=1.5, over=10)
    timing.fold(report([*steps(3, 59_000, 60_000), *steps(20, 50, 100, first=4, at_s=180)]))
    assert symptoms(timing) == []
    assert timing.baseline() == (100, 0.5)


def test_single_spikes_such_as_checkpoints_do_not_count() -> None:
    timing = job(max_hardware_ratio=0.8, min_hardware_ratio=0.4, over=10)
    spiky = [Iteration(float(k), k, 50.0, 5000.0 if k % 9 == 0 else 100.0) for k in range(60)]
    timing.fold(report(spiky))
    assert timing.ratio == pytest.approx(0.5)
    assert timing.step_ms == 100
    assert symptoms(timing) == []


def test_a_threshold_that_only_the_newer_half_passes_is_not_sustained() -> None:
    timing = job(max_hardware_ratio=0.6, over=20)
    timing.fold(report([*steps(30, 50, 100), *steps(10, 95, 100, first=31, at_s=3)]))
    assert (timing.ratio or 0) > 0.6
    assert symptoms(timing) == []
    timing.fold(report(steps(10, 95, 100, first=41, at_s=4)))
    assert symptoms(timing) == ["slow:ratio"]


def test_noise_around_a_mean_above_the_threshold_is_still_above_it() -> None:
    timing = job(max_hardware_ratio=0.66)
    timing.fold(report([Iteration(float(k), k, 68.0 + (4 if k % 2 else -4), 100.0) for k in range(40)]))
    assert symptoms(timing) == ["slow:ratio"]


def test_only_if_grown_leaves_a_job_alone_that_was_always_so() -> None:
    always = job(max_hardware_ratio=0.6, only_if_grown=1.2)
    always.fold(report(steps(60, 70, 100)))
    assert symptoms(always) == []
    grown = job(max_hardware_ratio=0.6, only_if_grown=1.2)
    grown.fold(report([*steps(40, 50, 100), *steps(40, 70, 100, first=41, at_s=4)]))
    assert symptoms(grown) == ["slow:ratio"]


def test_a_job_that_is_starved_of_data_is_told() -> None:
    timing = job(min_hardware_ratio=0.3)
    timing.fold(report(steps(30, 20, 100)))
    (signal,) = timing.signals(Now(3.0, 0.0))
    assert signal.symptom is Symptom.STARVED
    assert "waits for data" in signal.sentence


def test_step_time_is_held_against_the_jobs_own_baseline() -> None:
    timing = job(max_step_growth=1.3)
    timing.fold(report(steps(40, None, 100)))
    assert symptoms(timing) == []
    timing.fold(report(steps(40, None, 140, first=41, at_s=4)))
    assert symptoms(timing) == ["slow:growth"]
    assert timing.baseline() == (100, None)


def test_a_given_baseline_is_kept_over_a_restart_and_dropped_when_the_size_changes() -> None:
    timing = job(size=2, baseline_ms=100.0, baseline_ratio=0.5, max_step_growth=1.3)
    timing.start(2, 2, Now(0, 0))
    timing.fold(report(steps(40, None, 140), incarnation=2))
    assert symptoms(timing) == ["slow:growth"]
    timing.start(3, 1, Now(0, 0))
    assert timing.baseline() is None
    timing.fold(report(steps(40, None, 140), incarnation=3))
    assert symptoms(timing) == []
    assert timing.baseline() == (140, None)


def test_a_new_incarnation_begins_its_warm_up_anew_and_ignores_late_reports_of_the_old_one() -> None:
    timing = job(max_hardware_ratio=0.5)
    timing.fold(report(steps(40, 90, 100)))
    timing.start(2, 1, Now(10, 0))
    timing.fold(report(steps(40, 90, 100)))
    assert not timing.has_timing
    assert symptoms(timing) == []
    timing.fold(report(steps(10, 90, 100), incarnation=2))
    assert timing.last_step == 10
    assert symptoms(timing) == []


def test_a_straggler_is_named_by_its_hardware_time() -> None:
    timing = job(size=4)
    for rank in range(4):
        timing.fold(report(steps(30, 80 if rank == 2 else 40, 100), rank))
    (signal,) = timing.signals(Now(3.0, 0))
    assert (signal.symptom, signal.rank, signal.key) == (Symptom.STRAGGLER, 2, "straggler:2")
    assert signal.value == pytest.approx(2.0)


def test_a_straggler_is_named_by_its_step_time_where_no_hardware_time_is_printed() -> None:
    timing = job(size=3)
    for rank in range(3):
        timing.fold(report(steps(30, None, 200 if rank == 0 else 100), rank))
    assert symptoms(timing) == ["straggler:0"]


def test_equal_ranks_have_no_straggler_and_it_can_be_switched_off() -> None:
    for ratio, slow in ((1.5, 100.0), (None, 300.0)):
        timing = job(size=2, straggler_ratio=ratio)
        timing.fold(report(steps(30, None, 100), 0))
        timing.fold(report(steps(30, None, slow), 1))
        assert symptoms(timing) == []


def test_of_several_ranks_the_one_that_stands_out_is_named() -> None:
    timing = job(size=3, max_hardware_ratio=0.66, straggler_ratio=None)
    for rank in range(3):
        timing.fold(report(steps(30, 90 if rank == 1 else 50, 100), rank))
    (signal,) = timing.signals(Now(3.0, 0))
    assert signal.rank == 1


def test_why_moves_are_off_stands_in_the_evidence() -> None:
    timing = JobTiming(
        Policy(performance=Performance(max_hardware_ratio=0.5)),
        1,
        performance_frozen="the last move did not help",
    )
    timing.start(1, 1, Now(0, 0))
    timing.fold(report(steps(30, 90, 100)))
    (signal,) = timing.signals(Now(3.0, 0))
    assert "moves for performance are off: the last move did not help" in signal.evidence


@pytest.mark.parametrize("order", ["activity first", "iterations first"])
def test_the_iteration_that_contains_a_save_is_left_out(order: str) -> None:
    timing = job(over=4)
    before = [Iteration(float(k), k, 50.0, 100.0) for k in range(8)]
    after = [Iteration(20.0, 8, 50.0, 180.0), Iteration(21.0, 9, 50.0, 100.0)]
    saving = LogMatch(rule="save", failure="activity:saving", rank=0, incarnation=1, at_s=7.5)
    timing.fold(report(before))
    if order == "activity first":
        timing.activity(saving)
        timing.fold(report(after))
    else:
        timing.fold(report(after))
        timing.activity(saving)
    assert all(i.e2e_ms == 100.0 for i in timing.ranks[0].window)


def test_steps_that_the_log_does_not_name_are_counted_from_the_last_known_one() -> None:
    timing = job()
    timing.fold(report([Iteration(1.0, 40), Iteration(2.0), Iteration(3.0)]))
    assert (timing.first_step, timing.last_step, timing.steps_told) == (40, 42, True)
    unnamed = job()
    unnamed.fold(report([Iteration(1.0), Iteration(2.0)]))
    assert (unnamed.first_step, unnamed.last_step, unnamed.steps_told) == (None, None, False)
    assert (unnamed.made, timing.made) == (2, 3)


def test_a_rank_that_names_no_steps_says_nothing_of_the_step_that_the_others_reached() -> None:
    timing = job(size=2)
    timing.fold(report([Iteration(1.0, 2), Iteration(2.0, 3)]))
    timing.fold(report([Iteration(1.0)] * 9, rank=1))
    assert (timing.first_step, timing.last_step, timing.made) == (2, 3, 9)


def test_step_time_is_estimated_from_the_readings_where_the_log_prints_none() -> None:
    timing = job()
    readings = [Iteration(float(k // 5), 10 * k) for k in range(400)]  # five lines a second, each ten steps
    timing.fold(report(readings))
    assert timing.step_ms == pytest.approx(20.0)
    assert timing.ranks[0].rate_per_s == pytest.approx(50.0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -5.0, 0.0])
def test_a_broken_number_poisons_nothing(bad: float) -> None:
    timing = job(max_hardware_ratio=0.66)
    good = steps(30, 50, 100)
    timing.fold(
        report([*good[:15], Iteration(1.5, 15, 50.0, bad), Iteration(1.5, 15, bad, 100.0), *good[15:]])
    )
    assert timing.step_ms == 100
    assert 0.4 < (timing.ratio or 0) < 0.51
    assert timing.summary().max_ms == 100


def test_the_summary_has_percentiles_ratio_and_stalls_in_bounded_memory() -> None:
    timing = job()
    at_s, iterations = 0.0, []
    for k in range(5000):
        at_s += 30.0 if k in (1000, 3000) else 0.1
        iterations.append(Iteration(at_s, k, 60.0, 100.0 if k % 10 else 200.0))
    timing.fold(report(iterations))
    summary = timing.summary()
    assert summary.count == 5000
    assert summary.p50_ms == pytest.approx(100, rel=0.03)
    assert summary.p99_ms == pytest.approx(200, rel=0.03)
    assert summary.max_ms == 200
    assert [(round(g.gap_s), g.count) for g in summary.stalls] == [(30, 3000), (30, 1000)]
    assert len(timing.histogram.counts) < 20
    assert len(timing.gaps) <= 32


_iterations = st.lists(
    st.tuples(
        st.floats(0, 5, allow_nan=False),
        st.none() | st.integers(0, 50),
        st.none() | st.floats(-1, 500),
        st.none() | st.floats(0.01, 1000) | st.just(float("nan")),
    ),
    max_size=60,
)


@given(_iterations, st.lists(st.integers(0, 60), max_size=8), st.booleans())
@settings(max_examples=300)
def test_however_a_log_is_cut_into_reports_the_state_is_the_same(
    rows: list[tuple[float, int | None, float | None, float | None]], cuts: list[int], told_steps: bool
) -> None:
    at_s, iterations = 0.0, []
    for k, (gap_s, step, hardware, e2e) in enumerate(rows):
        at_s += 0.0 if gap_s < 1 else gap_s
        iterations.append(Iteration(at_s, k if told_steps else step, hardware, e2e))
    whole, parts = job(over=5), job(over=5)
    whole.fold(report(iterations))
    edges = [0, *sorted(min(c, len(iterations)) for c in cuts), len(iterations)]
    for start, end in pairwise(edges):
        parts.fold(report(iterations[start:end]))
    one, other = whole.ranks[0], parts.ranks.get(0, whole.ranks[0])
    assert repr(list(one.window)) == repr(list(other.window))
    assert one.learnt == other.learnt
    assert (one.count, one.first_step, one.last_step, one.last_at_s) == (
        other.count,
        other.first_step,
        other.last_step,
        other.last_at_s,
    )
    assert whole.histogram.counts == parts.histogram.counts
    assert whole.gaps == parts.gaps
    assert whole.summary() == parts.summary()
    assert whole.signals(NOW) == parts.signals(NOW)


@given(st.lists(st.floats(0.1, 1e6), min_size=2, max_size=9))
def test_the_median_of_the_others_is_that_of_everybody_else(values: list[float]) -> None:
    found = medians_of_others(dict(enumerate(values)))
    for k in range(len(values)):
        assert found[k] == pytest.approx(median([*values[:k], *values[k + 1 :]]))
