"""Ranks that waited for each other in vain, and what their flight recorders tell: whom they waited for. Pure."""

from msgspec import structs

from sentinel.core.flight_record import Kind, Stuck
from sentinel.core.model import Budget, Cause
from sentinel.core.triage_case import Case, Why
from sentinel.core.triage_launcher import rank_below
from sentinel.core.triage_rows import FailureClass

_BY_PROGRAM = (Kind.DIFFERENT, Kind.CROSSED)  # no node can bring that about


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
        others=tuple(f"flight recorder: {line}" for line in found.evidence),
    )
