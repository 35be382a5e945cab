"""The nodes of a cluster as the fleet's controller sees and writes them."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial

import structlog
from msgspec import structs

from sentinel.cluster.kubernetes import kept, nodes
from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.codes import Codes
from sentinel.cluster.kubernetes.errors import Conflict, Forbidden, NotFound, Refused, Unavailable
from sentinel.cluster.kubernetes.events import About, Events
from sentinel.cluster.kubernetes.names import object_name
from sentinel.cluster.kubernetes.objects import (
    LEASES,
    NODE_LEASES,
    NODES,
    QUARANTINES,
    Custom,
    Node,
    NodeLease,
)
from sentinel.cluster.kubernetes.orders import Place, Word, node_orders
from sentinel.cluster.kubernetes.pause import Pause
from sentinel.cluster.kubernetes.picture import node_picture
from sentinel.cluster.kubernetes.pods import Pods
from sentinel.cluster.kubernetes.policies import Judge
from sentinel.cluster.kubernetes.record_conditions import of_quarantine
from sentinel.cluster.kubernetes.record_index import RecordIndex
from sentinel.cluster.kubernetes.reflector import Change, Pace, Reflector
from sentinel.cluster.kubernetes.store import Store, as_new
from sentinel.core.agents.epochs import Epochs, agent_of
from sentinel.core.fleet.conditions import OWN
from sentinel.core.fleet.events import DoEvent
from sentinel.core.fleet.marks import MarkWrite
from sentinel.core.fleet.model import (
    CodeWord,
    Kind,
    NodeCondition,
    NodePicture,
    NodeQuarantine,
    Order,
    OrderKind,
    PodPicture,
)
from sentinel.core.fleet.orders import Answer
from sentinel.core.fleet.settings import FleetSettings
from sentinel.metrics import declared
from sentinel.metrics.registry import Metrics
from sentinel.util.clock import Clock

log = structlog.get_logger(__name__)

FENCE_TRIES = 5
CONFLICT_S = 1.0
RENEWAL_S = 10.0  # in which a kubelet renews its lease
EPOCHS_S = 10.0  # as long as a Lease is waited for at the first start
SYNC_S = 20.0  # for the watch of one kind, before it is said that it does not come


class KubernetesFleet:
    """`run` follows the cluster until it is cancelled. `epoch` raises NotLeading: Election.epoch."""

    def __init__(
        self,
        client: Client,
        settings: FleetSettings,
        epoch: Callable[[], int],
        epochs: Epochs,
        instance: str,
        changed: Callable[[str], None],
        clock: Clock,
        namespace: str,
        judge: Judge,
    ) -> None:
        self._client, self._settings, self._epoch = client, settings, epoch
        self._epochs, self._changed, self._clock = epochs, changed, clock
        self._types = frozenset({OWN, *(row.type for row in settings.repair_conditions)})
        self._written: dict[str, Node] = {}  # newer than what the watch has told
        self._pictures: dict[str, tuple[Node, NodePicture]] = {}
        self._renewed_mono_s: dict[str, float] = {}
        self._back_mono_s: dict[str, float] = {}  # NodePicture.kubelet_back_mono_s
        self._seen_mono_s: dict[str, float] = {}  # since when there is this node object
        self._isolated_mono_s: dict[str, float] = {}  # record -> since when, by our clock
        self._pods = Pods(client, judge, epoch, changed, clock)
        self._nodes = Reflector(
            client, NODES, Node, self._node_changed, keep=kept.node(self._types), clock=clock
        )
        self._leases = Reflector(
            client,
            LEASES,
            NodeLease,
            self._lease_changed,
            namespace=NODE_LEASES,
            # A thousand renewals a second of ten thousand nodes, none of which is urgent. Where none comes in the time
            # in which each kubelet renews, the watch may be dead.
            pace=Pace(gather_s=0.25, quiet_s=RENEWAL_S),
            clock=clock,
        )
        self._quarantines = Reflector(client, QUARANTINES, Custom, self._record_changed, clock=clock)
        self._followed = (self._nodes, self._leases, self._pods.followed, self._quarantines)
        self._index = RecordIndex()
        self._store = Store(
            client,
            QUARANTINES,
            NodeQuarantine,
            key=lambda one: one.id,
            epoch=epoch,
            epochs=epochs,
            moved=self._index.moved,
        )
        self._events = Events(client, instance, clock)
        self._orders = node_orders(client, epoch, clock, self._order_wrote)
        self._pause = Pause(client, namespace, clock)
        self._codes = Codes(client, namespace, clock)
        self._watched = (*self._followed, self._pause.reflector, self._codes.reflector)

    async def run(self) -> None:
        services = (
            self._nodes,
            self._leases,
            self._quarantines,
            self._pods,
            self._pause.reflector,
            self._codes.reflector,
            self._events,
        )
        async with asyncio.TaskGroup() as group:
            for one in services:
                group.create_task(one.run())

    @property
    def pods(self) -> Pods:
        return self._pods

    def nodes(self) -> Mapping[str, Node]:
        """As they are followed, by name."""
        return self._nodes.objects

    async def lead_policies(self) -> None:
        """Judge JobPolicies and say so in their status, while this process leads."""
        await self._pods.lead()

    @property
    def problems(self) -> list[str]:
        """Of which kinds the picture is not whole and followed, and why."""
        return [
            f"{one.resource.plural}: {one.problem or one.state.value}"
            for one in self._watched
            if not one.synced
        ]

    def measure(self, metrics: Metrics) -> None:
        """For a scrape."""
        for one in self._watched:
            one.measure(metrics)
        for other in self._pods.others:
            other.measure(metrics)
        self._pods.policies.measure(metrics)
        self._events.measure(metrics)
        metrics.replace(declared.POLICY_FAILURES, {(): self._pods.policies.failures})
        metrics.replace(declared.UNREADABLE, {("quarantines",): len(self._store.unreadable)})

    # ------------------------------------------------------------ what it shows

    @property
    def records(self) -> Mapping[str, NodeQuarantine]:
        return self._index.records

    def records_of(self, node: str) -> Collection[NodeQuarantine]:
        return self._index.of(node)

    def record(self, id: str) -> NodeQuarantine | None:
        return self._store.records.get(("", object_name(id)))

    @property
    def complete(self) -> bool:
        return self._nodes.synced and self._pods.followed.synced

    @property
    def watching_since_mono_s(self) -> float:
        since = self._leases.followed_since_mono_s
        return self._clock().mono_s if since is None else since

    @property
    def leases_mono_s(self) -> float:
        return self._clock().mono_s - self._leases.age_s

    @property
    def orders(self) -> tuple[Order, ...]:
        return self._orders.standing

    @property
    def paused(self) -> str:
        return self._pause.text or self._codes.unread

    @property
    def codes(self) -> tuple[CodeWord, ...]:
        return self._codes.said.words

    @property
    def codes_problem(self) -> str:
        return "; ".join(self._codes.said.troubles)

    @property
    def codes_version(self) -> str:
        """Of the ConfigMap that `codes` was read from; "": there is none."""
        return self._codes.version

    def names(self) -> Collection[str]:
        return self._nodes.objects.keys()

    def node(self, name: str) -> NodePicture | None:
        one = self._newest(name)
        if one is None:
            return None
        shown = self._shown(one)
        pods = self._pods.on(name, None if shown.mark is None else self._isolated(name, shown.mark.number))
        return structs.replace(
            shown,
            seen_mono_s=self._seen_mono_s.get(name, 0.0),
            lease_mono_s=self._renewed_mono_s.get(name),
            kubelet_back_mono_s=self._back_mono_s.get(name),
            pods=pods,
        )

    def lease_mono_s(self, name: str) -> float | None:
        return self._renewed_mono_s.get(name)

    def orphans(self) -> dict[str, tuple[PodPicture, ...]]:
        """Pods that are bound to nodes that are not there."""
        return {name: self._pods.on(name) for name in self._pods.nodes() - self._nodes.objects.keys()}

    def _isolated(self, node: str, number: int) -> float | None:
        """Since when a fault keeps this node out, by our own monotonic clock; None: no fault does."""
        record = self._store.records.get(("", object_name(f"{node}-{number:04d}")))
        if record is None or not record.isolating or record.kind is not Kind.FAULT or not record.acted_wall_s:
            return None
        if record.id not in self._isolated_mono_s:
            now = self._clock()
            self._isolated_mono_s[record.id] = now.mono_s - max(0.0, now.wall_s - record.acted_wall_s)
        return self._isolated_mono_s[record.id]

    def _shown(self, one: Node) -> NodePicture:
        """Made once for each version of a node: whole rounds ask for ten thousand of them, of which few change."""
        known, shown = self._pictures.get(one.metadata.name, (None, None))
        if shown is None or known is not one:
            shown = node_picture(one, None, pool_label=self._settings.pool_label, conditions=self._types)
            self._pictures[one.metadata.name] = (one, shown)
        return shown

    def uid_of(self, name: str) -> str:
        """ "" where there is no such node."""
        one = self._nodes.objects.get(name)
        return "" if one is None else one.metadata.uid

    def _newest(self, name: str) -> Node | None:
        """A watch may tell later of a write than its answer did."""
        seen, written = self._nodes.objects.get(name), self._written.get(name)
        if seen is None or written is None or seen.metadata.uid != written.metadata.uid:
            return seen
        same = seen.metadata.resource_version == written.metadata.resource_version
        if not same and as_new(written.metadata, seen.metadata):
            return written
        del self._written[name]
        return seen

    # ------------------------------------------------------------ what is heard

    def _node_changed(self, change: Change[Node]) -> None:
        one = change.after or change.before
        if one is not None:
            if change.after is None:
                self._written.pop(one.metadata.name, None)
                self._pictures.pop(one.metadata.name, None)
            name = one.metadata.name
            if change.after is None:
                self._seen_mono_s.pop(name, None)
            elif change.before is None or change.before.metadata.uid != change.after.metadata.uid:
                self._seen_mono_s[name] = self._clock().mono_s
            newest = self._newest(name) or one
            nodes.meet(self._epochs, newest.metadata, "nodes")
            if change.after is None:
                nodes.forget(self._epochs, "", name, "nodes")
                self._epochs.forget(agent_of(name))
            self._orders.observe(Place(NODES, name, name), newest.metadata, gone=change.after is None)
            self._changed(name)

    def _lease_changed(self, change: Change[NodeLease]) -> None:
        """Not when it says it was renewed (clocks differ) but when that was seen."""
        if change.after is None:
            if change.before is not None:
                self._renewed_mono_s.pop(change.before.metadata.name, None)
                self._back_mono_s.pop(change.before.metadata.name, None)
        elif change.before is None or change.before.spec.renew_time != change.after.spec.renew_time:
            name, now_s = change.after.metadata.name, self._clock().mono_s
            before_s = max(self._renewed_mono_s.get(name, now_s), self.watching_since_mono_s)
            self._renewed_mono_s[name] = now_s
            if now_s - before_s > self._settings.lease_s:
                self._back_mono_s[name] = now_s
                self._changed(name)

    def _record_changed(self, change: Change[Custom]) -> None:
        one = change.after or change.before
        if one is None:
            return
        place = ("", one.metadata.name)
        before = self._store.records.get(place)
        news = self._store.observe(place, change.after, gone=one.metadata.uid)
        known = self._store.known(place)
        for record in (before, self._store.records.get(place)):
            if record is not None:
                newest = one if known is None else known
                where = Place(QUARANTINES, newest.metadata.name, record.node)
                self._orders.observe(where, newest.metadata, gone=known is None)
                if news:
                    self._changed(record.node)

    # ------------------------------------------------------------ what is written

    async def epochs_known(self) -> None:
        """Until nodes and records were read, for some seconds at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EPOCHS_S):
                for one in (self._nodes, self._quarantines):
                    await one.wait_synced()

    async def take_over(self) -> None:
        self._isolated_mono_s.clear()
        for one in self._followed:
            try:
                async with asyncio.timeout(SYNC_S):
                    await one.wait_synced()
            except TimeoutError:
                why = one.problem or "no answer"
                raise Unavailable(f"{one.resource.plural} cannot be followed: {why}") from None
        await self._pause.known()
        await self._codes.known()
        await self._store.load()

    async def claim(self, node: str) -> None:
        for record in [one for one in self.records_of(node) if one.state.open]:
            await self._store.claim(record)
        await self._fence(node)

    async def _fence(self, name: str) -> None:
        """As the node is now: the predecessor may have read it later than our watch has told of it. A node that takes
        no epoch takes no write of the predecessor either."""
        node = self._newest(name)
        for _ in range(FENCE_TRIES):
            if node is None:
                return
            try:
                self._written[name] = await nodes.fence(self._client, node, self._epoch())
                return
            except Conflict:
                node = await self._client.find(NODES.path(name=name), Node)
            except NotFound:
                return
            except (Refused, Forbidden) as error:
                log.warning("epoch_refused", name=name, why=str(error))
                return
        raise Conflict(f"node {name} is changed again and again", CONFLICT_S)

    def check_leading(self) -> None:
        self._epoch()

    async def settle(self, record: NodeQuarantine) -> None:
        await self._store.settle(record)

    def unsure(self, record: NodeQuarantine) -> bool:
        return self._store.unsure(record)

    async def save(self, record: NodeQuarantine) -> None:
        await self._store.save(record)

    async def show(self, record: NodeQuarantine) -> None:
        await self._store.show(record, of_quarantine(record), self._clock().wall_s)

    async def delete(self, record: NodeQuarantine) -> None:
        await self._store.delete(record)

    async def mark(self, wanted: MarkWrite) -> None:
        node = self._newest(wanted.node)
        if node is None:
            return
        log.info("node_marked", node=wanted.node, taint=wanted.taint, unschedulable=wanted.unschedulable)
        await self._wrote(nodes.mark(self._client, node, wanted, self._epoch()), wanted.node)

    async def set_conditions(self, node: str, wanted: tuple[NodeCondition, ...]) -> None:
        there = self._newest(node)
        if there is not None:
            now = self._clock()
            await self._wrote(
                nodes.set_conditions(self._client, there, wanted, self._epoch(), now.wall_s), node
            )

    async def remove(self, pods: Iterable[str]) -> None:
        refused: list[Refused | Forbidden] = []
        for pod in pods:
            version = self._pods.version(pod)
            self._epoch()
            try:
                await nodes.remove_pod(self._client, pod, version)
            except Conflict as error:  # it is judged again as it is now
                log.info("pod_changed_meanwhile", pod=pod, why=str(error))
            except (Refused, Forbidden) as error:  # of this pod: the others do not wait for it
                refused.append(error)
        if refused:
            raise refused[0]

    def take_orders(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        return {place.subject: partial(self._take_order, place) for place in self._orders.asking}

    async def _take_order(self, place: Place) -> None:
        await self._ordered(self._orders.take(place), place)

    def place_of(self, kind: OrderKind, node: str) -> Place | None:
        """Where an order about this node stands: of a node that is gone at the record that keeps it out."""
        if node in self._nodes.objects:
            return Place(NODES, node, node)
        if kind is OrderKind.RELEASE:
            for one in self.records_of(node):
                if one.state.open and one.kind.isolates:
                    return Place(QUARANTINES, object_name(one.id), node)
        return None

    async def order(self, place: Place, kind: OrderKind, word: Word) -> None:
        """In the name of who gave it. Raises what `Orders.order` raises."""
        await self._orders.order(place, kind.value, word)

    async def answer(self, answer: Answer) -> None:
        place = self._orders.place_of(answer.order)
        if place is not None:
            work = self._orders.answer(answer.order, done=answer.done, sentence=answer.sentence)
            await self._ordered(work, place)

    async def _ordered(self, work: Awaitable[None], place: Place) -> None:
        try:
            await work
        except (Conflict, NotFound) as error:
            log.info("order_changed_meanwhile", node=place.subject, why=str(error))
            self._changed(place.subject)

    def _order_wrote(self, place: Place, now: Node | Custom) -> None:
        if isinstance(now, Node):
            self._written[place.name] = now
        else:
            self._store.observe(("", place.name), now)
        self._changed(place.subject)

    def event(self, effect: DoEvent) -> None:
        about = About("v1", "Node", effect.node, effect.node_uid)
        self._events.tell(about, effect.reason, effect.message, warning=effect.warning)

    async def _wrote(self, write: Awaitable[Node], name: str) -> None:
        """A refused write is decided about again on what the node is now, which its watch may tell much later."""
        try:
            self._written[name] = await write
        except (Conflict, NotFound) as error:
            log.info("node_changed_meanwhile", node=name, why=str(error))
            known, now = self._newest(name), await self._client.find(NODES.path(name=name), Node)
            if now is None or known is None or now.metadata.uid != known.metadata.uid:
                return  # another object, or none: the watch tells what became of this one
            if now.metadata.resource_version != known.metadata.resource_version:
                self._written[name] = now
                self._changed(name)
