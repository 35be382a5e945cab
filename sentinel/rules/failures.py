"""Loads rules/failures.toml: what each class of failure means."""

import os
from functools import cache

from sentinel.core.triage.rows import FailureClass, problems_of
from sentinel.rules.tables import RuleError, data_dir, load_rows


@cache
def failure_classes() -> dict[str, FailureClass]:
    """The shipped table by id. Raises RuleError that lists every problem."""
    return load_failures(data_dir("rules") / "failures.toml")


def load_failures(path: str | os.PathLike[str]) -> dict[str, FailureClass]:
    """Read one table by id. Raises RuleError that lists every problem."""
    rows = load_rows(path, "class", FailureClass)
    table = {row.id: row for row in rows}
    problems = [
        f"{path}: class[{k}]: {row.id!r} stands twice"
        for k, row in enumerate(rows)
        if table[row.id] is not row
    ]
    problems += [f"{path}: {problem}" for problem in problems_of(table)]
    if problems:
        raise RuleError(problems)
    return table
