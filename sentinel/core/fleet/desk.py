"""What one round of decisions works on: the picture, the records as they will be, and the decisions so far. Pure."""

from collections.abc import Mapping, Set

from msgspec import structs

from sentinel.core.fleet import brakes, probation
from sentinel.core.fleet.brakes import Tally
from sentinel.core.fleet.causes import going_on, ignored
from sentinel.core.fleet.events import Decision, End, Event
from sentinel.core.fleet.marks import by_node
from sentinel.core.fleet.model import FleetPicture, Kind, Mode, NodeQuarantine, State
from sentinel.core.fleet.record import step
from sentinel.core.fleet.settings import FleetSettings
from sentinel.core.health import Finding
from sentinel.core.now import Now


class Desk:
    """Decisions are applied to the records at once: what is released early in a round makes room later in it."""

    def __init__(
        self,
        picture: FleetPicture,
        records: Mapping[str, NodeQuarantine],
        settings: FleetSettings,
        now: Now,
        quiet: Set[str] = frozenset(),
    ) -> None:
        self.picture = picture
        self.settings = settings
        self.now = now
        self.records = dict(records)
        self.decisions: list[Decision] = []
        self.ignored = ignored(picture.codes)
        self._quiet = quiet
        self._shown: dict[str, int] | None = None
        self._of = by_node(records.values())
        self._tallies: dict[str, Tally] = {}

    def of(self, node: str) -> tuple[NodeQuarantine, ...]:
        """The records of this node by their numbers."""
        return tuple(self._of.get(node, ()))

    def nodes(self) -> set[str]:
        """Those with records, also where the node itself is gone."""
        return set(self._of)

    def known(self, node: str) -> bool:
        return node in self._of

    def open(self, node: str, kind: Kind) -> NodeQuarantine | None:
        return next((record for record in self.of(node) if record.kind is kind and record.state.open), None)

    def put(self, node: str, record: str, event: Event) -> NodeQuarantine:
        """Decide `event` for the record of that id. What stands when it ends is written down with it."""
        before = self.records.get(record)
        if isinstance(event, End) and before is not None and before.kind is Kind.FAULT:
            event = structs.replace(
                event, baseline=probation.baseline(self.picture.nodes.get(node), self.ignored)
            )
        moved, _ = step(before, event, self.now, self.picture.epoch)
        others = [one for one in self._of.get(node, ()) if one.id != record]
        self.records[record] = moved
        self._of[node] = sorted((*others, moved), key=lambda one: (one.number, one.id))
        self.decisions.append(Decision(node, record, event))
        return moved

    def next_id(self, node: str) -> str:
        """Numbers go on from the records of the node, and from the mark on it, whose record may be missing."""
        there = self.picture.nodes.get(node)
        mark = there.mark if there is not None else None
        last = max((record.number for record in self.of(node)), default=0)
        number = max(last, mark.number if mark is not None else 0) + 1
        while f"{node}-{number:04d}" in self.records:  # a person gave that one another node
            number += 1
        return f"{node}-{number:04d}"

    def mode(self, pool: str) -> Mode:
        return self.settings.mode_of(pool)

    def isolations(self, kind: Kind, *, lesser: bool) -> Tally:
        """Counted once a round, after its releases. `lesser`: all; else what is less than fatal takes no room."""
        name = f"{kind.value}, lesser" if lesser else kind.value
        if name not in self._tallies:
            records = self.records.values()
            counted = [one for one in records if lesser or not probation.only_lesser(one)]
            self._tallies[name] = brakes.isolations(kind, counted, self.picture, self.settings, self.now)
        return self._tallies[name]

    def removals(self) -> Tally:
        if "removals" not in self._tallies:
            self._tallies["removals"] = brakes.removals(
                self.records.values(), self.picture, self.settings, self.now
            )
        return self._tallies["removals"]

    def many_show(self, finding: Finding) -> bool:
        """Do so many nodes show its code that it is no sign of one node's repair, and nobody says that it is real?"""
        if finding.code in going_on(self.picture.codes, self.now.wall_s):
            return False
        if self._shown is None:
            self._shown = probation.shown(self.picture, self._quiet)
        many = probation.many(finding.component, len(self.picture.nodes), self.settings)
        return self._shown.get(finding.code, 0) >= many

    def held(self) -> list[NodeQuarantine]:
        return [record for record in self.records.values() if record.state is State.HELD]
