"""Saved kernel logs → messages: dmesg (every form), syslog, and what journalctl prints or exports, packed or not.

Streams: memory is one line, or one entry of the journal.
"""

import gzip
import io
import json
import re
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from sentinel.logs.kernel_prefix import KernelLine, journal_entry, split_prefix

MAX_LINE = 1 << 16  # bytes of a line that are looked at
MAX_MESSAGE = 8192  # characters of a message: the kernel prints 1 KiB at most
MAX_FIELD = 1 << 24  # bytes of a field of the journal: more is no journal
GZIP = b"\x1f\x8b"
# What begins a file that has to be turned into text by another program first.
PACKED = {
    b"\xfd7zXZ": "packed by xz: unpack it first (xz -dc)",
    b"\x28\xb5\x2f\xfd": "packed by zstd: unpack it first (zstd -dc)",
    b"BZh": "packed by bzip2: unpack it first (bzip2 -dc)",
    b"LPKSHHRH": "the journal's own format: print it first (journalctl --file FILE -k -o export)",
}

_FIELD = re.compile(r'\s*"([^"]{1,64})"\s*:\s*(.+?),?\s*$')
_REPEATED = re.compile(r"message repeated (\d{1,9}) times: \[ ?(.*)\]$")
_VERBOSE = re.compile(r"[A-Z][a-z]{2} \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S* \S+ \[s=")
_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
_BOOT_LINE = re.compile(r"-- (?:Boot [0-9a-f]{32}|Reboot) --$")
_FIRST_OF_BOOT = "Linux version "
_KEPT_FIELDS = ("MESSAGE", "_TRANSPORT", "SYSLOG_FACILITY", "__REALTIME_TIMESTAMP", "_BOOT_ID")


class NotALog(Exception):
    """The file is no kernel log in a form that is read here; the message says why."""


class SavedLine(msgspec.Struct, frozen=True, gc=False):
    """A message of a saved log. `boots`: it is the first one of another boot. `count`: so often it stood there."""

    line: KernelLine
    boots: bool = False
    count: int = 1


def unpacked(file: io.BufferedReader) -> BinaryIO:
    """The stream of text in `file`. Raises NotALog for what another program must unpack."""
    head = file.peek(16)[:16]
    for magic, why in PACKED.items():
        if head.startswith(magic):
            raise NotALog(why)
    return gzip.open(file, "rb") if head.startswith(GZIP) else file  # type: ignore[return-value]


def saved_lines(file: BinaryIO, now_wall_s: float | None = None) -> Iterator[SavedLine]:
    """The messages of a saved log in order. `now_wall_s` tells the year of stamps that have none.

    Raises NotALog, and EOFError where a packed file was cut off.
    """
    first = file.readline(MAX_LINE)
    start = first.lstrip()
    if re.match(rb"[A-Z_]{1,64}=", first):
        entries = _export(file, first)
    elif _VERBOSE.match(_text(first)):
        entries = _verbose(file, first)
    elif start.startswith(b"{") and not _is_json(first):
        entries = _pretty_json(file, first)
    else:
        entries = _lines(file, first, now_wall_s)
    boot = ""
    for line in entries:
        boots = bool(boot and line.boot_id and line.boot_id != boot) or line.text.startswith(_FIRST_OF_BOOT)
        boot = line.boot_id or boot
        if not line.prefixed and _BOOT_LINE.match(line.text):
            boots = True
        count = 1
        if len(line.text) > MAX_MESSAGE:
            line = msgspec.structs.replace(line, text=line.text[:MAX_MESSAGE])
        if line.text.startswith("message repeated ") and (found := _REPEATED.match(line.text)):
            line, count = msgspec.structs.replace(line, text=found[2]), int(found[1])
        yield SavedLine(line, boots, count)


def _text(raw: bytes) -> str:
    """A log of a machine that lost its power holds runs of NUL; what dmesg showed on a terminal holds colours.

    Without its NULs the UTF-16 that PowerShell writes is ASCII.
    """
    raw = raw.replace(b"\0", b"").removeprefix(b"\xef\xbb\xbf").removeprefix(b"\xff\xfe")
    return (_COLOUR.sub(b"", raw) if b"\x1b" in raw else raw).decode("utf-8", "replace")


def _is_json(raw: bytes) -> bool:
    try:
        json.loads(raw)
    except (ValueError, RecursionError):
        return False
    return True


def _lines(file: BinaryIO, first: bytes, now_wall_s: float | None) -> Iterator[KernelLine]:
    """One message a line; a line that begins with blanks goes on with the one before."""
    raw, rest_of_long = first, False
    before: KernelLine | None = None
    while raw:
        text = _text(raw)
        ends = raw.endswith(b"\n")
        if not rest_of_long and text.strip():
            if before is not None and text[0] in " \t" and not text.lstrip().startswith(("{", "[")):
                yield msgspec.structs.replace(before, text=text.strip())
            else:
                before = split_prefix(
                    text.lstrip(" [\x1e") if text[0] in "[\x1e" and "{" in text[:3] else text, now_wall_s
                )
                yield before
        rest_of_long = not ends
        raw = file.readline(MAX_LINE)


def _verbose(file: BinaryIO, first: bytes) -> Iterator[KernelLine]:
    """`journalctl -o verbose`: the time on a line of its own, then one field on each line, four blanks before it."""
    entry: dict[str, object] = {}
    head, raw = split_prefix(""), first
    while True:
        text = _text(raw)
        if not raw or _VERBOSE.match(text):
            if (line := journal_entry(entry)) is not None:
                yield msgspec.structs.replace(line, wall_s=head.wall_s)
            if not raw:
                return
            entry, head = {}, split_prefix(text)
        else:
            name, _, value = text.strip().partition("=")
            if name in _KEPT_FIELDS:
                entry.setdefault(name, value)
        raw = file.readline(MAX_LINE)


def _pretty_json(file: BinaryIO, first: bytes) -> Iterator[KernelLine]:
    """`dmesg --json` and `journalctl -o json-pretty`: objects over several lines, one flat field on each."""
    entry: dict[str, object] = {}
    raw = first
    while raw:
        text = _text(raw)
        if found := _FIELD.match(text):
            try:
                entry[found[1]] = json.loads(found[2])
            except (ValueError, RecursionError):
                pass  # "dmesg": [ and what is cut off
        elif text.strip().startswith("}"):
            if (line := journal_entry(entry)) is not None:
                yield line
            entry = {}
        raw = file.readline(MAX_LINE)


def _export(file: BinaryIO, first: bytes) -> Iterator[KernelLine]:
    """`journalctl -o export` (systemd.io/JOURNAL_EXPORT_FORMATS): fields as NAME=text, or NAME, length and bytes."""
    entry: dict[str, object] = {}
    raw = first
    while raw:
        name, equals, value = raw.rstrip(b"\n").partition(b"=")
        if raw == b"\n":
            if (line := journal_entry(entry)) is not None:
                yield line
            entry = {}
        else:
            if not equals:
                size = int.from_bytes(file.read(8), "little")
                if size > MAX_FIELD:
                    raise NotALog("a damaged journal export")
                value = file.read(size)
                file.read(1)
            elif not raw.endswith(b"\n"):  # a field longer than is looked at
                while (more := file.readline(MAX_LINE)) and not more.endswith(b"\n"):
                    pass
            field = name.decode("ascii", "replace")
            if field in _KEPT_FIELDS:
                entry[field] = _text(value[:MAX_LINE])
        raw = file.readline(MAX_LINE)
    if (line := journal_entry(entry)) is not None:
        yield line
