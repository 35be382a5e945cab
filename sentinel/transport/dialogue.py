"""One connection of an agent after its greeting: what is sent when, and what the answers mean.

One request always waits at the controller, so that orders come at once; something urgent is sent beside it.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import TypeVar

import msgspec
import structlog
from msgspec import Raw, Struct

from sentinel.core.now import Now
from sentinel.core.reports import Report
from sentinel.transport.channel import Channel, ChannelError, Refused
from sentinel.transport.epoch import EpochFile
from sentinel.transport.limits import Bucket
from sentinel.transport.spool import Spool
from sentinel.transport.wire import (
    MAX_BATCH_BYTES,
    MAX_BATCH_RECORDS,
    REPORT_EVERY_S,
    REPORT_PATH,
    Ack,
    Orders,
    RawBatch,
    RawNumbered,
    Reason,
    Welcome,
    encoder,
)

log = structlog.get_logger(__name__)

MAX_SLOW_DOWN_S = 60.0
# Less than what a controller allows one node: what comes in a burst is sent together.
REQUESTS_PER_S = 4.0
REQUESTS_BURST = 10.0
WINDOW = 2  # requests on their way: one that waits, and one that does not

T = TypeVar("T")
_ack = msgspec.msgpack.Decoder(Ack)


class Status(Struct):
    """What to show of the connection. Times are of the event loop's clock."""

    address: str = ""  # "": not connected
    since_s: float = 0.0  # when that began
    lasted_s: float = 0.0  # the last connection
    heard_s: float = 0.0  # the last answer of a leader
    epoch: int = 0
    protocol: int = 0
    problem: str = ""  # why it is not connected
    connections: int = 0
    refused: int = 0  # records that the controller could not use


class _Sent(Struct, frozen=True):
    last: int  # number of its newest record; 0: none
    records: int
    full: bool


class Dialogue:
    """Outlives its connections: `begin` and then `run` for each one."""

    def __init__(
        self,
        spool: Spool,
        status: Status,
        epoch: EpochFile,
        full: Callable[[int], Report],
        now: Callable[[], Now],
        on_orders: Callable[[Orders], None],
        new_token: Callable[[], str | None],
        answer_s: float,
    ) -> None:
        self.pause_until_s = 0.0
        self.spread_s = 0.0  # as the leader said last
        self._spool = spool
        self._status = status
        self._epoch = epoch
        self._full = full  # the full report in at most so many bytes
        self._now = now
        self._on_orders = on_orders
        self._new_token = new_token
        self._answer_s = answer_s
        self._wake = asyncio.Event()
        self._urgent = False
        self._bucket = Bucket(REQUESTS_BURST, 0.0)
        self._orders = ""  # version in force
        self._small = False  # a body was too large
        # Of the connection that there is:
        self._sent: deque[_Sent] = deque()
        self._need_full = True
        self._after = 0
        self._again = False  # something was not taken: send it once more when all answers are in
        self._every_s = REPORT_EVERY_S
        self._batch_bytes = MAX_BATCH_BYTES

    def hurry(self) -> None:
        """Send what the spool has without waiting for the next report that is due."""
        self._urgent = True
        self._wake.set()

    def begin(self, welcome: Welcome) -> None:
        self._spool.rewind()
        self._sent.clear()
        self._need_full, self._after, self._again = True, 0, False
        self._every_s = min(max(welcome.report_every_s, 0.1), 300.0)
        self._batch_bytes = max(1, min(MAX_BATCH_BYTES, welcome.max_body_bytes // 2))
        self._slow_down(welcome.slow_down_s)

    def obey(self, epoch: int) -> None:
        """Whatever a replaced leader says is not taken: its orders, and its word that it has our reports."""
        if not self._epoch.raise_to(epoch):
            raise ChannelError(f"epoch {epoch} is over: {self._epoch.value} was served")
        self._status.epoch = epoch

    async def run(self, channel: Channel) -> None:
        """Until the connection ends. Raises Refused, ChannelError."""
        loop = asyncio.get_running_loop()
        answers = asyncio.create_task(self._read_answers(channel))
        due_s = loop.time()
        try:
            while True:
                self._wake.clear()
                if answers.done():
                    await answers
                now_s = loop.time()
                deadline_s = channel.deadline_s
                if deadline_s is not None and now_s > deadline_s:
                    raise ChannelError("the controller does not answer")
                if self._may_send(channel, now_s) and self._has_reason(channel, now_s >= due_s):
                    await self._send_batch(channel)
                    due_s = loop.time() + self._every_s
                    continue
                waits = (
                    [self.pause_until_s - now_s] if self.pause_until_s > now_s else [max(due_s - now_s, 0.05)]
                )
                if deadline_s is not None:
                    waits.append(deadline_s - now_s + 0.01)
                if now_s >= due_s:  # and there was nothing to tell
                    due_s = now_s + self._every_s
                try:
                    async with asyncio.timeout(min(waits)):
                        await self._wake.wait()
                except TimeoutError:
                    pass
        finally:
            answers.cancel()
            await asyncio.gather(answers, return_exceptions=True)

    def _may_send(self, channel: Channel, now_s: float) -> bool:
        if self._again and not channel.outstanding:
            self._spool.rewind()
            self._again, self._after = False, 0
        return not self._again and now_s >= self.pause_until_s and channel.outstanding < WINDOW

    def _has_reason(self, channel: Channel, due: bool) -> bool:
        if not channel.outstanding:
            return True
        if self._need_full and not any(sent.full for sent in self._sent):
            return True
        return (self._urgent or due) and self._spool.more

    async def _send_batch(self, channel: Channel) -> None:
        urgent, self._urgent = self._urgent, False
        now_s = asyncio.get_running_loop().time()
        if wait_s := self._bucket.take(now_s, REQUESTS_PER_S, REQUESTS_BURST):
            self.pause_until_s = max(self.pause_until_s, now_s + wait_s)  # after this one
        full = self._need_full and not any(sent.full for sent in self._sent)
        records = self._spool.batch(1 if self._small else MAX_BATCH_RECORDS, self._batch_bytes)
        full_report = self._full(self._batch_bytes // 2) if full else None
        # An answer to what is urgent, or with more to come behind it, is not held.
        hold_s = 0.0 if urgent or full or self._spool.more else self._every_s
        batch = RawBatch(
            records=tuple(RawNumbered(sequence, Raw(payload)) for sequence, payload in records),
            after=self._after,
            full=Raw(encoder.encode(full_report)),
            full_after=self._spool.last if full else 0,
            orders=self._orders,
            hold_s=hold_s,
            dropped=self._spool.lost(),
            now=None if self._spool.more else self._now(),
        )
        last = records[-1][0] if records else 0
        self._after = last or self._after
        self._sent.append(_Sent(last, len(records), full))
        await channel.send(
            REPORT_PATH, encoder.encode(batch), token=self._new_token(), answer_s=hold_s + self._answer_s
        )

    # ------------------------------------------------------------ answers

    async def _read_answers(self, channel: Channel) -> None:
        """Raises Refused, ChannelError."""
        try:
            while True:
                try:
                    body = await channel.read()
                except Refused as refused:
                    self._refused(refused)
                    continue
                self._answered(decode(_ack, body))
                self._wake.set()
        finally:
            self._wake.set()

    def _answered(self, ack: Ack) -> None:
        self.obey(ack.epoch)
        self._status.heard_s = asyncio.get_running_loop().time()
        sent = self._sent.popleft() if self._sent else _Sent(0, 0, False)
        if sent.full:
            self._need_full = False
        if sent.records:
            self._small = False
        self._spool.ack(ack.sequence)
        self._status.refused += len(ack.refused)
        if ack.sequence < sent.last:
            self._again = True
        self.spread_s = ack.spread_s
        self._slow_down(ack.slow_down_s)
        if ack.orders is not None:
            try:
                self._on_orders(ack.orders)
            except Exception:  # boundary: what the agent makes of its orders must not end the connection
                log.exception("orders_failed", version=ack.orders.version)
                self._slow_down(self._answer_s)  # they come again
            else:
                self._orders = ack.orders.version

    def _refused(self, refused: Refused) -> None:
        """Go on with this connection if it is only for now; else raise it."""
        sent = self._sent.popleft() if self._sent else _Sent(0, 0, False)
        refusal = refused.refusal
        if refusal.reason == Reason.TOO_LARGE and sent.records:
            if sent.records == 1:
                log.warning("record_too_large", sequence=sent.last)
                self._spool.give_up(sent.last)
            self._small = True
        if refused.closed or refusal.reason == Reason.SAY_HELLO:
            raise refused
        log.warning("report_refused", reason=refusal.reason, text=refusal.text)
        self._again = True
        self._slow_down(refusal.slow_down_s or 1.0)
        self._wake.set()

    def _slow_down(self, pause_s: float) -> None:
        if pause_s > 0:
            pause_s = min(pause_s, MAX_SLOW_DOWN_S) * random.uniform(1.0, 1.5)
            self.pause_until_s = max(self.pause_until_s, asyncio.get_running_loop().time() + pause_s)


def decode(decoder: msgspec.msgpack.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        raise ChannelError(f"not an answer of a controller: {error}") from None
