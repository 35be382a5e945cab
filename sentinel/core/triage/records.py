"""Ranks that waited for each other in vain, and what their flight recorders tell: whom they waited for. Pure."""

from msgspec import structs

from sentinel.core.model import Budget, Cause
from sentinel.core.stacks.flight_record import Kind, Stuck
from sentinel.core.triage.case import Case, Why
from sentinel.core.triage.launcher import rank_below
from sentinel.core.triage.rows import FailureClass

_BY_PROGRAM = (Kind.DIFFERENT, Kind.CROSSED)  # where each rank goes its own way, no node does


def decides(found: Stuck) -> bool:
    """Does it tell more than the ranks' own words may?"""
    return found.kind in _BY_PROGRAM or bool(found.ranks)


def with_records(why: Why, found: Stuck) -> Why:
    """What does not tell for whom they waited is told beside what they said."""
    return structs.replace(why, others=(*why.others, *_lines(found.sentence, *found.evidence)))


def by_records(case: Case, found: Stuck, cls: FailureClass) -> Why:
    """`cls`: that of what the ranks said."""
    if found.kind in _BY_PROGRAM:
        cls = structs.replace(cls, cause=Cause.USER_CODE, scope="job", budget=Budget.JOB)
    rank, worker = (None, None) if found.rank is None else rank_below(found.rank, case)
    clause = f"{found.sentence[:1].lower()}{found.sentence[1:]}".removesuffix(".")
    return Why(
        cls=structs.replace(cls, advice=found.advice),
        rank=rank,
        worker=worker,
        clause=clause,
        others=_lines(*found.evidence),
    )


def _lines(*told: str) -> tuple[str, ...]:
    return tuple(f"flight recorder: {line}" for line in told)
