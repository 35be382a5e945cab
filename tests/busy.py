"""Tests on a machine that others use too: what fails here fails some night in CI.

    python -m tests.busy [--times 5] [--burners 2] tests/e2e -k hang        # the rest is pytest's

Burners occupy every core, and one the disk, for at most TIME_LIMIT_S and never longer than this process lives.
"""

import argparse
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time

TIME_LIMIT_S = 4 * 3600.0
WRITE_BYTES = 64 << 20
DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, prctl(2)


def bounded(parent: int, deadline: float) -> bool:
    return os.getppid() == parent and time.monotonic() < deadline


def end_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before that was said
        os._exit(1)


def burn_core(parent: int, deadline: float) -> None:
    end_with(parent)
    while bounded(parent, deadline):
        sum(n * n for n in range(100_000))


def burn_disk(parent: int, deadline: float) -> None:
    end_with(parent)
    block = os.urandom(1 << 20)
    with tempfile.TemporaryFile() as file:
        while bounded(parent, deadline):
            file.seek(0)
            for _ in range(WRITE_BYTES // len(block)):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.busy", description=__doc__)
    parser.add_argument("--times", type=int, default=5, help="how often the tests run")
    parser.add_argument("--burners", type=int, default=2, help="processes that occupy each core")
    asked, words = parser.parse_known_args()
    deadline = time.monotonic() + TIME_LIMIT_S
    made = multiprocessing.get_context("spawn")
    arguments = (os.getpid(), deadline)
    cores = asked.burners * len(os.sched_getaffinity(0))
    burners = [made.Process(target=burn_core, args=arguments, daemon=True) for _ in range(cores)]
    burners.append(made.Process(target=burn_disk, args=arguments, daemon=True))
    bad: list[int] = []
    try:
        for burner in burners:
            burner.start()
        for number in range(1, asked.times + 1):
            print(f"\nbusy: {number} of {asked.times}, with {len(burners)} burners", flush=True)
            left_s = max(1.0, deadline - time.monotonic())
            if subprocess.run([sys.executable, "-m", "pytest", *words], timeout=left_s).returncode:
                bad.append(number)
    finally:
        for burner in burners:
            burner.kill()
            burner.join()
    print(f"busy: {len(bad)} of {asked.times} runs failed{': ' if bad else ''}{', '.join(map(str, bad))}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
