"""A move that had no room: looked for without an incident, and made when there is room for some time."""

from pathlib import Path

import pytest

from sentinel.cluster.base import Room
from sentinel.core.model import Incident, Phase, Stage
from sentinel.util.errors import TemporaryError
from tests.controller_world import World, gpu_fault
from tests.test_controller import forever, play, raising

NO_ROOM = Room(size=0, reason="NoRoom", sentence="No room.")


async def kept_running(world: World) -> None:
    world.cluster.hooks["room"] = lambda: NO_ROOM
    world.steps(1, 2)
    world.checks(gpu_fault())
    await world.phase(Phase.KEPT_RUNNING)


async def looked(world: World, seconds: float) -> None:
    """The time passes, and a look at the job that is due then has come to its end."""
    before = len(world.cluster.of("unpromise"))
    world.clock.mono_s += seconds
    world.steps((world.picture.timing.last_step or 2) + 1)
    await world.until(lambda: len(world.cluster.of("unpromise")) > before or world.picture.incident)


async def moved(world: World) -> Incident:
    """Its ranks are told to save, and go on elsewhere."""
    await world.until(lambda: world.cluster.of("signal"))
    world.prints_proof()
    await world.phase(Phase.VERIFYING)
    world.steps(42, 43)
    return await world.phase(Phase.RECOVERED)


def test_a_move_that_had_no_room_is_made_when_there_is_room_for_some_time_and_no_sooner(
    tmp_path: Path,
) -> None:
    async def scene(world: World) -> None:
        await kept_running(world)
        assert world.incident.sentence == (
            "No room. It is tried again, in 20s at the earliest, when there is room and the cause still stands."
        )
        for _ in range(3):
            await looked(world, 11)
        del world.cluster.hooks["room"]
        await looked(world, 11)
        world.cluster.hooks["room"] = lambda: NO_ROOM
        await looked(world, 11)
        del world.cluster.hooks["room"]
        await looked(world, 11)
        assert len(world.store.incidents("j")) == 1, "room for a moment is none, and looks open no incident"
        assert world.cluster.of("signal") == []
        await looked(world, 11)
        done = await moved(world)
        assert (done.refusals, done.excluded) == (1, ("GPU a",))
        assert [mail.stage for mail in done.mails] == [Stage.STARTED, Stage.RECOVERED]

    world = play(tmp_path, scene)
    first, _ = world.store.incidents("j")
    assert [mail.stage for mail in first.mails] == [Stage.NOTICE]
    assert world.job.used == 1


def unanswered() -> None:
    raise TemporaryError("nobody answers on node b, the node of rank 1")


@pytest.mark.parametrize("later", [False, True])
def test_a_move_whose_ranks_could_not_be_told_to_save_is_made_when_they_can_and_a_successor_knows_it(
    tmp_path: Path, later: bool
) -> None:
    async def scene(world: World) -> None:
        world.cluster.hooks["save_capable"] = unanswered
        world.steps(1, 2)
        world.checks(gpu_fault())
        await world.until(lambda: world.picture.incident and world.incident.phase is Phase.SAVING)
        world.clock.mono_s += 20
        kept = await world.phase(Phase.KEPT_RUNNING)
        assert (kept.reason, kept.sentence) == (
            "SaveNotAsked",
            "Not saved: nobody answers on node b, the node of rank 1. It is tried again, in 20s at the earliest, when "
            "its ranks can be told to save, there is room and the cause still stands.",
        )
        if later:
            await world.again()
            world.picture.entities = {0: "GPU a", 1: "GPU b"}
            world.checks(gpu_fault())
        for _ in range(4):
            await looked(world, 61)
        assert len(world.store.incidents("j")) == 1, "there is room, and still nobody answers"
        world.cluster.catches = False
        del world.cluster.hooks["save_capable"]
        for _ in range(2):
            await looked(world, 61)
        assert len(world.store.incidents("j")) == 1, "who answers says that no rank takes the signal"
        world.cluster.catches = True
        for _ in range(2):
            await looked(world, 61)
        done = await moved(world)
        assert (done.refusals, done.save is not None and done.save.proved_by != "") == (1, True)

    world = play(tmp_path, scene)
    first, _ = world.store.incidents("j")
    assert [mail.stage for mail in first.mails] == [Stage.STARTED, Stage.NOTICE]


def test_a_job_whose_gpu_is_well_again_is_not_looked_for_room_for(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        await kept_running(world)
        await looked(world, 11)
        world.checks()
        looks = len(world.cluster.of("room"))
        for _ in range(5):
            await world.later(60)
        assert len(world.cluster.of("room")) == looks

    assert len(play(tmp_path, scene).store.incidents("j")) == 1


def test_a_look_that_breaks_is_made_again_and_ends_with_its_controller(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        await kept_running(world)
        world.cluster.hooks["room"] = raising(RuntimeError("a bug"))
        looks = len(world.cluster.of("room"))
        world.clock.mono_s += 11
        await world.until(lambda: len(world.cluster.of("room")) > looks)
        await world.until(world.at_rest)
        del world.cluster.hooks["room"]
        await looked(world, 61)
        assert world.picture.incident is None

    play(tmp_path, scene)


def test_a_successor_goes_on_looking_and_keeps_to_the_pause(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        await kept_running(world)
        await world.again()
        world.cluster.hooks.pop("room")
        world.picture.entities = {0: "GPU a", 1: "GPU b"}
        world.checks(gpu_fault())
        (refused,) = world.picture.refused.values()
        assert refused.again_mono_s == refused.at_mono_s + 20.0
        await looked(world, 11)
        assert world.picture.incident is None
        await looked(world, 11)
        await world.until(lambda: world.store.incidents("j")[-1].refusals == 1)

    play(tmp_path, scene)


def test_a_move_that_a_successor_finds_without_room_is_not_opened_once_more(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.cluster.hooks["room"] = forever
        world.steps(1, 2)
        world.checks(gpu_fault())
        await world.until(lambda: len(world.cluster.of("room")) == 2)
        await world.again()
        world.cluster.hooks["room"] = lambda: NO_ROOM
        world.picture.entities = {0: "GPU a", 1: "GPU b"}
        await world.phase(Phase.KEPT_RUNNING)
        world.checks(gpu_fault())
        await world.later(1)
        await world.until(world.at_rest)

    (incident,) = play(tmp_path, scene).store.incidents("j")
    assert (incident.phase, incident.refusals) == (Phase.KEPT_RUNNING, 0)
