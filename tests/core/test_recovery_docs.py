"""docs/recovery.md says what the machine does."""

import ast
import re
from pathlib import Path

import pytest

from sentinel.core.model import Phase
from sentinel.core.recovery.transitions import TRANSITIONS
from sentinel.docs.recovery import diagram, renewed, table


def test_the_generated_part_is_that_of_the_table(repo: Path) -> None:
    text = (repo / "docs/recovery.md").read_text("utf-8")
    assert text == renewed(text), "run: make generated"


def test_every_row_is_in_the_table_and_every_phase_in_the_diagram() -> None:
    assert table().count("\n| ") == len(TRANSITIONS)
    for phase in Phase:
        assert phase.value in diagram()


def test_a_page_without_the_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="generated"):
        renewed("# One recovery\n")


def reasons_in(source: str) -> set[str]:
    """CamelCase words among the strings of the code: the reasons that records can carry."""
    words = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    return {
        word for word in words if isinstance(word, str) and re.fullmatch(r"[A-Z][a-z]+(?:[A-Z][a-z]+)+", word)
    }


def test_every_reason_of_a_recovery_is_explained(repo: Path) -> None:
    text = (repo / "docs/recovery.md").read_text("utf-8")
    told = set(re.findall(r"`([A-Z]\w+)`", text))
    code = "\n".join(
        (repo / f"sentinel/core/recovery/{name}.py").read_text() for name in ("handlers", "moves", "budget")
    )
    reasons = reasons_in(code)
    # Of one phase on the way, said by its own sentence: no person has to look them up.
    passing = {"RoomFound", "PrecheckPassed", "RanksStarted"}
    assert reasons - passing - told == set()
