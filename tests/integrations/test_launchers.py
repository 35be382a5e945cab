"""The core of the table of launchers and faults, with Debian's torch 1.13. All of it: `make test-trainers`."""

from pathlib import Path

import pytest

from tests.e2e.box import Box
from tests.trainers.table import LAUNCHERS, Trial, judge

pytestmark = pytest.mark.timeout(1500)
PYTHON = Path("/usr/bin/python3")
# Debian's torch 1.13 cannot read the defaults `-r 0 -t 0`, nor 3, under Python 3.11: it looks for the number among the
# members of a flag, which now are those of one bit only. Here stderr is teed, with `[default1]:` before each line.
# Its `--standalone` always takes port 29400, and ends with another launcher that has the same one.
TORCHRUN = "{python} -m torch.distributed.run --master_port {port} --nproc_per_node 2 -r 2 -t 2"
# The end of a training is no hang: ranks end slowly on a busy machine, and torchrun looks for that each 5 s.
HANG_S = 30
CORE = {
    "none": ("kill", "stop"),
    "torchrun": ("kill", "loop", "exit", "launcher"),
    "mp.spawn": ("kill", "raise"),
    "mpirun": ("kill", "stop"),
}


def trial(launcher: str, fault: str) -> Trial:
    return Trial(launcher, fault, {**LAUNCHERS, "torchrun": TORCHRUN}, HANG_S)


@pytest.mark.parametrize(
    ("launcher", "fault"), [(launcher, fault) for launcher, faults in CORE.items() for fault in faults]
)
def test_a_broken_training_goes_on_and_its_fault_is_told(box: Box, launcher: str, fault: str) -> None:
    judge(box, PYTHON, trial(launcher, fault))


def test_a_rank_below_torchrun_whose_memory_ran_out_is_told_so(box: Box, small_group: Path) -> None:
    judge(box, PYTHON, trial("torchrun", "memory"), small_group)
