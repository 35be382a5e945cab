"""What the end-to-end tests share: one Sentinel state directory, a working directory, real processes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml

from sentinel.cluster.local.store import LocalStore
from sentinel.core.model import Incident, JobEvent, ProtectedJob
from sentinel.local_run.orders import ONE_CTRL_C_S
from tests.gate.rights import TO_MOUNT
from tests.waits import until

SENTINEL = str(Path(sys.executable).with_name("sentinel"))
TRAIN = str(Path(__file__).parent / "programs" / "train.py")
DEADLINE_S = 120.0
T = TypeVar("T")


def train(*options: str) -> list[str]:
    return [sys.executable, "-SE", TRAIN, *options]


class Running:
    """A `sentinel` that was started; what it prints goes to files."""

    def __init__(self, process: "subprocess.Popen[bytes]", out: Path, err: Path) -> None:
        self.process, self.pid = process, process.pid
        self._out, self._err = out, err

    @property
    def out(self) -> str:
        return self._out.read_text(errors="replace")

    @property
    def err(self) -> str:
        return self._err.read_text(errors="replace")

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def interrupt_again(self) -> None:
        """A second Ctrl-C, once the first one, which was answered, lies so far back that this is another one."""
        answered_s = time.monotonic()
        until(lambda: time.monotonic() - answered_s > ONE_CTRL_C_S)
        self.send(signal.SIGINT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(180)

    def said(self, text: str, deadline_s: float = DEADLINE_S) -> None:
        until(lambda: text in self.err, lambda: f"{text!r} not in:\n{self.err}", deadline_s)

    def code(self, deadline_s: float = DEADLINE_S) -> int:
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"has not ended:\n{self.err}\n{self.out[-2000:]}") from None


class Box:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state, self.work = folder / "state", folder / "work"
        self.work.mkdir(parents=True)
        self.env = {**os.environ, "SENTINEL_STATE_DIR": str(self.state), "E2E_BOX": str(folder)}
        self.env.pop("PYTHONPATH", None)
        # The box's own: in that of the machine other tests break disks and fill memory meanwhile.
        self.kernel_log = folder / "kmsg"
        self.kernel_log.touch()
        self._settings: dict[str, Any] = {"listen": "", "kernelLog": str(self.kernel_log)}
        self._count = 0
        self._children: list[Running] = []

    # ------------------------------------------------------------ files

    def settings(self, **changes: Any) -> str:
        """Change the settings that every command gets. Returns the path of the file."""
        self._settings |= changes
        document = {"apiVersion": "sentinel.dev/v1alpha1", "kind": "Settings", **self._settings}
        path = self.folder / "settings.yaml"
        path.write_text(yaml.safe_dump(document))
        return str(path)

    def policy(self, **spec: Any) -> str:
        self._count += 1
        path = self.folder / f"policy-{self._count}.yaml"
        head = {"apiVersion": "sentinel.dev/v1alpha1", "kind": "JobPolicy", "metadata": {"name": "test"}}
        path.write_text(yaml.safe_dump({**head, "spec": spec}))
        return str(path)

    def order(self, rank: int, text: str) -> None:
        """What the training program's rank does at its next step."""
        partial = self.work / f"orders.{rank}.partial"
        partial.write_text(text)
        partial.rename(self.work / f"orders.{rank}")

    def noted(self, name: str) -> list[dict[str, Any]]:
        """Whole lines of `starts.jsonl` or `signals.jsonl`."""
        try:
            text = (self.work / f"{name}.jsonl").read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    @property
    def starts(self) -> list[dict[str, Any]]:
        return self.noted("starts")

    # ------------------------------------------------------------ commands

    def start(self, *words: str) -> Running:
        return self.start_words(SENTINEL, *words)

    def start_in(self, script: str, *words: str) -> Running:
        """Run `sentinel WORDS` in a mount namespace of its own, after a shell script has prepared it."""
        return self.start_words(
            "unshare", *TO_MOUNT, "sh", "-ec", f'{script}\nexec "$0" "$@"', SENTINEL, *words
        )

    def start_words(self, *words: str) -> Running:
        self._count += 1
        out, err = self.folder / f"out-{self._count}", self.folder / f"err-{self._count}"
        with open(out, "wb") as o, open(err, "wb") as e:
            process = subprocess.Popen(
                words,
                cwd=self.work,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=o,
                stderr=e,
                start_new_session=True,
            )
        running = Running(process, out, err)
        self._children.append(running)
        return running

    def run(
        self, *command: str, name: str = "job", policy: str = "", options: tuple[str, ...] = ()
    ) -> Running:
        """`sentinel run`; the working directory is `work`."""
        words = ["run", "--name", name, *options]
        if policy:
            words += ["--policy", policy]
        return self.start(*words, "--settings", self.settings(), "--", *command)

    def attach(self, name: str = "job", *options: str) -> Running:
        return self.start("attach", name, *options, "--settings", self.settings())

    def sentinel(self, *words: str, timeout_s: float = DEADLINE_S) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [SENTINEL, *words],
            cwd=self.work,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def status(self, name: str = "job") -> dict[str, Any]:
        done = self.sentinel("status", name, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    # ------------------------------------------------------------ records

    def _read(self, ask: Callable[[LocalStore], T]) -> T:
        store = LocalStore(self.state / "state.db", read_only=True)
        try:
            return ask(store)
        finally:
            store.close()

    def job(self, name: str = "job") -> ProtectedJob | None:
        if not (self.state / "state.db").exists():
            return None
        return self._read(lambda store: store.job(name))

    def incidents(self, name: str = "job") -> list[Incident]:
        return self._read(lambda store: store.incidents(name))

    def events(self, name: str = "job") -> list[JobEvent]:
        return self._read(lambda store: store.events(name))

    def story(self, name: str = "job") -> str:
        """All that the records tell, for messages of failed tests."""
        job = self.job(name)
        lines = [f"{job.state} ({job.reason}): {job.sentence} {job.degraded}" if job else "no job"]
        for incident in self.incidents(name):
            lines += [incident.id, *(f"  {s.phase}: {s.reason}: {s.sentence}" for s in incident.steps)]
        for running in self._children:
            lines += [f"--- {running.process.args!r}", running.err[-3000:]]
        return "\n".join(lines)

    def phase(self, phase: str, name: str = "job", at_least: int = 1) -> Incident:
        """Wait until `at_least` incidents have reached the phase; the newest of them."""

        def found() -> list[Incident]:
            reached = [i for i in self.incidents(name) if any(s.phase == phase for s in i.steps)]
            return reached if len(reached) >= at_least else []

        return max(until(found, lambda: self.story(name)), key=lambda i: i.id)

    def log(self, rank: int = 0, incarnation: int = 1, name: str = "job") -> str:
        path = self.state / "jobs" / name / "logs" / str(incarnation) / f"rank-{rank}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def stepping(self, incarnation: int = 1, lines: int = 3, name: str = "job") -> None:
        """Wait until rank 0 of this incarnation has printed iterations."""
        until(
            lambda: self.log(0, incarnation, name).count("this iteration hardware time is") >= lines,
            lambda: self.story(name),
        )

    # ------------------------------------------------------------ processes

    def processes(self) -> dict[int, str]:
        """Living processes of this box, known by a mark in their environment or their directory: pid -> command."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                marked = f"E2E_BOX={self.folder}".encode() in (entry / "environ").read_bytes().split(b"\0")
                if not marked and not os.readlink(entry / "cwd").startswith(f"{self.folder}/"):
                    continue
                if (entry / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return found

    def ranks(self, size: int = 0) -> dict[int, int]:
        """rank -> pid of the living training processes; with `size`, once so many are up."""

        def found() -> dict[int, int]:
            living = self.processes()
            up = {s["rank"]: s["pid"] for s in self.starts if s["pid"] in living}
            return up if len(up) == size or not size else {}

        return until(found, self.story) if size else found()

    def supervisor(self) -> int:
        return next(pid for pid, line in self.processes().items() if "supervisor.py" in line)

    def empty(self) -> None:
        """Wait until no process of this box is left."""
        until(lambda: not self.processes(), lambda: str(self.processes()))

    def close(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGKILL)
        for running in self._children:
            with contextlib.suppress(ProcessLookupError):
                running.process.kill()
            running.process.wait(180)
