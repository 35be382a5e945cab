"""What kernel messages mean, on lines that were really printed (kernel_lines.toml names where)."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.checks.xid import catalogue, finding_of
from sentinel.core.health import Severity
from sentinel.logs.kernel import MAX_REMEMBERED, MAX_TEXT, KernelLog, normal_pci, parse_kernel, shipped_rules
from sentinel.logs.kernel_prefix import split_prefix

LINES = tomllib.loads((Path(__file__).parent / "kernel_lines.toml").read_text())["line"]


@pytest.mark.parametrize("row", LINES, ids=lambda row: row["text"][:60])
def test_a_line_that_was_really_printed_is_read(row: dict[str, Any]) -> None:
    event = parse_kernel(split_prefix(row["text"]).text)
    if not row["kind"]:
        assert event is None
        return
    assert event is not None
    assert event.kind == row["kind"]
    assert event.number == row.get("number")
    assert event.pci == row.get("pci", "")
    assert event.pid == row.get("pid")
    assert event.name == row.get("name", "")
    assert event.entity == row.get("entity", "")
    assert event.cgroup == row.get("cgroup", "")
    assert event.count == row.get("count", 1)
    assert (event.rule.code if event.rule else None) == row.get("code")
    assert (event.rule is not None and event.rule.over) == row.get("over", False)


@pytest.mark.parametrize(
    ("address", "normal"),
    [
        ("0000:18:00", "0000:18:00.0"),
        ("00000000:18:00.0", "0000:18:00.0"),
        ("0000:C3:00.0", "0000:c3:00.0"),
        ("10000:01:00.1", "10000:01:00.1"),
    ],
)
def test_pci_addresses_have_one_form(address: str, normal: str) -> None:
    assert normal_pci(address) == normal


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:26b5) installed in this system has "
        "fallen off the bus and is not responding to commands.",
        "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this system has\n"
        "NVRM: fallen off the bus and is not responding to commands.",
        "NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.",
        "NVRM: GPU at PCI:0000:b3:00: GPU has fallen off the bus.",
        "NVRM: GPU at 0000:b3:00.0 has fallen off the bus.",
    ],
)
def test_a_card_off_the_bus_is_xid_79_also_where_the_driver_prints_no_xid(text: str) -> None:
    event = parse_kernel(text)
    assert event is not None
    assert (event.kind, event.number, event.pci) == ("xid", 79, "0000:b3:00.0")


def test_an_off_the_bus_line_without_an_address_still_counts() -> None:
    event = parse_kernel("NVRM: fallen off the bus and is not responding to commands.")
    assert event is not None
    assert (event.number, event.pci) == (79, "")


def test_xid_154_carries_the_drivers_recovery_action() -> None:
    event = parse_kernel(
        "NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
    )
    assert event is not None
    assert event.recovery == "GPU Reset Required"


def test_a_cascade_names_the_xid_that_caused_it() -> None:
    event = parse_kernel(
        "NVRM: Xid (PCI:0000:dc:00): 45, pid=1, name=python3, Ch 00000001 caused by previous Xid 149"
    )
    assert event is not None
    assert event.previous == 149


def test_a_switch_error_has_number_address_and_the_drivers_word() -> None:
    event = parse_kernel(
        "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Fatal, Link 28 sourcetrack timeout error (First)"
    )
    assert event is not None
    assert (event.kind, event.number, event.pci, event.word) == ("sxid", 24007, "0000:c3:00.0", "Fatal")


@pytest.mark.parametrize(
    ("text", "pid", "name"),
    [
        (
            "Out of memory: Killed process 123 (python) total-vm:4kB, anon-rss:2kB, file-rss:0kB, shmem-rss:0kB",
            123,
            "python",
        ),
        (
            "Memory cgroup out of memory: Killed process 11433 (java) total-vm:25004420kB, anon-rss:91796kB",
            11433,
            "java",
        ),
        (
            "Killed process 46433 (process) total-vm:536552kB, anon-rss:12012kB, file-rss:53740kB, shmem-rss:4kB",
            46433,
            "process",
        ),
        (
            "Memory cgroup out of memory: Killed process 7 (a (b) c) total-vm:1kB, anon-rss:1kB, file-rss:0kB",
            7,
            "a (b) c",
        ),
    ],
)
def test_an_oom_kill_names_the_process(text: str, pid: int, name: str) -> None:
    event = parse_kernel(text)
    assert event is not None
    assert event.rule is not None
    assert (event.rule.code, event.pid, event.name) == ("oom-kill", pid, name)


@pytest.mark.parametrize(
    ("text", "code", "entity"),
    [
        ("INFO: task python:4242 blocked for more than 122 seconds.", "hung-task", ""),
        (
            "EXT4-fs error (device vda1): ext4_lookup:1855: inode #2: comm ls: deleted inode referenced",
            "fs-error",
            "vda1",
        ),
        ("EXT4-fs (sda1): Remounting filesystem read-only", "fs-shutdown", "sda1"),
        (
            "XFS (nvme0n1): Corruption of in-memory data (0x8) detected at xfs_defer_finish",
            "fs-error",
            "nvme0n1",
        ),
        (
            "XFS (dm-0): log I/O error -5",
            "fs-error",
            "dm-0",
        ),
        ("XFS (dm-0): Filesystem has been shut down due to log error (0x2). shutdown", "fs-shutdown", "dm-0"),
        ("watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [python:77]", "soft-lockup", "CPU#3"),
        ("NMI watchdog: Watchdog detected hard LOCKUP on cpu 5", "hard-lockup", "cpu 5"),
        ("{1}[Hardware Error]: event severity: fatal", "hardware-error", ""),
    ],
)
def test_faults_of_storage_and_kernel_are_named(text: str, code: str, entity: str) -> None:
    event = parse_kernel(text)
    assert event is not None
    assert event.rule is not None
    assert (event.rule.code, event.entity) == (code, entity)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NVRM: Xid (PCI:0000",
        "NVRM: Xid (PCI:0000:66:00): abc, pid=2280636",
        "NVRM: Xid (PCI:0000:66:00): ",
        "NVRM: Xid (PCI:0000:66:00): 99999999999999, x",
        "my program says NVRM: Xid (PCI:0000:66:00): 79, GPU has fallen off the bus.",
        "usb 1-1: device has fallen off the bus",
        "\x00\xff�" * 100,
    ],
)
def test_garbled_lines_and_quotations_are_no_fault(text: str) -> None:
    assert parse_kernel(text) is None


OF_A_PROGRAM = (
    "[4711]: segfault at 8 ip 00005625de2b615b sp 00007fff09abb370 error 6 in {path}[115b,5625de2b6000+1000]",
    "[4711] bad frame in rt_sigreturn frame:1 ip:2 sp:3 orax:0 in {path}[5625de2b6000+1000]",
    " invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    ": page allocation failure: order:5, mode:0xcc0(GFP_KERNEL), nodemask=(null)",
    " (4711) used greatest stack depth: 10000 bytes left",
)


@pytest.mark.parametrize("row", LINES, ids=lambda row: row["text"][:60])
def test_a_line_is_read_alike_whichever_rules_are_tried_for_texts_of_its_kind(row: dict[str, Any]) -> None:
    text = split_prefix(row["text"]).text
    for one in (text, text.replace("1", "77"), f"{text} {'x' * MAX_TEXT}"):
        assert parse_kernel(one) == parse_kernel(one, shipped_rules())


@pytest.mark.parametrize("row", LINES, ids=lambda row: row["text"][:60])
def test_a_program_that_is_named_like_a_kernel_line_is_no_fault(row: dict[str, Any]) -> None:
    """The kernel begins what it says of a program with the 15 characters that the program calls itself."""
    text = split_prefix(row["text"]).text
    for says in OF_A_PROGRAM:
        for length in range(1, 16):
            assert parse_kernel(text[:length] + says.format(path=text[length:])) is None


@pytest.mark.parametrize(
    "text",
    [
        "EDAC MC0: UE x[4711]: segfault at 8 ip 1 sp 2 error 6 in a.out[115b,5625de2b6000+1000]",
        "kernel BUG at x[4711]: segfault at 8 ip 1 sp 2 error 6 in a.out[115b,5625de2b6000+1000]",
        "NVRM: GPU[4711]: segfault at 8 ip 1 sp 2 error 6 in at 0000:18:00.0 has fallen off the bus[115b,5625+1]",
        "XFS (a): [4711]: segfault at 8 ip 1 sp 2 error 6 in Shutting down filesystem[115b,5625+1]",
        "NVRM: API mismatch: the client has the version GPU 0000:18:00.0 has fallen off the bus, but",
    ],
)
def test_what_a_program_can_make_the_kernel_print_is_no_fault(text: str) -> None:
    assert parse_kernel(text) is None


def test_a_pid_that_is_no_number_is_unknown() -> None:
    event = parse_kernel("NVRM: Xid (PCI:0000:66:00): 31, pid=99999999999999999, name=x, Ch 1")
    assert event is not None
    assert event.pid is None


def test_every_row_of_the_kernel_table_names_a_line_and_its_source() -> None:
    met = {
        id(event.rule)
        for row in LINES
        if (event := parse_kernel(split_prefix(row["text"]).text)) and event.rule
    }
    for rule, pattern in shipped_rules():
        assert set(pattern.groupindex) <= {"entity", "pci", "pid", "name", "cgroup", "count"}, rule.code
        assert rule.source, rule.code
        assert id(rule) in met, f"no line for {rule.code}: {rule.pattern}"


@pytest.mark.parametrize(
    "text",
    ["[Hardware Error]: event severity: fatal", "[Hardware Error]: System Fatal error."],
)
def test_what_the_firmware_kept_of_an_earlier_boot_isolates_no_node(text: str) -> None:
    """The machine was repaired since, and some firmware tells the same at every boot."""
    event = parse_kernel(text)
    assert event is not None
    assert finding_of(event, 0.0, 0.0, "boot").severity is not Severity.FATAL
    current = parse_kernel("{1}[Hardware Error]: event severity: fatal")
    assert current is not None
    assert finding_of(current, 0.0, 0.0, "boot").severity is Severity.FATAL


def test_what_ends_a_fault_is_a_row_of_its_own_code() -> None:
    begins = {rule.code for rule, _ in shipped_rules() if not rule.over}
    assert {rule.code for rule, _ in shipped_rules() if rule.over} <= begins


@pytest.mark.parametrize("row", LINES, ids=lambda row: row["text"][:60])
def test_a_quotation_of_a_line_proves_nothing(row: dict[str, Any]) -> None:
    """A name, a path or an audit record may hold any text, but not where the kernel begins its own."""
    text = split_prefix(row["text"]).text
    assert parse_kernel(f'audit: type=1300 audit(1725018189.000:1): comm="{text}"') is None
    assert parse_kernel(f"python3[42]: {text}") is None


# ---------------------------------------------------------------- several lines


def test_a_kill_has_the_cgroup_that_the_line_before_named() -> None:
    """As in github.com/leptonai/gpud pull 70."""
    log = KernelLog()
    cgroup = (
        "/kubepods.slice/kubepods-podeded8c65_6e8e_4c6e_a889_3e427565c740.slice/cri-containerd-ec9e.scope"
    )
    first = (
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=cri-containerd-ec9e.scope,mems_allowed=0-1,"
        f"oom_memcg=/kubepods.slice,task_memcg={cgroup},task=pt_main_thread,pid=461754,uid=0"
    )
    assert log.take(first) is None
    other = log.take("Memory cgroup out of memory: Killed process 461753 (other) total-vm:1kB, anon-rss:1kB")
    killed = log.take(
        "Memory cgroup out of memory: Killed process 461754 (pt_main_thread) total-vm:1kB, anon-rss:1kB"
    )
    assert other is not None
    assert killed is not None
    assert (other.cgroup, killed.cgroup) == ("", cgroup)


def test_an_older_kernels_kill_has_its_cgroup_too() -> None:
    """As in github.com/bluek8s/kubedirector issue 356."""
    log = KernelLog()
    cgroup = "/kubepods/pod951f6bc5-c5a5-11ea-8707-80e455f266a2/0249"
    log.take(f"Task in {cgroup} killed as a result of limit of {cgroup}")
    log.take("Memory cgroup out of memory: Kill process 62685 (bash) score 0 or sacrifice child")
    killed = log.take("Killed process 62769 (cp) total-vm:11700kB, anon-rss:184kB, file-rss:1464kB")
    assert killed is not None
    assert killed.cgroup == cgroup


def test_a_card_has_the_uuid_that_the_driver_told() -> None:
    log = KernelLog()
    assert log.take("NVRM: GPU at PCI:0000:00:05: GPU-efbdfde9-5798-a6e7-4c46-12518fa15375") is None
    own, other = (log.take(f"NVRM: Xid (PCI:0000:00:{slot}): 94, Contained") for slot in ("05", "06"))
    assert own is not None
    assert other is not None
    assert (own.uuid, other.uuid) == ("GPU-efbdfde9-5798-a6e7-4c46-12518fa15375", "")


def test_a_link_that_goes_down_while_the_machine_or_the_driver_starts_means_nothing() -> None:
    log = KernelLog()
    down = "mlx5_core 0000:5c:00.0 eth0: Link down"
    assert log.take(down, 599.0) is None
    assert log.take(down, 601.0) is not None
    assert log.take("mlx5_core 0000:5c:00.0: firmware version: 16.27.2048", 5000.0) is None
    assert log.take(down, 5599.0) is None
    assert log.take(down.replace("5c", "5d"), 5599.0) is not None
    assert log.take(down, 5601.0) is not None
    assert KernelLog().take(down) is not None  # no time is known


def test_what_is_remembered_between_lines_is_bounded() -> None:
    log = KernelLog()
    for number in range(10_000):
        log.take(f"oom-kill:constraint=X,task_memcg=/a/{number},task=x,pid={number},uid=0")
        log.take(f"NVRM: GPU at PCI:{number:04x}:00:05: GPU-efbdfde9-5798-a6e7-4c46-12518fa15375")
    assert len(log._cgroups) <= MAX_REMEMBERED
    assert len(log._uuids) <= MAX_REMEMBERED


# ---------------------------------------------------------------- anything

FRAGMENTS = [row["text"] for row in LINES] + [
    "NVRM: Xid (PCI:0000:66:00): ",
    "GPU recovery action changed from ",
    "(0x0409a0c2 0x00000008 ",
    "pid='<unknown>', name=<unknown>, ",
    "oom-kill:constraint=x,task_memcg=/a,task=b,pid=",
    "\\x0a",
    "\x00",
]
ANYTHING = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=40)), max_size=4).map("".join)


@settings(max_examples=300)
@given(texts=st.lists(ANYTHING, max_size=5), cut=st.integers(0, 300))
def test_no_text_makes_it_raise(texts: list[str], cut: int) -> None:
    log = KernelLog()
    for text in texts:
        for part in (text, text[:cut], text[cut:]):
            log.take(part)
            log.take(split_prefix(part, 1e9).text)
            if (event := parse_kernel(part)) is not None:
                finding = finding_of(event, 1.0, 2.0, "boot")
                assert len(finding.evidence[0]) <= MAX_TEXT
                if event.number is not None and event.number not in catalogue() and event.kind == "xid":
                    assert finding.severity is Severity.WARNING
