"""Who runs the tests without root gets all that pass without it, and is told how many were left out."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
TESTS = """
import os
import pytest
from tests.gate.rights import needs_root

@pytest.fixture
@needs_root
def disk():
    assert os.geteuid() == 0

@pytest.fixture
def file(disk):
    pass

def test_of_all():
    pass

@pytest.mark.root
@pytest.mark.parametrize("n", range(3))
def test_marked(n):
    assert os.geteuid() == 0

def test_by_a_fixture_of_a_fixture(file):
    pass
"""
OTHERS = """
import pytest

@pytest.fixture
def disk():
    "Of the same name, and for everybody."

@pytest.mark.parametrize("n", range(4))
def test_of_all_too(disk, n):
    pass
"""
LINE = "4 tests need root and are left out: `sudo make test` runs all"
# Another user, who may still read what is root's alone, as this checkout may be.
CAPABILITIES = ("--bounding-set", "--inh-caps", "--ambient-caps")
ORDINARY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
ORDINARY += [f"{kind}=-all,+dac_override" for kind in CAPABILITIES]


def as_ordinary_user(*command: str | Path) -> list[str]:
    """The command as it is to be started: this is root or an ordinary user."""
    return [*(ORDINARY if os.geteuid() == 0 else ()), *map(str, command)]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers -p tests.gate.rights\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "test_others.py").write_text(OTHERS)
    return tmp_path


def run(project: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    for name in ("PYTEST_ADDOPTS", "LOGNAME", "USER", "LNAME", "USERNAME"):  # pytest's folder has the user's
        env.pop(name, None)
    return subprocess.run(command, cwd=project, env=env, capture_output=True, text=True)


def pytest_of(*options: str | Path) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, options)]


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_without_root_what_needs_it_is_left_out_and_said_at_the_start_and_at_the_end(
    project: Path, workers: tuple[str, ...]
) -> None:
    done = run(project, *as_ordinary_user(*pytest_of(*workers)))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    first, last = (at for at, line in enumerate(lines) if line == LINE)
    (tests,) = (at for at, line in enumerate(lines) if line.startswith("....."))
    assert first < tests < last
    assert re.match("5 passed", lines[-1])


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_without_root_nothing_is_said_where_nothing_is_left_out(
    project: Path, workers: tuple[str, ...]
) -> None:
    done = run(project, *as_ordinary_user(*pytest_of(*workers, "test_others.py")))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "root" not in done.stdout
    assert re.match("4 passed", done.stdout.splitlines()[-1])


@pytest.mark.root
@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_as_root_nothing_is_left_out(project: Path, workers: tuple[str, ...]) -> None:
    done = run(project, *pytest_of(*workers))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "left out" not in done.stdout
    assert "deselected" not in done.stdout
    assert re.match("9 passed", done.stdout.splitlines()[-1])


def test_for_the_gate_nothing_is_left_out_without_root_either(project: Path) -> None:
    options = ("-p", "tests.gate.report", f"--gate-report={project / 'go-1.json'}")
    done = run(project, *as_ordinary_user(*pytest_of(*options)))
    assert done.returncode == 1
    assert "left out" not in done.stdout
    assert "3 failed, 5 passed, 1 error" in done.stdout


def test_ci_without_root_fails_before_it_does_anything(repo: Path) -> None:
    done = run(repo, *as_ordinary_user(repo / ".ci" / "run"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("/.ci/run: some tests need root; run it as root\n")
