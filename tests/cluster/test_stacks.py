"""Whether the stacks of ranks can be read is known before one hangs; and whose are read besides."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.cluster.local import stacks
from sentinel.cluster.local.processes import read_proc
from sentinel.core.stacks.reading import read

PTRACE, EVERYTHING_ELSE = 1 << 19, (1 << 41) - 1 - (1 << 19)


def proc(folder: Path, scope: str | None, capabilities: int = EVERYTHING_ELSE) -> str:
    """A /proc of its own; without a `scope`: of a kernel without Yama."""
    (folder / "self").mkdir()
    (folder / "self/status").write_text(f"Name:\tsentinel\nCapEff:\t{capabilities:016x}\n")
    yama = folder / "sys/kernel/yama"
    yama.mkdir(parents=True)
    if scope is not None:
        (yama / "ptrace_scope").write_text(f"{scope}\n")
    return str(folder)


@pytest.mark.parametrize("scope", [None, "0"])
def test_where_the_kernel_allows_it_nothing_is_said(tmp_path: Path, scope: str | None) -> None:
    assert stacks.unreadable(proc(tmp_path, scope)) == ""


@pytest.mark.parametrize("scope", ["1", "2"])
def test_where_the_kernel_leaves_it_to_ancestors_the_capability_is_needed(tmp_path: Path, scope: str) -> None:
    assert stacks.unreadable(proc(tmp_path, scope)) == (
        f"kernel.yama.ptrace_scope is {scope} and Sentinel has no CAP_SYS_PTRACE: "
        "sysctl kernel.yama.ptrace_scope=0, or give it that capability"
    )


@pytest.mark.parametrize("scope", ["1", "2"])
def test_with_the_capability_nothing_is_said(tmp_path: Path, scope: str) -> None:
    assert stacks.unreadable(proc(tmp_path, scope, PTRACE)) == ""


def test_where_nobody_may_the_capability_does_not_help(tmp_path: Path) -> None:
    why = stacks.unreadable(proc(tmp_path, "3", PTRACE))
    assert why == "kernel.yama.ptrace_scope is 3: start the machine with another value"


def test_without_py_spy_it_is_said_how_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "find_py_spy", lambda: None)
    assert stacks.unreadable(proc(tmp_path, "0")) == "py-spy is not there: pip install py-spy"


PARENT = """
import multiprocessing, signal

def rests():
    signal.pause()

def spins():
    while True:
        pass

def awaits():
    {how}

fork = multiprocessing.get_context("fork")
queue = fork.Queue()
for what in (rests, rests, rests, spins, rests, rests):
    fork.Process(target=what).start()
print("ready", flush=True)
awaits()
"""


@pytest.mark.parametrize(("how", "helpers"), [("queue.get()", stacks.MOST_HELPERS), ("rests()", 0)])
def test_of_the_processes_that_a_rank_waits_for_some_are_read_the_busy_ones_first(
    monkeypatch: pytest.MonkeyPatch, how: str, helpers: int
) -> None:
    monkeypatch.setattr(stacks, "EACH_S", 60.0)  # a busy machine starts py-spy slowly
    monkeypatch.setattr(stacks, "TOTAL_S", 120.0)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(how=how)], stdout=subprocess.PIPE, start_new_session=True
    )
    assert parent.stdout is not None
    try:
        assert parent.stdout.readline() == b"ready\n"
        (text,) = asyncio.run(stacks.collect({3: read_proc(parent.pid)}))
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.communicate()
    assert len(re.findall(r"^helper pid \d+ \(", text, re.M)) == helpers, text
    stack = read(text)
    assert stack is not None, text
    assert [one.state for one in stack.helpers[:1]] == ["R"][:helpers], text
    assert [one.place.partition(" ")[0] for one in stack.helpers] == ["spins", "rests", "rests", "rests"][
        :helpers
    ]
    assert "<module>" not in text.partition("\nhelper ")[2]  # of its parent's stack, which a fork keeps
