"""What sysfs and procfs tell of network interfaces and bonds.

Layout: https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-class-net and .../networking/bonding.rst.
Both show the network namespace of who reads.
"""

import os

from msgspec import Struct

from sentinel.checks.base import Measure
from sentinel.checks.sysfs import names, number, text

ETHERNET = 1  # ARPHRD_ETHER
IFF_UP = 0x1
RTF_UP, RTF_REJECT = 0x1, 0x200
MAX_ROUTES_BYTES = 1 << 20
COUNTERS = ("rx_errors", "tx_errors", "rx_missed_errors")
_MEASURED = {"rx_errors": "receive_errs_total", "tx_errors": "transmit_errs_total"}


class Interface(Struct, frozen=True, kw_only=True):
    """One interface as it is now. What could not be read is None or ""."""

    name: str
    instance: int  # inode of its folder: another one after the driver was loaded anew
    pci: str  # "" where it is virtual
    rdma: bool  # an RDMA device stands on the same function: its port is judged as one of RoCE
    enabled: bool | None  # by the administrator (IFF_UP)
    carrier: bool  # False too where the interface is not enabled
    speed_mbps: int | None
    duplex: str
    downs: int | None  # how often the carrier was lost
    changes: int | None
    counters: dict[str, int]
    master: str  # the bond or bridge that it belongs to

    @property
    def up(self) -> bool:
        return bool(self.enabled) and self.carrier


class Member(Struct, frozen=True):
    """One interface of a bond."""

    name: str
    state: str  # "up", "down", "going down", "going back"; "" could not be read
    apart: bool  # in an aggregator (802.3ad) that is not the bond's: the switch does not bundle it

    @property
    def good(self) -> bool:
        return self.state == "up" and not self.apart


def default_routes(procfs: str) -> set[str]:
    """Interfaces that a default route leaves by, IPv4 and IPv6."""
    found = set()
    for line in _lines(f"{procfs}/net/route")[1:]:
        # Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT
        words = line.split()
        if len(words) >= 8 and words[1] == words[7] == "00000000" and _usable(words[3]):
            found.add(words[0])
    for line in _lines(f"{procfs}/net/ipv6_route"):
        # destination, its prefix, source, its prefix, next hop, metric, references, uses, flags, interface
        words = line.split()
        if len(words) == 10 and words[0] == "0" * 32 and words[1] == "00" and _usable(words[8]):
            found.add(words[9])
    return found - {"lo"}


def _usable(flags: str) -> bool:
    try:
        return int(flags, 16) & (RTF_UP | RTF_REJECT) == RTF_UP
    except ValueError:
        return False


def _lines(path: str) -> list[str]:
    try:
        with open(path, errors="replace") as file:
            return file.read(MAX_ROUTES_BYTES).splitlines()
    except OSError:
        return []


def is_candidate(sysfs: str, name: str) -> bool:
    """A network card's own interface: not virtual, not a virtual function, not a management port on USB."""
    device = f"{sysfs}/class/net/{name}/device"
    if not os.path.exists(device) or os.path.exists(f"{device}/physfn"):
        return False
    return "/usb" not in os.path.realpath(device) and number(f"{sysfs}/class/net/{name}/type") == ETHERNET


def is_bond(sysfs: str, name: str) -> bool:
    return os.path.isdir(f"{sysfs}/class/net/{name}/bonding")


def read_interface(sysfs: str, name: str) -> Interface | None:
    """None: it is gone."""
    folder = f"{sysfs}/class/net/{name}"
    try:
        instance = os.stat(folder).st_ino
    except OSError:
        return None
    flags, speed = number(f"{folder}/flags"), number(f"{folder}/speed")
    changes = number(f"{folder}/carrier_changes")
    downs = number(f"{folder}/carrier_down_count")
    if downs is None and changes is not None:
        downs = changes // 2  # kernels before 4.16 count ups and downs in one
    counters = {counter: number(f"{folder}/statistics/{counter}") for counter in COUNTERS}
    master = f"{folder}/master"
    return Interface(
        name=name,
        instance=instance,
        pci=_pci(f"{folder}/device"),
        rdma=os.path.isdir(f"{folder}/device/infiniband"),
        enabled=None if flags is None else bool(flags & IFF_UP),
        carrier=number(f"{folder}/carrier") == 1,
        speed_mbps=speed if speed is not None and speed > 0 else None,
        duplex=text(f"{folder}/duplex"),
        downs=downs,
        changes=changes,
        counters={counter: value for counter, value in counters.items() if value is not None and value >= 0},
        master=os.path.basename(os.path.realpath(master)) if os.path.exists(master) else "",
    )


def _pci(device: str) -> str:
    """The PCI function below which the device stands: virtio's is one folder up."""
    if not os.path.exists(device):
        return ""
    for part in reversed(os.path.realpath(device).split("/")):
        if part.count(":") == 2 and "." in part:
            return part
    return ""


def read_members(sysfs: str, bond: str) -> list[Member]:
    """In the order of the kernel; empty where the bond has none or is gone."""
    folder = f"{sysfs}/class/net"
    bundle = text(f"{folder}/{bond}/bonding/ad_aggregator")  # empty but in mode 802.3ad
    members = []
    for name in text(f"{folder}/{bond}/bonding/slaves").split():
        own = text(f"{folder}/{name}/bonding_slave/ad_aggregator_id")
        members.append(
            Member(
                name,
                text(f"{folder}/{name}/bonding_slave/mii_status"),
                bool(bundle and own.isdigit() and own != bundle),
            )
        )
    return members


def all_names(sysfs: str) -> list[str]:
    """Every interface. Raises OSError where they may not be listed."""
    return [name for name in names(f"{sysfs}/class/net") if name not in ("lo", "bonding_masters")]


def measures(interfaces: list[Interface], bonds: dict[str, list[Member]]) -> tuple[Measure, ...]:
    """With the names, labels and units of node_exporter."""
    found = []
    for one in interfaces:
        values: list[tuple[str, float | None]] = [
            ("up", float(one.up)),
            ("carrier", float(one.carrier)),
            ("carrier_changes_total", one.changes),
            ("speed_bytes", None if one.speed_mbps is None else one.speed_mbps * 1e6 / 8),
        ]
        values += [(name, one.counters.get(counter)) for counter, name in _MEASURED.items()]
        labels = (("device", one.name),)
        found += [
            Measure(f"node_network_{name}", labels, float(value))
            for name, value in values
            if value is not None
        ]
    for bond, members in bonds.items():
        labels = (("master", bond),)
        found.append(Measure("node_bonding_slaves", labels, float(len(members))))
        found.append(Measure("node_bonding_active", labels, float(sum(one.good for one in members))))
    return tuple(found)
