"""An accelerator as its maker's tool tells of it, and what is wrong with it. Nothing here knows of a certain maker."""

import re
from collections.abc import Collection, Container, Iterable, Mapping
from typing import Any

from msgspec import Struct

from sentinel.checks.accelerators.families import Family
from sentinel.core.health import Component, Finding, Severity
from sentinel.settings import CardLimits

PROVED_LOOKS = 2
COOLER_CELSIUS = 5.0  # a card that was too hot is so until it is this much below its limit


class NotUnderstood(Exception):
    """The tool printed what no parser knows: another version's layout, or rubbish. The text says what."""


class Temperature(Struct, frozen=True):
    sensor: str
    celsius: float
    limit_celsius: float | None = None  # from which the card slows itself down, if it says so


class Card(Struct, frozen=True, kw_only=True):
    """One card or chip as its tool told of it. None or "": the tool does not tell."""

    index: str
    address: str = ""  # PCI, "0000:39:00.0"
    name: str = ""
    uuid: str = ""
    health: str = ""  # in the tool's own word
    temperatures: tuple[Temperature, ...] = ()
    ecc_uncorrected: int | None = None
    ecc_corrected: int | None = None
    ecc_unspecified: int | None = None  # the tool does not say which
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_watts: float | None = None
    utilization: float | None = None  # 0..1
    links_up: tuple[str, ...] = ()  # by the address of the other end
    links_down: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """As findings name it: by PCI address, by index where the tool tells none."""
        return self.address or self.index


def normal_address(text: str) -> str:
    """A PCI address as sysfs writes it; "" if it is none."""
    match = re.fullmatch(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", text.strip().lower())
    return f"{(match[1] or '0000')[-4:]}:{match[2]}" if match else ""


def judge_card(family: Family, card: Card, before: Mapping[str, Any], limits: CardLimits) -> list[Finding]:
    """Findings of one card. `before` is what `remember` gave after the last sample."""
    title = f"{card.name or family.noun} {card.uuid}".strip()
    found = [*_judge_health(family, card, title), *_judge_ecc(family, card, before, title)]
    hot = _hot(card, before, limits)
    for reading in card.temperatures:
        if reading.sensor not in hot:
            continue
        own = reading.limit_celsius is not None
        limit = reading.limit_celsius if own else limits.max_temperature_celsius
        found.append(
            _finding(
                family,
                card,
                f"accelerator-temperature-{reading.sensor}",
                Severity.DEGRADED if own else Severity.WARNING,
                "CHECK_COOLING",
                "The card is as hot as its own limit" if own else "The card is hot",
                f"{title}: {reading.sensor} {reading.celsius:g} °C, limit {limit:g} °C"
                + ("" if own else " (of the settings: the card tells none)"),
            )
        )
    lost = sorted(set(before.get("links", ())) & set(card.links_down))
    if lost:
        found.append(
            _finding(
                family,
                card,
                "accelerator-link-down",
                Severity.DEGRADED,
                "CHECK_LINK",
                "A link between cards was up and is down",
                f"{title}: no link to {', '.join(lost)}",
            )
        )
    return found


def judge_width(family: Family, address: str, width: int, widest: int) -> list[Finding]:
    """A PCIe link that is narrower than it was in this boot. Speed is no sign: idle cards lower it."""
    if width >= widest:
        return []
    return [
        _finding(
            family,
            Card(index="", address=address),
            "accelerator-pcie-width",
            Severity.DEGRADED,
            "CHECK_LINK",
            "The card's PCIe link lost lanes",
            f"{address}: x{width} now, x{widest} before",
        )
    ]


def remember(card: Card, before: Mapping[str, Any], limits: CardLimits) -> dict[str, Any]:
    """What the next sample of the card is compared with, as plain data."""
    return {
        "ecc": card.ecc_uncorrected if card.ecc_uncorrected is not None else before.get("ecc"),
        "ecc_unspecified": card.ecc_unspecified,
        "links": sorted({*before.get("links", ()), *card.links_up}),
        "hot": _hot(card, before, limits),
    }


def slot(address: str) -> str:
    """Without the function: a card that is partitioned anew changes only those."""
    return address.rpartition(".")[0]


def judge_bus(family: Family, seen: Iterable[str], present: Container[str]) -> list[Finding]:
    """Cards that were on the PCI bus in this boot. `present` are the slots that hold a device now."""
    return [
        _finding(
            family,
            Card(index="", address=address),
            "accelerator-gone",
            Severity.FATAL,
            "RESTART_BM",
            "The card was on the PCI bus and is gone",
            f"{family.noun} at {address}: no device of that address",
        )
        for address in sorted(seen)
        if slot(address) not in present
    ]


def judge_listed(
    family: Family,
    cards: Collection[Card],
    before: Mapping[str, str],
    on_pci: Iterable[str],
    present: Container[str],
    unlisted: dict[str, int],
) -> list[Finding]:
    """Cards that are on the PCI bus but that the tool does not list. `before`: address -> name of those it did.

    `unlisted` (kept by the caller): at how many looks in a row; a card that is being reset is not listed for a moment.
    """
    listed = {slot(card.address) for card in cards}
    if "" in listed:
        return []  # a card without an address: which one is missing is not known
    for address in [address for address in unlisted if slot(address) in listed]:
        del unlisted[address]
    found = []
    for address in sorted({*before, *on_pci}):
        if slot(address) in listed or slot(address) not in present:
            continue
        named = address in before
        unlisted[address] = unlisted.get(address, 0) + 1
        proved = named and unlisted[address] >= PROVED_LOOKS  # one that never was may be meant for a guest
        found.append(
            _finding(
                family,
                Card(index="", address=address),
                "accelerator-not-listed",
                Severity.FATAL if proved else Severity.WARNING,
                "RESTART_BM",
                f"The tool {'no longer lists the card' if named else 'does not list the card'}",
                f"{before.get(address, family.noun)} at {address}; {family.tool} lists {len(cards)}",
            )
        )
    return found


def _judge_health(family: Family, card: Card, title: str) -> list[Finding]:
    if not (card.health or card.temperatures or card.memory_total_bytes):
        text = f"{title}: {family.tool} tells neither health nor temperature nor memory"
        return [
            _finding(
                family,
                card,
                "accelerator-silent",
                Severity.WARNING,
                "CHECK_NODE",
                "The card tells nothing of itself",
                text,
            )
        ]
    if not card.health:
        return []
    severity = family.health.get(card.health.casefold(), Severity.WARNING)
    if severity is None:
        return []
    text = f"{title}: {family.tool} says {card.health!r}"
    summary = "The card's own health report is not good"
    return [_finding(family, card, "accelerator-health", severity, "CONTACT_SUPPORT", summary, text)]


def _judge_ecc(family: Family, card: Card, before: Mapping[str, Any], title: str) -> list[Finding]:
    """Only more than at the last sample counts: a smaller number is a driver that was loaded anew."""
    found = []
    for code, count, known, severity, action, summary in (
        (
            "ecc-uncorrected",
            card.ecc_uncorrected,
            before.get("ecc"),
            Severity.FATAL,
            "RESET_GPU",
            "The card's memory had uncorrected errors",
        ),
        (
            "ecc-errors",
            card.ecc_unspecified,
            before.get("ecc_unspecified"),
            Severity.WARNING,
            "CHECK_NODE",
            "The card counts more memory errors; its tool does not say whether they were corrected",
        ),
    ):
        if count is not None and known is not None and count > known:
            text = f"{title}: {count - known} more since the last sample, {count} in all"
            found.append(_finding(family, card, code, severity, action, summary, text, event=True))
    return found


def _hot(card: Card, before: Mapping[str, Any], limits: CardLimits) -> list[str]:
    """Sensors over their limit, or that were and are not yet clearly cooler."""
    hot = []
    for reading in card.temperatures:
        limit = reading.limit_celsius
        if limit is None:
            limit = limits.max_temperature_celsius
        if reading.sensor in before.get("hot", ()):
            limit -= COOLER_CELSIUS
        if reading.celsius >= limit:
            hot.append(reading.sensor)
    return hot


def _finding(
    family: Family,
    card: Card,
    code: str,
    severity: Severity,
    action: str,
    summary: str,
    evidence: str,
    event: bool = False,
) -> Finding:
    return Finding(
        check=family.check,
        component=Component.GPU,
        entity=f"{family.noun} {card.key}",
        code=code,
        severity=severity,
        action=action,
        summary=summary,
        evidence=(evidence,),
        event=event,
    )
