"""Memory errors that the ECC of the host found, from EDAC's counters in sysfs (corrected and uncorrected)."""

from pathlib import Path
from typing import Any

from msgspec import Struct

from sentinel.checks.base import Absent, Look, Measure, Unknown
from sentinel.core.health import Component, Finding, Severity
from sentinel.core.now import Now

# Corrected errors of one module: the threshold and window of mcelog.conf ("ce-error-threshold = 10 / 24h" in [dimm]).
MAX_CORRECTED = 10
WINDOW_S = 24 * 3600.0
POINT_EVERY_S = 3600.0


class Counter(Struct, frozen=True):
    """One memory module, or a controller's errors that it could not place."""

    name: str  # "mc0 dimm3 (CPU_SrcID#0_MC#1_Chan#0_DIMM#0)"
    corrected: int
    uncorrected: int


def _number(path: Path) -> int | None:
    """None where the driver does not have it, or cannot read it."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def read_counters(sysfs: Path) -> list[Counter]:
    """See Documentation/admin-guide/ras.rst of the kernel; older drivers have rank* or csrow* for dimm*."""
    counters = []
    for controller in sorted((sysfs / "devices/system/edac/mc").glob("mc[0-9]*")):
        totals = [_number(controller / "ce_count"), _number(controller / "ue_count")]
        placed = [0, 0]
        modules = sorted(controller.glob("dimm[0-9]*")) or sorted(controller.glob("rank[0-9]*"))
        for module in modules:
            counts = [_number(module / "dimm_ce_count"), _number(module / "dimm_ue_count")]
            if counts == [None, None]:
                continue
            placed = [sum_ + (count or 0) for sum_, count in zip(placed, counts, strict=True)]
            name = f"{controller.name} {module.name}"
            try:
                label = (module / "dimm_label").read_text(errors="replace").strip()
            except OSError:
                label = ""
            counters.append(Counter(f"{name} ({label})" if label else name, counts[0] or 0, counts[1] or 0))
        if totals != [None, None]:
            rest = [max(0, (total or 0) - part) for total, part in zip(totals, placed, strict=True)]
            counters.append(Counter(controller.name, rest[0], rest[1]))
    return counters


def _delta(new: int, old: int) -> int:
    """A counter that was reset, or whose driver was loaded anew, counts from zero."""
    return new - old if new >= old else new


def advance(counter: Counter, saved: dict[str, Any], now: Now) -> tuple[int, int]:
    """(corrected errors of the last 24 h, new uncorrected errors). `saved` is what is kept of this module.

    EDAC counts from zero at each boot, so at the first look everything is of this boot.
    """
    uncorrected = _delta(counter.uncorrected, saved.get("uncorrected", 0))
    corrected = _delta(counter.corrected, saved.get("corrected", 0))
    points: list[list[float]] = saved.get("points", [])
    if corrected:
        if points and now.mono_s - points[-1][0] < POINT_EVERY_S:
            points = [*points[:-1], [points[-1][0], points[-1][1] + corrected]]
        else:
            points = [*points, [now.mono_s, corrected]]
    points = [point for point in points if now.mono_s - point[0] <= WINDOW_S]
    saved.update(corrected=counter.corrected, uncorrected=counter.uncorrected, points=points)
    return int(sum(count for _, count in points)), uncorrected


def _uncorrected(counter: Counter, count: int) -> Finding:
    return Finding(
        check="edac",
        component=Component.SYSTEM,
        entity=f"memory {counter.name}",
        code="memory-uncorrected",
        severity=Severity.FATAL,
        action="REPLACE_MEMORY",
        summary="The host's memory lost data: its ECC could not correct an error",
        evidence=(f"{count} new, {counter.uncorrected} since the driver was loaded",),
        event=True,
        count=count,
    )


def _corrected(counter: Counter, count: int) -> Finding:
    return Finding(
        check="edac",
        component=Component.SYSTEM,
        entity=f"memory {counter.name}",
        code="memory-corrected",
        severity=Severity.WARNING,
        action="REPLACE_MEMORY",
        summary=f"The host's ECC corrected more than {MAX_CORRECTED} errors of this memory in a day",
        evidence=(f"{count} in the last 24 h, {counter.corrected} since the driver was loaded",),
    )


def check(look: Look) -> list[Finding]:
    sysfs = Path(look.settings.sysfs)
    try:
        counters = read_counters(sysfs)
    except OSError as error:
        raise Unknown(f"{sysfs}/devices/system/edac: {error}") from None
    if not counters:
        raise Absent("the kernel has no EDAC driver for this machine's memory")
    saved: dict[str, Any] = {name: dict(value) for name, value in (look.kept.saved or {}).items()}
    found = []
    for counter in counters:
        recent, uncorrected = advance(counter, saved.setdefault(counter.name, {}), look.now)
        if uncorrected:
            found.append(_uncorrected(counter, uncorrected))
        if recent > MAX_CORRECTED:
            found.append(_corrected(counter, recent))
    look.kept.saved = saved
    look.kept.measures = tuple(
        Measure("sentinel_host_memory_errors_total", (("memory", counter.name), ("kind", kind)), count)
        for counter in counters
        for kind, count in (("corrected", counter.corrected), ("uncorrected", counter.uncorrected))
    )
    return found
