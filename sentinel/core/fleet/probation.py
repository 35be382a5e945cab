"""Probation: a node that came back fails far more often than others, so for a while less isolates it. Pure.

It does not wait for repeats: what is degraded is enough, and one error of which a few would be fatal. Only what is
beyond what was known when its isolation ended counts, so that no clocks are compared; and not what many nodes show.
"""

import math
from collections.abc import Collection, Iterable, Set

from msgspec import structs

from sentinel.core.fleet.causes import fatal_codes
from sentinel.core.fleet.events import Reason
from sentinel.core.fleet.model import (
    Baseline,
    Brake,
    EndedBy,
    FleetPicture,
    Ignored,
    Kind,
    Mode,
    NodePicture,
    NodeQuarantine,
)
from sentinel.core.fleet.release import LOOKED, same_machine
from sentinel.core.fleet.settings import FleetSettings
from sentinel.core.health import Component, Finding, Severity
from sentinel.core.now import Now

# Actions that are about a part of this machine, by rules/severity.toml and the checks. Degraded are also programs that
# reach a limit, drivers between two versions, file servers and warm rooms: no repair of a part failed there.
PARTS = frozenset(
    {
        "CHECK_CABLE",
        "CHECK_DISK",
        "CHECK_HARDWARE",
        "CHECK_LINK",
        "CHECK_MECHANICALS",
        "CHECK_MEMORY",
        "CHECK_NIC",
        "CHECK_PCIE",
        "DRAIN_AND_RESET",
        "REPLACE_DISK",
        "REPLACE_MEMORY",
        "REPLACE_NIC",
        "RESEAT_CARD",
        "RESET_GPU",
        "RUN_DIAGNOSTICS",
        "WORKFLOW_NVLINK5_ERR",
        "WORKFLOW_NVLINK_ERR",
    }
)
# Those of rules/severity.toml of which a few on one card are fatal, whichever jobs met them.
WEARING = frozenset({"XID 94"})
PROGRAMS = frozenset({"gpu-orphan-memory"})  # of those with such an action: a program's doing
MAX_KNOWN = 100  # findings of one baseline, which must fit the API server; of more none is written
BOOT_S = 1800.0  # after a boot: checks that wait for drivers, or for several samples, have looked by then
COMMON = 0.01  # a code that this share of the nodes shows is common
_CAME_BACK = (EndedBy.WELL, EndedBy.PERSON, EndedBy.UNCORDONED)


def returns(
    records: Iterable[NodeQuarantine], node: NodePicture, settings: FleetSettings, now: Now
) -> tuple[NodeQuarantine, ...]:
    """The isolations for findings from which this machine came back within the window: it is on probation for them.

    `records`: of this node. What ended since its code is ignored was no fault, and who was only observed was never out.
    """
    since_wall_s = now.wall_s - settings.repeat_window_s
    observed = settings.mode_of(node.pool) is Mode.OBSERVE
    return tuple(
        record
        for record in records
        if record.kind is Kind.FAULT
        and record.ended_by in _CAME_BACK
        and (observed or record.mode is Mode.ENFORCE)
        and record.acted_wall_s > 0
        and (record.ended_wall_s or 0.0) > since_wall_s
        and record.reason != Reason.CODE_IGNORED.value
        and same_machine(record, node)
    )


def last(came_back: Collection[NodeQuarantine], found: Iterable[Finding] = ()) -> NodeQuarantine:
    """The newest of some returns. `found`: of those after a fault of the same components."""
    components = {finding.component for finding in found}
    same = [
        record
        for record in came_back
        if components.intersection(finding.component for finding in record.findings)
    ]
    return max(same or came_back, key=lambda record: record.number)


def last_ended(records: Iterable[NodeQuarantine], node: NodePicture) -> NodeQuarantine | None:
    """The newest ended record of a fault of this machine, whether it was out or not. `records`: of this node."""
    ended = [
        record
        for record in records
        if record.kind is Kind.FAULT
        and not record.state.open
        and record.ended_by is not EndedBy.DOUBLED
        and same_machine(record, node)
    ]
    return max(ended, key=lambda record: record.number, default=None)


# ---------------------------------------------------------------- what is enough


def lesser(finding: Finding) -> bool:
    """Is it less than fatal, and enough on probation?"""
    if finding.code in WEARING:
        return finding.severity in (Severity.WARNING, Severity.DEGRADED)
    return finding.severity is Severity.DEGRADED and finding.action in PARTS and finding.code not in PROGRAMS


def acting(
    came_back: Collection[NodeQuarantine], last: NodeQuarantine | None, found: Iterable[Finding]
) -> tuple[Finding, ...]:
    """Those of components that failed before, which are beyond what was known when an isolation ended last.

    `came_back`: see returns. `last`: see last_ended. `found`: lesser ones.
    """
    if not came_back or last is None or last.baseline is None:
        return ()
    failed = {finding.component for record in came_back for finding in record.findings}
    checks, known = last.baseline.checks, last.baseline.findings
    return tuple(
        finding
        for finding in found
        if finding.component in failed
        and finding.check in checks
        and not any(one.covers(finding) for one in known)
    )


def from_boot(finding: Finding, node: NodePicture) -> bool:
    """Was it hidden only because checks begin anew, and wait, after a boot?"""
    return not finding.event and node.told_mono_s < BOOT_S


def shown(picture: FleetPicture, quiet: Set[str]) -> dict[str, int]:
    """How many nodes show each code that is enough, or fatal. `quiet`: see rounds.decide."""
    counts: dict[str, int] = {}
    for name, node in picture.nodes.items():
        if name not in quiet:
            for code in {one.code for one in node.findings if lesser(one) or one.severity is Severity.FATAL}:
                counts[code] = counts.get(code, 0) + 1
    return counts


def many(component: Component, nodes: int, settings: FleetSettings) -> int:
    """So many nodes that show a code are no sign of one node's repair. Of the network as many as are its incident."""
    if component is Component.NIC:
        return settings.network_nodes
    return max(settings.cause_nodes, math.ceil(COMMON * nodes))


def settling(
    record: NodeQuarantine | None, picture: FleetPicture, settings: FleetSettings, now: Now
) -> Brake:
    """Until it would be known that many nodes show it, also by a new leader. `record`: the open one."""
    waited_s = 0.0
    if record is not None:
        more = (line.wall_s for line in record.story if line.reason == Reason.FOUND_MORE.value)
        waited_s = now.wall_s - max((record.since_wall_s, *more))
    led_s = now.mono_s - picture.watching_since_mono_s
    waits = 0.0 <= waited_s < settings.probation_settle_s or led_s < settings.probation_settle_s
    return Brake.SETTLING if waits else Brake.NONE


# ---------------------------------------------------------------- who is out


def only_lesser(record: NodeQuarantine) -> bool:
    """Is it for less than a fatal finding?"""
    return record.kind is Kind.FAULT and bool(record.findings) and not fatal_codes(record.findings)


def kept_out(record: NodeQuarantine, found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those for which it is out: also when its probation is over, or many nodes show them by now."""
    keys = {finding.key for finding in record.findings if finding.severity is not Severity.FATAL}
    return tuple(finding for finding in found if finding.key in keys)


def isolating_codes(record: NodeQuarantine) -> frozenset[str]:
    """For which a node is out for a fault: fatal ones. Without any it is on probation, and out for others."""
    if record.kind is not Kind.FAULT:
        return frozenset()
    return fatal_codes(record.findings) or frozenset(one.code for one in record.findings)


# ---------------------------------------------------------------- what is known


def baseline(node: NodePicture | None, ignored: Set[str]) -> Baseline | None:
    """Of a record that ends now. None: nothing is known, and nothing but what is fatal will isolate it.

    `ignored`: codes that act again when a person takes his word back.
    """
    if node is None or not node.boot_id:
        return None
    checks = sorted(name for name, check in node.checks.items() if check.state in LOOKED)
    stands = (Ignored.of(finding) for finding in node.findings if finding.code not in ignored)
    return _bounded(Baseline(tuple(checks), tuple(stands)))


def with_known(known: Baseline | None, found: Iterable[Finding]) -> Baseline | None:
    """And these as well. Those that go on to occur are written down ever more seldom: so many times are known ahead."""
    if known is None:
        return None
    more = [Ignored.of(structs.replace(finding, count=1 << finding.count.bit_length())) for finding in found]
    again = {(one.check, one.key, one.boot_id) for one in more}
    others = (one for one in known.findings if (one.check, one.key, one.boot_id) not in again)
    return _bounded(Baseline(known.checks, (*others, *more)))


def _bounded(known: Baseline) -> Baseline | None:
    return known if len(known.findings) <= MAX_KNOWN else None
