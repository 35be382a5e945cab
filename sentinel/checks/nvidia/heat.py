"""Judges heat and what slows a card down: temperatures, clock event reasons over time, and its peers' pace."""

from collections.abc import Sequence
from statistics import median

from sentinel.checks.nvidia.card import WINDOW_S, Card, Past
from sentinel.core.health import Finding, Severity
from sentinel.settings import GpuThresholds

# nvmlClocksEventReason bits of nvml.h, by the names of nvml_read.THROTTLED and for cards without counters.
REASON_BITS = {"hw": 0x8 | 0x40 | 0x80, "sw_thermal": 0x20, "sw_power": 0x4}
COUNTERS = {"hw": ("hw_thermal", "hw_brake"), "sw_thermal": ("sw_thermal",), "sw_power": ("sw_power",)}
MAX_GAP_S = 120.0  # a bit that was seen stands for the time since the sample before, but not for hours
STAYS_AT = 0.5  # share of the limit under which a finding that is up goes down
# Peers: a card's mean over the window beside the median of the others, where these agree among themselves.
BUSY_PERCENT = 90
MIN_BUSY_S = 300.0
MIN_PEERS = 3
PEERS_AGREE = 1.15
POWER_CAPPED_PEERS = 0.25


def judge_heat(card: Card) -> list[Finding]:
    """Against the card's own limits; newer cards tell a margin to them in place of a temperature."""
    device, limit = card.device, card.device.identity
    hot = []
    core, slowdown = device.temperature_celsius, limit.slowdown_celsius
    if core is not None and slowdown and core >= slowdown:
        hot.append(("gpu-temperature", "The GPU is as hot as its own slowdown limit", f"{core} °C", slowdown))
    margin = device.margin_celsius
    if margin is not None and margin <= (limit.slowdown_margin_celsius or 0):
        least = limit.slowdown_margin_celsius or 0
        hot.append(
            (
                "gpu-temperature-margin",
                "The GPU has no margin to its thermal limit left",
                f"{margin} °C left",
                least,
            )
        )
    memory, most = device.memory_celsius, limit.memory_max_celsius
    if memory is not None and most and memory >= most:
        hot.append(
            ("gpu-memory-temperature", "The GPU's memory is as hot as its own limit", f"{memory} °C", most)
        )
    return [
        card.finding(code, Severity.DEGRADED, "CHECK_COOLING", summary, f"{value}, limit {bound} °C")
        for code, summary, value, bound in hot
    ]


def note_throttling(card: Card) -> None:
    """Add the time since the sample before to what each reason has cost, by the card's counters or its bits."""
    past, device = card.past, card.device
    earlier = past.device
    gap_s = min(MAX_GAP_S, card.now_s - past.at_s) if earlier is not None else 0.0
    for kind, counters in COUNTERS.items():
        known = [name for name in counters if name in device.throttled_ns]
        if known and earlier is not None:
            grown = [device.throttled_ns[name] - earlier.throttled_ns.get(name, 0) for name in known]
            spent_s = min(gap_s, max(0, *grown) / 1e9)
        else:
            spent_s = gap_s if (device.reasons or 0) & REASON_BITS[kind] else 0.0
        past.seconds[kind] = past.seconds.get(kind, 0.0) + spent_s
        past.grown(kind, card.now_s, past.seconds[kind])


def _throttled_s(past: Past, kind: str) -> float:
    return past.growth[kind].grown if kind in past.growth else 0.0


def judge_throttling(card: Card, peers: Sequence[Card], limits: GpuThresholds) -> list[Finding]:
    """`peers` are the other cards of this model. What is up stays up until it fell to half of the limit."""
    spent_s = {kind: _throttled_s(card.past, kind) for kind in COUNTERS}
    found = []
    if _over(card.past, "hw-slowdown", spent_s["hw"], limits.throttled_s):
        found.append(
            card.finding(
                "hw-slowdown",
                Severity.DEGRADED,
                "CHECK_COOLING",
                "The GPU's hardware slows it down for heat or power",
                _evidence(card, spent_s["hw"]),
            )
        )
    if _over(card.past, "sw-thermal-slowdown", spent_s["sw_thermal"], limits.throttled_s):
        found.append(
            card.finding(
                "sw-thermal-slowdown",
                Severity.WARNING,
                "CHECK_COOLING",
                "The driver slows the GPU down for heat",
                _evidence(card, spent_s["sw_thermal"]),
            )
        )
    if _over(card.past, "power-capped", spent_s["sw_power"], limits.throttled_s):
        # A card that works hard runs at its power limit as designed: only a lowered limit, or one card alone, tells.
        limit, usual = card.device.identity.power_limit_mw, card.device.identity.power_default_mw
        lowered = limit is not None and usual is not None and limit < usual
        others_s = [_throttled_s(peer.past, "sw_power") for peer in peers]
        alone = len(others_s) >= MIN_PEERS and median(others_s) < POWER_CAPPED_PEERS * spent_s["sw_power"]
        if lowered or alone:
            why = (
                f"limit {limit // 1000} W of {usual // 1000} W"
                if limit and usual and lowered
                else "its peers are not"
            )
            found.append(
                card.finding(
                    "power-capped",
                    Severity.WARNING,
                    "CHECK_POWER",
                    "The GPU is held back by its power limit",
                    f"{_evidence(card, spent_s['sw_power'])}; {why}",
                )
            )
    return found


def _over(past: Past, code: str, value_s: float, limit_s: float) -> bool:
    if value_s >= limit_s or (code in past.shown and value_s > limit_s * STAYS_AT):
        past.shown.add(code)
        return True
    past.shown.discard(code)
    return False


def _evidence(card: Card, spent_s: float) -> str:
    device = card.device
    heat = f", {device.temperature_celsius} °C" if device.temperature_celsius is not None else ""
    power = f", {device.power_mw // 1000} W" if device.power_mw is not None else ""
    clock = f", {device.sm_clock_mhz} MHz" if device.sm_clock_mhz is not None else ""
    reasons = f", reasons 0x{device.reasons:x}" if device.reasons is not None else ""
    return (
        f"{spent_s / 60:.1f} of the last {WINDOW_S / 60:.0f} min; now{reasons}{heat}{power}{clock}".replace(
            "now,", "now"
        )
    )


def note_pace(card: Card) -> None:
    """Remember clock, power and tensor activity of a sample under full load; idle ones forget."""
    device, busy = card.device, card.past.busy
    if (device.util_percent or 0) >= BUSY_PERCENT and device.sm_clock_mhz and device.power_mw:
        busy.append((card.now_s, device.sm_clock_mhz, device.power_mw / 1000, device.gpm.get("tensor")))
    while busy and busy[0][0] < card.now_s - WINDOW_S:
        busy.popleft()


def _pace(card: Card) -> tuple[float, float, float | None] | None:
    """Means of (MHz, W, tensor share) over the window; None: not under load long enough."""
    busy = card.past.busy
    if not busy or card.now_s - busy[-1][0] > MAX_GAP_S or busy[-1][0] - busy[0][0] < MIN_BUSY_S:
        return None
    count = len(busy)
    tensor = [item[3] for item in busy if item[3] is not None]
    return (
        sum(item[1] for item in busy) / count,
        sum(item[2] for item in busy) / count,
        sum(tensor) / len(tensor) if 2 * len(tensor) >= count else None,
    )


# name, unit, place in the pace, share of the others' median under which a card stands out, smallest median that counts
PACES = (
    ("clock", "MHz", 0, 0.85, 1.0),
    ("power", "W", 1, 0.60, 1.0),
    ("tensor activity", "", 2, 0.50, 0.05),
)


def judge_pace(card: Card, peers: Sequence[Card]) -> list[Finding]:
    """A card under load that is slower than all its peers, which agree: they share one job, and wait for it."""
    own = _pace(card)
    others = [pace for peer in peers if (pace := _pace(peer)) is not None]
    if own is None or len(others) < MIN_PEERS:
        return []
    found = []
    for name, unit, place, share, smallest in PACES:
        value = own[place]
        beside = [number for pace in others if (number := pace[place]) is not None]
        if value is None or len(beside) < MIN_PEERS or median(beside) < smallest:
            continue
        if max(beside) <= PEERS_AGREE * min(beside) and value < share * median(beside):
            amounts = f"{value:.4g} {unit}".strip(), f"{median(beside):.4g} {unit}".strip()
            found.append(
                card.finding(
                    f"slow-{name.split()[0]}",
                    Severity.WARNING,
                    "CHECK_COOLING" if place < 2 else "CONTACT_SUPPORT",
                    f"The GPU's {name} is far below its peers' under the same load",
                    f"{amounts[0]} on average over {WINDOW_S / 60:.0f} min, peers {amounts[1]}",
                )
            )
    return found
