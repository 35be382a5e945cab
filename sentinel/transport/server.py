"""The controller's side: who may speak, what of it is new, and what each agent shall do.

Everything runs on one event loop. `take` gets each report once (at least once after a change of leader) and
in the order of its agent; an acknowledgement goes out after `take` has returned, or after what it returned
was awaited. What is bounded stands in limits.py.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from math import inf
from typing import Any

import structlog

from sentinel.metrics import declared
from sentinel.metrics.registry import Metrics
from sentinel.transport.auth import Authenticator, Denied, Identity, Why
from sentinel.transport.batches import Taker
from sentinel.transport.connection import Connection, Refuse
from sentinel.transport.http11 import Request
from sentinel.transport.limits import Bucket, Limits
from sentinel.transport.lobby import Lobby
from sentinel.transport.node import Guest, Node
from sentinel.transport.roster import Roster, greet
from sentinel.transport.turns import InOrder, Turns
from sentinel.transport.wire import (
    HELLO_PATH,
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    REPORT_EVERY_S,
    REPORT_PATH,
    Ack,
    Alive,
    Arrived,
    Batch,
    Orders,
    Reason,
    Refusal,
    Welcome,
    encoder,
)

log = structlog.get_logger(__name__)

BACKLOG = 4096  # connections that wait in the kernel, if its somaxconn allows: one too many comes again seconds later
LOG_LINES_PER_S = 2.0
LOG_LINES_BURST = 50.0
SAID_EVERY_S = 60.0  # a node that is refused again and again is named so often in the log
NO_ORDERS = Orders()


class Server:
    """Begins as a standby; `lead` and `stand_by` are called as leadership comes and goes.

    `alive` gets each request that is taken, after the records in it, and also one without any. `newer` hears of each
    node whose agent has served a later epoch, and of which. `orders` is asked for each request; both must be quick.
    `orders_changed` lets an answer that is held go at once. `uid_of`: the uid of a node as the controller knows it, ""
    if it does not.
    """

    def __init__(
        self,
        *,
        authenticator: Authenticator,
        tls: Callable[[], ssl.SSLContext],
        take: Callable[[Arrived], Awaitable[None] | None],
        alive: Callable[[Alive], None] = lambda alive: None,
        newer: Callable[[str, int], None] = lambda node, epoch: None,
        orders: Callable[[str], Orders] = lambda node: NO_ORDERS,
        uid_of: Callable[[str], str] = lambda node: "",
        limits: Limits = Limits(),  # noqa: B008 - frozen
        protocols: tuple[int, int] = (PROTOCOL_MIN, PROTOCOL_MAX),
        report_every_s: float = REPORT_EVERY_S,
        version: str = "",
    ) -> None:
        self.limits = limits
        self.bytes_in_flight = 0
        self.counts: dict[str, int] = {}  # what was refused or ended, by reason
        self.requests = 0
        self.received_bytes = 0
        self.slowed = 0  # answers that asked for a pause
        self._authenticator = authenticator
        self._context = tls
        self._taker = Taker(take, limits)
        self._alive, self._newer = alive, newer
        self._orders = orders
        self._protocols = protocols
        self._report_every_s = report_every_s
        self._version = version
        self._epoch: int | None = None
        self._leader = ""
        self._roster = Roster(limits, uid_of, self._say)
        self._lobby = Lobby(limits)
        self._turns = Turns(lambda one: one.read(), limits.slice_ms / 1000, InOrder())
        self._log_bucket = Bucket(LOG_LINES_BURST, 0.0)
        self._said_s: dict[tuple[str, str], float] = {}
        self._crowded_s: float | None = None  # when somebody had to wait for long
        self._listener: asyncio.Server | None = None
        self._sweeping: asyncio.Task[None] | None = None

    # ------------------------------------------------------------ life

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port. Raises OSError."""
        self._loop = asyncio.get_running_loop()
        self._listener = await self._loop.create_server(
            lambda: Connection(self, self._loop), host, port, backlog=self.limits.accepts
        )
        for listening in self._listener.sockets:
            with listening.dup() as same:
                same.listen(BACKLOG)  # which is one number with `accepts` for asyncio
        self._sweeping = self._loop.create_task(self._sweep())
        bound: int = self._listener.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._lobby.connections):
            connection.close()
        await asyncio.sleep(0)
        for connection in list(self._lobby.connections):
            connection.abort()

    def lead(self, epoch: int) -> None:
        """From now on this server takes reports and gives orders. Agents come with Hello and a full report."""
        self._epoch, self._leader = epoch, ""
        self._taker.epoch = epoch
        for node in self._roster.nodes.values():  # what an earlier leadership took may not be in the picture
            node.taken.clear()

    def stand_by(self, leader: str) -> None:
        """From now on agents are sent to `leader` (HOST:PORT; "": nobody knows), those that are connected too."""
        self._epoch, self._leader = None, leader
        self._taker.epoch = None
        for node in self._roster.nodes.values():
            for connection in list(node.connections):
                connection.close()

    @property
    def nodes(self) -> Mapping[str, Node]:
        """By name: what is known of each agent that has said Hello."""
        return self._roster.nodes

    def crowded_ago_s(self) -> float:
        """Since when nobody has waited for longer than `turn_s` to be let in; inf: ever."""
        return inf if self._crowded_s is None else self._loop.time() - self._crowded_s

    @property
    def connected(self) -> int:
        return len(self._lobby.connections) - len(self._lobby.strangers)

    def measure(self, metrics: Metrics) -> None:
        """For a scrape."""
        strangers = len(self._lobby.strangers)
        connections = {("known",): len(self._lobby.connections) - strangers, ("stranger",): strangers}
        metrics.replace(declared.CONNECTIONS, connections)
        metrics.replace(declared.AGENTS, {(): len(self._roster.nodes)})
        metrics.replace(declared.REQUESTS, {(): self.requests})
        taker = self._taker
        metrics.replace(declared.REPORTS, {("new",): taker.records, ("repeated",): taker.duplicates})
        refused = {(str(reason),): count for reason, count in (self.counts | taker.refused).items()}
        metrics.replace(declared.REFUSED, refused)
        metrics.replace(declared.SLOWED, {(): self.slowed})
        metrics.replace(declared.RECEIVED, {(): self.received_bytes})
        metrics.replace(declared.IN_FLIGHT, {(): self.bytes_in_flight})

    @property
    def tls(self) -> ssl.SSLContext:
        return self._context()

    def orders_changed(self, node: str) -> None:
        """Answer an agent that waits, if its orders are others now."""
        known = self._roster.nodes.get(node)
        for connection in list(known.connections) if known else ():
            guest: Guest = connection.guest
            if guest.held is not None and self._new_orders(guest) is not None:
                self.before_next(connection)

    # ------------------------------------------------------------ connections

    def opened(self, connection: Connection) -> None:
        if self._lobby.enter(connection):
            self._count("strangers-closed")

    def wants_handshake(self, connection: Connection) -> None:
        self._lobby.shake(connection)

    def wants_turn(self, connection: Connection) -> None:
        if not self._turns.take(connection):
            connection.wait()

    def closed(self, connection: Connection) -> None:
        self._lobby.leave(connection)
        self._turns.leave(connection)
        guest: Guest | None = connection.guest
        if guest is not None:
            self._end_hold(guest)
            self._roster.leave(connection)

    def broken(self, connection: Connection, what: str) -> None:
        self._count("broken")
        self._say("connection_broken", _who(connection), what)

    async def _sweep(self) -> None:
        while True:
            self._authenticator.keys.renew()  # also as a standby: all agents come when it leads
            await asyncio.sleep(self.limits.sweep_s)
            now_s = self._loop.time()
            if self._lobby.crowded(now_s):
                self._crowded_s = now_s
            for connection, what in self._lobby.overdue(now_s):
                self.broken(connection, what)
                connection.abort()
            self._roster.forget(now_s)
            self._said_s = {key: at_s for key, at_s in self._said_s.items() if now_s - at_s < SAID_EVERY_S}

    # ------------------------------------------------------------ who asks

    def admit(self, connection: Connection, request: Request) -> Coroutine[Any, Any, None] | None:
        if self._epoch is None:
            text = "this controller stands by" if self._leader else "no controller leads now"
            refusal = Refusal(reason=Reason.NOT_LEADING, text=text, leader=self._leader)
            raise Refuse(refusal, close=True)
        guest: Guest | None = connection.guest
        if request.token is None:
            if guest is None:
                raise Refuse(_unknown(Why.NO_TOKEN, "no token was shown"), close=True)
            if not self._authenticator.valid(guest.until_s):
                raise Refuse(_unknown(Why.EXPIRED, "the token that was shown has expired"), close=True)
            return None
        try:
            identity = self._authenticator.at_once(request.token)
        except Denied as denied:
            raise _denied(denied) from None
        if identity is None:
            return self._identify(connection, request.token)
        self._seat(connection, identity)
        return None

    async def _identify(self, connection: Connection, token: str) -> None:
        try:
            identity = await self._authenticator.identify(token)
        except Denied as denied:
            raise _denied(denied) from None
        self._seat(connection, identity)

    def _seat(self, connection: Connection, identity: Identity) -> None:
        self._roster.seat(connection, identity, self._loop.time())
        self._lobby.known(connection)

    # ------------------------------------------------------------ what is asked

    def handle(
        self, connection: Connection, request: Request, body: bytes
    ) -> Coroutine[Any, Any, bytes | None] | bytes | None:
        guest: Guest = connection.guest
        node = guest.node
        node.requests += 1
        self.requests += 1
        self.received_bytes += len(body)
        now_s = self._loop.time()
        wait_s = node.bucket.take(now_s, self.limits.requests_per_s, self.limits.requests_burst)
        if wait_s:
            connection.rest(wait_s)
            text = f"more than {self.limits.requests_per_s:g} requests a second"
            raise Refuse(Refusal(reason=Reason.TOO_OFTEN, text=text, slow_down_s=wait_s))
        if request.path == REPORT_PATH:
            if guest.epoch != self._epoch:
                raise Refuse(Refusal(reason=Reason.SAY_HELLO, text="say hello first"))
            node.heard_s = now_s
            batch, damaged = self._taker.read(body)
            taken = self._taker.take(guest, batch, damaged, lambda ack: self._reply(connection, batch, ack))
            self._alive(Alive(node.name, guest.uid, guest.boot_id, batch.now))
            return taken
        if request.path == HELLO_PATH:
            return self._greet(guest, body, now_s)
        raise Refuse(Refusal(reason=Reason.BAD_REQUEST, text="there is nothing at this path"))

    def _greet(self, guest: Guest, body: bytes, now_s: float) -> bytes:
        node, epoch = guest.node, self._epoch
        assert epoch is not None  # else it had not been admitted
        hello, protocol = greet(body, node.name, epoch, self._protocols, self._newer)
        guest.boot_id, guest.session, guest.epoch = hello.boot_id[:64], hello.session[:64], epoch
        guest.orders, guest.reached = "", 0
        node.boot_id, node.uid, node.protocol, node.heard_s = guest.boot_id, guest.uid, protocol, now_s
        node.version = hello.version[:64]
        return encoder.encode(
            Welcome(
                protocol=protocol,
                epoch=epoch,
                report_every_s=self._report_every_s,
                slow_down_s=self._slow_down_s(),
                max_body_bytes=self.limits.body_bytes,
                version=self._version,
            )
        )

    def _slow_down_s(self) -> float:
        """Above half of what may be on its way, agents are asked to leave pauses."""
        return 2.0 if self.bytes_in_flight > self.limits.bytes_in_flight / 2 else 0.0

    def _spread_s(self) -> float:
        return round(len(self._lobby.connections) / self.limits.reconnects_per_s, 3)

    # ------------------------------------------------------------ answers

    def _reply(self, connection: Connection, batch: Batch, ack: Ack) -> bytes | None:
        """The answer to a batch; None: it is held until there is something to say, or somebody asks again."""
        guest: Guest = connection.guest
        guest.orders = batch.orders
        slow_down_s = max(ack.slow_down_s, self._slow_down_s())
        if self._new_orders(guest) is None and not ack.refused and not slow_down_s and batch.hold_s > 0:
            guest.held = ack
            hold_s = min(batch.hold_s, self.limits.hold_s)
            guest.timer = self._loop.call_later(hold_s, self.before_next, connection)
            return None
        return self._encode(guest, ack, slow_down_s)

    def before_next(self, connection: Connection) -> None:
        """Let go of an answer that is held."""
        guest: Guest | None = connection.guest
        if guest is None or guest.held is None:
            return
        ack = guest.held
        self._end_hold(guest)
        connection.answer(self._encode(guest, ack, self._slow_down_s()))

    def _encode(self, guest: Guest, ack: Ack, slow_down_s: float) -> bytes:
        self.slowed += slow_down_s > 0
        return encoder.encode(
            Ack(
                epoch=guest.epoch,
                sequence=ack.sequence,
                refused=ack.refused,
                slow_down_s=slow_down_s,
                spread_s=self._spread_s(),
                orders=self._new_orders(guest),
            )
        )

    def _new_orders(self, guest: Guest) -> Orders | None:
        """None: its agent has them, or it is not known yet what they are."""
        orders = self._orders(guest.node.name)
        return orders if orders.version not in ("", guest.orders) else None

    def _end_hold(self, guest: Guest) -> None:
        guest.held = None
        if isinstance(guest.timer, asyncio.TimerHandle):
            guest.timer.cancel()
        guest.timer = None

    # ------------------------------------------------------------ what went wrong

    def refused(self, connection: Connection, refusal: Refusal) -> None:
        self._count(refusal.reason)
        self.slowed += refusal.slow_down_s > 0
        guest: Guest | None = connection.guest
        if guest is not None:
            guest.node.refuse(refusal.reason)
        if refusal.reason not in (Reason.NOT_LEADING, Reason.SAY_HELLO):
            self._say("request_refused", _who(connection), refusal.reason, text=refusal.text)

    def failed(self, connection: Connection, error: Exception) -> Refusal:
        self._count("exceptions")
        log.error("request_failed", node=_who(connection), exc_info=error)
        return Refusal(reason=Reason.NOT_TAKEN, text="the controller failed on this request", slow_down_s=5.0)

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def _say(self, event: str, who: str, what: str, **more: str) -> None:
        """Name who does it, once a minute, and not too many of them: the rest is in the counts."""
        now_s = self._loop.time()
        if now_s - self._said_s.get((who, what), -SAID_EVERY_S) < SAID_EVERY_S:
            return
        if self._log_bucket.take(now_s, LOG_LINES_PER_S, LOG_LINES_BURST):
            self._count("not-logged")
            return
        self._said_s[who, what] = now_s
        log.warning(event, who=who, what=what, **more)


def _who(connection: Connection) -> str:
    guest: Guest | None = connection.guest
    return guest.node.name if guest is not None else connection.peer


def _denied(denied: Denied) -> Refuse:
    if denied.why is Why.REVIEW_UNAVAILABLE:
        refusal = Refusal(reason=Reason.REVIEW_UNAVAILABLE, text=denied.text, slow_down_s=5.0)
        return Refuse(refusal, close=True)
    return Refuse(_unknown(denied.why, denied.text), close=True)


def _unknown(why: Why, text: str) -> Refusal:
    return Refusal(reason=Reason.NOT_AUTHENTICATED, text=f"{why.value}: {text}")
