"""The connections that there are, and those that have not shown yet whose they are."""

import asyncio

from sentinel.transport.connection import Connection
from sentinel.transport.limits import Limits


class Lobby:
    def __init__(self, limits: Limits) -> None:
        self.connections: dict[Connection, None] = {}
        self.strangers: dict[Connection, None] = {}  # oldest first
        # For their turn in the handshake: those that have had one, and the others by address.
        self.begun: dict[Connection, None] = {}
        self.waiting: dict[str, dict[Connection, None]] = {}
        self._called = False
        self._limits = limits

    def enter(self, connection: Connection) -> bool:
        """True: another stranger had to go for this one, the oldest."""
        self.connections[connection] = None
        self.strangers[connection] = None
        if (
            len(self.strangers) <= self._limits.strangers
            and len(self.connections) <= self._limits.connections
        ):
            return False
        oldest = next(iter(self.strangers))
        del self.strangers[oldest]
        oldest.abort()
        return True

    def known(self, connection: Connection) -> None:
        """It has shown a good token."""
        self.strangers.pop(connection, None)

    def leave(self, connection: Connection) -> None:
        for group in (self.connections, self.strangers, self.begun, self.waiting.get(connection.peer, {})):
            group.pop(connection, None)

    def queue(self, connection: Connection) -> None:
        if connection.begun:
            self.begun[connection] = None
        else:
            self.waiting.setdefault(connection.peer, {})[connection] = None
        self._call()

    def shake(self) -> None:
        """A few handshakes, then whatever else there is: many at once must not keep reports waiting.

        What was begun is ended first. Of the others one of each address in turn, so that who floods keeps himself
        waiting and all who come through one address are let in all the same; and its newest: when there are too many,
        the oldest have given up by the time they are served.
        """
        self._called = False
        try:
            for _ in range(min(self._limits.handshakes, len(self.begun))):
                connection = next(iter(self.begun))
                del self.begun[connection]
                connection.handshake()
            for _ in range(self._limits.handshakes):
                if not self.waiting:
                    break
                peer, same = next(iter(self.waiting.items()))
                del self.waiting[peer]
                if same:
                    connection, _nothing = same.popitem()
                    if same:
                        self.waiting[peer] = same  # behind the others
                    connection.handshake()
        finally:  # whatever one of them does, the others get their turn
            if self.begun or self.waiting:
                self._call()

    def _call(self) -> None:
        if not self._called:
            self._called = True
            asyncio.get_running_loop().call_soon(self.shake)

    def crowded(self, now_s: float) -> bool:
        """Does somebody wait for too long for the first turn in the handshake?"""
        oldest = (next(iter(same)) for same in self.waiting.values() if same)
        return any(now_s - connection.last_s > self._limits.turn_s for connection in oldest)

    def overdue(self, now_s: float) -> list[tuple[Connection, str]]:
        """Who has been silent for too long, and what was missed."""
        late = [
            (connection, "no good token in time")
            for connection in self.strangers
            if now_s - connection.last_s > self._limits.authenticate_s and not connection.waits
        ]
        return late + [
            (connection, "silent for too long")
            for connection in self.connections
            if connection not in self.strangers
            and now_s - connection.last_s > self._limits.idle_s
            and not connection.waits
        ]
