"""The documentation can be found and says what the code does."""

import re
from pathlib import Path

import pytest


def test_the_index_links_every_document_and_no_link_is_dead(repo: Path) -> None:
    index = (repo / "docs/index.md").read_text()
    for document in (repo / "docs").glob("*.md"):
        assert document.name == "index.md" or f"({document.name})" in index, document.name


@pytest.mark.parametrize(
    "document",
    ["README.md", "CHANGELOG.md", *sorted(p.name for p in (Path(__file__).parents[2] / "docs").glob("*.md"))],
)
def test_links_lead_somewhere(repo: Path, document: str) -> None:
    path = repo / document if (repo / document).exists() else repo / "docs" / document
    for target in re.findall(r"\]\(([^)#\s]+)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{document} links to {target}"


def test_every_exit_code_of_a_run_is_in_the_documentation(repo: Path) -> None:
    from sentinel.cli import session

    codes = {value for name, value in vars(session).items() if name.startswith("EXIT_")}
    documented = {
        int(code) for code in re.findall(r"^\| (\d+) \|", (repo / "docs/exit-codes.md").read_text(), re.M)
    }
    assert codes
    assert codes <= documented
