"""Ranks of `sentinel run` whose collective timed out: what torch wrote of it tells for whom they waited.

NCCL needs GPUs: records of gloo stand in for its own (tests/cluster/records); the line of the watchdog was printed
by torch (tests/logs/rule_lines.toml).
"""

import os
import sys
from pathlib import Path

from tests.e2e.box import Box

RECORDS = Path(__file__).parents[1] / "cluster/records"
TIMED_OUT = """
import os, shutil, sys
rank, records = os.environ["RANK"], sys.argv[1]
if os.environ["SENTINEL_INCARNATION"] == "2":
    sys.exit(0)
for step in range(4):
    print("this iteration hardware time is 10.5 and e2e time is 20.5 ms.", flush=True)
if os.path.exists(f"{records}/rank-{rank}"):
    shutil.copy(f"{records}/rank-{rank}", os.environ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] + rank)
all_wrote = os.open(f"wrote.{rank}", os.O_RDWR)
for one in range(4):
    os.write(os.open(f"wrote.{one}", os.O_RDWR), b".")
for one in range(4):
    os.read(all_wrote, 1)
print(f"[rank{rank}]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, "
    "Timeout(ms)=600000) ran for 600060 milliseconds before timing out.", file=sys.stderr, flush=True)
os.abort()
"""


def timed_out(box: Box, kind: str) -> None:
    (box.work / "timed_out.py").write_text(TIMED_OUT)
    for rank in range(4):
        os.mkfifo(box.work / f"wrote.{rank}")
    job = box.run(sys.executable, "timed_out.py", str(RECORDS / kind), options=("--nproc", "4"))
    assert job.code() == 0


def test_the_rank_for_which_all_waited_is_named_with_the_operation_and_the_line(box: Box) -> None:
    timed_out(box, "absent")
    (incident,) = box.incidents()
    verdict = incident.verdict
    assert (verdict.rank, verdict.failure, verdict.scope) == (2, "nccl-timeout", "node")
    assert (
        "rank 2 did not take part in all_reduce 4 of group default_pg, in which 3 ranks wait"
        in verdict.sentence
    )
    assert "called at step (programs/stuck.py:" in verdict.sentence
    assert any(line.startswith("flight recorder: ranks 0, 1, 3 in all_reduce 4") for line in verdict.evidence)


def test_ranks_that_went_different_ways_are_told_to_the_programs_owner(box: Box) -> None:
    timed_out(box, "different")
    (incident,) = box.incidents()
    assert (incident.verdict.cause, incident.verdict.scope) == ("user code", "job")
    assert incident.verdict.advice.startswith(
        "Let all ranks of a group call the same operations in the same order"
    )


def test_a_job_that_has_a_place_of_its_own_for_them_keeps_it(box: Box) -> None:
    shows = "import os; print(os.environ['TORCH_FR_DUMP_TEMP_FILE'], os.environ.get('TORCH_NCCL_DEBUG_INFO_TEMP_FILE'))"
    box.env["TORCH_FR_DUMP_TEMP_FILE"] = "/mine/rank"
    job = box.run(sys.executable, "-c", shows)
    assert job.code() == 0
    assert box.log().split() == ["/mine/rank", "None"]
