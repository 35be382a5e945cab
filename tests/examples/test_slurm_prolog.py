"""The Slurm prolog: only what is broken keeps a job off the node; as HealthCheckProgram it drains."""

import os
import subprocess
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("code", "job", "exits", "drained"),
    [(0, "7", 0, False), (1, "7", 0, False), (3, "7", 0, False), (2, "7", 1, False), (2, "", 1, True)],
)
def test_only_what_is_broken_counts(
    repo: Path, tmp_path: Path, code: int, job: str, exits: int, drained: bool
) -> None:
    table = "WHAT  STATE  EVIDENCE\\nGPU 0000:18:00.0 XID 79  fatal  off the bus\\ncritical: 1 fatal"
    for name, script in (
        # On stderr it may say what it could not take up.
        ("sentinel", f"echo $SENTINEL_STATE_DIR >&2; echo a >&2; printf '{table}\\n'; exit {code}"),
        ("scontrol", f'echo "$@" > {tmp_path}/drained'),
        ("logger", ":"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_ID": job,
        "SLURMD_NODENAME": "gpu-1",
    }
    done = subprocess.run(
        [repo / "examples/slurm/prolog.sh"], env=environment, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == exits, done.stderr
    assert done.stdout.startswith("/var/lib/sentinel\n") or code != 2  # what the unit's agent knows counts
    assert (tmp_path / "drained").exists() is drained
    if drained:
        reason = "nodename=gpu-1 state=drain reason=sentinel: GPU 0000:18:00.0 XID 79 fatal off the bus\n"
        assert (tmp_path / "drained").read_text().endswith(reason)
