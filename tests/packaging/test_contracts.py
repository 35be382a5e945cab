"""The architecture is executable: each kind of wrong import fails, in a copy of the source tree."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def lint_imports(tree: Path) -> tuple[int, str]:
    """Checks the contracts of a copy, importing the copy and not what is installed."""
    code = "import sys; sys.path.insert(0, '.'); from importlinter.cli import lint_imports_command as c; c()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--no-cache"], cwd=tree, capture_output=True, text=True, timeout=60
    )
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.fixture
def tree(repo: Path, tmp_path: Path) -> Path:
    shutil.copytree(repo / "sentinel", tmp_path / "sentinel", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(repo / "pyproject.toml", tmp_path)
    return tmp_path


def test_every_kind_of_wrong_import_is_found_even_inside_a_function(tree: Path) -> None:
    with open(tree / "sentinel/core/model.py", "a") as file:
        file.write("\n\ndef _wrong():\n    import time\n    import sentinel.settings\n")
    with open(tree / "sentinel/controller/effects/notify.py", "a") as file:
        file.write("\n\nimport yaml\nimport sentinel.cluster.local.store\n")
    with open(tree / "sentinel/agent/ranks.py", "a") as file:
        file.write(
            "\n\ndef _wrong():\n    import kubernetes\n    import sentinel.cluster.kubernetes.client\n"
        )
    with open(tree / "sentinel/transport/channel.py", "a") as file:
        file.write("\n\ndef _wrong():\n    import cryptography\n")
    (tree / "sentinel/nowhere.py").write_text("import msgspec\n")
    code, said = lint_imports(tree)
    assert code == 1
    for wrong in (
        "sentinel.core.model -> time",
        "sentinel.core.model -> sentinel.settings",
        "sentinel.controller.effects.notify -> sentinel.cluster.local.store",
        "sentinel.controller.effects is not allowed to import yaml",
        "sentinel is not allowed to import yaml",
        "sentinel is not allowed to import kubernetes",
        "sentinel.agent.ranks -> sentinel.cluster.kubernetes.client",
        "sentinel is not allowed to import cryptography",
        "sentinel.transport.client is not allowed to import cryptography",
        "The following modules are not listed as layers:",
        "- sentinel.nowhere",
    ):
        assert wrong in said


def test_the_tree_as_it_is_keeps_all_contracts(tree: Path) -> None:
    code, said = lint_imports(tree)
    assert code == 0, said
    assert " 0 broken" in said
