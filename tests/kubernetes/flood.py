"""Agents of many nodes that tell thousands of findings at once, and what is hostile in each of them."""

import asyncio
import contextlib
import ssl
import threading
import time
from pathlib import Path

from sentinel.core.health import CheckResult, CheckState, Component, Severity
from sentinel.transport.wire import Batch, Numbered, encoder
from tests.notify.mail_world import HOSTILE
from tests.samples import lost_gpu
from tests.transport.load import Agent

REPORTS, EACH = 5, 100  # of each node


def findings(number: int) -> CheckResult:
    """Of one report: all of them different. The first report has the one for which the node leaves service."""
    made = [
        lost_gpu(
            check=f"check-{number}",
            component=Component.KERNEL,
            entity=f"device-{number}-{one} {HOSTILE}",
            code=f"code-{number}-{one}",
            severity=Severity.WARNING,
            summary=HOSTILE,
            evidence=(HOSTILE,),
        )
        for one in range(EACH)
    ]
    if not number:
        made[0] = lost_gpu(check="check-0", summary=HOSTILE, evidence=(HOSTILE,))
    at_s = time.monotonic()
    return CheckResult(check=f"check-{number}", state=CheckState.FOUND, findings=tuple(made), at_mono_s=at_s)


class Flood(threading.Thread):
    """Each node's agent tells all it has, as fast as it is taken."""

    def __init__(self, port: int, bundle: Path, tokens: dict[str, str]) -> None:
        super().__init__(daemon=True)
        self._port, self._tokens = port, tokens
        self._context = ssl.create_default_context(cafile=str(bundle))
        self.took_s = 0.0  # until the controller had taken all of it

    def run(self) -> None:
        began_s = time.monotonic()
        asyncio.run(self._all())
        self.took_s = time.monotonic() - began_s

    async def _all(self) -> None:
        await asyncio.gather(*(self._one(*row) for row in self._tokens.items()))

    async def _one(self, node: str, token: str) -> None:
        agent = Agent(self._context, node, token)
        await asyncio.get_running_loop().create_connection(lambda: agent, "127.0.0.1", self._port)
        await agent.begin()
        for number in range(REPORTS):
            after, agent.sequence = agent.sequence, agent.sequence + 1
            records = (Numbered(agent.sequence, agent.report(checks=(findings(number),))),)
            await agent.post("/report", encoder.encode(Batch(records=records, after=after)))
        agent.transport.close()


class Hose(threading.Thread):
    """One node's agent gone wild: it tells its findings all the time without waiting for an answer, until `shut`."""

    def __init__(self, port: int, bundle: Path, node: str, token: str) -> None:
        super().__init__(daemon=True)
        self._port, self._node, self._token = port, node, token
        self._context = ssl.create_default_context(cafile=str(bundle))
        self._ended = threading.Event()

    def shut(self) -> None:
        self._ended.set()
        self.join(120.0)
        assert not self.is_alive()

    def run(self) -> None:
        asyncio.run(self._pour())

    async def _pour(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._ended.is_set():
            agent = _Wild(self._context, self._node, self._token)
            with contextlib.suppress(OSError):
                await loop.create_connection(lambda: agent, "127.0.0.1", self._port)  # noqa: B023 - called at once
                await agent.begin()
            while agent.transport is not None and not self._ended.is_set() and not agent.gone.done():
                after, agent.sequence = agent.sequence, agent.sequence + 1
                records = (Numbered(agent.sequence, agent.report(checks=(findings(1),))),)
                agent.post("/report", encoder.encode(Batch(records=records, after=after)))
                await asyncio.wait({agent.gone}, timeout=0.01)  # a hundred a second
            if agent.transport is not None:
                agent.transport.abort()


class _Wild(Agent):
    def refused(self, status: int, body: bytes) -> None:
        """It does not listen."""
