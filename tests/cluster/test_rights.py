"""Processes of other users, looked at without one right of root's: the refusal names it."""

import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.gate.rights import needs_root

STACK = """
import asyncio, sys
from sentinel.cluster.local.stacks import collect
from sentinel.cluster.local.processes import read_proc
print(*asyncio.run(collect({0: read_proc(int(sys.argv[1]))})))
"""
FILES = """
import sys
from sentinel.cluster.local.files import Unseen, files_of
try:
    print([*files_of(int(sys.argv[1]), "/etc/passwd", 10)])
except Unseen as unseen:
    print(unseen)
"""
HELD = """
import sys
from types import SimpleNamespace
from sentinel.agent.holds import Holds
from sentinel.cluster.local.processes import read_proc
held = SimpleNamespace(wrapper=read_proc(int(sys.argv[1])))
pods = SimpleNamespace(held=lambda wanted, search: {0: held})
print(*Holds(pods, print).release([SimpleNamespace(rank=0), SimpleNamespace(rank=1)]))
"""


@pytest.fixture
@needs_root
def rank() -> Iterator[int]:
    sleep = shutil.which("sleep")
    assert sleep is not None
    process = subprocess.Popen([sleep, "600"], user=65534, group=65534, extra_groups=[])
    yield process.pid
    process.kill()
    process.wait()


def said(script: str, pid: int, lacks: str) -> str:
    words = ["setpriv", f"--bounding-set=-{lacks}", sys.executable, "-c", script, str(pid)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def test_a_stack_names_the_right_that_is_missing(rank: int) -> None:
    assert "not permitted: needs CAP_SYS_PTRACE" in said(STACK, rank, "sys_ptrace")
    assert "not permitted" not in said(STACK, rank, "syslog")


@pytest.mark.parametrize(
    ("lacks", "why"),
    [
        ("sys_ptrace", "a look into its files needs CAP_SYS_PTRACE"),
        ("setuid", "to look as the rank's user needs CAP_SETUID and CAP_SETGID"),
        ("setgid", "to look as the rank's user needs CAP_SETUID and CAP_SETGID"),
    ],
)
def test_a_look_for_files_names_the_right_that_is_missing(rank: int, lacks: str, why: str) -> None:
    assert f"not permitted: {why}\n" in said(FILES, rank, lacks)


def test_with_all_rights_files_are_found(rank: int) -> None:
    assert said(FILES, rank, "syslog") == "['/etc/passwd']\n"


def test_what_may_not_be_let_go_is_not_called_unheld(rank: int) -> None:
    why = "not permitted: a process of another user needs CAP_KILL"
    assert said(HELD, rank, "kill") == f"[] {{0: '{why}', 1: 'not held'}}\n"
    assert said(HELD, rank, "syslog") == "[0] {1: 'not held'}\n"
