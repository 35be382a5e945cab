"""Words and safe text for mails. Log lines and names that come from a job are untrusted: they pass `clean`."""

import re
import time

# Everything that changes how text is shown without being shown: C0 and C1 controls, bidirectional
# marks and overrides (Unicode TR9), zero-width and tag characters, line and paragraph separators,
# lone surrogates. A mail shows their code instead.
_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u08e2\u115f\u1160\u180e\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb"
    "\U000e0000-\U000e0fff]"
)
# Spaces that are not the space.
_SPACE = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
# Colour and cursor sequences of terminals (ECMA-48 CSI and OSC) carry nothing for a reader.
_ANSI = re.compile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]{0,200}(?:\x07|\x1b\\\\))")


def _code(match: re.Match[str]) -> str:
    point = ord(match.group())
    if point == 9:
        return "    "
    return f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}"


def clean(text: str, limit: int = 300) -> str:
    """One line of text that shows what it is: hidden characters as codes, at most `limit` characters."""
    # Cut before the substitutions: a megabyte of garbage must not be worked through.
    plain = _SPACE.sub(" ", _ANSI.sub("", text[: 4 * limit]))
    shown = _HIDDEN.sub(_code, plain.strip())
    if len(shown) > limit or len(text) > 4 * limit:
        shown = shown[: limit - 1].rstrip() + "…"
    return shown


def lines(text: str, limit: int) -> list[str]:
    """The lines of a longer untrusted text, each cleaned, at most `limit` of them."""
    found = text.splitlines()
    return [clean(line, 200) for line in found[:limit]] + (["…"] if len(found) > limit else [])


def count(number: int, noun: str) -> str:
    """1 restart, 2 restarts."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def duration(seconds: float) -> str:
    """4.2 s, 3 min 12 s, 2 h 5 min, 3 d 4 h."""
    if seconds < 60:
        return f"{max(0.0, seconds):.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = round(seconds)
    for unit, part, size, step in (("min", "s", 60, 1), ("h", "min", 3600, 60), ("d", "h", 86400, 3600)):
        if whole < size * (60 if size == 60 else 24) or unit == "d":
            rest = whole % size // step
            return f"{whole // size:,} {unit}" + (f" {rest} {part}" if rest else "")
    raise AssertionError("unreachable")


def step_time(milliseconds: float) -> str:
    """With three digits that matter: "3.32 s", "412 ms", "8.21 ms"."""
    if milliseconds >= 10_000:
        return f"{milliseconds / 1000:.1f} s"
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:.2f} s"
    return f"{milliseconds:.0f} ms" if milliseconds >= 100 else f"{milliseconds:.3g} ms"


def stamp(wall_s: float, with_date: bool) -> str:
    """Local time of the machine: `14:02:11`, or `2026-10-03 14:02:11 +0200`."""
    try:
        local = time.localtime(wall_s)
    except (OverflowError, ValueError, OSError):  # a clock that was never set can hold anything
        return "unknown time"
    return time.strftime("%Y-%m-%d %H:%M:%S %z" if with_date else "%H:%M:%S", local)
