"""Records kept as custom resources: each save is one request, with what was read as its precondition.

The store knows what the API server last told of each record. A save of a record that somebody else has changed raises
Conflict and has the newest in hand, so that the caller decides again; a save whose answer was lost is looked after; a
save that changes nothing is not sent. What a newer Sentinel wrote beside our fields is kept.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec
import structlog
from msgspec import Struct, structs

from sentinel.cluster.kubernetes import conditions
from sentinel.cluster.kubernetes.client import JSON_PATCH, Client, Resource, decoded
from sentinel.cluster.kubernetes.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    NotFound,
    Refused,
    Unanswered,
    Unavailable,
)
from sentinel.cluster.kubernetes.names import object_name
from sentinel.cluster.kubernetes.nodes import (
    EPOCH,
    Operation,
    epoch_of,
    forget,
    meet,
    not_older,
    preconditions,
    set_epoch,
)
from sentinel.cluster.kubernetes.objects import GROUP, VERSION, Custom, LeaseMeta
from sentinel.core.agents.epochs import Epochs
from sentinel.util.documents import Document, from_document, merged, to_document

log = structlog.get_logger(__name__)

R = TypeVar("R", bound=Struct)
PAGE = 500
LIST_S = 60.0

KINDS = {
    "jobpolicies": "JobPolicy",
    "protectedjobs": "ProtectedJob",
    "incidents": "Incident",
    "quarantines": "Quarantine",
}


class _Page(Struct):
    metadata: dict[str, Any]
    items: list[Custom] = []


class Store(Generic[R]):
    """The records of one kind. `key` names a record (its id); `namespace` says where it lives ("": cluster-wide).

    `epoch` is asked right before each write and raises NotLeading: `Election.epoch`. `epochs` hears of
    whose epochs the records bear.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        record: type[R],
        *,
        key: Callable[[R], str],
        epoch: Callable[[], int],
        epochs: Epochs,
        namespace: Callable[[R], str] = lambda _: "",
        moved: Callable[[R | None, R | None], None] = lambda _before, _after: None,
    ) -> None:
        """`moved` hears of each change of `records`: what stood in its place before, and after."""
        self.records: dict[tuple[str, str], R] = {}  # (namespace, object's name) -> record
        self.unreadable: dict[tuple[str, str], str] = {}  # and why: never taken for absent
        self._client, self._resource, self._record = client, resource, record
        self._key, self._namespace, self._epoch = key, namespace, epoch
        self._epochs, self._moved = epochs, moved
        self._known: dict[tuple[str, str], Custom] = {}  # without their specs
        # Their specs as JSON: as dictionaries thousands of them take four times that.
        self._specs: dict[tuple[str, str], bytes] = {}
        self._unsure: set[tuple[str, str]] = set()  # what became of a write to them is not known

    async def load(self) -> list[R]:
        """Everything anew. Consistent: what any leader had saved before this was asked is in it."""
        known: dict[tuple[str, str], Custom] = {}
        query = {"limit": str(PAGE)}
        path = self._resource.path()
        while True:
            content = await self._client.call("GET", path, query=query, deadline_s=LIST_S)
            page = decoded(_Page, content, path)
            known |= {_place(one): one for one in page.items}
            if not page.metadata.get("continue"):
                break
            query["continue"] = page.metadata["continue"]
        for place in [*self.records]:
            self._put(place, None)
        self._known, self._specs, self.unreadable = {}, {}, {}
        self._unsure.clear()
        for where in [one for one in self._epochs.unbelieved if one.kind == self._resource.plural]:
            self._epochs.forget(where)  # it may be gone since an earlier leadership
        for one in known.values():
            self._take(one)
        return list(self.records.values())

    def get(self, record: R) -> R | None:
        """What the store has of the same name."""
        return self.records.get(self._where(record))

    def known(self, place: tuple[str, str]) -> Custom | None:
        """The object as it was last seen or written, without its spec."""
        return self._known.get(place)

    def observe(self, place: tuple[str, str], now: Custom | None, *, gone: str = "") -> bool:
        """What a reflector saw (None: the one of the uid `gone` is gone). False: it is what is known already."""
        known = self._known.get(place)
        if now is None:
            if known is None or (gone and known.metadata.uid != gone):
                return False  # made anew since
            self._forget(place)
            return True
        if (
            known is not None
            and known.metadata.uid == now.metadata.uid
            and as_new(known.metadata, now.metadata)
        ):
            return False
        self._take(now)
        return True

    async def save(self, record: R) -> None:
        """Create it, or put it in the place of what is known of it.

        Raises Conflict or AlreadyExists (the newest is in `records` now: decide again), Unavailable, NotLeading.
        """
        place = self._where(record)
        known = self._known.get(place)
        try:
            await self._write(place, known, record)
        except Unanswered as error:
            self._unsure.add(place)
            if not await self._written(place, known, record):
                raise Unavailable(f"it was not written: {error}") from error
        except (Conflict, AlreadyExists, NotFound):
            self._unsure.add(place)
            await self.refresh(place)
            raise

    def unsure(self, record: R) -> bool:
        """Was a write of it not answered, and could it not be read since?"""
        return self._where(record) in self._unsure

    async def settle(self, record: R) -> None:
        """Read what became of a write that was not answered and could not be read at once. Raises TemporaryError:
        until it returns the record may be there though `records` has it not, and whoever counts them counts too few."""
        if (place := self._where(record)) in self._unsure:
            await self.refresh(place)

    async def claim(self, record: R) -> R | None:
        """A new leader's first write to a record that its predecessor may still write to: only the epoch. Returns the
        record as it is now; None where it is gone or cannot be read.

        Whatever was decided on the record as it was before is refused from then on. An object that takes no epoch, and
        so no write of a predecessor either, or that may not be written keeps nobody from leading. Else the same errors
        as `save`.
        """
        place = self._where(record)
        known = self._known.get(place)
        if known is None or epoch_of(known.metadata) == self._epoch():
            return self.records.get(place)
        operations = self._head(known)
        try:
            self._take(await self._client.patch(self._path(place), operations, Custom, how=JSON_PATCH))
        except (Refused, Forbidden) as error:
            log.warning("epoch_refused", name=known.metadata.name, why=str(error))
        except (Conflict, NotFound, Unanswered):
            await self.refresh(place)
            raise
        return self.records.get(place)

    async def show(self, record: R, says: Sequence[conditions.Says], wall_s: float) -> None:
        """Say these in the status of a record that is saved. Raises Conflict, NotFound (what it is now is known),
        Unavailable, NotLeading."""
        place = self._where(record)
        known = self._known.get(place)
        if known is None:
            return
        write = conditions.write(
            self._client, self._resource, known, says, self._epoch(), wall_s, observed=False
        )
        try:
            now = await write
            # Nothing differed; or something newer was heard meanwhile.
            if now is not known and self._known.get(place) is known:
                there = self.records.get(place)  # not `record`, which may be older: the spec is as it was
                self._take(now, (self._spec(place), there) if there is not None else None)
        except asyncio.CancelledError:
            self._unsure.add(place)
            raise
        except (Conflict, NotFound, Unanswered):
            self._unsure.add(place)
            await self.refresh(place)
            raise

    async def delete(self, record: R) -> None:
        """Only as it was last known. Gone is done. Raises Conflict."""
        place = self._where(record)
        self._epoch()
        known = self._known.get(place)
        if known is not None:
            meta = known.metadata
            await self._client.delete(self._path(place), uid=meta.uid, version=meta.resource_version)
            self._forget(place)

    async def now(self, record: R) -> R | None:
        """What there is of the same name now. Raises TemporaryError."""
        return await self.refresh(self._where(record))

    async def refresh(self, place: tuple[str, str]) -> R | None:
        """One record as it is now; None where it is gone or cannot be read."""
        try:
            self._take(await self._client.get(self._path(place), Custom))
        except NotFound:
            self._forget(place)
        self._unsure.discard(place)
        return self.records.get(place)

    # ------------------------------------------------------------ inside

    async def _write(self, place: tuple[str, str], known: Custom | None, record: R) -> None:
        document = to_document(record)
        if known is None:
            namespace, name = place
            meta: dict[str, Any] = {"name": name, "annotations": {EPOCH: str(self._epoch())}}
            if namespace:
                meta["namespace"] = namespace
            head = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KINDS[self._resource.plural]}
            body = {**head, "metadata": meta, "spec": document}
            made = await self._client.create(self._resource.path(namespace), body, Custom)
            self._take(made, (document, record))
            return
        before = self._spec(place)
        spec = merged(self._record, before, document)
        if self.records.get(place) == record and from_document(self._record, before) == record:
            return
        operations = [
            *self._head(known),
            # As a whole: in a merge patch null would mean "take it away", and records hold nulls that mean something.
            {"op": "replace", "path": "/spec", "value": spec},
        ]
        changed = await self._client.patch(self._path(place), operations, Custom, how=JSON_PATCH)
        self._take(changed, (spec, record))

    def _head(self, known: Custom) -> list[Operation]:
        """What every change of a record begins with."""
        epoch = self._epoch()
        not_older(known.metadata, epoch)
        return [*preconditions(known.metadata), set_epoch(known.metadata, epoch)]

    async def _written(self, place: tuple[str, str], before: Custom | None, record: R) -> bool:
        """After a lost answer: is it there? Raises Conflict where something else is."""
        found = await self.refresh(place)
        now = self._known.get(place)
        if found == record and now is not None and epoch_of(now.metadata) == self._epoch():
            return True
        if now is not None and (
            before is None or now.metadata.resource_version != before.metadata.resource_version
        ):
            raise Conflict(f"{place[1]} was changed by somebody else", 0.0)
        return False

    def _take(self, one: Custom, sent: tuple[Document, R] | None = None) -> None:
        """`sent`: a record and its document. What came back as it was sent need not be read again."""
        place = _place(one)
        meet(self._epochs, one.metadata, self._resource.plural)
        self._known[place] = structs.replace(one, spec={})
        self._specs[place] = msgspec.json.encode(one.spec)
        try:
            same = sent is not None and one.spec == sent[0]
            record = sent[1] if same and sent else from_document(self._record, one.spec)
            if self._where(record) != place:  # somebody copied it: a save would go to the other one
                raise ValueError(f"it says that it is {self._key(record)}")
            self._put(place, record)
            self.unreadable.pop(place, None)
        except (msgspec.ValidationError, ValueError) as error:
            self._put(place, None)
            if self.unreadable.get(place) != str(error):
                log.warning("record_unreadable", kind=self._resource.plural, record=place[1], why=str(error))
            self.unreadable[place] = str(error)

    def _spec(self, place: tuple[str, str]) -> Document:
        found: Document = msgspec.json.decode(self._specs[place])
        return found

    def _forget(self, place: tuple[str, str]) -> None:
        forget(self._epochs, *place, self._resource.plural)
        self._put(place, None)
        for kept in (self._known, self._specs, self.unreadable):
            kept.pop(place, None)

    def _put(self, place: tuple[str, str], after: R | None) -> None:
        before = self.records.pop(place, None) if after is None else self.records.get(place)
        if after is not None:
            self.records[place] = after
        if before is not None or after is not None:
            self._moved(before, after)

    def _where(self, record: R) -> tuple[str, str]:
        return self._namespace(record), object_name(self._key(record))

    def _path(self, place: tuple[str, str]) -> str:
        return self._resource.path(*place)


def _place(one: Custom) -> tuple[str, str]:
    return one.metadata.namespace, one.metadata.name


def as_new(known: LeaseMeta, seen: LeaseMeta) -> bool:
    """Is what is known as new? A watch may come after our own later write. Versions of one kind are ordered numbers:
    https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions"""
    ours, theirs = known.resource_version, seen.resource_version
    return ours == theirs or (ours.isdecimal() and theirs.isdecimal() and int(ours) >= int(theirs))
