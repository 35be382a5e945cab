"""How much of a job's run time made iterations that count. Pure."""

from sentinel.core.model import Incident, IncidentKind, Phase


def lost_run_s(incident: Incident, step_ms: float | None) -> float:
    """Seconds of the job's run time that an incident took: those in which it ran and stood still, and those that
    repeated iterations take, at `step_ms` each. Time in which it did not run is no run time."""
    lost = incident.lost
    if lost is None:
        return 0.0
    forced = incident.kind is not IncidentKind.CHOSEN  # one that still steps runs until it is started anew
    down = (Phase.PRECHECKING, Phase.STARTING) if forced else (Phase.STARTING,)
    stood_s = sum(
        after.wall_s - before.wall_s
        for before, after in zip(incident.steps, incident.steps[1:], strict=False)
        if before.phase in down
    )
    repeated_s = (lost.steps or 0) * (step_ms or 0.0) / 1000
    return max(0.0, lost.seconds - stood_s) + repeated_s
