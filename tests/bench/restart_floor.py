"""Rank death → all new ranks exec'ed, for a bare wait-and-exec supervisor and for the local cluster.

A rank is `python -I -S -c` that writes CLOCK_BOOTTIME as its first statement: the same program for both sides, so
the interpreter's own start (about 10 ms) is in both numbers and drops out of their difference.
Times are in seconds, from just before the SIGKILL of one rank to the last new rank's first statement.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sentinel.cluster.local.cluster import LocalCluster
from sentinel.core.model import Launch, RankExit

DEADLINE_S = 30.0
RANK = "import os, time; os.write(1, b'%.6f\\n' % time.clock_gettime(time.CLOCK_BOOTTIME)); time.sleep(600)"
COMMAND = (sys.executable, "-I", "-S", "-c", RANK)
# The floor: nothing but fork, exec, wait, kill, and once more. Prints each rank's pid.
BARE = """
import os, signal, sys
ranks, folder, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
for incarnation in range(1 << 30):
    pids = []
    for rank in range(ranks):
        log = os.open(f"{folder}/{incarnation}-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        actions = [(os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2)]
        pids.append(os.posix_spawn(command[0], command, os.environ, file_actions=actions, setsid=True))
        os.close(log)
    print(*pids, flush=True)
    lost, _ = os.wait()
    for pid in pids:
        if pid != lost:
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)
"""


def boottime_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def written(paths: list[Path]) -> list[float] | None:
    """What each rank wrote as its first statement; None while one has not."""
    texts = [path.read_text() if path.exists() else "" for path in paths]
    return [float(text.split()[0]) for text in texts] if all("\n" in text for text in texts) else None


def wait_written(paths: list[Path]) -> float:
    """The time of the last rank's first statement."""
    end_s = boottime_s() + DEADLINE_S
    while (times := written(paths)) is None:
        if boottime_s() > end_s:
            raise TimeoutError(f"ranks did not start: {paths[0]}")
        time.sleep(0.005)
    return max(times)


def kill_and_time(pid: int, started: Callable[[], float]) -> float:
    before_s = boottime_s()
    os.kill(pid, signal.SIGKILL)
    return started() - before_s


def bare_restarts(kills: int, ranks: int) -> list[float]:
    """`kills` restarts by the bare supervisor, in seconds each."""
    with tempfile.TemporaryDirectory() as folder:

        def paths(incarnation: int) -> list[Path]:
            return [Path(folder, f"{incarnation}-{rank}") for rank in range(ranks)]

        command = [sys.executable, "-I", "-S", "-c", BARE, str(ranks), folder, *COMMAND]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout
        took_s = []
        pids: list[int] = []
        try:
            for incarnation in range(kills):
                pids = [int(pid) for pid in process.stdout.readline().split()]
                wait_written(paths(incarnation))
                took_s.append(kill_and_time(pids[0], lambda n=incarnation: wait_written(paths(n + 1))))  # type: ignore[misc]
            pids = [int(pid) for pid in process.stdout.readline().split()]
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        return took_s


async def _cluster_restarts(kills: int, ranks: int, folder: Path) -> list[float]:
    lost: asyncio.Queue[RankExit] = asyncio.Queue()

    def on_exit(job: str, exit: RankExit) -> None:
        if not exit.stopped_by_us:
            lost.put_nowait(exit)

    cluster = LocalCluster(folder, on_exit)
    launch = Launch(command=COMMAND, cwd="/", env=dict(os.environ), nproc=ranks)

    def paths(incarnation: int) -> list[Path]:
        return [Path(cluster.log_path("bench", incarnation, rank)) for rank in range(ranks)]

    took_s = []
    started = await cluster.start("bench", launch, 1, ranks, {})
    for incarnation in range(1, kills + 1):
        await asyncio.to_thread(wait_written, paths(incarnation))
        before_s = boottime_s()
        os.kill(started[0].pid, signal.SIGKILL)
        await lost.get()
        await cluster.stop("bench", incarnation, 2.0)
        started = await cluster.start("bench", launch, incarnation + 1, ranks, {})
        took_s.append(await asyncio.to_thread(wait_written, paths(incarnation + 1)) - before_s)
    await cluster.stop("bench", kills + 1, 0.0)
    await cluster.release("bench")
    cluster.close()
    return took_s


def cluster_restarts(kills: int, ranks: int) -> list[float]:
    """The same through LocalCluster: exit event, stop(grace 2 s), start. In seconds each."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_cluster_restarts(kills, ranks, Path(folder)))
