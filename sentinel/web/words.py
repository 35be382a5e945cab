"""Numbers as people read them, and untrusted text made harmless. Shared by the page and the terminal."""

import time

from sentinel.core.model import Lost
from sentinel.notify.text import step_time

NONE = "–"


def duration(seconds: float | None) -> str:
    """Two units at most: "3d 4h", "1h 05m", "2m 08s", "8.4s"; "–" where nothing is known."""
    if seconds is None:
        return NONE
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 10:
        return f"{seconds:.1f}s"
    total = int(seconds)
    if total < 60:
        return f"{total}s"
    if total < 3600:
        return f"{total // 60}m {total % 60:02d}s"
    if total < 86400:
        return f"{total // 3600}h {total % 3600 // 60:02d}m"
    return f"{total // 86400}d {total % 86400 // 3600}h"


def milliseconds(value: float | None) -> str:
    return NONE if value is None else step_time(value)


def lost(what: Lost) -> str:
    """What a fault cost; a job without GPUs lost no GPU-seconds, which need not be said."""
    steps = "" if what.steps is None else f"{what.steps} iterations, "
    gpus = f", {what.gpu_seconds:.0f} GPU-seconds" if what.gpu_seconds else ""
    return f"{steps}{duration(what.seconds)}{gpus}"


def ratio(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def number(value: int | None) -> str:
    return NONE if value is None else str(value)


def when(wall_s: float, now_wall_s: float | None = None) -> str:
    """Local time; the date only where it is not the day of `now_wall_s`."""
    if not wall_s:
        return NONE
    moment = time.localtime(wall_s)
    if now_wall_s is not None and time.localtime(now_wall_s)[:3] == moment[:3]:
        return time.strftime("%H:%M:%S", moment)
    return time.strftime("%Y-%m-%d %H:%M:%S", moment)


def printable(text: str) -> str:
    """One line without control characters: what a log says must not steer a terminal.

    Bidirectional overrides go too: they reorder the text around them.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c in "\t\r\n" else "�" for c in text)


def width(text: str) -> int:
    """Columns that the text takes on a terminal: wide East Asian characters take two, marks none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def fit(text: str, columns: int) -> str:
    """The text cut to `columns`, with an ellipsis where something is missing."""
    if width(text) <= columns:
        return text
    if columns <= 0:
        return ""
    cut = text[:columns]
    while width(cut) > columns - 1:
        cut = cut[:-1]
    return cut + "…"
