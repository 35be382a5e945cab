"""How many jobs that still step may be stopped: never so many that Sentinel itself is the outage. Pure."""

from collections.abc import Iterable, Mapping

from sentinel.core.fleet.settings import Allowance, FleetSettings
from sentinel.core.model import Incident, IncidentKind, Phase
from sentinel.core.now import Now


def held(
    job: str,
    pools: Mapping[str, str],
    incidents: Iterable[Incident],
    settings: FleetSettings,
    now: Now,
) -> str:
    """Why this job, which still steps, is not to be stopped now; "": nothing speaks against it.

    `pools`: protected job -> its pool, by which shares are counted; `incidents`: of all jobs, as the records say.
    """
    stops = [one for one in incidents if _stopped(one)]
    pool = pools.get(job, "")
    there = [one for one in stops if pools.get(one.job, "") == pool]
    whole, part = settings.stops, settings.pool_stops
    if why := _over(whole, stops, len(pools), now):
        return f"{why} in all."
    if why := _over(part, there, sum(one == pool for one in pools.values()), now):
        return f"{why} in {f'pool {pool}' if pool else 'its pool'}."
    return ""


def _stopped(incident: Incident) -> bool:
    """Was, or will be, a stepping job stopped by it? Counted from when it was decided."""
    if incident.kind is IncidentKind.CHOSEN:
        return incident.phase not in (Phase.KEPT_RUNNING, Phase.CANCELLED)
    return any(step.phase is Phase.SAVING for step in incident.steps) and incident.end_state is None


def _over(allowed: Allowance, stops: Iterable[Incident], jobs: int, now: Now) -> str:
    recent = sum(now.wall_s - one.opened_wall_s < allowed.window_s for one in stops)
    limit = allowed.per_window.of(jobs)
    if recent < limit:
        return ""
    minutes = allowed.window_s / 60
    return (
        f"{recent} jobs that still stepped were stopped within {minutes:g} min, of {limit} that are allowed"
    )
