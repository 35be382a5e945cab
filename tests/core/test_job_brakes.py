"""The brake on stops of jobs that still step, counted from the incidents of all jobs."""

from sentinel.core.fleet.settings import Allowance, FleetSettings, Limit
from sentinel.core.job.brakes import held
from sentinel.core.model import Cause, Incident, IncidentKind, JobState, Phase, Step, Symptom, Verdict
from sentinel.core.now import Now

NOW = Now(1000.0, 1_000_000.0)
SETTINGS = FleetSettings(
    stops=Allowance(per_window=Limit(2), window_s=3600.0),
    pool_stops=Allowance(per_window=Limit(1), window_s=3600.0),
)
POOLS = {"a": "one", "b": "one", "c": "two", "d": ""}


def stop(job: str, ago_s: float = 60.0, kind: IncidentKind = IncidentKind.CHOSEN, **more: object) -> Incident:
    verdict = Verdict(symptom=Symptom.FINDING, cause=Cause.GPU, failure="x", scope="node", sentence="x")
    fields = {"phase": Phase.SAVING, **more}
    return Incident(
        id=f"{job}-1", job=job, kind=kind, verdict=verdict, opened_wall_s=NOW.wall_s - ago_s, **fields
    )  # type: ignore[arg-type]


def test_stops_count_in_all_and_in_each_pool() -> None:
    assert held("a", POOLS, [], SETTINGS, NOW) == ""
    assert "1 jobs that still stepped were stopped within 60 min, of 1 that are allowed in pool one." in held(
        "a", POOLS, [stop("b")], SETTINGS, NOW
    )
    assert held("c", POOLS, [stop("b")], SETTINGS, NOW) == ""
    assert "in all." in held("c", POOLS, [stop("b"), stop("d")], SETTINGS, NOW)


def test_what_was_long_ago_kept_running_or_forced_does_not_count() -> None:
    for past in (
        stop("b", ago_s=4000.0),
        stop("b", phase=Phase.KEPT_RUNNING),
        stop("b", phase=Phase.CANCELLED),
        stop("b", kind=IncidentKind.FORCED, phase=Phase.STOPPING),
        stop("b", kind=IncidentKind.ENDING, end_state=JobState.EXPIRED, steps=(saving(),)),
    ):
        assert held("a", POOLS, [past], SETTINGS, NOW) == ""


def test_a_chosen_stop_that_became_a_forced_recovery_still_counts() -> None:
    past = stop("b", kind=IncidentKind.FORCED, phase=Phase.RECOVERED, steps=(saving(),))
    assert held("a", POOLS, [past], SETTINGS, NOW)


def test_a_share_is_of_the_protected_jobs() -> None:
    half = FleetSettings(
        stops=Allowance(per_window=Limit(0, 0.5)), pool_stops=Allowance(per_window=Limit(100))
    )
    assert held("a", POOLS, [stop("b")], half, NOW) == ""
    assert held("a", POOLS, [stop("b"), stop("c")], half, NOW)


def saving() -> Step:
    return Step(phase=Phase.SAVING, wall_s=NOW.wall_s, reason="RoomFound", sentence="There is room.")
