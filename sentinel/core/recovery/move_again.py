"""A job that still steps and could not be moved, for want of room or since its ranks could not be told to save: when
it is asked for again. Pure."""

from msgspec import Struct

from sentinel.core.model import Incident, IncidentKind, Phase

NOT_ASKED = "SaveNotAsked"  # reason of a move that ended where no rank could be told to save
FIRST_S, MOST_S = 20.0, 3600.0  # after the first refusal; doubled with each one more of the same incarnation


class Refused(Struct, frozen=True):
    """The newest refusal of one move."""

    incident: Incident
    at_mono_s: float

    @property
    def again_mono_s(self) -> float:
        return self.at_mono_s + pause_s(self.incident.refusals)


def pause_s(refusals: int) -> float:
    """`refusals`: those before this one."""
    return min(MOST_S, FIRST_S * 2.0 ** min(refusals, 20))


def refused(incident: Incident) -> bool:
    """Was a move given up before anything of the job was touched? A growth is looked for by other rules."""
    return (
        incident.kind is IncidentKind.CHOSEN
        and incident.phase is Phase.KEPT_RUNNING
        and bool(incident.key)
        and (incident.save is None or incident.reason == NOT_ASKED)
        and not incident.attempt
    )
