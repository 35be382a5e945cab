"""How a PyTorch job saves when Sentinel asks: the part to copy is `SaveOnSignal` and its use in the loop.

    sentinel run --nproc 8 -- python examples/train_torch.py --checkpoints /scratch/llama
    torchrun --nproc-per-node 8 examples/train_torch.py --checkpoints /scratch/llama

Three things make a save on a signal safe in a job of many ranks:

1. The handler only notes the signal. A collective, or a save, inside a handler could run in the middle of
   another collective and wait for ever.
2. Signals reach ranks at different moments, so the ranks agree: each step one number is reduced with MAX
   over all ranks, and all of them save after the same step or none does.
3. The file gets its final name when it is whole. Readers never see a part of it, and the line
   `saved checkpoint step N`, which a policy names as the proof, is printed after that and not before.
"""

import argparse
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 256  # rows per rank


class SaveOnSignal:
    """Collects the wishes of all ranks to save. Make it before the process group: a signal that comes
    while no handler is set ends the process."""

    def __init__(self, number: int = signal.SIGUSR1) -> None:
        self._asked = False
        signal.signal(number, self._note)

    def _note(self, _number: int, _frame: object) -> None:
        self._asked = True

    def agreed(self, device: torch.device) -> bool:
        """Whether any rank was asked since the last call. A collective: every rank calls it every step."""
        asked = self._asked
        if asked:  # a signal between these two lines asks for the save that is about to be made
            self._asked = False
        wish = torch.tensor([float(asked)], device=device)
        dist.all_reduce(wish, op=dist.ReduceOp.MAX)
        return bool(wish.item())


def save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Rank 0 writes; the others wait, so that none goes on to a step that a restart would not repeat."""
    if dist.get_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"step-{step:08d}.pt"
        partial = path.with_suffix(".partial")
        with open(partial, "wb") as file:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    dist.barrier()
    if dist.get_rank() == 0:
        print(f"saved checkpoint step {step}", flush=True)


def load_newest(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
) -> int:
    """Loads the newest checkpoint. Returns its step, 0 where there is none. Every rank reads the same file."""
    newest = sorted(folder.glob("step-*.pt"))[-1:]
    chosen: list[Path | None] = [newest[0] if newest else None]
    dist.broadcast_object_list(chosen, src=0)  # another rank's view of a network file system may lag
    if chosen[0] is None:
        return 0
    saved = torch.load(chosen[0], map_location=device, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    if dist.get_rank() == 0:
        print(f"resumed from step {saved['step']}", flush=True)
    return int(saved["step"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--checkpoint-every", type=int, default=500, metavar="STEPS")
    args = parser.parse_args()

    save_request = SaveOnSignal()
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

    for step in range(start + 1, args.steps + 1):
        begun_s = time.perf_counter()
        batch = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
        inputs = torch.randn(BATCH, 64, generator=batch).to(device)
        hardware_s = time.perf_counter()
        loss = nn.functional.mse_loss(model(inputs), inputs.flip(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        save_now = save_request.agreed(device)  # also waits for the GPU, so the times below are true
        ended_s = time.perf_counter()

        hardware_ms, e2e_ms = (ended_s - hardware_s) * 1000, (ended_s - begun_s) * 1000
        # As torchtitan prints it: the step, and tokens (here rows) per second.
        print(f"step: {step}  loss: {loss.item():.6f}  tps: {BATCH / (ended_s - begun_s):,.0f}")
        print(
            f"this iteration hardware time is {hardware_ms:.3f} and e2e time is {e2e_ms:.3f} ms.", flush=True
        )
        if save_now or step % args.checkpoint_every == 0 or step == args.steps:
            save(args.checkpoints, plain, optimizer, step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
