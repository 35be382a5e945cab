"""The gate: what fails by accident is told and does not stop a change; what fails, does."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MAKEFILE = f"""
test:
	@PYTHONPATH={Path(__file__).parents[2]} {sys.executable} -m pytest -q $(or $(args),$(first))
"""
GOES = """
from pathlib import Path

def go():
    "Which time this runs, from 1."
    with open("goes", "a") as file:
        file.write("x")
    return len(Path("goes").read_text())

def test_always():
    pass
"""


class Project:
    """A repository of its own with these tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "build" / "gate"
        (folder / "Makefile").write_text(MAKEFILE)
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / ".gitignore").write_text("/build/\n/goes\n__pycache__/\n.pytest_cache/\n")

    def run(
        self,
        tests: str,
        first: str = "",
        commit: bool = True,
        checkout: bool = True,
        more: tuple[str, ...] = (),
    ) -> subprocess.CompletedProcess[str]:
        (self.folder / "test_it.py").write_text(GOES + tests)
        if checkout:
            self.git("init", "-q")
        if commit and checkout:
            self.git("add", "-A")
            self.git("-c", "user.name=x", "-c", "user.email=x@example.com", "commit", "-qm", "all")
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "first": first}
        env["XDG_CACHE_HOME"] = str(self.folder / "build" / "cache")
        for name in ("args", "MAKEFLAGS", "MAKELEVEL"):  # of `make test args="..."`, which hands its words on
            env.pop(name, None)
        words = [sys.executable, "-m", "tests.gate", "--settle-s", "1", *more]
        return subprocess.run(words, cwd=self.folder, env=env, capture_output=True, text=True)

    def git(self, *words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=self.folder, check=True, capture_output=True, text=True
        ).stdout.strip()

    @property
    def goes(self) -> int:
        return len((self.folder / "goes").read_text())

    @property
    def noted(self) -> list[str]:
        file = self.folder / "build" / "cache" / "sentinel" / "ci-passed"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_what_passes_at_once_is_green_and_noted(project: Project) -> None:
    done = project.run("")
    assert done.returncode == 0, done.stdout
    assert "UNSTEADY" not in done.stdout
    assert done.stdout.splitlines()[-1].startswith("1 passed in ")
    assert json.loads((project.out / "unsteady.json").read_text()) == []
    (line,) = project.noted
    assert line.split()[0] == project.git("rev-parse", "HEAD^{tree}")


@pytest.mark.parametrize("failures", [1, 2])
def test_what_fails_and_then_passes_is_unsteady_and_green(project: Project, failures: int) -> None:
    done = project.run(f"def test_sometimes():\n    time = go()\n    assert time > {failures}, 'not yet'\n")
    assert done.returncode == 0, done.stdout
    assert project.goes == failures + 1
    assert "= UNSTEADY =" in done.stdout
    told = done.stdout.partition("= UNSTEADY =")[2]
    assert "test_it.py::test_sometimes failed and then passed; it took 0.0" in told
    assert "AssertionError: not yet" in told
    assert done.stdout.splitlines()[-1].startswith("1 passed in ")
    (kept,) = json.loads((project.out / "unsteady.json").read_text())
    assert kept["test"] == "test_it.py::test_sometimes"
    assert "assert 1 > " in kept["first_failure"]
    assert len(kept["durations_s"]) == failures + 1
    assert len(project.noted) == 1


def test_what_fails_three_times_is_red(project: Project) -> None:
    done = project.run(
        "def test_never():\n    go()\n    assert False\n\ndef test_second():\n    assert len(open('goes').read()) > 1\n"
    )
    assert done.returncode == 1
    assert project.goes == 3
    assert "test_it.py::test_second failed and then passed" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("1 failed in ")
    assert project.noted == []


def test_many_failures_are_no_accident(project: Project) -> None:
    done = project.run(
        "import pytest\n@pytest.mark.parametrize('n', range(20))\ndef test_many(n):\n    go()\n    assert n < 0\n"
    )
    assert done.returncode == 1
    assert project.goes == 20
    assert "Red: 20 tests failed, more than 15." in done.stdout
    assert done.stdout.index("failed: call of test_it.py::") < done.stdout.index("= FAILURES =")
    assert done.stdout.splitlines()[-1].startswith("20 failed, 1 passed in ")


def test_fifteen_failures_run_again(project: Project) -> None:
    done = project.run(
        "import pytest\n@pytest.mark.parametrize('n', range(15))\ndef test_many(n):\n    assert go() > 15\n"
    )
    assert done.returncode == 0, done.stdout
    assert project.goes == 30


def test_an_error_at_collection_is_red_at_once(project: Project) -> None:
    done = project.run("go()\nimport nothing_of_this_name\n")
    assert done.returncode == 1
    assert project.goes == 1
    assert "Red: broken, not just failed: collecting test_it.py." in done.stdout


def test_an_error_at_collection_is_red_at_once_with_several_workers_too(project: Project) -> None:
    done = project.run("import nothing_of_this_name\n", first="-n 2")
    assert done.returncode == 1
    assert "Red: broken, not just failed: collecting test_it.py" in done.stdout
    assert not (project.out / "go-2.json").exists()


@pytest.mark.parametrize("first", ["", "-n 2"])
def test_a_crash_is_red_at_once(project: Project, first: str) -> None:
    done = project.run("import os\ndef test_crash():\n    if go() == 1:\n        os._exit(0)\n", first=first)
    assert done.returncode == 1
    assert not (project.out / "go-2.json").exists()
    assert project.noted == []


def test_a_teardown_that_fails_is_a_failure_of_the_test(project: Project) -> None:
    done = project.run(
        "import pytest\n@pytest.fixture\ndef left():\n    yield\n    assert go() > 1, 'left over'\n"
        "def test_tidy(left):\n    pass\n"
    )
    assert done.returncode == 0, done.stdout
    (kept,) = json.loads((project.out / "unsteady.json").read_text())
    assert (kept["test"], "left over" in kept["first_failure"]) == ("test_it.py::test_tidy", True)


def test_nothing_of_the_first_go_runs_beside_the_second(project: Project) -> None:
    """A daemon of the first go, in a session of its own, is gone."""
    done = project.run(
        "import subprocess\n"
        "def test_left():\n"
        "    if go() == 1:\n"
        "        words = ['sh', '-c', 'sleep 1000 & echo $!']\n"
        "        left = subprocess.run(words, stdout=open('build/pid', 'w'), start_new_session=True)\n"
        "        assert False\n"
        "    assert not Path('/proc', Path('build/pid').read_text().strip()).exists()\n"
    )
    assert done.returncode == 0, done.stdout
    assert "left behind: sleep 1000" in done.stdout
    assert project.goes == 2


@pytest.mark.parametrize(("hangs", "limit"), [(1, "--first-go-s"), (2, "--later-go-s")])
def test_a_go_that_hangs_is_ended_and_red(project: Project, hangs: int, limit: str) -> None:
    test = f"import time\ndef test_hangs():\n    time.sleep(1000) if go() == {hangs} else None\n    assert False\n"
    done = project.run(test, more=(limit, "10"))
    assert done.returncode == 1
    assert "gate: not over after 10 s" in done.stdout
    assert not (project.out / f"go-{hangs + 1}.json").exists()
    assert project.noted == []


def test_an_orphan_that_ends_leaves_no_trace(project: Project) -> None:
    """As below the process 1 of a machine: who waits until it is gone does not wait for the end of the go."""
    done = project.run(
        "import subprocess, time\n"
        "def test_orphan():\n"
        "    words = ['sh', '-c', 'sleep 0.2 >/dev/null & echo $!']\n"
        "    pid = subprocess.run(words, capture_output=True, text=True).stdout.strip()\n"
        "    deadline = time.monotonic() + 60\n"
        "    while Path('/proc', pid).exists():\n"
        "        assert time.monotonic() < deadline\n"
    )
    assert done.returncode == 0, done.stdout
    assert "UNSTEADY" not in done.stdout


def test_what_cannot_be_noted_passes_all_the_same(project: Project) -> None:
    (project.folder / "build").mkdir()
    (project.folder / "build" / "cache").write_text("a file where the folder should be")
    done = project.run("")
    assert done.returncode == 0
    assert "gate: not noted as passed: " in done.stderr
    shutil.rmtree(project.folder / ".git")
    done = project.run("", checkout=False)
    assert done.returncode == 0
    assert "gate: not noted as passed: " in done.stderr


def test_a_tree_that_is_not_what_is_committed_is_not_noted(project: Project) -> None:
    assert project.run("").returncode == 0
    assert project.run("def test_more():\n    pass\n", commit=False).returncode == 0
    assert len(project.noted) == 1
