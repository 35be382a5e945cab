"""Stacks of ranks, as cluster/local/stacks.py gives them: some that py-spy printed, others put together."""

import re
from pathlib import Path

HERE = Path(__file__).parent / "stacks"


def stacks(name: str) -> list[str]:
    """`loop` and `data_loader` are of two programs under torchrun (torch 2.15, gloo, py-spy 0.4): in the one rank 1
    spins while the others stand in an all_reduce, in the other its loader gives no batch while rank 0 is in the
    backward pass of DistributedDataParallel. `gpu` is of three programs (torch 2.11, an H200) behind a kernel that
    never ends: `torch.cuda.synchronize()`, a backward pass that is in it, and the launch of another kernel, which
    blocks too. `torch-1.13` is Debian's torch with the program of tests/trainers, of which rank 1 loops.
    """
    text = (HERE / f"{name}.txt").read_text()
    return [part.rstrip() for part in re.split(r"^(?=rank )", text, flags=re.MULTILINE) if part]


def rank(number: int, frames: str, *, where: str = "S in futex_do_wait", thread: str = "idle") -> str:
    """Its main thread, innermost frame first."""
    stack = "".join(f"\n    {frame.strip()}" for frame in frames.splitlines())
    pid = 7000 + number
    head = f"rank {number}: pid {pid} ({where})\nProcess {pid}: python3 train.py\n"
    return f'{head}\nThread {pid} ({thread}): "MainThread"{stack}'


def in_call(number: int, function: str, line: int) -> str:
    """It waits in a collective, or what else torch.distributed has, which that line of the program called."""
    return rank(
        number, f"{function} (torch/distributed/distributed_c10d.py:4181)\n<module> (train.py:{line})"
    )
