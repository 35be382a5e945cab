"""A loop of one's own with `SaveOnSignal`. Arguments and last line are those of hf.py."""

import hashlib
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sentinel.integrations import SaveOnSignal

FOLDER = Path(sys.argv[1])
STEPS, EVALUATE_AT, EVALUATION_S, SIGNAL_AT = (int(word) for word in sys.argv[2:])
STEP_S = 0.05


def numbers(first):
    for step in range(first, STEPS + 1):
        yield torch.randn(4, 8, generator=torch.Generator().manual_seed(2 * step + dist.get_rank()))


def save(step):
    if dist.get_rank() == 0:
        FOLDER.mkdir(exist_ok=True)
        partial = FOLDER / "partial"
        torch.save((step, model.state_dict(), optimizer.state_dict()), partial)
        partial.rename(FOLDER / f"step-{step:06d}.pt")


saver = SaveOnSignal()
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
last = 0
for path in sorted(FOLDER.glob("step-*.pt"))[-1:]:
    last, weights, moments = torch.load(path)
    model.load_state_dict(weights)
    optimizer.load_state_dict(moments)
for step, batch in enumerate(saver.batches(numbers(last + 1)), last + 1):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    time.sleep(STEP_S)
    if (step, dist.get_rank()) == (SIGNAL_AT, 1):
        os.kill(os.getpid(), signal.SIGUSR1)
    if saver.should_save(step):
        save(step)
        saver.saved(step)
    if step == EVALUATE_AT:
        for one in range(EVALUATION_S):
            time.sleep(1.0)
            saver.evaluating(step, one + 1, EVALUATION_S)
        saver.begin()
if dist.get_rank() == 0:
    print(
        "weights",
        hashlib.sha256(b"".join(one.numpy().tobytes() for one in model.state_dict().values())).hexdigest(),
    )
dist.destroy_process_group()
