"""What the `status` of Sentinel's own records says, in the form that `kubectl wait --for=condition=…` understands.

Nothing here is known that the record does not say: it is for people and for tools that read no fields of Sentinel's.
"""

from sentinel.cluster.kubernetes.conditions import Says
from sentinel.core.fleet.model import Mode, NodeQuarantine, State
from sentinel.core.model import Incident, Phase, StoredJob


def of_quarantine(record: NodeQuarantine) -> tuple[Says, ...]:
    """`Isolated`: does Sentinel keep the node out of service? `Ended`: is the record closed, and what must hold
    before."""
    if not record.state.open:
        end = _word(record.ended_by.value) or _reason(record.reason)
        return (
            Says("Isolated", False, end, record.sentence),
            Says("Ended", True, end, record.sentence),
        )
    open_ = Says("Ended", False, _word(f"needs-{record.needs.repair.value}"), record.needs.sentence)
    if record.isolating:
        return Says("Isolated", True, _reason(record.reason), record.sentence), open_
    if record.state is State.HELD:
        why = Says("Isolated", False, _word(f"held-back-{record.held_by.value}"), record.sentence)
    elif not record.kind.isolates:
        why = Says("Isolated", False, "Unreachable", "Nothing is written to a node that does not answer.")
    elif record.mode is Mode.OBSERVE:
        why = Says("Isolated", False, "ObserveMode", record.sentence)
    else:
        why = Says("Isolated", False, _reason(record.reason), record.sentence)
    return why, open_


def of_job(job: StoredJob) -> tuple[Says, ...]:
    """`Running`; `Recovering`: an incident is open; `Degraded`: part of the protection is missing; `Ended`."""
    state, incident = job.state, job.incident
    if incident is None:
        recovering = Says("Recovering", False, "NoIncident")
    else:
        recovering = Says("Recovering", not incident.phase.final, incident.phase.value, incident.sentence)
    why, sentence = _reason(job.reason, state.value), job.sentence
    return (
        Says("Running", state.value == "running", why, sentence),
        recovering,
        Says(
            "Degraded", bool(job.degraded), "Degraded" if job.degraded else "Whole", "; ".join(job.degraded)
        ),
        Says("Ended", state.final, why if state.final else _word(state.value), sentence),
    )


def of_incident(incident: Incident) -> tuple[Says, ...]:
    """`Ended`; `Recovered`: unknown until it ends."""
    phase = incident.phase
    recovered = (phase is Phase.RECOVERED) if phase.final else None
    return tuple(
        Says(kind, status, phase.value, incident.sentence)
        for kind, status in (("Ended", phase.final), ("Recovered", recovered))
    )


def _word(words: str) -> str:
    """`held-back-at-a-time` -> `HeldBackAtATime`: a reason is one CamelCase word."""
    return "".join(part[:1].upper() + part[1:] for part in words.split("-"))


def _reason(reason: str, otherwise: str = "unknown") -> str:
    return reason or _word(otherwise)
