"""A test that leaves something fails by its name, and what it left is ended."""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from sentinel.cluster.local.processes import read_proc
from tests.gate.left import MARK, NOTHING, _program, marked
from tests.waits import until

MOST_TURNS = 200_000  # minutes: it ends even where the test is killed

TESTS = """
import os, subprocess, sys
import pytest
import tests.gate.left

pytest_plugins = ["tests.gate.left"]
tests.gate.left.PATIENCE_S = 2.0

@pytest.fixture(scope="session")
def shared():
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()

def test_shares(shared): assert shared.poll() is None
def test_starts_nothing(): pass
def test_waits(): assert subprocess.run(["true"]).returncode == 0
def test_leaves_one_that_ends_soon(): subprocess.Popen(["sleep", "0.2"])
def test_leaves_a_program(): subprocess.Popen(["sleep", "601"])
def test_leaves_an_orphan():
    subprocess.run(["setsid", "sh", "-c", "setsid sleep 602 & exit 0"])
def test_forks():
    begun, program = os.pipe()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "603"])
    os.close(program)
    os.read(begun, 1)  # until the program has begun: only then it carries the mark
def test_still_shares(shared): assert shared.poll() is None
"""
MOUNTS = """
import os, subprocess
from pathlib import Path

def test_mounts(tmp_path): subprocess.run(["mount", "-t", "tmpfs", "left", tmp_path], check=True)
def test_makes_a_group():
    subprocess.run(["true"])
    top = Path("/sys/fs/cgroup")
    top = top if (top / "cgroup.controllers").exists() else top / "memory"
    (top / f"sentinel-test-{os.getpid()}").mkdir()
"""


def run(folder: Path, repo: Path, text: str) -> str:
    (folder / "test_it.py").write_text(text)
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--basetemp",
        folder / "base",
        folder,
    ]
    # Where these are set, pytest says each message again, whole, in its summary.
    env = {name: value for name, value in os.environ.items() if name not in ("CI", "BUILD_NUMBER")}
    env["PYTHONPATH"] = str(repo)
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=180
    )
    return done.stdout


def gone(pid: int) -> bool:
    return read_proc(pid) is None


def test_processes_that_a_test_leaves_fail_it_and_are_ended(tmp_path: Path, repo: Path) -> None:
    told = run(tmp_path, repo, TESTS)
    assert sorted(re.findall(r"^ERROR \S+::(\w+)", told, re.MULTILINE)) == [
        "test_forks",
        "test_leaves_a_program",
        "test_leaves_an_orphan",
    ], told
    assert [second for second in ("601", "602", "603") if f": sleep {second}" in told] == [
        "601",
        "602",
        "603",
    ]
    assert re.search("8 passed.* 3 errors", told)
    for pid in re.findall(r"^process (\d+): ", told, re.MULTILINE):
        until(partial(gone, int(pid)), f"{pid} still runs")


def test_a_process_without_memory_is_not_waited_for() -> None:
    if (pid := os.fork()) == 0:
        os._exit(0)
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # a zombie
        assert _program(Path(f"/proc/{pid}")) == NOTHING
    finally:
        os.waitpid(pid, 0)


@pytest.mark.parametrize(
    "turns", ['exec "$0" $((n + 1))', '"$0" $((n + 1)) &'], ids=["begins programs", "leaves orphans"]
)
def test_a_process_is_seen_at_any_moment(tmp_path: Path, turns: str) -> None:
    program = tmp_path / "turns"
    program.write_text(f'#!/bin/sh\nn=${{1:-0}}\n[ "$n" -lt {MOST_TURNS} ] || exit 0\n{turns}\n')
    program.chmod(0o755)
    mark = f"turns-{os.getpid()}"
    subprocess.run(
        ["sh", "-c", '"$0" & exit 0', program], env=os.environ | {MARK: mark}, stderr=subprocess.DEVNULL
    )
    try:
        assert all(marked(mark) for _ in range(100))
    finally:
        program.unlink()  # the next one is the last
        until(lambda: not marked(mark), "it still runs")


@pytest.mark.root
def test_mounts_and_control_groups_that_a_test_leaves_fail_it(tmp_path: Path, repo: Path) -> None:
    plugin = (
        'pytest_plugins = ["tests.gate.left"]\nimport tests.gate.left\ntests.gate.left.PATIENCE_S = 2.0\n'
    )
    try:
        told = run(tmp_path, repo, plugin + MOUNTS)
    finally:
        for group in re.findall(r"^control group: (\S+)", told, re.MULTILINE):
            Path(group).rmdir()
    assert re.findall(r"^(mount|control group): ", told, re.MULTILINE) == ["mount", "control group"], told
    (mount,) = re.findall(r"^mount: \S+ \S+ \S+ \S+ (\S+)", told, re.MULTILINE)
    assert not Path(mount).is_mount()  # that of its process alone
    assert re.search("2 passed.* 2 errors", told)
