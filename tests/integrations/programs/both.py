"""Ranks in step (gloo), each of which prints its iterations. STEPS; a second word `untimed`: without their times.

At the end rank 0 writes what its steps took, in milliseconds, to the file `took`, and then waits for the test, which
opens the FIFO `end`; both are in the current directory.
"""

import hashlib
import json
import os
import sys
import time

import torch
import torch.distributed as dist

STEPS, UNTIMED = int(sys.argv[1]), sys.argv[2:] == ["untimed"]
STEP_S = 0.05  # of computing

OTHERS = {  # of mpirun and srun
    "RANK": ("OMPI_COMM_WORLD_RANK", "SLURM_PROCID"),
    "LOCAL_RANK": ("OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"),
    "WORLD_SIZE": ("OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"),
}
for name, names in OTHERS.items():
    if found := next(filter(None, map(os.environ.get, names)), ""):
        os.environ.setdefault(name, found)
dist.init_process_group("gloo")
one, block, took_ms = torch.ones(1), b"x" * 65536, []
for step in range(1, STEPS + 1):
    begun_s = time.perf_counter()
    while time.perf_counter() - begun_s < STEP_S:
        hashlib.sha256(block).digest()
    computed_ms = 1000 * (time.perf_counter() - begun_s)
    dist.all_reduce(one)
    took_ms.append(1000 * (time.perf_counter() - begun_s))
    if UNTIMED:
        print(f"Step {step} | loss:{1 / step:.4f} lr:0.0003", flush=True)
    else:
        print(
            f"step {step}: this iteration hardware time is {computed_ms:.3f} and e2e time is {took_ms[-1]:.3f} ms.",
            flush=True,
        )
if dist.get_rank() == 0:
    with open("took.partial", "w") as file:
        json.dump(took_ms, file)
    os.replace("took.partial", "took")
    with open("end") as end:
        end.read()
dist.all_reduce(one)
