"""Measuring: rows of goal and measured, what ran beside them, and how sure a difference is.

A bench is a module `tests/bench/bench_NAME.py` with `run(quick: bool) -> list[Row]`. Every number is taken
beside another one from the same machine and the same minute, so that a slow machine is seen as such.
"""

import os
import platform
import random
import statistics
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from tests.waits import until

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class Row(TypedDict):
    """One goal. `ratio` is measured / goal where less is better, goal / measured where more is: at most 1
    passes. `beside` is (what ran beside it, its value in the same unit); None where nothing compares."""

    name: str
    goal: float
    measured: float
    unit: str
    beside: tuple[str, float] | None
    ratio: float
    passed: bool


def at_most(
    name: str, goal: float, measured: float, unit: str, beside: tuple[str, float] | None = None
) -> Row:
    """A row that passes when `measured` is not above `goal`."""
    ratio = measured / goal if goal else float(measured > 0)
    return Row(
        name=name,
        goal=goal,
        measured=measured,
        unit=unit,
        beside=beside,
        ratio=ratio,
        passed=measured <= goal,
    )


def at_least(
    name: str, goal: float, measured: float, unit: str, beside: tuple[str, float] | None = None
) -> Row:
    """A row that passes when `measured` is not under `goal`."""
    ratio = goal / measured if measured else float("inf")
    return Row(
        name=name,
        goal=goal,
        measured=measured,
        unit=unit,
        beside=beside,
        ratio=ratio,
        passed=measured >= goal,
    )


# ---------------------------------------------------------------- processes


def process_tree(pid: int) -> list[int]:
    """`pid` and all its living descendants, parents first."""
    found = [pid]
    for parent in found:
        try:
            tasks = os.listdir(f"/proc/{parent}/task")
            for task in tasks:
                children = Path(f"/proc/{parent}/task/{task}/children").read_text().split()
                found.extend(int(child) for child in children)
        except OSError:  # it ended meanwhile
            continue
    return found


def pss_bytes(pids: Iterable[int]) -> int:
    """Proportional set size of the processes together: each shared page counts once over all its users.

    From `Pss:` of /proc/PID/smaps_rollup (kB). A process that has ended counts 0.
    """
    total = 0
    for pid in pids:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += next(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))
    return total


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time that the processes, and the children they have waited for, have used so far.

    Fields 14 to 17 of /proc/PID/stat, in clock ticks of 10 ms: measure over seconds, not milliseconds.
    """
    ticks = 0
    for pid in pids:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        fields = stat[stat.rindex(")") + 2 :].split()  # the name may hold spaces; these begin at field 3
        ticks += sum(int(field) for field in fields[11:15])
    return ticks / CLOCK_TICKS


def wall_seconds(command: Sequence[str], env: dict[str, str] | None = None) -> float:
    """How long `command` takes from fork to exit. Raises CalledProcessError where it fails."""
    begun_s = time.perf_counter()
    subprocess.run(
        command, env=env, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=120
    )
    return time.perf_counter() - begun_s


def wait_until(condition: Callable[[], bool], within_s: float, what: str) -> float:
    """Polls until `condition` holds and returns the seconds that took. Raises TimeoutError naming `what`."""
    begun_s = time.monotonic()
    until(condition, what, within_s, every_s=0.002, error=TimeoutError)
    return time.monotonic() - begun_s


def wait_idle(pid: int, what: str, share: float = 0.1, window_s: float = 1.0, within_s: float = 60.0) -> None:
    """Until `pid` and its descendants use less than `share` of a core for a window. Raises TimeoutError."""
    used: deque[tuple[float, float]] = deque()  # (monotonic seconds, CPU seconds until then)

    def idle() -> bool:
        used.append((time.monotonic(), cpu_seconds(process_tree(pid))))
        while len(used) > 1 and used[1][0] <= used[-1][0] - window_s:
            used.popleft()
        (begun_s, before_s), (now_s, after_s) = used[0], used[-1]
        return now_s - begun_s >= window_s and after_s - before_s < share * (now_s - begun_s)

    until(idle, f"{what} still works", within_s, every_s=0.05, error=TimeoutError)


# ---------------------------------------------------------------- statistics


class Difference(NamedTuple):
    """The median of the paired differences B - A, and the 95 % interval in which it lies."""

    median: float
    low: float
    high: float


def alternate(a: Callable[[], float], b: Callable[[], float], pairs: int) -> tuple[list[float], list[float]]:
    """Runs A and B `pairs` times each, in pairs whose order alternates, so that drift hits both alike."""
    of_a: list[float] = []
    of_b: list[float] = []
    for pair in range(pairs):
        order = [(a, of_a), (b, of_b)]
        for measure, results in order if pair % 2 == 0 else reversed(order):
            results.append(measure())
    return of_a, of_b


def paired_difference(a: Sequence[float], b: Sequence[float], resamples: int = 5000) -> Difference:
    """Bootstrap over the pairs: no assumption on how the noise is distributed. The seed is fixed."""
    differences = [second - first for first, second in zip(a, b, strict=True)]
    rng = random.Random(1)
    medians = sorted(
        statistics.median(rng.choices(differences, k=len(differences))) for _ in range(resamples)
    )
    return Difference(
        statistics.median(differences), medians[int(0.025 * resamples)], medians[int(0.975 * resamples)]
    )


# ---------------------------------------------------------------- the machine


def counts_s() -> float:
    """CPU seconds in which Python counts to ten million just now: virtual machines are not equally fast all day."""
    taken = []
    for _ in range(3):
        begun_s = time.process_time()
        for _ in range(10_000_000):
            pass
        taken.append(time.process_time() - begun_s)
    return min(taken)


def machine() -> dict[str, Any]:
    """What the numbers were taken on."""
    models = [
        line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")
    ]
    return {
        "cpu": models[0].partition(":")[2].strip() if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_1min": os.getloadavg()[0],
    }
