"""Which controller leads: one Lease object, and a number that tells its leaders apart.

The clock that counts is each process's own CLOCK_BOOTTIME, never the times that stand in the Lease. A leader counts
its ten seconds from before it sent the renewal, a follower from after it saw it: so the leader has stopped two seconds
before anybody may take over, also when the API server hangs, when the process was frozen, or when the machine slept.

`leaseTransitions` is the epoch: it goes up with every take-over, in the same write. A Lease cannot stop a write that
its old leader sends late: every write carries preconditions and the epoch besides (nodes.py, store.py), and the
admission policy in deploy/ has the API server refuse the epoch of anybody but the leader.
"""

import asyncio
import random
from collections.abc import Callable, Mapping

import structlog
from msgspec import Struct

from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.errors import AlreadyExists, Conflict, NotFound, NotLeading
from sentinel.cluster.kubernetes.objects import LEASES, Lease
from sentinel.core.agents.epochs import LEASE, MAX_COUNT, Epochs, Where
from sentinel.util.clock import Clock, system_now
from sentinel.util.documents import time_text
from sentinel.util.errors import PermanentError, TemporaryError

LONGEST_S = 60  # what stands in a Lease above this was written by a person
ADDRESS = "sentinel.dev/address"  # where agents reach the leader
UNHEARD = "sentinel.dev/unheard"  # of how many nodes no agent has told the leader anything
_log = structlog.get_logger(__name__)


class Pace(Struct, frozen=True, kw_only=True):
    duration_s: int = 10
    margin_s: float = 2.0  # so long before the others may take over the leader stops
    renew_s: float = 2.0
    look_s: float = 1.0  # of a follower
    deadline_s: float = 2.0  # for one request


class Leader(Struct, frozen=True):
    """As it was last seen. `identity` "": nobody leads."""

    identity: str = ""
    epoch: int = 0
    address: str = ""


class _Asked(Struct, frozen=True):
    """A take-over that was sent and may not have been answered."""

    renew_time: str
    sent_mono_s: float


class Election:
    """`run` takes part until it is cancelled; then `release` lets another one follow at once.

    `identity` must be this process's own and nobody else's, not even that of its predecessor in the same pod.
    `epochs` is where this process notes whatever epochs it meets: it leads by none below, and a Lease that a person
    deleted does not begin at 1.
    `notes` are annotations that the leader keeps on the Lease (None: taken away).
    """

    def __init__(
        self,
        client: Client,
        epochs: Epochs,
        *,
        identity: str,
        namespace: str,
        name: str = "sentinel-controller",
        address: str = "",
        notes: Callable[[], Mapping[str, str | None]] = lambda: {},
        pace: Pace = Pace(),  # noqa: B008  frozen
        clock: Clock = system_now,
    ) -> None:
        self.identity = identity
        self.leader = Leader()
        self.annotations: Mapping[str, str] = {}  # of the Lease, as it was last seen
        self.turned_mono_s = clock().mono_s  # when `run` last went round
        self._client, self._epochs = client, epochs
        self._name, self._kind_path = name, LEASES.path(namespace)
        self._path = LEASES.path(namespace, name)
        self._address = address
        self._notes = notes
        self._pace = pace
        self._clock = clock
        self._seen: tuple[object, ...] = ()  # of the Lease, what its holder changes
        self._seen_mono_s = 0.0
        self._asked: _Asked | None = None
        self._version = ""
        self._until_mono_s: float | None = None  # None: not leading

    @property
    def leading(self) -> bool:
        """By our own clock, now. Ask again after every wait."""
        return self.left_s > 0

    @property
    def left_s(self) -> float:
        """For how long that is sure. 0 when not leading, nor below an epoch that was met."""
        if self._epochs.top > self.leader.epoch:
            return 0.0
        return max(0.0, (self._until_mono_s or 0.0) - self._clock().mono_s)

    def epoch(self) -> int:
        """Ours, for a write that is sent at once. Raises NotLeading."""
        if not self.leading:
            raise NotLeading("another controller leads, or may lead", "NotLeading")
        return self.leader.epoch

    async def run(self, on_lead: Callable[[int], None], on_lost: Callable[[str], None]) -> None:
        """`on_lead` gets the epoch. `on_lost` is called when leadership has ended, at the latest when it was due."""
        why = ""
        while True:
            self.turned_mono_s = self._clock().mono_s
            led = self._until_mono_s is not None
            try:
                if led and self.leading:
                    await self._renew()
                elif not led:
                    await self._follow()
            except (TemporaryError, PermanentError) as error:
                if str(error) != why:  # a server that is away is told once, not each second
                    _log.warning("lease_request_failed", leading=self.leading, why=str(error))
                why = str(error)
            if led and not self.leading:
                self._until_mono_s = None
                if self._epochs.top > self.leader.epoch:
                    why = f"{self._epochs.where} bears a later epoch, {self._epochs.top}"
                on_lost(why or "another one leads")
                continue
            if not led and self.leading:
                why = ""
                on_lead(self.leader.epoch)
            pause_s = self._pace.renew_s if self.leading else self._pace.look_s
            await asyncio.sleep(min(pause_s * random.uniform(0.9, 1.1), self.left_s or pause_s))

    async def release(self) -> None:
        """After the last write. Not leading any more whether or not it is answered."""
        if not self.leading:
            self._until_mono_s = None
            return
        self._until_mono_s = None
        meta = {"resourceVersion": self._version, "annotations": dict(self._notes())}
        body = {"metadata": meta, "spec": {"holderIdentity": None}}
        try:
            await self._client.patch(self._path, body, Lease, deadline_s=self._pace.deadline_s)
        except (TemporaryError, PermanentError) as error:
            _log.warning("lease_not_released", why=str(error))

    # ------------------------------------------------------------ following

    async def _follow(self) -> None:
        try:
            lease = await self._client.get(self._path, Lease, deadline_s=self._pace.deadline_s)
        except NotFound:
            # A person may have deleted it under a leader that has not noticed yet. At the first start ever this costs
            # one duration.
            self._note(("no lease",))
            if self._waited(self._pace.duration_s):
                await self._take(None)
            return
        self._look(lease)
        spec = lease.spec
        if self._asked is not None and spec.holder_identity == self.identity:
            if spec.renew_time == self._asked.renew_time:  # it was ours: only the answer was lost
                self._hold(lease, self._asked.sent_mono_s)
            self._asked = None
            if self.leading:
                return
        duration_s = min(max(1, spec.lease_duration_seconds or self._pace.duration_s), LONGEST_S)
        if self._waited(duration_s) or spec.holder_identity in (None, "", self.identity):
            await self._take(lease)

    def _look(self, lease: Lease) -> None:
        spec = lease.spec
        epoch = spec.lease_transitions or 0
        self._epochs.met(epoch, Where(LEASE), MAX_COUNT)
        self._note((lease.metadata.uid, spec.holder_identity, spec.renew_time, spec.lease_transitions))
        self.annotations = lease.metadata.annotations
        address = self.annotations.get(ADDRESS, "")
        self.leader = Leader(spec.holder_identity or "", spec.lease_transitions or 0, address)

    def _note(self, seen: tuple[object, ...]) -> None:
        if seen != self._seen:
            self._seen, self._seen_mono_s = seen, self._clock().mono_s

    def _waited(self, seconds: float) -> bool:
        """Was the Lease as it is now for so long, as far as we saw?"""
        return self._clock().mono_s - self._seen_mono_s > seconds

    async def _take(self, lease: Lease | None) -> None:
        now = self._clock()
        text = _micro_time(now.wall_s)
        spec = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self._pace.duration_s,
            "acquireTime": text,
            "renewTime": text,
            "leaseTransitions": self._epochs.top + 1,
        }
        notes = {name: text for name, text in self._notes().items() if lease is not None or text is not None}
        meta: dict[str, object] = {"annotations": {ADDRESS: self._address, **notes}}
        self._asked = _Asked(text, now.mono_s)
        deadline_s = self._pace.deadline_s
        try:
            if lease is None:
                head = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
                body = {**head, "metadata": {**meta, "name": self._name}, "spec": spec}
                taken = await self._client.create(self._kind_path, body, Lease, deadline_s=deadline_s)
            else:
                meta["resourceVersion"] = lease.metadata.resource_version
                meta["uid"] = lease.metadata.uid
                body = {"metadata": meta, "spec": spec}
                taken = await self._client.patch(self._path, body, Lease, deadline_s=deadline_s)
        except (AlreadyExists, Conflict):
            self._asked = None  # somebody else was first
            return
        self._asked = None
        self._look(taken)
        self._hold(taken, now.mono_s)

    # ------------------------------------------------------------ leading

    async def _renew(self) -> None:
        now = self._clock()
        deadline_s = min(self._pace.deadline_s, self.left_s)
        body = {
            "metadata": {"resourceVersion": self._version, "annotations": dict(self._notes())},
            "spec": {"renewTime": _micro_time(now.wall_s), "leaseDurationSeconds": self._pace.duration_s},
        }
        try:
            renewed = await self._client.patch(self._path, body, Lease, deadline_s=deadline_s)
        except Conflict:
            # Our own renewal whose answer was lost, a person's annotation, or another leader.
            lease = await self._client.get(self._path, Lease, deadline_s=min(deadline_s, self.left_s))
            ours = (self.identity, self.leader.epoch)
            if (lease.spec.holder_identity, lease.spec.lease_transitions) != ours:
                self._look(lease)
                self._until_mono_s = 0.0
                raise
            self._version = lease.metadata.resource_version
            return await self._renew()
        except NotFound:
            self._until_mono_s = 0.0  # a person deleted it: somebody may lead by a new one already
            raise
        self._look(renewed)
        self._hold(renewed, now.mono_s)

    def _hold(self, lease: Lease, sent_mono_s: float) -> None:
        self._version = lease.metadata.resource_version
        self._until_mono_s = sent_mono_s + self._pace.duration_s - self._pace.margin_s


def _micro_time(wall_s: float) -> str:
    """metav1.MicroTime, which has six digits and no other number of them."""
    text = time_text(round(wall_s, 6)).removesuffix("Z")
    moment, _, fraction = text.partition(".")
    return f"{moment}.{fraction[:6]:0<6}Z"
