"""What agents tell of the nodes that jobs run on: when they were heard, by whose clock, and what is wrong there."""

from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet

from msgspec import structs

from sentinel.core.agents.clock import AgentClocks, moved
from sentinel.core.health import Component, Finding, Severity
from sentinel.core.reports import Report
from sentinel.transport.wire import Alive, Arrived
from sentinel.util.clock import Clock

RECORDS_S = 1.0
MOST_NAMED = 4  # nodes in one sentence


class JobNodes:
    """`findings(node)`: the boot that its agent told of, and what its checks find in it. `ailing`: nodes of which they
    find anything, as it is now. `draining`: nodes that people want to have free of jobs, and what they said.
    `standing`: nodes that are isolated, or held back by a brake, and what was found there. `unreached`: nodes of which
    nobody is heard. `isolated(node)`: is it to be out of service for a fault? `lost(uid)`: why a pod was removed by
    force from a lost node. `returned(node)`: when it came back and after what, if it is on probation. `back_lately`:
    the nodes that are, the last that came back first."""

    def __init__(
        self,
        findings: Callable[[str], tuple[str, list[Finding]]],
        ailing: AbstractSet[str],
        draining: Callable[[], Mapping[str, str]],
        standing: Callable[[], Mapping[str, Collection[Finding]]],
        unreached: Callable[[], Collection[str]],
        isolated: Callable[[str], bool],
        lost: Callable[[str], str],
        returned: Callable[[str], str],
        back_lately: Callable[[], list[str]],
        clock: Clock,
    ) -> None:
        self._findings, self._ask_draining, self.lost, self._clock = findings, draining, lost, clock
        self._ailing, self._ask_standing, self._ask_unreached = ailing, standing, unreached
        self._isolated, self._returned, self.back_lately = isolated, returned, back_lately
        self._draining: Mapping[str, str] = {}
        self._standing: Mapping[str, Collection[Finding]] = {}
        self._unreached: Collection[str] = ()
        self._asked_mono_s = float("-inf")  # when these were asked last
        self._clocks = AgentClocks()
        self._told_until_mono_s: dict[str, float] = {}  # up to which they have told everything, by our clock

    # ------------------------------------------------------------ what is heard

    def arrived(self, arrived: Arrived) -> Report | None:
        """The report by our own clock; None: it says nothing of jobs."""
        now_s, report = self._clock().mono_s, arrived.report
        if not (report.ranks or report.matches or report.exits):
            return None
        by_s = self._clocks.here(arrived.node, report.boot_id)
        if by_s is None:  # told in a boot that is over, or before its agent said what time it has there
            by_s = now_s - report.now.mono_s
        return moved(structs.replace(report, checks=(), answers=()), by_s)

    def alive(self, alive: Alive) -> None:
        """Only here the times are fresh: a report may have lain in a spool for hours."""
        now_s = self._clock().mono_s
        if alive.now is not None:
            self._clocks.heard(alive.node, alive.boot_id, alive.now.mono_s, now_s)
            by_s = self._clocks.here(alive.node, alive.boot_id) or 0.0
            self._told_until_mono_s[alive.node] = alive.now.mono_s + by_s

    def known_until_mono_s(self, nodes: Iterable[str]) -> float:
        """Agents tell what the logs say every few seconds: silence after this is theirs, not the ranks'."""
        return min((self._told_until_mono_s.get(node, 0.0) for node in nodes), default=0.0)

    def forget(self) -> None:
        """Another one led meanwhile."""
        self._told_until_mono_s.clear()

    # ------------------------------------------------------------ what is wrong

    def some_ail(self, nodes: AbstractSet[str]) -> bool:
        """Can there be `findings` of these?"""
        return not (nodes.isdisjoint(self._ailing) and nodes.isdisjoint(self.draining))

    def findings(self, nodes: Iterable[str]) -> list[Finding]:
        """Of these nodes, with their names and by our clock; what is only worth a note is left out."""
        found = []
        draining = self.draining
        for node in sorted(set(nodes)):
            if node in draining:
                found.append(_to_be_drained(node, draining[node]))
            boot_id, there = self._findings(node)
            by_s = self._clocks.here(node, boot_id) or 0.0
            found += [
                structs.replace(one, node=node, seen_mono_s=one.seen_mono_s + by_s)
                for one in there
                if one.severity.order >= Severity.WARNING.order
            ]
        return found

    @property
    def draining(self) -> Mapping[str, str]:
        self._ask_records()
        return self._draining

    def _ask_records(self) -> None:
        """They are all looked through, and asked for every job."""
        now_s = self._clock().mono_s
        if now_s - self._asked_mono_s >= RECORDS_S:
            self._asked_mono_s = now_s
            self._draining, self._standing = self._ask_draining(), self._ask_standing()
            self._unreached = self._ask_unreached()

    def well(self, node: str) -> bool:
        """Is nothing bad known of it that people do not live with, and is it not to be drained?"""
        return not self._bad(node) and node not in self.draining

    def on_probation(self, nodes: Iterable[str]) -> str:
        """Which of these came back lately, in a sentence; "": none."""
        told = [f"{node} came back {when}" for node in sorted(set(nodes)) if (when := self._returned(node))]
        if not told:
            return ""
        more = f", and {len(told) - MOST_NAMED} more nodes did lately" if len(told) > MOST_NAMED else ""
        return (
            f"On probation: {'; '.join(told[:MOST_NAMED])}{more}. A repair that was none shows within days."
        )

    def unfit(self, components: Collection[str]) -> list[str]:
        """Nodes of which something bad is known about one of these components."""
        wanted = frozenset(components)
        self._ask_records()
        return [node for node in {*self._ailing, *self._standing} if self._bad(node) & wanted]

    def leaving(self, node: str) -> bool:
        """Is it to be out of service?"""
        return self._isolated(node) or node in self.draining

    def unreached(self) -> Collection[str]:
        """Nodes of which nobody is heard: a scheduler gives them pods until their kubelet has been silent for long."""
        self._ask_records()
        return self._unreached

    def _bad(self, node: str) -> frozenset[str]:
        """The components. Of an agent that this leader has not heard yet, by what is recorded."""
        self._ask_records()
        if node not in self._ailing and node not in self._standing:
            return frozenset()
        boot_id, told = self._findings(node)
        found: Collection[Finding] = told if boot_id else self._standing.get(node, ())
        return frozenset(
            one.component.value for one in found if one.severity.order >= Severity.DEGRADED.order
        )


def _to_be_drained(node: str, asked: str) -> Finding:
    """A person's order as what is known of the node: its jobs move by the rules for one that goes bad slowly."""
    return Finding(
        check="drain",
        component=Component.SYSTEM,
        entity=node,
        code="drain",
        severity=Severity.DEGRADED,
        action="DRAIN",
        summary=asked,
        node=node,
    )
