"""How long a person waits: for the command itself, and from `sentinel run` to the first rank's program."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from tests.bench.harness import Row, alternate, at_most, wall_seconds

SENTINEL = str(Path(sys.executable).with_name("sentinel"))
STAMP = ["date", "+%s%N"]  # the rank's program tells when it runs

POLICY = """\
apiVersion: sentinel.dev/v1alpha1
kind: JobPolicy
metadata: {name: bench}
spec:
  owner: {emails: [owner@example.com]}
  resume:
    maxResumes: 3
    checkpoint: {signal: SIGUSR1, timeout: 10s, proof: {logPattern: saved checkpoint}}
"""


def seconds_to_first_exec(arguments: list[str]) -> float:
    """From fork of `sentinel run` to the clock reading of the job's program, in a new state directory."""
    with tempfile.TemporaryDirectory() as state:
        environment = {**os.environ, "SENTINEL_STATE_DIR": state}
        begun_ns = time.time_ns()
        subprocess.run(
            [SENTINEL, "run", "--name", "bench", *arguments, "--", *STAMP],
            env=environment,
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
        )
        (log,) = Path(state, "jobs/bench/logs/1").glob("rank-0.log")
        return (int(log.read_text().split()[0]) - begun_ns) / 1e9


def bare_seconds_to_exec() -> float:
    begun_ns = time.time_ns()
    done = subprocess.run(STAMP, capture_output=True, text=True, check=True)
    return (int(done.stdout) - begun_ns) / 1e9


def run(quick: bool) -> list[Row]:
    pairs = 5 if quick else 20
    bare, help_ = alternate(
        lambda: wall_seconds([sys.executable, "-c", "pass"]),
        lambda: wall_seconds([SENTINEL, "--help"]),
        pairs,
    )
    rows = [
        at_most(
            "sentinel --help",
            0.25,
            statistics.median(help_),
            "s",
            ("python -c pass", statistics.median(bare)),
        )
    ]
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder, "policy.yaml")
        policy.write_text(POLICY)
        for name, arguments in (
            ("run → first rank exec'ed", []),
            ("run --nproc 2 → first rank exec'ed", ["--nproc", "2"]),
            ("run --policy → first rank exec'ed", ["--policy", str(policy)]),
        ):
            bare, started = alternate(bare_seconds_to_exec, partial(seconds_to_first_exec, arguments), pairs)
            beside = ("fork and exec", statistics.median(bare))
            rows.append(at_most(name, 0.5, statistics.median(started), "s", beside))
    return rows
