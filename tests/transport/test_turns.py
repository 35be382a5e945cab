"""Agents that speak in one moment are read in slices, and everything else has its turn between."""

import asyncio
from pathlib import Path

from sentinel.transport.limits import Limits
from sentinel.transport.turns import Turns
from sentinel.transport.wire import Batch
from tests.transport.world import Raw, World, go, report
from tests.waits import turns


class Waits:
    """A connection; `story` tells of all of them."""

    def __init__(self, story: list[str], name: str, *, fails: bool = False) -> None:
        self.story, self.name, self.fails = story, name, fails

    def wait(self) -> None:
        self.story.append(f"{self.name} waits")

    def read(self) -> None:
        self.story.append(f"{self.name} is read")
        if self.fails:
            raise OSError(107, "not connected")


def test_what_does_not_fit_into_a_slice_waits_and_others_have_their_turn_before_it() -> None:
    async def story() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        told: list[str] = []
        a, b, c, d = Waits(told, "a", fails=True), Waits(told, "b"), Waits(told, "c"), Waits(told, "d")
        served = Turns(0.0)  # any reading takes longer
        for one in (a, b, c):
            served.take(one)  # type: ignore[arg-type]
        served.leave(b)  # type: ignore[arg-type]
        asyncio.get_running_loop().call_soon(told.append, "somebody else")
        assert told == ["a waits", "b waits", "c waits"]
        await turns()
        assert told[3:] == ["a is read", "somebody else", "c is read"]
        served.take(d)  # type: ignore[arg-type]
        await turns()
        assert told[6:] == ["d waits", "d is read"]

        ample = Turns(60.0)
        ample.take(d)  # type: ignore[arg-type]
        assert told[8:] == ["d is read"], "nobody waits where there is time"

    go(story())


def test_all_that_speak_at_once_are_answered(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            _, port = await world.serve(limits=Limits(slice_ms=0))
            agents = [Raw(world, port, f"node-{k}") for k in range(50)]
            for agent in agents:
                await agent.connect()
            await asyncio.gather(*(agent.hello() for agent in agents))
            await asyncio.gather(*(agent.report(Batch(full=report(node=agent.node))) for agent in agents))
            assert sorted(one.node for one in world.arrived) == sorted(agent.node for agent in agents)

    go(story())
