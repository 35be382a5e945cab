"""The kernel's clock source, and whether something keeps the clock right."""

import ctypes
import os
from pathlib import Path

from sentinel.checks.base import Look, Source, Unknown
from sentinel.core.health import Component, Finding, Severity

_SOURCE = Source("clocks", Component.SYSTEM)

# The others are read through the kernel or a device, some 20 times slower, and a kernel that fell back to one has
# found the time stamp counter unreliable. A guest's own clock is read in user space as the TSC is.
GOOD_SOURCES = frozenset({"tsc", "arch_sys_counter", "kvm-clock", "hyperv_clocksource_tsc_page"})

STA_UNSYNC = (
    0x0040  # include/uapi/linux/timex.h; TIME_ERROR, which adjtimex returns, has other reasons besides
)


class _Timex(ctypes.Structure):
    """The head of struct timex, see adjtimex(2); the padding covers its rest in every ABI."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


def kernel_clock() -> tuple[int, float]:
    """(status bits, largest error in seconds) that the kernel was told by whatever keeps the clock. Raises OSError.

    Reading needs no privilege. It answers for chrony, ntpd, systemd-timesyncd and ptp alike.
    """
    timex = _Timex()
    if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex)) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return timex.status, timex.maxerror / 1e6


def judge_sync(status: int, error_s: float) -> list[Finding]:
    if not status & STA_UNSYNC:
        return []
    return [
        _finding(
            "clock-unsynchronised",
            "CHECK_TIME_SERVICE",
            "Nothing keeps the clock right: logs of several nodes cannot be compared, and certificates may fail",
            f"adjtimex: unsynchronised, error up to {error_s:.0f} s",
        )
    ]


def judge_source(current: str, available: str) -> list[Finding]:
    if current in GOOD_SOURCES:
        return []
    return [
        _finding(
            "clocksource",
            "CHECK_KERNEL",
            "The clock source is not tsc: reading the time is slow, and every profiler and collective does it",
            f"{current}; available: {available}",
        )
    ]


def _finding(code: str, action: str, summary: str, evidence: str) -> Finding:
    return _SOURCE.finding("clock", code, Severity.WARNING, action, summary, evidence)


def check(look: Look) -> list[Finding]:
    folder = Path(look.settings.sysfs, "devices/system/clocksource/clocksource0")
    problems = []
    found = []
    try:
        found += judge_sync(*kernel_clock())
    except OSError as error:  # a container's filter
        problems.append(f"adjtimex: {error.strerror}; in a container it needs CAP_SYS_TIME")
    try:
        current = (folder / "current_clocksource").read_text(errors="replace").strip()
        found += judge_source(current, (folder / "available_clocksource").read_text(errors="replace").strip())
    except OSError as error:
        problems.append(f"{folder}: {error.strerror}")
    if problems:
        raise Unknown("; ".join(problems), tuple(found))
    return found
