"""AMD cards through `amd-smi` with JSON, or through the older `rocm-smi` where only that is installed."""

import os
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from sentinel.checks.accelerators.cards import Card, NotUnderstood, Temperature, normal_address
from sentinel.checks.accelerators.families import family
from sentinel.checks.accelerators.tool import Tool, look_at
from sentinel.checks.base import Kept, Look
from sentinel.core.health import Finding

# Sensor of `amd-smi metric` -> its limit in `amd-smi static`; older versions say vram for the memory.
LIMITS = {
    "edge": ("slowdown_edge_temperature",),
    "hotspot": ("slowdown_hotspot_temperature",),
    "mem": ("slowdown_vram_temperature", "slowdown_mem_temperature"),
}
ROCM_SENSORS = {"edge": "edge", "junction": "hotspot", "memory": "mem"}


class Static(Struct):
    """What `amd-smi static` told, which is asked again where there are other GPUs."""

    gpus: list[str] | None = None  # their indices; None: not asked yet
    told: dict[str, Mapping[str, Any]] = {}  # by index


def gpus_of(data: bytes, what: str) -> dict[str, Mapping[str, Any]]:
    """Index -> object, of both layouts: a bare list, or since ROCm 7 {"gpu_data": [...]}. Raises NotUnderstood."""
    try:
        document = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise NotUnderstood(f"{what} is no JSON: {error}") from None
    if isinstance(document, dict):
        document = document.get("gpu_data")
    if not isinstance(document, list) or not all(isinstance(row, dict) and "gpu" in row for row in document):
        raise NotUnderstood(f"{what} has no list of GPUs")
    return {str(row["gpu"]): row for row in document}


def _at(node: Any, *keys: str) -> Any:
    for key in keys:
        if not isinstance(node, Mapping):
            return None
        node = node.get(key)
    return node


def number(node: Any, *keys: str) -> float | None:
    """A number that stands as such, as text or as {"value": 36, "unit": "C"}; None for "N/A"."""
    value = _at(node, *keys)
    if isinstance(value, Mapping):
        value = value.get("value")
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def parse_amd_smi(
    metric: bytes, static: Mapping[str, Mapping[str, Any]], topology: Mapping[str, Mapping[str, Any]]
) -> list[Card]:
    """The cards of `amd-smi metric --json`, with what the other two commands told. Raises NotUnderstood."""
    cards = []
    for index, row in gpus_of(metric, "amd-smi metric").items():
        if not isinstance(row.get("temperature"), Mapping) and not isinstance(row.get("mem_usage"), Mapping):
            raise NotUnderstood(f"amd-smi metric tells neither temperature nor mem_usage of GPU {index}")
        cards.append(_card(index, row, static.get(index, {}), topology.get(index, {})))
    return cards


def _card(index: str, row: Mapping[str, Any], static: Mapping[str, Any], topology: Mapping[str, Any]) -> Card:
    temperatures = []
    for sensor, names in LIMITS.items():
        celsius = number(row, "temperature", sensor)
        if celsius is not None:
            limits = (number(static, "limit", name) for name in names)
            limit = next((value for value in limits if value), None)
            temperatures.append(Temperature(sensor, celsius, limit))
    links: dict[bool, list[str]] = {True: [], False: []}
    for link in _at(topology, "links") or ():
        if isinstance(link, Mapping) and link.get("link_type") not in (None, "SELF"):
            links[link.get("link_status") == "ENABLED"].append(str(link.get("bdf")))
    uncorrected, corrected = (
        number(row, "ecc", f"total_{kind}_count") for kind in ("uncorrectable", "correctable")
    )
    used, total = (number(row, "mem_usage", f"{kind}_vram") for kind in ("used", "total"))
    busy = number(row, "usage", "gfx_activity")
    name = _at(static, "asic", "market_name")
    serial = _at(static, "asic", "asic_serial")
    return Card(
        index=index,
        address=normal_address(str(topology.get("bdf") or _at(static, "bus", "bdf"))),
        name=name if isinstance(name, str) else "",
        uuid=serial if isinstance(serial, str) and serial != "N/A" else "",
        temperatures=tuple(temperatures),
        ecc_uncorrected=None if uncorrected is None else int(uncorrected),
        ecc_corrected=None if corrected is None else int(corrected),
        memory_used_bytes=None if used is None else int(used) << 20,
        memory_total_bytes=None if total is None else int(total) << 20,
        power_watts=number(row, "power", "socket_power"),
        utilization=None if busy is None else busy / 100,
        links_up=tuple(links[True]),
        links_down=tuple(links[False]),
    )


def parse_rocm_smi(data: bytes) -> list[Card]:
    """The cards of `rocm-smi -a --showmeminfo vram --json`. It tells no ECC counts and no limits."""
    try:
        document = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise NotUnderstood(f"rocm-smi printed no JSON: {error}") from None
    rows = document.items() if isinstance(document, dict) else ()
    cards = {name: row for name, row in rows if name.startswith("card") and isinstance(row, dict)}
    if not cards:
        raise NotUnderstood("rocm-smi names no card")
    return [_rocm_card(name.removeprefix("card"), row) for name, row in cards.items()]


def _rocm_card(index: str, row: Mapping[str, Any]) -> Card:
    temperatures = []
    for theirs, ours in ROCM_SENSORS.items():
        celsius = number(row, f"Temperature (Sensor {theirs}) (C)")
        if celsius is not None:
            temperatures.append(Temperature(ours, celsius))
    used, total = (number(row, f"VRAM Total {kind}(B)") for kind in ("Used Memory ", "Memory "))
    busy = number(row, "GPU use (%)")
    unique = row.get("Unique ID")
    return Card(
        index=index,
        address=normal_address(str(row.get("PCI Bus"))),
        name=str(row.get("Card Series") or row.get("Card series") or ""),
        uuid=unique if isinstance(unique, str) and unique != "N/A" else "",
        temperatures=tuple(temperatures),
        memory_used_bytes=None if used is None else int(used),
        memory_total_bytes=None if total is None else int(total),
        power_watts=number(row, "Average Graphics Package Power (W)"),
        utilization=None if busy is None else busy / 100,
    )


def read(tool: Tool, kept: Kept) -> list[Card]:
    if os.path.basename(tool.path) == "rocm-smi":
        return parse_rocm_smi(tool.ask("-a", "--showmeminfo", "vram", "--json"))
    metric = tool.ask("metric", "--json")
    known, gpus = kept.own(Static), sorted(gpus_of(metric, "amd-smi metric"))
    if known.gpus != gpus:  # limits do not change, cards may
        static = tool.ask_more("static", "--json")
        known.told = gpus_of(static, "amd-smi static") if static else {}
        known.gpus = gpus
    topology = tool.ask_more("topology", "--json")
    return parse_amd_smi(metric, known.told, gpus_of(topology, "amd-smi topology") if topology else {})


def check(look: Look) -> list[Finding]:
    return look_at(family("amd"), look, read, "rocm-smi")
