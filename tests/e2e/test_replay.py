"""What replay says of a job's logs is what Sentinel had said when it ran."""

import json
import sys

import pytest

from sentinel.core.model import Phase
from tests.e2e.box import Box

# Its rank 1 breaks at step 12; started again, it has nothing left to do.
PROGRAM = """\
import datetime, os, sys, time

if os.environ.get("SENTINEL_RESUME"):
    sys.exit(0)
for step in range(1, 2000):
    time.sleep(0.05)
    now = datetime.datetime.now().isoformat(sep=" ", timespec="milliseconds")
    print(f"[{now}] completed step: {step}, seconds: 0.050", flush=True)
    if os.environ["RANK"] == "1" and step == 12:
        ORDER
"""
OOM = 'raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB")'
SHAPES = 'raise RuntimeError("mat1 and mat2 shapes cannot be multiplied (4x5 and 6x7)")'


@pytest.mark.parametrize(
    ("order", "ways", "failure"),
    [
        (SHAPES, [["--exit-code", "1=1"], []], "shape-mismatch"),
        (OOM, [["--exit-code", "1=1"]], "cuda-oom"),
        ("os.kill(os.getpid(), 11)", [["--signal", "1=SEGV"]], "segfault"),
        ("os._exit(7)", [["--exit-code", "1=7"]], "user-exit"),
        ("time.sleep(1000)", [[]], "hang"),
    ],
)
def test_the_verdict_over_the_old_logs_is_the_one_of_the_run(
    box: Box, order: str, ways: list[list[str]], failure: str
) -> None:
    (box.work / "train.py").write_text(PROGRAM.replace("ORDER", order))
    hang = {"after": "2s" if failure == "hang" else "1m"}
    asked = box.policy(hang=hang, restart={"maxRestarts": 1})
    running = box.run(sys.executable, "-SE", "train.py", policy=asked, options=("--nproc", "2"))
    running.code()
    incident = box.incidents()[0]
    lived = incident.verdict
    logs = map(str, (box.state / "jobs" / "job" / "logs" / "1").glob("rank-*.log"))
    command = ["replay", *logs, "--policy", asked, "-o", "json"]
    for how in ways:
        done = box.sentinel(*command, *how)
        assert done.returncode == 0, done.stderr
        foreseen = json.loads(done.stdout)["story"][0]
        replayed = foreseen["verdict"]
        assert (replayed["failure"], replayed["rank"]) == (failure, 1), box.story()
        assert (lived.symptom, lived.cause, lived.failure, lived.scope, lived.rank, lived.restart) == tuple(
            replayed[key] for key in ("symptom", "cause", "failure", "scope", "rank", "restart")
        )
        began_again = any(step.phase == Phase.STARTING for step in incident.steps)
        assert began_again == any(step["phase"] == "Starting" for step in foreseen["then"])
