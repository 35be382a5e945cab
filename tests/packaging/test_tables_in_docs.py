"""The tables of docs/timing.md and docs/triage.md say what the data and the code do."""

import re
from pathlib import Path
from types import ModuleType

from scripts.doc_tables import failure_table, replaced, timing_table
from sentinel.checks.docs import markdown
from sentinel.checks.kernel import docs as kernel_docs
from sentinel.checks.table import CHECKS
from sentinel.core.timing import change_point, hang, job_timing, performance
from sentinel.core.triage import case, past, verdict


def assert_numbers(text: str, *modules: ModuleType) -> None:
    """Rows like | `FLOOR_S` | 120 | … | name a constant and its value."""
    told = re.findall(r"^\| `([A-Z_]+)` \| ([0-9.]+) \|", text, re.M)
    assert told
    for name, value in told:
        found = [getattr(module, name) for module in modules if hasattr(module, name)]
        assert found, f"{name} is no constant any more"
        assert float(value) == found[0], f"{name} is {found[0]} now"


def test_the_table_of_timing_formats_is_that_of_the_data(repo: Path) -> None:
    assert timing_table() in (repo / "docs/timing.md").read_text(), "run: make generated"


def test_the_table_of_failure_classes_is_that_of_the_data(repo: Path) -> None:
    assert failure_table() in (repo / "docs/triage.md").read_text(), "run: make generated"


def test_the_page_of_checks_is_that_of_the_table(repo: Path) -> None:
    assert (repo / "docs/checks.md").read_text("utf-8") == markdown(), "run: make generated"


def test_the_page_of_kernel_messages_is_that_of_the_rules(repo: Path) -> None:
    assert (repo / "docs/kernel-log.md").read_text("utf-8") == kernel_docs.markdown(), "run: make generated"


def test_every_check_says_what_it_looks_at_and_needs() -> None:
    for row in CHECKS:
        line = next(line for line in markdown().splitlines() if line.startswith(f"| `{row.name}` |"))
        assert "|  |" not in line
    assert len({row.name for row in CHECKS}) == len(CHECKS)


def test_the_numbers_that_are_explained_are_those_of_the_code(repo: Path) -> None:
    assert_numbers((repo / "docs/timing.md").read_text(), change_point, hang, performance, job_timing)
    assert_numbers((repo / "docs/triage.md").read_text(), verdict, case, past)


def test_every_limit_of_an_announced_pause_is_told(repo: Path) -> None:
    text = (repo / "docs/timing.md").read_text()
    for kind, limit_s in hang.ACTIVITY_LIMIT_S.items():
        assert f"| {kind} | {limit_s / 60:.0f} min |" in text


def test_a_table_is_put_in_the_place_of_the_one_with_its_heads(repo: Path) -> None:
    page = "# Page\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n| 3 | 4 |\n\n| c |\n| --- |\n| 5 |\n\nAnd on.\n"
    assert replaced(page, "| a | b |\n| --- | --- |\n| 7 | 8 |\n") == (
        "# Page\n\n| a | b |\n| --- | --- |\n| 7 | 8 |\n\n| c |\n| --- |\n| 5 |\n\nAnd on.\n"
    )
    for name, table in (("timing", timing_table()), ("triage", failure_table())):
        text = (repo / f"docs/{name}.md").read_text("utf-8")
        assert replaced(text.replace("`, ", "`; "), table).count(table) == 1
