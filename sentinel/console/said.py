"""Lines for people on stderr, which is the log of a service or a pod. Who does not read it holds nobody up."""

import os
import select
import sys

LONGEST_BYTES = 4096  # PIPE_BUF of Linux: what a pipe with any room takes whole, and at once


class Said:
    """Writes lines of one program. Those that nobody takes are counted, and the next one that is taken says so."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._lost = 0

    def __call__(self, text: str) -> None:
        from sentinel.web.words import printable

        missed = f" ({self._lost} before this were not read)" if self._lost else ""
        room = LONGEST_BYTES - 1 - len(missed)
        line = f"{self._program}: {printable(text)}".encode(errors="replace")[:room]
        whole = line.decode(errors="ignore") + missed + "\n"  # no half of a letter where it was cut
        if self._written(whole.encode()):
            self._lost = 0
        else:
            self._lost += 1

    @staticmethod
    def _written(line: bytes) -> bool:
        try:
            descriptor = sys.stderr.fileno()
            room = select.poll()
            room.register(descriptor, select.POLLOUT)
            ready = room.poll(0)
            if not ready or not ready[0][1] & select.POLLOUT:
                return False
            return (_to_terminal if os.isatty(descriptor) else os.write)(descriptor, line) == len(line)
        except (AttributeError, OSError, ValueError):  # closed, or there never was one
            return False


def _to_terminal(descriptor: int, line: bytes) -> int:
    """A terminal with room for a part waits for room for the rest, unless it was opened in another way. What we were
    given is shared with others, who expect it to wait."""
    try:
        own = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:  # it is another user's, or of another /dev/pts
        return os.write(descriptor, line)
    try:
        return os.write(own, line)
    finally:
        os.close(own)
