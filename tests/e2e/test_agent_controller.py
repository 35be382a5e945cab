"""`sentinel agent` and a controller's end: what the node finds arrives there once, whatever is killed in between."""

import asyncio
import signal
from pathlib import Path
from typing import Any

from sentinel.core.health import CheckState
from sentinel.transport.server import Server
from tests.e2e.agent_node import XID_31, XID_79, Node
from tests.e2e.box import Box
from tests.transport.world import World, go
from tests.waits import eventually


def reports_to(world: World, node: Node, port: int, **more: str) -> None:
    token = str(world.write_token("node-1"))
    link = {
        "addresses": [f"127.0.0.1:{port}"],
        "node": "node-1",
        "tokenFile": token,
        "caFile": str(world.bundle),
        **more,
    }
    node.settings(listen="127.0.0.1:0", controller=link)


def told(world: World, code: str) -> list[int]:
    """Sequence numbers of the reports that speak of it; 0 for full ones."""
    return [
        arrived.sequence
        for arrived in world.arrived
        if any(finding.code == code for check in arrived.report.checks for finding in check.findings)
    ]


async def page(node: Node, agent: Any, path: str) -> tuple[int, str]:
    return await asyncio.to_thread(node.get, agent, path)


def test_findings_reach_the_controller_and_wait_while_it_is_away(box: Box, tmp_path: Path) -> None:
    node = Node(box)

    async def story() -> None:
        async with World(tmp_path / "world") as world:
            server, port = await world.serve()
            reports_to(world, node, port)
            agent = await asyncio.to_thread(node.start)
            await eventually(lambda: {check.check for a in world.full() for check in a.report.checks})
            node.machine.log(XID_79)
            await eventually(lambda: told(world, "XID 79"))
            assert "sentinel_controller_connected 1" in (await page(node, agent, "/metrics"))[1]

            await server.close()
            node.machine.log(XID_31)
            await asyncio.to_thread(node.wait_code, agent, "XID 31")
            while "sentinel_controller_connected 0" not in (text := (await page(node, agent, "/metrics"))[1]):
                pass
            assert 'sentinel_reports_dropped_total{kind="event"} 0' in text
            assert (await page(node, agent, "/healthz"))[0] == 200  # to start the agent again would not help
            agent.kill()

            world.arrived.clear()
            await world.serve(port=port)
            again = await asyncio.to_thread(node.start)
            await eventually(lambda: told(world, "XID 31") and told(world, "XID 79"))
            found = {
                finding.code: finding.count
                for arrived in world.arrived
                for check in arrived.report.checks
                for finding in check.findings
            }
            assert found["XID 31"] == found["XID 79"] == 1
            again.send(signal.SIGTERM)
            assert await asyncio.to_thread(again.code) == 0

    (tmp_path / "world").mkdir()
    go(story())


def test_a_controller_is_named_left_and_taken_by_new_settings(box: Box, tmp_path: Path) -> None:
    node = Node(box)

    async def moved(world: World, server: Server) -> None:
        await eventually(lambda: any(known.connections for known in server.nodes.values()))
        assert set(server.nodes) == {"node-1"}

    async def story() -> None:
        async with World(tmp_path / "world") as world:
            agent = await asyncio.to_thread(node.start)
            first, port = await world.serve()
            reports_to(world, node, port)
            agent.send(signal.SIGHUP)
            await moved(world, first)
            second, other = await world.serve()
            reports_to(world, node, other)
            agent.send(signal.SIGHUP)
            await moved(world, second)
            await eventually(lambda: not any(known.connections for known in first.nodes.values()))
            agent.send(signal.SIGTERM)
            assert await asyncio.to_thread(agent.code) == 0

    (tmp_path / "world").mkdir()
    go(story())


def test_what_a_check_had_found_that_the_settings_no_longer_have_is_taken_back(
    box: Box, tmp_path: Path
) -> None:
    node = Node(box)
    programs = [
        {"name": name, "command": ["/bin/sh", "-c", "echo broken; exit 1"]} for name in ("one", "two")
    ]

    def last(world: World, name: str) -> tuple[CheckState, int] | None:
        told = [one for arrived in world.arrived for one in arrived.report.checks if one.check == name]
        return (told[-1].state, len(told[-1].findings)) if told else None

    async def story() -> None:
        async with World(tmp_path / "world") as world:
            _, port = await world.serve()
            node.settings(ownChecks=programs)
            reports_to(world, node, port)
            agent = await asyncio.to_thread(node.start)
            both = ("own-one", "own-two")
            await eventually(lambda: {last(world, name) for name in both} == {(CheckState.FOUND, 1)})
            node.settings(ownChecks=programs[1:])
            agent.send(signal.SIGHUP)
            await eventually(lambda: last(world, "own-one") == (CheckState.ABSENT, 0))
            state = box.state / "agent" / "state.json"
            await eventually(lambda: state.exists() and "own-two" in state.read_text())  # within seconds
            agent.kill()
            node.settings(ownChecks=[])
            again = await asyncio.to_thread(node.start)
            await eventually(lambda: last(world, "own-two") == (CheckState.ABSENT, 0))
            again.send(signal.SIGTERM)
            assert await asyncio.to_thread(again.code) == 0

    (tmp_path / "world").mkdir()
    go(story())
