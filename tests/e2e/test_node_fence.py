"""`lostNode.selfFence` on a node: real processes in real control groups, a controller that goes away, and an API server
that is asked then. Times are a fortieth of the shortest that a policy may ask for, and so is the agent's pace."""

import asyncio
import shutil
import signal
from pathlib import Path

import msgspec
import pytest
import trustme
from msgspec import Raw, structs

from sentinel.agent.fence import UNABLE
from sentinel.cluster.local.pods import Pods
from sentinel.core.agents.orders import FOLLOW, Follow
from sentinel.core.agents.self_fence import ENDED, LEAST_S
from sentinel.transport.wire import Order
from tests.e2e.agent_node import Node
from tests.e2e.box import SENTINEL, Box, Running
from tests.e2e.test_node_jobs import JOB, Pod, Site, serving
from tests.gate.rights import needs_root
from tests.transport.api_stand_in import ApiServer, boot_s
from tests.transport.world import World, go
from tests.waits import eventually, until

T_S = LEAST_S / 40
OTHER = structs.replace(JOB, name="research/other")


@pytest.fixture
def node(box: Box) -> Node:
    return Node(box)


@pytest.fixture
@needs_root
def world(tmp_path: Path) -> World:
    """Its pods are control groups."""
    (tmp_path / "world").mkdir()
    return World(tmp_path / "world")


def order(id: str, *pods: Pod, self_fence_s: float | None) -> Order:
    job = JOB if self_fence_s is not None else OTHER
    body = Follow(job=job, pods=tuple(pod.order for pod in pods), self_fence_s=self_fence_s)
    return Order(kind=FOLLOW, id=id, body=Raw(msgspec.msgpack.encode(body)))


def promised(world: World) -> dict[str, float] | None:
    """What the agent has confirmed last."""
    told = [one.report.fences for one in world.arrived if one.report.fences is not None]
    return told[-1] if told else None


def ended(world: World) -> list[str]:
    return [
        finding.entity
        for one in world.arrived
        for result in one.report.checks
        for finding in result.findings
        if finding.code == ENDED
    ]


async def begun(site: Site) -> tuple[Pod, Pod]:
    """An agent that follows two jobs, the first with selfFence, which it has confirmed."""
    fenced, free = site.pod(), site.pod()
    fenced.train()
    free.train()
    await eventually(lambda: len(fenced.ready()) == len(free.ready()) == 2)
    site.give(order("f", fenced, self_fence_s=T_S), order("o", free, self_fence_s=None))
    await eventually(lambda: promised(site.world) == {fenced.order.uid: T_S})
    return fenced, free


async def unconfirmed(node: Node, site: Site) -> Pod:
    """Its ranks run, its job asks for selfFence, and the agent says that it cannot."""
    pod = site.pod()
    pod.train()
    await eventually(lambda: len(pod.ready()) == 2)
    site.give(order("f", pod, self_fence_s=T_S))
    await asyncio.to_thread(node.wait_code, site.agent, UNABLE)
    return pod


async def lives_on(pod: Pod, ranks: object) -> None:
    """Twice as long as the job asks for."""
    gone_s = boot_s()
    await eventually(lambda: boot_s() - gone_s > 2 * T_S)
    assert pod.pids() == ranks


def test_ranks_end_when_neither_controller_nor_api_server_was_reached_for_so_long(
    node: Node, world: World, tmp_path: Path
) -> None:
    async def story() -> None:
        api = ApiServer(tmp_path)
        await api.serve()
        async with serving(node, world, tmp_path / "pods", **api.link()) as site:
            fenced, free = await begun(site)
            ranks = fenced.pids()

            begun_s = boot_s()
            await eventually(lambda: boot_s() - begun_s > 1.5 * T_S)
            assert fenced.pids() == ranks
            assert len(api.asked) == 1  # before it was confirmed; then not while a controller answers

            await site.server.close()
            gone_s = boot_s()
            await eventually(lambda: api.answered_s and api.answered_s[-1] - gone_s > 1.5 * T_S)
            assert fenced.pids() == ranks  # an API server that refuses is one that was reached
            assert all(head.startswith("GET /livez HTTP/1.1\r\n") for head in api.asked)
            assert not any("authorization" in head.lower() for head in api.asked)

            others = free.pids()
            await api.close()
            last_s = api.answered_s[-1]
            await eventually(lambda: not fenced.pids(), lambda: site.agent.err)
            assert boot_s() - last_s >= T_S
            assert free.pids() == others  # its job asks for nothing

            # The kubelet starts the container anew, with another id in the same pod.
            again = fenced.container("f" * 64)
            await eventually(lambda: again.poll() is not None)
            assert again.returncode == -signal.SIGKILL

            await world.serve(port=site.port)
            await eventually(lambda: JOB.name in ended(world))
            assert OTHER.name not in ended(world)
            status, metrics = await asyncio.to_thread(node.get, site.agent, "/metrics")
            assert status == 200
            (line,) = [
                one for one in metrics.splitlines() if one.startswith("sentinel_self_fenced_processes")
            ]
            assert float(line.split()[-1]) >= len(ranks) + 1

    go(story())


def test_an_agent_that_cannot_ask_the_api_server_promises_nothing_and_says_so(
    node: Node, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    async def story() -> None:
        async with serving(node, world, tmp_path / "pods") as site:
            pod = await unconfirmed(node, site)
            ranks = pod.pids()
            assert promised(world) == {}
            await site.server.close()
            await lives_on(pod, ranks)

    go(story())


class Bound(Node):
    """Its agent has not all rights of root."""

    def start(self) -> Running:
        words = ("setpriv", "--bounding-set=-kill", SENTINEL, "agent", "--settings", self.settings())
        agent = self.box.start_words(*words)
        agent.said("findings on http")
        return agent


def test_an_agent_that_may_not_end_ranks_of_other_users_promises_nothing_and_says_so(
    box: Box, world: World, tmp_path: Path
) -> None:
    async def story() -> None:
        api = ApiServer(tmp_path)
        await api.serve()
        node = Bound(box)
        async with serving(node, world, tmp_path / "pods", **api.link()) as site:
            await unconfirmed(node, site)
            assert promised(world) == {}
            assert "CAP_KILL" in await asyncio.to_thread(lambda: node.get(site.agent, "/findings")[1])
            assert "lacks rights: without KILL: these signals are refused" in site.agent.err
        await api.close()

    go(story())


def test_nothing_is_confirmed_before_the_api_server_answers_and_it_is_taken_back_when_it_does_no_more(
    node: Node, world: World, tmp_path: Path
) -> None:
    async def story() -> None:
        api = ApiServer(tmp_path)
        await api.serve()
        await api.close()  # its port is known, and closed
        async with serving(node, world, tmp_path / "pods", **api.link()) as site:
            pod = await unconfirmed(node, site)
            ranks = pod.pids()
            assert promised(world) == {}

            await api.serve()
            await eventually(lambda: promised(world) == {pod.order.uid: T_S})
            await asyncio.to_thread(node.wait_code, site.agent, UNABLE, gone=True)
            await api.close()
            await eventually(lambda: promised(world) == {})
            await asyncio.to_thread(node.wait_code, site.agent, UNABLE)
            # That the controller has its word back: until then it is kept.
            await asyncio.to_thread(
                until, lambda: "\nsentinel_self_fence_pods 0" in node.get(site.agent, "/metrics")[1]
            )

            await site.server.close()
            await lives_on(pod, ranks)

            await world.serve(port=site.port)
            await api.serve()
            await eventually(lambda: promised(world) == {pod.order.uid: T_S})

    go(story())


def test_an_agent_that_does_not_trust_the_api_server_confirms_and_ends_nothing(
    node: Node, world: World, tmp_path: Path
) -> None:
    async def story() -> None:
        api = ApiServer(tmp_path)
        await api.serve()
        trustme.CA().cert_pem.write_to_path(str(api.ca))
        async with serving(node, world, tmp_path / "pods", **api.link()) as site:
            pod = await unconfirmed(node, site)
            ranks = pod.pids()
            await site.server.close()
            await lives_on(pod, ranks)
            assert not any(one.report.fences for one in world.arrived)
            assert not api.asked
        await api.close()

    go(story())


def test_an_agent_that_has_just_begun_ends_nothing(node: Node, world: World, tmp_path: Path) -> None:
    async def story() -> None:
        api = ApiServer(tmp_path)
        await api.serve()
        async with serving(node, world, tmp_path / "pods", **api.link()) as site:
            fenced, _ = await begun(site)
            ranks = fenced.pids()
            await api.close()
            await site.server.close()
            site.agent.send(signal.SIGKILL)
            await asyncio.to_thread(site.agent.code)
            assert fenced.pids() == ranks
            await site.start()
            started_s = boot_s()
            await eventually(lambda: boot_s() - started_s > 2 * T_S)
            assert fenced.pids() == ranks

    go(story())


@pytest.mark.root
def test_what_runs_in_a_pod_is_all_but_what_keeps_its_sandbox(tmp_path: Path) -> None:
    pod = Pod(0, tmp_path)
    sleep, pause = shutil.which("sleep"), tmp_path / "pause"
    assert sleep is not None
    shutil.copy(sleep, pause)
    try:
        rank, sandbox = pod.container("a" * 64), pod.container("b" * 64, str(pause))
        until(lambda: {rank.pid, sandbox.pid} <= pod.pids())
        until(lambda: [one.pid for one in Pods().processes([pod.order.uid])] == [rank.pid])
        assert Pods().processes([pod.order.uid.replace("77f0", "88f0")]) == []
    finally:
        pod.close()
