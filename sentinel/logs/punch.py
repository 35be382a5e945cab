"""Giving back the disk blocks of a log that was read: its size stays, its use of the disk is bounded."""

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
    result = _fallocate()(fd, _KEEP_SIZE | _PUNCH_HOLE, ctypes.c_int64(first), ctypes.c_int64(last - first))
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return last
