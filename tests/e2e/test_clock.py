"""The wall clock is set while a job runs: intervals, deadlines, budgets and records do not notice."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.box import Box, train
from tests.waits import until

SHIM = Path(__file__).parent / "programs" / "wall_clock.c"
DAY_S = 86_400


@pytest.fixture
def set_clock(box: Box, tmp_path: Path) -> "Clock":
    library = tmp_path / "wall_clock.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(library), str(SHIM)], check=True)
    return Clock(box, library)


class Clock:
    """The wall clock of all processes that the box starts."""

    def __init__(self, box: Box, library: Path) -> None:
        self._box, self._file = box, box.folder / "clock"
        box.env |= {"LD_PRELOAD": str(library), "WALL_CLOCK_STEP": str(self._file)}

    def __call__(self, step_s: int) -> None:
        partial = self._file.with_suffix(".partial")
        partial.write_text(str(step_s))
        partial.rename(self._file)

    def ahead_s(self) -> float:
        """Of the newest event's time, as Sentinel wrote it."""
        return self._box.events()[-1].wall_s - time.time()


@pytest.mark.parametrize("step_s", [3 * DAY_S, -3 * DAY_S])
def test_a_step_of_the_clock_ends_no_job_spends_no_budget_and_stops_no_recovery(
    box: Box, set_clock: Clock, step_s: int
) -> None:
    policy = box.policy(
        owner={"emails": ["owner@example.com"]},
        resume={"maxResumes": 3, "gracefulStop": "5s", "checkpoint": {"signal": "SIGUSR1", "timeout": "10s"}},
        hang={"after": "20s"},
        maxDuration="1h",
    )
    job = box.run(*train("--save-every", "1"), policy=policy)
    box.stepping()
    os.kill(box.ranks(1)[0], signal.SIGKILL)
    box.phase("Recovered")
    box.stepping(incarnation=2)

    set_clock(step_s)
    os.kill(box.ranks(1)[0], signal.SIGKILL)
    box.stepping(incarnation=3)
    box.phase("Recovered", at_least=2)
    assert abs(set_clock.ahead_s() - step_s) < 600  # the step was seen: what follows was tried under it

    record = box.job()
    assert record is not None
    assert (record.state.value, record.used, record.left, record.incarnation) == ("running", 2, 1, 3)
    status = box.status()
    assert 3000 < status["time_left_s"] <= 3600
    assert status["degraded"] == []
    mails = until(lambda: found if len(found := list((box.state / "outbox").glob("*.eml"))) == 4 else None)
    assert len({mail.name for mail in mails}) == 4  # two incidents, each told at its start and its end

    job.send(signal.SIGINT)
    assert job.code() == 130
    assert "Traceback" not in job.err


def test_an_adopted_job_goes_on_after_the_clock_was_set_back_beyond_its_start(
    box: Box, set_clock: Clock
) -> None:
    job = box.run(*train(), policy=box.policy(maxDuration="1h", hang={"after": "20s"}))
    box.stepping()
    job.kill()
    set_clock(-3 * DAY_S)
    again = box.attach()
    again.said("job")
    step = until(lambda: box.status()["step"])
    until(lambda: (box.status()["step"] or 0) > step + 20, box.story)
    record = box.job()
    assert record is not None
    assert (record.incarnation, record.used, len(box.starts)) == (1, 0, 1)
    assert 3000 < box.status()["time_left_s"] <= 3600
    again.send(signal.SIGINT)
    assert again.code() == 130
