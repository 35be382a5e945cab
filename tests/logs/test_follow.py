"""Following real files: growth, truncation, rotation, disappearance, holes, and going on after a restart."""

import os
from pathlib import Path

import msgspec
import pytest

from sentinel.core.now import Now
from sentinel.logs.follow import FilePosition, Follower
from sentinel.logs.reader import Position, RankLog
from sentinel.logs.ruleset import RuleSet

NOW = Now(mono_s=5.0, wall_s=1_750_000_000.0)


def drain(follower: Follower, polls: int = 8) -> bytes:
    """All there is: rotation needs two polls without news before the old file is left."""
    return b"".join(follower.read(1 << 20) for _ in range(polls))


def append(path: Path, data: bytes) -> None:
    with path.open("ab", buffering=0) as file:
        file.write(data)


def test_what_is_appended_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\n")
    follower = Follower(path)
    assert follower.read(100) == b"one\n"
    assert follower.read(100) == b""
    append(path, b"two\nthree\n")
    assert follower.read(5) == b"two\nt"
    assert not follower.at_end
    assert follower.read(100) == b"hree\n"
    assert follower.at_end
    assert follower.problem == ""


def test_a_file_that_is_not_there_yet_is_named_and_then_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    follower = Follower(path)
    assert follower.read(100) == b""
    assert (follower.problem, follower.at_end) == ("not there yet", False)
    path.write_bytes(b"x\n")
    assert follower.read(100) == b"x\n"
    assert follower.problem == ""


@pytest.mark.parametrize(
    "refilled", [b"new\n", b"quite as long as before\n", b"longer than it was before it was cut\n"]
)
def test_a_file_truncated_in_place_is_read_from_its_beginning(refilled: bytes, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"as long as it was before\n")
    follower = Follower(path)
    drain(follower)
    with path.open("r+b") as file:  # copytruncate: the same inode
        file.truncate(0)
    append(path, refilled)
    assert follower.read(100) == refilled
    assert follower.switched
    assert follower.problem == "truncated"
    append(path, b"more\n")
    assert follower.read(100) == b"more\n"
    assert follower.problem == ""


def test_the_hole_that_a_writer_leaves_after_truncation_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb", buffering=0) as writer:  # not O_APPEND: goes on writing at its old offset
        writer.write(b"y" * (1 << 20))
        follower = Follower(path)
        drain(follower)
        os.truncate(path, 0)
        writer.write(b"after\n")
        data = drain(follower)
    assert data.lstrip(b"\0") == b"after\n"
    assert len(data) < 10_000


def test_a_renamed_file_is_finished_before_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"1\n")
    follower = Follower(path)
    assert drain(follower) == b"1\n"
    with path.open("ab", buffering=0) as writer:
        path.rename(tmp_path / "log.1")
        writer.write(b"2\n")  # the writer has not reopened yet
        path.write_bytes(b"3\n")
        assert follower.read(100) == b"2\n"
        assert follower.read(100) == b""
        assert not follower.at_end
        writer.write(b"late\n")
        assert follower.read(100) == b"late\n"
    assert drain(follower) == b"3\n"
    assert follower.at_end


def rotate(path: Path, newest: bytes) -> None:
    """As logrotate does: .1 becomes .2, the file becomes .1."""
    for number in (3, 2, 1):
        old = path.with_name(f"{path.name}.{number}")
        if old.exists():
            old.rename(path.with_name(f"{path.name}.{number + 1}"))
    path.rename(path.with_name(f"{path.name}.1"))
    path.write_bytes(newest)


def test_several_rotations_between_two_polls_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"1\n")
    follower = Follower(path)
    drain(follower)
    append(path, b"2\n")
    for number, newest in enumerate((b"3\n", b"4\n", b"5\n")):
        rotate(path, newest)
        set_age(path, number)
    assert drain(follower, 20) == b"2\n3\n4\n5\n"
    assert follower.at_end


def set_age(path: Path, number: int) -> None:
    """Rotations take their time; the tests do not wait for the clock of the file system."""
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000 * (number + 1)))


def test_rotations_while_nobody_followed_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"1\n2\n")
    first = Follower(path)
    assert first.read(2) == b"1\n"
    position = first.position()
    first.close()
    for number, newest in enumerate((b"3\n", b"4\n")):
        rotate(path, newest)
        set_age(path, number)
    assert drain(Follower(path, position), 20) == b"2\n3\n4\n"


def test_a_file_that_was_removed_is_said_to_have_vanished_and_its_successor_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"1\n")
    follower = Follower(path)
    drain(follower)
    path.unlink()
    assert follower.read(100) == b""
    assert follower.problem == "vanished"
    path.write_bytes(b"2\n")
    assert drain(follower) == b"2\n"
    assert follower.problem == ""


def test_a_file_that_was_removed_under_a_writer_that_never_pauses_is_read_on_and_named(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log"
    with path.open("wb", buffering=0) as writer:
        follower = Follower(path)
        writer.write(b"1\n")
        assert follower.read(100) == b"1\n"
        assert follower.problem == ""
        path.unlink()
        for _ in range(3):
            writer.write(b"2\n")
            assert follower.read(100) == b"2\n"
            assert follower.problem == "vanished"


def test_a_replaced_file_is_read_from_its_beginning_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"1\n2\n")
    first = Follower(path)
    drain(first)
    position = first.position()
    first.close()
    path.unlink()
    path.write_bytes(b"other\nthings\n")  # likely to get the same inode
    second = Follower(path, position)
    assert second.read(100) == b"other\nthings\n"
    assert second.switched
    assert second.problem == "replaced"


def test_a_position_survives_being_written_down(tmp_path: Path, shipped: RuleSet) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"this iteration hardware time is 1 and e2e time is 2 ms.\nhalf a li")
    log = RankLog(path, shipped)
    log.poll(NOW)
    position = msgspec.json.decode(msgspec.json.encode(log.position), type=Position)
    assert position == log.position
    append(path, b"ne OSError: [Errno 28] No space left on device\n")
    resumed = RankLog(path, shipped, position=position).poll(NOW)
    assert resumed.iterations == []
    assert resumed.matches[0].line.startswith("half a line OSError")


def test_a_position_may_be_older_than_the_file_has_become(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"short\n")
    stale = FilePosition(
        device=path.stat().st_dev, inode=path.stat().st_ino, offset=5000, tail_bytes=5, tail_crc=7
    )
    assert Follower(path, stale).read(100) == b"short\n"


@pytest.mark.parametrize("kind", ["folder", "fifo", "device"])
def test_what_is_no_file_is_named_and_never_waited_for(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    follower = Follower(path)
    assert follower.read(100) == b""
    assert follower.problem in ("not a regular file", "cannot be read: Is a directory")


def test_a_descriptor_that_went_bad_is_opened_anew_where_reading_stood(tmp_path: Path) -> None:
    """As a stale NFS handle does, but with a descriptor that somebody closed."""
    path = tmp_path / "log"
    path.write_bytes(b"1\n2\n")
    follower = Follower(path)
    assert follower.read(2) == b"1\n"
    [number] = [int(fd) for fd in os.listdir("/proc/self/fd") if is_link_to(int(fd), path)]
    os.close(number)
    assert follower.read(100) == b""
    assert (follower.problem, follower.at_end) == ("cannot be read: Bad file descriptor", False)
    assert follower.read(100) == b"2\n"
    assert (follower.problem, follower.switched) == ("", False)


def test_a_position_outlasts_a_path_that_cannot_be_opened_for_a_while(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"1\n2\n")
    first = Follower(path)
    first.read(2)
    position = first.position()
    first.close()
    path.rename(tmp_path / "aside")
    path.symlink_to("log")  # a link to itself: ELOOP
    second = Follower(path, position)
    assert second.read(100) == b""
    assert second.problem.startswith("cannot be read")
    assert second.position() == position
    path.unlink()
    (tmp_path / "aside").rename(path)
    assert second.read(100) == b"2\n"


def is_link_to(fd: int, path: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}") == str(path)
    except OSError:
        return False


def disk_bytes(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_a_log_whose_size_is_bounded_gives_back_its_disk_and_nothing_unread(
    tmp_path: Path, shipped: RuleSet
) -> None:
    path = tmp_path / "log"
    log = RankLog(path, shipped, keep_bytes=256 * 1024)
    body = b"this iteration hardware time is 1 and e2e time is 2 ms.\n" + b"z" * 8000 + b"\n"
    told = 0
    for _ in range(400):
        append(path, body)
        batch = log.poll(NOW)
        told += len(batch.iterations)
        assert batch.problem == ""
    assert told == 400
    assert path.stat().st_size == 400 * len(body)
    assert disk_bytes(path) <= 256 * 1024 + 2 * 8192
    resumed = RankLog(path, shipped, keep_bytes=256 * 1024, position=log.position)
    append(path, body)
    assert len(resumed.poll(NOW).iterations) == 1


def test_where_holes_are_refused_the_log_is_read_on_and_it_is_said(tmp_path: Path, shipped: RuleSet) -> None:
    """A log of somebody else: it may be read and not written."""
    path = tmp_path / "log"
    path.write_bytes(b"x\n" * 50_000)
    path.chmod(0o444)
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if folder.stat().st_uid == os.getuid():
            folder.chmod(folder.stat().st_mode | 0o055)
    root = os.getuid() == 0
    if root:
        os.seteuid(65534)  # root may write anything
    try:
        batch = RankLog(path, shipped, keep_bytes=4096).poll(NOW)
    finally:
        if root:
            os.seteuid(0)
    assert len(batch.data) == 100_000
    assert batch.problem == "its size cannot be bounded: Permission denied"


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"1\n")
    before = len(os.listdir("/proc/self/fd"))
    follower = Follower(path)
    drain(follower)
    for newest in (b"2\n", b"3\n"):
        rotate(path, newest)
        drain(follower)
    follower.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_who_lets_go_of_it_without_closing_it_leaks_no_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("a\n")
    follower = Follower(path)
    assert drain(follower) == b"a\n"
    before = len(os.listdir("/proc/self/fd"))
    del follower
    assert len(os.listdir("/proc/self/fd")) == before - 1
