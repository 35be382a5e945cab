"""The numbers of all cards for /metrics, in the names, labels and units that users of dcgm-exporter know."""

import os
from collections.abc import Iterator, Sequence

from sentinel.checks.base import Measure
from sentinel.checks.nvidia.card import Card

XID_SHOWN_S = 3600.0  # the last Xid is a gauge: it must end, or an alert on it never does


def _values(card: Card) -> Iterator[tuple[str, float | None]]:
    device = card.device
    free = None
    if device.memory_bytes is not None and device.memory_used_bytes is not None:
        free = (device.memory_bytes - device.memory_used_bytes) / (1 << 20)
    yield "GPU_TEMP", device.temperature_celsius  # °C
    yield "MEMORY_TEMP", device.memory_celsius
    yield "POWER_USAGE", None if device.power_mw is None else device.power_mw / 1000  # W
    yield "TOTAL_ENERGY_CONSUMPTION", device.energy_mj  # mJ
    yield "SM_CLOCK", device.sm_clock_mhz
    yield "MEM_CLOCK", device.mem_clock_mhz
    yield "GPU_UTIL", device.util_percent
    yield "MEM_COPY_UTIL", device.mem_util_percent
    yield "FB_USED", None if device.memory_used_bytes is None else device.memory_used_bytes / (1 << 20)  # MiB
    yield "FB_FREE", free
    yield "PSTATE", device.pstate
    yield "CLOCKS_EVENT_REASONS", device.reasons
    yield "ECC_SBE_VOL_TOTAL", device.ecc_corrected
    yield "ECC_DBE_VOL_TOTAL", device.ecc_uncorrected
    yield "CORRECTABLE_REMAPPED_ROWS", device.rows_corrected
    yield "UNCORRECTABLE_REMAPPED_ROWS", device.rows_uncorrected
    yield "ROW_REMAP_PENDING", device.remap_pending
    yield "ROW_REMAP_FAILURE", device.remap_failed
    yield "PCIE_LINK_GEN", device.pcie_gen
    yield "PCIE_LINK_WIDTH", device.pcie_width
    recent = card.now_s - card.past.xid_s <= XID_SHOWN_S
    yield "XID_ERRORS", card.past.xid if recent else 0
    for name, counter in (("POWER_VIOLATION", "sw_power"), ("THERMAL_VIOLATION", "hw_thermal")):
        ns = device.throttled_ns.get(counter)
        yield name, None if ns is None else ns / 1000  # µs
    if (links := device.links) is not None:
        yield "PCIE_REPLAY_COUNTER", links.pcie_replays
        yield "RETIRED_PENDING", links.retired_pending
        for name, kind in (
            ("CRC_FLIT", "crc_flit"),
            ("CRC_DATA", "crc_data"),
            ("REPLAY", "replay"),
            ("RECOVERY", "recovery"),
        ):
            yield f"NVLINK_{name}_ERROR_COUNT_TOTAL", links.nvlink_errors.get(kind)


PROFILED = {
    "graphics": "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "sm": "DCGM_FI_PROF_SM_ACTIVE",
    "tensor": "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "dram": "DCGM_FI_PROF_DRAM_ACTIVE",
}


def measures(cards: Sequence[Card]) -> tuple[Measure, ...]:
    """All values that are known. A value that a card or its driver does not have has no series."""
    hostname = os.uname().nodename
    found = []
    for card in cards:
        identity = card.device.identity
        labels = (
            ("gpu", str(card.device.index)),
            ("UUID", identity.uuid),
            ("pci_bus_id", identity.pci),
            ("device", f"nvidia{card.device.index if identity.minor is None else identity.minor}"),
            ("modelName", identity.name),
            ("Hostname", hostname),
        )
        found += [
            Measure(f"DCGM_FI_DEV_{name}", labels, float(value))
            for name, value in _values(card)
            if value is not None
        ]
        found += [
            Measure(name, labels, card.device.gpm[kind])
            for kind, name in PROFILED.items()
            if kind in card.device.gpm
        ]
    return tuple(found)
