"""One connection of an agent, on the controller's side: TLS, then requests in order, each bounded.

TLS is done here with `ssl.MemoryBIO` and not by asyncio: its TLS transport keeps 256 KiB for each
connection (measured: 282 KiB against 20), and 10 000 agents stay connected. The head is judged before
its body is read; while a request is with the controller nothing more is read.
"""

import asyncio
import ssl
from collections.abc import Coroutine
from typing import Any, Protocol, cast

from sentinel.transport import http11
from sentinel.transport.http11 import BadHead, Request
from sentinel.transport.limits import Limits
from sentinel.transport.wire import CONTENT_TYPE, STATUS, Reason, Refusal, encoder

READ_BYTES = 64 << 10
MAX_HANDSHAKE_BYTES = 64 << 10
MAX_UNREAD_BYTES = 64 << 10  # of one that waits for its turn
LINGER_S = 1.0  # a refused sender may read the answer before its connection is reset


class Refuse(Exception):
    """Answer this instead. `close`: and end the connection."""

    def __init__(self, refusal: Refusal, *, close: bool = False) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal
        self.close = close


class Site(Protocol):
    """Who is behind the connections. `admit` and `handle` raise Refuse, at once or when awaited."""

    limits: Limits
    bytes_in_flight: int

    @property
    def tls(self) -> ssl.SSLContext: ...
    def opened(self, connection: "Connection") -> None: ...
    def wants_handshake(self, connection: "Connection") -> None: ...
    def wants_turn(self, connection: "Connection") -> None: ...
    def closed(self, connection: "Connection") -> None: ...
    def broken(self, connection: "Connection", what: str) -> None: ...
    def admit(self, connection: "Connection", request: Request) -> Coroutine[Any, Any, None] | None: ...
    def handle(
        self, connection: "Connection", request: Request, body: bytes
    ) -> Coroutine[Any, Any, bytes | None] | bytes | None: ...
    def refused(self, connection: "Connection", refusal: Refusal) -> None: ...
    def failed(self, connection: "Connection", error: Exception) -> Refusal: ...
    def before_next(self, connection: "Connection") -> None: ...


class Connection(asyncio.Protocol):
    """`guest` belongs to the site: who this is, and what it waits for."""

    __slots__ = (
        "_blocked", "_buffer", "_busy", "_closing", "_early", "_handshaken", "_head", "_in", "_loop", "_out", "_site",
        "_task", "_timer", "_tls", "_transport", "_unread", "guest", "last_s", "peer", "waits",
    )  # fmt: skip

    def __init__(self, site: Site, loop: asyncio.AbstractEventLoop) -> None:
        self._site = site
        self._loop = loop
        self._tls: ssl.SSLObject | None = None  # made at its first turn: thousands may come at once
        self._early = b""  # what came before that
        self._buffer = bytearray()
        self._head: Request | None = None
        self._busy = False  # somebody else is waited for
        self._blocked = False  # by answers that are not read
        self._closing = False
        self._unread = 0  # bytes that came and are counted as in flight, though they are not read yet
        self._handshaken = False
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.waits = False  # for its turn to be read
        self.guest: Any = None
        self.peer = ""
        self.last_s = loop.time()

    # ------------------------------------------------------------ the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # which uvloop's is not by its class
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if peer else ""
        self._site.opened(self)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if self._tls is None:
            self._early += data
            unread = len(self._early)
        else:
            self._in.write(data)
            unread = self._in.pending
        if self._handshaken:
            self._site.wants_turn(self)
        elif unread <= MAX_HANDSHAKE_BYTES:
            self._site.wants_handshake(self)
        else:
            self._site.broken(self, "a handshake without end")
            self.abort()

    @property
    def begun(self) -> bool:
        """Has it had a turn in the handshake?"""
        return self._tls is not None

    def handshake(self) -> None:
        """Go on with the handshake; the site calls it when it is this connection's turn."""
        self._go_on()

    def wait(self) -> None:
        """Its turn has not come. What it sends until then waits too; of much no more is read from the kernel."""
        self._site.bytes_in_flight += self._in.pending - self._unread
        self.waits, self._unread = True, self._in.pending
        self._pause_or_resume()

    def read(self) -> None:
        """Go on with what has come; the site calls it when it is this connection's turn."""
        if self.waits:
            self._waits_no_more()
            self._pause_or_resume()
        self._go_on()

    def _go_on(self) -> None:
        if self._closing:
            return
        try:
            if self._tls is None:
                self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
                self._tls = self._site.tls.wrap_bio(self._in, self._out, server_side=True)
                self._in.write(self._early)
                self._early = b""
            self._read()
        except Exception:  # nobody would go on with it
            self.abort()
            raise

    def _waits_no_more(self) -> None:
        self.waits = False
        self._site.bytes_in_flight -= self._unread
        self._unread = 0

    def _read(self) -> None:
        assert self._tls is not None
        try:
            if not self._handshaken:
                self._tls.do_handshake()
                self._handshaken = True
            while True:
                plain = self._tls.read(READ_BYTES)
                if not plain:  # close_notify
                    self.close()
                    return
                self._buffer += plain
                self._site.bytes_in_flight += len(plain)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._site.broken(self, error.reason or "TLS")
            self._flush()  # the alert says why
            self.abort()
            return
        self._flush()
        self._advance()

    def eof_received(self) -> bool:
        return False  # the transport closes itself

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = True
        self._cancel_timer()
        if self._task is not None:
            self._task.cancel()
        self._waits_no_more()
        self._site.bytes_in_flight -= len(self._buffer)
        self._buffer = bytearray()
        self._site.closed(self)

    def pause_writing(self) -> None:
        """The agent does not read its answers: it gets no further ones until it does."""
        self._blocked = True
        self._pause_or_resume()

    def resume_writing(self) -> None:
        self._blocked = False
        self._pause_or_resume()
        self._loop.call_soon(self._ask_for_turn)

    def _ask_for_turn(self) -> None:
        """To go on with what has come."""
        if not self._closing:
            self._site.wants_turn(self)

    def _pause_or_resume(self) -> None:
        if self._transport.is_closing():
            return
        site = self._site
        full = self._unread > MAX_UNREAD_BYTES or site.bytes_in_flight > site.limits.bytes_in_flight
        if self._busy or self._blocked or (self.waits and full):
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # ------------------------------------------------------------ requests

    def _advance(self) -> None:
        """Go on with what has come, until something is missing or somebody must be waited for."""
        try:
            while not (self._busy or self._blocked or self._closing):
                if self._head is None:
                    if not self._parse_head():
                        return
                    assert self._head is not None
                    waiting = self._site.admit(self, self._head)
                    if waiting is not None:
                        self._wait_for(self._admitted(waiting))
                        return
                    self._check_size(self._head)
                if not self._serve_body(self._head):
                    return
        except Refuse as refuse:
            self._refuse(refuse.refusal, close=refuse.close)
            self._loop.call_soon(self._ask_for_turn)
        except Exception as error:  # noqa: BLE001 - boundary: one request must not end the others
            self._refuse(self._site.failed(self, error), close=True)

    def _parse_head(self) -> bool:
        end = self._buffer.find(http11.END)
        if end < 0:
            if len(self._buffer) > http11.MAX_HEAD_BYTES:
                raise Refuse(Refusal(reason=Reason.TOO_LARGE, text="the head is too long"), close=True)
            return False
        if end > http11.MAX_HEAD_BYTES:
            raise Refuse(Refusal(reason=Reason.TOO_LARGE, text="the head is too long"), close=True)
        head = bytes(self._buffer[:end])
        self._consume(end + 4)
        self._site.before_next(self)
        try:
            self._head = http11.parse_request(head)
        except BadHead as error:
            raise Refuse(Refusal(reason=Reason.BAD_REQUEST, text=str(error)), close=True) from None
        return True

    def _check_size(self, head: Request) -> None:
        limits = self._site.limits
        if head.length > limits.body_bytes:
            text = f"a body of {head.length} bytes; at most {limits.body_bytes} are taken"
            raise Refuse(Refusal(reason=Reason.TOO_LARGE, text=text), close=True)
        missing = head.length - len(self._buffer)
        if missing > 0 and self._site.bytes_in_flight + missing > limits.bytes_in_flight:
            text = "too much is on its way from all nodes together"
            raise Refuse(Refusal(reason=Reason.OVERLOADED, text=text, slow_down_s=5.0), close=True)

    def _serve_body(self, head: Request) -> bool:
        if len(self._buffer) < head.length:
            if self._timer is None:
                self._timer = self._loop.call_later(self._site.limits.body_s, self._body_late)
            return False
        self._cancel_timer()
        body = bytes(memoryview(self._buffer)[: head.length])
        self._consume(head.length)
        self._head = None
        self.last_s = self._loop.time()
        answer = self._site.handle(self, head, body)
        if isinstance(answer, bytes):
            self.answer(answer)
        elif answer is not None:
            self._wait_for(self._handled(answer))
        return True

    def _consume(self, size: int) -> None:
        del self._buffer[:size]
        self._site.bytes_in_flight -= size

    def _body_late(self) -> None:
        self._timer = None
        if self.waits:  # it may have come: then its turn shows it
            self._timer = self._loop.call_later(self._site.limits.body_s, self._body_late)
            return
        self._site.broken(self, "a body that did not come")
        self.abort()

    # ------------------------------------------------------------ waiting

    def _wait_for(self, work: Coroutine[Any, Any, None]) -> None:
        self._busy = True
        self._pause_or_resume()
        self._task = self._loop.create_task(self._waited(work))

    async def _waited(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Refuse as refuse:
            self._refuse(refuse.refusal, close=refuse.close)
        except Exception as error:  # noqa: BLE001 - boundary: one request must not end the others
            self._refuse(self._site.failed(self, error), close=True)
        self._task = None
        self._busy = False
        if not self._closing:
            self._pause_or_resume()
            self._ask_for_turn()

    async def _admitted(self, work: Coroutine[Any, Any, None]) -> None:
        await work
        assert self._head is not None
        self._check_size(self._head)

    async def _handled(self, work: Coroutine[Any, Any, bytes | None]) -> None:
        answer = await work
        if answer is not None:
            self.answer(answer)

    def rest(self, pause_s: float) -> None:
        """Read nothing more for so long: a flood then waits in the sender's own buffers."""
        if self._busy or self._closing:
            return
        self._busy = True
        self._pause_or_resume()
        self._loop.call_later(pause_s, self._rested)

    def _rested(self) -> None:
        self._busy = False
        if not self._closing:
            self._pause_or_resume()
            self._ask_for_turn()

    # ------------------------------------------------------------ answers

    def answer(self, body: bytes) -> None:
        self._write(http11.answer_head(200, CONTENT_TYPE, len(body), close=False) + body)

    def _refuse(self, refusal: Refusal, *, close: bool) -> None:
        self._head = None
        self._cancel_timer()
        self._site.refused(self, refusal)
        body = encoder.encode(refusal)
        head = http11.answer_head(
            STATUS[Reason(refusal.reason)],
            CONTENT_TYPE,
            len(body),
            close=close,
            retry_after_s=refusal.slow_down_s,
        )
        self._write(head + body)
        if close:
            self.close()

    def _write(self, data: bytes) -> None:
        if self._closing or self._tls is None:
            return
        try:
            self._tls.write(data)
        except ssl.SSLError as error:
            self._site.broken(self, error.reason or "TLS")
            self.abort()
            return
        self._flush()

    def _flush(self) -> None:
        if self._tls is not None and self._out.pending and not self._transport.is_closing():
            self._transport.write(self._out.read())

    def close(self) -> None:
        """Send what is left, then the end; what still comes is thrown away for a moment, unread."""
        if self._closing:
            return
        self._closing = True
        if self._tls is not None:
            try:
                self._tls.unwrap()
            except (ssl.SSLError, ValueError):  # the other side has not said its end yet
                pass
        self._flush()
        if self._transport.is_closing():
            return
        self._transport.resume_reading()
        try:
            self._transport.write_eof()
        except OSError:  # it has been reset, which the transport has not read yet
            self._transport.abort()
            return
        self._loop.call_later(LINGER_S, self._transport.abort)

    def abort(self) -> None:
        """End it now. What was written and is with the kernel still arrives."""
        self._closing = True
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._transport.close()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
