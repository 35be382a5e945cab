"""The job of the demonstration: a real `sentinel run` in a directory of its own, and the ways to break it."""

import contextlib
import email
import email.policy
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sentinel.cluster.local.status import Status, read_status
from sentinel.cluster.local.store import LocalStore
from sentinel.core.model import Incident, ProtectedJob
from sentinel.rules.tables import data_dir

NAME = "demo"
STEPS = 600  # the last fault comes at about 200; the rest shows that training goes on to its end
STEP_MS = 16

POLICY = """\
apiVersion: sentinel.dev/v1alpha1
kind: JobPolicy
metadata: {name: demo}
spec:
  owner: {emails: [owner@example.com]}
  resume:
    maxResumes: 10
    gracefulStop: 5s
    checkpoint: {signal: SIGUSR1, timeout: 10s, proof: {logPattern: saved checkpoint step}}
  elastic: {minNodes: 1}
  performance: {maxHardwareRatio: 0.66, over: 20, action: RescheduleAndAlert}
  hang: {after: 3s, action: RestartAndAlert}
"""


def _trainer(checkpoints: Path, *arguments: str) -> list[str]:
    program = str(data_dir("examples") / "train.py")
    return [sys.executable, program, "--checkpoints", str(checkpoints), f"--steps={STEPS}", *arguments]


def _result(log: Path) -> float | None:
    """The loss that a finished training run printed last."""
    with contextlib.suppress(OSError, IndexError, ValueError, KeyError, TypeError):
        return float(json.loads(log.read_text(errors="replace").splitlines()[-1])["test_loss"])
    return None


def bare_run(folder: Path, stack: contextlib.ExitStack) -> Callable[[], float | None]:
    """Starts the same training with nothing that disturbs or protects it; the call waits for its loss."""
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    ranks = []
    for rank in range(2):
        env = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        with open(folder / f"rank-{rank}.log", "wb") as out:
            process = subprocess.Popen(
                _trainer(folder / "checkpoints"), env={**os.environ, **env}, stdout=out, stderr=out
            )
        stack.callback(process.wait)
        stack.callback(process.kill)
        ranks.append(process)

    def loss() -> float | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            for process in ranks:
                process.wait(timeout=60)
        return _result(folder / "rank-0.log")

    return loss


class DemoJob:
    """`sentinel run` of the example, on a machine whose kernel log and GPUs are files of ours."""

    gpus = ("0000:18:00.0", "0000:3b:00.0")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.job_dir = self.state / "jobs" / NAME
        self._control = folder / "control"
        self._kernel_log = folder / "kmsg"
        self._process: subprocess.Popen[bytes] | None = None
        self._sequence = 1000

    # ------------------------------------------------------------ start and end

    def start(self) -> None:
        self._write_machine()
        (self.folder / "policy.yaml").write_text(POLICY)
        settings = {
            "apiVersion": "sentinel.dev/v1alpha1",
            "kind": "Settings",
            "stateDir": str(self.state),
            "kernelLog": str(self._kernel_log),
            "sysfs": str(self.folder / "sys"),
            "listen": "",
        }
        (self.folder / "settings.yaml").write_text(json.dumps(settings))  # JSON is YAML
        with open(self.folder / "run.log", "wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sentinel", *self._arguments()],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=self.folder,
                start_new_session=True,
            )

    def _arguments(self) -> list[str]:
        trainer = _trainer(
            self.folder / "checkpoints",
            f"--step-ms={STEP_MS}",
            "--hardware-share=0.4",
            "--checkpoint-every=30",
            f"--control={self._control}",
        )
        options = ["--settings", "settings.yaml", "--policy", "policy.yaml", "--name", NAME, "--nproc", "2"]
        return ["run", *options, "--", *trainer]

    def command_line(self) -> str:
        return (
            shlex.join(["sentinel", "run", "--policy", "policy.yaml", "--nproc", "2", "--"])
            + " python train.py"
        )

    def _write_machine(self) -> None:
        """Two GPUs as the kernel shows them (PCI class 0302, a 3D controller; vendor 10de), and its log."""
        for address in self.gpus:
            device = self.folder / "sys/bus/pci/devices" / address
            device.mkdir(parents=True)
            for name, value in (("vendor", "0x10de"), ("class", "0x030200"), ("device", "0x2330")):
                (device / name).write_text(value + "\n")
        self._kernel_log.touch()
        self.kernel_says("nvidia-nvlink: Nvlink Core is being initialized, major device number 240")

    def ended(self) -> int | None:
        return self._process.poll() if self._process else None

    def wait(self, within_s: float) -> int | None:
        """The exit code of `sentinel run`; None: it did not end in time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._process:
                return self._process.wait(timeout=within_s)
        return None

    def end(self) -> None:
        """Leaves nothing behind, however far the demonstration came: a second SIGINT stops at once."""
        for wait_s in (0.5, 15.0):
            if self._process and self._process.poll() is None:
                self._process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(timeout=wait_s)
        if self._process and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
            status = self._status()
            for slot in status.slots.values() if status else ():
                if slot.ended_mono_s is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(slot.pid, signal.SIGKILL)

    # ------------------------------------------------------------ faults

    def rank_pid(self, rank: int) -> int:
        status = self._status()
        if status is None:
            raise ProcessLookupError(f"rank {rank} was not started")
        return status.slots[rank].pid

    def order(self, fault: str) -> None:
        """Hands a fault to the example; see its class Faults."""
        draft = self._control.with_suffix(".draft")
        draft.write_text(fault)
        draft.rename(self._control)

    def kernel_says(self, message: str) -> None:
        """One record as /dev/kmsg gives it: priority, sequence number, microseconds since boot, flags."""
        self._sequence += 1
        since_boot_us = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6)
        with open(self._kernel_log, "a") as file:
            file.write(f"3,{self._sequence},{since_boot_us},-;{message}\n")

    # ------------------------------------------------------------ what Sentinel recorded

    def _status(self) -> Status | None:
        return read_status(self.job_dir)

    @contextlib.contextmanager
    def _store(self) -> Iterator[LocalStore]:
        store = LocalStore(self.state / "state.db", read_only=True)
        try:
            yield store
        finally:
            store.close()

    def incidents(self) -> list[Incident]:
        """Newest last."""
        with self._store() as store:
            return sorted(store.incidents(NAME), key=lambda incident: incident.opened_wall_s)

    def record(self) -> ProtectedJob:
        with self._store() as store:
            job = store.job(NAME)
        if job is None:
            raise LookupError("no record of the job")
        return job

    def _steps(self) -> list[int]:
        """The steps that rank 0 of the running incarnation has printed."""
        if not (status := self._status()):
            return []
        log = self.job_dir / "logs" / str(status.header.incarnation) / "rank-0.log"
        with contextlib.suppress(OSError):
            lines = log.read_text(errors="replace").splitlines()
            return [int(line.split()[1]) for line in lines if line.startswith("step: ")]
        return []

    def step(self) -> int:
        return max(self._steps(), default=0)

    def steps_of_this_start(self) -> int:
        return len(self._steps())

    def result(self) -> float | None:
        if not (status := self._status()):
            return None
        return _result(self.job_dir / "logs" / str(status.header.incarnation) / "rank-0.log")

    # ------------------------------------------------------------ what it told

    def _mails(self) -> list[email.message.EmailMessage]:
        messages = []
        for path in sorted((self.state / "outbox").glob("*.eml"), key=lambda path: path.stat().st_mtime):
            with open(path, "rb") as file:
                messages.append(email.message_from_binary_file(file, policy=email.policy.default))
        return messages

    def mail_subjects(self, incident_id: str) -> dict[str, str]:
        """Stage -> subject of the mails about one incident."""
        about = [mail for mail in self._mails() if mail["X-Sentinel-Incident"] == incident_id]
        return {str(mail["X-Sentinel-Stage"]): str(mail["Subject"]) for mail in about}

    def newest_mail(self) -> str:
        """The text of the newest mail about a recovery, with its most important headers."""
        for mail in reversed(self._mails()):
            body = mail.get_body(("plain",))
            if mail["X-Sentinel-Stage"] == "recovered" and body is not None:
                heads = "".join(f"{name}: {mail[name]}\n" for name in ("From", "To", "Subject", "Message-ID"))
                return heads + "\n" + str(body.get_content()).strip()
        return ""

    def run_output(self) -> str:
        with contextlib.suppress(OSError):
            return (self.folder / "run.log").read_text(errors="replace")
        return ""
