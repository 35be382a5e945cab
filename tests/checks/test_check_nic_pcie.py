"""PCIe errors of network cards, and ACS of the bridges above cards, on a sysfs tree."""

import struct
from pathlib import Path

import pytest

from sentinel.checks.pci import acs, nic_aer
from sentinel.checks.pci.acs import acs_control
from sentinel.settings import Settings
from tests.checks.sysfs_tree import Sampler, Tree, write

NIC, GPU = "0000:18:00.0", "0000:2a:00.0"
BRIDGE = "0000:00:18.0"
LETTERS = {"correctable": "COR", "nonfatal": "NONFATAL", "fatal": "FATAL"}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def errors(folder: Path, kind: str, total: int) -> None:
    write(folder / f"aer_dev_{kind}", f"Undefined 0\nDLP {total}\nTOTAL_ERR_{LETTERS[kind]} {total}")


def aer(tree: Tree) -> Sampler:
    return Sampler(nic_aer.check, Settings(sysfs=str(tree.sysfs), procfs=str(tree.procfs)), "nic-aer")


# ---------------------------------------------------------------- AER


@pytest.mark.parametrize(
    ("kind", "within", "beyond", "code"),
    [("correctable", 80, 81, "pcie-corrected-errors"), ("nonfatal", 0, 1, "pcie-errors")],
)
@pytest.mark.parametrize("end", ["card", "bridge"])
def test_errors_of_either_end_of_a_cards_link_warn_and_clear_after_ten_quiet_minutes(
    tree: Tree, kind: str, within: int, beyond: int, code: str, end: str
) -> None:
    card = tree.pci(NIC)
    folder, entity = (card, f"NIC {NIC}") if end == "card" else (card.parent, f"NIC {NIC} {BRIDGE}")
    errors(folder, kind, 500)
    look = aer(tree)
    assert look.after(0) == []  # what was before the first look is no news
    errors(folder, kind, 500 + within)
    assert look.after(30) == []
    errors(folder, kind, 500 + within + beyond)
    assert look.after(600) == [(entity, code, "warning")]
    errors(folder, kind, 0)  # the card was reset
    assert look.after(30) == [(entity, code, "warning")]
    assert look.for_long(700, 100) == []
    assert look.standing == []


def test_a_fatal_error_isolates_also_when_the_agent_was_not_there_and_stays_until_a_person_clears_it(
    tree: Tree,
) -> None:
    card = tree.pci(NIC)
    errors(card, "fatal", 3)
    look = aer(tree)
    assert look.after(0) == []
    look.restart()
    errors(card, "fatal", 4)
    event = (f"NIC {NIC}", "pcie-fatal-errors", "fatal")
    assert look.after(3600) == [event]
    assert look.for_long(3600, 600) == []
    assert look.standing == [event]
    assert look.book.clear(("nic", f"NIC {NIC}", "pcie-fatal-errors"))
    assert look.standing == []


def test_without_counters_it_is_absent_and_garbled_ones_are_no_errors(tree: Tree) -> None:
    card = tree.pci(NIC)
    look = aer(tree)
    look.after(0)
    assert look.said.startswith("absent")
    (card / "aer_dev_fatal").write_bytes(b"\xff\x00TOTAL_ERR_FATAL x")
    (card / "aer_dev_nonfatal").mkdir()
    errors(card, "correctable", 1)
    assert look.after(30) == []
    assert look.said == ""


# ---------------------------------------------------------------- ACS


def config(*capabilities: tuple[int, int], cut: int = 4096) -> bytes:
    """A configuration space with these (extended capability, ACS control)."""
    space = bytearray(4096)
    for index, (capability, control) in enumerate(capabilities):
        at = 0x100 + index * 0x20
        following = at + 0x20 if index + 1 < len(capabilities) else 0
        struct.pack_into("<IHH", space, at, capability | 1 << 16 | following << 20, 0x1F, control)
    return bytes(space[:cut])


def acs_of(tree: Tree) -> Sampler:
    return Sampler(acs.check, Settings(sysfs=str(tree.sysfs), procfs=str(tree.procfs)), "acs")


def bare_metal(tree: Tree) -> Path:
    """A NIC and a GPU, each below a bridge without ACS; the bridge of the GPU."""
    write(tree.procfs / "cpuinfo", "processor\t: 0\nflags\t\t: fpu vme sse2")
    for folder in (tree.pci(NIC), tree.pci(GPU, vendor="0x10de", kind="0x030200", driver="nvidia")):
        (folder.parent / "config").write_bytes(config((0x0001, 0)))
    return folder.parent


def test_acs_of_a_bridge_above_a_gpu_warns_on_bare_metal_until_it_is_off(tree: Tree) -> None:
    bridge = bare_metal(tree)
    look = acs_of(tree)
    assert look.after(0) == []
    assert look.said == ""
    (bridge / "config").write_bytes(config((0x0001, 0), (0x000D, 0x1D)))
    assert look.after(3600) == [("PCI bridges", "acs-enabled", "warning")]
    assert "0000:00:2a.0" in look.sample()[0].evidence[0]
    (bridge / "config").write_bytes(config((0x0001, 0), (0x000D, 0x1C)))
    assert look.after(3600) == []


def test_acs_in_a_virtual_machine_or_without_peers_is_absent(tree: Tree) -> None:
    bare_metal(tree)
    write(tree.procfs / "cpuinfo", "processor\t: 0\nflags\t\t: fpu hypervisor sse2")
    look = acs_of(tree)
    look.after(0)
    assert look.said.startswith("absent: a virtual machine")
    tree.bind(NIC, "")
    for address in (NIC, GPU):
        (tree.sysfs / "bus/pci/devices" / address).unlink()
    look.after(0)
    assert look.said == "absent: no GPU that has a peer"


def test_acs_that_an_unprivileged_reader_cannot_see_is_unknown_and_says_why(tree: Tree) -> None:
    bridge = bare_metal(tree)
    (bridge / "config").write_bytes(config(cut=64))
    look = acs_of(tree)
    assert look.after(0) == []
    assert look.said.startswith(
        "unknown: the extended configuration of 1 PCI bridges cannot be read without CAP_SYS_ADMIN"
    )


def test_a_damaged_list_of_capabilities_has_an_end() -> None:
    space = bytearray(config((0x0001, 0)))
    struct.pack_into("<I", space, 0x100, 0x0001 | 1 << 16 | 0x100 << 20)  # points at itself
    assert acs_control(bytes(space)) is None
    assert acs_control(b"\xff" * 4096) is None
    assert acs_control(config((0x000D, 5), cut=0x104)) is None
