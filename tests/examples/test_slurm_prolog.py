"""The Slurm prolog: only what is broken keeps a job off the node; as HealthCheckProgram it drains."""

import os
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


@pytest.mark.parametrize("job", ["7", ""])
@pytest.mark.parametrize("code", [124, 137])
def test_a_check_that_does_not_end_keeps_jobs_off_the_node(node: Node, code: int, job: str) -> None:
    """What hangs it hangs the job too."""
    node.put("timeout", f'[ "$1 $2 $3 $4 $5" = "-k 5 30 sentinel check" ] && exit {code}')
    done = node.begin(job)
    assert (done.returncode, done.stdout) == (1, "sentinel check did not end\n")
    assert bool(node.drained) is (job == "")
    assert "reason=sentinel: sentinel check did not end" in node.drained or job
