"""From a line of the kernel to what Sentinel says and whom it blames, for every row of the tables.

What is expected here was written beside NVIDIA's catalogue and by hand; nothing of it is read from rules/.
"""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from sentinel.checks.base import Kept, Look
from sentinel.checks.findings import KEPT_S, BookState, FindingBook
from sentinel.checks.kernel import messages
from sentinel.checks.xid import actions, catalogue, finding_of, recovery_meaning, severities
from sentinel.core.health import Component, Finding, Severity
from sentinel.core.model import Cause, Verdict
from sentinel.core.now import Now
from sentinel.core.reports import RankExit
from sentinel.core.triage.verdict import triage
from sentinel.logs.kernel import KernelLog, shipped_rules
from sentinel.logs.kernel_prefix import split_prefix
from sentinel.rules.failures import failure_classes
from sentinel.rules.tables import data_dir

CARD, OTHER = "0000:18:00.0", "0000:2a:00.0"
NOW = Now(100_000.0, 1_700_000_000.0)

# Severity, NVIDIA's action, whom the end of a program on that card is blamed on: the card, the program, either,
# or nobody (the fault explains no end).
EXPECTED = {
    ("fatal", "RESET_GPU", "card"): "46 48 62 64 95 109 110 119 120 136 140 143 155 156 158",
    ("fatal", "RESTART_BM", "card"): "79",
    ("fatal", "RESTART_VM", "card"): "151",
    ("fatal", "CHECK_MECHANICALS", "card"): "54",
    ("warning", "RESTART_APP", "program"): "11 13 25 31 32 69 80",
    ("warning", "RESTART_APP", "either"): (
        "8 39 40 41 60 68 70 71 72 75 76 77 82 83 84 85 86 88 89 96 97 98 99 100 101 102 103 104 105 "
        "126 127 128 129 130 131 132 133 134 135 139"
    ),
    ("warning", "RESTART_APP", "card"): "94",
    ("warning", "IGNORE", "program"): "43",
    ("warning", "IGNORE", "nobody"): "92 157 161",
    ("warning", "UPDATE_SWFW", "nobody"): "78",
    ("warning", "CHECK_UVM", "nobody"): "159",
    ("warning", "WORKFLOW_NVLINK_ERR", "card"): "74",
    ("warning", "WORKFLOW_NVLINK5_ERR", "card"): "144 145 146 147 148 149 150",
    ("warning", "CONTACT_SUPPORT", "card"): "171 172",
    ("warning", "CONTACT_SUPPORT", "nobody"): (
        "1 2 3 4 5 6 7 9 10 12 15 16 17 18 19 20 21 22 23 24 26 27 28 29 30 33 34 35 36 42 47 49 50 51 52 53 55 56 57 "
        "58 59 61 65 73 81 87 90 91 111 112 113 114 115 116 117 118 122 123 124 125 138 142 154 162 163 164 165 166 "
        "167 168 169 170 173 174 999"
    ),
    ("info", "WORKFLOW_XID_45", "nobody"): "45",
    ("info", "IGNORE", "nobody"): "14 37 38 44 63 66 67 93 106 107 108 121 137 141 152 153 160",
}
XIDS = {int(number): expected for expected, numbers in EXPECTED.items() for number in numbers.split()}

# Lines whose text decides: (line behind the address, severity, action).
BY_TEXT = [
    (
        "74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 14(0x0)",
        "fatal",
        "RESET_GPU",
    ),
    ("154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "fatal", "RESET_GPU"),
    ("154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", "fatal", "RESTART_BM"),
    ("154, GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)", "degraded", "DRAIN_P2P"),
    (
        "154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)",
        "degraded",
        "DRAIN_AND_RESET",
    ),
    ("154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", "info", "IGNORE"),
    ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x004505c6 0x00000000 0x0)", "fatal", "RESET_GPU"),
    ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x028001c6 0x00000000 0x0)", "warning", "IGNORE"),
    ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x02600011 0x00000000 0x0)", "warning", "IGNORE"),
    ("149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 00 (0x00000226 0x00000001 0x0)", "info", "IGNORE"),
    ("145, RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000082 0x00000004 0x0)", "warning", "XID_154_EVAL"),
    ("145, RLW_REMAP Fatal XC0 i0 Link 00 (0x00000004 0x00000040 0x0)", "fatal", "RESET_GPU"),
    ("147, TREX Nonfatal XC0 i0 Link 00 (0x00000184 0x00000001 0x0)", "info", "IGNORE"),
    ("150, MSE_WATCHDOG Fatal XC0 i0 Link 00 (0x00000000 0x00000000 0x0)", "fatal", "RESET_GPU"),
]

# NVLink 5: the error statuses of a unit that need a reset, and those that leave it to the Xid 154 beside them.
# Every other one NVIDIA ignores.
RESET = {
    "SAW_MVB": "2 10",
    "RLW_REMAP": "40 80",
    "RLW_RSPCOL": "2",
    "RLW_SRC_TRACK": "1 10 20",
    "RLW_TAGSTATE": "2 20000 100000",
    "TLW_CTRL": "4",
    "TLW_RX": "4",
    "TLW_TX": "4",
    "NETIR": "0",
    "NETIR_LINK_EVT": "0",  # but for two reasons of it, below
    "NETIR_MFDE_EVENT": "1 4 5 7",
    "MSE_WATCHDOG": "0",
}
LEFT_TO_154 = {"RLW_REMAP": "1 2 4 8 10 20", "RLW_SRC_TRACK": "4 8"}
LINK_TAKEN_DOWN = (
    "100110",
    "101000",
)  # by software or a person, and by the host: the bits that name the reason

# Of the NVSwitch table the mild ones; the others are fatal, 20034 among them.
SWITCH_WARNINGS = (
    "10001 10002 10003 10004 10005 11012 11021 11022 11023 12021 12023 12030 15008 15011 19049 19055 19057 19059 19062 "
    "19065 19068 19071 20001 20009 20012 22013 24001 24002 24003"
)


# What rules/kernel.toml adds to NVIDIA's numbers. Only what is proved isolates.
MESSAGES = {
    "fatal": {
        "RESTART_BM": "kernel-panic pcie-fatal nic-commands-lost nic-health",
        "CHECK_MEMORY": "memory-uncorrected memory-poisoned machine-check hardware-error",
        "REPLACE_NIC": "nic-hardware",
    },
    "degraded": {
        "CHECK_STORAGE_OR_DRIVER": "hung-task-lasting",
        "RESTART_BM": "soft-lockup hard-lockup kernel-oops pcie-not-recovered",
        "RAISE_LIMIT": "files-limit",
        "CHECK_MEMORY": "machine-check-logged hardware-error-recoverable hardware-error-logged",
        "CHECK_FILE_SYSTEM": "fs-shutdown fs-error journal-abort",
        "CHECK_DISK": "nvme-down raid-disk-failed",
        "CHECK_STORAGE": "nfs-not-responding nfs-lock-lost lustre-lost ceph-hung ceph-evicted",
        "CHECK_COOLING": "nic-temperature",
    },
    "warning": {
        "ADD_MEMORY": "oom-kill",
        "CHECK_STORAGE_OR_DRIVER": "hung-task",
        "RAISE_LIMIT": "pids-limit conntrack-full",
        "RESTART_BM": "rcu-stall",
        "CHECK_MEMORY": "kernel-bad-page hardware-error-earlier",
        "CHECK_PCIE": "pcie-uncorrected pcie-slot-down nic-pcie-limited",
        "CHECK_COOLING": "cpu-throttled",
        "CONTACT_SUPPORT": "gpu-init-failed",
        "CHECK_DISK": "fs-writeback fs-checksum nvme-timeout io-error",
        "CHECK_STORAGE": "nfs-timed-out",
        "CHECK_MECHANICALS": "nic-power",
        "CHECK_NIC": "nic-queue-timeout",
    },
    "info": {
        "CHECK_MEMORY": "memory-corrected machine-check-corrected hardware-error-corrected",
        "CHECK_PCIE": "pcie-corrected",
        "CHECK_CABLE": "nic-cable nic-link-down",
    },
}
# (code, so many, this far apart in seconds) become what; one fewer, or further apart, do not.
REPEATS = [
    ("memory-corrected", 10, 3600, "warning"),
    ("machine-check-corrected", 10, 3600, "warning"),
    ("hardware-error-corrected", 10, 3600, "warning"),
    ("pcie-corrected", 10, 300, "warning"),
    ("pcie-uncorrected", 3, 3600, "degraded"),
    ("pcie-slot-down", 3, 3600, "degraded"),
    ("rcu-stall", 3, 600, "degraded"),
    ("fs-writeback", 2, 3600, "degraded"),
    ("nvme-timeout", 3, 600, "degraded"),
    ("io-error", 10, 300, "degraded"),
    ("nfs-timed-out", 3, 60, "degraded"),
    ("nic-link-down", 3, 3600, "degraded"),
    ("nic-cable", 3, 3600, "degraded"),
    ("XID 74", 3, 3600, "degraded"),
    ("XID 63", 8, 3600, "warning"),
    ("XID 94", 2, 3600, "degraded"),
    ("XID 94", 3, 3600, "fatal"),
]


def finding(text: str) -> Finding:
    event = KernelLog().take(text, 5000.0)
    assert event is not None
    return finding_of(event, NOW.wall_s, NOW.mono_s, "boot")


def line(number: int, rest: str = "", pci: str = CARD) -> str:
    return f"NVRM: Xid (PCI:{pci.removesuffix('.0')}): {number}, {rest or 'pid=7, name=python3, something'}"


def verdict(found: Finding) -> Verdict:
    """Of a job of one rank on the card, whose program ended with exit code 1 and no word."""
    return triage(
        job="j",
        size=1,
        exits=[RankExit(rank=0, incarnation=1, at_s=NOW.mono_s, code=1)],
        matches=[],
        findings=[found],
        signal=None,
        last_steps={},
        rank_entities={0: f"GPU {CARD}"},
        rank_pids={0: 4711},
        failures=failure_classes(),
        history=[],
        now=NOW,
    )


def blamed(found: Finding) -> str:
    told = verdict(found)
    if found.code not in told.sentence:
        return "nobody"
    return {Cause.GPU: "card", Cause.USER_CODE: "program", Cause.UNKNOWN: "either"}[told.cause]


def test_every_number_of_the_catalogue_is_expected_and_stands_in_one_place() -> None:
    listed = [int(number) for numbers in EXPECTED.values() for number in numbers.split()]
    assert len(listed) == len(set(listed))
    assert set(range(1, 174)) <= set(listed)
    assert set(catalogue()) <= set(listed)


@pytest.mark.parametrize("number", sorted(XIDS))
def test_an_xid_has_the_severity_the_action_and_the_blame_that_nvidia_defends(number: int) -> None:
    found = finding(line(number))
    assert (found.severity.value, found.action, blamed(found)) == XIDS[number]
    assert (found.component, found.entity, found.code) == (Component.GPU, f"GPU {CARD}", f"XID {number}")
    assert (found.pid, found.process, found.event) == (7, "python3", True)
    scope = {"card": "node", "nobody": "job"}.get(XIDS[number][2], "job")
    assert verdict(found).scope == scope


@pytest.mark.parametrize(("text", "severity", "action"), BY_TEXT)
def test_where_the_text_decides_it_does(text: str, severity: str, action: str) -> None:
    found = finding(f"NVRM: Xid (PCI:0000:18:00): {text}")
    assert (found.severity.value, found.action) == (severity, action)


def rows_of(name: str) -> list[list[str]]:
    lines = (data_dir("rules") / name).read_text().splitlines()
    return [line.split("\t") for line in lines if not line.startswith("#")][1:]


@pytest.mark.parametrize("row", rows_of("nvlink5.tsv"), ids=lambda row: "-".join(row[:2] + row[2:5:2]))
def test_an_nvlink5_error_has_the_action_of_its_unit_and_status(row: list[str]) -> None:
    number, units, before, since, status, *_ = row
    unit = units.split("/")[0]
    bits = f"{int(status, 16):x}"
    action, severity = "IGNORE", "info"
    if bits in LEFT_TO_154.get(unit, "").split():
        action, severity = "XID_154_EVAL", "warning"
    elif unit == "NETIR_LINK_EVT" and before[6:12] in LINK_TAKEN_DOWN:
        action, severity = "IGNORE", "warning"
    elif bits in RESET.get(unit, "").split():
        action, severity = "RESET_GPU", "fatal"
    for registers in (before, since):
        intrinfo = int(registers.replace("-", "0"), 2)
        found = finding(line(int(number), f"{unit} Fatal XC0 i0 Link 01 (0x{intrinfo:08x} {status} 0x0)"))
        assert (found.action, found.severity.value) == (action, severity)


@pytest.mark.parametrize("number", [row[0] for row in rows_of("sxid.tsv")])
def test_an_nvswitch_error_without_the_drivers_word_follows_the_list(number: str) -> None:
    found = finding(f"nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): {number}, Link 28 something")
    mild = number in SWITCH_WARNINGS.split()
    assert found.severity is (Severity.WARNING if mild else Severity.FATAL)
    assert found.action == ("CONTACT_SUPPORT" if mild else "RESTART_BM")
    assert (found.entity, found.code) == ("NVSwitch 0000:c3:00.0", f"SXID {number}")


def test_the_tables_hold_as_many_rows_as_their_sources() -> None:
    numbers = {row[0] for row in rows_of("sxid.tsv")}
    assert {"20034", "24007", *SWITCH_WARNINGS.split()} <= numbers
    assert (len(numbers), len(rows_of("nvlink5.tsv"))) == (93, 94)


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.",
        "NVRM: GPU at PCI:0000:18:00: GPU has fallen off the bus.",
        "NVRM: The NVIDIA GPU 0000:18:00.0 (PCI ID: 10de:2330) installed in this system has fallen off the bus",
        "NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    ],
)
def test_off_the_bus_is_79_in_all_its_forms(text: str) -> None:
    found = finding(text)
    assert (found.code, found.entity) == ("XID 79", f"GPU {CARD}")
    assert (found.severity.value, found.action, blamed(found)) == XIDS[79]


def test_no_number_is_rebooted_or_reset_for_that_nvidia_ignores_or_only_restarts_the_program() -> None:
    """The known mistake of other tools, and its opposite: what must be reset is not healthy."""
    for number in (38, 44, 121, 32, 60, 68, 69, 94):
        assert finding(line(number)).action not in ("RESTART_BM", "RESTART_VM", "RESET_GPU")
        assert finding(line(number)).severity is not Severity.FATAL
    for number in (109, 136, 155, 156, 158):
        assert finding(line(number)).severity is Severity.FATAL


@pytest.mark.parametrize(
    ("value", "severity", "action"),
    [
        (0, "info", "IGNORE"),
        (1, "fatal", "RESET_GPU"),
        (2, "fatal", "RESTART_BM"),
        (3, "degraded", "DRAIN_P2P"),
        (4, "degraded", "DRAIN_AND_RESET"),
        (5, "degraded", "RECOVER_IMEX_DOMAIN"),
        (6, "fatal", "RESET_GPU"),
        (7, "fatal", "RESTART_BM"),
        (8, "warning", "CONTACT_SUPPORT"),
    ],
)
def test_the_drivers_recovery_action_is_followed(value: int, severity: str, action: str) -> None:
    meaning = recovery_meaning(value=value)
    assert (meaning.severity.value, meaning.action) == (severity, action)


@pytest.mark.parametrize(
    ("failure", "numbers"),
    [
        ("gpu-ecc", (48, 64, 94, 95, 140, 171, 172)),
        ("nvlink", (74, 136, 144, 145, 146, 147, 148, 149, 150, 155)),
        ("gpu-hardware", (46, 54, 62, 79, 109, 119, 120, 143, 151, 158)),
        ("illegal-access", (13, 31, 43)),
        ("gpu-exception", (8, 39, 68)),
    ],
)
def test_a_jobs_verdict_names_the_kind_of_fault(failure: str, numbers: tuple[int, ...]) -> None:
    assert {verdict(finding(line(number))).failure for number in numbers} == {failure}


def test_every_other_message_has_the_severity_and_the_action_that_is_expected() -> None:
    """Of each code the real lines that are kept, and a line of each row there is."""
    expected = {
        code: (severity, action)
        for severity, by_action in MESSAGES.items()
        for action, codes in by_action.items()
        for code in codes.split()
    }
    assert {rule.code for rule, _ in shipped_rules()} == set(expected)
    seen = set()
    for row in tomllib.loads((Path(__file__).parents[1] / "logs/kernel_lines.toml").read_text())["line"]:
        if row.get("code") and not row.get("over"):
            found = finding(split_prefix(row["text"]).text)
            assert (found.severity.value, found.action) == expected[row["code"]], row["text"]
            seen.add(row["code"])
    assert seen == set(expected)


def test_a_process_that_is_stuck_for_longer_than_a_stall_of_the_storage_lasts_degrades_its_node() -> None:
    """The kernel counts: these are lines about one process, two minutes apart."""
    told = []
    for seconds in (122, 245, 359, 368, 491, 1228):
        told.append(finding(f"INFO: task python3:4242 blocked for more than {seconds} seconds."))
    assert [one.severity.value for one in told] == ["warning"] * 3 + ["degraded"] * 3
    assert {one.entity for one in told} == {"pid 4242 (python3)"}


# ---------------------------------------------------------------- folding


def test_all_rows_at_once_through_the_kernel_log_are_as_many_findings_with_their_own_meaning(
    machine: Any,
) -> None:
    """Every number on two cards, beside each other and beside a flood on the first of them."""
    flood = [line(45, f"pid=9, name=python3, Ch {k:08x}") for k in range(2000)]
    machine.log(*flood)
    for number in sorted(XIDS):
        machine.log(line(number), line(number, pci=OTHER))
    machine.log(*flood)
    book, look = FindingBook("boot"), Look(machine.settings, (), NOW, "boot", Kept())
    while True:
        book.add(messages.check(look), NOW)
        if not look.kept.unfinished:
            break
    stands = {(item.entity, item.code): item for item in book.active()}
    assert set(stands) == {(f"GPU {pci}", f"XID {number}") for pci in (CARD, OTHER) for number in XIDS}
    for (entity, code), item in stands.items():
        number = int(code.removeprefix("XID "))
        assert (item.severity.value, item.action) == XIDS[number][:2]
        assert item.count == (4001 if (entity, number) == (f"GPU {CARD}", 45) else 1)


def test_a_later_fault_of_another_card_stands_though_the_first_one_fills_the_log(machine: Any) -> None:
    book, look = FindingBook("boot"), Look(machine.settings, (), NOW, "boot", Kept())
    for number in range(1, 3000):
        machine.log(f"NVRM: Xid (PCI:0000:18:00): {number}, x")
    machine.log(line(79, pci=OTHER))
    while True:
        book.add(messages.check(look), NOW)
        if not look.kept.unfinished:
            break
    assert (f"GPU {OTHER}", "XID 79") in {(item.entity, item.code) for item in book.active()[:20]}


# ---------------------------------------------------------------- ends


def book_with(number: int) -> FindingBook:
    book = FindingBook("boot")
    book.add([finding(line(number))], NOW)
    assert book.active()
    return book


def later(seconds: float) -> Now:
    return Now(NOW.mono_s + seconds, NOW.wall_s + seconds)


@pytest.mark.parametrize("number", sorted(XIDS))
def test_every_xid_ends_by_time_by_a_person_and_as_its_action_says_by_a_boot(number: int) -> None:
    hours = {"info": 1, "warning": 6, "degraded": 24, "fatal": 7 * 24}[XIDS[number][0]]
    book = book_with(number)
    book.fold("kernel", [], later(hours * 3600 - 1))
    assert book.active(), "it stands as long as it is said to"
    book.fold("kernel", [], later(hours * 3600 + 1))
    assert book.active() == ()

    book = book_with(number)
    assert book.clear(book.active()[0].key)
    assert book.active() == ()

    again = FindingBook("another boot")
    again.restore(book_with(number).state(), NOW)
    assert again.active() == (), "the GPU is reset by it, or shows the fault again"


def test_a_card_that_different_jobs_met_outlives_a_boot_until_it_was_looked_at() -> None:
    book = FindingBook("boot")
    for job in ("slurm 1", "slurm 2", "slurm 3"):
        event = KernelLog().take(line(31))
        assert event is not None
        found = finding_of(event, NOW.wall_s, NOW.mono_s, "boot")
        book.add(
            [Finding(**{name: getattr(found, name) for name in found.__struct_fields__} | {"job": job})], NOW
        )
    assert (book.active()[0].severity, book.active()[0].action) == (Severity.DEGRADED, "RUN_DIAGNOSTICS")
    again = FindingBook("another boot")
    state: BookState = book.state()
    again.restore(state, NOW)
    assert again.active()[0].severity is Severity.DEGRADED
    again.fold("kernel", [], later(KEPT_S[Severity.DEGRADED] + 1))
    assert again.active() == ()


def test_every_action_that_an_xid_asks_for_is_told_in_words() -> None:
    for number in XIDS:
        assert actions()[finding(line(number)).action].do


# ---------------------------------------------------------------- repeats


@pytest.mark.parametrize(
    ("number", "every_s", "becomes"),
    [
        (94, 3600, ["warning", "degraded", "fatal"]),
        (94, 1, ["warning", "warning", "warning"]),  # one error, a line for each channel
        (94, 90_000, ["warning", "warning", "warning"]),  # a day apart
        (74, 3600, ["warning", "warning", "degraded"]),
        (63, 3600, ["info"] * 7 + ["warning"]),
        (13, 3600, ["warning"] * 5),  # of one job, however often
        (45, 3600, ["info"] * 20),
        (61, 3600, ["warning"] * 20),
    ],
)
def test_repeats_of_one_card_escalate_as_is_said(number: int, every_s: float, becomes: list[str]) -> None:
    book, told = FindingBook("boot"), []
    for index in range(len(becomes)):
        now = later(index * every_s)
        event = KernelLog().take(line(number))
        assert event is not None
        book.fold("kernel", [finding_of(event, now.wall_s, now.mono_s, "boot")], now)
        told.append(book.active()[0].severity.value)
    assert told == becomes


@pytest.mark.parametrize(("code", "count", "apart_s", "becomes"), REPEATS)
def test_so_many_of_one_device_within_so_long_and_no_fewer_become_worse(
    code: str, count: int, apart_s: float, becomes: str
) -> None:
    def after(times: int, apart_s: float) -> Severity:
        book = FindingBook("boot")
        for index in range(times):
            now = later(index * apart_s)
            found = Finding(
                check="kernel",
                component=Component.SYSTEM,
                entity="it",
                code=code,
                severity=Severity.INFO,
                action="IGNORE",
                summary="it",
                event=True,
                seen_mono_s=now.mono_s,
            )
            book.add([found], now)
        return book.active()[0].severity

    assert after(count, apart_s).value == becomes
    assert after(count - 1, apart_s).order < Severity(becomes).order
    assert after(count, 100_000).order < Severity(becomes).order


def test_no_repeat_is_counted_that_is_not_expected() -> None:
    told = {(row.code, row.severity.value) for row in severities().repeats if row.code and not row.jobs}
    assert told == {(code, becomes) for code, _, _, becomes in REPEATS}


def test_errors_of_different_cards_are_no_repeats() -> None:
    book = FindingBook("boot")
    for index in range(8):
        event = KernelLog().take(line(94, pci=f"0000:{index + 16:02x}:00.0"))
        assert event is not None
        book.add([finding_of(event, NOW.wall_s, NOW.mono_s + index * 100, "boot")], NOW)
    assert {item.severity for item in book.active()} == {Severity.WARNING}
