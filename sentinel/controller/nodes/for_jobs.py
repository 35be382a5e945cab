"""What the controller of jobs is told of nodes: findings as jobs are to take them, drains, and nodes that were lost.

Records count as they were decided, also while they are being saved.
"""

from collections.abc import Iterable

from sentinel.controller.nodes.cluster import FleetCluster
from sentinel.controller.nodes.known import FleetNodes
from sentinel.core.fleet import causes, fence, probation, words
from sentinel.core.fleet.events import Reason
from sentinel.core.fleet.model import Kind, NodeQuarantine
from sentinel.core.fleet.release import acting
from sentinel.core.fleet.settings import FleetSettings
from sentinel.core.health import Finding, Severity
from sentinel.util.clock import Clock


class ForJobs:
    def __init__(
        self, cluster: FleetCluster, nodes: FleetNodes, settings: FleetSettings, clock: Clock
    ) -> None:
        self._cluster, self._nodes, self._settings, self._clock = cluster, nodes, settings, clock
        self._faults: dict[str, NodeQuarantine] = {}  # by node: its open record for a fault
        # By node: ended records with findings that stay, and all of faults that have ended.
        self._lived_with: dict[str, list[NodeQuarantine]] = {}
        self._past: dict[str, list[NodeQuarantine]] = {}

    def look_over(self, records: Iterable[NodeQuarantine]) -> None:
        """All of them."""
        self._faults, self._lived_with, self._past = {}, {}, {}
        for one in records:
            if one.state.open:
                if one.kind is Kind.FAULT:
                    self._faults[one.node] = one
                continue
            if one.kind is Kind.FAULT:
                self._past.setdefault(one.node, []).append(one)
            if one.ignored:
                self._lived_with.setdefault(one.node, []).append(one)

    def moved(self, record: NodeQuarantine) -> None:
        """It was decided about this one."""
        if record.kind is Kind.FAULT and record.state.open:
            self._faults[record.node] = record
        elif (known := self._faults.get(record.node)) is not None and known.id == record.id:
            del self._faults[record.node]
        if record.kind is Kind.FAULT and not record.state.open:
            others = [one for one in self._past.get(record.node, ()) if one.id != record.id]
            self._past[record.node] = [*others, record]

    def findings(self, node: str) -> tuple[str, list[Finding]]:
        """The boot that its agent told of last, and what its checks find in it but what people live with or ignore.

        What many nodes have is a warning until a person says what it is: no job leaves its nodes for a rule gone wrong.
        """
        boot_id, found = self._nodes.findings(node)
        if said := self._cluster.codes:
            out = causes.ignored(said)
            found = tuple(one for one in found if one.code not in out)
        found = tuple(causes.as_warning(one) if self._undecided(node, one) else one for one in found)
        lived_with, picture = self._lived_with.get(node), self._nodes.pictures.get(node)
        if lived_with and picture is not None:
            found = acting(found, picture, lived_with)
        return boot_id, list(found)

    def _undecided(self, node: str, one: Finding) -> bool:
        """Is it held back since many nodes have it, or may it be in a moment?"""
        if one.severity is not Severity.FATAL:
            return False
        record = self._faults.get(node)
        if record is not None and causes.waits(record):
            return True
        # By its code: of thousands of findings a record names some, and of each code one.
        known = record is not None and any(finding.code == one.code for finding in record.findings)
        return not known and len(self._nodes.fatal.get(one.code, ())) >= self._settings.cause_nodes

    def isolated(self, node: str) -> bool:
        """Is it to be out of service for a fault? It may not be seen in the node itself yet."""
        record = self._faults.get(node)
        return record is not None and record.isolating

    def lost(self, pod: str) -> str:
        """Why the pod with this uid was removed by force from a node that was lost; "": it was not."""
        return fence.removed(self._cluster.records.values(), pod)

    def returned(self, node: str) -> str:
        """When it came back and after what, for a sentence, if it is on probation; "": it is not."""
        if (last := self._last_return(node)) is None:
            return ""
        ago = words.ago(self._clock().wall_s - (last.ended_wall_s or 0.0))
        return f"{ago} ago after {words.findings(last.findings)}"

    def back_lately(self) -> list[str]:
        """The nodes that are on probation, the last that came back first."""
        back = {node: last.ended_wall_s or 0.0 for node in self._past if (last := self._last_return(node))}
        return sorted(back, key=lambda node: (-back[node], node))

    def _last_return(self, node: str) -> NodeQuarantine | None:
        """None: it is not on probation."""
        past = self._past.get(node)
        picture = self._nodes.joined(node) if past else None
        if not past or picture is None:
            return None
        found = probation.returns(past, picture, self._settings, self._clock())
        return probation.last(found) if found else None

    def draining(self) -> dict[str, str]:
        """Nodes from which protected jobs are to move -> who ordered that and why, in a sentence."""
        found = {}
        for record in self._cluster.records.values():
            if record.drain and record.isolating:
                asked = [line.sentence for line in record.story if line.reason == Reason.DRAIN_ORDERED.value]
                found[record.node] = asked[-1] if asked else record.sentence
        return found
