"""How findings live: folded, escalated, explained, ended; bounded under a flood; kept over a restart."""

from typing import Any

import msgspec

from sentinel.checks.findings import CLEAN_SAMPLES, KEPT_S, MAX_FINDINGS, BookState, FindingBook
from sentinel.checks.xid import finding_of
from sentinel.core.model import Component, Finding, Severity
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


def test_a_milder_line_of_the_same_fault_does_not_hide_the_worse_one(clock: Any) -> None:
    book = FindingBook(BOOT)
    book.fold(
        "kernel", [xid(clock, 74, rest="NVLink: fatal error detected"), xid(clock, 74, rest="x")], clock()
    )
    (finding,) = book.active()
    assert (finding.severity, finding.action) == (Severity.FATAL, "RESET_GPU")


def test_an_ecc_count_that_a_contained_error_explains_does_not_isolate(clock: Any) -> None:
    book = FindingBook(BOOT)
    now = clock()
    ecc = Finding(
        check="nvml",
        component=Component.GPU,
        entity="GPU 0000:18:00.0",
        code="ecc-uncorrected",
        severity=Severity.FATAL,
        action="RESET_GPU",
        summary="uncorrected errors",
        event=True,
        seen_mono_s=now.mono_s,
    )
    book.fold("nvml", [ecc], now)
    assert book.active()[0].severity is Severity.FATAL
    book.fold("kernel", [xid(clock, 94, "0000:2a:00")], now)  # another card explains nothing
    assert book.active()[0].severity is Severity.FATAL
    book.fold("kernel", [xid(clock, 94, "0000:18:00")], now)
    (explained,) = [finding for finding in book.active() if finding.code == "ecc-uncorrected"]
    assert explained.severity is Severity.WARNING
    assert "explained by XID 94" in explained.summary


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


def test_a_new_boot_ends_what_the_last_one_knew(clock: Any) -> None:
    book = FindingBook(BOOT)
    book.fold("kernel", [xid(clock, 79)], clock())
    again = FindingBook("boot-2")
    again.restore(book.state(), clock())
    assert again.active() == ()
