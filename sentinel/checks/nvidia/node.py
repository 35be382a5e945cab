"""Judges the cards of a node together: how many there are, what was expected, and who is not like the others."""

from collections import Counter
from collections.abc import Sequence

from sentinel.checks.nvidia.card import Card, entity_of, finding
from sentinel.checks.nvidia.nvml_sample import Device
from sentinel.checks.shape import expected
from sentinel.core.health import Finding, Severity
from sentinel.settings import Shape

# What the cards of one model on one node share, by the names of nvml_sample.Identity.
ALIKE = {
    "vbios": "VBIOS",
    "inforom": "InfoROM",
    "gsp": "GSP firmware",
    "ecc_mode": "ECC mode",
    "persistence": "persistence mode",
    "power_limit_mw": "power limit in mW",
}


def judge_count(devices: Sequence[Device], on_pci: Sequence[str]) -> list[Finding]:
    """Cards on the PCI bus (entities) that NVML does not list."""
    if any(device.error and not device.identity.pci for device in devices):
        return []  # a card that is lost tells no address: which one is missing is not known
    named = {entity_of(device.identity.pci, device.index) for device in devices}
    return [
        finding(
            entity,
            "gpu-missing",
            Severity.FATAL,
            "RESTART_BM",
            "The GPU is on the PCI bus but the driver does not list it",
            f"NVML lists {len(devices)} of {len(on_pci)} GPUs",
        )
        for entity in on_pci
        if entity not in named
    ]


def judge_expected(devices: Sequence[Device], driver: str, shape: Shape) -> list[Finding]:
    """Against the node's shape. What is not set there is not judged; the number of cards the PCI bus tells."""
    found = []
    if shape.driver is not None and driver and driver != shape.driver:
        found.append(
            finding(
                "node",
                "driver-drift",
                Severity.WARNING,
                "UPDATE_SWFW",
                "The NVIDIA driver is not the expected one",
                f"driver {driver}, {expected(shape, 'driver')}",
            )
        )
    for field, code, title in (("gpu_name", "gpu-name", "model"), ("vbios", "vbios-drift", "VBIOS")):
        want = getattr(shape, field)
        for device in devices:
            have = device.identity.name if field == "gpu_name" else device.identity.vbios
            if want is not None and have and have != want:
                found.append(
                    finding(
                        entity_of(device.identity.pci, device.index),
                        code,
                        Severity.WARNING,
                        "UPDATE_SWFW" if field == "vbios" else "CHECK_SETTINGS",
                        f"The GPU's {title} is not the expected one",
                        f"{title} {have}, {expected(shape, field)}",
                    )
                )
    return found


def judge_twins(devices: Sequence[Device]) -> list[Finding]:
    """Two cards under one UUID: a faulty report, by which a job's card cannot be told. PCI addresses still can."""
    counts = Counter(device.identity.uuid for device in devices if device.identity.uuid)
    return [
        finding(
            entity_of(device.identity.pci, device.index),
            "gpu-uuid-twice",
            Severity.WARNING,
            "CONTACT_SUPPORT",
            "Another GPU reports the same UUID",
            f"{device.identity.uuid} on {counts[device.identity.uuid]} cards",
        )
        for device in devices
        if counts[device.identity.uuid] > 1
    ]


def judge_alike(cards: Sequence[Card]) -> list[Finding]:
    """Cards that differ in what the others of their model have in common. Without a majority all are told."""
    found = []
    for name in {card.device.identity.name for card in cards}:
        same = [card for card in cards if card.device.identity.name == name]
        odd: dict[str, list[str]] = {}
        for field, title in ALIKE.items():
            values = {card.entity: getattr(card.device.identity, field) for card in same}
            counts = Counter(value for value in values.values() if value not in (None, ""))
            if len(counts) < 2:
                continue
            (usual, most), (_, next_most) = counts.most_common(2)
            for entity, value in values.items():
                if value not in (None, "") and (value != usual or most == next_most):
                    odd.setdefault(entity, []).append(f"{title} {value}, {most} others {usual}")
        found += [
            card.finding(
                "gpu-drift",
                Severity.WARNING,
                "UPDATE_SWFW",
                "The GPU is not set up like the node's others of its model",
                "; ".join(odd[card.entity]),
            )
            for card in same
            if card.entity in odd
        ]
    return found


def judge_set_up(card: Card) -> list[Finding]:
    identity = card.device.identity
    found = []
    if identity.inforom_corrupt:
        found.append(
            card.finding(
                "inforom-corrupt",
                Severity.WARNING,
                "CONTACT_SUPPORT",
                "The GPU's InfoROM is corrupted: its records of errors and limits cannot be trusted",
                f"image {identity.inforom or 'unknown'}",
            )
        )
    if identity.persistence == 0:
        found.append(
            card.finding(
                "persistence-off",
                Severity.INFO,
                "ENABLE_PERSISTENCE",
                "Persistence mode is off: the driver forgets error counts whenever nobody uses the GPU",
            )
        )
    return found
