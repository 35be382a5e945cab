"""The nodes of a cluster as the fleet's controller sees and writes them."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

import structlog
from msgspec import structs

from sentinel.clock import Clock
from sentinel.cluster.kubernetes import nodes
from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.errors import Conflict, NotFound
from sentinel.cluster.kubernetes.events import About, Events
from sentinel.cluster.kubernetes.objects import (
    LEASES,
    NODE_LEASES,
    NODES,
    PODS,
    QUARANTINES,
    Custom,
    Node,
    NodeLease,
    Pod,
)
from sentinel.cluster.kubernetes.picture import node_picture, pod_picture
from sentinel.cluster.kubernetes.reflector import Change, Reflector
from sentinel.cluster.kubernetes.store import Store
from sentinel.core.fleet_conditions import OWN
from sentinel.core.fleet_events import DoEvent
from sentinel.core.fleet_marks import MarkWrite
from sentinel.core.fleet_model import NodeCondition, NodePicture, NodeQuarantine, PodPicture
from sentinel.core.fleet_settings import FleetSettings

log = structlog.get_logger(__name__)


class KubernetesFleet:
    """`run` follows the cluster until it is cancelled. `epoch` raises NotLeading: Election.epoch."""

    def __init__(
        self,
        client: Client,
        settings: FleetSettings,
        epoch: Callable[[], int],
        instance: str,
        changed: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self._client, self._settings, self._epoch = client, settings, epoch
        self._changed, self._clock = changed, clock
        self._types = frozenset({OWN, *(row.type for row in settings.repair_conditions)})
        self._written: dict[str, Node] = {}  # newer than what the watch has told
        self._renewed_mono_s: dict[str, float] = {}
        self._pods: dict[str, dict[str, PodPicture]] = {}  # node -> uid -> pod
        self._nodes = Reflector(client, NODES, Node, self._node_changed, clock=clock)
        self._leases = Reflector(
            client, LEASES, NodeLease, self._lease_changed, namespace=NODE_LEASES, clock=clock
        )
        self._all_pods = Reflector(client, PODS, Pod, self._pod_changed, clock=clock)
        self._quarantines = Reflector(client, QUARANTINES, Custom, self._record_changed, clock=clock)
        self._store = Store(client, QUARANTINES, NodeQuarantine, key=lambda one: one.id, epoch=epoch)
        self._events = Events(client, instance, clock)

    async def run(self) -> None:
        followed = (self._nodes, self._leases, self._all_pods, self._quarantines)
        async with asyncio.TaskGroup() as group:
            for one in followed:
                group.create_task(one.run())
            group.create_task(self._events.run())

    @property
    def top_epoch(self) -> int:
        """The highest in any record: the floor of the next leader's."""
        return self._store.top_epoch

    # ------------------------------------------------------------ what it shows

    @property
    def records(self) -> Mapping[str, NodeQuarantine]:
        return {record.id: record for record in self._store.records.values()}

    @property
    def complete(self) -> bool:
        return self._nodes.synced and self._all_pods.synced

    @property
    def watching_since_mono_s(self) -> float:
        since = self._leases.followed_since_mono_s
        return self._clock().mono_s if since is None else since

    def names(self) -> Collection[str]:
        return self._nodes.objects.keys()

    def node(self, name: str) -> NodePicture | None:
        one = self._newest(name)
        if one is None:
            return None
        shown = node_picture(one, None, pool_label=self._settings.pool_label, conditions=self._types)
        pods = tuple(self._pods.get(name, {}).values())
        return structs.replace(shown, lease_mono_s=self._renewed_mono_s.get(name), pods=pods)

    def uid_of(self, name: str) -> str:
        """ "" where there is no such node."""
        one = self._nodes.objects.get(name)
        return "" if one is None else one.metadata.uid

    def _newest(self, name: str) -> Node | None:
        """A watch may tell later of a write than its answer did."""
        seen, written = self._nodes.objects.get(name), self._written.get(name)
        if seen is None or written is None or seen.metadata.uid != written.metadata.uid:
            return seen
        if int(seen.metadata.resource_version) >= int(written.metadata.resource_version):
            del self._written[name]
            return seen
        return written

    # ------------------------------------------------------------ what is heard

    def _node_changed(self, change: Change[Node]) -> None:
        one = change.after or change.before
        if one is not None:
            if change.after is None:
                self._written.pop(one.metadata.name, None)
            self._changed(one.metadata.name)

    def _lease_changed(self, change: Change[NodeLease]) -> None:
        """Not when it says it was renewed (clocks differ) but when that was seen."""
        if change.after is None:
            if change.before is not None:
                self._renewed_mono_s.pop(change.before.metadata.name, None)
        elif change.before is None or change.before.spec.renew_time != change.after.spec.renew_time:
            self._renewed_mono_s[change.after.metadata.name] = self._clock().mono_s

    def _pod_changed(self, change: Change[Pod]) -> None:
        for one in (change.before, change.after):
            if one is None or not one.spec.node_name:
                continue
            there = self._pods.setdefault(one.spec.node_name, {})
            there.pop(one.metadata.uid, None)
            if one is change.after and (pod := pod_picture(one)) is not None:
                there[pod.uid] = pod
            if not there:
                del self._pods[one.spec.node_name]

    def _record_changed(self, change: Change[Custom]) -> None:
        one = change.after or change.before
        if one is None:
            return
        place = ("", one.metadata.name)
        before = self._store.records.get(place)
        if self._store.observe(place, change.after):
            for record in (before, self._store.records.get(place)):
                if record is not None:
                    self._changed(record.node)

    # ------------------------------------------------------------ what is written

    async def take_over(self) -> None:
        for one in (self._nodes, self._leases, self._all_pods, self._quarantines):
            await one.wait_synced()
        for record in await self._store.load():
            if record.state.open:
                await self._store.claim(record)
                if (node := self._newest(record.node)) is not None:
                    await self._wrote(nodes.fence(self._client, node, self._epoch()), record.node)

    async def save(self, record: NodeQuarantine) -> None:
        await self._store.save(record)

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
        for pod in pods:
            self._epoch()
            await nodes.remove_pod(self._client, pod)

    def event(self, effect: DoEvent) -> None:
        about = About("v1", "Node", effect.node, effect.node_uid)
        self._events.tell(about, effect.reason, effect.message, warning=effect.warning)

    async def _wrote(self, write: Awaitable[Node], name: str) -> None:
        """A refused write is decided about again when the watch has told what the node is now."""
        try:
            self._written[name] = await write
        except (Conflict, NotFound) as error:
            log.info("node_changed_meanwhile", node=name, why=str(error))
            self._changed(name)
