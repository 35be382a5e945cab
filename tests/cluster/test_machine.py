"""What of the machine's findings keeps a job from starting on it."""

import asyncio
from pathlib import Path

import pytest

from sentinel.cluster.base import Room
from sentinel.cluster.local.machine import LocalMachine
from sentinel.core.health import CheckResult, CheckState, Component, Finding, Severity
from sentinel.core.model import ProtectedJob
from sentinel.core.policy_model import Policy


def room(state: Path, *results: CheckResult) -> Room:
    async def precheck(names: tuple[str, ...], max_age_s: float) -> list[CheckResult]:
        return list(results)

    machine = LocalMachine(state, lambda job, gone: None)
    machine.precheck, machine.places, machine.environment = precheck, tuple, lambda out: {}
    return asyncio.run(machine.room(ProtectedJob(name="j", policy=Policy()), 1, ()))


def found(check: str, component: Component, code: str, severity: Severity) -> CheckResult:
    finding = Finding(
        check=check,
        component=component,
        entity="one",
        code=code,
        severity=severity,
        action="",
        summary="It is bad",
        evidence=(),
    )
    return CheckResult(check=check, state=CheckState.FOUND, findings=(finding,))


@pytest.mark.parametrize(
    ("check", "component", "code"),
    [
        ("disk", Component.DISK, "disk-space"),
        ("memory", Component.SYSTEM, "memory-low"),
        ("processes", Component.SYSTEM, "pids"),
        ("processes", Component.SYSTEM, "d-state-nvidia"),
    ],
)
def test_what_no_program_starts_without_is_waited_for(
    check: str, component: Component, code: str, tmp_path: Path
) -> None:
    refused = room(tmp_path, found(check, component, code, Severity.DEGRADED))
    assert (refused.size, refused.reason) == (0, "PrecheckFailed")
    assert "one: It is bad" in refused.sentence
    assert room(tmp_path, found(check, component, code, Severity.WARNING)).size == 1


@pytest.mark.parametrize("code", ["repeated-reboots", "service-down", "memory-missing", "d-state"])
def test_what_people_must_see_to_keeps_no_job_off(code: str, tmp_path: Path) -> None:
    assert room(tmp_path, found("host", Component.SYSTEM, code, Severity.FATAL)).size == 1


def test_who_could_not_look_at_what_jobs_need_is_told(tmp_path: Path) -> None:
    blind = [CheckResult(check=name, state=CheckState.UNKNOWN) for name in ("nvml", "clocks")]
    assert "(could not look: nvml)" in room(tmp_path, *blind).sentence
