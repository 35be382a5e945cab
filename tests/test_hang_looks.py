"""A silent job is looked at by the loop of the controller, and what the looks find decides."""

from pathlib import Path

from msgspec import structs

from sentinel.core.model import IncidentKind, Phase
from sentinel.core.policy_model import Hang
from tests.controller_world import RESUMABLE, World
from tests.test_controller import play, raising

STILL = (
    "rank {rank}: pid 7 (S in futex_do_wait), CPU 1.00 s (main thread 1.00 s), helpers' CPU 0.00 s, "
    "I/O 10 bytes, 5 sleeps (9 of all threads)\n"
    'Thread 7 (idle): "MainThread"\n    barrier (torch/distributed/distributed_c10d.py:1)\n    {place}'
)


def stacks(place: str = "main (train.py:12)") -> tuple[str, ...]:
    return tuple(STILL.format(rank=rank, place=place) for rank in (0, 1))


async def steps(world: World) -> None:
    for step in range(1, 41):
        world.clock.mono_s += 1
        world.steps(step)


async def silent(world: World, seconds: float) -> None:
    """Time passes, and each look that is due in it comes to its end."""
    until_s = world.clock.mono_s + seconds
    while world.clock.mono_s < until_s:
        world.clock.mono_s += 10
        world.report()
        world.controller.cycle()
        await world.until(world.at_rest)


def test_a_job_whose_ranks_stand_still_is_stopped_and_started_again(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.cluster.hooks["stacks"] = stacks
        await steps(world)
        await silent(world, 110)
        assert world.cluster.of("stacks") == [(0, 1)] * 4
        assert not [one for one in world.store.incidents("j") if one.kind == IncidentKind.FORCED]
        await silent(world, 20)
        await world.phase(Phase.VERIFYING)
        verdict = world.incident.verdict
        assert verdict.symptom == "hang"
        assert "looks at the stacks of ranks 0, 1: none has moved" in verdict.evidence[-1]
        world.steps(40, 41, 42)
        await world.phase(Phase.RECOVERED)

    play(tmp_path, scene)


def test_a_job_that_hangs_again_at_the_same_step_is_given_twice_as_long(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.cluster.hooks["stacks"] = stacks
        await steps(world)
        await silent(world, 130)
        await world.phase(Phase.VERIFYING)
        await steps(world)
        await world.phase(Phase.RECOVERED)
        await silent(world, 230)
        assert len(world.cluster.of("stop")) == 1
        world.clock.mono_s += 20
        world.report()
        await world.until(lambda: len(world.cluster.of("stop")) == 2)

    play(tmp_path, scene)


def test_a_job_that_was_ended_in_an_evaluation_is_not_ended_in_the_next_one(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.cluster.hooks["stacks"] = lambda: stacks("evaluate (train.py:40)")
        await steps(world)
        world.clock.mono_s += 60
        world.report()
        await world.until(lambda: world.cluster.of("stop"))
        await world.phase(Phase.VERIFYING)
        assert world.store.job("j").failures[-1].pause == "evaluate (train.py:40)"
        for step in range(41, 81):
            world.clock.mono_s += 1
            world.steps(step)
        await world.phase(Phase.RECOVERED)
        await silent(world, 3590)
        assert len(world.cluster.of("stop")) == 1
        world.clock.mono_s += 20
        world.report()
        await world.until(lambda: len(world.cluster.of("stop")) == 2)

    play(tmp_path, scene, structs.replace(RESUMABLE, hang=Hang(after_s=60.0)))


def test_a_job_whose_ranks_move_is_left_alone_and_told_of_after_half_an_hour(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.cluster.hooks["stacks"] = lambda: stacks(f"score (evaluate.py:{len(world.cluster.calls)})")
        await steps(world)
        before = len(world.store.incidents("j"))
        await silent(world, 1780)
        assert len(world.store.incidents("j")) == before
        await silent(world, 30)
        told = await world.phase(Phase.KEPT_RUNNING)
        assert (told.kind, told.reason) == (IncidentKind.NOTICE, "MayBeWell")
        assert "It may be well: rank 0 moves: it comes to barrier (torch" in told.sentence
        assert len(told.stacks) == 2
        assert "evaluate.py" in told.stacks[1]
        await silent(world, 1200)
        assert len(world.store.incidents("j")) == before + 1
        assert world.cluster.of("stop") == []
        world.cluster.hooks["stacks"] = stacks  # now it hangs
        await silent(world, 900)
        await world.until(lambda: world.cluster.of("stop"))

    play(tmp_path, scene)


def test_a_look_that_breaks_is_counted_and_proves_nothing(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.cluster.hooks["stacks"] = raising(RuntimeError("no agent"))
        await steps(world)
        await silent(world, 300)
        assert len(world.cluster.of("stacks")) > 3
        assert world.cluster.of("stop") == []

    play(tmp_path, scene)


def test_a_sentinel_that_comes_back_looks_anew(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.cluster.hooks["stacks"] = stacks
        await steps(world)
        await silent(world, 110)
        again = await world.again()
        again.cluster.hooks["stacks"] = stacks
        again.steps(*range(1, 42))  # the log is read from its beginning
        again.clock.mono_s += 130
        looked = len(again.cluster.of("stacks"))
        await silent(again, 20)
        assert len(again.cluster.of("stacks")) == looked + 1
        assert again.cluster.of("stop") == []
        await silent(again, 90)
        await again.until(lambda: again.cluster.of("stop"))

    play(tmp_path, scene)
