"""The records of one machine in one SQLite file, kept through kills, locks, damage and full disks.

Everything that this process saved recently is also held in memory: while the file cannot be written,
reads come from there, and the next save or flush writes what is owed. `degraded` says so in words.
"""

import errno
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog

from sentinel.cluster.local.store_file import (
    LOG_PAGES,
    LOG_PAGES_FULL,
    TABLES,
    VERSION,
    Ballast,
    DamagedError,
    StateVersionError,
    checkpoint,
    connect,
    connect_read_only,
    create,
    set_aside,
)
from sentinel.core.health import Finding
from sentinel.core.model import Incident, JobEvent, ProtectedJob, Quarantine

__all__ = ["VERSION", "LocalStore", "StateVersionError"]

log = structlog.get_logger()

BUSY_S = 2.0
BUSY_AGAIN_MS = 20  # once the file was found locked, later saves must not hold up the job's recovery
EVENTS_PER_JOB = 1000
MIRROR_ROWS = 300  # recent rows of this process, to write them again should the file be lost
BALLAST_BYTES = 4 << 20
SAVES_PER_CHECKPOINT = 100
CLOSE_S = 2.0  # a checkpoint on a stuck disk must not hold up the end

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_LOCKED = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

T = TypeVar("T")
Key = tuple[Any, ...]  # (table, key columns...)
Values = tuple[Any, ...]  # all columns, the blob last


class LocalStore:
    """Implements `sentinel.cluster.base.Records`. For one thread. `read_only` is for `status`: it makes, repairs
    and migrates nothing. Raises StateVersionError for the file of a newer Sentinel; every other trouble with
    the file is a degraded mode."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        busy_s: float = BUSY_S,
        ballast_bytes: int = BALLAST_BYTES,
    ) -> None:
        self.path = Path(path)
        self._read_only = read_only
        self._busy_s = busy_s
        self._ballast = Ballast(self.path.with_name(self.path.name + ".ballast"), ballast_bytes)
        self._db: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._mirror: dict[Key, Values] = {}
        self._dirty: dict[Key, None] = {}  # an ordered set
        self._troubles: dict[str, str] = {}
        self._unreadable: set[Key] = set()
        self._known_good = False
        self._saves = 0
        self._checkpointing: threading.Thread | None = None
        if read_only and not self.path.exists():
            return
        self._attempt(self._ready)
        if not read_only:
            self.flush()
            self._keep_ballast(now=True)

    # ------------------------------------------------------------ state of the store

    @property
    def degraded(self) -> tuple[str, ...]:
        """What does not work as it should, one sentence each; empty when all is well."""
        told = list(self._troubles.values())
        if self._unreadable:
            told.append(
                f"{len(self._unreadable)} records in {self.path} cannot be decoded and are left as they are."
            )
        return tuple(told)

    @property
    def unwritten(self) -> int:
        """Rows that are only in memory."""
        return len(self._dirty)

    def close(self) -> None:
        """Write what is owed and let go of the file."""
        if not self._read_only:
            self.flush()
        if self._checkpointing is not None:
            self._checkpointing.join(CLOSE_S)
        self._disconnect()

    # ------------------------------------------------------------ writing

    def save(
        self,
        *,
        jobs: Iterable[ProtectedJob] = (),
        incidents: Iterable[Incident] = (),
        quarantines: Iterable[Quarantine] = (),
        events: Iterable[JobEvent] = (),
        positions: Mapping[tuple[str, int, int], bytes] | None = None,
        findings: Iterable[Finding] | None = None,
    ) -> None:
        """Save all of these in one transaction. On return they are in the file, or held in memory with
        `degraded` saying so. `positions`: (job, incarnation, rank) -> opaque bytes; the positions of a job's
        incarnations before the last but one are dropped. `findings` replaces the whole set."""
        now_s = time.time()
        encode = msgspec.json.encode
        for job in jobs:
            self._put("jobs", (job.name, int(job.state.final), now_s, encode(job)))
        for incident in incidents:
            self._put("incidents", (incident.id, incident.job, incident.closed_wall_s, encode(incident)))
        for isolation in quarantines:
            row = (isolation.entity, isolation.since_wall_s, isolation.ended_wall_s, encode(isolation))
            self._put("quarantines", row)
        for event in events:
            self._put("events", (os.urandom(8).hex(), event.job, encode(event)))
        for place, blob in (positions or {}).items():
            self._put("positions", (*place, blob))
        if findings is not None:
            self._put("findings", ("machine", encode(list(findings))))
        self._forget(2 * EVENTS_PER_JOB)
        self.flush()

    async def written(self, job: str) -> None:
        """`save` writes at once, or keeps it for later where the disk does not let it."""

    def save_positions(self, job: str, incarnation: int, positions: Mapping[int, bytes]) -> None:
        """How far each rank's log was read: rank -> opaque bytes."""
        self.save(positions={(job, incarnation, rank): blob for rank, blob in positions.items()})

    def save_findings(self, findings: Iterable[Finding]) -> None:
        """Replace the findings that must survive a restart."""
        self.save(findings=findings)

    def flush(self) -> bool:
        """Write what is still owed. True when nothing is; also makes the ballast again once there is room."""
        written = not self._dirty or self._attempt(self._write)
        if written:
            self._keep_ballast()
        return written

    def verify(self) -> None:
        """Read the file as a newcomer would: what a connection holds in memory hides damage from it."""

        def look() -> None:
            self._ready()
            with closing(connect_read_only(self.path, self._busy_ms())) as db:
                db.execute("SELECT count(*) FROM jobs").fetchone()

        if self._attempt(look):
            self.flush()

    def prune(self, older_than_wall_s: float) -> int:
        """Drop incidents that were closed and quarantines that ended before then. Returns the number of rows."""
        return self._drop(
            (
                "DELETE FROM incidents WHERE closed_s < :than",
                "DELETE FROM quarantines WHERE ended_s < :than",
            ),
            older_than_wall_s,
        )

    def forget(self, job: str) -> bool:
        """Drop an ended job and all that is its. True: it is gone."""
        its = "job IN (SELECT name FROM jobs WHERE name = :than AND final)"
        statements = [f"DELETE FROM {table} WHERE {its}" for table in ("events", "positions", "incidents")]
        return self._drop((*statements, "DELETE FROM jobs WHERE name = :than AND final"), job) > 0

    def ended(self) -> list[tuple[str, float]]:
        """Name and end (Unix seconds) of the jobs that have ended, the newest first."""
        found: list[tuple[str, float]] = []
        query = "SELECT name, saved_s FROM jobs WHERE final ORDER BY saved_s DESC, name"

        def read() -> None:
            found[:] = self._ready().execute(query).fetchall()

        return found if self._attempt(read) else []

    def _drop(self, statements: Iterable[str], than: float | str) -> int:
        if not self.flush() or self._db is None:
            return 0
        dropped = 0

        def remove() -> None:
            nonlocal dropped
            dropped = 0
            db = self._ready()
            db.execute("BEGIN IMMEDIATE")
            for statement in statements:
                dropped += db.execute(statement, {"than": than}).rowcount
            db.execute("COMMIT")

        if not self._attempt(remove):
            return 0
        # What was dropped must not come back from memory: there only what is not over stays, and what is still owed to
        # a file that was made anew meanwhile.
        over = {"jobs": 1, "incidents": 2, "quarantines": 2}
        self._mirror = {
            key: row
            for key, row in self._mirror.items()
            if key in self._dirty or (key[0] != "events" and not (key[0] in over and row[over[key[0]]]))
        }
        return dropped

    def _put(self, table: str, values: Values) -> None:
        key = (table, *values[: TABLES[table].keys])
        self._mirror.pop(key, None)
        self._mirror[key] = values
        self._dirty[key] = None

    def _checkpoint_aside(self) -> None:
        if self._checkpointing is None or not self._checkpointing.is_alive():
            self._checkpointing = threading.Thread(target=checkpoint, args=(self.path,), daemon=True)
            self._checkpointing.start()

    def _forget(self, limit: int) -> None:
        """Bound the memory of what many rows can be of; rows that are owed and closed stories go oldest first."""
        excess = len(self._mirror) - limit
        for key in [key for key in self._mirror if key[0] in ("events", "incidents")][: max(0, excess)]:
            if key[0] == "events" or key not in self._dirty:
                del self._mirror[key]
                self._dirty.pop(key, None)

    def _write(self) -> None:
        db = self._ready()
        owed = list(self._dirty)
        db.execute("BEGIN IMMEDIATE")
        for key in owed:
            db.execute(TABLES[key[0]].upsert(key[0]), self._mirror[key])
        for job in {self._mirror[key][1] for key in owed if key[0] == "events"}:
            db.execute(
                "DELETE FROM events WHERE job = ?1 AND rowid <= (SELECT rowid FROM events WHERE job = ?1"
                f" ORDER BY rowid DESC LIMIT 1 OFFSET {EVENTS_PER_JOB})",
                (job,),
            )
        outdated = {(key[1], key[2] - 1) for key in owed if key[0] == "positions"}
        for job, before in outdated:
            db.execute("DELETE FROM positions WHERE job = ? AND incarnation < ?", (job, before))
        db.execute("COMMIT")
        self._dirty.clear()
        self._settle()
        self._saves += 1
        if self._saves % SAVES_PER_CHECKPOINT == 0:
            self._checkpoint_aside()
        for key in [key for key in self._mirror if key[0] == "positions"]:
            if any(key[1] == job and key[2] < before for job, before in outdated):
                del self._mirror[key]
        self._forget(MIRROR_ROWS)

    # ------------------------------------------------------------ reading

    def jobs(self) -> list[ProtectedJob]:
        return self._decoded("jobs", ProtectedJob)

    def job(self, name: str) -> ProtectedJob | None:
        return next(iter(self._decoded("jobs", ProtectedJob, "name", name)), None)

    def incidents(self, job: str | None = None) -> list[Incident]:
        """In the order in which they were opened."""
        return self._decoded("incidents", Incident, "job" if job else "", job)

    def incident(self, incident_id: str) -> Incident | None:
        return next(iter(self._decoded("incidents", Incident, "id", incident_id)), None)

    def quarantines(self, active_only: bool = True) -> list[Quarantine]:
        found = self._decoded("quarantines", Quarantine)
        return [one for one in found if one.ended_wall_s is None] if active_only else found

    def events(self, job: str, limit: int = 100) -> list[JobEvent]:
        """The newest `limit`, oldest first."""
        return self._decoded("events", JobEvent, "job", job, limit)

    def positions(self, job: str) -> dict[tuple[int, int], bytes]:
        """(incarnation, rank) -> the bytes that were saved."""
        return {(key[2], key[3]): blob for key, blob in self._rows("positions", "job", job).items()}

    def findings(self) -> list[Finding]:
        sets = self._decoded("findings", list[Finding])
        return sets[0] if sets else []

    def _decoded(
        self, table: str, kind: type[T], column: str = "", value: object = None, limit: int = -1
    ) -> list[T]:
        good: list[T] = []
        for key, blob in self._rows(table, column, value, limit).items():
            try:
                good.append(msgspec.json.decode(blob, type=kind))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                if key not in self._unreadable:
                    self._unreadable.add(key)
                    log.warning("record_unreadable", table=table, key=repr(key[1:]), error=str(error))
        return good

    def _rows(self, table: str, column: str = "", value: object = None, limit: int = -1) -> dict[Key, bytes]:
        """Blobs by key in the order of saving: the file's, and over them those that it still lacks."""
        spec = TABLES[table]
        found: dict[Key, bytes] = {}
        where = f"WHERE {column} = :value" if column else ""
        query = f"SELECT {', '.join(spec.columns)} FROM {table} {where} ORDER BY rowid DESC LIMIT :limit"

        def read() -> None:
            rows = self._ready().execute(query, {"value": value, "limit": limit}).fetchall()
            found.update({(table, *row[: spec.keys]): row[-1] for row in reversed(rows)})
            if self._read_only:
                self._settle()

        from_file = (not self._read_only or self.path.exists()) and self._attempt(read)
        for key in list(self._dirty if from_file else self._mirror):
            values = self._mirror[key]
            if key[0] == table and (not column or values[spec.columns.index(column)] == value):
                found[key] = values[-1]
        return found if limit < 0 else dict(list(found.items())[max(0, len(found) - limit) :])

    # ------------------------------------------------------------ the file and its troubles

    def _ready(self) -> sqlite3.Connection:
        """A connection to the file that now has the name; opens, makes and migrates it as needed."""
        try:
            status = os.stat(self.path)
            identity = (status.st_dev, status.st_ino)
        except FileNotFoundError:
            identity = None
        if self._db is not None and identity == self._identity:
            return self._db
        if self._db is not None:
            self._disconnect()
            self._dirty = dict.fromkeys(self._mirror)  # the new file knows nothing of this run
            self._trouble(
                "replaced", f"{self.path} was removed or replaced; this run's records are written anew."
            )
        if self._read_only:
            self._db = connect_read_only(self.path, self._busy_ms())
        else:
            if identity is None:
                create(self.path)
            self._db = connect(self.path, self._busy_ms())
        self._known_good = True
        status = os.stat(self.path)
        self._identity = (status.st_dev, status.st_ino)
        return self._db

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _busy_ms(self) -> int:
        return BUSY_AGAIN_MS if "locked" in self._troubles else int(self._busy_s * 1000)

    def _attempt(self, work: Any) -> bool:
        """Run `work`, mending what can be mended. False: the file could not be used, `degraded` says why."""
        for _ in range(4):
            try:
                work()
                return True
            except StateVersionError as error:
                if not self._known_good:  # at the start there is nothing to lose by refusing; later there is
                    raise
                self._trouble("unusable", f"{error} Records are held in memory.")
                return False
            except (sqlite3.Error, OSError, DamagedError) as error:
                if self._db is not None and self._db.in_transaction:
                    self._rollback()
                if not self._mend(error):
                    return False
        return False

    def _rollback(self) -> None:
        try:
            assert self._db is not None
            self._db.execute("ROLLBACK")
        except sqlite3.Error:  # a connection that cannot even roll back is of no use any more
            self._disconnect()

    def _mend(self, error: Exception) -> bool:
        """True if trying again makes sense."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _LOCKED or isinstance(error, BlockingIOError):
            self._trouble("locked", f"{self.path} is locked by another process; records are held in memory.")
            if self._db is not None:
                self._db.execute(f"PRAGMA busy_timeout = {BUSY_AGAIN_MS}")
            return False
        if self._read_only:
            self._disconnect()
            self._trouble("unusable", f"{self.path} cannot be read ({error}).")
            return False
        if code in _DAMAGED or isinstance(error, DamagedError):
            return self._replace(error)
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_READONLY_DBMOVED:
            self._disconnect()
            return True
        full = code == sqlite3.SQLITE_FULL or getattr(error, "errno", 0) in _FULL
        if full or code == sqlite3.SQLITE_IOERR:  # sqlite reports a full quota as an I/O error
            freed = self._ballast.free() or self._compact()
            if code == sqlite3.SQLITE_IOERR:
                self._disconnect()
            elif self._db is not None:  # the log must not eat the room that the file needs
                self._db.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES_FULL}")
            if freed:
                return self._trouble("full", self._reserve_freed)
            if full:
                self._trouble("full", f"The disk of {self.path} is full; records are held in memory.")
                return False
        self._disconnect()
        self._trouble("unusable", f"{self.path} cannot be used ({error}); records are held in memory.")
        return False

    @property
    def _reserve_freed(self) -> str:
        return f"The disk of {self.path} is full; its reserve was freed for the records."

    def _compact(self) -> bool:
        """Move the log's pages to their places in the file and cut the log. True if that gave room."""
        try:
            log_file = Path(f"{self.path}-wal")
            before = log_file.stat().st_size
            if self._db is None or before == 0:
                return False
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return log_file.stat().st_size < before
        except (sqlite3.Error, OSError):
            return False

    def _replace(self, why: Exception) -> bool:
        self._disconnect()
        try:
            aside, rescued = set_aside(self.path)
        except (sqlite3.Error, OSError) as error:
            return self._mend(error)
        self._dirty = dict.fromkeys(self._mirror)
        self._trouble(
            "damaged",
            f"{self.path} was damaged ({why}); it is kept as {aside.name}, and a new one was started "
            f"with the {rescued} records that could be read.",
        )
        return True

    def _trouble(self, kind: str, sentence: str) -> bool:
        """Name a degraded mode. Always True."""
        if self._troubles.get(kind) != sentence:
            self._troubles[kind] = sentence
            log.warning("state_degraded", kind=kind, sentence=sentence)
        return True

    def _settle(self) -> None:
        """A write went through: what hindered it is over."""
        if "full" in self._troubles:
            self._troubles["full"] = self._reserve_freed
        for kind in ("locked", "unusable"):
            if self._troubles.pop(kind, None):
                log.info("state_recovered", kind=kind)
                if kind == "locked" and self._db is not None:
                    self._db.execute(f"PRAGMA busy_timeout = {int(self._busy_s * 1000)}")

    def _keep_ballast(self, *, now: bool = False) -> None:
        if "full" not in self._troubles and not now:
            return
        if self._ballast.ensure(now=now):
            if self._troubles.pop("full", None) and self._db is not None:
                self._db.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
        elif "full" not in self._troubles:
            self._trouble("full", f"The disk of {self.path} has no room for the records' reserve.")
