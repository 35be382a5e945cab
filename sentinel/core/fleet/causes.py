"""What many nodes have: one network incident, or one cause that may be a rule or a driver gone wrong. Pure.

Both are seen in the records, so that a new leader sees the same. A code that more nodes have than chance gives, within
minutes or within a day, is a common cause until a person says what it is: `model.CodeWord`.
"""

import math
import shlex
from collections.abc import Iterable, Mapping

from msgspec import Struct, structs

from sentinel.core.fleet.model import Brake, CodeWord, EndedBy, Kind, Mode, NodeQuarantine, Say, State
from sentinel.core.fleet.settings import FleetSettings
from sentinel.core.health import Component, Finding, Severity
from sentinel.core.now import Now

# How often chance breaks a node, and with one code: a published fleet of 400 servers had a fault in 236 node-days, and
# of the interruptions of a published training run of 54 days no kind was more than four in ten.
FAULT_EVERY_S = 236 * 86_400.0
ONE_CODE = 0.4
YEAR_S = 365 * 86_400.0
# A driver that is rolled out node by node breaks one after the other, over hours. So many times `cause_nodes` at least.
SLOW_S, SLOW_TIMES = 86_400.0, 2
OVER_S = 60.0  # for which a node whose port is up again is counted among those that had the same
GO_ON_S = 86_400.0  # for which GO_ON holds: what many nodes have tomorrow is asked anew


class Incident(Struct, frozen=True):
    """Nodes that were found with one code within minutes of each other."""

    code: str
    nodes: tuple[str, ...]


# ---------------------------------------------------------------- what people say of codes


def ignored(words: Iterable[CodeWord]) -> frozenset[str]:
    """Codes for which no node is isolated."""
    return frozenset(word.code for word in words if word.say is Say.IGNORE)


def going_on(words: Iterable[CodeWord], since_wall_s: float) -> frozenset[str]:
    """Codes that hold no node back for being many that was found then: before the word, or within a day of it."""
    return frozenset(
        word.code for word in words if word.say is Say.GO_ON and since_wall_s - word.at_wall_s < GO_ON_S
    )


def fatal_codes(findings: Iterable[Finding]) -> frozenset[str]:
    return frozenset(finding.code for finding in findings if finding.severity is Severity.FATAL)


def as_warning(finding: Finding) -> Finding:
    """A fatal one, where many nodes have it at once and no person has said yet what it is."""
    return (
        structs.replace(finding, severity=Severity.WARNING) if finding.severity is Severity.FATAL else finding
    )


# ---------------------------------------------------------------- common causes


def cause_codes(findings: Iterable[Finding]) -> frozenset[str]:
    """The codes for which a node is to be isolated; empty: for its network alone (see network_codes)."""
    found = tuple(findings)
    return frozenset() if network_codes(found) else fatal_codes(found)


def by_chance(nodes: int, window_s: float, least: int) -> int:
    """So many nodes with one code within the window are more than chance gives: less than once in a year.

    Chance is a Poisson process of the faults with one code. At least `least`.
    """
    every_s = FAULT_EVERY_S / ONE_CODE / max(1, nodes)
    others = window_s / every_s  # in the window after a fault, in the mean
    if others > 100.0:  # as good as normal, and its terms would be too small for a float
        return max(least, math.ceil(others + 6.0 * math.sqrt(others)) + 1)
    in_a_year = YEAR_S / every_s
    count, term = 1, math.exp(-others)
    beyond = 1.0 - term  # the chance that at least `count` others follow
    while in_a_year * beyond >= 1.0:
        term *= others / count
        beyond -= term
        count += 1
    return max(least, count + 1)


def limits(nodes: int, settings: FleetSettings) -> tuple[tuple[float, int], ...]:
    """Windows, and how many nodes that get one code within them are a common cause in a fleet of `nodes`."""
    least = settings.cause_nodes
    return tuple(
        (window_s, by_chance(nodes, window_s, times * least))
        for window_s, times in ((settings.cause_window_s, 1), (SLOW_S, SLOW_TIMES))
    )


class Asked(Struct, frozen=True):
    """A node that is to be isolated. `codes`: cause_codes; `since_wall_s`: when that was found."""

    codes: frozenset[str]
    since_wall_s: float
    mode: Mode


class Causes:
    """Of one round. What is only observed takes none of the few from what is enforced."""

    def __init__(
        self,
        nodes: Mapping[str, Asked],
        records: Iterable[NodeQuarantine],
        fleet: int,
        settings: FleetSettings,
    ) -> None:
        """`fleet`: how many nodes there are."""
        self._nodes, self._worst = nodes, settings.cause_worst
        self._together: dict[str, frozenset[str]] = {}  # code -> nodes that were found with it in one window
        # code -> node -> mode: those that are or were isolated, and those that wait for a person's word
        self._acted: dict[str, dict[str, Mode]] = {}
        self._waiting: dict[str, dict[str, Mode]] = {}
        wanted = {code for one in nodes.values() for code in one.codes}
        if not wanted:
            return
        windows = limits(fleet, settings)
        since_wall_s = min(one.since_wall_s for one in nodes.values()) - max(windows)[0]
        found: dict[str, dict[str, float]] = {code: {} for code in wanted}
        self._acted, self._waiting = {code: {} for code in wanted}, {code: {} for code in wanted}
        for record in records:
            if waits(record):
                for code in wanted.intersection(record.cause):
                    self._waiting[code][record.node] = record.mode
            if record.since_wall_s < since_wall_s or record.kind is not Kind.FAULT or not _counts(record):
                continue
            for code in cause_codes(record.findings) & wanted:
                found[code][record.node] = record.since_wall_s
                if record.acted_wall_s or record.state is State.ACTIVE:
                    self._acted[code][record.node] = record.mode
        for node, one in nodes.items():
            for code in one.codes:
                found[code][node] = one.since_wall_s
        for code, times in found.items():
            found_together = (together(times, many, window_s) for window_s, many in windows)
            self._together[code] = shared = frozenset[str]().union(*found_together)
            self._acted[code] = {node: mode for node, mode in self._acted[code].items() if node in shared}

    def brake(self, node: str) -> Brake:
        """Holds a node back all of whose codes many nodes have, but for the first few. Ask for the worst first.

        Where others wait already for a person's word, it waits with them, however late it comes.
        """
        one = self._nodes.get(node)
        if one is None or not one.codes:
            return Brake.NONE
        waiting = {code: _others(self._waiting[code], node, one.mode) for code in one.codes}
        if not all(waiting[code] or node in self._together[code] for code in one.codes):
            return Brake.NONE
        full = any(
            # Itself as well: else it would change places with others for ever.
            _others(self._waiting[code], "", one.mode)
            or _others(self._acted[code], node, one.mode) >= self._worst
            for code in one.codes
        )
        return Brake.COMMON_CAUSE if full else Brake.NONE

    def taken(self, node: str) -> None:
        """It is isolated now, or is to be when there is room."""
        if (one := self._nodes.get(node)) is not None:
            for code in one.codes:
                self._acted[code][node] = one.mode


def _others(nodes: Mapping[str, Mode], node: str, mode: Mode) -> int:
    return sum(name != node and (mode is Mode.OBSERVE or its is Mode.ENFORCE) for name, its in nodes.items())


def waits(record: NodeQuarantine) -> bool:
    """For a person's word about its codes."""
    return record.state is State.HELD and record.held_by is Brake.COMMON_CAUSE


def _counts(record: NodeQuarantine) -> bool:
    """What ended by itself before anything was done is no sign of anything that lasts; what a person took back is."""
    by_person = record.ended_by in (EndedBy.PERSON, EndedBy.UNCORDONED)
    return record.state.open or by_person or (record.ended_by is EndedBy.WELL and record.acted_wall_s > 0)


def together(times: Mapping[str, float], many: int, window_s: float) -> frozenset[str]:
    """The nodes that are in some window together with enough others. `times`: when each was found."""
    names = sorted(times, key=lambda name: times[name])
    found: set[str] = set()
    first = new = 0
    for last, name in enumerate(names):
        while times[name] - times[names[first]] > window_s:
            first += 1
        if last - first + 1 >= many:
            found.update(names[max(first, new) : last + 1])
            new = last + 1
    return frozenset(found)


def standing_causes(records: Iterable[NodeQuarantine]) -> tuple[Incident, ...]:
    """Those that hold nodes back now: one for each code, with all nodes that wait for a word about it."""
    found: dict[str, set[str]] = {}
    for record in records:
        if waits(record):
            for code in record.cause:
                found.setdefault(code, set()).add(record.node)
    return tuple(Incident(code, tuple(sorted(names))) for code, names in sorted(found.items()))


def command(code: str, option: str) -> str:
    """What a person types to say something of this code."""
    named = shlex.quote(code)
    return f"sentinel code {option} -- {named}" if code.startswith("-") else f"sentinel code {named} {option}"


def told(records: Iterable[NodeQuarantine], words: Iterable[CodeWord], now: Now) -> list[str]:
    """What many nodes have and what people say of codes, a sentence for each."""
    said = []
    for one in standing_causes(records):
        nodes = "1 node waits" if len(one.nodes) == 1 else f"{len(one.nodes)} nodes wait"
        said.append(
            f"COMMON CAUSE: more nodes have {one.code} than chance gives. {nodes} for a person's word: "
            f"`{command(one.code, '--go-on')}` if it is real, `--ignore` if it is a mistake."
        )
    for word in words:
        back = f"`{command(word.code, '--off')}` takes it back."
        if word.say is Say.IGNORE:
            said.append(f"No node is isolated for {word.code}: ignored by {word.who}. {back}")
        elif word.code in going_on((word,), now.wall_s):
            said.append(f"{word.code} is real on however many nodes, for a day, by {word.who}. {back}")
    return said


# ---------------------------------------------------------------- network incidents


def network_codes(findings: Iterable[Finding]) -> frozenset[str]:
    """The codes of a node that is to be isolated for its network alone; empty: for something else too."""
    worst = [finding for finding in findings if finding.severity is Severity.FATAL]
    if any(finding.component is not Component.NIC for finding in worst):
        return frozenset()
    return frozenset(finding.code for finding in worst)


def network_incidents(
    nodes: Mapping[str, frozenset[str]],
    records: Iterable[NodeQuarantine],
    settings: FleetSettings,
    now: Now,
) -> tuple[Incident, ...]:
    """`nodes`: those that are to be isolated now, with their network codes (see network_codes).

    Nodes that were found with one code within `network_window_s` of each other are one incident, for as long as so many
    have it, or had it a moment ago: the ports of a switch that starts again come up one after the other. What is found
    hours later is another matter.
    """
    found: dict[str, dict[str, float]] = {}  # code -> node -> when it was found
    over: set[str] = set()
    standing = set(nodes)
    for record in records:
        if record.kind is not Kind.FAULT:
            continue
        stands = record.state in (State.HELD, State.ACTIVE)
        if stands or _just_over(record, now):
            for code in network_codes(record.findings):
                found.setdefault(code, {})[record.node] = record.since_wall_s
            (standing if stands else over).add(record.node)
    for node, codes in nodes.items():
        for code in codes:
            found.setdefault(code, {}).setdefault(node, now.wall_s)
    many, window_s = settings.network_nodes, settings.network_window_s
    gone = over - standing
    incidents = {code: together(times, many, window_s) - gone for code, times in found.items()}
    return tuple(Incident(code, tuple(sorted(names))) for code, names in sorted(incidents.items()) if names)


def _just_over(record: NodeQuarantine, now: Now) -> bool:
    """It was held back, and has ended by itself a moment ago."""
    left = record.ended_by is EndedBy.WELL and not record.acted_wall_s
    return left and 0.0 <= now.wall_s - (record.ended_wall_s or 0.0) < OVER_S


def network_brake(
    node: str,
    codes: frozenset[str],
    since_wall_s: float,
    incidents: Iterable[Incident],
    settings: FleetSettings,
    now: Now,
) -> Brake:
    """What holds a node back that has only network findings."""
    if not codes:
        return Brake.NONE
    if any(node in incident.nodes for incident in incidents if incident.code in codes):
        return Brake.NETWORK_INCIDENT
    waited_s = now.wall_s - since_wall_s  # negative: the clock was set back, which must not hold it for hours
    return Brake.NETWORK_SETTLING if 0 <= waited_s < settings.network_settle_s else Brake.NONE
