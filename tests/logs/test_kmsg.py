"""Reading /dev/kmsg: records once each, across restarts, over losses, and only from the kernel."""

import errno
import os
from pathlib import Path

import pytest

from sentinel.logs.kmsg import KmsgPosition, KmsgReader, KmsgRecord, decode_record, encode_record

XID = "NVRM: Xid (PCI:0000:3f:00): 46"


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def texts(records: list[KmsgRecord]) -> list[str]:
    return [record.text for record in records]


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    path.touch()
    return path


def test_a_record_is_decoded_with_its_escapes() -> None:
    record = decode_record(rb"6,339,5140900,-,caller=T1;a\x09b\x5cc \xc3\xa4" + b"\n SUBSYSTEM=pci\n")
    assert record == KmsgRecord(339, 6, 0, 5140900, "a\tb\\c ä")


@pytest.mark.parametrize(
    "line",
    [b"", b"x", b"6,1;no", b"6,a,1,-;text", b";", b"6,1,2", b"\xff,1,2,-;x", b"6," + b"9" * 9999 + b",1,-;x"],
)
def test_a_garbled_record_is_none(line: bytes) -> None:
    assert decode_record(line) is None


def test_what_is_encoded_decodes_to_the_same() -> None:
    text = "Grüße\t\\x41 \n NVRM"
    record = decode_record(encode_record(text, 7, 42, facility=1, level=4))
    assert record == KmsgRecord(7, 4, 1, 42, text)


def test_each_record_is_read_once(ring: Path) -> None:
    reader = KmsgReader(str(ring))
    append(ring, encode_record("one", 1) + encode_record("two", 2))
    assert texts(reader.read()) == ["one", "two"]
    assert reader.read() == []
    append(ring, encode_record("three", 3))
    assert texts(reader.read()) == ["three"]
    reader.close()


def test_half_a_record_waits_for_its_end(ring: Path) -> None:
    reader = KmsgReader(str(ring))
    data = encode_record("one", 1)
    append(ring, data[:9])
    assert reader.read() == []
    append(ring, data[9:])
    assert texts(reader.read()) == ["one"]
    reader.close()


def test_continuation_lines_are_no_records(ring: Path) -> None:
    append(
        ring,
        encode_record("one", 1) + b" SUBSYSTEM=pci\n DEVICE=+pci:0000:18:00.0\n" + encode_record("two", 2),
    )
    reader = KmsgReader(str(ring))
    assert texts(reader.read()) == ["one", "two"]
    assert reader.garbled == 0
    reader.close()


def test_what_users_wrote_into_the_ring_is_never_believed(ring: Path) -> None:
    append(
        ring, encode_record(XID, 1, facility=1) + encode_record("real", 2) + encode_record(XID, 3, facility=3)
    )
    reader = KmsgReader(str(ring))
    assert texts(reader.read()) == ["real"]
    assert reader.untrusted == 2
    assert reader.lost == 0
    reader.close()


def test_records_that_the_ring_dropped_are_counted(ring: Path) -> None:
    append(ring, encode_record("one", 1) + encode_record("five", 5))
    reader = KmsgReader(str(ring))
    assert texts(reader.read()) == ["one", "five"]
    assert reader.lost == 3
    reader.close()


def test_a_new_reader_goes_on_where_the_last_one_stopped(ring: Path) -> None:
    first = KmsgReader(str(ring))
    append(ring, encode_record("one", 1))
    first.read()
    first.close()
    append(ring, encode_record("two", 2))  # while nobody reads
    second = KmsgReader(str(ring), resume=first.position)
    assert texts(second.read()) == ["two"]
    assert second.lost == 0
    second.close()


def test_what_was_lost_between_two_readers_is_counted(ring: Path) -> None:
    append(ring, encode_record("nine", 9))
    reader = KmsgReader(str(ring))
    resumed = KmsgReader(str(ring), resume=KmsgPosition(reader.boot_id, 3))
    assert texts(resumed.read()) == ["nine"]
    assert (resumed.missed, resumed.lost) == (5, 0)  # the journal may still have them
    reader.close()
    resumed.close()


def test_a_position_of_another_boot_is_void(ring: Path) -> None:
    append(ring, encode_record("one", 1))
    reader = KmsgReader(str(ring), resume=KmsgPosition("another boot", 100))
    assert texts(reader.read()) == ["one"]
    assert reader.lost == 0
    reader.close()


def test_a_file_that_was_replaced_is_a_new_ring(ring: Path) -> None:
    append(ring, encode_record("one", 100) + encode_record("two", 101))
    reader = KmsgReader(str(ring))
    reader.read()
    ring.write_bytes(encode_record("new", 1))
    assert texts(reader.read()) == ["new"]
    replacement = ring.with_name("other")
    replacement.write_bytes(encode_record("newer", 1))
    replacement.rename(ring)
    assert texts(reader.read()) == ["newer"]
    assert reader.lost == 0
    reader.close()


def test_a_missing_file_is_said_and_found_when_it_comes(tmp_path: Path) -> None:
    path = tmp_path / "later"
    reader = KmsgReader(str(path))
    assert reader.read() == []
    assert "No such file" in reader.problem
    path.write_bytes(encode_record("one", 1))
    assert texts(reader.read()) == ["one"]
    assert reader.problem == ""
    reader.close()


def test_a_fifo_is_read_without_blocking(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    reader = KmsgReader(str(path))
    assert reader.read() == []
    assert not reader.pollable  # with no writer it is always at its end: to wait for it would be to spin
    with path.open("wb") as writer:
        writer.write(encode_record("one", 1))
        writer.flush()
        assert texts(reader.read()) == ["one"]
        assert reader.read() == []
        assert reader.pollable
        assert not reader.is_ring
    reader.close()


def test_no_permission_names_the_capability(tmp_path: Path) -> None:
    """A file in place of the missing right: as root every file may be read, so the refusal comes from the call."""

    def refuse(descriptor: int, size: int) -> bytes:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    path = tmp_path / "kmsg"
    path.touch()
    (tmp_path / "self").mkdir()
    for ours, needs in ((0, "CAP_SYSLOG"), (1 << 34, "a privileged container")):
        (tmp_path / "self/status").write_text(f"CapEff:\t{ours:016x}\n")
        reader = KmsgReader(str(path), read=refuse, procfs=str(tmp_path))
        assert reader.read() == []
        assert needs in reader.problem
        reader.close()


def test_a_container_without_the_device_needs_to_be_privileged() -> None:
    reader = KmsgReader("/dev/no-such-kmsg")
    assert reader.read() == []
    assert reader.problem.startswith(
        "/dev/no-such-kmsg: No such file or directory, needs a privileged container"
    )


class Device:
    """The read protocol of /dev/kmsg: one record a call, EPIPE once after it overwrote some, EAGAIN at the end."""

    def __init__(self) -> None:
        self.answers: list[bytes | int] = []

    def read(self, descriptor: int, size: int) -> bytes:
        if not self.answers:
            raise BlockingIOError(errno.EAGAIN, "")
        answer = self.answers.pop(0)
        if isinstance(answer, int):
            raise OSError(answer, os.strerror(answer))
        return answer


def test_an_overrun_of_the_device_is_counted_and_reading_goes_on() -> None:
    device = Device()
    reader = KmsgReader("/dev/null", read=device.read)  # a character device, as /dev/kmsg
    device.answers = [
        encode_record("one", 1),
        errno.EPIPE,
        encode_record("ten", 10),
        encode_record("eleven", 11),
    ]
    assert texts(reader.read()) == ["one", "ten", "eleven"]
    assert reader.lost == 8
    assert reader.problem == ""
    reader.close()


def test_an_error_of_the_device_keeps_what_was_read_and_is_said() -> None:
    device = Device()
    reader = KmsgReader("/dev/null", read=device.read)
    device.answers = [encode_record("one", 1), errno.EIO]
    assert texts(reader.read()) == ["one"]
    assert "Input/output error" in reader.problem
    device.answers = [encode_record("two", 2)]
    assert texts(reader.read()) == ["two"]
    assert reader.problem == ""
    reader.close()
