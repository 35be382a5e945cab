"""Memory that is still available, and how long processes wait for it (pressure stall information)."""

import re
from pathlib import Path

from sentinel.checks.base import Look, Unknown
from sentinel.core.health import Component, Finding, Severity

# Shares of all memory; the kernel kills near zero. Pressure: share of the last 60 s in which all tasks waited.
WARN_AVAILABLE = 0.05
MIN_AVAILABLE = 0.01
WARN_PRESSURE = 0.20

_FIELD = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)
_FULL = re.compile(r"^full avg10=[\d.]+ avg60=([\d.]+)", re.MULTILINE)


def parse_meminfo(text: str) -> dict[str, int]:
    """/proc/meminfo in bytes."""
    return {name: int(kib) * 1024 for name, kib in _FIELD.findall(text)}


def parse_pressure(text: str) -> float | None:
    """The `full avg60` of /proc/pressure/memory as a share 0..1."""
    match = _FULL.search(text)
    return float(match[1]) / 100 if match else None


def check(look: Look) -> list[Finding]:
    procfs = Path(look.settings.procfs)
    try:
        fields = parse_meminfo((procfs / "meminfo").read_text())
        total, available = fields["MemTotal"], fields["MemAvailable"]
    except (OSError, KeyError, ValueError) as error:
        raise Unknown(f"{procfs}/meminfo: {error}") from None
    found = []
    share = available / total if total else 0.0
    if share < WARN_AVAILABLE:
        found.append(
            Finding(
                check="memory",
                component=Component.SYSTEM,
                entity="memory",
                code="memory-low",
                severity=Severity.DEGRADED if share < MIN_AVAILABLE else Severity.WARNING,
                action="FREE_MEMORY",
                summary="Little memory is left: the kernel will kill processes",
                evidence=(f"{available / 1e9:.1f} GB of {total / 1e9:.1f} GB available ({share:.1%})",),
            )
        )
    try:
        pressure = parse_pressure((procfs / "pressure/memory").read_text())
    except OSError:
        pressure = None  # a kernel without PSI
    if pressure is not None and pressure > WARN_PRESSURE:
        found.append(
            Finding(
                check="memory",
                component=Component.SYSTEM,
                entity="memory",
                code="memory-pressure",
                severity=Severity.WARNING,
                action="FREE_MEMORY",
                summary="All processes wait for memory much of the time",
                evidence=(f"{pressure:.0%} of the last 60 s",),
            )
        )
    return found
