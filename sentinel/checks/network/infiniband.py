"""InfiniBand and RoCE cards and ports: state, rate, errors, flaps, what vanished, firmware, PCIe link."""

import os
from collections import Counter

import msgspec
from msgspec import Struct

from sentinel.checks.base import Absent, Kept, Look, Unknown
from sentinel.checks.network import ib_port, rdma
from sentinel.checks.network.ib_port import PortState, finding, vanished
from sentinel.checks.network.rdma import Card, Port
from sentinel.checks.shape import expected, judged
from sentinel.checks.sysfs import names, read_each, text
from sentinel.core.health import Finding, Severity
from sentinel.settings import Network, Shape

MISSED = 3  # a driver that is loaded anew takes its cards away for a moment


class CardState(Struct, frozen=True, omit_defaults=True):
    """What is kept of a card between samples. Times are CLOCK_BOOTTIME."""

    pci: str = ""
    instance: int = 0
    since_s: float | None = None  # when the driver was seen to have been loaded anew
    missing: int = 0  # samples in a row in which the card was not there


class State(Struct, frozen=True, omit_defaults=True):
    """What is kept between samples and over a restart of the agent."""

    cards: dict[str, CardState] = {}
    ports: dict[str, PortState] = {}
    short_since_s: float | None = None  # fewer ports than expected
    short_samples: int = 0  # in a row, without any card
    short_told: bool = False


class Memory(Struct):
    state: State | None = None  # after the last sample; None: this agent has not looked yet


def restored(kept: Kept) -> State:
    if (state := kept.own(Memory).state) is not None:
        return state
    try:
        return msgspec.convert(kept.saved or {}, State)
    except msgspec.ValidationError:  # of another version: nothing is known of the past
        return State()


def check(look: Look) -> list[Finding]:
    sysfs, shape = look.settings.sysfs, look.settings.shape
    old = restored(look.kept)
    try:
        devices = [name for name in names(f"{sysfs}/class/infiniband") if not rdma.is_virtual(sysfs, name)]
    except OSError as error:
        raise Unknown(f"{sysfs}/class/infiniband: {error.strerror}") from None
    if not devices and not old.cards and not shape.ib_ports:
        look.kept.measures = ()
        raise Absent(f"no InfiniBand or RoCE card; {expected(shape, 'ib_ports')}")
    read, late = read_each(devices, lambda name: rdma.read_card(sysfs, name), look.kept)
    cards = [card for card in read.values() if card is not None]
    cards.sort(key=lambda card: card.name)
    new, found = _judge(look, old, cards, late)
    look.kept.own(Memory).state, look.kept.saved = new, msgspec.to_builtins(new)
    look.kept.measures = rdma.measures(cards)
    look.kept.detail = _detail(shape, cards, old)
    unread = [port.name for card in cards for port in card.ports if port.state is None]
    problems = [f"{name} does not answer" for name in late]
    problems += [f"{name}: its state cannot be read" for name in unread]
    if problems:
        raise Unknown("; ".join(problems), tuple(found))
    return found


def _judge(look: Look, old: State, cards: list[Card], late: list[str]) -> tuple[State, list[Finding]]:
    now_s, limits = look.now.mono_s, look.settings.network
    found: list[Finding] = []
    known, gone = _follow_cards(look, old, cards, late)
    ports: dict[str, PortState] = {}
    booting = now_s < limits.settle_s
    for card in cards:
        since_s = known[card.name].since_s
        settling = booting or (since_s is not None and now_s - since_s < limits.settle_s)
        for port in card.ports:
            state = ib_port.follow(old.ports.get(port.name), port, now_s, settling, limits)
            ports[port.name] = state
            found += ib_port.judge(port, state, now_s, settling, limits, _rate_of_each(look.settings.shape))
        found += _missing_ports(card, old, ports)
        found += _pcie(card)
    for name, state in old.ports.items():  # of cards that are gone or do not answer
        if name.rpartition("/")[0] in known and name not in ports:
            ports[name] = state
    found += gone + _firmware(cards)
    present = [port for card in cards for port in card.ports]
    new = State(known, ports, *_shortage(look, old, present, bool(late)))
    if new.short_since_s is not None:
        found.append(_too_few(look.settings.shape, limits, new, present, booting))
    return new, found


# ---------------------------------------------------------------- cards and ports that were there


def _follow_cards(
    look: Look, old: State, cards: list[Card], late: list[str]
) -> tuple[dict[str, CardState], list[Finding]]:
    """What is known of the cards after this sample, and a finding for each that has vanished."""
    known: dict[str, CardState] = {}
    found = []
    for card in cards:
        before = old.cards.get(card.name)
        since_s = before.since_s if before else None
        if before and (before.instance != card.instance or before.missing):
            since_s = look.now.mono_s
        known[card.name] = CardState(card.pci, card.instance, since_s)
    here = {card.pci for card in cards if card.pci}
    bonded = {_slot(card.pci) for card in cards if "bond" in card.name}
    for name, before in old.cards.items():
        if name in known or before.pci in here:  # there, or under a new name
            continue
        if before.pci and _slot(before.pci) in bonded:  # mlx5 makes one RDMA device of a card's bonded ports
            continue
        if name in late:
            known[name] = before
            continue
        if _given_away(look.settings.sysfs, before.pci):
            continue
        known[name] = msgspec.structs.replace(before, missing=before.missing + 1)
        if known[name].missing >= MISSED:
            where = f"PCI function {before.pci}" if before.pci else "the device"
            left = _bus_state(look.settings.sysfs, before.pci)
            found.append(vanished(name, "nic-vanished", f"{name}: {where} {left}"))
    return known, found


def _slot(pci: str) -> str:
    """The card that a function is of: "0000:18:00" of "0000:18:00.1"."""
    return pci.rpartition(".")[0]


def _given_away(sysfs: str, pci: str) -> bool:
    """Handed to a virtual machine, or to another network namespace: there, but not for us to see."""
    driver = _driver(sysfs, pci)
    exclusive = (
        text(f"{sysfs}/module/ib_core/parameters/netns_mode") == "N"
    )  # `rdma system` prints "exclusive"
    return driver.startswith("vfio") or (exclusive and bool(driver))


def _driver(sysfs: str, pci: str) -> str:
    link = f"{sysfs}/bus/pci/devices/{pci}/driver"
    return os.path.basename(os.path.realpath(link)) if pci and os.path.exists(link) else ""


def _bus_state(sysfs: str, pci: str) -> str:
    if not pci or not os.path.exists(f"{sysfs}/bus/pci/devices/{pci}"):
        return "is gone"
    driver = _driver(sysfs, pci)
    return f"has its driver {driver} but no RDMA device" if driver else "has no driver any more"


def _missing_ports(card: Card, old: State, ports: dict[str, PortState]) -> list[Finding]:
    found = []
    for name, state in old.ports.items():
        if name.rpartition("/")[0] != card.name or name in ports:
            continue
        ports[name] = ib_port.one_more_missing(state)
        if ports[name].missing >= MISSED:
            found.append(vanished(name, "port-vanished", f"{name} is gone; the card {card.name} is there"))
    return found


# ---------------------------------------------------------------- what is expected


def _rate_of_each(shape: Shape) -> float | None:
    """Where only the rate is expected, every port must have it; else as many ports as are expected."""
    return shape.ib_rate_gbps if shape.ib_ports is None else None


def _good(shape: Shape, ports: list[Port]) -> int:
    least = shape.ib_rate_gbps or 0.0
    return sum(port.up and (port.rate_gbps or 0.0) >= least for port in ports)


def _shortage(look: Look, old: State, ports: list[Port], late: bool) -> tuple[float | None, int, bool]:
    """Since when there are too few ports, in how many samples there was none at all, whether that was told."""
    shape, limits, now_s = look.settings.shape, look.settings.network, look.now.mono_s
    if not shape.ib_ports or _good(shape, ports) >= shape.ib_ports:
        return None, 0, False
    if late or any(port.state is None for port in ports):  # not known to be too few
        return old.short_since_s, old.short_samples, old.short_told
    since_s = now_s if old.short_since_s is None else old.short_since_s
    samples = 0 if ports else old.short_samples + 1
    long = now_s - since_s >= limits.port_down_s or samples >= MISSED
    return since_s, samples, old.short_told or (long and now_s >= limits.settle_s)


def _too_few(shape: Shape, limits: Network, state: State, ports: list[Port], booting: bool) -> Finding:
    severity = Severity.WARNING if booting else Severity.DEGRADED
    if state.short_told:
        severity = Severity.FATAL
    bad = [
        f"{port.name} {rdma.STATES.get(port.state or 0, port.state)} at {port.rate_gbps or 0:g} Gb/s"
        for port in ports
        if not port.up or (port.rate_gbps or 0.0) < (shape.ib_rate_gbps or 0.0)
    ]
    rate = f" at {shape.ib_rate_gbps:g} Gb/s or more" if shape.ib_rate_gbps else ""
    return finding(
        "InfiniBand",
        "ib-ports",
        judged(shape, severity),
        "CHECK_LINK",
        "Fewer InfiniBand or RoCE ports are up than expected",
        f"{_good(shape, ports)} ports are up{rate}, {expected(shape, 'ib_ports')}"
        + (f"; {', '.join(bad)}" if bad else "" if ports else "; no such card is there"),
    )


def _detail(shape: Shape, cards: list[Card], old: State) -> str:
    told = [expected(shape, field) for field in ("ib_ports", "ib_rate_gbps") if getattr(shape, field) is None]
    never = [
        port.name
        for card in cards
        for port in card.ports
        if port.state is not None
        and not port.up
        and not old.ports.get(port.name, PortState()).was_up
        and shape.ib_ports is None
    ]
    if never:
        told.append(f"down since the boot, which may be meant so: {', '.join(never)}")
    if not old.cards:
        told.append("error rates and flaps: from the second sample on")
    return "; ".join(told)


# ---------------------------------------------------------------- the cards themselves


def _pcie(card: Card) -> list[Finding]:
    if card.link is None or not card.link.limited:
        return []
    return [
        finding(
            card.name,
            "nic-pcie",
            Severity.DEGRADED,
            "RESEAT_CARD",
            "The card's PCIe link is slower or narrower than it can be",
            f"{card.name} ({card.pci}): {card.link}",
        )
    ]


def _firmware(cards: list[Card]) -> list[Finding]:
    """Cards of one board with another firmware than most of them; of as many each, the older is told."""
    found = []
    for board in sorted({card.board or card.kind for card in cards} - {""}):
        alike = [card for card in cards if (card.board or card.kind) == board and card.firmware]
        counts = Counter(card.firmware for card in alike)
        if len(counts) < 2:
            continue
        usual = max(counts, key=lambda version: (counts[version], _version(version)))
        found += [
            finding(
                card.name,
                "firmware-drift",
                Severity.WARNING,
                "UPDATE_FIRMWARE",
                "The card's firmware differs from that of its like on this node",
                f"{card.name}: {card.firmware}, {counts[usual]} of {len(alike)} cards {board} have {usual}",
            )
            for card in alike
            if card.firmware != usual
        ]
    return found


def _version(text_: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text_.split(".") if part.isdigit())
