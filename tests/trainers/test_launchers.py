"""Each launcher and each fault of the table."""

from pathlib import Path

import pytest

from tests.e2e.box import Box
from tests.trainers.table import ENDS_SLOWLY, FAULTS, HANG_S, LAUNCHERS, Keep, Trial, judge

pytestmark = pytest.mark.timeout(1500)
CASES = [
    (launcher, fault)
    for launcher in LAUNCHERS
    for fault in FAULTS
    if (launcher, fault) not in (("none", "launcher"), ("Lightning", "launcher"))
    and (fault != "lock-default" or launcher in ("none", "torchrun"))  # some minutes each
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
