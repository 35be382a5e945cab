"""What people order of a job: done once, with the record that says so, whoever is killed when."""

from pathlib import Path

from sentinel.cluster.base import Room
from sentinel.core.job.orders import Action, JobOrder, JobOrderKind, Refused, judge
from sentinel.core.model import FollowedOrder, JobState, Phase, Stage
from sentinel.core.policy_model import Policy, Restart
from tests.controller_world import RESUMABLE, World, gpu_fault
from tests.test_controller import play

ONE_RESTART = Policy(restart=Restart(max_restarts=1))
NO_ROOM = Room(size=0, reason="NoRoom", sentence="No room.")


def obey(world: World, kind: JobOrderKind, argument: str = "", id: str = "1") -> Action:
    order = JobOrder(id=id, kind=kind, job="j", argument=argument, by="anna")
    action = judge(order, world.picture.job, world.picture.incident, world.clock())
    assert not isinstance(action, Refused), action
    world.controller.obey("j", action, FollowedOrder(id, action.sentence))
    assert world.job.order == FollowedOrder(id, action.sentence), "in the record before anything else is done"
    return action


async def exhausted(world: World) -> None:
    world.steps(41, 42)
    world.ends(1)
    await world.phase(Phase.VERIFYING)
    world.steps(41, 42)
    await world.phase(Phase.RECOVERED)
    world.ends(0, 1)
    await world.phase(Phase.EXHAUSTED)
    assert world.job.state == JobState.ERROR


def test_an_exhausted_job_gets_one_more_try_that_costs_nothing(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        await exhausted(world)
        obey(world, JobOrderKind.RETRY)
        assert (world.job.state, world.incident.phase) == (JobState.QUEUED, Phase.PRECHECKING)
        await world.phase(Phase.VERIFYING)
        assert (world.job.state, world.job.incarnation, world.job.used) == (JobState.RUNNING, 3, 1)
        world.steps(41, 42)
        done = await world.phase(Phase.RECOVERED)
        assert [mail.stage for mail in done.mails] == [Stage.RECOVERED]
        world.ends(0, 1)
        again = await world.phase(Phase.EXHAUSTED)
        assert again.id != done.id
        assert world.job.used == 1

    world = play(tmp_path, scene, ONE_RESTART)
    assert [incarnation for incarnation, _, _ in world.cluster.of("start")] == [1, 2, 3]


def test_a_try_that_a_killed_controller_began_goes_on_with_the_next_one(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        await exhausted(world)
        world.cluster.hooks["room"] = lambda: NO_ROOM
        obey(world, JobOrderKind.RETRY)
        await world.until(lambda: world.incident.reason == "NoRoom")
        del world.cluster.hooks["room"]
        await world.again()
        await world.later(11)
        await world.phase(Phase.VERIFYING)
        assert world.job.order == FollowedOrder("1", "j is tried again, says anna. The try costs no restart.")

    assert play(tmp_path, scene, ONE_RESTART).job.used == 1


def test_a_move_that_looks_for_room_is_cancelled_and_the_job_runs_on(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.steps(41, 42)
        world.cluster.hooks["room"] = lambda: NO_ROOM if world.picture.incident is None else gate()
        world.checks(gpu_fault())
        await world.phase(Phase.PRECHECKING)
        obey(world, JobOrderKind.CANCEL)
        assert (world.incident.phase, world.incident.reason) == (Phase.CANCELLED, "CancelledByPerson")
        assert (world.job.state, world.picture.incident) == (JobState.RUNNING, None)
        await world.until(world.at_rest)
        await world.later(5)
        assert world.picture.incident is None, "not begun again for what it was cancelled for"

    async def gate() -> Room:
        import asyncio

        await asyncio.Event().wait()
        return NO_ROOM

    world = play(tmp_path, scene)
    assert world.cluster.of("signal") == []
    assert world.cluster.of("stop") == []


def test_a_job_that_waits_for_room_is_left_stopped_and_can_be_tried_again(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.steps(41, 42)
        world.cluster.hooks["room"] = lambda: NO_ROOM
        world.ends(1)
        await world.until(lambda: world.incident.reason == "NoRoom")
        obey(world, JobOrderKind.CANCEL)
        assert (world.job.state, world.job.reason) == (JobState.STOPPED, "CancelledByPerson")
        assert world.ended == ["j"]
        await world.later(60)
        assert len(world.cluster.of("start")) == 1
        del world.cluster.hooks["room"]
        obey(world, JobOrderKind.RETRY, id="2")
        await world.phase(Phase.VERIFYING)

    assert play(tmp_path, scene).job.incarnation == 2


def test_a_job_is_saved_stopped_and_extended_by_order(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.steps(41, 42)
        obey(world, JobOrderKind.EXTEND, "2h")
        assert world.job.extra_s == 7200.0
        obey(world, JobOrderKind.STOP, id="2")
        await world.phase(Phase.SAVING)
        await world.until(lambda: world.cluster.of("signal"))
        world.prints_proof()
        await world.phase(Phase.ENDED)
        assert (world.job.state, world.job.exit_code) == (JobState.STOPPED, 130)
        assert world.job.checkpoint is not None

    resume = RESUMABLE.resume
    play(tmp_path, scene, Policy(resume=resume, restart=None, max_duration_s=3600.0))
