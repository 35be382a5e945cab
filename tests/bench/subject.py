"""A job under the real `sentinel run`, in a directory of its own, for the benches that need one."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sentinel.cluster.local.status import Status, read_status
from sentinel.cluster.local.store import LocalStore
from sentinel.core.model import Incident
from tests.bench.harness import process_tree

SENTINEL = str(Path(sys.executable).with_name("sentinel"))
NAME = "bench"
# Budgets are raised so that a bench may break a job more often than an owner would accept.
RESUME = {"maxResumes": 1000, "gracefulStop": "5s"}
CAPS = {"maxResumes": 1000}


# Two ranks meet over TCP, within 20 s.
MEET = """
import os, socket, time
rank, port = int(os.environ['RANK']), int(os.environ['MASTER_PORT'])
if rank == 0:
    server = socket.create_server(('127.0.0.1', port))
    server.settimeout(20)
    peer, _ = server.accept()
else:
    end = time.monotonic() + 20
    while True:
        try:
            peer = socket.create_connection(('127.0.0.1', port))
            break
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.002)
peer.settimeout(None)
"""
# The first statement tells when the program began (interpreter's own start, about 10 ms, included); then they meet,
# and again at each step, twenty times a second.
RANK = f"""
import os, time
os.write(1, b'%.6f\\n' % time.clock_gettime(time.CLOCK_BOOTTIME))
{MEET}
step = int(os.environ['SENTINEL_INCARNATION']) * 10000
while True:
    peer.sendall(b'x')
    if peer.recv(1) != b'x':
        raise ConnectionResetError('Connection reset by peer')
    if step % 10000 == 0:
        os.write(1, b'met at %d\\n' % port)
    step += 1
    os.write(1, b'step: %d  loss: 1.250000  tps: 5,120\\n' % step)
    os.write(1, b'this iteration hardware time is 20.521 and e2e time is 50.125 ms.\\n')
    time.sleep(0.05)
"""
COMMAND = (sys.executable, "-I", "-S", "-c", RANK)


class Subject:
    """`with Subject(command, nproc=2) as job:` runs until the block ends; nothing is left behind.

    Output goes to files, as with `sentinel run … > out 2> err`. Every feature is on, the status page too
    (on a free port).
    """

    def __init__(
        self, command: Sequence[str], *, nproc: int | None = 2, spec: dict[str, Any] | None = None
    ) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="sentinel-bench-")
        self.folder = Path(self._temporary.name)
        self.job_dir = self.folder / "state/jobs" / NAME
        head = {"apiVersion": "sentinel.dev/v1alpha1"}
        policy = {**head, "kind": "JobPolicy", "metadata": {"name": NAME}}
        policy["spec"] = {"owner": {"emails": ["owner@example.com"]}, "resume": RESUME, **(spec or {})}
        settings = {**head, "kind": "Settings", "listen": "127.0.0.1:0", "caps": CAPS}
        (self.folder / "policy.yaml").write_text(json.dumps(policy))  # JSON is YAML
        (self.folder / "settings.yaml").write_text(json.dumps(settings))
        options = ["--settings", "settings.yaml", "--policy", "policy.yaml", "--name", NAME]
        if nproc is not None:
            options += ["--nproc", str(nproc)]
        self._command = [SENTINEL, "run", *options, "--", *command]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        environment = {**os.environ, "SENTINEL_STATE_DIR": str(self.folder / "state")}
        with open(self.folder / "out", "wb") as out, open(self.folder / "err", "wb") as err:
            self._process = subprocess.Popen(
                self._command,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._process
        assert process is not None
        status = self.status()
        for wait_s in (1.0, 20.0):  # a second SIGINT ends the job at once
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=wait_s)
        if process.poll() is None:
            process.kill()
            process.wait()
            for slot in status.slots.values() if status else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(slot.pid, signal.SIGKILL)
        if kind is not None:
            print((self.folder / "err").read_text(errors="replace")[-3000:], file=sys.stderr)
        self._temporary.cleanup()

    # ------------------------------------------------------------ what it is

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def status(self) -> Status | None:
        return read_status(self.job_dir)

    def ranks(self) -> list[int]:
        """Pids of the ranks, by rank."""
        status = self.status()
        return [slot.pid for _, slot in sorted(status.slots.items())] if status else []

    def own_processes(self) -> list[int]:
        """Sentinel, its children, and the job's supervisor: not the ranks."""
        status = self.status()
        return [*process_tree(self.pid), *([status.header.supervisor] if status else [])]

    def log(self, incarnation: int, rank: int) -> Path:
        return self.job_dir / "logs" / str(incarnation) / f"rank-{rank}.log"

    def said(self) -> str:
        """What Sentinel itself told the terminal."""
        return (self.folder / "err").read_text(errors="replace")

    def incidents(self) -> list[Incident]:
        with self._store() as store:
            return store.incidents(NAME)

    @contextlib.contextmanager
    def _store(self) -> Iterator[LocalStore]:
        store = LocalStore(self.folder / "state/state.db", read_only=True)
        try:
            yield store
        finally:
            store.close()


def boottime_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
