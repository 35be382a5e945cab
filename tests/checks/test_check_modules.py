"""Kernel modules and driver libraries, by trees of sysfs, procfs and the node's root."""

from pathlib import Path
from typing import Any

import pytest

from sentinel.checks.base import Absent, Kept, Look
from sentinel.checks.host import modules
from sentinel.core.health import Component, Finding, Severity
from sentinel.core.now import Now
from sentinel.settings import Settings, Shape

# Printed by drivers 550 (proprietary) and 580 (open), seen in public bug reports.
PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Fri Jan 10 20:00:00 UTC 2025\n"
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  "
    "(dvs-builder@U22-I3-B17-02-5)  Tue Sep 23 09:55:41 UTC 2025\n"
    "GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04.2) \n"
)


class Node:
    """A node with two GPUs whose driver is loaded and installed."""

    def __init__(self, folder: Path, machine: Any) -> None:
        self.machine = machine
        self.procfs = folder / "proc"
        self.root = self.procfs / "1/root"
        self.libraries = self.root / "usr/lib/x86_64-linux-gnu"
        self.libraries.mkdir(parents=True)
        self.gpus = [machine.add_pci(f"0000:{bus}:00.0") for bus in ("18", "2a")]
        self.load("nvidia", "nvidia_uvm")
        self.drive("550.135")
        self.install("550.135")
        self.shape = Shape()

    def load(self, *names: str) -> None:
        lines = "".join(f"{name} 65536 2 - Live 0x0000000000000000\n" for name in names)
        (self.procfs / "modules").write_text(lines)

    def drive(self, version: str, text: str = PROPRIETARY) -> None:
        path = self.procfs / "driver/nvidia/version"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(version))

    def install(self, version: str, folder: Path | None = None) -> None:
        for name in ("libcuda", "libnvidia-ml"):
            link = (folder or self.libraries) / f"{name}.so.1"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(f"{name}.so.{version}")

    def rdma(self) -> None:
        (self.machine.sysfs / "class/infiniband/mlx5_0").mkdir(parents=True)

    def check(self) -> list[Finding]:
        settings = Settings(procfs=str(self.procfs), sysfs=str(self.machine.sysfs), shape=self.shape)
        self.kept = Kept()
        return modules.check(Look(settings, (), Now(1.0, 1.0), "boot", self.kept))

    def told(self) -> list[tuple[str, str, Severity]]:
        return [(item.code, item.entity, item.severity) for item in self.check()]


@pytest.fixture
def node(tmp_path: Path, machine: Any) -> Node:
    return Node(tmp_path, machine)


def test_a_healthy_node_without_an_expectation_says_that_none_is_set(node: Node) -> None:
    assert node.check() == []
    assert node.kept.detail == "expected modules: not set"


def test_gpus_without_the_nvidia_module_are_degraded_until_it_is_loaded(node: Node) -> None:
    node.load("nouveau")
    (node.gpus[0] / "driver").symlink_to("../../drivers/nouveau")
    (finding,) = [item for item in node.check() if item.code == "module-missing"]
    assert (finding.component, finding.severity) == (Component.GPU, Severity.DEGRADED)
    assert finding.evidence == ("2 NVIDIA cards on the PCI bus, bound to nouveau",)
    node.load("nvidia")
    assert node.check() == []


def test_gpus_that_a_virtual_machine_has_need_no_module(node: Node) -> None:
    node.load()
    for gpu in node.gpus:
        (gpu / "driver").symlink_to("../../drivers/vfio-pci")
    with pytest.raises(Absent):
        node.check()


def test_expected_modules_that_are_missing_are_named_until_they_are_loaded(node: Node) -> None:
    node.shape = Shape(name="h100", source="manifest", modules=("nvidia", "gdrdrv", "br-netfilter"))
    assert node.told() == [
        ("module-missing", "module gdrdrv", Severity.DEGRADED),
        ("module-missing", "module br-netfilter", Severity.DEGRADED),
    ]
    node.load("nvidia", "gdrdrv")
    (node.machine.sysfs / "module/br_netfilter").mkdir(parents=True)  # built in: not in /proc/modules
    assert node.check() == []


def test_an_expectation_that_nobody_confirmed_is_only_told(node: Node) -> None:
    node.shape = Shape(source="learnt", modules=("gdrdrv",))
    assert node.told() == [("module-missing", "module gdrdrv", Severity.WARNING)]


def test_an_infiniband_card_without_its_modules_is_degraded(node: Node) -> None:
    node.machine.add_pci("0000:3a:00.0", vendor="0x15b3", pci_class="0x020700", device="0x1021")
    assert [item.entity for item in node.check()] == ["module ib_core", "module ib_uverbs"]
    node.load("nvidia", "ib_core", "ib_uverbs")
    assert node.check() == []


def test_gpus_beside_rdma_want_peermem_unless_the_driver_is_the_open_one(node: Node) -> None:
    node.rdma()
    assert node.told() == [("module-missing", "module nvidia_peermem", Severity.WARNING)]
    node.load("nvidia", "nvidia_peermem")
    assert node.check() == []
    node.load("nvidia")
    node.drive("580.95.05", OPEN)
    node.install("580.95.05")
    assert node.check() == []


def test_libraries_of_another_version_than_the_loaded_driver_are_a_mismatch_until_a_reboot(
    node: Node,
) -> None:
    node.install("550.144.03")  # updated under the running driver
    found = node.check()
    assert [(item.code, item.entity, item.severity, item.action) for item in found] == [
        ("driver-library-mismatch", f"library {name}", Severity.DEGRADED, "RESTART_BM")
        for name in modules.LIBRARIES
    ]
    assert found[0].evidence == ("libcuda.so.1 is of 550.144.03, the loaded driver is 550.135",)
    node.drive("550.144.03")
    assert node.check() == []


def test_missing_libraries_are_told_until_they_are_installed(node: Node) -> None:
    for link in node.libraries.iterdir():
        link.unlink()
    assert [(item.code, item.severity) for item in node.check()] == [
        ("library-missing", Severity.WARNING)
    ] * 2
    node.install("550.135", node.root / "run/nvidia/driver/usr/lib/x86_64-linux-gnu")  # a driver container
    assert node.check() == []


def test_libraries_are_found_where_the_loaders_cache_says(node: Node) -> None:
    for link in node.libraries.iterdir():
        link.unlink()
    node.install("550.135", node.root / "opt/driver")
    cache = b"glibc-ld.so.cache1.1\0" + b"".join(
        f"{name}\0/opt/driver/{name}\0".encode() for name in modules.LIBRARIES
    )
    (node.root / "etc").mkdir()
    (node.root / "etc/ld.so.cache").write_bytes(cache)
    assert node.check() == []


def test_one_library_of_the_right_version_is_enough(node: Node) -> None:
    node.install("470.1.1", node.root / "usr/lib64")
    assert node.check() == []


def test_a_machine_that_needs_no_module_is_absent(machine: Any, tmp_path: Path) -> None:
    settings = Settings(procfs=str(tmp_path), sysfs=str(machine.sysfs))
    with pytest.raises(Absent, match="not set"):
        modules.check(Look(settings, (), Now(1.0, 1.0), "boot", Kept()))
