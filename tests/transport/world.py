"""A controller's end and agents over real TLS sockets, with tokens signed by a real key."""

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from sentinel.core.health import CheckResult, CheckState, Component, Finding, Severity
from sentinel.core.now import Now
from sentinel.core.reports import Report
from sentinel.transport.auth import Authenticator, Review
from sentinel.transport.cert_file import FileStore
from sentinel.transport.certs import Certificates, Keeper, Lifetimes
from sentinel.transport.channel import Channel
from sentinel.transport.client import Client, ClientSettings
from sentinel.transport.credentials import Trust
from sentinel.transport.limits import Limits
from sentinel.transport.server import Server
from sentinel.transport.wire import HELLO_PATH, REPORT_PATH, Arrived, Hello, Orders, encoder

ISSUER = "https://kubernetes.default.svc"
AUDIENCE = "sentinel"
SUBJECT = "system:serviceaccount:sentinel:agent"
BOOT = "boot-1"


def go(work: Coroutine[Any, Any, None], deadline_s: float = 300.0) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(deadline_s):
            await work

    asyncio.run(bounded())


class Issuer:
    """What an API server does with tokens: a key pair, published keys, bound tokens."""

    def __init__(self, kind: str = "ES256", kid: str = "key-1") -> None:
        self.kind, self.kid = kind, kid
        self.key: Any
        if kind == "RS256":
            self.key = rsa.generate_private_key(65537, 2048)
        else:
            self.key = ec.generate_private_key(ec.SECP256R1())

    def jwk(self) -> dict[str, Any]:
        algorithm = jwt.get_algorithm_by_name(self.kind)
        row = json.loads(algorithm.to_jwk(self.key.public_key()))  # type: ignore[attr-defined]
        return {**row, "kid": self.kid, "use": "sig", "alg": self.kind}

    def token(
        self, node: str | None = "node-1", uid: str = "uid-1", life_s: float = 3600.0, **claims: Any
    ) -> str:
        now_s = time.time()
        bound: dict[str, Any] = {"namespace": "sentinel", "pod": {"name": "agent-x", "uid": "pod-uid"}}
        if node is not None:
            bound["node"] = {"name": node, "uid": uid}
        body = {
            "iss": ISSUER,
            "aud": [AUDIENCE],
            "sub": SUBJECT,
            "iat": now_s,
            "nbf": now_s,
            "exp": now_s + life_s,
            "kubernetes.io": bound,
        }
        return jwt.encode(body | claims, self.key, algorithm=self.kind, headers={"kid": self.kid})


def jwks(*issuers: Issuer) -> bytes:
    return json.dumps({"keys": [issuer.jwk() for issuer in issuers]}).encode()


def authenticator(
    *issuers: Issuer, review: Callable[[str], Awaitable[Review]] | None = None, **more: Any
) -> Authenticator:
    async def keys() -> bytes:
        return jwks(*issuers)

    settings = {"issuer": ISSUER, "audience": AUDIENCE, "subjects": frozenset({SUBJECT}), "keys": keys} | more
    return Authenticator(review=review, **settings)


class World:
    """One controller in this process and any number of agents. `arrived` is what the controller took."""

    def __init__(self, folder: Path, issuer: Issuer | None = None) -> None:
        self.folder = folder
        self.issuer = issuer or Issuer()
        self.bundle = folder / "ca.crt"
        self.certificates: Keeper = Certificates(
            FileStore(str(folder / "certs")), self.publish, lifetimes=Lifetimes()
        )
        self.arrived: list[Arrived] = []
        self.newer: list[tuple[str, int]] = []
        self.orders: dict[str, Orders] = {}
        self.servers: list[Server] = []
        self.clients: list[Client] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.kept: list[Any] = []  # what must not be collected before the end

    async def publish(self, bundle: bytes) -> None:
        fresh = self.bundle.with_suffix(".new")
        fresh.write_bytes(bundle)
        os.replace(fresh, self.bundle)

    def take(self, arrived: Arrived) -> Awaitable[None] | None:
        self.arrived.append(arrived)
        return None

    async def serve(self, epoch: int | None = 1, port: int = 0, **more: Any) -> tuple[Server, int]:
        if not self.bundle.exists():
            await self.certificates.renew()
        settings: dict[str, Any] = {
            "authenticator": authenticator(self.issuer),
            "tls": self.certificates.tls,
            "take": self.take,
            "newer": lambda node, epoch: self.newer.append((node, epoch)),
            "orders": lambda node: self.orders.get(node, Orders()),
            "report_every_s": 0.2,
            "limits": Limits(requests_per_s=1000.0, requests_burst=1000.0),
        }
        server = Server(**settings | more)
        bound = await server.start("127.0.0.1", port)
        if epoch is not None:
            server.lead(epoch)
        self.servers.append(server)
        return server, bound

    def write_token(self, node: str = "node-1", token: str | None = None) -> Path:
        path = self.folder / f"token-{node}"
        path.write_text(token if token is not None else self.issuer.token(node))
        return path

    def client(self, *ports: int, node: str = "node-1", token: str | None = None, **more: Any) -> Client:
        """An agent's end, not running yet."""
        on_orders = more.pop("on_orders", lambda orders: None)
        on_answer = more.pop("on_answer", lambda: None)
        settings = {
            "node": node,
            "boot_id": BOOT,
            "addresses": tuple(f"127.0.0.1:{port}" for port in ports),
            "token_path": str(self.write_token(node, token)),
            "bundle_path": str(self.bundle),
            "folder": str(self.folder / f"agent-{node}"),
        }
        client = Client(ClientSettings(**settings | more), on_orders, on_answer)
        self.clients.append(client)
        return client

    def run(self, client: Client) -> asyncio.Task[None]:
        task = asyncio.create_task(client.run())
        self.tasks.append(task)
        return task

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for client in self.clients:
            client.close()
        for server in self.servers:
            await server.close()

    async def __aenter__(self) -> "World":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    # ------------------------------------------------------------ what came

    def numbered(self, node: str = "node-1") -> list[Arrived]:
        return [a for a in self.arrived if a.node == node and not a.full]

    def full(self, node: str = "node-1") -> list[Arrived]:
        return [a for a in self.arrived if a.node == node and a.full]


class Raw:
    """A hand-made agent: says exactly what a test wants said."""

    def __init__(self, world: World, port: int, node: str = "node-1", session: str = "s1") -> None:
        self.world, self.port, self.node, self.session = world, port, node, session
        self.channel: Channel

    async def connect(self) -> "Raw":
        self.channel = await Channel.open(f"127.0.0.1:{self.port}", Trust(str(self.world.bundle)), 120.0)
        return self

    async def post(self, path: str, body: bytes, token: str | None = None) -> bytes:
        await self.channel.send(path, body, token=token, answer_s=120.0)
        return await self.channel.read()

    async def hello(self, token: str | None = None, **more: Any) -> bytes:
        hello = Hello(**{"node": self.node, "boot_id": BOOT, "session": self.session} | more)
        token = token if token is not None else self.world.issuer.token(self.node)
        return await self.post(HELLO_PATH, encoder.encode(hello), token)

    async def report(self, batch: Any) -> bytes:
        return await self.post(REPORT_PATH, msgspec.msgpack.encode(batch))


def finding(code: str = "XID 79", severity: Severity = Severity.FATAL, **more: Any) -> Finding:
    settings: dict[str, Any] = {
        "check": "xid",
        "component": Component.GPU,
        "entity": "GPU 0000:18:00.0",
        "code": code,
        "severity": severity,
        "action": "RESTART_BM",
        "summary": "the GPU is gone from the bus",
    }
    return Finding(**settings | more)


def report(
    *findings: Finding, node: str = "node-1", check: str = "xid", at_s: float = 1.0, **more: Any
) -> Report:
    """A report of one check's result (`checks=()`: of none)."""
    state = CheckState.FOUND if findings else CheckState.OK
    checks = (CheckResult(check=check, state=state, findings=findings, at_mono_s=at_s),)
    settings = {"node": node, "boot_id": BOOT, "sequence": 0, "now": Now(at_s, 0.0), "checks": checks}
    return Report(**settings | more)
