"""A user's own checks: real executables with Nagios exit codes or JSON, bounded in time, output and number."""

import asyncio
import re
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sentinel.checks import own
from sentinel.checks.command import Output
from sentinel.checks.runner import CheckRunner
from sentinel.checks.table import CHECKS, all_checks
from sentinel.config.load import load_settings
from sentinel.config.problems import ConfigErrors
from sentinel.core.health import CheckResult, CheckState, Component, Severity
from sentinel.settings import OwnCheck
from tests.waits import runs, until

HEAD = "apiVersion: sentinel.dev/v1alpha1\nkind: Settings\n"


class Owned:
    """One own check and the program that it runs."""

    def __init__(self, machine: Any, **fields: Any) -> None:
        self.program = machine.folder / "check_raid"
        self.own = OwnCheck(**{"name": "raid", "command": (str(self.program), "-w", "5"), **fields})
        self.settings = msgspec.structs.replace(machine.settings, own_checks=(self.own,))
        rows = [row for row in all_checks(self.settings) if row.name == "own-raid"]
        self.runner = CheckRunner(self.settings, checks=rows)

    def script(self, body: str, mode: int = 0o755) -> None:
        new = self.program.with_suffix(".new")
        new.write_text(f"#!/bin/sh\n{body}\n")
        new.chmod(mode)
        new.replace(self.program)

    def look(self, times: int = 1) -> CheckResult:
        for _ in range(times):
            (result,) = asyncio.run(self.runner.check_now(("own-raid",), max_age_s=-1))
        return result

    def values(self) -> dict[tuple[str, str], float]:
        return {
            (dict(measure.labels)["label"], dict(measure.labels)["unit"]): measure.value
            for measure in self.runner.measures()
        }


@pytest.fixture
def owned(machine: Any) -> Owned:
    return Owned(machine)


# ---------------------------------------------------------------- Nagios


@pytest.mark.parametrize(("code", "severity"), [(1, Severity.WARNING), (2, Severity.DEGRADED)])
def test_a_nagios_status_is_a_finding_with_the_checks_name_that_ends_with_exit_0(
    owned: Owned, code: int, severity: Severity
) -> None:
    owned.script(f"echo 'RAID - disk 3 failed | rebuilt=40%'; exit {code}")
    (finding,) = owned.look().findings
    assert (finding.check, finding.code, finding.severity) == ("own-raid", "raid", severity)
    assert finding.summary == "RAID - disk 3 failed"
    assert finding.evidence == (f"{owned.program} -w 5",)
    owned.script("echo RAID OK")
    result = owned.look(2)
    assert (result.state, result.findings, result.detail) == (CheckState.OK, (), "RAID OK")


def test_it_gets_its_arguments_and_no_input(owned: Owned) -> None:
    owned.script('read line && exit 2; echo "$# $1 $2 in $PWD"')
    assert owned.look().detail == "2 -w 5 in /"


@pytest.mark.parametrize(("cap", "severity"), [("fatal", Severity.FATAL), ("warning", Severity.WARNING)])
def test_only_the_settings_let_it_take_the_node_out_of_service(
    machine: Any, cap: str, severity: Severity
) -> None:
    one = Owned(machine, max_severity=cap, component="disk")
    one.script("echo gone; exit 2")
    (finding,) = one.look().findings
    assert (finding.severity, finding.component) == (severity, Component.DISK)


@pytest.mark.parametrize(
    "body", ["echo who knows; exit 3", "exit 4", "exit 127", "kill -SEGV $$", "exec /no/such/file"]
)
def test_what_says_nothing_is_unknown_not_healthy(owned: Owned, body: str) -> None:
    owned.script(body)
    result = owned.look()
    assert (result.state, result.findings) == (CheckState.UNKNOWN, ())
    assert result.detail
    assert owned.runner.stats["own-raid"].exceptions == 0


def test_an_unknown_ends_no_finding(owned: Owned) -> None:
    owned.script("echo failed; exit 2")
    owned.look()
    owned.script("exit 3")
    assert [finding.code for finding in owned.look(3).findings] == ["raid"]


def test_perfdata_becomes_numbers_in_base_units(owned: Owned) -> None:
    owned.script(
        "echo \"OK | time=12ms;5;10 'free space'=1.5GiB load=0.5;;;0 used=83%;80;90 'it''s'=3c broken=U\"\n"
        "echo 'long text | rta=3us'"
    )
    assert owned.look().state is CheckState.OK
    assert owned.values() == pytest.approx(
        {
            ("time", "seconds"): 0.012,
            ("free space", "bytes"): 1.5 * 2**30,
            ("load", ""): 0.5,
            ("used", "ratio"): 0.83,
            ("it's", "count"): 3.0,
            ("rta", "seconds"): 3e-6,
        }
    )
    owned.script("echo 'OK | a=1'; exit 7")
    assert owned.look().state is CheckState.UNKNOWN
    assert owned.values() == {}  # old numbers are not shown as new ones


# ---------------------------------------------------------------- JSON


def test_json_may_name_several_faults_and_numbers(owned: Owned) -> None:
    owned.script(
        """cat <<'EOF'
{"status": "warning", "summary": "two disks",
 "findings": [{"summary": "worn", "entity": "sda", "action": "REPLACE_DISK", "evidence": "wear 95 %"},
              {"summary": "dead", "entity": "sdb", "severity": "fatal"}],
 "measures": {"wear": 0.95}, "units": {"wear": "ratio"}}
EOF
exit 1"""
    )
    result = owned.look()
    assert {finding.entity: (finding.severity, finding.action) for finding in result.findings} == {
        "sda": (Severity.WARNING, "REPLACE_DISK"),
        "sdb": (Severity.DEGRADED, "CHECK_NODE"),
    }
    assert owned.values() == {("wear", "ratio"): 0.95}
    owned.script('echo \'{"status": "ok", "summary": "fine"}\'')
    assert owned.look(2).state is CheckState.OK


def test_the_worse_of_status_and_exit_code_counts(owned: Owned) -> None:
    owned.script('echo \'{"status": "ok"}\'; exit 2')
    assert [finding.severity for finding in owned.look().findings] == [Severity.DEGRADED]
    owned.script('echo \'{"status": "critical", "summary": "x"}\'')
    assert [finding.severity for finding in owned.look().findings] == [Severity.DEGRADED]


@pytest.mark.parametrize(
    "text",
    [
        '{"status": ',
        '{"state": "ok"}',
        '{"status": "fine"}',
        '{"status": 9}',
        '{"findings": [{"entity": "a"}]}',
        "{}}",
    ],
)
def test_json_that_is_not_understood_is_unknown(owned: Owned, text: str) -> None:
    owned.script(f"echo '{text}'")
    result = owned.look()
    assert (result.state, result.findings) == (CheckState.UNKNOWN, ())
    assert "not understood" in result.detail


# ---------------------------------------------------------------- bounds


def test_one_that_hangs_is_killed_with_its_children_and_told_until_it_answers(machine: Any) -> None:
    one = Owned(machine, timeout_s=0.5)
    pids = machine.folder / "pids"
    one.script(f"sleep 1000 & echo $! $$ > {pids}.new; mv {pids}.new {pids}; wait")
    result = one.look()
    assert result.state is CheckState.UNKNOWN
    assert [(finding.entity, finding.severity) for finding in result.findings] == [
        ("check own-raid", Severity.WARNING)
    ]
    for pid in pids.read_text().split():
        until(lambda pid=pid: not runs(int(pid)), "it was not killed")  # type: ignore[misc]
    one.script("echo OK")
    assert one.look(2).findings == ()


def test_a_child_that_it_left_behind_is_neither_waited_for_nor_kept(owned: Owned, machine: Any) -> None:
    pid = machine.folder / "pid"
    owned.script(f"sleep 1000 & echo $! > {pid}; echo OK")
    assert owned.look().detail == "OK"  # the child holds its stdout open
    until(lambda: not runs(int(pid.read_text())), "it was left behind")


def test_a_program_that_hangs_in_the_kernel_gets_no_second_one_beside_it(machine: Any, frozen: Path) -> None:
    one = Owned(machine, timeout_s=0.2)
    starts = machine.folder / "starts"
    one.script(f"echo >> {starts}; echo x > {frozen}/file")
    assert "cannot be killed" in one.look().detail
    assert "still hangs in the kernel" in one.look().detail
    assert starts.read_text() == "\n"
    one.script("echo OK")
    subprocess.run(["fsfreeze", "-u", str(frozen)], check=True)
    until(lambda: one.look().state is CheckState.OK, "it did not end")


def test_a_flood_is_cut_off_and_not_believed(owned: Owned) -> None:
    owned.script("yes 'OK | a=1' | head -c 3000000")
    result = owned.look()
    assert result.state is CheckState.UNKNOWN
    assert "more than 65536 bytes" in result.detail


def test_thousands_of_numbers_and_faults_are_bounded() -> None:
    many = own.parse_nagios("OK | " + " ".join(f"n{number}={number}" for number in range(5000)))
    one = OwnCheck(name="many", command=("/x",))
    assert len(list(own._measures(one, many))) == own.MAX_MEASURES
    faults = own.Answer(findings=[own.Fault("x", entity=str(number)) for number in range(5000)])
    assert len(own.judge(one, 1, faults)) == own.MAX_FINDINGS


def test_control_characters_do_not_reach_a_terminal() -> None:
    (finding,) = own.judge(
        OwnCheck(name="x", command=("/x",)), *own.parse(Output(1, b"a\x1b[31mred\x00\n", b"", False))
    )
    assert finding.summary.isprintable()


def test_only_a_few_run_at_once_and_the_others_get_their_turn(machine: Any) -> None:
    folder = machine.folder / "at-once"
    folder.mkdir()
    program = machine.folder / "slow"
    program.write_text(f"#!/bin/sh\ntouch {folder}/$$\nls {folder} | wc -l\nsleep 0.1\nrm {folder}/$$\n")
    program.chmod(0o755)
    checks = tuple(OwnCheck(name=f"n{number}", command=(str(program),)) for number in range(10))
    settings = msgspec.structs.replace(machine.settings, own_checks=checks)
    rows = [row for row in all_checks(settings) if row.name.startswith("own-")]
    results = asyncio.run(CheckRunner(settings, checks=rows).check_now())
    assert [result.state for result in results] == [CheckState.OK] * 10
    assert max(int(result.detail) for result in results) <= 4


def test_a_program_that_everybody_may_write_is_not_run(owned: Owned, machine: Any) -> None:
    owned.script(f"touch {machine.folder}/ran", mode=0o757)
    result = owned.look()
    assert result.state is CheckState.UNKNOWN
    assert "written by everybody" in result.detail
    assert not (machine.folder / "ran").exists()


def test_a_program_that_is_missing_or_may_not_be_run_is_unknown(owned: Owned) -> None:
    assert "No such file" in owned.look().detail
    owned.script("echo OK", mode=0o644)
    assert owned.look().state is CheckState.UNKNOWN


# ---------------------------------------------------------------- settings


def test_the_settings_that_are_shown_are_valid_and_so_is_the_json(owned: Owned) -> None:
    page = (Path(__file__).parents[2] / "docs/checks-custom.md").read_text()
    (shown,) = re.findall(r"```yaml\n(.*?)```", page, re.S)
    assert load_settings(shown).own_checks[0].name == "raid"
    (answer,) = re.findall(r"```json\n(.*?)```", page, re.S)
    owned.script(f"cat <<'END'\n{answer}END")
    assert [finding.entity for finding in owned.look().findings] == ["sda"]
    assert owned.values() == {("wear", "ratio"): 0.95}


def test_settings_declare_own_checks_beside_the_shipped_ones() -> None:
    settings = load_settings(
        HEAD
        + """\
ownChecks:
  - name: raid
    command: [/usr/lib/nagios/plugins/check_raid, -w, "5"]
    interval: 5m
    timeout: 30s
    maxSeverity: fatal
    component: disk
  - {name: nic, command: [/opt/nic]}
"""
    )
    assert settings.own_checks[0] == OwnCheck(
        name="raid",
        command=("/usr/lib/nagios/plugins/check_raid", "-w", "5"),
        interval_s=300.0,
        timeout_s=30.0,
        max_severity="fatal",
        component="disk",
    )
    rows = all_checks(settings)
    assert rows[: len(CHECKS)] == CHECKS
    assert [(row.name, row.component, row.interval_s) for row in rows[len(CHECKS) :]] == [
        ("own-raid", Component.DISK, 300.0),
        ("own-nic", Component.SYSTEM, 60.0),
    ]


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        ("[{name: a, command: [raid]}]", "ownChecks[0].command", "begins with /"),
        ("[{name: a, command: /bin/raid}]", "ownChecks[0].command", "a list"),
        ("[{name: a, command: [/bin/raid, 5]}]", "ownChecks[0].command", "in quotes"),
        ("[{name: a, command: []}]", "ownChecks[0].command", "a list"),
        ("[{name: A b, command: [/x]}]", "ownChecks[0].name", "a-z"),
        ("[{name: a, command: [/x]}, {name: a, command: [/y]}]", "ownChecks[1].name", "no other check"),
        ("[{name: a, command: [/x], timeout: 2m}]", "ownChecks[0].timeout", "at most the interval"),
        ("[{name: a, command: [/x], interval: 5s}]", "ownChecks[0].interval", "at most the interval"),
        ("[{name: a, command: [/x], maxSeverity: bad}]", "ownChecks[0].maxSeverity", "fatal"),
        ("[{name: a, command: [/x], component: agent}]", "ownChecks[0].component", "gpu"),
    ],
)
def test_what_is_wrong_in_an_own_check_is_named(text: str, path: str, expected: str) -> None:
    with pytest.raises(ConfigErrors) as caught:
        load_settings(f"{HEAD}ownChecks: {text}\n")
    (problem,) = caught.value.problems
    assert problem.path == path
    assert expected in problem.expected
