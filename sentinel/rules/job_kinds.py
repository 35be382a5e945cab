"""Loads rules/job_kinds.toml: the kinds of jobs, and their traps."""

import os
from functools import cache

from msgspec import Struct

from sentinel.core.job.kinds import JobKind, Trap, problems_of
from sentinel.rules.tables import RuleError, data_dir, load_rows


class JobTable(Struct, frozen=True):
    rows: tuple[JobKind, ...]
    traps: dict[str, Trap]

    @property
    def fallback(self) -> JobKind:
        """The row of pods whose owner is of no other."""
        return next(row for row in self.rows if row.fallback)

    @property
    def followed(self) -> tuple[JobKind, ...]:
        """One row of each resource that is looked at: two rows can be of one, and pods are looked at anyway."""
        first = {(row.group, row.version, row.plural): row for row in reversed(self.rows) if not row.fallback}
        return tuple(reversed(first.values()))


@cache
def job_table() -> JobTable:
    """The shipped table. Raises RuleError that lists every problem."""
    return load_job_table(data_dir("rules") / "job_kinds.toml")


def load_job_table(path: str | os.PathLike[str]) -> JobTable:
    """Raises RuleError that lists every problem."""
    rows = tuple(load_rows(path, "kind", JobKind))
    listed = load_rows(path, "trap", Trap)
    traps = {trap.id: trap for trap in listed}
    problems = [f"trap {trap.id!r}: stands twice" for trap in listed if traps[trap.id] is not trap]
    problems += problems_of(rows, traps)
    if problems:
        raise RuleError([f"{path}: {problem}" for problem in problems])
    return JobTable(rows, traps)
