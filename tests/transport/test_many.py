"""Many agents from another process: each with its own token, all of them heard."""

import asyncio
import re
import sys
from pathlib import Path

from sentinel.transport.limits import Limits
from tests.conftest import REPO
from tests.transport.world import World, go


def test_two_hundred_agents_from_another_process_are_all_heard(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            server, port = await world.serve(limits=Limits())
            rows = [f"node-{k} {world.issuer.token(f'node-{k}')}\n" for k in range(200)]
            (tmp_path / "tokens").write_text("".join(rows))
            words = [port, world.bundle, tmp_path / "tokens", 200, 0.5, 1.0]
            load = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.transport.load",
                *map(str, words),
                cwd=REPO,
                stdout=asyncio.subprocess.PIPE,
            )
            assert load.stdout is not None
            said = (await load.stdout.read()).decode().split("\n")
            assert [line.split()[0] for line in said[:-1]] == ["up", "latency"]
            assert {a.node for a in world.arrived if a.full} == {f"node-{k}" for k in range(200)}
            assert {a.node for a in world.arrived if not a.full} == {f"node-{k}" for k in range(200)}
            assert not any(node.refused for node in server.nodes.values())

    go(story())


def test_the_documentation_names_every_limit_with_its_value(repo: Path) -> None:
    text = (repo / "docs/transport.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", text, re.M))
    limits = {name: str(int(getattr(Limits(), name))) for name in Limits.__struct_fields__}
    assert rows == limits
