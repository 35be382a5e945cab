"""An organisation's own certificates: files as a kubelet mounts them, and the bundle on its way to agents."""

import asyncio
import itertools
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

import trustme

from sentinel.settings import CertificateFiles
from sentinel.transport.certs import BUNDLE, Conflict, Data
from sentinel.transport.client import Client
from sentinel.transport.wire import SERVER_NAME, Arrived
from tests.transport.world import World, finding, report
from tests.waits import eventually


class Mounted:
    """A folder whose files are exchanged all at once, by a link."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        folder.mkdir(parents=True)
        names = ("tls.crt", "tls.key", "ca.crt")
        for name in names:
            (folder / name).symlink_to(f"..data/{name}")
        cert, key, ca = (str(folder / name) for name in names)
        self.files = CertificateFiles(cert_file=cert, key_file=key, ca_file=ca)

    def put(self, cert: bytes, key: bytes, ca: bytes) -> None:
        fresh = self._folder / f"..{next(self._numbers)}"
        fresh.mkdir()
        for name, text in (("tls.crt", cert), ("tls.key", key), ("ca.crt", ca)):
            (fresh / name).write_bytes(text)
        link = self._folder / "..data_tmp"
        link.symlink_to(fresh.name)
        os.replace(link, self._folder / "..data")

    def by(self, ca: trustme.CA, *names: str, **more: object) -> bytes:
        """A certificate of this authority, for this or the right name. Its chain."""
        made = ca.issue_cert(*(names or (SERVER_NAME,)), **more)  # type: ignore[arg-type]
        chain = b"".join(blob.bytes() for blob in made.cert_chain_pems)
        self.put(chain, made.private_key_pem.bytes(), ca.cert_pem.bytes())
        return chain


class Bundle:
    """The ConfigMap of the authorities, in memory. `reaches` writes it where agents read it."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] | None = None
        self.writes = 0

    @property
    def text(self) -> bytes:
        assert self.data is not None
        return self.data[BUNDLE]

    async def get(self) -> tuple[Data, str] | None:
        return None if self.data is None else (dict(self.data), str(self.writes))

    async def put(self, data: Data, version: str | None) -> None:
        if version != (None if self.data is None else str(self.writes)):
            raise Conflict("written since")
        self.data = dict(data)
        self.writes += 1

    async def reaches(self, world: World) -> None:
        await world.publish(self.text)


class Busy:
    """Agents that tell one event after the other, the next one when the last was taken."""

    def __init__(self, world: World, agents: int = 3) -> None:
        self._world = world
        self._nodes = [f"node-{number}" for number in range(agents)]
        self._clients: list[Client] = []
        self._running: list[asyncio.Task[None]] = []
        self._telling: list[asyncio.Task[None]] = []
        self.sent = dict.fromkeys(self._nodes, 0)
        self.taken: dict[str, list[str]] = {node: [] for node in self._nodes}

    async def serve(self) -> int:
        """Call it first: the port that agents connect to."""
        _, self.port = await self._world.serve(take=self._take)
        return self.port

    async def __aenter__(self) -> "Busy":
        self._clients = [self._world.client(self.port, node=node) for node in self._nodes]
        self._running = [self._world.run(client) for client in self._clients]
        self._telling = [
            asyncio.create_task(self._tell(client, node))
            for client, node in zip(self._clients, self._nodes, strict=True)
        ]
        await self.more()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._telling:
            task.cancel()
        await asyncio.gather(*self._telling, return_exceptions=True)

    async def more(self) -> None:
        """Each has told ten more since."""
        wanted = {node: count + 10 for node, count in self.sent.items()}
        await eventually(
            lambda: all(len(set(self.taken[node])) >= count for node, count in wanted.items()), self._why
        )

    async def connect_again(self) -> None:
        """All of them, as after a break, and tell more."""
        before = [client.status.connections for client in self._clients]
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._running = [self._world.run(client) for client in self._clients]
        await eventually(
            lambda: all(
                client.status.connections > count for client, count in zip(self._clients, before, strict=True)
            ),
            self._why,
        )
        await self.more()

    def connections(self) -> list[int]:
        return [client.status.connections for client in self._clients]

    async def nothing_lost(self) -> None:
        """All that was ever told was taken, in order."""
        for task in self._telling:
            task.cancel()
        await asyncio.gather(*self._telling, return_exceptions=True)
        for node, count in self.sent.items():
            wanted = [f"event {number}" for number in range(1, count + 1)]
            await eventually(lambda node=node, last=wanted[-1]: last in self.taken[node], self._why)  # type: ignore[misc]
            assert list(dict.fromkeys(self.taken[node])) == wanted

    async def _tell(self, client: Client, node: str) -> None:
        while True:
            self.sent[node] += 1
            text = f"event {self.sent[node]}"
            client.send(report(finding(text, event=True), node=node))
            await eventually(lambda text=text: text in self.taken[node][-3:], self._why)  # type: ignore[misc]

    def _take(self, arrived: Arrived) -> None:
        self._world.take(arrived)
        self.taken[arrived.node] += [
            one.code for result in arrived.report.checks for one in result.findings if one.event
        ]

    def _why(self) -> str:
        return "; ".join(f"{client.status.problem}" for client in self._clients)


def at(now_s: float) -> datetime:
    return datetime.fromtimestamp(now_s, UTC)


class Clock:
    """A wall clock that a test moves on from the real time, by which TLS judges."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.ahead_s = 0.0
        self._began_s = now_s()

    def __call__(self) -> float:
        return self._began_s + self.ahead_s
