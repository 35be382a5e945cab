"""PCIe bridges that send traffic between GPUs and NICs through the root complex (ACS source validation).

Virtual machines need that to keep their cards apart; on bare metal it makes peer-to-peer transfers slow or
wrong. NVIDIA's NCCL guide ("PCI Access Control Services") asks for it to be off.
"""

import os
import re
import struct

from sentinel.checks.base import Absent, Look, Unknown
from sentinel.checks.gpus import inventory
from sentinel.checks.pci.nic_aer import network_cards
from sentinel.core.health import Component, Finding, Severity

# PCI Express Base Specification, extended capabilities: a list that begins at 0x100.
EXTENDED_AT = 0x100
CONFIG_BYTES = 4096
ACS = 0x000D
ACS_CONTROL_AT = 6
SOURCE_VALIDATION = 0x1
MAX_NAMED = 8  # bridges in the evidence

_HYPERVISOR = re.compile(r"^flags\s*:.*\bhypervisor\b", re.M)
_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def acs_control(config: bytes) -> int | None:
    """ACS control bits of a function's configuration space; None where it has no such capability."""
    at = EXTENDED_AT
    for _ in range(CONFIG_BYTES // 8):  # a damaged list may run in a circle
        if at < EXTENDED_AT or at + 8 > len(config):
            return None
        (header,) = struct.unpack_from("<I", config, at)
        if header in (0, 0xFFFFFFFF):
            return None
        if header & 0xFFFF == ACS:
            return int(struct.unpack_from("<H", config, at + ACS_CONTROL_AT)[0])
        at = header >> 20
    return None


def _bridges(sysfs: str, addresses: list[str]) -> list[str]:
    """Folders of all bridges between these functions and the root complex."""
    found = set()
    for address in addresses:
        folder = os.path.dirname(os.path.realpath(f"{sysfs}/bus/pci/devices/{address}"))
        while _ADDRESS.fullmatch(os.path.basename(folder)):
            found.add(folder)
            folder = os.path.dirname(folder)
    return sorted(found)


def _is_virtual_machine(procfs: str) -> bool:
    try:
        with open(f"{procfs}/cpuinfo", errors="replace") as file:
            return _HYPERVISOR.search(file.read(16_384)) is not None
    except OSError:
        return False


def check(look: Look) -> list[Finding]:
    gpus = [gpu.pci for gpu in inventory(look.settings.sysfs)]
    if not gpus or len(gpus) + len(network_cards(look.settings.sysfs)) < 2:
        raise Absent("no GPU that has a peer")
    if _is_virtual_machine(look.settings.procfs):
        raise Absent("a virtual machine: it sees no bridges of the host")
    on: list[str] = []
    hidden = 0
    for bridge in _bridges(look.settings.sysfs, gpus + network_cards(look.settings.sysfs)):
        try:
            with open(f"{bridge}/config", "rb") as file:
                config = file.read(CONFIG_BYTES)
        except OSError:
            hidden += 1
            continue
        if len(config) <= EXTENDED_AT:
            hidden += 1  # without CAP_SYS_ADMIN the kernel shows 64 bytes; an old PCI bridge has 256
            continue
        control = acs_control(config)
        if control is not None and control & SOURCE_VALIDATION:
            on.append(os.path.basename(bridge))
    found = [_finding(on)] if on else []
    if hidden:
        raise Unknown(
            f"the extended configuration of {hidden} PCI bridges cannot be read without CAP_SYS_ADMIN: "
            "whether ACS slows peer-to-peer traffic is not known",
            tuple(found),
        )
    return found


def _finding(on: list[str]) -> Finding:
    more = f" and {len(on) - MAX_NAMED} more" if len(on) > MAX_NAMED else ""
    return Finding(
        check="acs",
        component=Component.SYSTEM,
        entity="PCI bridges",
        code="acs-enabled",
        severity=Severity.WARNING,
        action="DISABLE_ACS",
        summary="PCIe bridges validate sources: GPUs and NICs reach each other only through the root complex",
        evidence=(f"ACS SrcValid is on: {', '.join(on[:MAX_NAMED])}{more}",),
    )
