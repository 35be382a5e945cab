"""Disk blocks of a log: those that were read are given back, those that it needs next are taken; its size stays."""

import ctypes
import os
from collections.abc import Callable
from functools import cache

_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02  # linux/falloc.h
BLOCK_BYTES = 4096


@cache
def _fallocate() -> Callable[[int, int, ctypes.c_int64, ctypes.c_int64], int]:
    function = ctypes.CDLL(None, use_errno=True).fallocate64
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    function.restype = ctypes.c_int
    return function


def punch_hole(fd: int, start: int, end: int) -> int:
    """Free the whole blocks within [start, end). Returns the end of what was freed, or `start`.

    Raises OSError: EOPNOTSUPP where the file system has no holes, EBADF where `fd` is not open for writing.
    """
    first = -(-start // BLOCK_BYTES) * BLOCK_BYTES
    last = end // BLOCK_BYTES * BLOCK_BYTES
    if last <= first:
        return start
    _call(fd, _KEEP_SIZE | _PUNCH_HOLE, first, last - first)
    return last


def hold_room(fd: int, start: int, length_bytes: int) -> None:
    """Take the blocks that a writer who appends needs next; `start` is the end of the file. Raises OSError: ENOSPC,
    EOPNOTSUPP where the file system cannot, EBADF where `fd` is not open for writing."""
    _call(fd, _KEEP_SIZE, start, length_bytes)


def _call(fd: int, mode: int, start: int, length_bytes: int) -> None:
    if _fallocate()(fd, mode, ctypes.c_int64(start), ctypes.c_int64(length_bytes)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
