"""Each launcher and each fault of the table."""

from pathlib import Path

import pytest

from tests.e2e.box import Box
from tests.trainers.printed import each_line_counts_once, replay_tells_each_rank
from tests.trainers.table import ENDS_SLOWLY, FAULTS, HANG_S, LAUNCHERS, Keep, Trial, judge

pytestmark = pytest.mark.timeout(1500)
CASES = [
    (launcher, fault)
    for launcher in LAUNCHERS
    for fault in FAULTS
    if (launcher, fault) not in (("none", "launcher"), ("Lightning", "launcher"))
    and (fault not in ("lock-default", "stop-default") or launcher in ("none", "torchrun"))  # minutes each
]


@pytest.fixture(autouse=True)
def scheduler(request: pytest.FixtureRequest, box: Box, launcher: str) -> None:
    """What starts the ranks, where that is no child of the launcher."""
    if launcher == "srun":
        box.env["SLURM_CONF"] = str(request.getfixturevalue("slurm"))


@pytest.mark.parametrize(("launcher", "fault"), [case for case in CASES if case[1] != "memory"])
def test_a_broken_training_goes_on_and_its_fault_is_told(
    box: Box, venv: Path, keep: Keep, launcher: str, fault: str
) -> None:
    judge(
        box, venv / "bin/python", Trial(launcher, fault, hang_s=ENDS_SLOWLY.get(launcher, HANG_S)), keep=keep
    )


@pytest.mark.parametrize(("launcher", "fault"), [case for case in CASES if case[1] == "memory"])
def test_a_rank_whose_memory_ran_out_is_told_so(
    box: Box, venv: Path, keep: Keep, small_group: Path, launcher: str, fault: str
) -> None:
    judge(
        box,
        venv / "bin/python",
        Trial(launcher, fault, hang_s=ENDS_SLOWLY.get(launcher, HANG_S)),
        small_group,
        keep,
    )


# Each puts a mark before every line, which says whose it is.
PRINTED = {
    "torchrun": (LAUNCHERS["torchrun"].replace("torchrun", "torchrun --tee 3", 1), r"\[default{rank}\]:"),
    "srun": (LAUNCHERS["srun"], r"(?m)^{rank}: "),
}


@pytest.mark.parametrize("times", ["timed", "untimed"])
@pytest.mark.parametrize("launcher", PRINTED)
def test_iterations_that_every_rank_prints_into_one_log_count_once_each_to_its_rank(
    box: Box, venv: Path, launcher: str, times: str
) -> None:
    each_line_counts_once(box, venv / "bin/python", *PRINTED[launcher], times)
    if launcher == "torchrun":  # a log alone does not tell that numbers before lines are labels
        replay_tells_each_rank(box)
