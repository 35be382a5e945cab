"""The recovery's table: every row is reached, nothing outside it moves, and each path reads as the design says."""

from collections.abc import Iterator
from types import NoneType
from typing import get_args

import pytest
from msgspec import structs

from sentinel.core.decision import books, policy
from sentinel.core.machine import UnexpectedEvent
from sentinel.core.model import Incident, IncidentKind, JobState, Phase, Stage, StageMail, Symptom
from sentinel.core.now import Now
from sentinel.core.recovery import budget, transitions
from sentinel.core.recovery.events import (
    DoPrecheck,
    DoSave,
    DoStart,
    DoStop,
    Effect,
    Event,
    JobGone,
    PrecheckRefused,
    StopEnded,
    StopWaits,
)
from sentinel.core.recovery.moves import FIRST_START_RETRY_S, FIRST_START_WAIT_S, MAX_STEPS, QUEUE_S, Terms
from sentinel.core.recovery.transitions import TRANSITIONS, step
from tests.core import recovery_events as ev
from tests.core.recovery_events import NOW

TERMS = policy.terms(ev.RESUMABLE)
LIVING = [phase for phase in Phase if not phase.final]


def run(start: Incident, *events: Event, terms: Terms = TERMS) -> tuple[Incident, Effect | None]:
    """The record after the events, and the effect of the last one."""
    effect: Effect | None = None
    for at, event in enumerate(events):
        start, effect = step(start, event, Now(NOW.mono_s + at, NOW.wall_s + at), terms)
    return start, effect


def begun(kind: IncidentKind, *events: Event, **more: object) -> Incident:
    return run(ev.incident(kind, **more), ev.BEGIN, *events)[0]


def phases(story: Incident) -> list[str]:
    """The phases of the story, without repetitions."""
    told = [entry.phase.value for entry in story.steps]
    return [phase for at, phase in enumerate(told) if at == 0 or told[at - 1] != phase]


def walk() -> Iterator[tuple[Incident, Event, Incident, Effect | None]]:
    """Every step of every event from every record that can be reached, records that behave alike counted once."""
    todo = [
        ev.incident(kind, save_wanted=save, grace_s=grace_s)
        for kind in IncidentKind
        for save in (False, True)
        for grace_s in (0.0, 30.0)
    ]
    todo.append(ev.incident(IncidentKind.FORCED, verdict=ev.verdict(Symptom.FIRST_START)))
    seen = set()
    while todo:
        record = todo.pop()
        for event in ev.EVENTS:
            if not transitions.accepts(record, event):
                continue
            moved, effect = step(record, event, NOW, TERMS)
            yield record, event, moved, effect
            alike = (
                moved.kind,
                moved.verdict.symptom,
                moved.phase,
                moved.end_state,
                moved.paid,
                moved.grace_s > 0,
                moved.attempt > 0,
                len(moved.steps) > 1 and moved.steps[-2].phase,
                frozenset(mail.stage for mail in moved.mails),
            )
            if alike not in seen:
                seen.add(alike)
                todo.append(moved)


def test_every_row_of_the_table_and_each_phase_that_it_names_is_reached() -> None:
    reached = {(before.phase, type(event), after.phase) for before, event, after, _ in walk()}
    named = {(phase, event, to) for (phase, event), (_, targets) in TRANSITIONS.items() for to in targets}
    assert named - reached == set()
    assert reached - named == set()


def test_every_event_has_a_row_and_every_phase_that_lasts_can_be_left() -> None:
    assert {event for _, event in TRANSITIONS} == set(get_args(Event))
    assert {phase for phase, _ in TRANSITIONS} == set(LIVING)
    assert {to for _, targets in TRANSITIONS.values() for to in targets} == set(Phase) - {Phase.DETECTED}


@pytest.mark.parametrize("phase", list(Phase))
def test_an_event_without_a_row_raises_and_moves_nothing(phase: Phase) -> None:
    record = ev.incident(IncidentKind.FORCED, phase=phase)
    for event in ev.EVENTS:
        if (phase, type(event)) in TRANSITIONS:
            continue
        assert not transitions.accepts(record, event)
        with pytest.raises(UnexpectedEvent, match=type(event).__name__):
            step(record, event, NOW, TERMS)


def test_every_phase_that_something_must_end_has_a_deadline_and_can_be_ended_by_a_person() -> None:
    for _, _, after, _ in walk():
        if after.phase.final:
            assert after.deadline_mono_s is None
            assert after.closed_wall_s == NOW.wall_s
        else:
            assert after.deadline_mono_s is not None
            assert transitions.accepts(after, ev.LATE)
            assert transitions.accepts(after, ev.end())


def test_once_a_job_is_to_end_no_path_starts_it_or_keeps_it_running() -> None:
    for before, event, after, effect in walk():
        ending = after.end_state is not None
        if ending:
            assert after.phase in (Phase.SAVING, Phase.STOPPING, Phase.ENDED, Phase.FAILED), (before, event)
            assert not isinstance(effect, DoStart)


def test_a_repeated_effect_is_the_one_of_the_phase() -> None:
    """After a crash at any point `resume` performs what the record's phase is waiting for."""
    waits_for = {
        Phase.PRECHECKING: DoPrecheck,
        Phase.SAVING: DoSave,
        Phase.STOPPING: DoStop,
        Phase.STARTING: DoStart,
    }
    for _, event, after, effect in walk():
        same, again = transitions.resume(after, NOW, TERMS)
        assert same == after
        assert type(again) is waits_for.get(after.phase, NoneType)
        if effect is not None and not isinstance(effect, DoPrecheck):
            assert effect == again, event


# ---------------------------------------------------------------- the three paths


def test_a_forced_recovery_stops_looks_for_room_starts_and_verifies() -> None:
    done = begun(IncidentKind.FORCED, ev.STOPPED, ev.PASSED, ev.STARTED, ev.PROGRESSED)
    assert phases(done) == ["Stopping", "Prechecking", "Starting", "Verifying", "Recovered"]
    assert (done.incarnation, done.attempt, done.lost) == (5, 1, ev.PROGRESSED.lost)
    assert [mail.stage for mail in done.mails] == [Stage.STARTED, Stage.RECOVERED]


def test_a_chosen_recovery_has_room_and_a_proved_save_before_it_stops_anything() -> None:
    done = begun(IncidentKind.CHOSEN, ev.PASSED, ev.SAVED, ev.STOPPED, ev.STARTED, ev.PROGRESSED)
    assert phases(done) == ["Prechecking", "Saving", "Stopping", "Starting", "Verifying", "Recovered"]
    assert done.save == ev.SAVED.result


def test_an_ending_saves_where_it_may_stops_and_ends() -> None:
    done = begun(IncidentKind.ENDING, ev.SAVED, ev.STOPPED, save_wanted=True)
    assert phases(done) == ["Saving", "Stopping", "Ended"]
    assert phases(begun(IncidentKind.ENDING, ev.STOPPED)) == ["Stopping", "Ended"]


def test_a_notice_is_told_once_and_touches_nothing() -> None:
    told, effect = run(ev.incident(IncidentKind.NOTICE), ev.BEGIN)
    assert told.phase == Phase.KEPT_RUNNING
    assert effect is None
    assert [mail.stage for mail in told.mails] == [Stage.NOTICE]


def test_a_job_that_steps_is_kept_running_without_room_without_an_answer_and_without_a_proved_save() -> None:
    for events, reason in (
        ((ev.REFUSED,), "NoRoom"),
        ((ev.LATE,), "PrecheckTimeout"),
        ((ev.PASSED, ev.UNPROVED), "SaveUnproved"),
        ((ev.PASSED, ev.LATE), "SaveUnproved"),
    ):
        kept = begun(IncidentKind.CHOSEN, *events)
        assert (kept.phase, kept.reason) == (Phase.KEPT_RUNNING, reason)
        assert Stage.NOTICE in [mail.stage for mail in kept.mails]


# ---------------------------------------------------------------- faults on the way


def test_survivors_of_a_lost_rank_get_the_short_grace_and_a_chosen_stop_the_graceful_one() -> None:
    _, effect = run(ev.incident(IncidentKind.FORCED), ev.BEGIN)
    assert effect == DoStop(TERMS.lost_rank_grace_s, stacks=False)
    _, effect = run(ev.incident(IncidentKind.CHOSEN), ev.BEGIN, ev.PASSED, ev.SAVED)
    assert effect == DoStop(TERMS.graceful_stop_s, stacks=False)


def test_a_rank_lost_while_the_job_saves_ends_the_save() -> None:
    """A collective save would hang."""
    broken, effect = run(ev.incident(IncidentKind.CHOSEN), ev.BEGIN, ev.PASSED, ev.FAULT)
    assert (broken.phase, broken.kind) == (Phase.STOPPING, IncidentKind.FORCED)
    assert effect == DoStop(TERMS.lost_rank_grace_s, stacks=False)
    assert broken.save is not None
    assert "a rank was lost" in broken.save.skipped


def test_a_hang_has_its_stacks_taken_before_anything_is_killed_and_only_once() -> None:
    hung = begun(IncidentKind.FORCED, verdict=ev.verdict(Symptom.HANG))
    assert transitions.resume(hung, NOW, TERMS)[1] == DoStop(TERMS.lost_rank_grace_s, stacks=True)
    stopped, _ = run(hung, StopEnded(ev.plan(True), ("rank 0: all_reduce",)))
    assert stopped.stacks == ("rank 0: all_reduce",)


def test_a_person_who_is_in_a_hurry_does_not_wait_for_stacks() -> None:
    hung = begun(IncidentKind.FORCED, verdict=ev.verdict(Symptom.HANG))
    _, effect = run(hung, ev.end(0.0))
    assert effect == DoStop(0.0, stacks=False)


@pytest.mark.parametrize("before", [(), (ev.STARTED,)])
def test_a_fault_of_the_new_incarnation_goes_on_in_the_same_incident_and_is_paid_for(
    before: tuple[Event, ...],
) -> None:
    again = begun(IncidentKind.FORCED, ev.STOPPED, ev.PASSED, *before, ev.FAULT)
    assert (again.phase, again.reason, again.paid) == (Phase.STOPPING, "FaultAgain", False)
    assert (again.failed_step, again.top_step) == (7, 100), "the loss counts from the furthest step"


def test_a_start_that_does_not_come_up_is_stopped_again_and_costs_nothing() -> None:
    for event in (ev.LATE, ev.START_FAILED):
        late = begun(IncidentKind.FORCED, ev.STOPPED, ev.PASSED, event)
        assert (late.phase, late.paid, late.failed_starts) == (Phase.STOPPING, True, 1)


def test_the_time_for_a_start_begins_when_the_queue_of_others_has_let_the_job_in() -> None:
    queued, effect = run(begun(IncidentKind.FORCED, ev.STOPPED, ev.PASSED), ev.QUEUED)
    assert (queued.phase, queued.reason, effect) == (Phase.STARTING, "Queued", None)
    assert queued.deadline_mono_s == NOW.mono_s + QUEUE_S
    let_in, effect = run(queued, ev.LET_IN)
    assert (let_in.phase, let_in.incarnation, effect) == (Phase.STARTING, queued.incarnation, None)
    assert let_in.deadline_mono_s == NOW.mono_s + TERMS.start_timeout_s


def test_a_stop_that_its_kind_refuses_waits_with_the_reason_of_the_kind() -> None:
    refused = StopWaits("A start costs one retry: it would fail.", reason="RetriesUsed")
    waits, effect = run(begun(IncidentKind.FORCED), refused)
    assert (waits.phase, waits.reason, waits.sentence) == (Phase.STOPPING, "RetriesUsed", refused.sentence)
    assert effect == DoStop(TERMS.lost_rank_grace_s, stacks=False)


def test_ranks_that_came_up_end_the_count_of_failed_starts() -> None:
    up = begun(IncidentKind.FORCED, ev.STOPPED, ev.PASSED, ev.LATE, ev.STOPPED, ev.PASSED, ev.STARTED)
    assert (up.failed_starts, up.attempt) == (0, 2)


def test_a_chosen_stop_whose_start_is_refused_waits_for_room_like_any_job_that_does_not_run() -> None:
    waiting = begun(IncidentKind.CHOSEN, ev.PASSED, ev.SAVED, ev.STOPPED, ev.NO_ROOM)
    assert (waiting.phase, waiting.kind) == (Phase.PRECHECKING, IncidentKind.FORCED)
    still, effect = run(waiting, ev.REFUSED)
    assert still.phase == Phase.PRECHECKING
    assert isinstance(effect, DoPrecheck)
    assert run(still, ev.PASSED)[0].phase == Phase.STARTING


def test_what_cannot_be_started_at_all_fails_at_once() -> None:
    failed = begun(IncidentKind.FORCED, ev.STOPPED, ev.PASSED, ev.NOT_FOUND)
    assert (failed.phase, failed.reason) == (Phase.FAILED, "NotFound")
    assert Stage.GAVE_UP in [mail.stage for mail in failed.mails]


# ---------------------------------------------------------------- what lasts too long


def test_a_refusal_that_lasts_fails_with_its_own_reason_and_silence_with_that_of_silence() -> None:
    refused = begun(IncidentKind.FORCED, ev.STOPPED, ev.REFUSED, ev.LATE)
    assert (refused.phase, refused.reason, refused.sentence) == (Phase.FAILED, "NoRoom", "No room.")
    silent = begun(IncidentKind.FORCED, ev.STOPPED, ev.LATE)
    assert (silent.phase, silent.reason) == (Phase.FAILED, "PrecheckTimeout")


def test_refusals_do_not_move_the_deadline_and_a_repeated_one_adds_no_line() -> None:
    waiting = begun(IncidentKind.FORCED, ev.STOPPED)
    once, _ = run(waiting, ev.REFUSED)
    thrice, _ = run(once, ev.REFUSED, ev.REFUSED)
    assert once.deadline_mono_s == waiting.deadline_mono_s == thrice.deadline_mono_s
    assert len(thrice.steps) == len(once.steps) == len(waiting.steps) + 1


def test_the_deadline_of_a_wait_begins_after_the_back_off() -> None:
    waiting, effect = run(begun(IncidentKind.FORCED), StopEnded(ev.plan(True, delay_s=40.0)), terms=TERMS)
    assert effect == DoPrecheck(NOW.mono_s + 40.0)
    assert waiting.deadline_mono_s == NOW.mono_s + 40.0 + TERMS.precheck_wait_s


def test_a_crash_in_the_back_off_waits_for_the_rest_of_it() -> None:
    waiting, _ = run(begun(IncidentKind.FORCED), StopEnded(ev.plan(True, delay_s=40.0)))
    _, soon = transitions.resume(waiting, Now(NOW.mono_s + 10, 0.0), TERMS)
    _, late = transitions.resume(waiting, Now(NOW.mono_s + 90, 0.0), TERMS)
    assert soon == DoPrecheck(NOW.mono_s + 40.0)
    assert late == DoPrecheck(NOW.mono_s + 90.0)


def test_a_stop_whose_time_passed_while_nobody_led_has_all_of_it_again_and_makes_no_process_stuck() -> None:
    stops = begun(IncidentKind.FORCED)
    assert stops.deadline_mono_s is not None
    length_s = stops.deadline_mono_s - stops.phase_mono_s
    later = Now(stops.deadline_mono_s + 500.0, NOW.wall_s + 500.0)
    again, _ = transitions.resume(stops, later, TERMS)
    assert again == structs.replace(stops, deadline_mono_s=later.mono_s + length_s)


def test_a_start_or_a_save_whose_time_passed_while_nobody_led_has_all_of_it_again() -> None:
    saves = begun(IncidentKind.CHOSEN, ev.PASSED)
    starts = begun(IncidentKind.FORCED, ev.STOPPED, ev.PASSED)
    for incident, phase in ((saves, Phase.SAVING), (starts, Phase.STARTING)):
        assert incident.phase is phase
        assert incident.deadline_mono_s is not None
        length_s = incident.deadline_mono_s - incident.phase_mono_s
        later = Now(incident.deadline_mono_s + 500.0, NOW.wall_s + 500.0)
        again, effect = transitions.resume(incident, later, TERMS)
        assert again.deadline_mono_s == later.mono_s + length_s
        assert effect is not None


def test_what_is_only_waited_for_is_looked_at_once_more_where_its_time_passed_while_nobody_led() -> None:
    looks = begun(IncidentKind.FORCED, ev.STOPPED)
    verifies = begun(IncidentKind.FORCED, ev.STOPPED, ev.PASSED, ev.STARTED)
    for incident, phase in ((looks, Phase.PRECHECKING), (verifies, Phase.VERIFYING)):
        assert incident.phase is phase
        assert incident.deadline_mono_s is not None
        later = Now(incident.deadline_mono_s + 500.0, NOW.wall_s + 500.0)
        again, _ = transitions.resume(incident, later, TERMS)
        assert again.deadline_mono_s == later.mono_s + transitions.A_LOOK_S
        early, _ = transitions.resume(incident, NOW, TERMS)
        assert early.deadline_mono_s == incident.deadline_mono_s


def test_a_stop_that_does_not_end_is_tried_once_more_without_grace_and_then_a_person_is_told() -> None:
    again, effect = run(begun(IncidentKind.CHOSEN, ev.PASSED, ev.SAVED), ev.LATE)
    assert (again.phase, effect) == (Phase.STOPPING, DoStop(0.0, stacks=False))
    failed, _ = run(again, ev.LATE)
    assert (failed.phase, failed.reason) == (Phase.FAILED, "StopStuck")


def test_processes_that_cannot_be_ended_are_named_and_nothing_is_started_beside_them() -> None:
    stuck = begun(IncidentKind.FORCED, ev.STUCK)
    assert (stuck.phase, stuck.reason) == (Phase.FAILED, "StopStuck")
    assert "pid 42 (D in nvidia_close)" in stuck.sentence


def test_a_job_that_its_kind_has_failed_for_good_is_given_up_with_what_the_kind_says() -> None:
    failed = begun(IncidentKind.FORCED, ev.FAILED_BY_KIND)
    assert (failed.phase, failed.reason) == (Phase.FAILED, "EndedByItsKind")
    assert failed.sentence == ev.FAILED_BY_KIND.ended


def test_a_job_that_runs_but_never_shows_progress_is_not_called_recovered() -> None:
    unknown = begun(IncidentKind.FORCED, ev.STOPPED, ev.PASSED, ev.STARTED, ev.LATE)
    assert (unknown.phase, unknown.reason) == (Phase.KEPT_RUNNING, "NotVerified")


# ---------------------------------------------------------------- a person ends the job

EN_ROUTE: dict[str, tuple[IncidentKind, tuple[Event, ...]]] = {
    "a chosen stop looks for room": (IncidentKind.CHOSEN, ()),
    "a chosen stop saves": (IncidentKind.CHOSEN, (ev.PASSED,)),
    "a chosen stop stops": (IncidentKind.CHOSEN, (ev.PASSED, ev.SAVED)),
    "a forced one stops": (IncidentKind.FORCED, ()),
    "a forced one looks for room": (IncidentKind.FORCED, (ev.STOPPED,)),
    "it starts": (IncidentKind.FORCED, (ev.STOPPED, ev.PASSED)),
    "it verifies": (IncidentKind.FORCED, (ev.STOPPED, ev.PASSED, ev.STARTED)),
}
STEPPING = {"a chosen stop looks for room", "a chosen stop saves", "it verifies"}


@pytest.mark.parametrize("where", EN_ROUTE)
def test_a_request_to_end_is_obeyed_in_every_phase_and_saves_where_the_job_steps(where: str) -> None:
    kind, events = EN_ROUTE[where]
    ending, _ = run(begun(kind, *events), ev.end(save=True))
    assert ending.phase == (Phase.SAVING if where in STEPPING else Phase.STOPPING)
    if ending.phase == Phase.SAVING:
        ending, _ = run(ending, ev.UNPROVED)
    ended, _ = run(ending, ev.STOPPED)
    assert (ended.phase, ended.end_state, ended.end_code) == (Phase.ENDED, JobState.STOPPED, 130)
    assert ended.reason == "Stopped"


@pytest.mark.parametrize("where", EN_ROUTE)
def test_a_second_request_kills_at_once_in_every_phase(where: str) -> None:
    kind, events = EN_ROUTE[where]
    hurried, effect = run(begun(kind, *events), ev.end(save=True), ev.end(0.0))
    assert hurried.phase == Phase.STOPPING
    assert effect == DoStop(0.0, stacks=False)
    assert run(hurried, ev.STOPPED)[0].phase == Phase.ENDED


def test_a_request_without_a_save_ends_a_save_that_is_under_way() -> None:
    saving = begun(IncidentKind.CHOSEN, ev.PASSED)
    assert run(saving, ev.end(save=False))[0].phase == Phase.STOPPING


def test_a_longer_grace_does_not_lengthen_a_stop_that_is_under_way() -> None:
    stopping = begun(IncidentKind.FORCED)
    later, effect = run(stopping, ev.end(600.0))
    assert (later.grace_s, later.deadline_mono_s) == (TERMS.lost_rank_grace_s, stopping.deadline_mono_s)
    assert effect is None


def test_the_first_request_says_how_the_job_ends() -> None:
    expiring, _ = run(begun(IncidentKind.FORCED), ev.end(30.0, state=JobState.EXPIRED))
    assert run(expiring, ev.end(0.0))[0].end_state == JobState.EXPIRED


def test_without_a_checkpoint_signal_a_request_to_end_does_not_wait_for_a_save() -> None:
    plain = policy.terms(structs.replace(ev.RESUMABLE, resume=None))
    verifying = begun(IncidentKind.FORCED, ev.STOPPED, ev.PASSED, ev.STARTED)
    assert run(verifying, ev.end(save=True), terms=plain)[0].phase == Phase.STOPPING


# ---------------------------------------------------------------- the record


def test_the_story_keeps_its_beginning_and_its_end_and_never_grows_without_bound() -> None:
    waiting = begun(IncidentKind.FORCED, ev.STOPPED)
    for number in range(3 * MAX_STEPS):
        waiting, _ = run(waiting, PrecheckRefused("NoRoom", f"No room, look {number}."))
    assert len(waiting.steps) == MAX_STEPS
    assert waiting.steps[0].phase == Phase.STOPPING
    assert waiting.steps[-1].sentence == f"No room, look {3 * MAX_STEPS - 1}."


def test_each_stage_is_mailed_at_most_once_and_a_sent_one_is_not_asked_for_again() -> None:
    up = begun(IncidentKind.FORCED, ev.STOPPED, ev.PASSED, ev.STARTED)
    sent = structs.replace(up, mails=(StageMail(stage=Stage.STARTED, state="sent"),))
    again, effect = run(sent, ev.FAULT, ev.STOPPED)
    assert again.mails == sent.mails
    assert transitions.resume(again, NOW, TERMS)[1] == effect


# ---------------------------------------------------------------- first starts, and other sizes


def first(*events: Event) -> Incident:
    return begun(IncidentKind.FORCED, *events, verdict=ev.verdict(Symptom.FIRST_START))


def test_a_recovery_that_others_make_needless_while_it_waits_stops_and_starts_nothing_and_costs_nothing() -> (
    None
):
    waits = begun(IncidentKind.FORCED, ev.STOPPED, ev.REFUSED)
    over, effect = run(waits, JobGone("ResumedByOthers", "It was started by kubectl-patch."))
    assert (over.phase, over.reason, over.incarnation) == (
        Phase.CANCELLED,
        "ResumedByOthers",
        waits.incarnation,
    )
    assert [mail.stage for mail in over.mails] == [Stage.STARTED]
    assert effect is None
    job = ev.a_job()
    after = books.settle(job, waits, over, NOW)
    assert (after.used, after.used_free, after.failures) == (job.used, job.used_free, job.failures)
    assert not after.state.final


def test_a_first_start_waits_longer_than_a_recovery_and_asks_less_often() -> None:
    waits = first(ev.REFUSED)
    assert (waits.phase, waits.reason) == (Phase.PRECHECKING, "NoRoom")
    assert waits.deadline_mono_s == NOW.mono_s + FIRST_START_WAIT_S
    assert transitions.resume(waits, NOW, TERMS)[1] == DoPrecheck(NOW.mono_s)
    _, effect = run(waits, ev.REFUSED)
    assert effect == DoPrecheck(NOW.mono_s + FIRST_START_RETRY_S)
    assert run(waits, ev.LATE)[0].phase == Phase.FAILED


def test_a_first_start_is_over_when_all_ranks_are_up_and_no_mail_tells_of_it() -> None:
    up = first(ev.PASSED, ev.STARTED)
    assert (up.phase, up.reason, up.paid, up.mails) == (Phase.RECOVERED, "Started", True, ())


def test_a_first_start_that_does_not_come_up_is_stopped_and_tried_again_and_given_up_with_a_mail() -> None:
    late = first(ev.PASSED, ev.LATE)
    assert (late.phase, late.failed_starts) == (Phase.STOPPING, 1)
    tried = budget.plan(ev.a_job(), late, late.verdict, None, NOW)
    again, effect = run(late, StopEnded(tried))
    assert (again.phase, again.reason, again.mails) == (Phase.PRECHECKING, "StartsAgain", ())
    assert isinstance(effect, DoPrecheck)
    given_up, _ = run(late, StopEnded(structs.replace(tried, restart=False)))
    assert given_up.phase == Phase.FAILED
    assert [mail.stage for mail in given_up.mails] == [Stage.GAVE_UP]


def test_a_fault_of_a_first_start_makes_it_a_recovery_like_any_other() -> None:
    broken = first(ev.PASSED, ev.FAULT)
    assert (broken.verdict.symptom, broken.paid) == (Symptom.RANK_LOST, False)
    told, _ = run(broken, ev.STOPPED)
    assert [mail.stage for mail in told.mails] == [Stage.STARTED]


def test_a_job_that_waits_is_started_with_the_size_that_others_gave_it_meanwhile() -> None:
    waits = first(ev.REFUSED)
    other, effect = run(waits, ev.RESCALED)
    assert (other.phase, other.size, other.from_size) == (Phase.PRECHECKING, 3, 3)
    assert other.deadline_mono_s == waits.deadline_mono_s
    assert effect == DoPrecheck(NOW.mono_s)
    job = books.settle(ev.a_job(size=2, original_size=4), waits, other, NOW)
    assert (job.size, job.original_size) == (3, 3)


def test_a_job_that_others_scale_while_it_is_stopped_starts_with_that_size_and_its_stop_goes_on() -> None:
    stops = begun(IncidentKind.FORCED)
    other, effect = run(stops, ev.RESCALED)
    assert (other.phase, other.size, other.from_size, effect) == (Phase.STOPPING, 3, 3, None)
    assert (other.deadline_mono_s, other.phase_mono_s) == (stops.deadline_mono_s, stops.phase_mono_s)
    job = books.settle(ev.a_job(size=2, original_size=4), stops, other, NOW)
    assert (job.size, job.original_size) == (3, 3)
