"""An agent and a controller that understand each other: over TLS, with tokens, in both directions."""

from pathlib import Path

import msgspec
import pytest

from sentinel.core.health import Severity
from sentinel.core.reports import Iteration, LogMatch, RankExit, RankReport
from sentinel.transport.channel import Refused
from sentinel.transport.wire import (
    Ack,
    Alive,
    Batch,
    Numbered,
    Order,
    Orders,
    Raw,
    Reason,
    Welcome,
    agree,
    encoder,
)
from tests.transport.world import BOOT, World, finding, go, report
from tests.transport.world import Raw as Agent
from tests.waits import eventually


def test_an_agent_tells_everything_when_it_connects_and_then_only_what_changed(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            _, port = await world.serve()
            agent = world.client(port)
            agent.send(report(finding(severity=Severity.WARNING)))
            agent.send(report(check="disk"))
            world.run(agent)
            await eventually(lambda: agent.status.heard_s and agent.spool.waiting == 0)
            (full,) = world.full()
            assert {result.check for result in full.report.checks} == {"xid", "disk"}
            assert [a.late for a in world.numbered()] == [True, True]
            for at_s in (2.0, 3.0, 4.0):  # samples that show what the ones before them showed
                agent.send(report(finding(severity=Severity.WARNING, count=int(at_s)), at_s=at_s))
                agent.send(report(check="disk", at_s=at_s))
            agent.send(report(at_s=5.0))
            await eventually(lambda: len(world.numbered()) > 2)
            last = world.numbered()[2:]
            assert [(a.late, a.report.checks[0].findings) for a in last] == [(False, ())]
            assert len(world.full()) == 1

    go(story())


def test_an_agent_that_has_nothing_to_tell_is_heard_with_its_clock(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            heard: list[Alive] = []
            _, port = await world.serve(alive=heard.append)
            agent = world.client(port)
            agent.send(report())
            world.run(agent)
            await eventually(lambda: len(heard) > 5)
            assert len(world.arrived) == 2  # in full, and the record itself
            assert {(one.node, one.node_uid, one.boot_id) for one in heard} == {("node-1", "uid-1", BOOT)}
            clocks = [one.now.mono_s for one in heard if one.now is not None]
            assert clocks == sorted(clocks)
            assert len(clocks) > 3

    go(story())


def test_a_request_that_leaves_records_for_the_next_one_tells_no_clock(tmp_path: Path) -> None:
    """What it would vouch for is not all told yet."""

    async def story() -> None:
        async with World(tmp_path) as world:
            heard: list[Alive] = []
            _, port = await world.serve(alive=heard.append)
            agent = world.client(port)
            for step in range(1500):
                rank = RankReport(job="llama", incarnation=1, rank=0, iterations=[Iteration(step, step)])
                agent.send(report(checks=(), ranks=(rank,)))
            world.run(agent)
            await eventually(lambda: len(world.numbered()) == 1500 and len(heard) > 2)
            assert heard[0].now is None
            assert heard[-1].now is not None

    go(story())


def test_exits_matches_and_iterations_all_arrive_once_and_in_order(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            _, port = await world.serve()
            agent = world.client(port)
            world.run(agent)
            for step in range(300):
                rank = RankReport(job="llama", incarnation=1, rank=0, iterations=[Iteration(step, step)])
                agent.send(report(checks=(), ranks=(rank,)))
            match = LogMatch(rule="nccl", failure="nccl", rank=0, incarnation=1, at_s=1.0)
            agent.send(report(checks=(), matches=(match,)))
            agent.send(
                report(checks=(), exits=(("llama", RankExit(rank=0, incarnation=1, at_s=2.0, code=1)),))
            )
            await eventually(lambda: agent.spool.waiting == 0)
            came = [a.report for a in world.numbered()]
            assert [r.ranks[0].iterations[0].step for r in came[:300]] == list(range(300))
            assert came[300].matches == (match,)
            assert came[301].exits[0][1].code == 1
            numbers = [a.sequence for a in world.numbered()]
            assert numbers == sorted(set(numbers))

    go(story())


def test_a_fatal_finding_does_not_wait_for_the_next_report_that_is_due(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            _, port = await world.serve(report_every_s=300.0)
            agent = world.client(port)
            world.run(agent)
            await eventually(world.full)
            agent.send(report(finding()))
            await eventually(world.numbered)
            await eventually(lambda: agent.spool.waiting == 0)  # nor does its acknowledgement

    go(story())


def test_orders_reach_an_agent_that_waits_and_unchanged_ones_are_not_sent_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            server, port = await world.serve(report_every_s=0.1)
            first = Order(kind="follow", id="pod-1", body=Raw(encoder.encode({"uid": "u1"})))
            world.orders["node-1"] = Orders(version="1", items=(first,))
            got: list[Orders] = []
            agent = world.client(port, on_orders=got.append)
            world.run(agent)
            await eventually(lambda: got)
            assert msgspec.msgpack.decode(got[0].items[0].body) == {"uid": "u1"}
            node = server.nodes["node-1"]
            asked = node.requests
            await eventually(lambda: node.requests > asked + 5)
            assert len(got) == 1
            world.orders["node-1"] = Orders(version="2")
            server.orders_changed("node-1")
            await eventually(lambda: len(got) == 2)
            assert got[1].items == ()

    go(story())


def test_new_orders_end_the_wait_of_an_answer_that_is_held(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            server, port = await world.serve(report_every_s=300.0)
            got: list[Orders] = []
            world.run(world.client(port, on_orders=got.append))
            await eventually(lambda: any(c.guest.held for n in server.nodes.values() for c in n.connections))
            world.orders["node-1"] = Orders(version="1")
            server.orders_changed("node-1")
            await eventually(lambda: got)

    go(story())


@pytest.mark.parametrize(
    ("agent_speaks", "controller_speaks", "agreed"),
    [((1, 1), (1, 3), 1), ((1, 4), (2, 3), 3), ((2, 5), (1, 2), 2), ((1, 1), (1, 1), 1)],
)
def test_old_agents_and_new_controllers_agree_and_the_reverse(
    tmp_path: Path, agent_speaks: tuple[int, int], controller_speaks: tuple[int, int], agreed: int
) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            server, port = await world.serve(protocols=controller_speaks)
            agent = world.client(port, protocols=agent_speaks)
            agent.send(report(finding()))
            world.run(agent)
            await eventually(world.numbered)
            assert agent.status.protocol == agreed == server.nodes["node-1"].protocol

    go(story())


def test_no_protocol_in_common_is_said_on_both_sides_and_nothing_is_taken(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            server, port = await world.serve(protocols=(3, 4))
            agent = world.client(port, protocols=(1, 2))
            agent.send(report(finding()))
            world.run(agent)
            await eventually(lambda: agent.status.problem)
            assert agent.status.problem == "NoCommonProtocol: the agent speaks 1 to 2, the controller 3 to 4"
            assert server.counts[Reason.NO_COMMON_PROTOCOL] >= 1
            assert not world.arrived
            assert agent.spool.waiting == 1

    go(story())


def test_ranges_agree_on_the_highest_that_both_have() -> None:
    assert agree((1, 3), (2, 5)) == 3
    assert agree((4, 5), (1, 3)) is None


def test_fields_that_only_a_newer_side_knows_are_ignored(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            _, port = await world.serve()
            agent = await Agent(world, port).connect()
            hello = {"node": "node-1", "boot_id": BOOT, "session": "s", "colour": "green"}
            answer = await agent.post("/hello", encoder.encode(hello), world.issuer.token())
            assert msgspec.msgpack.decode(answer, type=Welcome).epoch == 1
            plain = msgspec.to_builtins(report(finding()))
            batch = {"records": [[1, {**plain, "weather": "fine"}]], "mood": 3}
            answer = await agent.report(batch)
            assert msgspec.msgpack.decode(answer, type=Ack).sequence == 1
            assert world.numbered()[0].report == report(finding())

    go(story())


def test_what_was_taken_is_not_taken_again_when_its_answer_was_lost(tmp_path: Path) -> None:
    """Dedup is by node, boot, session and sequence number, and survives the connection."""

    async def story() -> None:
        async with World(tmp_path) as world:
            server, port = await world.serve()
            batch = Batch(records=(Numbered(1, report(finding())), Numbered(2, report(check="disk"))))
            for _ in range(2):
                agent = await Agent(world, port).connect()
                await agent.hello()
                assert msgspec.msgpack.decode(await agent.report(batch), type=Ack).sequence == 2
                await agent.channel.close()
            assert [a.sequence for a in world.numbered()] == [1, 2]
            assert server.nodes["node-1"].duplicates == 2
            # Other numbers, though they look the same.
            for other in ({"session": "s2"}, {"boot_id": "boot-2"}):
                agent = await Agent(world, port).connect()
                await agent.hello(**other)
                await agent.report(batch)
            assert [a.sequence for a in world.numbered()] == [1, 2] * 3

    go(story())


def test_the_acknowledgement_waits_until_the_controller_has_it(tmp_path: Path) -> None:
    import asyncio

    async def story() -> None:
        async with World(tmp_path) as world:
            saving, saved = asyncio.Event(), asyncio.Event()

            async def save() -> None:
                saving.set()
                await saved.wait()

            _, port = await world.serve(
                take=lambda arrived: save() if arrived.node == "node-1" and not arrived.full else None
            )
            agent = world.client(port)
            agent.send(report(finding()))
            world.run(agent)
            await saving.wait()
            for number in range(3):  # a whole connection of another node: greeted, told and answered
                other = await Agent(world, port, node=f"other-{number}").connect()
                await other.hello()
                await other.report(Batch(records=(Numbered(1, report(finding(), node=other.node)),)))
                assert agent.spool.waiting == 1
            saved.set()
            await eventually(lambda: agent.spool.waiting == 0)

    go(story())


def test_a_connection_must_greet_before_it_reports(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            _, port = await world.serve()
            agent = await Agent(world, port).connect()
            with pytest.raises(Refused, match="SayHello"):
                await agent.post("/report", encoder.encode(Batch()), world.issuer.token())

    go(story())
