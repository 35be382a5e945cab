"""What the leading controller knows of each node: what the cluster shows of it, joined with what its agent told.

Of ten thousand nodes nearly all are plain and speak: they are looked at again only when they change, or when the last
look is so old that it no longer shows that they speak.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Set
from typing import Protocol

from msgspec import structs

from sentinel.controller.nodes.recording import Recorder
from sentinel.core.fleet.bounds import bounded, is_mono
from sentinel.core.fleet.causes import fatal_codes
from sentinel.core.fleet.clock import AgentClocks
from sentinel.core.fleet.fold import hear, present
from sentinel.core.fleet.model import NodePicture, NodeQuarantine, Order
from sentinel.core.fleet.node import plain
from sentinel.core.fleet.recording import FRESH_S
from sentinel.core.health import Finding
from sentinel.core.reports import Report
from sentinel.transport.wire import Alive, Arrived
from sentinel.util.clock import Clock

GONE_S = 3600.0  # after that what was heard of a node that is not there is let go
AT_A_TIME = 200  # nodes that are looked at in one go, about 5 ms
AHEAD_S = (
    2.0  # a node whose last look becomes too old within this is looked at before a round about all nodes
)


class Shown(Protocol):
    """The cluster's side."""

    def names(self) -> Collection[str]:
        """Of all nodes."""

    def node(self, name: str) -> NodePicture | None:
        """What the cluster shows of it; nothing that its agent told."""

    def lease_mono_s(self, name: str) -> float | None:
        """When its kubelet renewed its lease last; None: never."""

    @property
    def orders(self) -> tuple[Order, ...]:
        """What people ordered and nobody has answered yet."""


class FleetNodes:
    """`owes`: is a condition of this node to be written, if it has no record? `pictures` are as of the last look."""

    def __init__(
        self,
        cluster: Shown,
        clock: Clock,
        owes: Callable[[NodePicture], bool],
        recorder: Recorder | None = None,
    ) -> None:
        self.pictures: dict[str, NodePicture] = {}
        self.plain: set[str] = set()  # of which nothing is to be decided or written unless there is a record
        self.quiet: set[str] = set()  # and which were heard just now, in the last round about all nodes
        self.changed: set[str] = set()  # since they were looked at
        self.ailing: set[str] = set()  # whose agents' checks find anything, in the boot that was heard last
        self.fatal: dict[str, set[str]] = {}  # code -> nodes whose agents tell of such a fatal finding
        self.looked: dict[str, None] = {}  # at these, since the last round that was recorded
        # By name: what its agent told in each boot, in pictures without an object. The last that was heard is first.
        self._heard: dict[str, tuple[NodePicture, ...]] = {}
        self.clocks = AgentClocks()
        self._cluster = cluster
        self._clock = clock
        self._owes = owes
        self._recorder = recorder

    def forget(self) -> None:
        """What was heard under another leadership. Agents tell it again: each comes with a full report."""
        self._heard.clear()
        self.clocks.forget()
        self.ailing.clear()
        self.fatal.clear()
        self.pictures = {}
        self.plain.clear()
        self.quiet.clear()
        self.looked.clear()

    # ------------------------------------------------------------ what is heard

    def arrived(self, arrived: Arrived) -> bool:
        """A report of a node's agent: is anything else than before? Raises ValueError: it is no use."""
        name, report = arrived.node, _promised(arrived, bounded(arrived.report))
        now = self._clock()
        heard, before, after = hear(self._heard.get(name, ()), name, arrived.node_uid, report, now)
        self._keep(name, heard)
        if before is not None and after.checks is before.checks and after.fences is before.fences:
            return False
        if self._recorder is not None:
            before_mono_s = 0.0 if before is None else before.told_mono_s
            self._recorder.told(now, name, arrived.node_uid, before_mono_s, report)
        return True

    def alive(self, alive: Alive) -> None:
        """A request of a node's agent: what it told before is still so, also where it has nothing new to tell."""
        now = self._clock()
        if alive.now is not None:
            self.clocks.heard(alive.node, alive.now.wall_s, now.wall_s, now.mono_s)
        known = self._heard.get(alive.node, ())
        same = [one for one in known if (one.uid, one.boot_id) == (alive.node_uid, alive.boot_id)]
        if same:
            told_mono_s = same[0].told_mono_s
            if alive.now is not None and is_mono(alive.now.mono_s):
                told_mono_s = max(told_mono_s, alive.now.mono_s)
            after = structs.replace(same[0], agent_mono_s=now.mono_s, told_mono_s=told_mono_s)
            self._keep(alive.node, (after, *(one for one in known if one is not same[0])))

    def _keep(self, name: str, heard: tuple[NodePicture, ...]) -> None:
        last, self._heard[name] = self.last_heard(name), heard
        if last is None or last.checks is not heard[0].checks:
            finds = any(check.findings for check in heard[0].checks.values())
            (self.ailing.add if finds else self.ailing.discard)(name)
            if finds:
                self.quiet.discard(name)
            self._note_fatal(name, fatal_codes(heard[0].findings) if finds else frozenset())

    def _note_fatal(self, name: str, codes: Set[str]) -> None:
        for code in [code for code, nodes in self.fatal.items() if name in nodes and code not in codes]:
            self.fatal[code].discard(name)
            if not self.fatal[code]:
                del self.fatal[code]
        for code in codes:
            self.fatal.setdefault(code, set()).add(name)

    @property
    def heard(self) -> Mapping[str, tuple[NodePicture, ...]]:
        """By name: what its agent told in each boot, the last that was heard first."""
        return self._heard

    def last_heard(self, node: str) -> NodePicture | None:
        """What its agent told last, in a picture without the object; None: nothing since this process leads."""
        return next(iter(self._heard.get(node, ())), None)

    def findings(self, node: str) -> tuple[str, tuple[Finding, ...]]:
        """The boot that its agent told of last, and all that its checks find in it."""
        last = self.last_heard(node)
        if last is None:
            return "", ()
        return last.boot_id, tuple(one for check in last.checks.values() for one in check.findings)

    @property
    def unheard(self) -> int:
        """Nodes of which no agent has told anything since this process leads: nothing is known of them."""
        return len({*self._cluster.names()} - self._heard.keys())

    # ------------------------------------------------------------ what is looked at

    def joined(self, name: str) -> NodePicture | None:
        """As it is now; None: it is not there."""
        shown = self._cluster.node(name)
        return None if shown is None else present(shown, self._heard.get(name, ()))

    def look_at(self, names: Collection[str]) -> None:
        for name in names:
            self._look_at(name)

    async def look_ahead(self, seconds: float, turn: Callable[[], Awaitable[object]]) -> None:
        """Look at what would soon be looked at in one go, some nodes at a time, for at most so long.

        `turn` is awaited in between where something has changed, which waits for none of the others then.
        """
        begun_mono_s = self._clock().mono_s
        names = [*self._cluster.names()]
        for start in range(0, len(names), AT_A_TIME):
            since_mono_s = self._clock().mono_s - FRESH_S + AHEAD_S
            some = [name for name in names[start : start + AT_A_TIME] if name in self.plain]
            speaking = self._speaking(some, since_mono_s)
            for name in some:
                if name not in speaking:
                    self._look_again(name)
            await turn()
            if self._clock().mono_s - begun_mono_s > seconds:
                return

    def look_around(self, records: Mapping[str, NodeQuarantine]) -> None:
        """Looks at all nodes but those that are plain, unchanged, and were heard just now when they were looked at
        last: no silence is judged so soon. Of ten thousand nodes that spares most."""
        self._let_go()
        must = {*self.changed, *(order.node for order in self._cluster.orders)}
        must.update(record.node for record in records.values() if record.state.open or record.ignored)
        fresh_mono_s = self._clock().mono_s - FRESH_S
        names, pictures = self._cluster.names(), self.pictures
        self.look_at([name for name in pictures if name not in names])
        quiet = self._speaking(self.plain - must, fresh_mono_s)
        looked = [name for name in names if name not in quiet]
        self.look_at(looked)
        self.quiet = quiet | self._speaking(self.plain.intersection(looked), fresh_mono_s)

    def _speaking(self, plain: Collection[str], since_mono_s: float) -> set[str]:
        """Of these plain ones those whose agent and kubelet were heard since then, as far as their pictures show."""
        pictures = self.pictures
        return {
            name
            for name in plain
            if (agent_s := (node := pictures[name]).agent_mono_s) is not None
            and (lease_s := node.lease_mono_s) is not None
            and min(agent_s, lease_s) > since_mono_s
        }

    def _look_again(self, name: str) -> None:
        """At a plain one: where nothing has changed, only how lately it was heard can be other than it was."""
        before, heard = self.pictures[name], self._heard.get(name, ())
        same = len(heard) == 1 and heard[0].uid in ("", before.uid) and heard[0].checks is before.checks
        same = same and heard[0].fences is before.fences
        if name in self.changed or not same or heard[0].boot_id != before.boot_id:
            self._look_at(name)
            return
        self.looked[name] = None
        self.pictures[name] = structs.replace(
            before,
            agent_mono_s=heard[0].agent_mono_s,
            told_mono_s=heard[0].told_mono_s,
            lease_mono_s=self._cluster.lease_mono_s(name),
        )

    def _look_at(self, name: str) -> None:
        self.looked[name] = None
        before, node = self.pictures.get(name), self.joined(name)
        if node is None:
            self.pictures.pop(name, None)
            self.plain.discard(name)
            return
        self.pictures[name] = node
        same = before is not None and before.checks is node.checks and before.taints is node.taints
        if not same or before is None or before.conditions is not node.conditions:
            is_plain = plain(node) and not (node.conditions and self._owes(node))
            (self.plain.add if is_plain else self.plain.discard)(name)

    def _let_go(self) -> None:
        """What agents of nodes told that are long gone. A node's agent may be heard before its object is seen."""
        before_mono_s = self._clock().mono_s - GONE_S
        names = self._cluster.names()
        for name in [name for name in self._heard if name not in names]:
            if all((one.agent_mono_s or 0.0) < before_mono_s for one in self._heard[name]):
                del self._heard[name]
                self.ailing.discard(name)
                self._note_fatal(name, frozenset())


def _promised(arrived: Arrived, report: Report) -> Report:
    """What an agent ends by itself holds for as long as its process: each connection begins with all of it, and one
    that does not say it is of a version that cannot."""
    if arrived.full:
        return report if report.fences is not None else structs.replace(report, fences={})
    return structs.replace(report, fences=None) if arrived.late and report.fences is not None else report
