"""What Sentinel costs a job that is well: CPU, step time, memory. Every feature on; output goes to files.

Quiet: two ranks that step ten times a second and compute next to nothing. CPU and memory (PSS) are those of
Sentinel, its children and the job's supervisor.

Busy: two ranks that compute a fixed amount of work in every step, about 50 ms of a core each, and meet at its
end. On two cores nothing is left over, so that whatever Sentinel takes, it takes from the job. The same processes
step in windows with Sentinel and without: without, Sentinel and its children are stopped (SIGSTOP), and what it
has to catch up on counts for the window after. The order in the pairs alternates.
"""

import os
import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from tests.bench.harness import (
    Row,
    alternate,
    at_most,
    cpu_seconds,
    paired_difference,
    process_tree,
    pss_bytes,
    wait_until,
)
from tests.bench.subject import MEET, Subject

MIB = float(1 << 20)
STEP_S = 0.05
WARM_UP_S = 10.0

QUIET = """
import time
step = 0
while True:
    step += 1
    print(f'step: {step}  loss: 1.250000  tps: 5,120')
    print('this iteration hardware time is 20.521 and e2e time is 100.125 ms.', flush=True)
    time.sleep(0.1)
"""
WORK = """
def work(count):
    x = 1
    for _ in range(count):
        x = x * 1103515245 + 12345 & 0x7fffffff
    return x
"""
BUSY = (
    WORK
    + MEET
    + """
import sys
step, count = 0, int(sys.argv[1])
while True:
    begun = time.perf_counter()
    work(count)
    computed = time.perf_counter()
    peer.sendall(b'x')
    peer.recv(1)
    ended = time.perf_counter()
    step += 1
    print(f'step: {step}  loss: 1.250000  tps: 5,120')
    hardware, e2e = (computed - begun) * 1000, (ended - begun) * 1000
    print(f'this iteration hardware time is {hardware:.3f} and e2e time is {e2e:.3f} ms.', flush=True)
"""
)


def calibrated() -> int:
    """How much work fills a step while the other core works too: two threads of one core slow each other down."""
    scope: dict[str, object] = {}
    exec(WORK, scope)
    work, tries = scope["work"], []
    beside = subprocess.Popen([sys.executable, "-I", "-S", "-c", WORK + "while True: work(1000)"])
    try:
        for _ in range(15):
            begun_s = time.perf_counter()
            work(100_000)  # type: ignore[operator]
            tries.append(time.perf_counter() - begun_s)
    finally:
        beside.kill()
        beside.wait()
    return int(100_000 * STEP_S / statistics.median(tries))


def quiet(seconds: float) -> list[Row]:
    with Subject((sys.executable, "-I", "-S", "-c", QUIET)) as subject:
        wait_until(lambda: len(subject.ranks()) == 2, 30, "two ranks")
        time.sleep(WARM_UP_S)
        processes = subject.own_processes()
        before_s, begun_s = cpu_seconds(processes), time.monotonic()
        time.sleep(seconds)
        share = 100 * (cpu_seconds(processes) - before_s) / (time.monotonic() - begun_s)
        memory = pss_bytes(subject.own_processes()) / MIB
    return [
        at_most("memory of all Sentinel processes (PSS)", 60.0, memory, "MiB"),
        at_most("CPU while a job steps 10 times a second", 1.0, share, "% of a core"),
    ]


class Windows:
    """Step times of rank 0, window by window."""

    def __init__(self, subject: Subject, log: Path, seconds: float) -> None:
        self._subject, self._log, self._seconds = subject, log, seconds

    def window(self) -> float:
        """Mean step time of the next window, ms."""
        start = self._log.stat().st_size
        time.sleep(self._seconds)
        with open(self._log, "rb") as file:
            file.seek(start)
            told = [float(found) for found in re.findall(rb"e2e time is ([0-9.]+) ms", file.read())]
        return statistics.fmean(told[1:])  # the first may have begun before

    def without(self) -> float:
        processes = process_tree(self._subject.pid)
        for pid in processes:
            os.kill(pid, signal.SIGSTOP)
        try:
            return self.window()
        finally:
            for pid in reversed(processes):
                os.kill(pid, signal.SIGCONT)


def busy(seconds: float, pairs: int, window_s: float) -> list[Row]:
    command = (sys.executable, "-I", "-S", "-c", BUSY, str(calibrated()))
    with Subject(command) as subject:
        log = subject.log(1, 0)
        wait_until(lambda: log.exists() and log.stat().st_size > 1000, 30, "the job to step")
        time.sleep(WARM_UP_S)
        ours, theirs = subject.own_processes(), subject.ranks()
        own_s, job_s = cpu_seconds(ours), cpu_seconds(theirs)
        time.sleep(seconds)
        own_s, job_s = cpu_seconds(ours) - own_s, cpu_seconds(theirs) - job_s
        windows = Windows(subject, log, window_s)
        without_ms, with_ms = alternate(windows.without, windows.window, pairs)
    base = statistics.median(without_ms)
    found = paired_difference(without_ms, with_ms)
    low, high = 100 * found.low / base, 100 * found.high / base
    interval = f"{pairs} pairs, 95 %: {low:+.2f} to {high:+.2f} %; without, {base:.1f} ms"
    rate = f"at {1000 / base:.0f} steps/s; the job"
    return [
        at_most("CPU of Sentinel over that of the job", 0.5, 100 * own_s / job_s, "%", (rate, 100.0)),
        at_most("step time with over without Sentinel", 0.5, 100 * found.median / base, "%", (interval, 0.0)),
    ]


def run(quick: bool = False) -> list[Row]:
    if quick:
        return quiet(10.0) + busy(8.0, 6, 1.5)
    return quiet(60.0) + busy(30.0, 24, 2.5)
