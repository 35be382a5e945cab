"""A small builder of sysfs trees: RDMA cards and network interfaces as the kernel shows them."""

import os
import shutil
from pathlib import Path

import msgspec

from sentinel.checks.base import Absent, CheckFunction, Kept, Look, Unknown
from sentinel.checks.findings import FindingBook
from sentinel.core.health import Finding
from sentinel.core.now import Now
from sentinel.settings import Settings


def write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{value}\n")


class Tree:
    """A machine's /sys with a PCI bus of slots; a card's files stand where its PCI function is."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sysfs = root / "sys"
        self.procfs = root / "proc"
        (self.sysfs / "bus/pci/devices").mkdir(parents=True, exist_ok=True)
        self.procfs.mkdir(exist_ok=True)

    def pci(
        self, address: str, *, vendor: str = "0x15b3", kind: str = "0x020700", driver: str = "mlx5_core"
    ) -> Path:
        """A function below a bridge of its own, at 32 GT/s x16."""
        bridge = self.sysfs / f"devices/pci0000:00/0000:00:{address[5:7]}.0"
        folder = bridge / address
        write(folder / "vendor", vendor)
        write(folder / "class", kind)
        for place in (bridge, folder):
            for which in ("current", "max"):
                write(place / f"{which}_link_speed", "32.0 GT/s PCIe")
                write(place / f"{which}_link_width", 16)
        link(self.sysfs / "bus/pci/devices" / address, folder)
        self.bind(address, driver)
        return folder

    def bind(self, address: str, driver: str) -> None:
        at = self.sysfs / "bus/pci/devices" / address / "driver"
        at.unlink(missing_ok=True)
        if driver:
            (self.sysfs / "bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
            at.symlink_to(self.sysfs / "bus/pci/drivers" / driver)

    def ib(
        self,
        name: str,
        address: str,
        *,
        ports: int = 1,
        rate: str = "400 Gb/sec (4X NDR)",
        layer: str = "InfiniBand",
        firmware: str = "28.39.1002",
        board: str = "MT_0000000838",
    ) -> Path:
        """An RDMA device with ports that are active; its folder in /sys/class/infiniband."""
        function = self.pci(address)
        folder = function / "infiniband" / name
        write(folder / "fw_ver", firmware)
        write(folder / "board_id", board)
        write(folder / "hca_type", "MT4129")
        link(folder / "device", function)
        for port in range(1, ports + 1):
            at = folder / "ports" / str(port)
            write(at / "link_layer", layer)
            write(at / "rate", rate)
            for counter in (
                "symbol_error",
                "link_downed",
                "link_error_recovery",
                "port_rcv_errors",
                "port_xmit_discards",
                "port_rcv_data",
                "port_xmit_data",
            ):
                write(at / "counters" / counter, 0)
            for counter in ("local_ack_timeout_err", "out_of_sequence", "roce_slow_restart"):
                write(at / "hw_counters" / counter, 0)
        link(self.sysfs / "class/infiniband" / name, folder)
        for port in range(1, ports + 1):
            self.port(f"{name}/{port}", "4: ACTIVE", "5: LinkUp")
        return folder

    def port(self, name: str, state: str, physical: str) -> None:
        device, _, port = name.partition("/")
        at = self.sysfs / "class/infiniband" / device / "ports" / port
        write(at / "state", state)
        write(at / "phys_state", physical)

    def up(self, name: str) -> None:
        self.port(name, "4: ACTIVE", "5: LinkUp")

    def down(self, name: str) -> None:
        self.port(name, "1: DOWN", "2: Polling")

    def counter(self, name: str, counter: str, value: object) -> None:
        device, _, port = name.partition("/")
        at = self.sysfs / "class/infiniband" / device / "ports" / port
        kind = "counters" if (at / "counters" / counter).exists() else "hw_counters"
        write(at / kind / counter, value)

    def unplug(self, name: str, address: str, *, from_bus: bool = True) -> None:
        """Take away the RDMA device, and its PCI function unless only the driver lets go."""
        (self.sysfs / "class/infiniband" / name).unlink()
        at = self.sysfs / "bus/pci/devices" / address
        if from_bus:
            shutil.rmtree(os.path.realpath(at))
            at.unlink()
        else:
            shutil.rmtree(at / "infiniband")

    def netdev(self, name: str, *, address: str = "", virtual: bool = False) -> Path:
        """An Ethernet interface with carrier; its folder in /sys/class/net."""
        if virtual:
            folder = self.sysfs / "devices/virtual/net" / name
        else:
            function = self.pci(address, kind="0x020000")
            folder = function / "net" / name
            link(folder / "device", function)
        for file, value in {
            "type": 1,
            "flags": "0x1003",
            "carrier": 1,
            "speed": 100_000,
            "duplex": "full",
            "carrier_changes": 1,
            "carrier_down_count": 0,
            "dev_port": 0,
            "ifindex": 2,
        }.items():
            write(folder / file, value)
        for counter in ("rx_errors", "tx_errors", "rx_missed_errors"):
            write(folder / "statistics" / counter, 0)
        link(self.sysfs / "class/net" / name, folder)
        return folder


def link(at: Path, target: Path) -> None:
    at.parent.mkdir(parents=True, exist_ok=True)
    at.symlink_to(target)


class Sampler:
    """Runs one check on a tree at times that a test chooses, with the book that ends findings as in the agent."""

    def __init__(self, check: CheckFunction, settings: Settings, name: str) -> None:
        self.check = check
        self.settings = settings
        self.name = name
        self.mono_s = 100_000.0
        self.kept = Kept()
        self.book = FindingBook("boot")
        self.said = ""  # of a sample that was absent or unknown, else its detail

    def restart(self) -> None:
        """A new agent: what survives is what was saved, as JSON."""
        saved = msgspec.json.decode(msgspec.json.encode(self.kept.saved))
        self.kept = Kept(saved=saved)

    def after(self, seconds: float) -> list[tuple[str, str, str]]:
        """One sample so much later: (entity, code, severity) of all that it finds."""
        self.mono_s += seconds
        return shown(self.sample())

    def sample(self) -> list[Finding]:
        now = Now(self.mono_s, 1_700_000_000.0 + self.mono_s)
        try:
            found = self.check(Look(self.settings, (), now, "boot", self.kept))
            self.said = self.kept.detail
            self.book.fold(self.name, found, now)
        except Unknown as unknown:
            found, self.said = list(unknown.findings), f"unknown: {unknown}"
            self.book.add(found, now)
        except Absent as absent:
            found, self.said = [], f"absent: {absent}"
            self.book.fold(self.name, [], now)
        return found

    def for_long(self, seconds: float, step_s: float = 20.0) -> list[tuple[str, str, str]]:
        """Samples every `step_s`; what the last one finds."""
        found: list[tuple[str, str, str]] = []
        end_s = self.mono_s + seconds
        while self.mono_s < end_s:
            found = self.after(step_s)
        return found

    @property
    def standing(self) -> list[tuple[str, str, str]]:
        """What has not ended in the book."""
        return shown(list(self.book.active()))


def shown(found: list[Finding]) -> list[tuple[str, str, str]]:
    return sorted((finding.entity, finding.code, finding.severity.value) for finding in found)
