"""How findings live: folded, escalated, explained, ended; bounded under a flood; kept over a restart."""

from typing import Any

import msgspec
import pytest

from sentinel.checks.findings import (
    CLEAN_SAMPLES,
    KEPT_S,
    MAX_FINDINGS,
    BookState,
    FindingBook,
)
from sentinel.checks.repeats import MAX_JOBS, MAX_PLACES
from sentinel.checks.xid import RepeatRow, finding_of, severities
from sentinel.core.health import Component, Finding, Severity
from sentinel.core.now import Now
from sentinel.logs.kernel import parse_kernel

BOOT = "boot-1"


def xid(clock: Any, number: int, pci: str = "0000:18:00", rest: str = "") -> Finding:
    event = parse_kernel(f"NVRM: Xid (PCI:{pci}): {number}, {rest}")
    assert event is not None
    now = clock()
    return finding_of(event, now.wall_s, now.mono_s, BOOT)


def full_disk(path: str = "/scratch") -> Finding:
    return Finding(
        check="disk",
        component=Component.DISK,
        entity=path,
        code="disk-space",
        severity=Severity.DEGRADED,
        action="FREE_SPACE",
        summary="full",
    )


def test_a_sampled_finding_ends_only_after_several_clean_samples(clock: Any) -> None:
    book = FindingBook(BOOT)
    book.fold("disk", [full_disk()], clock())
    for _ in range(CLEAN_SAMPLES - 1):
        book.fold("disk", [], clock())
        assert book.active()
    book.fold("disk", [full_disk()], clock())  # it flaps: the count of clean samples starts again
    for _ in range(CLEAN_SAMPLES - 1):
        book.fold("disk", [], clock())
        assert book.active()
    book.fold("disk", [], clock())
    assert book.active() == ()


def test_a_clean_sample_of_another_check_ends_nothing(clock: Any) -> None:
    book = FindingBook(BOOT)
    book.fold("disk", [full_disk()], clock())
    for _ in range(5):
        book.fold("memory", [], clock())
    assert book.active("disk")


def test_a_sampled_finding_follows_the_newest_sample(clock: Any) -> None:
    book = FindingBook(BOOT)
    book.fold("disk", [full_disk()], clock())
    book.fold("disk", [msgspec.structs.replace(full_disk(), severity=Severity.WARNING)], clock())
    assert [finding.severity for finding in book.active()] == [Severity.WARNING]


def test_repeats_are_one_finding_with_count_first_and_last_time(clock: Any) -> None:
    book = FindingBook(BOOT)
    first = clock().wall_s
    for index in range(100):
        clock.mono_s += 1
        book.fold("kernel", [xid(clock, 13, rest=f"line {index}")], clock())
    (finding,) = book.active()
    assert finding.count == 100
    assert (finding.first_seen_wall_s, finding.last_seen_wall_s) == (first + 1, first + 100)
    assert len(finding.evidence) <= 6
    assert "line 0" in finding.evidence[0]
    assert "line 99" in finding.evidence[-1]


def test_the_same_fault_of_another_card_is_another_finding(clock: Any) -> None:
    book = FindingBook(BOOT)
    book.fold("kernel", [xid(clock, 79, "0000:18:00"), xid(clock, 79, "0000:2a:00")], clock())
    assert len(book.active()) == 2


def test_an_event_ends_by_time_and_the_worse_stays_longer(clock: Any) -> None:
    book = FindingBook(BOOT)
    book.fold("kernel", [xid(clock, 13), xid(clock, 79)], clock())
    for _ in range(5):
        book.fold("kernel", [], clock())
    assert len(book.active()) == 2  # samples without it say nothing about an event
    clock.mono_s += KEPT_S[Severity.WARNING] + 1
    book.fold("kernel", [], clock())
    assert [finding.code for finding in book.active()] == ["XID 79"]
    clock.mono_s += KEPT_S[Severity.FATAL]
    book.fold("kernel", [], clock())
    assert book.active() == ()


def test_an_old_line_read_for_the_first_time_is_history(clock: Any) -> None:
    book = FindingBook(BOOT)
    old = xid(clock, 13)
    clock.mono_s += KEPT_S[Severity.WARNING] + 1
    book.fold("kernel", [old], clock())
    assert book.active() == ()


def test_a_person_ends_a_finding_and_a_new_occurrence_counts_again(clock: Any) -> None:
    book = FindingBook(BOOT)
    book.fold("kernel", [xid(clock, 79)], clock())
    (finding,) = book.active()
    assert book.clear(finding.key)
    assert not book.clear(finding.key)
    assert book.active() == ()
    book.fold("kernel", [xid(clock, 79)], clock())
    assert book.active()[0].count == 1


def test_a_second_contained_error_of_one_card_within_a_day_escalates(clock: Any) -> None:
    book = FindingBook(BOOT)
    book.fold("kernel", [xid(clock, 94, "0000:18:00"), xid(clock, 94, "0000:2a:00")], clock())
    assert {finding.severity for finding in book.active()} == {Severity.WARNING}
    clock.mono_s += 3600
    book.fold("kernel", [xid(clock, 94, "0000:18:00")], clock())
    assert {finding.entity: finding.severity for finding in book.active()} == {
        "GPU 0000:18:00.0": Severity.DEGRADED,
        "GPU 0000:2a:00.0": Severity.WARNING,
    }
    assert "wearing out" in book.active()[0].summary


def test_the_driver_takes_its_recovery_action_back(clock: Any) -> None:
    book = FindingBook(BOOT)
    wanted = xid(clock, 154, rest="GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
    done = xid(clock, 154, rest="GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")
    book.fold("kernel", [wanted], clock())
    assert book.active()[0].severity is Severity.FATAL
    book.fold("kernel", [done], clock())
    assert book.active()[0].severity is Severity.INFO


def recovery(clock: Any, was: str, now: str, pci: str = "0000:18:00") -> Finding:
    return xid(clock, 154, pci, f"GPU recovery action changed from 0x1 ({was}) to 0x0 ({now})")


def test_a_reset_of_the_card_ends_what_asked_for_it_on_that_card_and_nothing_else(clock: Any) -> None:
    book = FindingBook(BOOT)
    for pci in ("0000:18:00", "0000:2a:00"):
        book.add([xid(clock, 119, pci), xid(clock, 13, pci), xid(clock, 79, pci)], clock())
        book.add([recovery(clock, "None", "GPU Reset Required", pci)], clock())
    clock.mono_s += 60
    book.add([recovery(clock, "GPU Reset Required", "None")], clock())
    assert {(item.entity[-7:], item.code) for item in book.active()} == {
        ("18:00.0", "XID 13"),
        ("18:00.0", "XID 79"),  # needs the machine to start again
        ("18:00.0", "XID 154"),
        ("2a:00.0", "XID 13"),
        ("2a:00.0", "XID 79"),
        ("2a:00.0", "XID 154"),
        ("2a:00.0", "XID 119"),
    }
    book.add([xid(clock, 119)], clock())
    assert "XID 119" in {item.code for item in book.active() if item.severity is Severity.FATAL}


def test_a_fault_after_the_reset_stands_though_its_line_is_read_before_the_drivers_word(clock: Any) -> None:
    book = FindingBook(BOOT)
    book.add([recovery(clock, "None", "GPU Reset Required")], clock())
    done = recovery(clock, "GPU Reset Required", "None")
    clock.mono_s += 1
    book.add([xid(clock, 119), done], clock())
    assert "XID 119" in {item.code for item in book.active()}


def test_a_driver_that_never_asked_for_a_reset_ends_nothing_by_asking_for_none(clock: Any) -> None:
    book = FindingBook(BOOT)
    book.add([xid(clock, 119), recovery(clock, "None", "None")], clock())
    book.add([recovery(clock, "None", "None")], clock())
    assert "XID 119" in {item.code for item in book.active()}


def test_a_milder_line_of_the_same_fault_does_not_hide_the_worse_one(clock: Any) -> None:
    book = FindingBook(BOOT)
    book.fold(
        "kernel", [xid(clock, 74, rest="NVLink: fatal error detected"), xid(clock, 74, rest="x")], clock()
    )
    (finding,) = book.active()
    assert (finding.severity, finding.action) == (Severity.FATAL, "RESET_GPU")


def ecc(clock: Any, after_s: float = 30.0) -> Finding:
    """Uncorrected errors that a sample found which came `after_s` after the one before."""
    now = clock()
    return Finding(
        check="nvml",
        component=Component.GPU,
        entity="GPU 0000:18:00.0",
        code="ecc-uncorrected",
        severity=Severity.FATAL,
        action="RESET_GPU",
        summary="uncorrected errors",
        event=True,
        first_seen_wall_s=now.wall_s - after_s,
        last_seen_wall_s=now.wall_s,
        seen_mono_s=now.mono_s,
    )


def ecc_of(book: FindingBook) -> Finding:
    (found,) = [finding for finding in book.active() if finding.code == "ecc-uncorrected"]
    return found


def test_an_ecc_count_that_a_contained_error_explains_does_not_isolate(clock: Any) -> None:
    book = FindingBook(BOOT)
    book.fold("nvml", [ecc(clock)], clock())
    assert ecc_of(book).severity is Severity.FATAL
    book.fold("kernel", [xid(clock, 94, "0000:2a:00")], clock())  # another card explains nothing
    assert ecc_of(book).severity is Severity.FATAL
    book.fold("kernel", [xid(clock, 94, "0000:18:00")], clock())
    assert ecc_of(book).severity is Severity.WARNING
    assert "explained by XID 94" in ecc_of(book).summary


def test_what_a_contained_error_explained_does_not_isolate_when_that_has_ended(clock: Any) -> None:
    for explained_first in (True, False):
        book = FindingBook(BOOT)
        both = [xid(clock, 94), ecc(clock)]
        for finding in both if explained_first else reversed(both):
            book.add([finding], clock())
        clock.mono_s += 3600
        book = after_restart(book, clock)
        assert ecc_of(book).severity is Severity.WARNING
        clock.mono_s += KEPT_S[Severity.WARNING]
        book.fold("kernel", [], clock())
        assert book.active() == ()


def test_each_growth_of_an_ecc_count_needs_a_contained_error_of_its_own(clock: Any) -> None:
    book = FindingBook(BOOT)
    for _ in range(2):
        book.add([xid(clock, 94)], clock())
        book.add([ecc(clock)], clock())
        assert ecc_of(book).severity is Severity.WARNING
        clock.mono_s += 3600
    book.add([ecc(clock)], clock())
    assert ecc_of(book).severity is Severity.FATAL
    clock.mono_s += 3600
    book.add([ecc(clock)], clock())
    book.add([xid(clock, 94)], clock())
    assert ecc_of(book).severity is Severity.FATAL  # the one before was not explained


def test_a_contained_error_while_no_agent_ran_explains_what_the_next_one_finds(clock: Any) -> None:
    book = FindingBook(BOOT)
    line = xid(clock, 94)
    clock.mono_s += 1800
    book.add([line, ecc(clock, after_s=3600.0)], clock())
    assert ecc_of(book).severity is Severity.WARNING
    clock.mono_s += 1800
    book.add([ecc(clock)], clock())
    assert ecc_of(book).severity is Severity.FATAL


def test_a_flood_keeps_every_distinct_fault(clock: Any) -> None:
    book = FindingBook(BOOT)
    flood = [xid(clock, 45, rest=f"Ch {index:08x}") for index in range(20_000)]
    flood.insert(7_000, xid(clock, 79, "0000:2a:00"))
    flood.insert(15_000, xid(clock, 48, "0000:3b:00"))
    book.fold("kernel", flood, clock())
    assert {finding.code: finding.count for finding in book.active()} == {
        "XID 79": 1,
        "XID 48": 1,
        "XID 45": 20_000,
    }


def test_a_flood_of_distinct_findings_is_bounded_and_drops_the_mildest(clock: Any) -> None:
    book = FindingBook(BOOT)
    book.fold("kernel", [xid(clock, 79, "0000:18:00")], clock())
    kills = [
        finding_of(event, clock().wall_s, clock().mono_s, BOOT)
        for pid in range(MAX_FINDINGS + 50)
        if (event := parse_kernel(f"Out of memory: Killed process {pid} (x) total-vm:4kB, anon-rss:2kB"))
    ]
    book.fold("kernel", kills, clock())
    assert len(book.active()) == MAX_FINDINGS
    assert book.dropped == 51
    assert book.active()[0].code == "XID 79"


def test_what_is_known_survives_a_restart_of_the_agent(clock: Any) -> None:
    book = FindingBook(BOOT)
    book.fold("kernel", [xid(clock, 94)], clock())
    book.fold("disk", [full_disk()], clock())
    state = msgspec.json.decode(msgspec.json.encode(book.state()), type=BookState)
    again = FindingBook(BOOT)
    again.restore(state, clock())
    assert again.active() == book.active()
    clock.mono_s += 60
    again.fold("kernel", [xid(clock, 94)], clock())  # the first one was before the restart
    assert again.active("kernel")[0].severity is Severity.DEGRADED


def test_one_clean_sample_ends_what_an_agent_saw_that_stopped_long_ago(clock: Any) -> None:
    """As for `sentinel check`, which looks once, beside the state of an agent that is not run any more."""
    book = FindingBook(BOOT)
    book.fold("disk", [msgspec.structs.replace(full_disk(), seen_mono_s=clock.mono_s)], clock())
    for stopped_s, left in ((60.0, 1), (86_400.0, 0)):
        clock.mono_s += stopped_s
        again = after_restart(book, clock)
        assert len(again.active()) == 1  # where it cannot be looked it stands
        again.fold("disk", [], clock())
        assert len(again.active()) == left


def test_a_new_boot_ends_what_the_last_one_knew(clock: Any) -> None:
    book = FindingBook(BOOT)
    book.fold("kernel", [xid(clock, 79)], clock())
    again = FindingBook("boot-2")
    again.restore(book.state(), clock())
    assert again.active() == ()


# ---------------------------------------------------------------- repeats


def by_job(clock: Any, number: int, job: str, pci: str = "0000:18:00", process: str = "") -> Finding:
    return msgspec.structs.replace(xid(clock, number, pci), job=job, process=process)


def rule(clock: Any, text: str) -> Finding:
    event = parse_kernel(text)
    assert event is not None
    return finding_of(event, clock().wall_s, clock().mono_s, BOOT)


def after_restart(book: FindingBook, clock: Any, boot_id: str = BOOT) -> FindingBook:
    state = msgspec.json.decode(msgspec.json.encode(book.state()), type=BookState)
    again = FindingBook(boot_id)
    again.restore(state, clock())
    return again


def severities_of(book: FindingBook) -> dict[str, Severity]:
    return {finding.entity: finding.severity for finding in book.active()}


@pytest.mark.parametrize("number", [13, 31, 32, 68, 39])
def test_what_may_be_the_programs_is_told_of_the_card_when_different_jobs_meet_it_there(
    number: int, clock: Any
) -> None:
    book = FindingBook(BOOT)
    for _ in range(50):
        clock.mono_s += 60
        book.fold("kernel", [by_job(clock, number, "slurm 1")], clock())
    book.fold("kernel", [by_job(clock, number, "slurm 2")], clock())
    assert severities_of(book) == {"GPU 0000:18:00.0": Severity.WARNING}  # two jobs, however often
    book = after_restart(book, clock)
    book.fold("kernel", [by_job(clock, number, "slurm 3")], clock())
    (found,) = book.active()
    assert (found.severity, found.action) == (Severity.DEGRADED, "RUN_DIAGNOSTICS")
    for job in range(4, 12):  # a person who looks for a bug, on the only card of a node
        book.fold("kernel", [by_job(clock, number, f"slurm {job}")], clock())
    assert severities_of(book) == {"GPU 0000:18:00.0": Severity.DEGRADED}


def test_failed_assertions_in_kernels_speak_against_no_card_however_many_jobs_meet_them(clock: Any) -> None:
    book = FindingBook(BOOT)
    for job in range(12):
        clock.mono_s += 60
        book.fold("kernel", [by_job(clock, 43, f"slurm {job}")], clock())
    assert severities_of(book) == {"GPU 0000:18:00.0": Severity.WARNING}


def test_a_job_that_meets_it_on_several_cards_speaks_against_none(clock: Any) -> None:
    book = FindingBook(BOOT)
    for pci in ("0000:18:00", "0000:2a:00", "0000:3b:00"):
        book.fold("kernel", [by_job(clock, 13, "slurm 1", pci)], clock())
    book.fold("kernel", [by_job(clock, 13, "slurm 2", "0000:18:00")], clock())
    assert set(severities_of(book).values()) == {Severity.WARNING}


def test_many_jobs_that_meet_it_on_many_cards_speak_against_none(clock: Any) -> None:
    """As an array of jobs with one card each, whose program has a fault."""
    book = FindingBook(BOOT)
    for number in range(32):
        pci = f"0000:{16 + number % 8:02x}:00"
        clock.mono_s += 60
        book.fold("kernel", [by_job(clock, 31, f"slurm {number}", pci)], clock())
        if number > 0:
            assert set(severities_of(book).values()) == {Severity.WARNING}
    assert len(severities_of(book)) == 8
    clock.mono_s += 2 * 86_400
    for number in range(40, 43):  # and later on one card alone
        book.fold("kernel", [by_job(clock, 31, f"slurm {number}", "0000:10:00")], clock())
    assert severities_of(book)["GPU 0000:10:00.0"] is Severity.DEGRADED


@pytest.mark.parametrize(
    ("jobs", "severity"),
    [
        (["pod ml/llama", "pod ml/gpt", "pod ml/bert"], Severity.DEGRADED),
        (["pod ml/llama", "pod ml/llama", "pod ml/llama"], Severity.WARNING),  # one job that is tried again
        (["pod 1", "pod 2", "pod 3"], Severity.WARNING),  # pods without a name
        (["container 1", "container 2", "container 3"], Severity.WARNING),  # may be one person's tries
        (["", "", ""], Severity.WARNING),  # programs of nobody known
    ],
)
def test_only_jobs_that_are_known_for_different_ones_count(
    jobs: list[str], severity: Severity, clock: Any
) -> None:
    book = FindingBook(BOOT)
    for number, job in enumerate(jobs):
        clock.mono_s += 60
        book.add([by_job(clock, 31, job, process=f"a.out-{number}")], clock())
    assert severities_of(book) == {"GPU 0000:18:00.0": severity}


def test_jobs_long_ago_do_not_count(clock: Any) -> None:
    book = FindingBook(BOOT)
    for job in (1, 2):
        book.fold("kernel", [by_job(clock, 13, f"slurm {job}")], clock())
    clock.mono_s += 86_401
    book.fold("kernel", [by_job(clock, 13, "slurm 3")], clock())
    assert severities_of(book) == {"GPU 0000:18:00.0": Severity.WARNING}


def test_a_repeat_counts_also_where_the_first_finding_has_ended(clock: Any) -> None:
    """A warning stays 6 hours, its repeat counts for a day; neither a restart nor a boot forgets it."""
    for boot_id in (BOOT, "boot-2"):
        book = FindingBook(BOOT)
        book.fold("kernel", [xid(clock, 94)], clock())
        clock.mono_s += KEPT_S[Severity.WARNING] + 1
        book.fold("kernel", [], clock())
        assert book.active() == ()
        book = after_restart(book, clock, boot_id)
        book.fold("kernel", [xid(clock, 94)], clock())
        assert severities_of(book) == {"GPU 0000:18:00.0": Severity.DEGRADED}


def test_a_person_who_ends_a_fault_ends_its_count_too(clock: Any) -> None:
    book = FindingBook(BOOT)
    book.fold("kernel", [xid(clock, 94)], clock())
    book.clear(book.active()[0].key)
    book.fold("kernel", [xid(clock, 94)], clock())
    assert severities_of(book) == {"GPU 0000:18:00.0": Severity.WARNING}


def counted(clock: Any, code: str, action: str = "IGNORE", job: str = "") -> Finding:
    return Finding(
        check="kernel",
        component=Component.GPU,
        entity="it",
        code=code,
        severity=Severity.INFO,
        action=action,
        summary="x",
        event=True,
        seen_mono_s=clock().mono_s,
        job=job,
    )


@pytest.mark.parametrize(
    "row", severities().repeats, ids=lambda row: f"{row.code or row.bucket}-{row.severity}"
)
def test_every_row_of_repeat_escalates_at_its_number_within_its_time(row: RepeatRow, clock: Any) -> None:
    for spread, escalates in ((row.within_s, True), (row.within_s * 1.5 + 10, False)):
        book, times, first_s = FindingBook(BOOT), max(row.count, row.jobs), clock.mono_s
        for index in range(times):
            last = index == times - 1
            clock.mono_s = first_s + (spread if last else index * row.apart_s)
            book.add(
                [counted(clock, row.code or "XID 39", row.bucket or "IGNORE", f"slurm {index}")], clock()
            )
            assert last or book.active()[0].severity.order < row.severity.order
        assert (book.active()[0].severity is row.severity) == escalates
        assert (row.reason in book.active()[0].summary) == escalates


@pytest.mark.parametrize(
    "row", [row for row in severities().repeats if row.apart_s], ids=lambda row: row.code
)
def test_lines_that_one_error_prints_at_once_are_one_occurrence(row: RepeatRow, clock: Any) -> None:
    """An error prints a line for each channel, link or command that it hits: also out of order, also as a count."""
    book = FindingBook(BOOT)
    for index in range(20):
        clock.mono_s += row.apart_s / 50 * (-1 if index % 3 else 1)
        many = msgspec.structs.replace(counted(clock, row.code), count=5)
        book.add([many], clock())
    assert book.active()[0].severity is Severity.INFO
    assert book.active()[0].count == 100


def test_a_storm_that_never_pauses_is_many_occurrences(clock: Any) -> None:
    book = FindingBook(BOOT)
    for _ in range(200):
        clock.mono_s += 1
        book.add([xid(clock, 94)], clock())
    assert book.active()[0].severity is Severity.FATAL


def test_a_third_contained_error_of_one_card_within_a_day_isolates_it(clock: Any) -> None:
    book = FindingBook(BOOT)
    told = []
    for _ in range(3):
        clock.mono_s += 3600
        book.add([xid(clock, 94)], clock())
        told.append((book.active()[0].severity, book.active()[0].action))
    assert told == [
        (Severity.WARNING, "RESTART_APP"),
        (Severity.DEGRADED, "RESTART_APP"),
        (Severity.FATAL, "RUN_DIAGNOSTICS"),
    ]


def test_a_line_that_speaks_of_many_counts_as_many(clock: Any) -> None:
    book = FindingBook(BOOT)
    told = "EDAC MC1: {} CE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0 (channel:1 slot:0)"
    book.fold("kernel", [rule(clock, told.format(1))], clock())
    assert book.active()[0].severity is Severity.INFO
    book.fold("kernel", [rule(clock, told.format(262))], clock())
    assert (book.active()[0].severity, book.active()[0].count) == (Severity.WARNING, 263)


# ---------------------------------------------------------------- ends


DOWN, UP = (
    "mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link DOWN",
    "mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link ACTIVE",
)


def test_a_fault_ends_when_the_kernel_says_so(clock: Any) -> None:
    book = FindingBook(BOOT)
    lost, back = "nfs: server 10.0.0.2 not responding, still trying", "nfs: server 10.0.0.2 OK"
    book.fold("kernel", [rule(clock, lost), rule(clock, lost.replace("0.2", "0.3"))], clock())
    book.fold("kernel", [rule(clock, back)], clock())
    assert [finding.entity for finding in book.active()] == ["10.0.0.3"]
    book.fold("kernel", [rule(clock, back)], clock())  # once more, of nothing that stands
    assert [finding.entity for finding in book.active()] == ["10.0.0.3"]


def test_a_link_that_flaps_is_not_well_because_it_is_up(clock: Any) -> None:
    """Three flaps in 12 hours, each shorter than a sample of the port."""
    book = FindingBook(BOOT)
    for flap in range(3):
        book.fold("kernel", [rule(clock, DOWN)], clock())
        assert (
            book.active()[0].severity is not Severity.WARNING
        )  # one alone says nothing: the port's check does
        assert (book.active()[0].severity is Severity.DEGRADED) == (flap == 2)
        book.fold("kernel", [rule(clock, UP)], clock())
        assert bool(book.active()) == (flap == 2)
        clock.mono_s += 3600
    clock.mono_s += KEPT_S[Severity.DEGRADED]
    book.fold("kernel", [], clock())
    assert book.active() == ()  # and it ends by time


def test_a_new_boot_ends_what_it_repairs_and_not_a_broken_memory_module(clock: Any) -> None:
    book = FindingBook(BOOT)
    memory = "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0)"
    book.fold("kernel", [xid(clock, 79), rule(clock, memory)], clock())
    book.fold("disk", [full_disk()], clock())
    clock.mono_s = 50.0  # the clock of the new boot; HandClock's wall clock goes back with it
    state = msgspec.structs.replace(book.state(), wall_ahead_s=book.state().wall_ahead_s - 90_000)
    again = FindingBook("boot-2")
    again.restore(state, clock())
    assert [finding.code for finding in again.active()] == ["memory-uncorrected"]
    assert again.clear(again.active()[0].key)  # a person put in a new module


def test_what_outlives_a_boot_still_ends_by_time(clock: Any) -> None:
    book = FindingBook(BOOT)
    book.fold("kernel", [rule(clock, "I/O error, dev sda, sector 1 op 0x0:(READ) flags 0x0")], clock())
    again = after_restart(book, clock, "boot-2")
    assert [finding.code for finding in again.active()] == ["io-error"]
    clock.mono_s += KEPT_S[Severity.WARNING] + 1
    again.fold("kernel", [], clock())
    assert again.active() == ()


def test_a_wall_clock_that_begins_at_1970_keeps_nothing_for_ever(clock: Any) -> None:
    """A machine without a battery for its clock asks the time only after the agent has begun."""
    book = FindingBook(BOOT)
    book.fold("kernel", [rule(clock, "I/O error, dev sda, sector 1 op 0x0:(READ) flags 0x0")], clock())
    now = Now(30.0, 30.0)
    again = FindingBook("boot-2")
    again.restore(book.state(), now)
    assert len(again.active()) == 1
    later_s = now.mono_s + KEPT_S[Severity.WARNING] + 1
    again.fold("kernel", [], Now(later_s, clock().wall_s))
    assert again.active() == ()


# ---------------------------------------------------------------- floods


def test_a_flood_of_20000_distinct_faults_keeps_the_worst_and_what_comes_after_it(clock: Any) -> None:
    book = FindingBook(BOOT)
    flood = [xid(clock, 1 + index % 173, f"{index // 173:04x}:18:00") for index in range(20_000)]
    book.fold("kernel", flood, clock())
    assert len(book.active()) == MAX_FINDINGS
    assert book.dropped == 20_000 - MAX_FINDINGS
    fatal = {finding.key for finding in flood if finding.severity is Severity.FATAL}
    assert 0 < len(fatal) < MAX_FINDINGS
    assert fatal <= {finding.key for finding in book.active()}
    later = xid(clock, 119, "ffff:18:00")
    book.fold("kernel", [later], clock())
    assert book.get(later.key) is not None


def test_what_is_kept_for_repeats_is_bounded_too(clock: Any) -> None:
    book = FindingBook(BOOT)
    for index in range(3000):
        book.add([by_job(clock, 13, f"job {index}", f"{index % 1000:04x}:18:00")], clock())
    state = book.state()
    assert len(state.past) <= MAX_PLACES
    assert all(len(past.jobs) <= MAX_JOBS for _, past in state.past)


def test_times_of_the_last_boot_are_told_on_this_boots_clock() -> None:
    """The clock of a boot begins at 0 again; the wall clock says how long ago it was."""
    book = FindingBook(BOOT)
    last, wall_s = Now(500_000.0, 2e9), 2e9
    broken = Finding(
        check="kernel",
        component=Component.DISK,
        entity="sda",
        code="io-error",
        severity=Severity.WARNING,
        action="CHECK_DISK",
        summary="x",
        event=True,
        last_seen_wall_s=wall_s,
        seen_mono_s=last.mono_s,
    )
    contained = msgspec.structs.replace(broken, entity="GPU 0", code="XID 94", action="RESTART_APP")
    book.fold("kernel", [broken, contained], last)
    state = book.state()

    soon = FindingBook("boot-2")
    soon.restore(state, Now(60.0, wall_s + 600))
    (found,) = soon.active()
    assert (found.code, found.seen_mono_s) == ("io-error", 60.0 - 600)
    late = Now(60.0 + KEPT_S[Severity.WARNING], wall_s + 600 + KEPT_S[Severity.WARNING])
    soon.fold("kernel", [], late)
    assert soon.active() == ()

    for days, severity in ((0.5, Severity.DEGRADED), (1.5, Severity.WARNING)):
        book = FindingBook("boot-2")
        now = Now(60.0, wall_s + days * 86_400)
        book.restore(state, now)
        book.add([msgspec.structs.replace(contained, seen_mono_s=now.mono_s)], now)
        again = book.get(contained.key)
        assert again is not None
        assert again.severity is severity
