"""May the job start again, when, and at whose cost."""

import pytest
from msgspec import structs

from sentinel.core.decision import books, policy
from sentinel.core.model import (
    Budget,
    Cause,
    Failure,
    Incident,
    IncidentKind,
    Phase,
    ProtectedJob,
    ProvedCheckpoint,
    Symptom,
    Verdict,
)
from sentinel.core.now import Now
from sentinel.core.policy_model import Policy, Restart, Resume
from sentinel.core.recovery import budget, transitions
from sentinel.core.recovery.budget import BACKOFF_MAX_S, plan_after_stop, restarts_left
from sentinel.core.recovery.events import Event, Plan, StopEnded
from sentinel.core.recovery.moves import RETRY_PRECHECK_S, START_TRIES
from sentinel.rules.failures import failure_classes
from tests.core import recovery_events as ev

NOW = ev.NOW
DAY_S = 86_400.0


def job(limits: Resume | Restart | None = None, best_step: int | None = 40, **more: object) -> ProtectedJob:
    more |= {"best_step": best_step, "steps_told": best_step is not None}
    if isinstance(limits, Resume):
        return ev.a_job(Policy(resume=limits, restart=None), **more)
    return ev.a_job(Policy(restart=limits or Restart(max_restarts=3)), **more)


def failed(
    at: int | None, failure: str = "user-exit", *, ago_s: float = 60.0, checkpoint: int | None = None
) -> Failure:
    return Failure(
        wall_s=NOW.wall_s - ago_s,
        run_s=NOW.mono_s - ago_s,
        failure=failure,
        budget=Budget.JOB,
        step=at,
        checkpoint_step=checkpoint,
    )


def of(failure: str, **more: object) -> Verdict:
    """The verdict of a class as it is shipped."""
    row = failure_classes()[failure]
    return Verdict(
        symptom=Symptom.RANK_LOST,
        cause=row.cause,
        failure=failure,
        scope=row.scope,
        sentence="Rank 0 was lost.",
        advice=row.advice,
        budget=row.budget,
        restart=row.restart,
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    "failure", ["import-error", "syntax-error", "shape-mismatch", "cuda-oom", "not-found"]
)
def test_errors_of_the_user_are_not_restarted_and_the_advice_is_given(failure: str) -> None:
    plan = plan_after_stop(job(), of(failure), 5, NOW)
    assert (plan.restart, plan.exhausted, plan.reason) == (False, False, "NotRestartable")
    assert failure_classes()[failure].advice in plan.sentence


def test_an_ambiguous_fault_is_tried_once_and_then_follows_the_job() -> None:
    first = plan_after_stop(job(), of("segfault"), 40, NOW)
    assert first.restart
    for step in (40, 30):
        again = plan_after_stop(job(failures=(failed(40, "segfault"),)), of("segfault"), step, NOW)
        assert (again.restart, again.reason) == (False, "FollowsTheJob")


def test_an_ambiguous_fault_that_comes_further_on_is_a_new_one() -> None:
    assert plan_after_stop(job(failures=(failed(40, "segfault"),)), of("segfault"), 41, NOW).restart


def test_every_restart_says_what_it_costs_and_what_is_left() -> None:
    plan = plan_after_stop(job(used_job=1), of("user-exit"), 40, NOW)
    assert "1 of 3 left after it" in plan.sentence
    free = plan_after_stop(job(used_job=3), of("preempted"), 40, NOW)
    assert free.restart
    assert "free of cost" in free.sentence


def test_the_budget_is_absolute_for_both_causes_together() -> None:
    exhausting: tuple[dict[str, object], ...] = (
        {"used_job": 3},
        {"used_infrastructure": 3},
        {"used_job": 1, "used_infrastructure": 2},
    )
    for used in exhausting:
        for failure in ("user-exit", "gpu-hardware"):
            plan = plan_after_stop(job(None, **used), of(failure), 40, NOW)
            assert (plan.restart, plan.exhausted, plan.reason) == (False, True, "BudgetExhausted")


def test_each_cause_has_a_limit_of_its_own_where_the_policy_sets_one() -> None:
    limits = Resume(max_resumes=9, max_infrastructure=2, max_job=1)
    at_job_limit = job(limits, used_job=1, used_infrastructure=1)
    refused = plan_after_stop(at_job_limit, of("user-exit"), 40, NOW)
    assert (refused.restart, refused.exhausted) == (False, True)
    assert "1 restarts for job faults" in refused.sentence
    assert plan_after_stop(at_job_limit, of("gpu-hardware"), 40, NOW).restart
    assert not plan_after_stop(job(limits, used_infrastructure=2), of("gpu-hardware"), 40, NOW).restart


def test_preemption_is_free_even_when_nothing_is_left() -> None:
    assert plan_after_stop(job(used_job=3), of("preempted"), 40, NOW).restart


def test_a_long_time_without_failures_gives_the_budget_back_only_where_the_policy_says_so() -> None:
    used = {"used_job": 3, "failures": (failed(10, ago_s=DAY_S + 1),)}
    assert not plan_after_stop(job(Restart(max_restarts=3), **used), of("user-exit"), 40, NOW).restart
    resets = job(Restart(max_restarts=3, max_job=3, reset_after_s=DAY_S), **used)
    assert restarts_left(resets, NOW) == 3
    assert plan_after_stop(resets, of("user-exit"), 40, NOW).restart
    recent = structs.replace(resets, failures=(failed(10, ago_s=DAY_S - 1),))
    assert not plan_after_stop(recent, of("user-exit"), 40, NOW).restart


def test_a_policy_without_restarts_restarts_nothing() -> None:
    none = ev.a_job(Policy(restart=None))
    assert plan_after_stop(none, of("user-exit"), 40, NOW).reason == "NoRestartPolicy"


def test_three_failures_at_one_step_with_no_newer_checkpoint_are_given_up_early() -> None:
    twice = (failed(40), failed(40))
    assert plan_after_stop(job(failures=twice[:1]), of("user-exit"), 40, NOW).restart
    plan = plan_after_stop(job(failures=twice), of("user-exit"), 40, NOW)
    assert (plan.restart, plan.reason) == (False, "NoProgress")
    assert "3 times at step 40" in plan.sentence
    assert plan_after_stop(job(failures=twice), of("user-exit"), 41, NOW).restart
    newer = job(failures=twice, checkpoint=ProvedCheckpoint(step=39, proof="a line", wall_s=0.0))
    assert plan_after_stop(newer, of("user-exit"), 40, NOW).restart
    before = plan_after_stop(job(failures=(failed(None), failed(None))), of("user-exit"), None, NOW)
    assert "failed 3 times before its log told of a step after the start, with no newer" in before.sentence


@pytest.mark.parametrize("failure", ["unreachable", "storage-io", "connection", "rendezvous", "network"])
def test_a_server_that_is_away_for_minutes_costs_the_budget_and_does_not_end_the_job(failure: str) -> None:
    def away(*ago_s: float) -> Plan:
        before = tuple(failed(40, failure, ago_s=ago) for ago in ago_s)
        return plan_after_stop(job(Resume(max_resumes=10), failures=before), of(failure), 40, NOW)

    assert (away(90.0, 60.0).restart, away(90.0, 60.0).delay_s) == (True, 10.0)
    assert away(900.0, 600.0, 300.0, 90.0).delay_s == 40.0
    plan = away(1900.0, 900.0, 600.0, 300.0)
    assert (plan.restart, plan.reason) == (False, "NoProgress")
    assert "failed 5 times at step 40" in plan.sentence
    spent = job(Resume(max_resumes=2), failures=(failed(40, failure),) * 2, used_infrastructure=2)
    assert plan_after_stop(spent, of(failure), 40, NOW).reason == "BudgetExhausted"


def test_cards_that_fail_at_one_step_are_given_up_early() -> None:
    """Perhaps the program breaks them, one after the other."""
    twice = (failed(40, "gpu-ecc"), failed(40, "gpu-ecc"))
    assert plan_after_stop(job(failures=twice), of("gpu-ecc"), 40, NOW).reason == "NoProgress"


def test_hangs_at_one_step_may_be_an_evaluation_before_its_save_and_are_given_up_later() -> None:
    patient = Restart(max_restarts=20)
    hung = (failed(40, "hang"), failed(40, "hang"))
    assert plan_after_stop(job(patient, failures=hung), of("hang"), 40, NOW).restart
    plan = plan_after_stop(job(patient, failures=hung + hung + hung[:1]), of("hang"), 40, NOW)
    assert (plan.restart, plan.reason) == (False, "NoProgress")
    assert "6 times at step 40" in plan.sentence
    in_pause = tuple(structs.replace(one, pause="evaluate (train.py:3)") for one in hung)
    plan = plan_after_stop(job(patient, failures=in_pause), of("hang"), 40, NOW)
    assert "3 times at step 40" in plan.sentence, "it had the longest time already"
    unread = (failed(None, "hang"), failed(None, "hang"))
    assert not plan_after_stop(job(patient, failures=unread), of("hang"), None, NOW).restart, (
        "not given more time"
    )
    # Nor are they counted among what ends a program there.
    assert plan_after_stop(job(patient, failures=(*hung, failed(40))), of("user-exit"), 40, NOW).restart
    mixed = (failed(40), *hung, failed(40))
    assert plan_after_stop(job(patient, failures=mixed), of("user-exit"), 40, NOW).reason == "NoProgress"


def test_a_job_that_made_steps_in_an_earlier_life_is_not_said_to_have_made_none() -> None:
    twice = (failed(None), failed(None))
    for best in (None, 40):  # None: its log may name none, and it made some all the same
        said = plan_after_stop(job(failures=twice, best_step=best), of("user-exit"), None, NOW)
        assert said.reason == "NoProgress"
        assert "its first step" not in said.sentence


def test_a_job_that_names_no_steps_and_ran_for_hours_between_its_failures_is_not_given_up_early() -> None:
    apart = (failed(None, ago_s=3 * DAY_S), failed(None, ago_s=2 * DAY_S), failed(None, ago_s=DAY_S))
    unnamed = job(Resume(max_resumes=9), None, failures=apart)
    plan = plan_after_stop(unnamed, of("user-exit"), None, NOW)
    assert (plan.restart, plan.delay_s) == (True, 0)
    ambiguous = (failed(None, "segfault", ago_s=DAY_S),)
    assert plan_after_stop(job(None, None, failures=ambiguous), of("segfault"), None, NOW).restart
    # One whose steps are known did not come to its first: that is no progress however long it took.
    known = job(Resume(max_resumes=9), failures=apart, best_step=40)
    assert plan_after_stop(known, of("user-exit"), None, NOW).reason == "NoProgress"


def test_iterations_that_are_counted_from_each_start_do_not_tell_who_came_further() -> None:
    """A log that names no steps: one start made 900 iterations, the next one 200 from a later checkpoint."""
    later = (failed(900, "segfault", ago_s=3 * 3600.0),)
    assert plan_after_stop(job(None, None, failures=later), of("segfault"), 200, NOW).restart
    soon = (failed(900, "segfault", ago_s=600.0),)
    assert plan_after_stop(job(None, None, failures=soon), of("segfault"), 200, NOW).reason == "FollowsTheJob"
    # Each start may print a line an hour, and end before the second.
    apart = (failed(1, ago_s=6 * 3600.0), failed(1, ago_s=3 * 3600.0))
    assert plan_after_stop(job(None, None, failures=apart), of("user-exit"), 1, NOW).restart
    at_once = (failed(200, ago_s=1200.0), failed(200, ago_s=600.0))
    plan = plan_after_stop(job(None, None, failures=at_once), of("user-exit"), 200, NOW)
    assert plan.reason == "NoProgress"
    assert "failed 3 times after 200 iterations with no newer checkpoint" in plan.sentence
    # The silence in which a hang is recognised is no progress, though it is an hour by now.
    hung = tuple(failed(200, "hang", ago_s=(5 - k) * 3800.0) for k in range(5))
    unnamed = job(Restart(max_restarts=20, reset_after_s=3600.0), None, failures=hung)
    assert plan_after_stop(unnamed, of("hang"), 200, NOW).reason == "NoProgress"
    others = (failed(310, ago_s=1200.0), failed(270, ago_s=600.0))
    assert plan_after_stop(job(None, None, failures=others), of("user-exit"), 200, NOW).restart


def test_preemptions_at_one_step_are_no_lack_of_progress() -> None:
    assert plan_after_stop(job(failures=(failed(40), failed(40))), of("preempted"), 40, NOW).restart


def test_the_first_restart_comes_at_once_and_failures_without_progress_wait_longer_each_time() -> None:
    def delay(*steps: int, now_at: int) -> float:
        return budget.backoff_s(
            job(failures=tuple(failed(step) for step in steps)), of("user-exit"), now_at, NOW
        )

    assert delay(now_at=10) == 0
    assert delay(10, now_at=10) == 5
    assert delay(10, 10, now_at=10) == 10
    assert delay(10, 9, 8, now_at=7) == 20
    assert delay(10, 20, 30, now_at=40) == 0, "each got further"
    assert delay(*[10] * 19, now_at=10) == BACKOFF_MAX_S


def test_an_unknown_exit_is_restarted_as_the_policy_says() -> None:
    unknown = of("exit-unknown")
    for limits, asked, restarts in (
        (Resume(), "auto", True),
        (Restart(), "auto", False),
        (Restart(), "restart", True),
        (Resume(), "fail", False),
    ):
        who = job(limits)
        who = structs.replace(who, policy=structs.replace(who.policy, unknown_exit=asked))
        plan = plan_after_stop(who, unknown, 40, NOW)
        assert plan.restart == restarts
        assert restarts or plan.reason == "ExitUnknown"


def test_a_gpu_that_is_to_blame_is_avoided_and_one_that_the_program_broke_is_not() -> None:
    hardware = of("gpu-hardware", entity="GPU a")
    assert plan_after_stop(job(), hardware, 40, NOW).avoid == "GPU a"
    assert plan_after_stop(job(), of("segfault", entity="GPU a"), 40, NOW).avoid == ""


# ---------------------------------------------------------------- what the incident adds


def forced(**more: object) -> Incident:
    return ev.incident(IncidentKind.FORCED, phase=Phase.STOPPING, **more)


def test_a_start_that_did_not_come_up_is_not_judged_again_by_the_budget_that_it_paid() -> None:
    """The present failure stands in the books already: it would look like a second one."""
    spent = job(used_job=3, failures=(failed(40, "segfault"), failed(40, "segfault"), failed(40, "segfault")))
    late = forced(paid=True, attempt=1, failed_starts=1, verdict=of("segfault"), failed_step=40)
    plan = budget.plan(spent, late, late.verdict, 40, NOW)
    assert (plan.restart, plan.reason, plan.delay_s) == (True, "StartsAgain", RETRY_PRECHECK_S)


def test_starts_that_never_come_up_end_after_some_tries_with_longer_pauses() -> None:
    plans = [
        budget.plan(job(), forced(paid=True, failed_starts=n), ev.verdict(), None, NOW)
        for n in range(1, START_TRIES + 1)
    ]
    assert [p.restart for p in plans] == [True] * (START_TRIES - 1) + [False]
    delays = [p.delay_s for p in plans if p.restart]
    assert delays == sorted(delays)
    assert delays[0] < delays[-1] <= BACKOFF_MAX_S
    assert plans[-1].reason == "StartFailed"


def test_a_failed_first_start_of_a_larger_size_goes_back_for_free_whatever_the_error() -> None:
    grown = forced(attempt=1, size=4, from_size=2)
    for failure in ("shape-mismatch", "gpu-hardware"):
        plan = budget.plan(job(Resume(), used_job=5), grown, of(failure), 3, NOW)
        assert (plan.restart, plan.reason, plan.verdict.budget) == (True, "ResizeFailed", Budget.FREE)


def test_a_failed_first_start_of_a_smaller_size_is_blamed_on_it_only_for_what_the_program_did() -> None:
    shrunk = forced(attempt=1, size=1, from_size=2)
    assert budget.plan(job(Resume()), shrunk, of("shape-mismatch"), 3, NOW).reason == "ResizeFailed"
    assert budget.plan(job(Resume()), shrunk, of("gpu-hardware"), 3, NOW).reason == "Restart"
    first = forced(attempt=0, size=1, from_size=2)
    assert budget.plan(job(Resume()), first, of("shape-mismatch"), 3, NOW).reason == "NotRestartable"


def test_the_step_that_the_drained_logs_tell_is_the_one_that_counts() -> None:
    plan = budget.plan(job(), forced(failed_step=40), of("user-exit"), 43, NOW)
    assert plan.failed_step == 43
    assert budget.plan(job(), forced(failed_step=40), of("user-exit"), None, NOW).failed_step == 40


# ---------------------------------------------------------------- the books


def settle(who: ProtectedJob, before: Incident, event: Event) -> ProtectedJob:
    after, _ = transitions.step(before, event, NOW, policy.terms(who.policy))
    return books.settle(who, before, after, NOW)


def prechecking(verdict: Verdict, **more: object) -> Incident:
    given = {"steps": (), "deadline_mono_s": 9e9, "verdict": verdict, "phase": Phase.PRECHECKING}
    return ev.incident(IncidentKind.FORCED, **(given | more))


@pytest.mark.parametrize(
    ("cause", "field"),
    [
        (Budget.INFRASTRUCTURE, "used_infrastructure"),
        (Budget.JOB, "used_job"),
        (Budget.FREE, "used_free"),
    ],
)
def test_a_start_is_booked_to_its_cause_with_the_failure_that_it_follows(cause: Budget, field: str) -> None:
    verdict = ev.verdict(budget=cause, cause=Cause.GPU, entity="GPU a", failure="gpu-hardware")
    booked = settle(job(), prechecking(verdict, failed_step=40), ev.PASSED)
    assert getattr(booked, field) == 1
    assert booked.used + booked.used_free == 1
    (failure,) = booked.failures
    assert (failure.step, failure.failure, failure.entity) == (40, "gpu-hardware", "GPU a")
    assert booked.incarnation == 5


def test_a_retried_start_is_booked_once() -> None:
    booked = settle(job(), prechecking(ev.verdict(), paid=True), ev.PASSED)
    assert booked.used + booked.used_free == 0
    assert booked.failures == ()


def test_a_budget_that_was_given_back_counts_anew_from_the_next_start() -> None:
    limits = Restart(max_restarts=3, reset_after_s=DAY_S)
    old = job(limits, used_job=2, used_infrastructure=1, failures=(failed(1, ago_s=2 * DAY_S),))
    booked = settle(old, prechecking(ev.verdict()), ev.PASSED)
    assert (booked.used_job, booked.used_infrastructure) == (0, 1)


def test_a_step_of_the_clock_gives_no_budget_back() -> None:
    limits = Restart(max_restarts=3, reset_after_s=DAY_S)
    spent = job(limits, used_job=3, failures=(failed(1),))
    stepped = Now(NOW.mono_s + 1, NOW.wall_s + 30 * DAY_S)
    assert restarts_left(spent, stepped) == 0
    assert restarts_left(spent, Now(NOW.mono_s + DAY_S, NOW.wall_s - 30 * DAY_S)) == 3


def test_only_the_last_failures_are_kept() -> None:
    many = job(failures=tuple(failed(n) for n in range(budget.KEPT_FAILURES)))
    booked = settle(many, prechecking(ev.verdict(), failed_step=999), ev.PASSED)
    assert len(booked.failures) == budget.KEPT_FAILURES
    assert booked.failures[-1].step == 999


def test_the_run_clock_stands_while_the_job_waits_and_counts_over_incarnations() -> None:
    running = job(started_mono_s=NOW.mono_s - 50, run_s=100.0)
    queued = settle(running, ev.incident(IncidentKind.FORCED, phase=Phase.STOPPING), StopEnded(ev.plan(True)))
    assert (queued.state, queued.run_s, queued.started_mono_s) == ("queued", 150.0, None)
    later = Now(NOW.mono_s + 500, NOW.wall_s + 500)
    assert queued.run_time_s(later) == 150.0


def test_restarts_that_cost_nothing_have_a_limit_within_an_hour_and_the_next_one_waits() -> None:
    free = [
        structs.replace(failed(n, ago_s=3000.0 - n), budget=Budget.FREE) for n in range(budget.FREE_PER_HOUR)
    ]
    plan = plan_after_stop(job(failures=tuple(free[1:])), of("pod-preempted"), 90, NOW)
    assert (plan.restart, plan.delay_s) == (True, 0.0)
    plan = plan_after_stop(job(failures=tuple(free)), of("pod-preempted"), 90, NOW)
    assert plan.restart
    assert plan.delay_s == pytest.approx(600.0)
    assert "in 600 s: it did 12 times within the hour, the limit of what costs nothing" in plan.sentence
    paid = plan_after_stop(job(failures=tuple(free)), of("killed"), 90, NOW)
    assert (paid.restart, paid.delay_s) == (True, 0.0), "its limit is that of all"
    set_back = [structs.replace(one, wall_s=NOW.wall_s + 7200.0) for one in free]
    assert plan_after_stop(job(failures=tuple(set_back)), of("pod-preempted"), 90, NOW).delay_s == 0.0


@pytest.mark.parametrize("limits", [Restart(max_restarts=30), Resume(max_resumes=30, reset_after_s=1.0)])
def test_there_are_so_many_restarts_within_an_hour_whatever_they_cost(limits: Restart | Resume) -> None:
    often = tuple(failed(n, ago_s=3000.0 - n) for n in range(budget.MOST_PER_HOUR))

    def plan(failures: tuple[Failure, ...], failure: str) -> Plan:
        return plan_after_stop(job(limits, failures=failures, used_job=2), of(failure), 90, NOW)

    first = plan(often[1:], "killed")
    assert (first.restart, first.delay_s) == (True, 0.0)
    for failure in ("killed", "pod-preempted"):
        late = plan(often, failure)
        assert late.restart
        assert late.delay_s == pytest.approx(600.0)
        assert "in 600 s: it did 20 times within the hour, the limit" in late.sentence
    rare = tuple(structs.replace(one, wall_s=NOW.wall_s - (20 - n) * 600.0) for n, one in enumerate(often))
    assert plan(rare, "killed").delay_s == 0.0, "one in ten minutes is not held up"


def test_as_many_failures_are_kept_as_the_limits_within_an_hour_need() -> None:
    assert budget.KEPT_FAILURES >= budget.MOST_PER_HOUR >= budget.FREE_PER_HOUR
