"""The controller of a cluster's nodes, for as long as it leads: fold → decide → record → act.

One task does it, round after round. A round is about the nodes of which something changed, and every few seconds
about all of them. A record is saved before anything is done about it; what a failure left undone is seen by the
next whole round, which compares nodes with records. Silence and brakes are judged in core/fleet*.py.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from typing import Protocol

import structlog
from msgspec import structs

from sentinel.clock import Clock
from sentinel.core import fleet, fleet_conditions, fleet_marks
from sentinel.core.fleet_events import Decision, DoEvent, DoTell, Effect, Isolate, Open, Removed
from sentinel.core.fleet_fold import fold
from sentinel.core.fleet_marks import MarkWrite
from sentinel.core.fleet_model import FleetPicture, NodeCondition, NodePicture, NodeQuarantine
from sentinel.core.fleet_record import step
from sentinel.core.fleet_settings import FleetSettings
from sentinel.core.model import Now
from sentinel.errors import PermanentError, TemporaryError
from sentinel.transport.wire import Arrived

log = structlog.get_logger(__name__)

WHOLE_S = 3.0  # between two rounds about all nodes
AT_ONCE = 16  # writes under way together
AGAIN_S = 5.0  # the longest pause after a round that failed


class FleetCluster(Protocol):
    """Where nodes and records live. Writes raise TemporaryError (Conflict: decide again) and PermanentError."""

    @property
    def records(self) -> Mapping[str, NodeQuarantine]:
        """By id, as they were last seen or saved."""

    @property
    def complete(self) -> bool:
        """Is every node known, so that one that is missing is gone?"""

    @property
    def watching_since_mono_s(self) -> float:
        """Since when no lease can have been missed."""

    def names(self) -> Collection[str]:
        """Of all nodes."""

    def node(self, name: str) -> NodePicture | None:
        """What the cluster shows of it; nothing that its agent told."""

    async def take_over(self) -> None:
        """Read all records, and see to it that no write of an earlier leader comes after ours."""

    async def save(self, record: NodeQuarantine) -> None: ...
    async def mark(self, wanted: MarkWrite) -> None: ...
    async def set_conditions(self, node: str, wanted: tuple[NodeCondition, ...]) -> None: ...
    async def remove(self, pods: Iterable[str]) -> None: ...

    def event(self, effect: DoEvent) -> None:
        """Best effort; never waits."""


class FleetController:
    """`changed` and `arrived` are called whenever something was heard; `lead` runs while this process leads."""

    def __init__(
        self, cluster: FleetCluster, settings: FleetSettings, clock: Clock, tell: Callable[[str], None]
    ) -> None:
        self.settings = settings
        self.rounds = 0
        self.failures = 0
        self._cluster = cluster
        self._clock = clock
        self._tell = tell
        self._told: set[str] = set()
        self._nodes: dict[str, NodePicture] = {}  # as they were in the last round
        # By name: what its agent told, in a picture without an object.
        self._heard: dict[str, NodePicture] = {}
        self._dirty: set[str] = set()
        self._wake = asyncio.Event()

    # ------------------------------------------------------------ what is heard

    def changed(self, node: str) -> None:
        """Something about this node is other than it was."""
        self._dirty.add(node)
        self._wake.set()

    def arrived(self, arrived: Arrived) -> None:
        """A report of a node's agent. Quick: the decision is another task's."""
        name = arrived.node
        before = self._heard.get(name) or NodePicture(name=name, uid="")
        shown = self._nodes.get(name)
        if shown is not None:  # the kubelet's boot id tells which of two boots is the present one
            before = structs.replace(before, api_boot_id=shown.api_boot_id)
        # A full report is not all there is: an agent that has just begun has not run every check yet.
        after = fold(before, arrived.report, self._clock())
        self._heard[name] = after
        if after.checks is not before.checks or after.boot_id != before.boot_id:
            self.changed(name)

    def _picture(self, epoch: int, only: Collection[str] | None) -> FleetPicture:
        """What is known now of these nodes (None: of all), and of the others what was known in the last whole round."""
        names = self._cluster.names()
        self._nodes = (
            {} if only is None else {name: node for name, node in self._nodes.items() if name in names}
        )
        for name in names if only is None else only:
            if (node := self._joined(name)) is not None:
                self._nodes[name] = node
        return FleetPicture(
            nodes=self._nodes,
            epoch=epoch,
            complete=self._cluster.complete,
            watching_since_mono_s=self._cluster.watching_since_mono_s,
        )

    # ------------------------------------------------------------ leading

    def forget(self) -> None:
        """What was heard under another leadership. Agents tell it again: each comes with a full report."""
        self._heard.clear()
        self._nodes = {}
        self._told.clear()

    async def lead(self, epoch: int) -> None:
        """Until cancelled; may be begun again."""
        while not await self._went_well(self._cluster.take_over()):
            pass
        whole_mono_s = 0.0
        while True:
            now_s = self._clock().mono_s
            only: frozenset[str] | None = None
            if now_s - whole_mono_s < WHOLE_S:
                only = frozenset(self._dirty)
            else:
                whole_mono_s = now_s
            self._dirty.clear()
            self._wake.clear()
            if only is None or only:
                await self._went_well(self._round(epoch, only))
            left_s = WHOLE_S - (self._clock().mono_s - whole_mono_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), max(0.0, left_s))

    async def _went_well(self, work: Awaitable[None]) -> bool:
        """After a failure everything is looked at again, with what is known by then."""
        try:
            await work
        except (TemporaryError, PermanentError) as error:
            self._failed("round", error)
            await asyncio.sleep(min(getattr(error, "delay_s", AGAIN_S), AGAIN_S))
            return False
        return True

    def _failed(self, what: str, error: Exception) -> None:
        self.failures += 1
        log.warning("fleet_failed", what=what, error=f"{type(error).__name__}: {error}")

    async def _round(self, epoch: int, only: Collection[str] | None) -> None:
        self.rounds += 1
        now, records, picture = self._clock(), self._cluster.records, self._picture(epoch, only)
        decisions = fleet.decide(picture, records, self.settings, now, only)
        moved, effects, taking = self._stepped(decisions, records, now, epoch)
        # What gives room of a brake is saved before what takes it, which was counted with that.
        refused = await self._all({id: self._cluster.save(moved[id]) for id in moved.keys() - taking})
        for error in refused.values():
            if isinstance(error, TemporaryError):
                raise error
        own = fleet_marks.by_node(self._cluster.records.values())
        await self._all({id: self._isolated(moved[id], own.get(moved[id].node, [])) for id in taking})
        for effect in effects:
            self._say(effect)
        names = set(picture.nodes) if only is None else {*only, *(record.node for record in moved.values())}
        await self._all({name: self._shown(name, own) for name, own in self._outstanding(names)})
        if only is None:
            removals = fleet_marks.outstanding(picture, self._cluster.records)[1]
            await self._all({removal.node: self._cluster.remove(removal.pods) for removal in removals})

    def _stepped(
        self, decisions: tuple[Decision, ...], records: Mapping[str, NodeQuarantine], now: Now, epoch: int
    ) -> tuple[dict[str, NodeQuarantine], list[Effect], set[str]]:
        """The records after all decisions, what is to be told, and which of them take room of a brake."""
        moved: dict[str, NodeQuarantine] = {}
        effects: list[Effect] = []
        taking = set()
        for decision in decisions:
            log.info("fleet_decided", node=decision.node, reason=decision.reason, sentence=decision.sentence)
            before = moved.get(decision.record) or records.get(decision.record)
            record, follows = step(before, decision.event, now, epoch)
            moved[record.id] = record
            effects += follows
            if isinstance(decision.event, (Open, Isolate, Removed)):
                taking.add(record.id)
        return moved, effects, taking

    async def _isolated(self, record: NodeQuarantine, own: list[NodeQuarantine]) -> None:
        """Saved, and the node marked at once: each as soon as its own record is there. `own`: all of its node."""
        await self._cluster.save(record)
        node = self._nodes.get(record.node)
        others = [one for one in own if one.id != record.id]
        if node is not None and (wanted := fleet_marks.write(node, [*others, record])) is not None:
            await self._cluster.mark(wanted)

    def _outstanding(self, names: Collection[str]) -> Iterator[tuple[str, list[NodeQuarantine]]]:
        """Of these, the nodes that do not show what their records say, and those."""
        records = fleet_marks.by_node(self._cluster.records.values())
        for name in names:
            node = self._joined(name)
            if node is None or (name not in records and not node.conditions and node.mark is None):
                continue
            own = records.get(name, [])
            if fleet_marks.write(node, own) is not None or self._conditions(node, own):
                yield name, own

    async def _shown(self, name: str, own: list[NodeQuarantine]) -> None:
        """Make the node show what its records say."""
        node = self._joined(name)
        if node is not None and (wanted := fleet_marks.write(node, own)) is not None:
            await self._cluster.mark(wanted)
        node = self._joined(name)
        if node is not None and (conditions := self._conditions(node, own)):
            await self._cluster.set_conditions(name, conditions)

    def _conditions(self, node: NodePicture, own: list[NodeQuarantine]) -> tuple[NodeCondition, ...]:
        return fleet_conditions.writes(node, own, self.settings, self._clock())

    def _joined(self, name: str) -> NodePicture | None:
        shown = self._cluster.node(name)
        return None if shown is None else _joined(shown, self._heard.get(name))

    def _say(self, effect: Effect) -> None:
        if isinstance(effect, DoEvent):
            self._cluster.event(effect)
        elif isinstance(effect, DoTell) and effect.key not in self._told:
            self._told.add(effect.key)
            self._tell(effect.sentence)

    async def _all(self, works: Mapping[str, Awaitable[None]]) -> dict[str, Exception]:
        """Some at a time. What fails is counted and does not hold up the rest."""
        allowed = asyncio.Semaphore(AT_ONCE)
        failed: dict[str, Exception] = {}

        async def one(name: str, work: Awaitable[None]) -> None:
            async with allowed:
                try:
                    await work
                except (TemporaryError, PermanentError) as error:
                    self._failed(name, error)
                    failed[name] = error

        await asyncio.gather(*(one(name, work) for name, work in works.items()))
        return failed


def _joined(shown: NodePicture, heard: NodePicture | None) -> NodePicture:
    """The node's object, and what its agent told."""
    if heard is None:
        return shown
    return structs.replace(
        shown,
        agent_mono_s=heard.agent_mono_s,
        boot_id=heard.boot_id,
        booted_wall_s=heard.booted_wall_s,
        told_mono_s=heard.told_mono_s,
        checks=heard.checks,
    )
