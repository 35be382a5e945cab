"""The recovery against a model: random events in any order, crashes anywhere, and the job's books beside it."""

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sentinel.core.decision import books, policy
from sentinel.core.machine import UnexpectedEvent
from sentinel.core.model import (
    Budget,
    Cause,
    Incident,
    IncidentKind,
    JobState,
    Lost,
    Phase,
    ProtectedJob,
    Restartable,
    SaveResult,
    Symptom,
    Verdict,
)
from sentinel.core.now import Now
from sentinel.core.policy_model import Checkpoint, Policy, Resume
from sentinel.core.recovery import budget, transitions
from sentinel.core.recovery.events import (
    Begin,
    CancelRequested,
    DeadlinePassed,
    DoPrecheck,
    DoStop,
    Effect,
    EndRequested,
    Event,
    Fault,
    GivenUp,
    JobFinished,
    JobGone,
    PrecheckPassed,
    PrecheckRefused,
    Progressed,
    RanksStarted,
    Rescaled,
    SaveEnded,
    StartRefused,
    StartWaits,
    StopEnded,
    StopStuck,
    StopWaits,
)
from sentinel.core.recovery.moves import MAX_STEPS, START_TRIES
from tests.core import recovery_events as ev

POLICY = Policy(
    resume=Resume(max_resumes=6, max_job=4, graceful_stop_s=60.0, checkpoint=Checkpoint(timeout_s=120.0)),
    restart=None,
)
TERMS = policy.terms(POLICY)

verdicts = st.builds(
    Verdict,
    symptom=st.sampled_from([Symptom.RANK_LOST, Symptom.HANG]),
    cause=st.sampled_from([Cause.GPU, Cause.UNKNOWN, Cause.PREEMPTION]),
    failure=st.sampled_from(["gpu-hardware", "segfault", "preempted", "hang"]),
    scope=st.sampled_from(["node", "job"]),
    sentence=st.just("Rank 1 was lost."),
    entity=st.sampled_from(["", "GPU a", "GPU b"]),
    budget=st.sampled_from(Budget),
    restart=st.sampled_from([Restartable.YES, Restartable.YES, Restartable.ONCE]),
)
steps = st.none() | st.integers(0, 500)
sentences = st.sampled_from(["one", "two", "three"])
graces = st.sampled_from([0.0, 2.0, 30.0, 600.0])
ends = st.builds(
    EndRequested,
    state=st.sampled_from([JobState.STOPPED, JobState.EXPIRED]),
    reason=st.sampled_from(["Stopped", "Expired", "Warned"]),
    sentence=sentences,
    grace_s=graces,
    save=st.booleans(),
    code=st.none() | st.just(130),
)
# StopEnded is not among them: its plan is the budget's, made when it is fed.
EVENTS: dict[type, st.SearchStrategy[Event]] = {
    Begin: st.builds(Begin, sentences, sentences),
    PrecheckPassed: st.builds(PrecheckPassed, st.integers(1, 4), st.just(()), sentences),
    PrecheckRefused: st.builds(PrecheckRefused, st.sampled_from(["NoRoom", "PrecheckFailed"]), sentences),
    SaveEnded: st.builds(SaveEnded, st.builds(SaveResult, step=steps), st.booleans(), sentences),
    StopStuck: st.builds(
        StopStuck, st.just(("pid 42",)), ended=st.sampled_from(["", "Job train has failed."])
    ),
    RanksStarted: st.builds(RanksStarted, sentences),
    StartRefused: st.builds(
        StartRefused,
        reason=st.just("StartFailed"),
        sentence=sentences,
        permanent=st.sampled_from([False, False, False, True]),
        tried=st.booleans(),
    ),
    Progressed: st.builds(Progressed, st.builds(Lost, steps=steps), sentences),
    Fault: st.builds(Fault, verdicts, steps),
    JobFinished: st.just(JobFinished()),
    StopWaits: st.builds(StopWaits, sentences),
    JobGone: st.just(ev.GONE),
    StartWaits: st.builds(StartWaits, st.sampled_from(["", "It waits for its turn."])),
    Rescaled: st.builds(Rescaled, st.integers(1, 6), sentences),
    GivenUp: st.sampled_from([ev.GIVEN_UP, ev.EXHAUSTED]),
    EndRequested: ends,
    CancelRequested: st.builds(CancelRequested, sentences),
    DeadlinePassed: st.just(DeadlinePassed()),
}
# What each phase waits for carries the walk on; the rest disturbs it.
WAITS_FOR: dict[Phase, type] = {
    Phase.PRECHECKING: PrecheckPassed,
    Phase.SAVING: SaveEnded,
    Phase.STOPPING: StopEnded,
    Phase.STARTING: RanksStarted,
    Phase.VERIFYING: Progressed,
}
KINDS = [IncidentKind.FORCED] * 3 + [IncidentKind.CHOSEN] * 3 + [IncidentKind.ENDING, IncidentKind.NOTICE]


def a_new_job() -> ProtectedJob:
    return ev.a_job(POLICY, size=2, original_size=4)


class Recoveries(RuleBasedStateMachine):
    """One job, one incident after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.now = Now(1000.0, 1_700_000_000.0)
        self.job = a_new_job()
        self.incident: Incident | None = None
        self.effect: Effect | None = None  # of the present phase
        self.back_off_mono_s = 0.0  # before then no start is to be tried
        self.unpaid = False  # a fault (or a chosen move) was not yet followed by a start
        self.paid_starts = 0
        self.chosen_starts = 0
        self.stopped = True  # a stop, or a refused start, lies between two starts
        self.numbers = 0

    @rule(seconds=st.sampled_from([0.25, 5.0, 100.0, 5000.0]))
    def time_passes(self, seconds: float) -> None:
        self.now = Now(self.now.mono_s + seconds, self.now.wall_s + seconds)

    @rule(data=st.data())
    def what_fits_happens(self, data: st.DataObject) -> None:
        """Half of the time what the phase waits for, else anything that it may meet."""
        incident = self.incident
        if incident is None or incident.phase.final:
            self.open(data)
            return
        kinds = [event for phase, event in transitions.TRANSITIONS if phase == incident.phase]
        kinds += [WAITS_FOR[incident.phase]] * len(kinds)
        kind = data.draw(st.sampled_from(kinds))
        if kind is StopEnded:
            self.move(incident, self.stop_ended(incident, data))
        else:
            self.move(incident, data.draw(EVENTS[kind]))

    @precondition(lambda self: self.incident is not None)
    @rule(event=st.one_of(*EVENTS.values()))
    def anything_happens(self, event: Event) -> None:
        """Also what is late, repeated, or means nothing in this phase."""
        assert self.incident is not None
        if transitions.accepts(self.incident, event):
            self.move(self.incident, event)
            return
        with pytest.raises(UnexpectedEvent):
            transitions.step(self.incident, event, self.now, TERMS)

    def open(self, data: st.DataObject) -> None:
        if self.job.state.final:  # the name is used again
            self.job, self.paid_starts, self.chosen_starts = a_new_job(), 0, 0
        kind, end = data.draw(st.sampled_from(KINDS)), data.draw(ends)
        self.numbers += 1
        opened = Incident(
            id=f"j-{self.numbers:04d}",
            job="j",
            kind=kind,
            verdict=data.draw(verdicts),
            opened_mono_s=self.now.mono_s,
            incarnation=self.job.incarnation,
            size=self.job.size,
            from_size=self.job.size,
            excluded=self.job.excluded,
            failed_step=data.draw(steps),
        )
        if kind == IncidentKind.ENDING:
            opened = msgspec.structs.replace(
                opened,
                end_state=end.state,
                end_code=end.code,
                reason_of_end=end.reason,
                sentence_of_end=end.sentence,
                grace_s=end.grace_s,
                save_wanted=end.save,
            )
        self.unpaid = kind in (IncidentKind.FORCED, IncidentKind.CHOSEN)
        self.move(opened, Begin("Opened", "It was opened."), opened=True)

    def stop_ended(self, incident: Incident, data: st.DataObject) -> StopEnded:
        """With the plan that the controller would make."""
        seen = incident.verdict if incident.paid else data.draw(verdicts)
        plan = budget.plan(self.job, incident, seen, data.draw(steps), self.now)
        return StopEnded(plan, data.draw(st.sampled_from([(), ("rank 0: all_reduce",)])))

    @precondition(lambda self: self.incident is not None)
    @rule()
    def sentinel_is_killed_and_comes_back(self) -> None:
        assert self.incident is not None
        read = msgspec.json.decode(msgspec.json.encode(self.incident), type=Incident)
        assert read == self.incident
        same, effect = transitions.resume(read, self.now, TERMS)
        assert msgspec.structs.replace(same, deadline_mono_s=read.deadline_mono_s) == read
        if same != read:  # what is asked for anew has its time again
            assert (same.deadline_mono_s or 0.0) > (read.deadline_mono_s or 0.0)
        if isinstance(self.effect, DoPrecheck):  # a back-off goes on; only a retry may come sooner
            assert isinstance(effect, DoPrecheck)
            assert effect.not_before_mono_s <= max(
                self.now.mono_s, self.effect.not_before_mono_s, self.back_off_mono_s
            )
        elif isinstance(self.effect, DoStop):
            # Stacks are not looked at again once a person ends the job.
            assert effect == DoStop(self.effect.grace_s, self.effect.stacks and read.end_state is None)
        else:
            assert effect == self.effect
        self.incident, self.effect = same, effect

    def move(self, before: Incident, event: Event, *, opened: bool = False) -> None:
        after, effect = transitions.step(before, event, self.now, TERMS)
        read = msgspec.json.decode(msgspec.json.encode(before), type=Incident)
        assert transitions.step(read, event, self.now, TERMS) == (after, effect), (
            "a record that was read again"
        )
        assert not before.phase.final
        if isinstance(event, Fault) and before.phase in (Phase.STARTING, Phase.VERIFYING):
            self.unpaid = True
        if after.phase == Phase.STARTING and not isinstance(event, StartWaits):
            assert after.incarnation == before.incarnation + 1
            assert self.stopped, "two starts with no stop between them"
            self.stopped = False
            self.paid_starts += self.unpaid
            self.chosen_starts += self.unpaid and before.kind == IncidentKind.CHOSEN
            self.unpaid = False
        else:
            assert after.incarnation == before.incarnation
        if after.phase == Phase.STOPPING or isinstance(event, StartRefused):
            self.stopped = True
        if before.end_state is not None:
            assert after.end_state == before.end_state
            assert after.phase not in (Phase.STARTING, Phase.KEPT_RUNNING, Phase.RECOVERED)
        if after.phase != before.phase or effect is not None:
            self.effect = effect
        if isinstance(event, StopEnded):
            self.back_off_mono_s = self.now.mono_s + event.plan.delay_s
        self.job = books.settle(self.job, None if opened else before, after, self.now)
        self.incident = after

    @invariant()
    def the_books_count_one_start_per_fault(self) -> None:
        assert self.job.used + self.job.used_free == self.paid_starts
        # Chosen moves are held to the budget when they are opened, which this model does at will.
        assert self.job.used <= POLICY.max_starts + self.chosen_starts
        assert len(self.job.failures) == min(self.paid_starts, budget.KEPT_FAILURES)

    @invariant()
    def the_record_is_sound(self) -> None:
        incident = self.incident
        if incident is None:
            return
        stages = [mail.stage for mail in incident.mails]
        assert len(stages) == len(set(stages))
        assert len(incident.steps) <= MAX_STEPS
        assert incident.failed_starts <= START_TRIES
        if incident.phase.final:
            assert incident.deadline_mono_s is None
            assert self.effect is None
        else:
            assert incident.deadline_mono_s is not None
            assert self.job.incarnation == incident.incarnation
        if incident.phase == Phase.ENDED:
            assert self.job.state == incident.end_state
        elif incident.phase in (Phase.FAILED, Phase.EXHAUSTED):
            assert self.job.state == JobState.ERROR
        elif incident.reason == "CancelledByPerson" and incident.kind == IncidentKind.FORCED:
            assert self.job.state == JobState.STOPPED
        else:
            assert not self.job.state.final

    @invariant()
    def the_run_clock_stands_when_nothing_runs(self) -> None:
        if self.job.state != JobState.RUNNING:
            assert self.job.started_mono_s is None


TestRecoveries = Recoveries.TestCase
TestRecoveries.settings = settings(
    max_examples=120,
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
    report_multiple_bugs=False,
    database=None,
    suppress_health_check=list(HealthCheck),
)
