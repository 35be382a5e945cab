"""How a PyTorch job saves when Sentinel asks: the part to copy is `SaveOnSignal` and its use in the loop.

    sentinel run --nproc 8 -- python examples/train_torch.py --checkpoints /scratch/llama
    torchrun --nproc-per-node 8 examples/train_torch.py --checkpoints /scratch/llama

`SaveOnSignal` lets all ranks save after the same step, whichever of them got the signal. A file gets its final name
when it is whole: readers never see a part of it, and the line `saved checkpoint step N`, which a policy names as the
proof, is printed after that and not before. The Python that trains needs no more of Sentinel than this import
(`pip install --no-deps` of its checkout).
"""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sentinel.integrations import SaveOnSignal

BATCH = 256  # rows per rank


def save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Rank 0 writes. `saved` lets the others wait for it."""
    if dist.get_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"step-{step:08d}.pt"
        partial = path.with_suffix(".partial")
        with open(partial, "wb") as file:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)


def load_newest(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
) -> int:
    """Loads the newest checkpoint. Returns its step, 0 where there is none. Every rank reads the same file."""
    newest = sorted(folder.glob("step-*.pt"))[-1:]
    chosen: list[Path | None] = [newest[0] if newest else None]
    dist.broadcast_object_list(chosen, src=0)  # another rank's view of a network file system may lag
    if chosen[0] is None:
        return 0
    saved = torch.load(chosen[0], map_location=device)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    if dist.get_rank() == 0:
        print(f"resumed from step {saved['step']}", flush=True)
    return int(saved["step"])


def batches(steps: range, device: torch.device) -> Iterator[torch.Tensor]:
    """Of each step and rank always the same ones, so that a training that was resumed comes to the same weights."""
    for step in steps:
        seed = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
        yield torch.randn(BATCH, 64, generator=seed).to(device)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--checkpoint-every", type=int, default=500, metavar="STEPS")
    args = parser.parse_args()

    saver = SaveOnSignal()  # before the process group: a signal that no handler takes ends the process
    local_rank = int(os.environ["LOCAL_RANK"])
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")

    torch.manual_seed(7)
    plain = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64)).to(device)
    model = DistributedDataParallel(plain, device_ids=[local_rank] if on_gpu else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    start = load_newest(args.checkpoints, plain, optimizer, device)

    steps = range(start + 1, args.steps + 1)
    for step, inputs in zip(steps, saver.batches(batches(steps, device)), strict=True):
        loss = nn.functional.mse_loss(model(inputs), inputs.flip(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 and dist.get_rank() == 0:
            print(f"loss {loss.item():.6f}", flush=True)
        asked = saver.should_save(step)  # every rank, after every step
        if asked or step % args.checkpoint_every == 0 or step == args.steps:
            save(args.checkpoints, plain, optimizer, step)
            saver.saved(step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
