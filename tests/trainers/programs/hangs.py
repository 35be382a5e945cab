"""Sixteen ranks over gloo of which one breaks the step of all others, or keeps them waiting though it is well.

`python hangs.py SOCKET` plays, for each who connects and sends a line `KIND RANK WAY`, that rank RANK is the one; it
answers with the pids as JSON, and `there` once that rank has come to its place, and ends them when the connection ends.
WAY chooses among several programs of one kind; tests/trainers/capture_hangs.py has the kinds. Lines with a `# here` are
those at which a rank that never comes stands, or is called from.
The ranks keep cores busy: on a machine that others use, start few at once.
"""

import ctypes
import gc
import json
import multiprocessing
import os
import queue
import random
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request
import zlib
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SIZE, STEPS, WIDTH = 16, 3, 64
KIND, RANK, WAY = "", 0, 0
MOUNT, FORCE, DETACH = "", 1, 2
CALLER = None  # who connected


# ---------------------------------------------------------------- what never ends


class Rows(torch.utils.data.Dataset):
    """Its files are on a file system that answers no more, from one of them on."""

    def __len__(self):
        return 10_000

    def __getitem__(self, row):
        if row == 500:
            with open(f"{MOUNT}/shard") as shard:  # here
                shard.read()  # here
        return torch.zeros(32)


def stuck_loader():
    there()
    workers = 2 if WAY % 2 == 0 else 0
    for _ in torch.utils.data.DataLoader(Rows(), batch_size=50, num_workers=workers):
        pass


def locked():
    there()
    if WAY % 2 == 0:
        lock = threading.Lock()
        lock.acquire()
        with lock:  # here
            pass
    else:
        ready = queue.Queue()
        threading.Thread(target=lambda: None).start()
        ready.get()  # here


def loops():
    there()
    if WAY % 2 == 0:
        while True:  # here
            pass  # here
    table = {}
    while not settled(table):  # here
        table["round"] = table.get("round", 0) + 1  # here


def settled(table):
    return table.get("rest") == 0  # here


def stops():
    there()
    os.kill(os.getpid(), signal.SIGSTOP)  # here


def holds_the_interpreter():
    there()
    if WAY % 2 == 0:
        re.match(r"(\w+\s?)+$", "a" * 60 + "!")  # here
    else:
        ctypes.PyDLL(None).pause()  # here


def slow_save(model):
    there()
    if WAY % 2 == 0:
        torch.save(model.state_dict(), f"{MOUNT}/checkpoint.pt")  # here
        return
    child = subprocess.Popen(["sleep", "inf"], stdin=subprocess.PIPE)  # uploads what it gets
    torch.save({"model": model.state_dict(), "more": torch.zeros(1 << 20)}, child.stdin)  # here


def extra_evaluation(model):
    there()
    with torch.no_grad():
        loss = model.module(torch.randn(64, 32)).square().mean()
    if WAY % 2 == 0:
        dist.barrier()  # here
    else:
        losses = [None] * SIZE
        dist.all_gather_object(losses, loss.item(), group=METRICS)  # here


def out_early():
    """Its data ended sooner than those of the others."""
    there()
    if WAY % 3 == 0:
        threading.Thread(target=threading.Event().wait).start()
        sys.exit()
    elif WAY % 3 == 1:
        dist.barrier()  # here
    else:
        multiprocessing.get_context("fork").Process(target=signal.pause).start()
        sys.exit()


def mismatched(value):
    there()
    if WAY % 3 == 0:
        dist.all_gather([torch.zeros_like(value) for _ in range(SIZE)], value)  # here
    elif WAY % 3 == 1:
        dist.broadcast(value, src=(RANK + 1) % SIZE)  # here
    else:
        dist.barrier()  # here


def two_groups(value):
    """Half of the ranks begin with the one group, half with the other: neither is ever whole."""
    if dist.get_rank() == RANK:
        there()
    first = dist.get_rank() % 2 == 0 if WAY % 2 else dist.get_rank() < SIZE // 2
    if first:
        dist.all_reduce(value, group=METRICS)  # here
    elif WAY < 2:
        dist.barrier(group=OTHERS)  # here
    else:
        dist.all_reduce(value, group=OTHERS)  # here


# ---------------------------------------------------------------- what only takes its time


def from_afar(part=b"0" * 4096, each_s=0.5):
    """The address of a server that sends a little at a time."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        peer, _ = server.accept()
        peer.recv(1 << 16)
        peer.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        while True:
            peer.sendall(part)
            select.select((), (), (), each_s)

    if os.fork() == 0:
        serve()
    return server.getsockname()


def to_afar():
    """A socket whose other end takes a little at a time."""
    one, other = socket.socketpair()

    def take():
        while other.recv(1 << 16):
            select.select((), (), (), 0.3)

    if os.fork() == 0:
        take()
    return one


def save_checkpoint(model):
    there()
    state = [model.state_dict(), torch.randn(1 << 20)]
    if WAY % 2 == 0:
        while True:
            with tempfile.TemporaryFile() as file:
                torch.save(state, file)
                file.seek(0)
                zlib.compress(file.read(), 9)
    with to_afar().makefile("wb") as file:
        while True:
            torch.save(state, file)


def evaluate(model):
    there()
    if WAY % 2 == 0:
        with torch.no_grad():
            while True:
                model.module(torch.randn(512, 32)).square().mean().item()
    host, port = from_afar(each_s=5.0)
    with urllib.request.urlopen(f"http://{host}:{port}/judge") as answer:
        answer.read()


def build_kernels():
    there()
    while True:
        with tempfile.TemporaryDirectory() as place:
            with open(f"{place}/kernel.cpp", "w") as file:
                file.write("#include <regex>\n#include <map>\n")
                for k in range(400):
                    file.write(
                        f'std::map<int, std::regex> f{k}() {{ return {{{{{k}, std::regex("a")}}}}; }}\n'
                    )
            subprocess.run(["g++", "-O2", "-c", "kernel.cpp"], cwd=place, check=True)


def fetch_corpus():
    there()
    host, port = from_afar(each_s=(0.1, 1.0, 4.0)[WAY % 3])
    with urllib.request.urlopen(f"http://{host}:{port}/corpus") as answer, tempfile.TemporaryFile() as file:
        while part := answer.read(1 << 16):
            file.write(part)


def tokens_of(text):
    return [hash(word) % 50_000 for word in re.findall(r"\w+", text)]


def build_cache():
    there()
    words = [f"word{random.randrange(9999)}" for _ in range(20_000)]
    if WAY % 2 == 0:
        while True:
            tokens_of(" ".join(words))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(tokens_of, [" ".join(words)] * 100_000, chunksize=50_000)


def collects_garbage():
    there()
    kept = [[{k: [k]}] for k in range((200_000, 2_000_000)[WAY % 2])]
    while kept:
        gc.collect()


def load_weights(model):
    """Before the first iteration."""
    there()
    host, port = from_afar(part=b"0" * (1 << 18) if WAY % 2 else b"0" * 4096)
    with socket.create_connection((host, port)) as source:
        source.sendall(b"weights")
        weights = bytearray()
        while len(weights) < 1 << 30:
            weights += source.recv(1 << 16)


class FarRows(torch.utils.data.Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, row):
        if WAY % 2 == 0:
            select.select((), (), (), 2.0)  # as who reads from a slow store
        else:
            sum(k * k for k in range(10_000_000))
        return torch.zeros(32)


def slow_data():
    there()
    for _ in torch.utils.data.DataLoader(FarRows(), batch_size=500, num_workers=1 + WAY % 2):
        pass


def unpack():
    there()
    waits = "import select\nwhile True: select.select((), (), (), 0.2)"
    told = waits if WAY % 2 else "while True: sum(range(10**6))"
    subprocess.run([sys.executable, "-S", "-c", told], check=True)


def decomposes():
    there()
    size = 4000
    while True:
        torch.linalg.svd(torch.randn(size, size))


# ---------------------------------------------------------------- the training


# What the rank does while the others wait for it in the backward pass, or in a barrier of the program.
IN_STEP = {
    "loader": lambda model, value: stuck_loader(),
    "lock": lambda model, value: locked(),
    "loop": lambda model, value: loops(),
    "stop": lambda model, value: stops(),
    "gil": lambda model, value: holds_the_interpreter(),
    "evaluation": lambda model, value: extra_evaluation(model),
    "early": lambda model, value: out_early(),
    "garbage": lambda model, value: collects_garbage(),
    "slow-data": lambda model, value: slow_data(),
    "decomposition": lambda model, value: decomposes(),
}
BEFORE_BARRIER = {
    "save": lambda model, value: slow_save(model),
    "checkpoint": lambda model, value: save_checkpoint(model),
    "evaluates": lambda model, value: evaluate(model),
    "compile": lambda model, value: build_kernels(),
    "download": lambda model, value: fetch_corpus(),
    "cache": lambda model, value: build_cache(),
    "unpack": lambda model, value: unpack(),
}
METRICS = OTHERS = None


def there():
    CALLER.sendall(b"there\n")
    os.nice(19)  # whatever it burns


def step(model, optimizer):
    loss = model(torch.randn(32, 32)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def train(rank):
    layers = (nn.Linear(32, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    if KIND == "start":
        if rank == RANK:
            load_weights(model)
        dist.barrier()
    for _ in range(STEPS):
        value = step(model, optimizer)
    if KIND == "groups":
        two_groups(value)
    if KIND == "mismatch":
        mismatched(value) if rank == RANK else dist.all_reduce(value)
    if rank == RANK and (act := IN_STEP.get(KIND) or BEFORE_BARRIER.get(KIND)):
        act(model, value)
    if KIND in BEFORE_BARRIER:
        dist.barrier()
    step(model, optimizer)


def rank_of(rank, port):
    global METRICS, OTHERS
    store = dist.TCPStore("127.0.0.1", port, SIZE, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=SIZE, timeout=timedelta(hours=1))
    METRICS, OTHERS = dist.new_group(), dist.new_group()
    train(rank)


def play():
    """One process that forks all ranks, and ends them."""
    global KIND, RANK, WAY, MOUNT
    kind, rank, way = CALLER.recv(100).split()
    KIND, RANK, WAY = kind.decode(), int(rank), int(way)
    mounted = None
    libc = ctypes.CDLL(None, use_errno=True)
    if (KIND, WAY % 2) in {("loader", 0), ("loader", 1), ("save", 0)}:
        # A file system in user space whose program never answers.
        MOUNT = tempfile.mkdtemp(prefix="no-answer.")
        mounted = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={mounted},rootmode=40000,user_id=0,group_id=0"
        if libc.mount(b"none", MOUNT.encode(), b"fuse", 0, options.encode()):
            raise OSError(ctypes.get_errno(), "no file system can be mounted")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pids = []
    for rank in range(SIZE):
        if (pid := os.fork()) == 0:
            os.setsid()
            rank_of(rank, port)
            return
        pids.append(pid)
    try:
        CALLER.sendall(json.dumps(pids).encode() + b"\n")
        while CALLER.recv(100):
            pass
    finally:
        for pid in pids:
            os.killpg(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
        if mounted is not None:
            libc.umount2(MOUNT.encode(), FORCE | DETACH)
            Path(MOUNT).rmdir()


def main():
    global CALLER
    torch.optim.SGD([torch.zeros(1)], lr=0.001).step()  # what it imports sixteen ranks need not import each
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(sys.argv[1])
        server.listen(100)
        while True:
            CALLER, _ = server.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                server.close()
                return play()
            CALLER.close()


if __name__ == "__main__":
    main()
