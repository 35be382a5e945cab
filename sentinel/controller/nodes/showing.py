"""What nodes show of their records: Sentinel's mark, at once, and conditions, a few nodes at a time."""

from collections.abc import Callable, Collection
from functools import partial

from sentinel.controller.nodes.cluster import FleetCluster
from sentinel.controller.nodes.known import FleetNodes
from sentinel.core.fleet import marks
from sentinel.core.fleet.model import NodeCondition, NodePicture, NodeQuarantine
from sentinel.util.works import Works

CONDITIONS_AT_ONCE = 8

# of a node with these records: those that it should have and does not
Conditions = Callable[[NodePicture, list[NodeQuarantine]], tuple[NodeCondition, ...]]


class Showing:
    def __init__(
        self, cluster: FleetCluster, nodes: FleetNodes, works: Works, conditions: Conditions
    ) -> None:
        self._cluster, self._nodes, self._works, self._conditions = cluster, nodes, works, conditions
        self._untold: dict[str, None] = {}  # nodes whose conditions differ from what they should say

    def clear(self) -> None:
        self._untold.clear()

    def begin(self, names: Collection[str]) -> None:
        """Begin to make these nodes show what their records say. Conditions come later."""
        records = marks.by_node(self._cluster.records.values())
        for name in names:
            if name not in self._nodes.pictures or (name in self._nodes.plain and name not in records):
                continue
            if (node := self._nodes.joined(name)) is None:
                continue
            own = records.get(name, [])
            if self._conditions(node, own):
                self._untold[name] = None
            self._mark(node, own)

    def saved(self, name: str) -> None:
        """A record of this node: what follows comes before all that waits."""
        if name in self._nodes.pictures and (node := self._nodes.joined(name)) is not None:
            self._mark(node, self._records(name), next=True)

    def _mark(self, node: NodePicture, own: list[NodeQuarantine], *, next: bool = False) -> None:
        if (wanted := marks.write(node, own)) is not None:
            mark = partial(self._cluster.mark, wanted)
            self._works.go(node.name, "show", mark, urgent=wanted.taint is not None, next=next)

    def tell_conditions(self) -> None:
        """Of a few nodes, so that no cordon waits for many of them."""
        room = CONDITIONS_AT_ONCE - self._works.of("condition")
        for name in [*self._untold]:
            if room <= 0:
                return
            if self._works.go(name, "condition", partial(self._set_conditions, name)):
                del self._untold[name]
                room -= 1

    async def _set_conditions(self, name: str) -> None:
        node = self._nodes.joined(name)
        if node is not None and (wanted := self._conditions(node, self._records(name))):
            await self._cluster.set_conditions(name, wanted)

    def _records(self, name: str) -> list[NodeQuarantine]:
        return marks.by_node(self._cluster.records_of(name)).get(name, [])
