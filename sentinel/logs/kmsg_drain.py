"""Keeps the ring of kernel messages empty while others work: a thread that only reads, never handles.

The ring of a machine can be 128 KiB: a flood fills it in 30 ms. Python gives a thread its turn within 5 ms, but
takes the turn away with every call that lets others run meanwhile, as os.read does: beside a busy thread it would
read a few records each 5 ms. So the device, whose reads never wait, is read without giving the turn away.
"""

import ctypes
import errno
import os
import select
import stat
import threading
from functools import cache
from typing import Any

from sentinel.logs.kmsg import RECORD_BYTES, KmsgReader

FULL_PAUSE_S = 0.01


@cache
def _libc_read() -> Any:
    function = ctypes.PyDLL(None, use_errno=True).read
    function.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
    function.restype = ctypes.c_ssize_t
    return function


def read_at_once(descriptor: int, size: int) -> bytes:
    """os.read of a descriptor that never waits. Not for others: all threads stand still for as long as it takes."""
    buffer = ctypes.create_string_buffer(min(size, RECORD_BYTES))
    count = _libc_read()(descriptor, buffer, len(buffer))
    if count < 0:
        number = ctypes.get_errno()
        if number == errno.EINTR:
            return read_at_once(descriptor, size)
        raise OSError(number, os.strerror(number))
    return ctypes.string_at(buffer, count)


class Drain:
    """Reads for `reader` until it is closed or reading fails; `wake_fd` is readable when something came."""

    def __init__(self, reader: KmsgReader) -> None:
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stop_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._reader = reader
        self.works = True
        if stat.S_ISCHR(os.fstat(reader.fileno()).st_mode):
            reader.read_with(read_at_once)
        self._thread = threading.Thread(target=self._run, name="kmsg-drain", daemon=True)
        self._thread.start()

    def taken(self) -> None:
        """Call before what was drained is taken: what comes from now on wakes again."""
        try:
            os.eventfd_read(self.wake_fd)
        except BlockingIOError:
            pass

    def _run(self) -> None:
        reader, descriptor = self._reader, self._reader.fileno()
        waits = select.poll()
        waits.register(descriptor, select.POLLIN)
        waits.register(self._stop_fd, select.POLLIN)
        while True:
            if any(ready == self._stop_fd for ready, _ in waits.poll()):
                return
            reader.drain()
            self.works = not reader.problem and reader.fileno() == descriptor and reader.pollable
            os.eventfd_write(self.wake_fd, 1)
            if not self.works:
                return
            if reader.full:
                threading.Event().wait(FULL_PAUSE_S)

    def close(self) -> None:
        if self._thread.is_alive():
            os.eventfd_write(self._stop_fd, 1)
            self._thread.join(timeout=1.0)
        if (
            not self._thread.is_alive() and self.wake_fd >= 0
        ):  # one that hangs in the kernel keeps what it uses
            os.close(self.wake_fd)
            os.close(self._stop_fd)
            self.wake_fd = self._stop_fd = -1
