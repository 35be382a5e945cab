"""Opens a saved log: a file, standard input, a pipe. What never ends is refused, and who waits for a pipe is told."""

import contextlib
import io
import os
import re
import select
import stat
import sys
import time

from sentinel.console.tables import complain
from sentinel.logs.kernel_file import unpacked

NOTICE_S = 3.0  # a pipe into which nothing was written for so long is mentioned
HEAD_BYTES = 1 << 16
LOOKED_AT_BYTES = 4096  # of a head, to tell text from what is none
CONTROL_SHARE = 0.1  # of bytes: more is no text
STRANGE_SHARE = 0.3  # of what is no UTF-8: of packed data it is half, of a text in another code less
GIVE_UP_S = 30.0  # and one with a name is given up: a fifo that nobody serves


class NoLog(Exception):
    """Nothing can be read there; the message says why and what to do instead."""


ROTATED = re.compile(r"^(?P<name>.*?)(?:\.(?P<number>\d{1,4})|-(?P<date>\d{6,}[-\d]*))?(?:\.gz)?$", re.DOTALL)


def oldest_first(paths: list[str]) -> list[str]:
    """Files that one log was rotated into, in the order of their lines; others in the order in which they are given."""
    found = [ROTATED.match(path) for path in paths]
    if len({match["name"] for match in found if match}) != 1 or len(set(paths)) != len(paths):
        return paths

    def age(path: str) -> tuple[bool, str, int]:
        match = ROTATED.match(path)
        assert match is not None
        dated = match["date"] is not None
        return (not dated, match["date"] or "", -int(match["number"] or 0))

    return sorted(paths, key=age)


def is_binary(head: bytes) -> bool:
    """Text may hold runs of NUL (a machine lost its power) or one behind each character (UTF-16 of PowerShell)."""
    text = head[:LOOKED_AT_BYTES].replace(b"\0", b"")
    control = sum(byte < 9 or 13 < byte < 27 or byte == 127 for byte in text)
    strange = text.decode("utf-8", "replace").count("\ufffd")
    return control > CONTROL_SHARE * len(text) or strange > STRANGE_SHARE * len(text)


def open_log(path: str, notice_s: float = NOTICE_S, give_up_s: float = GIVE_UP_S) -> io.BufferedReader:
    """Raises OSError, and NoLog for what is no saved log."""
    if path == "-":
        if sys.stdin is None:
            raise NoLog("standard input is closed")
        file: io.BufferedReader = sys.stdin.buffer  # type: ignore[assignment]
        if stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
            _wait(file.fileno(), "standard input", notice_s, None)
        return file
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise NoLog("a folder; name the logs in it")
    if stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
        raise NoLog("no file")
    endless = stat.S_ISCHR(mode) and os.path.realpath(path) != os.devnull
    if endless or os.path.realpath(path) == "/proc/kmsg":
        raise NoLog(
            "it never ends; save what it holds first (dmesg -r > FILE), or see `sentinel check kernel`"
        )
    # Opening a fifo waits for its writer; without waiting, poll tells when there is one.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if stat.S_ISFIFO(mode):
            _wait(descriptor, path, notice_s, give_up_s)
        os.set_blocking(descriptor, True)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def head_of(path: str) -> bytes:
    """As much as can be unpacked. Of standard input nothing is taken. Raises OSError, zlib.error, NoLog and NotALog."""
    if path == "-":
        return b"" if sys.stdin is None else sys.stdin.buffer.peek(HEAD_BYTES)[:HEAD_BYTES]  # type: ignore[union-attr]
    head = b""
    with open_log(path) as file:
        stream = unpacked(file)
        with contextlib.suppress(EOFError):
            while len(head) < HEAD_BYTES and (piece := stream.read(1 << 10)):
                head += piece
    return head


def _wait(descriptor: int, name: str, notice_s: float, give_up_s: float | None) -> None:
    """Until something was written, or the writer has gone."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    begun_s = time.monotonic()
    if poll.poll(notice_s * 1000):
        return
    complain(f"{name}: nothing comes; still waiting")
    left_s = None if give_up_s is None else max(0.0, begun_s + give_up_s - time.monotonic()) * 1000
    if not poll.poll(left_s):
        raise NoLog(f"a pipe into which nothing was written for {give_up_s:g} s")
