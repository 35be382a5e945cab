"""The connections that there are, and those that have not shown yet whose they are."""

import asyncio

from sentinel.transport.connection import Connection
from sentinel.transport.limits import Limits


class Lobby:
    def __init__(self, limits: Limits) -> None:
        self.connections: dict[Connection, None] = {}
        self.strangers: dict[Connection, None] = {}  # oldest first
        self.waiting: dict[str, dict[Connection, None]] = {}  # for their turn in the handshake, by address
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
        self.connections.pop(connection, None)
        self.strangers.pop(connection, None)
        same = self.waiting.get(connection.peer)
        if same is not None:
            same.pop(connection, None)

    def queue(self, connection: Connection) -> None:
        if not self.waiting:
            asyncio.get_running_loop().call_soon(self.shake)
        self.waiting.setdefault(connection.peer, {})[connection] = None

    def shake(self) -> None:
        """A few handshakes, then whatever else there is: many at once must not keep reports waiting. One of each
        address in turn, so that who floods keeps himself waiting."""
        for _ in range(self._limits.handshakes):
            if not self.waiting:
                return
            peer = next(iter(self.waiting))
            same = self.waiting.pop(peer)
            if not same:
                continue
            connection = next(iter(same))
            del same[connection]
            if same:
                self.waiting[peer] = same  # behind the others
            connection.handshake()
        if self.waiting:
            asyncio.get_running_loop().call_soon(self.shake)

    def overdue(self, now_s: float) -> list[tuple[Connection, str]]:
        """Who has been silent for too long, and what was missed."""
        late = [
            (connection, "no good token in time")
            for connection in self.strangers
            if now_s - connection.last_s > self._limits.authenticate_s
        ]
        return late + [
            (connection, "silent for too long")
            for connection in self.connections
            if connection not in self.strangers and now_s - connection.last_s > self._limits.idle_s
        ]
