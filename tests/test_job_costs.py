"""What faults have cost by the kept records: the same whoever counts, of jobs that have ended too."""

from msgspec import structs

from sentinel.controller.jobs.costs import Costs
from sentinel.core.decision.picture import JobPicture
from sentinel.core.model import Cause, Incident, IncidentKind, JobState, Lost, Phase, ProtectedJob, Symptom
from sentinel.core.now import Now
from sentinel.metrics.registry import Metrics
from tests.core.recovery_events import NOW, a_job, incident, verdict
from tests.test_metrics import value

LATER = Now(NOW.mono_s + 100.0, NOW.wall_s + 100.0)


def cost_of(
    *jobs: tuple[ProtectedJob, int | None, list[Incident]], owner: str = "ann", now: Now = LATER
) -> Metrics:
    metrics, costs = Metrics(), Costs()
    for job, gpus, incidents in jobs:
        costs.add(job, owner, gpus, incidents, now)
    costs.show(metrics)
    return metrics


def past(**changes: object) -> Incident:
    lost = Lost(steps=10, seconds=30.0, gpu_seconds=240.0)
    found = verdict(symptom=Symptom.HANG, cause=Cause.GPU, entity="n1")
    return structs.replace(
        incident(IncidentKind.FORCED, verdict=found, phase=Phase.RECOVERED, attempt=2, lost=lost), **changes
    )


def test_incidents_are_summed_up_by_what_they_were_and_by_whom_they_cost() -> None:
    failed = past(phase=Phase.FAILED, lost=None)
    first = past(verdict=verdict(symptom=Symptom.FIRST_START, cause=Cause.GPU), attempt=1, lost=None)
    metrics = cost_of((a_job(), 8, [past(), failed]), (a_job(), 8, [past(), first]))
    assert value(metrics, "kept_incidents", symptom="hang", cause="gpu", owner="ann") == 3
    assert value(metrics, "kept_incidents", symptom="hang", cause="network", owner="") == 0
    assert value(metrics, "kept_restarts", cause="gpu", owner="ann") == 6, "a first start is none"
    assert value(metrics, "kept_recoveries", cause="gpu", owner="ann") == 2
    assert value(metrics, "kept_lost_steps", cause="gpu", owner="ann") == 20
    assert value(metrics, "kept_lost_seconds", cause="gpu", owner="ann") == 60
    assert value(metrics, "kept_lost_gpu_seconds", cause="gpu", owner="ann") == 480
    assert value(metrics, "kept_node_lost_gpu_seconds", node="n1") == 480


def test_each_owner_has_sums_of_their_own_and_a_young_cluster_those_of_nobody() -> None:
    assert value(cost_of(), "kept_recoveries", cause="gpu", owner="") == 0
    metrics, costs = Metrics(), Costs()
    for owner, incidents in (("ann", [past(), past()]), ("bob", [past()])):
        costs.add(a_job(run_s=100.0, started_mono_s=None), owner, 8, incidents, LATER)
    costs.show(metrics)
    for owner, number in (("ann", 2), ("bob", 1), ("", 0)):
        assert value(metrics, "kept_recoveries", cause="gpu", owner=owner) == number
        assert value(metrics, "kept_lost_seconds", cause="gpu", owner=owner) == 30 * number
    assert value(metrics, "kept_job_gpu_seconds", time="productive", owner="ann") == 8 * (100 - 60)
    assert value(metrics, "kept_job_gpu_seconds", time="productive", owner="bob") == 8 * (100 - 30)


def test_a_job_that_has_ended_counts_as_it_stood_at_its_end() -> None:
    job = a_job(created_wall_s=NOW.wall_s - 100.0, run_s=80.0, started_mono_s=None)
    picture = JobPicture(job, {})
    picture.known_gpus = 8
    ended = picture.with_end(structs.replace(job, state=JobState.SUCCEEDED), NOW)
    assert (ended.ended_wall_s, ended.ended_gpus) == (NOW.wall_s, 8)
    assert picture.with_end(ended, LATER) == ended, "an end is not moved"
    for gpus in (None, 0, 16):  # whatever is known of it now
        metrics = cost_of((ended, gpus, [past()]))
        assert value(metrics, "kept_job_gpu_seconds", time="productive", owner="ann") == 8 * (80 - 30)
        assert value(metrics, "kept_job_gpu_seconds", time="wall", owner="ann") == 8 * 100
    again = picture.with_end(structs.replace(ended, state=JobState.RUNNING), LATER)
    assert (again.ended_wall_s, again.ended_gpus) == (None, 0)


def test_a_job_of_which_nobody_knows_how_it_does_counts_no_time() -> None:
    running = a_job(created_wall_s=NOW.wall_s, started_mono_s=NOW.mono_s)
    metrics = cost_of((running, 8, []), (running, None, [past()]), (a_job(state=JobState.ERROR), None, []))
    assert value(metrics, "kept_job_gpu_seconds", time="productive", owner="ann") == 800
    assert value(metrics, "kept_job_gpu_seconds", time="wall", owner="ann") == 800
    assert value(metrics, "kept_recoveries", cause="gpu", owner="ann") == 1
