"""What docs/extending.md and docs/architecture.md name is there, and the example of a check works."""

import re
from pathlib import Path
from types import ModuleType

import pytest

from sentinel.checks.base import Absent, Kept, Look, Unknown
from sentinel.checks.docs import markdown
from sentinel.core.health import Severity
from sentinel.core.now import Now
from sentinel.settings import Settings

PLACES = ("sentinel", "tests", "rules", "docs", "scripts", "deploy")


@pytest.fixture
def page(repo: Path) -> str:
    return (repo / "docs/extending.md").read_text("utf-8")


def test_each_file_that_the_page_names_is_there(page: str, repo: Path) -> None:
    named = set(re.findall(rf"`((?:{'|'.join(PLACES)})/[\w./-]+)`", page))
    assert len(named) > 30
    examples = {one for one in named if "NAME" in one}
    assert [one for one in sorted(named - examples) if not (repo / one).exists()] == []
    for one in examples:
        assert list(repo.glob(one.replace("NAME", "*"))), one


def test_each_file_on_the_walks_through_the_code_is_there(repo: Path) -> None:
    text = (repo / "docs/architecture.md").read_text("utf-8")
    walks = text.partition("## Two walks through the code\n")[2].partition("\n## ")[0]
    named = re.findall(r"`([\w/]+\.py)`", walks)
    assert len(named) > 30
    assert [one for one in named if not (repo / "sentinel" / one).exists()] == []


def test_each_command_of_the_page_is_one_of_the_makefile(page: str, repo: Path) -> None:
    commands = set(re.findall(r"\bmake (\w+)", page))
    targets = set(re.findall(r"^([\w-]+):", (repo / "Makefile").read_text(), re.M))
    assert {"generated", "test", "lint"} <= commands <= targets


def test_each_recipe_names_a_file_of_tests(page: str) -> None:
    recipes = re.split(r"^## ", page, flags=re.M)[1:]
    assert len(recipes) >= 8
    for recipe in recipes:
        assert re.search(r"tests/\w+/test_\w+\.py|tests/test_\w+\.py", recipe), recipe.splitlines()[0]


def test_the_words_of_a_table_that_a_recipe_names_stand_in_it(page: str, repo: Path) -> None:
    """`[[rule]]` of `rules/kernel.toml`, `EXPECTED` of `tests/…`."""
    pairs = re.findall(r"`(\[\[\w+\]\]|[A-Z]{4,})` (?:of|in) `([\w./]+)`", page.replace("\n", " "))
    assert len(pairs) >= 8
    assert [(word, file) for word, file in pairs if word not in (repo / file).read_text("utf-8")] == []


def test_the_example_of_a_check_is_a_check(page: str, tmp_path: Path) -> None:
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert code is not None
    module = ModuleType("swap")
    exec(re.sub(r"^   ", "", code[1], flags=re.M), module.__dict__)
    look = Look(Settings(procfs=str(tmp_path)), (), Now(1000.0, 1_700_000_000.0), "boot", Kept())
    with pytest.raises(Unknown, match="meminfo"):
        module.check(look)
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("SwapTotal:       0 kB\nSwapFree:        0 kB\n")
    with pytest.raises(Absent):
        module.check(look)
    meminfo.write_text("SwapTotal: 8388608 kB\nSwapFree:  8388608 kB\n")
    assert module.check(look) == []
    meminfo.write_text("SwapTotal: 8388608 kB\nSwapFree:  4194304 kB\n")
    (found,) = module.check(look)
    assert (found.check, found.code, found.severity) == ("swap", "swap-used", Severity.WARNING)
    assert "| `swap` |" not in markdown(), "it would be a better example if it were none that is shipped"
