"""Rank death → all new ranks exec'ed, for `sentinel run` and for a bare wait-and-exec supervisor beside it.

Both start the same two ranks: `python -I -S -c` that writes CLOCK_BOOTTIME as its first statement (the start of
the interpreter, about 10 ms, is in both numbers and drops out of their difference), then meets the other rank
over TCP at MASTER_PORT, and then at each step. The two jobs run side by side and are killed in turn. Seconds count from
just before the SIGKILL of one rank to the last new rank's first statement.
"""

import itertools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.bench.harness import Row, at_least, at_most, paired_difference, wait_idle
from tests.bench.subject import COMMAND, Subject, boottime_s
from tests.waits import until

RANKS = 2
DEADLINE_S = 30.0
ABOVE_BARE_S = 0.020

# The floor: nothing but fork, exec, wait, kill, and once more. Prints each rank's pid.
BARE = """
import os, signal, sys, _socket
ranks, folder, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
for incarnation in range(1, 1 << 30):
    pids = []
    probe = _socket.socket(); probe.bind(("127.0.0.1", 0)); port = probe.getsockname()[1]; probe.close()
    own = {**os.environ, "MASTER_PORT": str(port), "SENTINEL_INCARNATION": str(incarnation)}
    for rank in range(ranks):
        log = os.open(f"{folder}/{incarnation}-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        actions = [(os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2)]
        env = {**own, "RANK": str(rank)}
        pids.append(os.posix_spawn(command[0], command, env, file_actions=actions, setsid=True))
        os.close(log)
    print(*pids, flush=True)
    lost, _ = os.wait()
    for pid in pids:
        if pid != lost:
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)
"""


class Bare:
    """The bare supervisor; the same face as Subject."""

    def __init__(self) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="sentinel-bench-")
        command = [sys.executable, "-I", "-S", "-c", BARE, str(RANKS), self._temporary.name, *COMMAND]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._pids: list[int] = []

    def ranks(self) -> list[int]:
        """Waits for the next incarnation's."""
        assert self._process.stdout
        self._pids = [int(pid) for pid in self._process.stdout.readline().split()]
        return self._pids

    def log(self, incarnation: int, rank: int) -> Path:
        return Path(self._temporary.name, f"{incarnation}-{rank}")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout
        self._process.stdout.close()
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
        self._temporary.cleanup()


class Start(NamedTuple):
    """The last rank's first statement, CLOCK_BOOTTIME, and where the ranks met."""

    at_s: float
    port: int


def started(log: Callable[[int, int], Path], incarnation: int) -> Start:
    """Waits until all ranks of the incarnation met. Raises TimeoutError."""
    paths = [log(incarnation, rank) for rank in range(RANKS)]

    def said() -> list[list[str]]:
        return [path.read_text().splitlines() if path.exists() else [] for path in paths]

    def met() -> list[list[str]]:
        texts = said()
        return texts if all(len(lines) > 2 and lines[1].startswith("met at ") for lines in texts) else []

    texts = until(met, lambda: f"incarnation {incarnation}: {said()}", DEADLINE_S, 0.01, TimeoutError)
    return Start(max(float(lines[0]) for lines in texts), int(texts[0][1].split()[2]))


def kill(pid: int) -> float:
    """CLOCK_BOOTTIME just before."""
    at_s = boottime_s()
    os.kill(pid, signal.SIGKILL)
    return at_s


def recovered(subject: Subject) -> bool:
    """Is every recovery over? A kill within one would belong to it."""
    return all(incident.phase.final for incident in subject.incidents())


def measure(kills: int) -> tuple[list[float], list[float], list[int]]:
    """Seconds by the bare supervisor, by Sentinel, and the ports at which Sentinel's incarnations met."""
    bare_s: list[float] = []
    own_s: list[float] = []
    bare = Bare()
    try:
        with Subject(COMMAND, nproc=RANKS) as subject:
            bare_pids = bare.ranks()
            started(bare.log, 1)
            ports = [started(subject.log, 1).port]
            wait_idle(subject.pid, "Sentinel's first samples of checks")
            for n in range(1, kills + 1):
                turns = ["bare", "sentinel"] if n % 2 else ["sentinel", "bare"]
                for turn in turns:
                    if turn == "bare":
                        at_s = kill(bare_pids[1])
                        bare_pids = bare.ranks()
                        bare_s.append(started(bare.log, n + 1).at_s - at_s)
                    else:
                        until(
                            lambda: recovered(subject), "the recovery before", DEADLINE_S, 0.05, TimeoutError
                        )
                        at_s = kill(subject.ranks()[1])
                        start = started(subject.log, n + 1)
                        own_s.append(start.at_s - at_s)
                        ports.append(start.port)
            status = subject.status()
            first_tries = status is not None and status.header.incarnation == kills + 1
            assert first_tries, f"more starts than kills: {subject.said()[-2000:]}"
    finally:
        bare.close()
    return bare_s, own_s, ports


def run(quick: bool = False) -> list[Row]:
    kills = 12 if quick else 100
    bare_s, own_s, ports = measure(kills)
    above = paired_difference(bare_s, own_s)
    own, bare = statistics.median(own_s), statistics.median(bare_s)
    fresh = sum(a != b for a, b in itertools.pairwise(ports))
    spread = f"bare; difference {above.low * 1000:.0f} to {above.high * 1000:.0f} ms (95 %)"
    return [
        at_most("rank death → new ranks, median above bare", ABOVE_BARE_S, above.median, "s"),
        at_most("rank death → new ranks, median", bare + ABOVE_BARE_S, own, "s", (spread, bare)),
        at_least("kills recovered at the first try", float(kills), float(len(own_s)), ""),
        at_least("of them with a fresh MASTER_PORT", float(kills), float(fresh), ""),
    ]
