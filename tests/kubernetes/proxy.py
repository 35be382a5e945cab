"""A proxy before the real API server that does to requests what networks and overloaded servers do."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiohttp import web

HOP = {"transfer-encoding", "connection", "content-length", "host"}


@dataclass
class Fault:
    """What happens to the next `times` requests whose method, path and body contain these."""

    method: str = ""
    path: str = ""
    says: bytes = b""  # of their bodies
    times: int = 1
    answer: int = 0  # this status instead of the server's own
    body: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    lose_reply: bool = False  # the server does it, the answer never comes
    lose_request: bool = False  # the connection is lost before the server hears of it
    repeat: bool = False  # the server gets it twice; the second answer comes
    delay_s: float = 0.0  # before it is passed on
    hang: bool = False  # neither passed on nor answered
    hold: bool = False  # passed on when `release` is called
    line: bytes = b""  # of a watch: this line first, then the connection is cut
    when_come: Callable[[], None] | None = None
    when_passed: Callable[[], None] | None = None

    def fits(self, request: web.Request, body: bytes) -> bool:
        watch = request.query.get("watch") == "1"
        method = "WATCH" if watch else request.method
        there = self.path in request.path_qs and self.says in body
        return self.times > 0 and self.method in ("", method) and there


class Proxy:
    """`url` is plain HTTP on loopback. Runs in a thread with a loop of its own; `close` ends it."""

    def __init__(self, upstream: str, ca: Path) -> None:
        import ssl

        self.faults: list[Fault] = []
        self.seen: list[str] = []
        self.weather: Callable[[str, str], Fault | None] = lambda method, path: None  # of each other request
        self._upstream, self._tls = upstream, ssl.create_default_context(cafile=str(ca))
        self._tls.check_hostname = False
        self._watches: set[asyncio.Transport] = set()
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(120)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(180)

    def release(self) -> None:
        """Requests that are held go on."""
        self._loop.call_soon_threadsafe(self._released.set)

    @property
    def watches(self) -> int:
        """Open now."""
        return len(self._watches)

    def mute(self, silent: bool) -> None:
        """What comes from the server is held back, on every connection; nothing is closed."""
        self._loop.call_soon_threadsafe(self._speaks.clear if silent else self._speaks.set)

    def hush(self, silent: bool) -> None:
        """The same for watches alone: they fall behind while calls are answered."""
        self._loop.call_soon_threadsafe(self._tells.clear if silent else self._tells.set)

    def cut_watches(self) -> None:
        """Every watch that is open now loses its connection."""

        def cut() -> None:
            for transport in list(self._watches):
                transport.abort()

        self._loop.call_soon_threadsafe(cut)

    def _run(self, ready: threading.Event) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # cancels what is left of it
            runner.run(self._serve(ready))

    async def _serve(self, ready: threading.Event) -> None:
        self._stop, self._speaks, self._released = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._tells = asyncio.Event()
        self._speaks.set()
        self._tells.set()
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{tail:.*}", self._handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=0)
        async with aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False
        ) as self._session:
            ready.set()
            await self._stop.wait()
            self.cut_watches()
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(f"{request.method} {request.path_qs}")
        body = await request.read()
        fault = next((one for one in self.faults if one.fits(request, body)), None)
        if fault is None:
            watch = request.query.get("watch") == "1"
            fault = self.weather("WATCH" if watch else request.method, request.path_qs)
        if fault is not None:
            fault.times -= 1
            if fault.when_come:
                fault.when_come()
            if fault.lose_request:
                assert request.transport is not None
                request.transport.abort()
                return web.Response()
            if fault.delay_s:
                await asyncio.sleep(fault.delay_s)
            if fault.hang:
                await self._stop.wait()
            if fault.hold:
                await self._released.wait()
            if fault.answer:
                return web.Response(
                    status=fault.answer,
                    text=fault.body,
                    headers=fault.headers,
                    content_type="application/json",
                )
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP}
        if fault is not None and fault.repeat:
            async with self._session.request(
                request.method, self._upstream + request.path_qs, headers=headers, data=body or None
            ) as first:
                await first.read()
        async with self._session.request(
            request.method,
            self._upstream + request.path_qs,
            headers=headers,
            data=body or None,
        ) as upstream:
            if fault is not None and fault.when_passed:
                fault.when_passed()
            if fault is not None and fault.lose_reply:
                await upstream.read()
                assert request.transport is not None
                request.transport.abort()
                return web.Response()
            return await self._answer(request, upstream, fault)

    async def _answer(
        self, request: web.Request, upstream: aiohttp.ClientResponse, fault: Fault | None
    ) -> web.StreamResponse:
        headers = {name: value for name, value in upstream.headers.items() if name.lower() not in HOP}
        answer = web.StreamResponse(status=upstream.status, headers=headers)
        await answer.prepare(request)
        transport = request.transport
        assert isinstance(transport, asyncio.Transport)
        watch = request.query.get("watch") == "1"
        if watch:
            self._watches.add(transport)
        try:
            if fault is not None and fault.line:
                await answer.write(fault.line + b"\n")
                return answer
            async for chunk in upstream.content.iter_any():
                await self._speaks.wait()
                if watch:
                    await self._tells.wait()
                await answer.write(chunk)
        except (ConnectionError, aiohttp.ClientError):
            transport.abort()
        finally:
            self._watches.discard(transport)
        return answer
