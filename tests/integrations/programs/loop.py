"""A plain loop of real ranks (gloo) with `SaveOnSignal`. At step SIGNAL_AT the rank SIGNAL_RANK gets SIGUSR1; with
`both` all get it, the others only when that step's question was asked."""

import os
import signal
import sys

import torch
import torch.distributed as dist

from sentinel.integrations import SaveOnSignal

STEPS, SIGNAL_AT, SIGNAL_RANK, TIMES = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
BOTH = "both" in sys.argv[5:]

saver = SaveOnSignal(times=TIMES)
dist.init_process_group("gloo")
rank = dist.get_rank()
numbers = torch.ones(4)
for step, _batch in enumerate(saver.batches(range(STEPS)), start=1):
    dist.all_reduce(numbers)
    if (step, rank) == (SIGNAL_AT, SIGNAL_RANK):
        os.kill(os.getpid(), signal.SIGUSR1)
    save = saver.should_save(step)
    if BOTH and step == SIGNAL_AT and rank != SIGNAL_RANK:
        os.kill(os.getpid(), signal.SIGUSR1)
    if save:
        print(f"rank {rank} saves at step {step}", flush=True)
        saver.saved(step)
print(f"rank {rank} is through", flush=True)
