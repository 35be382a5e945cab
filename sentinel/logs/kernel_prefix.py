"""Prefixes that dmesg, syslog, the journal and /dev/kmsg put before a kernel message."""

import json
import re
from collections.abc import Mapping
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
    prefixed: bool = True  # it had a prefix of a known form
    boot_id: str = ""  # where the form tells it


_LEVEL = re.compile(r"<(\d{1,3})>")
# dmesg -x: "kern  :err   : [...] text", with -t "kern  :err   : text"
_DECODED = re.compile(
    r"(kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|res\d|local[0-7]) *"
    r":(?:emerg|alert|crit|err|warn|notice|info|debug) *: "
)
_KMSG = re.compile(r"(\d+),(\d+),(\d+),[^;]*;")
_UPTIME = re.compile(r"\[ *(\d+\.\d+)(?: <[ \d.]+>)?\] ?")
_CALLER = re.compile(r" ?\[ *[TC]\d+\] ?")  # of a kernel that tells the thread or processor (PRINTK_CALLER)
_RELATIVE = re.compile(
    r"\[(?:<? *[+ ]?\d+\.\d+>?|[A-Z][a-z]{2} ?\d{1,2} \d\d:\d\d)\] "
)  # dmesg -H: no time of its own
# dmesg -T, and with the name of a time zone (which says too little: local time) `log -T` of crash.
_CTIME = re.compile(
    r"\[([A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d )(?:[A-Z+-][\w+-]{1,5} )?(\d{4})\] ?"
)
_ISO = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?) ")
_FULL = re.compile(
    r"[A-Z][a-z]{2} (\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d(?:\.\d+)?) (\S+) "
)  # journalctl -o short-full
_UNIX = re.compile(r"(\d{9,11}\.\d+) ")  # journalctl -o short-unix
_RFC5424 = re.compile(
    r"<(?P<pri>\d{1,3})>1 (?P<stamp>\S+) \S+ (?P<app>\S+) \S+ \S+ "
    r'(?:-|(?:\[(?:[^\]"]|"(?:[^"\\]|\\.)*")*\])+)(?: \ufeff?|$)'
)
_SYSLOG = re.compile(r"([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?) ")
# "node7 kernel: ", "node7 sshd[42]: ", and of busybox "node7 auth.info sshd[42]: "
_HOST_AND_TAG = re.compile(r"\S+ (?:\w+\.\w+ )?[^\s:\[]+(?:\[\d+\])?: ")
# With a host, and with the "kern.err" of busybox. A host's name ends in no colon: that is another program's tag.
_KERNEL_TAG = re.compile(r"(?:[\w.:-]*[\w.-] )?(?:kern\.\w+ )?kernel: ")


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


def journal_entry(entry: Mapping[str, object]) -> KernelLine | None:
    """One entry of `journalctl -o json`, of `-o export`, or of `dmesg --json`. None: it holds no message."""
    message = entry.get("MESSAGE", entry.get("msg"))
    if isinstance(message, list):  # the journal writes bytes that are not UTF-8 as numbers
        numbers = [item for item in message if isinstance(item, int) and 0 <= item <= 255]
        message = bytes(numbers).decode("utf-8", "replace")
    if not isinstance(message, str):
        return None
    if "msg" in entry:
        return _dmesg_json(message, entry)
    stamp = str(entry.get("__REALTIME_TIMESTAMP", ""))
    return KernelLine(
        text=message,
        wall_s=int(stamp) / 1e6 if stamp.isascii() and stamp.isdigit() else None,
        # What users write into the kernel's log has its transport too, but not its facility.
        from_kernel=entry.get("_TRANSPORT", "kernel") == "kernel"
        and str(entry.get("SYSLOG_FACILITY", 0)) == "0",
        boot_id=str(entry.get("_BOOT_ID", "")),
    )


def _dmesg_json(text: str, entry: Mapping[str, object]) -> KernelLine:
    at, priority = entry.get("time"), entry.get("pri")
    kernel = entry.get("fac", "kern") == "kern" and not (isinstance(priority, int) and priority >> 3)
    if isinstance(at, str):
        return KernelLine(text, _date(at + " ", None)[0] or _ctime_seconds(at.strip()), None, kernel)
    return KernelLine(text, None, float(at) if isinstance(at, int | float) else None, kernel)


def _journal_json(line: str) -> KernelLine | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return journal_entry(entry) if isinstance(entry, dict) else None


def split_prefix(line: str, now_wall_s: float | None = None) -> KernelLine:
    """Take the prefix off one line of dmesg, syslog (RFC 3164, RFC 5424), journalctl (short forms, json) or /dev/kmsg.

    `now_wall_s` tells the year of classic syslog stamps. A line with no known prefix is returned whole.
    """
    line = line.rstrip("\r\n")
    if line.startswith("data: {"):  # journalctl -o json-sse
        line = line.removeprefix("data: ")
    if line.startswith("{") and (entry := _journal_json(line)):
        return entry
    first = line[:1]  # says which forms it can be: a log may have millions of lines
    if first.isdigit() and (match := _KMSG.match(line)):
        return KernelLine(line[match.end() :], None, int(match[3]) / 1e6, int(match[1]) >> 3 == 0)
    if first == "<" and (match := _RFC5424.match(line)):
        kernel = int(match["pri"]) >> 3 == 0 and match["app"] == "kernel"
        uptime_s, text = _uptime(line[match.end() :])
        return KernelLine(text, _iso_seconds(match["stamp"]), uptime_s, kernel)
    whole, from_kernel = line, True
    if first == "<" and (match := _LEVEL.match(line)):
        from_kernel = int(match[1]) >> 3 == 0
        line = line[match.end() :]
    elif first.islower() and (match := _DECODED.match(line)):
        from_kernel = match[1] == "kern"
        line = line[match.end() :]
    wall_s, tagged, line = _date(line, now_wall_s)
    uptime_s, line = _uptime(line) if wall_s is None and not tagged else (None, line)
    if "kernel: " in line and (match := _KERNEL_TAG.match(line)):
        line = line[match.end() :]
    elif tagged and (match := _HOST_AND_TAG.match(line)):
        from_kernel = False
        line = line[match.end() :]
    if uptime_s is None:
        uptime_s, line = _uptime(line)
    if "[" in line[:2] and (match := _CALLER.match(line)):
        line = line[match.end() :]
    return KernelLine(line, wall_s, uptime_s, from_kernel, len(line) < len(whole))


def _date(line: str, now_wall_s: float | None) -> tuple[float | None, bool, str]:
    """Take a date off: (wall clock, whether host and tag follow, the rest)."""
    if line.startswith("["):
        if match := _CTIME.match(line):
            return _ctime_seconds(match[1] + match[2]), False, line[match.end() :]
        return None, False, line
    if match := _ISO.match(line):  # dmesg writes a comma before the fraction, syslog and the journal a point
        return _iso_seconds(match[1]), "," not in match[1], line[match.end() :]
    if match := _FULL.match(line):
        zone = (
            "+00:00" if match[3] in ("UTC", "GMT") else ""
        )  # of others the name says too little: local time
        return _iso_seconds(f"{match[1]}T{match[2]}{zone}"), True, line[match.end() :]
    if match := _UNIX.match(line):
        return float(match[1]), True, line[match.end() :]
    if match := _SYSLOG.match(line):
        return _syslog_seconds(match[1], now_wall_s), True, line[match.end() :]
    return None, False, line


def _uptime(line: str) -> tuple[float | None, str]:
    if not line.startswith("["):
        return None, line
    if match := _UPTIME.match(line):
        return float(match[1]), line[match.end() :]
    match = _RELATIVE.match(line)
    return None, line[match.end() :] if match else line
