"""The NVML check through the real pynvml in its real child, over a stub of the library that a scenario drives."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sentinel.checks import nvml as check_module
from sentinel.checks.base import Absent, Look, Unknown
from sentinel.core.model import Finding, Severity

FIRST, SECOND = "0000:18:00.0", "0000:2a:00.0"


class Sampler:
    """Takes samples as the runner does, with one memory."""

    def __init__(self, machine: Any, clock: Any) -> None:
        self.machine, self.clock = machine, clock
        self.kept: dict[str, Any] = {}

    def __call__(self) -> dict[tuple[str, str], Finding]:
        self.clock.mono_s += 30
        look = Look(self.machine.settings, (), self.clock(), "boot", self.kept)
        return {(finding.entity, finding.code): finding for finding in check_module.check(look)}

    @property
    def child_pid(self) -> int | None:
        child = self.kept.get("child")
        return child.pid if child else None


@pytest.fixture
def sample(machine: Any, clock: Any) -> Iterator[Sampler]:
    sampler = Sampler(machine, clock)
    yield sampler
    if "child" in sampler.kept:
        sampler.kept["child"].close()


@pytest.fixture
def cards(machine: Any, nvml: Callable[..., Any]) -> Any:
    """Two healthy cards, on the bus and in NVML."""
    machine.add_pci(FIRST)
    machine.add_pci(SECOND)
    return nvml(FIRST, SECOND)


def test_healthy_cards_have_no_findings_and_one_child_serves_all_samples(sample: Sampler, cards: Any) -> None:
    assert sample() == {}
    child = sample.child_pid
    assert sample() == {}
    assert sample.child_pid == child


def test_without_cards_and_library_the_check_is_absent_and_starts_nothing(
    sample: Sampler, monkeypatch: Any
) -> None:
    monkeypatch.setattr(check_module, "find_library", lambda: "")
    with pytest.raises(Absent):
        sample()
    assert sample.child_pid is None


def test_a_lost_card_is_fatal_and_the_other_card_is_not_blamed(sample: Sampler, cards: Any) -> None:
    sample()
    cards.set(gpu1_error=15)
    found = list(sample().values())
    assert [(finding.code, finding.severity, finding.action) for finding in found] == [
        ("gpu-lost", Severity.FATAL, "RESTART_BM")
    ]


def test_a_card_that_needs_a_reset_is_fatal(sample: Sampler, cards: Any) -> None:
    cards.set(gpu0_error=16)
    assert {finding.code: finding.action for finding in sample().values()} == {
        "gpu-reset-required": "RESET_GPU"
    }


@pytest.mark.parametrize(
    ("value", "severity", "action"),
    [
        (1, Severity.FATAL, "RESET_GPU"),
        (2, Severity.FATAL, "RESTART_BM"),
        (3, Severity.DEGRADED, "DRAIN_P2P"),
        (4, Severity.DEGRADED, "DRAIN_AND_RESET"),
        (7, Severity.FATAL, "RESTART_BM"),
        (99, Severity.WARNING, "CONTACT_SUPPORT"),
    ],
)
def test_the_drivers_recovery_action_is_followed(
    sample: Sampler, cards: Any, value: int, severity: Severity, action: str
) -> None:
    cards.set(gpu0_recovery=value)
    finding = sample()[f"GPU {FIRST}", "gpu-recovery-action"]
    assert (finding.severity, finding.action) == (severity, action)
    cards.set(gpu0_recovery=0)
    assert sample() == {}


def test_only_new_uncorrected_errors_count_and_a_reloaded_driver_is_no_fault(
    sample: Sampler, cards: Any
) -> None:
    cards.set(gpu0_ecc=5)
    assert sample() == {}  # nobody knows when those were
    cards.set(gpu0_ecc=7)
    finding = sample()[f"GPU {FIRST}", "ecc-uncorrected"]
    assert finding.severity is Severity.FATAL
    assert finding.event
    assert "2 more" in finding.evidence[0]
    assert sample() == {}
    cards.set(gpu0_ecc=0)
    assert sample() == {}


def test_remapped_rows_pending_and_failed(sample: Sampler, cards: Any) -> None:
    cards.set(gpu0_pending=1, gpu1_failed=1)
    found = sample()
    assert found[f"GPU {FIRST}", "rows-remap-pending"].severity is Severity.DEGRADED
    assert found[f"GPU {SECOND}", "rows-remap-failed"].severity is Severity.FATAL
    cards.set(gpu0_pending=0, gpu1_failed=0)
    assert sample() == {}


def test_heat_is_judged_by_the_cards_own_limit(sample: Sampler, cards: Any) -> None:
    cards.set(gpu0_temperature=86)
    assert sample() == {}
    cards.set(gpu0_temperature=87)
    assert "limit 87" in sample()[f"GPU {FIRST}", "gpu-temperature"].evidence[0]
    cards.set(gpu0_temperature=60)
    assert sample() == {}


def test_memory_of_a_process_that_is_gone_counts_at_the_second_look(
    sample: Sampler, cards: Any, machine: Any, monkeypatch: Any
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    monkeypatch.setattr(check_module, "INIT_PID_NAMESPACE", os.readlink("/proc/self/ns/pid"))
    cards.set(gpu0_pid=ended.pid, gpu0_pid_bytes=1 << 30, gpu1_pid=os.getpid(), gpu1_pid_bytes=1 << 30)
    assert sample() == {}
    found = sample()
    assert list(found) == [(f"GPU {FIRST}", "gpu-orphan-memory")]
    assert f"pid {ended.pid}" in found[f"GPU {FIRST}", "gpu-orphan-memory"].evidence[0]


def test_in_a_pid_namespace_of_its_own_nvmls_pids_mean_nothing(
    sample: Sampler, cards: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(check_module, "INIT_PID_NAMESPACE", "pid:[1]")
    cards.set(gpu0_pid=4194303, gpu0_pid_bytes=1 << 30)
    sample()
    assert sample() == {}


def test_a_card_on_the_bus_that_the_driver_does_not_list_is_fatal(
    sample: Sampler, cards: Any, machine: Any
) -> None:
    cards.set(devices=1)
    finding = sample()[f"GPU {SECOND}", "gpu-missing"]
    assert finding.severity is Severity.FATAL
    assert "1 of 2" in finding.evidence[0]
    cards.set(devices=2)
    assert sample() == {}


def test_a_hang_is_a_finding_the_child_is_killed_and_the_next_one_answers(
    sample: Sampler, cards: Any, clock: Any
) -> None:
    sample()
    child = sample.child_pid
    assert child is not None
    sample.kept["call_deadline_s"] = 0.3
    cards.set(gpu1_hang=1)
    assert sample()["node", "nvml-hangs"].severity is Severity.DEGRADED
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    clock.mono_s += 120
    assert sample()["node", "nvml-hangs"].severity is Severity.FATAL
    cards.set(gpu1_hang=0)
    sample.kept["call_deadline_s"] = 20.0
    assert sample() == {}
    assert sample.child_pid not in (None, child)


def test_an_old_driver_without_the_newer_functions_is_no_fault(
    sample: Sampler, machine: Any, nvml: Callable[..., Any]
) -> None:
    machine.add_pci(FIRST)
    scenario = nvml(FIRST, old_driver=True)
    assert sample() == {}
    scenario.set(gpu0_temperature=95)
    assert list(sample()) == [(f"GPU {FIRST}", "gpu-temperature")]


def test_a_driver_that_does_not_start_is_unknown_and_seen_when_it_does(sample: Sampler, cards: Any) -> None:
    cards.set(init=9)  # driver not loaded
    with pytest.raises(Unknown, match="NVML"):
        sample()
    cards.set(init=0)
    assert sample() == {}


def test_a_child_that_somebody_killed_is_started_again(sample: Sampler, cards: Any) -> None:
    sample()
    child = sample.child_pid
    assert child is not None
    os.kill(child, 9)
    sample.kept["child"]._process.wait()  # until the kernel has it ended
    assert sample() == {}
    assert sample.child_pid != child


def test_modules_in_the_current_directory_are_not_imported(
    sample: Sampler, cards: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pynvml.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert sample() == {}


def test_the_child_ends_when_the_agent_is_gone(machine: Any, cards: Any) -> None:
    program = (
        "import sys, json, os; from sentinel.checks import nvml; from sentinel.checks.base import Look\n"
        "from sentinel.core.model import Now; from sentinel.settings import Settings\n"
        "kept = {}; nvml.check(Look(Settings(sysfs=sys.argv[1]), (), Now(1.0, 1.0), 'boot', kept))\n"
        "print(kept['child'].pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(machine.sysfs)], stdout=subprocess.PIPE)
    child = Path(f"/proc/{int(done.stdout)}/stat")
    end = time.monotonic() + 20
    while child.exists() and child.read_text().rsplit(")", 1)[1].split()[0] != "Z":
        assert time.monotonic() < end, "the child outlived its agent"
        time.sleep(0.01)
