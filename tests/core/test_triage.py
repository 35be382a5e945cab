"""One explanation per incident: hardware beats text, roots beat cascades, the ambiguous is retried once."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from sentinel.core.health import Component, Finding, Severity
from sentinel.core.model import Budget, Cause, Failure, Restartable, Symptom, Verdict
from sentinel.core.now import Now
from sentinel.core.reports import LogMatch, Orphan, RankExit
from sentinel.core.stacks.flight_record import Kind, Stuck
from sentinel.core.timing.job_timing import TimingSignal
from sentinel.core.triage.verdict import triage
from sentinel.rules.failures import failure_classes
from tests.samples import killed_for_memory

WALL_S = 1_700_000_000.0
NOW = Now(2000.0, WALL_S)
CLASSES = failure_classes()
GPUS = {rank: f"GPU 0000:{16 + rank:02x}:00.0" for rank in range(8)}
PIDS = {rank: 4000 + rank for rank in range(8)}


def verdict(
    exits: Sequence[RankExit] = (),
    matches: Sequence[LogMatch] = (),
    findings: Sequence[Finding] = (),
    signal: TimingSignal | None = None,
    size: int = 8,
    steps: dict[int, int | None] | None = None,
    entities: dict[int, str] | None = None,
    history: Sequence[Failure] = (),
    iterated_s: dict[int, float] | None = None,
    started_s: float = 0.0,
    workers: dict[int, tuple[int, int]] | None = None,
    stuck: Stuck | None = None,
    steps_told: bool = True,
    run_s: float = 0.0,
) -> Verdict:
    return triage(
        job="j",
        size=size,
        exits=exits,
        matches=matches,
        findings=findings,
        signal=signal,
        last_steps=steps or {},
        rank_entities=GPUS if entities is None else entities,
        rank_pids=PIDS,
        failures=CLASSES,
        history=history,
        now=NOW,
        last_iteration_s=iterated_s,
        started_s=started_s,
        worker_pids=workers,
        stuck=stuck,
        steps_told=steps_told,
        run_s=run_s,
    )


def ended(rank: int, at_s: float = 1999.0, **how: object) -> RankExit:
    return RankExit(rank=rank, incarnation=1, at_s=at_s, **(how or {"code": 1}))  # type: ignore[arg-type]


def line(
    failure: str, rank: int, at_s: float = 1998.0, text: str = "", stamp: float | None = None
) -> LogMatch:
    text = text or f"a line of {failure}"
    return LogMatch(
        rule=failure, failure=failure, rank=rank, incarnation=1, at_s=at_s, stamp_wall_s=stamp, line=text
    )


def xid(number: int, rank: int, severity: Severity = Severity.FATAL, **more: object) -> Finding:
    given: dict[str, object] = {
        "check": "kernel",
        "component": Component.GPU,
        "entity": GPUS[rank],
        "code": f"XID {number}",
        "severity": severity,
        "action": "RESET_GPU",
        "summary": f"XID {number}: something",
        "evidence": (f"NVRM: Xid (PCI:0000:{16 + rank:02x}:00): {number}, ...",),
        "event": True,
        "first_seen_wall_s": WALL_S - 5,
        "seen_mono_s": 1995.0,
    }
    return Finding(**(given | more))  # type: ignore[arg-type]


def sampled(severity: Severity, rank: int, age_s: float, code: str = "pcie-width") -> Finding:
    return xid(
        0,
        rank,
        severity,
        code=code,
        summary="the PCIe link is narrow",
        event=False,
        check="nvml",
        first_seen_wall_s=WALL_S - age_s,
    )


# ---------------------------------------------------------------- hardware


def test_hardware_evidence_overrides_what_the_log_says() -> None:
    v = verdict(
        [ended(3)], [line("illegal-access", 3, text="CUDA error: an illegal memory access")], [xid(79, 3)]
    )
    assert v.sentence == "Rank 3 was lost: CUDA error after GPU 0000:13:00.0 fell off the bus (XID 79)."
    assert (v.cause, v.failure, v.scope, v.budget) == (
        Cause.GPU,
        "gpu-hardware",
        "node",
        Budget.INFRASTRUCTURE,
    )
    assert (v.rank, v.entity, v.restart) == (3, "GPU 0000:13:00.0", Restartable.YES)
    assert v.evidence[0] == "kernel: NVRM: Xid (PCI:0000:13:00): 79, ..."
    assert "rank 3: CUDA error: an illegal memory access" in v.evidence


def test_fresh_fatal_hardware_evidence_overrides_even_a_user_error() -> None:
    assert verdict([ended(3)], [line("cuda-oom", 3)], [xid(79, 3)]).failure == "gpu-hardware"


def test_hardware_that_this_job_does_not_use_explains_nothing() -> None:
    foreign = xid(79, 0, entity="GPU 0000:99:00.0")
    assert verdict([ended(3)], [line("import-error", 3)], [foreign]).failure == "import-error"
    assert verdict([ended(3, signal=9)], [], [foreign]).failure == "killed"


def test_a_finding_that_names_a_ranks_process_is_about_that_rank() -> None:
    v = verdict([ended(5)], [], [xid(79, 0, entity="GPU 0000:99:00.0", pid=4005)], entities={})
    assert (v.rank, v.failure) == (5, "gpu-hardware")


def test_pci_addresses_are_compared_whatever_their_form() -> None:
    v = verdict([ended(3)], [], [xid(79, 3, entity="GPU 00000000:13:00")])
    assert (v.rank, v.failure) == (3, "gpu-hardware")


def test_old_findings_do_not_explain_a_clear_user_error() -> None:
    standing = sampled(Severity.DEGRADED, 3, age_s=86_400)
    assert verdict([ended(3)], [line("import-error", 3)], [standing]).failure == "import-error"
    assert verdict([ended(3)], [], [standing]).failure == "gpu-hardware"
    assert verdict([ended(2, signal=9)], [], [standing]).failure == "killed", "another rank's GPU"


def test_a_contained_memory_error_is_the_gpus_though_only_a_warning() -> None:
    v = verdict([ended(1)], [line("user-exception", 1)], [xid(94, 1, Severity.WARNING)])
    assert (v.failure, v.cause, v.budget) == ("gpu-ecc", Cause.GPU, Budget.INFRASTRUCTURE)
    assert v.sentence.startswith("Rank 1 was lost: GPU 0000:11:00.0 contained an uncorrectable memory error")


@pytest.mark.parametrize("number", [13, 31, 43, 32, 69])
def test_what_one_jobs_kernels_do_wrong_is_the_programs_and_tried_once_more(number: int) -> None:
    v = verdict([ended(2)], [], [xid(number, 2, Severity.WARNING, pid=4002)])
    assert (v.failure, v.cause, v.scope, v.restart, v.budget, v.entity) == (
        "illegal-access",
        Cause.USER_CODE,
        "job",
        Restartable.ONCE,
        Budget.JOB,
        GPUS[2],
    )


def test_an_exception_of_an_engine_may_be_the_programs_or_the_gpus() -> None:
    v = verdict([ended(2)], [], [xid(39, 2, Severity.WARNING, action="RESTART_APP")])
    assert (v.failure, v.cause, v.scope, v.restart) == (
        "gpu-exception",
        Cause.UNKNOWN,
        "job",
        Restartable.ONCE,
    )
    assert "XID 39" in v.sentence


@pytest.mark.parametrize("number", [13, 31, 43])
@pytest.mark.parametrize("severity", [Severity.DEGRADED, Severity.FATAL])
def test_the_same_error_under_different_jobs_is_the_cards(number: int, severity: Severity) -> None:
    shared = xid(number, 2, severity, action="RUN_DIAGNOSTICS")
    for matches in ([], [line("illegal-access", 2)], [line("segfault", 2)]):
        v = verdict([ended(2)], matches, [shared])
        assert (v.cause, v.scope, v.restart, v.budget) == (
            Cause.GPU,
            "node",
            Restartable.YES,
            Budget.INFRASTRUCTURE,
        )
        assert (v.rank, v.entity) == (2, GPUS[2])
    assert verdict([ended(2)], [line("import-error", 2)], [shared]).failure == "import-error"
    assert verdict(findings=[shared]).cause is Cause.GPU  # a job that still runs is moved off the card


def test_a_clean_up_after_a_card_fell_off_the_bus_is_that() -> None:
    """The clean-up may be told first, for every process and often; the card is the one that is gone."""
    cleanups = [
        xid(45, rank, Severity.INFO, first_seen_wall_s=WALL_S - 9, pid=4000 + rank, count=500)
        for rank in range(8)
    ]
    v = verdict([ended(rank, 1999.0) for rank in range(8)], [], [*cleanups, xid(79, 6)])
    assert (v.rank, v.failure, v.entity) == (6, "gpu-hardware", GPUS[6])
    assert "XID 79" in v.sentence
    assert "XID 45" not in v.sentence


@pytest.mark.parametrize(
    ("code", "severity"),
    [("XID 109", Severity.FATAL), ("XID 74", Severity.WARNING), ("XID 171", Severity.WARNING)],
)
def test_a_fault_that_only_a_gpu_can_have_is_the_gpus(code: str, severity: Severity) -> None:
    v = verdict([ended(1)], [], [xid(0, 1, severity, code=code)])
    assert (v.cause, v.scope, v.budget, v.entity) == (Cause.GPU, "node", Budget.INFRASTRUCTURE, GPUS[1])


@pytest.mark.parametrize("severity", [Severity.INFO, Severity.WARNING])
def test_what_asks_for_support_or_for_nothing_explains_no_end(severity: Severity) -> None:
    for action in ("CONTACT_SUPPORT", "IGNORE"):
        v = verdict([ended(1)], [], [xid(61, 1, severity, action=action)])
        assert (v.failure, v.cause) == ("unknown", Cause.UNKNOWN)


def switch(severity: Severity = Severity.FATAL) -> Finding:
    return xid(
        0, 0, severity, entity="NVSwitch 0000:c3:00.0", code="SXID 24007", summary="SXID 24007: sourcetrack"
    )


def test_a_broken_switch_is_the_fault_of_every_rank_that_speaks_over_it() -> None:
    told = [line("nccl-abort", rank) for rank in range(8)]
    v = verdict([ended(rank) for rank in range(8)], told, [switch()])
    assert (v.failure, v.cause, v.scope, v.rank) == ("nvlink", Cause.GPU, "node", None)
    assert v.entity == "NVSwitch 0000:c3:00.0"
    assert v.sentence.startswith("Ranks 0-7 were lost: NVSwitch 0000:c3:00.0: SXID 24007")


def test_a_switch_that_only_complains_or_that_a_lone_rank_does_not_use_explains_nothing() -> None:
    assert verdict([ended(0)], [], [switch(Severity.WARNING)]).cause is Cause.UNKNOWN
    assert verdict([ended(0)], [], [switch()], size=1).cause is Cause.UNKNOWN


def test_a_clean_up_of_the_driver_blames_nobody() -> None:
    v = verdict([ended(2, signal=9)], [], [xid(45, 2, Severity.INFO)])
    assert (v.failure, v.rank) == ("killed", 2)
    for component in Component:  # nor when it is told as a fault of the machine, and names the process
        cleanup = xid(45, 2, component=component, pid=PIDS[2])
        v = verdict([ended(2, signal=9, oom_killed=True)], [], [cleanup])
        assert (v.failure, v.rank) == ("host-oom", 2), component


def test_the_gpu_that_broke_is_named_though_other_ranks_died_of_it() -> None:
    exits = [ended(rank) for rank in range(8) if rank != 6]
    v = verdict(exits, [line("nccl-timeout", rank) for rank in range(8) if rank != 6], [xid(79, 6)])
    assert (v.rank, v.failure) == (6, "gpu-hardware")
    assert "died because of rank 6" in v.sentence


# ---------------------------------------------------------------- roots and cascades


def test_an_nccl_timeout_on_seven_ranks_names_the_eighth() -> None:
    exits = [ended(rank, 1990.0 + rank, signal=6) for rank in range(8) if rank != 5]
    v = verdict(exits, [line("nccl-timeout", rank, 1989.0) for rank in range(8) if rank != 5])
    assert (v.rank, v.failure, v.budget) == (5, "nccl-timeout", Budget.INFRASTRUCTURE)
    assert "because of rank 5" in v.sentence
    assert "Ranks 0-4, 6, 7 waited for it in vain" in v.sentence


def recorded(kind: Kind, *ranks: int) -> Stuck:
    return Stuck(
        kind=kind,
        ranks=ranks,
        group="default_pg",
        op="all_reduce",
        seq=41,
        waiting=tuple(rank for rank in range(8) if rank not in ranks),
        since_s=WALL_S,
        sentence="Rank 2 did not take part in all_reduce 41.",
        evidence=("ranks 0, 1, 3-7 in all_reduce 41 at step (train.py:88)",),
        advice="Look there.",
    )


def test_of_ranks_that_timed_out_flight_recorders_tell_for_whom_they_waited() -> None:
    exits = [ended(rank, signal=6) for rank in range(8)]
    matches = [line("nccl-timeout", rank, 1989.0) for rank in range(8)]
    v = verdict(exits, matches, stuck=recorded(Kind.ABSENT, 2), steps={2: 109})
    assert (v.rank, v.failure, v.scope, v.budget) == (2, "nccl-timeout", "node", Budget.INFRASTRUCTURE)
    assert v.sentence == (
        "Rank 2 was lost after iteration 109, then 7 more: rank 2 did not take part in all_reduce 41."
    )
    assert (v.advice, v.place) == ("Look there.", GPUS[2])
    assert "flight recorder: ranks 0, 1, 3-7 in all_reduce 41 at step (train.py:88)" in v.evidence


def test_of_a_launcher_it_is_the_rank_that_it_has_started() -> None:
    workers = {7000 + number: (0, number) for number in range(8)}
    timed_out = [ended(0)], [line("nccl-timeout", 0)]
    v = verdict(*timed_out, size=1, workers=workers, stuck=recorded(Kind.ABSENT, 2))
    assert (v.rank, v.worker, v.who) == (0, 2, 2)
    elsewhere = verdict(*timed_out, size=1, workers=workers, stuck=recorded(Kind.ABSENT, 12))
    assert (elsewhere.rank, elsewhere.worker, elsewhere.place) == (None, None, "")


def test_flight_recorders_that_name_nobody_take_nothing_from_what_the_ranks_said() -> None:
    exits = [ended(rank, signal=6) for rank in range(8)]
    matches = [line("nccl-timeout", rank, 1989.0) for rank in range(8) if rank != 5]
    v = verdict(exits[:5] + exits[6:], matches, stuck=recorded(Kind.INSIDE))
    assert v.rank == 5
    assert "did not join a collective operation" in v.sentence
    assert any(line.startswith("flight recorder: Rank 2 did not") for line in v.evidence)


def test_ranks_that_went_different_ways_are_no_fault_of_a_node() -> None:
    matches = [line("nccl-timeout", rank, 1989.0) for rank in range(8)]
    v = verdict([ended(r) for r in range(8)], matches, stuck=recorded(Kind.DIFFERENT, 2))
    assert (v.cause, v.scope, v.budget, v.rank) == (Cause.USER_CODE, "job", Budget.JOB, 2)


def test_flight_recorders_explain_nothing_that_explains_itself() -> None:
    matches = [line("import-error", 5, 1980.0), *(line("nccl-timeout", rank, 1989.0) for rank in range(8))]
    v = verdict([ended(r) for r in range(8)], matches, stuck=recorded(Kind.ABSENT, 2))
    assert (v.failure, v.rank) == ("import-error", 5)
    assert verdict([ended(1, signal=9)], stuck=recorded(Kind.ABSENT, 2)).failure == "killed"


def test_an_nccl_timeout_names_the_rank_that_ended_with_another_reason() -> None:
    exits = [ended(rank, 1990.0, signal=6) for rank in range(7)] + [ended(7, 1400.0)]
    matches = [line("nccl-timeout", rank, 1989.0) for rank in range(7)] + [line("import-error", 7, 1399.0)]
    v = verdict(exits, matches)
    assert (v.rank, v.failure, v.restart) == (7, "import-error", Restartable.NO)


def test_an_nccl_timeout_on_all_ranks_names_the_one_that_is_behind() -> None:
    exits = [ended(rank, 1990.0, signal=6) for rank in range(4)]
    matches = [line("nccl-timeout", rank) for rank in range(4)]
    v = verdict(exits, matches, size=4, steps={0: 100, 1: 100, 2: 99, 3: 100})
    assert v.rank == 2


def test_a_rank_that_waits_silently_and_raised_long_before_the_timeout_is_the_root() -> None:
    exits = [ended(rank, 1990.0, signal=6) for rank in range(7)]
    matches = [line("nccl-timeout", rank, 1989.0) for rank in range(7)] + [line("user-exception", 7, 1385.0)]
    v = verdict(exits, matches)
    assert (v.rank, v.failure) == (7, "user-exception")


def test_a_cascade_that_came_first_never_wins_over_a_root() -> None:
    v = verdict(
        [ended(0, 1995.0), ended(3, 1997.0)],
        [line("connection", 0, 1994.0), line("gpu-ecc", 3, 1996.0, "uncorrectable ECC error encountered")],
    )
    assert (v.rank, v.failure, v.entity) == (3, "gpu-ecc", GPUS[3])


def test_survivors_that_complain_point_at_the_one_that_does_not() -> None:
    exits = [ended(rank, 1995.0 + 0.01 * rank) for rank in range(4)]
    v = verdict(exits, [line("connection", rank) for rank in (0, 1, 3)], size=4)
    assert (v.rank, v.failure) == (2, "unknown")
    assert "The messages of ranks 0, 1, 3 follow from that" in v.sentence


def test_of_ranks_that_die_within_a_moment_the_first_is_named() -> None:
    v = verdict([ended(4, 1995.02), ended(1, 1995.0), ended(2, 1995.01)])
    assert v.rank == 1
    assert "then 2 more" in v.sentence


def test_lines_are_ordered_by_their_own_stamps_when_all_have_one() -> None:
    late = line("gpu-ecc", 0, at_s=1990.0, stamp=WALL_S - 5)
    early = line("storage-io", 1, at_s=1991.0, stamp=WALL_S - 60)
    assert verdict([ended(0), ended(1)], [late, early]).rank == 1
    unstamped = line("storage-io", 1, at_s=1991.0)
    assert verdict([ended(0), ended(1)], [late, unstamped]).rank == 0


def test_stamps_of_another_time_zone_are_not_believed() -> None:
    foreign = line("storage-io", 1, at_s=1991.0, stamp=WALL_S - 7200)
    near = line("gpu-ecc", 0, at_s=1990.0, stamp=WALL_S - 5)
    assert verdict([ended(0), ended(1)], [near, foreign]).rank == 0


def test_a_line_that_is_read_after_its_rank_died_was_written_before() -> None:
    v = verdict([ended(2, 1995.0), ended(3, 1995.1, signal=11)], [line("import-error", 2, 1995.9)])
    assert (v.rank, v.failure) == (2, "import-error")


def test_an_error_that_the_rank_survived_explains_nothing() -> None:
    caught = line("cuda-oom", 3, at_s=1900.0)
    assert verdict([ended(3)], [caught], iterated_s={3: 1950.0}).failure == "unknown"
    assert verdict([ended(3)], [caught], iterated_s={3: 1890.0}).failure == "cuda-oom"


def test_an_error_of_a_rank_that_tells_of_no_iterations_explains_nothing_once_the_others_have_gone_on() -> (
    None
):
    """Only rank 0 prints, as most programs do: rank 3 has skipped a batch."""
    caught = line("cuda-oom", 3, at_s=1400.0, text="skipping batch: CUDA out of memory")
    killed = [ended(1, signal=9)]
    assert verdict(killed, [caught], iterated_s={0: 1998.0}).failure == "killed"
    # Others may be told of some iterations after the one that it could not do.
    assert verdict([ended(3)], [caught], iterated_s={0: 1450.0}).failure == "cuda-oom"
    assert verdict([ended(3)], [caught]).failure == "cuda-oom"


def test_what_a_rank_below_a_launcher_did_not_catch_ended_it_though_the_others_went_on_for_a_moment() -> None:
    raised = line("exception", 0, at_s=1900.0, text="[rank1]: RuntimeError: the training set is not sorted")
    lost = line("nccl-abort", 0, at_s=1908.0, text="[rank0]:[E1127 NCCL error: remote process exited")
    report = line(
        "rank-exit", 0, at_s=1909.0, text="failed (exitcode: 1) local_rank: 1 (pid: 5442) of binary"
    )
    matches = [raised, lost, report]

    def told(iterated_s: float, matches: list[LogMatch]) -> str:
        return verdict([ended(0)], matches, iterated_s={0: iterated_s}, size=1).failure

    assert told(1905.0, matches) == "exception"
    caught = msgspec.structs.replace(raised, line="RuntimeError: the training set is not sorted")
    assert told(1905.0, [caught, lost, report]) == "rank-exit"
    # Its launcher had started all of them anew, and then a rank was lost for another reason.
    again = [msgspec.structs.replace(one, at_s=one.at_s + 80.0) for one in (lost, report)]
    assert told(1950.0, [*matches, *again]) == "rank-exit"
    assert told(1909.5, [raised, report, *again]) == "rank-exit"
    # A rank that nobody else has started, and a logger that writes the same.
    log = "[rank0]: torch.OutOfMemoryError: CUDA out of memory; the batch is halved"
    assert told(1905.0, [line("cuda-oom", 0, at_s=1900.0, text=log)]) == "unknown"


def test_lines_from_long_before_explain_nothing() -> None:
    assert verdict([ended(3)], [line("cuda-oom", 3, at_s=900.0)]).failure == "unknown"


def test_a_specific_line_says_more_than_the_exception_beside_it() -> None:
    v = verdict([ended(3)], [line("user-exception", 3, 1997.9), line("cuda-oom", 3, 1998.0)])
    assert v.failure == "cuda-oom"
    same = "RuntimeError: Connection reset by peer"
    exits = [ended(0), ended(1, signal=9)]
    v = verdict(exits, [line("user-exception", 0, 1998, same), line("connection", 0, 1998, same)])
    assert (v.rank, v.failure) == (1, "killed")


def test_a_traceback_that_ends_in_a_lost_connection_is_no_user_error() -> None:
    told = [
        line("user-exception", 0, 1998.0, "Traceback (most recent call last):"),
        line("connection", 0, 1998.0),
    ]
    assert verdict([ended(0), ended(1, 1998.5, signal=9)], told).failure == "killed"


def test_an_exception_that_follows_a_lost_connection_is_no_user_error() -> None:
    told = [line("connection", 0, 1990.0), line("user-exception", 0, 1998.0, "RuntimeError: gone")]
    assert verdict([ended(0), ended(1, 1998.5, signal=9)], told).failure == "killed"


def test_a_ranks_own_words_say_more_than_the_signal_that_ended_it() -> None:
    v = verdict([ended(0, 1990.0, signal=11)], [line("gpu-ecc", 0, 1990.5)])
    assert (v.rank, v.failure) == (0, "gpu-ecc")
    v = verdict([ended(0, 1990.0, signal=11), ended(1, 1980.0)], [line("gpu-ecc", 0, 1970.0)])
    assert (v.rank, v.failure) == (0, "gpu-ecc")
    v = verdict(
        [ended(0, 1990.0, signal=11)], [line("user-exception", 0, 1950.0, "ValueError: told and caught")]
    )
    assert v.failure == "segfault"


def test_a_user_error_is_found_though_its_rank_complains_while_it_ends() -> None:
    told = [line("user-exception", 0, 1998.0, "ValueError: x"), line("nccl-abort", 0, 1998.4)]
    told += [line("connection", rank, 1998.3) for rank in range(1, 8)]
    v = verdict([ended(rank) for rank in range(8)], told)
    assert (v.rank, v.failure, v.restart) == (0, "user-exception", Restartable.NO)
    assert v.confidence == "the messages of 7 other ranks are consequences"


def test_only_lost_connections_are_the_networks() -> None:
    v = verdict([ended(0), ended(1)], [line("connection", 0), line("connection", 1)], size=2)
    assert (v.failure, v.cause, v.budget) == ("connection", Cause.NETWORK, Budget.INFRASTRUCTURE)


# ---------------------------------------------------------------- how ranks end


def test_a_rank_killed_for_memory_is_told_as_that() -> None:
    v = verdict([ended(0, 1995.0), ended(1, 1994.0, signal=9, oom_killed=True)], [line("connection", 0)])
    assert (v.rank, v.cause, v.failure) == (1, Cause.HOST_MEMORY, "host-oom")
    assert "because memory ran out (killed by signal 9 (out of memory))" in v.sentence


def test_the_kernels_memory_killer_is_believed_by_pid() -> None:
    oom = killed_for_memory(4002, seen_mono_s=1998.0)
    assert verdict([ended(2, signal=9)], [], [oom]).failure == "host-oom"
    assert verdict([ended(3, signal=9)], [], [oom]).failure == "killed"
    own_end = verdict([ended(2)], [line("exception", 2)], [oom])
    assert own_end.failure == "exception", "what ends by an exit code of its own was not killed"


def test_of_a_container_in_which_a_process_was_killed_it_is_not_said_that_the_rank_was() -> None:
    v = verdict([ended(2, code=1, oom_killed=True)])
    assert v.failure == "host-oom"
    assert (
        v.sentence == "Rank 2 was lost: the kernel killed one of its processes (exit code 1): memory ran out."
    )


@pytest.mark.parametrize(
    ("how", "failure", "cause", "budget", "restart"),
    [
        ({"signal": 9}, "killed", Cause.NODE, Budget.INFRASTRUCTURE, Restartable.YES),
        ({"code": 137}, "killed", Cause.NODE, Budget.INFRASTRUCTURE, Restartable.YES),
        ({"signal": 15}, "terminated", Cause.UNKNOWN, Budget.INFRASTRUCTURE, Restartable.YES),
        ({"code": 143}, "terminated", Cause.UNKNOWN, Budget.INFRASTRUCTURE, Restartable.YES),
        ({"signal": 2}, "interrupted", Cause.UNKNOWN, Budget.JOB, Restartable.NO),
        ({"code": 130}, "interrupted", Cause.UNKNOWN, Budget.JOB, Restartable.NO),
        ({"signal": 11}, "segfault", Cause.UNKNOWN, Budget.JOB, Restartable.ONCE),
        ({"signal": 7}, "segfault", Cause.UNKNOWN, Budget.JOB, Restartable.ONCE),
        ({"code": 139}, "segfault", Cause.UNKNOWN, Budget.JOB, Restartable.ONCE),
        ({"signal": 6}, "unknown", Cause.UNKNOWN, Budget.JOB, Restartable.YES),
        ({"code": 1}, "unknown", Cause.UNKNOWN, Budget.JOB, Restartable.YES),
        ({"code": 3}, "user-exit", Cause.UNKNOWN, Budget.JOB, Restartable.YES),
        ({"code": 127}, "not-found", Cause.USER_CODE, Budget.JOB, Restartable.NO),
        ({"code": None}, "exit-unknown", Cause.UNKNOWN, Budget.JOB, Restartable.YES),
    ],
)
def test_an_exit_without_any_line_is_told_by_its_status(
    how: dict[str, int | None], failure: str, cause: Cause, budget: Budget, restart: Restartable
) -> None:
    v = verdict([ended(0, **how)], size=1)
    assert (v.symptom, v.failure, v.cause, v.budget, v.restart) == (
        Symptom.RANK_LOST,
        failure,
        cause,
        budget,
        restart,
    )
    assert v.sentence.startswith("The program was lost: ")


def test_ranks_that_we_stopped_and_ranks_that_ended_well_are_not_lost() -> None:
    exits = [
        ended(0, 1990.0, signal=15, stopped_by_us=True),
        ended(1, 1991.0, code=0),
        ended(2, 1992.0, signal=9),
    ]
    v = verdict(exits)
    assert (v.rank, v.failure) == (2, "killed")
    assert "more" not in v.sentence


def test_sigterm_beside_another_end_is_a_launchers_teardown() -> None:
    v = verdict([ended(0, 1990.0, signal=15), ended(1, 1990.1, code=1), ended(2, 1990.2, signal=15)])
    assert (v.rank, v.failure) == (1, "unknown")


def test_what_sentinel_stopped_is_no_evidence_of_anybody_elses_sigterm() -> None:
    said = line("terminated", 1, 2000.5, "SignalException: Process 7 got signal: 15")
    v = verdict([ended(0), ended(1, 2000.6, stopped_by_us=True)], [said])
    assert (v.rank, v.failure, v.budget) == (0, "unknown", Budget.JOB)
    v = verdict([ended(0)], [said])
    assert (v.rank, v.failure) == (0, "unknown"), "its exit is not known yet"
    v = verdict([ended(0), ended(1)], [msgspec.structs.replace(said, at_s=1998.0)])
    assert (v.rank, v.failure, v.budget) == (1, "terminated", Budget.INFRASTRUCTURE), "it ended by itself"


def test_a_hung_rank_that_says_it_was_told_to_end_hung_all_the_same() -> None:
    v = verdict([], [line("terminated", 1, 1999.9)], signal=timing(Symptom.HANG))
    assert v.failure == "hang"


def test_only_positive_evidence_makes_a_preemption_that_costs_nothing() -> None:
    v = verdict([ended(0, signal=15)], [line("preempted", 0)], size=1)
    assert (v.failure, v.cause, v.budget) == ("preempted", Cause.PREEMPTION, Budget.FREE)


def test_an_exception_that_no_rule_names_is_tried_again_and_an_error_of_the_program_is_not() -> None:
    said = "AttributeError: 'NoneType' object has no attribute 'x'"
    for order in (1, -1):
        both = [line("exception", 0, text=said), line("user-exception", 0, text=said)][::order]
        v = verdict([ended(0)], both)
        assert (v.failure, v.restart) == ("user-exception", Restartable.NO)
    v = verdict([ended(0)], [line("exception", 0, text="RuntimeError: odd")])
    assert (v.failure, v.cause, v.restart, v.entity) == ("exception", Cause.UNKNOWN, Restartable.YES, "")
    standing = sampled(Severity.DEGRADED, 0, age_s=86_400)
    assert verdict([ended(0)], [line("exception", 0)], [standing]).failure == "exception"


def test_what_a_killed_rank_had_printed_before_is_not_its_end() -> None:
    assert verdict([ended(2, signal=9)], [line("cuda-oom", 2)]).failure == "killed"
    assert verdict([ended(2, signal=9)], [line("preempted", 2)]).failure == "preempted"


@pytest.mark.parametrize(
    "failure", ["import-error", "syntax-error", "shape-mismatch", "cuda-oom", "user-exception", "disk-quota"]
)
def test_user_errors_are_not_restarted(failure: str) -> None:
    v = verdict([ended(0)], [line(failure, 0)], steps={0: 12})
    assert (v.restart, v.scope, v.budget, v.failure) == (Restartable.NO, "job", Budget.JOB, failure)
    assert v.sentence.startswith("Rank 0 was lost after iteration 12: ")
    assert v.advice


@pytest.mark.parametrize("failure", ["storage-full", "network", "storage-io"])
def test_no_gpu_is_avoided_for_storage_or_the_network(failure: str) -> None:
    assert verdict([ended(0)], [line(failure, 0)]).entity == ""


# ---------------------------------------------------------------- disks


def disk(
    code: str = "disk-space", entity: str = "/scratch", severity: Severity = Severity.DEGRADED
) -> Finding:
    return Finding(
        check="disk",
        component=Component.DISK,
        entity=entity,
        code=code,
        severity=severity,
        action="FREE_SPACE",
        summary=f"{entity} hangs" if code == "mount-hangs" else "The file system is almost full",
        evidence=(f"{entity}: 0.00 GB of 100.00 GB free (0.0%)",),
        first_seen_wall_s=WALL_S - 5,
    )


def storage_fault(v: Verdict) -> tuple[str, Cause, Budget, Restartable, str]:
    return (v.failure, v.cause, v.budget, v.restart, v.entity)


FULL_DISK = ("storage-full", Cause.STORAGE, Budget.INFRASTRUCTURE, Restartable.YES, "")


def test_a_rank_that_finds_no_space_names_the_disk_that_is_full() -> None:
    said = line("storage-full", 3, text="OSError: [Errno 28] No space left on device: '/scratch/ckpt/3.pt'")
    v = verdict([ended(3)], [said], [disk(entity="/"), disk(), disk(entity="/tmp")], steps={3: 12})
    assert storage_fault(v) == FULL_DISK
    assert v.sentence == "Rank 3 was lost after iteration 12: /scratch is full (disk-space)."
    assert v.evidence[0] == "disk: /scratch: 0.00 GB of 100.00 GB free (0.0%)"
    assert any("Errno 28" in text for text in v.evidence)
    assert not v.confidence


@pytest.mark.parametrize("how", [{"code": 1}, {"code": 3}, {"signal": 7}, {"code": 135}])
@pytest.mark.parametrize("code", ["disk-space", "disk-inodes", "network-disk-space"])
def test_a_rank_that_dies_without_a_word_while_a_disk_is_full_died_of_that(
    how: dict[str, int], code: str
) -> None:
    v = verdict([ended(3, **how)], findings=[disk(code)])
    assert storage_fault(v) == FULL_DISK
    assert "/scratch" in v.sentence


def test_a_checkpoint_that_could_not_be_written_or_a_bare_exception_is_the_full_disks() -> None:
    assert storage_fault(verdict([ended(0)], [line("storage-io", 0)], [disk()])) == FULL_DISK
    assert storage_fault(verdict([ended(0)], [line("user-exception", 0)], [disk()])) == FULL_DISK


@pytest.mark.parametrize(
    ("how", "failure"),
    [({"signal": 9}, "killed"), ({"signal": 11}, "segfault"), ({"code": 127}, "not-found")],
)
def test_a_full_disk_does_not_explain_ends_that_explain_themselves(how: dict[str, int], failure: str) -> None:
    assert verdict([ended(0, **how)], findings=[disk()]).failure == failure


def test_a_full_disk_does_not_explain_what_a_rank_says_better_nor_a_preemption() -> None:
    assert verdict([ended(0)], [line("cuda-oom", 0)], [disk()]).failure == "cuda-oom"
    assert verdict([ended(0, signal=15)], findings=[disk()]).failure == "terminated"
    assert verdict([ended(3)], findings=[disk(), xid(79, 3)]).failure == "gpu-hardware"


def test_a_disk_that_only_fills_up_explains_nothing() -> None:
    assert verdict([ended(0)], findings=[disk(severity=Severity.WARNING)]).failure == "unknown"


def test_the_silent_rank_beside_complaining_ones_died_of_the_full_disk() -> None:
    v = verdict([ended(5), ended(1, 1999.5)], [line("nccl-timeout", 1)], [disk()])
    assert (v.failure, v.rank) == ("storage-full", 5)
    assert "rank 1" in v.sentence


def test_a_storage_error_names_the_file_system_that_broke() -> None:
    v = verdict([ended(0)], [line("storage-io", 0)], [disk("disk-read-only", "/data")])
    assert (v.failure, v.cause) == ("storage-io", Cause.STORAGE)
    assert "/data" in v.sentence


def test_a_job_that_hangs_while_a_mount_does_waits_for_that() -> None:
    hang = TimingSignal(symptom=Symptom.HANG, key="hang", sentence="No iteration for 600 s.", value=600.0)
    v = verdict(signal=hang, findings=[disk("mount-hangs", "/nfs")])
    assert (v.symptom, v.failure, v.cause, v.entity) == (Symptom.HANG, "hang", Cause.STORAGE, "")
    assert v.sentence == "No iteration for 600 s. /nfs hangs."
    told = verdict(signal=hang, findings=[disk("nfs-not-responding", "filer"), disk("mount-hangs", "/nfs")])
    assert told.sentence == v.sentence  # the mount that the job needs, before a server that it may not
    assert "filer: " in verdict(signal=hang, findings=[disk("nfs-not-responding", "filer")]).sentence
    assert verdict(signal=hang).cause is Cause.UNKNOWN


def kernel_word(code: str, entity: str, severity: Severity, **more: object) -> Finding:
    given: dict[str, object] = {
        "check": "kernel",
        "component": Component.DISK,
        "entity": entity,
        "code": code,
        "severity": severity,
        "action": "CHECK_STORAGE",
        "summary": f"what {code} means",
        "evidence": (f"a line about {entity}",),
        "event": True,
        "first_seen_wall_s": WALL_S - 5,
        "seen_mono_s": 1995.0,
    }
    return Finding(**(given | more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "code", ["mount-hangs", "nfs-not-responding", "lustre-lost", "ceph-hung", "ceph-evicted"]
)
def test_each_file_system_that_does_not_answer_explains_a_hang(code: str) -> None:
    v = verdict(signal=timing(Symptom.HANG), findings=[kernel_word(code, "filer", Severity.DEGRADED)])
    assert (v.failure, v.cause) == ("hang", Cause.STORAGE)
    assert "filer" in v.sentence
    assert any("a line about filer" in text for text in v.evidence)


def test_ranks_that_gave_up_waiting_while_a_file_server_did_not_answer_waited_for_that() -> None:
    told = [line("nccl-timeout", rank) for rank in range(1, 8)]
    silent = kernel_word("nfs-not-responding", "filer", Severity.DEGRADED)
    v = verdict([ended(rank, signal=6) for rank in range(1, 8)], told, [silent])
    assert (v.failure, v.cause, v.rank) == ("nccl-timeout", Cause.STORAGE, 0)
    assert "filer: what nfs-not-responding means." in v.sentence
    over = verdict([ended(rank, signal=6) for rank in range(1, 8)], told)
    assert over.cause is Cause.UNKNOWN
    fault = verdict([ended(3)], [line("cuda-oom", 3)], [silent])
    assert fault.failure == "cuda-oom", "it explains nothing that a rank says better"


@pytest.mark.parametrize("code", ["nfs-timed-out", "io-error", "nvme-timeout", "fs-writeback"])
def test_an_io_error_of_a_rank_names_what_the_kernel_said_about_it_just_now(code: str) -> None:
    said = [line("storage-io", 0, text="OSError: [Errno 5] Input/output error: '/data/x'")]
    v = verdict([ended(0)], said, [kernel_word(code, "filer", Severity.WARNING)])
    assert (v.failure, v.cause) == ("storage-io", Cause.STORAGE)
    assert "filer" in v.sentence
    old = verdict([ended(0)], said, [kernel_word(code, "filer", Severity.WARNING, seen_mono_s=10.0)])
    assert "filer" not in old.sentence
    assert verdict([ended(0)], [], [kernel_word(code, "filer", Severity.WARNING)]).failure == "unknown"


@pytest.mark.parametrize("code", ["hung-task", "hung-task-lasting"])
def test_a_rank_that_is_stuck_in_the_kernel_explains_a_hang(code: str) -> None:
    stuck = kernel_word(code, "pid 4003 (python)", Severity.WARNING, component=Component.KERNEL, pid=4003)
    v = verdict(signal=timing(Symptom.HANG), findings=[stuck])
    assert (v.failure, v.cause, v.rank) == ("hang", Cause.NODE, 3)
    assert "pid 4003 (python)" in v.sentence
    foreign = msgspec.structs.replace(stuck, pid=77)
    assert verdict(signal=timing(Symptom.HANG), findings=[foreign]).cause is Cause.UNKNOWN
    filer = kernel_word("nfs-not-responding", "filer", Severity.DEGRADED)
    assert verdict(signal=timing(Symptom.HANG), findings=[stuck, filer]).cause is Cause.STORAGE


def test_processes_stuck_in_the_gpus_driver_explain_a_hang() -> None:
    driver = disk("d-state-nvidia", "NVIDIA driver")
    v = verdict(signal=timing(Symptom.HANG), findings=[driver])
    assert (v.cause, v.rank) == (Cause.NODE, None)
    assert "NVIDIA driver" in v.sentence


def nic(code: str = "port-down", severity: Severity = Severity.FATAL, age_s: float = 5.0) -> Finding:
    return Finding(
        check="infiniband",
        component=Component.NIC,
        entity="mlx5_0/1",
        code=code,
        severity=severity,
        action="CHECK_CABLE",
        summary="The port is down",
        evidence=("mlx5_0/1: state 1: DOWN",),
        first_seen_wall_s=WALL_S - age_s,
    )


@pytest.mark.parametrize("failure", ["nccl-timeout", "nccl-abort", "connection", "rendezvous", "network"])
def test_ranks_that_could_not_reach_each_other_name_the_card_that_failed(failure: str) -> None:
    told = [line(failure, rank) for rank in range(8)]
    v = verdict([ended(rank) for rank in range(8)], told, [nic()])
    assert (v.failure, v.cause, v.scope, v.entity) == ("network", Cause.NETWORK, "node", "")
    assert "mlx5_0/1" in v.sentence
    assert v.evidence[0] == "infiniband: mlx5_0/1: state 1: DOWN"
    for other in (nic(severity=Severity.WARNING), nic(age_s=86_400)):  # mild, or the job has long run with it
        assert "mlx5_0/1" not in verdict([ended(rank) for rank in range(8)], told, [other]).sentence
    assert verdict([ended(3)], [line("import-error", 3)], [nic()]).failure == "import-error"


def test_a_job_that_hangs_since_a_port_is_down_waits_for_that() -> None:
    v = verdict(signal=timing(Symptom.HANG), findings=[nic()])
    assert (v.failure, v.cause) == ("hang", Cause.NETWORK)
    assert "mlx5_0/1: The port is down." in v.sentence


def broken_memory(pid: int | None = None) -> Finding:
    return kernel_word(
        "memory-poisoned" if pid else "memory-uncorrected",
        "DIMM 3",
        Severity.FATAL,
        component=Component.SYSTEM,
        pid=pid,
        action="CHECK_MEMORY",
    )


def test_a_rank_that_the_kernel_killed_for_broken_memory_did_not_break_by_itself() -> None:
    for matches in ([], [line("import-error", 5)], [line("segfault", 5)]):
        v = verdict([ended(5, signal=7), ended(1)], matches, [broken_memory(4005)])
        assert (v.failure, v.cause, v.scope, v.rank) == ("node-fault", Cause.NODE, "node", 5)
        assert "DIMM 3" in v.sentence


def test_broken_memory_explains_an_end_that_could_be_anything_and_no_other() -> None:
    for how in ({"signal": 11}, {"code": 1}):
        assert verdict([ended(5, **how)], [], [broken_memory()]).failure == "node-fault"
    for failure in ("import-error", "cuda-oom", "storage-full"):
        assert verdict([ended(5)], [line(failure, 5)], [broken_memory()]).failure == failure
    assert (
        verdict([ended(rank, signal=15) for rank in range(8)], [], [broken_memory()]).failure == "terminated"
    )
    old = msgspec.structs.replace(broken_memory(), seen_mono_s=10.0)
    assert verdict([ended(5, signal=11)], [], [old]).failure == "segfault"


def test_an_exception_about_a_path_on_a_mount_that_is_missing_is_the_mounts() -> None:
    missing = disk("mount-missing", "/data", Severity.WARNING)
    said = "FileNotFoundError: [Errno 2] No such file or directory: '{}'"
    v = verdict([ended(0)], [line("user-exception", 0, text=said.format("/data/train/0.bin"))], [missing])
    assert (v.failure, v.cause, v.restart) == ("storage-io", Cause.STORAGE, Restartable.YES)
    assert "/data" in v.sentence
    for path in ("/database/x", "data/x", "/home/data/x.py"):
        v = verdict([ended(0)], [line("user-exception", 0, text=said.format(path))], [missing])
        assert v.failure == "user-exception", path
    root = disk("fs-errors", "/", Severity.WARNING)
    assert (
        verdict([ended(0)], [line("user-exception", 0, text=said.format("/x"))], [root]).failure
        == "user-exception"
    )


def test_a_data_loader_whose_worker_the_kernel_killed_ran_out_of_memory() -> None:
    said = [
        line("dataloader", 2, text="RuntimeError: DataLoader worker (pid 5011) is killed by signal: Killed.")
    ]
    killed = kernel_word(
        "oom-kill", "pid 5011 (python)", Severity.WARNING, component=Component.SYSTEM, pid=5011, job="slurm 7"
    )
    v = verdict([ended(2)], said, [killed])
    assert (v.failure, v.cause, v.rank) == ("host-oom", Cause.HOST_MEMORY, 2)
    assert "pid 5011 (python)" in v.sentence
    assert verdict([ended(2)], said, [msgspec.structs.replace(killed, pid=501)]).failure == "dataloader"


def test_a_kill_for_memory_of_another_job_explains_nothing() -> None:
    foreign = kernel_word("oom-kill", "pid 99 (java)", Severity.WARNING, component=Component.SYSTEM, pid=99)
    assert verdict([ended(2, signal=9)], [], [foreign]).failure == "killed"


# ---------------------------------------------------------------- the ambiguous


def past(failure: str, entity: str = "", step: int | None = None, age_s: float = 600.0) -> Failure:
    return Failure(wall_s=WALL_S - age_s, failure=failure, budget=Budget.JOB, step=step, entity=entity)


def test_an_ambiguous_failure_is_retried_once() -> None:
    v = verdict([ended(2, signal=11)])
    assert (v.restart, v.entity, v.scope) == (Restartable.ONCE, GPUS[2], "job")


def test_what_another_program_met_on_the_gpu_before_says_nothing_of_this_one() -> None:
    seen = [xid(43, 0, Severity.WARNING, action="IGNORE", event=True, seen_mono_s=1900.0)]
    gone, waited = [ended(0, signal=6)], [line("nccl-timeout", 0, 1990.0)]
    assert verdict(gone, findings=seen, size=1, started_s=1800.0).failure == "illegal-access"
    own = [
        msgspec.structs.replace(seen[0], pid=PIDS[0])
    ]  # its first seconds, before it was known to have begun
    assert verdict(gone, findings=own, size=1, started_s=1950.0).failure == "illegal-access"
    v = verdict(gone, waited, seen, size=1, started_s=1950.0)
    assert (v.failure, v.cause) == ("nccl-timeout", Cause.UNKNOWN)
    assert "XID" not in v.sentence


def test_what_the_driver_stops_after_ranks_complained_of_each_other_is_not_why_they_did() -> None:
    gone, waited = [ended(0, signal=6)], [line("nccl-timeout", 0, 1990.0)]
    for at_s, failure in ((1980.0, "illegal-access"), (1995.0, "nccl-timeout")):
        seen = [xid(43, 0, Severity.WARNING, action="IGNORE", event=True, seen_mono_s=at_s)]
        assert verdict(gone, waited, seen, size=1).failure == failure


def test_an_ambiguous_failure_on_another_gpu_follows_the_job() -> None:
    v = verdict([ended(2, signal=11)], history=[past("segfault", GPUS[5])])
    assert (v.restart, v.cause, v.scope, v.entity) == (Restartable.NO, Cause.USER_CODE, "job", "")
    assert "follows the job" in v.sentence


def test_an_ambiguous_failure_on_the_same_gpu_is_the_gpus() -> None:
    v = verdict([ended(2, signal=11)], history=[past("segfault", GPUS[2], step=100)], steps={2: 250})
    assert (v.restart, v.cause, v.scope) == (Restartable.YES, Cause.GPU, "node")
    assert (v.budget, v.entity) == (Budget.INFRASTRUCTURE, GPUS[2])


def test_what_a_programs_own_kernels_do_twice_on_one_gpu_is_the_programs_unless_it_came_further() -> None:
    """Only what other jobs met on the card speaks against it, and that is in the finding."""
    own = xid(31, 2, Severity.WARNING)
    before = [past("illegal-access", GPUS[2], step=250)]
    v = verdict([ended(2)], findings=[own], history=before, steps={2: 100})
    assert (v.restart, v.cause, v.scope) == (Restartable.NO, Cause.USER_CODE, "job")
    assert "no other job" in v.sentence
    further = verdict([ended(2)], findings=[own], history=before, steps={2: 900})
    assert (further.restart, further.cause) == (Restartable.ONCE, Cause.USER_CODE)
    shared = xid(31, 2, Severity.DEGRADED)
    v = verdict([ended(2)], findings=[shared], history=before, steps={2: 100})
    assert (v.restart, v.cause, v.scope) == (Restartable.YES, Cause.GPU, "node")


def test_of_a_log_that_names_no_steps_a_long_run_is_taken_to_have_come_further() -> None:
    """What one start made in iterations says nothing of a later one, which began further on."""
    gone, nowhere, counted = [ended(2, signal=11)], dict[int, str](), {2: 248}
    before = [structs.replace(past("segfault", step=900), run_s=1000.0)]

    def again(run_s: float) -> Verdict:
        return verdict(gone, entities=nowhere, history=before, steps=counted, steps_told=False, run_s=run_s)

    assert again(run_s=4600.0).restart is Restartable.ONCE
    assert again(run_s=4600.0).sentence.startswith("Rank 2 was lost after 248 iterations: ")
    assert again(run_s=1600.0).restart is Restartable.NO


def test_an_ambiguous_failure_at_the_very_same_iteration_is_the_programs() -> None:
    v = verdict([ended(2, signal=11)], history=[past("segfault", GPUS[2], step=250)], steps={2: 250})
    assert (v.restart, v.cause) == (Restartable.NO, Cause.USER_CODE)


def test_an_ambiguous_failure_without_known_hardware_is_the_programs_unless_it_came_further() -> None:
    again = verdict([ended(0, signal=11)], entities={}, history=[past("segfault")])
    assert again.restart is Restartable.NO
    further = verdict(
        [ended(0, signal=11)], entities={}, history=[past("segfault", step=10)], steps={0: 5000}
    )
    assert further.restart is Restartable.ONCE
    first = verdict([ended(0, signal=11)], entities={}, history=[past("segfault")], steps={0: 5000})
    assert first.restart is Restartable.ONCE, "the one before had not come to a step"


def test_other_and_old_failures_do_not_count() -> None:
    history = [past("segfault", GPUS[5], age_s=200_000), past("killed", GPUS[5])]
    assert verdict([ended(2, signal=11)], history=history).restart is Restartable.ONCE


# ---------------------------------------------------------------- timing and findings alone


def timing(symptom: Symptom, rank: int | None = None, value: float = 0.7) -> TimingSignal:
    return TimingSignal(
        symptom=symptom,
        key=str(symptom),
        rank=rank,
        value=value,
        sentence="What timing says.",
        evidence=("numbers",),
        confidence="sure",
    )


@pytest.mark.parametrize(
    ("symptom", "failure", "cause"),
    [
        (Symptom.SLOW, "slow", Cause.UNKNOWN),
        (Symptom.STARVED, "starved", Cause.DATA),
        (Symptom.STRAGGLER, "straggler", Cause.NODE),
        (Symptom.HANG, "hang", Cause.UNKNOWN),
    ],
)
def test_a_timing_signal_alone_is_a_verdict(symptom: Symptom, failure: str, cause: Cause) -> None:
    v = verdict(signal=timing(symptom, 3))
    assert (v.symptom, v.failure, v.cause, v.rank) == (symptom, failure, cause, 3)
    assert v.sentence == "What timing says."
    assert "numbers" in v.evidence
    assert v.confidence == "sure"


def test_a_straggler_on_a_throttling_gpu_names_the_gpu() -> None:
    throttle = sampled(Severity.WARNING, 3, age_s=60, code="throttle")
    v = verdict(signal=timing(Symptom.STRAGGLER, 3), findings=[throttle, sampled(Severity.WARNING, 1, 60)])
    assert (v.cause, v.entity, v.failure) == (Cause.GPU, GPUS[3], "straggler")
    assert "GPU 0000:13:00.0" in v.sentence


def test_starving_blames_no_gpu() -> None:
    v = verdict(signal=timing(Symptom.STARVED), findings=[sampled(Severity.DEGRADED, 3, 60)])
    assert (v.failure, v.entity) == ("starved", "")


def test_a_hang_with_hardware_evidence_is_the_gpus() -> None:
    v = verdict(signal=timing(Symptom.HANG, value=60.0), findings=[xid(79, 3)])
    assert (v.symptom, v.failure, v.rank, v.entity) == (Symptom.HANG, "gpu-hardware", 3, GPUS[3])
    assert v.sentence == "What timing says: GPU 0000:13:00.0 fell off the bus (XID 79)."


def test_a_hang_after_an_exception_is_explained_by_it() -> None:
    v = verdict([], [line("cuda-oom", 2, 1950.0)], signal=timing(Symptom.HANG, value=60.0))
    assert (v.symptom, v.failure, v.rank) == (Symptom.HANG, "cuda-oom", 2)
    before = verdict([], [line("cuda-oom", 2, 1900.0)], signal=timing(Symptom.HANG, value=60.0))
    assert before.failure == "hang", "the job had gone on after that line"


def test_a_hang_with_timeouts_on_all_ranks_but_one_names_that_one() -> None:
    told = [line("nccl-timeout", rank, 1990.0) for rank in range(8) if rank != 4]
    v = verdict([], told, signal=timing(Symptom.HANG, value=700.0))
    assert (v.symptom, v.rank) == (Symptom.HANG, 4)


def test_a_finding_alone_is_told_for_the_rank_that_uses_the_gpu() -> None:
    v = verdict(findings=[xid(79, 6), sampled(Severity.WARNING, 2, 60)])
    assert (v.symptom, v.failure, v.rank, v.entity) == (Symptom.FINDING, "gpu-hardware", 6, GPUS[6])
    assert v.sentence == "GPU 0000:16:00.0 fell off the bus (XID 79), used by rank 6."


# ---------------------------------------------------------------- always


def test_evidence_is_short_and_clean() -> None:
    noisy = [line("connection", rank, text="\x1b[31mred\x00 " + "x" * 400) for rank in range(8)]
    many = [line(name, 0, text=f"{name} line {k}") for k in range(5) for name in ("gpu-ecc", "nvlink")]
    v = verdict([ended(rank) for rank in range(8)], [*many, *noisy])
    assert len(v.evidence) <= 10
    assert all(len(text) <= 320 and text.isprintable() for text in v.evidence)
    assert all(":" in text for text in v.evidence)


_exits = st.lists(
    st.builds(
        RankExit,
        rank=st.integers(0, 7),
        incarnation=st.just(1),
        at_s=st.floats(1000, 2000),
        code=st.none() | st.integers(0, 255),
        signal=st.none() | st.integers(1, 31),
        oom_killed=st.booleans(),
        stopped_by_us=st.booleans(),
    ),
    max_size=8,
    unique_by=lambda e: e.rank,
)
_matches = st.lists(
    st.builds(
        line,
        st.sampled_from([*CLASSES, "activity:saving", "no-such-class"]),
        st.integers(0, 7),
        st.floats(1000, 2000),
        st.text(max_size=40),
        st.none() | st.floats(WALL_S - 9000, WALL_S + 100),
    ),
    max_size=12,
)
_findings = st.lists(
    st.builds(
        xid,
        st.sampled_from([13, 31, 45, 48, 74, 79, 94, 999]),
        st.integers(0, 7),
        st.sampled_from(list(Severity)),
        event=st.booleans(),
        pid=st.none() | st.integers(3999, 4008),
        component=st.sampled_from(list(Component)),
    ),
    max_size=4,
)
_signals = st.none() | st.builds(
    timing, st.sampled_from([Symptom.HANG, Symptom.SLOW, Symptom.STRAGGLER]), st.none() | st.integers(0, 7)
)
_history = st.lists(
    st.builds(past, st.sampled_from(list(CLASSES)), st.sampled_from(["", *GPUS.values()])), max_size=4
)
_steps = st.dictionaries(st.integers(0, 7), st.none() | st.integers(0, 9), max_size=8)


@given(_exits, _matches, _findings, _signals, _history, _steps, st.sampled_from([1, 8]))
@settings(max_examples=400)
def test_whatever_comes_there_is_one_readable_verdict(
    exits: list[RankExit],
    matches: list[LogMatch],
    findings: list[Finding],
    signal: TimingSignal | None,
    history: list[Failure],
    steps: dict[int, int | None],
    size: int,
) -> None:
    v = verdict(exits, matches, findings, signal, size, steps, history=history)
    assert v.failure in CLASSES
    assert v.sentence[0].isupper()
    assert v.sentence.endswith(".")
    assert "{" not in v.sentence
    assert len(v.evidence) <= 10
    assert v.advice
    lost = [e for e in exits if not e.ok and not e.stopped_by_us]
    assert (v.symptom is Symptom.RANK_LOST) == bool(lost)
    of_others = CLASSES[v.failure].role in ("cascade", "report", "abort")
    hard = any(e.oom_killed or e.signal in (9, 11) for e in lost)
    assert not (of_others and hard), "a cascade or a report never wins over a death that explains itself"


def test_an_abort_by_the_watchdog_of_nccl_is_its_timeout_and_names_who_was_missing() -> None:
    """The lines are in the order of PyTorch's ProcessGroupNCCL; that of `terminate` names no class of its own."""
    matches = []
    for rank in (0, 1, 2):
        matches += [
            line(
                "nccl-timeout",
                rank,
                1995.0,
                "Watchdog caught collective operation timeout: WorkNCCL(",
            ),
            line(
                "nccl-abort",
                rank,
                1996.0,
                "To avoid data inconsistency, we are taking the entire process down.",
            ),
            line(
                "nccl-abort",
                rank,
                1996.1,
                "  what():  Process group watchdog thread terminated with exception: ",
            ),
        ]
    exits = [ended(rank, 1997.0, signal=6) for rank in (0, 1, 2)]
    v = verdict(exits, matches, size=4)
    assert (v.failure, v.rank, v.restart) == ("nccl-timeout", 3, Restartable.YES)
    assert "it did not join a collective operation" in v.sentence


# ---------------------------------------------------------------- launchers, and ends that follow others


WORKERS = {1300 + number: (0, number) for number in range(4)}
GLOO = "[rank{}]: RuntimeError: [gloo/transport/tcp/pair.cc:561] Connection closed by peer"


def orphan(number: int, code: int | None = None, signal: int | None = None, oom: bool = False) -> Orphan:
    return Orphan(1300 + number, code, signal, oom)


@pytest.mark.parametrize(
    ("orphans", "failure", "worker", "said"),
    [
        ((orphan(1, signal=9),), "killed", 1, "one of its processes had ended (killed by signal 9)"),
        ((orphan(1, signal=11), orphan(2, 1)), "segfault", 1, "(killed by signal 11)"),
        ((orphan(2, signal=9, oom=True),), "host-oom", 2, "the kernel killed one of its processes"),
        ((orphan(1, 1), orphan(3, 1)), "rank-exit", 3, "one of its processes had ended (exit code 1)"),
        ((orphan(2, 1), orphan(3, 1)), "connection", None, "Connection"),  # which was the first?
        ((orphan(1, 1),), "connection", None, "Connection"),  # it lost its peer too
        ((Orphan(99, None, 9, False),), "connection", None, "Connection"),  # a helper
        ((orphan(2, signal=15),), "connection", None, "Connection"),  # told to end
    ],
)
def test_of_a_launcher_that_lost_its_peer_before_it_saw_its_process_end_that_process_is_named(
    orphans: tuple[Orphan, ...], failure: str, worker: int | None, said: str
) -> None:
    lines = [line("connection", 0, 1998.0, GLOO.format(number)) for number in (0, 1)]
    v = verdict([ended(0, code=1, orphans=orphans)], lines, size=1, workers=WORKERS)
    assert (v.failure, v.rank, v.worker) == (failure, 0, worker)
    assert said.lower() in v.sentence.lower()


def test_a_process_that_the_watchdog_of_nccl_ended_does_not_explain_the_end_of_its_launcher() -> None:
    said = "[E ProcessGroupNCCL.cpp:474] [Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4)"
    lines = [line("nccl-timeout", 0, 1998.0, said.format(number)) for number in (0, 2, 3)]
    v = verdict([ended(0, code=1, orphans=(orphan(0, signal=6),))], lines, size=1, workers=WORKERS)
    assert (v.failure, v.worker) == ("nccl-timeout", 1)


def test_whose_exception_it_was_is_told_by_its_mark_also_where_a_launcher_reports_nothing() -> None:
    raised = line("exception", 0, 1998.0, "[rank1]: RuntimeError: x")
    v = verdict([ended(0, code=1)], [raised], size=1, workers=WORKERS)
    assert (v.failure, v.worker) == ("exception", 1)
    v = verdict([ended(0, code=1)], [raised], size=1, workers={1300: (0, 0)})  # it has started no other
    assert (v.failure, v.worker) == ("exception", None)


def test_what_a_program_says_of_its_own_end_goes_before_the_end_of_its_processes() -> None:
    raised = line("user-exception", 0, 1998.0, "NameError: x")
    failed = (orphan(1, signal=9),)
    v = verdict([ended(0, code=1, orphans=failed)], [raised], size=1, workers=WORKERS)
    assert (v.failure, v.worker) == ("user-exception", None)
    v = verdict([ended(0, signal=11, orphans=failed)], size=1, workers=WORKERS)
    assert (v.failure, v.worker) == ("segfault", None)
    v = verdict([ended(0, code=1, orphans=failed)], reported(0, 1998.0, 0), size=1, workers=WORKERS)
    assert (v.failure, v.worker) == ("rank-exit", 0)
    v = verdict([ended(0, signal=15, orphans=failed)], size=1, workers=WORKERS)
    assert (v.failure, v.worker) == ("terminated", None)


REPORTED = "failed (exitcode: 3) local_rank: {} (pid: 1300) of binary: /venv/bin/python3"
FAILED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "


def reported(rank: int, at_s: float, local: int = 1) -> list[LogMatch]:
    return [
        line("rank-exit", rank, at_s, REPORTED.format(local)),
        line("rank-exit", rank, at_s + 0.1, FAILED),
    ]


@pytest.mark.parametrize("size", [2, 8])
def test_a_launcher_that_reports_the_end_of_its_own_process_waited_for_nobody(size: int) -> None:
    v = verdict([ended(0)], reported(0, 1998.0), size=size)
    assert (v.failure, v.rank, v.budget) == ("rank-exit", 0, Budget.JOB)
    assert "It was rank 1 of those that a launcher had started." in v.sentence


@pytest.mark.parametrize(
    "others",
    [
        [],
        [
            line("connection", 1, 1998.5, "[rank8]: RuntimeError: Connection closed by peer"),
            *reported(1, 1999.0, 0),
        ],
        [line("nccl-timeout", 1, 1998.5)],
    ],
    ids=["silent", "connection", "timeout"],
)
def test_of_several_launchers_the_one_whose_process_ended_without_a_complaint_is_named(
    others: list[LogMatch],
) -> None:
    v = verdict([ended(0, 1998.2), ended(1)], [*reported(0, 1998.0), *others], size=2)
    assert (v.failure, v.rank, v.budget) == ("rank-exit", 0, Budget.JOB)


@pytest.mark.parametrize(
    ("failure", "restart"), [("exception", Restartable.YES), ("user-exception", Restartable.NO)]
)
def test_a_launchers_report_hides_no_exception_that_its_process_raised(
    failure: str, restart: Restartable
) -> None:
    first_try = line("rank-exit", 0, 1970.0, REPORTED.format(1))
    raised = line(failure, 0, 1997.0, "[rank1]: SomeError: x")
    v = verdict([ended(0)], [first_try, raised, *reported(0, 1998.0)], size=1)
    assert (v.failure, v.restart) == (failure, restart)


def test_whoever_told_a_rank_to_end_says_more_than_that_it_was_told() -> None:
    told = line("terminated", 0, 1970.0, "Received 15 death signal, shutting down workers")
    v = verdict([ended(0)], [told, line("preempted", 0, 1999.0)], size=1)
    assert (v.failure, v.budget) == ("preempted", Budget.FREE)
    pod = ended(0, signal=15, failure="pod-preempted", told_s=2000.0)
    assert verdict([pod], [msgspec.structs.replace(told, at_s=1990.0)], size=1).failure == "pod-preempted"


def test_the_teardown_of_a_launcher_after_its_process_had_ended_is_no_sigterm_of_others() -> None:
    told = line("terminated", 0, 1998.5, "SignalException: Process 7 got signal: 15")
    assert verdict([ended(0)], [*reported(0, 1998.0), told], size=1).failure == "rank-exit"


def test_a_standing_sample_of_a_gpu_does_not_explain_the_end_of_one_of_a_launchers_processes() -> None:
    def told(finding: Finding) -> str:
        return verdict([ended(0)], reported(0, 1998.0), [finding], size=1).failure

    assert told(sampled(Severity.DEGRADED, 0, age_s=86_400)) == "rank-exit"
    assert told(sampled(Severity.DEGRADED, 0, age_s=400)) == "gpu-hardware", "it came up just before"
    assert told(sampled(Severity.FATAL, 0, age_s=86_400)) == "gpu-hardware"
    assert told(xid(79, 0)) == "gpu-hardware"


def test_a_launcher_that_is_still_tearing_down_tells_why_another_one_failed() -> None:
    killed = line("killed", 0, 1997.0, "failed (exitcode: -9) local_rank: 1 (pid: 1300) of binary: x")
    v = verdict([ended(1)], [killed], size=2)
    assert (v.failure, v.rank) == ("killed", 0)
    hung = [msgspec.structs.replace(killed, at_s=1999.0)]
    assert verdict([], hung, signal=timing(Symptom.HANG), size=1).failure == "killed"
    v = verdict([ended(1, signal=9)], [killed], size=2)
    assert (v.failure, v.rank) == ("killed", 1), "of a log that is another rank's"


def test_a_later_eviction_of_another_pod_is_not_what_told_a_rank_to_end() -> None:
    told = line("terminated", 0, 1989.0, "Received 15 death signal, shutting down workers")
    evicted = ended(5, 1999.0, signal=15, failure="pod-evicted", told_s=1998.0)
    assert verdict([ended(0, 1990.0), evicted], [told]).failure == "terminated"


def test_ranks_that_were_interrupted_after_another_end_do_not_explain_it() -> None:
    torn_down = [ended(rank, 1999.1, code=130) for rank in range(1, 8)]
    v = verdict([ended(0), *torn_down])
    assert (v.failure, v.rank, v.restart) == ("unknown", 0, Restartable.YES)
    v = verdict([ended(0), *torn_down], [line("nccl-abort", 0, 1998.0)])
    assert v.restart is Restartable.YES
    said = line("interrupted", 3, 1999.0, "SignalException: Process 1294 got signal: 2")
    assert verdict([ended(0), *torn_down], [said]).failure == "unknown"
    early = msgspec.structs.replace(said, at_s=1990.0)
    assert verdict([ended(0), ended(3, 1999.2)], [early]).failure == "interrupted", (
        "before anything else ended"
    )
    v = verdict([ended(3, 1998.0), *torn_down[:2]], [said])
    assert (v.failure, v.rank, v.restart) == ("interrupted", 3, Restartable.NO)


def test_a_rank_that_no_launcher_started_is_not_said_to_be_a_launchers() -> None:
    v = verdict(
        [ended(0)], [line("cuda-oom", 0, text="[rank0]: torch.OutOfMemoryError: CUDA out of memory.")], size=1
    )
    assert "launcher" not in v.sentence
    v = verdict(
        [ended(3)], [line("cuda-oom", 3, text="RuntimeError: CUDA error: out of memory (local_rank: 3)")]
    )
    assert "launcher" not in v.sentence


def test_only_the_pid_of_a_launchers_report_is_a_pid() -> None:
    killed = line(
        "killed",
        0,
        text="E1125 1253 api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 1300) of binary: x",
    )
    oom = xid(0, 0, Severity.WARNING, code="oom-kill", component=Component.SYSTEM, entity="host")
    for pid, failure in ((1002, "killed"), (1253, "killed"), (1300, "host-oom")):
        assert (
            verdict([ended(0)], [killed], [msgspec.structs.replace(oom, pid=pid)], size=1).failure == failure
        )


def test_a_full_disk_explains_the_end_of_a_launchers_process_that_says_nothing_better() -> None:
    assert storage_fault(verdict([ended(0)], reported(0, 1998.0), [disk()], size=1)) == FULL_DISK
