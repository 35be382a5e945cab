"""Judges what connects a card: PCIe, NVLink, and the fabric of NVSwitches."""

from collections.abc import Sequence

from sentinel.checks.nvidia.card import WINDOW_S, Card
from sentinel.checks.nvidia.nvml_sample import Fabric
from sentinel.core.health import Finding, Severity
from sentinel.settings import GpuThresholds

# Under load without a break: a link that trains again, or a card that just woke, is below its speed for a moment.
PCIE_PROVED_AFTER_S = 60.0
NVLINK_PROVED_AFTER_S = (
    60.0  # at a second reading: a driver that was loaded anew brings its links up one by one
)
NVLINK_ERRORS_WARN = 5
CRC_FLITS_PER_S = 100.0  # DCGM: the driver's makers say that only such rates of flit CRC errors matter
# The fabric manager takes minutes to bring the fabric up after a boot.
FABRIC_SETTLES_S = 300.0
COMPLETED = 3
STATES = {0: "not supported", 1: "not started", 2: "in progress", COMPLETED: "completed"}
SUMMARIES = {2: "unhealthy", 3: "limited capacity"}
RECOVERING = "route recovery"
# Health mask of nvml.h: two bits each (1 true, 2 false, 0 not told) at this shift.
MASKS = {
    "bandwidth": (0, 1),
    RECOVERING: (2, 1),
    "route unhealthy": (4, 1),
    "access timeout": (6, 1),
    "fabric manager disconnected": (14, 2),
}
CONFIGURATION_SHIFT, CONFIGURATION_MASK = 8, 0xF
CONFIGURATIONS = {
    2: "incorrect system GUID",
    3: "incorrect chassis serial number",
    4: "no partition",
    5: "insufficient NVLinks",
    6: "incompatible GPU firmware",
    7: "invalid location",
    8: "invalid state of the GPU",
}


def judge_pcie(card: Card, peers: Sequence[Card], limits: GpuThresholds) -> list[Finding]:
    """Below the maximum is a fault where this card was better in this boot, or one of its model (`peers`) is; else
    the slot may be built so, and it is only told."""
    device, most = card.device, card.device.identity
    below = []
    if device.pcie_width and most.pcie_width_max and device.pcie_width < most.pcie_width_max:
        below.append(f"x{device.pcie_width} of x{most.pcie_width_max}")
    if device.pcie_gen and most.pcie_gen_max and device.pcie_gen < most.pcie_gen_max:
        below.append(f"generation {device.pcie_gen} of {most.pcie_gen_max}")
    card.past.pcie_best = _best([card.past.pcie_best, (device.pcie_width or 0, device.pcie_gen or 0)])
    usual = _best([card.past.pcie_best, *(peer.past.pcie_best for peer in peers)])
    was_better = (device.pcie_width or 0) < usual[0] or (device.pcie_gen or 0) < usual[1]
    found = []
    # Only under load: an idle card lowers its link to save power. What is idle says nothing, for or against.
    past, code = card.past, "pcie-link"
    lasts_s = past.lasts_s(code, card.now_s, bool(below) and card.loaded)
    if lasts_s >= PCIE_PROVED_AFTER_S:
        past.shown.add(code)
    elif not below:
        past.shown.discard(code)
    if code in past.shown:
        found.append(
            card.finding(
                code,
                Severity.FATAL if was_better else Severity.WARNING,
                "CHECK_PCIE",
                "The GPU's PCIe link is below what card and slot can do, under load",
                ", ".join(below),
            )
        )
    if device.links is not None:
        replays = past.grown("replays", device.links.at_s, device.links.pcie_replays)
        allowed = limits.pcie_replays_per_minute * replays.span_s / 60
        if replays.grown > max(allowed, limits.pcie_replays_per_minute):
            found.append(
                card.finding(
                    "pcie-replays",
                    Severity.WARNING,
                    "CHECK_PCIE",
                    "The GPU's PCIe link sends much again",
                    f"{replays.grown:.0f} replays in {replays.span_s / 60:.0f} min; "
                    f"limit {limits.pcie_replays_per_minute:g} a minute",
                )
            )
    return found


def _best(seen: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The best width and the best generation."""
    return max(item[0] for item in seen), max(item[1] for item in seen)


def judge_nvlink(card: Card, usual_links: int) -> list[Finding]:
    """`usual_links`: so many are active on the best card of this model on the node."""
    links = card.device.links
    if links is None or not (links.nvlink_active or links.nvlink_inactive):
        return []
    return [*_inactive(card, usual_links), *_link_errors(card)]


def _inactive(card: Card, usual_links: int) -> list[Finding]:
    links = card.device.links
    assert links is not None
    down = sorted(card.past.nvlinks & set(links.nvlink_inactive))
    card.past.nvlinks |= set(links.nvlink_active)
    lasts_s = card.past.lasts_s("nvlink-down", card.now_s, bool(down))
    if down:
        fabric = card.device.fabric
        joining = fabric is not None and fabric.state not in (0, COMPLETED)
        return [
            card.finding(
                "nvlink-down",
                Severity.FATAL
                if lasts_s >= (FABRIC_SETTLES_S if joining else NVLINK_PROVED_AFTER_S)
                else Severity.WARNING,
                "RESET_GPU",
                "An NVLink that was active is not any more",
                f"links {', '.join(map(str, down))}; {len(links.nvlink_active)} are active",
            )
        ]
    if len(links.nvlink_active) < usual_links:
        # Never seen active in this boot: a bridge that was not built in looks the same, so it is only told.
        return [
            card.finding(
                "nvlink-missing",
                Severity.WARNING,
                "CHECK_MECHANICALS",
                "Fewer NVLinks are active than on the node's other cards of this model",
                f"{len(links.nvlink_active)} of {usual_links} are active",
            )
        ]
    return []


def _link_errors(card: Card) -> list[Finding]:
    links = card.device.links
    assert links is not None
    grown: dict[str, float] = {}
    span_s = 0.0
    counted = sorted((*links.nvlink_active, *links.nvlink_inactive))  # totals of other links are no growth
    for kind, total in links.nvlink_errors.items():
        growth = card.past.grown(f"nvlink {kind} of {counted}", links.at_s, total)
        grown[kind], span_s = growth.grown, growth.span_s
    if grown.get("recovery_failed", 0) > 0:
        return [
            card.finding(
                "nvlink-recovery-failed",
                Severity.FATAL,
                "RESET_GPU",
                "An NVLink did not recover from errors",
                f"{grown['recovery_failed']:.0f} failed recoveries in {span_s / 60:.0f} min",
            )
        ]
    if grown.get("crc_flit", 0) < CRC_FLITS_PER_S * max(span_s, 1.0):
        grown.pop("crc_flit", None)
    if sum(grown.values()) < NVLINK_ERRORS_WARN:
        return []
    kinds = ", ".join(f"{kind} {count:.0f}" for kind, count in grown.items() if count)
    return [
        card.finding(
            "nvlink-errors",
            Severity.WARNING,
            "CONTACT_SUPPORT",
            "The GPU's NVLinks have errors",
            f"{kinds} in {span_s / 60:.0f} min; limit {NVLINK_ERRORS_WARN} in {WINDOW_S / 60:.0f} min",
        )
    ]


def fabric_faults(fabric: Fabric) -> list[str]:
    """What is wrong with a fabric that came up. Raises nothing for values that nvml.h does not name."""
    faults = [name for name, (shift, bad) in MASKS.items() if fabric.health_mask >> shift & 3 == bad]
    configuration = fabric.health_mask >> CONFIGURATION_SHIFT & CONFIGURATION_MASK
    if configuration > 1:
        faults.append(CONFIGURATIONS.get(configuration, f"incorrect configuration {configuration}"))
    if fabric.health_summary in SUMMARIES:
        faults.append(SUMMARIES[fabric.health_summary])
    if fabric.status:
        faults.append(f"status {fabric.status}")
    return faults


def judge_fabric(card: Card, has_peers: bool) -> list[Finding]:
    """`has_peers`: the node has more cards. One alone (a part of a node) works without its fabric."""
    fabric = card.device.fabric
    if fabric is None or fabric.state == 0:
        return []
    severity = Severity.FATAL if has_peers else Severity.WARNING
    waits_s = card.past.lasts_s("fabric", card.now_s, fabric.state != COMPLETED)
    if fabric.state != COMPLETED:
        return [
            card.finding(
                "fabric-not-up",
                severity if waits_s >= FABRIC_SETTLES_S else Severity.WARNING,
                "CHECK_FABRIC_MANAGER",
                "The GPU has not joined the NVLink fabric",
                f"state: {STATES.get(fabric.state, fabric.state)}, for {waits_s / 60:.0f} min",
            )
        ]
    faults = fabric_faults(fabric)
    # The fabric is at work to find other routes: that it does so for minutes is the fault.
    recovers_s = card.past.lasts_s(RECOVERING, card.now_s, faults == [RECOVERING])
    if faults:
        recovering = 0 <= recovers_s < FABRIC_SETTLES_S
        return [
            card.finding(
                "fabric-unhealthy",
                Severity.WARNING if recovering else severity,
                "CHECK_FABRIC_MANAGER",
                "The NVLink fabric of the GPU is not healthy",
                f"{', '.join(faults)} (mask 0x{fabric.health_mask:x})",
            )
        ]
    return []
