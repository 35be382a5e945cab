"""Connections have their turns in slices of time.

Thousands that come or speak in one moment, as after a change of leaders, are seconds of work. In one go the Lease would
not be renewed between: each step of that takes a turn of the event loop.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from sentinel.transport.connection import Connection


class Line(Protocol):
    """Who waits. It is false where nobody does."""

    def __bool__(self) -> bool: ...
    def join(self, connection: Connection) -> None: ...
    def leave(self, connection: Connection) -> None: ...
    def first(self) -> Connection:
        """Takes it out."""


class InOrder:
    """Who came first is first."""

    def __init__(self) -> None:
        self._waiting: dict[Connection, None] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def join(self, connection: Connection) -> None:
        self._waiting[connection] = None

    def leave(self, connection: Connection) -> None:
        self._waiting.pop(connection, None)

    def first(self) -> Connection:
        connection = next(iter(self._waiting))
        del self._waiting[connection]
        return connection


class ByAddress:
    """One of each address in turn, and its newest.

    So who floods keeps himself waiting, and all who come through one address are let in all the same: when there are
    too many, the oldest have given up by the time they are served.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, dict[Connection, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def join(self, connection: Connection) -> None:
        self._waiting.setdefault(connection.peer, {})[connection] = None

    def leave(self, connection: Connection) -> None:
        same = self._waiting.get(connection.peer, {})
        same.pop(connection, None)
        if not same:
            self._waiting.pop(connection.peer, None)

    def first(self) -> Connection:
        peer, same = next(iter(self._waiting.items()))
        del self._waiting[peer]
        connection, _nothing = same.popitem()
        if same:
            self._waiting[peer] = same  # behind the others
        return connection

    def oldest(self) -> Iterator[Connection]:
        """Of each address."""
        return (next(iter(same)) for same in self._waiting.values())


class Turns:
    """`serve` is called for `slice_s` in one turn of the loop, and at least once; who is left waits in `line`."""

    def __init__(self, serve: Callable[[Connection], None], slice_s: float, line: Line) -> None:
        self._serve = serve
        self._slice_s = slice_s
        self._left_s = slice_s  # of this turn
        self._line = line
        self._called = False

    def take(self, connection: Connection) -> bool:
        """It is to be served: now, or after those that wait. False: it waits."""
        self._call()
        if self._line or self._left_s <= 0:
            self._line.join(connection)
            return False
        self._timed(connection)
        return True

    def leave(self, connection: Connection) -> None:
        self._line.leave(connection)

    def _call(self) -> None:
        if not self._called:
            self._called = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._called, self._left_s = False, self._slice_s
        try:
            while self._line:
                self._timed(self._line.first())
                if self._left_s <= 0:
                    break
        finally:  # whatever one of them does, the others get their turn
            if self._line:
                self._call()

    def _timed(self, connection: Connection) -> None:
        begun_s = time.perf_counter()
        try:
            self._serve(connection)
        finally:
            self._left_s -= time.perf_counter() - begun_s
