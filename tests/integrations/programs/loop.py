"""A loop of real ranks (gloo) with `SaveOnSignal`; model, batches and checkpoints are those of the example.

Rank 0 takes a line from the FIFO `pace`, in the current directory, before each batch of an evaluation. At the end it
prints a number that is another one for any other weights.
"""

import argparse
import hashlib
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from examples.train_torch import batches, load_newest, save
from sentinel.integrations import SaveOnSignal

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--folder", type=Path, default=Path("checkpoints"))
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--signal-at", type=int, help="the step at which the rank --signal-rank gets SIGUSR1")
parser.add_argument("--signal-rank", type=int, default=1)
parser.add_argument(
    "--both", action="store_true", help="the other gets it when that step's question was asked"
)
parser.add_argument("--times", default="first")
parser.add_argument("--evaluate-at", type=int)
parser.add_argument("--evaluation", type=int, default=0, help="its batches")
args = parser.parse_args()

saver = SaveOnSignal(times=args.times)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
plain = nn.Linear(64, 64)
model = DistributedDataParallel(plain)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
last = load_newest(args.folder, plain, optimizer, torch.device("cpu"))
steps = range(last + 1, args.steps + 1)
for step, batch in zip(steps, saver.batches(batches(steps, torch.device("cpu"))), strict=True):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    if (step, rank) == (args.signal_at, args.signal_rank):
        os.kill(os.getpid(), signal.SIGUSR1)
    asked = saver.should_save(step)
    if args.both and step == args.signal_at and rank != args.signal_rank:
        os.kill(os.getpid(), signal.SIGUSR1)
    if asked:
        print(f"rank {rank} saves at step {step}", flush=True)
        save(args.folder, plain, optimizer, step)
        saver.saved(step)
    if step == args.evaluate_at:
        if rank == 0:
            with open("pace") as pace:
                for done in range(1, args.evaluation + 1):
                    pace.readline()
                    saver.evaluating(step, done, args.evaluation)
        saver.begin()
if rank == 0:
    weights = b"".join(one.detach().numpy().tobytes() for one in plain.parameters())
    print("weights", hashlib.sha256(weights).hexdigest(), flush=True)
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # gloo's threads may still be there: torch 2.15 then aborts now and then, after all is done
