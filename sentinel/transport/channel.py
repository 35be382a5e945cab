"""The agent's end of one connection: TLS with the controller's own authority, requests and answers in order."""

import asyncio
import contextlib
import random
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable

import msgspec
import structlog

from sentinel.transport import http11
from sentinel.transport.credentials import CredentialError, Trust
from sentinel.transport.http11 import BadHead
from sentinel.transport.wire import CONTENT_TYPE, MAX_ANSWER_BYTES, SERVER_NAME, Refusal

CLOSE_S = 1.0

log = structlog.get_logger(__name__)

_refusal = msgspec.msgpack.Decoder(Refusal)


class ChannelError(Exception):
    """The connection is of no more use. The text says why."""


class Refused(Exception):
    """The controller said no. `closed`: and ended the connection."""

    def __init__(self, refusal: Refusal, *, closed: bool) -> None:
        super().__init__(f"{refusal.reason}: {refusal.text}")
        self.refusal = refusal
        self.closed = closed


class Channel:
    """`read` must be called for each `send`, in order; several requests may be on their way."""

    def __init__(self, host: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._host = host
        self._reader = reader
        self._writer = writer
        self._deadlines: deque[float] = deque()
        self.on_answer: Callable[[], None] = lambda: None  # of a controller, be it a refusal

    @classmethod
    async def open(cls, address: str, trust: Trust, connect_s: float) -> "Channel":
        """Connect to HOST:PORT. Raises ChannelError."""
        host, _, port = address.rpartition(":")
        try:
            context = trust.context()
            async with asyncio.timeout(connect_s):
                reader, writer = await asyncio.open_connection(
                    host.strip("[]"),
                    int(port),
                    ssl=context,
                    server_hostname=SERVER_NAME,
                    limit=http11.MAX_HEAD_BYTES,
                )
        except TimeoutError:
            raise ChannelError(f"{address} does not answer") from None
        except CredentialError as error:
            raise ChannelError(str(error)) from None
        except (OSError, ValueError) as error:
            raise ChannelError(f"{address}: {error}") from None
        return cls(address, reader, writer)

    @property
    def outstanding(self) -> int:
        return len(self._deadlines)

    @property
    def deadline_s(self) -> float | None:
        """When the next answer should have come, on the loop's clock."""
        return min(self._deadlines) if self._deadlines else None

    async def send(self, path: str, body: bytes, *, token: str | None, answer_s: float) -> None:
        head = http11.request_head(path, self._host, CONTENT_TYPE, len(body), token)
        self._deadlines.append(asyncio.get_running_loop().time() + answer_s)
        try:
            self._writer.write(head + body)
            async with asyncio.timeout(answer_s):
                await self._writer.drain()
        except TimeoutError:
            raise ChannelError("the controller takes nothing in") from None
        except OSError as error:
            raise ChannelError(f"the connection broke: {error}") from None

    async def read(self) -> bytes:
        """The body of the next answer. Raises Refused, ChannelError."""
        try:
            head = http11.parse_answer((await self._reader.readuntil(http11.END))[:-4])
            if head.length > MAX_ANSWER_BYTES:
                raise ChannelError(f"an answer of {head.length} bytes")
            body = await self._reader.readexactly(head.length)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError) as error:
            raise ChannelError(f"the connection broke: {error}") from None
        except BadHead as error:
            raise ChannelError(f"not an answer of a controller: {error}") from None
        self.on_answer()
        if self._deadlines:
            self._deadlines.popleft()
        if head.status != 200:
            try:
                refusal = _refusal.decode(body)
            except msgspec.DecodeError:
                raise ChannelError(f"not an answer of a controller: status {head.status}") from None
            raise Refused(refusal, closed=head.close)
        return body

    async def close(self) -> None:
        self._writer.close()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._writer.wait_closed()
        except (OSError, TimeoutError, ssl.SSLError):
            abort(self._writer)


def abort(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(AttributeError):  # Python before 3.11.4, where TLS has ended already
        writer.transport.abort()


async def resolve(names: Iterable[str]) -> list[str]:
    """All addresses (IP:PORT) behind names (HOST:PORT), in another order each time; what is unknown is left out."""
    loop = asyncio.get_running_loop()
    found: dict[str, None] = {}
    for name in names:
        host, _, port = name.rpartition(":")
        try:
            rows = await loop.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        except (OSError, ValueError) as error:
            log.warning("controller_name_unknown", name=name, error=str(error))
            continue
        for *_, where in rows:
            ip, number = str(where[0]), int(where[1])
            found[f"[{ip}]:{number}" if ":" in ip else f"{ip}:{number}"] = None
    return random.sample(list(found), len(found))
