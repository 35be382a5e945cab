"""The agent's side: finds the leader, tells it everything once, then changes, and keeps what nobody took.

One connection at a time. What `send` gets is on disk before it is sent, and leaves the disk when the leader
has it.
"""

import asyncio
import os
import random
from collections import deque
from collections.abc import Callable

import msgspec
import structlog
from msgspec import Struct

from sentinel.core.reports import Report
from sentinel.transport.channel import Channel, ChannelError, Refused, resolve
from sentinel.transport.credentials import CredentialError, TokenFile, Trust
from sentinel.transport.dialogue import MAX_SLOW_DOWN_S, Dialogue, Status, decode
from sentinel.transport.epoch import EpochFile
from sentinel.transport.spool import MAX_BYTES, Kind, Spool
from sentinel.transport.standing import Standing, fit, is_event, is_urgent, pieces
from sentinel.transport.wire import (
    HELLO_PATH,
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    Hello,
    Orders,
    Welcome,
    encoder,
)
from sentinel.util.clock import Clock, system_now

log = structlog.get_logger(__name__)

FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 15.0
MAX_SPREAD_S = 60.0
HINTS = 3  # leaders' addresses followed in a row, before all addresses are tried again

_welcome = msgspec.msgpack.Decoder(Welcome)


class ClientSettings(Struct, frozen=True, kw_only=True):
    """`addresses`: HOST:PORT of each controller, or of a headless service that stands for both."""

    node: str
    boot_id: str
    addresses: tuple[str, ...]
    token_path: str
    bundle_path: str  # certificates of the controller's authority
    folder: str  # for spool and epoch: its own
    version: str = ""
    protocols: tuple[int, int] = (PROTOCOL_MIN, PROTOCOL_MAX)
    spool_bytes: int = MAX_BYTES
    answer_s: float = 8.0  # for a connection, and for an answer; one that is held may take so much longer


class Client:
    """`run` is a task of its owner; `send` never waits and may be called before. `on_orders` gets all orders
    whenever they have changed, `on_answer` is called with each answer of any controller; on the event loop."""

    def __init__(
        self,
        settings: ClientSettings,
        on_orders: Callable[[Orders], None],
        on_answer: Callable[[], None] = lambda: None,
        *,
        clock: Clock = system_now,
    ) -> None:
        self.status = Status()
        self.spool = Spool(
            os.path.join(settings.folder, "spool"), settings.boot_id, max_bytes=settings.spool_bytes
        )
        self._settings = settings
        self._clock = clock
        self._on_answer = on_answer
        self._standing = Standing()
        self._epoch = EpochFile(settings.folder)
        self._trust = Trust(settings.bundle_path)
        self._token = TokenFile(settings.token_path)
        self._dialogue = Dialogue(
            self.spool,
            self.status,
            self._epoch,
            self._full,
            self._clock,
            on_orders,
            self._token.changed,
            settings.answer_s,
        )

    # ------------------------------------------------------------ what the agent calls

    def send(self, report: Report) -> None:
        """Tell the controller what of this it does not know yet: at once if it is urgent."""
        news = self._standing.fold(report)
        if news is None:
            return
        for piece in pieces(news):
            fitting, lost = fit(piece)
            kind = Kind.EVENT if is_event(fitting) else Kind.PROGRESS
            self.spool.dropped[kind] += lost
            self.spool.append(kind, encoder.encode(fitting))
        if is_urgent(news):
            self._dialogue.hurry()

    def forget(self, job: str) -> None:
        """The job is none of this node any more: full reports no longer name it."""
        self._standing.forget(job)

    def close(self) -> None:
        """Close the spool's files, when nothing will be sent any more."""
        self.spool.close()

    # ------------------------------------------------------------ finding the leader

    async def run(self) -> None:
        """Until cancelled; may be begun again, whatever ended it."""
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            greeted = self.status.connections
            wait_s = 0.0
            hint, hints = "", 0
            addresses = deque(await resolve(self._settings.addresses))
            if not addresses:
                self._trouble("", f"no address behind {', '.join(self._settings.addresses)}")
            while hint or addresses:
                address, hint = hint or addresses.popleft(), ""
                try:
                    await self._serve(address)
                except Refused as refused:
                    self._trouble(address, str(refused))
                    refusal = refused.refusal
                    wait_s = max(wait_s, refusal.slow_down_s)
                    if refusal.leader and refusal.leader != address and hints < HINTS:
                        hint, hints = refusal.leader, hints + 1
                except ChannelError as error:
                    self._trouble(address, str(error))
                if self.status.connections != greeted:
                    break
            lasted = self.status.connections != greeted and self.status.lasted_s > MAX_PAUSE_S
            failures = 0 if lasted else failures + 1
            pause_s = pause(failures, self._dialogue.spread_s, wait_s)
            await asyncio.sleep(max(pause_s, self._dialogue.pause_until_s - loop.time()))

    def _trouble(self, address: str, problem: str) -> None:
        if problem != self.status.problem:
            log.warning("controller_unreachable", address=address, problem=problem)
        self.status.problem = problem

    # ------------------------------------------------------------ one connection

    async def _serve(self, address: str) -> None:
        """Speak with one controller until that ends. Raises Refused, ChannelError."""
        try:
            token = self._token.read()
        except CredentialError as error:
            raise ChannelError(str(error)) from None
        channel = await Channel.open(address, self._trust, self._settings.answer_s)
        channel.on_answer = self._on_answer
        try:
            welcome = await self._greet(channel, token)
            loop_s = asyncio.get_running_loop().time()
            self.status.address, self.status.since_s, self.status.heard_s = address, loop_s, loop_s
            self.status.problem, self.status.protocol = "", welcome.protocol
            self.status.connections += 1
            log.info("controller_reached", address=address, epoch=welcome.epoch, protocol=welcome.protocol)
            self._dialogue.begin(welcome)
            await self._dialogue.run(channel)
        finally:
            self.status.address = ""
            ended_s = asyncio.get_running_loop().time()
            self.status.lasted_s, self.status.since_s = ended_s - self.status.since_s, ended_s
            await channel.close()

    async def _greet(self, channel: Channel, token: str) -> Welcome:
        settings = self._settings
        hello = Hello(
            node=settings.node,
            boot_id=settings.boot_id,
            session=self.spool.session,
            protocol_min=settings.protocols[0],
            protocol_max=settings.protocols[1],
            version=settings.version,
            epoch=self._epoch.value,
        )
        await channel.send(HELLO_PATH, encoder.encode(hello), token=token, answer_s=settings.answer_s)
        try:
            async with asyncio.timeout(settings.answer_s):
                body = await channel.read()
        except TimeoutError:
            raise ChannelError("the controller does not answer") from None
        welcome = decode(_welcome, body)
        if not settings.protocols[0] <= welcome.protocol <= settings.protocols[1]:
            raise ChannelError(
                f"the controller chose protocol {welcome.protocol}, which this agent does not speak"
            )
        self._dialogue.obey(welcome.epoch)
        return welcome

    def _full(self, max_bytes: int) -> Report:
        return self._standing.full(self._settings.node, self._settings.boot_id, self._clock(), max_bytes)


def pause(failures: int, spread_s: float, asked_s: float) -> float:
    """How long to wait before all addresses are tried again: longer with each failure, and never all agents
    at once. `spread_s`: what the fleet needs to come back; `asked_s`: what a controller has asked for."""
    most_s = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failures, 10))
    most_s = max(most_s, min(spread_s, MAX_SPREAD_S))
    least_s = 0.0 if failures == 0 else min(most_s, MAX_PAUSE_S) / 4
    return random.uniform(least_s, most_s) + min(asked_s, MAX_SLOW_DOWN_S) * random.uniform(1.0, 1.5)
