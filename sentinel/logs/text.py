"""Raw log bytes → plain lines: ANSI colour, progress bars, safe decoding, leading time stamps.

The patterns below are ours and fixed. Every quantifier is possessive or bounded, so `re` never
backtracks over untrusted text.
"""

import calendar
import re
import time
from functools import lru_cache

LINE_SHOWN_CHARS = 500  # LogMatch.line
STAMP_SEARCH_BYTES = 80  # a leading stamp stands behind "[rank0]:[titan] " at most

# ECMA-48: CSI sequences (colour, cursor), OSC sequences (titles, links), two-byte escapes
_ESCAPES = re.compile(
    rb"\x1b(?:\[[0-?]*+[ -/]*+[@-~]|\][^\x07\x1b\n]*+(?:\x07|\x1b\\)?|[()][0-9A-Za-z]|[=>78NOM])|\x08"
)
_ISO = re.compile(
    rb"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?"
)
# glog: severity, month, day; c10 leaves out the month's leading zero ("[rank0]:[E321 02:07:08.408")
_GLOG = re.compile(rb"\b[IWEF](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{1,9})")
_UNPRINTABLE = dict.fromkeys((*range(9), *range(11, 32), 127, *range(128, 160)), 65533)


def plain(text: bytes) -> bytes:
    """Without escapes and backspaces, and with every update of a progress bar on a line of its own.

    Costs two memory scans where there is nothing to do; returns the same object then.
    """
    if b"\x1b" in text or b"\x08" in text:
        text = _ESCAPES.sub(b"", text)
    if b"\r" in text:
        text = text.replace(b"\r", b"\n")
    return text


def shown(line: bytes) -> str:
    """A line as people may see it: decoded with replacements, no control characters, at most 500 characters."""
    text = line[: 4 * LINE_SHOWN_CHARS].decode("utf-8", "replace")
    return text.translate(_UNPRINTABLE).strip()[:LINE_SHOWN_CHARS]


def stamp_wall_s(line: bytes, wall_s: float) -> float | None:
    """The leading time stamp of a line as Unix seconds, or None.

    A stamp without a zone is local time; one without a year (glog) is of the year that puts it
    nearest before `wall_s`.
    """
    head = line[:STAMP_SEARCH_BYTES]
    found = _ISO.search(head)
    try:
        if found:
            year, month, day, hour, minute, second, fraction, zone = found.groups()
            return _seconds(tuple(map(int, (year, month, day, hour, minute, second))), fraction, zone)
        found = _GLOG.search(head)
        if found is None:
            return None
        month, day, hour, minute, second, fraction = found.groups()
        parts = tuple(map(int, (month, day, hour, minute, second)))
        year_now = time.localtime(wall_s).tm_year
        stamp = _seconds((year_now, *parts), fraction, None)
        return stamp if stamp <= wall_s + 86_400.0 else _seconds((year_now - 1, *parts), fraction, None)
    except (ValueError, OverflowError):
        return None  # digits that look like a date and are none


def _seconds(parts: tuple[int, ...], fraction: bytes | None, zone: bytes | None) -> float:
    year, month, day, hour, minute, second = parts
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second <= 60):
        raise ValueError("not a date")
    if zone is None:
        base = _local_minute_s(year, month, day, hour, minute) + second
    else:
        base = float(calendar.timegm((year, month, day, hour, minute, second)))
        if zone != b"Z":
            digits = zone[1:].replace(b":", b"")
            offset_s = int(digits[:2]) * 3600 + int(digits[2:]) * 60
            base += -offset_s if zone[:1] == b"+" else offset_s
    return base + (float(b"0." + fraction) if fraction else 0.0)


@lru_cache(maxsize=64)
def _local_minute_s(year: int, month: int, day: int, hour: int, minute: int) -> float:
    """`mktime` asks for the time zone at every call; the lines of a log share their minutes."""
    return time.mktime((year, month, day, hour, minute, 0, 0, 0, -1))


# An exception's own line stands below these: Python's frames, those of rich, IPython and papermill.
_TRACEBACK = re.compile(
    rb'Traceback \(most recent call last\)|\bFile "[^"\n]{1,500}", line \d|\xe2\x95\xb0\xe2\x94\x80|-{4}> \d'
)
# Here `mp.spawn` reads what a process of it has raised, and finds nothing where that died as it wrote it.
_SPAWN_READS = re.compile(rb"\boriginal_trace = pickle\.load\([^\n]{1,40}\n[^\n]{0,200}\n?\Z")
TRACEBACK_BYTES = 4096
BEFORE_BYTES = 1 << 15  # the usage of a program with hundreds of arguments
_LABEL = re.compile(rb"(?:\[\w{1,40}\]: ?|\(\w+ pid=\d+[^)]{0,99}\) | {0,4}\d{1,9}: )*+")


def _before(before: bytes, text: bytes, start: int, count: int) -> bytes:
    """The last `count` bytes before `start` of `text`. `before`: what stood before `text`."""
    near = text[max(0, start - count) : start]
    return before[len(near) - count :] + near if len(near) < count else near


def remembered(before: bytes, text: bytes) -> bytes:
    """What stands before the text that follows, as far back as anybody looks."""
    return _before(before, text, len(text), BEFORE_BYTES)


def _in_traceback(before: bytes, text: bytes, line: tuple[int, int]) -> bool:
    return _TRACEBACK.search(_before(before, text, line[0], TRACEBACK_BYTES)) is not None


def _not_in_spawn(before: bytes, text: bytes, line: tuple[int, int]) -> bool:
    """It is not what `mp.spawn` raises itself when a process of it has ended while it told why."""
    return _SPAWN_READS.search(_before(before, text, line[0], TRACEBACK_BYTES)) is None


def _below_usage(before: bytes, text: bytes, line: tuple[int, int]) -> bool:
    """Did the program that the line names print its usage before it?"""
    said = text[slice(*line)]
    label = _LABEL.match(said)
    program = said[label.end() if label else 0 :].partition(b": error: ")[0]
    near = _before(before, text, line[0], BEFORE_BYTES)
    return any(b"usage: " + program + end in near for end in (b" ", b"\n"))


# Whether a line (start and end in `text`) stands below what a rule asks for.
STANDS_BELOW = {"traceback": _in_traceback, "not-spawn": _not_in_spawn, "usage": _below_usage}
