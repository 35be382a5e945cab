"""The tables of docs/timing.md and docs/triage.md say what the data and the code do."""

import re
import tomllib
from pathlib import Path
from types import ModuleType

from sentinel.checks import kernel_docs
from sentinel.checks.docs import markdown
from sentinel.checks.table import CHECKS
from sentinel.core import hang, performance, timing, triage, triage_case, triage_past
from sentinel.failures import failure_classes
from sentinel.logs.formats import TimingRow
from sentinel.rules import data_dir, load_rows

NAMES = {
    "hardware": "hardware time",
    "e2e": "end-to-end time",
    "rate": "rate",
    "step": "step",
    "epoch": "epoch",
}


def table(heads: list[str], rows: list[list[str]]) -> str:
    lines = []
    for row in (heads, ["---"] * len(heads), *rows):
        cells = [cell.replace("|", r"\|") for cell in row]
        lines.append(f"| {' | '.join(cells)} |\n")
    return "".join(lines)


def timing_table(repo: Path) -> str:
    with open(repo / "tests/logs/timing_lines.toml", "rb") as file:
        lines = tomllib.load(file)["line"]
    examples = {line["format"]: line["line"] for line in reversed(lines)}
    rows = []
    for row in load_rows(data_dir("rules") / "timing.toml", "timing", TimingRow):
        groups = re.findall(r"\?P<(\w+)>", row.pattern)
        told = [NAMES[name] for name in NAMES if any(group.split("_")[0] == name for group in groups)]
        told = [name for name in told if name != "epoch" or "step" not in told]
        found = re.search(row.pattern, re.sub(r"\x1b\[[0-9;]*m", "", examples[row.id]))
        assert found, row.id
        shown = re.sub(r"  +", " ", found.group()).strip()
        shown = shown if len(shown) <= 90 else f"{shown[:44]} … {shown[-42:]}"
        rows.append([f"`{row.id}`", ", ".join(told) or "that a step ended", f"`{shown}`", row.source])
    return table(["format", "tells", "looks like", "printed by"], rows)


def failure_table() -> str:
    rows = [
        [f"`{cls.id}`", cls.title, cls.cause.value, cls.scope, cls.role, cls.restart.value, cls.budget.value]
        for cls in failure_classes().values()
    ]
    return table(["class", "what it is", "cause", "scope", "role", "restart", "budget"], rows)


def assert_numbers(text: str, *modules: ModuleType) -> None:
    """Rows like | `FLOOR_S` | 120 | … | name a constant and its value."""
    told = re.findall(r"^\| `([A-Z_]+)` \| ([0-9.]+) \|", text, re.M)
    assert told
    for name, value in told:
        found = [getattr(module, name) for module in modules if hasattr(module, name)]
        assert found, f"{name} is no constant any more"
        assert float(value) == found[0], f"{name} is {found[0]} now"


def test_the_table_of_timing_formats_is_that_of_the_data(repo: Path) -> None:
    wanted = timing_table(repo)
    assert wanted in (repo / "docs/timing.md").read_text(), f"put this table there:\n{wanted}"


def test_the_table_of_failure_classes_is_that_of_the_data(repo: Path) -> None:
    wanted = failure_table()
    assert wanted in (repo / "docs/triage.md").read_text(), f"put this table there:\n{wanted}"


def test_the_page_of_checks_is_that_of_the_table(repo: Path) -> None:
    """Make it again with: python -m sentinel.checks.docs > docs/checks.md"""
    assert (repo / "docs/checks.md").read_text("utf-8") == markdown()


def test_the_page_of_kernel_messages_is_that_of_the_rules(repo: Path) -> None:
    """Make it again with: python -m sentinel.checks.kernel_docs > docs/kernel-log.md"""
    assert (repo / "docs/kernel-log.md").read_text("utf-8") == kernel_docs.markdown()


def test_every_check_says_what_it_looks_at_and_needs() -> None:
    for row in CHECKS:
        line = next(line for line in markdown().splitlines() if line.startswith(f"| `{row.name}` |"))
        assert "|  |" not in line
    assert len({row.name for row in CHECKS}) == len(CHECKS)


def test_the_numbers_that_are_explained_are_those_of_the_code(repo: Path) -> None:
    assert_numbers((repo / "docs/timing.md").read_text(), hang, performance, timing)
    assert_numbers((repo / "docs/triage.md").read_text(), triage, triage_case, triage_past)


def test_every_limit_of_an_announced_pause_is_told(repo: Path) -> None:
    text = (repo / "docs/timing.md").read_text()
    for kind, limit_s in hang.ACTIVITY_LIMIT_S.items():
        assert f"| {kind} | {limit_s / 60:.0f} min |" in text
