"""A plain loop of real ranks (gloo) with `SaveOnSignal`. At step SIGNAL_AT the rank SIGNAL_RANK gets SIGUSR1."""

import os
import signal
import sys

import torch
import torch.distributed as dist

from sentinel.integrations import SaveOnSignal

STEPS, SIGNAL_AT, SIGNAL_RANK, TIMES = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]

saver = SaveOnSignal(times=TIMES)
dist.init_process_group("gloo")
rank = dist.get_rank()
numbers = torch.ones(4)
for step, _batch in enumerate(saver.batches(range(STEPS)), start=1):
    dist.all_reduce(numbers)
    if (step, rank) == (SIGNAL_AT, SIGNAL_RANK):
        os.kill(os.getpid(), signal.SIGUSR1)
    if saver.should_save(step):
        print(f"rank {rank} saves at step {step}", flush=True)
        saver.saved(step)
print(f"rank {rank} is through", flush=True)
