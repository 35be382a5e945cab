"""What a leader orders of agents over the real transport: it reaches them, is answered, and ends in time."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import structs

from sentinel.cluster.kubernetes.agents import Agents
from sentinel.core.agents.orders import ASK, FOLLOW, Ask, Follow, PodRank, What
from sentinel.core.model import ProtectedJob
from sentinel.core.now import Now
from sentinel.core.policy_model import LostNode, Policy
from sentinel.core.reports import Answer, Report
from sentinel.transport.client import Client
from sentinel.transport.wire import Arrived, Orders
from tests.transport.world import BOOT, World, go
from tests.waits import eventually, turns

JOB = ProtectedJob(name="research/job.batch/llama", policy=Policy(), incarnation=2, size=2)


def pod(rank: int) -> PodRank:
    return PodRank(
        rank=rank,
        namespace="research",
        pod=f"llama-{rank}",
        uid=f"u{rank}",
        container="main",
        container_id="c",
    )


def asks(*nodes: str) -> dict[str, Ask]:
    return {node: Ask(what=What.DRAIN, job=JOB.name, incarnation=2, pods=(pod(0),)) for node in nodes}


class Agent:
    """An agent's end that keeps its orders, and answers what is asked unless it is told not to."""

    def __init__(self, world: World, port: int, node: str) -> None:
        self.orders = Orders()
        self.versions: list[str] = []
        self.answers = True
        self.node = node
        self.client: Client = world.client(port, node=node, on_orders=self.ordered)
        world.run(self.client)

    def ordered(self, orders: Orders) -> None:
        self.orders = orders
        self.versions.append(orders.version)
        for order in orders.items:
            if order.kind == ASK and self.answers:
                answer = Answer(order=order.id, texts=(f"done by {self.node}",))
                self.client.send(
                    Report(node=self.node, boot_id=BOOT, sequence=1, now=Now(1.0, 1.0), answers=(answer,))
                )

    def followed(self) -> list[tuple[int, ...]]:
        found = [
            msgspec.msgpack.decode(order.body, type=Follow)
            for order in self.orders.items
            if order.kind == FOLLOW
        ]
        return [tuple(pod.rank for pod in one.pods) for one in found]


class Site:
    def __init__(self, world: World) -> None:
        self.world, self.taken = world, 0
        self.told: Callable[[str], None] = lambda node: None
        self.agents = Agents(lambda node: self.told(node))

    def take(self, arrived: Arrived) -> None:
        self.taken += 1
        self.agents.arrived(arrived)

    async def serve(self, orders: Callable[[str], Orders] | None = None) -> int:
        orders = orders or self.agents.orders
        server, port = await self.world.serve(orders=orders, take=self.take)
        self.told = server.orders_changed
        return port


def test_a_job_is_followed_where_its_pods_are_and_let_go_where_they_are_not(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            site = Site(world)
            port = await site.serve()
            site.agents.follow(JOB, {"node-1": [pod(0)], "node-2": [pod(1)]})
            first, second = Agent(world, port, "node-1"), Agent(world, port, "node-2")
            await eventually(lambda: first.followed() == [(0,)] and second.followed() == [(1,)])
            told = len(second.versions)
            site.agents.follow(JOB, {"node-2": [pod(1)]})
            await eventually(lambda: first.followed() == [])
            assert len(second.versions) == told  # nothing has changed for it
            site.agents.forget(JOB.name)
            await eventually(lambda: second.followed() == [])

    go(story())


def test_an_agent_goes_on_with_what_an_earlier_leader_ordered_until_it_is_known_that_nothing_is(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            site = Site(world)
            port = await site.serve(lambda node: site.agents.orders(node))
            site.agents.follow(JOB, {"node-1": [pod(0)]})
            agent = Agent(world, port, "node-1")
            await eventually(lambda: agent.followed() == [(0,)])
            site.agents = Agents(site.told)
            site.told("node-1")
            for _ in range(3):
                taken, answers = site.taken, (Answer(order="of-an-earlier-leader"),)
                agent.client.send(
                    Report(node="node-1", boot_id=BOOT, sequence=1, now=Now(1.0, 1.0), answers=answers)
                )
                await eventually(lambda taken=taken: site.taken > taken)
            assert agent.followed() == [(0,)]
            site.agents = Agents(site.told, known_after_s=0.0)
            site.told("node-1")
            await eventually(lambda: agent.followed() == [])

    go(story())


def test_questions_are_answered_by_all_that_are_heard_and_taken_back(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            site = Site(world)
            port = await site.serve()
            first, mute = Agent(world, port, "node-1"), Agent(world, port, "node-2")
            mute.answers = False
            answers = await site.agents.ask(asks("node-1", "node-2", "node-3"), 1.0)
            assert {node: one.texts for node, one in answers.items()} == {"node-1": ("done by node-1",)}
            await eventually(lambda: not first.orders.items and not mute.orders.items)
            again = await site.agents.ask(asks("node-1"), 20.0)
            assert again["node-1"].texts == ("done by node-1",)

    go(story())


def test_an_agent_that_comes_late_still_answers_in_time(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            site = Site(world)
            port = await site.serve()
            asked = asyncio.create_task(site.agents.ask(asks("node-1"), 20.0))
            await turns()
            Agent(world, port, "node-1")
            assert set(await asked) == {"node-1"}

    go(story())


def test_only_enforced_jobs_end_by_themselves_and_not_on_nodes_that_are_only_observed() -> None:
    agents = Agents(lambda node: None)

    def told(policy: Policy) -> dict[str, float | None]:
        agents.follow(
            structs.replace(JOB, policy=policy), {"node-1": [pod(0)], "node-2": [pod(1)]}, {"node-2"}
        )
        follows = {
            node: msgspec.msgpack.decode(agents.orders(node).items[0].body, type=Follow)
            for node in ("node-1", "node-2")
        }
        # An agent of a version before this reads no lostNode without forceAfter.
        assert all(one.job.policy.lost_node is None for one in follows.values())
        return {node: one.self_fence_s for node, one in follows.items()}

    fences = Policy(lost_node=LostNode(self_fence_s=120.0))
    assert told(fences) == {"node-1": 120.0, "node-2": None}
    assert told(structs.replace(fences, mode="observe")) == {"node-1": None, "node-2": None}
    assert told(Policy(lost_node=LostNode(force_after_s=120.0))) == {"node-1": None, "node-2": None}
