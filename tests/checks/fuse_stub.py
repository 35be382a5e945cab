"""A file system in user space that answers, hangs or dies as a test says: a file server's stand-in.

Speaks the kernel's protocol (include/uapi/linux/fuse.h) over /dev/fuse for one empty folder that takes files.
"""

import ctypes
import errno
import os
import select
import stat
import struct
import threading
from pathlib import Path
from types import TracebackType

LOOKUP, FORGET, GETATTR, UNLINK, OPEN, WRITE, STATFS, RELEASE, FSYNC = 1, 2, 3, 10, 14, 16, 17, 18, 20
FLUSH, INIT, ACCESS, CREATE, INTERRUPT, BATCH_FORGET = 25, 26, 34, 35, 36, 42
_HEADER = struct.Struct("<IIQQIIIHH")  # length, opcode, unique, node, uid, gid, pid, extensions, padding
_MNT_DETACH = 2


class FuseStub:
    """`hold` names the operations that are not answered any more, `errors` those that are refused."""

    def __init__(self, point: Path) -> None:
        self.point = point
        self.hold: set[int] = set()
        self.errors: dict[int, int] = {}  # operation -> errno
        self.free_blocks = 900  # of 1000
        self.files = 0  # that were made
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = -1
        self._waiting: list[tuple[int, int]] = []

    def __enter__(self) -> "FuseStub":
        point, kind = os.fsencode(self.point), b"fuse.stub"
        self._fd = os.open("/dev/fuse", os.O_RDWR | os.O_NONBLOCK)
        options = f"fd={self._fd},rootmode=40000,user_id={os.getuid()},group_id=0,allow_other"
        if self._libc.mount(b"server:/export", point, kind, 0, options.encode()) != 0:
            os.close(self._fd)
            raise OSError(ctypes.get_errno(), "mounting a FUSE file system (needs root and /dev/fuse)")
        self._ends, self._end = os.pipe()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd >= 0:
            self.die()
        self._libc.umount2(os.fsencode(self.point), _MNT_DETACH)

    def die(self) -> None:
        """As a server process that ended: every call fails with ENOTCONN."""
        os.close(self._end)
        self._thread.join()
        os.close(self._fd)
        os.close(self._ends)
        self._fd = -1

    def held(self, opcode: int) -> bool:
        """Does somebody wait for the answer to it?"""
        return any(waiting == opcode for _, waiting in self._waiting)

    def release(self) -> None:
        """Answer what was held, and all that comes."""
        self.hold.clear()
        waiting, self._waiting = self._waiting, []
        for unique, opcode in waiting:
            self._answer(unique, opcode)

    def _serve(self) -> None:
        ready = select.poll()  # not select(), which takes no descriptor above 1023
        ready.register(self._fd, select.POLLIN)
        ready.register(self._ends, select.POLLIN)
        while True:
            if self._ends in dict(ready.poll()):
                return
            try:
                request = os.read(self._fd, 1 << 20)
            except OSError as gone:
                if gone.errno in (errno.EAGAIN, errno.EINTR, errno.ENOENT):
                    continue
                return
            _, opcode, unique, *_ = _HEADER.unpack_from(request)
            if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
                continue
            if opcode in self.hold:
                self._waiting.append((unique, opcode))
            else:
                self._answer(unique, opcode)

    def _answer(self, unique: int, opcode: int) -> None:
        error, body = -self.errors.get(opcode, 0), b""
        if error:
            pass
        elif opcode == INIT:
            body = struct.pack("<IIIIHHIIHHI28x", 7, 31, 65536, 0, 12, 9, 1 << 16, 1, 16, 0, 0)
        elif opcode == STATFS:
            body = struct.pack(
                "<QQQQQIIII24x", 1000, self.free_blocks, self.free_blocks, 0, 0, 4096, 255, 4096, 0
            )
        elif opcode == GETATTR:
            body = struct.pack("<QII", 0, 0, 0) + _attributes(1, stat.S_IFDIR | 0o755)
        elif opcode == CREATE:
            self.files += 1
            body = struct.pack("<QQQQII", 2, 0, 0, 0, 0, 0) + _attributes(2, stat.S_IFREG | 0o600)
            body += struct.pack("<QII", 1, 0, 0)
        elif opcode == WRITE:
            body = struct.pack("<II", 9, 0)
        elif opcode == LOOKUP:
            error = -errno.ENOENT
        elif opcode not in (UNLINK, OPEN, RELEASE, FSYNC, FLUSH, ACCESS):
            error = -errno.ENOSYS
        try:
            os.write(self._fd, struct.pack("<IiQ", 16 + len(body), error, unique) + body)
        except OSError:  # whoever asked was interrupted
            pass


def _attributes(node: int, mode: int) -> bytes:
    return struct.pack("<QQQQQQIIIIIIIIII", node, 0, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
