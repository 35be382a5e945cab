"""Reading the kernel's ring of messages: the record protocol of /dev/kmsg (Documentation/ABI/testing/dev-kmsg).

A regular file or a FIFO that holds the same records serves as a stand-in. Reading only takes records
out of the ring; what they mean is worked out afterwards, so that a flood does not overtake the reader.
"""

import errno
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

RECORD_BYTES = 8192  # the kernel refuses a read into less than a record needs with EINVAL
BOOT_ID = "sys/kernel/random/boot_id"


class KmsgRecord(Struct, frozen=True, gc=False):
    """One message. `at_us` is the kernel's clock: microseconds since boot without sleep, about CLOCK_MONOTONIC."""

    sequence: int
    level: int  # 0 emergency .. 7 debug
    facility: int  # 0 kernel; what user space writes is never 0
    at_us: int
    text: str


class KmsgPosition(Struct, frozen=True):
    """Where reading stopped: everything up to `sequence` of this boot was handled."""

    boot_id: str
    sequence: int


def read_boot_id(procfs: str = "/proc") -> str:
    """The kernel's random id of this boot, "" where it cannot be read."""
    try:
        return Path(procfs, BOOT_ID).read_text().strip()
    except OSError:
        return ""


def _unescape(data: bytes) -> str:
    r"""The kernel writes control bytes, backslashes and bytes above 127 as \xNN."""
    if b"\\x" not in data:
        return data.decode("utf-8", "replace")
    head, *parts = data.split(b"\\x")
    out = bytearray(head)
    for part in parts:
        try:
            out.append(int(part[:2], 16))
            out += part[2:]
        except ValueError:
            out += b"\\x" + part
    return out.decode("utf-8", "replace")


def decode_record(line: bytes) -> KmsgRecord | None:
    """One record (its continuation lines are ignored), or None where it is garbled."""
    prefix, semicolon, text = line.partition(b"\n")[0].partition(b";")
    fields = prefix.split(b",")
    if not semicolon or len(fields) < 4 or not all(field.isdigit() for field in fields[:3]):
        return None
    priority, sequence, at_us = (int(field) for field in fields[:3])
    return KmsgRecord(sequence, priority & 7, priority >> 3, at_us, _unescape(text))


def encode_record(
    text: str, sequence: int, at_us: int | None = None, facility: int = 0, level: int = 3
) -> bytes:
    """A record as the kernel prints it, for stand-in files. `at_us` None: now."""
    if at_us is None:
        at_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    safe = "".join(
        c if " " <= c <= "~" and c != "\\" else "".join(f"\\x{b:02x}" for b in c.encode()) for c in text
    )
    return f"{facility << 3 | level},{sequence},{at_us},-;{safe}\n".encode()


class KmsgReader:
    """Reads records without blocking, each exactly once, also across restarts of the reader.

    `resume` skips what an earlier reader of the same boot handled; a position of another boot is void.
    Records whose facility is not trusted are counted and dropped: any user may write to the ring.
    `problem` says why nothing can be read ("" while reading works); `read` then tries to open again.
    """

    def __init__(
        self,
        path: str = "/dev/kmsg",
        trusted_facilities: tuple[int, ...] = (0,),
        resume: KmsgPosition | None = None,
        procfs: str = "/proc",
        read: Callable[[int, int], bytes] = os.read,
    ) -> None:
        self.path = path
        self.trusted = trusted_facilities
        self.boot_id = read_boot_id(procfs)
        self.lost = 0  # records that the ring dropped before they were read
        self.untrusted = 0
        self.garbled = 0
        self.problem = ""
        self._read = read
        self._procfs = procfs
        self._descriptor = -1
        self._regular = False
        self._identity: tuple[int, int] = (0, 0)
        self._offset = 0
        self._partial = b""
        self._last = resume.sequence if resume and resume.boot_id == self.boot_id else -1
        self._continues = self._last >= 0
        self._open()

    @property
    def position(self) -> KmsgPosition:
        return KmsgPosition(self.boot_id, self._last)

    @property
    def pollable(self) -> bool:
        """Whether an event loop can wait for `fileno` (a regular file must be read on an interval)."""
        return self._descriptor >= 0 and not self._regular

    def fileno(self) -> int:
        """The descriptor, or -1 while there is none."""
        return self._descriptor

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> None:
        try:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            status = os.fstat(self._descriptor)
        except OSError as error:
            self.problem = self._explain(error)
            return
        self._regular = stat.S_ISREG(status.st_mode)
        self._identity = (status.st_dev, status.st_ino)
        self._offset = 0
        self._partial = b""
        self.problem = ""

    def _explain(self, error: OSError) -> str:
        if error.errno not in (errno.EPERM, errno.EACCES):
            return f"{self.path}: {error.strerror}"
        missing = "CAP_SYSLOG"
        try:
            restrict = Path(self._procfs, "sys/kernel/dmesg_restrict").read_text().strip()
            missing += (
                f" (kernel.dmesg_restrict is {restrict})"
                if restrict == "1"
                else " or read permission on the file"
            )
        except OSError:
            pass
        return f"{self.path}: not permitted, needs {missing}; GPU errors in the kernel log are not seen"

    def read(self, limit: int = 100_000) -> list[KmsgRecord]:
        """All new trusted records, at most about `limit`. Never blocks; failures are told by `problem`."""
        if self._descriptor < 0:
            self._open()
        elif self._regular:
            self._reopen_if_replaced()
        if self._descriptor < 0:
            return []
        raw: list[bytes] = []
        try:
            if stat.S_ISCHR(os.fstat(self._descriptor).st_mode):
                self._take_records(raw, limit)
            else:
                self._take_lines(raw, limit)
            self.problem = ""
        except OSError as error:
            self.problem = self._explain(error)
            self.close()
        return [record for line in raw if (record := self._accept(line)) is not None]

    def _take_records(self, raw: list[bytes], limit: int) -> None:
        """The device gives one record to each read, EPIPE once after it dropped some, EAGAIN at the end."""
        descriptor, read = self._descriptor, self._read
        while len(raw) < limit:
            try:
                raw.append(read(descriptor, RECORD_BYTES))
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.EPIPE:  # the gap in the sequence tells how many
                    raise

    def _take_lines(self, raw: list[bytes], limit: int) -> None:
        while len(raw) < limit:
            try:
                data = self._read(self._descriptor, 1 << 16)
            except BlockingIOError:  # a FIFO with a writer that is silent
                return
            if not data:
                return
            self._offset += len(data)
            *lines, self._partial = (self._partial + data).split(b"\n")
            raw += [line for line in lines if line and not line.startswith(b" ")]
            if len(self._partial) > 1 << 20:
                self._partial = b""
                self.garbled += 1

    def _reopen_if_replaced(self) -> None:
        """A stand-in file that was cut off or replaced starts a new ring, whose numbers mean nothing to us."""
        try:
            status = os.stat(self.path)
        except OSError as error:
            self.problem = self._explain(error)
            self.close()
            return
        if (status.st_dev, status.st_ino) != self._identity or status.st_size < self._offset:
            self.close()
            self._last, self._continues = -1, False
            self._open()

    def _accept(self, line: bytes) -> KmsgRecord | None:
        record = decode_record(line)
        if record is None:
            self.garbled += 1
            return None
        if record.sequence <= self._last:
            return None  # handled before a restart
        if self._continues and record.sequence > self._last + 1:
            self.lost += record.sequence - self._last - 1
        self._last, self._continues = record.sequence, True
        if record.facility not in self.trusted:
            self.untrusted += 1
            return None
        return record
