"""`sentinel check`: exit codes in Nagios order, a table for people, JSON for programs."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sentinel.checks.table import CHECKS
from sentinel.cli.check import add_arguments, confirm, exit_code, learn, look, main, summary, table
from sentinel.core.health import CheckResult, CheckState, Component, Finding, Severity
from sentinel.settings import OwnCheck, Settings
from tests.waits import runs, until


def result(state: CheckState, *severities: Severity) -> CheckResult:
    findings = tuple(
        Finding(
            check="kernel",
            component=Component.GPU,
            entity="GPU 0000:18:00.0",
            code=f"XID {index}",
            severity=severity,
            action="RESET_GPU",
            summary="summary",
            evidence=("line \x1b[31m with colours",),
        )
        for index, severity in enumerate(severities)
    )
    return CheckResult(check="kernel", state=state, findings=findings, detail="why")


@pytest.mark.parametrize(
    ("results", "code"),
    [
        ([result(CheckState.OK)], 0),
        ([result(CheckState.ABSENT)], 0),
        ([result(CheckState.FOUND, Severity.INFO)], 0),
        ([result(CheckState.FOUND, Severity.WARNING, Severity.INFO)], 1),
        ([result(CheckState.FOUND, Severity.DEGRADED)], 2),
        ([result(CheckState.FOUND, Severity.FATAL), result(CheckState.UNKNOWN)], 2),
        ([result(CheckState.UNKNOWN), result(CheckState.OK)], 3),
        ([result(CheckState.UNKNOWN), result(CheckState.FOUND, Severity.WARNING)], 3),
    ],
)
def test_the_exit_code_tells_the_worst(results: list[CheckResult], code: int) -> None:
    assert exit_code(results) == code


def test_the_table_says_what_state_evidence_and_what_to_do_without_control_characters() -> None:
    text = table([result(CheckState.FOUND, Severity.FATAL), result(CheckState.ABSENT)])
    assert "GPU 0000:18:00.0 XID 0   fatal" in text
    assert "-> RESET_GPU: reset the GPU when nothing runs on it" in text
    assert "absent" in text
    assert "\x1b" not in text


def test_on_a_narrow_terminal_evidence_stands_under_what_it_is_about() -> None:
    results = [result(CheckState.FOUND, Severity.WARNING), result(CheckState.ABSENT)]
    for columns in (20, 40, 80, 200):
        lines = table(results, columns).splitlines()
        assert all(len(line) <= columns for line in lines), columns
        assert "".join(lines).replace(" ", "").count("RESET_GPU") == 1
    assert "  summary: line" in table(results, 40)
    assert len(table(results).splitlines()) == 3  # in a file each finding is one line


def test_the_worst_stands_first_and_the_last_line_sums_up() -> None:
    results = [
        result(CheckState.ABSENT),
        result(CheckState.UNKNOWN),
        result(CheckState.FOUND, Severity.WARNING, Severity.FATAL),
    ]
    states = ["fatal", "warning", "unknown", "absent"]
    shown = [word for line in table(results).splitlines() for word in line.split() if word in states]
    assert shown == states
    told = summary(results, 2)
    assert told == "critical: 1 fatal, 1 warning, 1 check unknown, 1 check absent\n"
    # What is absent is neither healthy nor broken, and is not called so.
    assert summary(results[:1] * 2, 0) == "nothing of it is on this machine: 2 checks absent\n"


def test_who_only_wants_the_exit_code_may_close_its_output(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sentinel", "check", "fragmentation"]
    environment = {**os.environ, "SENTINEL_STATE_DIR": str(tmp_path)}
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command], stderr=subprocess.PIPE, env=environment
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_damaged_state_of_the_agent_is_said_and_leaves_the_json_whole(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "shape.json").write_text("[")
    for damage in ("rubbish", '{"saved_wall_s":1,"checks":{"book":"x"}}'):
        (tmp_path / "agent/state.json").write_text(damage)
        done = subprocess.run(
            [sys.executable, "-m", "sentinel", "check", "shape", "-o", "json"],
            capture_output=True,
            env={**os.environ, "SENTINEL_STATE_DIR": str(tmp_path)},
        )
        (check,) = msgspec.convert(json.loads(done.stdout)["checks"], list[CheckResult])
        assert [finding.code for finding in check.findings] == ["shape-unreadable"]
        assert done.returncode == 1
        assert b"what the agent of this machine knows is not told" in done.stderr
        assert b"state.json is damaged" in done.stderr


def test_what_is_learnt_is_confirmed_by_a_second_command(
    machine: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.add_pci("0000:18:00.0")
    assert confirm(machine.settings) == 3
    assert learn(machine.settings) == 0
    assert "gpus: 1" in capsys.readouterr().out
    assert run(machine, "shape") == 0
    assert "shape-unconfirmed" in capsys.readouterr().out
    assert confirm(machine.settings) == 0
    assert run(machine, "shape") == 0
    assert "shape-unconfirmed" not in capsys.readouterr().out
    assert learn(machine.settings) == 0
    assert "replaces what was confirmed" in capsys.readouterr().err


def test_settings_that_are_refused_leave_the_machine_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.yaml").write_text("kind: Settings\n")
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert main(parser.parse_args(["--settings", str(tmp_path / "bad.yaml")])) == 3
    assert "apiVersion" in capsys.readouterr().err


def test_deep_adds_the_slow_checks(machine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def checked(*arguments: str) -> set[str]:
        run(machine, "-o", "json", *arguments)
        return {one["check"] for one in json.loads(capsys.readouterr().out)["checks"]}

    slow = {row.name for row in CHECKS if row.slow}
    assert checked("--deep") - checked() == slow
    assert checked(*slow) == slow or not slow


def run(machine: Any, *arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return look(machine.settings, parser.parse_args(arguments))


def test_a_card_off_the_bus_is_critical(machine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    machine.log("NVRM: Xid (PCI:0000:18:00): 79, pid=1234, name=python3, GPU has fallen off the bus.")
    assert run(machine, "kernel", "-o", "json") == 2
    document = json.loads(capsys.readouterr().out)
    assert document["exit"] == 2
    (check,) = msgspec.convert(document["checks"], list[CheckResult])
    assert [(finding.code, finding.pid) for finding in check.findings] == [("XID 79", 1234)]


def test_a_kernel_log_that_cannot_be_read_is_unknown(
    machine: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.kmsg.unlink()
    assert run(machine, "kernel") == 3
    assert str(machine.kmsg) in "".join(
        capsys.readouterr().out.split()
    )  # its lines are as wide as a terminal


def test_a_healthy_machine_without_gpus_is_not_called_broken(
    machine: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(machine, "gpu-pci", "kernel") == 0
    assert "absent" in capsys.readouterr().out


def test_an_unknown_name_lists_the_known_ones(machine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(machine, "gpus") == 3
    assert "disk" in capsys.readouterr().err


def test_the_resident_part_imports_nothing_heavy() -> None:
    heavy = "{'pydantic', 'jinja2', 'aiosmtplib', 'yaml', 'numpy', 'pynvml', 'aiohttp', 'hyperscan'}"
    code = (
        "import sys; from importlib import import_module; from sentinel.checks.table import CHECKS\n"
        "import sentinel.checks.runner\n"
        "for row in CHECKS: import_module(row.module)\n"
        f"print(*({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_a_command_that_hangs_does_not_outlive_the_look(tmp_path: Path) -> None:
    """A tool that waits for its driver: with each prolog one more would stay behind."""
    hangs, left = tmp_path / "hangs", tmp_path / "left"
    hangs.write_text(f"#!/bin/sh\necho $$ > {left}.new\nmv {left}.new {left}\nexec sleep 600\n")
    hangs.chmod(0o755)
    own = OwnCheck(name="raid", command=(str(hangs),), timeout_s=300.0)
    settings = Settings(state_dir=str(tmp_path), own_checks=(own,))
    words = argparse.ArgumentParser()
    add_arguments(words)

    def within(seconds: int) -> int:
        return look(settings, words.parse_args(["own-raid", "--within", f"{seconds}s"]))

    seconds = 1
    while not left.exists():
        assert within(seconds) == 3
        seconds *= 2  # of a machine that had not begun it by then
    pid = int(left.read_text())
    until(lambda: not runs(pid))
