"""The GPUs of a node together: their number, what was expected, who differs, and their numbers for /metrics."""

from typing import Any

import pytest

from sentinel.checks.base import Unknown
from sentinel.core.health import Severity
from sentinel.metrics.measures import rows
from sentinel.settings import Shape

FIRST, SECOND = "GPU 0000:18:00.0", "GPU 0000:2a:00.0"


def test_an_expectation_that_is_not_set_is_said(sample: Any, cards: Any) -> None:
    assert sample() == {}
    assert "expected driver: not set" in sample.kept.detail
    sample.settings = {"shape": Shape(name="h100", source="manifest", driver="580.95.05")}
    assert sample() == {}
    assert "expected driver" not in sample.kept.detail


def test_what_needs_root_is_named(sample: Any, cards: Any) -> None:
    cards.set(no_root=1, gpu0_inforom_corrupt=1)
    assert sample() == {}
    assert "needs root: nvmlDeviceValidateInforom" in sample.kept.detail


def test_another_driver_model_or_vbios_than_expected_is_told(sample: Any, cards: Any) -> None:
    shape = Shape(
        name="h100",
        source="manifest",
        driver="570.1",
        gpu_name="NVIDIA H100 80GB HBM3",
        vbios="96.00.74.00.01",
    )
    sample.settings = {"shape": shape}
    cards.set(gpu0_name="NVIDIA A100", gpu1_vbios="95.1")
    found = sample()
    assert "driver 580.95.05, expected 570.1: shape h100" in found["node", "driver-drift"].evidence[0]
    assert found[FIRST, "gpu-name"].severity is Severity.WARNING
    assert "VBIOS 95.1" in found[SECOND, "vbios-drift"].evidence[0]
    cards.set(driver="570.1", gpu0_name=None, gpu1_vbios=None)
    assert sample(630) == {}


def test_the_one_card_that_is_set_up_otherwise_is_told(sample: Any, eight_cards: Any) -> None:
    eight_cards.set(gpu5_vbios="95.00.1", gpu5_persistence=0, gpu5_power_limit=600_000)
    found = sample()
    finding = found["GPU 0000:1d:00.0", "gpu-drift"]
    assert finding.severity is Severity.WARNING
    for words in ("VBIOS 95.00.1, 7 others 96.00.74.00.01", "persistence mode 0, 7 others 1", "power limit"):
        assert words in finding.evidence[0]
    assert [code for _, code in found] == ["persistence-off", "gpu-drift"]
    eight_cards.set(gpu5_vbios=None, gpu5_persistence=None, gpu5_power_limit=None)
    assert sample(630) == {}


def test_cards_of_two_models_are_not_compared(sample: Any, cards: Any) -> None:
    cards.set(gpu1_name="NVIDIA A2", gpu1_vbios="94", gpu1_power_limit=60_000, gpu1_power_default=60_000)
    assert sample() == {}


def test_a_corrupt_inforom_is_told(sample: Any, cards: Any) -> None:
    cards.set(gpu0_inforom_corrupt=1)
    assert sample()[FIRST, "inforom-corrupt"].severity is Severity.WARNING
    cards.set(gpu0_inforom_corrupt=0)
    assert sample(630) == {}


def test_persistence_mode_that_is_off_everywhere_is_only_noted(sample: Any, cards: Any) -> None:
    cards.set(gpus_persistence=0)
    assert {finding.severity for finding in sample().values()} == {Severity.INFO}


def test_two_cards_with_one_uuid_are_told_and_kept_apart(sample: Any, cards: Any) -> None:
    cards.set(gpu1_uuid="GPU-00000000")
    found = sample()
    assert sorted(found) == [(FIRST, "gpu-uuid-twice"), (SECOND, "gpu-uuid-twice")]
    cards.set(gpu1_ecc=4)
    assert (SECOND, "ecc-uncorrected") in sample()
    cards.set(gpu1_uuid="GPU-00000001")
    assert sample(630) == {}


def test_two_cards_with_one_address_are_still_two_cards(sample: Any, cards: Any) -> None:
    cards.set(gpu1_pci="0000" + FIRST.removeprefix("GPU "))
    assert list(sample()) == [(SECOND, "gpu-missing")]
    cards.set(gpu1_ecc=4)
    assert ("GPU 1", "ecc-uncorrected") in sample()


def test_a_card_that_nvml_no_longer_lists_is_proved_by_a_new_child(sample: Any, cards: Any) -> None:
    """NVML's list is as old as its process: only a new one can say that a card is not there."""
    sample()
    child = sample.child_pid
    cards.set(devices=1)
    assert list(sample()) == [(SECOND, "gpu-missing")]
    assert sample.child_pid != child
    child = sample.child_pid
    assert list(sample()) == [(SECOND, "gpu-missing")]
    assert sample.child_pid == child  # proved once is enough


def test_the_child_is_renewed_now_and_then_but_not_where_that_would_wake_sleeping_cards(
    sample: Any, cards: Any
) -> None:
    sample()
    child = sample.child_pid
    sample(630)
    assert sample.child_pid != child
    child = sample.child_pid
    cards.set(gpus_persistence=0)
    sample(590)
    sample(590)  # this child has seen it
    child = sample.child_pid
    sample(630)
    sample(630)
    assert sample.child_pid == child


def test_a_lost_card_that_tells_no_address_is_the_one_that_is_missing(sample: Any, cards: Any) -> None:
    cards.set(gpu1_error=15)
    assert list(sample()) == [(SECOND, "gpu-lost")]


def test_a_library_of_another_version_than_the_kernels_driver_is_a_fault(sample: Any, cards: Any) -> None:
    cards.set(init=18)
    with pytest.raises(Unknown) as unknown:
        sample()
    (finding,) = unknown.value.findings
    assert (finding.code, finding.severity) == ("driver-mismatch", Severity.DEGRADED)
    before = sample.child_pid
    with pytest.raises(Unknown):
        sample()
    assert sample.child_pid == before
    with pytest.raises(Unknown):
        sample(600)
    assert sample.child_pid != before, "the old one would keep the old library when the driver is loaded anew"
    cards.set(init=0)
    assert sample() == {}


def test_functions_that_an_old_driver_lacks_are_named(sample: Any, machine: Any, nvml: Any) -> None:
    machine.add_pci("0000:18:00.0")
    nvml("0000:18:00.0", old_driver=True)
    assert sample() == {}
    for function in ("nvmlDeviceGetRemappedRows", "nvmlDeviceGetGpuFabricInfoV", "nvmlGpmQueryDeviceSupport"):
        assert function in sample.kept.detail


def test_numbers_for_metrics_are_those_of_dcgm_exporter(sample: Any, cards: Any) -> None:
    cards.set(gpu1_temperature=61, gpu1_processes="1:1000", gpu1_memory_used=3 << 30, gpus_field83=12345)
    sample()
    sample()
    assert sample.measure("DCGM_FI_DEV_GPU_TEMP", 1) == 61
    assert sample.measure("DCGM_FI_DEV_FB_USED", 1) == 3072
    assert sample.measure("DCGM_FI_DEV_POWER_USAGE") == 650
    assert sample.measure("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION") == 12345
    assert sample.measure("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE") == 0.6
    assert sample.measure("DCGM_FI_DEV_XID_ERRORS") == 0
    assert {item.name for item in sample.kept.measures} <= set(rows())
    (labels,) = {item.labels for item in sample.kept.measures if ("gpu", "1") in item.labels}
    assert [key for key, _ in labels] == rows()["DCGM_FI_DEV_GPU_TEMP"].labels
    assert dict(labels)["pci_bus_id"] == "00000000:2a:00.0"
    assert dict(labels)["device"] == "nvidia1"
    cards.set(gpus_gpm5=None, gpus_field82=None)
    sample()
    assert sample.measure("DCGM_FI_DEV_MEMORY_TEMP") is None  # a value that is not there has no series
