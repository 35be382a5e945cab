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
        line = f"{self._program}: {printable(text)}{missed}"
        if self._written(line.encode(errors="replace")[: LONGEST_BYTES - 1] + b"\n"):
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
            return bool(ready and ready[0][1] & select.POLLOUT) and os.write(descriptor, line) > 0
        except (AttributeError, OSError, ValueError):  # closed, or there never was one
            return False
