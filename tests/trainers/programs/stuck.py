"""Ranks that wait for each other in vain, and what their flight recorders hold then.

The files of tests/cluster/records were written by it, with torch 2.15 (TORCH_FR_BUFFER_SIZE=2000):
`torchrun --nproc-per-node 4 stuck.py absent records/absent/rank-`, and so on for each kind.
"""

import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

DUMP_S = 6.0
KIND, PREFIX = sys.argv[1:3]


def dump() -> None:
    time.sleep(DUMP_S)
    with open(f"{PREFIX}{dist.get_rank()}", "wb") as file:
        file.write(torch._C._distributed_c10d._dump_fr_trace())
    time.sleep(DUMP_S / 2)  # torchrun ends the others with the first
    os._exit(0)


def step(value: torch.Tensor) -> None:
    dist.all_reduce(value)


def load_batch() -> None:
    time.sleep(60)


def evaluate() -> None:
    dist.broadcast(torch.zeros(8), src=0)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    threading.Thread(target=dump, daemon=True).start()
    for _ in range(3):
        step(torch.ones(4))
    if KIND == "absent" and rank == 2:
        load_batch()
    if KIND == "different" and rank == 3:
        evaluate()
    if KIND == "silent" and rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    if KIND != "well":
        step(torch.ones(4))
    time.sleep(60)


main()
