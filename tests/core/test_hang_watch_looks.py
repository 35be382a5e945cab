"""By default a silent job is looked at, and only one that stands still is called hung."""

from collections.abc import Collection

import pytest
from msgspec import structs

from sentinel.core.now import Now
from sentinel.core.reports import RankReport, Worker
from sentinel.core.stacks.stillness import Looks
from sentinel.core.timing.job_timing import JobTiming
from tests.core.test_timing_hang import empty, feed, hang, hung_at, job

STILL = (
    "rank 0: pid 7 (S in futex_do_wait), CPU 1.00 s (main thread 1.00 s), helpers' CPU 0.00 s, "
    "I/O 10 bytes, 5 sleeps (9 of all threads)\n"
    'Thread 7 (idle): "MainThread"\n    barrier (torch/distributed/distributed_c10d.py:1)\n    main (train.py:12)'
)
MOVES = STILL.replace("barrier (torch/distributed/distributed_c10d.py:1)", "forward (model.py:{look})")


def watched(after_s: float | None = None, size: int = 1) -> JobTiming:
    timing = job(size, after_s)
    timing.hang.looks = Looks()
    return timing


def look(timing: JobTiming, until_s: float, *texts: str, takes_s: float = 0.0) -> list[float]:
    """Looks whenever one is due, as the controller does; the times. `texts`: of each rank, one that stands still."""
    made: list[float] = []
    at_s = timing.last_at_s or 0.0
    while at_s <= until_s:
        if timing.hang.look_due(Now(at_s, 0)):
            told = [text.format(look=len(made), at=int(at_s)) for text in texts or (STILL,)]
            made.append(at_s)
            at_s += takes_s
            timing.hang.looked(told, Now(at_s, 0))
        at_s += 0.25
    return made


def test_by_default_a_silence_is_a_hang_when_looks_over_it_have_found_that_nothing_moves() -> None:
    timing = watched()
    last = feed(timing)  # allowed: 120 s
    assert timing.hang.next_deadline(Now(last, 0)) == pytest.approx(last + 42)
    assert look(timing, last + 119.9) == pytest.approx([last + after_s for after_s in (42, 62, 82, 102, 114)])
    assert hang(timing, last + 119.9) is None
    signal = hang(timing, last + 120)
    assert signal is not None
    assert signal.doubt == ""
    assert signal.evidence[-1] == "5 looks at the stacks of rank 0: none has moved"


def test_looks_that_take_their_time_do_not_make_a_hang_later() -> None:
    timing = watched()
    last = feed(timing)
    look(timing, last + 120, takes_s=3.0)
    signal = hang(timing, last + 121)
    assert signal is not None
    assert signal.doubt == ""


def test_one_that_moved_once_since_looks_began_is_waited_for() -> None:
    timing = watched()
    last = feed(timing)
    look(timing, last + 43, MOVES)
    look(timing, last + 133)
    assert hang(timing, last + 133) is None
    look(timing, last + 135)
    assert hang(timing, last + 135) is not None


def test_one_that_fell_silent_a_moment_after_the_others_is_looked_at_with_them() -> None:
    timing = watched(size=2)
    last = feed(timing)
    feed(timing, 1, start_s=1.0)
    look(timing, last + 121, STILL, STILL.replace("rank 0: pid 7", "rank 1: pid 8"))
    signal = hang(timing, last + 121)
    assert signal is not None
    assert signal.doubt == ""


def test_who_stood_still_only_at_the_end_of_its_time_is_waited_for() -> None:
    timing = watched()
    last = feed(timing)
    look(timing, last + 70, MOVES)
    look(timing, last + 125)
    assert hang(timing, last + 125) is None
    look(timing, last + 160)
    assert hang(timing, last + 160) is not None


def test_a_pause_that_is_a_habit_of_the_job_is_not_looked_at() -> None:
    timing = watched()
    last = feed(timing)
    looked = [last + 42, last + 62, last + 82]
    for _ in range(3):
        assert look(timing, last + 100) == looked
        looked = []
        last = feed(timing, first=(timing.ranks[0].last_step or 0) + 1, start_s=last + 100)


def test_without_a_look_silence_alone_is_told_late_and_in_doubt() -> None:
    timing = watched()
    last = feed(timing)
    assert hang(timing, last + 1799) is None
    signal = hang(timing, last + 1801)
    assert signal is not None
    assert signal.doubt == "nobody could look where its ranks stand"


def test_a_silent_evaluation_is_told_in_doubt_and_a_hang_that_follows_it_is_proved() -> None:
    timing = watched()
    last = feed(timing)
    made = look(timing, last + 1500, MOVES)
    assert len(made) < 40  # each costs something: less and less often
    assert hang(timing, last + 1500) is None
    look(timing, last + 1810, MOVES)
    told = hang(timing, last + 1810)
    assert told is not None
    assert told.doubt.startswith("rank 0 moves: it stood in forward (model.py:")
    look(timing, last + 2400)  # now it stands
    proved = hang(timing, last + 2400)
    assert proved is not None
    assert proved.doubt == ""
    feed(timing, first=51, count=5, start_s=last + 2400)
    assert hang(timing, last + 2405) is None


def test_looks_of_the_silence_before_say_nothing_of_this_one() -> None:
    timing = watched()
    last = feed(timing)
    look(timing, last + 110)
    last = feed(timing, first=51, count=5, start_s=last + 115)
    assert look(timing, last + 10) == []
    assert hang(timing, last + 180) is None


def test_an_old_look_says_nothing_of_now() -> None:
    timing = watched()
    last = feed(timing)
    look(timing, last + 120)
    assert hang(timing, last + 130) is not None
    assert hang(timing, last + 400) is None


def test_who_names_a_time_asks_for_no_look() -> None:
    timing = watched(after_s=10.0)
    last = feed(timing)
    assert look(timing, last + 20) == []
    signal = hang(timing, last + 10)
    assert signal is not None
    assert signal.doubt == ""


def test_a_rank_that_a_signal_has_stopped_needs_no_look() -> None:
    timing = watched(size=2)
    last = max(feed(timing, rank) for rank in (0, 1))
    timing.hang.liveness.states |= {0: "T", 1: "S"}
    assert look(timing, last + 119) == []
    signal = hang(timing, last + 120)
    assert signal is not None
    assert signal.doubt == ""


def test_a_job_all_of_whose_processes_a_signal_has_stopped_is_left_alone_and_told_of_late() -> None:
    """A scheduler suspends jobs so."""
    for size in (1, 2):
        timing = watched(size=size)
        last = max(feed(timing, rank) for rank in range(size))
        timing.hang.liveness.states |= dict.fromkeys(range(size), "T")
        assert hang(timing, last + 1799) is None
        assert timing.hang.next_deadline(Now(last + 1799, 0)) == pytest.approx(last + 1800)
        signal = hang(timing, last + 1801)
        assert signal is not None
        assert "SIGCONT" in signal.doubt
    timing = watched(10.0)
    last = feed(timing)
    timing.hang.liveness.states[0] = "T"
    signal = hang(timing, last + 120)
    assert signal is not None
    assert signal.doubt == ""


def test_a_job_that_goes_on_after_it_was_suspended_has_its_whole_time_again() -> None:
    timing = watched()
    last = feed(timing)
    assert look(timing, last + 60) == [last + 42]
    timing.hang.liveness.states[0] = "T"
    assert hang(timing, last + 600) is None
    timing.hang.liveness.states[0] = "S"
    assert hang(timing, last + 602) is None
    timing.hang.looked([STILL.format(look=9, at=9)], Now(last + 602, 0))
    for after_s in (602, 700, 720):
        assert hang(timing, last + after_s) is None
    look(timing, last + 722)
    assert hang(timing, last + 723) is not None, "it hangs"


def test_looks_between_which_nobody_was_there_to_look_prove_nothing() -> None:
    """Sentinel was suspended with its job."""
    timing = watched()
    last = feed(timing)
    assert look(timing, last + 60) == [last + 42]
    timing.hang.looked([STILL.format(look=9, at=9)], Now(last + 7200, 0))
    signal = hang(timing, last + 7200)
    assert signal is not None
    assert signal.doubt != ""


def test_of_a_launcher_all_of_whose_ranks_are_stopped_the_others_count_too() -> None:
    timing = watched(size=2)
    last = max(feed(timing, rank) for rank in (0, 1))
    below = tuple(Worker(number=k, pid=100 + k, state="T") for k in (0, 1))
    timing.hang.workers.fold(0, below)
    timing.hang.liveness.states |= {0: "S", 1: "S"}
    signal = hang(timing, last + 120)
    assert signal is not None
    assert signal.doubt == ""
    timing.hang.liveness.states[1] = "T"
    assert hang(timing, last + 121) is None


def test_a_start_without_iterations_is_looked_at_too() -> None:
    timing = watched()
    feed(timing)
    timing.start(2, 1, Now(100.0, 0))
    empty(timing, 0, incarnation=2)
    assert look(timing, 690) == pytest.approx([310, 410, 510, 610, 670])
    assert hang(timing, 699) is None
    assert hang(timing, 700) is not None


def test_a_hang_that_was_told_in_doubt_does_not_make_the_next_silence_longer() -> None:
    timing = watched()
    last = feed(timing)
    assert hang(timing, last + 1801) is not None
    timing.start(2, 1, Now(2000.0, 0))
    last = feed(timing, start_s=2000.0, incarnation=2)
    assert timing.hang.next_deadline(Now(last, 0)) == pytest.approx(last + 42)


def test_of_several_ranks_those_that_go_on_need_not_stand_still() -> None:
    timing = watched(size=2)
    last = feed(timing)
    feed(timing, 1)
    for _ in range(13):  # rank 1 goes on, and its stack moves
        feed(timing, 1, first=(timing.ranks[1].last_step or 0) + 1, count=20, start_s=timing.last_at_s or 0.0)
        at_s = timing.last_at_s or 0.0
        if timing.hang.look_due(Now(at_s, 0)):
            timing.hang.looked([STILL, MOVES.replace("rank 0", "rank 1").format(look=at_s)], Now(at_s, 0))
    signal = hang(timing, last + 130)
    assert signal is not None
    assert (signal.rank, signal.doubt) == (0, "")


def test_of_two_ranks_that_print_seldom_the_one_that_hangs_is_found_though_the_other_goes_on() -> None:
    timing = watched(size=2)
    last = 0.0
    for step in range(1, 10):
        for rank in (0, 1):
            last = feed(timing, rank, first=step, count=1, start_s=100.0 * step)
    for at_s in range(int(last), int(last) + 1000):
        if at_s % 100 == 99:
            feed(timing, 1, first=(timing.ranks[1].last_step or 0) + 1, count=1, start_s=float(at_s))
        if timing.hang.look_due(Now(at_s, 0)):
            texts = [STILL, MOVES.replace("rank 0", "rank 1").format(look=at_s)]
            timing.hang.looked(texts, Now(at_s, 0))
        if (signal := hang(timing, float(at_s))) is not None:
            break
    assert signal is not None
    assert (signal.rank, signal.doubt) == (0, "")
    assert at_s - last < 400


def unread(after_s: float | None) -> JobTiming:
    """Its log was read to its end, and tells of no iteration."""
    timing = watched(after_s)
    empty(timing, 0)
    return timing


def printed(after_s: float) -> JobTiming:
    """It has said something after 5 s."""
    timing = unread(after_s)
    timing.fold(RankReport(job="j", incarnation=1, rank=0, alive_s=5.0))
    return timing


def test_where_no_iteration_is_seen_a_time_of_the_owners_counts_from_what_the_log_tells_and_looks_prove_it() -> (
    None
):
    timing = unread(60.0)
    timing.fold(RankReport(job="j", incarnation=1, rank=0, alive_s=700.0))
    assert timing.hang.next_deadline(Now(700, 0)) == pytest.approx(721)
    assert look(timing, 759) == pytest.approx([721, 731, 741, 751, 757])
    assert hang(timing, 759) is None
    signal = hang(timing, 760)
    assert signal is not None
    assert (signal.sentence, signal.doubt) == ("The job has told of no progress for 1 min.", "")
    assert signal.evidence[-1] == "5 looks at the stacks of rank 0: none has moved"


def test_before_its_first_output_it_has_the_time_of_its_start() -> None:
    assert unread(60.0).hang.next_deadline(Now(0, 0)) == pytest.approx(600 - 60 + 21)


def test_once_it_has_printed_it_is_hung_when_it_stands_still_for_the_owners_time_also_at_its_start() -> None:
    timing = printed(60.0)
    assert look(timing, 64) == pytest.approx([26, 36, 46, 56, 62])
    assert hang(timing, 64) is None
    signal = hang(timing, 65)
    assert signal is not None
    assert signal.doubt == ""


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ("CPU 1.00 s (main thread 1.00 s)", "CPU {at}.00 s (main thread {at}.00 s)"),
        ("helpers' CPU 0.00 s", "helpers' CPU {at}.00 s"),
        ("I/O 10 bytes", "I/O {at}0000000 bytes"),
    ],
)
def test_one_that_loads_in_silence_at_its_start_uses_cpu_or_reads_and_is_left_alone(
    was: str, becomes: str
) -> None:
    timing = printed(60.0)
    text = STILL.replace("barrier (torch/distributed/distributed_c10d.py:1)", "load (model.py:7)")
    assert was in text
    assert look(timing, 900, text.replace(was, becomes))
    assert hang(timing, 900) is None


def test_one_that_moves_is_told_in_doubt_only() -> None:
    timing = unread(60.0)
    look(timing, 2000, MOVES)
    assert hang(timing, 2000) is None
    look(timing, 2500, MOVES)
    signal = hang(timing, 2500)
    assert signal is not None
    assert signal.doubt


def test_without_a_time_of_the_owners_nothing_is_judged_where_no_iteration_is_seen() -> None:
    timing = unread(None)
    assert look(timing, 4000) == []
    assert hang(timing, 4000) is None


def test_a_time_of_the_owners_is_no_proof_where_what_is_told_may_be_no_iterations() -> None:
    timing = watched(after_s=60.0)
    last = feed(timing)
    timing.fold(RankReport(job="j", incarnation=1, rank=0, unsure=True))
    assert hang(timing, last + 100) is None
    assert look(timing, last + 100)
    assert hang(timing, last + 100) is not None


EVALUATES = STILL.replace("main (train.py:12)", "evaluate (train.py:40)")


def test_a_rank_that_stands_in_an_evaluation_is_given_half_an_hour_and_no_more() -> None:
    timing = watched()
    last = feed(timing)
    look(timing, last + 1799, EVALUATES)
    assert hang(timing, last + 1799) is None
    look(timing, last + 1800, EVALUATES)
    signal = hang(timing, last + 1800)
    assert signal is not None
    assert signal.doubt == ""


def test_a_look_that_reads_no_stack_of_a_rank_that_stands_still_does_not_end_its_evaluation() -> None:
    timing = watched()
    last = feed(timing)
    look(timing, last + 1400, EVALUATES)
    unread = STILL.partition("\n")[0] + "\nno Python stack: timed out"
    assert look(timing, last + 1799, unread)
    assert timing.hang.looks is not None
    assert timing.hang.looks.doubt == ""
    assert hang(timing, last + 1799) is None
    assert hang(timing, last + 1800) is not None


def test_once_a_hang_was_ended_in_one_it_is_given_an_hour() -> None:
    timing = watched()
    last = feed(timing)
    timing.hang.failures = [structs.replace(hung_at(4), pause="evaluate (train.py:40)")]
    look(timing, last + 3599, EVALUATES)
    assert hang(timing, last + 3599) is None
    look(timing, last + 3600, EVALUATES)
    signal = hang(timing, last + 3600)
    assert signal is not None
    assert signal.doubt == ""


def test_in_an_evaluation_states_are_gone_through_once_for_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    timing = watched(size=50)
    last = max(feed(timing, rank) for rank in range(50))
    texts = [EVALUATES.replace("rank 0: pid 7", f"rank {rank}: pid {7 + rank}") for rank in range(50)]
    timing.hang.looked(texts, Now(last + 110, 0))
    assert timing.hang.looks is not None
    assert timing.hang.looks.pause
    asked: list[Collection[int]] = []

    def states(ranks: Collection[int]) -> list[str]:
        asked.append(ranks)
        return []

    monkeypatch.setattr(timing.hang.workers, "states", states)
    assert hang(timing, last + 130) is None
    assert timing.hang.next_deadline(Now(last + 130, 0)) is not None
    assert 0 < len(asked) < 10


@pytest.mark.parametrize("after_s", [None, 600.0])
def test_who_evaluates_is_looked_at_though_it_fell_silent_a_moment_after_the_others(
    after_s: float | None,
) -> None:
    timing = watched(after_s, size=2)
    timing.hang.failures = [structs.replace(hung_at(4), pause="evaluate (train.py:40)")]
    feed(timing, 1)
    last = feed(timing, 0, start_s=1.0)
    waits = STILL.replace("rank 0: pid 7", "rank 1: pid 8")
    assert timing.hang.looks is not None
    at_s = last
    while at_s < last + 3500:
        at_s += 0.25
        if timing.hang.look_due(Now(at_s, 0)):
            timing.hang.looked([EVALUATES, waits], Now(at_s, 0))
            assert timing.hang.looks.pause or at_s < last + 590
        assert hang(timing, at_s) is None


def test_its_longer_time_ends_with_the_evaluation() -> None:
    timing = watched()
    last = feed(timing)
    look(timing, last + 60, EVALUATES)
    last = feed(timing, first=51, start_s=last + 60)
    look(timing, last + 300)
    assert hang(timing, last + 300) is not None


def test_with_a_named_time_a_rank_that_a_signal_has_stopped_in_an_evaluation_is_not() -> None:
    timing = watched(120.0)
    last = feed(timing)
    timing.hang.failures = [structs.replace(hung_at(4), pause="evaluate (train.py:40)")]
    look(timing, last + 110, EVALUATES)
    assert hang(timing, last + 120) is None
    timing.hang.liveness.states[0] = "T"
    assert hang(timing, last + 120) is not None


def test_what_hangs_in_training_after_it_was_seen_in_an_evaluation_is_found_by_the_looks_that_follow() -> (
    None
):
    timing = watched()
    last = feed(timing)
    look(timing, last + 100, EVALUATES)
    assert look(timing, last + 2400)
    assert hang(timing, last + 2400) is not None


def test_who_names_a_time_is_asked_for_looks_once_a_hang_stood_in_an_evaluation() -> None:
    timing = watched(after_s=10.0)
    last = feed(timing)
    evaluated = hung_at(4)
    timing.hang.failures = [structs.replace(evaluated, pause="evaluate (train.py:40)")]
    assert look(timing, last + 3.5, EVALUATES) == pytest.approx([last + 3.5])
    assert hang(timing, last + 3599) is None
    assert hang(timing, last + 3600) is not None
    last = feed(timing, first=51, start_s=last + 3600)
    assert look(timing, last + 9)
    assert hang(timing, last + 10) is not None, "it does not evaluate: the time that was named, and no proof"


def test_a_look_that_comes_late_is_awaited_where_a_hang_stood_in_an_evaluation() -> None:
    timing = watched(after_s=10.0)
    last = feed(timing)
    timing.hang.failures = [structs.replace(hung_at(4), pause="evaluate (train.py:40)")]
    assert hang(timing, last + 12) is None
    timing.hang.looked([EVALUATES.format(look=0, at=0)], Now(last + 15, 0))
    assert hang(timing, last + 15) is None
    assert hang(timing, last + 3599) is None
    last = feed(timing, first=51, start_s=last + 3600)
    assert hang(timing, last + 69) is None
    assert hang(timing, last + 70) is not None, "none came"


def test_a_job_that_evaluates_before_its_first_iteration_is_given_half_an_hour_too() -> None:
    timing = unread(60.0)
    look(timing, 1799, EVALUATES)
    assert hang(timing, 1799) is None
    timing = watched()
    feed(timing)
    timing.start(2, 1, Now(100.0, 0))
    empty(timing, 0, incarnation=2)
    look(timing, 1899, EVALUATES)
    assert hang(timing, 1899) is None
    look(timing, 1900, EVALUATES)
    assert hang(timing, 1900) is not None


IN_EVALUATION = STILL.replace(
    "barrier (torch/distributed/distributed_c10d.py:1)",
    "forward (model.py:{look})\n    evaluation_loop (transformers/trainer.py:4512)",
)


def draws_a_bar(timing: JobTiming, since_s: float, until_s: float, words: str = "") -> list[float]:
    """A bar of the log goes on every 10 s, and the looks that are asked for meanwhile find an evaluation; their times,
    in seconds since `since_s`."""
    made: list[float] = []
    for done in range(int(until_s - since_s) // 10):
        at_s = since_s + 10 * (done + 1)
        line = f"{words}{done}/500"
        timing.fold(RankReport(job="j", incarnation=1, rank=0, alive_s=at_s, alive_line=line))
        if timing.hang.look_due(Now(at_s, 0)):
            timing.hang.looked([IN_EVALUATION.format(look=done)], Now(at_s, 0))
            made.append(at_s - since_s)
    return made


@pytest.mark.parametrize("after_s", [None, 45.0])
def test_a_pause_that_its_log_does_not_name_is_named_by_where_it_stands(after_s: float | None) -> None:
    timing = watched(after_s)
    last = feed(timing)
    assert draws_a_bar(timing, last, last + 600) == pytest.approx([30, 60, 120, 240, 480])
    where = "evaluating, in evaluation_loop (transformers/trainer.py:4512); its log went on"
    assert timing.hang.phase(Now(last + 600, 0)) == (
        f"No iteration for 10 min: 2 min ago it was {where} 0 s ago: 59/500"
    )
    timing.hang.looked([IN_EVALUATION.format(look=9)], Now(last + 600, 0))
    assert f"it is {where}" in timing.hang.phase(Now(last + 601, 0))
    timing.hang.looked([STILL], Now(last + 602, 0))
    assert timing.hang.phase(Now(last + 603, 0)).startswith("No iteration for 10 min: its log went on"), (
        "it stands there no more"
    )
    assert hang(timing, last + 600) is None
    last = feed(timing, first=51, start_s=last + 610)
    assert timing.hang.phase(Now(last + 40, 0)) == "", "that was before it went on"


@pytest.mark.parametrize("ended", [False, True])
def test_a_job_without_an_iteration_is_looked_at_for_its_name_as_seldom(ended: bool) -> None:
    timing = watched(size=2)
    timing.start(1, 2, Now(100.0, 0))
    for rank in (0, 1):
        empty(timing, rank)
    timing.hang.timed_before = ended
    if ended:
        timing.hang.exited.add(1)
    assert draws_a_bar(timing, 100.0, 700.0) == pytest.approx([30, 60, 120, 240, 480])


def test_looks_for_a_name_are_no_evidence_of_a_hang() -> None:
    timing = watched(300.0)
    last = feed(timing)
    for after_s in (10, 20, 29):
        line = f"{after_s}/5000"
        timing.fold(RankReport(job="j", incarnation=1, rank=0, alive_s=last + after_s, alive_line=line))
    looks = look(timing, last + 328, IN_EVALUATION)
    assert looks == pytest.approx([last + 30, last + 60])
    assert timing.hang.looks is not None
    assert (timing.hang.looks.count, timing.hang.looks.pause, timing.hang.looks.texts) == (0, "", ())
    assert hang(timing, last + 330) is not None


def test_what_a_log_names_needs_no_look() -> None:
    timing = watched()
    last = feed(timing)
    assert draws_a_bar(timing, last, last + 600, "Saving shards: ") == []
    assert "it is saving; its log went on" in timing.hang.phase(Now(last + 600, 0))


def test_where_a_look_names_nothing_the_next_one_comes_later_and_later() -> None:
    timing = watched()
    last = feed(timing)
    looks = []
    for after_s in range(10, 1000, 10):
        at_s = last + after_s
        timing.fold(RankReport(job="j", incarnation=1, rank=0, alive_s=at_s, alive_line=f"{after_s}/5000"))
        if timing.hang.look_due(Now(at_s, 0)):
            timing.hang.looked([MOVES.format(look=after_s)], Now(at_s, 0))
            looks.append(after_s)
    assert looks == [30, 60, 120, 240, 480, 960]
    assert "its log went on 5 s ago: 990/5000" in timing.hang.phase(Now(last + 995, 0))


def test_who_steps_seldom_is_not_looked_at_in_each_step() -> None:
    timing = watched()
    last = feed(timing, every_s=60.0)
    assert draws_a_bar(timing, last, last + 170) == []
    assert draws_a_bar(timing, last, last + 200)
