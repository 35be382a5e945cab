"""Judges a card's memory: ECC errors, remapped rows, retired pages, and memory that nobody holds."""

from collections.abc import Callable

from sentinel.checks.nvidia.card import Card
from sentinel.core.health import Finding, Severity
from sentinel.settings import GpuThresholds

MAX_RETIRED_PAGES = 10
MAX_CORRECTED = 50_000_000  # since the driver was loaded
ORPHAN_S = 60.0  # a process that ends or starts may look so for a moment


def judge_memory(card: Card, limits: GpuThresholds) -> list[Finding]:
    return [*_ecc(card, limits), *_ecc_mode(card), *_rows(card), *_pages(card)]


def _ecc(card: Card, limits: GpuThresholds) -> list[Finding]:
    """The counters start again with the driver: a smaller number is a new start."""
    device = card.device
    found = []
    count, before = device.ecc_uncorrected, card.past.ecc_uncorrected
    if count is not None and before is not None and count > before:
        found.append(
            card.finding(
                "ecc-uncorrected",
                Severity.FATAL,
                "RESET_GPU",
                "The GPU's memory had uncorrected errors",
                f"{count - before} more since the last sample, {count} since the driver was loaded",
                event=True,
            )
        )
    if count and before is None:
        found.append(
            card.finding(
                "ecc-uncorrected-earlier",
                Severity.WARNING,
                "RESET_GPU",
                "The GPU's memory had uncorrected errors before this agent looked first",
                f"{count} since the driver was loaded; whether one of them ended a job is not known",
                event=True,
            )
        )
    corrected = device.ecc_corrected
    hour = card.past.grown("ecc_corrected", card.now_s, corrected, 3600.0)
    if corrected is not None and (hour.grown > limits.corrected_ecc_per_hour or corrected > MAX_CORRECTED):
        found.append(
            card.finding(
                "ecc-corrected",
                Severity.WARNING,
                "CONTACT_SUPPORT",
                "The GPU's memory needs many corrections",
                f"{hour.grown:.0f} in the last {hour.span_s / 60:.0f} min, {corrected} since the driver was "
                f"loaded; limits {limits.corrected_ecc_per_hour} an hour, {MAX_CORRECTED} in all",
            )
        )
    if device.links is not None and device.links.sram_exceeded:
        found.append(
            card.finding(
                "sram-threshold",
                Severity.FATAL,
                "CONTACT_SUPPORT",
                "The GPU had more uncorrected SRAM errors than its threshold: NVIDIA replaces such a card",
                "bThresholdExceeded of nvmlDeviceGetSramEccErrorStatus",
            )
        )
    return found


def _ecc_mode(card: Card) -> list[Finding]:
    mode, pending = card.device.identity.ecc_mode, card.device.identity.ecc_mode_pending
    if mode is None:
        return []  # a card without ECC
    if pending is not None and pending != mode:
        words = ("off", "on")
        return [
            card.finding(
                "ecc-mode-pending",
                Severity.WARNING,
                "RESET_GPU",
                "The ECC mode changes only at the next reset",
                f"now {words[bool(mode)]}, after a reset {words[bool(pending)]}",
            )
        ]
    if not mode:
        return [
            card.finding(
                "ecc-off",
                Severity.WARNING,
                "ENABLE_ECC",
                "ECC is off: memory errors are neither corrected nor seen",
            )
        ]
    return []


def _rows(card: Card) -> list[Finding]:
    device = card.device
    found = []
    counts = f"{device.rows_uncorrected or 0} rows remapped for uncorrected errors"
    if device.remap_failed:
        found.append(
            card.finding(
                "rows-remap-failed",
                Severity.FATAL,
                "CONTACT_SUPPORT",
                "Remapping a memory row failed: the card is worn out",
                counts,
            )
        )
    if device.remap_pending:
        found.append(
            card.finding(
                "rows-remap-pending",
                Severity.DEGRADED,
                "RESET_GPU",
                "A memory row is remapped only after a reset",
                counts,
            )
        )
    return found


def _pages(card: Card) -> list[Finding]:
    """Cards before Ampere retire pages in place of remapping rows."""
    links = card.device.links
    if links is None or links.retired_pages is None:
        return []
    found = []
    if links.retired_pages > MAX_RETIRED_PAGES:
        found.append(
            card.finding(
                "pages-retired",
                Severity.DEGRADED,
                "CONTACT_SUPPORT",
                "Many pages of the GPU's memory are retired: the card wears out",
                f"{links.retired_pages} pages; limit {MAX_RETIRED_PAGES}",
            )
        )
    if links.retired_pending:
        found.append(
            card.finding(
                "pages-pending",
                Severity.DEGRADED,
                "RESET_GPU",
                "A page of the GPU's memory is retired only after a reset",
                f"{links.retired_pages} pages retired so far",
            )
        )
    return found


def judge_orphans(card: Card, gone: Callable[[int], bool] | None, limits: GpuThresholds) -> list[Finding]:
    """Memory of processes that are gone, and memory that no process holds.

    `gone(pid)`: no such process exists; None: that cannot be told from here, nor who is not listed. Both must
    last: a process that just ended may still be listed, and one that starts takes memory before it is listed.
    """
    device = card.device
    if gone is None or device.processes is None or device.identity.mig:
        return []  # with MIG the card lists what its instances hold
    dead = [item for item in device.processes if item.used_bytes >= limits.orphan_bytes and gone(item.pid)]
    held = f"{sum(item.used_bytes for item in dead) >> 20} MiB of pid " + ", ".join(
        str(item.pid) for item in dead
    )
    used = device.memory_used_bytes or 0
    # Where the card's memory is a NUMA node, the kernel keeps pages there of programs that have ended (nvml.h).
    nobody = not device.processes and used > limits.orphan_bytes and device.identity.numa_node is None
    if nobody:
        held = f"{used >> 20} MiB are in use and no process is listed"
    if card.past.lasts_s("gpu-orphan-memory", card.now_s, bool(dead) or nobody) < ORPHAN_S:
        return []
    return [
        card.finding(
            "gpu-orphan-memory",
            Severity.DEGRADED,
            "RESET_GPU",
            "GPU memory is held by no living process",
            held,
        )
    ]
