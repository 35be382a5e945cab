"""Sends the mails that wait in the incidents: at least once, bounded in time, number and memory.

The records are the queue: `pending` gives what waits, `record` saves what became of a stage. Rendering
and SMTP happen in a short-lived child (`sentinel.notify.sender`), never more than one at a time.
"""

import asyncio
import contextlib
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import structlog
from msgspec import Struct, structs

from sentinel.controller.effects.mail_pace import Sent, Storms, at_once_of, opens_s
from sentinel.core.model import Incident, Mailing, ProtectedJob
from sentinel.core.now import Now
from sentinel.metrics.registry import Metrics
from sentinel.notify.compose import MailRequest, digest_request, mail_request, webhook_of
from sentinel.notify.text import clean
from sentinel.notify.wire import Answer, Order, longest_s
from sentinel.settings import Settings
from sentinel.util.children import ChildError, OutOfTime, ask, our_python

log = structlog.get_logger()

FIRST_RETRY_S = 10.0
LAST_RETRY_S = 900.0
# With these steps and 25 % of jitter that is three days of trying. Counted, not read from the wall clock,
# which may jump, nor while no Sentinel runs.
MAX_ATTEMPTS = 295
MAX_BATCH = 20
MAX_SETTLED = 4096
CHILD_SLACK_S = 10.0  # to start and to end
MAX_ANSWER_BYTES = 1 << 20  # about one mail
TOGETHER = (
    5  # of a cluster: things of a minute that go by themselves to the same addresses; others are a digest
)
IDLE_S = 300.0  # between two looks where nothing new was announced

Pending = Callable[[], list[tuple[Incident, ProtectedJob]]]
# What became of a mail of a record: a StageMail of an incident, a NodeMail of a Quarantine.
Record = Callable[[str, Any], None]
LogPaths = Callable[[str], Sequence[str]]


Key: TypeAlias = tuple[str, str, float]  # of one thing that one record wants told


class Waiting(Struct, frozen=True):
    """One thing that one record wants told. Several with one Message-ID are one mail."""

    record_id: str
    stage: str
    mail: Mailing
    request: MailRequest
    # Makes the whole mail, where `request` has only what a digest needs.
    whole: Callable[[], MailRequest] | None = None
    alone: bool = False  # never a line of a digest: a digest itself
    since_wall_s: float = 0.0  # of the record: ids are given again when old records were deleted

    def complete(self) -> MailRequest:
        return self.request if self.whole is None else self.whole()

    @property
    def key(self) -> Key:
        return self.record_id, self.stage, self.since_wall_s


class _Parcel(Struct, frozen=True):
    """One mail on its way and the stages that it tells: several for a digest."""

    request: MailRequest
    stages: tuple[Waiting, ...]
    over: bool = False  # of what is too much to go by itself


def retry_s(attempts: int) -> float:
    """Seconds until the next try after `attempts` failures: 10 s doubling to 15 min, with jitter."""
    base = min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(attempts - 1, 10))
    return base * random.uniform(0.75, 1.25)


def _now() -> Now:
    return Now(mono_s=time.clock_gettime(time.CLOCK_BOOTTIME), wall_s=time.time())


class Notifier:
    """`run` is a task of its owner; `wake` says that something new waits; `flush` ends a run."""

    about = "jobs"

    def __init__(
        self,
        settings: Settings,
        pending: Pending,
        record: Record,
        *,
        log_paths: LogPaths | None = None,
        host: str = "",
        clock: Callable[[], Now] = _now,
        together: int = 1 << 30,
    ) -> None:
        """`together`: of more than so many to the same addresses within `STORM_S` the others are a digest."""
        self.mails_sent = 0  # stages that reached at least one address, told in a digest included
        self.mails_failed = 0  # stages that were given up
        self.attempts_failed = 0  # of mails, also where another one went well
        self.waiting = 0  # stages that wait now
        self.errors = 0  # rounds that broke: a bug or a record that cannot be written
        self._together = together
        self._settings = settings
        self._pending = pending
        self._record = record
        self._log_paths = log_paths
        self._host = host or socket.gethostname()
        self._clock = clock
        self._wake = asyncio.Event()
        self._lock = asyncio.Lock()
        self._hold_until_s = 0.0  # CLOCK_BOOTTIME: the server is in trouble until then
        self._trouble = ""  # of the server, in the last round that asked it
        self._troubles = 0  # rounds in a row that met a server in trouble
        self._sent, self._storms = Sent(), Storms()
        self._over: set[str] = set()  # Message-IDs that were over the limit: they go into the digest
        self._settled: dict[Key, Mailing] = {}  # stages that are done with

    # ------------------------------------------------------------ life

    async def run(self) -> None:
        """Send what waits until cancelled."""
        while True:
            await self._gather()
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

    async def _gather(self) -> None:
        """Wait for what comes together."""

    async def rest(self, timeout_s: float) -> None:
        """Until nothing is on its way, for at most `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._lock:
                return

    def measure(self, metrics: Metrics) -> None:
        """For a scrape."""
        metrics.mails(
            self.about,
            sent=self.mails_sent,
            failed=self.attempts_failed,
            given_up=self.mails_failed,
            waiting=self.waiting,
        )

    def wake(self) -> None:
        self._wake.set()

    def count(self, mails: Iterable[Mailing]) -> None:
        """Those of records: what an earlier leader sent counts for the hour."""
        now = self._clock()
        for mail in mails:
            self._sent.add_recorded(mail.done, mail.sent_wall_s, now)

    async def flush(self, timeout_s: float) -> int:
        """Try everything that waits once more, for at most `timeout_s`. Returns how many stages still wait.

        What is left stays waiting in the records and is sent by the next Sentinel. Where a round of `run` is under way,
        it waits for that; when its time is over it does not end that round's child: the owner of `run` cancels `run`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                async with self._lock:
                    await self._round(final=True)
        except TimeoutError:
            log.warning("notify_flush_out_of_time", timeout_s=timeout_s, waiting=self.waiting)
        except Exception:
            self.errors += 1
            log.exception("notify_flush_failed")
        return self.waiting

    # ------------------------------------------------------------ one round

    async def _round(self, *, final: bool = False) -> float:
        """Send what is due. Returns seconds until something may be due again."""
        tried: set[Key] = set()
        while True:
            now = self._clock()
            waiting = self._collect(now)
            self.waiting = len(waiting)
            held_s = 0.0 if final else self._hold_until_s - now.mono_s
            if held_s > 0:  # the mail server alone is spared
                waiting = [one for one in waiting if any(map(webhook_of, one.request.recipients))]
            fresh = [one for one in waiting if one.key not in tried]
            due = fresh if final else self._due(fresh, now)
            parcels = self._parcels(due, now, final=final)[:MAX_BATCH]
            if not parcels:
                idle_s = self._sleep_s(waiting, now)
                return min(idle_s, held_s) if held_s > 0 and self.waiting else idle_s
            tried |= {one.key for parcel in parcels for one in parcel.stages}
            await self._send(parcels, held=held_s > 0)
            if final and self._troubles:
                self.waiting = len(self._collect(self._clock()))
                return IDLE_S

    def _collect(self, now: Now) -> list[Waiting]:
        """Everything that waits, but what is done with and could not be written down."""
        found = []
        for one in self._requests(now):
            settled = self._settled.get(one.key)
            if settled is not None:
                self._save(one.key, settled)
            else:
                found.append(one)
        return found

    def _requests(self, now: Now) -> Iterable[Waiting]:
        """Every stage of an incident that waits, the oldest incident first, stages in their order."""
        for incident, job in sorted(self._pending(), key=lambda pair: (pair[0].opened_wall_s, pair[0].id)):
            paths = self._log_paths(job.name) if self._log_paths else ()
            for mail in incident.mails:
                if mail.state == "waiting":
                    request = mail_request(
                        incident, job, mail.stage, self._settings, self._host, now.wall_s, paths
                    )
                    yield Waiting(
                        incident.id, mail.stage.value, mail, request, since_wall_s=incident.opened_wall_s
                    )

    def _digest(self, mails: Sequence[MailRequest], now: Now) -> MailRequest:
        return digest_request(mails, self._settings, self._host, now.wall_s)

    def _due(self, waiting: Sequence[Waiting], now: Now) -> list[Waiting]:
        """What may be tried now. The earlier mails of a thread go with a later one: they would be read after it; and
        who is told by the same mail as one that goes is told by it."""
        threads, mails = set[str](), set[str]()
        for one in reversed(waiting):
            if one.record_id in threads or self._due_in_s(one.mail, now) <= 0:
                threads.add(one.record_id)
                mails.add(one.request.message_id)
        return [one for one in waiting if one.request.message_id in mails]

    @staticmethod
    def _due_in_s(mail: Mailing, now: Now) -> float:
        # A wall clock that was stepped back must not park a mail for days.
        return min(mail.next_wall_s - now.wall_s, LAST_RETRY_S * 1.25)

    def _sleep_s(self, waiting: Iterable[Waiting], now: Now) -> float:
        delays = [IDLE_S]
        for one in waiting:
            room_s = 0.0 if one.alone else self._room_in_s(one, now)
            delays.append(max(self._due_in_s(one.mail, now), room_s))
        return max(0.05, min(delays))

    # ------------------------------------------------------------ the limit per address

    def _room(self, recipients: Iterable[str], now: Now) -> int:
        """How many mails these addresses may still get: the least of them counts."""
        room = MAX_BATCH
        for address in recipients:
            times = self._sent.times(address, now)
            room = min(
                room, max(at_once_of(self._most) - len(times), int(opens_s(times, self._most) <= now.mono_s))
            )
        return room

    def _room_in_s(self, one: Waiting, now: Now) -> float:
        """Seconds until the limits let this mail go, by itself or in a digest."""
        recipients = one.request.recipients
        opens = [opens_s(self._sent.times(address, now), self._most) for address in recipients]
        over = one.request.message_id in self._over
        digest_in_s = self._storms.digest_in_s(recipients, now) if over else 0.0
        return max(digest_in_s, max(opens, default=0.0) - now.mono_s)

    @property
    def _most(self) -> int:
        return max(1, self._settings.mail.per_hour)

    def _parcels(self, due: Sequence[Waiting], now: Now, *, final: bool) -> list[_Parcel]:
        """Single mails within the limit; what is over it waits, and then goes as one digest."""
        singles: list[_Parcel] = []
        planned: dict[str, int] = {}
        over: dict[tuple[str, ...], list[Waiting]] = {}
        same: dict[str, list[Waiting]] = {}
        for one in due:
            same.setdefault(one.request.message_id, []).append(one)
        crowded = {one.request.recipients for one in due if one.request.message_id in self._over}
        at_once = Counter(stages[0].request.recipients for stages in same.values())
        for stages in same.values():
            one = stages[0]
            recipients = one.request.recipients
            room = self._room(recipients, now) - max((planned.get(a, 0) for a in recipients), default=0)
            storm = at_once[recipients] + self._storms.things(recipients, now) > self._together
            if not one.alone and (recipients in crowded or storm or (recipients and room <= 0)):
                self._over.add(one.request.message_id)
                over.setdefault(recipients, []).extend(stages)
            else:
                singles.append(_Parcel(one.complete(), tuple(stages)))
                for address in recipients:
                    planned[address] = planned.get(address, 0) + 1
        digests = []
        for recipients, held in over.items():
            taken = max((planned.get(address, 0) for address in recipients), default=0)
            room = self._room(recipients, now) - taken > 0
            if final or (room and self._storms.digest_in_s(recipients, now) <= 0):
                mails = list({one.request.message_id: one.request for one in held}.values())
                request = held[0].complete() if len(mails) == 1 else self._digest(mails, now)
                digests.append(_Parcel(request, tuple(held), over=True))
                for address in recipients:
                    planned[address] = planned.get(address, 0) + 1
        return singles + digests

    # ------------------------------------------------------------ the child

    async def _send(self, parcels: Sequence[_Parcel], *, held: bool = False) -> None:
        mail = self._settings.mail
        outbox = Path(mail.outbox).expanduser() if mail.outbox else self._settings.state_path / "outbox"
        hooks = self._settings.webhooks
        deadline_s = longest_s(mail, hooks, [parcel.request for parcel in parcels])
        order = Order(
            settings=structs.replace(mail, outbox=str(outbox.absolute())),
            requests=[parcel.request for parcel in parcels],
            deadline_s=deadline_s,
            webhooks=hooks,
            held=f"the mail server is not asked now: {self._trouble}" if held else "",
        )
        unanswered = {parcel.request.message_id: parcel for parcel in parcels}
        trouble = ""
        said = "the mail child gave no answer"

        def take(line: bytes) -> None:
            nonlocal trouble
            answer = msgspec.json.decode(line, type=Answer)
            parcel = unanswered.pop(answer.message_id, None)
            if parcel is not None:
                trouble = answer.error if answer.server else trouble
                self._settle(parcel, answer)

        try:
            ended = await ask(
                our_python("sentinel.notify.sender"),
                msgspec.json.encode(order),
                limit_s=deadline_s + CHILD_SLACK_S,
                most_bytes=MAX_ANSWER_BYTES,
                take=take,
            )
            if ended.complaint:
                log.warning("mail_child_complained", said=clean(ended.complaint[-600:], 600))
        except OutOfTime:
            said = "the mail child did not end in its time"
        except (ChildError, ValueError) as error:  # it could not be started, or wrote what is no answer
            said = f"the mail child: {clean(str(error))}"
        for parcel in unanswered.values():
            trouble = said
            self._settle(parcel, _unanswered(parcel.request, said))
        if not held:
            self._note_trouble(trouble)

    def _note_trouble(self, trouble: str) -> None:
        self._trouble = trouble
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
        now = self._clock()
        sent_wall_s = 0.0
        if answer.accepted:
            sent_wall_s = self._sent.add(answer.accepted, now)
            things = len({one.request.message_id for one in parcel.stages})
            self._storms.add(parcel.request.recipients, things, now, over=parcel.over)
        self.attempts_failed += answer.state != "sent"
        # One delay for all: what was one mail must not come apart when it is tried again.
        delay_s = retry_s(min(one.mail.attempts for one in parcel.stages) + 1)
        digest = len(parcel.stages) > 1
        for one in parcel.stages:
            mail = _after(one.mail, answer, digest=digest, next_wall_s=now.wall_s + delay_s)
            mail = structs.replace(mail, sent_wall_s=sent_wall_s or mail.sent_wall_s)
            if mail.state == "failed":
                self.mails_failed += 1
            elif mail.state != "waiting":
                self.mails_sent += 1
            if mail.state != "waiting":
                self._over.discard(one.request.message_id)
                self.waiting = max(0, self.waiting - 1)
            log.info(
                "mail_" + mail.state,
                record=one.record_id,
                stage=one.stage,
                message_id=answer.message_id,
                error=mail.error,
                path=answer.path,
            )
            self._save(one.key, mail)

    def _save(self, key: Key, mail: Mailing) -> None:
        record_id, stage, _ = key
        if mail.state != "waiting":
            # Remembered, so that a record that was lost or overwritten never sends a mail again and again.
            self._settled[key] = mail
            while len(self._settled) > MAX_SETTLED:
                self._settled.pop(next(iter(self._settled)))
        try:
            self._record(record_id, mail)
        except Exception:
            self.errors += 1
            log.exception("mail_not_recorded", record=record_id, stage=stage)


# ---------------------------------------------------------------- pure helpers


def _after(mail: Mailing, answer: Answer, *, digest: bool, next_wall_s: float) -> Mailing:
    """The state of a stage after one answer. Addresses that are done with are never served again."""
    attempts = mail.attempts + 1
    done = (*mail.done, *(a for a in answer.accepted if a not in mail.done))
    refused = (*mail.refused, *(a for a in answer.refused if a not in mail.refused))
    state, error = "waiting", answer.error
    if answer.state == "temporary" and attempts < MAX_ATTEMPTS:
        pass
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
        next_wall_s=next_wall_s if state == "waiting" else 0.0,
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
