"""Reading the kernel's ring of messages: the record protocol of /dev/kmsg (Documentation/ABI/testing/dev-kmsg).

A regular file or a FIFO that holds the same records serves as a stand-in. Taking records out of the ring and
working out what they mean are two steps (`drain`, `take`), so that in a flood the first is never behind the second.
"""

import contextlib
import errno
import os
import re
import stat
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from sentinel import rights

# The kernel refuses a read into less than a record needs with EINVAL; its longest is 8192 bytes, 2048 since 6.3.
RECORD_BYTES = 8192
BACKLOG_BYTES = 16 << 20  # drained and not yet taken; what is more stays in the ring, which counts its losses
LINE_OVERHEAD = 50  # what Python adds to each line that waits
LINE_BYTES = 1 << 20  # of a stand-in file: a longer line is no record
KERNEL_ONLY = (0,)  # what user space writes never has facility 0
BOOT_ID = "sys/kernel/random/boot_id"


class KmsgRecord(Struct, frozen=True, gc=False):
    """One message. `at_us` is the kernel's clock: microseconds since boot without sleep, about CLOCK_MONOTONIC."""

    sequence: int
    level: int  # 0 emergency .. 7 debug
    facility: int  # 0 kernel; what user space writes is never 0
    at_us: int
    text: str


class KmsgPosition(Struct, frozen=True):
    """Where reading stopped: everything up to `sequence` of this boot was handled, the newest of it was of `at_us`."""

    boot_id: str
    sequence: int
    at_us: int = 0


def read_boot_id(procfs: str = "/proc") -> str:
    """The kernel's random id of this boot, "" where it cannot be read."""
    try:
        return Path(procfs, BOOT_ID).read_text().strip()
    except OSError:
        return ""


_ESCAPE = re.compile(rb"\\x([0-9a-fA-F]{2})")


def _unescape(data: bytes) -> str:
    r"""The kernel writes control bytes, backslashes and bytes above 127 as \xNN."""
    if b"\\x" in data:
        data = _ESCAPE.sub(lambda match: bytes.fromhex(match[1].decode()), data)
    return data.decode("utf-8", "replace")


def decode_record(line: bytes) -> KmsgRecord | None:
    """One record (its continuation lines are ignored), or None where it is garbled."""
    prefix, semicolon, text = line.partition(b"\n")[0].partition(b";")
    fields = prefix.split(b",", 4)
    if not semicolon or len(fields) < 4:
        return None
    priority, sequence, at_us = fields[:3]
    # Twenty digits hold 64 bits; Python refuses to turn thousands of them into a number.
    if not (priority.isdigit() and sequence.isdigit() and at_us.isdigit() and len(prefix) <= 200):
        return None
    number = int(priority)
    return KmsgRecord(int(sequence), number & 7, number >> 3, int(at_us), _unescape(text))


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
    `problem` says why nothing can be read ("" while reading works); `drain` then tries to open again.
    """

    def __init__(
        self,
        path: str = "/dev/kmsg",
        trusted_facilities: tuple[int, ...] = KERNEL_ONLY,
        resume: KmsgPosition | None = None,
        procfs: str = "/proc",
        read: Callable[[int, int], bytes] = os.read,
    ) -> None:
        self.path = path
        self.trusted = trusted_facilities
        self.boot_id = read_boot_id(procfs)
        self.lost = 0  # records that the ring dropped before they were read, since the first one read
        self.missed = (
            0  # records of this boot that nobody handled and that were gone before the first one read
        )
        self.untrusted = 0
        self.garbled = 0
        self.problem = ""
        self._read = read
        self._procfs = procfs
        self._descriptor = -1
        self._identity: tuple[int, int] = (0, 0)
        self._kind = 0  # the file type of st_mode
        self._waits = False  # at its end reading gives EAGAIN
        self._ends = False  # at its end reading gives nothing: a file
        self._offset = 0
        self._partial = b""
        self._skipping = False  # the rest of an overlong line
        self._backlog: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._backlog_bytes = BACKLOG_BYTES
        # An unknown boot is never the same as another unknown one.
        known = resume is not None and resume.boot_id == self.boot_id != "" and resume.sequence >= 0
        self._last, self._last_us = (resume.sequence, resume.at_us) if known and resume else (-1, 0)
        self.resumed = self._last >= 0
        self._garbled_before = 0  # until the last good record
        self._begun = False  # whether the first record that counts was read
        self._open()

    @property
    def position(self) -> KmsgPosition:
        return KmsgPosition(self.boot_id, self._last, self._last_us)

    @property
    def pollable(self) -> bool:
        """Whether an event loop can wait for `fileno`: a file that just ends must be read on an interval."""
        return self._descriptor >= 0 and self._waits

    @property
    def is_ring(self) -> bool:
        """Whether this is the kernel's ring (or behaves as it), and not a stand-in file or FIFO."""
        return self._waits and self._kind != stat.S_IFIFO

    @property
    def waiting(self) -> int:
        """How many lines were drained and not yet taken."""
        return len(self._backlog)

    @property
    def full(self) -> bool:
        """Whether the backlog takes no more: what comes stays in the ring, which counts what it loses."""
        return self._waiting_bytes >= self._backlog_bytes

    def read_with(self, read: Callable[[int, int], bytes], backlog_bytes: int = BACKLOG_BYTES) -> None:
        """From now on read by `read(fileno, size)`, which may give pieces of records, as os.read of a pipe does."""
        self._read, self._backlog_bytes = read, backlog_bytes

    def fileno(self) -> int:
        """The descriptor, or -1 while there is none."""
        return self._descriptor

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):  # of a device that is gone
                os.close(descriptor)

    def _open(self) -> None:
        try:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            status = os.fstat(self._descriptor)
        except OSError as error:
            self.problem = self._explain(error)
            return
        self._kind = stat.S_IFMT(status.st_mode)
        self._identity = (status.st_dev, status.st_ino)
        self._offset = 0
        self._partial, self._skipping = b"", False
        self._waits, self._ends = stat.S_ISCHR(status.st_mode), False
        self.problem = ""

    def _explain(self, error: OSError) -> str:
        if error.errno not in (errno.EPERM, errno.EACCES):
            in_dev = error.errno == errno.ENOENT and self.path.startswith("/dev/")
            lacks = f", needs {rights.DEVICES}" if in_dev else ""
            return f"{self.path}: {error.strerror}{lacks}; faults in the kernel log are not seen"
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
        if rights.may(rights.SYSLOG, procfs=self._procfs):  # the control group of a container refuses devices
            missing = f"{rights.DEVICES}, or read permission on the file"
        return f"{self.path}: not permitted, needs {missing}; GPU errors in the kernel log are not seen"

    def read(self) -> list[KmsgRecord]:
        """All new trusted records. Never blocks; failures are told by `problem`."""
        self.drain()
        return self.take(self.waiting)

    # ---------------------------------------------------------------- out of the ring

    def drain(self) -> None:
        """Takes out all that is there, up to a backlog of BACKLOG_BYTES; does not look into it."""
        if self._descriptor < 0:
            self._open()
        elif self._kind == stat.S_IFREG and self._ends:
            self._reopen_if_replaced()
        if self._descriptor < 0:
            return
        try:
            self._drain()
            self.problem = ""
        except OSError as error:
            self.problem = self._explain(error)
            self.close()

    def _drain(self) -> None:
        """The device gives one record to each read, EPIPE once after it dropped some, EAGAIN at the end."""
        descriptor, lines = self._descriptor, self._backlog
        refused = 0
        while not self.full:
            try:
                data = self._read(descriptor, RECORD_BYTES)
            except BlockingIOError:
                self._waits, self._ends = True, False
                return
            except OSError as error:
                refused += 1
                # Longer than any the kernel makes: passed over.
                if error.errno == errno.EINVAL and refused < 100:
                    lines.append(b"garbled")
                    self._waiting_bytes += len(b"garbled") + LINE_OVERHEAD
                elif error.errno != errno.EPIPE:  # the gap in the sequence tells how many
                    raise
                continue
            if not data:
                self._waits, self._ends = False, True
                return
            self._offset += len(data)
            if self._partial or self._skipping or data[-1] != 10:
                data = self._whole_lines(data)
            # A line that begins with a space tells of the device that the message before it is about.
            for line in data.split(b"\n"):
                if line and line[0] != 32:
                    lines.append(line)
                    self._waiting_bytes += len(line) + LINE_OVERHEAD

    def _whole_lines(self, data: bytes) -> bytes:
        """A file is read in pieces: what follows the last line end waits for the next piece."""
        if self._skipping:
            _, newline, data = data.partition(b"\n")
            self._skipping = not newline
        whole, newline, rest = (self._partial + data).rpartition(b"\n")
        self._partial = rest
        if len(rest) > LINE_BYTES:
            self._partial, self._skipping = b"", True
            self.garbled += 1
        return whole + newline

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
            self._last, self._last_us = -1, 0
            self._open()

    # ---------------------------------------------------------------- out of the backlog

    def take(self, limit: int) -> list[KmsgRecord]:
        """The trusted records among the next `limit` lines that were drained; `position` stands behind them."""
        records = []
        backlog = self._backlog
        for _ in range(min(limit, len(backlog))):
            line = backlog.popleft()
            self._waiting_bytes -= len(line) + LINE_OVERHEAD
            if (record := self._accept(line)) is not None:
                records.append(record)
        return records

    def _accept(self, line: bytes) -> KmsgRecord | None:
        record = decode_record(line)
        if record is None:
            self.garbled += 1
            return None
        gap = record.sequence - self._last - 1
        if gap < 0:
            return None  # handled before a restart
        if not self._begun:
            self.missed = gap
        elif self._last >= 0:
            self.lost += max(0, gap - (self.garbled - self._garbled_before))  # those used up a number each
        self._begun, self._garbled_before = True, self.garbled
        self._last = record.sequence
        self._last_us = max(self._last_us, record.at_us)
        if record.facility not in self.trusted:
            self.untrusted += 1
            return None
        return record
