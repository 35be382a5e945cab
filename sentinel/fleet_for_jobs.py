"""What the controller of jobs is told of nodes: findings as jobs are to take them, drains, and nodes that were lost.

Records count as they were decided, also while they are being saved.
"""

from collections.abc import Iterable

from sentinel.core import fleet_causes, fleet_fence
from sentinel.core.fleet_events import Reason
from sentinel.core.fleet_model import Kind, NodeQuarantine
from sentinel.core.fleet_release import acting
from sentinel.core.health import Finding, Severity
from sentinel.fleet_cluster import FleetCluster
from sentinel.fleet_nodes import FleetNodes


class ForJobs:
    """`cause_nodes`: so many nodes with one code may have a common cause."""

    def __init__(self, cluster: FleetCluster, nodes: FleetNodes, cause_nodes: int) -> None:
        self._cluster, self._nodes, self._cause_nodes = cluster, nodes, cause_nodes
        self._faults: dict[str, NodeQuarantine] = {}  # by node: its open record for a fault
        # By node: ended records with findings that stay.
        self._lived_with: dict[str, list[NodeQuarantine]] = {}

    def look_over(self, records: Iterable[NodeQuarantine]) -> None:
        """All of them."""
        self._faults, self._lived_with = {}, {}
        for one in records:
            if one.state.open and one.kind is Kind.FAULT:
                self._faults[one.node] = one
            elif one.ignored and not one.state.open:
                self._lived_with.setdefault(one.node, []).append(one)

    def moved(self, record: NodeQuarantine) -> None:
        """It was decided about this one."""
        if record.kind is Kind.FAULT and record.state.open:
            self._faults[record.node] = record
        elif (known := self._faults.get(record.node)) is not None and known.id == record.id:
            del self._faults[record.node]

    def findings(self, node: str) -> tuple[str, list[Finding]]:
        """The boot that its agent told of last, and what its checks find in it but what people live with or ignore.

        What many nodes have is a warning until a person says what it is: no job leaves its nodes for a rule gone wrong.
        """
        boot_id, found = self._nodes.findings(node)
        if words := self._cluster.codes:
            out = fleet_causes.ignored(words)
            found = tuple(one for one in found if one.code not in out)
        found = tuple(fleet_causes.as_warning(one) if self._undecided(node, one) else one for one in found)
        lived_with, picture = self._lived_with.get(node), self._nodes.pictures.get(node)
        if lived_with and picture is not None:
            found = acting(found, picture, lived_with)
        return boot_id, list(found)

    def _undecided(self, node: str, one: Finding) -> bool:
        """Is it held back since many nodes have it, or may it be in a moment?"""
        if one.severity is not Severity.FATAL:
            return False
        record = self._faults.get(node)
        if record is not None and fleet_causes.waits(record):
            return True
        # By its code: of thousands of findings a record names some, and of each code one.
        known = record is not None and any(finding.code == one.code for finding in record.findings)
        return not known and len(self._nodes.fatal.get(one.code, ())) >= self._cause_nodes

    def lost(self, pod: str) -> str:
        """Why the pod with this uid was removed by force from a node that was lost; "": it was not."""
        return fleet_fence.removed(self._cluster.records.values(), pod)

    def draining(self) -> dict[str, str]:
        """Nodes from which protected jobs are to move -> who ordered that and why, in a sentence."""
        found = {}
        for record in self._cluster.records.values():
            if record.drain and record.isolating:
                asked = [line.sentence for line in record.story if line.reason == Reason.DRAIN_ORDERED.value]
                found[record.node] = asked[-1] if asked else record.sentence
        return found
