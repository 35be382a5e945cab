"""What is decided about one job, and why: each sentence a behaviour."""

from collections import deque
from collections.abc import Mapping, Set
from enum import Enum

import pytest
from msgspec import Struct, structs

from sentinel.core.decision import books, incidents, policy
from sentinel.core.decision.picture import JobPicture
from sentinel.core.decision.policy import DAY_S, Decision, Feed, Finish, Nothing, Open
from sentinel.core.health import Component, Finding, Severity
from sentinel.core.model import (
    BadSteps,
    Budget,
    Cause,
    Failure,
    Incident,
    IncidentKind,
    JobState,
    Phase,
    ProvedCheckpoint,
    SaveResult,
    Symptom,
    Verdict,
)
from sentinel.core.now import Now
from sentinel.core.policy_model import (
    Checkpoint,
    Elastic,
    Hang,
    NanLoss,
    Performance,
    Policy,
    Proof,
    Restart,
    Resume,
)
from sentinel.core.recovery import transitions
from sentinel.core.recovery.budget import plan
from sentinel.core.recovery.events import (
    Begin,
    DeadlinePassed,
    EndRequested,
    Event,
    PrecheckPassed,
    Progressed,
    RanksStarted,
    SaveEnded,
    StopEnded,
)
from sentinel.core.reports import (
    LOSS_LOST,
    LOSS_SOUND,
    NORM_LOST,
    PACED,
    Iteration,
    LogMatch,
    RankExit,
    RankReport,
)
from sentinel.core.stacks.stillness import Looks
from sentinel.rules.failures import failure_classes
from tests.core import recovery_events as ev

NOW = ev.NOW
RESUME = Resume(max_resumes=5, checkpoint=Checkpoint(timeout_s=120.0))


def decide(picture: JobPicture, now: Now) -> Decision:
    """Twice, for all tests of this file: it changes nothing that it reads, and says the same again."""
    for rank in picture.timing.ranks.values():
        assert rank.stats or not rank.full  # made when they are asked for, of what was folded
    before = stands(picture)
    decision = policy.decide(picture, now)
    assert stands(picture) == before
    assert policy.decide(picture, now) == decision
    return decision


def stands(value: object) -> object:
    """All that an object holds, as plain data."""
    if isinstance(value, Mapping):
        return [(stands(key), stands(one)) for key, one in value.items()]
    if isinstance(value, Set):
        return sorted(map(repr, value))
    if isinstance(value, (list, tuple, deque)):
        return [stands(one) for one in value]
    if isinstance(value, Struct):
        return [stands(getattr(value, name)) for name in value.__struct_fields__]
    names = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
    if (not names and not hasattr(value, "__dict__")) or callable(value) or isinstance(value, Enum):
        return repr(value)
    held = {name: getattr(value, name, None) for name in names} | getattr(value, "__dict__", {})
    return type(value).__name__, stands(held)


def rules(*, resume: bool = True, **more: object) -> Policy:
    limits = {"resume": RESUME, "restart": None} if resume else {"restart": Restart(max_restarts=3)}
    return Policy(**(limits | more))  # type: ignore[arg-type]


def seen(asked: Policy | None = None, **more: object) -> JobPicture:
    """A job of two ranks that run, each on a GPU of its own."""
    picture = JobPicture(ev.a_job(asked or rules(), **more), failure_classes())
    picture.begin_incarnation(Now(0.0, 0.0))
    picture.alive = set(range(picture.job.size))
    picture.entities = {0: "GPU a", 1: "GPU b"}
    return picture


def steps(
    picture: JobPicture, count: int, *, first: int = 1, ratio: float = 0.5, until_s: float = NOW.mono_s
) -> None:
    """Every rank logs `count` iterations of one second, the last one at `until_s`."""
    for rank in sorted(picture.alive):
        told = [Iteration(until_s - count + 1 + n, first + n, 1000.0 * ratio, 1000.0) for n in range(count)]
        incarnation = picture.job.incarnation
        picture.timing.fold(RankReport(job="j", incarnation=incarnation, rank=rank, iterations=told))


def ends(picture: JobPicture, rank: int, *, at_s: float = NOW.mono_s, **how: object) -> None:
    given = how or {"code": 1}
    gone = RankExit(rank=rank, incarnation=picture.job.incarnation, at_s=at_s, **given)  # type: ignore[arg-type]
    picture.exits[rank] = gone
    picture.alive.discard(rank)


def finding(entity: str = "GPU a", severity: Severity = Severity.FATAL, **more: object) -> Finding:
    given: dict[str, object] = {
        "check": "kernel",
        "component": Component.GPU,
        "code": "XID 79",
        "action": "RESET_GPU",
        "summary": f"{entity} fell off the bus",
        "event": True,
        "seen_mono_s": NOW.mono_s,
    }
    return Finding(entity=entity, severity=severity, **(given | more))  # type: ignore[arg-type]


def stop(grace_s: float = 30.0, *, save: bool = False) -> EndRequested:
    return EndRequested(JobState.STOPPED, "Stopped", "Stopped by a person.", grace_s, save, 130)


def act(picture: JobPicture, decision: Decision, now: Now = NOW) -> Incident:
    """Do with the records what the controller does: open or feed, settle, keep."""
    if isinstance(decision, Open):
        before: Incident | None = None
        start = incidents.open_incident(picture, decision, now, "boot")
        event: Event = Begin(decision.reason, decision.sentence)
        if decision.key:
            picture.told.add(decision.key)
    else:
        assert isinstance(decision, Feed)
        assert picture.incident is not None
        before = start = picture.incident
        event = decision.event
    after, _ = transitions.step(start, event, now, policy.terms(picture.job.policy))
    job = books.settle(picture.job, before, after, now)
    begins = job.incarnation != picture.job.incarnation
    picture.job = job
    picture.keep_refused(after, now.mono_s)
    picture.incident = None if after.phase.final else after
    if begins:
        picture.begin_incarnation(now)
    return after


def feed(picture: JobPicture, event: Event, now: Now = NOW) -> Incident:
    return act(picture, Feed("Test", "", event), now)


def slow() -> Performance:
    return Performance(max_hardware_ratio=0.8, over=10, action="RescheduleAndAlert", straggler_ratio=None)


# ---------------------------------------------------------------- a job that runs or ends by itself


def test_a_job_that_runs_well_is_left_alone_and_that_is_said() -> None:
    picture = seen()
    steps(picture, 30)
    assert decide(picture, NOW) == Nothing("Healthy", "The job runs and nothing speaks against it.")


def test_a_job_has_succeeded_when_every_rank_ended_with_0() -> None:
    picture = seen()
    ends(picture, 0, code=0)
    assert isinstance(decide(picture, NOW), Nothing)
    ends(picture, 1, code=0)
    decision = decide(picture, NOW)
    assert isinstance(decision, Finish)
    assert (decision.state, decision.code) == (JobState.SUCCEEDED, 0)


def test_nothing_is_decided_about_a_job_that_has_ended_or_was_not_started() -> None:
    assert decide(seen(state=JobState.STOPPED), NOW).reason == "JobEnded"
    assert decide(seen(state=JobState.QUEUED), NOW).reason == "NotStarted"


def test_a_lost_rank_opens_a_forced_recovery_that_knows_the_last_step() -> None:
    picture = seen()
    steps(picture, 30)
    ends(picture, 1, signal=9)
    decision = decide(picture, NOW)
    assert isinstance(decision, Open)
    assert (decision.kind, decision.verdict.rank) == (IncidentKind.FORCED, 1)
    opened = act(picture, decision)
    assert (opened.failed_step, opened.phase) == (30, Phase.STOPPING)


def since_s(picture: JobPicture, now: Now = NOW) -> float | None:
    decision = decide(picture, now)
    assert isinstance(decision, Open), decision
    return decision.since_s


@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_a_fault_begins_with_its_own_first_trace_not_with_the_last_iteration(mode: str) -> None:
    """A job may well be in an evaluation of many minutes when its rank is lost."""

    def made(last_s: float = 400.0) -> JobPicture:
        picture = seen(rules(mode=mode), started_mono_s=100.0)
        steps(picture, 30, until_s=last_s)
        return picture

    picture = made()
    ends(picture, 1, at_s=990.0, signal=9, ended_s=988.0)
    assert since_s(picture) == 988.0, "it was seen later"
    ends(picture, 0, at_s=987.0, signal=6)
    assert mode == "observe" or since_s(picture) == 987.0, "of several the first"
    picture = made()
    picture.add_match(lost_loss())
    assert since_s(picture) == 900.0
    for first_s, began_s in ((30.0, NOW.mono_s - 30.0), (3000.0, 100.0)):
        picture = made(NOW.mono_s - 5.0)
        picture.findings = [finding(first_seen_wall_s=NOW.wall_s - first_s)]
        assert since_s(picture) == began_s, "not before it was started"
    picture, later = hung(rules(hang=Hang(after_s=30.0), mode=mode))
    assert since_s(picture, later) == NOW.mono_s, "here its silence is the trace"


def test_what_a_person_asks_for_and_what_got_worse_bit_by_bit_have_no_first_trace() -> None:
    picture = seen()
    picture.end = stop()
    assert since_s(picture) is None
    drain = {"code": "drain", "event": False, "severity": Severity.DEGRADED}
    worse = {"code": "link-errors", "event": False, "first_seen_wall_s": NOW.wall_s - DAY_S}
    for found in (finding(**drain), finding(**worse), finding(first_seen_wall_s=0.0)):  # type: ignore[arg-type]
        picture = seen(started_mono_s=10.0)
        picture.findings = [found]
        assert since_s(picture) is None


def test_after_a_reboot_the_last_step_is_the_one_that_was_recorded() -> None:
    picture = seen(last_step=77)
    lost = Open("Rebooted", "Rebooted.", IncidentKind.FORCED, ev.verdict())
    assert incidents.open_incident(picture, lost, NOW, "boot").failed_step == 77


# ---------------------------------------------------------------- findings, while the job steps


def test_a_gpu_of_a_resumable_job_is_left_with_a_chosen_recovery() -> None:
    picture = seen()
    picture.findings = [finding()]
    decision = decide(picture, NOW)
    assert isinstance(decision, Open)
    assert (decision.kind, decision.excluded) == (IncidentKind.CHOSEN, ("GPU a",))


def test_a_restart_policy_never_stops_a_job_that_steps_for_a_finding() -> None:
    picture = seen(rules(resume=False))
    picture.findings = [finding()]
    decision = decide(picture, NOW)
    assert isinstance(decision, Open)
    assert (decision.kind, decision.reason) == (IncidentKind.NOTICE, "NotResumable")


def test_a_job_that_can_run_on_one_node_only_is_stopped_neither_for_a_finding_nor_for_being_slow() -> None:
    picture = seen()
    picture.pinned, picture.findings = "n1", [finding()]
    decision = decide(picture, NOW)
    assert isinstance(decision, Open)
    assert (decision.kind, decision.reason) == (IncidentKind.NOTICE, "PinnedToNode")
    assert decision.verdict.sentence.endswith("Not moved: its pods can run on n1 only.")
    slows = seen(rules(performance=slow()))
    slows.pinned = "n1"
    steps(slows, 40, ratio=0.9)
    decision = decide(slows, NOW)
    assert isinstance(decision, Open)
    assert (decision.kind, decision.reason) == (IncidentKind.NOTICE, "PinnedToNode")


def test_a_job_without_restarts_left_is_not_stopped_for_a_finding() -> None:
    picture = seen(used_infrastructure=5)
    picture.findings = [finding()]
    decision = decide(picture, NOW)
    assert isinstance(decision, Open)
    assert (decision.kind, decision.reason) == (IncidentKind.NOTICE, "BudgetExhausted")
    assert "All 5 restarts" in decision.verdict.sentence


def test_a_finding_is_told_once_per_incarnation() -> None:
    picture = seen(rules(resume=False))
    picture.findings = [finding()]
    assert act(picture, decide(picture, NOW)).phase == Phase.KEPT_RUNNING
    assert decide(picture, NOW).reason == "AlreadyTold"


def test_a_job_that_was_kept_running_is_not_asked_again_at_every_look() -> None:
    for asked, findings in ((rules(), [finding()]), (rules(performance=slow()), [])):
        picture = seen(asked)
        picture.findings = findings
        steps(picture, 40, ratio=0.9)
        act(picture, decide(picture, NOW))
        assert feed(picture, ev.REFUSED).reason == "NoRoom"
        assert decide(picture, NOW).reason == "AlreadyTold"


def test_findings_of_other_gpus_of_lesser_weight_or_already_avoided_move_nobody() -> None:
    for one, reason, avoided in (
        (finding("GPU c"), "NotOurs", ()),
        (finding(severity=Severity.WARNING), "Healthy", ()),
        (finding(component=Component.DISK, entity="/scratch"), "NotOurs", ()),
        (finding(), "AlreadyAvoided", ("GPU a",)),
    ):
        picture = seen(excluded=avoided)
        picture.findings = [one]
        assert decide(picture, NOW).reason == reason


# ---------------------------------------------------------------- hangs


def hung(asked: Policy) -> tuple[JobPicture, Now]:
    picture = seen(asked)
    steps(picture, 60)
    later = Now(NOW.mono_s + 100, NOW.wall_s + 100)
    for rank in (0, 1):  # both logs were read to their end
        picture.timing.fold(RankReport(job="j", incarnation=4, rank=rank))
    return picture, later


def test_a_hang_forces_a_recovery_under_every_kind_of_policy() -> None:
    for resumes in (True, False):
        picture, later = hung(rules(resume=resumes, hang=Hang(after_s=30.0)))
        decision = decide(picture, later)
        assert isinstance(decision, Open)
        assert (decision.kind, decision.verdict.symptom) == (IncidentKind.FORCED, Symptom.HANG)


def test_a_hang_is_only_told_where_the_policy_asks_for_no_more() -> None:
    picture, later = hung(rules(hang=Hang(after_s=30.0, action="Alert")))
    decision = decide(picture, later)
    assert isinstance(decision, Open)
    assert (decision.kind, decision.reason) == (IncidentKind.NOTICE, "AlertOnly")


def test_a_silence_that_may_be_no_hang_is_told_once_and_nothing_is_stopped() -> None:
    picture, later = hung(rules())
    picture.timing.hang.looks = Looks()
    late = Now(later.mono_s + 1800, later.wall_s + 1800)
    decision = decide(picture, late)
    assert isinstance(decision, Open)
    assert (decision.kind, decision.reason) == (IncidentKind.NOTICE, "MayBeWell")
    assert decision.verdict.sentence.endswith(
        "It may be well: nobody could look where its ranks stand. So it is not restarted; `hang.after` in the policy "
        "names a time after which it is."
    )
    picture.told.add(decision.key)
    assert decide(picture, late) == Nothing("AlreadyTold", decision.verdict.sentence)


# ---------------------------------------------------------------- performance


def test_a_slow_job_is_moved_only_where_its_owner_asked_for_that() -> None:
    for action, kind in (("RescheduleAndAlert", IncidentKind.CHOSEN), ("Alert", IncidentKind.NOTICE)):
        picture = seen(rules(performance=structs.replace(slow(), action=action)))
        steps(picture, 40, ratio=0.9)
        decision = decide(picture, NOW)
        assert isinstance(decision, Open)
        assert (decision.kind, decision.verdict.symptom) == (kind, Symptom.SLOW)


def told_instead_of_moved(**job: object) -> Open:
    picture = seen(rules(performance=slow()), **job)
    steps(picture, 40, ratio=0.9)
    decision = decide(picture, NOW)
    assert isinstance(decision, Open)
    assert decision.kind == IncidentKind.NOTICE
    return decision


def test_a_job_is_moved_for_its_performance_at_most_twice_in_24_hours() -> None:
    twice = told_instead_of_moved(performance_moves_run_s=(NOW.mono_s - 360, NOW.mono_s - 60))
    assert "2 times in its last 24 h" in twice.verdict.sentence
    picture = seen(
        rules(performance=slow()),
        run_s=DAY_S,
        performance_moves_run_s=(NOW.mono_s - 1, NOW.mono_s + DAY_S - 60),
    )
    steps(picture, 40, ratio=0.9)
    decision = decide(picture, NOW)
    assert isinstance(decision, Open)
    assert decision.kind == IncidentKind.CHOSEN


def test_moves_for_performance_spend_restarts_and_end_with_them() -> None:
    assert told_instead_of_moved(used_job=5).reason == "BudgetExhausted"


def moved_for_slowness() -> Failure:
    return Failure(wall_s=NOW.wall_s - 600, failure="slow", budget=Budget.INFRASTRUCTURE, step=1)


def test_a_move_that_did_not_help_is_not_repeated_and_ends_all_others() -> None:
    picture = seen(rules(performance=slow()), failures=(moved_for_slowness(),))
    steps(picture, 40, ratio=0.9)
    decision = decide(picture, NOW)
    assert decision.reason == books.MOVE_DID_NOT_HELP
    act(picture, decision)
    assert "did not help" in picture.job.performance_frozen
    picture.begin_incarnation(NOW)
    picture.alive = {0, 1}
    steps(picture, 40, ratio=0.9)
    assert "did not help" in decide(picture, NOW).sentence


def test_a_move_that_helped_for_a_while_may_be_repeated() -> None:
    picture = seen(rules(performance=slow()), failures=(moved_for_slowness(),))
    steps(picture, 40, ratio=0.5)
    picture.note(NOW)
    assert decide(picture, NOW).reason == "Healthy"
    steps(picture, 40, first=41, ratio=0.9, until_s=NOW.mono_s + 40)
    decision = decide(picture, Now(NOW.mono_s + 40, NOW.wall_s + 40))
    assert isinstance(decision, Open)
    assert decision.kind == IncidentKind.CHOSEN


def test_a_restart_policy_is_told_that_a_slow_job_cannot_be_moved() -> None:
    picture = seen(rules(resume=False, performance=slow()))
    steps(picture, 40, ratio=0.9)
    decision = decide(picture, NOW)
    assert (decision.reason, isinstance(decision, Open)) == ("NotResumable", True)


# ---------------------------------------------------------------- observe


def observed(**more: object) -> JobPicture:
    return seen(rules(resume=True, mode="observe", hang=Hang(after_s=30.0), performance=slow(), **more))


def test_observe_mode_tells_of_everything_and_touches_nothing() -> None:
    lost, weak, sluggish, late = observed(), observed(), observed(), observed(max_duration_s=10.0)
    ends(lost, 1, signal=9)
    weak.findings = [finding()]
    steps(sluggish, 40, ratio=0.9)
    late.job = structs.replace(late.job, run_s=11.0)
    stuck, later = hung(rules(mode="observe", hang=Hang(after_s=30.0)))
    for picture, now in ((lost, NOW), (weak, NOW), (sluggish, NOW), (late, NOW), (stuck, later)):
        decision = decide(picture, now)
        assert isinstance(decision, Open)
        assert (decision.kind, decision.reason) == (IncidentKind.NOTICE, "Observed")
        assert act(picture, decision, now).phase == Phase.KEPT_RUNNING
        assert isinstance(decide(picture, now), Nothing)


def test_observe_mode_says_at_the_end_what_the_job_itself_ended_with() -> None:
    picture = observed()
    ends(picture, 0, code=3)
    ends(picture, 1, code=3)
    decision = decide(picture, NOW)
    assert isinstance(decision, Finish)
    assert (decision.state, decision.code) == (JobState.ERROR, 3)


def test_observe_mode_obeys_a_person() -> None:
    picture = observed()
    picture.end = stop()
    decision = decide(picture, NOW)
    assert isinstance(decision, Open)
    assert decision.kind == IncidentKind.ENDING


# ---------------------------------------------------------------- time


def test_a_job_expires_after_its_time_with_a_save() -> None:
    picture = seen(rules(max_duration_s=100.0), run_s=60.0, started_mono_s=NOW.mono_s - 39)
    assert decide(picture, NOW).reason == "Healthy"
    later = Now(NOW.mono_s + 2, NOW.wall_s)
    decision = decide(picture, later)
    assert isinstance(decision, Open)
    assert decision.end is not None
    assert (decision.end.state, decision.end.save) == (JobState.EXPIRED, True)
    assert act(picture, decision, later).phase == Phase.SAVING


def test_extend_gives_more_time_while_the_job_runs() -> None:
    picture = seen(rules(max_duration_s=100.0), run_s=101.0, extra_s=60.0)
    assert picture.time_left_s(NOW) == -941.0
    picture.job = structs.replace(picture.job, started_mono_s=NOW.mono_s)
    assert picture.time_left_s(NOW) == 59.0
    assert decide(picture, NOW).reason == "Healthy"


def test_a_job_whose_time_ends_in_a_recovery_is_not_started_again() -> None:
    picture = seen(rules(max_duration_s=100.0), run_s=101.0, started_mono_s=None)
    ends(picture, 1, signal=9)
    act(picture, decide(picture, NOW))
    decision = decide(picture, NOW)
    assert decision.reason == "Expired"
    assert act(picture, decision).end_state == JobState.EXPIRED


# ---------------------------------------------------------------- a person ends the job


def test_a_stop_is_asked_for_once_and_a_second_one_hurries_it() -> None:
    picture = seen()
    picture.end = stop(30.0)
    assert act(picture, decide(picture, NOW)).phase == Phase.STOPPING
    assert decide(picture, NOW).reason == "InProgress"
    picture.end = stop(0.0)
    decision = decide(picture, NOW)
    assert decision.reason == "EndHurried"
    assert act(picture, decision).grace_s == 0.0
    assert decide(picture, NOW).reason == "InProgress"


def test_a_stop_that_asks_for_a_save_saves_only_with_every_rank_alive() -> None:
    whole, maimed = seen(), seen()
    maimed.alive.discard(1)
    for picture, phase in ((whole, Phase.SAVING), (maimed, Phase.STOPPING)):
        picture.end = stop(save=True)
        assert act(picture, decide(picture, NOW)).phase == phase


def test_a_stop_comes_before_every_other_thing_that_a_recovery_waits_for() -> None:
    picture = seen()
    picture.findings = [finding()]
    act(picture, decide(picture, NOW))
    ends(picture, 1, signal=9)
    picture.end = stop()
    assert decide(picture, NOW).reason == "EndRequested"


# ---------------------------------------------------------------- in a recovery


def in_phase(phase: Phase, kind: IncidentKind = IncidentKind.FORCED, **more: object) -> JobPicture:
    picture = seen()
    given: dict[str, object] = {"phase_mono_s": NOW.mono_s, "deadline_mono_s": NOW.mono_s + 600}
    picture.incident = ev.incident(kind, phase=phase, opened_mono_s=NOW.mono_s - 20, **(given | more))
    return picture


def test_a_phase_that_lasts_too_long_is_ended() -> None:
    for phase in (Phase.PRECHECKING, Phase.SAVING, Phase.STOPPING, Phase.STARTING, Phase.VERIFYING):
        picture = in_phase(phase)
        picture.job = structs.replace(picture.job, best_step=100)
        assert decide(picture, NOW).reason == "InProgress"
        assert decide(picture, Now(NOW.mono_s + 600, 0.0)).reason == "DeadlinePassed"


@pytest.mark.parametrize("phase", [Phase.SAVING, Phase.STARTING, Phase.VERIFYING])
def test_a_rank_that_is_lost_where_ranks_run_is_a_fault(phase: Phase) -> None:
    picture = in_phase(phase)
    ends(picture, 0, signal=9)
    assert decide(picture, NOW).reason == "RankLost"


def test_ranks_that_end_while_they_are_stopped_are_no_fault() -> None:
    picture = in_phase(Phase.STOPPING)
    ends(picture, 0, signal=9)
    assert decide(picture, NOW).reason == "InProgress"


def test_a_job_that_ends_by_itself_before_a_chosen_stop_needs_none() -> None:
    picture = in_phase(Phase.PRECHECKING, IncidentKind.CHOSEN)
    for rank in (0, 1):
        ends(picture, rank, code=0)
    assert act(picture, decide(picture, NOW)).phase == Phase.CANCELLED
    decision = decide(picture, NOW)
    assert isinstance(decision, Finish)
    assert decision.state == JobState.SUCCEEDED


def test_ranks_that_end_while_they_save_are_judged_by_the_save() -> None:
    picture = in_phase(Phase.SAVING, IncidentKind.CHOSEN)
    for rank in (0, 1):
        ends(picture, rank, code=0)
    assert decide(picture, NOW).reason == "InProgress"


def test_ranks_that_end_after_a_late_save_are_started_again_and_the_job_has_not_succeeded() -> None:
    picture = in_phase(Phase.SAVING, IncidentKind.CHOSEN)
    steps(picture, 30)
    kept = feed(picture, SaveEnded(SaveResult(ranks=(0, 1)), False, "Not proved."))
    picture.unproved = (kept, picture.timing.iterations)
    for rank in (0, 1):
        ends(picture, rank, at_s=NOW.mono_s + 5, code=0)
    decision = decide(picture, NOW)
    assert (decision.reason, isinstance(decision, Open)) == ("EndedBySave", True)


def test_ranks_that_step_on_after_a_late_save_and_end_have_succeeded() -> None:
    picture = in_phase(Phase.SAVING, IncidentKind.CHOSEN)
    steps(picture, 30)
    kept = feed(picture, SaveEnded(SaveResult(ranks=(0, 1)), False, "Not proved."))
    picture.unproved = (kept, picture.timing.iterations)
    steps(picture, 5, first=31, until_s=NOW.mono_s + 5)
    for rank in (0, 1):
        ends(picture, rank, code=0)
    assert isinstance(decide(picture, NOW), Finish)


# ---------------------------------------------------------------- verifying


def verifying(*, failed_step: int | None = 100, best_step: int | None = 100, **more: object) -> JobPicture:
    picture = in_phase(Phase.VERIFYING, IncidentKind.FORCED, failed_step=failed_step, **more)
    picture.job = structs.replace(picture.job, best_step=best_step, steps_told=best_step is not None)
    return picture


def recovered(picture: JobPicture, now: Now = NOW) -> Progressed:
    decision = decide(picture, now)
    assert isinstance(decision, Feed), decision
    assert isinstance(decision.event, Progressed)
    return decision.event


def test_a_job_has_recovered_when_iterations_move_and_what_was_lost_is_counted() -> None:
    picture = verifying()
    steps(picture, 1, first=91)
    assert decide(picture, NOW).sentence == "Waits for iterations to move."
    steps(picture, 2, first=92)
    told = recovered(picture)
    assert (told.lost.steps, told.lost.resumed_from, told.lost.seconds) == (10, 90, 20.0)
    assert told.lost.gpu_seconds == 40.0


def test_a_job_whose_log_names_no_steps_has_recovered_when_iterations_move() -> None:
    picture = verifying(best_step=None)
    its = [Iteration(NOW.mono_s - 1 + 0.1 * k, None, None, 100.0) for k in range(PACED)]
    picture.timing.fold(RankReport(job="j", incarnation=picture.job.incarnation, rank=0, iterations=its[:2]))
    assert decide(picture, NOW).sentence == "Waits for iterations to move."
    soon, later = NOW, Now(NOW.mono_s + policy.PACE_S, 0.0)
    assert recovered(picture, later).sentence == "Stepping again.", "its iterations are long"
    picture.timing.fold(RankReport(job="j", incarnation=picture.job.incarnation, rank=0, iterations=its[2:]))
    told = recovered(picture, soon)
    assert (told.lost.steps, told.lost.resumed_from, told.sentence) == (None, None, "Stepping again.")


def test_one_whose_iterations_were_counted_is_waited_for_too_where_nothing_else_tells_of_them() -> None:
    """As after a change of leaders."""
    picture = verifying(best_step=None, failed_step=248)
    later = Now(NOW.mono_s + 2 * picture.job.policy.verify_after_s, 0.0)
    assert decide(picture, later).sentence == "Waits for iterations to move."


def test_of_an_earlier_start_whose_iterations_were_counted_no_steps_are_said_to_be_repeated() -> None:
    picture = verifying(best_step=None, failed_step=248)
    steps(picture, 3, first=5001)
    told = recovered(picture)
    assert (told.lost.steps, told.lost.resumed_from) == (None, 5000)


def test_a_start_that_has_not_come_to_its_first_step_is_at_no_step_that_was_counted() -> None:
    """Its log names steps, as earlier starts have shown: what comes before the first is none."""
    picture = seen(best_step=5000, steps_told=True)
    its = [Iteration(NOW.mono_s - 1 + 0.1 * k, None, None, 100.0) for k in range(3)]
    for rank in (0, 1):
        picture.timing.fold(
            RankReport(job="j", incarnation=picture.job.incarnation, rank=rank, iterations=its)
        )
    ends(picture, 0)
    decision = decide(picture, NOW)
    assert isinstance(decision, Open)
    assert "after 3 iterations" not in decision.verdict.sentence
    assert incidents.open_incident(picture, decision, NOW, "").failed_step is None


def test_what_an_older_record_counted_is_no_step_of_the_job() -> None:
    """Before there was `stepsTold` such a count stood in `lastStep` and `bestStep`."""
    picture = seen(last_step=248, best_step=248)
    steps(picture, 3, first=91)
    job = picture.with_progress()
    assert (job.last_step, job.best_step, job.steps_told) == (93, 93, True)


def test_what_was_lost_counts_from_the_furthest_fault_of_the_incident() -> None:
    picture = verifying(failed_step=92, top_step=100)
    steps(picture, 3, first=91)
    assert recovered(picture).lost.steps == 10


def test_a_resume_from_the_very_beginning_is_told() -> None:
    picture = verifying()
    steps(picture, 3, first=1)
    assert "from the beginning" in recovered(picture).sentence


def test_a_job_without_timing_lines_has_recovered_when_its_ranks_stay_up() -> None:
    picture = verifying(best_step=None, failed_step=None)
    assert decide(picture, NOW).reason == "InProgress"
    told = recovered(picture, Now(NOW.mono_s + picture.job.policy.verify_after_s, 0.0))
    assert told.lost.steps is None


def test_one_that_printed_iterations_before_has_recovered_when_it_does_so_again() -> None:
    """Its log may be read later than its ranks come up."""
    picture = verifying(best_step=None, failed_step=None)
    steps(picture, 3, first=91)
    picture.timing.start(picture.job.incarnation, picture.job.size, NOW)
    later = Now(NOW.mono_s + 2 * picture.job.policy.verify_after_s, 0.0)
    assert decide(picture, later).reason == "InProgress"


def test_not_recovered_before_every_rank_is_up() -> None:
    picture = verifying()
    steps(picture, 3, first=91)
    picture.alive.discard(1)
    assert decide(picture, NOW).reason == "InProgress"


# ---------------------------------------------------------------- elastic


def elastic(size: int, **more: object) -> JobPicture:
    checkpoint = Checkpoint(timeout_s=10.0, proof=Proof(log_pattern="saved"))
    asked = structs.replace(rules(elastic=Elastic(min_nodes=1)), resume=Resume(checkpoint=checkpoint))
    picture = seen(asked, size=size, original_size=2, **more)
    picture.alive = set(range(size))
    return picture


def test_a_job_grows_when_its_gpu_is_back() -> None:
    picture = elastic(1, excluded=("GPU b",))
    assert decide(picture, NOW).reason == "Healthy"
    picture.grows_to = 1
    assert decide(picture, NOW).reason == "Healthy"
    picture.entities_back, picture.grows_to = True, 2
    decision = decide(picture, NOW)
    assert isinstance(decision, Open)
    assert (decision.reason, decision.kind, decision.size) == ("Grow", IncidentKind.CHOSEN, 2)
    assert decision.verdict.budget == Budget.FREE
    assert decision.excluded == ()


def test_a_job_that_grows_goes_on_avoiding_what_is_not_well_again() -> None:
    picture = elastic(1, excluded=("node-7",))
    picture.grows_to = 2
    decision = decide(picture, NOW)
    assert isinstance(decision, Open)
    assert decision.excluded == ("node-7",)


@pytest.mark.parametrize(
    "against",
    [
        {"elastic": Elastic(allow_grow=False)},
        {"elastic": None},
        {"mode": "observe"},
        {"resume": None},
        {"resume": Resume(checkpoint=Checkpoint())},
    ],
)
def test_a_job_does_not_grow_where_its_policy_speaks_against_it(against: dict[str, object]) -> None:
    picture = elastic(1, excluded=("GPU b",))
    picture.grows_to = 2
    picture.job = structs.replace(picture.job, policy=structs.replace(picture.job.policy, **against))
    assert decide(picture, NOW).reason == "Healthy"


def test_a_job_of_one_size_for_a_short_time_only_does_not_grow() -> None:
    picture = elastic(1)
    picture.grows_to = 2
    picture.job = structs.replace(picture.job, grows_after_run_s=picture.job.run_time_s(NOW) + 1.0)
    assert decide(picture, NOW).reason == "Healthy"
    assert isinstance(decide(picture, Now(NOW.mono_s + 1.0, NOW.wall_s + 1.0)), Open)


def test_a_save_that_nothing_proved_is_no_reason_to_stop_a_healthy_job_for_more_ranks() -> None:
    picture = elastic(1)
    picture.grows_to = 2
    act(picture, decide(picture, NOW))
    feed(picture, ev.PASSED)
    unproved = SaveEnded(SaveResult(ranks=(0,)), True, "The ranks had 10 s.")
    after = feed(picture, unproved)
    assert (after.phase, after.reason) == (Phase.KEPT_RUNNING, "SaveUnproved")
    assert picture.job.size == 1
    assert picture.job.grows_after_run_s >= picture.job.run_time_s(NOW) + books.GROW_AGAIN_S
    picture.incident = None
    assert decide(picture, NOW).reason == "Healthy"


def test_a_save_after_which_all_ranks_are_gone_leaves_nothing_to_keep_running() -> None:
    picture = elastic(1)
    picture.grows_to = 2
    act(picture, decide(picture, NOW))
    feed(picture, ev.PASSED)
    gone = SaveEnded(SaveResult(ranks=(0,)), True, "The ranks ended by themselves.", ended=True)
    assert feed(picture, gone).phase == Phase.STOPPING


def test_a_larger_start_that_does_not_come_up_falls_back_to_the_old_size_for_a_while() -> None:
    picture = elastic(1)
    picture.grows_to = 2
    act(picture, decide(picture, NOW))
    feed(picture, ev.PASSED)
    growing = feed(picture, ev.SAVED)
    feed(picture, StopEnded(plan(picture.job, growing, growing.verdict, None, NOW)))
    assert picture.job.size == 2
    failed = feed(picture, DeadlinePassed())
    assert (failed.phase, failed.reason) == (Phase.STOPPING, "StartTimeout")
    waits = feed(picture, StopEnded(plan(picture.job, failed, failed.verdict, None, NOW)))
    assert incidents.wanted(picture, waits)[0] == 1
    feed(picture, PrecheckPassed(1, (), "Passed."))
    assert picture.job.size == 1
    assert picture.job.used == 0
    assert picture.job.grows_after_run_s >= books.GROW_AGAIN_S
    assert not picture.job.elastic_frozen


def test_a_failed_growth_goes_back_to_the_old_size_and_is_not_tried_again() -> None:
    picture = elastic(1, excluded=("GPU b",))
    picture.entities_back, picture.grows_to = True, 2
    act(picture, decide(picture, NOW))
    feed(picture, ev.PASSED)
    growing = feed(picture, ev.SAVED)
    feed(picture, StopEnded(plan(picture.job, growing, growing.verdict, None, NOW)))
    assert (picture.job.size, picture.job.incarnation) == (2, 5)
    feed(picture, ev.STARTED)
    picture.alive = {0, 1}
    ends(picture, 1, code=1)
    broken = act(picture, decide(picture, NOW))
    verdict = Verdict(
        symptom=Symptom.RANK_LOST,
        cause=Cause.USER_CODE,
        failure="shape-mismatch",
        scope="job",
        sentence="No.",
    )
    after = feed(picture, StopEnded(plan(picture.job, broken, verdict, 3, NOW)))
    assert picture.job.elastic_frozen
    assert after.phase == Phase.PRECHECKING
    assert incidents.wanted(picture, after)[0] == 1
    feed(picture, PrecheckPassed(1, (), "Passed."))
    feed(picture, ev.STARTED)
    picture.alive = {0}
    picture.grows_to = 2
    assert picture.job.size == 1
    assert picture.job.used == 0, "the resize was not the job's fault"
    picture.incident = None
    assert decide(picture, NOW).reason == "Healthy"


def test_an_elastic_job_asks_for_its_whole_size_at_every_restart_and_others_for_theirs() -> None:
    picture = elastic(1)
    lost = ev.incident(IncidentKind.FORCED, size=1, from_size=1, excluded=("GPU b",))
    assert incidents.wanted(picture, lost) == (2, ("GPU b",))
    plain = seen(size=2, original_size=2)
    assert incidents.wanted(plain, structs.replace(lost, from_size=2)) == (2, ("GPU b",))


def test_a_gpu_that_is_back_is_used_again_and_the_one_that_the_job_flees_now_is_not() -> None:
    picture = elastic(1, excluded=("GPU b",))
    picture.entities_back = True
    fleeing = ev.incident(IncidentKind.FORCED, size=1, from_size=1, excluded=("GPU b", "GPU a"))
    assert incidents.wanted(picture, fleeing) == (2, ("GPU a",))


def test_a_job_that_steps_comes_back_smaller_only_for_a_failing_gpu() -> None:
    def short(symptom: Symptom, kind: IncidentKind = IncidentKind.CHOSEN, **sizes: int) -> bool:
        return bool(incidents.too_small(ev.incident(kind, verdict=ev.verdict(symptom), **sizes), 2))

    assert short(Symptom.SLOW, size=4, from_size=4)
    assert short(Symptom.RESIZE, size=4, from_size=2)
    assert not short(Symptom.RESIZE, size=4, from_size=1)
    assert not short(Symptom.FINDING, size=4, from_size=4)
    assert not short(Symptom.SLOW, IncidentKind.FORCED, size=4, from_size=4)


# ---------------------------------------------------------------- what people and programs are told


def test_the_restarted_program_is_told_that_it_resumes() -> None:
    picture = seen()
    env = incidents.resume_env(picture.job, ev.incident(IncidentKind.FORCED, incarnation=5))
    assert env["SENTINEL_RESUME"] == "1"
    assert env["SENTINEL_RESTARTS"] == "4"


def test_the_exit_code_is_that_of_the_rank_to_blame() -> None:
    picture = seen()
    ends(picture, 0, at_s=1.0, code=7)
    ends(picture, 1, at_s=2.0, signal=11)
    assert picture.exit_code(1) == 139
    assert picture.exit_code(None) == 7
    assert seen().exit_code(None) is None


def lost_loss(step: int | None = 812, good_step: int | None = None) -> LogMatch:
    line = f"step: {step}  loss: nan"
    return LogMatch(
        rule=LOSS_LOST,
        failure="nan-loss",
        rank=1,
        incarnation=1,
        at_s=900.0,
        line=line,
        step=step,
        good_step=good_step,
    )


def test_a_loss_that_is_no_number_any_more_is_told_once_and_nothing_is_done() -> None:
    picture = seen()
    steps(picture, 30)
    picture.add_match(lost_loss())
    opened = decide(picture, NOW)
    assert isinstance(opened, Open)
    assert (opened.kind, opened.verdict.symptom, opened.verdict.failure) == (
        IncidentKind.NOTICE,
        Symptom.DIVERGED,
        "nan-loss",
    )
    assert opened.verdict.sentence.startswith("The loss is NaN or infinite since step 812.")
    assert opened.verdict.evidence == ("rank 1: step: 812  loss: nan",)
    picture.told.add(opened.key)
    picture.add_match(lost_loss(900))
    assert isinstance(decide(picture, NOW), Nothing)


def test_a_loss_that_is_no_number_is_told_also_of_a_job_that_ends_well() -> None:
    picture = seen()
    steps(picture, 30)
    picture.add_match(lost_loss(None))
    picture.exits = {rank: RankExit(rank=rank, incarnation=1, at_s=999.0, code=0) for rank in range(2)}
    picture.alive = set()
    opened = decide(picture, NOW)
    assert isinstance(opened, Open)
    said = "The loss is NaN or infinite in all of its last reports. So the job ended, with exit code 0."
    assert opened.verdict.sentence == said
    picture.told.add(opened.key)
    assert isinstance(decide(picture, NOW), Finish)
    picture.told.clear()
    picture.exits[1] = RankExit(rank=1, incarnation=1, at_s=999.0, code=1)
    failed = decide(picture, NOW)
    assert isinstance(failed, Open)
    assert failed.kind == IncidentKind.FORCED, "a fault comes first"


def sound_loss(step: int | None = 830) -> LogMatch:
    return structs.replace(lost_loss(step), rule=LOSS_SOUND, line=f"step: {step}  loss: 2.31")


def test_a_loss_that_is_a_number_again_before_anything_is_done_is_as_if_it_had_never_been_lost() -> None:
    for asked in (rules(), rules(nan_loss=GOES_BACK)):
        picture = seen(asked)
        steps(picture, 30, first=811)
        picture.add_match(lost_loss(820, good_step=810))
        picture.add_match(sound_loss())
        assert isinstance(decide(picture, NOW), Nothing)
        picture.add_match(lost_loss(850, good_step=840))
        again = decide(picture, NOW)
        assert isinstance(again, Open)
        assert "since step 850" in again.verdict.sentence


def test_a_lost_loss_waits_for_what_is_not_read_yet_of_its_log_while_the_job_runs() -> None:
    for asked in (rules(), rules(nan_loss=GOES_BACK)):
        picture = seen(asked)
        run = picture.job.incarnation
        steps(picture, 30, first=811)
        picture.add_match(lost_loss(820, good_step=810))
        picture.timing.fold(RankReport(job="j", incarnation=run, rank=1, caught_up=False))
        assert isinstance(decide(picture, NOW), Nothing)
        picture.end = stop()
        ends = decide(picture, NOW)
        assert isinstance(ends, Open)
        assert ends.reason == "Stopped", "it waits for nothing"
        picture.end = None
        unread = RankReport(job="j", incarnation=run, rank=1, caught_up=False, log_problem="cannot be read")
        picture.timing.fold(unread)
        assert isinstance(decide(picture, NOW), Open), "no more is to be expected"
        picture.timing.fold(RankReport(job="j", incarnation=run, rank=1))
        assert isinstance(decide(picture, NOW), Open)
        picture.timing.fold(RankReport(job="j", incarnation=run, rank=1, caught_up=False))
        picture.exits = {rank: RankExit(rank=rank, incarnation=1, at_s=999.0, code=0) for rank in range(2)}
        picture.alive = set()
        told = decide(picture, NOW)
        assert isinstance(told, Open)
        assert told.verdict.symptom == Symptom.DIVERGED, "all that it wrote was read when it ended"


def test_a_loss_that_is_lost_again_after_it_was_a_number_is_told_again_a_few_times() -> None:
    picture = seen()
    steps(picture, 30)
    told = []
    for step in range(800, 1800, 100):
        picture.add_match(lost_loss(step))
        opened = decide(picture, NOW)
        if isinstance(opened, Open):
            picture.told.add(opened.key)
            told.append(step)
        picture.add_match(sound_loss(step + 50))
    assert told == [800, 900, 1000, 1100]


def lost_norm(step: int | None = 700) -> LogMatch:
    line = f"step: {step}  loss: 2.31  grad_norm: nan"
    return structs.replace(lost_loss(step), rule=NORM_LOST, line=line)


def test_a_gradient_norm_that_stays_nan_is_told_once_in_words_of_its_own_and_no_more_behind_its_loss() -> (
    None
):
    picture = seen()
    steps(picture, 30)
    picture.add_match(lost_norm())
    opened = decide(picture, NOW)
    assert isinstance(opened, Open)
    assert (opened.kind, opened.reason) == (IncidentKind.NOTICE, "GradientNotANumber")
    assert opened.verdict.sentence.startswith("The gradient norm is NaN since step 700. The job goes on")
    assert opened.verdict.evidence == ("rank 1: step: 700  loss: 2.31  grad_norm: nan",)
    picture.told.add(opened.key)
    assert isinstance(decide(picture, NOW), Nothing)
    picture.add_match(lost_loss())
    loss = decide(picture, NOW)
    assert isinstance(loss, Open)
    assert loss.reason == "LossNotANumber", "that is news"
    picture.told = {loss.key}
    assert isinstance(decide(picture, NOW), Nothing), "the loss has said it"


def test_a_gradient_norm_that_is_nan_is_told_of_a_job_that_ends_well_and_explains_no_other_fault() -> None:
    picture = seen()
    steps(picture, 30)
    picture.add_match(lost_norm(None))
    picture.exits = {rank: RankExit(rank=rank, incarnation=1, at_s=999.0, code=0) for rank in range(2)}
    picture.alive = set()
    opened = decide(picture, NOW)
    assert isinstance(opened, Open)
    said = "The gradient norm is NaN in all of its last reports. So the job ended, with exit code 0."
    assert opened.verdict.sentence == said
    picture.told.add(opened.key)
    assert isinstance(decide(picture, NOW), Finish)
    broken, without = seen(), seen()
    broken.add_match(lost_norm())
    for one in (broken, without):
        ends(one, 1, at_s=999.0)
    assert broken.verdict(NOW) == without.verdict(NOW)


GOES_BACK = NanLoss(action="RestartAndAlert")


def undone(picture: JobPicture, match: LogMatch) -> Incident:
    """Restart for a loss that is NaN, up to the start."""
    picture.add_match(match)
    opened = decide(picture, NOW)
    assert isinstance(opened, Open)
    assert opened.kind == IncidentKind.FORCED, opened.sentence
    incident = act(picture, opened)
    last = picture.timing.last_step
    stopped = StopEnded(plan(picture.job, incident, incident.verdict, last, NOW), (), last)
    feed(picture, stopped)
    return feed(picture, PrecheckPassed(2, (), "Room."))


def test_a_policy_can_ask_that_a_job_with_a_nan_loss_goes_back_to_an_older_checkpoint() -> None:
    proved = ProvedCheckpoint(step=830, proof="saved", wall_s=1.0)
    picture = seen(rules(nan_loss=GOES_BACK), checkpoint=proved)
    steps(picture, 30, first=811)
    incident = undone(picture, lost_loss(820, good_step=810))
    assert incident.phase == Phase.STARTING
    assert incident.verdict.sentence.endswith("to resume from a checkpoint of step 810 or an older one.")
    assert picture.job.bad_steps == BadSteps(811, 850), "up to 840, and what the next report would have told"
    assert picture.job.used_job == 1
    env = incidents.resume_env(picture.job, incident)
    assert env["SENTINEL_BAD_STEPS"] == "811-850"
    assert "SENTINEL_CHECKPOINT_STEP" not in env
    fine = structs.replace(picture.job, checkpoint=structs.replace(proved, step=810))
    assert incidents.resume_env(fine, incident)["SENTINEL_CHECKPOINT_STEP"] == "810"


def test_a_nan_loss_that_comes_back_at_its_steps_is_told_and_one_further_on_is_undone_too() -> None:
    picture = seen(rules(nan_loss=GOES_BACK), bad_steps=BadSteps(811, 850))
    steps(picture, 30, first=811)
    picture.add_match(lost_loss(820, good_step=810))
    told = decide(picture, NOW)
    assert isinstance(told, Open)
    assert told.kind == IncidentKind.NOTICE
    assert "is not restarted: it was so at these steps before" in told.verdict.sentence
    earlier = seen(rules(nan_loss=GOES_BACK), bad_steps=BadSteps(2001, 2039))
    steps(earlier, 30, first=300)
    earlier.add_match(lost_loss(310, good_step=300))
    told = decide(earlier, NOW)
    assert isinstance(told, Open)
    assert told.kind == IncidentKind.NOTICE
    said = "it was so at steps 2001 to 2039 before, and is so even earlier after a restart from an older checkpoint."
    assert said in told.verdict.sentence
    further = seen(rules(nan_loss=GOES_BACK), bad_steps=BadSteps(811, 850))
    steps(further, 30, first=2000)
    undone(further, lost_loss(2010, good_step=2000))
    assert further.job.bad_steps == BadSteps(2001, 2039), "what was saved between is as good as before"
    nearby = seen(rules(nan_loss=GOES_BACK), bad_steps=BadSteps(811, 850))
    steps(nearby, 60, first=811)
    undone(nearby, lost_loss(851, good_step=840))
    assert nearby.job.bad_steps == BadSteps(811, 881)


@pytest.mark.parametrize(
    ("asked", "good_step", "more", "why"),
    [
        (rules(nan_loss=GOES_BACK), None, {}, "its log names no steps that surely count on"),
        (rules(nan_loss=GOES_BACK), 811, {"used_job": 5}, "All 5 restarts"),
        (rules(nan_loss=GOES_BACK, resume=False), 811, {}, "the policy has no `resume`"),
        (rules(nan_loss=GOES_BACK, mode="observe"), 811, {}, "Sentinel does nothing about it"),
        (rules(), 811, {}, "Sentinel does nothing about it"),
    ],
)
def test_why_a_job_with_a_nan_loss_is_not_restarted_is_told(
    asked: Policy, good_step: int | None, more: dict[str, int], why: str
) -> None:
    picture = seen(asked, **more)
    steps(picture, 30)
    picture.add_match(lost_loss(812, good_step))
    told = decide(picture, NOW)
    assert isinstance(told, Open)
    assert told.kind == IncidentKind.NOTICE
    assert why in told.verdict.sentence


def test_a_job_with_a_nan_loss_is_not_stopped_where_it_would_not_be_started_again() -> None:
    before = Failure(wall_s=0.0, run_s=1.0, failure="nan-loss", budget=Budget.JOB, step=2000)
    picture = seen(rules(nan_loss=GOES_BACK), failures=(before,))
    steps(picture, 30, first=811)
    picture.add_match(lost_loss(820, good_step=810))
    told = decide(picture, NOW)
    assert isinstance(told, Open)
    assert told.kind == IncidentKind.NOTICE
    assert "The job goes on, and is not restarted: the same ambiguous fault" in told.verdict.sentence


def test_a_program_that_resumed_from_a_checkpoint_with_a_nan_loss_is_told_so() -> None:
    """Of reports ten steps apart the first one after a start from step 810 may not have been read."""
    for first, disobeys in ((841, True), (811, False), (820, False), (825, False)):
        picture = seen(rules(nan_loss=GOES_BACK))
        steps(picture, 30, first=811)
        picture.job = picture.with_progress()
        undone(picture, lost_loss(820, good_step=810))
        feed(picture, RanksStarted("2 ranks run."))
        picture.alive = {0, 1}
        steps(picture, 3, first=first)
        recovered = decide(picture, NOW)
        assert isinstance(recovered, Feed)
        assert isinstance(recovered.event, Progressed)
        assert ("does not obey SENTINEL_BAD_STEPS" in recovered.event.sentence) is disobeys, first
