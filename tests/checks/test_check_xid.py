"""Every Xid has the severity that NVIDIA's actions defend; each exception is named here, its reason in the table."""

import pytest

from sentinel.checks.xid import (
    catalogue,
    decode_nvlink5,
    finding_of,
    recovery_meaning,
    severities,
    sxid_meaning,
    xid_meaning,
)
from sentinel.core.model import Component, Finding, Severity
from sentinel.logs.kernel import parse_kernel

# What each immediate action means where no exception says otherwise.
BY_ACTION = {
    "RESTART_BM": Severity.FATAL,
    "RESTART_VM": Severity.FATAL,
    "RESET_GPU": Severity.FATAL,
    "CHECK_MECHANICALS": Severity.FATAL,
    "WORKFLOW_XID_48": Severity.FATAL,
    "RESTART_APP": Severity.WARNING,
    "CONTACT_SUPPORT": Severity.WARNING,
    "UPDATE_SWFW": Severity.WARNING,
    "CHECK_UVM": Severity.WARNING,
    "WORKFLOW_NVLINK_ERR": Severity.WARNING,
    "WORKFLOW_NVLINK5_ERR": Severity.WARNING,
    "XID_154": Severity.WARNING,
    "": Severity.WARNING,
    "IGNORE": Severity.INFO,
}
EXCEPTIONS = {
    43: Severity.WARNING,  # the program is dead, by its own fault or not
    45: Severity.INFO,  # a cascade
    92: Severity.WARNING,  # corrected errors at a high rate are told
    157: Severity.WARNING,  # spare resources are used up
    161: Severity.WARNING,
}


def finding(line: str) -> Finding:
    event = parse_kernel(line)
    assert event is not None
    return finding_of(event, 1.0, 2.0, "boot")


@pytest.mark.parametrize("number", sorted(catalogue()))
def test_a_number_of_the_catalogue_means_what_nvidias_action_says(number: int) -> None:
    expected = EXCEPTIONS.get(number) or BY_ACTION[catalogue()[number].immediate]
    assert xid_meaning(number).severity is expected


def test_the_catalogue_is_whole() -> None:
    assert sorted(catalogue()) == list(range(1, 174))


def test_every_row_has_a_reason_and_every_exception_a_number_of_the_catalogue() -> None:
    tables = severities()
    for row in (*tables.buckets, *tables.xids, *tables.recoveries, *tables.repeats):
        assert row.reason
    assert {row.xid for row in tables.xids} <= set(catalogue())


def test_only_a_named_action_isolates() -> None:
    isolating = {xid for xid in catalogue() if xid_meaning(xid).severity is Severity.FATAL}
    actions = {catalogue()[xid].immediate for xid in isolating}
    assert actions == {"RESTART_BM", "RESTART_VM", "RESET_GPU", "CHECK_MECHANICALS", "WORKFLOW_XID_48"}
    assert {48, 79, 95, 109, 119, 136, 155, 156, 158} <= isolating
    assert isolating.isdisjoint({13, 31, 32, 38, 43, 44, 45, 63, 68, 69, 94, 121})


@pytest.mark.parametrize("number", [174, 999, 0])
def test_an_unknown_number_warns_and_never_isolates(number: int) -> None:
    meaning = xid_meaning(number, "fatal error, reset the GPU at once")
    assert (meaning.severity, meaning.action) == (Severity.WARNING, "CONTACT_SUPPORT")


def test_only_a_fatal_link_error_of_xid_74_isolates() -> None:
    fatal = "NVRM: Xid (PCI:0003:00:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 14"
    assert finding(fatal).severity is Severity.FATAL
    assert finding(fatal.replace("fatal error", "recoverable error")).severity is Severity.WARNING


@pytest.mark.parametrize(
    ("text", "severity", "action"),
    [
        ("None", Severity.INFO, "IGNORE"),
        ("GPU Reset Required", Severity.FATAL, "RESET_GPU"),
        ("PF FLR", Severity.FATAL, "RESET_GPU"),
        ("Node Reboot Required", Severity.FATAL, "RESTART_BM"),
        ("OS Reboot", Severity.FATAL, "RESTART_BM"),
        ("Drain P2P", Severity.DEGRADED, "DRAIN_P2P"),
        ("Drain and Reset", Severity.DEGRADED, "DRAIN_AND_RESET"),
        ("Something New", Severity.WARNING, "CONTACT_SUPPORT"),
    ],
)
def test_xid_154_follows_the_drivers_own_words(text: str, severity: Severity, action: str) -> None:
    found = finding(
        f"NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 ({text})"
    )
    assert (found.severity, found.action) == (severity, action)


def test_every_value_of_the_recovery_field_is_known() -> None:
    actions = [recovery_meaning(value=value).action for value in range(8)]
    assert "CONTACT_SUPPORT" not in actions
    assert recovery_meaning(value=8).severity is Severity.WARNING


@pytest.mark.parametrize(
    ("number", "text", "severity"),
    [
        # github.com/leptonai/gpud pull 1174
        (149, "NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000 0x00000000 0x0 0x0 0x0)", Severity.FATAL),
        (
            149,
            "NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x025001c6 0x00000000 0x00000000 0x0 0x0 0x0)",
            Severity.FATAL,
        ),
        (
            145,
            "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001 0x0 0x00100000 0x4)",
            Severity.INFO,
        ),
        # synthetic: two bits of the error status, IGNORE and RESET_GPU
        (144, "SAW_MVB Fatal XC0 i0 Link 01 (0x00000021 0x00000003 0x0 0x0 0x0 0x0)", Severity.FATAL),
        (144, "SAW_MVB Nonfatal XC0 i0 Link 01 (0x00000021 0x00000004 0x0 0x0 0x0 0x0)", Severity.INFO),
    ],
)
def test_nvlink5_errors_are_decoded_by_register(number: int, text: str, severity: Severity) -> None:
    assert xid_meaning(number, text).severity is severity


@pytest.mark.parametrize(
    "text", ["", "NETIR Fatal", "NETIR (0xffffffff 0xffffffff)", "WHAT (0x000fe406 0x00000000)"]
)
def test_registers_that_no_row_fits_warn(text: str) -> None:
    assert decode_nvlink5(149, text) is None
    assert xid_meaning(149, text).severity is Severity.WARNING


def test_the_drivers_word_in_an_sxid_line_wins_over_the_table() -> None:
    assert sxid_meaning(24007).severity is Severity.FATAL
    assert "not NVIDIA's" in sxid_meaning(24007).reason
    assert sxid_meaning(24007, "Non-fatal").severity is Severity.WARNING
    assert sxid_meaning(20001, "Fatal").severity is Severity.FATAL
    assert sxid_meaning(20001).severity is Severity.WARNING
    assert sxid_meaning(99999, "Fatal").severity is Severity.WARNING  # unknown: never isolates


def test_a_finding_names_card_code_action_process_and_line() -> None:
    line = "NVRM: Xid (PCI:0000:CB:00): 31, pid=42, name=python3, Ch 00000008, intr 00000000. MMU Fault"
    found = finding(line)
    assert (found.component, found.entity, found.code) == (Component.GPU, "GPU 0000:cb:00.0", "XID 31")
    assert (found.severity, found.action, found.pid) == (Severity.WARNING, "RESTART_APP", 42)
    assert found.evidence == (line,)
    assert found.event
    assert found.boot_id == "boot"


def test_two_oom_kills_are_two_findings() -> None:
    first, second = (
        finding(f"Out of memory: Killed process {pid} (python) total-vm:4kB, anon-rss:2kB")
        for pid in (10, 11)
    )
    assert first.key != second.key
    assert (first.component, first.pid) == (Component.SYSTEM, 10)
