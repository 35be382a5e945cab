"""Judging one InfiniBand or RoCE port: down, flapping, slower than it was, errors at a rate."""

from functools import cache

import msgspec
from msgspec import Struct

from sentinel.checks.base import Source
from sentinel.checks.counters import Tally, counted, lately
from sentinel.checks.network.rdma import COUNTERS, HW_COUNTERS, LINK_UP, STATES, Port
from sentinel.core.health import Component, Finding, Severity
from sentinel.rules.tables import CounterLimit, counter_limits
from sentinel.settings import Network

LINK_DOWNED_END = 255  # `link_downed` has 8 bits and stops at its end (InfiniBand, PortCounters)


class PortState(Struct, frozen=True, omit_defaults=True):
    """What is kept of a port between samples. Times are CLOCK_BOOTTIME."""

    was_up: bool = False
    best_gbps: float = 0.0  # since the boot
    down_since_s: float | None = None
    told: bool = False  # it was down for too long, and has not been up since
    missing: int = 0  # samples in a row in which the port was not there
    downs: Tally | None = None
    seen_downs: Tally | None = None  # of those that a sample saw: not every card counts them
    errors: dict[str, Tally] = {}


@cache
def _shipped() -> dict[str, CounterLimit]:
    return {row.name: row for row in counter_limits() if row.at == "infiniband"}


def limit_of(counter: str, settings: Network) -> CounterLimit | None:
    """The settings' limit or the shipped one; None for a counter that is no error."""
    row, asked = _shipped().get(counter), settings.errors_per_minute.get(counter)
    if row is None or asked is None:
        return row
    return msgspec.structs.replace(row, count=asked, window_s=60.0)


def follow(old: PortState | None, port: Port, now_s: float, settling: bool, settings: Network) -> PortState:
    """The port's state after one more reading."""
    old = old or PortState()
    went_down = (old.seen_downs.value if old.seen_downs else 0) + (
        not port.up and port.state is not None and old.was_up and old.down_since_s is None
    )
    if port.state is None:  # could not be read: what was known stands
        down_since_s, told = old.down_since_s, old.told
    elif port.up:
        down_since_s, told = None, False
    else:
        down_since_s = now_s if old.down_since_s is None else old.down_since_s
        too_long = not settling and now_s - down_since_s >= settings.port_down_s
        told = old.told or too_long
    errors = {}
    for counter in (*COUNTERS, *HW_COUNTERS):
        if limit := limit_of(counter, settings):
            tally = counted(
                old.errors.get(counter), port.counters.get(counter), now_s, limit.window_s, held=settling
            )
            if tally is not None:
                errors[counter] = tally
    window_s = settings.flap_window_s
    return PortState(
        was_up=old.was_up or port.up,
        best_gbps=max(old.best_gbps, port.rate_gbps or 0.0) if port.up else old.best_gbps,
        down_since_s=down_since_s,
        told=told,
        downs=counted(old.downs, port.downs, now_s, window_s, held=settling),
        seen_downs=counted(old.seen_downs or Tally(0, now_s), went_down, now_s, window_s, held=settling),
        errors=errors,
    )


def judge(
    port: Port, state: PortState, now_s: float, settling: bool, settings: Network, expected_gbps: float | None
) -> list[Finding]:
    """What is wrong with a port that is there."""
    found = []
    if state.down_since_s is not None and state.was_up and (state.told or not settling):
        found.append(_down(port, state, now_s))
    if port.up and port.rate_gbps is not None and not settling:
        least = max(state.best_gbps, expected_gbps or 0.0)
        if port.rate_gbps < least:
            found.append(_slow(port, state, expected_gbps))
    flaps = round(max(lately(state.downs), lately(state.seen_downs)))
    if flaps >= settings.flaps:
        found.append(
            finding(
                port.name,
                "link-flaps",
                Severity.DEGRADED,
                "CHECK_LINK",
                "The link goes down again and again",
                f"{port.name}: went down {flaps} times in {settings.flap_window_s / 3600:g} h",
            )
        )
    if not port.roce and port.counters.get("link_downed") == LINK_DOWNED_END:
        found.append(
            finding(
                port.name,
                "link-downed-full",
                Severity.INFO,
                "RESET_COUNTERS",
                "The counter of link failures stands at its end: flaps that no sample sees are not noticed",
                f"{port.name}: link_downed {LINK_DOWNED_END}; `perfquery -R` resets it",
            )
        )
    return found + _errors(port.name, state, settings)


def _down(port: Port, state: PortState, now_s: float) -> Finding:
    lasting = f"for {now_s - (state.down_since_s or now_s):.0f} s"
    named = STATES.get(port.state or 0, port.state)
    evidence = f"{port.name}: state {named}, physical state {port.physical}, {lasting}"
    if port.physical == LINK_UP and not port.roce:  # the cable is fine; the fabric does not take the port in
        return finding(
            port.name,
            "port-inactive",
            Severity.DEGRADED if state.told else Severity.WARNING,
            "CHECK_SUBNET_MANAGER",
            "The link is up but no subnet manager has made the port active",
            evidence,
        )
    return finding(
        port.name,
        "port-down",
        Severity.FATAL if state.told else Severity.WARNING,
        "CHECK_LINK",
        "The port was up and is down",
        evidence,
    )


def _slow(port: Port, state: PortState, expected_gbps: float | None) -> Finding:
    was = f"it was {state.best_gbps:g}"
    if expected_gbps and expected_gbps > state.best_gbps:
        was = f"expected {expected_gbps:g}"
    return finding(
        port.name,
        "port-rate",
        Severity.DEGRADED,
        "CHECK_LINK",
        "The port runs at a lower rate than it should",
        f"{port.name}: {port.rate_gbps:g} Gb/s, {was} Gb/s",
    )


def _errors(entity: str, state: PortState, settings: Network) -> list[Finding]:
    found = []
    for counter, tally in state.errors.items():
        limit = limit_of(counter, settings)
        if limit is None or lately(tally) <= limit.count:
            continue
        found.append(
            finding(
                entity,
                counter,
                Severity.WARNING,
                "CHECK_LINK",
                "The port counts errors at a high rate",
                f"{entity}: {counter} grew by {lately(tally):.0f} within {limit.window_s:.0f} s "
                f"(more than {limit.count:g}), it is {tally.value}",
            )
        )
    return found


def vanished(entity: str, code: str, evidence: str) -> Finding:
    return finding(
        entity,
        code,
        Severity.FATAL,
        "CHECK_NIC",
        "It was there and is no longer",
        evidence,
    )


finding = Source("infiniband", Component.NIC).finding


def one_more_missing(state: PortState) -> PortState:
    return msgspec.structs.replace(state, missing=state.missing + 1)
