"""The connections that there are, and those that have not shown yet whose they are."""

from sentinel.transport.connection import Connection
from sentinel.transport.limits import Limits
from sentinel.transport.turns import ByAddress, InOrder, Turns


class Lobby:
    def __init__(self, limits: Limits) -> None:
        self.connections: dict[Connection, None] = {}
        self.strangers: dict[Connection, None] = {}  # oldest first
        self._limits = limits
        self._coming = ByAddress()  # for their first turn in the handshake
        slice_s = limits.handshake_ms / 1000
        self._first_turns = Turns(lambda one: one.handshake(), slice_s, self._coming)
        self._next_turns = Turns(lambda one: one.handshake(), slice_s, InOrder())

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
        for group in (self.connections, self.strangers):
            group.pop(connection, None)
        for turns in (self._first_turns, self._next_turns):
            turns.leave(connection)

    def shake(self, connection: Connection) -> None:
        """Go on with its handshake, or after those that wait. Many that come keep no begun one from its end."""
        (self._next_turns if connection.begun else self._first_turns).take(connection)

    def crowded(self, now_s: float) -> bool:
        """Does somebody wait for too long for the first turn in the handshake?"""
        return any(now_s - one.last_s > self._limits.turn_s for one in self._coming.oldest())

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
