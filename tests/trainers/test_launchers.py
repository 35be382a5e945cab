"""Two ranks of a real training below each launcher, broken in each way: who is named, why, and does it go on?"""

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.box import Box, Running
from tests.gate.rights import needs_root
from tests.trainers.conftest import Keep
from tests.waits import until

PROGRAM = str(Path(__file__).parent / "programs/ranks.py")
SAVE_EVERY, BREAKS_AT = 5, 22
SAVED = BREAKS_AT // SAVE_EVERY * SAVE_EVERY
POLICY = {"resume": {"maxResumes": 3, "gracefulStop": "5s"}, "hang": {"after": "10s"}}
GROUPS = Path("/sys/fs/cgroup")


class Fault(NamedTuple):
    words: str
    order: str  # to the program; empty: it comes from outside
    rank: int = 1


FAULTS = {
    "kill": Fault("a rank gets SIGKILL", "kill"),
    "kill-first": Fault("rank 0 gets SIGKILL", "kill", rank=0),
    "stop": Fault("a rank is stopped (SIGSTOP)", "stop"),
    "loop": Fault("a rank loops in Python", "loop"),
    "memory": Fault("a rank's memory runs out (cgroup)", "memory"),
    "exit": Fault("a rank exits with 1, no word", "exit"),
    "raise": Fault("a rank raises RuntimeError", "raise"),
    "launcher": Fault("the launcher gets SIGKILL", ""),
}
# Before the program. `{bin}`: where the launchers are. `{port}`: one that is free.
LAUNCHERS = {
    "none": "{bin}/python",
    "torchrun": "{bin}/torchrun --standalone --nproc-per-node 2",
    # `--cpu` would start one process, however many are asked for.
    "accelerate": "{bin}/accelerate launch --multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no "
    "--dynamo_backend no --main_process_port {port}",
    "deepspeed": "{bin}/deepspeed --num_gpus 2 --master_port {port}",
    "mp.spawn": "{bin}/python",
    "mpirun": "mpirun -np 2 --allow-run-as-root --oversubscribe -x MASTER_ADDR=127.0.0.1 -x MASTER_PORT={port} "
    "{bin}/python",
}


class Cell(NamedTuple):
    """What a verdict has to be. `rank`: the one that is named, None for none."""

    failure: str
    cause: str
    rank: int | None
    restarted: bool = True


USUAL = {
    "kill": Cell("killed", "node", 1),
    "kill-first": Cell("killed", "node", 0),
    "stop": Cell("hang", "unknown", 1),
    "loop": Cell("hang", "unknown", 1),
    "memory": Cell("host-oom", "host memory", 1),
    "exit": Cell("rank-exit", "unknown", 1),
    "raise": Cell("exception", "unknown", 1),
    "launcher": Cell("killed", "node", None),
}
# Where a launcher tells less, or something else.
OTHERWISE = {
    # No launcher says a word, and 1 is what any exception ends with.
    ("none", "exit"): Cell("unknown", "unknown", 1),
}
CASES = [
    (launcher, fault)
    for launcher in LAUNCHERS
    for fault in FAULTS
    if (launcher, fault) != ("none", "launcher")
]


@pytest.fixture
@needs_root
def small_group() -> Iterator[Path]:
    """A control group of 64 MiB."""
    first = (GROUPS / "memory").is_dir()  # version 1
    group = (GROUPS / "memory" if first else GROUPS) / f"sentinel-test-{os.getpid()}"
    group.mkdir()
    (group / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(64 << 20))
    yield group
    until(lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


@pytest.mark.parametrize(("launcher", "fault"), [case for case in CASES if case[1] != "memory"])
def test_a_broken_training_goes_on_and_its_fault_is_told(
    box: Box, venv: Path, keep: Keep, launcher: str, fault: str
) -> None:
    judge(box, venv, keep, launcher, fault, FAULTS[fault].order)


@pytest.mark.parametrize(("launcher", "fault"), [case for case in CASES if case[1] == "memory"])
def test_a_rank_whose_memory_ran_out_is_told_so(
    box: Box, venv: Path, keep: Keep, small_group: Path, launcher: str, fault: str
) -> None:
    box.settings(kernelLog="/dev/kmsg")
    judge(box, venv, keep, launcher, fault, f"memory {small_group}")


def judge(box: Box, venv: Path, keep: Keep, launcher: str, fault: str, order: str) -> None:
    job = start(box, venv, launcher, "--fault", order, "--rank", str(FAULTS[fault].rank))
    broken_s = 0.0 if order else kill_launcher(box)
    code = job.code(300.0)
    broken_s = broken_s or float((box.work / "broken").read_text())
    incidents = box.incidents()
    assert incidents, box.story()
    first = incidents[0]
    verdict = first.verdict
    recovered = [step.wall_s for step in first.steps if step.phase == "Recovered"]
    seconds = recovered[0] - broken_s if recovered else None
    # Below a launcher the rank of the verdict is the launcher itself; one of its own is the worker.
    rank = verdict.rank if launcher == "none" else verdict.worker
    keep(
        "launchers",
        launcher=launcher,
        fault=FAULTS[fault].words,
        order=[list(LAUNCHERS).index(launcher), list(FAULTS).index(fault)],
        failure=verdict.failure,
        rank=rank,
        restarted=bool(recovered),
        seconds=seconds,
        sentence=verdict.sentence,
        evidence=verdict.evidence,
    )
    wanted = OTHERWISE.get((launcher, fault), USUAL[fault])
    found = Cell(verdict.failure, str(verdict.cause), rank, bool(recovered))
    assert found == wanted, f"{verdict}\n{box.story()}\n{box.log()[-4000:]}"
    assert len(incidents) == 1, box.story()
    assert (code == 0) == wanted.restarted, box.story()
    if wanted.restarted:
        assert first.lost is not None
        # A launcher that is told to end may wake a rank that a signal had stopped: the job then went on for a moment.
        assert (first.lost.resumed_from or 0) >= SAVED, box.story()
    box.empty()


def start(box: Box, venv: Path, launcher: str, *options: str) -> Running:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        words = LAUNCHERS[launcher].format(bin=venv / "bin", port=free.getsockname()[1]).split()
    box.env |= {"PATH": f"{venv / 'bin'}:{box.env['PATH']}", "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    if launcher == "mp.spawn":
        options += ("--spawn", "2")
    return box.run(
        *(*words, PROGRAM, "--save-every", str(SAVE_EVERY), "--at", str(BREAKS_AT), *options),
        policy=box.policy(**POLICY),
        options=("--nproc", "2") if launcher == "none" else (),
    )


def kill_launcher(box: Box) -> float:
    """At the step at which ranks break. When that was."""
    until(lambda: f"iter {BREAKS_AT}:" in box.log(), box.story)
    supervisor = str(box.supervisor())
    [launcher] = [pid for pid in box.processes() if parent(pid) == supervisor]
    killed_s = time.time()
    os.kill(launcher, signal.SIGKILL)
    return killed_s


def parent(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
