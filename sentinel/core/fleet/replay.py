"""A recording through the same `rounds.decide`: what was decided, or what other settings would have decided. Pure.

As recorded, records and marks of nodes are those that the recording shows: so each round is decided from what the
controller decided from. With other settings they are those that follow from the replay's own decisions: Sentinel's own
marks are taken off the recorded nodes, and what people did because of them is not known to be different.
"""

from collections.abc import Iterable, Iterator

from msgspec import Struct, structs

from sentinel.core.fleet import marks as fleet_marks
from sentinel.core.fleet import rounds
from sentinel.core.fleet.events import Decision
from sentinel.core.fleet.fold import hear, present
from sentinel.core.fleet.model import QUARANTINE_TAINT, FleetPicture, NodePicture, NodeQuarantine, Taint
from sentinel.core.fleet.record import step
from sentinel.core.fleet.recording import NOW, Beat, Entry, Heard, Record, Round, Shown, Start, Told
from sentinel.core.fleet.settings import FleetSettings
from sentinel.core.now import Now


class Replayed(Struct, frozen=True):
    """One round: what it decides now, and what the recording says that it decided."""

    now: Now
    decided: tuple[Decision, ...]
    recorded: tuple[Decision, ...]


class Replay:
    """`settings` None: as recorded. Raises ValueError where an entry cannot follow what came before."""

    def __init__(self, settings: FleetSettings | None = None) -> None:
        self._settings = settings
        self._start: Start | None = None
        self._clear()

    def _clear(self) -> None:
        self._heard: dict[str, tuple[NodePicture, ...]] = {}
        self._shown: dict[str, NodePicture] = {}
        self._beats: dict[str, Beat] = {}
        self._nodes: dict[str, NodePicture] = {}  # as they were when they were last looked at
        self._records: dict[str, NodeQuarantine] = {}
        self._begun = False  # has a round been decided since the start?
        self._marks: dict[str, tuple[Taint | None, bool]] = {}  # with other settings: taint, and our cordon
        self._removed: set[str] = set()  # and the pods that would have been removed

    def run(self, entries: Iterable[Entry]) -> Iterator[Replayed]:
        for entry in entries:
            if isinstance(entry, Round):
                yield self._round(entry)
            else:
                self._take(entry)

    def _take(self, entry: Entry) -> None:
        match entry:
            case Start():
                self._started(entry)
            case Heard():
                self._heard[entry.node] = entry.boots
            case Told():
                known = self._heard.get(entry.node, ())
                known = tuple(
                    structs.replace(one, told_mono_s=entry.before_mono_s)
                    if (one.uid, one.boot_id) == (entry.uid, entry.report.boot_id)
                    else one
                    for one in known
                )
                self._heard[entry.node] = hear(known, entry.node, entry.uid, entry.report, entry.now)[0]
            case Shown():
                if entry.picture is None:
                    self._shown.pop(entry.node, None)
                else:
                    self._shown[entry.node] = entry.picture
            case Beat():
                self._beats[entry.node] = entry
            case Record() if self._settings is None or not self._begun:
                if entry.record is None:
                    self._records.pop(entry.id, None)
                else:
                    self._records[entry.id] = entry.record

    def _started(self, start: Start) -> None:
        """The next file of the same leadership goes on with what other settings have led to."""
        before, records, marks, removed = self._start, self._records, self._marks, self._removed
        begun = self._begun
        self._clear()
        self._start = start
        if self._settings is not None and begun and before is not None and before.epoch == start.epoch:
            self._records, self._marks, self._removed, self._begun = records, marks, removed, True

    # ------------------------------------------------------------ one round

    def _round(self, entry: Round) -> Replayed:
        if self._start is None:
            raise ValueError("a round before the start of a recording")
        if self._settings is not None and not self._begun:
            self._marks = {name: _mark(node) for name, node in self._shown.items()}
        self._begun = True
        names = self._shown.keys() if entry.only is None else entry.only
        self._nodes = (
            {}
            if entry.only is None
            else {name: node for name, node in self._nodes.items() if name in self._shown}
        )
        for name in names:
            if name in self._shown:
                self._nodes[name] = self._joined(name, entry.now)
        picture = FleetPicture(
            nodes=self._nodes,
            epoch=self._start.epoch,
            complete=entry.complete,
            watching_since_mono_s=entry.watching_since_mono_s,
            leases_mono_s=entry.leases_mono_s,
            crowded_mono_s=entry.crowded_mono_s,
            paused=entry.paused,
            orders=entry.orders,
            codes=entry.codes,
            fenced=entry.fenced,
            orphans=entry.orphans,
            # What is decided with other settings is written at once.
            busy=frozenset(entry.busy if self._settings is None else ()),
        )
        settings = self._settings or self._start.settings
        decided = rounds.decide(picture, self._records, settings, entry.now, entry.only)
        if self._settings is not None:
            self._follow(decided, picture, entry.now)
        return Replayed(entry.now, decided, entry.decisions)

    def _joined(self, name: str, now: Now) -> NodePicture:
        node = present(self._shown[name], self._heard.get(name, ()))
        beat = self._beats.get(name)
        if beat is not None:
            node = structs.replace(
                node,
                agent_mono_s=now.mono_s if beat.agent_mono_s == NOW else beat.agent_mono_s,
                lease_mono_s=now.mono_s if beat.lease_mono_s == NOW else beat.lease_mono_s,
                told_mono_s=node.told_mono_s if beat.told_mono_s is None else beat.told_mono_s,
            )
        return node if self._settings is None else self._marked(node)

    # ------------------------------------------------------------ with other settings

    def _marked(self, node: NodePicture) -> NodePicture:
        """As the node would be: our own mark instead of that of the recording."""
        recorded = node.mark
        taint, cordoned = self._marks.get(node.name, (None, False))
        others = tuple(one for one in node.taints if one.key != QUARANTINE_TAINT)
        unschedulable = node.unschedulable and not (recorded is not None and recorded.cordoned)
        return structs.replace(
            node,
            taints=(*others, taint) if taint is not None else others,
            unschedulable=unschedulable or cordoned,
            pods=tuple(pod for pod in node.pods if pod.id not in self._removed),
        )

    def _follow(self, decided: tuple[Decision, ...], picture: FleetPicture, now: Now) -> None:
        """Save and perform at once what was decided."""
        for one in decided:
            record, _ = step(self._records.get(one.record), one.event, now, picture.epoch)
            self._records[record.id] = record
        writes, removals = fleet_marks.outstanding(picture, self._records)
        for wanted in writes:
            taint, cordoned = self._marks.get(wanted.node, (None, False))
            if wanted.taint is not None or wanted.remove_taint:
                taint = wanted.taint
            if wanted.unschedulable is not None:
                cordoned = wanted.unschedulable
            self._marks[wanted.node] = taint, cordoned
        for removal in removals:
            self._removed.update(removal.pods)


def _mark(node: NodePicture) -> tuple[Taint | None, bool]:
    """Sentinel's mark when the recording began."""
    taint = next((one for one in node.taints if one.key == QUARANTINE_TAINT), None)
    return taint, node.mark is not None and node.mark.cordoned and node.unschedulable
