"""Requests to the API server: JSON in and out, decoded to the fields that are needed, each with a deadline."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from msgspec import Struct
from yarl import URL

from sentinel.cluster.kubernetes import access
from sentinel.cluster.kubernetes.errors import (
    Conflict,
    NotFound,
    Refused,
    Silent,
    Unanswered,
    Unavailable,
    of_answer,
)
from sentinel.metrics.registry import Metrics

T = TypeVar("T")

DEADLINE_S = 10.0
CONNECT_S = 5.0
CONNECTIONS = 32  # at once, for calls; each watch has one of its own besides
GATHERED_BYTES = 1 << 16  # a packet of more says that more waits
MAX_LINE_BYTES = 8 << 20  # one event of a watch: etcd holds no object above 1.5 MiB
LOGIN_AGAIN_S = 5.0  # after a 401, credentials are read again at most this often
# A peer that is gone without a word is noticed after 10 + 3 * 5 s at the latest, also on a silent watch.
_KEEPALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 20_000))

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
UNFIT_PATCH = (
    "the server rejected our request due to an error in our request"  # with 422, and nothing more is said
)


class Resource(Struct, frozen=True):
    """One kind of objects, by its group, version and plural. Group "" is the core's."""

    group: str
    version: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str = "", name: str = "", part: str = "") -> str:
        """Of the kind, of a namespace's objects, of one object, or of its `part` ("status", "eviction")."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{quote(namespace, safe='')}" if namespace and self.namespaced else ""
        tail = f"/{quote(name, safe='')}" if name else ""
        return f"{root}{scope}/{self.plural}{tail}{f'/{part}' if part else ''}"


class Client:
    """One identity at one API server. `async with`, or `aclose`. Raises only the errors of errors.py."""

    def __init__(
        self, reach: access.Access, metrics: Metrics | None = None, user_agent: str = "sentinel-controller"
    ) -> None:
        self._access = reach
        self._metrics = metrics
        self._agent = user_agent
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        self._retired: list[aiohttp.ClientSession] = []
        self._login = asyncio.Lock()
        self._logged_in_s = -LOGIN_AGAIN_S

    @classmethod
    async def connect(
        cls, kubeconfig: str = "", context: str = "", metrics: Metrics | None = None
    ) -> "Client":
        """Reads the configuration; sends nothing. Raises PermanentError."""
        return cls(await access.load(kubeconfig, context), metrics)

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._close([*self._sessions.values(), *self._retired])
        self._sessions, self._retired = {}, []

    @property
    def url(self) -> str:
        return self._access.url

    def namespace(self) -> str:
        """Which the kubeconfig's context names. Raises PermanentError."""
        return self._access.namespace()

    # ------------------------------------------------------------ calls

    async def get(
        self,
        path: str,
        kind: type[T],
        query: Mapping[str, str] | None = None,
        *,
        deadline_s: float = DEADLINE_S,
    ) -> T:
        return decoded(kind, await self.call("GET", path, query=query, deadline_s=deadline_s), path)

    async def find(self, path: str, kind: type[T]) -> T | None:
        """None: there is no such object."""
        try:
            return await self.get(path, kind)
        except NotFound:
            return None

    async def create(self, path: str, body: Any, kind: type[T], *, deadline_s: float = DEADLINE_S) -> T:
        """`path` of the kind. Raises AlreadyExists."""
        return decoded(kind, await self.call("POST", path, body, deadline_s=deadline_s), path)

    async def patch(
        self, path: str, body: Any, kind: type[T], *, how: str = MERGE_PATCH, deadline_s: float = DEADLINE_S
    ) -> T:
        """A JSON patch is a list, with `how=JSON_PATCH`. Raises Conflict where a precondition in it does not hold."""
        try:
            return decoded(kind, await self.call("PATCH", path, body, how=how, deadline_s=deadline_s), path)
        except Refused as error:
            # A place that a JSON patch names is not there: it was made for another state of the object.
            if how == JSON_PATCH and UNFIT_PATCH in str(error):
                raise Conflict(str(error), 0.0) from error
            raise

    async def delete(
        self,
        path: str,
        *,
        uid: str = "",
        version: str = "",
        grace_s: int | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """Only the object with this `uid` and resourceVersion. One that is gone already is no error."""
        options: dict[str, Any] = {"preconditions": {}}
        if uid:
            options["preconditions"]["uid"] = uid
        if version:
            options["preconditions"]["resourceVersion"] = version
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        await self.call("DELETE", path, options, deadline_s=deadline_s, missing_is_fine=True)

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        how: str = "application/json",
        deadline_s: float = DEADLINE_S,
        missing_is_fine: bool = False,
        accept: str = "application/json",
    ) -> bytes:
        """One request and its whole answer within `deadline_s`. A 401 reads the credentials again, once."""
        began_s, outcome = time.monotonic(), "ok"
        try:
            answer, content = await self._sent(method, path, body, query, (accept, how), deadline_s)
            if answer.status >= 400 and not (missing_is_fine and answer.status == 404):
                raise of_answer(method, path, answer.status, content, answer.headers.get("Retry-After", ""))
            return content
        except Exception as error:
            outcome = type(error).__name__
            raise
        finally:
            if self._metrics is not None:
                self._metrics.api_request(method, outcome, time.monotonic() - began_s)

    async def _sent(
        self,
        method: str,
        path: str,
        body: Any,
        query: Mapping[str, str] | None,
        types: tuple[str, str],
        deadline_s: float,
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        data = None if body is None else msgspec.json.encode(body)
        sent = _Sent()
        try:
            async with asyncio.timeout(deadline_s):
                used = self._access
                answer, content = await self._exchange(method, path, query, data, types, sent)
                if answer.status == 401 and await self._log_in_again(used):
                    answer, content = await self._exchange(method, path, query, data, types, sent)
                return answer, content
        except TimeoutError:
            raise _no_answer(method, path, f"no answer within {deadline_s:g} s", sent.sent) from None
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Unavailable(f"{method} {path}: {error}") from error  # nothing was sent
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _no_answer(method, path, f"{type(error).__name__}: {error}", sent.sent) from error

    async def _exchange(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        data: bytes | None,
        types: tuple[str, str],
        sent: "_Sent",
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        headers = await self._headers()
        headers["Accept"] = types[0]
        if data is not None:
            headers["Content-Type"] = types[1]
        request = self._session("calls").request(
            method,
            self._url(path, query),
            data=data,
            headers=headers,
            trace_request_ctx=sent,
            server_hostname=self._access.server_name,
            proxy=self._access.proxy,
            allow_redirects=False,
        )
        async with request as answer:
            return answer, await answer.read()

    # ------------------------------------------------------------ watches

    async def lines(
        self, path: str, query: Mapping[str, str], *, idle_s: float, gather_s: float = 0.0
    ) -> AsyncIterator[list[bytes]]:
        """The lines of a watch as they come, those of one packet together; after each, `gather_s` long nothing is read,
        so that many small events cost one wake. Ends when the server ends it; raises Silent when nothing
        came for `idle_s`."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=idle_s)
        used = self._access
        try:
            request = self._session("watches").get(
                self._url(path, query),
                headers=await self._headers(),
                timeout=timeout,
                server_hostname=self._access.server_name,
                proxy=self._access.proxy,
                allow_redirects=False,
            )
            async with request as answer:
                if answer.status >= 400:
                    if answer.status == 401:
                        await self._log_in_again(used)
                    text = await answer.content.read(1 << 16)
                    raise of_answer("GET", path, answer.status, text, answer.headers.get("Retry-After", ""))
                yield []  # it was granted: nothing may come for a minute
                rest = b""
                async for packet in answer.content.iter_any():
                    *whole, rest = (rest + packet).split(b"\n")
                    if len(rest) > MAX_LINE_BYTES:
                        raise Unavailable(f"GET {path}: an event of more than {MAX_LINE_BYTES} bytes")
                    if whole:
                        yield whole
                    if len(packet) > GATHERED_BYTES or not gather_s or answer.connection is None:
                        continue
                    if wire := answer.connection.transport:
                        wire.pause_reading()
                        await asyncio.sleep(gather_s)
                        wire.resume_reading()
        except TimeoutError as error:
            raise Silent(f"GET {path}: nothing came for {idle_s:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unavailable(f"GET {path}: {type(error).__name__}: {error}") from error

    # ------------------------------------------------------------ connections and credentials

    def _url(self, path: str, query: Mapping[str, str] | None) -> URL:
        text = f"{self._access.url}{path}" + (f"?{urlencode(query)}" if query else "")
        return URL(text, encoded=True)

    async def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": self._agent}
        token = await self._access.authorization()
        if token:
            headers["Authorization"] = token
        return headers

    def _session(self, use: str) -> aiohttp.ClientSession:
        session = self._sessions.get(use)
        if session is None:
            connector = aiohttp.TCPConnector(
                ssl=self._access.tls or True,
                limit=CONNECTIONS if use == "calls" else 0,
                keepalive_timeout=60,
                socket_factory=_socket,
            )
            tracing = aiohttp.TraceConfig()
            tracing.on_request_headers_sent.append(_note_sent)
            session = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                trace_configs=[tracing] if use == "calls" else [],
                auto_decompress=True,
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=1 << 18,
            )
            self._sessions[use] = session
        return session

    async def _log_in_again(self, refused: access.Access) -> bool:
        """Is there another access than the one that was refused? False: it was read anew just now."""
        async with self._login:
            if self._access is not refused:
                return True
            now_s = asyncio.get_running_loop().time()
            if now_s - self._logged_in_s < LOGIN_AGAIN_S:
                return False
            self._logged_in_s = now_s
            self._access = await self._access.renewed()
            await self._close(self._retired)
            # A certificate belongs to a connection. Calls that are under way on the old ones may end.
            self._retired, self._sessions = list(self._sessions.values()), {}
            return True

    async def _close(self, sessions: list[aiohttp.ClientSession]) -> None:
        for session in sessions:
            await session.close()


class _Sent:
    """Has any byte of the request left? Set by aiohttp's trace."""

    sent = False


async def _note_sent(_: object, context: Any, __: object) -> None:
    context.trace_request_ctx.sent = True


def _no_answer(method: str, path: str, why: str, sent: bool) -> Exception:
    said = f"{method} {path}: {why}"
    return Unanswered(said) if sent and method not in ("GET", "HEAD") else Unavailable(said)


def _socket(address: Any) -> socket.socket:
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


def decoded(kind: type[T], content: bytes, path: str) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as error:
        raise Unavailable(f"{path}: an answer that cannot be read: {error}") from error
