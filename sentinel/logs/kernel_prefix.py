"""Prefixes that dmesg, syslog, the journal and /dev/kmsg put before a kernel message."""

import json
import re
from datetime import datetime

from msgspec import Struct


class KernelLine(Struct, frozen=True):
    """A line of a saved kernel log without its prefix.

    `from_kernel` False: the prefix names another writer, whose text is not the kernel's word.
    `wall_s` is None where the prefix has no date or (classic syslog) no year could be told.
    """

    text: str
    wall_s: float | None = None
    uptime_s: float | None = None
    from_kernel: bool = True


_LEVEL = re.compile(r"<(\d{1,3})>")
_DECODED = re.compile(r"(\w+) *: *\w+ *: (?=\[)")  # dmesg -x: "kern  :err   : [...] text"
_KMSG = re.compile(r"(\d+),(\d+),(\d+),[^;]*;")
_UPTIME = re.compile(r"\[ *(\d+\.\d+)\](?:\[ *[TC]\d+\])? ?")
_CTIME = re.compile(r"\[([A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\] ?")
_ISO = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?) ")
_SYSLOG = re.compile(r"([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?) ")
_HOST_AND_TAG = re.compile(r"\S+ ([^\s:\[]+)(?:\[\d+\])?: ")  # "node7 kernel: ", "node7 sshd[42]: "
_KERNEL_TAG = re.compile(r"(?:[\w.-]+ )?kernel: ")


def _iso_seconds(stamp: str) -> float | None:
    try:
        return datetime.fromisoformat(stamp.replace(",", ".")).timestamp()
    except ValueError:
        return None


def _ctime_seconds(stamp: str) -> float | None:
    try:
        return datetime.strptime(stamp, "%a %b %d %H:%M:%S %Y").timestamp()
    except ValueError:
        return None


def _syslog_seconds(stamp: str, now_wall_s: float | None) -> float | None:
    """Classic syslog has no year: the latest one that does not lie more than a day after `now_wall_s`."""
    if now_wall_s is None:
        return None
    year = datetime.fromtimestamp(now_wall_s).year
    for candidate in (year, year - 1):
        try:
            moment = datetime.strptime(f"{candidate} {stamp.split('.')[0]}", "%Y %b %d %H:%M:%S").timestamp()
        except ValueError:
            continue
        if moment <= now_wall_s + 86400:
            return moment
    return None


def _journal_json(line: str) -> KernelLine | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    message = entry.get("MESSAGE") if isinstance(entry, dict) else None
    if isinstance(message, list):  # the journal writes bytes that are not UTF-8 as numbers
        numbers = [item for item in message if isinstance(item, int) and 0 <= item <= 255]
        message = bytes(numbers).decode("utf-8", "replace")
    if not isinstance(message, str):
        return None
    stamp = str(entry.get("__REALTIME_TIMESTAMP", ""))
    return KernelLine(
        text=message,
        wall_s=int(stamp) / 1e6 if stamp.isascii() and stamp.isdigit() else None,
        from_kernel=entry.get("_TRANSPORT", "kernel") == "kernel",
    )


def split_prefix(line: str, now_wall_s: float | None = None) -> KernelLine:
    """Take the prefix off one line of dmesg (plain, -r, -T, -x, iso), syslog, journal (short, json) or /dev/kmsg.

    `now_wall_s` tells the year of classic syslog stamps. A line with no known prefix is returned whole.
    """
    line = line.rstrip("\r\n")
    if line.startswith("{") and (entry := _journal_json(line)):
        return entry
    if match := _KMSG.match(line):
        return KernelLine(line[match.end() :], None, int(match[3]) / 1e6, int(match[1]) >> 3 == 0)
    from_kernel = True
    if match := _LEVEL.match(line):
        from_kernel = int(match[1]) >> 3 == 0
        line = line[match.end() :]
    elif match := _DECODED.match(line):
        from_kernel = match[1] == "kern"
        line = line[match.end() :]
    wall_s, tagged, line = _date(line, now_wall_s)
    uptime_s, line = _uptime(line) if wall_s is None and not tagged else (None, line)
    if match := _KERNEL_TAG.match(line):
        line = line[match.end() :]
    elif tagged and (match := _HOST_AND_TAG.match(line)):
        from_kernel = False
        line = line[match.end() :]
    if uptime_s is None:
        uptime_s, line = _uptime(line)
    return KernelLine(line, wall_s, uptime_s, from_kernel)


def _date(line: str, now_wall_s: float | None) -> tuple[float | None, bool, str]:
    """Take a date off: (wall clock, whether host and tag follow, the rest)."""
    if match := _CTIME.match(line):
        return _ctime_seconds(match[1]), False, line[match.end() :]
    if match := _ISO.match(line):  # dmesg writes a comma before the fraction, syslog and the journal a point
        return _iso_seconds(match[1]), "," not in match[1], line[match.end() :]
    if match := _SYSLOG.match(line):
        return _syslog_seconds(match[1], now_wall_s), True, line[match.end() :]
    return None, False, line


def _uptime(line: str) -> tuple[float | None, str]:
    match = _UPTIME.match(line)
    return (float(match[1]), line[match.end() :]) if match else (None, line)
