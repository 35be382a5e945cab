"""Two controllers: whom an agent serves, and whom no more."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path

import msgspec
import pytest

from sentinel.transport.channel import Refused
from sentinel.transport.epoch import EpochFile
from sentinel.transport.wire import Ack, Arrived, Batch, Numbered, Orders, Reason, Welcome, encoder
from tests.transport.world import Raw as Agent
from tests.transport.world import World, finding, go, report
from tests.waits import eventually

pytestmark = pytest.mark.usefixtures("quick")


def test_the_standby_sends_agents_to_the_leader(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            _, leading = await world.serve(epoch=3)
            standby, waiting = await world.serve(epoch=None)
            standby.stand_by(f"127.0.0.1:{leading}")
            agent = world.client(waiting)  # it knows the standby's address only
            agent.send(report(finding()))
            world.run(agent)
            await eventually(world.numbered)
            assert agent.status.address == f"127.0.0.1:{leading}"
            assert standby.counts[Reason.NOT_LEADING] == 1

    go(story())


def test_when_leadership_moves_agents_follow_with_a_full_report_and_nothing_is_lost(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            first, one = await world.serve(epoch=1)
            second, two = await world.serve(epoch=None)
            agents = [world.client(one, two, node=f"node-{k}") for k in range(5)]
            for agent in agents:
                world.run(agent)
            await eventually(lambda: all(world.full(f"node-{k}") for k in range(5)))
            first.stand_by(f"127.0.0.1:{two}")
            for k, agent in enumerate(agents):
                agent.send(report(finding(), node=f"node-{k}"))
            second.lead(2)
            await eventually(
                lambda: all(agent.status.epoch == 2 and not agent.spool.waiting for agent in agents)
            )
            for k in range(5):
                assert len(world.full(f"node-{k}")) == 2
                assert len(world.numbered(f"node-{k}")) >= 1

    go(story())


def test_no_leader_yet_is_said_and_the_agent_asks_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            server, port = await world.serve(epoch=None)
            agent = world.client(port)
            world.run(agent)
            await eventually(lambda: agent.status.problem)
            assert agent.status.problem == "NotLeading: no controller leads now"
            server.lead(1)
            await eventually(world.full)

    go(story())


def test_an_agent_that_served_a_newer_leader_gives_an_older_one_nothing_and_obeys_none_of_its_orders(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            old, port = await world.serve(epoch=4)
            world.orders["node-1"] = Orders(version="old")
            (tmp_path / "agent-node-1").mkdir()
            EpochFile(str(tmp_path / "agent-node-1")).raise_to(5)
            got: list[Orders] = []
            agent = world.client(port, on_orders=got.append)
            agent.send(report(finding()))
            world.run(agent)
            await eventually(lambda: "NewerEpoch" in agent.status.problem)
            assert world.newer == [("node-1", 5)], "the deposed leader learns it from its agents"
            assert not got
            assert agent.spool.waiting == 1
            assert not world.arrived
            old.lead(6)
            await eventually(lambda: got)

    go(story())


def test_an_old_leader_that_hides_its_age_is_not_obeyed_either(tmp_path: Path) -> None:
    """The agent judges the answers itself: a server that never looks at the epoch told is not believed."""

    async def story() -> None:
        async with World(tmp_path) as world:
            await world.certificates.renew()
            welcome = encoder.encode(Welcome(protocol=1, epoch=4))

            async def careless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(welcome), welcome))
                await writer.drain()

            server = await asyncio.start_server(careless, "127.0.0.1", 0, ssl=world.certificates.tls())
            EpochFile(str(tmp_path / "agent-node-1")).raise_to(5)
            agent = world.client(server.sockets[0].getsockname()[1])
            agent.send(report(finding()))
            world.run(agent)
            await eventually(lambda: agent.status.problem == "epoch 4 is over: 5 was served")
            assert agent.status.connections == 0
            server.close()

    go(story())


def test_the_highest_epoch_outlives_the_agent_and_a_damaged_file_counts_as_none(tmp_path: Path) -> None:
    epoch = EpochFile(str(tmp_path))
    assert epoch.raise_to(7)
    assert not epoch.raise_to(6)
    assert not epoch.raise_to(2**63)
    assert EpochFile(str(tmp_path)).value == 7
    for damage in (b"", b"x" * 10_000_000, b"-5", b"9" * 31, b"\xff\xfe"):
        (tmp_path / "epoch").write_bytes(damage)
        assert EpochFile(str(tmp_path)).value == 0


def test_a_leader_that_begins_again_wants_to_be_greeted_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            server, port = await world.serve(epoch=1)
            agent = await Agent(world, port).connect()
            await agent.hello()
            await agent.report(Batch())
            server.lead(2)
            with pytest.raises(Refused, match="SayHello"):
                await agent.report(Batch())

    go(story())


def test_a_new_leadership_takes_again_what_the_last_one_took_and_did_not_see_acknowledged(
    tmp_path: Path,
) -> None:
    """Its picture begins anew: what only the old picture had would be lost."""

    async def story() -> None:
        async with World(tmp_path) as world:
            server, port = await world.serve(epoch=1)
            for epoch in (1, 2):
                server.lead(epoch)
                agent = await Agent(world, port).connect()
                await agent.hello()
                await agent.report(Batch(records=(Numbered(1, report()),)))
            assert [a.sequence for a in world.numbered()] == [1, 1]

    go(story())


def test_a_report_that_was_being_saved_when_leadership_went_is_not_acknowledged(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            saving, saved = asyncio.Event(), asyncio.Event()

            async def save() -> None:
                saving.set()
                await saved.wait()

            taken: list[Arrived] = []

            def take(arrived: Arrived) -> Coroutine[None, None, None]:
                taken.append(arrived)
                return save()

            server, port = await world.serve(take=take)
            agent = await Agent(world, port).connect()
            await agent.hello()
            asked = asyncio.create_task(agent.report(Batch(records=(Numbered(1, report()),))))
            await saving.wait()
            server.lead(2)
            saved.set()
            with pytest.raises(Refused, match="NotLeading"):
                await asked
            agent = await Agent(world, port).connect()
            await agent.hello()
            answer = await agent.report(Batch(records=(Numbered(1, report()),)))
            assert msgspec.msgpack.decode(answer, type=Ack).epoch == 2
            # What a leader took before it stood by is not known to be in force: it is handed over again.
            assert [a.sequence for a in taken] == [1, 1]

    go(story())


def test_a_controller_that_refuses_has_answered_and_one_that_is_away_has_not(tmp_path: Path) -> None:
    """By this an agent knows whether it is cut off."""

    async def story() -> None:
        async with World(tmp_path) as world:
            standby, port = await world.serve(epoch=None)
            answers: list[str] = []
            client = world.client(port, on_answer=lambda: answers.append(client.status.problem))
            world.run(client)
            await eventually(lambda: len(answers) >= 2)
            assert client.status.connections == 0  # it never led
            await standby.close()
            await eventually(
                lambda: "Connect call failed" in client.status.problem, lambda: client.status.problem
            )
            assert not any("Connect call failed" in problem for problem in answers)

    go(story())
