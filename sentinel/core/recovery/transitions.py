"""The recovery of one incident: a pure state machine.

`step(incident, event, now, terms) -> (incident, effect)`; TRANSITIONS is the whole machine (see `machine`). The caller
saves the new record before it performs the effect, if there is one; effects are idempotent, so after a crash
`resume(incident)` gives that of the current phase again.

    forced:  Detected → Stopping → Prechecking → Starting → Verifying → Recovered
    chosen:  Detected → Prechecking → Saving → Stopping → Starting → Verifying → Recovered
    ending:  Detected → Saving → Stopping → Ended
"""

from msgspec import structs

from sentinel.core.machine import Machine, Table
from sentinel.core.model import Incident, Phase
from sentinel.core.now import Now
from sentinel.core.recovery import events, handlers
from sentinel.core.recovery.moves import Result, Terms, room_wait_s, stop_effect

P = Phase

TRANSITIONS: Table[Phase, Incident, events.Effect | None, Phase] = {
    (P.DETECTED, events.Begin): (handlers.begin, (P.STOPPING, P.PRECHECKING, P.SAVING, P.KEPT_RUNNING)),
    (P.PRECHECKING, events.PrecheckPassed): (handlers.precheck_passed, (P.SAVING, P.STARTING)),
    (P.PRECHECKING, events.PrecheckRefused): (handlers.precheck_refused, (P.PRECHECKING, P.KEPT_RUNNING)),
    (P.PRECHECKING, events.Rescaled): (handlers.rescaled, (P.PRECHECKING,)),
    (P.PRECHECKING, events.DeadlinePassed): (handlers.precheck_late, (P.KEPT_RUNNING, P.FAILED)),
    (P.PRECHECKING, events.Fault): (handlers.fault_before_stop, (P.STOPPING,)),
    (P.PRECHECKING, events.JobFinished): (handlers.finished_by_itself, (P.CANCELLED,)),
    (P.PRECHECKING, events.EndRequested): (handlers.end_before_stop, (P.SAVING, P.STOPPING)),
    (P.PRECHECKING, events.CancelRequested): (handlers.cancelled, (P.CANCELLED,)),
    (P.SAVING, events.SaveEnded): (handlers.save_ended, (P.STOPPING, P.KEPT_RUNNING)),
    (P.SAVING, events.DeadlinePassed): (handlers.save_late, (P.STOPPING, P.KEPT_RUNNING)),
    (P.SAVING, events.Fault): (handlers.fault_while_saving, (P.STOPPING,)),
    (P.SAVING, events.EndRequested): (handlers.end_saving, (P.SAVING, P.STOPPING)),
    (P.STOPPING, events.StopEnded): (
        handlers.stop_ended,
        (P.PRECHECKING, P.STARTING, P.ENDED, P.FAILED, P.EXHAUSTED),
    ),
    (P.STOPPING, events.StopStuck): (handlers.stop_stuck, (P.FAILED, P.ENDED)),
    (P.STOPPING, events.StopWaits): (handlers.stop_waits, (P.STOPPING,)),
    (P.STOPPING, events.Rescaled): (handlers.rescaled_stopping, (P.STOPPING,)),
    (P.STOPPING, events.DeadlinePassed): (handlers.stop_late, (P.STOPPING, P.FAILED)),
    (P.STOPPING, events.EndRequested): (handlers.end_stopping, (P.STOPPING,)),
    (P.STARTING, events.RanksStarted): (handlers.ranks_started, (P.VERIFYING, P.RECOVERED)),
    (P.STARTING, events.StartRefused): (handlers.start_refused, (P.PRECHECKING, P.STOPPING, P.FAILED)),
    (P.STARTING, events.StartWaits): (handlers.start_waits, (P.STARTING,)),
    (P.STARTING, events.Fault): (handlers.fault_again, (P.STOPPING,)),
    (P.STARTING, events.DeadlinePassed): (handlers.start_late, (P.STOPPING,)),
    (P.STARTING, events.EndRequested): (handlers.end_before_stop, (P.STOPPING,)),
    (P.VERIFYING, events.Progressed): (handlers.progressed, (P.RECOVERED,)),
    (P.VERIFYING, events.Fault): (handlers.fault_again, (P.STOPPING,)),
    (P.VERIFYING, events.JobFinished): (handlers.finished_while_verifying, (P.RECOVERED,)),
    (P.VERIFYING, events.DeadlinePassed): (handlers.verify_late, (P.KEPT_RUNNING,)),
    (P.VERIFYING, events.EndRequested): (handlers.end_before_stop, (P.SAVING, P.STOPPING)),
    (P.DETECTED, events.GivenUp): (handlers.given_up, (P.EXHAUSTED, P.FAILED, P.ENDED)),
    (P.VERIFYING, events.GivenUp): (handlers.given_up, (P.EXHAUSTED, P.FAILED)),
    **{
        (phase, events.JobGone): (handlers.job_gone, (P.CANCELLED, P.ENDED))
        for phase in (P.DETECTED, P.SAVING, P.STOPPING)
    },
    **{
        (phase, events.JobGone): (handlers.job_gone, (P.CANCELLED,))
        for phase in (P.PRECHECKING, P.STARTING, P.VERIFYING)
    },
}


_ASKED_ANEW = (P.SAVING, P.STOPPING, P.STARTING)
A_LOOK_S = 120.0  # to hear of all nodes and to look at them once

_MACHINE = Machine(TRANSITIONS, lambda incident: incident.phase)


def step(incident: Incident, event: events.Event, now: Now, terms: Terms) -> Result:
    """Move `incident` by one event. Raises UnexpectedEvent where TRANSITIONS has no row."""
    return _MACHINE.step(incident.phase, incident, event, now, terms)


def accepts(incident: Incident, event: events.Event) -> bool:
    return _MACHINE.accepts(incident.phase, event)


def resume(incident: Incident, now: Now, terms: Terms) -> Result:
    """After a crash or take-over: the record, and the effect of the phase that it stands in, to be performed again.

    `incident.deadline_mono_s` must be of this boot. What is left of a back-off is waited for. A deadline that passed
    while nobody could see what happens ends nothing: what is asked for anew has its whole time, else there is a moment.
    """
    effect: events.Effect | None = None
    if incident.phase == Phase.PRECHECKING:
        since_s = (incident.deadline_mono_s or 0.0) - room_wait_s(incident, terms)
        effect = events.DoPrecheck(max(now.mono_s, since_s))
    elif incident.phase == Phase.SAVING:
        effect = events.DoSave()
    elif incident.phase == Phase.STOPPING:
        effect = stop_effect(incident)
    elif incident.phase == Phase.STARTING:
        effect = events.DoStart(incident.incarnation, incident.size, incident.excluded)
    deadline_s = incident.deadline_mono_s
    if deadline_s is None:
        return incident, effect
    whole_s = max(0.0, deadline_s - incident.phase_mono_s)
    left_s = whole_s if incident.phase in _ASKED_ANEW else min(whole_s, A_LOOK_S)
    return structs.replace(incident, deadline_mono_s=max(deadline_s, now.mono_s + left_s)), effect
