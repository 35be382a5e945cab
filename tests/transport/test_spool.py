"""What an agent keeps on disk: survives kills, full disks and damage, and says what it had to give up."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.transport.segments import HEADER, SEGMENT_BYTES, Scan, pack, records
from sentinel.transport.spool import MEMORY_BYTES, Kind, Spool
from tests.conftest import REPO
from tests.transport.conftest import fill


def everything(spool: Spool, most: int = 10**6) -> list[tuple[int, bytes]]:
    """All that it still has, in the order in which it would be sent."""
    spool.rewind()
    given: list[tuple[int, bytes]] = []
    while batch := spool.batch(100, 1 << 20):
        given += batch
        assert len(given) <= most
    return given


def again(spool: Spool, boot: str = "boot-1") -> Spool:
    """The same spool, as the next process finds it."""
    spool.close()
    return Spool(spool._folder, boot)


def test_records_come_back_in_order_until_they_are_acknowledged(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path), "boot-1")
    numbers = [spool.append(Kind.EVENT if k % 2 else Kind.PROGRESS, b"%d" % k) for k in range(10)]
    assert numbers == sorted(numbers)
    assert everything(spool) == [(number, b"%d" % k) for k, number in enumerate(numbers)]
    assert spool.batch(100, 100) == []
    spool.rewind()
    assert len(spool.batch(4, 1000)) == 4
    spool.ack(numbers[2])
    assert [number for number, _ in everything(spool)] == numbers[3:]
    assert spool.waiting == 7
    spool.ack(numbers[-1])
    assert spool.waiting == 0
    assert everything(spool) == []


def test_a_batch_is_bounded_but_has_at_least_one_record(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path), "boot-1")
    for _ in range(5):
        spool.append(Kind.EVENT, b"x" * 1000)
    assert len(spool.batch(100, 2500)) == 2
    assert len(spool.batch(100, 10)) == 1
    assert len(spool.batch(1, 10000)) == 1


def test_the_next_process_goes_on_with_the_numbers_the_session_and_what_was_not_acknowledged(
    tmp_path: Path,
) -> None:
    spool = Spool(str(tmp_path), "boot-1")
    numbers = [spool.append(Kind.EVENT, b"%d" % k) for k in range(10)]
    spool.batch(100, 1000)
    spool.ack(numbers[3])
    successor = again(spool)
    assert successor.session == spool.session
    assert [number for number, _ in everything(successor)] == numbers[4:]
    assert successor.append(Kind.EVENT, b"new") > numbers[-1]


def test_after_a_new_boot_the_numbers_are_another_session(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path), "boot-1")
    number = spool.append(Kind.EVENT, b"before the crash")
    successor = again(spool, "boot-2")
    assert successor.session != spool.session
    assert everything(successor) == [(number, b"before the crash")]


def test_a_full_spool_gives_up_the_oldest_progress_first_and_events_last(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path), "boot-1", max_bytes=8 * SEGMENT_BYTES)
    body = b"x" * 10_000
    events = [spool.append(Kind.EVENT, body) for _ in range(40)]
    progress = [spool.append(Kind.PROGRESS, body) for _ in range(1000)]
    kept = [number for number, _ in everything(spool)]
    assert set(events) <= set(kept)
    left = [number for number in kept if number in set(progress)]
    assert left == progress[-len(left) :]  # the newest ones
    assert spool.lost().progress == len(progress) - len(left) > 0
    assert spool.lost().events == 0
    more = [spool.append(Kind.EVENT, body) for _ in range(1000)]
    kept = [number for number, _ in everything(spool)]
    assert kept == (events + more)[-len(kept) :]
    assert spool.lost().progress == len(progress)
    assert spool.lost().events == len(events) + len(more) - len(kept) > 0
    spool.append(Kind.PROGRESS, body)  # never takes the place of events
    assert spool.lost().progress == len(progress) + 1
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 8 * SEGMENT_BYTES + 4096


def test_the_disk_is_free_again_when_all_has_been_taken(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path), "boot-1")
    for _ in range(3):
        for _ in range(200):
            spool.append(Kind.PROGRESS, b"x" * 10_000)
        last = everything(spool)[-1][0]
        spool.ack(last)
        assert len(list(tmp_path.glob("*.seg"))) == 2


def test_a_kill_loses_nothing_that_was_kept(tmp_path: Path) -> None:
    for _ in range(5):
        writer = subprocess.Popen(
            [sys.executable, "-m", "tests.transport.spooler", str(tmp_path)],
            cwd=REPO,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        session = writer.stdout.readline().split()[1]
        said = [int(writer.stdout.readline()) for _ in range(200)]
        writer.send_signal(signal.SIGKILL)
        said += [int(line) for line in writer.stdout.read().split("\n")[:-1] if line]
        writer.wait()
        spool = Spool(str(tmp_path), "boot-1")
        assert spool.session == session
        found = everything(spool)
        assert set(said) <= {number for number, _ in found}
        assert all(payload == b"record %d " % number * 20 for number, payload in found)
        number = spool.last + 1
        assert spool.append(Kind.EVENT, b"record %d " % number * 20) == number > max(said)
        spool.close()


def test_a_record_that_was_torn_by_the_kill_loses_only_itself(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path), "boot-1")
    numbers = [spool.append(Kind.EVENT, b"record %d" % k) for k in range(5)]
    (file,) = tmp_path.glob("event-*")
    size = HEADER.size + len(b"record 0")
    with open(file, "r+b") as damaged:
        damaged.seek(4 * size + HEADER.size + 3)
        damaged.write(b"\0" * 100)  # the last one was written in part
    successor = again(spool)
    assert [number for number, _ in everything(successor)] == numbers[:4]
    assert successor.torn == 1
    new = successor.append(Kind.EVENT, b"after it")
    assert [number for number, _ in everything(again(successor))] == [*numbers[:4], new]


def test_a_record_that_rots_on_the_disk_while_the_agent_runs_does_not_stop_the_others(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path), "boot-1")
    numbers = [spool.append(Kind.EVENT, b"record %d" % k) for k in range(5)]
    (file,) = tmp_path.glob("event-*")
    size = HEADER.size + len(b"record 0")
    for victim in (2, 4):
        with open(file, "r+b") as damaged:
            damaged.seek(victim * size)
            damaged.write(b"\xff" * size)
    assert [number for number, _ in everything(spool, 5)] == [numbers[0], numbers[1], numbers[3]]
    spool.ack(numbers[3])
    new = spool.append(Kind.EVENT, b"new")
    assert [number for number, _ in everything(spool)] == [new]


@settings(max_examples=300)
@given(
    payloads=st.lists(st.binary(max_size=40), min_size=1, max_size=8),
    damage=st.lists(st.tuples(st.integers(0, 500), st.binary(min_size=1, max_size=30)), max_size=3),
)
def test_whatever_is_damaged_the_whole_records_are_found(
    payloads: list[bytes], damage: list[tuple[int, bytes]]
) -> None:
    data = bytearray()
    places = {}
    for number, payload in enumerate(payloads, 1):
        places[number] = (len(data), len(data) + HEADER.size + len(payload))
        data += pack(number, payload)
    touched = bytearray(len(data))
    for at, junk in damage:
        at %= len(data)
        for k, byte in enumerate(junk[: len(data) - at]):
            touched[at + k] |= data[at + k] != byte
            data[at + k] = byte
    whole = {n for n, (begin, end) in places.items() if not any(touched[begin:end])}
    scan = Scan()
    found = list(records(bytes(data) + bytes(100), 0, scan))
    assert whole <= {record.sequence for record in found}
    assert all(
        record.payload == payloads[record.sequence - 1] for record in found if record.sequence in whole
    )
    if not any(touched):
        assert scan.torn == 0


def test_random_files_are_no_records() -> None:
    scan = Scan()
    assert list(records(os.urandom(1 << 20) + b"SPO1", 0, scan)) == []


def test_on_a_full_disk_events_go_into_the_room_that_was_taken_beforehand_and_survive_a_kill(
    tmpfs: Path,
) -> None:
    spool = Spool(str(tmpfs / "spool"), "boot-1")
    fill(tmpfs)
    numbers = [spool.append(Kind.EVENT, b"x" * 1000) for _ in range(400)]
    assert spool.disk_errors == 0
    del spool  # no close: as after a kill
    assert [number for number, _ in everything(Spool(str(tmpfs / "spool"), "boot-1"))] == numbers


def test_on_a_full_disk_progress_makes_room_for_events_and_the_rest_is_kept_in_memory(tmpfs: Path) -> None:
    spool = Spool(str(tmpfs / "spool"), "boot-1")
    fill(tmpfs)
    body = b"x" * 10_000
    progress = [spool.append(Kind.PROGRESS, body) for _ in range(30)]
    events = [spool.append(Kind.EVENT, body) for _ in range(150)]
    kept = [number for number, _ in everything(spool)]
    assert set(events) <= set(kept)
    assert spool.lost().progress == len(progress)
    assert spool.lost().events == 0
    assert spool.disk_errors > 0
    spool.ack(kept[-1])
    assert everything(spool) == []
    os.unlink(tmpfs / "other")
    number = spool.append(Kind.EVENT, b"room again")
    assert everything(again(spool)) == [(number, b"room again")]


def test_memory_is_bounded_too_when_there_is_no_disk_at_all(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    spool = Spool(str(tmp_path / "file" / "spool"), "boot-1")
    body = b"x" * 10_000
    events = [spool.append(Kind.EVENT, body) for _ in range(50)]
    for _ in range(500):
        spool.append(Kind.PROGRESS, body)
    kept = everything(spool)
    assert set(events) <= {number for number, _ in kept}
    assert sum(len(payload) for _, payload in kept) <= MEMORY_BYTES
    assert spool.lost().progress == 550 - len(kept)
    assert spool.lost().events == 0
    spool.ack(kept[-1][0])
    assert everything(spool) == []


@pytest.mark.parametrize("damage", [b"", b"\0" * 52, bytes(range(52)), b"SPM1"])
def test_a_damaged_note_of_the_numbers_makes_a_new_session_and_loses_no_record(
    tmp_path: Path, damage: bytes
) -> None:
    spool = Spool(str(tmp_path), "boot-1")
    number = spool.append(Kind.EVENT, b"kept")
    spool.close()
    (tmp_path / "meta").write_bytes(damage)
    successor = Spool(str(tmp_path), "boot-1")
    assert successor.session != spool.session
    assert everything(successor) == [(number, b"kept")]
    assert successor.append(Kind.EVENT, b"new") > number


def test_numbers_that_were_only_in_memory_are_not_used_twice(tmpfs: Path) -> None:
    """The controller may have taken them, and would take others with their numbers for repeats."""
    spool = Spool(str(tmpfs / "spool"), "boot-1")
    fill(tmpfs)
    last = 0
    for _ in range(3000):
        last = spool.append(Kind.EVENT, b"x" * 1000)
    del spool  # killed
    successor = Spool(str(tmpfs / "spool"), "boot-1")
    assert successor.append(Kind.EVENT, b"") > last


def test_a_folder_in_the_place_of_a_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "event-0000000007.seg").mkdir()
    (tmp_path / "event-garbage.seg").write_bytes(b"SPO1" * 1000)
    spool = Spool(str(tmp_path), "boot-1")
    number = spool.append(Kind.EVENT, b"kept")
    assert everything(again(spool)) == [(number, b"kept")]
