"""Agents that speak in one moment are read in slices, and everything else has its turn between."""

import asyncio
import ssl
import time
from math import inf
from pathlib import Path
from typing import cast

import pytest

from sentinel.transport.connection import MAX_UNREAD_BYTES, Connection
from sentinel.transport.limits import Limits
from sentinel.transport.lobby import Lobby
from sentinel.transport.server import Server
from sentinel.transport.turns import ByAddress, InOrder, Turns
from sentinel.transport.wire import Batch
from tests.transport.world import Raw, World, go, report
from tests.waits import eventually, turns


class Waits:
    """A connection; `story` tells of all of them."""

    def __init__(self, story: list[str], name: str, *, fails: bool = False, peer: str = "") -> None:
        self.story, self.name, self.fails, self.peer = story, name, fails, peer

    def read(self) -> None:
        self.story.append(f"{self.name} is read")
        if self.fails:
            raise OSError(107, "not connected")


def in_order(slice_s: float) -> Turns:
    return Turns(lambda one: one.read(), slice_s, InOrder())


def test_what_does_not_fit_into_a_slice_waits_and_others_have_their_turn_before_it() -> None:
    async def story() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        told: list[str] = []
        a, b, c, d = (cast(Connection, Waits(told, name, fails=name == "a")) for name in "abcd")
        served = in_order(0.0)  # any reading takes longer
        assert [served.take(one) for one in (a, b, c)] == [False] * 3
        served.leave(b)
        asyncio.get_running_loop().call_soon(told.append, "somebody else")
        assert told == []
        await turns()
        assert told == ["a is read", "somebody else", "c is read"]
        assert not served.take(d)
        await turns()
        assert told[3:] == ["d is read"]

        ample = in_order(60.0)
        assert ample.take(d), "nobody waits where there is time"
        assert told[4:] == ["d is read"]

    go(story())


def test_a_slice_is_as_long_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0

    def serve(_: Connection) -> None:
        nonlocal now_s
        now_s += 0.004
        served.append(now_s)

    served: list[float] = []
    monkeypatch.setattr(time, "perf_counter", lambda: now_s)

    async def story() -> None:
        slices = Turns(serve, 0.010, InOrder())
        some = [cast(Connection, Waits([], "")) for _ in range(8)]
        assert [slices.take(one) for one in some] == [True] * 3 + [False] * 5
        counts = []
        for _ in range(3):
            await asyncio.sleep(0)
            counts.append(len(served))
        assert counts == [6, 8, 8]
        assert slices.take(some[0])

    go(story())
    limits = Limits(slice_ms=50, handshake_ms=10)
    lobby = Lobby(limits)
    assert (lobby._first_turns._slice_s, lobby._next_turns._slice_s) == (0.010, 0.010)


def test_of_each_address_one_has_its_turn_and_the_newest_first() -> None:
    line = ByAddress()
    a, b, c, d, e = (cast(Connection, Waits([], "", peer=peer)) for peer in "xxxyz")
    for one in (a, b, c, d, e):
        line.join(one)
    line.leave(e)
    line.leave(e)
    assert [*line.oldest()] == [a, d]
    assert [line.first() for _ in range(4)] == [c, d, b, a]
    assert not line


def test_all_that_speak_at_once_are_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[Connection] = []
    wait = Connection.wait
    monkeypatch.setattr(Connection, "wait", lambda connection: waited.append(connection) or wait(connection))

    async def story() -> None:
        async with World(tmp_path) as world:
            server, port = await world.serve(limits=Limits(slice_ms=0))
            agents = [Raw(world, port, f"node-{k}") for k in range(50)]
            for agent in agents:
                await agent.connect()
            await asyncio.gather(*(agent.hello() for agent in agents))
            await asyncio.gather(*(agent.report(Batch(full=report(node=agent.node))) for agent in agents))
            assert sorted(one.node for one in world.arrived) == sorted(agent.node for agent in agents)
            assert len({*waited}) == 50
            assert server.bytes_in_flight == 0

    go(story())


def never(monkeypatch: pytest.MonkeyPatch, server: Server) -> list[Connection]:
    """Connections come into this list instead of getting their turn."""
    waiting: list[Connection] = []

    def take(connection: Connection) -> bool:
        waiting.append(connection)
        return False

    monkeypatch.setattr(server._turns, "take", take)
    return waiting


def test_deadlines_of_who_has_sent_in_time_and_waits_do_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            short = Limits(authenticate_s=0.0, idle_s=0.0, body_s=0.05, sweep_s=3600.0)
            server, port = await world.serve(limits=short)
            known, stranger = Raw(world, port, "node-1"), Raw(world, port, "node-2")
            await known.connect()
            await known.hello()
            await stranger.connect()
            known_by_now = server._lobby.connections
            await eventually(lambda: all(one._handshaken for one in known_by_now), "no TLS")
            waiting = never(monkeypatch, server)
            said = asyncio.gather(stranger.hello(), known.report(Batch(full=report(node="node-1"))))
            await eventually(lambda: len(waiting) == 2, "they have sent nothing")
            assert server.bytes_in_flight > 0, "what waits counts as on its way"
            assert server._lobby.overdue(asyncio.get_running_loop().time() + 1) == []
            monkeypatch.undo()
            for connection in waiting:
                connection.read()
            await said
            assert server.bytes_in_flight == 0

    go(story())


def test_a_body_whose_rest_waits_for_its_turn_is_not_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            server, port = await world.serve(limits=Limits(body_s=0.05))
            agent = Raw(world, port)
            await agent.connect()
            await agent.hello()
            (connection,) = server._lobby.connections
            waiting = never(monkeypatch, server)
            answer = asyncio.ensure_future(agent.report(Batch(full=report(node=agent.node))))
            await eventually(lambda: waiting, "it has sent nothing")
            late = []
            monkeypatch.setattr(server, "broken", lambda _, what: late.append(what))
            connection._body_late()
            assert late == []
            monkeypatch.undo()
            connection.read()
            await answer

    go(story())


def test_who_goes_while_it_waits_is_forgotten_with_all_that_it_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            server, port = await world.serve(limits=Limits(slice_ms=0))
            agent = Raw(world, port)
            await agent.connect()
            await agent.hello()
            monkeypatch.setattr(Turns, "_call", lambda _: None)  # nobody's turn comes
            sent = asyncio.ensure_future(agent.report(Batch(full=report(node=agent.node))))
            await eventually(lambda: server._turns._line, "it does not wait")
            assert server.bytes_in_flight > 0
            await agent.channel.close()
            await eventually(lambda: not server._lobby.connections, "it is kept")
            assert not server._turns._line
            assert server.bytes_in_flight == 0
            assert world.arrived == []
            await asyncio.gather(sent, return_exceptions=True)

    go(story())


def test_of_who_says_much_while_it_waits_no_more_is_read_until_it_had_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            server, port = await world.serve()
            agent = Raw(world, port)
            await agent.connect()
            await agent.hello()
            waiting = never(monkeypatch, server)
            agent.channel._writer.write(b"POST /report HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n")
            await eventually(lambda: waiting, "it has sent nothing")
            transport = waiting[0]._transport
            assert transport.is_reading(), "of who says little it is seen whether it has given up"
            agent.channel._writer.write(b"x" * 1_000_000)
            await eventually(lambda: not transport.is_reading(), "all of it is read")
            assert MAX_UNREAD_BYTES < server.bytes_in_flight < 1_000_000
            waiting[0].read()
            assert transport.is_reading()
            await eventually(lambda: not transport.is_reading(), "the rest is not read")
            assert [*server._lobby.connections] == waiting[:1], "it was refused"

    go(story())


def test_where_too_much_is_on_its_way_no_more_is_read_of_who_waits_and_what_is_whole_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            server, port = await world.serve()
            agent = Raw(world, port)
            await agent.connect()
            await agent.hello()
            waiting = never(monkeypatch, server)
            taken = asyncio.ensure_future(agent.report(Batch(full=report(node=agent.node))))
            await eventually(lambda: waiting, "it has sent nothing")
            others = server.limits.bytes_in_flight + 1
            server.bytes_in_flight += others
            waiting[0].wait()
            assert not waiting[0]._transport.is_reading()
            waiting[0].read()
            await taken
            assert waiting[0]._transport.is_reading()
            assert server.bytes_in_flight == others

    go(story())


def test_a_connection_whose_tls_cannot_be_made_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        async with World(tmp_path) as world:
            server, port = await world.serve()

            def fails(_: Server) -> ssl.SSLContext:
                raise RuntimeError("no certificate yet")

            monkeypatch.setattr(Server, "tls", property(fails))
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"\x16\x03\x01")
            assert await reader.read() == b""
            assert not server._lobby.connections
            writer.close()

    go(story())


def test_a_server_is_crowded_while_who_has_come_waits_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Turns, "_call", lambda _: None)  # nobody's turn comes

    async def story() -> None:
        async with World(tmp_path) as world:
            patient = Limits(handshake_ms=0, sweep_s=0.01)
            server, port = await world.serve(limits=patient)
            assert server.crowded_ago_s() == inf
            _, silent = await asyncio.open_connection("127.0.0.1", port)
            _, asks = await asyncio.open_connection("127.0.0.1", port)
            await eventually(lambda: len(server._lobby.connections) == 2, "they have not come")
            later_s = asyncio.get_running_loop().time() + 1 + patient.turn_s
            assert not server._lobby.crowded(later_s), "nobody has asked for anything"
            asks.write(b"\x16\x03\x01")
            await eventually(lambda: server._lobby.crowded(later_s), "it does not wait")
            assert not server._lobby.crowded(later_s - 1 - patient.turn_s)
            server._lobby._limits = Limits(turn_s=0.0)
            await eventually(lambda: server.crowded_ago_s() < 60.0, "nobody has noticed")
            silent.close()
            asks.close()
            await eventually(lambda: not server._lobby.connections, "they are kept")
            assert not server._lobby._coming

    go(story())
