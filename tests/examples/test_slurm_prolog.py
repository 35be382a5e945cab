"""The Slurm prolog: only what is broken keeps a job off the node; as HealthCheckProgram it drains."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

TABLE = "WHAT  STATE  EVIDENCE\\nGPU 0000:18:00.0 XID 79  fatal  off the bus\\ncritical: 1 fatal"
# On stderr it may say what it could not take up.
ANSWERS = f"echo $SENTINEL_STATE_DIR >&2; echo a >&2; printf '{TABLE}\\n'; exit "


class Node:
    """A node of Slurm: stand-ins of what the prolog calls, and the reason for which it was drained."""

    def __init__(self, repo: Path, folder: Path) -> None:
        self.prolog, self.folder = repo / "examples/slurm/prolog.sh", folder
        self.put("scontrol", f'echo "$@" > {folder}/drained')
        self.put("logger", ":")

    def put(self, name: str, script: str) -> None:
        (self.folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.folder / name).chmod(0o755)

    def begin(self, job: str) -> "subprocess.CompletedProcess[str]":
        path = f"{self.folder}:{os.environ['PATH']}"
        environment = {"PATH": path, "SLURM_JOB_ID": job, "SLURMD_NODENAME": "gpu-1"}
        return subprocess.run([self.prolog], env=environment, capture_output=True, text=True, timeout=120)

    @property
    def drained(self) -> str:
        path = self.folder / "drained"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def node(repo: Path, tmp_path: Path) -> Node:
    return Node(repo, tmp_path)


@pytest.mark.parametrize(
    ("code", "job", "exits", "drained"),
    [(0, "7", 0, False), (1, "7", 0, False), (3, "7", 0, False), (2, "7", 1, False), (2, "", 1, True)],
)
def test_only_what_is_broken_counts(node: Node, code: int, job: str, exits: int, drained: bool) -> None:
    node.put("sentinel", f"{ANSWERS}{code}")
    done = node.begin(job)
    assert done.returncode == exits, done.stderr
    assert done.stdout.startswith("/var/lib/sentinel\n") or code != 2  # what the unit's agent knows counts
    reason = "update nodename=gpu-1 state=drain reason=sentinel: GPU 0000:18:00.0 XID 79 fatal off the bus\n"
    assert node.drained == (reason if drained else "")


def timeout_ends(node: Node, code: int, after_s: int) -> None:
    node.put("timeout", f'[ "$1 $2 $3 $4 $5" = "-k 5 30 sentinel check" ] && exit {code}')
    count = node.folder / "count"
    node.put("date", f"[ -e {count} ] && echo {1_700_000_000 + after_s} || echo 1700000000; touch {count}")


@pytest.mark.parametrize("job", ["7", ""])
@pytest.mark.parametrize(("code", "after_s"), [(124, 30), (137, 35)])
def test_a_check_that_does_not_end_keeps_jobs_off_the_node(
    node: Node, code: int, after_s: int, job: str
) -> None:
    """What hangs it hangs the job too."""
    timeout_ends(node, code, after_s)
    done = node.begin(job)
    assert (done.returncode, done.stdout) == (1, "sentinel check did not end\n")
    assert bool(node.drained) is (job == "")
    assert "reason=sentinel: sentinel check did not end" in node.drained or job


def test_a_check_that_the_kernel_killed_for_want_of_memory_tells_nothing_of_the_node(node: Node) -> None:
    timeout_ends(node, 137, 2)
    assert (node.begin("").returncode, node.drained) == (0, "")


def test_what_a_check_left_in_the_kernel_does_not_hold_the_prolog_up(node: Node) -> None:
    """It has the check's output open for as long as it hangs, and nothing ends it."""
    node.put("sentinel", f"sleep 600 & echo $! > {node.folder}/left; {ANSWERS}2")
    try:
        assert node.begin("7").returncode == 1
    finally:
        os.kill(int((node.folder / "left").read_text()), signal.SIGKILL)
