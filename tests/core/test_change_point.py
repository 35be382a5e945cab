"""A lasting change of the step time is found soon; what passes, drifts or varies by itself is none."""

import random
from collections.abc import Iterable

import pytest

from sentinel.core.reports import Iteration
from sentinel.core.timing.change_point import Change, StepHistory
from tests.core.jitter_series import Profile, profiles

LEAST = 1.035
USUAL_MS = 3300.0
WELL = 200  # iterations


def follow(history: StepHistory, times_ms: Iterable[float], first: int = 0) -> list[tuple[int, Change]]:
    """(how many iterations had been told, the change) for each that is found. One iteration every second."""
    found = []
    for k, took_ms in enumerate(times_ms, first):
        if history.fold([Iteration(float(k), k, None, took_ms)], LEAST):
            assert history.change is not None
            found.append((k + 1, history.change))
    return found


def normal(count: int, spread: float, seed: int, usual_ms: float = USUAL_MS) -> list[float]:
    source = random.Random(seed)
    return [usual_ms * (1 + source.gauss(0, spread)) for _ in range(count)]


def slower(times_ms: list[float], since: int, factor: float, until: int | None = None) -> list[float]:
    return [
        took * factor if since <= k and (until is None or k < until) else took
        for k, took in enumerate(times_ms)
    ]


# ---------------------------------------------------------------- found


def test_a_slowdown_of_5_percent_at_1_percent_of_jitter_is_found_within_10_iterations() -> None:
    delays = []
    for seed in range(100):
        found = follow(StepHistory(), slower(normal(WELL + 40, 0.01, seed), WELL, 1.05))
        assert len(found) == 1, seed
        ((told, change),) = found
        assert change.growth == pytest.approx(1.05, abs=0.015)
        assert change.step is not None
        assert abs(change.step - WELL) <= 4
        delays.append(told - WELL)
    assert sum(delay <= 10 for delay in delays) >= 95
    assert max(delays) <= 25


def test_it_is_told_when_it_began_how_long_iterations_took_and_take_and_when_that_was_proved() -> None:
    ((told, change),) = follow(StepHistory(), slower([2000.0] * 150, 100, 1.1))
    assert (change.at_s, change.step, change.before_ms, change.after_ms) == (100.0, 100, 2000.0, 2200.0)
    assert change.found_s == told - 1
    assert change.around == tuple((float(k), 2000.0 if k < 100 else 2200.0) for k in range(80, told))
    assert change.growth == pytest.approx(1.1)


def test_one_that_is_lost_in_the_jitter_of_few_iterations_is_found_by_many() -> None:
    late = []
    for seed in range(10):
        found = follow(StepHistory(), slower(normal(3400, 0.06, seed), 3000, 1.08))
        assert all(told > 3000 for told, _ in found)
        late += found
    assert len(late) >= 8


def test_single_slow_iterations_hide_no_slowdown() -> None:
    times_ms = slower(normal(WELL + 60, 0.01, 5), WELL, 1.06)
    for k in range(7, len(times_ms), 23):
        times_ms[k] *= 3
    ((told, _),) = follow(StepHistory(), times_ms)
    assert WELL < told <= WELL + 15


def test_short_iterations_are_taken_together_so_that_a_change_lasts_some_seconds() -> None:
    times_ms = slower(normal(4000, 0.01, 1, usual_ms=50.0), 3000, 1.05)
    ((told, change),) = follow(StepHistory(), times_ms)
    assert 3000 + 150 < told <= 3000 + 300  # 20 of them are a second
    assert change.step is not None
    assert abs(change.step - 3000) <= 40


def test_a_job_that_goes_on_more_slowly_after_a_restart_is_compared_with_what_it_was() -> None:
    history = StepHistory()
    assert not follow(history, normal(WELL, 0.01, 3))
    history.restart()
    ((told, change),) = follow(history, normal(60, 0.01, 4, usual_ms=1.06 * USUAL_MS), first=WELL)
    assert told <= WELL + 30  # it settles first
    assert change.restarted
    assert change.before_ms == pytest.approx(USUAL_MS, rel=0.01)


def test_slower_yet_is_another_change() -> None:
    times_ms = slower(slower(normal(400, 0.01, 6), 150, 1.06), 300, 1.1)
    first, second = follow(StepHistory(), times_ms)
    assert first[1].after_ms == pytest.approx(1.06 * USUAL_MS, rel=0.01)
    assert second[1].before_ms == pytest.approx(1.06 * USUAL_MS, rel=0.01)
    assert second[1].growth == pytest.approx(1.1, abs=0.015)


@pytest.mark.parametrize(("spread", "factor"), [(0.02, 1.1), (0.03, 1.2), (0.05, 1.5)])
def test_the_jitter_of_a_job_that_is_well_does_not_make_it_wait(spread: float, factor: float) -> None:
    for seed in range(20):
        ((told, _),) = follow(StepHistory(), slower(normal(700, spread, seed), 500, factor))
        assert 500 < told <= 512, seed


def test_one_that_is_slower_yet_before_it_has_a_history_is_found_again_at_once() -> None:
    times_ms = slower(slower(normal(400, 0.01, 15), 100, 1.05), 120, 1.4)
    first, second = follow(StepHistory(), times_ms)
    assert first[0] <= 112
    assert 120 < second[0] <= 132
    assert second[1].before_ms == first[1].before_ms
    assert second[1].growth == pytest.approx(1.47, abs=0.02)


def test_after_a_restart_that_mended_it_it_is_found_again() -> None:
    history = StepHistory()
    assert len(follow(history, slower(normal(300, 0.01, 16), 150, 1.2))) == 1
    history.restart()
    again = follow(history, slower(normal(500, 0.01, 17), 300, 1.2), first=300)
    assert [300 < told - 300 <= 312 for told, _ in again] == [True]


def test_a_slowdown_is_over_when_steps_are_as_fast_as_before() -> None:
    history = StepHistory()
    times_ms = normal(400, 0.01, 7)
    assert len(follow(history, slower(times_ms, 150, 1.06)[:300])) == 1
    assert history.change is not None
    assert not follow(history, times_ms[300:], first=300)
    assert history.change is None


# ---------------------------------------------------------------- nothing found


@pytest.mark.parametrize("profile", profiles(), ids=lambda profile: profile.name)
def test_the_jitter_of_a_real_job_is_no_slowdown(profile: Profile) -> None:
    assert not follow(StepHistory(), profile.series_ms(1, 4000, steady=True))


@pytest.mark.parametrize("spread", [0.0, 0.001, 0.01, 0.03, 0.1])
def test_jitter_of_any_size_is_no_slowdown(spread: float) -> None:
    for seed in range(5):
        assert not follow(StepHistory(), normal(4000, spread, seed))


def test_iterations_whose_length_depends_on_the_batch_are_no_slowdown() -> None:
    for seed in range(5):
        source = random.Random(seed)
        assert not follow(StepHistory(), [USUAL_MS * source.lognormvariate(0, 0.25) for _ in range(4000)])


def test_a_speed_that_wanders_is_no_slowdown() -> None:
    for seed in range(5):
        source, away, times_ms = random.Random(seed), 0.0, []
        for _ in range(4000):
            away = 0.99 * away + source.gauss(0, 0.001)
            times_ms.append(USUAL_MS * (1 + away + source.gauss(0, 0.005)))
        assert not follow(StepHistory(), times_ms)


def test_a_slow_drift_is_no_change_point() -> None:
    times_ms = [took * (1 + 0.3 * k / 6000) for k, took in enumerate(normal(6000, 0.01, 2))]
    assert not follow(StepHistory(), times_ms)


@pytest.mark.parametrize("length", [1, 3, 7])
def test_a_few_slow_iterations_in_a_row_are_no_slowdown_however_often_they_come(length: int) -> None:
    times_ms = normal(3000, 0.01, 8)
    for k in range(50, len(times_ms), 100):
        times_ms[k : k + length] = [1.4 * took for took in times_ms[k : k + length]]
    assert not follow(StepHistory(), times_ms)


def test_slow_times_that_have_passed_by_themselves_before_must_last_longer() -> None:
    """Twelve iterations every 200, as of a save that goes on behind the training."""
    times_ms = normal(4000, 0.01, 9)
    for k in range(100, len(times_ms), 200):
        times_ms[k : k + 12] = [1.2 * took for took in times_ms[k : k + 12]]
    history = StepHistory()
    assert len(follow(history, times_ms)) <= 1  # the first of them
    (lasting,) = follow(history, normal(60, 0.01, 14, usual_ms=1.3 * USUAL_MS), first=4000)
    assert 4020 < lasting[0] <= 4040


def test_steps_that_become_faster_are_no_slowdown() -> None:
    history = StepHistory()
    assert not follow(history, slower(normal(400, 0.01, 10), 200, 0.8))
    assert history.change is None


def test_a_change_by_one_unit_of_what_is_printed_is_none() -> None:
    """0.26 s for 0.25 s: it may be 0.2551 for 0.2549."""
    assert not follow(StepHistory(), [250.0] * 1000 + [260.0] * 400)


def test_a_change_by_one_unit_of_a_printed_rate_is_none() -> None:
    """1.2 it/s for 1.3: it may be 1.249 for 1.251."""
    assert not follow(StepHistory(), [1000 / 1.3] * 1000 + [1000 / 1.2] * 400)


def test_the_first_iterations_of_a_start_are_no_history() -> None:
    assert not follow(StepHistory(), [*normal(15, 0.01, 11, usual_ms=0.8 * USUAL_MS), *normal(300, 0.01, 12)])


def test_what_is_found_does_not_depend_on_how_a_log_was_cut_into_reports() -> None:
    times_ms = slower(normal(400, 0.01, 13), 300, 1.06)
    whole = [Iteration(float(k), k, None, took) for k, took in enumerate(times_ms)]
    one = StepHistory()
    assert one.fold(whole, LEAST)
    for size in (1, 7, 50):
        cut = StepHistory()
        assert sum(cut.fold(whole[k : k + size], LEAST) for k in range(0, len(whole), size)) == 1
        assert cut.change == one.change


def test_iterations_without_a_time_tell_nothing() -> None:
    history = StepHistory()
    assert not history.fold([Iteration(float(k), k) for k in range(1000)], LEAST)
