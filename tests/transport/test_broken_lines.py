"""A network that cuts connections anywhere: within a handshake, a request, an answer."""

import asyncio
import random
from pathlib import Path

import pytest

from sentinel.core.reports import Iteration, RankReport
from sentinel.transport import client as client_module
from tests.transport.world import World, finding, go, report
from tests.waits import eventually


class Cutter:
    """Relays to `port` and cuts each connection after some bytes, a few of them only much later."""

    def __init__(self, port: int, seed: int) -> None:
        self.port = port
        self.chance = random.Random(seed)
        self.cuts = 0
        self.whole = False  # from now on it cuts nothing
        self.tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        self.server = await asyncio.start_server(self.relay, "127.0.0.1", 0)
        return int(self.server.sockets[0].getsockname()[1])

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind = await asyncio.open_connection("127.0.0.1", self.port)
        left = [self.chance.choice((300, 1500, 2500, 4000, 8000, 20_000)) * self.chance.random()]

        async def one_way(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(700):
                left[0] -= len(data)
                if left[0] < 0 and not self.whole:
                    self.cuts += 1
                    return
                sink.write(data)

        ways = [
            asyncio.create_task(one_way(reader, behind[1])),
            asyncio.create_task(one_way(behind[0], writer)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for task in ways:
            task.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        for end in (writer, behind[1]):
            end.transport.abort()


@pytest.mark.parametrize("seed", range(3))
def test_wherever_connections_are_cut_every_record_is_taken_once_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(client_module, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(client_module, "MAX_PAUSE_S", 0.05)

    async def story() -> None:
        async with World(tmp_path) as world:
            server, port = await world.serve()
            cutter = Cutter(port, seed)
            agent = world.client(await cutter.start(), answer_s=2.0)
            world.run(agent)
            sent = []
            for k in range(400):
                if k % 2:
                    agent.send(report(finding(f"event {k}", event=True), check=f"check-{k % 5}"))
                else:
                    rank = RankReport(job="llama", incarnation=1, rank=0, iterations=[Iteration(float(k), k)])
                    agent.send(report(checks=(), ranks=(rank,)))
                sent.append(agent.spool.last)
                if k % 10 == 0:  # the next come while some of these are under way, or behind a cut
                    before, waiting = cutter.cuts, agent.spool.waiting
                    await eventually(
                        lambda before=before, waiting=waiting: (
                            cutter.cuts > before or agent.spool.waiting < waiting
                        )
                    )
            await eventually(lambda: cutter.cuts >= 20 or agent.spool.waiting == 0)
            cutter.whole = True
            await eventually(lambda: agent.spool.waiting == 0)
            assert cutter.cuts > 5
            assert [a.sequence for a in world.numbered()] == sent
            assert agent.spool.lost().events == agent.spool.lost().progress == 0
            assert server.counts.get("exceptions", 0) == 0
            cutter.server.close()

    go(story())
