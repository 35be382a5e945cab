"""The documentation can be found and says what the code does."""

import re
import subprocess
import sys
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
    text = re.sub(r"`[^`\n]*`", "", path.read_text())  # in code it is no link
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{document} links to {target}"


def test_every_exit_code_of_a_run_is_in_the_documentation(repo: Path) -> None:
    from sentinel.cli import exit_codes

    codes = {value for name, value in vars(exit_codes).items() if name.startswith("EXIT_")}
    documented = {
        int(code) for code in re.findall(r"^\| (\d+) \|", (repo / "docs/exit-codes.md").read_text(), re.M)
    }
    assert codes
    assert codes <= documented


def test_the_policies_that_are_shown_are_valid(repo: Path, tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (repo / "README.md").read_text(), re.S)
    assert blocks
    for number, block in enumerate(blocks):
        (tmp_path / f"{number}.yaml").write_text(block)
    command = [sys.executable, "-m", "sentinel", "validate", *map(str, tmp_path.glob("*.yaml"))]
    done = subprocess.run(command, cwd=repo, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_command_that_the_readme_names_exists(repo: Path) -> None:
    from sentinel.cli import COMMANDS

    named = set(re.findall(r"(?:^    |`)sentinel ([a-z]+)", (repo / "README.md").read_text(), re.M))
    assert named <= COMMANDS.keys()
