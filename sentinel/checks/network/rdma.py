"""What sysfs tells of RDMA cards and their ports, InfiniBand and RoCE alike.

Layout: https://www.kernel.org/doc/Documentation/ABI/stable/sysfs-class-infiniband. Ports of the link
layer InfiniBand count how often their link went down themselves (`link_downed`, 8 bits); those of RoCE
leave that counter at 0, and the network interface above them counts (`carrier_down_count`).
"""

import os

from msgspec import Struct

from sentinel.checks.base import Measure
from sentinel.checks.sysfs import PcieLink, leading_number, names, number, pcie_link, text

ACTIVE = (4, 5)  # "4: ACTIVE", "5: ACTIVE_DEFER"
LINK_UP = 5  # physical state "5: LinkUp"
STATES = {0: "NOP", 1: "DOWN", 2: "INIT", 3: "ARMED", 4: "ACTIVE", 5: "ACTIVE_DEFER"}

# Counter -> its name in node_exporter's infiniband collector.
COUNTERS = {
    "symbol_error": "symbol_error_total",
    "link_downed": "link_downed_total",
    "link_error_recovery": "link_error_recovery_total",
    "local_link_integrity_errors": "local_link_integrity_errors_total",
    "excessive_buffer_overrun_errors": "excessive_buffer_overrun_errors_total",
    "port_rcv_errors": "port_errors_received_total",
    "port_rcv_data": "port_data_received_bytes_total",
    "port_xmit_data": "port_data_transmitted_bytes_total",
    "port_xmit_discards": "port_discards_transmitted_total",
    "port_xmit_wait": "port_transmit_wait_total",
}
HW_COUNTERS = {
    "local_ack_timeout_err": "local_ack_timeout_err_total",
    "out_of_sequence": "out_of_sequence_total",
    "packet_seq_err": "packet_seq_err_total",
    "rnr_nak_retry_err": "rnr_nak_retry_err_total",
    "roce_slow_restart": "roce_slow_restart_total",
    "rx_icrc_encapsulated": "rx_icrc_encapsulated_total",
}
IN_WORDS_OF_4_BYTES = ("port_rcv_data", "port_xmit_data")


class Port(Struct, frozen=True, kw_only=True):
    """One port as it is now. What could not be read is None or ""."""

    name: str  # "mlx5_0/1"
    state: int | None
    physical: int | None
    rate_gbps: float | None
    link_layer: str  # "InfiniBand" or "Ethernet" (RoCE)
    netdev: str  # of a RoCE port
    downs: int | None  # how often the link went down since the driver was loaded
    counters: dict[str, int]

    @property
    def up(self) -> bool:
        return self.state in ACTIVE

    @property
    def roce(self) -> bool:
        return self.link_layer == "Ethernet"


class Card(Struct, frozen=True, kw_only=True):
    """One RDMA device that is not a virtual function."""

    name: str  # "mlx5_0"
    instance: int  # inode of its folder: another one after the driver was loaded anew
    pci: str  # "" where it is no PCI function
    firmware: str
    board: str  # board id (PSID): cards with the same one are alike
    kind: str  # "MT4129"
    link: PcieLink | None
    ports: tuple[Port, ...]


def is_virtual(sysfs: str, device: str) -> bool:
    """A virtual function, or a scalable one (mlx5), comes and goes with the pod that it is given to."""
    folder = f"{sysfs}/class/infiniband/{device}/device"
    return os.path.exists(f"{folder}/physfn") or ".sf." in os.path.basename(os.path.realpath(folder))


def read_card(sysfs: str, device: str) -> Card | None:
    """None: it is gone."""
    folder = f"{sysfs}/class/infiniband/{device}"
    try:
        instance = os.stat(folder).st_ino
    except OSError:
        return None
    ports = sorted((name for name in names(f"{folder}/ports") if name.isdigit()), key=int)
    address = os.path.basename(os.path.realpath(f"{folder}/device"))
    return Card(
        name=device,
        instance=instance,
        pci=address if address.count(":") == 2 else "",
        firmware=text(f"{folder}/fw_ver"),
        board=text(f"{folder}/board_id"),
        kind=text(f"{folder}/hca_type"),
        link=pcie_link(f"{folder}/device"),
        ports=tuple(_read_port(sysfs, device, port) for port in ports),
    )


def _read_port(sysfs: str, device: str, port: str) -> Port:
    folder = f"{sysfs}/class/infiniband/{device}"
    at = f"{folder}/ports/{port}"
    state = leading_number(text(f"{at}/state"))
    physical = leading_number(text(f"{at}/phys_state"))
    layer = text(f"{at}/link_layer")
    counters = {}
    for kind, known in (("counters", COUNTERS), ("hw_counters", HW_COUNTERS)):
        for counter in known:
            value = number(f"{at}/{kind}/{counter}")
            if value is not None and value >= 0:
                counters[counter] = value
    netdev = _netdev(folder, at, port) if layer == "Ethernet" else ""
    downs = number(f"{sysfs}/class/net/{netdev}/carrier_down_count") if netdev else None
    return Port(
        name=f"{device}/{port}",
        state=None if state is None else int(state),
        physical=None if physical is None else int(physical),
        rate_gbps=leading_number(text(f"{at}/rate")),
        link_layer=layer,
        netdev=netdev,
        downs=counters.get("link_downed") if downs is None else downs,
        counters=counters,
    )


def _netdev(folder: str, at: str, port: str) -> str:
    if name := text(f"{at}/gid_attrs/ndevs/0"):
        return name
    for name in names(f"{folder}/device/net"):
        if number(f"{folder}/device/net/{name}/dev_port") == int(port) - 1:
            return name
    return ""


def measures(cards: list[Card]) -> tuple[Measure, ...]:
    """With the names, labels and units of node_exporter."""
    found = []
    for card in cards:
        info = {"board_id": card.board, "device": card.name, "firmware_version": card.firmware}
        found.append(Measure("node_infiniband_info", (*info.items(), ("hca_type", card.kind)), 1.0))
        for port in card.ports:
            labels = (("device", card.name), ("port", port.name.rpartition("/")[2]))
            values: list[tuple[str, float | None]] = [
                ("state_id", port.state),
                ("physical_state_id", port.physical),
                ("rate_bytes_per_second", None if port.rate_gbps is None else port.rate_gbps * 1e9 / 8),
            ]
            for counter, value in port.counters.items():
                scale = 4 if counter in IN_WORDS_OF_4_BYTES else 1
                values.append((COUNTERS.get(counter) or HW_COUNTERS[counter], value * scale))
            found += [
                Measure(f"node_infiniband_{name}", labels, float(value))
                for name, value in values
                if value is not None
            ]
    return tuple(found)
