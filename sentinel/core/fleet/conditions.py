"""Node conditions: Sentinel's own at detection, and those on which node repair acts when that harms nobody. Pure.

Others act on conditions: a repair system that reads one may restart the node in the middle of a save. So theirs are
written only for a node that is isolated, when the last protected pod has left or its deadline has passed. A condition
that somebody else writes is left to him. Everything is written on change only.
"""

from collections.abc import Sequence

from sentinel.core.fleet import words
from sentinel.core.fleet.events import Reason
from sentinel.core.fleet.model import (
    Kind,
    Mode,
    NodeCondition,
    NodePicture,
    NodeQuarantine,
    State,
)
from sentinel.core.fleet.probation import only_lesser
from sentinel.core.fleet.release import standing
from sentinel.core.fleet.settings import FleetSettings
from sentinel.core.health import Severity
from sentinel.core.now import Now

OWN = "SentinelHealthy"
OURS = "Sentinel"  # every reason of a condition that Sentinel wrote for others begins so
ISOLATED, RETURNED = OURS + "Quarantine", OURS + "Released"


def writes(
    node: NodePicture,
    records: Sequence[NodeQuarantine],
    settings: FleetSettings,
    now: Now,
    *,
    paused: bool = False,
) -> tuple[NodeCondition, ...]:
    """The conditions that must be written. `records`: all of this node. While paused nothing new is said of a fault."""
    present = {condition.type: condition for condition in node.conditions}
    own = [record for record in records if record.node_uid == node.uid and record.mode is Mode.ENFORCE]
    wanted = [_own(node, own), *_for_repair(node, own, present, settings, now)]
    return tuple(
        condition
        for condition in wanted
        if present.get(condition.type) != condition
        and (condition.status != "True" or condition.type in present)
        and (condition.status == "True" or not paused)
    )


def _own(node: NodePicture, records: Sequence[NodeQuarantine]) -> NodeCondition:
    """True: no fault is known. False: one is. Unknown: the node is not heard."""
    opened = [record for record in records if record.state.open]
    for kind in (Kind.FAULT, Kind.DISK):
        for record in opened:
            if record.kind is kind:
                reason = Reason.FATAL_FINDING if kind is Kind.FAULT else Reason.DISK_FULL
                if only_lesser(record):
                    reason = Reason.ON_PROBATION
                return NodeCondition(OWN, "False", reason.value, _message(record))
    for record in opened:
        if record.kind is Kind.SILENCE:
            reason = Reason.AGENT_SILENT if record.reason == Reason.AGENT_SILENT.value else Reason.UNREACHABLE
            return NodeCondition(OWN, "Unknown", reason.value, record.sentence)
    if any(record.ignored for record in records) and (found := standing(node, Kind.FAULT)):
        return NodeCondition(
            OWN, "False", "Overridden", f"A person keeps it in service with {words.findings(found)}."
        )
    return NodeCondition(OWN, "True", "NoFatalFinding", "No finding that isolates a node is known.")


def _message(record: NodeQuarantine) -> str:
    found = f"{words.findings(record.findings)}."
    return (
        found
        if record.state is State.ACTIVE
        else f"{found} Still in service: {words.BRAKES[record.held_by]}."
    )


def _for_repair(
    node: NodePicture,
    records: Sequence[NodeQuarantine],
    present: dict[str, NodeCondition],
    settings: FleetSettings,
    now: Now,
) -> list[NodeCondition]:
    faults = [record for record in records if record.isolating and record.kind is Kind.FAULT]
    harmless = all(
        not pod.protected or (pod.deadline_mono_s is not None and now.mono_s >= pod.deadline_mono_s)
        for pod in node.pods
    )
    wanted = []
    for row in settings.repair_conditions:
        there = present.get(row.type)
        if there is not None and not there.reason.startswith(OURS):
            continue  # somebody else writes it
        found = [
            finding
            for record in faults
            for finding in record.findings
            if finding.component is row.component and finding.severity is Severity.FATAL
        ]
        if found and harmless:
            wanted.append(NodeCondition(row.type, "False", ISOLATED, f"{words.findings(found)}."))
        elif not found:
            wanted.append(
                NodeCondition(row.type, "True", RETURNED, "No finding that isolates a node is known.")
            )
    return wanted
