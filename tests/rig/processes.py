"""The processes of a rig: each in a session of its own with one log, all of them gone when the rig's maker is."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from tests import waits
from tests.rig.warden import MARK, marked

T = TypeVar("T")
PATIENCE_S = 120.0  # for what takes seconds: the machine may be busy with a build
PORTS = 12000, 20000
_ports: dict[int, socket.socket] = {}  # those that this process has, each with what holds it


class RigError(Exception):
    """Something of the rig did not come up or broke; with the ends of the logs."""


def until(what: Callable[[], T], why: waits.Why, deadline_s: float = PATIENCE_S, every_s: float = 0.05) -> T:
    """The first truthy answer of `what`; RigError with `why` where none comes in time."""
    return waits.until(what, why, deadline_s, every_s, RigError)


def free_port() -> int:
    """A TCP port that nobody listens on, and that no other test on this machine is given while this process lives.

    Neither the kernel (for outgoing connections, or for port 0) nor Sentinel (for ranks) picks one of these by itself.
    A name in the kernel's abstract namespace says whose it is: unlike a lock file it goes with its process, however
    that ends, and holds in one network namespace, as ports do. The port itself stays unbound, so any program can take
    it, also one that is started there again.
    """
    for _ in range(1000):
        port = random.randrange(*PORTS)
        if port in _ports:
            continue
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0sentinel-tests-port-{port}")
            with socket.socket() as tried:
                tried.bind(("", port))
        except OSError:
            claim.close()
            continue
        _ports[port] = claim
        return port
    raise RigError(f"no port between {PORTS[0]} and {PORTS[1]} is free")


class Daemon:
    """One program that runs until it is stopped, and can be started again with the same command."""

    def __init__(self, name: str, command: Sequence[str | Path], log: Path, env: Mapping[str, str]) -> None:
        self.name, self.command, self.log = name, [str(word) for word in command], log
        self._env = dict(env)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert not self.running, f"{self.name} runs already"
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
                cwd="/",
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def freeze(self) -> None:
        """Stop it without its knowledge: connections stay open and nothing is answered."""
        os.killpg(self.pid, signal.SIGSTOP)
        # A thread may still be at work when the signal is sent.
        until(lambda: self.frozen, f"{self.name} is not stopped")

    @property
    def frozen(self) -> bool:
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if (task / "stat").read_text().rpartition(")")[2].split()[0] not in "TtZX":
                    return False
        return True

    def thaw(self) -> None:
        os.killpg(self.pid, signal.SIGCONT)

    def stop(self, grace_s: float = 20.0) -> None:
        """SIGTERM, and SIGKILL after the grace."""
        self._end(signal.SIGTERM, grace_s)

    def kill(self) -> None:
        self._end(signal.SIGKILL, PATIENCE_S)

    def _end(self, number: int, grace_s: float) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        os.killpg(self._process.pid, number)
        os.killpg(self._process.pid, signal.SIGCONT)
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(PATIENCE_S)

    def tail(self, size: int = 2000) -> str:
        """The end of its log, for messages."""
        try:
            text = self.log.read_text(errors="replace")[-size:]
        except FileNotFoundError:
            text = ""
        state = "runs" if self.running else f"ended with {self.exit_code}"
        return f"--- {self.name} ({state}), {self.log}:\n{text}"

    def wait(
        self, ready: Callable[[], object], deadline_s: float = PATIENCE_S, every_s: float = 0.05
    ) -> None:
        """Until it is ready; RigError with its log where it ends or the time is over."""

        def looked() -> bool:
            if not self.running:
                raise RigError(f"{self.name} ended while it was waited for\n{self.tail()}")
            return bool(ready())

        until(looked, self.tail, deadline_s, every_s)


class Rig:
    """One folder, its processes, and the warden that ends them when this process ends. A context manager."""

    def __init__(self, logs: Path | None = None) -> None:
        """`logs`: where logs go, to outlive the rig; by default into its folder."""
        # Paths of sockets may have 107 characters, so the folder is not pytest's.
        self.folder = Path(tempfile.mkdtemp(prefix="rig", dir="/tmp"))
        self.logs = logs or self.folder / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.daemons: list[Daemon] = []
        # Go's collector takes a sixth of an API server's time at its usual pace, and memory is there.
        self.env = {"GOGC": "400", **os.environ, MARK: str(self.folder)}
        self._warden = self._start_warden()

    def _start_warden(self) -> "subprocess.Popen[bytes]":
        warden = subprocess.Popen(
            [sys.executable, "-SE", str(Path(__file__).with_name("warden.py")), str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if name != MARK},
            cwd="/",
            start_new_session=True,
        )
        assert warden.stdout is not None
        if not warden.stdout.readline():
            raise RigError(f"the warden of {self.folder} did not start")
        return warden

    def daemon(self, name: str, *command: str | Path, env: Mapping[str, str] | None = None) -> Daemon:
        """A program of this rig, started. `env`: added to the environment."""
        log = self.logs / f"{name}.log"
        daemon = Daemon(name, command, log, {**self.env, **(env or {})})
        self.daemons.append(daemon)
        daemon.start()
        return daemon

    @property
    def warden_pid(self) -> int:
        return self._warden.pid

    def forget(self, daemon: Daemon) -> None:
        daemon.kill()
        self.daemons.remove(daemon)

    def processes(self) -> dict[int, str]:
        return marked(self.folder)

    def story(self) -> str:
        """The ends of all logs, for messages of failed tests."""
        return "\n".join(daemon.tail() for daemon in self.daemons)

    def close(self) -> None:
        """Ends and removes everything; returns when it is gone."""
        for daemon in self.daemons:
            daemon.kill()
        self._warden.communicate(timeout=PATIENCE_S)
        if self.folder.exists():  # somebody killed it
            self._warden = self._start_warden()
            self._warden.communicate(timeout=PATIENCE_S)

    def __enter__(self) -> "Rig":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
