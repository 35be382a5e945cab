"""What connected agents have sent is read in slices.

Thousands that speak in one moment, as after a change of leaders, are seconds of work. In one go the Lease would not be
renewed between: each step of that takes a turn of the event loop.
"""

import asyncio
import time

from sentinel.transport.connection import Connection


class Turns:
    """`slice_s`: for so long connections are read in one turn of the loop; the others wait, and send no more."""

    def __init__(self, slice_s: float) -> None:
        self._slice_s = slice_s
        self._left_s = slice_s  # of this turn
        self._waiting: dict[Connection, None] = {}
        self._called = False

    def take(self, connection: Connection) -> None:
        """It has sent something: it is read now, or after those that wait."""
        if self._waiting or self._left_s <= 0:
            self._waiting[connection] = None
            connection.wait()
        else:
            self._read(connection)
        self._call()

    def leave(self, connection: Connection) -> None:
        self._waiting.pop(connection, None)

    def _call(self) -> None:
        if not self._called:
            self._called = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._called, self._left_s = False, self._slice_s
        try:
            while self._waiting:
                connection = next(iter(self._waiting))
                del self._waiting[connection]
                self._read(connection)
                if self._left_s <= 0:
                    break
        finally:  # whatever one of them does, the others get their turn
            if self._waiting:
                self._call()

    def _read(self, connection: Connection) -> None:
        begun_s = time.perf_counter()
        try:
            connection.read()
        finally:
            self._left_s -= time.perf_counter() - begun_s
