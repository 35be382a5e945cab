"""What is bounded on the controller's side, by how much, and how a node's rate is held."""

from msgspec import Struct

from sentinel.transport.wire import MAX_BODY_BYTES


class Limits(Struct, frozen=True, kw_only=True):
    """The defaults fit 10 000 agents that report every 10 s."""

    body_bytes: int = MAX_BODY_BYTES  # of one request
    bytes_in_flight: int = 64 << 20  # of bodies that wait to be whole, all connections together
    connections: int = 60_000
    accepts: int = 64  # connections taken from the kernel in a row, before connected agents are heard again
    strangers: int = 8192  # connections that have not shown a good token; the oldest goes first
    handshake_ms: int = 10  # for which handshakes are begun in a row, and as long for which others go on
    slice_ms: int = 50  # for which connected agents are read in a row, before everything else has its turn
    reconnects_per_s: float = 500.0  # agents that lose the leader spread their return by this
    connections_per_node: int = 2  # a new one beside one that the network lost; the oldest goes first
    requests_per_s: float = 5.0  # of one node, over time
    requests_burst: float = 20.0
    turn_s: float = 5.0  # that one who comes waits for the first turn; beyond it the server is crowded
    authenticate_s: float = 20.0  # from the first byte to a good token
    body_s: float = 15.0  # from a head to the end of its body
    idle_s: float = 120.0  # between two requests of a connection
    hold_s: float = 30.0  # the longest that an answer is held back
    take_s: float = 5.0  # for the controller to take the records of a request; less than agents wait (8 s)
    again_s: float = 1.0  # until an agent sends again what the controller could not take
    sweep_s: float = 5.0  # how often connections that are silent for too long are looked for
    nodes: int = 100_000  # that are remembered
    forget_s: float = 3600.0  # a node that is not connected and was not heard for so long


class Bucket(Struct):
    """A token bucket: `take` says how long to wait when there is none left."""

    level: float
    at_s: float

    def take(self, now_s: float, per_s: float, burst: float) -> float:
        """0: go on. Else: the request is one too many, and the next one is welcome in so many seconds."""
        self.level = min(burst, self.level + (now_s - self.at_s) * per_s)
        self.at_s = now_s
        if self.level >= 1.0:
            self.level -= 1.0
            return 0.0
        return (1.0 - self.level) / per_s
