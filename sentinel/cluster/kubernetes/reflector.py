"""Keeps a copy of all objects of one kind: lists them, then watches, for as long as it runs.

What a server does to its watchers, and what is done about it:
- it ends every watch after some minutes, or at once with 410 when the version is compacted: the copy is resumed from
  the last version that an object or a bookmark told, or listed anew, and what differs is given out as changes;
- it goes away without a word: keep-alives on the connection notice within half a minute, and bookmarks, which a
  living server sends each minute, are missed after 100 s;
- it says 429, 500, 503 or nothing: delays grow from 0.5 s to 30 s with jitter, so that two controllers and every
  kind do not come back together;
- the kind may not be installed, or not yet, or not any more: one small request each 30 s.

No copy is ever older than it says: `age_s` counts from the server's last word.
"""

import asyncio
import random
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Generic, TypeVar

import msgspec
import structlog
from msgspec import Struct

from sentinel.cluster.kubernetes.client import Client, Resource, decoded
from sentinel.cluster.kubernetes.errors import (
    Expired,
    Forbidden,
    NotFound,
    Silent,
    Status,
    Unavailable,
    of_status,
)
from sentinel.cluster.kubernetes.objects import GROUP, HasMeta
from sentinel.metrics.registry import Metrics
from sentinel.util.clock import Clock, system_now
from sentinel.util.errors import PermanentError, TemporaryError

LIST_S = 60.0  # for one page
BATCH = 256  # changes that are given out before other tasks get their turn
BUILT_IN = ("", "coordination.k8s.io")  # no API server is without these kinds: a proxy before it says 404
STUCK = 5  # watches in a row that failed or brought nothing: list anew rather than repeat for ever


class Pace(Struct, frozen=True, kw_only=True):
    page: int = 500  # objects of a list that come at once
    watch_s: tuple[int, int] = (240, 480)  # the server ends a watch at a moment within: not all kinds at once
    idle_s: float = 100.0  # a bookmark comes each minute, with a jitter of a quarter
    quiet_s: float = (
        0.0  # after which it is listed anew where the watch tells nothing: does it live? 0: never
    )
    gather_s: float = 0.0  # events that come so soon after others are read together
    absent_s: float = 30.0  # until a kind that is not installed is looked for again
    backoff_s: tuple[float, float] = (0.5, 30.0)


T = TypeVar("T", bound=HasMeta)
_log = structlog.get_logger(__name__)


class Kind(StrEnum):
    ADDED = "added"
    CHANGED = "changed"
    GONE = "gone"


class Change(Struct, Generic[T], frozen=True):
    """`before` is None for what was added, `after` for what is gone."""

    kind: Kind
    key: str  # NAME or NAMESPACE/NAME
    before: T | None
    after: T | None


class State(StrEnum):
    STARTING = "starting"
    SYNCED = "synced"  # listed, and followed since
    BROKEN = "broken"  # the copy is there and grows old
    ABSENT = "absent"  # the kind is not installed: there are no objects
    FORBIDDEN = "forbidden"  # not ours to read


class _Event(Struct):
    type: str
    object: msgspec.Raw


class _ListMeta(Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _List(Struct, Generic[T]):
    metadata: _ListMeta
    items: list[T] = []


class _BookmarkMeta(Struct, rename="camel"):
    resource_version: str = ""


class _Bookmark(Struct):
    metadata: _BookmarkMeta


_event = msgspec.json.Decoder(_Event).decode
_bookmark = msgspec.json.Decoder(_Bookmark).decode
_status = msgspec.json.Decoder(Status).decode


class Reflector(Generic[T]):
    """`objects` is the copy. `on_change` gets each change, in order, after it was put there; it must not block.
    `keep`: what of an object is put there.

    `run` goes on until it is cancelled, and raises nothing but what `on_change` raises.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        kind: type[T],
        on_change: Callable[[Change[T]], None],
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        keep: Callable[[T], T] = lambda one: one,
        pace: Pace = Pace(),  # noqa: B008  frozen
        clock: Clock = system_now,
    ) -> None:
        self.resource = resource
        self.objects: dict[str, T] = {}
        self.state = State.STARTING
        self.problem = ""  # why it is not synced
        self.lists = 0  # whole lists so far
        self.events = 0  # of watches, bookmarks too
        self.breaks = 0  # watches that did not end as they should
        self.followed_since_mono_s: float | None = None  # since when no change can have been missed
        self._client = client
        self._kind = kind
        self._on_change, self._keep = on_change, keep
        self._path = resource.path(namespace)
        self._selector = {
            name: text for name, text in (("labelSelector", labels), ("fieldSelector", fields)) if text
        }
        self._pace = pace
        self._clock = clock
        self._version = ""  # where to resume; "": list
        self._word_mono_s: float | None = None
        self._decode = msgspec.json.Decoder(kind).decode
        self._list_type: type[_List[T]] = _List[kind]  # type: ignore[valid-type]
        self._synced = asyncio.Event()

    @property
    def synced(self) -> bool:
        """Is the copy whole and being followed? A kind that is not installed has no objects: that is whole too."""
        return self.state in (State.SYNCED, State.ABSENT)

    @property
    def age_s(self) -> float:
        """Seconds since the server last said anything; infinite before its first list."""
        return float("inf") if self._word_mono_s is None else self._clock().mono_s - self._word_mono_s

    def measure(self, metrics: Metrics) -> None:
        """For a scrape."""
        metrics.watch(
            self.resource.plural,
            age_s=self.age_s,
            synced=self.synced and not (self.state is State.ABSENT and self.resource.group == GROUP),
            objects=len(self.objects),
            lists=self.lists,
            breaks=self.breaks,
        )

    async def wait_synced(self) -> None:
        await self._synced.wait()

    async def run(self) -> None:
        failures = barren = 0
        while True:
            events, began_s = self.events, self._clock().mono_s
            try:
                if not self._version:
                    await self._list()
                await self._watch()
                failures, barren = 0, barren + 1 if self.events == events else 0
                if barren >= STUCK:
                    self._version, barren = "", 0
                continue
            except NotFound as error:
                if self.resource.group in BUILT_IN:
                    failures += 1
                    delay_s = self._failed(Unavailable(f"not by an API server: {error}"), failures)
                else:
                    self._absent(str(error))
                    delay_s = self._pace.absent_s * random.uniform(0.7, 1.3)
            except PermanentError as error:
                self._broken(State.FORBIDDEN if isinstance(error, Forbidden) else State.BROKEN, str(error))
                self._version = ""
                delay_s = self._pace.absent_s * random.uniform(0.7, 1.3)
            except TemporaryError as error:
                lived = self.events > events or self._clock().mono_s - began_s > self._pace.backoff_s[1]
                failures = 1 if lived else failures + 1
                delay_s = self._failed(error, failures)
            await asyncio.sleep(delay_s)

    def _failed(self, error: TemporaryError, failures: int) -> float:
        """What to do after the n-th failure in a row: list or resume. Returns the delay before it."""
        self._broken(State.BROKEN, str(error))
        expired = isinstance(error, Expired)
        if expired or failures % STUCK == 0:
            self._version = ""
        if expired and failures == 1:
            return 0.0
        least_s, most_s = self._pace.backoff_s
        delay_s = min(most_s, least_s * 2.0 ** min(failures - 1, 10)) * random.uniform(0.5, 1.5)
        return max(delay_s, error.delay_s if error.delay_s > 1.0 else 0.0)

    # ------------------------------------------------------------ list

    async def _list(self) -> None:
        try:
            found, version = await self._pages(self._pace.page)
        except Expired:  # the pages' own version was compacted while they were read: all at once, then
            found, version = await self._pages(0)
        self.lists += 1
        self._heard()
        for count, change in enumerate(self._differences(found), 1):
            self._give(change)
            if count % BATCH == 0:
                await asyncio.sleep(0)
        self._version = version
        self._following()

    async def _pages(self, limit: int) -> tuple[dict[str, T], str]:
        found: dict[str, T] = {}
        query = {**self._selector, **({"limit": str(limit)} if limit else {})}
        while True:
            content = await self._client.call("GET", self._path, query=query, deadline_s=LIST_S)
            page = decoded(self._list_type, content, self._path)
            for one in page.items:
                found[_key(one)] = self._keep(one)
            if not page.metadata.continue_:
                return found, page.metadata.resource_version
            query["continue"] = page.metadata.continue_
            await asyncio.sleep(0)

    def _differences(self, found: dict[str, T]) -> Iterator[Change[T]]:
        for key, before in list(self.objects.items()):
            after = found.get(key)
            # The same name with another UID is another object: the old one went without our seeing it.
            if after is None or after.metadata.uid != before.metadata.uid:
                yield Change(Kind.GONE, key, before, None)
        for key, after in found.items():
            known = self.objects.get(key)
            if known is None:
                yield Change(Kind.ADDED, key, None, after)
            elif known.metadata.resource_version != after.metadata.resource_version:
                yield Change(Kind.CHANGED, key, known, after)

    # ------------------------------------------------------------ watch

    async def _watch(self) -> None:
        """Returns when the server ended the watch as announced, or has told nothing for `quiet_s`."""
        query = {
            **self._selector,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(random.randint(*self._pace.watch_s)),
        }
        pace, granted = self._pace, False
        idle_s = pace.quiet_s or pace.idle_s
        events = self._client.lines(self._path, query, idle_s=idle_s, gather_s=pace.gather_s)
        try:
            async for lines in events:
                granted = True
                self._following()
                for start in range(0, len(lines), BATCH):
                    for line in lines[start : start + BATCH]:
                        if line:
                            self._hear(line)
                    if len(lines) > BATCH:
                        await asyncio.sleep(0)
                self._heard()
        except Silent:
            if not (granted and pace.quiet_s):
                raise
            self._version = ""  # a list is read from the store itself, where a watch may hang behind it

    def _hear(self, line: bytes) -> None:
        try:
            event = _event(line)
            match event.type:
                case "BOOKMARK":
                    self._version = _bookmark(event.object).metadata.resource_version
                case "ERROR":
                    status = _status(event.object)
                    raise of_status("GET", self._path, status.code or 500, status)
                case "ADDED" | "MODIFIED" | "DELETED":
                    self._object(event.type, self._keep(self._decode(event.object)))
                case _:
                    return
        except msgspec.DecodeError as error:
            raise Unavailable(f"GET {self._path}: an event that cannot be read: {error}") from error
        self.events += 1

    def _object(self, kind: str, after: T) -> None:
        key = _key(after)
        before = self.objects.get(key)
        self._version = after.metadata.resource_version
        if kind == "DELETED":
            if before is not None:
                self._give(Change(Kind.GONE, key, before, None))
            return
        if before is not None and before.metadata.uid != after.metadata.uid:
            self._give(Change(Kind.GONE, key, before, None))
            before = None
        self._give(Change(Kind.CHANGED if before is not None else Kind.ADDED, key, before, after))

    def _give(self, change: Change[T]) -> None:
        if change.after is None:
            del self.objects[change.key]
        else:
            self.objects[change.key] = change.after
        self._on_change(change)

    # ------------------------------------------------------------ how it stands

    def _heard(self) -> None:
        self._word_mono_s = self._clock().mono_s

    def _following(self) -> None:
        if self.state is not State.SYNCED:
            self.state, self.problem = State.SYNCED, ""
            self._synced.set()
        if self.followed_since_mono_s is None:
            self.followed_since_mono_s = self._clock().mono_s

    def _broken(self, state: State, why: str) -> None:
        if self.state is not state:
            _log.warning("watch_broken", kind=self.resource.plural, state=state.value, why=why)
        self.breaks += 1
        self.state, self.problem = state, why
        self._synced.clear()
        self.followed_since_mono_s = None

    def _absent(self, why: str) -> None:
        self.state, self.problem, self._version = State.ABSENT, why, ""
        self._heard()
        self.followed_since_mono_s = self.followed_since_mono_s or self._clock().mono_s
        for change in self._differences({}):
            self._give(change)
        self._synced.set()


def _key(one: HasMeta) -> str:
    meta = one.metadata
    return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
