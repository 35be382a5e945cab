"""Hangs: what is one, what is none, and whose it is."""

import pytest
from msgspec import structs

from sentinel.core.model import Budget, Failure, Symptom
from sentinel.core.now import Now
from sentinel.core.policy_model import Hang, Policy
from sentinel.core.reports import Iteration, LogMatch, RankReport
from sentinel.core.timing.job_timing import JobTiming, TimingSignal


def job(size: int = 1, after_s: float | None = None, **given: object) -> JobTiming:
    timing = JobTiming(Policy(hang=Hang(after_s=after_s)), size, **given)  # type: ignore[arg-type]
    timing.start(1, size, Now(0.0, 0.0))
    return timing


def feed(
    timing: JobTiming,
    rank: int = 0,
    *,
    count: int = 50,
    first: int = 1,
    start_s: float = 0.0,
    every_s: float = 0.5,
    incarnation: int = 1,
    caught_up: bool = True,
    problem: str = "",
) -> float:
    """`count` iterations, one each `every_s`; returns when the last one came."""
    its = [Iteration(start_s + every_s * (k + 1), first + k, None, 1000 * every_s) for k in range(count)]
    for iteration in its:
        timing.fold(
            RankReport(
                job="j",
                incarnation=incarnation,
                rank=rank,
                iterations=[iteration],
                caught_up=caught_up,
                log_problem=problem,
            )
        )
    return its[-1].at_s


def empty(timing: JobTiming, rank: int, incarnation: int = 1, caught_up: bool = True) -> None:
    timing.fold(RankReport(job="j", incarnation=incarnation, rank=rank, caught_up=caught_up))


def hang(timing: JobTiming, at_s: float) -> TimingSignal | None:
    timing.hang.note(Now(at_s, 0))
    return next((s for s in timing.signals(Now(at_s, 0)) if s.symptom is Symptom.HANG), None)


def says(name: str, at_s: float, rank: int = 0) -> LogMatch:
    return LogMatch(rule=name, failure=f"activity:{name}", rank=rank, incarnation=1, at_s=at_s)


def test_the_fastest_setting_tells_a_hang_after_one_second_and_asks_to_be_polled_then() -> None:
    timing = job(after_s=1.0)
    last = feed(timing)
    assert timing.hang.next_deadline(Now(last, 0)) == pytest.approx(last + 1.0)
    assert hang(timing, last + 0.99) is None
    signal = hang(timing, last + 1.0)
    assert signal is not None
    assert (signal.key, signal.rank) == ("hang", 0)
    assert timing.hang.next_deadline(Now(last + 1.0, 0)) is None


def test_by_default_the_allowance_adapts_to_the_time_stepped_the_step_and_the_longest_pause() -> None:
    short = job()
    assert short.hang.next_deadline(Now(feed(short), 0)) == pytest.approx(25 + 120)
    long = job()
    assert long.hang.next_deadline(Now(feed(long, count=2000), 0)) == pytest.approx(1000 + 300)
    slow_steps = job()
    assert slow_steps.hang.next_deadline(Now(feed(slow_steps, count=40, every_s=60), 0)) == pytest.approx(
        2400 + 600
    )
    pauses = job()
    last = feed(pauses, count=20, start_s=feed(pauses) + 200)
    assert pauses.hang.next_deadline(Now(last, 0)) == pytest.approx(last + 3 * 200.5)


def test_the_first_iterations_may_take_as_long_as_the_start() -> None:
    timing = job()
    last = feed(timing, count=3)
    assert timing.hang.next_deadline(Now(last, 0)) == pytest.approx(last + 600)


@pytest.mark.parametrize("after_s", [None, 60.0])
def test_a_start_may_take_half_as_long_again_as_the_longest_that_the_job_has_come_through(
    after_s: float | None,
) -> None:
    timing = job(2, after_s=after_s, baseline_ms=100.0)
    feed(timing, 1, start_s=2399.5)
    last = feed(timing, 0, start_s=1000.0)
    timing.start(2, 2, Now(3000, 0))
    for rank in (0, 1):
        empty(timing, rank, incarnation=2)
    assert hang(timing, last + 1500) is None
    assert hang(timing, 3000 + 1.5 * 2400 - 1) is None
    assert hang(timing, 3000 + 1.5 * 2400) is not None
    again = job(2, after_s=after_s, baseline_ms=100.0, longest_start_s=timing.hang.longest_start_s)
    for rank in (0, 1):
        empty(again, rank)
    assert again.hang.next_deadline(Now(0, 0)) == pytest.approx(3600), "a successor knows it from the record"


@pytest.mark.parametrize("iterates", [True, False])
def test_a_job_whose_machine_has_slept_has_its_whole_time_again(iterates: bool) -> None:
    timing = job(after_s=700.0, baseline_ms=100.0)
    last = feed(timing) if iterates else 0.0
    empty(timing, 0)

    def told(at_s: float, slept_s: float) -> bool:
        now = Now(at_s, 0, slept_s)
        timing.hang.note(now)
        return bool(timing.signals(now))

    assert not told(last + 100, 7000.0), "it had slept before this job was started"
    assert not told(last + 30_000, 7000.0 + 29_800)
    assert not told(last + 30_599, 7000.0 + 29_800)
    assert told(last + 30_700, 7000.0 + 29_800.5)


def test_one_odd_pause_does_not_blind_the_watch() -> None:
    timing = job()
    last = feed(timing, count=20, start_s=feed(timing) + 3000)
    assert timing.hang.next_deadline(Now(last, 0)) == pytest.approx(last + 1.5 * 3000.5)


def test_a_log_that_is_not_read_to_its_end_is_never_a_hang() -> None:
    timing = job(2, after_s=1.0)
    feed(timing, 0)
    assert hang(timing, 500) is None, "rank 1 was never reported"
    empty(timing, 1, caught_up=False)
    assert hang(timing, 500) is None
    assert timing.hang.next_deadline(Now(30, 0)) is None
    empty(timing, 1)
    assert hang(timing, 500) is not None


def test_a_log_that_vanished_is_never_a_hang() -> None:
    timing = job(after_s=1.0)
    feed(timing, problem="vanished")
    assert hang(timing, 500) is None


def test_the_rank_that_stopped_first_is_named_and_those_that_wait_for_it_are_not() -> None:
    timing = job(4, after_s=5.0)
    for rank in range(4):
        feed(timing, rank, count=50 if rank == 2 else 51)
    signal = hang(timing, 60)
    assert signal is not None
    assert signal.rank == 2
    assert signal.sentence.startswith("Rank 2 has made no iteration for")
    assert "after iteration 50" in signal.sentence
    assert any("others reached 51" in line for line in signal.evidence)


def counted(timing: JobTiming, rank: int, count: int) -> None:
    """Of a log that names no steps."""
    for k in range(count):
        its = [Iteration(0.5 * (k + 1), None, None, 500.0)]
        timing.fold(RankReport(job="j", incarnation=1, rank=rank, iterations=its, caught_up=True))


def test_iterations_that_a_log_does_not_name_are_told_as_so_many() -> None:
    timing = job(4, after_s=5.0)
    for rank in range(4):
        counted(timing, rank, count=50 if rank == 2 else 51)
    signal = hang(timing, 60)
    assert signal is not None
    assert signal.rank == 2
    assert signal.sentence.endswith("after 50 iterations.")
    assert "rank 2 stopped after 50 iterations, others reached 51" in signal.evidence
    assert "rank 0: 51 iterations since its start" in signal.evidence


def test_a_rank_that_names_no_steps_is_not_behind_those_that_do() -> None:
    """A job that was resumed at step 5,000: the other ranks count anew."""
    timing = job(2, after_s=5.0)
    feed(timing, 0, first=5001)
    counted(timing, 1, count=50)
    signal = hang(timing, 60)
    assert signal is not None
    assert signal.rank is None
    assert signal.sentence.endswith("after iteration 5050.")
    assert any("do not all name their iterations" in line for line in signal.evidence)


def test_of_a_lone_program_it_is_the_job_that_hangs_and_no_rank() -> None:
    timing = job(after_s=5.0)
    feed(timing, count=50)
    signal = hang(timing, 60)
    assert signal is not None
    assert signal.rank == 0
    assert signal.sentence.startswith("The job has made no iteration for")


def test_at_equal_steps_the_rank_that_fell_silent_clearly_earlier_is_named() -> None:
    timing = job(3, after_s=5.0)
    for rank in range(3):
        feed(timing, rank, start_s=0.0 if rank == 1 else 3.0)
    signal = hang(timing, 60)
    assert signal is not None
    assert signal.rank == 1


def test_at_equal_steps_and_times_no_rank_is_blamed() -> None:
    timing = job(3, after_s=5.0)
    for rank in range(3):
        feed(timing, rank, start_s=0.02 * rank)
    signal = hang(timing, 60)
    assert signal is not None
    assert signal.rank is None
    assert any("do not tell which" in line for line in signal.evidence)


def test_when_only_one_rank_prints_it_is_not_blamed() -> None:
    timing = job(2, after_s=5.0)
    feed(timing, 0)
    empty(timing, 1)
    signal = hang(timing, 60)
    assert signal is not None
    assert signal.rank is None
    assert any("only rank 0 prints" in line for line in signal.evidence)


@pytest.mark.parametrize(("state", "words"), [("T", "stopped by a signal"), ("D", "stuck in the kernel")])
def test_a_stopped_or_stuck_process_is_named_whatever_the_logs_say(state: str, words: str) -> None:
    timing = job(3, after_s=5.0)
    for rank in range(3):
        feed(timing, rank)
        timing.hang.liveness.states[rank] = state if rank == 1 else "R"
    signal = hang(timing, 60)
    assert signal is not None
    assert signal.rank == 1
    assert any(words in line for line in signal.evidence)


def test_a_rank_that_logs_every_tenth_step_is_not_behind() -> None:
    timing = job(2, after_s=30.0)
    feed(timing, 0, count=97, every_s=1)
    its = [Iteration(10.0 * k, 10 * k, None, 1000.0) for k in range(1, 10)]
    timing.fold(RankReport(job="j", incarnation=1, rank=1, iterations=its))
    signal = hang(timing, 200)
    assert signal is not None
    assert signal.rank != 1 or not any("others reached" in line for line in signal.evidence)


def test_a_rank_that_stops_while_the_others_go_on_is_told() -> None:
    timing = job(3, after_s=5.0)
    for rank in range(3):
        feed(timing, rank, count=10 if rank == 1 else 100)
    signal = hang(timing, 50.1)
    assert signal is not None
    assert signal.rank == 1


@pytest.mark.parametrize("name", ["saving", "evaluating", "compiling", "loading"])
def test_an_announced_pause_is_no_hang_for_a_bounded_time(name: str) -> None:
    timing = job(after_s=2.0)
    last = feed(timing)
    timing.activity(says(name, last))
    assert hang(timing, last + 300) is None
    assert timing.stepping(Now(last + 300, 0))
    deadline = timing.hang.next_deadline(Now(last + 300, 0))
    assert deadline is not None
    assert hang(timing, deadline - 0.1) is None
    signal = hang(timing, deadline)
    assert signal is not None
    assert name in signal.sentence


def test_a_save_may_take_three_times_as_long_as_the_longest_seen() -> None:
    timing = job(after_s=2.0)
    last = feed(timing)
    timing.activity(says("saving", last))
    timing.activity(says("saved", last + 500))
    last = feed(timing, first=51, start_s=last + 500)
    timing.activity(says("saving", last))
    assert hang(timing, last + 1499) is None
    assert hang(timing, last + 1501) is not None


def test_after_the_save_is_done_or_iterations_go_on_silence_counts_again() -> None:
    timing = job(after_s=2.0)
    last = feed(timing)
    timing.activity(says("saving", last))
    timing.activity(says("saved", last + 100))
    assert hang(timing, last + 101) is None
    assert hang(timing, last + 102) is not None
    asynchronous = job(after_s=2.0)
    last = feed(asynchronous)
    asynchronous.activity(says("saving", last))
    last = feed(asynchronous, first=51, start_s=last)
    assert hang(asynchronous, last + 2) is not None


def test_a_marker_that_is_read_late_vetoes_nothing() -> None:
    timing = job(after_s=2.0)
    last = feed(timing)
    timing.activity(says("saving", last - 10))
    assert hang(timing, last + 2) is not None


def test_a_pause_that_iterations_follow_in_the_same_read_is_over_and_one_that_comes_last_is_not() -> None:
    for outrun in (True, False):
        timing = job(after_s=2.0)
        last = feed(timing)
        timing.activity(structs.replace(says("saving", last), outrun=outrun))
        assert (hang(timing, last + 2) is not None) == outrun


def test_before_the_first_iteration_only_a_job_known_to_log_iterations_can_hang() -> None:
    unknown = job()
    empty(unknown, 0)
    assert hang(unknown, 100_000) is None
    known = job(baseline_ms=100.0)
    empty(known, 0)
    assert hang(known, 599) is None
    assert known.hang.next_deadline(Now(0, 0)) == 600
    assert hang(known, 600) is not None


def test_the_second_start_of_a_job_that_logged_iterations_has_the_start_allowance() -> None:
    timing = job(after_s=1.0)
    feed(timing)
    timing.start(2, 1, Now(1000.0, 0))
    empty(timing, 0, incarnation=2)
    assert hang(timing, 1500) is None
    assert hang(timing, 1600) is not None


def test_compiling_prolongs_the_start() -> None:
    timing = job(baseline_ms=100.0)
    empty(timing, 0)
    timing.activity(says("compiling", 10))
    assert hang(timing, 1500) is None
    assert hang(timing, 2500) is not None


def test_ranks_that_end_at_different_times_are_no_hang() -> None:
    timing = job(3, after_s=1.0)
    last = [feed(timing, rank, count=40 + rank) for rank in range(3)]
    for rank in range(3):
        timing.hang.exited.add(rank)
        assert hang(timing, last[2] + 60) is None
    assert timing.hang.next_deadline(Now(last[2], 0)) is None


def test_a_rank_that_never_ends_after_the_others_did_is_told_in_the_end() -> None:
    timing = job(2, after_s=1.0)
    last = feed(timing, 0)
    feed(timing, 1)
    timing.hang.exited.add(0)
    assert hang(timing, last + 599) is None
    signal = hang(timing, last + 600)
    assert signal is not None
    assert signal.rank == 1


def test_a_rank_that_hung_while_the_others_went_on_to_their_end_is_told_as_soon_as_it_is_looked_at() -> None:
    timing = job(2, after_s=5.0)
    stopped = feed(timing, 1, count=20)
    last = feed(timing, 0, count=20 + 10)
    timing.hang.exited.add(0)
    signal = hang(timing, last + 0.5)
    assert signal is not None
    assert signal.rank == 1
    assert last - stopped == 5.0
    timing = job(2, after_s=5.0)
    stopped = feed(timing, 1, count=20)
    last = feed(timing, 0, count=20 + 9)
    timing.hang.exited.add(0)
    assert hang(timing, last + 599 - (last - stopped)) is None, "it may have been about to save"


@pytest.mark.parametrize(
    ("state", "told"), [("T", True), ("t", False), ("D", False), ("S", False), ("", False)]
)
def test_a_rank_that_a_signal_has_stopped_saves_no_last_checkpoint(state: str, told: bool) -> None:
    """A new agent reads its log only after the others have ended: all that it tells is as of then."""
    timing = job(2, after_s=5.0)
    last = feed(timing, 0)
    timing.hang.exited.add(0)
    read = feed(timing, 1, start_s=last + 3.0, count=20, every_s=0.0)
    timing.hang.liveness.states[1] = state
    assert hang(timing, read + 4.9) is None
    assert (hang(timing, read + 5.0) is not None) is told
    assert hang(timing, read + 600.0) is not None


def hung_at(step: int | None, failure: str = "hang") -> Failure:
    return Failure(wall_s=0.0, run_s=0.0, failure=failure, budget=Budget.JOB, step=step)


@pytest.mark.parametrize("after_s", [None, 60.0])
def test_silence_at_the_same_place_after_a_restart_is_given_twice_the_time(after_s: float | None) -> None:
    timing, allowed_s = job(after_s=after_s), after_s or 120.0
    last = feed(timing)
    assert hang(timing, last + allowed_s) is not None
    timing.hang.failures = [hung_at(50)]
    timing.start(2, 1, Now(1000, 0))
    last = feed(timing, start_s=1000, incarnation=2)
    assert hang(timing, last + allowed_s + 1) is None
    assert hang(timing, last + 2 * allowed_s) is not None
    timing.hang.failures = [hung_at(50), hung_at(51)]
    timing.start(3, 1, Now(2000, 0))
    last = feed(timing, start_s=2000, incarnation=3)
    assert hang(timing, last + 3.9 * allowed_s) is None, "one step on or back is the same place"
    last = feed(timing, start_s=last, first=51, count=30, incarnation=3)
    assert hang(timing, last + allowed_s + 1) is not None, "it came further: no doubt any more"


def test_patience_ends_at_an_hour_and_with_any_other_failure() -> None:
    timing = job(after_s=1800.0)
    timing.hang.failures = [hung_at(3)]
    last = feed(timing)
    assert hang(timing, last + 1800) is not None, "it came further"
    timing.hang.failures = [hung_at(49)] * 3
    assert hang(timing, last + 3599) is None
    assert hang(timing, last + 3600) is not None
    other = job(after_s=60.0)
    other.hang.failures = [hung_at(49), hung_at(49, "user-exit")]
    assert hang(other, feed(other) + 60) is not None, "something else went wrong since"


def gets_on(timing: JobTiming, at_s: float, rank: int = 0) -> None:
    timing.fold(RankReport(job="j", incarnation=1, rank=rank, alive_s=at_s))


@pytest.mark.parametrize("after_s", [None, 60.0])
def test_a_log_that_tells_of_other_progress_is_no_hang_and_its_silence_after_that_is(
    after_s: float | None,
) -> None:
    timing = job(size=2, after_s=after_s)
    last = max(feed(timing, rank) for rank in (0, 1))
    allowed_s = after_s or 120.0
    at_s = last
    while at_s < last + 3600.0:
        at_s += allowed_s - 10.0
        gets_on(timing, at_s)  # only one rank draws the bar of an evaluation
        assert hang(timing, at_s + allowed_s - 11.0) is None
    deadline_s = timing.hang.next_deadline(Now(at_s, 0))
    assert deadline_s == pytest.approx(at_s + allowed_s)
    assert hang(timing, at_s + allowed_s + 1.0) is not None


def test_what_a_silent_job_does_is_told_in_the_words_of_its_log() -> None:
    timing = job(size=2)
    last = max(feed(timing, rank) for rank in (0, 1))
    bar = RankReport(job="j", incarnation=1, rank=0, alive_s=last + 20, alive_line="Evaluating: 34/200")
    timing.fold(bar)
    assert timing.hang.phase(Now(last + 20, 0)) == ""
    told = "No iteration for 4 min: it is evaluating; its log went on 3 min ago: Evaluating: 34/200"
    assert timing.hang.phase(Now(last + 220, 0)) == told
    timing.activity(says("evaluating", last + 230))
    assert "its log announced 10 s ago that it is evaluating; its log went on" in timing.hang.phase(
        Now(last + 240, 0)
    )
    feed(timing, first=51, start_s=last + 250)
    assert timing.hang.phase(Now(last + 600, 0)) == "", "of what was before it nothing is said"
    timing.start(2, 2, Now(5000.0, 0))
    assert timing.hang.phase(Now(5100.0, 0)) == ""


def test_progress_of_the_incarnation_before_excuses_nothing() -> None:
    timing = job(after_s=60.0)
    feed(timing)
    gets_on(timing, 5000.0)
    timing.start(2, 1, Now(100.0, 0.0))
    last = feed(timing, start_s=100.0, incarnation=2)
    assert hang(timing, last + 61.0) is not None


def test_a_job_that_could_be_loading_for_long_is_not_hung_at_its_start() -> None:
    timing = job()
    feed(timing)
    timing.start(2, 1, Now(1000.0, 0.0))
    timing.fold(RankReport(job="j", incarnation=2, rank=0, alive_s=1500.0))
    assert hang(timing, 1000.0 + 601.0) is None
    assert hang(timing, 1500.0 + 601.0) is not None


def test_io_and_gpu_use_only_raise_confidence() -> None:
    timing = job(2, after_s=5.0)
    for rank in range(2):
        feed(timing, rank)
        for k in range(4):
            timing.hang.liveness.observe_io(rank, 1000 if rank == 0 else 1000 + k, 26.0 + k)
            timing.hang.liveness.observe_gpu(rank, 1.0, 26.0 + k)
    assert hang(timing, 29.0) is None
    signal = hang(timing, 31.0)
    assert signal is not None
    assert "no I/O by rank 0" in signal.confidence
    assert "rank 1 still did I/O" in signal.confidence
    assert "GPU use of ranks 0, 1 does not vary" in signal.confidence


def test_a_job_counts_as_stepping_only_while_iterations_come() -> None:
    timing = job()
    assert not timing.stepping(Now(0, 0))
    last = feed(timing)
    assert timing.stepping(Now(last + 5, 0))
    assert not timing.stepping(Now(last + 30, 0))
    gets_on(timing, last + 29)
    assert timing.stepping(Now(last + 30, 0)), "it evaluates"
    fast = job(after_s=1.0)
    assert not fast.stepping(Now(feed(fast) + 2, 0))


def test_who_tells_an_iteration_in_an_hour_is_not_hung_while_the_second_is_awaited() -> None:
    """Epochs, or a line each thousand steps: nothing but the time to the first one says how far they are apart."""
    timing = job()
    first = feed(timing, count=1, every_s=3600.0)
    assert hang(timing, first + 3700) is None
    second = feed(timing, count=1, first=2, start_s=first, every_s=3600.0)
    assert hang(timing, second + 3700) is None
    assert hang(timing, second + 5500) is not None
