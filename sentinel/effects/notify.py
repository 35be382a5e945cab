"""Sends the mails that wait in the incidents: at least once, bounded in time, number and memory.

The records are the queue: `pending` gives what waits, `record` saves what became of a stage. Rendering
and SMTP happen in a short-lived child (`sentinel.notify.sender`), never more than one at a time.
"""

import asyncio
import contextlib
import os
import random
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct, structs

import sentinel
from sentinel.core.model import Incident, Now, ProtectedJob, StageMail
from sentinel.notify.compose import MailRequest, digest_request, mail_request
from sentinel.notify.text import clean
from sentinel.notify.wire import Answer, Order
from sentinel.settings import Settings

log = structlog.get_logger()

FIRST_RETRY_S = 10.0
LAST_RETRY_S = 900.0
# With these steps and 25 % of jitter that is three days of trying. Counted, not read from the wall clock,
# which may jump, nor while no Sentinel runs.
MAX_ATTEMPTS = 295
WINDOW_S = 3600.0
MAX_BATCH = 20
MAX_SETTLED = 4096
CHILD_SLACK_S = 10.0  # to start and to end
MAX_ANSWER_BYTES = 1 << 20
IDLE_S = 300.0  # a mail that nobody announced is still found

Pending = Callable[[], list[tuple[Incident, ProtectedJob]]]
Record = Callable[[str, StageMail], None]
LogPaths = Callable[[str], Sequence[str]]


class _Waiting(Struct, frozen=True):
    incident_id: str
    mail: StageMail
    request: MailRequest


class _Parcel(Struct, frozen=True):
    """One mail on its way and the stages that it tells: several for a digest."""

    request: MailRequest
    stages: tuple[_Waiting, ...]


def retry_s(attempts: int) -> float:
    """Seconds until the next try after `attempts` failures: 10 s doubling to 15 min, with jitter."""
    base = min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(attempts - 1, 10))
    return base * random.uniform(0.75, 1.25)


def _now() -> Now:
    return Now(mono_s=time.clock_gettime(time.CLOCK_BOOTTIME), wall_s=time.time())


class Notifier:
    """`run` is a task of its owner; `wake` says that something new waits; `flush` ends a run."""

    def __init__(
        self,
        settings: Settings,
        pending: Pending,
        record: Record,
        *,
        log_paths: LogPaths | None = None,
        host: str = "",
        clock: Callable[[], Now] = _now,
    ) -> None:
        self.mails_sent = 0  # stages that reached at least one address, told in a digest included
        self.mails_failed = 0  # stages that were given up
        self.waiting = 0  # stages that wait now
        self.errors = 0  # rounds that broke: a bug or a record that cannot be written
        self._settings = settings
        self._pending = pending
        self._record = record
        self._log_paths = log_paths
        self._host = host or socket.gethostname()
        self._clock = clock
        self._wake = asyncio.Event()
        self._lock = asyncio.Lock()
        self._child: asyncio.subprocess.Process | None = None
        self._hold_until_s = 0.0  # CLOCK_BOOTTIME: the server is in trouble until then
        self._troubles = 0  # rounds in a row that met a server in trouble
        self._sent_at: dict[str, deque[float]] = {}  # address -> when it got mails in the last hour
        self._over: set[str] = set()  # Message-IDs that were over the limit: they go into the digest
        self._settled: dict[tuple[str, str], StageMail] = {}  # stages that are done with

    # ------------------------------------------------------------ life

    async def run(self) -> None:
        """Send what waits until cancelled."""
        while True:
            self._wake.clear()
            try:
                async with self._lock:
                    delay_s = await self._round()
            except Exception:
                self.errors += 1
                log.exception("notify_round_failed")
                delay_s = FIRST_RETRY_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._wake.wait()

    def wake(self) -> None:
        self._wake.set()

    async def flush(self, timeout_s: float) -> int:
        """Try everything that waits once more, for at most `timeout_s`. Returns how many stages still wait.

        What is left stays waiting in the records and is sent by the next Sentinel.
        """
        try:
            async with asyncio.timeout(timeout_s):
                async with self._lock:
                    await self._round(final=True)
        except TimeoutError:
            self._kill()  # it may be the child of `run`
            log.warning("notify_flush_out_of_time", timeout_s=timeout_s, waiting=self.waiting)
        except Exception:
            self.errors += 1
            log.exception("notify_flush_failed")
        return self.waiting

    def _kill(self) -> None:
        if self._child is not None and self._child.returncode is None:
            # Not Process.kill(): it reaps an ended child behind the back of asyncio's own watcher.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child.pid, signal.SIGKILL)

    # ------------------------------------------------------------ one round

    async def _round(self, *, final: bool = False) -> float:
        """Send what is due. Returns seconds until something may be due again."""
        tried: set[tuple[str, str]] = set()
        while True:
            now = self._clock()
            waiting = self._collect(now)
            self.waiting = len(waiting)
            if not final and now.mono_s < self._hold_until_s:
                return self._hold_until_s - now.mono_s if waiting else IDLE_S
            fresh = [one for one in waiting if (one.incident_id, one.mail.stage.value) not in tried]
            due = [one for one in fresh if final or self._due_in_s(one.mail, now) <= 0]
            parcels = self._parcels(due, now, final=final)[:MAX_BATCH]
            if not parcels:
                return self._sleep_s(waiting, now)
            tried |= {(one.incident_id, one.mail.stage.value) for parcel in parcels for one in parcel.stages}
            await self._send(parcels)
            if final and self._troubles:
                self.waiting = len(self._collect(self._clock()))
                return IDLE_S

    def _collect(self, now: Now) -> list[_Waiting]:
        """Every stage that waits, the oldest incident first, stages in their order."""
        found = []
        for incident, job in sorted(self._pending(), key=lambda pair: (pair[0].opened_wall_s, pair[0].id)):
            paths = self._log_paths(job.name) if self._log_paths else ()
            for mail in incident.mails:
                if mail.state != "waiting":
                    continue
                settled = self._settled.get((incident.id, mail.stage.value))
                if settled is not None:
                    self._save(incident.id, settled)
                else:
                    request = mail_request(
                        incident, job, mail.stage, self._settings, self._host, now.wall_s, paths
                    )
                    found.append(_Waiting(incident.id, mail, request))
        return found

    @staticmethod
    def _due_in_s(mail: StageMail, now: Now) -> float:
        # A wall clock that was stepped back must not park a mail for days.
        return min(mail.next_wall_s - now.wall_s, LAST_RETRY_S * 1.25)

    def _sleep_s(self, waiting: Iterable[_Waiting], now: Now) -> float:
        delays = [IDLE_S]
        for one in waiting:
            delays.append(max(self._due_in_s(one.mail, now), self._room_in_s(one.request.recipients, now)))
        return max(0.05, min(delays))

    # ------------------------------------------------------------ the limit per address

    def _room(self, recipients: Iterable[str], now: Now) -> int:
        """How many mails these addresses may still get: the least of them counts."""
        room = MAX_BATCH
        for address in recipients:
            times = self._sent_at.get(address, deque())
            while times and times[0] <= now.mono_s - WINDOW_S:
                times.popleft()
            room = min(room, max(1, self._settings.mail.per_hour) - len(times))
        return room

    def _room_in_s(self, recipients: Iterable[str], now: Now) -> float:
        if self._room(recipients, now) > 0:
            return 0.0
        oldest = [times[0] for address in recipients if (times := self._sent_at.get(address))]
        return max(0.0, max(oldest) + WINDOW_S - now.mono_s)

    def _count(self, addresses: Iterable[str]) -> None:
        now_s = self._clock().mono_s
        for address in addresses:
            self._sent_at.setdefault(address, deque()).append(now_s)

    def _parcels(self, due: Sequence[_Waiting], now: Now, *, final: bool) -> list[_Parcel]:
        """Single mails within the limit; what is over it waits, and then goes as one digest."""
        singles: list[_Parcel] = []
        planned: dict[str, int] = {}
        over: dict[tuple[str, ...], list[_Waiting]] = {}
        for one in due:
            recipients = one.request.recipients
            room = self._room(recipients, now) - max((planned.get(a, 0) for a in recipients), default=0)
            if one.request.message_id in self._over or (recipients and room <= 0):
                self._over.add(one.request.message_id)
                over.setdefault(recipients, []).append(one)
            else:
                singles.append(_Parcel(one.request, (one,)))
                for address in recipients:
                    planned[address] = planned.get(address, 0) + 1
        digests = []
        for recipients, held in over.items():
            taken = max((planned.get(address, 0) for address in recipients), default=0)
            if final or self._room(recipients, now) - taken > 0:
                request = held[0].request
                if len(held) > 1:
                    mails = [one.request for one in held]
                    request = digest_request(mails, self._settings, self._host, now.wall_s)
                digests.append(_Parcel(request, tuple(held)))
        return singles + digests

    # ------------------------------------------------------------ the child

    async def _send(self, parcels: Sequence[_Parcel]) -> None:
        mail = self._settings.mail
        outbox = Path(mail.outbox).expanduser() if mail.outbox else self._settings.state_path / "outbox"
        # One time-out to connect, one for each mail, one to say goodbye.
        deadline_s = mail.timeout_s * (2 + len(parcels))
        order = Order(
            settings=structs.replace(mail, outbox=str(outbox.absolute())),
            requests=[parcel.request for parcel in parcels],
            deadline_s=deadline_s,
        )
        unanswered = {parcel.request.message_id: parcel for parcel in parcels}
        trouble = ""
        said = "the mail child gave no answer"
        try:
            async with asyncio.timeout(deadline_s + CHILD_SLACK_S):
                async with contextlib.aclosing(self._answers(order)) as answers:
                    async for answer in answers:
                        parcel = unanswered.pop(answer.message_id, None)
                        if parcel is not None:
                            trouble = answer.error if answer.server else trouble
                            self._settle(parcel, answer)
        except TimeoutError:
            said = "the mail child did not end in its time"
        except (OSError, ValueError) as error:  # it could not be started, or wrote what is no answer
            said = f"the mail child: {clean(str(error))}"
        for parcel in unanswered.values():
            trouble = said
            self._settle(parcel, _unanswered(parcel.request, said))
        self._note_trouble(trouble)

    async def _answers(self, order: Order) -> AsyncGenerator[Answer, None]:
        """What the child says, as it says it. Ended early, it takes the child with it."""
        self._child = child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "sentinel.notify.sender"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_child_env(),
            limit=MAX_ANSWER_BYTES,
            start_new_session=True,  # Ctrl-C on the terminal is for the job
        )
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        try:
            with contextlib.suppress(ConnectionError):
                child.stdin.write(msgspec.json.encode(order))
                await child.stdin.drain()
            child.stdin.close()
            async for line in child.stdout:
                yield msgspec.json.decode(line, type=Answer)
            complaint = (await child.stderr.read(4000)).decode("utf-8", "replace").strip()
            if complaint:
                log.warning("mail_child_complained", said=clean(complaint[-600:], 600))
        finally:
            self._kill()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2.0):
                    await child.wait()
            self._child = None

    def _note_trouble(self, trouble: str) -> None:
        if not trouble:
            self._troubles = 0
            self._hold_until_s = 0.0
            return
        self._troubles += 1
        delay_s = retry_s(self._troubles)
        self._hold_until_s = self._clock().mono_s + delay_s
        log.warning("mail_server_trouble", error=trouble, retry_in_s=round(delay_s, 1))

    def _settle(self, parcel: _Parcel, answer: Answer) -> None:
        """Turn an answer into the new state of each stage and record it at once."""
        self._count(answer.accepted)
        now = self._clock()
        for one in parcel.stages:
            mail = _after(one.mail, answer, digest=len(parcel.stages) > 1, wall_s=now.wall_s)
            if mail.state == "failed":
                self.mails_failed += 1
            elif mail.state != "waiting":
                self.mails_sent += 1
            if mail.state != "waiting":
                self._over.discard(one.request.message_id)
                self.waiting = max(0, self.waiting - 1)
            log.info(
                "mail_" + mail.state,
                incident=one.incident_id,
                stage=mail.stage.value,
                message_id=answer.message_id,
                error=mail.error,
                path=answer.path,
            )
            self._save(one.incident_id, mail)

    def _save(self, incident_id: str, mail: StageMail) -> None:
        key = (incident_id, mail.stage.value)
        if mail.state != "waiting":
            # Remembered, so that a record that was lost or overwritten never sends a mail again and again.
            self._settled[key] = mail
            while len(self._settled) > MAX_SETTLED:
                self._settled.pop(next(iter(self._settled)))
        try:
            self._record(incident_id, mail)
        except Exception:
            self.errors += 1
            log.exception("mail_not_recorded", incident=incident_id, stage=mail.stage.value)


# ---------------------------------------------------------------- pure helpers


def _after(mail: StageMail, answer: Answer, *, digest: bool, wall_s: float) -> StageMail:
    """The state of a stage after one answer. Addresses that are done with are never served again."""
    attempts = mail.attempts + 1
    done = (*mail.done, *(a for a in answer.accepted if a not in mail.done))
    refused = (*mail.refused, *(a for a in answer.refused if a not in mail.refused))
    state, error, next_wall_s = "waiting", answer.error, 0.0
    if answer.state == "temporary" and attempts < MAX_ATTEMPTS:
        next_wall_s = wall_s + retry_s(attempts)
    elif answer.state == "sent" or done:
        state = "digested" if digest else "sent"
    else:
        state = "failed"
    if answer.state == "temporary" and state != "waiting":
        error = f"given up after {attempts} attempts: {answer.error}"
    return structs.replace(
        mail,
        state=state,
        attempts=attempts,
        next_wall_s=next_wall_s,
        error=error[:1000],
        done=done,
        refused=refused,
    )


def _unanswered(request: MailRequest, said: str) -> Answer:
    return Answer(
        message_id=request.message_id,
        state="temporary",
        delayed=dict.fromkeys(request.recipients, said),
        error=said,
        server=True,
    )


def _child_env() -> dict[str, str]:
    """Our environment; the child finds the same Sentinel as we did, and nothing of the job's directory."""
    root = str(Path(sentinel.__file__).parent.parent)
    if Path(root).name == "site-packages":
        return dict(os.environ)
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
    return os.environ | {"PYTHONPATH": path}
