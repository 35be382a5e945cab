"""A node without its controller says so, and is none the worse for it."""

import asyncio
from pathlib import Path

import pytest

from sentinel.agent import link as node_link
from sentinel.agent.node import NodeAgent
from sentinel.settings import ControllerLink, Settings
from tests.transport.world import World, go
from tests.waits import eventually


def test_a_controller_that_is_away_is_a_finding_of_the_agent_until_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_link, "SAID_AFTER_S", 0.0)
    monkeypatch.setattr(node_link, "LOOK_S", 0.02)

    async def story() -> None:
        async with World(tmp_path) as world:
            server, port = await world.serve()
            await server.close()
            link = ControllerLink(
                addresses=(f"127.0.0.1:{port}",),
                node="node-1",
                token_file=str(world.write_token()),
                ca_file=str(world.bundle),
            )
            folder = tmp_path / "agent"
            folder.mkdir()
            settings = Settings(state_dir=str(tmp_path), listen="", controller=link)
            agent = NodeAgent(settings, folder, settings_file=None, paths=(), say=lambda text: None)
            world.tasks.append(asyncio.create_task(agent.link.run()))

            await eventually(
                lambda: [f.code for f in agent.runner.book.active()] == ["controller-unreachable"]
            )
            (finding,) = agent.runner.book.active()
            assert finding.count == 1
            assert agent.health.problems(agent.health.now_s(), ()) == []

            await world.serve(port=port)
            await eventually(lambda: not agent.runner.book.active())
            await eventually(
                lambda: [r for a in world.arrived for r in a.report.checks if r.check == "agent"]
            )

    go(story())
