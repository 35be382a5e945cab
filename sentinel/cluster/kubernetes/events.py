"""Kubernetes events about nodes and records: best effort, bounded, never in the way of anything.

An event is for people who look with kubectl; the record holds the same for ever. So what comes too fast is dropped and
counted: the same thing about the same object once in SAME_S, PER_OBJECT at once for one object, and all of them through
a bounded queue at RATE per second, the oldest waiting one first to go.
"""

import asyncio
import random
from collections import OrderedDict, deque
from typing import TypeVar

from msgspec import Struct

from sentinel.clock import Clock, system_now
from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.objects import EVENTS, Custom
from sentinel.documents import time_text
from sentinel.errors import PermanentError, TemporaryError

K = TypeVar("K")
V = TypeVar("V")

SAME_S = 600.0
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


class _Event(Struct, frozen=True):
    about: About
    reason: str
    note: str
    warning: bool
    wall_s: float


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
        self._told: OrderedDict[tuple[str, str, str], float] = OrderedDict()
        self._allowance: OrderedDict[str, tuple[float, float]] = OrderedDict()  # uid -> (tokens, when)

    def tell(self, about: About, reason: str, note: str, *, warning: bool = False) -> bool:
        """`reason`: one CamelCase word. False: dropped."""
        now = self._clock()
        key = (about.uid, reason, note)
        if now.mono_s - self._told.get(key, float("-inf")) < SAME_S or not self._may(about.uid, now.mono_s):
            self.dropped += 1
            return False
        _remember(self._told, key, now.mono_s)
        if len(self._waiting) >= WAITING:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append(_Event(about, reason, note, warning, now.wall_s))
        self._some.set()
        return True

    async def run(self) -> None:
        while True:
            while not self._waiting:
                self._some.clear()
                await self._some.wait()
            await self._send(self._waiting.popleft())
            await asyncio.sleep(1.0 / RATE)

    async def _send(self, event: _Event) -> None:
        about = event.about
        namespace = about.namespace or "default"
        moment = time_text(round(event.wall_s, 6)).removesuffix("Z").partition(".")
        body = {
            "metadata": {"name": f"{about.name[:200]}.{random.getrandbits(64):016x}", "namespace": namespace},
            "eventTime": f"{moment[0]}.{moment[2][:6]:0<6}Z",
            "reportingController": REPORTER,
            "reportingInstance": self._instance[:128],
            "action": event.reason[:128],
            "reason": event.reason[:128],
            "type": "Warning" if event.warning else "Normal",
            "note": _cut(event.note),
            "regarding": {
                "apiVersion": about.api_version,
                "kind": about.kind,
                "name": about.name,
                "uid": about.uid,
                **({"namespace": about.namespace} if about.namespace else {}),
            },
        }
        for _ in range(TRIES):
            try:
                await self._client.create(EVENTS.path(namespace), body, Custom)
                self.written += 1
                return
            except TemporaryError as error:
                await asyncio.sleep(error.delay_s)
            except PermanentError:
                break
        self.dropped += 1

    def _may(self, uid: str, now_s: float) -> bool:
        tokens, at_s = self._allowance.get(uid, (float(PER_OBJECT), now_s))
        tokens = min(float(PER_OBJECT), tokens + (now_s - at_s) / REFILL_S)
        _remember(self._allowance, uid, (tokens - 1.0 if tokens >= 1.0 else tokens, now_s))
        return tokens >= 1.0


def _cut(note: str) -> str:
    """What the API takes, which counts bytes."""
    encoded = note.encode(errors="replace")
    if len(encoded) <= MAX_NOTE_BYTES:
        return encoded.decode()
    return encoded[: MAX_NOTE_BYTES - 3].decode(errors="ignore") + "…"


def _remember(table: OrderedDict[K, V], key: K, value: V) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > REMEMBERED:
        table.popitem(last=False)
