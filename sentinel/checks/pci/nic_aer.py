"""PCIe errors (AER) that the bus counts for network cards and for the bridge above each of them."""

import os
import re

import msgspec

from sentinel.checks.base import Absent, Kept, Look, Source, Unknown
from sentinel.checks.counters import Tally, counted, lately
from sentinel.checks.sysfs import names, read_each, text
from sentinel.core.health import Component, Finding, Severity

_SOURCE = Source("nic-aer", Component.NIC)

NETWORK_CLASS = "0x02"  # PCI class: network controllers (Ethernet 00, InfiniBand 07, others)
WINDOW_S = 600.0
CORRECTED_MAX = 80  # in the window: 8 a minute, as for a GPU's replays

# https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats
KINDS = ("correctable", "nonfatal", "fatal")
_TOTAL = re.compile(r"^TOTAL_ERR_\w+ (\d+)$", re.M)

Totals = dict[str, int]  # kind -> errors since the card came


def parse_total(words: str) -> int | None:
    """The last line of an aer_dev_* file, "TOTAL_ERR_COR 12"; None: a kernel or card without AER."""
    found = _TOTAL.search(words)
    return int(found[1]) if found else None


def network_cards(sysfs: str) -> list[str]:
    """PCI addresses of network cards that are not virtual functions."""
    folder = f"{sysfs}/bus/pci/devices"
    return [
        address
        for address in names(folder)
        if text(f"{folder}/{address}/class").startswith(NETWORK_CLASS)
        and not os.path.exists(f"{folder}/{address}/physfn")
    ]


def _read(folder: str) -> Totals:
    totals = {kind: parse_total(text(f"{folder}/aer_dev_{kind}")) for kind in KINDS}
    return {kind: total for kind, total in totals.items() if total is not None}


def _restored(kept: Kept) -> dict[str, dict[str, Tally]]:
    try:
        return msgspec.convert(kept.saved or {}, dict[str, dict[str, Tally]])
    except msgspec.ValidationError:  # of another version: nothing is known of the past
        return {}


def check(look: Look) -> list[Finding]:
    folder = f"{look.settings.sysfs}/bus/pci/devices"
    cards = network_cards(look.settings.sysfs)
    read, late = read_each(cards, lambda card: _read_with_bridge(f"{folder}/{card}"), look.kept)
    if not any(read.values()) and not late:
        raise Absent("no network card with PCIe error counters")
    before = _restored(look.kept)
    after: dict[str, dict[str, Tally]] = {card: before[card] for card in late if card in before}
    found: list[Finding] = []
    for card, ends in sorted(read.items()):
        for end, totals in ends.items():
            key = card if end == card else f"{card} {end}"
            after[key], told = judge(key, totals, before.get(key, {}), look.now.mono_s)
            found += told
    look.kept.saved = msgspec.to_builtins(after)
    if late:
        raise Unknown("; ".join(f"{card} does not answer" for card in late), tuple(found))
    return found


def _read_with_bridge(folder: str) -> dict[str, Totals]:
    """What either end of the card's link counted: each counts what it received."""
    folder = os.path.realpath(folder)
    ends = {os.path.basename(path): _read(path) for path in (folder, os.path.dirname(folder))}
    return {address: totals for address, totals in ends.items() if totals}


def judge(
    name: str, totals: Totals, old: dict[str, Tally], now_s: float
) -> tuple[dict[str, Tally], list[Finding]]:
    """The counters of one end of a link after one more reading, and what is wrong with it.

    A fatal error is an event: that no more came does not undo it.
    """
    new = dict(old)
    found = []
    for kind, total in totals.items():
        last = old.get(kind)
        tally = counted(last, total, now_s, WINDOW_S)
        if tally is None:
            continue
        new[kind] = tally
        evidence = f"{name}: aer_dev_{kind} {total}, {lately(tally):.0f} in the last {WINDOW_S / 60:.0f} min"
        if kind == "fatal":
            if last is not None and total > last.value:
                found.append(_finding(name, "pcie-fatal-errors", Severity.FATAL, "lost data", evidence))
        elif kind == "nonfatal":
            if lately(tally) > 0:
                found.append(
                    _finding(name, "pcie-errors", Severity.WARNING, "had uncorrected errors", evidence)
                )
        elif lately(tally) > CORRECTED_MAX:
            found.append(
                _finding(
                    name,
                    "pcie-corrected-errors",
                    Severity.WARNING,
                    "corrects errors at a high rate",
                    evidence,
                )
            )
    return new, found


def _finding(name: str, code: str, severity: Severity, did: str, evidence: str) -> Finding:
    event = severity is Severity.FATAL
    summary = f"The PCIe link of the network card {did}"
    return _SOURCE.finding(f"NIC {name}", code, severity, "CHECK_PCIE", summary, evidence, event=event)
