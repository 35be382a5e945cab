"""NVML's events: an Xid wakes the check as it happens, and counts once with the kernel's line about it."""

import select
from typing import Any

import pytest

from sentinel.checks.base import Kept, Look
from sentinel.checks.findings import FindingBook
from sentinel.checks.nvidia.nvml import xid_finding
from sentinel.checks.nvidia.nvml_sample import Event
from sentinel.checks.xid import finding_of
from sentinel.core.health import Finding, Severity
from sentinel.core.now import Now
from sentinel.logs.kernel import parse_kernel

FIRST, SECOND = "GPU 0000:18:00.0", "GPU 0000:2a:00.0"


def woken(sample: Any, within_s: float = 10.0) -> bool:
    return bool(select.select([sample.kept.wake_fd], [], [], within_s)[0])


def test_an_xid_wakes_the_check_and_is_named_with_its_card(sample: Any, cards: Any) -> None:
    assert sample() == {}
    assert not woken(sample, 0)
    cards.event(1, 8, 79)
    assert woken(sample)
    found = sample(1)
    finding = found[SECOND, "XID 79"]
    assert (finding.severity, finding.action, finding.event) == (Severity.FATAL, "RESTART_BM", True)
    assert finding.uuid == "GPU-00000001"
    assert sample.measure("DCGM_FI_DEV_XID_ERRORS", 1) == 79
    assert not woken(sample, 0)
    assert sample() == {}  # told once
    sample(3700)
    assert sample.measure("DCGM_FI_DEV_XID_ERRORS", 1) == 0


def test_an_event_that_is_no_xid_asks_for_a_sample_of_everything(sample: Any, cards: Any) -> None:
    sample()
    cards.set(gpu0_ecc=1, gpu0_sram_exceeded=1)
    cards.event(0, 2)
    assert woken(sample)
    assert sorted(code for _, code in sample(1)) == ["ecc-uncorrected", "sram-threshold"]


def test_a_flood_of_events_is_one_wake_and_one_sample(sample: Any, cards: Any) -> None:
    sample()
    for number in range(40):
        cards.values[f"event{number}"] = f"{number % 2} 8 {45 if number < 39 else 48}"
    cards.set(events=40)
    found: dict[tuple[str, str], Finding] = {}
    for _ in range(5):
        if (SECOND, "XID 48") in found:
            break
        assert woken(sample)
        found |= sample(1)
    assert {(FIRST, "XID 45"), (SECOND, "XID 45"), (SECOND, "XID 48")} == set(found)


def test_waiting_for_events_that_fails_asks_for_a_sample_which_says_why(sample: Any, cards: Any) -> None:
    sample()
    cards.set(wait_error=15, gpu1_error=15)
    assert woken(sample)
    found = sample(1)
    assert list(found) == [(SECOND, "gpu-lost")]
    assert found[SECOND, "gpu-lost"].uuid == "GPU-00000001"


def test_a_driver_without_events_is_sampled_as_ever(sample: Any, cards: Any) -> None:
    cards.set(gpus_event_types=None)
    assert sample() == {}
    cards.event(0, 8, 79)
    cards.set(gpu0_error=15)
    assert list(sample()) == [(FIRST, "gpu-lost")]


def test_events_are_still_told_after_the_child_was_replaced(sample: Any, cards: Any) -> None:
    sample()
    sample.memory.child.stop()
    sample()
    cards.event(0, 8, 94)
    assert woken(sample)
    assert list(sample(1)) == [(FIRST, "XID 94")]


@pytest.fixture
def book() -> FindingBook:
    return FindingBook("boot")


@pytest.fixture
def by_event(machine: Any) -> Any:
    def make(number: int, at_s: float) -> Finding:
        look = Look(machine.settings, (), Now(at_s, at_s), "boot", Kept())
        return xid_finding(Event("00000000:18:00.0", 8, number, 0.0), look)

    return make


def by_line(number: int, at_s: float, rest: str = "pid=77, name=train, text") -> Finding:
    event = parse_kernel(f"NVRM: Xid (PCI:0000:18:00): {number}, {rest}")
    assert event is not None
    return finding_of(event, at_s, at_s, "boot")


@pytest.mark.parametrize("order", ["el", "le", "elel", "leel", "eell", "llee"])
def test_an_xid_that_both_tell_counts_once_and_the_line_is_what_stands(
    book: FindingBook, by_event: Any, order: str
) -> None:
    for at_s, source in enumerate(order):
        book.add([by_event(79, at_s) if source == "e" else by_line(79, at_s)], Now(at_s, at_s))
    (finding,) = book.active()
    assert finding.count == len(order) / 2
    assert finding.check == "kernel"
    assert finding.pid == 77
    assert "pid=77" in finding.evidence[0]


def test_an_xid_that_only_nvml_tells_counts_too(book: FindingBook, by_event: Any) -> None:
    for at_s in range(3):
        book.add([by_event(79, at_s)], Now(at_s, at_s))
    (finding,) = book.active()
    assert (finding.check, finding.count) == ("nvml", 3)


def test_a_line_that_says_more_than_the_event_decides_the_severity(book: FindingBook, by_event: Any) -> None:
    """Xid 74 alone warns; the text of the driver's line may call the link error fatal."""
    book.add([by_event(74, 1)], Now(1, 1))
    assert book.active()[0].severity is Severity.WARNING
    book.add([by_line(74, 1, "NVLink: fatal error detected on link 14(0x0, 0x0)")], Now(1, 1))
    (finding,) = book.active()
    assert (finding.severity, finding.count) == (Severity.FATAL, 1)


def test_one_xid_told_twice_is_no_repeat(book: FindingBook, by_event: Any) -> None:
    """A second Xid 94 within a day is worse; the same one told by both is not."""
    book.add([by_event(94, 1), by_line(94, 1)], Now(1, 1))
    assert book.active()[0].severity is Severity.WARNING
    book.add([by_event(94, 900), by_line(94, 900)], Now(900, 900))
    assert book.active()[0].severity is Severity.DEGRADED
    assert book.active()[0].count == 2
