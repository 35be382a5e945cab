"""The state file itself: its schema and versions, how it is made, repaired, and given room on a full disk."""

import errno
import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import structlog

from sentinel.util.errors import PermanentError

log = structlog.get_logger()

VERSION = 1
LOG_PAGES = 1000  # 4 MiB of write-ahead log, if no checkpoint aside came before
LOG_PAGES_FULL = 16  # on a full disk

Row = tuple[str, tuple[object, ...]]  # table, values of all its columns


class Table(NamedTuple):
    """`columns` in order, `data` (a JSON blob) last; the first `keys` of them name a row."""

    columns: tuple[str, ...]
    keys: int
    ddl: tuple[str, ...]

    def upsert(self, name: str) -> str:
        marks = ", ".join("?" * len(self.columns))
        sets = ", ".join(f"{column}=excluded.{column}" for column in self.columns[self.keys :])
        keys = ", ".join(self.columns[: self.keys])
        return (
            f"INSERT INTO {name} ({', '.join(self.columns)}) VALUES ({marks})"
            f" ON CONFLICT ({keys}) DO UPDATE SET {sets}"
        )


# What queries select by stands in columns of its own; the record is the blob. Rows come back in the order
# in which they were first saved (rowid), since the wall clock may step.
TABLES: dict[str, Table] = {
    "jobs": Table(
        ("name", "final", "saved_s", "data"),
        1,
        ("CREATE TABLE jobs (name TEXT PRIMARY KEY, final INTEGER, saved_s REAL, data BLOB NOT NULL)",),
    ),
    "incidents": Table(
        ("id", "job", "closed_s", "data"),
        1,
        (
            "CREATE TABLE incidents (id TEXT PRIMARY KEY, job TEXT, closed_s REAL, data BLOB NOT NULL)",
            "CREATE INDEX incidents_job ON incidents (job)",
        ),
    ),
    "quarantines": Table(
        ("entity", "since_s", "ended_s", "data"),
        2,
        (
            "CREATE TABLE quarantines (entity TEXT, since_s REAL, ended_s REAL, data BLOB NOT NULL,"
            " PRIMARY KEY (entity, since_s))",
        ),
    ),
    # `uid` makes writing an event again, after a failure that may or may not have reached the disk, harmless.
    "events": Table(
        ("uid", "job", "data"),
        1,
        (
            "CREATE TABLE events (uid TEXT PRIMARY KEY, job TEXT, data BLOB NOT NULL)",
            "CREATE INDEX events_job ON events (job)",
        ),
    ),
    "positions": Table(
        ("job", "incarnation", "rank", "data"),
        3,
        (
            "CREATE TABLE positions (job TEXT, incarnation INTEGER, rank INTEGER, data BLOB NOT NULL,"
            " PRIMARY KEY (job, incarnation, rank))",
        ),
    ),
    "findings": Table(
        ("scope", "data"), 1, ("CREATE TABLE findings (scope TEXT PRIMARY KEY, data BLOB NOT NULL)",)
    ),
}


class StateVersionError(PermanentError):
    """The state file was written by a newer Sentinel. Nothing was changed in it."""

    def __init__(self, path: Path, version: int) -> None:
        super().__init__(
            f"{path}: state file of version {version}, but this Sentinel reads up to version {VERSION}. "
            "Use the newer Sentinel, or another state directory.",
            reason="StateTooNew",
        )


class DamagedError(Exception):
    """The file is not a whole database of ours; the message says what is wrong with it."""


def _to_version_1(db: sqlite3.Connection) -> None:
    """Version 0 knew jobs, incidents, quarantines and events as (key, data) pairs, nothing else."""
    old = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    for name in old & TABLES.keys():
        db.execute(f"ALTER TABLE {name} RENAME TO old_{name}")
    for table in TABLES.values():
        for statement in table.ddl:
            db.execute(statement)
    copies = {
        "jobs": "SELECT name, json_extract(data, '$.state') IN ('error', 'stopped', 'expired', 'succeeded'),"
        " CAST(strftime('%s', 'now') AS REAL), data FROM old_jobs ORDER BY rowid",
        "incidents": "SELECT id, json_extract(data, '$.job'), json_extract(data, '$.closed_wall_s'), data"
        " FROM old_incidents ORDER BY rowid",
        "quarantines": "SELECT entity, json_extract(data, '$.since_wall_s'),"
        " json_extract(data, '$.ended_wall_s'), data FROM old_quarantines ORDER BY rowid",
        "events": "SELECT 'old-' || rowid, json_extract(data, '$.job'), data FROM old_events ORDER BY rowid",
    }
    for name, query in copies.items():
        if name in old:
            db.execute(f"INSERT INTO {name} ({', '.join(TABLES[name].columns)}) {query}")
    for name in old & TABLES.keys():
        db.execute(f"DROP TABLE old_{name}")


# MIGRATIONS[n] turns version n into n + 1, all in one transaction.
MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (_to_version_1,)


def migrate(db: sqlite3.Connection) -> int:
    """Bring an older file to VERSION and return the version that it had. Safe when two processes try at once."""
    if _version(db) == VERSION:
        return VERSION
    db.execute("BEGIN IMMEDIATE")
    try:
        before = _version(db)
        for step in MIGRATIONS[before:]:
            step(db)
        db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    return before


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def create(path: Path) -> None:
    """Make an empty state file. It appears under its name only when whole, so an empty file is a cut-off one."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = _draft(path, ())
    try:
        os.link(draft, path)  # unlike rename, never replaces the file of a process that was faster
    except FileExistsError:
        return
    except OSError:  # a file system without hard links
        if not path.exists():
            draft.rename(path)
    finally:
        draft.unlink(missing_ok=True)


def _draft(path: Path, rows: Iterable[Row]) -> Path:
    """A whole state file beside `path`. Mode 0600: the records hold the environment of jobs, and so secrets."""
    draft = path.with_name(f"{path.name}.new-{os.getpid()}")
    draft.unlink(missing_ok=True)
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600))
        with closing(sqlite3.connect(draft, isolation_level=None)) as db:
            migrate(db)
            db.execute("BEGIN")
            for name, values in rows:
                db.execute(TABLES[name].upsert(name), values)
            db.execute("COMMIT")
            db.execute("PRAGMA journal_mode = WAL")
    except BaseException:
        for leftover in (draft, Path(f"{draft}-journal"), Path(f"{draft}-wal"), Path(f"{draft}-shm")):
            leftover.unlink(missing_ok=True)
        raise
    return draft


def connect(path: Path, busy_ms: int) -> sqlite3.Connection:
    """Open a state file, checked and migrated. Raises DamagedError, StateVersionError, sqlite3.Error, OSError."""
    if os.stat(path).st_size == 0:
        raise DamagedError("it is empty: it was cut off")
    db = sqlite3.connect(path, isolation_level=None, timeout=busy_ms / 1000)
    try:
        version = _version(db)
        if version > VERSION:
            raise StateVersionError(path, version)
        verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise DamagedError(" ".join(str(verdict).split()))
        db.execute("PRAGMA journal_mode = WAL")
        # NORMAL: a commit is in the page cache of the kernel, which every death of a process survives. Only a
        # crash of the machine can take the last commits (never the consistency of the file), and that ends
        # all ranks too: the boot id tells the next start that everything must be looked at afresh. FULL would
        # cost one fsync, often tens of ms on a busy training disk, in the path of each recovery.
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
        db.execute("PRAGMA journal_size_limit = 1048576")
        migrate(db)
    except BaseException:
        db.close()
        raise
    return db


def checkpoint(path: Path) -> None:
    """Move what the write-ahead log holds into the file, for a thread of its own: this waits for the disk,
    which a save must not, and hinders no writer meanwhile. What fails here is tried again by the next one."""
    try:
        with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as db:
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA wal_checkpoint(PASSIVE)")
    except sqlite3.Error as error:
        log.info("checkpoint_put_off", path=str(path), error=str(error))


def connect_read_only(path: Path, busy_ms: int) -> sqlite3.Connection:
    """Open a state file to look only. Raises as `connect` does."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    if not os.access(path.parent, os.W_OK) and not os.path.exists(f"{path}-wal"):
        uri += "&immutable=1"  # no writer is there, and the index of the log cannot be made
    db = sqlite3.connect(uri, uri=True, timeout=busy_ms / 1000, isolation_level=None)
    try:
        version = _version(db)
        if version > VERSION:
            raise StateVersionError(path, version)
        if version < VERSION:
            raise DamagedError(
                f"it is of the older version {version}; the next `sentinel run` brings it to version {VERSION}"
            )
    except BaseException:
        db.close()
        raise
    return db


def set_aside(path: Path) -> tuple[Path, int]:
    """Keep a damaged file under another name and put one with what can still be read in its place.

    Returns (new name, rows rescued). On an error the damaged file is still in its place. Raises
    BlockingIOError while another process does the same.
    """
    found = os.stat(path).st_ino
    with open(f"{path}.repair", "a") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(path).st_ino != found:
            raise BlockingIOError(errno.EAGAIN, "another process has just repaired it")
        rows = rescue(path)
        draft = _draft(path, rows)
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        names = (
            f"{path.name}.damaged-{stamp}{number}" for number in ("", *(f"-{n}" for n in range(1, 1000)))
        )
        aside = next(name for name in map(path.with_name, names) if not name.exists())
        # The log goes with its file: left in place it would be replayed into the new one.
        for suffix in ("-wal", "-shm"):
            beside = Path(f"{path}{suffix}")
            if beside.exists():
                beside.rename(f"{aside}{suffix}")
        path.rename(aside)
        draft.rename(path)
        return aside, len(rows)


def rescue(damaged: Path) -> list[Row]:
    """(table, values) of every row that can still be read, from both ends of each table towards the damage."""
    rows: list[Row] = []
    for name, table in TABLES.items():
        found: dict[int, tuple[object, ...]] = {}
        for order in ("ASC", "DESC"):
            query = f"SELECT rowid, {', '.join(table.columns)} FROM {name} NOT INDEXED ORDER BY rowid {order}"
            try:
                with closing(sqlite3.connect(damaged, isolation_level=None)) as db:
                    db.execute("PRAGMA writable_schema = ON")  # opens a file with fewer pages than it claims
                    for row in db.execute(query):
                        if isinstance(row[-1], bytes):
                            found.setdefault(row[0], tuple(row[1:]))
                break  # read to the end: nothing is missing
            except sqlite3.Error:
                continue
        rows.extend((name, found[rowid]) for rowid in sorted(found))
    return rows


class Ballast:
    """A file that only takes room, removed when the disk is full so that the records still fit."""

    RETRY_S = 30.0

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self._next_try_s = 0.0

    @property
    def there(self) -> bool:
        try:
            return os.stat(self.path).st_size >= self.size_bytes
        except OSError:
            return False

    def free(self) -> bool:
        """True if room was made."""
        try:
            os.unlink(self.path)
        except OSError:
            return False
        self._next_try_s = time.monotonic() + self.RETRY_S
        return True

    def ensure(self, *, now: bool = False) -> bool:
        """Make it again if there is clearly room; tried every RETRY_S at most, unless `now`. True: it is there."""
        if self.there:
            return True
        if not now and time.monotonic() < self._next_try_s:
            return False
        self._next_try_s = time.monotonic() + self.RETRY_S
        try:
            room = os.statvfs(self.path.parent)
            if room.f_bavail * room.f_frsize < 2 * self.size_bytes:
                return False
            descriptor = os.open(self.path, os.O_CREAT | os.O_WRONLY, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, self.size_bytes)
            finally:
                os.close(descriptor)
        except OSError:
            self.path.unlink(missing_ok=True)
            return False
        return True
