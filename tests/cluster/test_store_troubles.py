"""Damage, locks, full disks: the real thing each time, and the store goes on and says so."""

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from sentinel.cluster.local.store import MIRROR_ROWS, LocalStore
from sentinel.core.model import JobState
from tests.cluster.test_store import a_job, an_event, an_incident, open_store, write_version_0
from tests.disks import fill_up, small_tmpfs
from tests.gate.rights import needs_root
from tests.samples import lost_gpu
from tests.waits import until

KIB = 1 << 10


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


def fill(path: Path, count: int = 200) -> None:
    """A closed state file whose records stand on many pages."""
    with closing(open_store(path)) as store:
        store.save(jobs=[a_job()], findings=[lost_gpu()])
        for number in range(count):
            store.save(incidents=[an_incident(number, sentence="x" * 500)], events=[an_event(number)])


def aside(path: Path) -> list[Path]:
    return [one for one in path.parent.glob("*.damaged-*") if not one.name.endswith(("-wal", "-shm"))]


# ------------------------------------------------------------ damage


def test_a_file_that_is_no_database_is_kept_aside_and_a_new_one_started(path: Path) -> None:
    path.write_bytes(b"#!/bin/sh\necho this is not a database\n" * 100)
    content = path.read_bytes()
    with closing(open_store(path)) as store:
        assert [one.read_bytes() for one in aside(path)] == [content]
        assert aside(path)[0].name in store.degraded[0]
        store.save(jobs=[a_job()])
        assert store.jobs() == [a_job()]
    with closing(open_store(path)) as store:
        assert store.jobs() == [a_job()]
        assert store.degraded == ()


def test_an_emptied_file_is_not_taken_for_a_new_one(path: Path) -> None:
    fill(path, 2)
    os.truncate(path, 0)
    with closing(open_store(path)) as store:
        assert store.jobs() == []
        assert "cut off" in store.degraded[0]
        assert len(aside(path)) == 1


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_cut_off_file_gives_what_can_still_be_read(path: Path, share: float) -> None:
    fill(path)
    os.truncate(path, int(path.stat().st_size * share))
    with closing(open_store(path)) as store:
        assert "was damaged" in store.degraded[0]
        assert len(aside(path)) == 1
        rescued = store.incidents()
        assert rescued == [an_incident(int(one.id[-4:]), sentence="x" * 500) for one in rescued]
        assert store.jobs() == [a_job()], "the job stands on one of the first pages"
        if share == 0.9:
            assert len(rescued) > 100
        store.save(events=[an_event(1000)])
        assert store.events("llama", 1) == [an_event(1000)]


def test_damage_in_the_middle_costs_only_the_rows_that_it_hit(path: Path) -> None:
    fill(path)
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.seek(size // 2 // 4096 * 4096)
        file.write(os.urandom(8192))
    with closing(open_store(path)) as store:
        assert "was damaged" in store.degraded[0]
        numbers = [int(one.id[-4:]) for one in store.incidents()]
        assert numbers == sorted(numbers)
        assert 0 in numbers
        assert 199 in numbers
        assert 100 < len(numbers) <= 200
        assert store.job("llama") == a_job()
        assert store.findings() == [lost_gpu()]


def test_two_damaged_files_in_one_second_are_both_kept(path: Path) -> None:
    for content in (b"one" * 999, b"two" * 999):
        path.write_bytes(content)
        open_store(path).close()
        path.unlink()
    assert sorted(one.read_bytes()[:3] for one in aside(path)) == [b"one", b"two"]


def test_damage_while_running_loses_no_record_of_this_run(path: Path) -> None:
    with closing(open_store(path)) as store:
        store.save(jobs=[a_job()], incidents=[an_incident()], events=[an_event(1)])
        with closing(sqlite3.connect(path)) as other:
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with open(path, "r+b") as file:
            file.write(b"\xde\xad" * 4096)
        with closing(open_store(path)) as second:  # another `run` finds it first
            assert "was damaged" in second.degraded[0]
        store.save(events=[an_event(2)])
        assert "removed or replaced" in store.degraded[0]
    with closing(open_store(path)) as again:
        assert again.jobs() == [a_job()]
        assert again.incidents() == [an_incident()]
        assert again.events("llama") == [an_event(1), an_event(2)]


def test_a_file_that_is_found_damaged_while_it_is_pruned_gets_all_of_this_run_again(path: Path) -> None:
    with closing(open_store(path)) as store:
        store.save(jobs=[a_job()], incidents=[an_incident()], events=[an_event(1)])
        with closing(sqlite3.connect(path)) as other:
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        path.unlink()  # nothing is owed, so that only the pruning finds it out
        store.prune(100.0)
        assert store.events("llama") == [an_event(1)]
        store.save(events=[an_event(2)])
    with closing(open_store(path)) as again:
        assert again.jobs() == [a_job()]
        assert again.incidents() == [an_incident()]
        assert again.events("llama") == [an_event(1), an_event(2)]


def test_the_log_of_a_damaged_file_gives_its_commits_and_is_not_replayed_into_the_new_one(path: Path) -> None:
    fill(path)
    with closing(open_store(path)) as store:
        store.save(jobs=[a_job(reason="Newest")], events=[an_event(500)])
        assert Path(f"{path}-wal").stat().st_size > 0
        with open(path, "r+b") as file:
            file.seek(path.stat().st_size // 2 // 4096 * 4096)
            file.write(os.urandom(8192))
        with closing(open_store(path)) as second:
            assert "was damaged" in second.degraded[0]
            second.save(jobs=[a_job("second")])
            assert second.job("llama") == a_job(reason="Newest")
            assert second.events("llama", 1) == [an_event(500)]
        store.save(jobs=[a_job("first")])
    assert len(aside(path)) == 1
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    with closing(open_store(path)) as again:
        assert {job.name for job in again.jobs()} == {"llama", "second", "first"}
        assert again.degraded == ()


def test_a_removed_state_directory_is_made_again_with_the_records_of_this_run(path: Path) -> None:
    path = path.parent / "state" / "state.db"
    with closing(open_store(path)) as store:
        store.save(jobs=[a_job()])
        subprocess.run(["rm", "-rf", path.parent], check=True)
        store.save(jobs=[a_job("other")])
    with closing(open_store(path)) as again:
        assert [job.name for job in again.jobs()] == ["llama", "other"]


def test_looking_at_a_damaged_file_moves_nothing(path: Path) -> None:
    path.write_bytes(b"garbage" * 1000)
    with closing(open_store(path, read_only=True)) as store:
        assert store.jobs() == []
        assert "cannot be read" in store.degraded[0]
    assert list(path.parent.iterdir()) == [path]


def test_an_unusable_place_is_named_and_the_records_are_held_in_memory(path: Path) -> None:
    path.mkdir()
    with closing(open_store(path)) as store:
        store.save(jobs=[a_job()])
        assert store.jobs() == [a_job()]
        assert store.unwritten == 1
        assert "held in memory" in store.degraded[0]
        path.rmdir()
        assert store.flush()
        assert store.degraded == ()
    with closing(open_store(path)) as store:
        assert store.jobs() == [a_job()]


# ------------------------------------------------------------ locks


@contextmanager
def locked(path: Path, how: str) -> Iterator[None]:
    """Another process that holds a lock."""
    script = (
        "import sqlite3, sys\n"
        "db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "exclusive = sys.argv[2] == 'everything'\n"
        "if exclusive: db.execute('PRAGMA locking_mode = EXCLUSIVE')\n"
        "db.execute('BEGIN IMMEDIATE')\n"
        "if exclusive: db.execute('DELETE FROM findings'); db.execute('COMMIT')\n"
        "print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(path), how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout
        assert child.stdout.readline() == b"locked\n"
        try:
            yield
        finally:
            child.kill()


def test_what_is_saved_while_another_process_holds_the_lock_is_written_later(path: Path) -> None:
    with closing(open_store(path)) as store:
        store.save(jobs=[a_job()], events=[an_event(1)])
        with locked(path, "writing"):
            store.save(jobs=[a_job(reason="Changed"), a_job("new")], events=[an_event(2)])
            store.save(events=[an_event(3)])
            assert store.job("llama") == a_job(reason="Changed")
            assert [job.name for job in store.jobs()] == ["llama", "new"]
            assert store.events("llama") == [an_event(1), an_event(2), an_event(3)]
            assert store.events("llama", limit=2) == [an_event(2), an_event(3)]
            assert store.degraded == (f"{path} is locked by another process; records are held in memory.",)
            assert not store.flush()
            with closing(open_store(path, read_only=True)) as other:
                assert other.job("llama") == a_job()
        assert store.flush()
        assert (store.degraded, store.unwritten) == ((), 0)
    with closing(open_store(path)) as again:
        assert again.job("llama") == a_job(reason="Changed")
        assert again.events("llama") == [an_event(1), an_event(2), an_event(3)]


def test_a_lock_that_goes_within_the_wait_is_not_worth_a_word(path: Path) -> None:
    with closing(open_store(path, busy_s=30.0)) as store:
        context = locked(path, "writing")
        context.__enter__()
        release = threading.Timer(0.2, context.__exit__, (None, None, None))
        release.start()
        store.save(jobs=[a_job()])
        release.join()
        assert (store.degraded, store.unwritten) == ((), 0)


def test_a_file_that_was_locked_from_the_start_is_used_once_it_is_free(path: Path) -> None:
    fill(path, 3)
    with locked(path, "everything"), closing(open_store(path)) as store:
        assert "locked" in store.degraded[0]
        store.save(jobs=[a_job("new")])
        assert [job.name for job in store.jobs()] == ["new"], "all that can be known now"
        context = store
    with closing(open_store(path)) as again:
        assert [job.name for job in again.jobs()] == ["llama"]
    context.save(events=[an_event(9)])
    assert [job.name for job in context.jobs()] == ["llama", "new"]
    assert context.degraded == ()
    context.close()


def test_memory_stays_bounded_while_the_lock_is_held(path: Path) -> None:
    with closing(open_store(path)) as store:
        store.save(jobs=[a_job(state=JobState.RUNNING)])
        with locked(path, "writing"):
            for start in range(0, 6000, 500):
                store.save(events=[an_event(number) for number in range(start, start + 500)])
            assert store.unwritten <= 2000
        assert store.flush()
        assert store.events("llama", 1) == [an_event(5999)]
        for number in range(2 * MIRROR_ROWS):
            store.save(events=[an_event(number)])
        assert len(store._mirror) <= MIRROR_ROWS
        assert store.job("llama") is not None


# ------------------------------------------------------------ full disks


@pytest.fixture
@needs_root
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB of its own."""
    with small_tmpfs(tmp_path / "disk", "2m") as place:
        yield place


def test_on_a_full_disk_the_ballast_makes_room_for_the_records(small_disk: Path) -> None:
    path = small_disk / "state.db"
    with closing(open_store(path, ballast_bytes=512 * KIB)) as store:
        ballast = path.with_name("state.db.ballast")
        assert ballast.stat().st_blocks * 512 >= 512 * KIB, "really allocated"
        store.save(jobs=[a_job()])
        hog = fill_up(small_disk)
        for number in range(60):
            store.save(incidents=[an_incident(number, sentence="x" * 2000)])
        assert store.unwritten == 0
        assert not ballast.exists()
        assert store.degraded == (f"The disk of {path} is full; its reserve was freed for the records.",)
        with closing(open_store(path, read_only=True)) as other:
            assert len(other.incidents()) == 60

        hog.unlink()
        store._ballast.RETRY_S = 0.0  # type: ignore[misc]
        store._ballast._next_try_s = 0.0
        store.save(events=[an_event(1)])
        assert ballast.stat().st_size == 512 * KIB
        assert store.degraded == ()


def test_without_a_ballast_the_log_itself_gives_way(small_disk: Path) -> None:
    path = small_disk / "state.db"
    with closing(open_store(path)) as store:
        for number in range(50):
            store.save(jobs=[a_job(reason=str(number))])
        path.with_name("state.db.ballast").unlink()
        fill_up(small_disk)
        for number in range(100):
            store.save(jobs=[a_job(reason=str(number))])
            # The thread that moves the log beside the saves may be at it just now.
            until(lambda: store.unwritten == 0 or store.flush(), "a record is not written", 5.0)


def test_when_the_ballast_is_used_up_too_records_wait_in_memory(small_disk: Path) -> None:
    path = small_disk / "state.db"
    with closing(open_store(path, ballast_bytes=64 * KIB)) as store:
        store.save(jobs=[a_job()])
        hog = fill_up(small_disk)
        for number in range(100):
            store.save(incidents=[an_incident(number, sentence="x" * 5000)])
        assert store.unwritten > 0
        assert "held in memory" in store.degraded[0]
        assert len(store.incidents()) == 100
        hog.unlink()
        assert store.flush()
        assert store.unwritten == 0
    with closing(open_store(path, ballast_bytes=64 * KIB)) as again:
        assert len(again.incidents()) == 100


def test_a_start_on_a_full_disk_holds_records_in_memory_until_there_is_room(small_disk: Path) -> None:
    path = small_disk / "state.db"
    hog = fill_up(small_disk)
    with closing(open_store(path)) as store:
        store.save(jobs=[a_job()])
        assert store.jobs() == [a_job()]
        assert "full" in store.degraded[0]
        hog.unlink()
        assert store.flush()
    assert [one.name for one in small_disk.glob("*.new-*")] == []
    with closing(open_store(path)) as again:
        assert again.jobs() == [a_job()]


def test_damage_on_a_full_disk_leaves_the_damaged_file_until_it_can_be_replaced(small_disk: Path) -> None:
    path = small_disk / "state.db"
    fill(path, 20)
    os.truncate(path, path.stat().st_size - 4096)
    path.with_name("state.db.ballast").unlink()
    hog = fill_up(small_disk)
    with closing(open_store(path)) as store:
        assert aside(path) == []
        assert "full" in store.degraded[0]
        hog.unlink()
        assert store.job("llama") == a_job()
        assert len(aside(path)) == 1


def test_migration_on_a_full_disk_leaves_the_old_file_whole(small_disk: Path) -> None:
    path = small_disk / "state.db"
    write_version_0(path)
    hog = fill_up(small_disk)
    with closing(open_store(path)) as store:
        store.save(events=[an_event(2)])
        assert store.degraded
        hog.unlink()
        assert store.flush()
        assert [job.name for job in store.jobs()] == ["llama", "done"]
        assert store.events("llama") == [an_event(1), an_event(2)]


def test_a_closed_store_can_still_be_asked(path: Path) -> None:
    store = LocalStore(path, ballast_bytes=64 * KIB)
    store.save(jobs=[a_job()])
    store.close()
    assert store.jobs() == [a_job()]
    store.close()
