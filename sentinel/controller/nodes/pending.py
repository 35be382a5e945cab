"""Records of the fleet while they are being saved, and what is to be told of them afterwards."""

from collections.abc import Callable, Iterable, Mapping

from sentinel.controller.nodes.cluster import FleetCluster
from sentinel.core.fleet import lost
from sentinel.core.fleet.events import Decision, DoEvent, DoTell, Effect, Open, Reason
from sentinel.core.fleet.model import Kind, NodePicture, NodeQuarantine, State

LINE_S = 12.0  # for which a line about silent nodes waits at most


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

    def __contains__(self, id: object) -> bool:
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

    What falls silent together is told in one line: silences wait for the next turn. `tell` writes a line for people;
    `mail_waits` is called when something new is to be told by mail.
    """

    def __init__(
        self, cluster: FleetCluster, tell: Callable[[str], None], mail_waits: Callable[[], None]
    ) -> None:
        self._cluster, self._tell, self._mail_waits = cluster, tell, mail_waits
        self._told: set[str] = set()
        self._unsaid: dict[str, dict[str, list[Effect]]] = {}  # by node and record
        # What is to be told of silent nodes, by what it is about: the record and its own line.
        self._silences: dict[Reason, list[tuple[NodeQuarantine, DoTell]]] = {}
        self._waiting: dict[str, Reason] = {}  # record -> what of it is to be told there
        self._since_mono_s: float | None = None  # since when they wait: the first turn that found them
        self._grew = False  # since the last turn

    def clear(self) -> None:
        self.say()
        self._told.clear()
        self._unsaid.clear()

    def turn(self, mono_s: float, *, more: bool = False) -> None:
        """A whole round has ended: silences are told if it brought no further one and left none (`more`), or after
        LINE_S."""
        if self._silences and self._since_mono_s is None:
            self._since_mono_s = mono_s
        since_mono_s = mono_s if self._since_mono_s is None else self._since_mono_s
        if not (self._grew or more) or mono_s - since_mono_s >= LINE_S:
            self.say()
        self._grew = False

    def say(self) -> None:
        """What waits to be told of silent nodes is told now."""
        silences, self._silences, self._since_mono_s = self._silences, {}, None
        self._waiting.clear()
        for about, rows in silences.items():
            self._say_of_many(about, rows)

    def _say_of_many(self, about: Reason, rows: list[tuple[NodeQuarantine, DoTell]]) -> None:
        records = [*{record.id: record for record, _ in rows}.values()]
        if len(lost.nodes_of(records)) >= lost.MANY:
            self._tell(lost.line(about, records))
            return
        for _, one in rows:
            self._tell(one.sentence)

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
                self._say(effects, record)
                continue
            left[id] = effects
            if error is not None:
                what = f"Node {name} is to be out of service, and cannot be marked yet: {error}"
                self._once(f"unmarked {id}", what)
        if left:
            self._unsaid[name] = left

    def _say(self, effects: Iterable[Effect], record: NodeQuarantine | None) -> None:
        for effect in effects:
            if isinstance(effect, DoEvent):
                self._cluster.event(effect)
            elif isinstance(effect, DoTell):
                about = lost.TOGETHER.get(effect.reason)
                if about is not None and record is not None and record.kind is Kind.SILENCE:
                    self._later(about, record, effect)
                else:
                    if record is not None and record.id in self._waiting:
                        self.say()
                    self._once(effect.key, effect.sentence)
                self._mail_waits()

    def _later(self, about: Reason, record: NodeQuarantine, one: DoTell) -> None:
        if one.key in self._told:
            return
        self._told.add(one.key)
        if self._waiting.get(record.id, about) is not about:
            self.say()  # what came before is told before
        self._waiting[record.id] = about
        self._silences.setdefault(about, []).append((record, one))
        self._grew = True

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
