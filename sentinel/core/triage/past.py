"""Whose a fault is that nothing explains for sure: where it comes again, and what other jobs meet there, tells.

One that recurs on another node follows the job; one that recurs on the node with another job follows the node.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import structs

from sentinel.core.model import (
    UNSTEPPED_S,
    Budget,
    Cause,
    Failure,
    Incident,
    IncidentKind,
    Restartable,
    Symptom,
)
from sentinel.core.now import Now
from sentinel.core.signals import how_far
from sentinel.core.triage.case import Case, Struck, Why, place_of
from sentinel.core.triage.rows import clean, same_entity

# A fault is compared with those of the last day; an older one says nothing of this run.
REPEAT_S = 86_400.0
JOB, NODE = "job", "node"
PLACED = (Symptom.RANK_LOST, Symptom.HANG, Symptom.STRAGGLER)  # of which the place of one rank can tell
MOST_JOBS = 3  # whose evidence is shown


def weigh_past(case: Case, why: Why) -> Why:
    """Hardware that is known to be at fault needs no second time."""
    past = [f for f in case.history if f.failure == why.cls.id and case.now.wall_s - f.wall_s <= REPEAT_S]
    place = place_of(case, why)
    open_to_it = why.cls.follows and _is_node(place) and case.symptom in PLACED
    if open_to_it and not any(_at_another(f, place) for f in past) and (met := _met(case, why)):
        return _of_node(why, place, met)
    if why.cls.restart is Restartable.ONCE:
        return _ambiguous(case, why, past)
    if open_to_it and why.finding is None:
        before = next((f.place for f in reversed(past) if _at_another(f, place)), "")
        if before:
            return _of_job(why, f"The same happened on {before}: it follows the job.")
    return why


def _is_node(place: str) -> bool:
    """On one machine a place is one of its GPUs ("GPU 0000:17:00.0"): of that machine another one tells nothing."""
    return bool(place) and " " not in place


def _at_another(failure: Failure, place: str) -> bool:
    return bool(failure.place) and not same_entity(failure.place, place)


def _of_job(why: Why, note: str, restart: Restartable | None = None) -> Why:
    """It is no reason to leave the place."""
    cause = Cause.UNKNOWN if why.cls.cause in (Cause.NODE, Cause.GPU) else why.cls.cause
    cls = structs.replace(
        why.cls, cause=cause, scope="job", budget=Budget.JOB, restart=restart or why.cls.restart
    )
    return structs.replace(why, cls=cls, note=f"{why.note} {note}".strip(), entity="", follows=JOB)


# ---------------------------------------------------------------- what other jobs met


def struck(incidents: Iterable[Incident], now: Now) -> tuple[Struck, ...]:
    """What these incidents tell of places, of the last day."""
    return tuple(
        Struck(one.job, one.verdict.failure, one.verdict.place, one.opened_wall_s, one.verdict.sentence)
        for one in incidents
        if (one.kind is IncidentKind.FORCED or one.verdict.symptom is Symptom.STRAGGLER)
        and one.verdict.place
        and now.wall_s - one.opened_wall_s <= REPEAT_S
    )


def _met(case: Case, why: Why) -> dict[str, str]:
    """Other jobs that met the same at this place and at no other, where it stands out among all places: what was said
    of each."""
    where: dict[str, set[str]] = {}
    said: dict[str, str] = {}
    for one in case.others():
        if one.failure == why.cls.id and one.job != case.job and case.now.wall_s - one.wall_s <= REPEAT_S:
            where.setdefault(one.job, set()).add(one.place)
            said[one.job] = one.sentence
    place = place_of(case, why)
    here = sorted(job for job, places in where.items() if places == {place})
    elsewhere = Counter(other for places in where.values() for other in places - {place})
    # Where as many jobs meet it on another node it is what such jobs do, not what this node does.
    stands_out = len(here) + 1 > max(elsewhere.values(), default=0)
    return {job: said[job] for job in here} if stands_out else {}


def _of_node(why: Why, place: str, met: Mapping[str, str]) -> Why:
    jobs = list(met)
    more = f" and {len(jobs) - MOST_JOBS} more" if len(jobs) > MOST_JOBS else ""
    named = ", ".join(jobs[:MOST_JOBS]) + more
    note = f"{named} met the same on {place}, and on no other: it follows the node."
    own = why.cls.cause in (Cause.UNKNOWN, Cause.USER_CODE)
    cls = structs.replace(
        why.cls,
        cause=Cause.NODE if own else why.cls.cause,
        scope="node",
        budget=Budget.INFRASTRUCTURE,
        restart=Restartable.YES,
    )
    told = tuple(f"{job}: {clean(met[job])}" for job in jobs[:MOST_JOBS] if met[job])
    return structs.replace(
        why, cls=cls, note=f"{why.note} {note}".strip(), entity=place, follows=NODE, others=told
    )


# ---------------------------------------------------------------- retried once


def _ambiguous(case: Case, why: Why, past: Sequence[Failure]) -> Why:
    """An ambiguous failure is retried once; where it strikes again tells whose it is."""
    if not past:
        return why
    elsewhere = [f for f in past if f.entity and why.entity and not same_entity(f.entity, why.entity)]
    step = max((s for s in case.last_steps.values() if s is not None), default=None)
    unplaced = not why.entity or not past[-1].entity
    own = why.cls.cause is Cause.USER_CODE  # against its GPU speaks only what other jobs met there
    follows = JOB
    if elsewhere:
        note = f"The same happened on {elsewhere[-1].entity}: it follows the job."
    elif (unplaced or own) and _came_further(case, step, past[-1]):
        return why
    elif unplaced:
        note, follows = "The same happened before, and no hardware is known to be at fault.", ""
    elif step is not None and past[-1].step == step:
        note = f"The same happened before after the same {how_far(step, case.steps_told)}: it follows the program."
    elif own:
        note = f"The same happened before on {why.entity}, and to no other job there: it follows the program."
    else:
        # The GPU, not the program: this row of the table no longer fits in cause, scope and cost.
        cls = structs.replace(
            why.cls, cause=Cause.GPU, scope="node", budget=Budget.INFRASTRUCTURE, restart=Restartable.YES
        )
        note = f"It is the second time on {why.entity}: that is to blame."
        return structs.replace(why, cls=cls, note=note, follows=NODE)
    cause = Cause.USER_CODE if why.cls.cause is Cause.UNKNOWN else why.cls.cause
    cls = structs.replace(why.cls, cause=cause, scope="job", budget=Budget.JOB, restart=Restartable.NO)
    return structs.replace(why, cls=cls, note=note, entity="", follows=follows)


def _came_further(case: Case, step: int | None, before: Failure) -> bool:
    """Where the logs name no steps a later start may be far ahead with fewer iterations: then it is taken to have come
    further where it ran long."""
    return before.is_behind(step) or (not case.steps_told and case.run_s - before.run_s > UNSTEPPED_S)
