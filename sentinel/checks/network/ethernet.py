"""Ethernet interfaces that training can use: carrier, flaps, speed, duplex, errors, bonds, what vanished."""

import os
from collections.abc import Iterable
from functools import cache

import msgspec
from msgspec import Struct

from sentinel.checks.base import Absent, Kept, Look, Source, Unknown
from sentinel.checks.counters import Tally, counted, lately
from sentinel.checks.network import netdev
from sentinel.checks.network.netdev import Interface, Member
from sentinel.checks.shape import judged
from sentinel.checks.sysfs import read_each
from sentinel.core.health import Component, Finding, Severity
from sentinel.rules.tables import CounterLimit, counter_limits
from sentinel.settings import Network

_SOURCE = Source("ethernet", Component.NIC)

MISSED = 3  # samples: a driver that is loaded anew takes its interfaces away for a moment


class Followed(Struct, frozen=True, omit_defaults=True):
    """What is kept of an interface between samples. Times are CLOCK_BOOTTIME."""

    instance: int = 0
    since_s: float | None = None  # when the driver was seen to have been loaded anew
    pci: str = ""
    used: bool = False  # the default route left by it, when it was last up
    was_up: bool = False
    best_mbps: int = 0  # since the boot
    down_since_s: float | None = None
    missing: int = 0  # samples in a row in which it was not there
    missing_since_s: float | None = None
    downs: Tally | None = None
    seen_downs: Tally | None = None  # of those that a sample saw
    errors: dict[str, Tally] = {}


class State(Struct, frozen=True, omit_defaults=True):
    interfaces: dict[str, Followed] = {}
    bonds: dict[str, dict[str, float]] = {}  # bond -> member -> when it was last seen there


class _Sample(Struct):
    """One look at everything, and what it is judged by."""

    look: Look
    here: dict[str, Interface]
    bonds: dict[str, list[Member]]
    routes: set[str]
    named: set[str]  # by the settings or the expected shape

    @property
    def limits(self) -> Network:
        return self.look.settings.network

    @property
    def booting(self) -> bool:
        return self.look.now.mono_s < self.limits.settle_s

    def is_member(self, name: str) -> bool:
        return any(name == member.name for members in self.bonds.values() for member in members)


@cache
def _shipped() -> dict[str, CounterLimit]:
    return {row.name: row for row in counter_limits() if row.at == "ethernet"}


def _limit(counter: str, limits: Network) -> CounterLimit:
    row, asked = _shipped()[counter], limits.errors_per_minute.get(counter)
    return row if asked is None else msgspec.structs.replace(row, count=asked, window_s=60.0)


def check(look: Look) -> list[Finding]:
    settings = look.settings
    old = _restored(look.kept)
    named = {*settings.network.interfaces, *(settings.shape.nics or ())}
    routes = netdev.default_routes(settings.procfs)
    try:
        everything = netdev.all_names(settings.sysfs)
    except OSError as error:
        raise Unknown(f"{settings.sysfs}/class/net: {error.strerror}") from None
    bonds = [name for name in everything if netdev.is_bond(settings.sysfs, name)]
    wanted = [
        name
        for name in everything
        if name in named | routes | set(bonds) | old.interfaces.keys()
        or netdev.is_candidate(settings.sysfs, name)
    ]
    if not wanted and not named and not old.interfaces:
        look.kept.measures = ()
        raise Absent("no Ethernet card, no default route, and `network.interfaces` names none")
    read, late = read_each(wanted, lambda name: netdev.read_interface(settings.sysfs, name), look.kept)
    here = {name: one for name, one in sorted(read.items()) if one is not None}
    members = {bond: netdev.read_members(settings.sysfs, bond) for bond in bonds}
    new, found = _judge(_Sample(look, here, members, routes, named), old, late)
    look.kept.own(Memory).state, look.kept.saved = new, msgspec.to_builtins(new)
    look.kept.measures = netdev.measures(list(here.values()), members)
    look.kept.detail = "" if old.interfaces else "error rates and flaps: from the second sample on"
    if late:
        raise Unknown("; ".join(f"{name} does not answer" for name in late), tuple(found))
    return found


class Memory(Struct):
    state: State | None = None  # after the last sample; None: this agent has not looked yet


def _restored(kept: Kept) -> State:
    if (state := kept.own(Memory).state) is not None:
        return state
    try:
        return msgspec.convert(kept.saved or {}, State)
    except msgspec.ValidationError:  # of another version: nothing is known of the past
        return State()


def _judge(sample: _Sample, old: State, late: list[str]) -> tuple[State, list[Finding]]:
    followed: dict[str, Followed] = {}
    found: list[Finding] = []
    for name, one in sample.here.items():
        state = _follow(sample, old.interfaces.get(name, Followed()), one)
        if one.pci or state.used or name in sample.named or name in sample.bonds:
            followed[name] = state
            found += _interface(sample, state, one)
    for name in sorted({*old.interfaces, *sample.named}):
        if name in sample.here:
            continue
        before = old.interfaces.get(name, Followed())
        if name in late:
            followed[name] = before
            continue
        left, told = _gone(sample, name, before)
        if left is not None:
            followed[name] = left
        found += told
    bonds, told = _bonds(sample, old)
    return State(followed, bonds), found + told


# ---------------------------------------------------------------- one interface


def _settling(sample: _Sample, state: Followed) -> bool:
    since_s = state.since_s
    return sample.booting or (
        since_s is not None and sample.look.now.mono_s - since_s < sample.limits.settle_s
    )


def _follow(sample: _Sample, old: Followed, one: Interface) -> Followed:
    """The state of an interface after one more reading."""
    now_s, limits = sample.look.now.mono_s, sample.limits
    since_s = now_s if old.instance not in (0, one.instance) or old.missing else old.since_s
    draft = msgspec.structs.replace(old, since_s=since_s)
    settling = _settling(sample, draft)
    went_down = (old.seen_downs.value if old.seen_downs else 0) + (
        not one.up and old.was_up and old.down_since_s is None
    )
    errors = {}
    for counter in netdev.COUNTERS:
        tally = counted(
            old.errors.get(counter),
            one.counters.get(counter),
            now_s,
            _limit(counter, limits).window_s,
            held=settling,
        )
        if tally is not None:
            errors[counter] = tally
    window_s = limits.flap_window_s
    return Followed(
        instance=one.instance,
        since_s=since_s,
        pci=one.pci,
        used=one.name in sample.routes or (old.used and not one.up),
        was_up=old.was_up or one.up,
        best_mbps=max(old.best_mbps, one.speed_mbps or 0) if one.up else old.best_mbps,
        down_since_s=None if one.up else now_s if old.down_since_s is None else old.down_since_s,
        downs=counted(old.downs, one.downs, now_s, window_s, held=settling),
        seen_downs=counted(old.seen_downs or Tally(0, now_s), went_down, now_s, window_s, held=settling),
        errors=errors,
    )


def _interface(sample: _Sample, state: Followed, one: Interface) -> list[Finding]:
    """What is wrong with an interface that is there."""
    limits, settling = sample.limits, _settling(sample, state)
    found = []
    if not one.rdma:  # else the RoCE port tells
        down = not one.up and (state.was_up or one.name in sample.named)
        if down and not settling and not sample.is_member(one.name):  # of a member, the bond tells
            found.append(_down(sample, state, one))
        flaps = round(max(lately(state.downs), lately(state.seen_downs)))
        if flaps >= limits.flaps:
            found.append(
                _SOURCE.finding(
                    one.name,
                    "link-flaps",
                    Severity.WARNING,
                    "CHECK_LINK",
                    "The link goes down again and again",
                    f"{one.name}: went down {flaps} times in {limits.flap_window_s / 3600:g} h",
                )
            )
        slower = one.speed_mbps is not None and one.speed_mbps < state.best_mbps
        if one.up and slower and not settling and one.name not in sample.bonds:
            found.append(
                _SOURCE.finding(
                    one.name,
                    "port-speed",
                    Severity.WARNING,
                    "CHECK_LINK",
                    "The link is slower than it was",
                    f"{one.name}: {one.speed_mbps} Mb/s, it was {state.best_mbps} Mb/s",
                )
            )
    if one.up and one.duplex == "half":
        found.append(
            _SOURCE.finding(
                one.name,
                "half-duplex",
                Severity.WARNING,
                "CHECK_LINK",
                "The link is half duplex: both ends do not agree",
                f"{one.name}: duplex half, speed {one.speed_mbps} Mb/s",
            )
        )
    for counter, tally in state.errors.items():
        limit = _limit(counter, limits)
        if lately(tally) > limit.count:
            found.append(
                _SOURCE.finding(
                    one.name,
                    counter,
                    Severity.WARNING,
                    "CHECK_LINK",
                    "The interface counts errors at a high rate",
                    f"{one.name}: {counter} grew by {lately(tally):.0f} within {limit.window_s:.0f} s "
                    f"(more than {limit.count:g}), it is {tally.value}",
                )
            )
    return found


def _down(sample: _Sample, state: Followed, one: Interface) -> Finding:
    lasting_s = sample.look.now.mono_s - (state.down_since_s or 0.0)
    what = "has no carrier" if one.enabled else "was set down" if one.enabled is not None else "is unreadable"
    severity = Severity.WARNING
    if lasting_s >= sample.limits.port_down_s:
        severity = _lasting(sample, one.name, state)
    return _SOURCE.finding(
        one.name,
        "port-down",
        severity,
        "CHECK_LINK",
        "The interface is down",
        f"{one.name}: {what} for {lasting_s:.0f} s",
    )


def _lasting(sample: _Sample, name: str, state: Followed) -> Severity:
    """How bad it is that an interface stays away: whether training was told to use it, or has no other."""
    shape = sample.look.settings.shape
    if name in sample.limits.interfaces or (state.used and not sample.routes - {name}):
        return Severity.DEGRADED
    return judged(shape, Severity.DEGRADED) if name in (shape.nics or ()) else Severity.WARNING


def _gone(sample: _Sample, name: str, old: Followed) -> tuple[Followed | None, list[Finding]]:
    """An interface that is not there. None: it is not followed any more.

    Clouds take cards out of a running node when its pods need fewer addresses, and a pod may be given a card
    of its own: what nobody named and no default route used is told for a while and then forgotten.
    """
    now_s, limits = sample.look.now.mono_s, sample.limits
    at = f"{sample.look.settings.sysfs}/bus/pci/devices/{old.pci}"
    off_bus = bool(old.pci) and not os.path.exists(at)
    since_s = now_s if old.missing_since_s is None else old.missing_since_s
    needed = name in sample.named or (old.used and not sample.routes)
    if not needed and (not off_bus or not old.was_up or now_s - since_s > limits.flap_window_s):
        return None, []
    state = msgspec.structs.replace(old, missing=old.missing + 1, missing_since_s=since_s)
    if sample.booting or (state.missing < MISSED and old.was_up):
        return state, []
    evidence = f"{name}: no such interface" + (f"; PCI function {old.pci} is gone" if off_bus else "")
    summary = "The interface was there and is no longer" if old.was_up else "The interface is not there"
    severity = _lasting(sample, name, old) if state.missing >= MISSED else Severity.WARNING
    return state, [_SOURCE.finding(name, "nic-vanished", severity, "CHECK_NIC", summary, evidence)]


# ---------------------------------------------------------------- bonds


def _bonds(sample: _Sample, old: State) -> tuple[dict[str, dict[str, float]], list[Finding]]:
    """Bonds with fewer good members than they had. A member that was taken out is forgotten in time."""
    now_s, keep_s = sample.look.now.mono_s, sample.limits.flap_window_s
    known: dict[str, dict[str, float]] = {}
    found = []
    for bond, members in sample.bonds.items():
        before = {name: at_s for name, at_s in old.bonds.get(bond, {}).items() if now_s - at_s < keep_s}
        known[bond] = {**before, **{member.name: now_s for member in members}}
        bad = list(_bad_members(members, known[bond]))
        if bad and not sample.booting:
            found.append(
                _SOURCE.finding(
                    bond,
                    "bond-degraded",
                    Severity.WARNING,
                    "CHECK_LINK",
                    "The bond has lost members",
                    f"{bond}: {len(bad)} of {len(known[bond])} do not carry: {', '.join(bad)}",
                )
            )
    return known, found


def _bad_members(members: list[Member], known: Iterable[str]) -> Iterable[str]:
    for member in members:
        if not member.good:
            why = "in another aggregator" if member.state == "up" else member.state or "unreadable"
            yield f"{member.name} ({why})"
    here = {member.name for member in members}
    for name in known:
        if name not in here:
            yield f"{name} (has left the bond)"
