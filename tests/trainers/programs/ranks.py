"""A small real training of several ranks: DistributedDataParallel, nanoGPT's lines, a checkpoint at times.

It computes on the CPU over gloo, with `--gpus` on GPUs over NCCL; there several ranks may share one.

One rank breaks at one step, once: where the file `broken` is there, it has been. What breaks it is an argument:

    kill | stop | loop | lock | segv | memory GROUP | exit | raise
    kernel-loop | kernel-address | kernel-assert | gpu-memory          with --gpus

`kernel-…` is what a kernel on the GPU does: it never ends, writes to an address that nobody has, fails an assertion.
`memory` fills a control group of little memory that the rank has joined before. The ranks are started by a launcher, or
by this program with `--spawn`.

The first training goes on until it is broken, however long that takes; one that resumes does `--more` steps. A step
takes as long as its batch.
"""

import argparse
import ctypes
import os
import signal
import socket
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, BATCH = 256, 512  # a tenth of a second on one core


# NVIDIA's own language for kernels, which the driver compiles.
WILD_WRITE = b"""
.version 7.8
.target sm_80
.address_size 64
.visible .entry wild_write() {
    .reg .b64 %address;
    .reg .b32 %one;
    mov.u64 %address, 16;
    mov.u32 %one, 1;
    st.global.u32 [%address], %one;
    ret;
}
"""


def loops():
    while True:
        pass


def write_wildly():
    driver = ctypes.CDLL("libcuda.so.1")
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    ones = (ctypes.c_uint(1),) * 6
    for code in (
        driver.cuModuleLoadData(ctypes.byref(module), WILD_WRITE),
        driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"wild_write"),
        driver.cuLaunchKernel(kernel, *ones, ctypes.c_uint(0), None, None, None),
    ):
        assert code == 0, f"CUDA's driver says {code}"


def break_down(fault):
    with open("broken.partial", "w") as file:
        file.write(str(time.time()))
    os.replace("broken.partial", "broken")
    what, _, group = fault.partition(" ")
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif what == "loop":
        loops()
    elif what == "lock":
        lock = threading.Lock()
        with lock:
            lock.acquire()
    elif what == "segv":
        ctypes.string_at(0)
    elif what == "memory":
        with open(f"{group}/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))
        kept = []
        while True:
            kept.append(bytearray(1 << 20))
    elif what == "exit":
        sys.exit(1)
    elif what == "raise":
        raise RuntimeError("the training set is not sorted")
    elif what == "kernel-loop":
        torch.cuda._sleep(1 << 60)
    elif what == "kernel-address":
        write_wildly()
    elif what == "kernel-assert":
        torch.zeros(4, device="cuda")[torch.tensor([9], device="cuda")]
    elif what == "gpu-memory":
        torch.cuda.set_per_process_memory_fraction(0.02)
        kept = []
        while True:
            kept.append(torch.empty(1 << 28, device="cuda"))


def train(args):
    # As long as NCCL's ranks wait for each other; gloo's own would be half an hour.
    patience = timedelta(seconds=args.patience)
    device = torch.device("cpu")
    if args.gpus:
        # NCCL refuses a GPU that two ranks of one machine share; of two machines it does not ask.
        os.environ["NCCL_HOSTID"] = f"machine {os.environ['RANK']}"
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if args.gpus else "gloo", timeout=patience)
    rank = dist.get_rank()
    torch.manual_seed(rank)
    layers = (nn.Linear(32, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
    model = DistributedDataParallel(nn.Sequential(*layers).to(device))
    optimizer = torch.optim.AdamW(model.parameters())
    step, last = 0, None
    if os.path.exists("ckpt.pt"):
        saved = torch.load("ckpt.pt", map_location=device)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["iter_num"]
        last = step + args.more
    started = time.monotonic()
    while step != last:
        step += 1
        begun = time.time()
        breaks = step >= args.at and time.monotonic() - started >= args.after
        if breaks and rank == args.rank and args.fault and not os.path.exists("broken"):
            break_down(args.fault)
        rows = torch.randn(BATCH, 32, device=device)
        loss = nn.functional.mse_loss(model(rows), rows.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()  # on a GPU each rank waits here for its step to be through
        if rank == 0:
            print(f"iter {step}: loss {value:.4f}, time {(time.time() - begun) * 1000:.2f}ms", flush=True)
            if step % args.save_every == 0:
                print("saving checkpoint to ckpt.pt", flush=True)
                saved = {
                    "model": model.module.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "iter_num": step,
                }
                torch.save(saved, "ckpt.partial")
                os.replace("ckpt.partial", "ckpt.pt")
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may still be there: torch 2.15 then aborts now and then, after all is done


def spawned(number, args, port):
    os.environ |= {
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": str(args.spawn),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    train(args)


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--more", type=int, default=12)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--fault", default="")
    parser.add_argument("--rank", type=int, default=1, help="the one that breaks")
    parser.add_argument("--at", type=int, default=22, help="the step at which it does")
    parser.add_argument(
        "--after", type=float, default=0.0, help="it does later, so many seconds after its start"
    )
    parser.add_argument("--gpus", action="store_true")
    parser.add_argument(
        "--patience", type=float, default=600.0, help="seconds that ranks wait for each other"
    )
    parser.add_argument("--spawn", type=int, default=0, help="start so many ranks")
    parser.add_argument("--local_rank", help="as deepspeed gives it; the environment tells it too")
    return parser


def main():
    args = options().parse_args()
    if args.spawn:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        torch.multiprocessing.spawn(spawned, (args, port), args.spawn)
        return
    for name, mpi, slurm in (
        ("RANK", "RANK", "PROCID"),
        ("LOCAL_RANK", "LOCAL_RANK", "LOCALID"),
        ("WORLD_SIZE", "SIZE", "NTASKS"),
    ):
        if found := os.environ.get(f"OMPI_COMM_WORLD_{mpi}") or os.environ.get(f"SLURM_{slurm}"):
            os.environ.setdefault(name, found)
    train(args)


if __name__ == "__main__":
    main()
