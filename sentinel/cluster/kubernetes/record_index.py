"""The fleet's records by id and by node, kept as the store changes: thousands of them are asked for at each write."""

from collections.abc import Mapping

from sentinel.core.fleet.model import NodeQuarantine


class RecordIndex:
    def __init__(self) -> None:
        self._by_id: dict[str, NodeQuarantine] = {}
        self._by_node: dict[str, dict[str, NodeQuarantine]] = {}

    def moved(self, before: NodeQuarantine | None, after: NodeQuarantine | None) -> None:
        """For `Store`. A record that is still there keeps its place: what is decided must not hang on which was
        written last."""
        if before is not None and (after is None or before.id != after.id):
            del self._by_id[before.id]
        if before is not None and (after is None or (before.id, before.node) != (after.id, after.node)):
            own = self._by_node[before.node]
            del own[before.id]
            if not own:
                del self._by_node[before.node]
        if after is not None:
            self._by_id[after.id] = after
            self._by_node.setdefault(after.node, {})[after.id] = after

    @property
    def records(self) -> Mapping[str, NodeQuarantine]:
        """By id. Does not change in the hands of who asked for it."""
        return dict(self._by_id)

    def of(self, node: str) -> list[NodeQuarantine]:
        return [*self._by_node.get(node, {}).values()]
