"""What a fault costs the job of `sentinel demo`: two ranks that train a small model, a checkpoint every 30 steps.

Work lost: steps that are computed a second time. Time lost: the wall time from the fault until the job is 60 steps
further, less what 60 steps take it undisturbed.

Without Sentinel the same program, at the same faults: a killed rank ends the job, and a person restarts it from
the last periodic checkpoint; measured is the person who does so at once, so that the time until somebody looks is
to be added. A GPU that falls off the bus ends the job in the same way. A rank that hangs ends it when the
collective times out, 600 s here as in NCCL; those are added and not waited for. A slow rank stays slow: measured
over the 60 steps, and no restart ends it.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from sentinel.cli.demo import FAULTS, STEADY_STEPS, Fault
from sentinel.core.model import Phase, Symptom
from sentinel.demo.job import STEP_MS, DemoJob
from sentinel.rules.tables import data_dir
from tests.bench.harness import Row, at_most, wait_until

EVERY = 30  # steps between checkpoints; as the demo's
FURTHER = 60
COLLECTIVE_TIMEOUT_S = 600.0
WITHIN_S = 90.0
# Saved first: only what is stepped between the save and the stop. Else at most the steps since the last checkpoint.
WORK_GOAL = {Symptom.RANK_LOST: EVERY, Symptom.HANG: EVERY, Symptom.SLOW: 5, Symptom.FINDING: 5}
TIME_GOAL_S = {Symptom.RANK_LOST: 3.0, Symptom.HANG: 6.0, Symptom.SLOW: 5.0, Symptom.FINDING: 3.0}


class Cost(NamedTuple):
    steps: float
    seconds: float


def undisturbed_s(steps: float) -> float:
    return steps * STEP_MS / 1000


def with_sentinel(job: DemoJob, fault: Fault) -> Cost:
    wait_until(lambda: job.steps_of_this_start() >= STEADY_STEPS, WITHIN_S, "the job to step steadily")
    known = {incident.id for incident in job.incidents()}
    at_step, at_s = job.step(), time.monotonic()
    fault.inject(job)

    def over() -> bool:
        return (job.step() or 0) >= (at_step or 0) + FURTHER

    def recovered() -> bool:
        found = [i for i in job.incidents() if i.id not in known and i.verdict.symptom == fault.symptom]
        return bool(found) and found[0].phase == Phase.RECOVERED

    wait_until(over, WITHIN_S, f"60 steps after: {fault.name}")
    seconds = time.monotonic() - at_s - undisturbed_s(FURTHER)
    wait_until(recovered, WITHIN_S, f"the recovery from: {fault.name}")
    found = [i for i in job.incidents() if i.id not in known and i.verdict.symptom == fault.symptom]
    lost = found[0].lost
    return Cost(float(lost.steps or 0) if lost else 0.0, seconds)


class Bare:
    """The same two ranks with nothing around them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.control = folder, folder / "control"
        self._starts = 0
        self.ranks: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self._starts += 1
        options = [f"--checkpoints={self.folder / 'checkpoints'}", f"--step-ms={STEP_MS}", "--steps=2000"]
        options += ["--hardware-share=0.4", f"--checkpoint-every={EVERY}", f"--control={self.control}"]
        self.ranks = []
        for rank in range(2):
            own = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            with open(self.folder / f"{self._starts}-{rank}.log", "wb") as out:
                command = [sys.executable, str(data_dir("examples") / "train.py"), *options]
                self.ranks.append(
                    subprocess.Popen(command, env={**os.environ, **own}, stdout=out, stderr=out)
                )

    def _last(self, pattern: str) -> int:
        text = (self.folder / f"{self._starts}-0.log").read_text(errors="replace")
        found = re.findall(pattern, text)
        return int(found[-1]) if found else 0

    @property
    def step(self) -> int:
        return self._last(r"step: (\d+) ")

    @property
    def saved(self) -> int:
        return self._last(r"saved checkpoint step (\d+)")

    def end(self) -> None:
        for process in self.ranks:
            process.kill()
        for process in self.ranks:
            process.wait()

    def killed(self) -> Cost:
        """A rank is killed; a person who looks at the very moment at which the job has ended restarts it."""
        at_step, saved, at_s = self.step, self.saved, time.monotonic()
        self.ranks[1].send_signal(signal.SIGKILL)
        for process in self.ranks:
            process.wait(timeout=WITHIN_S)
        self.start()
        wait_until(
            lambda: self.step >= at_step + FURTHER, WITHIN_S, "60 steps after a kill, without Sentinel"
        )
        return Cost(at_step - saved, time.monotonic() - at_s - undisturbed_s(FURTHER))

    def slowed(self) -> Cost:
        at_step, at_s = self.step, time.monotonic()
        draft = self.control.with_suffix(".draft")
        draft.write_text("1 slow 8")
        draft.rename(self.control)
        wait_until(lambda: self.step >= at_step + FURTHER, WITHIN_S, "60 slow steps")
        return Cost(0.0, time.monotonic() - at_s - undisturbed_s(FURTHER))


def without_sentinel(folder: Path) -> dict[Symptom, tuple[str, Cost]]:
    bare = Bare(folder)
    bare.start()
    try:
        wait_until(lambda: bare.step >= EVERY + STEADY_STEPS, WITHIN_S, "the bare job to step steadily")
        killed = bare.killed()
        slow = bare.slowed()
    finally:
        bare.end()
    person = "without, a person at once"
    return {
        Symptom.RANK_LOST: (person, killed),
        Symptom.FINDING: (person, killed),
        Symptom.HANG: (
            "without, time-out and a person",
            killed._replace(seconds=COLLECTIVE_TIMEOUT_S + killed.seconds),
        ),
        Symptom.SLOW: ("without, and it stays slow", slow),
    }


def run(quick: bool = False) -> list[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="sentinel-bench-") as name:
        folder = Path(name)
        (folder / "bare").mkdir()
        without = without_sentinel(folder / "bare")
        job = DemoJob(folder)
        job.start()
        try:
            costs = {fault: with_sentinel(job, fault) for fault in FAULTS}
        finally:
            job.end()
    for fault, cost in costs.items():
        beside, bare = without[fault.symptom]
        work, seconds = float(WORK_GOAL[fault.symptom]), TIME_GOAL_S[fault.symptom]
        rows.append(at_most(f"{fault.name}: work lost", work, cost.steps, "steps", (beside, bare.steps)))
        rows.append(at_most(f"{fault.name}: time lost", seconds, cost.seconds, "s", (beside, bare.seconds)))
    return rows
