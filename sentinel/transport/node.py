"""What the controller's side remembers of one node: what it took, how often it asks, what was refused."""

from msgspec import Struct, field

from sentinel.transport.connection import Connection
from sentinel.transport.limits import Bucket
from sentinel.transport.wire import Ack, Dropped

SESSIONS = 4  # of one node whose numbers are remembered: the newest


class Node(Struct):
    """One node by its name. Times are of the event loop's clock."""

    name: str
    bucket: Bucket
    heard_s: float
    uid: str = ""
    boot_id: str = ""
    version: str = ""
    protocol: int = 0
    connections: list[Connection] = []
    taken: dict[tuple[str, str], int] = {}  # (boot, session) -> highest sequence number taken
    taking: bool = False  # the controller has records of it and has not answered yet
    failing: tuple[str, int, int] = (
        "",
        0,
        0,
    )  # session, sequence number, times that the controller failed on it
    requests: int = 0
    records: int = 0
    duplicates: int = 0
    dropped: Dropped = field(default_factory=Dropped)  # by the agent itself
    refused: dict[str, int] = {}  # reason -> requests or records

    def highest(self, boot_id: str, session: str) -> int:
        return self.taken.get((boot_id, session), 0)

    def took(self, boot_id: str, session: str, sequence: int) -> None:
        self.taken.pop((boot_id, session), None)
        self.taken[boot_id, session] = sequence
        while len(self.taken) > SESSIONS:
            del self.taken[next(iter(self.taken))]

    def refuse(self, reason: str) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1


class Guest(Struct):
    """One connection's agent: set by its token, completed by its Hello."""

    until_s: float  # wall clock: its token's end
    node: Node
    uid: str = ""
    boot_id: str = ""
    session: str = ""
    epoch: int = -1  # of the leader that greeted it; -1: it has not said Hello
    reached: int = 0  # the last record that was judged on this connection
    full_after: int = 0  # records up to here are older than its last full report
    orders: str = ""  # version that it has in force
    held: Ack | None = None  # the answer that waits
    timer: object = None  # that ends the wait
