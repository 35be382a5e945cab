"""What nodes show of their records: Sentinel's mark, at once, and conditions, a few nodes at a time."""

from collections.abc import Callable, Collection, Iterator
from functools import partial

from sentinel.core import fleet_marks
from sentinel.core.fleet_marks import MarkWrite
from sentinel.core.fleet_model import NodeCondition, NodePicture, NodeQuarantine
from sentinel.fleet_cluster import FleetCluster
from sentinel.fleet_nodes import FleetNodes
from sentinel.works import Works

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

    def begin(self, names: Collection[str], *, next: bool = False) -> None:
        """Begin to make these nodes show what their records say. `next`: before what waits."""
        for wanted in self._outstanding(names):
            mark = partial(self._cluster.mark, wanted)
            self._works.go(wanted.node, "show", mark, urgent=wanted.taint is not None, next=next)

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
        if node is not None and (wanted := self._conditions(node, self._records([name]).get(name, []))):
            await self._cluster.set_conditions(name, wanted)

    def _outstanding(self, names: Collection[str]) -> Iterator[MarkWrite]:
        """What these nodes must be made to show; those whose conditions differ are noted besides."""
        nodes, records = self._nodes, self._records(names)
        for name in names:
            if name not in nodes.pictures or (name in nodes.plain and name not in records):
                continue
            if (node := nodes.joined(name)) is None:
                continue
            own = records.get(name, [])
            if self._conditions(node, own):
                self._untold[name] = None
            if (wanted := fleet_marks.write(node, own)) is not None:
                yield wanted

    def _records(self, names: Collection[str]) -> dict[str, list[NodeQuarantine]]:
        """By node."""
        there = names if len(names) < 10 else {*names}
        return fleet_marks.by_node(one for one in self._cluster.records.values() if one.node in there)
