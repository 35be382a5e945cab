"""docs/job-kinds.md says what the table says."""

import re
from pathlib import Path

import pytest

from sentinel.core.job.writes import Reason
from sentinel.docs.job_kinds import renewed
from sentinel.rules.job_kinds import job_table


def test_the_generated_part_is_that_of_the_table(repo: Path) -> None:
    text = (repo / "docs/job-kinds.md").read_text("utf-8")
    assert text == renewed(text), "run: make generated"


def test_every_kind_every_trap_and_every_reason_is_on_the_page(repo: Path) -> None:
    told = set(re.findall(r"`([^`]+)`", (repo / "docs/job-kinds.md").read_text("utf-8")))
    table = job_table()
    assert {row.title for row in table.rows if not row.fallback} <= told
    assert set(table.traps) <= told
    assert {reason.value for reason in Reason} <= told


def test_a_page_without_the_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="generated"):
        renewed("# Kinds of jobs\n")
