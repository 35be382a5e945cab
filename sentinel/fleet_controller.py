"""The controller of a cluster's nodes, for as long as it leads: fold → decide → record → act.

One task does it, round after round. A round is about the nodes of which something changed, and every few seconds
about all of them. A record is saved before anything is done about it; what a failure left undone is seen by the
next whole round, which compares nodes with records. Silence and brakes are judged in core/fleet*.py.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Set

import structlog

from sentinel import fleet_numbers
from sentinel.clock import Clock
from sentinel.core import fleet, fleet_conditions, fleet_fence, fleet_marks
from sentinel.core.fleet_brakes import Use
from sentinel.core.fleet_events import (
    Decision,
    DoEvent,
    DoTell,
    Effect,
    End,
    FenceBegun,
    HeldBack,
    Isolate,
    Open,
    Reason,
    Removed,
)
from sentinel.core.fleet_hook import FenceCall
from sentinel.core.fleet_marks import MarkWrite
from sentinel.core.fleet_model import (
    FleetPicture,
    Kind,
    NodeCondition,
    NodeMail,
    NodePicture,
    NodeQuarantine,
)
from sentinel.core.fleet_record import step
from sentinel.core.fleet_release import acting
from sentinel.core.fleet_settings import FleetSettings
from sentinel.core.fleet_silence import unreachable
from sentinel.core.health import Finding
from sentinel.core.now import Now
from sentinel.effects.fence import Fencer
from sentinel.errors import PermanentError, TemporaryError
from sentinel.fleet_cluster import FleetCluster
from sentinel.fleet_mail import MailBook
from sentinel.fleet_nodes import FleetNodes
from sentinel.fleet_notes import Notes
from sentinel.fleet_status import RecordStatus
from sentinel.metrics import Metrics
from sentinel.recording import Recorder
from sentinel.transport.wire import Arrived

log = structlog.get_logger(__name__)

WHOLE_S = 3.0  # between two rounds about all nodes
AT_ONCE = 16  # writes under way together
TOLD_AT_ONCE = 8  # nodes whose conditions are written between two rounds: cordons do not wait for many
SILENCES = 64  # records of silent nodes that are moved in one round
AGAIN_S = 5.0  # the longest pause after a round that failed
PRUNED = 50  # records that one round deletes: a long list of them holds up nothing else


class FleetController:
    """`changed` and `arrived` are called whenever something was heard; `lead` runs while this process leads."""

    def __init__(
        self,
        cluster: FleetCluster,
        settings: FleetSettings,
        clock: Clock,
        tell: Callable[[str], None],
        metrics: Metrics | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.settings = settings
        self.rounds = 0
        self.failures = 0
        self.mail_waits: Callable[[], None] = lambda: None  # called when something new is to be told by mail
        self.turned_mono_s: float | None = None  # when work last went on; None: nothing is to be done yet
        self._metrics = metrics or Metrics()
        self._recorder = recorder
        self._lost_rounds = 0  # of the recording
        self._measured_mono_s = float("-inf")
        self._cluster = cluster
        self._clock = clock
        self._tell = tell
        self._told: set[str] = set()
        self._paused = ""
        self.nodes = FleetNodes(cluster, clock, lambda node: bool(self._conditions(node, [])), recorder)
        self._led_mono_s = 0.0
        self._decided_on: Mapping[str, NodeQuarantine] = {}  # records when it was decided what to save
        self._lived_with: dict[
            str, list[NodeQuarantine]
        ] = {}  # by node: ended records with findings that stay
        self._untold: dict[str, None] = {}  # nodes whose conditions differ from what they should say
        self._status = RecordStatus(cluster, clock, self._all)
        self._again = False  # a round has left something to the next one
        self._wake = asyncio.Event()
        self.mails = MailBook(self._wake.set)
        self.notes = Notes(self._metrics, tell)
        self._fencer = Fencer(settings.fence, self._metrics)
        self.lead_began = asyncio.Event()  # every record was read

    # ------------------------------------------------------------ what is heard

    def changed(self, node: str) -> None:
        """Something about this node is other than it was."""
        self.nodes.changed.add(node)
        self._wake.set()

    def arrived(self, arrived: Arrived) -> None:
        """A report of a node's agent. Quick: the decision is another task's. Raises ValueError: it is no use."""
        if self.nodes.arrived(arrived):
            self.changed(arrived.node)

    def findings(self, node: str) -> tuple[str, list[Finding]]:
        """The boot that its agent told of last, and what its checks find in it; without what people live with."""
        boot_id, found = self.nodes.findings(node)
        lived_with, picture = self._lived_with.get(node), self.nodes.pictures.get(node)
        if lived_with and picture is not None:
            found = acting(found, picture, lived_with)
        return boot_id, list(found)

    def lost(self, pod: str) -> str:
        """Why the pod with this uid was removed by force from a node that was lost; "": it was not."""
        return fleet_fence.removed(self._cluster.records.values(), pod)

    def brake_uses(self) -> list[tuple[str, Use]]:
        """How much of each brake is used, of those nodes that were looked at."""
        picture = FleetPicture(nodes=self.nodes.pictures)
        return fleet_numbers.brake_uses(picture, self._cluster.records.values(), self.settings, self._clock())

    def draining(self) -> dict[str, str]:
        """Nodes from which protected jobs are to move -> who ordered that and why, in a sentence."""
        found = {}
        for record in self._cluster.records.values():
            if record.drain and record.isolating:
                asked = [line.sentence for line in record.story if line.reason == Reason.DRAIN_ORDERED.value]
                found[record.node] = asked[-1] if asked else record.sentence
        return found

    def _picture(
        self, epoch: int, records: Mapping[str, NodeQuarantine], only: Collection[str] | None
    ) -> FleetPicture:
        """What is known now of these nodes (None: of all); of the others what was known when they were looked at."""
        if only is None:
            self.nodes.look_around(records)
        else:
            self.nodes.look_at(only)
        return FleetPicture(
            nodes=self.nodes.pictures,
            epoch=epoch,
            complete=self._cluster.complete,
            # A standby hears no agents: their silence counts from when it leads.
            watching_since_mono_s=max(self._led_mono_s, self._cluster.watching_since_mono_s),
            leases_mono_s=self._cluster.leases_mono_s,
            paused=self._cluster.paused,
            orders=self._cluster.orders,
            fenced=self._fencer.outcomes,
            # Read by whole rounds alone.
            orphans=dict(self._cluster.orphans()) if only is None else {},
        )

    # ------------------------------------------------------------ what is told of it

    def measure(self) -> None:
        """For a scrape of the leader. Whoever scrapes more often gets what was counted a moment ago."""
        now = self._clock()
        if now.mono_s - self._measured_mono_s >= WHOLE_S and self.turned_mono_s is not None:
            self._measured_mono_s = now.mono_s
            picture = FleetPicture(nodes=self.nodes.pictures)
            records = self._cluster.records
            fleet_numbers.measure(self._metrics, picture, records, self.settings, now, self.nodes.plain)

    def stand_by(self) -> None:
        """This controller leads no more."""
        if self._recorder is not None:
            self._recorder.stand_by()
        self.turned_mono_s = None
        self._measured_mono_s = float("-inf")
        fleet_numbers.forget(self._metrics)

    # ------------------------------------------------------------ leading

    def forget(self) -> None:
        """What was heard and told under another leadership."""
        self.nodes.forget()
        self._untold.clear()
        self._status.forget()
        self._told.clear()
        self.mails.clear()
        self.notes.clear()

    def to_tell(self) -> Iterator[NodeQuarantine]:
        return self.mails.to_tell(self._cluster.records)

    async def _write_mails(self, epoch: int) -> None:
        self._decided_on = self._cluster.records
        due = self.mails.due(self._decided_on, self._clock(), epoch)
        refused = await self._all("mail-record", {id: self._save(one) for id, one in due.items()})
        for id in due.keys() - refused.keys():
            self.mails.saved(due[id])
        if self.mails.unsaved and not refused:
            self._wake.set()

    async def lead(self, epoch: int) -> None:
        """Until cancelled; may be begun again."""
        try:
            await self._lead(epoch)
        finally:
            self._fencer.stop()

    async def _lead(self, epoch: int) -> None:
        self._led_mono_s = self._clock().mono_s
        if self._recorder is not None:
            self._recorder.lead(epoch, self.settings)
        self.turned_mono_s = None
        self.lead_began.clear()
        while not await self._went_well("take-over", self._cluster.take_over()):
            pass
        self.lead_began.set()
        whole_mono_s = 0.0
        while True:
            now_s = self._clock().mono_s
            self._wake.clear()
            if now_s - whole_mono_s >= WHOLE_S or self._again:
                whole_mono_s = now_s
                self._status.look_over()
                await self.nodes.look_ahead(WHOLE_S, lambda: self._changed(epoch))
                await self._timed_round(epoch, whole=True)
            else:
                await self._changed(epoch)
            await self._went_well("tell", self._tell_conditions())
            if self.mails.unsaved and not self.nodes.changed:
                await self._went_well("mail-record", self._write_mails(epoch))
            if self._status.due and not self.nodes.changed and not self._untold:
                await self._status.write_some()
            more = self._untold or self._status.due or self._again
            left_s = 0.0 if more else WHOLE_S - (self._clock().mono_s - whole_mono_s)
            # Not wait_for: in Python 3.11 it forgets that it is cancelled when what it waits for comes just then.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, left_s)):
                    await self._wake.wait()

    async def _changed(self, epoch: int) -> None:
        """A round about what has changed, if anything has. Lets others have their turn."""
        self.turned_mono_s = self._clock().mono_s
        await asyncio.sleep(0)
        if self.nodes.changed:
            await self._timed_round(epoch, whole=False)

    async def _timed_round(self, epoch: int, *, whole: bool) -> None:
        begun_s = self._clock().mono_s
        await self._went_well("round", self._round(epoch, whole))
        self._metrics.round("all" if whole else "changed", self._clock().mono_s - begun_s)

    async def _went_well(self, what: str, work: Awaitable[None]) -> bool:
        """After a failure everything is looked at again, with what is known by then."""
        try:
            await work
        except (TemporaryError, PermanentError) as error:
            self._failed(what, "", error)
            await asyncio.sleep(min(getattr(error, "delay_s", AGAIN_S), AGAIN_S))
            return False
        return True

    def _failed(self, effect: str, about: str, error: Exception) -> None:
        self.failures += 1
        self._metrics.effect_failed(effect, permanent=isinstance(error, PermanentError))
        if effect == "save":
            self._metrics.record_failed()
        log.warning("fleet_failed", effect=effect, about=about, error=f"{type(error).__name__}: {error}")

    async def _round(self, epoch: int, whole: bool) -> None:
        self.rounds += 1
        await self._cluster.settle()
        only = None if whole else frozenset(self.nodes.changed)
        now, records = self._clock(), self._cluster.records
        picture = self._picture(epoch, records, only)
        self.nodes.changed.clear()
        self._decided_on = records
        if only is None:
            self._lived_with = {}
            for one in records.values():
                if one.ignored and not one.state.open:
                    self._lived_with.setdefault(one.node, []).append(one)
        self._note_pause(picture.paused)
        decisions = fleet.decide(picture, records, self.settings, now, only, self.nodes.quiet)
        if self._recorder is not None:
            self._recorder.round(picture, self.nodes.heard, records, now, only, decisions, self.nodes.looked)
            if self._recorder.lost > self._lost_rounds:
                self._lost_rounds = self._recorder.lost
                self._metrics.effect_failed("recording", permanent=False)
        self.nodes.looked = {}
        first, self._again = _without_a_flood_of_silences(decisions, records), False
        moved, effects, taking = self._stepped(first, records, now, epoch)
        # What gives room of a brake is saved before what takes it, which was counted with that. The rest can wait.
        giving = {one.record for one in first if isinstance(one.event, (End, HeldBack))} - taking
        refused = await self._saved(giving, moved, effects)
        own = fleet_marks.by_node(self._cluster.records.values())
        cordons_first = sorted(taking, key=lambda id: moved[id].kind is Kind.SILENCE)
        refused |= await self._all(
            "isolate",
            {id: self._isolated(moved[id], own.get(moved[id].node, []), effects) for id in cordons_first},
        )
        refused |= await self._saved(moved.keys() - taking - giving, moved, effects)
        self._fencer.settle(self._cluster.records)
        self._again = not refused and len(first) < len(decisions)
        names = {*(picture.nodes.keys() - self.nodes.quiet if only is None else only)}
        names.update(one.node for one in (self._cluster.records if only is None else moved).values())
        marks = {wanted.node: self._cluster.mark(wanted) for wanted in self._outstanding(names)}
        await self._all("show", marks)
        if only is None:
            self._note(picture, epoch, now)
            removals = fleet_marks.outstanding(picture, self._cluster.records)[1]
            await self._all(
                "remove", {removal.node: self._cluster.remove(removal.pods) for removal in removals}
            )
            await self._fence(picture, now)
            old = fleet.pruned(picture, self._cluster.records, self.settings, now)[:PRUNED]
            await self._all("prune", {record.id: self._cluster.delete(record) for record in old})
        later = {one.node for one in decisions if one.record not in moved}
        await self._answer(picture, later | {moved[id].node for id in refused}, now)
        await self._all("order", self._cluster.take_orders())

    async def _fence(self, picture: FleetPicture, now: Now) -> None:
        records = self._cluster.records
        found = fleet.fence_calls(picture, records, self.settings, now, self.nodes.quiet)

        async def call(one: FenceCall) -> None:
            # What the round has seen is some seconds old by now: it had to save.
            self._cluster.check_leading()
            node = self.nodes.joined(one.node)
            if node is not None and unreachable(node, picture, self.settings, self._clock()):
                self._fencer.call(one)

        await self._all("fence", {one.node: call(one) for one in found if self._fencer.may_call(one)})

    async def _answer(self, picture: FleetPicture, again: Collection[str], now: Now) -> None:
        """`again`: nodes about which it is decided again. `now`: of the decisions, for the answers go with them."""
        records = self._cluster.records
        if not picture.orders or fleet.superseded(picture, records):
            return
        found = fleet.answers(picture, records, self.settings, now)
        for one in (ready := [one for one in found if one.order.node not in again]):
            order = one.order
            log.info("fleet_order", node=order.node, order=order.kind, by=order.by, sentence=one.sentence)
            node = picture.nodes.get(order.node)
            if not one.done and node is not None:
                self._cluster.event(DoEvent(node.name, node.uid, "OrderDeclined", one.sentence, True))
        await self._all("answer", {one.order.id: self._cluster.answer(one) for one in ready})

    def record_mail(self, record: str, mail: NodeMail) -> None:
        if not self.notes.record(record, mail):
            self.mails.record(record, mail)

    def _note(self, picture: FleetPicture, epoch: int, now: Now) -> None:
        found = fleet_numbers.unjudged(picture, self._cluster.records, self.settings, now, self.nodes.quiet)
        if self.notes.note(found, epoch, now):
            self.mail_waits()

    def _note_pause(self, paused: str) -> None:
        if paused != self._paused:
            self._paused = paused
            log.info("fleet_paused", why=paused)
            self._tell(f"is paused: {paused}" if paused else "is not paused any more")

    def _stepped(
        self, decisions: tuple[Decision, ...], records: Mapping[str, NodeQuarantine], now: Now, epoch: int
    ) -> tuple[dict[str, NodeQuarantine], dict[str, list[Effect]], set[str]]:
        """The records after all decisions, what is to be told of each, and which of them take room of a brake."""
        moved: dict[str, NodeQuarantine] = {}
        effects: dict[str, list[Effect]] = {}
        taking = set()
        for decision in decisions:
            log.info("fleet_decided", node=decision.node, reason=decision.reason, sentence=decision.sentence)
            self._metrics.decision(decision.reason.value)
            before = moved.get(decision.record) or records.get(decision.record)
            record, follows = step(before, decision.event, now, epoch)
            moved[record.id] = record
            effects.setdefault(record.id, []).extend(follows)
            if isinstance(decision.event, (Open, Isolate, Removed, FenceBegun)):
                taking.add(record.id)
        return moved, effects, taking

    async def _isolated(
        self, record: NodeQuarantine, own: list[NodeQuarantine], effects: Mapping[str, Iterable[Effect]]
    ) -> None:
        """Saved, and the node marked at once: each as soon as its own record is there. `own`: all of its node."""
        await self._save(record)
        node = self.nodes.pictures.get(record.node)
        others = [one for one in own if one.id != record.id]
        try:
            if node is not None and (wanted := fleet_marks.write(node, [*others, record])) is not None:
                await self._cluster.mark(wanted)
        finally:
            self._say(effects, [record.id])

    async def _saved(
        self, ids: Set[str], moved: Mapping[str, NodeQuarantine], effects: Mapping[str, list[Effect]]
    ) -> dict[str, Exception]:
        """Saved and told. Raises TemporaryError: then nothing more is done in this round."""
        refused = await self._all("save", {id: self._save(moved[id]) for id in ids})
        self._say(effects, ids - refused.keys())
        for error in refused.values():
            if isinstance(error, TemporaryError):
                raise error
        return refused

    async def _save(self, record: NodeQuarantine) -> None:
        if self._cluster.record(record.id) != self._decided_on.get(record.id):
            raise TemporaryError(f"record {record.id} was changed after it was decided about", 0.0)
        await self._cluster.save(record)
        self._status.saved(record.id)
        self._metrics.records_saved()

    def _outstanding(self, names: Collection[str]) -> Iterator[MarkWrite]:
        """What these nodes must be made to show; those whose conditions differ are noted besides."""
        records = fleet_marks.by_node(self._cluster.records.values())
        for name in names:
            if name not in self.nodes.pictures or (name in self.nodes.plain and name not in records):
                continue
            if (node := self.nodes.joined(name)) is None:
                continue
            own = records.get(name, [])
            if self._conditions(node, own):
                self._untold[name] = None
            if (wanted := fleet_marks.write(node, own)) is not None:
                yield wanted

    async def _tell_conditions(self) -> None:
        """Of a few nodes at a time, so that no cordon waits for many of them."""
        names = [*self._untold][:TOLD_AT_ONCE]
        own = fleet_marks.by_node(self._cluster.records.values()) if names else {}
        works = {}
        for name in names:
            del self._untold[name]
            node = self.nodes.joined(name)
            if node is not None and (wanted := self._conditions(node, own.get(name, []))):
                works[name] = self._cluster.set_conditions(name, wanted)
        await self._all("show", works)

    def _conditions(self, node: NodePicture, own: list[NodeQuarantine]) -> tuple[NodeCondition, ...]:
        return fleet_conditions.writes(node, own, self.settings, self._clock(), paused=bool(self._paused))

    def _say(self, effects: Mapping[str, Iterable[Effect]], saved: Iterable[str]) -> None:
        """What was decided is told once it is saved: what could not be saved is decided again, or not."""
        for effect in (effect for id in saved for effect in effects[id]):
            if isinstance(effect, DoEvent):
                self._cluster.event(effect)
            elif isinstance(effect, DoTell) and effect.key not in self._told:
                self._told.add(effect.key)
                self._tell(effect.sentence)
                self.mail_waits()

    async def _all(self, effect: str, works: Mapping[str, Awaitable[None]]) -> dict[str, Exception]:
        """Some at a time. What fails is counted and does not hold up the rest."""
        allowed = asyncio.Semaphore(AT_ONCE)
        failed: dict[str, Exception] = {}

        async def one(name: str, work: Awaitable[None]) -> None:
            async with allowed:
                try:
                    await work
                    self._metrics.effect(effect)
                except (TemporaryError, PermanentError) as error:
                    self._failed(effect, name, error)
                    failed[name] = error
                except Exception as error:  # boundary: what one node or record breaks holds up no other
                    log.exception("fleet_work_broke", effect=effect, about=name)
                    self._metrics.exception(effect)
                    self._failed(effect, name, error)
                    failed[name] = error
                self.turned_mono_s = self._clock().mono_s

        try:
            await asyncio.gather(*(one(name, work) for name, work in works.items()))
        finally:
            for work in works.values():
                if asyncio.iscoroutine(work):
                    work.close()  # of a round that was cancelled, what had not begun
        return failed


def _without_a_flood_of_silences(
    decisions: tuple[Decision, ...], records: Mapping[str, NodeQuarantine]
) -> tuple[Decision, ...]:
    """What is left out is decided again in the next round: thousands of nodes that fall silent hold up no cordon."""
    silences: dict[str, None] = {}
    for one in decisions:
        known = records.get(one.record)
        kind = one.event.kind if isinstance(one.event, Open) else known.kind if known is not None else None
        if kind is Kind.SILENCE:
            silences[one.record] = None
    left = frozenset([*silences][SILENCES:])
    return tuple(one for one in decisions if one.record not in left)
