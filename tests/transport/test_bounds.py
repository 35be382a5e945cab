"""Agents that say too much, too often or nonsense: refused, slowed, counted, named, and no harm to the others."""

import asyncio
import os
import ssl
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from sentinel.transport.channel import ChannelError, Refused
from sentinel.transport.client import pause
from sentinel.transport.connection import Connection
from sentinel.transport.limits import Bucket, Limits
from sentinel.transport.server import Server
from sentinel.transport.turns import Turns
from sentinel.transport.wire import (
    Ack,
    Arrived,
    Batch,
    Dropped,
    Numbered,
    Order,
    Orders,
    Reason,
    Refusal,
    encoder,
)
from tests.transport.world import Raw as Agent
from tests.transport.world import World, finding, go, report
from tests.waits import eventually

FAST = Limits(requests_per_s=1000.0, requests_burst=1000.0)


def limits(**more: Any) -> Limits:
    return msgspec.structs.replace(FAST, **more)


async def plain(world: World, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A TLS connection that says whatever a test wants."""
    context = ssl.create_default_context(cafile=str(world.bundle))
    return await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname="sentinel-controller"
    )


async def refusal_of(reader: asyncio.StreamReader) -> Refusal:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return msgspec.msgpack.decode(await reader.readexactly(length), type=Refusal)


async def others_are_served(world: World, port: int) -> None:
    """Another agent's fatal finding arrives while all this goes on."""
    before = len(world.numbered("node-well"))
    agent = await Agent(world, port, "node-well", session=os.urandom(4).hex()).connect()
    await agent.hello()
    await agent.report(Batch(records=(Numbered(1, report(finding(), node="node-well")),)))
    assert len(world.numbered("node-well")) == before + 1
    await agent.channel.close()


def test_a_huge_body_is_refused_before_it_is_read(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            server, port = await world.serve()
            agent = await Agent(world, port).connect()
            await agent.hello()
            reader, writer = agent.channel._reader, agent.channel._writer
            writer.write(b"POST /report HTTP/1.1\r\nContent-Length: 10000000000\r\n\r\n" + b"x" * 1000)
            said = await refusal_of(reader)
            assert said.reason == Reason.TOO_LARGE
            assert "10000000000 bytes; at most 1048576" in said.text
            assert await reader.read() == b""  # and the connection ends
            assert server.nodes["node-1"].refused == {Reason.TOO_LARGE: 1}
            await eventually(lambda: server.bytes_in_flight == 0)
            await others_are_served(world, port)

    go(story())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        bytes(range(256)) * 20,
        b"\x81" * 100_000,
        b"\x91" * 500_000,
        b"null",
        encoder.encode([1]),
    ],
)
def test_a_garbage_body_is_refused_and_the_next_one_is_read(tmp_path: Path, body: bytes) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            server, port = await world.serve()
            agent = await Agent(world, port).connect()
            await agent.hello()
            with pytest.raises(Refused, match="BadBody"):
                await agent.post("/report", body)
            assert server.nodes["node-1"].refused == {Reason.BAD_BODY: 1}
            await agent.report(Batch(records=(Numbered(1, report()),)))
            assert len(world.numbered()) == 1

    go(story())


def test_one_damaged_record_is_left_out_counted_and_not_sent_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            server, port = await world.serve()
            agent = await Agent(world, port).connect()
            await agent.hello()
            good = msgspec.to_builtins(report(finding()))
            bad = {**good, "checks": [{"check": "x", "state": "purple"}]}
            batch = {"records": [[1, good], [2, bad], [3, good], [4, "what"], [5, {}]]}
            ack = msgspec.msgpack.decode(await agent.report(batch), type=Ack)
            assert (ack.sequence, ack.refused) == (5, (2, 4, 5))
            assert [a.sequence for a in world.numbered()] == [1, 3]
            assert server.nodes["node-1"].refused == {Reason.BAD_BODY: 3}

    go(story())


@pytest.mark.parametrize(
    "head",
    [
        b"GET /report HTTP/1.1\r\n\r\n",
        b"POST /report HTTP/2\r\n\r\n",
        b"POST /report HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /report HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /report HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /report HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"POST /report HTTP/1.1\r\nno colon\r\n\r\n",
        b"POST /report HTTP/1.1\r\nA : b\r\n\r\n",
        b"POST /report HTTP/1.1\r\nAuthorization: Basic abc\r\n\r\n",
        b"\r\n\r\n",
        b"\xff\xfe\x00 b c\r\n\r\n",
        b"POST / HTTP/1.1\r\nX: " + b"y" * 40_000,
    ],
)
def test_what_is_not_our_http_is_refused_and_ends_the_connection(tmp_path: Path, head: bytes) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            _, port = await world.serve()
            reader, writer = await plain(world, port)
            writer.write(head)
            assert (await refusal_of(reader)).reason in (Reason.BAD_REQUEST, Reason.TOO_LARGE)
            assert await reader.read() == b""
            await others_are_served(world, port)

    go(story())


def test_what_is_not_tls_is_hung_up_on(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            server, port = await world.serve()
            for junk in (b"POST / HTTP/1.1\r\n\r\n", os.urandom(1000), b"\x16\x03\x01\x02\x00" + b"x" * 600):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(junk)
                try:
                    await reader.read()  # an alert, then the end
                except ConnectionResetError:
                    pass
                writer.close()
            assert server.counts["broken"] == 3
            await others_are_served(world, port)

    go(story())


def test_a_hundred_reports_a_second_of_one_node_are_slowed_counted_and_named(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            server, port = await world.serve(limits=Limits(requests_per_s=10.0, requests_burst=5.0))
            said: list[Any] = []
            structlog.configure(processors=[lambda _, __, event: said.append(event) or "x"])
            try:
                agent = await Agent(world, port).connect()
                await agent.hello()
                began_s = time.monotonic()
                for number in range(1, 101):  # sent without waiting, as by a program run wild
                    batch = Batch(records=(Numbered(number, report(finding())),), after=number - 1)
                    await agent.channel.send("/report", encoder.encode(batch), token=None, answer_s=120.0)
                served = asyncio.create_task(others_are_served(world, port))
                answers: list[str] = []
                for _ in range(100):
                    try:
                        await agent.channel.read()
                        answers.append("taken")
                    except Refused as refused:
                        answers.append("closed" if refused.closed else refused.refusal.reason)
                took_s = time.monotonic() - began_s
                await served
            finally:
                structlog.reset_defaults()
            taken = answers.count("taken")
            assert 4 <= taken < 100  # the burst, less the Hello, and what the rate allows while they come
            assert set(answers[taken:]) <= {Reason.TOO_OFTEN, Reason.NOT_TAKEN}
            # What came after one that was refused did not hide it:
            assert [a.sequence for a in world.numbered()] == list(range(1, taken + 1))
            refused_often = server.nodes["node-1"].refused[Reason.TOO_OFTEN]
            assert refused_often >= 1
            # The flood had to wait: it was read no faster than the node's rate.
            assert took_s > 0.8 * answers.count(Reason.TOO_OFTEN) / 10.0
            assert {"node-1"} == {
                e["who"] for e in said if e["event"] == "request_refused" and e["what"] == "TooOften"
            }

    go(story())


def test_an_agent_that_is_told_to_slow_down_loses_nothing_by_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            server, port = await world.serve(limits=Limits(requests_per_s=5.0, requests_burst=2.0))
            agent = world.client(port)
            world.run(agent)

            def slowed() -> int:
                return server.nodes["node-1"].refused.get(Reason.TOO_OFTEN, 0) if server.nodes else 0

            for step in range(60):  # as fast as they are taken, until the first is refused
                agent.send(report(finding(f"XID {step}"), check=f"c{step}"))
                await eventually(lambda: agent.spool.waiting == 0 or slowed())
            await eventually(lambda: agent.spool.waiting == 0 and agent.status.heard_s)
            await eventually(lambda: len(world.numbered()) == 60)
            assert slowed() >= 1

    go(story())


def test_an_agent_that_reads_no_answers_gets_no_more_of_them_and_is_left_at_last(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            server, port = await world.serve(limits=limits(idle_s=4.0, sweep_s=0.05))
            body = msgspec.Raw(encoder.encode("x" * 900_000))
            world.orders["node-1"] = Orders(version="1", items=(Order(kind="big", id="1", body=body),))
            agent = await Agent(world, port).connect()
            await agent.hello()
            (connection,) = server.nodes["node-1"].connections
            agent.channel._writer.transport.pause_reading()
            asked = encoder.encode(Batch())
            for _ in range(200):
                await agent.channel.send("/report", asked, token=None, answer_s=120.0)
            await eventually(lambda: connection._blocked)
            await others_are_served(world, port)
            assert connection._transport.get_write_buffer_size() < 4_000_000
            assert server.nodes["node-1"].requests < 50
            await eventually(lambda: connection not in server._lobby.connections)

    go(story())


def test_bodies_on_their_way_are_bounded_all_nodes_together(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            server, port = await world.serve(limits=limits(bytes_in_flight=1 << 20, body_s=60.0))
            agents = []
            for k in range(3):  # each begins a body and does not end it
                agent = await Agent(world, port, f"node-{k}").connect()
                await agent.hello()
                agent.channel._writer.write(
                    b"POST /report HTTP/1.1\r\nContent-Length: 500000\r\n\r\n" + b"x" * 400_000
                )
                agents.append(agent)
            said = await refusal_of(agents[2].channel._reader)
            assert said.reason == Reason.OVERLOADED
            assert said.slow_down_s > 0
            assert server.bytes_in_flight <= (1 << 20) + 500_000
            await others_are_served(world, port)
            for agent in agents:
                await agent.channel.close()
            await eventually(lambda: server.bytes_in_flight == 0)

    go(story())


def test_a_body_that_does_not_come_and_a_stranger_who_says_nothing_are_hung_up_on(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            server, port = await world.serve(
                limits=limits(body_s=0.2, authenticate_s=3.0, idle_s=3.0, sweep_s=0.05)
            )
            silent, kept = await asyncio.open_connection("127.0.0.1", port)
            shaken, kept_too = await plain(world, port)
            slow = await Agent(world, port, "node-slow").connect()
            await slow.hello()
            slow.channel._writer.write(b"POST /report HTTP/1.1\r\nContent-Length: 500\r\n\r\nx")
            idle = await Agent(world, port, "node-idle").connect()
            await idle.hello()
            assert await silent.read() == b""
            assert await shaken.read() == b""
            assert await slow.channel._reader.read() == b""
            assert await idle.channel._reader.read() == b""
            await eventually(lambda: not server._lobby.connections)
            assert server.counts["broken"] == 4
            kept.close()
            kept_too.close()

    go(story())


def test_a_node_has_few_connections_and_strangers_are_few_in_all(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            server, port = await world.serve(limits=limits(connections_per_node=2, strangers=10))
            mine = [await Agent(world, port).connect() for _ in range(3)]
            for agent in mine:
                await agent.hello()
            await eventually(lambda: len(server.nodes["node-1"].connections) == 2)
            with pytest.raises((Refused, ChannelError)):
                await mine[0].report(Batch())  # the oldest went
            strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(50)]
            await eventually(lambda: len(server._lobby.strangers) <= 10)
            await others_are_served(world, port)  # the newest is let in
            for _, writer in strangers:
                writer.close()

    go(story())


def test_a_record_on_which_the_controller_fails_is_tried_again_then_given_up_and_keeps_no_other_back(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            tries = 0

            def take(arrived: Arrived) -> None:
                nonlocal tries
                if not arrived.full and arrived.report.checks[0].check == "poison":
                    tries += 1
                    raise RuntimeError("a defect")
                world.take(arrived)

            server, port = await world.serve(take=take, limits=limits(again_s=0.05))
            agent = world.client(port)
            for check in ("before", "poison", "after"):
                agent.send(report(finding(), check=check))
            world.run(agent)
            await eventually(lambda: agent.spool.waiting == 0 and agent.status.heard_s)
            assert [a.report.checks[0].check for a in world.numbered()] == ["before", "after"]
            assert tries == 5
            assert server.nodes["node-1"].refused["GivenUp"] == 1
            assert agent.status.refused == 1

    go(story())


def test_a_controller_that_cannot_save_now_gets_the_record_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            broken, tries = True, 0

            async def save(arrived: Arrived) -> None:
                nonlocal tries
                tries += not arrived.full
                await asyncio.sleep(0)
                if broken and not arrived.full:
                    raise OSError("the API server is away")
                world.take(arrived)

            _, port = await world.serve(take=save, limits=limits(again_s=0.05))
            agent = world.client(port)
            world.run(agent)
            await eventually(world.full)
            agent.send(report(finding()))
            await eventually(lambda: tries > 1)
            assert agent.spool.waiting == 1
            broken = False
            await eventually(lambda: agent.spool.waiting == 0)
            assert len(world.numbered()) == 1

    go(story())


def test_a_controller_that_never_finishes_saving_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            _, port = await world.serve(take=lambda arrived: asyncio.sleep(600), limits=limits(take_s=0.2))
            agent = await Agent(world, port).connect()
            await agent.hello()
            with pytest.raises(Refused, match="in time"):
                await agent.report(Batch(records=(Numbered(1, report()),)))

    go(story())


def test_records_of_one_node_are_with_the_controller_one_request_at_a_time(tmp_path: Path) -> None:
    """A connection that the network lost may still have its records there when the next one brings them again."""

    async def story() -> None:
        async with World(tmp_path) as world:
            saving, saved = asyncio.Event(), asyncio.Event()

            async def save(arrived: Arrived) -> None:
                saving.set()
                await saved.wait()
                world.take(arrived)

            _, port = await world.serve(take=save)
            one, two = [await Agent(world, port).connect() for _ in range(2)]
            await one.hello()
            await two.hello()
            batch = Batch(records=(Numbered(1, report()),))
            first = asyncio.create_task(one.report(batch))
            await saving.wait()
            with pytest.raises(Refused, match="NotTaken"):
                await two.report(batch)
            saved.set()
            await first
            assert msgspec.msgpack.decode(await two.report(batch), type=Ack).sequence == 1
            assert len(world.numbered()) == 1

    go(story())


def test_the_controller_hears_what_an_agent_had_to_drop(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            server, port = await world.serve()
            agent = await Agent(world, port).connect()
            await agent.hello()
            await agent.report(Batch(dropped=Dropped(progress=7, events=2)))
            assert server.nodes["node-1"].dropped == Dropped(7, 2)

    go(story())


def test_hundreds_of_handshakes_at_once_are_done_in_slices_and_all_are_let_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[Connection] = []
    handshake = Connection.handshake
    monkeypatch.setattr(Connection, "handshake", lambda one: served.append(one) or handshake(one))
    in_turns: list[int] = []

    def counted(line: Turns) -> None:
        before = len(served)
        turn(line)
        in_turns.append(len(served) - before)

    turn = Turns._turn
    monkeypatch.setattr(Turns, "_turn", counted)

    async def story() -> None:
        async with World(tmp_path) as world:
            _, port = await world.serve(limits=limits(handshake_ms=0, authenticate_s=300.0))
            agents = [Agent(world, port, f"node-{k}") for k in range(400)]
            await asyncio.gather(*(agent.connect() for agent in agents))
            await asyncio.gather(*(agent.hello() for agent in agents))
            await asyncio.gather(*(agent.report(Batch(full=report(node=agent.node))) for agent in agents))
            assert len(world.arrived) == 400
            assert max(in_turns) == 1
            assert sum(in_turns) == len(served) >= 400, "no handshake is done at once, however many there are"

    go(story())


def test_an_address_that_floods_with_handshakes_keeps_only_itself_waiting_and_costs_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            made: list[Server] = []
            monkeypatch.setattr(
                Server, "tls", property(lambda server: made.append(server) or server._context())
            )
            server, port = await world.serve(limits=limits(handshake_ms=0))
            lobby = server._lobby
            coming = lobby._coming._waiting
            order: list[str] = []
            with monkeypatch.context() as still:  # nobody's turn comes
                still.setattr(Turns, "_call", lambda _: None)
                for _ in range(30):
                    await says_hello(world, port, "127.0.0.9")
                await eventually(lambda: len(coming.get("127.0.0.9", ())) == 30)
                await says_hello(world, port, "127.0.0.8")
                await eventually(lambda: "127.0.0.8" in coming)
            monkeypatch.setattr(Connection, "handshake", lambda connection: order.append(connection.peer))
            lobby._first_turns._call()
            await eventually(lambda: len(order) == 31)
            assert order.index("127.0.0.8") < 2
            assert not made, "TLS is made at their turn: that of thousands at once would hold everybody up"

    go(story())


async def says_hello(world: World, port: int, address: str) -> None:
    """The first bytes of TLS, and no more."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    writer.write(b"\x16\x03\x01")
    world.kept.append(writer)


def test_a_handshake_without_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Turns, "_call", lambda _: None)  # nobody's turn ever comes

    async def story() -> None:
        async with World(tmp_path) as world:
            server, port = await world.serve(limits=limits(handshake_ms=0))
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"\x16\x03\x01" + b"x" * 200_000)
            try:
                assert await reader.read() == b""
            except ConnectionResetError:
                pass
            assert server.counts["broken"] == 1

    go(story())


def test_agents_are_told_to_spread_their_return_as_there_are_many_of_them(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            _, port = await world.serve(limits=limits(reconnects_per_s=0.5))
            agent = world.client(port)
            world.run(agent)
            await eventually(lambda: agent._dialogue.spread_s == 2.0)

    go(story())


def test_pauses_grow_with_failures_differ_by_chance_and_are_bounded() -> None:
    def range_of(*arguments: float) -> tuple[float, float]:
        many = [pause(*arguments) for _ in range(2000)]  # type: ignore[arg-type]
        return min(many), max(many)

    lows, highs = zip(*(range_of(failures, 0.0, 0.0) for failures in range(20)), strict=True)
    assert lows[0] < 0.01
    assert highs[0] <= 0.5
    assert all(low >= high / 5 for low, high in zip(lows[1:], highs[1:], strict=True))
    assert highs == tuple(sorted(highs[:6])) + highs[6:]
    assert max(highs) <= 15.0
    low, high = range_of(0, 20.0, 0.0)  # a fleet of 10 000
    assert low < 1.0
    assert 19.0 < high <= 20.0
    assert range_of(0, 1e9, 0.0)[1] <= 60.0
    low, high = range_of(0, 0.0, 5.0)
    assert 5.0 <= low
    assert high <= 8.0


def test_a_bucket_lets_through_its_burst_then_its_rate() -> None:
    bucket = Bucket(3.0, 0.0)
    assert [bucket.take(0.0, 2.0, 3.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert bucket.take(0.5, 2.0, 3.0) == 0.0
    assert bucket.take(100.0, 2.0, 3.0) == 0.0
    assert bucket.level == 2.0
