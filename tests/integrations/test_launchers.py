"""The core of the table of launchers and faults, with Debian's torch 1.13. All of it: `make test-trainers`."""

import re
from pathlib import Path

import pytest

from tests.e2e.box import Box
from tests.trainers.printed import each_line_counts_once, replay_tells_each_rank
from tests.trainers.table import LAUNCHERS, PROGRAMS, RESUME, Trial, free_ports, judge

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


# Each in a folder and on a port of its own. Below launcher 0 a rank breaks after each start, when its ranks have been
# seen; below 1 nothing ever ends.
BESIDE = f"""
mkdir -p $RANK && cd $RANK && rm -f broken
[ $RANK = 0 ] && set -- --fault exit --after 8
export OMP_NUM_THREADS=1
exec {PYTHON} -m torch.distributed.run --master_port $((PORT + RANK)) --nproc_per_node 2 -r 2 -t 2 \\
    {PROGRAMS / "ranks.py"} --save-every 5 --at 22 --more 1000000 "$@"
"""


def test_of_two_launchers_the_one_whose_rank_exits_is_the_cause_of_each_end_until_sentinel_gives_up(
    box: Box,
) -> None:
    """That its other rank complains of a lost connection blames no launcher. The one that is stopped tells nothing."""
    box.env["PORT"] = str(free_ports(2))
    policy = box.policy(resume={**RESUME, "maxResumes": 1})
    job = box.run("sh", "-ec", BESIDE, policy=policy, options=("--nproc", "2"))
    assert job.code(900.0) != 0, box.story()
    incidents = box.incidents()
    assert len(incidents) == 2, box.story()
    for incarnation, incident in enumerate(incidents, 1):
        assert re.search("Connection (closed|reset) by peer", box.log(0, incarnation)), (
            "its other rank complains"
        )
        v = incident.verdict
        assert (v.failure, v.cause, v.rank, v.worker) == ("rank-exit", "unknown", 0, 1), box.story()
        assert v.budget == "job", v
        assert "Rank 0 was lost" in v.sentence, v
    box.empty()


# Of one world: launcher N starts ranks 2N and 2N + 1.
TOGETHER = f"""
export OMP_NUM_THREADS=1
exec {PYTHON} -m torch.distributed.run --nnodes 2 --node_rank $RANK --master_addr 127.0.0.1 \\
    --master_port $MASTER_PORT --nproc_per_node 2 -r 2 -t 2 \\
    {PROGRAMS / "ranks.py"} --save-every 5 --at 22 --fault stop --rank 3
"""


def test_two_launchers_of_two_ranks_each_are_four_ranks_of_which_the_one_that_hangs_is_named(
    box: Box,
) -> None:
    policy = box.policy(resume=RESUME, hang={"after": f"{HANG_S}s"})
    job = box.run("sh", "-ec", TOGETHER, policy=policy, options=("--nproc", "2"))
    assert job.code(900.0) == 0, box.story()
    (incident,) = box.incidents()
    v = incident.verdict
    assert (v.failure, v.rank, v.worker) == ("hang", 1, 3), box.story()
    box.empty()


# Two of them put a mark before every line, which says whose it is.
PRINTED = {
    "unmarked": (TORCHRUN, ""),
    "torchrun": (TORCHRUN.replace("-r 2 -t 2", "-r 1 -t 1"), r"\[default{rank}\]:"),
    "mpirun": (LAUNCHERS["mpirun"].replace("mpirun", "mpirun --tag-output", 1), r"\[1,{rank}\]<stdout>: ?"),
}


@pytest.mark.parametrize(
    ("launcher", "times"),
    [
        ("unmarked", "timed"),
        *((launcher, times) for launcher in ("torchrun", "mpirun") for times in ("timed", "untimed")),
    ],
)
def test_iterations_that_every_rank_prints_into_one_log_count_once_each_to_its_rank(
    box: Box, launcher: str, times: str
) -> None:
    command, mark = PRINTED[launcher]
    each_line_counts_once(box, PYTHON, command, mark, times)
    if launcher != "unmarked":
        replay_tells_each_rank(box)
