"""GPUs that are not on the PCI bus: fewer than expected, or gone since this boot; errors that it counts (AER)."""

import os
from pathlib import Path

from msgspec import Struct

from sentinel.checks.base import Absent, Look, Source, Unknown
from sentinel.checks.gpus import Gpu, inventory
from sentinel.checks.pci.nic_aer import parse_total
from sentinel.checks.shape import expected, judged
from sentinel.core.health import Component, Finding, Severity
from sentinel.settings import Shape

_SOURCE = Source("gpu-pci", Component.GPU)

WINDOW_S = 600.0
CORRECTABLE_WARN = 80  # in the window: as many as replays that are told, 8 a minute

# file -> code, severity, action, what it says; most first
AER = {
    "aer_dev_fatal": (
        "pcie-fatal-errors",
        Severity.FATAL,
        "CHECK_PCIE",
        "The GPU's PCIe link had errors that lost data",
    ),
    "aer_dev_nonfatal": (
        "pcie-errors",
        Severity.WARNING,
        "CHECK_PCIE",
        "The GPU's PCIe link had uncorrected errors",
    ),
    "aer_dev_correctable": (
        "pcie-corrected-errors",
        Severity.WARNING,
        "CHECK_PCIE",
        "The GPU's PCIe link corrects many errors",
    ),
}


class Count(Struct):
    """What one file counted."""

    total: int  # at the last look
    grown: list[tuple[float, int]] = []  # when, and by how many errors


class Memory(Struct):
    aer: dict[str, dict[str, Count]] = {}  # PCI address -> file -> what it counted


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # a kernel without AER, or a card that just left
        return ""


def judge_aer(gpu: Gpu, totals: dict[str, int], counts: dict[str, Count], now_s: float) -> list[Finding]:
    """`counts` (kept by the caller): file -> what it counted until the last look.

    A counter that is smaller than before started again: it is no error. A fatal error is an event: that no more
    came in ten minutes does not undo it.
    """
    found = []
    for file, (code, severity, action, summary) in AER.items():
        if file not in totals:
            continue
        total = totals[file]
        known = counts.setdefault(file, Count(total))
        if total > known.total:
            known.grown.append((now_s, total - known.total))
        elif severity is Severity.FATAL:
            known.grown.clear()
        known.grown = [(at_s, count) for at_s, count in known.grown if at_s > now_s - WINDOW_S]
        known.total = total
        recent = sum(count for _, count in known.grown)
        if recent > (CORRECTABLE_WARN if file == "aer_dev_correctable" else 0):
            evidence = f"{file}: {recent} in the last {WINDOW_S / 60:.0f} min, {total} since the boot"
            event = severity is Severity.FATAL
            found.append(_SOURCE.finding(gpu.entity, code, severity, action, summary, evidence, event=event))
    return found


def judge_count(seen: int, shape: Shape) -> list[Finding]:
    """`seen`: GPUs that were on the bus in this boot; of one that left it since a finding of its own tells."""
    if shape.gpus is None or seen == shape.gpus:
        return []
    evidence = f"{seen} GPUs on the PCI bus, {expected(shape, 'gpus')}"
    if seen > shape.gpus:
        summary = "The node has more GPUs than expected"
        return [_SOURCE.finding("node", "gpu-count", Severity.WARNING, "CHECK_SETTINGS", summary, evidence)]
    severity = judged(shape, Severity.FATAL)
    return [
        _SOURCE.finding(
            "node", "gpu-count", severity, "RESTART_BM", "The node has fewer GPUs than expected", evidence
        )
    ]


def check(look: Look) -> list[Finding]:
    present = inventory(look.settings.sysfs)
    seen: dict[str, str] = {**(look.kept.saved or {}), **{gpu.pci: gpu.device for gpu in present}}
    look.kept.saved = seen
    shape = look.settings.shape
    if not seen and not shape.gpus:
        raise Absent("no NVIDIA GPU on the PCI bus")
    look.kept.detail = "" if shape.gpus is not None else expected(shape, "gpus")
    folder = Path(look.settings.sysfs, "bus/pci/devices")
    if seen and not folder.is_dir():
        raise Unknown(
            f"{folder} is not there: is sysfs mounted? {len(seen)} GPUs were seen there in this boot"
        )
    silent = sorted(seen.keys() - {gpu.pci for gpu in present})
    gone = [pci for pci in silent if not os.path.lexists(folder / pci)]
    found = [
        _SOURCE.finding(
            Gpu(pci, seen[pci]).entity,
            "gpu-vanished",
            Severity.FATAL,
            "RESTART_BM",
            "The GPU was on the PCI bus and is no longer",
            f"{folder / pci} is gone; {len(seen) - len(gone)} of {len(seen)} GPUs are left",
        )
        for pci in gone
    ]
    found += judge_count(len(seen), shape)
    aer = look.kept.own(Memory).aer
    for gpu in present:
        read = {file: parse_total(_read(folder / gpu.pci / file)) for file in AER}
        totals = {file: total for file, total in read.items() if total is not None}
        found += judge_aer(gpu, totals, aer.setdefault(gpu.pci, {}), look.now.mono_s)
    if unread := sorted(set(silent) - set(gone)):
        raise Unknown(f"on the PCI bus, but their files cannot be read: {', '.join(unread)}", tuple(found))
    return found
