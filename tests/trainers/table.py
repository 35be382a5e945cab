"""Two ranks of a real training below launchers, broken in several ways: what each verdict has to be, and the judge.

`make test-trainers` tries all of it with PyPI's torch, `make test` a core with Debian's (tests/integrations). Where
there is a GPU it computes there too, over NCCL, and the GPU's own faults are added.
"""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.box import Box, Running
from tests.gate.rights import needs_root
from tests.waits import until

Keep = Callable[..., None]  # of a row: its kind, and what its table on the page needs
PROGRAMS = Path(__file__).parent / "programs"
SAVE_EVERY, BREAKS_AT = 5, 22
SAVED = BREAKS_AT // SAVE_EVERY * SAVE_EVERY
RESUME = {"maxResumes": 3, "gracefulStop": "5s"}
HANG_S = 10
ENDS_SLOWLY = {"Lightning": 30}  # after its last iteration
GROUPS = Path("/sys/fs/cgroup")


class Fault(NamedTuple):
    words: str
    order: str  # to the program; empty: it comes from outside
    rank: int = 1
    policy: bool = True
    patience_s: int = 600  # after which ranks that wait for another give up


FAULTS = {
    "kill": Fault("a rank gets SIGKILL", "kill"),
    "kill-first": Fault("rank 0 gets SIGKILL", "kill", rank=0),
    "kill-default": Fault("a rank gets SIGKILL, without a policy", "kill", policy=False),
    "stop": Fault("a rank is stopped (SIGSTOP)", "stop"),
    "loop": Fault("a rank loops in Python", "loop"),
    "segv": Fault("a rank crashes (SIGSEGV)", "segv"),
    "memory": Fault("a rank's memory runs out (cgroup)", "memory"),
    "exit": Fault("a rank exits with 1, no word", "exit"),
    "raise": Fault("a rank raises RuntimeError", "raise"),
    "launcher": Fault("the launcher gets SIGKILL", ""),
    "stop-default": Fault("a rank is stopped, without a policy", "stop", policy=False),
    "lock-default": Fault("a rank waits in a lock, without a policy", "lock", policy=False),
}
GPU_FAULTS = {
    **{name: FAULTS[name] for name in ("kill", "stop", "loop", "exit", "raise")},
    "watchdog": Fault("a rank is stopped, NCCL's timeout of 10 s ends the other", "stop", patience_s=10),
    "kernel-loop": Fault("a kernel of a rank never ends", "kernel-loop"),
    "kernel-address": Fault("a kernel writes to an address that nobody has", "kernel-address"),
    "kernel-assert": Fault("an assertion fails in a kernel", "kernel-assert"),
    "gpu-memory": Fault("a rank's memory on the GPU runs out", "gpu-memory"),
}
# Before the program. `{python}`: the one that has torch. `{bin}`: its folder. `{port}`: one that is free.
LAUNCHERS = {
    "none": "{python}",
    "torchrun": "{bin}/torchrun --standalone --nproc-per-node 2",
    # `--cpu` would start one process, however many are asked for.
    "accelerate": "{bin}/accelerate launch --multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no "
    "--dynamo_backend no --main_process_port {port}",
    "deepspeed": "{bin}/deepspeed --num_gpus 2 --master_port {port}",
    "mp.spawn": "{python}",
    "mpirun": "mpirun -np 2 --allow-run-as-root --oversubscribe -x MASTER_ADDR=127.0.0.1 -x MASTER_PORT={port} "
    "{python}",
    "srun": "srun --ntasks 2 --label --export ALL,MASTER_ADDR=127.0.0.1,MASTER_PORT={port} {python}",
    # It starts its ranks itself: the first one is the launcher too.
    "Lightning": "{python}",
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
    "kill-default": Cell("killed", "node", 1),
    "stop": Cell("hang", "unknown", 1),
    "loop": Cell("hang", "unknown", 1),
    "segv": Cell("segfault", "unknown", 1),
    "memory": Cell("host-oom", "host memory", 1),
    "exit": Cell("rank-exit", "unknown", 1),
    "raise": Cell("exception", "unknown", 1),
    "launcher": Cell("killed", "node", None),
    "stop-default": Cell("hang", "unknown", 1),
    # Rank 0 stands in the backward pass, where it may wait for the other or for itself.
    "lock-default": Cell("hang", "unknown", None),
    "watchdog": Cell("nccl-timeout", "unknown", 1),
    "kernel-loop": Cell("hang", "unknown", None),
    "kernel-address": Cell("illegal-access", "user code", 1),
    "kernel-assert": Cell("device-assert", "user code", 1, restarted=False),
    "gpu-memory": Cell("cuda-oom", "user code", 1, restarted=False),
}
# Where a launcher tells less, or something else.
OTHERWISE = {
    # No launcher says a word, and 1 is what any exception ends with.
    ("none", "exit"): Cell("unknown", "unknown", 1),
    # torch names the process that ended, and nothing tells how many there are.
    ("mp.spawn", "watchdog"): Cell("nccl-timeout", "unknown", None),
}
# The other one waits for its GPU, which may be its own doing.
ON_GPU = {"loop": Cell("hang", "unknown", None)}
# deepspeed tells of one process, whichever it finds first to have ended: now and then the one that lost the other.
# With threads of gloo torch 2.15 aborts at the end of a program, now and then, which hides the code that it ends with.
AT_TIMES = {(launcher, "exit"): Cell("end-abort", "unknown", 1) for launcher in LAUNCHERS} | {
    ("deepspeed", "kill"): Cell("rank-exit", "unknown", 1),
    ("deepspeed", "kill-first"): Cell("rank-exit", "unknown", 0),
    ("deepspeed", "kill-default"): Cell("rank-exit", "unknown", 1),
    ("deepspeed", "segv"): Cell("rank-exit", "unknown", 1),
}


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


class Trial(NamedTuple):
    """One cell: this fault below this launcher."""

    launcher: str
    fault: str
    launchers: Mapping[str, str] = LAUNCHERS
    hang_s: int = HANG_S
    gpus: bool = False

    @property
    def about(self) -> Fault:
        return (GPU_FAULTS if self.gpus else FAULTS)[self.fault]

    @property
    def wanted(self) -> Cell:
        usual = USUAL | (ON_GPU if self.gpus else {})
        return OTHERWISE.get((self.launcher, self.fault), usual[self.fault])

    def right(self, found: Cell) -> bool:
        return found in (self.wanted, AT_TIMES.get((self.launcher, self.fault)))


def judge(box: Box, python: Path, trial: Trial, group: Path | None = None, keep: Keep | None = None) -> None:
    """`group`: the control group whose memory runs out."""
    launcher, fault = trial.launcher, trial.about
    order = fault.order
    if group is not None:
        box.settings(kernelLog="/dev/kmsg")
        order = f"{order} {group}"
    job = start(box, python, trial, "--fault", order, "--rank", str(fault.rank))
    broken_s = 0.0 if order else kill_launcher(box)
    code = job.code(900.0)
    broken_s = broken_s or float((box.work / "broken").read_text())
    incidents = box.incidents()
    assert incidents, box.story()
    first = incidents[0]
    verdict = first.verdict
    recovered = [step.wall_s for step in first.steps if step.phase == "Recovered"]
    seconds = recovered[0] - broken_s if recovered else None
    # Below a launcher the rank of the verdict is the launcher itself; one of its own is the worker.
    # Lightning's is rank 0 too.
    rank = verdict.worker
    if launcher == "none" or (launcher == "Lightning" and rank is None):
        rank = verdict.rank
    if keep is not None:
        keep(
            "gpus" if trial.gpus else "launchers",
            launcher=launcher,
            fault=fault.words,
            order=[
                list(LAUNCHERS).index(launcher),
                list(GPU_FAULTS if trial.gpus else FAULTS).index(trial.fault),
            ],
            failure=verdict.failure,
            rank=rank,
            restarted=bool(recovered),
            seconds=seconds,
            sentence=verdict.sentence,
            evidence=verdict.evidence,
        )
    wanted = trial.wanted
    found = Cell(verdict.failure, str(verdict.cause), rank, bool(recovered))
    assert trial.right(found), f"{wanted}\n{verdict}\n{box.story()}\n{box.log()[-4000:]}"
    assert len(incidents) == 1, box.story()
    assert (code == 0) == wanted.restarted, box.story()
    if wanted.restarted:
        assert first.lost is not None
        # A launcher that is told to end may wake a rank that a signal had stopped: the job then went on for a moment.
        assert (first.lost.resumed_from or 0) >= SAVED, box.story()
    box.empty()


def start(box: Box, python: Path, trial: Trial, *options: str) -> Running:
    folder = python.parent
    port = free_ports()
    words = trial.launchers[trial.launcher].format(python=python, bin=folder, port=port).split()
    box.env |= {"PATH": f"{folder}:{box.env['PATH']}", "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    if trial.launcher == "mp.spawn":
        options += ("--spawn", "2")
    if trial.gpus:
        options += ("--gpus", "--patience", str(trial.about.patience_s))
        box.env["NCCL_SOCKET_IFNAME"] = "lo"
    program = PROGRAMS / ("lightning_ranks.py" if trial.launcher == "Lightning" else "ranks.py")
    policy = box.policy(resume=RESUME, hang={"after": f"{trial.hang_s}s"})
    return box.run(
        *(*words, str(program), "--save-every", str(SAVE_EVERY), "--at", str(BREAKS_AT), *options),
        policy=policy if trial.about.policy else "",
        options=("--nproc", "2") if trial.launcher == "none" else (),
    )


def free_ports(count: int = 1) -> int:
    """The first of so many in a row that are free."""
    while True:
        with contextlib.ExitStack() as held, contextlib.suppress(OSError, OverflowError):
            first = held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            for port in range(first + 1, first + count):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
            return first


def kill_launcher(box: Box) -> float:
    """At the step at which ranks break. When that was."""
    until(lambda: f"iter {BREAKS_AT}:" in box.log(), box.story, 300.0)
    supervisor = str(box.supervisor())
    [launcher] = [pid for pid in box.processes() if parent(pid) == supervisor]
    killed_s = time.time()
    os.kill(launcher, signal.SIGKILL)
    return killed_s


def parent(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
