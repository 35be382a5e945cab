"""Whose fault a lasting slowdown is, told from timing lines alone: rings of simulated ranks are judged as jobs are."""

from collections.abc import Sequence

import pytest

from sentinel.core.model import Symptom
from sentinel.core.now import Now
from sentinel.core.policy_model import Performance, Policy
from sentinel.core.reports import Iteration, LogMatch, RankReport
from sentinel.core.signals import TimingSignal
from sentinel.core.timing.job_timing import JobTiming
from tests.core.rings import (
    Counts,
    Fault,
    Layout,
    Program,
    SlowCard,
    SlowData,
    SlowHost,
    SlowLink,
    SlowNic,
    simulate,
)

DATA, TENSOR, PIPELINE = Layout(1, 1, 64), Layout(8, 1, 8), Layout(8, 4, 2)
SINCE = 120
POLL = 2  # iterations in a report


class Job:
    """Of ranks that tell iterations, asked after each round of reports. `told`: each signal at its first time."""

    def __init__(self, size: int, **asked: object) -> None:
        self.timing = JobTiming(Policy(performance=Performance(**asked)), size)  # type: ignore[arg-type]
        self.timing.start(1, size, Now(0.0, 0.0))
        self.told: dict[str, TimingSignal] = {}
        self.told_at: dict[str, int] = {}  # iterations

    def fold(self, rank: int, iterations: Sequence[Iteration], incarnation: int = 1) -> None:
        report = RankReport(
            job="j", incarnation=incarnation, rank=rank, iterations=list(iterations), caught_up=True
        )
        self.timing.fold(report)

    def ask(self, at_s: float, iterations: int = 0) -> None:
        for signal in self.timing.signals(Now(at_s, at_s)):
            if signal.key not in self.told:
                self.told[signal.key], self.told_at[signal.key] = signal, iterations


def judged(
    layout: Layout, *faults: Fault, count: int = 160, counts: Counts = "compute", seed: int = 3
) -> Job:
    ranks = simulate(layout, count, seed=seed, faults=faults, counts=counts)
    job = Job(len(ranks))
    for k in range(0, count, POLL):
        for rank, iterations in ranks.items():
            job.fold(rank, iterations[k : k + POLL])
        job.ask(max(iterations[k + POLL - 1].at_s for iterations in ranks.values()), k + POLL)
    return job


def only(job: Job) -> TimingSignal:
    (signal,) = job.told.values()
    return signal


# ---------------------------------------------------------------- whose fault


@pytest.mark.parametrize("layout", [DATA, TENSOR], ids=str)
def test_a_card_that_becomes_slow_is_named_within_10_iterations(layout: Layout) -> None:
    job = judged(layout, SlowCard(13, 1.1, since=SINCE))
    signal = only(job)
    assert (signal.symptom, signal.rank) == (Symptom.SLOWDOWN, 13)
    assert job.told_at[signal.key] <= SINCE + 10
    assert f"Since iteration {SINCE} an iteration takes " in signal.sentence
    assert "Of 64 ranks the hardware time of rank 13 alone has grown (" in signal.sentence
    (line,) = signal.evidence
    assert line.startswith("rank 13: hardware time ")


def test_where_hardware_time_counts_the_waiting_in_its_tensor_group_that_group_is_named() -> None:
    signal = only(judged(TENSOR, SlowCard(13, 1.1, since=SINCE), counts="tensor"))
    assert (signal.symptom, signal.rank) == (Symptom.SLOWDOWN, None)
    assert "Of 64 ranks the hardware time of ranks 8-15 alone has grown (" in signal.sentence


def test_the_ranks_of_a_slow_host_are_named_whatever_their_stage() -> None:
    for layout in (DATA, TENSOR, PIPELINE):
        signal = only(judged(layout, SlowHost(2, 1.25, since=SINCE)))
        assert (signal.symptom, signal.rank) == (Symptom.SLOWDOWN, None)
        assert "Of 64 ranks the hardware time of ranks 16-23 alone has grown (" in signal.sentence
        assert len(signal.evidence) == 4


@pytest.mark.parametrize(
    "fault",
    [
        SlowNic(3, 3, since=SINCE),
        SlowLink(factor=3, hosts=(2, 3), since=SINCE),
        SlowData(host=4, extra_ms=200, since=SINCE),
    ],
    ids=lambda fault: type(fault).__name__,
)
def test_no_rank_is_accused_of_slow_links_or_slow_data(fault: Fault) -> None:
    signal = only(judged(DATA, fault))
    assert (signal.symptom, signal.rank) == (Symptom.SLOWDOWN, None)
    assert "No rank's hardware time has grown: the time is lost in links" in signal.sentence


def test_nobody_is_accused_where_hardware_time_counts_all_waiting_or_is_not_told() -> None:
    signal = only(judged(DATA, SlowCard(13, 1.1, since=SINCE), counts="all"))
    assert (signal.symptom, signal.rank) == (Symptom.SLOWDOWN, None)
    assert "has grown on most ranks alike" in signal.sentence
    signal = only(judged(DATA, SlowCard(13, 1.1, since=SINCE), counts=None))
    assert (signal.symptom, signal.rank) == (Symptom.SLOWDOWN, None)
    assert "Not enough hardware times are known" in signal.sentence


def test_nobody_is_accused_where_one_rank_prints_for_all() -> None:
    job = Job(8)
    job.fold(0, steady(1000.0, 0, 100))
    job.fold(0, [Iteration(3.0 * k, k, 1300.0, 3300.0) for k in range(100, 112)])
    job.ask(340.0)
    assert only(job).rank is None
    assert (
        "Not enough hardware times are known, before and since, to tell whose fault it is."
        in only(job).sentence
    )


def test_a_program_of_one_rank_is_told_whether_its_hardware_works_longer() -> None:
    for hardware_ms, says in (
        (2420.0, "Its hardware works longer in it: 2420.0 ms in place of 2200.0 ms."),
        (2200.0, "has not grown"),
    ):
        job = Job(1)
        job.fold(0, [Iteration(3.0 * k, k, 2200.0, 3000.0) for k in range(100)])
        job.fold(0, [Iteration(3.0 * k, k, hardware_ms, 3300.0) for k in range(100, 112)])
        job.ask(340.0)
        assert says in only(job).sentence
        assert only(job).rank is None


# ---------------------------------------------------------------- unequal ranks


@pytest.mark.parametrize(
    "layout", [DATA, TENSOR, PIPELINE, Layout(8, 8, 1), Layout(1, 4, 16), Layout(1, 4, 1)], ids=str
)
def test_unequal_stages_and_cards_of_a_healthy_job_accuse_nobody(layout: Layout) -> None:
    for counts in ("compute", "tensor", "all", None):
        assert judged(layout, count=120, counts=counts).told == {}  # type: ignore[arg-type]


def test_batches_of_varying_length_accuse_nobody() -> None:
    ranks = simulate(TENSOR, 400, seed=5, program=Program(lengths=0.2))
    job = Job(64)
    for k in range(0, 400, POLL):
        for rank, iterations in ranks.items():
            job.fold(rank, iterations[k : k + POLL])
        job.ask(iterations[k + POLL - 1].at_s)
    assert job.told == {}


def steady(hardware_ms: float, first: int, count: int) -> list[Iteration]:
    return [Iteration(3.0 * k, k, hardware_ms, 3000.0) for k in range(first, first + count)]


def test_a_stage_that_has_always_taken_longer_becomes_a_straggler_when_it_takes_longer_yet() -> None:
    job = Job(8)
    stages = [1000.0] * 6 + [1900.0] * 2
    for rank, hardware_ms in enumerate(stages):
        job.fold(rank, steady(hardware_ms, 0, 30))
    job.ask(90.0)
    assert job.told == {}
    stages[7] *= 1.7
    for rank, hardware_ms in enumerate(stages):
        job.fold(rank, steady(hardware_ms, 30, 25))
    job.ask(165.0)
    signal = only(job)
    assert (signal.symptom, signal.rank) == (Symptom.STRAGGLER, 7)
    assert "its peers' median, and was 1.9 times at the start" in signal.sentence


def test_what_a_stage_takes_is_known_of_it_in_the_next_incarnation_too() -> None:
    """Rank 2 stands alone among equals, and so would be a straggler, but had taken no longer before."""
    job = Job(8)
    usual = [1000.0, 1900.0, 1000.0, 1000.0, 1000.0, 1000.0, 1000.0, 1900.0]
    for rank, hardware_ms in enumerate(usual):
        job.fold(rank, steady(hardware_ms, 0, 30))
    job.timing.start(2, 8, Now(100.0, 100.0))
    for rank, hardware_ms in enumerate(usual):
        slow = hardware_ms * (1.8 if rank == 7 else 1)
        job.fold(rank, steady(slow, 40, 30), incarnation=2)
    job.ask(210.0)
    assert [signal.rank for signal in job.told.values()] == [7]


# ---------------------------------------------------------------- told once, when all is known


def slowed(job: Job, first: int, count: int, e2e_ms: float, ranks: Sequence[int] = (0, 1)) -> None:
    for rank in ranks:
        job.fold(rank, [Iteration(3.0 * k, k, 1000.0, e2e_ms) for k in range(first, first + count)])


def test_it_waits_for_the_reports_of_other_ranks_for_a_while() -> None:
    job = Job(2)
    slowed(job, 0, 100, 3000.0)
    slowed(job, 100, 12, 3300.0, ranks=[0])
    found_s = 3.0 * 111
    job.ask(found_s + 10)
    assert job.told == {}
    slowed(job, 100, 12, 3300.0, ranks=[1])
    job.ask(found_s + 11)
    assert "No rank's hardware time has grown" in only(job).sentence


def test_a_pause_that_takes_what_a_rank_told_since_breaks_nothing() -> None:
    job = Job(2)
    slowed(job, 0, 100, 3000.0)
    for _ in range(12):  # all of them read at one moment, with the line that announces a save
        job.fold(0, [Iteration(400.0, None, 1000.0, 3300.0)])
    saving = LogMatch(rule="save", failure="activity:saving", rank=0, incarnation=1, at_s=400.0)
    job.timing.activity(saving)
    job.fold(1, [Iteration(401.0 + k, None, 1000.0, 3300.0) for k in range(12)])
    job.ask(450.0)
    assert "Not enough hardware times are known" in only(job).sentence


def test_where_others_tell_nothing_more_that_is_told() -> None:
    job = Job(2)
    slowed(job, 0, 100, 3000.0)
    slowed(job, 100, 12, 3300.0, ranks=[0])
    job.ask(3.0 * 111 + 31)
    assert "Not all ranks have told their hardware times since" in only(job).sentence


def test_ranks_that_end_change_nothing_of_what_was_told() -> None:
    job = Job(4)
    for rank in range(4):
        job.fold(rank, steady(1000.0, 0, 100))
    for rank, slow_ms in enumerate((1000.0, 1000.0, 1300.0, 1000.0)):
        job.fold(rank, [Iteration(3.0 * k, k, slow_ms, 3300.0) for k in range(100, 112)])
    job.ask(340.0)
    job.timing.hang.exited.update((0, 1, 3))
    job.ask(341.0)
    assert [signal.rank for signal in job.told.values()] == [2]


def test_it_is_told_again_only_where_the_job_is_much_slower_yet() -> None:
    job = Job(2)
    keys = []
    for k, e2e_ms in enumerate((3000.0, 3300.0, 3000.0, 3330.0, 3000.0, 4700.0)):
        slowed(job, 100 * k, 100, e2e_ms)
        job.ask(300.0 * (k + 1))
        keys.append(sorted(job.told))
    assert [len(told) for told in keys] == [0, 1, 1, 1, 1, 2]


def test_a_report_that_brings_a_slowdown_and_its_end_tells_nothing() -> None:
    job = Job(1)
    times_ms = [*[3000.0] * 100, *[3300.0] * 40, *[3000.0] * 40]
    job.fold(0, [Iteration(3.0 * k, k, 1000.0, e2e_ms) for k, e2e_ms in enumerate(times_ms)])
    job.ask(540.0)
    assert job.told == {}


def test_a_rank_that_becomes_a_straggler_is_told_as_one_alone() -> None:
    job = Job(4)
    for first, slow_ms in ((0, 0.0), (100, 1500.0)):
        for k in range(first, first + 100, POLL):
            for rank in range(4):
                hardware_ms = 2000.0 + slow_ms * (rank == 1)
                part = [Iteration(3.0 * n, n, hardware_ms, 3000.0 + slow_ms) for n in range(k, k + POLL)]
                job.fold(rank, part)
            job.ask(3.0 * (k + POLL))
    assert only(job).key == "straggler:1"


def test_what_a_rank_took_long_ago_is_not_what_it_took_before_the_change() -> None:
    """It became slower by little at 3000 s, of which nobody was told. At 6000 s a link becomes slow."""
    job = Job(4)
    for n in range(10_000):
        e2e_ms = 1000.0 if n < 6000 else 1080.0
        for rank in range(4):
            hardware_ms = 700.0 + 60 * (rank == 3 and n >= 3000)
            job.fold(rank, [Iteration(float(n), n, hardware_ms, e2e_ms)])
        if n % 10 == 0:
            job.ask(float(n))
        if job.told:
            break
    assert only(job).rank is None
    assert "No rank's hardware time has grown" in only(job).sentence


def test_after_a_restart_that_made_it_slower_no_rank_is_acquitted() -> None:
    job = Job(2)
    slowed(job, 0, 100, 3000.0)
    job.timing.start(2, 2, Now(400.0, 400.0))
    for k in range(100, 160):
        for rank in (0, 1):
            job.fold(rank, [Iteration(500 + 3.0 * k, k, 1000.0 + 300 * rank, 3300.0)], incarnation=2)
    job.ask(1000.0)
    assert only(job).sentence.startswith("Since it was started again an iteration takes 10 % longer")
    assert "Not enough hardware times are known, before and since, to tell whose fault" in only(job).sentence


def test_a_policy_that_is_switched_on_again_compares_with_what_comes_then() -> None:
    job = Job(2)
    slowed(job, 0, 100, 3000.0)
    slowed(job, 100, 50, 3300.0)
    job.timing.policy = Policy(performance=Performance(slowdown_ratio=None))
    slowed(job, 150, 10, 3300.0)
    job.timing.policy = Policy()
    slowed(job, 160, 100, 3300.0)
    job.ask(780.0)
    assert job.told == {}


def test_it_holds_as_long_as_steps_are_slow() -> None:
    job = Job(2)
    slowed(job, 0, 100, 3000.0)
    slowed(job, 100, 50, 3300.0)
    once, again = job.timing.signals(Now(450.0, 450.0)), job.timing.signals(Now(450.0, 450.0))
    assert [signal.symptom for signal in once] == [Symptom.SLOWDOWN]
    assert again == once
    slowed(job, 150, 20, 3000.0)
    assert job.timing.signals(Now(510.0, 510.0)) == []


def test_the_policy_names_the_least_or_switches_it_off() -> None:
    for ratio, told in ((1.035, 1), (1.2, 0), (None, 0)):
        job = Job(2, slowdown_ratio=ratio)
        slowed(job, 0, 100, 3000.0)
        slowed(job, 100, 50, 3300.0)
        job.ask(450.0)
        assert len(job.told) == told


def test_other_sizes_are_not_compared() -> None:
    job = Job(2)
    slowed(job, 0, 100, 3000.0)
    job.timing.start(2, 1, Now(301.0, 301.0))
    job.fold(0, [Iteration(3.0 * k, k, 1000.0, 6000.0) for k in range(101, 201)], incarnation=2)
    job.ask(610.0)
    assert job.told == {}
