"""Iterations that every rank prints into one log."""

import json
import os
import re
from functools import partial
from pathlib import Path

from tests.e2e.box import Box
from tests.trainers.table import free_ports
from tests.waits import until

BOTH = str(Path(__file__).parents[1] / "integrations/programs/both.py")
STEPS = 200


def each_line_counts_once(box: Box, python: Path, command: str, mark: str, times: str) -> None:
    """`command`: as in LAUNCHERS; `mark`: a pattern of what stands before each line, with `{rank}`; `times`: `timed`,
    or `untimed` for lines that tell none."""
    os.mkfifo(box.work / "end")
    box.env["OMP_NUM_THREADS"] = "1"
    words = command.format(python=python, bin=python.parent, port=free_ports()).split()
    job = box.run(*words, BOTH, str(STEPS), times)
    took = box.work / "took"
    until(took.exists, lambda: box.story() + box.log()[-4000:], 300.0)
    text = r"step {step}: this iteration" if times == "timed" else r"Step {step} \|"
    for rank in (0, 1):
        last = mark.format(rank=rank) + text.format(step=STEPS)
        until(partial(logged, box, last), lambda: box.log()[-4000:])

    shown = until(lambda: (found := box.status())["step"] == STEPS and found, lambda: str(box.status()))
    if times == "timed":  # as printed: when a line is read says nothing on a busy machine
        took_ms = json.loads(took.read_text())
        assert 0.9 * min(took_ms) < shown["step_ms"] < 1.1 * max(took_ms)
    (of_log,) = shown["ranks"]
    assert of_log["step"] == STEPS
    os.close(os.open(box.work / "end", os.O_WRONLY))
    assert job.code() == 0, box.story()
    assert box.incidents() == []


def logged(box: Box, pattern: str) -> bool:
    return re.search(pattern, box.log()) is not None


def replay_tells_each_rank(box: Box) -> None:
    replayed = box.sentinel("replay", "-o", "json", str(box.state / "jobs/job/logs/1/rank-0.log"))
    told = {
        one["rank"]: (one["iterations"], one["last_step"]) for one in json.loads(replayed.stdout)["ranks"]
    }
    assert told == {0: (STEPS, STEPS), 1: (STEPS, STEPS)}
