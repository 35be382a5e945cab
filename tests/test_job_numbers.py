"""The jobs of a leader in numbers: counted a few at a time, gone with the jobs and with the leadership."""

import asyncio

from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

from sentinel.controller.jobs.numbers import JobMeter, count_step, numbers
from sentinel.core.decision.picture import JobPicture
from sentinel.core.model import (
    Cause,
    Incident,
    IncidentKind,
    JobState,
    Lost,
    Phase,
    ProtectedJob,
    SaveResult,
    Step,
)
from sentinel.core.now import Now
from sentinel.core.reports import Iteration, RankReport
from sentinel.core.timing.productive import lost_run_s
from sentinel.metrics.registry import Metrics
from tests.core.recovery_events import NOW, a_job, incident, verdict
from tests.waits import turns


def picture_of(job: ProtectedJob) -> JobPicture:
    made = JobPicture(job, {})
    made.timing.start(job.incarnation, job.size, NOW)
    return made


def stepping(job: ProtectedJob) -> JobPicture:
    made = picture_of(job)
    told = [Iteration(NOW.mono_s + n, step=n, hardware_ms=300.0, e2e_ms=400.0) for n in range(1, 40)]
    for rank in range(job.size):
        made.timing.fold(RankReport(job=job.name, incarnation=job.incarnation, rank=rank, iterations=told))
    return made


def past(kind: IncidentKind = IncidentKind.FORCED, *steps: tuple[Phase, float]) -> Incident:
    return incident(
        kind,
        verdict=verdict(cause=Cause.GPU),
        attempt=2,
        lost=Lost(steps=10, seconds=100.0, gpu_seconds=800.0),
        steps=tuple(Step(phase=phase, wall_s=at_s, reason="", sentence="") for phase, at_s in steps),
    )


def test_time_in_which_a_job_did_not_run_is_not_taken_from_its_run_time() -> None:
    story = [
        (Phase.STOPPING, 10.0),
        (Phase.PRECHECKING, 15.0),
        (Phase.STARTING, 55.0),
        (Phase.VERIFYING, 75.0),
        (Phase.RECOVERED, 100.0),
    ]
    assert lost_run_s(past(IncidentKind.FORCED, *story), None) == 40.0  # of 100, it was down for 60
    assert lost_run_s(past(IncidentKind.FORCED, *story), 500.0) == 45.0  # and ten steps are made again
    assert lost_run_s(past(IncidentKind.CHOSEN, *story), None) == 80.0  # it stepped while it was looked at
    assert lost_run_s(structs.replace(past(), lost=None), 500.0) == 0.0


def test_a_job_is_told_with_what_its_records_and_its_ranks_say() -> None:
    job = a_job(started_mono_s=NOW.mono_s, created_wall_s=NOW.wall_s - 10.0, incidents=1)
    picture = stepping(job)
    picture.lost_s = 20.0
    at = Now(NOW.mono_s + 50.0, NOW.wall_s + 50.0)
    told = numbers(picture, [past()], at)
    assert (told.iteration, told.step_ms, told.hardware_ms, told.ratio) == (39, 400.0, 300.0, 0.75)
    assert told.iteration_wall_s == NOW.wall_s + 39.0
    assert told.restarts == {Cause.GPU: 2}
    assert (told.productive_s, told.wall_s) == (30.0, 60.0)
    assert told.phase is None
    picture.incident = structs.replace(past(), phase=Phase.SAVING, opened_wall_s=NOW.wall_s)
    assert numbers(picture, [], at).phase == ("Saving", "gpu", NOW.wall_s)


def test_a_job_that_has_ended_is_told_by_its_records_alone() -> None:
    told = numbers(stepping(a_job(state=JobState.ERROR, incidents=3)), [past()], NOW)
    assert (told.state, told.incidents, told.restarts) == (JobState.ERROR, 3, {Cause.GPU: 2})
    assert (told.iteration, told.step_ms, told.ratio, told.productive_s, told.wall_s) == (None,) * 5


def test_only_a_save_that_was_asked_for_took_time() -> None:
    saves = [
        SaveResult(proved_by="saved", took_s=20.0),
        SaveResult(took_s=30.0),
        SaveResult(skipped="not capable"),
    ]
    metrics, before = Metrics(), incident(IncidentKind.CHOSEN, phase=Phase.SAVING)
    for save in saves:
        count_step(metrics, a_job(), before, structs.replace(before, phase=Phase.STOPPING, save=save), NOW)
    text = metrics.render()
    assert b"sentinel_time_to_save_seconds_count 2" in text
    assert b"sentinel_time_to_save_seconds_sum 50" in text


def names_in(metrics: Metrics) -> set[str]:
    found = text_string_to_metric_families(metrics.render().decode())
    return {one.labels["job_name"] for family in found for one in family.samples if "job_name" in one.labels}


def test_series_end_with_the_job_and_with_the_leadership_and_others_have_their_turn() -> None:
    pictures = {
        f"ns/job.batch/{n}": picture_of(structs.replace(a_job(), name=f"ns/job.batch/{n}")) for n in range(40)
    }
    protected = set(pictures)
    metrics = Metrics()
    now_s = NOW.mono_s

    def clock() -> Now:
        nonlocal now_s
        now_s += 0.002  # so long takes one job
        return Now(now_s, NOW.wall_s)

    async def story() -> None:
        turned = 0
        jobs = [one.job for one in pictures.values()]
        meter = JobMeter(metrics, lambda: protected, pictures, lambda job: [], lambda: 7, clock, lambda: jobs)

        async def others() -> None:
            nonlocal turned
            while True:
                turned += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(others())
        await meter.count()
        beside.cancel()
        assert turned >= 10  # 80 ms of work, 5 ms at a time
        assert names_in(metrics) == protected
        assert b"sentinel_jobs_held_back 7" in metrics.render()
        assert b'sentinel_jobs{state="running"} 40' in metrics.render()
        assert b"sentinel_kept_incidents{" in metrics.render()
        protected.remove("ns/job.batch/3")
        await meter.count()
        assert names_in(metrics) == protected
        leading = asyncio.create_task(meter.run())
        await turns()
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        assert names_in(metrics) == set()
        assert b"sentinel_jobs{" not in metrics.render()
        assert b"sentinel_jobs_held_back" not in metrics.render()
        assert b"sentinel_kept_" not in metrics.render()

    asyncio.run(story())
