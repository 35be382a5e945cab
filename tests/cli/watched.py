"""A command on a terminal of its own, and what its screen shows."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Sequence

from tests.cli.screen import Screen
from tests.waits import until

WITHIN_S = 60.0
OF_ANOTHER = ("COLUMNS", "LINES")  # terminal: pytest-xdist passes them on to its workers


class Watched:
    def __init__(
        self, command: Sequence[str], *, columns: int = 100, rows: int = 20, env: dict[str, str]
    ) -> None:
        self._screen, self._fed = Screen(columns, rows), 0
        self.bytes = b""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={name: value for name, value in env.items() if name not in OF_ANOTHER} | {"TERM": "xterm"},
            start_new_session=True,
        )
        os.close(slave)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                part = os.read(self._master, 65536)
            except OSError:  # its last writer has ended
                return
            self.bytes += part

    @property
    def lines(self) -> list[str]:
        """Of the last whole picture: the next one has begun after it."""
        *whole, _begun = re.split(rb"(?=\x1b\[H)", self.bytes)
        for one in whole[self._fed :]:
            self._screen.feed(one)
        self._fed = len(whole)
        return self._screen.lines

    @property
    def pictures(self) -> int:
        return len(re.findall(rb"\x1b\[H", self.bytes))

    def until(self, text: str, *, gone: bool = False) -> list[str]:
        """The picture that shows it, or shows it no more."""
        told = f"{text!r} {'stayed' if gone else 'never came'}:"
        seen: list[str] = []

        def shown() -> bool:
            seen[:] = self.lines
            return any(text in line for line in seen) is not gone

        until(shown, lambda: "\n".join((told, *seen)), WITHIN_S)
        return seen

    def end(self) -> int:
        """Ctrl-C; its exit code."""
        os.kill(self._process.pid, signal.SIGINT)
        code = self._process.wait(WITHIN_S)
        os.close(self._master)
        return code


# What steers terminals: sequences with ESC and as one C1 character, controls, marks that reorder or hide, line ends.
STEERING = (
    "\x1b[2J\x1b]0;owned\x07\x1bP1$r\x1b\\ \x9b31m\x9d0;x\x9c \x00\x08\x0e\x7f \u202e\u200f\u061c\u2066\u200b\ufeff "
    "\u2028\u2029 \r fake\n line \U000e0041 gnp.exe"
)
LONG = f"{STEERING} {'name' * 2000} {'wide日本' * 500} {'e' + chr(0x301) * 3000}"
OURS = re.compile(rb"\x1b\[(?:H|K|J|2J)|\r{0,2}\n")  # a terminal puts a \r before each \n


def steered(data: bytes) -> set[str]:
    """The characters in it that are not text of a line, but for what a picture is made of. UTF-8."""
    return {one for one in OURS.sub(b"", data).decode() if not one.isprintable()}
