"""GPUs by sysfs: their order, which to leave out, and one that left the bus."""

import shutil
from typing import Any

import msgspec
import pytest

from sentinel.checks.base import Absent, Kept, Look, Unknown
from sentinel.checks.gpus import cuda_environment, inventory, usable
from sentinel.checks.pci import gpu_pci
from sentinel.core.health import Severity
from sentinel.settings import Shape
from tests.checks.conftest import no_more_descriptors


@pytest.fixture
def four_cards(machine: Any) -> Any:
    for address in ("0000:9a:00.0", "0000:18:00.0", "0001:02:00.0", "0000:2a:00.0"):
        machine.add_pci(address)
    machine.add_pci("0000:03:00.0", vendor="0x1a03", pci_class="0x030000")  # the board's own display
    machine.add_pci("0000:c3:00.0", pci_class="0x068000")  # an NVSwitch
    machine.add_pci("0000:18:00.1", pci_class="0x040300")  # a card's sound function
    return machine


def test_gpus_come_in_pci_order_and_nothing_else_does(four_cards: Any) -> None:
    assert [gpu.entity for gpu in inventory(str(four_cards.sysfs))] == [
        "GPU 0000:18:00.0",
        "GPU 0000:2a:00.0",
        "GPU 0000:9a:00.0",
        "GPU 0001:02:00.0",
    ]


def test_a_quarantined_card_is_left_out_and_the_others_keep_their_index(four_cards: Any) -> None:
    gpus = inventory(str(four_cards.sysfs))
    assert [index for index, _ in usable(gpus, ["GPU 0000:2a:00.0", "GPU 0000:ff:00.0"])] == [0, 2, 3]
    assert cuda_environment(gpus, ["GPU 0000:2a:00.0"]) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "0,2,3",
    }


def test_a_machine_without_a_pci_bus_has_no_gpus(tmp_path: Any) -> None:
    assert inventory(str(tmp_path)) == ()


def test_no_gpu_is_absent(machine: Any, clock: Any) -> None:
    with pytest.raises(Absent):
        gpu_pci.check(Look(machine.settings, (), clock(), "boot", Kept()))


def test_a_card_that_left_the_bus_is_fatal_until_it_is_back(four_cards: Any, clock: Any) -> None:
    kept = Kept()
    look = Look(four_cards.settings, (), clock(), "boot", kept)
    assert gpu_pci.check(look) == []
    shutil.rmtree(four_cards.sysfs / "bus/pci/devices/0000:2a:00.0")
    (finding,) = gpu_pci.check(look)
    assert (finding.entity, finding.severity) == ("GPU 0000:2a:00.0", Severity.FATAL)
    assert "3 of 4" in finding.evidence[0]
    four_cards.add_pci("0000:2a:00.0")
    assert gpu_pci.check(look) == []


def test_a_card_whose_files_are_empty_or_missing_is_no_error(machine: Any) -> None:
    folder = machine.add_pci("0000:18:00.0")
    (folder / "device").unlink()
    (machine.add_pci("0000:2a:00.0") / "class").write_text("")
    assert [gpu.pci for gpu in inventory(str(machine.sysfs))] == ["0000:18:00.0"]


def test_virtual_functions_are_no_cards_of_the_host(four_cards: Any) -> None:
    (four_cards.add_pci("0000:18:00.4") / "physfn").symlink_to("../0000:18:00.0")
    assert len(inventory(str(four_cards.sysfs))) == 4


def test_that_no_file_can_be_opened_takes_no_card_off_the_bus(four_cards: Any, clock: Any) -> None:
    kept = Kept()
    look = Look(four_cards.settings, (), clock(), "boot", kept)
    assert gpu_pci.check(look) == []
    with no_more_descriptors(), pytest.raises(OSError, match="Too many open files"):
        gpu_pci.check(look)
    with no_more_descriptors(), pytest.raises(OSError, match="Too many open files"):
        looks(four_cards, clock, Kept(), Shape(name="h100", source="manifest", gpus=4))
    assert gpu_pci.check(look) == []


@pytest.mark.parametrize("file", ["vendor", "class"])
def test_a_card_whose_files_say_nothing_is_unknown_and_not_gone(
    four_cards: Any, clock: Any, file: str
) -> None:
    kept = Kept()
    look = Look(four_cards.settings, (), clock(), "boot", kept)
    assert gpu_pci.check(look) == []
    path = four_cards.sysfs / "bus/pci/devices/0000:2a:00.0" / file
    text = path.read_text()
    path.write_text("")
    with pytest.raises(Unknown, match="2a:00") as unknown:
        gpu_pci.check(look)
    assert unknown.value.findings == ()
    path.write_text(text)
    assert gpu_pci.check(look) == []


def test_a_machine_whose_sysfs_is_not_mounted_any_more_has_not_lost_its_cards(
    four_cards: Any, clock: Any
) -> None:
    kept = Kept()
    look = Look(four_cards.settings, (), clock(), "boot", kept)
    assert gpu_pci.check(look) == []
    four_cards.sysfs.rename(four_cards.folder / "elsewhere")
    with pytest.raises(Unknown, match="is sysfs mounted"):
        gpu_pci.check(look)


def looks(machine: Any, clock: Any, kept: Kept, shape: Shape) -> list[Any]:
    settings = msgspec.structs.replace(machine.settings, shape=shape)
    return gpu_pci.check(Look(settings, (), clock(), "boot", kept))


def test_fewer_cards_than_the_manifest_says_are_fatal_and_more_are_told(four_cards: Any, clock: Any) -> None:
    kept = Kept()
    (finding,) = looks(four_cards, clock, kept, Shape(name="h100", source="manifest", gpus=8))
    assert (finding.entity, finding.code, finding.severity) == ("node", "gpu-count", Severity.FATAL)
    assert finding.evidence == ("4 GPUs on the PCI bus, expected 8: shape h100",)
    (finding,) = looks(four_cards, clock, kept, Shape(source="manifest", gpus=2))
    assert finding.severity is Severity.WARNING
    assert looks(four_cards, clock, kept, Shape(source="manifest", gpus=4)) == []
    assert kept.detail == ""


def test_what_was_only_learnt_isolates_nothing(four_cards: Any, clock: Any) -> None:
    (finding,) = looks(four_cards, clock, Kept(), Shape(source="learnt", gpus=8))
    assert finding.severity is Severity.WARNING


def test_no_card_at_all_where_some_are_expected_is_not_absent(machine: Any, clock: Any) -> None:
    (finding,) = looks(machine, clock, Kept(), Shape(name="h100", source="manifest", gpus=8))
    assert finding.severity is Severity.FATAL


def test_a_number_that_is_not_expected_by_anybody_is_said(four_cards: Any, clock: Any) -> None:
    kept = Kept()
    assert looks(four_cards, clock, kept, Shape()) == []
    assert kept.detail == "expected gpus: not set"


def aer(machine: Any, kind: str, total: int, address: str = "0000:18:00.0") -> None:
    """As the kernel writes it: a line for each kind of error, and the sum."""
    letters = {"fatal": "FATAL", "nonfatal": "NONFATAL", "correctable": "COR"}[kind]
    folder = machine.sysfs / "bus/pci/devices" / address
    (folder / f"aer_dev_{kind}").write_text(f"Undefined 0\nDLP {total}\nTOTAL_ERR_{letters} {total}\n")


@pytest.mark.parametrize(
    ("kind", "grows", "code", "severity"),
    [
        ("fatal", 1, "pcie-fatal-errors", Severity.FATAL),
        ("nonfatal", 1, "pcie-errors", Severity.WARNING),
        ("correctable", 81, "pcie-corrected-errors", Severity.WARNING),
    ],
)
def test_errors_of_the_bus_count_when_they_grow_and_end_after_ten_minutes(
    four_cards: Any, clock: Any, kind: str, grows: int, code: str, severity: Severity
) -> None:
    kept = Kept()

    def sample(seconds: float = 10) -> list[Any]:
        clock.mono_s += seconds
        return gpu_pci.check(Look(four_cards.settings, (), clock(), "boot", kept))

    aer(four_cards, kind, 7)
    assert sample() == []  # nobody knows when those were
    aer(four_cards, kind, 7 + grows)
    (finding,) = sample()
    assert (finding.entity, finding.code, finding.severity) == ("GPU 0000:18:00.0", code, severity)
    assert f"{grows} in the last 10 min" in finding.evidence[0]
    assert finding.event == (severity is Severity.FATAL)  # which does not end because no more come
    assert len(sample()) == (severity is not Severity.FATAL)
    assert sample(601) == []
    aer(four_cards, kind, 0)  # the card was reset
    assert sample() == []


def test_a_few_corrected_errors_of_the_bus_are_no_fault(four_cards: Any, clock: Any) -> None:
    kept = Kept()
    for total in range(10):
        aer(four_cards, "correctable", total)
        clock.mono_s += 10
        assert gpu_pci.check(Look(four_cards.settings, (), clock(), "boot", kept)) == []


def test_garbage_in_the_files_of_bus_errors_is_no_error(four_cards: Any, clock: Any) -> None:
    folder = four_cards.sysfs / "bus/pci/devices/0000:18:00.0"
    (folder / "aer_dev_fatal").write_bytes(b"\xff\x00TOTAL_ERR_FATAL x")
    (folder / "aer_dev_nonfatal").mkdir()
    assert gpu_pci.check(Look(four_cards.settings, (), clock(), "boot", Kept())) == []
