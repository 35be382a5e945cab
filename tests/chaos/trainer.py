"""A training program for chaos tests: small, steps fast, saves on SIGUSR1, and proves what cannot be seen from outside.

Run as `python -I -S trainer.py DIR`; every rank works in DIR. What it leaves there:

    births       one line for each start: incarnation, rank, pid
    alive        byte N is locked by every living process of incarnation N, helpers included; the kernel
                 lets go of it at the very end of a process, so no moment with two incarnations goes unseen
    violations   one line for each process that found another incarnation alive
    checkpoint   the step to resume from
    progress     incarnation and newest step of each rank, 24 bytes each

Rank 1 ignores SIGTERM, and each rank has a helper in a session of its own that ignores it too.
`hang.N` and `slow.N` in DIR make incarnation N hang or print a high hardware ratio.
"""

import fcntl
import os
import signal
import struct
import sys
import time

STEP_S = 0.02
BEFORE_FIRST_STEP_S = 0.3
SAVE_S = 0.4
CHECKPOINT_EVERY = 10
HELPER_LIFE_S = 1800.0  # should everything fail, no helper stays for ever
OFD_GETLK, OFD_SETLK = 36, 37  # fcntl(2): locks of an open file, which a forked child shares


def _lock(kind: int, start: int, length: int) -> bytes:
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0)


def locked(fd: int, start: int, length: int) -> int | None:
    """The first byte of the range that a living process holds; None: none. `length` 0: to the end."""
    if length < 0:
        return None
    found = fcntl.fcntl(fd, OFD_GETLK, _lock(fcntl.F_WRLCK, start, length))
    kind, _, first, _, _ = struct.unpack("hhqqi4x", found)
    return None if kind == fcntl.F_UNLCK else first


def append(path: str, line: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, line.encode() + b"\n")
    os.close(fd)


def claim(incarnation: int, rank: int) -> None:
    """Hold the incarnation's byte for life, and look for holders of any other."""
    fd = os.open("alive", os.O_RDWR | os.O_CREAT)
    fcntl.fcntl(fd, OFD_SETLK, _lock(fcntl.F_RDLCK, incarnation, 1))
    older = locked(fd, 0, incarnation) if incarnation > 0 else None
    newer = locked(fd, incarnation + 1, 0)
    for other in (older, newer):
        if other is not None:
            append("violations", f"rank {rank} of incarnation {incarnation} found {other} alive")


def helper() -> None:
    """Such as a data loader that was daemonised: nobody but the job's cgroup or subreaper knows of it."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(HELPER_LIFE_S)
    os._exit(0)


def read_step() -> int:
    try:
        with open("checkpoint") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def save(step: int, rank: int) -> None:
    """As slow as a real one; whole or not at all."""
    time.sleep(SAVE_S)
    with open(f"checkpoint.{rank}", "w") as file:
        file.write(str(step))
    if rank == 0:
        os.replace("checkpoint.0", "checkpoint")
    print(f"saved checkpoint step {step}", flush=True)


def main() -> None:
    os.chdir(sys.argv[1])
    rank, incarnation = int(os.environ["RANK"]), int(os.environ["SENTINEL_INCARNATION"])
    asked: list[int] = []
    signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))
    if rank == 1:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    claim(incarnation, rank)
    if os.fork() == 0:
        helper()
    append("births", f"{incarnation} {rank} {os.getpid()}")
    progress = os.open("progress", os.O_RDWR | os.O_CREAT)
    step, share = read_step(), 0.4
    time.sleep(BEFORE_FIRST_STEP_S)
    while True:
        step += 1
        if step % 5 == 0:
            while os.path.exists(f"hang.{incarnation}"):
                time.sleep(0.1)
        time.sleep(STEP_S)
        if step % 5 == 0 and os.path.exists(f"slow.{incarnation}"):
            share = 0.9
        print(f"step: {step}  loss: 0.5  tps: 100")
        e2e_ms = STEP_S * 1000
        print(
            f"this iteration hardware time is {e2e_ms * share:.3f} and e2e time is {e2e_ms:.3f} ms.",
            flush=True,
        )
        os.pwrite(progress, b"%11d %12d" % (incarnation, step), 24 * rank)
        if asked:
            asked.clear()
            save(step, rank)
        elif rank == 0 and step % CHECKPOINT_EVERY == 0:
            with open("checkpoint.tmp", "w") as file:
                file.write(str(step))
            os.replace("checkpoint.tmp", "checkpoint")


if __name__ == "__main__":
    main()
