"""The tasks of a real srun, which are children of Slurm's daemons: they are saved, and ended with it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.box import Box
from tests.waits import until

pytestmark = pytest.mark.timeout(600)
TASK = """\
import os, signal
task = os.environ["SLURM_PROCID"]
signal.signal(signal.SIGUSR1, lambda *_: print(f"saved checkpoint of task {task}", flush=True))
print(f"begins {task}", flush=True)
while True:
    signal.pause()
"""
CHECKPOINT = {"signal": "SIGUSR1", "timeout": "60s", "proof": {"logPattern": "saved checkpoint"}}
SRUN = ("srun", "--ntasks", "2", "--label", sys.executable, "task.py")


@pytest.fixture
def box(box: Box, slurm: Path) -> Box:
    box.env["SLURM_CONF"] = str(slurm)
    (box.work / "task.py").write_text(TASK)
    return box


def left(box: Box) -> bool:
    """Does Slurm still know a step? The fixture of each test asks after processes."""
    steps = subprocess.run(["squeue", "-h"], env=box.env, capture_output=True, text=True, check=True).stdout
    return bool(steps.strip())


def test_the_signal_to_save_reaches_the_tasks(box: Box) -> None:
    job = box.run(*SRUN, policy=box.policy(resume={"maxResumes": 3, "checkpoint": CHECKPOINT}))
    until(lambda: box.log().count("begins ") == 2, box.story)
    os.kill(job.pid, signal.SIGINT)
    job.code(300.0)
    for task in (0, 1):
        assert f"saved checkpoint of task {task}" in box.log()
    assert "The save was proved" in job.err
    until(lambda: not left(box), box.story)


def test_killed_at_once_it_leaves_no_task(box: Box) -> None:
    job = box.run(*SRUN)
    until(lambda: box.log().count("begins ") == 2, box.story)
    assert box.sentinel("stop", "job", "--grace", "0s").returncode == 0
    job.code(300.0)
    until(lambda: not left(box), box.story)
