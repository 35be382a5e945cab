"""The one reading of the clocks."""

import time
from collections.abc import Callable
from typing import TypeAlias

from sentinel.core.now import Now

Clock: TypeAlias = Callable[[], Now]


def system_now() -> Now:
    """CLOCK_BOOTTIME for every interval and deadline; the wall clock, which may be stepped, only to show."""
    mono_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    return Now(mono_s, time.time(), mono_s - time.clock_gettime(time.CLOCK_MONOTONIC))


def boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:  # not Linux, or a container without it: every start is a new boot
        return f"unknown-{time.time():.0f}"
