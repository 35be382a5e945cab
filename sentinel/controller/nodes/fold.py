"""The controller of a cluster's nodes, for as long as it leads: fold → decide → record → act.

One task decides, round after round. A round is about the nodes of which something changed, and every few seconds
about all of them. What was decided about a node is written by a task of its own (`works`), and until that has ended
nothing more is decided about it, while brakes count it as taken. A record is saved before anything is done about it;
what a failure left undone is seen by the next whole round, which compares nodes with records. Silence and brakes are
judged in core/fleet/.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice

import structlog

from sentinel.controller.effects.fence import Fencer
from sentinel.controller.nodes import mail as fleet_mail
from sentinel.controller.nodes import numbers, troubles
from sentinel.controller.nodes.cluster import FleetCluster
from sentinel.controller.nodes.for_jobs import ForJobs
from sentinel.controller.nodes.known import FleetNodes
from sentinel.controller.nodes.mail import MailBook
from sentinel.controller.nodes.notes import Notes
from sentinel.controller.nodes.pending import Pending, Telling, without_a_flood_of_silences
from sentinel.controller.nodes.recording import Recorder
from sentinel.controller.nodes.showing import Showing
from sentinel.controller.nodes.status import SHOWN_AT_ONCE, RecordStatus
from sentinel.controller.troubles import Trouble
from sentinel.core.fleet import conditions, hook, marks, rounds
from sentinel.core.fleet.brakes import Use
from sentinel.core.fleet.events import (
    Decision,
    DoEvent,
    Effect,
    End,
    HeldBack,
)
from sentinel.core.fleet.hook import FenceCall
from sentinel.core.fleet.model import (
    FleetPicture,
    Kind,
    NodeCondition,
    NodeMail,
    NodePicture,
    NodeQuarantine,
)
from sentinel.core.fleet.orders import Answer
from sentinel.core.fleet.record import step
from sentinel.core.fleet.settings import FleetSettings
from sentinel.core.fleet.silence import unreachable
from sentinel.core.now import Now
from sentinel.metrics.registry import Metrics
from sentinel.transport.wire import Arrived
from sentinel.util.clock import Clock
from sentinel.util.errors import PermanentError, TemporaryError
from sentinel.util.works import Works

log = structlog.get_logger(__name__)

WHOLE_S = 3.0  # between two rounds about all nodes
SILENCES = 64  # records of silent nodes that are written at a time
AGAIN_S = 5.0  # the longest pause after a round that failed
PRUNED = 50  # records that one round deletes: a long list of them holds up nothing else
_SAVES = ("isolate", "save")  # of what was decided; what takes a node out of service, and the rest


class FleetController:
    """`changed` and `arrived` are called whenever something was heard; `lead` runs while this process leads."""

    def __init__(
        self,
        cluster: FleetCluster,
        settings: FleetSettings,
        clock: Clock,
        tell: Callable[[str], None],
        crowded_ago_s: Callable[[], float],  # since agents had to wait to be let in
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
        self._cluster, self._clock = cluster, clock
        self._tell = tell
        self._crowded_ago_s = crowded_ago_s
        self.nodes = FleetNodes(cluster, clock, lambda node: bool(self._conditions(node, [])), recorder)
        self.for_jobs = ForJobs(cluster, self.nodes, settings, clock)
        self._led_mono_s = 0.0
        self._not_begun = ""  # why it has not read everything yet
        self._pending = Pending(cluster)
        self._telling = Telling(cluster, tell, lambda: self.mail_waits())
        self._unclaimed: dict[str, None] = {}  # nodes to which an earlier leader may still write
        self._missed: set[str] = set()  # nodes that changed while something was written
        self._status = RecordStatus(cluster, clock)
        self._works = Works(self._ended, self.changed)
        self._showing = Showing(cluster, self.nodes, self._works, self._conditions)
        self._silences_wait = False  # a round has left some to the next one
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

    def brake_uses(self) -> list[tuple[str, Use]]:
        """How much of each brake is used, of those nodes that were looked at."""
        picture = FleetPicture(nodes=self.nodes.pictures)
        return numbers.brake_uses(picture, self._cluster.records.values(), self.settings, self._clock())

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
            crowded_mono_s=max(0.0, self._clock().mono_s - self._crowded_ago_s()),
            paused=self._cluster.paused,
            codes=self._cluster.codes,
            orders=self._cluster.orders,
            fenced=self._fencer.outcomes,
            busy=self._busy(),
            # Read by whole rounds alone.
            orphans=dict(self._cluster.orphans()) if only is None else {},
        )

    # ------------------------------------------------------------ what is told of it

    def measure(self) -> None:
        """For a scrape of the leader. Whoever scrapes more often gets what was counted a moment ago."""
        now = self._clock()
        if self.turned_mono_s is None:
            return
        numbers.measure_works(self._metrics, self._works)
        if now.mono_s - self._measured_mono_s >= WHOLE_S:
            self._measured_mono_s = now.mono_s
            picture = FleetPicture(nodes=self.nodes.pictures)
            records = self._cluster.records
            numbers.measure(self._metrics, picture, records, self.settings, now, self.nodes.plain)
            self._metrics.agents_clock(self.nodes.clocks.offset_s(now.mono_s))

    def troubles(self) -> dict[str, Trouble]:
        """What it cannot do while it leads, by name."""
        now, begins = self._clock(), "" if self.lead_began.is_set() else self._not_begun
        off = self.nodes.clocks.off(now.mono_s)
        texts = {
            "take-over": begins and f"it leads and cannot begin: {begins}",
            "codes": self._cluster.codes_problem,
            "clock": "" if off is None else off.sentence,
        }
        return troubles.of_fleet(texts, self._works.failing, self._cluster.records.values(), now)

    def stand_by(self) -> None:
        """This controller leads no more."""
        if self._recorder is not None:
            self._recorder.stand_by()
        self.turned_mono_s = None
        self._measured_mono_s = float("-inf")
        numbers.forget(self._metrics)

    # ------------------------------------------------------------ leading

    def forget(self) -> None:
        """What was heard and told under another leadership."""
        self.nodes.forget()
        self.for_jobs.look_over(())
        for kept in (self._pending, self._telling, self._showing, self._unclaimed, self._missed):
            kept.clear()
        self.lead_began.clear()
        self.mails.clear()
        self.notes.clear()
        self._status.forget()

    def to_tell(self) -> Iterator[NodeQuarantine]:
        return fleet_mail.may_be_told(
            self.mails.to_tell(self._cluster.records), self._pending, self.nodes.joined
        )

    def _write_mails(self, epoch: int) -> None:
        records = self._cluster.records
        room = fleet_mail.AT_ONCE - self._works.of("mail-record")
        may = partial(self._works.may, effect="mail-record")
        for id, record in self.mails.due(records, self._clock(), epoch, may, room).items():
            self._works.go(record.node, "mail-record", partial(self._save_mail, record, records.get(id)))

    async def _save_mail(self, record: NodeQuarantine, before: NodeQuarantine | None) -> None:
        await self._save(record, before)
        self.mails.saved(record)

    async def lead(self, epoch: int) -> None:
        """Until cancelled; may be begun again."""
        try:
            await self._lead(epoch)
        finally:
            self._fencer.stop()
            await self._works.stop()
            self._telling.say()

    async def _lead(self, epoch: int) -> None:
        self._led_mono_s = self._clock().mono_s
        if self._recorder is not None:
            self._recorder.lead(epoch, self.settings)
        self.turned_mono_s = None
        self._not_begun = ""
        self.lead_began.clear()
        while not await self._took_over():
            pass
        self.for_jobs.look_over(self._cluster.records.values())
        self._unclaimed = {one.node: None for one in self._cluster.records.values() if one.state.open}
        self.lead_began.set()
        whole_mono_s = 0.0
        while True:
            self.turned_mono_s = now_s = self._clock().mono_s
            self._wake.clear()
            if now_s - whole_mono_s >= WHOLE_S or self._room_for_silences():
                whole_mono_s = now_s
                self._status.look_over()
                await self.nodes.look_ahead(WHOLE_S, lambda: self._changed(epoch))
                self._timed_round(epoch, whole=True)
            else:
                await self._changed(epoch)
            self._write_what_can_wait(epoch)
            await asyncio.sleep(0)
            left_s = WHOLE_S - (self._clock().mono_s - whole_mono_s)
            # Not wait_for: in Python 3.11 it forgets that it is cancelled when what it waits for comes just then.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, left_s)):
                    await self._wake.wait()
                    await self._works.room()  # till then nothing more would be begun

    async def _took_over(self) -> bool:
        try:
            await self._cluster.take_over()
        except (TemporaryError, PermanentError) as error:
            self._failed("take-over", "", error)
            self._not_begun = str(error)
            await asyncio.sleep(min(getattr(error, "delay_s", AGAIN_S), AGAIN_S))
            return False
        return True

    async def _changed(self, epoch: int) -> None:
        """A round about what has changed, if anything has. Lets others have their turn."""
        self.turned_mono_s = self._clock().mono_s
        await asyncio.sleep(0)
        if self._works.full:
            return  # what was decided now would wait as well: it is decided about more nodes at once then
        later = self.nodes.changed & self._busy()
        self._missed |= later
        self.nodes.changed -= later
        if self.nodes.changed:
            self._timed_round(epoch, whole=False)

    def _timed_round(self, epoch: int, *, whole: bool) -> None:
        begun_s = self._clock().mono_s
        self._round(epoch, whole)
        self._metrics.round("all" if whole else "changed", self._clock().mono_s - begun_s)

    # ------------------------------------------------------------ what is under way

    def _room_for_silences(self) -> bool:
        """Were some left to the next round, and is there room for them?"""
        return self._silences_wait and 2 * self._pending.silences <= SILENCES

    def _busy(self) -> frozenset[str]:
        """Nodes about which nothing is decided now."""
        being_saved = {one.node for one in self._pending.records}
        resting = self._works.resting(*_SAVES)
        return frozenset(self._works.keys | self._unclaimed.keys() | being_saved | resting)

    def _ended(self, key: str, effect: str, error: Exception | None) -> None:
        """A work, well or not."""
        self.turned_mono_s = self._clock().mono_s
        if error is None:
            self._metrics.effect(effect)
        else:
            self._failed(effect, key, error)
        if effect in (*_SAVES, "settle"):
            self._pending.ended(key)
        if effect == "claim" and error is None:
            self._unclaimed.pop(key, None)
        if effect in _SAVES:
            self._showing.saved(key)
        if effect in (*_SAVES, "show") and key not in self._works.keys:
            self._telling.shown(key, self.nodes.joined(key), error)
        if effect == "show" and error is None:
            self.mail_waits()
        if effect in (*_SAVES, "settle", "claim") or key in self._missed:
            self._missed.discard(key)
            self.changed(key)
        self._wake.set()

    def _failed(self, effect: str, about: str, error: Exception) -> None:
        self.failures += 1
        if not isinstance(error, (TemporaryError, PermanentError)):
            self._metrics.exception(effect)
        self._metrics.effect_failed(effect, permanent=isinstance(error, PermanentError))
        if effect in _SAVES:
            self._metrics.record_failed()
        log.warning("fleet_failed", effect=effect, about=about, error=f"{type(error).__name__}: {error}")

    # ------------------------------------------------------------ one round

    def _round(self, epoch: int, whole: bool) -> None:
        """Decides, and begins what follows from it. Waits for nothing."""
        self.rounds += 1
        changed = frozenset(self.nodes.changed)
        only = None if whole else changed
        now, records = self._clock(), self._pending.counted()
        picture = self._picture(epoch, records, only)
        self.nodes.changed.clear()
        self._missed |= (changed | {order.node for order in picture.orders}) & picture.busy
        if only is None:
            self.for_jobs.look_over(records.values())
        self.notes.pause(picture.paused)
        decisions = rounds.decide(picture, records, self.settings, now, only, self.nodes.quiet)
        if self._recorder is not None:
            self._recorder.round(picture, self.nodes.heard, records, now, only, decisions, self.nodes.looked)
            if self._recorder.lost > self._lost_rounds:
                self._lost_rounds = self._recorder.lost
                self._metrics.effect_failed("recording", permanent=False)
        self.nodes.looked = {}
        self._silences_wait = self._silences_wait and not whole
        later = self._carry_out(decisions, records, now, epoch)
        self._fencer.settle(self._cluster.records)
        names = {*(picture.nodes.keys() - self.nodes.quiet if only is None else only)}
        if only is None:
            names.update(one.node for one in self._cluster.records.values())
        self._showing.begin(names)
        if only is None:
            self._look_after_the_rest(picture, epoch, now)
            self._telling.turn(now.mono_s, more=self._silences_wait)
        self._answer(picture, later, now)
        for node, take in self._cluster.take_orders().items():
            self._works.go(node, "order", take)

    def _carry_out(
        self, decisions: tuple[Decision, ...], records: Mapping[str, NodeQuarantine], now: Now, epoch: int
    ) -> set[str]:
        """Begins to write what was decided. Returns the nodes about which it is decided again."""
        some = without_a_flood_of_silences(decisions, records, SILENCES - self._pending.silences)
        self._silences_wait = self._silences_wait or len(some) < len(decisions)
        giving = any(isinstance(one.event, (End, HeldBack)) for one in some)
        # What takes room of a brake was counted with what gives room now: it is decided again when that is saved.
        now_on, held = list[Decision](), set[str]()
        for one in some:
            if (giving and one.takes) or one.node in held:
                held.add(one.node)
            else:
                now_on.append(one)
        if held:
            self.nodes.changed |= held
            self._wake.set()
        later = held | {one.node for one in decisions} - {one.node for one in some}
        moved, effects, taking = self._stepped(now_on, records, now, epoch)
        by_node = marks.by_node(moved.values())
        for node in sorted(by_node, key=lambda name: (name not in taking, taking.get(name) is Kind.SILENCE)):
            own = by_node[node]
            urgent = node in taking
            work = partial(self._written, own, [records.get(one.id) for one in own], effects)
            if self._works.go(node, "isolate" if urgent else "save", work, urgent=urgent):
                self._pending.add(own)
            else:
                later.add(node)
        return later

    async def _written(
        self,
        moved: list[NodeQuarantine],
        before: list[NodeQuarantine | None],
        effects: Mapping[str, list[Effect]],
    ) -> None:
        """What was decided about one node, record by record."""
        for record, known in zip(moved, before, strict=True):
            await self._save(record, known)
            self._telling.saved(record, effects[record.id])

    def _look_after_the_rest(self, picture: FleetPicture, epoch: int, now: Now) -> None:
        """What whole rounds do besides."""
        for node in self._unclaimed:
            self._works.go(node, "claim", partial(self._cluster.claim, node))
        for record in self._pending.records:
            self._works.go(record.node, "settle", partial(self._cluster.settle, record))
        found = numbers.unjudged(picture, self._cluster.records, self.settings, now, self.nodes.quiet)
        if self.notes.note(found, epoch, now):
            self.mail_waits()
        for removal in marks.outstanding(picture, self._cluster.records)[1]:
            if removal.node not in picture.busy:  # what could not be saved may be that it is heard again
                self._works.go(removal.node, "remove", partial(self._cluster.remove, removal.pods))
        self._fence(picture, now)
        pruned = rounds.pruned(picture, self._cluster.records, self.settings, now)
        for old in islice((one for one in pruned if self._works.may(one.node, "prune")), PRUNED):
            self._works.go(old.node, "prune", partial(self._prune, old))

    async def _prune(self, old: NodeQuarantine) -> None:
        if self._cluster.record(old.id) == old:  # else it is judged anew
            await self._cluster.delete(old)

    def _write_what_can_wait(self, epoch: int) -> None:
        """A few at a time."""
        if self._works.full:
            return
        self._showing.tell_conditions()
        if self.mails.unsaved:
            self._write_mails(epoch)
        room = SHOWN_AT_ONCE - self._works.of("record-status")
        for record in self._status.due():
            if room <= 0:
                break
            room -= self._works.go(record.node, "record-status", partial(self._status.write, record.id))

    def _fence(self, picture: FleetPicture, now: Now) -> None:
        records = self._cluster.records
        for one in hook.calls(picture, records, self.settings, now, self.nodes.quiet):
            if self._fencer.may_call(one) and one.node not in picture.busy:
                self._works.go(one.node, "fence", partial(self._call, one, picture))

    async def _call(self, one: FenceCall, picture: FleetPicture) -> None:
        # What the round has seen is some time old by now.
        self._cluster.check_leading()
        node = self.nodes.joined(one.node)
        if node is not None and unreachable(node, picture, self.settings, self._clock()):
            self._fencer.call(one)

    def _answer(self, picture: FleetPicture, later: Collection[str], now: Now) -> None:
        """`later`: nodes about which it is decided again. `now`: of the decisions, for the answers go with them."""
        records = self._cluster.records
        if not picture.orders:
            return
        for one in rounds.answers(picture, records, self.settings, now):
            if one.order.node not in later and one.order.node not in picture.busy:
                self._works.go(one.order.node, "answer", partial(self._give_answer, one, picture))

    async def _give_answer(self, one: Answer, picture: FleetPicture) -> None:
        order, node = one.order, picture.nodes.get(one.order.node)
        log.info("fleet_order", node=order.node, order=order.kind, by=order.by, sentence=one.sentence)
        if not one.done and node is not None:
            self._cluster.event(DoEvent(node.name, node.uid, "OrderDeclined", one.sentence, True))
        await self._cluster.answer(one)

    def record_mail(self, record: str, mail: NodeMail) -> None:
        if not self.notes.record(record, mail):
            self.mails.record(record, mail)

    def _stepped(
        self, decisions: Iterable[Decision], records: Mapping[str, NodeQuarantine], now: Now, epoch: int
    ) -> tuple[dict[str, NodeQuarantine], dict[str, list[Effect]], dict[str, Kind]]:
        """The records after all decisions, what is to be told of each, and the nodes whose take room of a brake."""
        moved: dict[str, NodeQuarantine] = {}
        effects: dict[str, list[Effect]] = {}
        taking: dict[str, Kind] = {}
        for decision in decisions:
            log.info("fleet_decided", node=decision.node, reason=decision.reason, sentence=decision.sentence)
            self._metrics.decision(decision.reason.value)
            before = moved.get(decision.record) or records.get(decision.record)
            record, follows = step(before, decision.event, now, epoch)
            moved[record.id] = record
            self.for_jobs.moved(record)
            effects.setdefault(record.id, []).extend(follows)
            if decision.takes and taking.get(record.node, Kind.SILENCE) is Kind.SILENCE:
                taking[record.node] = record.kind
        return moved, effects, taking

    async def _save(self, record: NodeQuarantine, before: NodeQuarantine | None) -> None:
        """`before`: as it was when that was decided."""
        await self._cluster.settle(record)
        if self._cluster.record(record.id) != before:
            raise TemporaryError(f"record {record.id} was changed after it was decided about", 0.0)
        await self._cluster.save(record)
        self._status.saved(record.id)
        self._metrics.records_saved()

    def _conditions(self, node: NodePicture, own: list[NodeQuarantine]) -> tuple[NodeCondition, ...]:
        return conditions.writes(node, own, self.settings, self._clock(), paused=bool(self.notes.paused))
