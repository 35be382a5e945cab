"""The controller's promises: saved before performed, late outcomes ignored, every broken effect a named state."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sentinel.cluster.base import Room, StopOutcome
from sentinel.controller.effects import perform
from sentinel.controller.jobs.save_looks import AGAIN_MOST_S, UNREAD_S
from sentinel.core.decision.blindness import BLIND, NO_FORMAT, NO_LINE, needs_stacks
from sentinel.core.decision.picture import LOG_GONE_S
from sentinel.core.health import Component, Severity
from sentinel.core.model import JobState, Phase, Stage
from sentinel.core.policy_model import Hang, Policy, Restart, TimingFormat
from sentinel.core.recovery.moves import START_TRIES
from sentinel.core.reports import RankReport
from sentinel.util.errors import PermanentError, TemporaryError
from tests.controller_world import RESUMABLE, World, gpu_fault, without_proof
from tests.waits import turns

Play = Callable[[World], Coroutine[Any, Any, None]]


def play(state: Path, scene: Play, policy: Policy = RESUMABLE) -> World:
    """Run one scene with a launched job; nothing of it may be left behind."""

    async def run() -> World:
        world = World(state, policy)
        await world.launch()
        try:
            await scene(world)
        finally:
            await world.controller.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}, "a background task without an owner"
        return world

    return asyncio.run(run())


def raising(error: Exception) -> Callable[[], Any]:
    def hook() -> None:
        raise error

    return hook


def forever() -> Awaitable[None]:
    async def wait() -> None:
        await asyncio.Event().wait()

    return wait()


# ---------------------------------------------------------------- the straight line


def test_a_lost_rank_is_stopped_started_verified_and_told(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.steps(41, 42)
        world.ends(1)
        await world.phase(Phase.VERIFYING)
        world.steps(41, 42)
        done = await world.phase(Phase.RECOVERED)
        assert done.lost is not None
        assert (done.lost.steps, done.lost.resumed_from) == (2, 40)
        assert [mail.stage for mail in done.mails] == [Stage.STARTED, Stage.RECOVERED]

    world = play(tmp_path, scene)
    assert world.cluster.names() == ["room", "start", "stop", "stuck", "room", "room", "start"]
    assert world.cluster.of("stop") == [(1, 2.0)]
    incarnation, size, env = world.cluster.of("start")[-1]
    assert (incarnation, size, env["SENTINEL_RESUME"]) == (2, 2, "1")
    assert (world.job.state, world.job.used, world.job.incarnation) == (JobState.RUNNING, 1, 2)
    assert world.link.drained == ["j"]
    assert world.link.followed == [(1, 2), (2, 2)]
    assert world.mails_woken == 2


def test_a_gpu_fault_is_left_after_a_proved_save_and_the_proof_is_kept(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.steps(40, 41)
        world.checks(gpu_fault())
        world.cluster.gpus.append("GPU c")
        await world.phase(Phase.SAVING)
        await world.until(lambda: world.cluster.of("signal"))
        world.prints_proof()
        await world.phase(Phase.VERIFYING)

    world = play(tmp_path, scene)
    assert world.cluster.of("signal") == [(1, (0, 1), "SIGUSR1")]
    assert world.cluster.of("stop") == [(1, 30.0)]
    assert world.job.checkpoint is not None
    assert world.job.checkpoint.step == 41
    assert world.job.excluded == ("GPU a",)
    assert world.cluster.of("start")[-1][2]["SENTINEL_CHECKPOINT_STEP"] == "41"


def test_each_effect_finds_its_phase_already_in_the_records(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.ends(1)
        await world.phase(Phase.VERIFYING)

    calls = play(tmp_path, scene).cluster.calls
    assert [(name, phase) for name, _, phase in calls] == [
        ("room", ""),
        ("start", ""),
        ("stop", "Stopping"),
        ("stuck", "Stopping"),
        ("room", "Prechecking"),
        ("room", "Starting"),
        ("start", "Starting"),
    ]


def test_what_cannot_be_recorded_is_not_done_and_is_done_once_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        with monkeypatch.context() as broken:
            broken.setattr(world.store, "save", lambda **what: raising(OSError("no space"))())
            with pytest.raises(OSError, match="no space"):
                world.ends(1)
            await turns()
            assert world.cluster.of("stop") == []
            assert world.picture.incident is None
        await world.phase(Phase.VERIFYING)

    assert play(tmp_path, scene).job.used == 1


# ---------------------------------------------------------------- effects that hang


def test_a_hung_precheck_keeps_a_stepping_job_running_and_its_late_answer_is_ignored(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        gate = asyncio.Event()
        world.cluster.hooks["room"] = gate.wait
        world.checks(gpu_fault())
        await world.until(lambda: len(world.cluster.of("room")) == 2)
        await world.later(61)
        kept = await world.phase(Phase.KEPT_RUNNING)
        assert kept.reason == "PrecheckTimeout"
        gate.set()
        await world.until(world.at_rest)
        assert world.incident == kept

    assert play(tmp_path, scene).cluster.of("signal") == []


def test_a_hung_save_is_ended_by_its_time_and_the_job_runs_on(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.checks(gpu_fault())
        await world.until(lambda: world.cluster.of("signal"))
        await world.later(61)
        kept = await world.phase(Phase.KEPT_RUNNING)
        assert kept.reason == "SaveUnproved"

    assert play(tmp_path, scene).cluster.of("stop") == []


def test_a_hung_stop_is_asked_for_again_without_grace_and_then_a_person_is_told(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.cluster.hooks["stop"] = forever
        world.ends(1)
        await world.until(lambda: len(world.cluster.of("stop")) == 1)
        await world.later(100)
        await world.until(lambda: len(world.cluster.of("stop")) == 2)
        await world.later(100)
        failed = await world.phase(Phase.FAILED)
        assert failed.reason == "StopStuck"

    world = play(tmp_path, scene)
    assert world.cluster.of("stop") == [(1, 2.0), (1, 0.0)]
    assert world.ended == ["j"]
    assert world.job.state == JobState.ERROR


def test_a_hung_start_is_stopped_again_and_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perform, "START_SETTLES_S", 0.05)

    async def scene(world: World) -> None:
        world.cluster.hooks["start"] = forever
        world.ends(1)
        await world.until(lambda: len(world.cluster.of("start")) == 2)
        await world.later(601)
        await world.until(lambda: len(world.cluster.of("stop")) == 2)
        del world.cluster.hooks["start"]
        await world.phase(Phase.PRECHECKING)
        await world.later(60)
        await world.phase(Phase.VERIFYING)

    world = play(tmp_path, scene)
    assert [incarnation for incarnation, _, _ in world.cluster.of("start")] == [1, 2, 3]
    assert [incarnation for incarnation, _ in world.cluster.of("stop")] == [1, 2]
    assert world.job.used == 1


def test_a_job_that_never_shows_progress_is_not_verified_for_ever(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.steps(41, 42)
        world.ends(1)
        await world.phase(Phase.VERIFYING)
        await world.later(3601)
        kept = await world.phase(Phase.KEPT_RUNNING)
        assert kept.reason == "NotVerified"

    policy = Policy(restart=Restart(), hang=type(Policy().hang)(action="Alert"))
    play(tmp_path, scene, policy)


# ---------------------------------------------------------------- effects that break


def test_a_precheck_that_breaks_keeps_a_stepping_job_running(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.cluster.hooks["room"] = raising(ValueError("torn"))
        world.checks(gpu_fault())
        kept = await world.phase(Phase.KEPT_RUNNING)
        assert kept.reason == "PrecheckBroke"
        assert "torn" in kept.sentence

    play(tmp_path, scene)


def test_a_precheck_that_breaks_is_tried_again_for_a_job_that_does_not_run(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.cluster.hooks["room"] = raising(ValueError("torn"))
        world.ends(1)
        await world.until(lambda: world.incident.reason == "PrecheckBroke")
        assert world.job.state == JobState.QUEUED
        del world.cluster.hooks["room"]
        await world.later(11)
        await world.phase(Phase.VERIFYING)

    play(tmp_path, scene)


def test_a_stop_that_breaks_or_leaves_processes_is_a_failure_that_names_them(tmp_path: Path) -> None:
    for number, hook in enumerate(
        (
            raising(ValueError("pid 42 (D in nvidia_close)")),
            lambda: StopOutcome(gone=False, stuck=("pid 42 (D in nvidia_close)",)),
        )
    ):

        async def scene(world: World, hook: Callable[[], Any] = hook) -> None:
            world.cluster.hooks["stop"] = hook
            world.ends(1)
            failed = await world.phase(Phase.FAILED)
            assert failed.reason == "StopStuck"
            assert "pid 42 (D in nvidia_close)" in failed.sentence

        world = play(tmp_path / str(number), scene)
        assert len(world.cluster.of("start")) == 1, "nothing is started beside what is left"


def test_a_start_that_fails_for_now_is_stopped_tried_again_and_given_up_after_some_tries(
    tmp_path: Path,
) -> None:
    async def scene(world: World) -> None:
        world.cluster.hooks["start"] = raising(TemporaryError("the supervisor does not answer"))
        world.ends(1)
        for tries in range(1, START_TRIES + 1):
            await world.until(lambda tries=tries: len(world.cluster.of("stop")) == 1 + tries)  # type: ignore[misc]
            await world.later(301)
        failed = await world.phase(Phase.FAILED)
        assert failed.reason == "StartFailed"

    world = play(tmp_path, scene)
    assert len(world.cluster.of("start")) == 1 + START_TRIES
    assert world.job.used == 1


def test_a_command_that_is_gone_fails_at_once_with_its_reason(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.cluster.hooks["start"] = raising(PermanentError("no such program", "NotFound"))
        world.ends(1)
        failed = await world.phase(Phase.FAILED)
        assert (failed.reason, failed.sentence) == ("NotFound", "no such program")

    world = play(tmp_path, scene)
    assert (world.job.state, world.job.exit_code) == (JobState.ERROR, None)


def test_a_first_start_without_room_says_why(tmp_path: Path) -> None:
    async def run() -> None:
        world = World(tmp_path)
        world.cluster.hooks["room"] = lambda: Room(size=0, reason="NoRoom", sentence="No GPU is healthy.")
        with pytest.raises(PermanentError, match="No GPU is healthy"):
            await world.launch()
        assert world.cluster.of("start") == []

    asyncio.run(run())


# ---------------------------------------------------------------- room


def test_a_chosen_stop_whose_room_was_taken_meanwhile_waits_for_it(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.checks(gpu_fault())
        await world.until(lambda: world.cluster.of("signal"))
        world.cluster.hooks["room"] = lambda: Room(size=0, reason="NoRoom", sentence="No room.")
        world.prints_proof()
        await world.until(lambda: world.incident.reason == "NoRoom")
        assert world.incident.phase == Phase.PRECHECKING
        del world.cluster.hooks["room"]
        await world.later(11)
        await world.phase(Phase.VERIFYING)

    assert play(tmp_path, scene).job.used == 1


def test_a_job_that_has_no_room_for_hours_is_started_when_there_is_some(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.cluster.hooks["room"] = lambda: Room(size=0, reason="NoRoom", sentence="No room.")
        world.steps(1, 2)
        world.ends(1)
        await world.until(lambda: world.incident.reason == "NoRoom")
        for _ in range(8):
            asked = len(world.cluster.of("room"))
            await world.later(3600)
            await world.until(lambda asked=asked: len(world.cluster.of("room")) > asked)
        del world.cluster.hooks["room"]
        await world.later(11)
        await world.phase(Phase.VERIFYING)
        world.steps(3, 4)
        done = await world.phase(Phase.RECOVERED)
        assert [step.reason for step in done.steps].count("NoRoom") == 1
        assert [mail.stage for mail in done.mails] == [Stage.STARTED, Stage.RECOVERED]

    assert play(tmp_path, scene).job.used == 1


def test_a_job_that_waits_for_room_too_long_fails_with_that_reason(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.cluster.hooks["room"] = lambda: Room(size=0, reason="NoRoom", sentence="No room.")
        world.ends(1)
        await world.until(lambda: world.incident.reason == "NoRoom")
        await world.later(13 * 3600)
        failed = await world.phase(Phase.FAILED)
        assert (failed.reason, failed.sentence) == ("NoRoom", "No room.")

    play(tmp_path, scene)


# ---------------------------------------------------------------- ranks that end by themselves


def test_a_save_that_makes_the_ranks_exit_0_is_not_the_jobs_success(tmp_path: Path) -> None:
    for name, policy in (("proof", RESUMABLE), ("none", without_proof(RESUMABLE))):

        async def scene(world: World) -> None:
            world.checks(gpu_fault())
            await world.until(lambda: world.cluster.of("signal"))
            if world.policy is RESUMABLE:
                world.prints_proof()
            world.ends(0, 1, code=0)
            await world.phase(Phase.VERIFYING)

        world = play(tmp_path / name, scene, policy)
        assert (world.job.state, world.job.incarnation) == (JobState.RUNNING, 2)
        assert (world.job.checkpoint is not None) == (name == "proof")


def test_ranks_that_exit_0_after_a_save_that_was_given_up_are_started_again(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.steps(40, 41)
        world.checks(gpu_fault())
        await world.until(lambda: world.cluster.of("signal"))
        await world.later(61)
        await world.phase(Phase.KEPT_RUNNING)
        world.ends(0, 1, code=0)
        await world.phase(Phase.VERIFYING)

    world = play(tmp_path, scene)
    assert (world.job.incarnation, world.job.excluded) == (2, ("GPU a",))


def test_what_our_own_stop_ends_is_no_evidence(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        ours = {}

        def survivors_end() -> None:
            world.ends(0, signal=15)
            ours.update({rank: gone.stopped_by_us for rank, gone in world.picture.exits.items()})

        world.cluster.hooks["stop"] = survivors_end
        world.ends(1, code=2)
        await world.phase(Phase.VERIFYING)
        assert ours == {0: True, 1: False}
        assert world.incident.verdict.rank == 1

    play(tmp_path, scene)


def test_what_the_kernel_wrote_of_a_dead_rank_is_in_the_verdict_however_late_it_is_read(
    tmp_path: Path,
) -> None:
    async def scene(world: World) -> None:
        killed = gpu_fault("pid 101", component=Component.SYSTEM, code="oom-kill", action="", pid=101)
        world.link.told_in_the_end = lambda: world.checks(killed)
        world.steps(41, 42)
        world.ends(1)
        await world.phase(Phase.VERIFYING)
        assert world.incident.verdict.cause == "host memory"

    play(tmp_path, scene)


def test_what_the_driver_said_of_a_program_that_ran_before_is_not_laid_to_this_one(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        started_s = world.job.started_mono_s
        assert started_s is not None
        before = gpu_fault(
            "GPU b", code="XID 43", severity=Severity.WARNING, action="IGNORE", seen_mono_s=started_s - 1.0
        )
        world.steps(41, 42)
        world.checks(before)
        world.clock.mono_s += 20.0
        world.ends(1, signal=6)
        await world.phase(Phase.VERIFYING)
        assert world.incident.verdict.failure != "illegal-access"
        world.clock.mono_s += 20.0
        world.steps(43)
        world.checks(msgspec.structs.replace(before, seen_mono_s=world.clock.mono_s))
        world.ends(1, signal=6)
        await world.until(lambda: world.incident.verdict.failure == "illegal-access")

    play(tmp_path, scene)


def test_the_exit_code_of_the_rank_to_blame_is_in_the_record_of_a_job_that_failed(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.ends(1, code=2)
        await world.phase(Phase.EXHAUSTED)

    world = play(tmp_path, scene, Policy(restart=Restart(max_restarts=0)))
    assert (world.job.state, world.job.exit_code) == (JobState.ERROR, 2)


# ---------------------------------------------------------------- a person ends the job


def test_ctrl_c_twice_asks_for_the_stop_again_at_once_and_the_first_outcome_is_ignored(
    tmp_path: Path,
) -> None:
    async def scene(world: World) -> None:
        gate = asyncio.Event()
        world.cluster.hooks["stop"] = gate.wait
        world.end(30.0)
        await world.until(lambda: len(world.cluster.of("stop")) == 1)
        world.end(0.0)
        await world.until(lambda: len(world.cluster.of("stop")) == 2)
        assert world.incident.phase == Phase.STOPPING
        gate.set()
        await world.phase(Phase.ENDED)

    world = play(tmp_path, scene)
    assert world.cluster.of("stop") == [(1, 30.0), (1, 0.0)]
    assert (world.job.state, world.job.exit_code) == (JobState.STOPPED, 130)
    assert world.ended == ["j"]


def test_a_job_that_is_to_end_by_now_is_stopped_though_somebody_else_has_let_it_run(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        def started_by_others() -> StopOutcome:
            world.end(600.0)
            world.cluster.hooks["stop"] = lambda: StopOutcome(gone=True)
            return StopOutcome(gone=False, waits="It was started by kubectl-patch.", theirs=True)

        world.cluster.hooks["stop"] = started_by_others
        world.ends(1)
        await world.phase(Phase.ENDED)

    world = play(tmp_path, scene)
    assert len(world.cluster.of("stop")) == 2
    assert world.job.state == JobState.STOPPED


def test_the_outcome_of_an_effect_that_cannot_be_cancelled_comes_too_late(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        async def stubborn() -> StopOutcome:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
            return StopOutcome(gone=False, stuck=("pid 42",))

        world.cluster.hooks["stop"] = stubborn
        world.end(30.0)
        await world.until(lambda: world.cluster.of("stop"))
        gate = asyncio.Event()
        world.cluster.hooks["stop"] = gate.wait
        world.end(0.0)
        await world.until(lambda: len(world.cluster.of("stop")) == 2)
        await turns()
        assert world.incident.phase == Phase.STOPPING
        gate.set()
        await world.phase(Phase.ENDED)

    play(tmp_path, scene)


def test_a_stop_in_the_middle_of_a_start_waits_for_the_order_that_cannot_be_called_back(
    tmp_path: Path,
) -> None:
    """A stop before it would find nothing to stop, and the ranks would run on without an owner."""

    async def scene(world: World) -> None:
        gate = asyncio.Event()
        world.cluster.hooks["start"] = gate.wait
        world.ends(1)
        await world.until(lambda: len(world.cluster.of("start")) == 2)
        world.end()
        await world.phase(Phase.STOPPING)
        await turns()
        assert len(world.cluster.of("stop")) == 1
        gate.set()
        await world.phase(Phase.ENDED)

    world = play(tmp_path, scene)
    assert world.cluster.running == {}


def test_a_stop_while_nothing_runs_ends_the_job(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.cluster.hooks["room"] = lambda: Room(size=0, reason="NoRoom", sentence="No room.")
        world.ends(1)
        await world.until(lambda: world.incident.reason == "NoRoom")
        world.end()
        await world.phase(Phase.ENDED)

    assert len(play(tmp_path, scene).cluster.of("start")) == 1


@pytest.mark.parametrize(
    ("formats", "note"), [((), NO_FORMAT), ((TimingFormat(id="ours", pattern=r"n (?P<step>\d+)"),), NO_LINE)]
)
def test_a_job_in_whose_output_no_iteration_is_seen_says_so_until_one_is(
    tmp_path: Path, formats: tuple[TimingFormat, ...], note: str
) -> None:
    def printing(world: World, prints: bool) -> None:
        at_s = world.clock.mono_s
        world.report(ranks=(RankReport(job="j", incarnation=1, rank=0, alive_s=at_s, prints=prints),))
        world.controller.cycle()

    async def scene(world: World) -> None:
        printing(world, prints=False)
        assert not world.job.degraded
        printing(world, prints=True)
        assert world.job.degraded == (note,)
        assert len([one for one in world.said if BLIND in one]) == 1
        world.clock.mono_s += 100.0
        printing(world, prints=True)
        assert len([one for one in world.store.events("j") if one.reason == "Degraded"]) == 1
        world.steps(1)
        world.controller.cycle()
        assert not world.job.degraded

    play(tmp_path, scene, msgspec.structs.replace(RESUMABLE, timing_formats=formats))


def test_a_job_that_tells_no_iteration_for_as_long_as_a_start_may_take_says_so_though_it_prints_nothing(
    tmp_path: Path,
) -> None:
    async def scene(world: World) -> None:
        world.clock.mono_s += world.job.policy.start_timeout_s
        world.controller.cycle()
        assert not world.job.degraded, "nobody has read its log"
        read = (
            RankReport(job="j", incarnation=1, rank=rank, caught_up=True) for rank in range(world.job.size)
        )
        world.report(ranks=tuple(read))
        world.controller.cycle()
        assert world.job.degraded == (NO_FORMAT,)
        world.steps(1)
        world.controller.cycle()
        assert not world.job.degraded

    play(tmp_path, scene)


def test_that_an_older_version_saw_no_iterations_is_over_with_the_first_one(tmp_path: Path) -> None:
    old = "no iterations are seen in its output, so that nothing tells slow steps: its policy can name the format"

    async def scene(world: World) -> None:
        picture = world.controller.pictures["j"]
        picture.job = msgspec.structs.replace(picture.job, degraded=("other", old))
        world.steps(1)
        world.controller.cycle()
        assert world.job.degraded == ("other",)

    play(tmp_path, scene)


def test_a_log_that_vanishes_is_told_of_a_rank_that_runs_and_of_none_that_has_ended_or_is_stopped(
    tmp_path: Path,
) -> None:
    def vanished(world: World, *ranks: int, older: int = 0) -> list[str]:
        job = world.picture.job.incarnation - older
        world.report(
            ranks=tuple(
                RankReport(job="j", incarnation=job, rank=rank, log_problem="vanished") for rank in ranks
            )
        )
        return [one.sentence for one in world.store.events("j") if one.reason == "LogProblem"]

    async def scene(world: World) -> None:
        world.steps(1)
        assert vanished(world, 0, 1, older=1) == [], "of an earlier start"
        assert vanished(world, 1) == [], "that its rank ends with it may not be known yet"
        world.clock.mono_s += LOG_GONE_S
        world.controller.cycle()
        assert vanished(world, 1) == ["The log of rank 1: vanished."]
        assert vanished(world, 0) == vanished(world, 1)
        world.cluster.hooks["stop"] = forever
        world.ends(1)
        await world.until(lambda: "stop" in world.cluster.names())
        world.clock.mono_s += LOG_GONE_S
        world.controller.cycle()
        assert len(vanished(world, 0, 1)) == 1

    play(tmp_path, scene)


def test_of_a_rank_that_has_ended_well_nobody_is_told_that_its_log_is_gone(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.steps(1)
        world.ends(1, code=0)
        gone = RankReport(job="j", incarnation=world.picture.job.incarnation, rank=1, log_problem="vanished")
        world.report(ranks=(gone,))
        world.clock.mono_s += LOG_GONE_S
        world.controller.cycle()
        assert world.picture.alive == {0}
        assert not [one for one in world.store.events("j") if one.reason == "LogProblem"]

    play(tmp_path, scene)


def test_ranks_that_do_not_catch_the_signal_are_told_once_and_until_they_do(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        world.cluster.catches = False
        world.clock.mono_s += UNREAD_S - 1.0  # it loads its model
        world.controller.cycle()
        await turns()
        assert not world.job.save_note
        world.steps(1)
        world.controller.cycle()
        await world.until(lambda: world.job.save_note)
        for _ in range(5):
            world.clock.mono_s += AGAIN_MOST_S
            world.controller.cycle()
            await turns()
        assert len([one for one in world.store.events("j") if one.reason == "NotSaveCapable"]) == 1
        world.cluster.catches = True
        world.clock.mono_s += AGAIN_MOST_S
        world.controller.cycle()
        await world.until(lambda: not world.job.save_note)

    play(tmp_path, scene)


def test_with_a_time_of_the_owners_a_hang_depends_on_stacks_only_where_no_iterations_are_seen(
    tmp_path: Path,
) -> None:
    async def scene(world: World) -> None:
        assert not needs_stacks(world.picture)
        world.report(ranks=(RankReport(job="j", incarnation=1, rank=0, prints=True),))
        world.controller.cycle()
        assert needs_stacks(world.picture)
        world.steps(1)
        world.controller.cycle()
        assert not needs_stacks(world.picture)
        world.report(ranks=(RankReport(job="j", incarnation=1, rank=0, unsure=True),))
        assert needs_stacks(world.picture), "what is told may be no iterations"

    play(tmp_path, scene, msgspec.structs.replace(RESUMABLE, hang=Hang(after_s=3600.0)))


@pytest.mark.parametrize("said", [False, True])
def test_a_job_that_prints_nothing_or_no_more_than_its_first_words_is_not_called_blind_within_the_time_of_a_start(
    tmp_path: Path, said: bool
) -> None:
    async def scene(world: World) -> None:
        if said:
            at_s = world.clock.mono_s
            world.report(ranks=(RankReport(job="j", incarnation=1, rank=0, alive_s=at_s),))
        world.clock.mono_s += world.job.policy.start_timeout_s - 1.0
        world.controller.cycle()
        assert not world.job.degraded, "it may load"

    play(tmp_path, scene)
