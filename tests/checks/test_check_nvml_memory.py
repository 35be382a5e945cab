"""A GPU's memory as NVML tells of it: ECC, remapped rows, retired pages, memory that nobody holds."""

import os
import subprocess
import sys
from typing import Any

from sentinel.checks import proc_scan
from sentinel.checks.base import Kept
from sentinel.core.health import Severity

FIRST, SECOND = "GPU 0000:18:00.0", "GPU 0000:2a:00.0"


def test_only_new_uncorrected_errors_count_and_a_reloaded_driver_is_no_fault(sample: Any, cards: Any) -> None:
    cards.set(gpu0_ecc=5)
    assert (FIRST, "ecc-uncorrected") not in sample()  # nobody knows when those were
    cards.set(gpu0_ecc=7)
    finding = sample()[FIRST, "ecc-uncorrected"]
    assert finding.severity is Severity.FATAL
    assert finding.event
    assert "2 more" in finding.evidence[0]
    assert sample() == {}
    cards.set(gpu0_ecc=0)
    assert sample() == {}


def test_remapped_rows_pending_and_failed(sample: Any, cards: Any) -> None:
    cards.set(gpu0_pending=1, gpu1_failed=1)
    found = sample()
    assert found[FIRST, "rows-remap-pending"].severity is Severity.DEGRADED
    assert found[SECOND, "rows-remap-failed"].severity is Severity.FATAL
    cards.set(gpu0_pending=0, gpu1_failed=0)
    assert sample() == {}


def test_memory_of_a_process_that_is_gone_is_told_when_it_lasts(
    sample: Any, cards: Any, monkeypatch: Any
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    monkeypatch.setattr(proc_scan, "INIT_PID_NAMESPACE", os.readlink("/proc/self/ns/pid"))
    cards.set(gpu0_processes=f"{ended.pid}:{1 << 30}", gpu1_processes=f"{os.getpid()}:{1 << 30}")
    assert sample() == {}
    assert sample() == {}
    found = sample()
    assert list(found) == [(FIRST, "gpu-orphan-memory")]
    assert f"1024 MiB of pid {ended.pid}" in found[FIRST, "gpu-orphan-memory"].evidence[0]
    cards.set(gpu0_processes=None)
    assert sample() == {}


def test_memory_in_use_that_no_process_is_listed_for_is_told_when_it_lasts(
    sample: Any, cards: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(proc_scan, "INIT_PID_NAMESPACE", os.readlink("/proc/self/ns/pid"))
    cards.set(gpu1_memory_used=20 << 30)
    sample()
    sample()
    found = sample()
    assert list(found) == [(SECOND, "gpu-orphan-memory")]
    assert "20480 MiB are in use" in found[SECOND, "gpu-orphan-memory"].evidence[0]
    cards.set(gpu1_graphics=f"{os.getpid()}:{20 << 30}")  # a graphics program holds it
    assert sample() == {}
    cards.set(gpu1_graphics=None, gpu1_mig=1)  # the processes of MIG instances are listed elsewhere
    sample(630)
    assert sample.until(2) == {}


def test_memory_of_a_card_that_the_kernel_uses_too_is_nobodys_fault(
    sample: Any, cards: Any, monkeypatch: Any
) -> None:
    """As with Grace, where the card's memory is a NUMA node of the machine."""
    monkeypatch.setattr(proc_scan, "INIT_PID_NAMESPACE", os.readlink("/proc/self/ns/pid"))
    cards.set(gpu1_memory_used=20 << 30, gpu1_numa_node=4)
    assert sample.until(3) == {}


def test_the_processes_of_an_old_driver_are_asked_by_its_own_function(
    sample: Any, machine: Any, nvml: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(proc_scan, "INIT_PID_NAMESPACE", os.readlink("/proc/self/ns/pid"))
    machine.add_pci("0000:18:00.0")
    scenario = nvml("0000:18:00.0", old_driver=True)
    scenario.set(gpu0_processes=f"4194303:{1 << 30}")
    assert "1024 MiB of pid 4194303" in sample.until(2)[FIRST, "gpu-orphan-memory"].evidence[0]


def test_in_a_pid_namespace_of_its_own_nvmls_pids_mean_nothing(
    sample: Any, cards: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(proc_scan, "INIT_PID_NAMESPACE", "pid:[1]")
    cards.set(gpu0_processes=f"4194303:{1 << 30}", gpu1_memory_used=20 << 30)
    assert sample.until(3) == {}
    assert "not in the host's pid namespace" in sample.kept.detail


def test_uncorrected_errors_while_no_agent_ran_count_when_it_is_back(sample: Any, cards: Any) -> None:
    cards.set(gpu0_ecc=5)
    sample()
    saved = sample.kept.saved
    sample.kept.close()
    sample.kept = Kept(saved=saved)
    cards.set(gpu0_ecc=6)
    found = sample(1800.0)[FIRST, "ecc-uncorrected"]
    assert "1 more" in found.evidence[0]
    assert found.last_seen_wall_s - found.first_seen_wall_s == 1800.0  # it came at some time in between


def test_many_corrected_errors_in_an_hour_warn_until_the_hour_is_over(sample: Any, cards: Any) -> None:
    cards.set(gpu0_ecc_corrected=40_000)
    assert sample() == {}  # nobody knows when those were
    cards.set(gpu0_ecc_corrected=40_900)
    assert sample() == {}
    cards.set(gpu0_ecc_corrected=41_100)
    finding = sample()[FIRST, "ecc-corrected"]
    assert finding.severity is Severity.WARNING
    assert "1100 in the last" in finding.evidence[0]
    sample(1800)
    assert sample(1900) == {}


def test_corrected_errors_beyond_fifty_million_warn_whenever_they_were(sample: Any, cards: Any) -> None:
    cards.set(gpu1_ecc_corrected=50_000_001)
    assert list(sample()) == [(SECOND, "ecc-corrected")]
    cards.set(gpu1_ecc_corrected=0)  # the driver was loaded again
    assert sample() == {}


def test_ecc_that_is_off_or_waits_for_a_reset_warns(sample: Any, cards: Any) -> None:
    cards.set(gpu0_ecc_mode=0, gpu0_ecc_mode_pending=0, gpu1_ecc_mode_pending=0)
    found = sample()
    assert found[FIRST, "ecc-off"].severity is Severity.WARNING
    assert "now on, after a reset off" in found[SECOND, "ecc-mode-pending"].evidence[0]
    cards.set(gpu0_ecc_mode=1, gpu0_ecc_mode_pending=1, gpu1_ecc_mode_pending=1)
    assert sample(630) == {}


def test_a_card_without_ecc_is_not_told_of(sample: Any, cards: Any) -> None:
    cards.set(gpus_ecc_mode=None, gpus_ecc_mode_pending=None, gpus_ecc=None, gpus_ecc_corrected=None)
    assert sample() == {}


def test_errors_from_before_the_first_look_are_told_once_and_isolate_nothing(sample: Any, cards: Any) -> None:
    cards.set(gpu0_ecc=3)
    found = sample()
    assert {key: one.severity for key, one in found.items()} == {
        (FIRST, "ecc-uncorrected-earlier"): Severity.WARNING
    }
    assert (
        found[FIRST, "ecc-uncorrected-earlier"]
        .evidence[0]
        .endswith("3 since the driver was loaded; whether one of them ended a job is not known")
    )
    assert sample() == {}
    cards.set(gpu0_ecc=4)
    assert sample()[FIRST, "ecc-uncorrected"].severity is Severity.FATAL


def test_an_exceeded_sram_threshold_is_fatal(sample: Any, cards: Any) -> None:
    cards.set(gpu0_sram_exceeded=1)
    assert sample()[FIRST, "sram-threshold"].severity is Severity.FATAL
    cards.set(gpu0_sram_exceeded=0)
    assert sample(90) == {}


def test_many_retired_pages_or_pending_ones_are_told_and_few_are_not(sample: Any, cards: Any) -> None:
    cards.set(gpu0_field29=6, gpu0_field30=4, gpu0_field31=0)
    assert sample() == {}
    cards.set(gpu0_field30=5, gpu1_field29=1, gpu1_field31=1)
    found = sample(90)
    assert "11 pages" in found[FIRST, "pages-retired"].evidence[0]
    assert found[SECOND, "pages-pending"].severity is Severity.DEGRADED
    cards.set(gpu0_field30=0, gpu1_field31=0)
    assert sample(90) == {}
