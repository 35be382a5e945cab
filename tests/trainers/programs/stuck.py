"""Ranks that wait for each other in vain, and what their flight recorders hold then.

The files of tests/cluster/records were written by it, with torch 2.15 (TORCH_FR_BUFFER_SIZE=2000):
`torchrun --nproc-per-node 4 stuck.py absent records/absent/rank-`, and so on for each kind.
"""

import os
import pickle
import sys
import time

import torch
import torch.distributed as dist

KIND, PREFIX = sys.argv[1:3]
APART = {"absent": 2, "silent": 1, "different": 3}.get(KIND)  # the rank for which the others wait


def dump(open_: int) -> None:
    """As soon as so many operations are open: those before are retired a moment after they are done."""
    while True:
        record = torch._C._distributed_c10d._dump_fr_trace()
        if sum(not entry["retired"] for entry in pickle.loads(record)["entries"]) == open_:
            break
        time.sleep(0.01)
    with open(f"{PREFIX}{dist.get_rank()}", "wb") as file:
        file.write(record)


def step(value: torch.Tensor) -> dist.Work:
    return dist.all_reduce(value, async_op=True)


def evaluate() -> dist.Work:
    return dist.broadcast(torch.zeros(8), src=0, async_op=True)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for _ in range(3):
        step(torch.ones(4)).wait()
    works = []
    if KIND == "different" and rank == APART:
        works.append(evaluate())
    elif KIND != "well" and rank != APART:
        works.append(step(torch.ones(4)))
    if KIND != "silent" or rank != APART:
        dump(len(works))
    # With the first that ends the operations of the others end too.
    store = dist.distributed_c10d._get_default_store()
    store.set(f"dumped {rank}", "")
    store.wait([f"dumped {one}" for one in range(dist.get_world_size())])
    os._exit(0)


main()
