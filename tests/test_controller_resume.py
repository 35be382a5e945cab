"""Sentinel is killed, the machine is started again, a GPU goes and comes back: what the next one makes of it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from sentinel.cluster.local.store import LocalStore
from sentinel.core.health import CheckResult, CheckState, Severity
from sentinel.core.model import IncidentKind, JobState, Phase, Quarantine
from sentinel.core.policy_model import Performance
from tests.controller_world import RESUMABLE, World, gpu_fault
from tests.waits import eventually, turns


def held() -> Awaitable[None]:
    async def wait() -> None:
        await asyncio.Event().wait()

    return wait()


async def to_stopping(world: World) -> None:
    world.cluster.hooks["stop"] = held
    world.ends(1)
    await world.until(lambda: world.cluster.of("stop"))


async def to_prechecking(world: World) -> None:
    world.cluster.hooks["room"] = held
    world.ends(1)
    await world.until(lambda: len(world.cluster.of("room")) == 2)


async def to_starting(world: World) -> None:
    world.cluster.hooks["start"] = held
    world.ends(1)
    await world.until(lambda: len(world.cluster.of("start")) == 2)


async def to_verifying(world: World) -> None:
    world.ends(1)
    await world.phase(Phase.VERIFYING)


async def to_looking(world: World) -> None:
    world.cluster.hooks["room"] = held
    world.checks(gpu_fault())
    await world.until(lambda: len(world.cluster.of("room")) == 2)


async def to_saving(world: World) -> None:
    world.checks(gpu_fault())
    await world.until(lambda: world.cluster.of("signal"))


WHERE: dict[str, Callable[[World], Any]] = {
    "stopping": to_stopping,
    "prechecking": to_prechecking,
    "starting": to_starting,
    "verifying": to_verifying,
    "looking for room while it steps": to_looking,
    "saving": to_saving,
}


async def finish(world: World) -> None:
    """Answer what the recovery waits for, until it has recovered."""
    world.cluster.hooks.clear()

    def recovered() -> bool:
        phase = world.store.incidents("j")[-1].phase
        if phase == Phase.RECOVERED:
            return True
        if phase == Phase.SAVING and len(world.cluster.of("signal")) > 0:
            world.prints_proof()
        if phase == Phase.VERIFYING:
            world.steps(42, 43)
        if phase == Phase.PRECHECKING:
            world.clock.mono_s += 1.0  # a second fault waits for its back-off
        world.controller.cycle()
        return False

    await eventually(recovered, lambda: f"not recovered: {world.store.incidents('j')[-1].steps}")


@pytest.mark.parametrize("where", WHERE)
def test_the_next_sentinel_goes_on_where_the_killed_one_stood_and_counts_once(
    tmp_path: Path, where: str
) -> None:
    async def run() -> None:
        world = World(tmp_path)
        await world.launch()
        world.steps(41, 42)
        await WHERE[where](world)
        before = world.incident
        await world.again()
        await finish(world)
        assert world.incident.id == before.id
        assert (world.job.used, world.job.incarnation, world.job.incidents) == (1, 2, 1)
        starts = [incarnation for incarnation, _, _ in world.cluster.of("start")]
        assert sorted(set(starts)) == [1, 2]
        assert starts.count(2) == (2 if where == "starting" else 1), "only what was not answered is repeated"
        stages = [mail.stage for mail in world.incident.mails]
        assert len(stages) == len(set(stages))
        await world.controller.close()

    asyncio.run(run())


def test_mails_that_the_killed_one_left_wake_who_sends_them_and_what_became_of_a_try_wakes_nobody(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        world = World(tmp_path)
        await world.launch()
        await to_verifying(world)
        await finish(world)
        await world.again()
        assert world.mails_woken == 1
        mail = world.controller.mail
        ((incident, _),) = mail.pending()
        started, recovered = incident.mails
        mail.record(incident.id, structs.replace(started, attempts=1, error="450 not now"))
        mail.record(incident.id, structs.replace(recovered, state="sent"))
        mail.record(incident.id, structs.replace(started, state="failed", attempts=295))
        assert (world.mails_woken, mail.pending()) == (1, [])
        await world.again()
        assert (world.mails_woken, world.controller.mail.pending()) == (0, [])
        await world.controller.close()

    asyncio.run(run())


def test_a_mail_that_goes_after_a_crash_leaves_the_stop_the_time_that_it_has_anew(tmp_path: Path) -> None:
    async def run() -> None:
        world = World(tmp_path)
        await world.launch()
        await to_verifying(world)
        world.cluster.hooks["stop"] = held
        world.ends(0)
        await world.phase(Phase.STOPPING)
        world.clock.mono_s += 1.0
        await world.again()
        anew = world.controller.pictures["j"].incident
        assert anew is not None
        (started,) = anew.mails
        assert anew.deadline_mono_s != world.incident.deadline_mono_s
        sent = structs.replace(started, state="sent")
        world.controller.mail.record(anew.id, sent)
        assert world.controller.pictures["j"].incident == structs.replace(anew, mails=(sent,))
        await world.controller.close()

    asyncio.run(run())


@pytest.mark.parametrize("where", WHERE)
def test_after_a_reboot_in_any_phase_the_job_is_started_again(tmp_path: Path, where: str) -> None:
    async def run() -> None:
        world = World(tmp_path)
        await world.launch()
        world.steps(41, 42)
        await WHERE[where](world)
        world.clock.mono_s = 5.0  # the monotonic clock begins anew
        world.cluster.hooks.clear()
        await world.again(boot_id="boot-2")
        await finish(world)
        assert world.cluster.running == {world.job.incarnation: 2}
        assert world.incident.boot_id == "boot-2"
        assert world.job.used == (2 if where in ("starting", "verifying") else 1), (
            "a start that broke was paid"
        )
        await world.controller.close()

    asyncio.run(run())


def test_a_reboot_of_a_job_that_ran_well_is_an_infrastructure_fault_with_the_recorded_step(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        world = World(tmp_path)
        await world.launch()
        world.steps(41, 42)
        await world.controller.close()  # records what it learnt
        await world.again(boot_id="boot-2")
        await finish(world)
        assert (world.job.used_infrastructure, world.incident.verdict.failure) == (1, "reboot")
        assert world.incident.failed_step == 42
        await world.controller.close()

    asyncio.run(run())


def test_ranks_that_ended_meanwhile_are_a_fault_for_the_next_sentinel(tmp_path: Path) -> None:
    async def run() -> None:
        world = World(tmp_path)
        await world.launch()
        await world.again()
        world.ends(1, code=3)
        await world.phase(Phase.VERIFYING)
        assert world.job.used == 1
        await world.controller.close()

    asyncio.run(run())


def test_what_was_told_is_not_told_again_by_the_next_sentinel(tmp_path: Path) -> None:
    async def run() -> None:
        world = World(tmp_path)
        await world.launch()
        await to_looking(world)
        await world.later(61)
        await world.phase(Phase.KEPT_RUNNING)
        await world.again()
        world.checks(gpu_fault())
        await turns()
        assert len(LocalStore(world.store.path, read_only=True).incidents("j")) == 1
        await world.controller.close()

    asyncio.run(run())


def test_the_next_sentinel_knows_that_the_job_was_fast(tmp_path: Path) -> None:
    """Else it would take slowness right after its own start for a restart that did not help."""

    async def run() -> None:
        policy = structs.replace(RESUMABLE, performance=Performance(max_hardware_ratio=0.66))
        world = World(tmp_path, policy)
        await world.launch()
        assert world.job.fast_incarnation == 0
        for number in range(30):
            await world.later(1)
            world.steps(number + 1)
        assert world.job.fast_incarnation == 1
        await world.again()
        assert world.picture.was_fast
        world.ends(1)
        await world.phase(Phase.VERIFYING)
        assert not world.picture.was_fast
        await world.controller.close()

    asyncio.run(run())


def test_a_stopped_job_that_was_killed_in_between_stays_stopped(tmp_path: Path) -> None:
    async def run() -> None:
        world = World(tmp_path)
        await world.launch()
        world.cluster.hooks["stop"] = held
        world.end()
        await world.until(lambda: world.cluster.of("stop"))
        world.cluster.hooks.clear()
        await world.again()
        await world.phase(Phase.ENDED)
        assert (world.job.state, world.job.exit_code) == (JobState.STOPPED, 130)
        assert world.incident.kind == IncidentKind.ENDING
        await world.controller.close()

    asyncio.run(run())


# ---------------------------------------------------------------- isolations


def isolations(world: World) -> list[Quarantine]:
    return LocalStore(world.store.path, read_only=True).quarantines(active_only=False)


async def moved_off_a_gpu(tmp_path: Path) -> World:
    world = World(tmp_path)
    await world.launch()
    world.steps(41, 42)
    await to_saving(world)
    await finish(world)
    return world


def test_a_gpu_that_is_left_for_a_finding_is_recorded_with_what_must_hold_before_it_is_used_again(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        world = await moved_off_a_gpu(tmp_path)
        (one,) = isolations(world)
        assert (one.entity, one.ended_wall_s, one.boot_id) == ("GPU a", None, "boot-1")
        assert [finding.code for finding in one.findings] == ["XID 79"]
        assert "RESET_GPU" in one.needs
        await world.controller.close()

    asyncio.run(run())


def test_an_isolation_ends_when_its_findings_are_gone_and_a_later_one_is_another(tmp_path: Path) -> None:
    async def run() -> None:
        world = await moved_off_a_gpu(tmp_path)
        world.checks()
        (ended,) = isolations(world)
        assert ended.ended_by == "its findings are gone"
        assert ended.ended_wall_s == world.clock().wall_s
        world.clock.mono_s += 10
        world.checks(gpu_fault())
        assert [one.ended_wall_s is None for one in isolations(world)] == [False, True]
        await world.controller.close()

    asyncio.run(run())


def test_an_isolation_of_a_gpu_that_the_job_could_not_leave_ends_too(tmp_path: Path) -> None:
    async def run() -> None:
        world = World(tmp_path)
        await world.launch()
        await to_looking(world)
        await world.later(61)
        await world.phase(Phase.KEPT_RUNNING)
        assert [one.ended_wall_s for one in isolations(world)] == [None]
        world.checks()
        assert isolations(world)[0].ended_by == "its findings are gone"
        await world.controller.close()

    asyncio.run(run())


def test_an_isolation_by_another_sentinel_is_left_to_it_until_the_machine_was_started_again(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        world = World(tmp_path)
        for entity, boot in (("GPU x", "boot-1"), ("GPU y", "boot-0")):
            theirs = Quarantine(
                entity=entity, since_wall_s=1.0, findings=(gpu_fault(entity),), needs="", boot_id=boot
            )
            world.store.save(quarantines=[theirs])
        await world.launch()
        await world.again()
        world.checks()
        assert {one.entity: one.ended_by for one in isolations(world)} == {
            "GPU x": "",
            "GPU y": "the machine was started again, and its findings are gone",
        }
        await world.controller.close()

    asyncio.run(run())


def test_an_isolation_that_a_person_ends_says_so(tmp_path: Path) -> None:
    async def run() -> None:
        world = await moved_off_a_gpu(tmp_path)
        world.controller.release("GPU a")
        world.checks()
        assert [one.ended_by for one in isolations(world)] == ["released by a person"]
        await world.controller.close()

    asyncio.run(run())


def test_after_a_restart_an_isolation_holds_until_its_check_has_looked_again(tmp_path: Path) -> None:
    """Silence is not health: neither the record ends nor may the job grow."""

    async def run() -> None:
        world = await moved_off_a_gpu(tmp_path)
        await world.again()
        world.report(checks=(CheckResult(check="disk", state=CheckState.OK),))
        assert isolations(world)[0].ended_wall_s is None
        assert not world.picture.entities_back
        world.checks(gpu_fault())
        assert not world.picture.entities_back
        world.checks()
        assert world.picture.entities_back
        assert isolations(world)[0].ended_wall_s is not None
        await world.controller.close()

    asyncio.run(run())


def test_a_gpu_with_a_mere_warning_is_not_isolated(tmp_path: Path) -> None:
    async def run() -> None:
        world = World(tmp_path)
        await world.launch()
        world.checks(gpu_fault(severity=Severity.WARNING))
        assert isolations(world) == []
        assert world.store.incidents("j") == []
        await world.controller.close()

    asyncio.run(run())
