"""Thousands of agents in one process, as light as they can be, that come again when their controller is gone.

    python -m tests.bench.fleet_agents PORTS BUNDLE TOKENS EVERY_S keep|close

TOKENS has one `NODE TOKEN` a line. Each agent greets, sends a full report and then a report of eight ranks every
EVERY_S; told to follow pods of jobs, of three iterations of each. `close`: it connects for each report and greets
anew. Orders on stdin, one a line, each answered by one:

    grow N          connect up to N agents           -> up N SECONDS
    fault A B       agents A to B - 1 report a card that is lost, all at once -> sent N WALL
    hurt A B        the same, told with their next full report only -> hurt N
    acks N          N agents report something urgent, one after the other -> acks MS,MS,...
    rush            all connections end and all agents come again in one moment -> rush SECONDS
    once            wait until each agent has reported once more -> once SECONDS
    back            wait until every agent is heard by a leader since then -> back SECONDS
"""

import asyncio
import contextlib
import os
import random
import ssl
import sys
import tempfile
import time
import traceback
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec

from sentinel.core.agents.orders import ASK, FOLLOW, Ask, Follow
from sentinel.core.health import CheckResult, CheckState, Finding
from sentinel.core.reports import Answer, Iteration, LogMatch, RankReport
from sentinel.transport.client import pause
from sentinel.transport.wire import Ack, Batch, Numbered, Orders, encoder
from tests.kubernetes.light_agents import answered
from tests.samples import lost_gpu
from tests.transport.load import Agent
from tests.waits import eventually

CONNECT_PER_S = 400.0
LET_IN_S = 30.0
URGENT_EVERY_S = 0.03
E2E_MS, STEPS = 3317.794921875, 3  # of an iteration, and how many of them between two reports
BACK_S = 300.0


def lost_card(now_wall_s: float, now_s: float) -> Finding:
    return lost_gpu(
        check="check-0",
        evidence=("NVRM: Xid (PCI:0000:18:00): 79, pid=1234, name=python3, GPU has fallen off the bus.",),
        first_seen_wall_s=now_wall_s,
        last_seen_wall_s=now_wall_s,
        seen_mono_s=now_s,
        boot_id="boot",
    )


class Caller(Agent):
    """One connection; who is refused ends it. It obeys as the agents of tests/kubernetes/light_agents.py do."""

    folder: Path  # where it notes what it was told to do
    orders = Orders()
    seen = b""
    followed: tuple[Follow, ...] = ()

    def refused(self, status: int, body: bytes) -> None:
        self.transport.abort()

    def progress(self, hold_s: float) -> "asyncio.Future[bytes]":
        """One report: the iterations of its ranks since the last one, or eight ranks of a job that nobody knows."""
        told = self._obey()
        if not self.followed:
            return super().progress(hold_s)
        now_s = time.monotonic()
        steps = [Iteration(now_s - k * E2E_MS / 1000, None, 2201.521, E2E_MS) for k in reversed(range(STEPS))]
        ranks = tuple(
            RankReport(job=one.job.name, incarnation=one.job.incarnation, rank=pod.rank, iterations=steps)
            for one in self.followed
            for pod in one.pods
        )
        after = self.sequence
        reports = [
            self.report(ranks=ranks),
            *(self.report(answers=(one,), matches=saved) for one, saved in told),
        ]
        records = tuple(Numbered(after + 1 + k, report) for k, report in enumerate(reports))
        self.sequence += len(records)
        batch = Batch(records=records, after=after, hold_s=hold_s, orders=self.orders.version)
        return self.post("/report", encoder.encode(batch))

    def _obey(self) -> list[tuple[Answer, tuple[LogMatch, ...]]]:
        """What the last answer brought, if it brought orders: the answers to what is asked."""
        last, self.seen = self.seen, self.last
        if last is self.last:
            return []
        orders = msgspec.msgpack.decode(self.last, type=Ack).orders
        if orders is None:
            return []
        done = {order.id for order in self.orders.items}
        self.orders = orders
        decode = msgspec.msgpack.decode
        self.followed = tuple(decode(one.body, type=Follow) for one in orders.items if one.kind == FOLLOW)
        asked = [one for one in orders.items if one.kind == ASK and one.id not in done]
        return [answered(one.id, decode(one.body, type=Ask), self.folder) for one in asked]


class Member:
    """One node's agent over all its connections."""

    def __init__(self, crowd: "Crowd", node: str, token: str) -> None:
        self.crowd, self.node, self.token = crowd, node, token
        number = int(node.rpartition("-")[2])
        self.address = f"127.1.{number // 250}.{1 + number % 250}"  # each node has one of its own
        self.agent: Agent | None = None
        self.heard_s = 0.0
        self.reports = 0  # while it stays connected
        self.found: tuple[CheckResult, ...] = ()
        self._connections = 0

    async def connected(self) -> Agent:
        """A new connection, with its full report taken. Goes on trying, all addresses and then a pause."""
        failures = 0
        while True:
            for port in self.crowd.ports:
                if await self._tried(port):
                    self.heard_s = time.monotonic()
                    assert self.agent is not None
                    return self.agent
            failures += 1
            await asyncio.sleep(pause(failures, 0.0, 0.0))

    async def _tried(self, port: int) -> bool:
        self._connections += 1
        agent = Caller(self.crowd.context, self.node, self.token, f"s{self._connections}")
        agent.found, agent.folder = self.found, self.crowd.folder
        taken = False
        try:
            async with asyncio.timeout(LET_IN_S):
                own = (self.address, 0)
                await asyncio.get_running_loop().create_connection(
                    lambda: agent, "127.0.0.1", port, local_addr=own
                )
                await agent.begin()
            taken = True
        except (OSError, TimeoutError):
            pass
        finally:  # also where a rush ends it
            if not taken and agent.transport is not None:
                agent.transport.abort()
        if taken:
            self.agent = agent
        return taken

    async def live(self, every_s: float, first_s: float) -> None:
        """Stay connected and report; the first time within `first_s`."""
        await asyncio.sleep(random.uniform(0, first_s))
        while True:
            agent = self.agent or await self.connected()
            agent.progress(every_s)
            self.reports += 1
            gone, _ = await asyncio.wait({agent.gone}, timeout=every_s)
            if gone:
                self.agent = None
                spread_s = msgspec.msgpack.decode(agent.last, type=Ack).spread_s  # as the leader has asked
                await asyncio.sleep(random.uniform(0, spread_s))

    async def visit(self, every_s: float) -> None:
        """Connect for each report."""
        await asyncio.sleep(random.uniform(0, every_s))
        while True:
            began_s = time.monotonic()
            agent = await self.connected()
            with contextlib.suppress(OSError):
                await agent.progress(0.0)
            agent.transport.close()
            await asyncio.sleep(max(0.0, every_s - (time.monotonic() - began_s)))

    def hurt(self) -> None:
        found = lost_card(time.time(), time.monotonic())
        result = CheckResult(
            check=found.check, state=CheckState.FOUND, findings=(found,), at_mono_s=time.monotonic()
        )
        self.found = (result,)

    def fault(self) -> "asyncio.Future[bytes]":
        agent = self.agent
        assert agent is not None, f"{self.node} is not connected"
        self.hurt()
        after, agent.sequence = agent.sequence, agent.sequence + 1
        records = (Numbered(agent.sequence, agent.report(checks=self.found)),)
        return agent.post("/report", encoder.encode(Batch(records=records, after=after)))


class Crowd:
    def __init__(self, ports: list[int], bundle: str, tokens: str, every_s: float, keep: bool) -> None:
        self.ports, self.every_s, self.keep = ports, every_s, keep
        self.context = ssl.create_default_context(cafile=bundle)
        self.rows = [line.split() for line in open(tokens)]  # noqa: SIM115
        self.folder = Path(tempfile.mkdtemp())
        self.members: list[Member] = []
        self.marked_s = 0.0
        self.tasks: list[asyncio.Task[None]] = []

    async def grow(self, count: int) -> str:
        began_s = time.monotonic()
        new = [Member(self, node, token) for node, token in self.rows[len(self.members) : count]]

        async def begin(k: int, member: Member) -> None:
            await asyncio.sleep(k / CONNECT_PER_S)
            await member.connected()

        if self.keep:
            await asyncio.gather(*(begin(k, member) for k, member in enumerate(new)))
        self.members += new
        for member in new:
            every_s = self.every_s
            self._begin(member.live(every_s, every_s) if self.keep else member.visit(every_s))
        return f"up {len(self.members)} {time.monotonic() - began_s:.2f}"

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(_must_not_end)
        self.tasks.append(task)

    async def fault(self, first: int, last: int) -> str:
        some = self.members[first:last]  # one may have lost its connection just now
        await eventually(lambda: all(member.agent is not None for member in some), "not connected", BACK_S)
        wall_s = time.time()
        answers = [member.fault() for member in some]
        for ack in await asyncio.gather(*answers):
            assert msgspec.msgpack.decode(ack, type=Ack).sequence > 0
        return f"sent {len(answers)} {wall_s:.6f}"

    async def hurt(self, first: int, last: int) -> str:
        for member in self.members[first:last]:
            member.hurt()
        return f"hurt {last - first}"

    async def acks(self, count: int) -> str:
        """From the report to its acknowledgement, each."""
        took_ms: list[float] = []
        while len(took_ms) < count:
            await asyncio.sleep(URGENT_EVERY_S)
            if (agent := random.choice(self.members).agent) is None:
                continue
            begun_s = time.monotonic()
            await agent.progress(0.0)
            took_ms.append((time.monotonic() - begun_s) * 1000)
        return "acks " + ",".join(f"{one:.3f}" for one in took_ms)

    async def rush(self) -> str:
        """Until the full report of each was taken. Who was let in reports on, as agents do."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks.clear()
        for member in self.members:
            if member.agent is not None:
                member.agent.transport.abort()
                member.agent = None
        await self.mark()
        for member in self.members:
            self._begin(member.live(self.every_s, 0.0))
        await self.back()
        return f"rush {time.monotonic() - self.marked_s:.2f}"

    async def once(self) -> str:
        began_s, before = time.monotonic(), [member.reports for member in self.members]
        await eventually(
            lambda: all(one.reports > count for one, count in zip(self.members, before, strict=True)),
            "not everybody has reported again",
            BACK_S,
            every_s=0.05,
        )
        return f"once {time.monotonic() - began_s:.2f}"

    async def mark(self) -> str:
        self.marked_s = time.monotonic()
        return "marked"

    async def back(self) -> str:
        """Once everybody was heard after the mark."""
        await eventually(
            lambda: all(member.heard_s >= self.marked_s for member in self.members),
            "not everybody is heard again",
            BACK_S,
            every_s=0.05,
        )
        return f"back {time.monotonic() - self.marked_s:.2f}"

    async def obey(self) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := (await reader.readline()).decode().split():
            orders: dict[str, Any] = {
                "grow": self.grow,
                "fault": self.fault,
                "hurt": self.hurt,
                "acks": self.acks,
                "rush": self.rush,
                "once": self.once,
                "mark": self.mark,
                "back": self.back,
            }
            print(await orders[line[0]](*map(int, line[1:])), flush=True)


def _must_not_end(task: asyncio.Task[None]) -> None:
    """An agent that ended by a fault of the bench would be silent, and nothing would say why."""
    if not task.cancelled() and (error := task.exception()) is not None:
        traceback.print_exception(error)
        os._exit(1)


if __name__ == "__main__":
    ports, bundle, tokens, every_s, how = sys.argv[1:]
    crowd = Crowd([int(port) for port in ports.split(",")], bundle, tokens, float(every_s), how == "keep")
    asyncio.run(crowd.obey())
