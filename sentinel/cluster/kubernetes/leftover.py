"""What a Sentinel that is gone has left of itself on nodes, and how it is taken away again. Others' things stay.

- Isolations that are in force end, so that a new installation judges the node anew.
- Of a node go the taint, `unschedulable` where the taint says that Sentinel set it and nobody else claims the node, the
  conditions that Sentinel wrote, and its annotations. A person's hold stays: as a cordon.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct, structs

from sentinel.cluster.kubernetes.client import JSON_PATCH, Client, Resource, decoded
from sentinel.cluster.kubernetes.errors import Conflict, NotFound, Refused
from sentinel.cluster.kubernetes.nodes import Operation, preconditions
from sentinel.cluster.kubernetes.objects import (
    INCIDENTS,
    JOB_POLICIES,
    NODES,
    PROTECTED_JOBS,
    QUARANTINES,
    Custom,
    Node,
)
from sentinel.cluster.kubernetes.orders import ORDER, PREFIX, taken
from sentinel.cluster.kubernetes.picture import node_picture
from sentinel.cluster.kubernetes.record_conditions import of_quarantine
from sentinel.cluster.kubernetes.store import KINDS, LIST_S, PAGE, Store
from sentinel.core.agents.epochs import Epochs
from sentinel.core.fleet.conditions import ISOLATED, OWN, RETURNED
from sentinel.core.fleet.events import End, Reason
from sentinel.core.fleet.marks import unmark
from sentinel.core.fleet.model import QUARANTINE_TAINT, EndedBy, Kind, NodeMark, NodeQuarantine, OrderKind
from sentinel.core.fleet.record import step
from sentinel.util.clock import system_now
from sentinel.util.errors import PermanentError

HOLDING = (OrderKind.HOLD, OrderKind.DRAIN)
HOLDS = tuple(PREFIX + kind for kind in HOLDING)  # annotations that order it
TRIES = 5  # a node changes by itself now and then: its kubelet writes conditions
RECORDS = (PROTECTED_JOBS, INCIDENTS, QUARANTINES, JOB_POLICIES)

Leads = Callable[[], int]  # the epoch, right before each write; raises NotLeading


class Page(Struct):
    metadata: dict[str, Any]
    items: list[msgspec.Raw] = []


async def objects(client: Client, resource: Resource) -> AsyncIterator[msgspec.Raw]:
    """All of them, a page in memory at a time. None where the kind is not installed."""
    query, path = {"limit": str(PAGE)}, resource.path()
    while True:
        try:
            content = await client.call("GET", path, query=query, deadline_s=LIST_S)
        except NotFound:
            return
        page = decoded(Page, content, path)
        for one in page.items:
            yield one
        if not page.metadata.get("continue"):
            return
        query["continue"] = page.metadata["continue"]


# ---------------------------------------------------------------- isolations


class Holder(Struct, frozen=True):
    """`number`: of the record of the hold."""

    number: int
    who: str


class Isolations:
    """The records of nodes that Sentinel keeps out of service."""

    def __init__(self, client: Client, epochs: Epochs, epoch: Leads) -> None:
        self._client = client
        self._store = Store(
            client, QUARANTINES, NodeQuarantine, key=lambda one: one.id, epoch=epoch, epochs=epochs
        )

    async def load(self) -> None:
        try:
            await self._store.load()
        except NotFound:  # the custom resources are gone
            return

    @property
    def in_force(self) -> list[NodeQuarantine]:
        return [one for one in self._store.records.values() if one.isolating]

    @property
    def unreadable(self) -> dict[str, str]:
        """The record's name -> why."""
        return {name: why for (_, name), why in self._store.unreadable.items()}

    async def node_of(self, name: str) -> str:
        """Of an unreadable record: as far as it says. Raises TemporaryErrors, PermanentErrors."""
        spec = (await self._client.get(QUARANTINES.path(name=name), Custom)).spec
        return str(spec.get("node") or name.rpartition("-")[0])

    @property
    def holders(self) -> dict[tuple[str, str], Holder]:
        """Name and UID of a node -> who holds it, by the newest such record."""
        found = dict[tuple[str, str], Holder]()
        for one in sorted(self._store.records.values(), key=lambda one: one.number):
            if one.kind is Kind.HOLD and (one.isolating or one.ended_by is EndedBy.UNINSTALLED):
                found[one.node, one.node_uid] = Holder(one.number, one.by or "a person")
        return found

    async def end(self, record: NodeQuarantine) -> None:
        """Nothing is mailed of it. Raises TemporaryErrors, PermanentErrors."""
        sentence = f"The isolation of node {record.node} has ended: Sentinel was uninstalled."
        event = End(reason=Reason.UNINSTALLED, sentence=sentence, ended_by=EndedBy.UNINSTALLED)
        ended = structs.replace(step(record, event, system_now(), record.epoch)[0], mails=record.mails)
        try:
            await self._store.save(ended)
        except Refused as error:
            raise PermanentError(
                f"{error}; apply the deploy/crds of this version first", "OldCrds"
            ) from error
        await self._show(ended)

    async def show(self) -> None:
        """Of those that have ended so: a run before this one may not have come to it. Raises as `end`."""
        for record in self._store.records.values():
            if record.ended_by is EndedBy.UNINSTALLED:
                await self._show(record)

    async def _show(self, record: NodeQuarantine) -> None:
        await self._store.show(record, of_quarantine(record), system_now().wall_s)


# ---------------------------------------------------------------- nodes


class OnNode(Struct, frozen=True, kw_only=True):
    """`found`: each thing in words. `stays`: why it is out of service afterwards all the same, in a sentence."""

    name: str
    found: tuple[str, ...] = ()
    changes: tuple[Operation, ...] = ()  # of the node
    conditions: tuple[Operation, ...] = ()  # of its status
    stays: str = ""


class Keep(Struct, frozen=True):
    """Which nodes stay cordoned though the cordon is Sentinel's. `all`: every one."""

    holders: dict[tuple[str, str], Holder] = {}
    all: bool = False

    def why(self, node: Node, mark: NodeMark) -> str:
        """In a sentence, "" where it goes. A hold that another isolation has followed counts no more."""
        meta = node.metadata
        holder = self.holders.get((meta.name, meta.uid))
        if holder is not None and holder.number >= mark.number:
            return f"It stays unschedulable: {holder.who} holds it out of service."
        if any(name in meta.annotations for name in HOLDS) or ordered(meta.annotations) in HOLDING:
            return "It stays unschedulable: a person has ordered to hold it."
        return "It stays unschedulable, as you asked." if self.all else ""


def ordered(annotations: Mapping[str, str]) -> str:
    """The kind of the order that a controller has taken up there, "" without one."""
    found = taken(annotations.get(ORDER))
    return "" if found is None else found.kind


def on_node(node: Node, keep: Keep = Keep()) -> OnNode:  # noqa: B008  frozen
    """What must be written so that it looks as if Sentinel had never been there, but for what is to be kept."""
    meta = node.metadata
    found, changes, conditions, stays = list[str](), list[Operation](), list[Operation](), ""
    # The last one first: what is removed moves those behind it.
    for place, taint in reversed(list(enumerate(node.spec.taints))):
        if taint.key == QUARANTINE_TAINT:
            found.append(f"taint {taint.key}={taint.value}")
            changes.append({"op": "remove", "path": f"/spec/taints/{place}"})
    if found:
        picture = node_picture(node, None, pool_label="", conditions=())
        back = unmark(picture)
        stays = back.sentence
        if back.unschedulable is not None and picture.mark and (why := keep.why(node, picture.mark)):
            stays = why
        elif back.unschedulable is not None:
            found.append("unschedulable by Sentinel")
            changes.append({"op": "add", "path": "/spec/unschedulable", "value": back.unschedulable})
    for name in sorted(meta.annotations):
        if name.startswith(PREFIX):
            found.append(f"annotation {name}")
            changes.append({"op": "remove", "path": f"/metadata/annotations/{name.replace('/', '~1')}"})
    for place, condition in reversed(list(enumerate(node.status.conditions))):
        if condition.type == OWN or condition.reason in (ISOLATED, RETURNED):
            found.append(f"condition {condition.type}")
            conditions.append({"op": "remove", "path": f"/status/conditions/{place}"})
    return OnNode(
        name=meta.name,
        found=tuple(found),
        changes=tuple(changes),
        conditions=tuple(conditions),
        stays=stays,
    )


async def nodes(client: Client, keep: Keep) -> list[OnNode]:
    """Those that bear anything of Sentinel's."""
    found = list[OnNode]()
    async for one in objects(client, NODES):
        node = msgspec.json.decode(one, type=Node)
        if (left := on_node(node, keep)).found:
            found.append(structs.replace(left, changes=(), conditions=()))  # decided again when it is written
    return found


async def clear_node(client: Client, name: str, keep: Keep, epoch: Leads) -> None:
    """Read and written until nothing is left. Raises Conflict where it changes on and on, NotFound, other
    TemporaryErrors, PermanentErrors."""
    for tried in range(TRIES):
        try:
            return await _clear(client, NODES.path(name=name), keep, epoch)
        except Conflict:
            if tried == TRIES - 1:
                raise


async def _clear(client: Client, path: str, keep: Keep, epoch: Leads) -> None:
    node = await client.get(path, Node)
    left = on_node(node, keep)
    for where, changes in ((f"{path}/status", left.conditions), (path, left.changes)):
        if changes:
            epoch()
            operations = [*preconditions(node.metadata), *changes]
            node = await client.patch(where, operations, Node, how=JSON_PATCH)


# ---------------------------------------------------------------- records


class _Counted(Struct):
    class Meta(Struct, rename="camel"):
        remaining_item_count: int = 0

    metadata: Meta
    items: list[msgspec.Raw] = []


async def records(client: Client) -> dict[str, int]:
    """The kind -> how many there are. Raises TemporaryErrors, PermanentErrors."""
    counts = {}
    for kind in RECORDS:
        try:
            page = await client.call("GET", kind.path(), query={"limit": "1"})
        except NotFound:
            continue
        found = msgspec.json.decode(page, type=_Counted)
        counts[KINDS[kind.plural]] = len(found.items) + found.metadata.remaining_item_count
    return counts
