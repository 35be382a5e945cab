"""Every Xid has the severity that NVIDIA's actions defend; each exception is named here, its reason in the table."""

import ast
import re
from pathlib import Path

import pytest

from sentinel.checks import xid
from sentinel.checks.findings import KEPT_S
from sentinel.checks.xid import (
    BucketRow,
    RecoveryRow,
    RepeatRow,
    XidRow,
    actions,
    bucket_meaning,
    catalogue,
    decode_nvlink5,
    finding_of,
    job_of_cgroup,
    named_pod,
    recovery_meaning,
    severities,
    sxid_meaning,
    xid_meaning,
)
from sentinel.core.health import Component, Finding, Severity
from sentinel.logs.kernel import parse_kernel, shipped_rules
from sentinel.rules.tables import RuleError, data_dir, load_rows


def table_lines(name: str) -> list[str]:
    """The rows of a table in rules/, read without the code that is tested."""
    lines = (data_dir("rules") / name).read_text().splitlines()
    return [line for line in lines if not line.startswith("#")][1:]


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
    assert set(range(1, 174)) <= set(catalogue()), "what NVIDIA adds may be added"
    assert (len(NVLINK5), len(SXIDS)) == (94, 93)  # as many as the sources that the tables name have


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


# ---------------------------------------------------------------- every row of every table

NVLINK5 = [line.split("\t") for line in table_lines("nvlink5.tsv")]
SXIDS = [line.split("\t") for line in table_lines("sxid.tsv")]


def registers(pattern: str, fill: str) -> str:
    return f"0x{int(pattern.replace('-', fill), 2):08x}"


@pytest.mark.parametrize("row", NVLINK5, ids=lambda row: "-".join(row[:2] + row[4:6]))
def test_each_row_of_nvlink5_is_found_by_its_registers_before_and_since_r575(row: list[str]) -> None:
    """The don't-care bits of intrinfo may be anything; where rows share registers the worst action counts."""
    number, units, before, since, status, immediate, investigatory, _ = row
    expected = bucket_meaning(immediate, investigatory, "")
    for unit in units.split("/"):
        for pattern in (before, since):
            for fill in "01":
                meaning = decode_nvlink5(
                    int(number), f"{unit} Fatal XC0 i0 Link 01 ({registers(pattern, fill)} {status} 0x0)"
                )
                assert meaning is not None
                assert meaning.severity.order >= expected.severity.order
                told = f"{unit} Fatal XC0 i0 Link 01 ({registers(pattern, fill)} {status})"
                line = f"NVRM: Xid (PCI:0000:66:00): {number}, {told}"
                assert (finding(line).severity, finding(line).action) == (meaning.severity, meaning.action)


def test_no_row_of_nvlink5_that_nvidia_ignores_isolates_by_itself() -> None:
    for number, units, before, _, status, immediate, _, _ in NVLINK5:
        meaning = decode_nvlink5(
            int(number), f"{units.split('/')[0]} Nonfatal ({registers(before, '0')} {status})"
        )
        others = {row[5] for row in NVLINK5 if row[0] == number and row[1] == units and row[2] == before}
        if immediate == "IGNORE" and others == {"IGNORE"}:
            assert meaning is not None
            assert meaning.severity in (Severity.INFO, Severity.WARNING), (number, units, status)


@pytest.mark.parametrize("row", SXIDS, ids=lambda row: row[0])
def test_each_row_of_the_switchs_table_is_followed_and_says_whose_it_is(row: list[str]) -> None:
    number, name, event, _ = row
    found = finding(f"nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): {number}, {name}")
    fatal = event == "Fatal"
    assert found.severity is (Severity.FATAL if fatal else Severity.WARNING)
    assert found.action == ("RESTART_BM" if fatal else "CONTACT_SUPPORT")
    assert "not NVIDIA's" in found.summary
    for word, severity in (("Fatal", Severity.FATAL), ("Non-fatal", Severity.WARNING)):
        assert (
            finding(f"nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): {number}, {word}, {name}").severity
            is severity
        )


@pytest.mark.parametrize("row", severities().xids, ids=lambda row: f"{row.xid}-{row.text}")
def test_each_exception_is_followed(row: XidRow) -> None:
    meaning = xid_meaning(row.xid, row.text)
    assert (meaning.severity, meaning.reason) == (row.severity, row.reason)


@pytest.mark.parametrize("row", severities().recoveries, ids=lambda row: row.text)
def test_each_recovery_action_is_followed_by_value_or_by_its_words(row: RecoveryRow) -> None:
    assert recovery_meaning(text=row.text).action == row.action
    assert recovery_meaning(value=row.value).action == row.action


@pytest.mark.parametrize("row", severities().buckets, ids=lambda row: f"{row.immediate}-{row.investigatory}")
def test_each_bucket_is_followed(row: BucketRow) -> None:
    assert bucket_meaning(row.immediate, row.investigatory, "").severity is row.severity


def test_support_alone_and_what_no_table_names_never_isolate() -> None:
    for immediate, investigatory in (
        ("CONTACT_SUPPORT", ""),
        ("", "CONTACT_SUPPORT"),
        ("", ""),
        ("SOMETHING_NEW", "RESET_GPU"),
    ):
        assert bucket_meaning(immediate, investigatory, "").severity is Severity.WARNING


def every_action() -> set[str]:
    told = {xid_meaning(number).action for number in catalogue()}
    told |= {bucket_meaning(row[5], row[6], "").action for row in NVLINK5}
    told |= {sxid_meaning(int(row[0])).action for row in SXIDS}
    told |= {row.action for row in severities().recoveries} | {
        row.action for row in severities().repeats if row.action
    }
    return told | {rule.action for rule, _ in shipped_rules()}


def test_every_fault_of_the_tables_has_a_way_to_end() -> None:
    """By time always; [[action]] says whether a new boot ends it too, and what a person does about it."""
    assert every_action() <= set(actions())
    assert set(KEPT_S) == set(Severity)
    assert all(row.do for row in actions().values())
    sure = {rule.action for rule, _ in shipped_rules() if rule.severity == "fatal"} | {
        "RESET_GPU",
        "RESTART_BM",
    }
    assert any(not actions()[action].boot for action in sure)  # a restart mends no memory module


def test_a_repeat_that_counts_nothing_or_two_things_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "severity.toml"
    row = '[[repeat]]\nwithin_s = 9\nseverity = "fatal"\nreason = "x"\n'
    path.write_text(
        f'{row}count = 2\n{row}code = "a"\nbucket = "b"\njobs = 2\n{row}code = "a"\n'
        f'{row}code = "a"\ncount = 2\njobs = 2\n{row}code = "a"\ncount = 2\n'
    )
    with pytest.raises(RuleError) as refused:
        load_rows(path, "repeat", RepeatRow)
    assert [problem.split(": ")[1] for problem in refused.value.problems] == [
        f"repeat[{k}]" for k in range(4)
    ]


def test_every_repeat_counts_something_that_a_table_can_make() -> None:
    codes = {rule.code for rule, _ in shipped_rules() if not rule.over} | {
        f"XID {number}" for number in catalogue()
    }
    for row in severities().repeats:
        assert (row.code in codes) != (
            row.bucket in {known.immediate for known in catalogue().values()} - {""}
        )
        assert (row.count > 1) != (row.jobs > 1), row.code
        assert row.within_s > 0


@pytest.mark.parametrize(
    ("cgroup", "job"),
    [
        (
            "/kubepods/pod95387fa4-da9c-11e7-9d36-5254b24cbf5e/6895a3",
            "pod 95387fa4-da9c-11e7-9d36-5254b24cbf5e",
        ),
        (
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podeded8c65_6e8e_4c6e_a889_3e427565c740.slice/x.scope",
            "pod eded8c65-6e8e-4c6e-a889-3e427565c740",
        ),
        ("/slurm/uid_1000/job_4711/step_0/task_0", "slurm 4711"),
        ("/system.slice/slurmstepd.scope/job_4711/step_0", "slurm 4711"),
        ("/docker/6895a3e13439", "container 6895a3e13439"),
        ("/system.slice/docker-6895a3e13439.scope", "container 6895a3e13439"),
        ("/user.slice/user-1000.slice/session-12.scope", ""),
        ("/", ""),
        ("", ""),
    ],
)
def test_a_cgroup_tells_the_job(cgroup: str, job: str) -> None:
    assert job_of_cgroup(cgroup) == job


UID = "95387fa4-da9c-11e7-9d36-5254b24cbf5e"


@pytest.mark.parametrize(
    ("pod", "job"),
    [
        ("llama-x7z9k", "pod research/llama"),  # a Job's
        ("llama-0-x7z9k", "pod research/llama"),  # an indexed Job's
        ("llama-worker-3", "pod research/llama-worker"),
        ("serve-6d4cf56db6-x7z9k", "pod research/serve"),  # a Deployment's
        ("nightly-28930140-x7z9k", "pod research/nightly"),  # a CronJob's
        ("train", "pod research/train"),
        ("my-train", "pod research/my-train"),
        ("7", "pod research/7"),
    ],
)
def test_a_pod_that_is_made_anew_is_the_same_job(pod: str, job: str, tmp_path: Path) -> None:
    (tmp_path / f"research_{pod}_{UID}").mkdir()
    (tmp_path / "kube-system_other-abcde_95387fa4-da9c-11e7-9d36-5254b24cbf5f").mkdir()
    assert named_pod(f"pod {UID}", str(tmp_path)) == job


def test_a_pod_whose_name_is_not_known_keeps_its_uid(tmp_path: Path) -> None:
    (tmp_path / f"odd_{UID}").mkdir()
    for folder in (tmp_path, tmp_path / "none"):
        assert named_pod(f"pod {UID}", str(folder)) == f"pod {UID}"
    assert named_pod("slurm 7", str(tmp_path)) == "slurm 7"


def test_a_fault_of_a_device_is_named_by_its_address() -> None:
    nic = finding(
        "mlx5_core 0000:61:00.0: wait_func:1132:(pid 1): X(0x710) timeout. Will cause a leak of a command resource"
    )
    assert (nic.component, nic.entity, nic.severity) == (Component.NIC, "NIC 0000:61:00.0", Severity.FATAL)
    bus = finding(
        "pcieport 0000:00:03.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer"
    )
    assert (bus.component, bus.entity) == (Component.SYSTEM, "PCI 0000:00:03.0")


def test_every_action_that_a_check_names_has_its_row(repo: Path) -> None:
    """`ACTION` in the calls that make findings: sentinel check prints what its row says."""
    named: dict[str, str] = {}
    for file in (repo / "sentinel" / "checks").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and "finding" in ast.unparse(node.func).lower():
                told = [*node.args, *(one.value for one in node.keywords if one.arg == "action")]
                words = [one.value for one in told if isinstance(one, ast.Constant)]
                named |= {one: file.name for one in words if re.fullmatch(r"[A-Z][A-Z_]{3,}", str(one))}
    assert len(named) > 20
    assert {one: file for one, file in named.items() if one not in actions()} == {}


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("190\tNEW\tA fault\tRESET_GPU", "expected a number and 5 columns with tabs"),
        ("x\tNEW\tA fault\tRESET_GPU\t", "expected a number and 5 columns with tabs"),
        ("79\tAGAIN\tA fault\tRESET_GPU\t", "79 stands twice"),
    ],
)
def test_a_bad_row_of_the_catalogue_is_named(
    row: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = (data_dir("rules") / "xid.tsv").read_text("utf-8")
    (tmp_path / "xid.tsv").write_text(f"{shipped}{row}\n", "utf-8")
    monkeypatch.setattr(xid, "data_dir", lambda _: tmp_path)
    with pytest.raises(RuleError, match=re.escape(problem)):
        catalogue.__wrapped__()
