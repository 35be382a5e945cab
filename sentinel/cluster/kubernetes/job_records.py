"""The records of jobs as custom resources. Implements `sentinel.cluster.base.Records` for a controller that leads.

`save` only notes what is to be written; `run` writes it, each job by itself, again and again until it is there, and
`written` waits for that. The API server takes one object at a time, so a ProtectedJob holds its newest incident: the
two are never seen apart. The Incident that people read is made after it, and changes of it are written up to COPY_S
later, those of that time together.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping

import structlog
from msgspec import structs

from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.errors import AlreadyExists, Conflict, Forbidden, NotFound, NotLeading
from sentinel.cluster.kubernetes.objects import INCIDENTS, PROTECTED_JOBS, Custom
from sentinel.cluster.kubernetes.record_conditions import of_incident, of_job
from sentinel.cluster.kubernetes.store import Store
from sentinel.core.agents.epochs import Epochs
from sentinel.core.model import Incident, JobEvent, ProtectedJob, Quarantine, StoredJob
from sentinel.util.bell import Bell
from sentinel.util.clock import Clock, system_now
from sentinel.util.errors import PermanentError, TemporaryError

log = structlog.get_logger(__name__)

LONGEST_PAUSE_S = 30.0
CLAIMS_AT_ONCE = 16
CLAIM_AGAIN_S = 10.0
WRITES_AT_ONCE = (
    16  # half of the client's connections: however many jobs change at once, cordons go past them
)
COPY_S = 2.0  # a recovery goes through several phases in a second
SHOW_AGAIN_S = 10.0  # after a status that could not be written


def job_name(namespace: str, kind: str, name: str) -> str:
    """The name of a job's record: `research/pytorchjob.kubeflow.org/llama`. `kind` as kubectl takes it."""
    return f"{namespace}/{kind.lower()}/{name}"


def namespace_of(job: str) -> str:
    return job.partition("/")[0]


def object_of(job: str, number: str = "") -> str:
    """`research/job.batch/llama`, `-0001` -> `llama.job.batch-0001`: a valid name that reads well."""
    _, kind, name = job.split("/", 2)
    return f"{name}.{kind}{number}"


class _Book:
    """What is to be written of one job."""

    def __init__(self) -> None:
        self.job: ProtectedJob | None = None
        self.claimed = True  # no earlier leader can write of it
        self.claiming = asyncio.Lock()  # a claim beside another would be refused
        self.newest: Incident | None = None
        self.copies: dict[str, Incident] = {}  # incidents whose own object is behind
        self.copy_at_s = 0.0  # of the loop's clock: when those are written
        self.unshown: dict[str, Incident] = {}  # incidents whose status may lag
        self.saved = 0  # counts saves
        self.written = 0  # of them, those that are there
        self.noted = Bell()  # rings with each save
        self.tried = Bell()  # rings after each attempt to write
        self.problem = ""


class JobRecords:
    """Made by each new leader: `load`, then `run` until it leads no more. `tell` gets events for people, `failed` is
    called for each write that failed."""

    def __init__(
        self,
        client: Client,
        epoch: Callable[[], int],
        epochs: Epochs,
        tell: Callable[[JobEvent], None],
        failed: Callable[[], None] = lambda: None,
        clock: Clock = system_now,
    ) -> None:
        self._clock = clock
        self._tell, self._on_failure = tell, failed
        self._jobs: Store[StoredJob] = Store(
            client,
            PROTECTED_JOBS,
            StoredJob,
            key=lambda one: object_of(one.name),
            epoch=epoch,
            epochs=epochs,
            namespace=lambda one: namespace_of(one.name),
        )
        self._incidents: Store[Incident] = Store(
            client,
            INCIDENTS,
            Incident,
            key=lambda one: object_of(one.job, one.id.removeprefix(one.job)),
            epoch=epoch,
            epochs=epochs,
            namespace=lambda one: namespace_of(one.job),
        )
        self._books: dict[str, _Book] = {}
        self._known: dict[str, dict[str, Incident]] = {}  # job -> id -> incident
        self._writers: dict[str, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(WRITES_AT_ONCE)
        self._wake = asyncio.Event()
        self._dirty: set[str] = set()
        self._unshown: dict[str, None] = {}  # jobs whose status may lag
        self._some_unshown = asyncio.Event()

    async def load(self) -> None:
        """What earlier leaders left. An Incident that is behind its job's record is written again."""
        for incident in await self._incidents.load():
            self._known.setdefault(incident.job, {})[incident.id] = incident
        for stored in await self._jobs.load():
            self._read(stored)

    def _read(self, stored: StoredJob) -> None:
        book = self._books[stored.name] = _Book()
        book.job, book.newest, book.claimed = _plain(stored), stored.incident, False
        self._behind(stored.name, book)
        if stored.state.final:  # nothing is decided about it any more
            self._ours(stored.name, book)

    def _ours(self, name: str, book: _Book) -> None:
        """Nobody else writes it: what its last writer left undone is done."""
        book.claimed = True
        self._to_show(name)
        if (newest := book.newest) is not None:
            book.unshown[newest.id] = newest
        self._behind(name, book)
        if book.copies:
            self._note(name, book)

    def _behind(self, name: str, book: _Book) -> None:
        """Brakes count what the job's record holds, also before it is claimed and the Incident written."""
        if (newest := book.newest) is None:
            return
        known = self._known.setdefault(name, {})
        if known.get(newest.id) != newest:
            known[newest.id] = book.copies[newest.id] = newest

    async def claim(self, job: str) -> None:
        """Before anything is decided about a job that an earlier leader recorded, and may still write of.

        What it wrote last is known then. Raises TemporaryError, NotLeading.
        """
        book = self._books.get(job)
        if book is not None:
            async with book.claiming:
                await self._claim(job, book)

    async def _claim(self, job: str, book: _Book) -> None:
        if book.job is None or book.claimed:
            return
        try:
            now = await self._jobs.claim(_stored(book.job, book.newest))
        except NotFound:  # somebody deleted it
            now = None
        except (TemporaryError, Forbidden) as error:
            raise self._later("an earlier leader may still write its record", error) from error
        if now is not None:
            try:
                await self._followed(job, book, now.incident)
            except (TemporaryError, Forbidden) as error:
                raise self._later("how its last incident ended cannot be read", error) from error
        if self._forgotten(job, book):
            return
        if now is None:
            self.forget(job)
        else:
            book.job, book.newest = _plain(now), now.incident
            self._ours(job, book)

    async def _followed(self, job: str, book: _Book, newest: Incident | None) -> None:
        """By another incident since it was loaded: how the first one ended was written before that."""
        was = book.newest
        if was is None or (newest is not None and newest.id == was.id):
            return
        loaded = self._incidents.get(was)
        now = await self._incidents.now(was)
        if now is None or now == loaded:  # that write was refused, and its copy is ours to make
            return
        book.copies.pop(was.id, None)
        if (known := self._known.get(job)) is not None:
            known[was.id] = now

    def _later(self, what: str, error: Exception) -> TemporaryError:
        self._on_failure()
        return TemporaryError(f"{what}: {error}", getattr(error, "delay_s", 1.0))

    async def _claim_rest(self) -> None:
        """Also what no policy asks for any more, so that what its last writer left undone is done."""
        while rest := [name for name, book in self._books.items() if not book.claimed]:
            for start in range(0, len(rest), CLAIMS_AT_ONCE):
                claims = map(self.claim, rest[start : start + CLAIMS_AT_ONCE])
                for error in await asyncio.gather(*claims, return_exceptions=True):
                    if error is not None and not isinstance(error, TemporaryError):
                        raise error
            await asyncio.sleep(CLAIM_AGAIN_S)

    # ------------------------------------------------------------ Records

    def save(
        self,
        *,
        jobs: Iterable[ProtectedJob] = (),
        incidents: Iterable[Incident] = (),
        quarantines: Iterable[Quarantine] = (),
        events: Iterable[JobEvent] = (),
    ) -> None:
        """`quarantines` are those of nodes here, which the fleet's controller keeps."""
        for job in jobs:
            book = self._books.setdefault(job.name, _Book())
            book.job = job
            self._note(job.name, book)
        for incident in incidents:
            book = self._books.setdefault(incident.job, _Book())
            known = self._known.setdefault(incident.job, {})
            if incident.id not in known:
                book.copy_at_s = 0.0
            elif not book.copies:
                book.copy_at_s = asyncio.get_running_loop().time() + COPY_S
            known[incident.id] = incident
            if book.newest is None or incident.opened_wall_s >= book.newest.opened_wall_s:
                book.newest = incident
            book.copies[incident.id] = incident
            self._note(incident.job, book)
        for event in events:
            self._tell(event)

    async def written(self, job: str) -> None:
        book = self._books.get(job)
        if book is None:
            return
        wanted = book.saved
        while book.written < wanted:
            await book.tried.next()

    def jobs(self) -> list[ProtectedJob]:
        return [book.job for book in self._books.values() if book.job is not None]

    def job(self, name: str) -> ProtectedJob | None:
        book = self._books.get(name)
        return None if book is None else book.job

    def size(self, name: str, uid: str) -> int:
        """Its ranks; 0: nothing is recorded of this object."""
        job = self.job(name)
        return job.size if job is not None and job.uid == uid else 0

    def last(self, job: str) -> Incident | None:
        """Its newest incident."""
        book = self._books.get(job)
        return None if book is None else book.newest

    def newest(self) -> list[tuple[ProtectedJob, Incident | None]]:
        """Each job with its newest incident."""
        return [(book.job, book.newest) for book in self._books.values() if book.job is not None]

    def incidents(self, job: str | None = None) -> list[Incident]:
        """The oldest first."""
        of = self._known.values() if job is None else [self._known.get(job, {})]
        return sorted((one for some in of for one in some.values()), key=lambda one: one.opened_wall_s)

    def since(self, wall_s: float) -> list[tuple[Incident, ProtectedJob]]:
        """Incidents that began or ended since then or are open, with their jobs."""
        found = []
        for incident in self.incidents():
            late = incident.closed_wall_s is None or incident.closed_wall_s >= wall_s
            if late and (job := self.job(incident.job)) is not None:
                found.append((incident, job))
        return found

    def quarantines(self, active_only: bool = True) -> list[Quarantine]:
        return []

    def events(self, job: str, limit: int = 100) -> list[JobEvent]:
        """The cluster keeps them: `kubectl describe`."""
        return []

    def degraded(self, job: str) -> list[str]:
        book = self._books.get(job)
        return [f"Its record is not written: {book.problem}"] if book is not None and book.problem else []

    @property
    def unwritten(self) -> Mapping[str, str]:
        """Job -> why what was decided about it is not written yet."""
        return {name: book.problem for name, book in self._books.items() if book.problem}

    def _forgotten(self, job: str, book: _Book) -> bool:
        return self._books.get(job) is not book

    # ------------------------------------------------------------ writing

    def _note(self, name: str, book: _Book) -> None:
        book.saved += 1
        book.noted.ring()
        self._dirty.add(name)
        self._wake.set()

    async def run(self) -> None:
        """Write what is noted, until cancelled or until another one leads (NotLeading)."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._show_all(), name="status of records")
            group.create_task(self._claim_rest(), name="claims of records")
            while True:
                await self._wake.wait()
                self._wake.clear()
                for name in self._dirty - self._writers.keys():
                    if (book := self._books.get(name)) is not None:
                        work = self._write(name, book)
                        self._writers[name] = group.create_task(work, name=f"record of {name}")
                self._dirty.clear()

    async def _write(self, name: str, book: _Book) -> None:
        pause_s = 0.0
        try:
            while book.written < book.saved or book.copies:
                try:
                    if book.written == book.saved:
                        await book.noted.next(book.copy_at_s - asyncio.get_running_loop().time())
                    async with self._room:
                        await self._write_once(book)
                except (Conflict, AlreadyExists, NotFound) as error:
                    # Somebody edited or deleted it: the record is Sentinel's, and what it says now goes on.
                    log.info("record_changed_meanwhile", job=name, why=str(error))
                    pause_s = self._failed(name, book, error, pause_s) if pause_s else 0.05
                except NotLeading:
                    raise
                except (TemporaryError, PermanentError) as error:
                    pause_s = self._failed(name, book, error, pause_s)
                else:
                    book.problem, pause_s = "", 0.0
                finally:
                    book.tried.ring()
                if pause_s and self._forgotten(name, book):
                    break
                if pause_s:
                    await asyncio.sleep(pause_s)
            if self._forgotten(name, book):  # nobody shows it later
                await self._try_to_show(book)
        finally:
            self._writers.pop(name, None)
            self._to_show(name)
            there = self._books.get(name)
            if there is not None and there is not book:  # it was forgotten, and is taken up again
                self._dirty.add(name)
                self._wake.set()

    def _failed(self, name: str, book: _Book, error: Exception, before_s: float) -> float:
        self._on_failure()
        book.problem = str(error)
        log.warning("record_not_written", job=name, error=f"{type(error).__name__}: {error}")
        wished = getattr(error, "delay_s", 1.0)
        return min(max(wished, 2 * before_s, 0.1), LONGEST_PAUSE_S)

    async def _write_once(self, book: _Book) -> None:
        """Older incidents first, which this record of the job holds no more. One that is refused keeps no job from its
        recovery."""
        upto, job, newest, refused = book.saved, book.job, book.newest, None
        for id, incident in list(book.copies.items()):
            if newest is None or id != newest.id:
                try:
                    await self._copy(book, id, incident)
                except NotLeading:
                    raise
                except PermanentError as error:
                    refused, book.copy_at_s = error, 0.0
        if book.written < upto:
            if job is not None:
                await self._jobs.save(_stored(job, newest))
            book.written = upto
        elif newest is not None and newest.id in book.copies:
            await self._copy(book, newest.id, newest)
        if refused is not None:
            raise refused

    async def _copy(self, book: _Book, id: str, incident: Incident) -> None:
        await self._incidents.save(incident)
        book.unshown[id] = incident
        if book.copies.get(id) is incident:
            del book.copies[id]

    # ------------------------------------------------------------ status

    def _to_show(self, name: str) -> None:
        self._unshown[name] = None
        self._some_unshown.set()

    async def _show_all(self) -> None:
        """One job after the other: it is only for who reads it, and takes nothing from records and cordons. A save of
        that job may come meanwhile: whichever is first refuses the other, which is tried again."""
        while True:
            name = next((one for one in self._unshown if one not in self._writers), None)
            if name is None:
                self._some_unshown.clear()
                await self._some_unshown.wait()
                continue
            del self._unshown[name]
            if (book := self._books.get(name)) is not None:
                error = await self._try_to_show(book)
                if error is not None:
                    self._on_failure()
                    log.warning("status_not_written", job=name, error=f"{type(error).__name__}: {error}")
                    self._to_show(name)
                    await asyncio.sleep(max(SHOW_AGAIN_S, getattr(error, "delay_s", 0.0)))

    async def _try_to_show(self, book: _Book) -> Exception | None:
        """What it failed at. Raises NotLeading."""
        try:
            await self._show(book)
        except NotLeading:
            raise
        except (TemporaryError, PermanentError) as error:
            return error
        return None

    async def _show(self, book: _Book) -> None:
        wall_s = self._clock().wall_s
        if book.job is not None:
            stored = _stored(book.job, book.newest)
            await self._jobs.show(stored, of_job(stored), wall_s)
        for id, incident in list(book.unshown.items()):
            await self._incidents.show(incident, of_incident(incident), wall_s)
            if book.unshown.get(id) is incident:
                del book.unshown[id]

    def observe(self, place: tuple[str, str], now: Custom) -> None:
        """What an order's answer has made of a ProtectedJob: the next save need not find out. `place`: its
        namespace and the object's name."""
        self._jobs.observe(place, now)

    def forget(self, job: str) -> None:
        """Nobody asks for it any more, or it is gone for good, and perhaps its namespace: what of its record is not
        written yet never will be. Its incidents are copied, where they can be at once."""
        book = self._books.pop(job, None)
        self._known.pop(job, None)
        self._dirty.discard(job)
        if book is not None:
            book.written, book.copy_at_s = book.saved, 0.0
            book.noted.ring()
            book.tried.ring()


def _stored(job: ProtectedJob, newest: Incident | None) -> StoredJob:
    return StoredJob(**structs.asdict(job), incident=newest)


def _plain(stored: StoredJob) -> ProtectedJob:
    fields = structs.asdict(stored)
    del fields["incident"]
    return ProtectedJob(**fields)
