"""A protected job for chaos tests: its Sentinel is the real program, and what is judged is looked at from outside."""

import asyncio
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from contextlib import closing
from email import message_from_bytes
from pathlib import Path
from typing import Any

import msgspec
from aiosmtpd.smtp import SMTP

from sentinel.core.model import Incident, IncidentKind, Phase, ProtectedJob
from sentinel.logs.kmsg import encode_record
from tests.chaos import trainer
from tests.waits import until

REPO = Path(__file__).parent.parent.parent
SIZE = 2
GPUS = 32
OWNER = "owner@example.com"
HANG_S = 6  # a busy machine runs no rank for seconds, too

POLICY = f"""\
apiVersion: sentinel.dev/v1alpha1
kind: JobPolicy
metadata: {{name: chaos}}
spec:
  owner: {{emails: [{OWNER}]}}
  resume:
    maxResumes: 5000
    gracefulStop: 400ms
    checkpoint: {{signal: SIGUSR1, timeout: 20s, proof: {{logPattern: saved checkpoint step}}}}
  lostRankGrace: 400ms
  performance: {{maxHardwareRatio: 0.66, stragglerRatio: off, over: 20, action: RescheduleAndAlert}}
  hang: {{after: {HANG_S}s, action: RestartAndAlert}}
"""


# ---------------------------------------------------------------- mail


class MailServer:
    """An SMTP server on loopback that keeps (incident, stage, Message-ID) of everything that it took."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.taken: list[tuple[str, str, str]] = []
        self.delay_s = delay_s  # before each answer to DATA
        self.receiving = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(self._loop.create_server(self._smtp, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def _smtp(self) -> SMTP:
        return SMTP(self, hostname="mail.example.com", loop=self._loop)

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        message = message_from_bytes(envelope.content)
        heads = ("X-Sentinel-Incident", "X-Sentinel-Stage", "Message-ID")
        self.receiving.set()
        await asyncio.sleep(self.delay_s)
        self.taken.append(tuple(str(message[head]) for head in heads))  # type: ignore[arg-type]
        return "250 OK"

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._server.close()
        self._loop.close()


# ---------------------------------------------------------------- processes


def processes_of(job: str, state: Path) -> dict[int, int]:
    """Living processes of the job by pid, with their incarnation, as their environment says."""
    marks = {f"SENTINEL_JOB={job}".encode(), f"SENTINEL_STATE_DIR={state}".encode()}
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            entries = Path("/proc", name, "environ").read_bytes().split(b"\0")
            running = Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()[0] not in b"ZX"
        except (OSError, IndexError):
            continue
        if running and marks <= set(entries):
            number = next(e.partition(b"=")[2] for e in entries if e.startswith(b"SENTINEL_INCARNATION="))
            found[int(name)] = int(number)
    return found


def kill(pid: int, number: int = signal.SIGKILL) -> bool:
    """False: it is gone."""
    if pid <= 1:  # of nobody, not of a group
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


class _Glance(msgspec.Struct):
    phase: Phase


# ---------------------------------------------------------------- the job


class ChaosJob:
    """One job, one Sentinel at a time. `hit` holds the incarnations that were given a fault."""

    policy = POLICY

    def __init__(self, name: str, root: Path, state: Path, mail_port: int = 0, **settings: Any) -> None:
        self.name, self.state = name, state
        self.root = root / name
        self.work = self.root / "work"
        self.work.mkdir(parents=True)
        self.folder = state / "jobs" / name
        self.kernel_log = self.root / "kmsg"
        self.sentinel: subprocess.Popen[bytes] | None = None
        self.hit: dict[int, str] = {}
        self.hit_step = 0
        self._messages = 0
        self._alive = os.open(self.work / "alive", os.O_RDWR | os.O_CREAT)
        self.command = [sys.executable, "-I", "-S", str(Path(trainer.__file__)), str(self.work)]
        self._write_machine()
        mail = {"host": "127.0.0.1", "port": mail_port, "tls": "none", "perHour": 10_000} if mail_port else {}
        self._settings = {
            "apiVersion": "sentinel.dev/v1alpha1",
            "kind": "Settings",
            "listen": "",
            "kernelLog": str(self.kernel_log),
            "sysfs": str(self.root / "sys"),
            "caps": {"maxResumes": 10_000},
            **({"mail": mail} if mail else {}),
            **settings,
        }
        (self.root / "settings.yaml").write_text(json.dumps(self._settings))
        (self.root / "policy.yaml").write_text(POLICY)
        self.env = {**os.environ, "SENTINEL_STATE_DIR": str(state), "PYTHONPATH": str(REPO)}

    def _write_machine(self) -> None:
        """GPUs as the kernel shows them (vendor 10de, PCI class 0302), enough for a fault in each of many starts."""
        for number in range(GPUS):
            device = self.root / "sys/bus/pci/devices" / f"0000:{number:02x}:00.0"
            device.mkdir(parents=True)
            for name, value in (("vendor", "0x10de"), ("class", "0x030200"), ("device", "0x2330")):
                (device / name).write_text(value + "\n")
        self.kernel_log.write_bytes(b"")

    # ------------------------------------------------------------ Sentinel

    def _spawn(self, *words: str) -> "subprocess.Popen[bytes]":
        with open(self.root / "console", "ab") as console:
            return subprocess.Popen(
                [sys.executable, "-m", "sentinel", *words],
                env=self.env,
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # the job's output is in its own logs
                stderr=console,
                start_new_session=True,
            )

    def _run_words(self, *options: str) -> list[str]:
        files = ["--settings", "settings.yaml", "--policy", "policy.yaml"]
        return ["run", *files, "--name", self.name, "--nproc", str(SIZE), *options, "--", *self.command]

    def run(self) -> None:
        self.sentinel = self._spawn(*self._run_words())

    def take_over(self, *, adopt: bool = False) -> None:
        """A new Sentinel, as a person would start one."""
        words = self._run_words("--adopt") if adopt else ["attach", "--settings", "settings.yaml", self.name]
        self.sentinel = self._spawn(*words)

    def another(self) -> "subprocess.Popen[bytes]":
        return self._spawn("attach", "--settings", "settings.yaml", self.name)

    def kill_sentinel(self) -> None:
        assert self.sentinel is not None
        self.sentinel.kill()
        self.sentinel.wait()

    def supervisor_pid(self) -> int | None:
        """The parent of a rank, by /proc."""
        for pid in processes_of(self.name, self.state):
            try:
                parent = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
                if b"supervisor.py" in Path(f"/proc/{parent}/cmdline").read_bytes():
                    return parent
            except (OSError, IndexError, ValueError):
                continue
        return None

    def end(self) -> None:
        """Leaves nothing behind, whatever state the test was in."""
        if self.sentinel is not None and self.sentinel.poll() is None:
            self.sentinel.kill()
            self.sentinel.wait()
        supervisor = self.supervisor_pid()

        def gone() -> bool:
            left = processes_of(self.name, self.state)
            for pid in left:
                kill(pid)
            return not left

        until(gone, lambda: f"these live on: {processes_of(self.name, self.state)}")
        if supervisor is not None:
            kill(supervisor)
        os.close(self._alive)

    # ------------------------------------------------------------ faults

    def births(self) -> list[tuple[int, int, int]]:
        """(incarnation, rank, pid) in the order of their starts."""
        try:
            lines = (self.work / "births").read_text().splitlines()
        except OSError:
            return []
        return [tuple(map(int, line.split())) for line in lines]  # type: ignore[misc]

    def pid_of(self, incarnation: int, rank: int) -> int | None:
        return next((pid for number, r, pid in self.births() if (number, r) == (incarnation, rank)), None)

    def step_of(self, rank: int) -> int:
        """The newest that it has made."""
        return self.steps()[rank][1]

    def steps(self) -> list[tuple[int, int]]:
        """(incarnation, newest step) of each rank."""
        try:
            text = (self.work / "progress").read_text()
        except OSError:
            return []
        pairs = [text[at : at + 24].replace("\0", " ").split() for at in range(0, len(text), 24)]
        return [(int(pair[0]), int(pair[1])) if len(pair) == 2 else (0, 0) for pair in pairs]

    def hurt(self, incarnation: int, kind: str, rank: int = 0) -> None:
        """Give the running incarnation its fault. Only what really struck may be counted, so callers look first."""
        pid = self.pid_of(incarnation, rank)
        assert pid is not None
        self.hit[incarnation] = kind
        self.hit_step = max((step for _, step in self.steps()), default=0)
        if kind == "killed":
            kill(pid)
        elif kind == "stopped":
            kill(pid, signal.SIGSTOP)
        elif kind in ("hang", "slow"):
            (self.work / f"{kind}.{incarnation}").touch()
        elif kind == "gpu":
            gpu = self._gpu_in_use()
            self._kernel_says(f"NVRM: Xid (PCI:{gpu}): 79, pid='<unknown>', GPU has fallen off the bus.")

    def _gpu_in_use(self) -> str:
        """The first that is not left out: rank 0 has it."""
        out = set(self.record().excluded)
        return next(pci for n in range(GPUS) if f"GPU {(pci := f'0000:{n:02x}:00.0')}" not in out)

    def _kernel_says(self, text: str) -> None:
        self._messages += 1
        with open(self.kernel_log, "ab") as file:
            file.write(encode_record(text, self._messages))

    # ------------------------------------------------------------ the records, read without Sentinel's code

    def _rows(self, query: str) -> list[bytes]:
        """Read with SQLite alone."""
        try:
            with closing(sqlite3.connect(f"file:{self.state}/state.db?mode=ro", uri=True, timeout=5)) as db:
                return [row[0] for row in db.execute(query, (self.name,))]
        except sqlite3.OperationalError:  # not made yet
            return []

    def record(self) -> ProtectedJob:
        rows = self._rows("SELECT data FROM jobs WHERE name = ?")
        assert rows, f"no record of {self.name}"
        return msgspec.json.decode(rows[0], type=ProtectedJob)

    def incidents(self) -> list[Incident]:
        rows = self._rows("SELECT data FROM incidents WHERE job = ? ORDER BY rowid")
        return [msgspec.json.decode(row, type=Incident) for row in rows]

    def open_phase(self) -> Phase | None:
        """Where the recovery that is under way stands; None: plain running."""
        rows = self._rows("SELECT data FROM incidents WHERE job = ? AND closed_s IS NULL")
        return msgspec.json.decode(rows[-1], type=_Glance).phase if rows else None

    def log_read_to(self, incarnation: int, rank: int) -> int:
        """The offset up to which a predecessor has read the rank's log, as it would tell a successor."""
        query = f"SELECT data FROM positions WHERE job = ? AND incarnation = {incarnation} AND rank = {rank}"
        rows = self._rows(query)
        return int(json.loads(rows[0])["file"]["offset"]) if rows else 0

    # ------------------------------------------------------------ what must hold

    def alive(self) -> list[int]:
        """Incarnations that hold their byte now; asked of the kernel, in one go for each."""
        found: list[int] = []
        start = 0
        while (first := trainer.locked(self._alive, start, 0)) is not None:
            found.append(first)
            start = first + 1
        return found

    def settled(self) -> bool:
        """No recovery is under way, and the running incarnation has no fault that nobody answered."""
        if self.open_phase() is not None:
            return False
        record = self.record()
        known = record.incarnation not in self.hit
        return record.state == "running" and known and self.stepping(record.incarnation)

    def stepping(self, incarnation: int) -> bool:
        """Every rank of this incarnation is beyond the step at which the last fault struck."""
        steps = self.steps()
        return (
            len(steps) == SIZE and min(steps) > (incarnation, self.hit_step) and max(steps)[0] == incarnation
        )

    def check_books(self) -> None:
        """What holds at every instant, in the middle of a recovery too."""
        assert len(self.alive()) <= 1, f"two incarnations of {self.name} are alive: {self.alive()}"
        violations = self.work / "violations"
        assert not violations.exists(), violations.read_text()
        record = self.record()
        used = record.used + record.used_free
        assert used == record.incarnation - 1, f"{used} restarts paid, incarnation {record.incarnation}"

    def check_at_rest(self) -> None:
        """Every fault led to exactly one new incarnation, which is the only one alive, and was paid for once."""
        self.check_books()
        record = self.record()
        starts = [step for i in self.incidents() for step in i.steps if step.phase == Phase.STARTING]
        assert sorted(self.hit) == list(range(1, record.incarnation)), self.told()
        assert record.used + record.used_free == len(self.hit) == len(starts), self.told()
        expected = [(number, rank) for number in range(1, record.incarnation + 1) for rank in range(SIZE)]
        assert sorted((number, rank) for number, rank, _ in self.births()) == expected
        assert self.alive() == [record.incarnation]
        now = processes_of(self.name, self.state)
        assert set(now.values()) == {record.incarnation}
        assert len(now) == 2 * SIZE  # each rank and its helper
        closed = Counter(i.phase for i in self.incidents() if i.kind != IncidentKind.NOTICE)
        assert set(closed) <= {Phase.RECOVERED}, self.told()

    def told(self) -> str:
        """For a failed assertion: the faults given, and the story of each incident."""
        lines = [f"{self.name}: faults {self.hit}, record {self.record().incarnation}"]
        for incident in self.incidents():
            steps = "; ".join(f"{s.phase.value} ({s.reason}) {s.sentence[:160]}" for s in incident.steps)
            lines.append(f"{incident.id} {incident.kind.value} at step {incident.failed_step}: {steps}")
        return "\n".join(lines)

    def check_nothing_left(self) -> None:
        """After `stop`: no process, no supervisor, no byte held."""
        until(lambda: not processes_of(self.name, self.state), f"processes of {self.name} are left")
        assert self.alive() == []
        lock = self.folder / "supervisor.lock"
        until(lambda: not _is_held(lock), f"the supervisor of {self.name} is left")

    def mail_is_told(self) -> bool:
        return all(mail.state == "sent" for i in self.incidents() for mail in i.mails)

    def stop(self) -> None:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "sentinel",
                "stop",
                self.name,
                "--grace",
                "1s",
                "--settings",
                "settings.yaml",
            ],
            env=self.env,
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert done.returncode == 0, done.stderr
        if self.sentinel is not None:
            self.sentinel.wait(timeout=180)


def _is_held(lock: Path) -> bool:
    import fcntl

    with open(lock) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def check_mails(server: MailServer, jobs: list[ChaosJob]) -> int:
    """Each (incident, stage) of the records has exactly one Message-ID at the server. Returns the repeats."""
    asked = {(i.id, mail.stage.value) for job in jobs for i in job.incidents() for mail in i.mails}
    ids: dict[tuple[str, str], set[str]] = {}
    for incident, stage, message_id in server.taken:
        ids.setdefault((incident, stage), set()).add(message_id)
    assert set(ids) == asked
    assert all(len(found) == 1 for found in ids.values()), ids
    distinct = {message_id for found in ids.values() for message_id in found}
    assert len(distinct) == len(ids)
    return len(server.taken) - len(distinct)


def seeded() -> tuple[int, random.Random]:
    """The same choices each time, unless CHAOS_SEED names others, or `new` ones; timing always differs."""
    asked = os.environ.get("CHAOS_SEED", "1")
    seed = random.randrange(1 << 32) if asked == "new" else int(asked)
    return seed, random.Random(seed)
