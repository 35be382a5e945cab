"""The state file keeps what it acknowledged, through everything that happens to files."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from sentinel.cluster.local.names import check_job_name
from sentinel.cluster.local.store import (
    EVENTS_PER_JOB,
    SAVES_PER_CHECKPOINT,
    VERSION,
    LocalStore,
    StateVersionError,
)
from sentinel.core.model import (
    Cause,
    Incident,
    IncidentKind,
    JobEvent,
    JobState,
    Launch,
    ProtectedJob,
    Quarantine,
    Symptom,
    Verdict,
)
from sentinel.core.policy_model import Policy
from sentinel.util.errors import PermanentError
from tests.samples import lost_gpu
from tests.waits import until

SMALL_BALLAST = 64 << 10


def a_job(name: str = "llama", **changes: object) -> ProtectedJob:
    launch = Launch(command=("python", "train.py"), cwd="/home/me", env={"A": "1"}, nproc=2)
    return msgspec.structs.replace(ProtectedJob(name=name, policy=Policy(), launch=launch), **changes)


def an_incident(number: int = 1, job: str = "llama", **changes: object) -> Incident:
    verdict = Verdict(
        symptom=Symptom.RANK_LOST, cause=Cause.GPU, failure="gpu-lost", scope="node", sentence="GPU lost."
    )
    incident = Incident(id=f"{job}-{number:04}", job=job, kind=IncidentKind.FORCED, verdict=verdict)
    return msgspec.structs.replace(incident, **changes)


def an_event(number: int, job: str = "llama") -> JobEvent:
    return JobEvent(job=job, wall_s=float(number), reason="Tested", sentence=f"event {number}")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


def open_store(path: Path, **options: object) -> LocalStore:
    return LocalStore(path, **{"busy_s": 0.05, "ballast_bytes": SMALL_BALLAST, **options})  # type: ignore[arg-type]


@pytest.fixture
def store(path: Path) -> Iterator[LocalStore]:
    with closing(open_store(path)) as opened:
        yield opened


# ------------------------------------------------------------ records


def test_every_record_comes_back_as_it_was_saved(path: Path, store: LocalStore) -> None:
    isolation = Quarantine(entity="GPU 0", since_wall_s=5.0, findings=(lost_gpu(),), needs="reboot")
    store.save(
        jobs=[a_job()], incidents=[an_incident()], quarantines=[isolation], events=[an_event(1), an_event(2)]
    )
    store.save_positions("llama", 1, {0: b"\x00\xff", 1: b"two"})
    store.save_findings([lost_gpu()])
    store.close()

    with closing(open_store(path)) as again:
        assert again.jobs() == [a_job()]
        assert again.job("llama") == a_job()
        assert again.incidents("llama") == again.incidents() == [an_incident()]
        assert again.incident("llama-0001") == an_incident()
        assert again.quarantines() == [isolation]
        assert again.events("llama") == [an_event(1), an_event(2)]
        assert again.positions("llama") == {(1, 0): b"\x00\xff", (1, 1): b"two"}
        assert again.findings() == [lost_gpu()]
        assert again.degraded == ()


def test_what_was_never_saved_is_not_there(store: LocalStore) -> None:
    assert store.job("none") is None
    assert store.incident("none-0001") is None
    assert store.incidents("none") == store.events("none") == store.findings() == []
    assert store.positions("none") == {}


def test_saving_again_replaces_a_record_and_keeps_the_order(store: LocalStore) -> None:
    store.save(incidents=[an_incident(1), an_incident(2)])
    store.save(incidents=[an_incident(1, reason="Moved")])
    assert [(one.id, one.reason) for one in store.incidents()] == [
        ("llama-0001", "Moved"),
        ("llama-0002", ""),
    ]


def test_an_ended_quarantine_is_shown_only_on_request(store: LocalStore) -> None:
    ended = Quarantine(entity="GPU 0", since_wall_s=1.0, findings=(), needs="", ended_wall_s=2.0)
    active = Quarantine(entity="GPU 0", since_wall_s=3.0, findings=(), needs="")
    store.save(quarantines=[ended, active])
    assert store.quarantines() == [active]
    assert store.quarantines(active_only=False) == [ended, active]


def test_a_job_keeps_its_newest_thousand_events(store: LocalStore) -> None:
    store.save(events=[an_event(number) for number in range(EVENTS_PER_JOB)])
    store.save(events=[an_event(1000), an_event(1001)])
    store.save(events=[an_event(0, job="other")])
    kept = store.events("llama", limit=5000)
    assert len(kept) == EVENTS_PER_JOB
    assert (kept[0], kept[-1]) == (an_event(2), an_event(1001))
    assert store.events("llama", limit=2) == [an_event(1000), an_event(1001)]
    assert store.events("other") == [an_event(0, job="other")]


def test_positions_of_long_gone_incarnations_are_dropped(store: LocalStore) -> None:
    for incarnation in (1, 2, 3):
        store.save_positions("llama", incarnation, {0: b"p%d" % incarnation})
    assert store.positions("llama") == {(2, 0): b"p2", (3, 0): b"p3"}


def test_saving_findings_replaces_the_whole_set(store: LocalStore) -> None:
    store.save_findings([lost_gpu(), lost_gpu(code="XID 48")])
    store.save_findings([lost_gpu(code="XID 48", count=2)])
    assert store.findings() == [lost_gpu(code="XID 48", count=2)]
    store.save_findings([])
    assert store.findings() == []


def test_pruning_takes_what_is_over_and_leaves_what_goes_on(path: Path, store: LocalStore) -> None:
    store.save(
        jobs=[a_job("done", state=JobState.SUCCEEDED), a_job("live", state=JobState.RUNNING)],
        incidents=[
            an_incident(1, "live", closed_wall_s=10.0),
            an_incident(2, "live"),
            an_incident(1, "done", closed_wall_s=9e12),
        ],
        quarantines=[
            Quarantine(entity="GPU 0", since_wall_s=1.0, findings=(), needs="", ended_wall_s=10.0),
            Quarantine(entity="GPU 1", since_wall_s=1.0, findings=(), needs=""),
        ],
        events=[an_event(1, "done"), an_event(1, "live")],
    )
    store.save_positions("done", 1, {0: b"x"})
    assert store.prune(older_than_wall_s=100.0) == 2
    assert store.job("done") is not None, "a job that ended a moment ago stays"
    assert [name for name, _ in store.ended()] == ["done"]
    assert not store.forget("live"), "it has not ended"
    assert store.forget("done")
    assert not store.forget("done")
    assert [job.name for job in store.jobs()] == ["live"]
    assert [one.id for one in store.incidents()] == ["live-0002"]
    assert [one.entity for one in store.quarantines(active_only=False)] == ["GPU 1"]
    assert (store.events("done"), store.positions("done")) == ([], {})
    assert store.events("live") == [an_event(1, "live")]

    path.unlink()  # what memory holds is written to the new file: what was pruned must not come back so
    store.save(jobs=[a_job("live", state=JobState.RUNNING)])
    assert [job.name for job in store.jobs()] == ["live"]
    assert [one.id for one in store.incidents()] == ["live-0002"]


def test_only_the_owner_may_read_the_environment_of_jobs(path: Path, store: LocalStore) -> None:
    store.save(jobs=[a_job()])
    for file in path.parent.glob("state.db*"):
        if file.suffix != ".repair":
            assert file.stat().st_mode & 0o077 == 0, file


def test_the_log_is_moved_into_the_file_beside_the_saves(path: Path, store: LocalStore) -> None:
    before_bytes = path.stat().st_size
    for number in range(2 * SAVES_PER_CHECKPOINT):
        store.save(events=[an_event(number)])
    until(lambda: path.stat().st_size != before_bytes)
    assert len(store.events("llama", 1000)) == 2 * SAVES_PER_CHECKPOINT


@pytest.mark.parametrize("name", ["a", "llama-7b", "run.1", "0", "a" * 63, "Llama_7B.v2"])
def test_good_job_names(name: str) -> None:
    assert check_job_name(name) == name


@pytest.mark.parametrize(
    ("name", "legal"),
    [
        ("", ""),
        ("é", ""),
        ("..", ""),
        ("-a", "a"),
        ("a_", "a"),
        ("a/b", "a-b"),
        ("../x", "x"),
        ("a b", "a-b"),
        ("a\n", "a"),
        ("Größe 7B", "Gr-e-7B"),
        ("a" * 64, "a" * 63),
        ("x" * 9999, "x" * 63),
    ],
)
def test_bad_job_names_are_refused_with_what_is_allowed_and_what_would_do(name: str, legal: str) -> None:
    with pytest.raises(PermanentError, match="expected 1 to 63 of A-Z, a-z") as caught:
        check_job_name(name)
    said = str(caught.value)
    assert said.endswith(f"; {legal!r} would do" if legal else "first and last")
    assert len(said) < 300
    if legal:
        assert check_job_name(legal) == legal


# ------------------------------------------------------------ versions


VERSION_0 = """
CREATE TABLE jobs (name TEXT PRIMARY KEY, data BLOB);
CREATE TABLE incidents (id TEXT PRIMARY KEY, data BLOB);
CREATE TABLE quarantines (entity TEXT PRIMARY KEY, data BLOB);
CREATE TABLE events (data BLOB);
"""


def write_version_0(path: Path) -> None:
    isolation = Quarantine(entity="GPU 0", since_wall_s=5.0, findings=(), needs="reboot")
    done = a_job("done", state=JobState.SUCCEEDED)
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(VERSION_0)
        for name, row in [
            ("jobs(name, data)", ("llama", msgspec.json.encode(a_job()))),
            ("jobs(name, data)", ("done", msgspec.json.encode(done))),
            ("incidents(id, data)", ("llama-0001", msgspec.json.encode(an_incident(closed_wall_s=7.0)))),
            ("quarantines(entity, data)", ("GPU 0", msgspec.json.encode(isolation))),
            ("events(data)", (msgspec.json.encode(an_event(1)),)),
        ]:
            db.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(row))})", row)


def test_a_state_file_of_version_0_is_migrated_with_all_it_holds(path: Path) -> None:
    write_version_0(path)
    with closing(open_store(path)) as store:
        assert [job.name for job in store.jobs()] == ["llama", "done"]
        assert store.incidents("llama") == [an_incident(closed_wall_s=7.0)]
        assert [one.entity for one in store.quarantines()] == ["GPU 0"]
        assert store.events("llama") == [an_event(1)]
        store.save(events=[an_event(2)])
        store.save_positions("llama", 1, {0: b"x"})
        assert store.events("llama") == [an_event(1), an_event(2)]
        assert store.degraded == ()
        assert store.prune(9e12) == 1, "columns to select by were filled: the closed incident"
        assert [name for name, _ in store.ended()] == ["done"]
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (VERSION,)


def test_a_state_file_of_a_newer_version_is_refused_naming_both(path: Path) -> None:
    with closing(open_store(path)) as store:
        store.save(jobs=[a_job()])
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 7")
    for read_only in (False, True):
        with pytest.raises(StateVersionError, match=f"version 7, .* up to version {VERSION}"):
            open_store(path, read_only=read_only)
    assert not list(path.parent.glob("*.damaged-*"))


def test_looking_at_an_older_file_does_not_migrate_it(path: Path) -> None:
    write_version_0(path)
    with closing(open_store(path, read_only=True)) as store:
        assert store.jobs() == []
        assert "older version 0" in store.degraded[0]
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (0,)


def test_fields_of_newer_code_are_ignored_and_missing_ones_take_their_defaults(
    path: Path, store: LocalStore
) -> None:
    store.save(jobs=[a_job()])
    blob = b'{"name":"llama","policy":{"name":"p","hologram":1},"telepathy":{"on":true}}'
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE jobs SET data = ?", (blob,))
    assert store.jobs() == [ProtectedJob(name="llama", policy=Policy(name="p"))]
    assert store.degraded == ()


def test_a_record_that_cannot_be_decoded_is_left_alone_and_said(path: Path, store: LocalStore) -> None:
    store.save(jobs=[a_job("good"), a_job("bad")])
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE jobs SET data = ? WHERE name = 'bad'", (b"\xff{not json",))
    assert [job.name for job in store.jobs()] == ["good"]
    assert store.job("bad") is None
    assert store.degraded == (f"1 records in {path} cannot be decoded and are left as they are.",)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT data FROM jobs WHERE name = 'bad'").fetchone() == (b"\xff{not json",)


# ------------------------------------------------------------ several processes, and death


def test_status_reads_while_run_writes(path: Path, store: LocalStore) -> None:
    reader = (
        "from sentinel.cluster.local.store import LocalStore\nimport sys\n"
        "s = LocalStore(sys.argv[1], read_only=True)\nprint(s.job('llama').reason, s.degraded)"
    )
    for number in range(3):
        store.save(jobs=[a_job(reason=f"R{number}")])
        told = subprocess.run(
            [sys.executable, "-c", reader, path], capture_output=True, text=True, check=True
        )
        assert told.stdout.split(maxsplit=1) == [f"R{number}", "()\n"]


def test_a_reader_makes_nothing_where_nothing_is(path: Path) -> None:
    with closing(open_store(path, read_only=True)) as store:
        assert store.jobs() == []
        assert store.degraded == ()
    assert list(path.parent.iterdir()) == []


def test_two_writers_lose_nothing_of_each_other(path: Path, store: LocalStore) -> None:
    with closing(open_store(path)) as other:
        for number in range(20):
            store.save(events=[an_event(number, "one")])
            other.save(events=[an_event(number, "two")])
    assert len(store.events("one")) == len(store.events("two")) == 20


WRITER = """
import sys
from tests.cluster.test_store import an_event, an_incident, a_job
from sentinel.cluster.local.store import LocalStore
store = LocalStore(sys.argv[1], ballast_bytes=65536)
for number in range(10**9):
    store.save(jobs=[a_job(reason=str(number))], incidents=[an_incident(number)], events=[an_event(number)])
    print(number, flush=True)
"""


def test_kill_9_loses_nothing_that_was_acknowledged(path: Path, repo: Path) -> None:
    acknowledged = -1
    for wanted in (1, 7, 60):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE, text=True, cwd=repo
        )
        assert child.stdout
        for line in child.stdout:
            if int(line) >= wanted:
                break
        os.kill(child.pid, signal.SIGKILL)
        rest = child.stdout.read().split("\n")[:-1]
        child.wait()
        acknowledged = int(rest[-1]) if rest else wanted
        with closing(open_store(path)) as store:
            assert store.degraded == ()
            numbers = {int(one.id[-4:]) for one in store.incidents()}
            assert numbers >= set(range(acknowledged + 1))
            job = store.job("llama")
            assert job
            assert int(job.reason) >= acknowledged
            assert int(job.reason) in numbers, "the records of one save are there together or not at all"
            assert store.events("llama", limit=1) == [an_event(int(job.reason))]
