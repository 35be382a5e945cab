"""Records of the fleet while they are being saved, and what is to be told of them afterwards."""

from collections.abc import Callable, Iterable, Mapping

from sentinel.core.fleet_events import Decision, DoEvent, DoTell, Effect, Open
from sentinel.core.fleet_model import Kind, NodePicture, NodeQuarantine, State
from sentinel.fleet_cluster import FleetCluster


class Pending:
    """Records as they are to be, until it is known whether they were saved."""

    def __init__(self, cluster: FleetCluster) -> None:
        self._cluster = cluster
        self._records: dict[str, NodeQuarantine] = {}

    def clear(self) -> None:
        self._records.clear()

    def add(self, records: Iterable[NodeQuarantine]) -> None:
        self._records.update((one.id, one) for one in records)

    def ended(self, node: str) -> None:
        """Of this node nothing is being saved any more. What became of a save may still be unknown."""
        for one in [*self._records.values()]:
            if one.node == node and not self._cluster.unsure(one):
                del self._records[one.id]

    def __contains__(self, id: str) -> bool:
        return id in self._records

    @property
    def records(self) -> Iterable[NodeQuarantine]:
        return self._records.values()

    @property
    def silences(self) -> int:
        return sum(one.kind is Kind.SILENCE for one in self._records.values())

    def counted(self) -> Mapping[str, NodeQuarantine]:
        """The records, and of those that are being saved what takes more room of the brakes: before, or after it."""
        records = self._cluster.records
        return {**records, **{id: _taking_more(records.get(id), one) for id, one in self._records.items()}}


def _taking_more(before: NodeQuarantine | None, after: NodeQuarantine) -> NodeQuarantine:
    return before if before is not None and before.state is State.ACTIVE is not after.state else after


class Telling:
    """What was decided is told once it is saved, and that a node is out of service once the node shows that.

    `tell` writes a line for people; `mail_waits` is called when something new is to be told by mail.
    """

    def __init__(
        self, cluster: FleetCluster, tell: Callable[[str], None], mail_waits: Callable[[], None]
    ) -> None:
        self._cluster, self._tell, self._mail_waits = cluster, tell, mail_waits
        self._told: set[str] = set()
        self._unsaid: dict[str, dict[str, list[Effect]]] = {}  # by node and record

    def clear(self) -> None:
        self._told.clear()
        self._unsaid.clear()

    def saved(self, record: NodeQuarantine, effects: Iterable[Effect]) -> None:
        """Of what never came to be shown nothing is told when it is over."""
        own = self._unsaid.setdefault(record.node, {})
        earlier = own.pop(record.id, []) if record.isolating else []
        own[record.id] = [*earlier, *effects]

    def shown(self, name: str, node: NodePicture | None, error: Exception | None) -> None:
        """Something was written about this node, or not."""
        left = {}
        for id, effects in self._unsaid.pop(name, {}).items():
            record = self._cluster.record(id)
            if record is None or not record.isolating or node is None or node.mark is not None:
                self._say(effects)
                continue
            left[id] = effects
            if error is not None:
                what = f"Node {name} is to be out of service, and cannot be marked yet: {error}"
                self._once(f"unmarked {id}", what)
        if left:
            self._unsaid[name] = left

    def _say(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, DoEvent):
                self._cluster.event(effect)
            elif isinstance(effect, DoTell):
                self._once(effect.key, effect.sentence)
                self._mail_waits()

    def _once(self, key: str, sentence: str) -> None:
        if key not in self._told:
            self._told.add(key)
            self._tell(sentence)


def without_a_flood_of_silences(
    decisions: tuple[Decision, ...], records: Mapping[str, NodeQuarantine], room: int
) -> tuple[Decision, ...]:
    """Those of `room` silent nodes, and all others. The rest is decided again in a later round: thousands of silent
    nodes hold up no cordon."""
    silences: dict[str, None] = {}
    for one in decisions:
        known = records.get(one.record)
        kind = one.event.kind if isinstance(one.event, Open) else known.kind if known is not None else None
        if kind is Kind.SILENCE:
            silences[one.record] = None
    left = frozenset([*silences][max(0, room) :])
    return tuple(one for one in decisions if one.record not in left)
