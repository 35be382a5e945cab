"""A launcher inside a pod that starts its ranks again is left to it, while iterations may follow in time."""

import pytest

from sentinel.core.now import Now
from tests.core.test_timing_hang import empty, feed, hang, job

START_S = 600.0  # the policy's startTimeout


def test_after_a_restart_inside_the_first_iteration_may_take_as_long_as_after_a_start() -> None:
    timing = job(after_s=5.0)
    last = feed(timing)
    assert timing.relaunched(1, last + 3)
    assert timing.hang.next_deadline(Now(last + 3, 0)) == pytest.approx(last + 3 + START_S)
    assert hang(timing, last + 3 + START_S - 1) is None
    signal = hang(timing, last + 3 + START_S)
    assert signal is not None
    assert "the launcher inside its pods has started it again (once in this run)" in signal.sentence
    assert signal.value == pytest.approx(3 + START_S)  # since the last iteration


def test_with_the_iterations_the_usual_allowance_is_back() -> None:
    timing = job(after_s=5.0)
    timing.relaunched(1, feed(timing) + 3)
    last = feed(timing, count=1, first=20, start_s=100)
    assert hang(timing, last + 4) is None
    signal = hang(timing, last + 5)
    assert signal is not None
    assert "launcher" not in signal.sentence


def test_by_default_the_first_iterations_after_it_may_compile() -> None:
    timing = job()
    timing.relaunched(1, feed(timing) + 3)
    last = feed(timing, count=2, start_s=100)
    assert timing.hang.next_deadline(Now(last, 0)) == pytest.approx(last + START_S)
    last = feed(timing, count=4, first=3, start_s=last)
    assert timing.hang.next_deadline(Now(last, 0)) == pytest.approx(last + 3 * 75.5)  # its longest pause


def test_restarts_one_after_the_other_get_no_more_time_than_one() -> None:
    timing = job(after_s=5.0)
    last = feed(timing)
    for restart in range(1, 8):
        assert timing.relaunched(restart, last + 90 * restart)
    signal = hang(timing, last + 90 + START_S)
    assert signal is not None
    assert "7 times in this run" in signal.sentence


def test_one_after_new_iterations_gets_its_own_time() -> None:
    timing = job(after_s=5.0)
    timing.relaunched(1, feed(timing) + 3)
    last = feed(timing, start_s=100)
    timing.relaunched(2, last + 3)
    assert hang(timing, last + 3 + START_S - 1) is None
    assert hang(timing, last + 3 + START_S) is not None


def test_what_is_told_twice_or_of_several_pods_counts_once_and_a_new_incarnation_begins_anew() -> None:
    timing = job(2)
    feed(timing, 0)
    last = feed(timing, 1)
    assert timing.relaunched(1, last + 3)
    assert not timing.relaunched(1, last + 4)  # the other pod's
    assert not timing.relaunched(1, last + 9)
    assert timing.hang.relaunches.count == 1
    timing.start(2, 2, Now(last + 20, 0))
    assert timing.hang.relaunches.count == 0


def test_of_a_job_that_never_stepped_the_usual_time_of_the_start_holds() -> None:
    timing = job(after_s=5.0, baseline_ms=500.0)
    empty(timing, 0)
    timing.relaunched(1, 300.0)
    assert hang(timing, START_S - 1) is None
    assert hang(timing, START_S) is not None
