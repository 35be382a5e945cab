"""Probation: a node that came back fails far more often than others, so for a while less isolates it. Pure.

It does not wait for repeats: what is degraded is enough, and one error of which a few would be fatal. Only what is
beyond what stood at its return counts, so that no clocks are compared; and not what many nodes show.
"""

from collections.abc import Iterable, Set

from sentinel.core.fleet_events import Reason
from sentinel.core.fleet_model import (
    Baseline,
    EndedBy,
    FleetPicture,
    Ignored,
    Kind,
    Mode,
    NodePicture,
    NodeQuarantine,
    State,
)
from sentinel.core.fleet_release import LOOKED, remembered, same_machine
from sentinel.core.fleet_settings import FleetSettings
from sentinel.core.health import Finding, Severity
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
MAX_STOOD = 32  # findings of one baseline, which must fit the API server
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


def last(came_back: Iterable[NodeQuarantine]) -> NodeQuarantine:
    """The newest of some returns."""
    return max(came_back, key=lambda record: record.ended_wall_s or 0.0)


# ---------------------------------------------------------------- what is enough


def lesser(finding: Finding) -> bool:
    """Is it less than fatal, and enough on probation?"""
    if finding.code in WEARING:
        return finding.severity in (Severity.WARNING, Severity.DEGRADED)
    return finding.severity is Severity.DEGRADED and finding.action in PARTS


def acting(came_back: Iterable[NodeQuarantine], found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those of components that failed before, which are beyond what was known at the last return. `came_back`: see
    returns. `found`: lesser ones."""
    came_back = tuple(came_back)
    if not came_back or (baseline := last(came_back).baseline) is None:
        return ()
    failed = {finding.component for record in came_back for finding in record.findings}
    return tuple(
        finding
        for finding in found
        if finding.component in failed
        and finding.check in baseline.checks
        and not any(one.covers(finding) for one in baseline.findings)
    )


def kept_out(record: NodeQuarantine | None, found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those for which this node is out already: also when its probation is over, or many nodes show them by now."""
    if record is None or record.state is not State.ACTIVE:
        return ()
    keys = {finding.key for finding in record.findings if finding.severity is not Severity.FATAL}
    return tuple(finding for finding in found if finding.key in keys)


def shown(picture: FleetPicture, quiet: Set[str]) -> dict[str, int]:
    """How many nodes show each code that is enough, however severe it is there. `quiet`: see fleet.decide."""
    counts: dict[str, int] = {}
    for name, node in picture.nodes.items():
        if name not in quiet:
            for code in {one.code for one in node.findings if lesser(one) or one.severity is Severity.FATAL}:
                counts[code] = counts.get(code, 0) + 1
    return counts


# ---------------------------------------------------------------- what stood at the return


def baseline(record: NodeQuarantine, node: NodePicture | None) -> Baseline | None:
    """For a record that ends by a return. None: it is not known, and nothing but what is fatal will isolate it."""
    if record.kind is not Kind.FAULT or node is None or not node.boot_id:
        return None
    stood = [one for one in node.findings if lesser(one) or one.severity is Severity.FATAL]
    if len(stood) > MAX_STOOD:
        return None
    checks = sorted(name for name, check in node.checks.items() if check.state in LOOKED)
    return Baseline(tuple(checks), tuple(map(Ignored.of, stood)))


def still(known: Baseline | None, node: NodePicture) -> Baseline | None:
    """What is left of it: what was seen to be gone acts when it comes again."""
    if known is None or not known.findings:
        return known
    return Baseline(known.checks, remembered(known.findings, node, node.findings))
