"""Kubernetes events about jobs, pods and nodes: best effort, bounded, never in the way of anything.

An event is for people who look with kubectl; the record holds the same for ever. The same thing about the same object
is one event that counts (`series`), for as long as it comes again within SAME_S, and is written again at most once in
SERIES_S. What comes too fast is dropped and counted: PER_OBJECT at once for one object, and all of them through a
bounded queue at RATE per second, the oldest waiting one first to go.
"""

import asyncio
import contextlib
import random
from collections import OrderedDict, deque
from typing import TypeVar

import structlog
from msgspec import Struct

from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.errors import NotFound
from sentinel.cluster.kubernetes.objects import EVENTS, Custom
from sentinel.core.now import Now
from sentinel.metrics import declared
from sentinel.metrics.registry import Metrics
from sentinel.util.clock import Clock, system_now
from sentinel.util.documents import time_text
from sentinel.util.errors import PermanentError, TemporaryError

log = structlog.get_logger(__name__)

K = TypeVar("K")
V = TypeVar("V")

SAME_S = 600.0
SERIES_S = 60.0
PER_OBJECT, REFILL_S = 10, 30.0  # so many at once for one object, then one in so long
RATE = 20.0
WAITING = 1000
REMEMBERED = 20_000  # objects whose events are counted
MAX_NOTE_BYTES = 1024  # https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/
TRIES = 3
REPORTER = "sentinel.dev/controller"


class About(Struct, frozen=True):
    """What an event is about. Without a namespace the event stands in `default`, as the API demands."""

    api_version: str
    kind: str
    name: str
    uid: str
    namespace: str = ""


class _Event(Struct):
    """`count`: how often it happened; `wall_s`: first, `last`: at last."""

    about: About
    reason: str
    note: str
    warning: bool
    name: str  # of its object
    wall_s: float
    last: Now
    count: int = 1
    sent: int = 0  # the count that was written
    sent_mono_s: float = float("-inf")
    waits: bool = True  # to be written


class Events:
    """`tell` never waits and never fails; `run` sends until it is cancelled."""

    def __init__(self, client: Client, instance: str, clock: Clock = system_now) -> None:
        self.dropped = 0
        self.written = 0
        self._client = client
        self._instance = instance
        self._clock = clock
        self._waiting: deque[_Event] = deque()
        self._some = asyncio.Event()
        self._told: OrderedDict[tuple[str, str, str], _Event] = OrderedDict()
        self._counting: dict[tuple[str, str, str], None] = {}  # those whose newest count is not written
        self._allowance: OrderedDict[str, tuple[float, float]] = OrderedDict()  # uid -> (tokens, when)

    def tell(self, about: About, reason: str, note: str, *, warning: bool = False) -> bool:
        """`reason`: one CamelCase word. False: no new one is written (the same again, which counts; or dropped)."""
        now = self._clock()
        key = (about.uid, reason, note)
        known = self._told.get(key)
        if known is not None and now.mono_s - known.last.mono_s < SAME_S:
            known.count, known.last = known.count + 1, now
            self._told.move_to_end(key)
            self._counting[key] = None
            self._some.set()
            return False
        if not self._may(about.uid, now.mono_s):
            self.dropped += 1
            return False
        event = _Event(about, reason, note, warning, _name(about, now.wall_s), now.wall_s, now)
        _remember(self._told, key, event)
        self._put(event)
        return True

    def _put(self, event: _Event) -> None:
        if len(self._waiting) >= WAITING:
            self._waiting.popleft().waits = False
            self.dropped += 1
        event.waits = True
        self._waiting.append(event)
        self._some.set()

    def _recount(self) -> float | None:
        """Queues the series that are due. Seconds until another one is; None: none is counted."""
        now_s, soonest_s = self._clock().mono_s, None
        for key in list(self._counting):
            event = self._told.get(key)
            if event is None or event.waits or event.count == event.sent:
                del self._counting[key]
                continue
            left_s = event.sent_mono_s + SERIES_S - now_s
            if left_s <= 0:
                del self._counting[key]
                self._put(event)
            elif soonest_s is None or left_s < soonest_s:
                soonest_s = left_s
        return soonest_s

    def measure(self, metrics: Metrics) -> None:
        """For a scrape."""
        metrics.replace(declared.EVENTS_WRITTEN, {(): self.written})
        metrics.replace(declared.EVENTS_DROPPED, {(): self.dropped})

    async def run(self) -> None:
        while True:
            due_s = self._recount()
            while not self._waiting:
                self._some.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(due_s):
                        await self._some.wait()
                due_s = self._recount()
            await self._send(self._waiting.popleft())
            await asyncio.sleep(1.0 / RATE)

    async def _send(self, event: _Event) -> None:
        event.waits = False
        why = ""
        for _ in range(TRIES):
            count, now = event.count, self._clock()
            try:
                await self._write(event)
                event.sent, event.sent_mono_s = count, now.mono_s
                self.written += 1
                return
            except TemporaryError as error:
                why = str(error)
                await asyncio.sleep(error.delay_s)
            except PermanentError as error:
                why = str(error)
                break
        self.dropped += 1
        log.warning("event_not_written", about=event.about.name, reason=event.reason, why=why)

    async def _write(self, event: _Event) -> None:
        namespace = event.about.namespace or "default"
        if event.sent:
            series = {"count": event.count, "lastObservedTime": _micro(event.last.wall_s)}
            with contextlib.suppress(NotFound):  # the API server keeps events for an hour
                await self._client.patch(EVENTS.path(namespace, event.name), {"series": series}, Custom)
                return
            event.wall_s = event.last.wall_s
            event.name = _name(event.about, event.wall_s)
        await self._client.create(EVENTS.path(namespace), self._body(event, namespace), Custom)

    def _body(self, event: _Event, namespace: str) -> dict[str, object]:
        about = event.about
        return {
            "metadata": {"name": event.name, "namespace": namespace},
            "eventTime": _micro(event.wall_s),
            "reportingController": REPORTER,
            "reportingInstance": self._instance[:128],
            "action": event.reason[:128],
            "reason": event.reason[:128],
            "type": "Warning" if event.warning else "Normal",
            "note": _shown(event.note),
            "regarding": {
                "apiVersion": about.api_version,
                "kind": about.kind,
                "name": about.name,
                "uid": about.uid,
                **({"namespace": about.namespace} if about.namespace else {}),
            },
        }

    def _may(self, uid: str, now_s: float) -> bool:
        tokens, at_s = self._allowance.get(uid, (float(PER_OBJECT), now_s))
        tokens = min(float(PER_OBJECT), tokens + (now_s - at_s) / REFILL_S)
        _remember(self._allowance, uid, (tokens - 1.0 if tokens >= 1.0 else tokens, now_s))
        return tokens >= 1.0


def _name(about: About, wall_s: float) -> str:
    """Of an event of that time. `kubectl describe` gets them by name, and sorts by a time that this version of the API
    does not let us set: where it finds all in order it leaves them so, else it shuffles those whose times are equal.
    The zeros at the front put ours, without that time, before those of client-go, which have it."""
    return f"{about.name[:200].rstrip('-.')}.{int(wall_s * 1e6):016x}{random.getrandbits(32):08x}"


def _micro(wall_s: float) -> str:
    """As `MicroTime` has it: six digits."""
    whole, _, part = time_text(round(wall_s, 6)).removesuffix("Z").partition(".")
    return f"{whole}.{part[:6]:0<6}Z"


def _shown(note: str) -> str:
    """What the API takes, which counts bytes. What a log says in it steers nobody's terminal."""
    encoded = "".join(c if c.isprintable() else " " for c in note).encode(errors="replace")
    if len(encoded) <= MAX_NOTE_BYTES:
        return encoded.decode()
    return encoded[: MAX_NOTE_BYTES - 3].decode(errors="ignore") + "…"


def _remember(table: OrderedDict[K, V], key: K, value: V) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > REMEMBERED:
        table.popitem(last=False)
