"""A file with the records, the poll and the EPIPE of /dev/kmsg, whose records may be the kernel's (facility 0).

`python tests/kmsg_device.py MOUNTPOINT [CAPACITY]` serves it with FUSE from /dev/fuse (linux/fuse.h, protocol 7.x)
until its standard input ends, and prints "ready" once it is mounted. Lines on standard input are JSON lists:

    ["log", text, facility, at_us]   append a record, at_us null for now
    ["raw", text]                    append a record in these very bytes (its sequence number is used up)
    ["skip", n]                      use up n sequence numbers: records that were there before
    ["keep", n]                      hold only the newest n records from now on
    ["fail", errno]                  reads fail with it; 0: no more

Each is answered with a line "done" when readers can see it.
"""

import ctypes
import errno
import json
import os
import selectors
import struct
import sys
from collections import deque

from sentinel.logs.kmsg import encode_record

LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, STATFS = 1, 2, 3, 4, 14, 15, 17
RELEASE, FLUSH, INIT, INTERRUPT, POLL = 18, 25, 26, 36, 40
DIRECT_IO, NONSEEKABLE, SCHEDULE_NOTIFY, NOTIFY_POLL = 1, 4, 1, 1
POLLIN = 0x1 | 0x40
HEADER = struct.Struct("<IIQQIIII")  # fuse_in_header


class Ring:
    """The records, and where each open file stands."""

    def __init__(self, capacity: int) -> None:
        self.records: deque[tuple[int, bytes]] = deque()
        self.capacity = capacity
        self.next = 0
        self.failing = 0
        self.files: dict[int, int] = {}  # handle -> the sequence that it reads next

    @property
    def first(self) -> int:
        return self.records[0][0] if self.records else self.next

    def append(self, record: bytes) -> None:
        self.records.append((self.next, record))
        self.next += 1
        self.trim()

    def trim(self) -> None:
        while len(self.records) > self.capacity:
            self.records.popleft()

    def read(self, handle: int, size: int) -> bytes | int:
        """As devkmsg_read: one record, -EPIPE once where records are gone, -EAGAIN at the end."""
        if self.failing:
            return -self.failing
        if self.files[handle] < self.first:
            self.files[handle] = self.first
            return -errno.EPIPE
        if self.files[handle] >= self.next:
            return -errno.EAGAIN
        sequence, record = self.records[self.files[handle] - self.first]
        self.files[handle] = sequence + 1
        return record if len(record) <= size else -errno.EINVAL

    def readable(self, handle: int) -> bool:
        return bool(self.failing) or self.files[handle] < self.next


class Server:
    """Answers the kernel's requests, and wakes those that poll."""

    def __init__(self, descriptor: int, ring: Ring) -> None:
        self.descriptor, self.ring = descriptor, ring
        self.pollers: dict[int, int] = {}  # handle -> the kernel's handle of the poll

    def reply(self, unique: int, result: bytes | int) -> None:
        error, data = (result, b"") if isinstance(result, int) else (0, result)
        os.write(self.descriptor, struct.pack("<IiQ", 16 + len(data), error, unique) + data)

    def wake(self) -> None:
        for handle, poll in list(self.pollers.items()):
            if self.ring.readable(handle):
                del self.pollers[handle]
                message = struct.pack("<IiQ", 24, NOTIFY_POLL, 0) + struct.pack("<Q", poll)
                os.write(self.descriptor, message)

    def serve_one(self) -> None:
        try:
            data = os.read(self.descriptor, 1 << 18)
        except InterruptedError:
            return
        _, code, unique, _, _, _, _, _ = HEADER.unpack_from(data)
        body = data[HEADER.size :]
        if code in (FORGET, INTERRUPT):
            return
        self.reply(unique, self.answer(code, body))

    def answer(self, code: int, body: bytes) -> bytes | int:
        ring = self.ring
        if code == INIT:
            version = struct.unpack_from("<II", body)
            assert (7, 23) <= version < (8, 0), version
            # fuse_init_out: version, max_readahead, flags, background 12 and 9, max_write, time_gran, pages ...
            return struct.pack("<IIIIHHIIHHII6I", 7, 31, 65536, 0, 12, 9, 65536, 1, 0, 0, 0, 0, *[0] * 6)
        if code in (GETATTR, SETATTR):
            # fuse_attr_out: valid s, ns, dummy; ino, size, blocks, 3 times, 3 ns, mode, nlink, uid, gid, rdev ...
            attributes = struct.pack("<6Q10I", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o100644, 1, 0, 0, 0, 4096, 0)
            return struct.pack("<QII", 3600, 0, 0) + attributes
        if code == OPEN:
            handle = max(ring.files, default=0) + 1
            ring.files[handle] = ring.first
            return struct.pack("<QII", handle, DIRECT_IO | NONSEEKABLE, 0)
        if code == READ:
            handle, _, size = struct.unpack_from("<QQI", body)
            return ring.read(handle, size)
        if code == POLL:
            handle, poll, flags = struct.unpack_from("<QQI", body)
            if flags & SCHEDULE_NOTIFY:
                self.pollers[handle] = poll
            return struct.pack("<II", POLLIN if ring.readable(handle) else 0, 0)
        if code == RELEASE:
            (handle,) = struct.unpack_from("<Q", body)
            ring.files.pop(handle, None)
            self.pollers.pop(handle, None)
            return b""
        if code == FLUSH:
            return b""
        if code == STATFS:
            return struct.pack("<5Q4I6I", 0, 0, 0, 0, 0, 4096, 255, 4096, 0, *[0] * 6)
        return -errno.ENOSYS


def obey(ring: Ring, line: bytes) -> None:
    """One line of standard input."""
    command, *arguments = json.loads(line)
    if command == "log":
        text, facility, at_us = arguments
        ring.append(encode_record(text, ring.next, at_us, facility))
    elif command == "raw":
        ring.append(arguments[0].encode("latin-1"))
    elif command == "skip":
        ring.next += arguments[0]
    elif command == "keep":
        ring.capacity = arguments[0]
        ring.trim()
    else:
        ring.failing = arguments[0]


def mount(path: str) -> int:
    descriptor = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={descriptor},rootmode=100644,user_id={os.getuid()},group_id={os.getgid()},allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"kmsg", path.encode(), b"fuse", 0, options.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return descriptor


def main() -> None:
    path, capacity = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 100_000
    ring = Ring(capacity)
    server = Server(mount(path), ring)
    os.set_blocking(0, False)
    selector = selectors.DefaultSelector()
    selector.register(server.descriptor, selectors.EVENT_READ)
    selector.register(0, selectors.EVENT_READ)
    print("ready", flush=True)
    pending = b""
    while True:
        for key, _ in selector.select():
            if key.fd == server.descriptor:
                server.serve_one()
                continue
            data = os.read(0, 1 << 16)
            if not data:
                return
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                obey(ring, line)
            server.wake()
            sys.stdout.write("done\n" * len(lines))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
