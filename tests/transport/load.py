"""Many agents in one process, each with its own connection and token, as light as they can be.

    python -m tests.transport.load PORT BUNDLE TOKENS CONNECTIONS EVERY_S SECONDS [CONNECT_PER_S]

TOKENS has one `NODE TOKEN` a line. Every agent greets, sends a full report and then a report every EVERY_S
whose answer may be held. Who is not let in tries again as real agents do. Prints `up SECONDS retries N` when all
are connected, then `latency P50_MS P99_MS`, the time from an urgent record to its acknowledgement.
"""

import asyncio
import random
import ssl
import sys
import time
from collections import deque
from typing import Any

import msgspec

from sentinel.core.health import CheckResult, CheckState
from sentinel.core.now import Now
from sentinel.core.reports import Iteration, RankReport, Report
from sentinel.transport import http11
from sentinel.transport.client import pause
from sentinel.transport.wire import Ack, Batch, Hello, Numbered, encoder

LET_IN_S = 30.0  # more than an agent waits: here all of them share one core


def checks() -> tuple[CheckResult, ...]:
    return tuple(CheckResult(check=f"check-{k}", state=CheckState.OK, at_mono_s=1.0) for k in range(30))


class Agent(asyncio.Protocol):
    found: tuple[CheckResult, ...] = ()  # what its checks find besides

    def __init__(self, context: ssl.SSLContext, node: str, token: str, session: str = "s") -> None:
        self.node, self.token, self.session = node, token, session
        self.last = b""  # the last answer
        self.transport: Any = None
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="sentinel-controller")
        self.up = asyncio.get_running_loop().create_future()
        self.gone = asyncio.get_running_loop().create_future()
        self.answers: deque[asyncio.Future[bytes]] = deque()
        self.buffer = b""
        self.shaken = False
        self.sequence = 0
        self.acked = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.data_received(b"")

    def connection_lost(self, error: Exception | None) -> None:
        self.gone.set_result(None)
        for waiting in (self.up, *self.answers):
            if not waiting.done():
                waiting.set_exception(ConnectionResetError())
                waiting.exception()  # nobody may wait for it

    def data_received(self, data: bytes) -> None:
        self.incoming.write(data)
        try:
            if not self.shaken:
                self.tls.do_handshake()
                self.shaken = True
                self.up.set_result(None)
            while plain := self.tls.read(65536):
                self.buffer += plain
        except ssl.SSLWantReadError:
            pass
        if self.outgoing.pending:
            self.transport.write(self.outgoing.read())
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = http11.parse_answer(self.buffer[:end])
            if len(self.buffer) < end + 4 + head.length:
                return
            body = self.buffer[end + 4 : end + 4 + head.length]
            self.buffer = self.buffer[end + 4 + head.length :]
            if head.status != 200:
                self.refused(head.status, body)
                return
            self.last = body
            if not (answer := self.answers.popleft()).done():
                answer.set_result(body)

    def refused(self, status: int, body: bytes) -> None:
        raise SystemExit(f"{self.node}: {status} {body!r}")

    def post(self, path: str, body: bytes, token: str | None = None) -> "asyncio.Future[bytes]":
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.answers.append(answer)
        self.tls.write(http11.request_head(path, "x", "application/msgpack", len(body), token) + body)
        self.transport.write(self.outgoing.read())
        return answer

    def report(self, **more: object) -> Report:
        now_s = time.monotonic()
        base = Report(node=self.node, boot_id="boot", sequence=self.sequence, now=Now(now_s, time.time()))
        return msgspec.structs.replace(base, **more)  # type: ignore[arg-type]

    async def begin(self) -> None:
        await self.up
        hello = Hello(node=self.node, boot_id="boot", session=self.session)
        await self.post("/hello", encoder.encode(hello), self.token)
        told = {one.check: one for one in (*checks(), *self.found)}
        await self.post("/report", encoder.encode(Batch(full=self.report(checks=tuple(told.values())))))

    def progress(self, hold_s: float) -> "asyncio.Future[bytes]":
        """One report of eight ranks."""
        after, self.sequence = self.sequence, self.sequence + 1
        steps = [Iteration(time.monotonic(), self.sequence, 400.0, 450.0)]
        ranks = tuple(RankReport(job="llama", incarnation=1, rank=k, iterations=steps) for k in range(8))
        records = (Numbered(self.sequence, self.report(ranks=ranks)),)
        return self.post("/report", encoder.encode(Batch(records=records, after=after, hold_s=hold_s)))


async def live(agent: Agent, every_s: float) -> None:
    await asyncio.sleep(random.uniform(0, every_s))
    while True:
        agent.progress(every_s)
        await asyncio.sleep(every_s)


async def main(
    port: int, bundle: str, tokens: str, connections: int, every_s: float, seconds: float, rate: float
) -> None:
    context = ssl.create_default_context(cafile=bundle)
    rows = [line.split() for line in open(tokens)][:connections]  # noqa: SIM115
    loop = asyncio.get_running_loop()
    began_s = time.monotonic()
    agents: list[Agent] = []
    retries = 0

    async def connect(k: int, node: str, token: str) -> None:
        nonlocal retries
        await asyncio.sleep(k / rate)
        failures = 0
        while True:
            agent = Agent(context, node, token)
            try:
                async with asyncio.timeout(LET_IN_S):
                    await loop.create_connection(lambda: agent, "127.0.0.1", port)  # noqa: B023 - called at once
                    await agent.begin()
                break
            except (OSError, TimeoutError):
                failures += 1
                retries += 1
                if agent.transport is not None:
                    agent.transport.abort()
                await asyncio.sleep(pause(failures, 0.0, 0.0))
        agents.append(agent)

    await asyncio.gather(*(connect(k, node, token) for k, (node, token) in enumerate(rows)))
    print(f"up {time.monotonic() - began_s:.2f} retries {retries}", flush=True)
    tasks = [asyncio.create_task(live(agent, every_s)) for agent in agents]
    took_ms: list[float] = []
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        await asyncio.sleep(0.05)
        agent = random.choice(agents)
        sent_s = time.monotonic()
        ack = msgspec.msgpack.decode(await agent.progress(0.0), type=Ack)
        assert ack.sequence > 0
        took_ms.append((time.monotonic() - sent_s) * 1000)
    took_ms.sort()
    print(f"latency {took_ms[len(took_ms) // 2]:.2f} {took_ms[len(took_ms) * 99 // 100]:.2f}", flush=True)
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    port, bundle, tokens, connections, every_s, seconds = sys.argv[1:7]
    rate = float(sys.argv[7]) if len(sys.argv) > 7 else 1e9
    asyncio.run(main(int(port), bundle, tokens, int(connections), float(every_s), float(seconds), rate))
