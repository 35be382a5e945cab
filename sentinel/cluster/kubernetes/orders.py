"""What people order by annotations of nodes, quarantines and jobs' records: taken up, followed, answered.

    sentinel.dev/release: why  →  sentinel.dev/order: {id, …}  →  the record follows it  →  sentinel.dev/answer: {…}

The leader takes an order up by one write that gives it an id of its own: whoever leads next sees the same order with
the same id, and a record that holds this id has followed it. Who may write these annotations is RBAC's to say.
"""

import contextlib
import secrets
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct

from sentinel.cluster.kubernetes.client import JSON_PATCH, Client, Resource
from sentinel.cluster.kubernetes.errors import NotFound
from sentinel.cluster.kubernetes.nodes import Operation, not_older, preconditions, set_epoch
from sentinel.cluster.kubernetes.objects import NODES, Custom, FullMeta, Node
from sentinel.core.fleet.model import Order, OrderKind
from sentinel.util.clock import Clock
from sentinel.util.documents import time_text
from sentinel.util.errors import PermanentError

PREFIX = "sentinel.dev/"
ORDER, ANSWER = PREFIX + "order", PREFIX + "answer"
AT_ONCE = 32  # orders that are followed together; the others wait for their turn
MAX_TEXT = 300


def asks(kinds: type[StrEnum]) -> Mapping[str, str]:
    """The annotations that are orders of these kinds, and which."""
    return {PREFIX + kind.value: kind.value for kind in kinds}


ASKS = asks(OrderKind)  # of nodes


class Word(Struct, frozen=True, omit_defaults=True):
    """What the command line writes as the value of an order. People write the argument and the reason alone."""

    why: str = ""
    by: str = ""
    ask: str = ""  # finds its own answer again
    argument: str = ""


class Taken(Struct, frozen=True, omit_defaults=True):
    """The annotation `sentinel.dev/order`."""

    id: str
    kind: str
    seen_wall_s: float
    by: str = ""
    why: str = ""
    ask: str = ""
    argument: str = ""


def taken(text: str | None) -> Taken | None:
    """What the annotation says. None: it is not there, or what a person wrote there is no order."""
    try:
        return None if text is None else msgspec.json.decode(text, type=Taken)
    except msgspec.DecodeError:
        return None


class Said(Struct, frozen=True, omit_defaults=True):
    """The annotation `sentinel.dev/answer`: the last one stays."""

    done: bool
    sentence: str
    at: str = ""  # RFC 3339
    ask: str = ""


class _Managed(Struct, frozen=True, rename="camel"):
    manager: str = ""
    time: str = ""
    fields: dict[str, Any] = msgspec.field(name="fieldsV1", default_factory=dict)


class _Meta(FullMeta, frozen=True, rename="camel"):
    managed_fields: tuple[_Managed, ...] = ()


class _Asked(Struct, frozen=True):
    metadata: _Meta


class Place(Struct, frozen=True):
    """Where an order stands: an object, and the node or the job that is meant."""

    resource: Resource
    name: str
    subject: str
    namespace: str = ""

    @property
    def path(self) -> str:
        return self.resource.path(self.namespace, self.name)


class HasId(Protocol):
    """An order of any kind."""

    @property
    def id(self) -> str: ...


O = TypeVar("O", bound=HasId)  # noqa: E741


class Orders(Generic[O]):
    """`observe` is told of every object. `wrote` is told of what a write of ours has made of one.

    `make` gives the core's order of what stands at a subject. `split`: (kind, text) -> (argument, why).
    """

    def __init__(
        self,
        client: Client,
        epoch: Callable[[], int],
        clock: Clock,
        wrote: Callable[[Place, Node | Custom], None],
        *,
        kinds: type[StrEnum],
        make: Callable[[Taken, str], O],
        split: Callable[[str, str], tuple[str, str]] = lambda kind, text: ("", text),
    ) -> None:
        self._client, self._epoch, self._clock, self._wrote = client, epoch, clock, wrote
        self._asks, self._make, self._split = asks(kinds), make, split
        self._asking: dict[Place, None] = {}  # in the order in which they were seen
        self._taken: dict[Place, O] = {}
        self._told = 0  # counts what was told of objects

    @property
    def standing(self) -> tuple[O, ...]:
        """Taken up, and not answered yet."""
        return tuple(self._taken.values())

    def observe(self, place: Place, meta: FullMeta, *, gone: bool = False) -> None:
        self._told += 1
        notes = meta.annotations
        if gone or not (ORDER in notes or self._asks.keys() & notes.keys()):
            self._forget(place)
            return
        taken = self._read(notes.get(ORDER))
        if taken is not None:
            self._taken[place] = self._make(taken, place.subject)
        else:
            self._taken.pop(place, None)
        if self._asks.keys() & notes.keys():
            self._asking[place] = None
        else:
            self._asking.pop(place, None)

    @property
    def asking(self) -> tuple[Place, ...]:
        """Where orders wait to be taken up, and it is their turn: one for each object at a time."""
        room = max(0, AT_ONCE - len(self._taken))
        return tuple(place for place in self._asking if place not in self._taken)[:room]

    def place_of(self, order: O) -> Place | None:
        return next((place for place, one in self._taken.items() if one.id == order.id), None)

    async def order(self, place: Place, kind: str, word: Word) -> None:
        """Write an order in the name of who gave it. Raises Conflict, and PermanentError where one stands there already
        (OrderStands) or the object is gone (NotFound)."""
        meta = (await self._client.get(place.path, _Asked)).metadata
        if ORDER in meta.annotations or self._asks.keys() & meta.annotations.keys():
            raise PermanentError(f"an order about {place.subject} is being followed already", "OrderStands")
        await self._change(place, meta, [_add(PREFIX + kind, word)])

    async def take(self, place: Place) -> None:
        """Give the order that stands there its id. Raises Conflict (it changes: look again), NotLeading."""
        told = self._told
        try:
            found = await self._client.get(place.path, _Asked)
        except NotFound:
            return self._forget(place)
        meta = found.metadata
        key = next((key for key in self._asks if key in meta.annotations), None)
        if key is None or self._read(meta.annotations.get(ORDER)) is not None:
            return self._found(place, meta, told)
        word = self._word(self._asks[key], meta.annotations[key])
        taken = Taken(
            id=secrets.token_hex(8),
            kind=self._asks[key],
            seen_wall_s=self._clock().wall_s,
            by=word.by or _manager(meta, key),
            why=word.why,
            ask=word.ask,
            argument=word.argument,
        )
        await self._change(place, meta, [_remove(key), _add(ORDER, taken)])

    async def answer(self, order: O, *, done: bool, sentence: str) -> None:
        """Take the order away and leave the answer. Same errors as `take`."""
        place, told = self.place_of(order), self._told
        if place is None:
            return
        try:
            found = await self._client.get(place.path, _Asked)
        except NotFound:
            return self._forget(place)
        meta = found.metadata
        standing = self._read(meta.annotations.get(ORDER))
        if standing is None or standing.id != order.id:
            return self._found(place, meta, told)
        at = time_text(round(self._clock().wall_s))
        said = Said(done=done, sentence=sentence, at=at, ask=standing.ask)
        await self._change(place, meta, [_remove(ORDER), _add(ANSWER, said)])

    async def _change(self, place: Place, meta: FullMeta, changes: list[Operation]) -> None:
        epoch = self._epoch()
        not_older(meta, epoch)
        operations = [*preconditions(meta), set_epoch(meta, epoch), *changes]
        told = self._told
        kind: type[Node] | type[Custom] = Node if place.resource == NODES else Custom
        try:
            now = await self._client.patch(place.path, operations, kind, how=JSON_PATCH)
        except NotFound:
            return self._forget(place)
        self._found(place, now.metadata, told)
        self._wrote(place, now)

    def _found(self, place: Place, meta: FullMeta, told: int) -> None:
        """An answer of the API server. Where anything was `told` of since it was asked, that may be newer: a person's
        next order, which nothing would tell of again. What was answered is told of too."""
        if self._told == told:
            self.observe(place, meta)

    def _forget(self, place: Place) -> None:
        self._asking.pop(place, None)
        self._taken.pop(place, None)

    def _read(self, text: str | None) -> Taken | None:
        found = taken(text)
        # Without an id it would be followed for ever.
        return found if found and found.id and PREFIX + found.kind in self._asks else None

    def _word(self, kind: str, text: str) -> Word:
        """A mapping of the command line, or a person's own words."""
        word = None
        if text.startswith("{"):
            with contextlib.suppress(msgspec.DecodeError):
                word = msgspec.json.decode(text, type=Word)
        if word is None:
            argument, why = self._split(kind, text)
            word = Word(why, argument=argument)
        argument, why, by = (one.strip()[:MAX_TEXT] for one in (word.argument, word.why, word.by))
        return Word(why, by, word.ask[:MAX_TEXT], argument)


def node_orders(
    client: Client, epoch: Callable[[], int], clock: Clock, wrote: Callable[[Place, Node | Custom], None]
) -> Orders[Order]:
    """Those that nodes and their records bear."""
    return Orders(client, epoch, clock, wrote, kinds=OrderKind, make=_of_node)


def _of_node(taken: Taken, node: str) -> Order:
    return Order(
        id=taken.id,
        kind=OrderKind(taken.kind),
        node=node,
        by=taken.by,
        why=taken.why,
        seen_wall_s=taken.seen_wall_s,
    )


def _manager(meta: _Meta, key: str) -> str:
    """The program that wrote the annotation: the API tells no more of who it was."""
    wanted = f"f:{key}"
    for one in sorted(meta.managed_fields, key=lambda one: one.time, reverse=True):
        annotations = one.fields.get("f:metadata", {}).get("f:annotations", {})
        if wanted in annotations and one.manager:
            known = one.manager != "unknown"  # what the API server notes of a program without a name
            return f"a person with {one.manager[:MAX_TEXT]}" if known else "a person"
    return ""


def _remove(key: str) -> Operation:
    return {"op": "remove", "path": _path(key)}


def _add(key: str, value: Struct) -> Operation:
    return {"op": "add", "path": _path(key), "value": msgspec.json.encode(value).decode()}


def _path(key: str) -> str:
    return f"/metadata/annotations/{key.replace('/', '~1')}"
