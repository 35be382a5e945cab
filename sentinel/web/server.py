"""Status page, JSON and metrics over HTTP on loopback. aiohttp is imported here and nowhere else.

Import this module when the ranks have started: aiohttp costs 0.1 s and 11 MiB. Every user of this
machine can reach loopback, as can a browser that a foreign page steers: therefore the page of a job only shows
and never acts, and a request must name a loopback host (DNS rebinding). A cluster's page acts for who shows a
token with each order: a browser sends none by itself.
"""

import asyncio
import errno
import ipaddress
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType

import msgspec
import structlog
from aiohttp import hdrs, web
from msgspec import Struct

from sentinel.metrics.exposition import CONTENT_TYPE
from sentinel.metrics.registry import Metrics
from sentinel.util.errors import PermanentError
from sentinel.web.html import content_security_policy
from sentinel.web.page import fragment, page
from sentinel.web.view import View

log = structlog.get_logger()

HTML = "text/html; charset=utf-8"
MAX_CONNECTIONS = 5
MAX_BODY_BYTES = 4096
CONNECTION_S = 10.0  # no connection lives longer: each carries one request that takes milliseconds

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """A running server. `url` is what to show and to open; `close` ends it and all its connections."""

    def __init__(self, url: str, runner: web.AppRunner, listener: asyncio.Server) -> None:
        self.url = url
        self._runner = runner
        self._listener = listener

    async def close(self) -> None:
        self._listener.close()
        await self._runner.cleanup()
        await self._listener.wait_closed()


class Route(Struct, frozen=True):
    """One address: `answer` is called for each request, on the event loop; (status, content type, body)."""

    path: str
    answer: Callable[[], tuple[int, str, bytes]]


class Asked(Struct, frozen=True, kw_only=True):
    """What a request asks of a `Place`."""

    names: Mapping[str, str]  # parts of the path
    query: Mapping[str, str]
    token: str = ""  # of whoever signed in
    private: bool = False  # nobody in between could read the token
    body: bytes = b""


class Told(Struct, frozen=True, kw_only=True):
    """The answer. With an `etag` a browser that has this is told so instead."""

    body: bytes
    content_type: str = HTML
    status: int = 200
    etag: str = ""


class Place(Struct, frozen=True):
    """An address whose answer depends on what is asked: `/nodes/{name}`. `post`: it takes orders of this page's script,
    and of nothing else that a browser has open."""

    path: str
    answer: Callable[[Asked], Awaitable[Told]]
    post: bool = False


async def serve(listen: str, view: Callable[[], View], metrics: Metrics) -> Server:
    """Serve the page of a job on `listen` ("127.0.0.1:9810", "[::1]:0"); if its port is taken, on a free one.

    `view` is called for each request that shows the job, on the event loop. Raises PermanentError if
    `listen` is not a loopback address and port, or cannot be bound at all.
    """
    return await _serve(listen, _application(view, metrics), any_port=True)


async def serve_routes(
    listen: str,
    routes: Iterable[Route],
    metrics: Metrics,
    *,
    places: Iterable[Place] = (),
    connections: int = MAX_CONNECTIONS,
    everywhere: bool = False,
) -> Server:
    """Serve `routes` on `listen` and on no other port: who scrapes it must not get another's numbers.

    `everywhere`: on any address and under any name, for what anybody in the network may read.
    Raises PermanentError as `serve` does, and where the port is taken (reason CannotListen).
    """

    def handler(answer: Callable[[], tuple[int, str, bytes]]) -> Handler:
        async def handle(request: web.Request) -> web.Response:
            status, content_type, body = answer()
            return web.Response(status=status, body=body, headers={hdrs.CONTENT_TYPE: content_type})

        return handle

    handlers = {route.path: handler(route.answer) for route in routes}
    places = tuple(places)
    handlers |= {place.path: _placed(place) for place in places if not place.post}
    posts = {place.path: _placed(place) for place in places if place.post}
    application = _guarded(handlers, metrics, posts=posts, everywhere=everywhere)
    return await _serve(listen, application, any_port=False, everywhere=everywhere, connections=connections)


def _placed(place: Place) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        if place.post and (refusal := _foreign(request)):
            return web.Response(text=f"{refusal}\n", status=403)
        kind, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        asked = Asked(
            names=request.match_info,
            query=request.query,
            token=token.strip() if kind.lower() == "bearer" else "",
            private=_private(request),
            body=await request.read() if place.post else b"",
        )
        told = await place.answer(asked)
        headers: dict[str, str] = {hdrs.CONTENT_TYPE: told.content_type}
        if told.content_type == HTML:
            headers["Content-Security-Policy"] = content_security_policy()
        if told.etag:
            headers[hdrs.ETAG] = f'"{told.etag}"'
            if request.headers.get(hdrs.IF_NONE_MATCH) == headers[hdrs.ETAG]:
                return web.Response(status=304, headers=headers)
        return web.Response(status=told.status, body=told.body, headers=headers)

    return handle


def _foreign(request: web.Request) -> str:
    """Why this is no request of our own page; "": it is one. A browser cannot be made to send it from elsewhere: JSON
    and the header with the token need our leave, which nobody gets. This is for browsers that have other ideas."""
    if request.content_type != "application/json":
        return "expected application/json"
    if request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
        return "only this page's own requests are followed"
    origin = request.headers.get(hdrs.ORIGIN)
    if origin is not None and origin.partition("://")[2] != request.headers.get(hdrs.HOST):
        return "only this page's own requests are followed"
    return ""


def _private(request: web.Request) -> bool:
    """From this machine (`kubectl port-forward` ends here) or, as its proxy says, over TLS. Who lies harms himself."""
    if request.headers.get("X-Forwarded-Proto", "").lower() == "https":
        return True
    try:
        return ipaddress.ip_address(request.remote or "").is_loopback
    except ValueError:
        return False


async def _serve(
    listen: str,
    application: web.Application,
    *,
    any_port: bool,
    everywhere: bool = False,
    connections: int = MAX_CONNECTIONS,
) -> Server:
    host, port = parse_listen(listen, everywhere=everywhere)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        listener = await _bind(_limited(runner, connections), host, port, any_port=any_port)
    except OSError as error:
        await runner.cleanup()
        raise PermanentError(f"cannot listen on {listen}: {error.strerror}", reason="CannotListen") from None
    bound = listener.sockets[0].getsockname()[1]
    return Server(f"http://{f'[{host}]' if ':' in host else host}:{bound}", runner, listener)


def parse_listen(listen: str, *, everywhere: bool = False) -> tuple[str, int]:
    """Address and port of "127.0.0.1:9810", "[::1]:0" or "localhost:0"; PermanentError if not on loopback."""
    host, colon, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise PermanentError(
            f"listen: {listen!r}: expected ADDRESS:PORT, such as 127.0.0.1:9810", reason="BadListen"
        )
    if not everywhere and not _is_loopback(host):
        raise PermanentError(
            f"listen: {listen!r}: expected a loopback address: the page asks nobody who they are",
            reason="NotLoopback",
        )
    return "127.0.0.1" if host.lower() == "localhost" else host, int(port)


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_allowed(header: str) -> bool:
    """Whether a Host header names this machine's loopback, with any port: a tunnel may have another one."""
    if header.startswith("["):
        host, _, rest = header[1:].partition("]")
    else:
        host, colon, port = header.partition(":")
        rest = colon + port
    return _is_loopback(host) and (not rest or (rest[0] == ":" and rest[1:].isdigit()))


async def _bind(
    factory: Callable[[], asyncio.Protocol], host: str, port: int, *, any_port: bool
) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    try:
        return await loop.create_server(factory, host, port, backlog=MAX_CONNECTIONS)
    except OSError as error:
        # EACCES: a port below 1024 that is not ours.
        if not any_port or not port or error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        log.info("page_port_taken", port=port, error=error.strerror)
        return await loop.create_server(factory, host, 0, backlog=MAX_CONNECTIONS)


def _limited(runner: web.AppRunner, connections: int) -> Callable[[], asyncio.Protocol]:
    """A protocol factory that closes the oldest connection when there are too many, so that the newest
    is always served and idle or stuck clients cost neither memory nor the page."""
    server = runner.server
    assert server is not None  # AppRunner.setup made it
    loop = asyncio.get_running_loop()

    def connection() -> asyncio.Protocol:
        known = server.connections
        for old in known[: max(0, len(known) - connections + 1)]:
            old.force_close()
        fresh = server()
        loop.call_later(CONNECTION_S, fresh.force_close)
        return fresh

    return connection


def _application(view: Callable[[], View], metrics: Metrics) -> web.Application:
    encoder = msgspec.json.Encoder()

    async def index(request: web.Request) -> web.Response:
        response = web.Response(text=page(view()), content_type="text/html", charset="utf-8")
        response.headers["Content-Security-Policy"] = content_security_policy()
        return response

    async def part(request: web.Request) -> web.Response:
        return web.Response(text=fragment(view()), content_type="text/html", charset="utf-8")

    async def status(request: web.Request) -> web.Response:
        return web.Response(body=encoder.encode(view()), content_type="application/json")

    async def numbers(request: web.Request) -> web.Response:
        return web.Response(body=metrics.render(), headers={hdrs.CONTENT_TYPE: CONTENT_TYPE})

    async def health(request: web.Request) -> web.Response:
        shown = view()
        if shown.protector is not None and shown.protector.healthy:
            return web.Response(text="ok\n")
        age_s = shown.protector.loop_age_s if shown.protector else None
        told = "has not turned yet" if age_s is None else f"has not turned for {age_s:.0f} s"
        return web.Response(text=f"the control loop {told}\n", status=503)

    return _guarded(
        {"/": index, "/fragment": part, "/api/v1/status": status, "/metrics": numbers, "/healthz": health},
        metrics,
    )


def _guarded(
    handlers: Mapping[str, Handler],
    metrics: Metrics,
    *,
    posts: Mapping[str, Handler] = MappingProxyType({}),
    everywhere: bool = False,
) -> web.Application:
    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not everywhere and not _host_allowed(request.headers.get(hdrs.HOST, "")):
            response: web.StreamResponse = web.Response(text="only loopback names are served\n", status=421)
        else:
            try:
                response = await handler(request)
            except web.HTTPException as error:
                response = web.Response(text=f"{error.reason}\n", status=error.status)
                if isinstance(error, web.HTTPMethodNotAllowed):
                    response.headers["Allow"] = ", ".join(sorted(error.allowed_methods))
            except Exception:  # boundary: one request must not take the page down
                metrics.exception("request")
                log.exception("request_failed", path=request.path)
                response = web.Response(
                    text="this page could not be made; Sentinel's log says why\n", status=500
                )
        response.force_close()
        response.headers.update(
            {
                "Cache-Control": "no-store",
                "X-Content-Type-Options": "nosniff",
                "Referrer-Policy": "no-referrer",
                "Cross-Origin-Resource-Policy": "same-origin",
            }
        )
        response.headers.setdefault("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
        return response

    app = web.Application(middlewares=[guard], client_max_size=MAX_BODY_BYTES)
    for path, handler in handlers.items():
        app.router.add_get(path, handler)
    for path, handler in posts.items():
        app.router.add_post(path, handler)
    return app
