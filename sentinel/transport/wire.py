"""What agents and the controller say to each other: msgpack over HTTP/1.1 over TLS 1.3.

Structs travel as maps, so that either side may know fields that the other does not: an unknown field is
ignored, a missing one has its default. Hello, Welcome and Refusal never change otherwise: with them both
sides agree on the protocol. Times of a node are its CLOCK_BOOTTIME and mean nothing elsewhere.
"""

from enum import StrEnum

import msgspec
from msgspec import Raw, Struct

from sentinel.core.now import Now
from sentinel.core.reports import Report

# The range of protocols that this version speaks. A change that the other side cannot ignore is a new number.
PROTOCOL_MIN = 1
PROTOCOL_MAX = 1

HELLO_PATH = "/hello"
REPORT_PATH = "/report"
CONTENT_TYPE = "application/msgpack"
SERVER_NAME = "sentinel-controller"  # in the serving certificate, whatever address an agent reached

MAX_BODY_BYTES = 1 << 20
MAX_RECORD_BYTES = 256 << 10  # of one encoded report
MAX_BATCH_BYTES = 512 << 10  # what an agent puts into one request, the full report besides
MAX_BATCH_RECORDS = 1000
MAX_ANSWER_BYTES = 1 << 20
REPORT_EVERY_S = 10.0


class Reason(StrEnum):
    """Why a request was refused. An agent that does not know a reason goes by the status."""

    BAD_REQUEST = "BadRequest"  # not this protocol's HTTP
    BAD_BODY = "BadBody"  # not a body of this protocol
    TOO_LARGE = "TooLarge"
    NOT_AUTHENTICATED = "NotAuthenticated"  # the text says what of the token was wrong
    REVIEW_UNAVAILABLE = "ReviewUnavailable"  # nothing is wrong with the token yet: ask again
    OTHER_NODE = "OtherNode"  # the token is bound to another node
    REPLACED_NODE = "ReplacedNode"  # the token belongs to a node object of this name that is no more
    NO_COMMON_PROTOCOL = "NoCommonProtocol"
    SAY_HELLO = "SayHello"  # this connection has not, or the leader has changed since
    NOT_LEADING = "NotLeading"  # `leader` is who does, if that is known
    NEWER_EPOCH = "NewerEpoch"  # the agent has served a newer leader than this one
    TOO_OFTEN = "TooOften"
    OVERLOADED = "Overloaded"
    NOT_TAKEN = "NotTaken"  # the controller could not take it now: send it again


STATUS: dict[Reason, int] = {
    Reason.BAD_REQUEST: 400,
    Reason.BAD_BODY: 400,
    Reason.TOO_LARGE: 413,
    Reason.NOT_AUTHENTICATED: 401,
    Reason.REVIEW_UNAVAILABLE: 503,
    Reason.OTHER_NODE: 403,
    Reason.REPLACED_NODE: 403,
    Reason.NO_COMMON_PROTOCOL: 426,
    Reason.SAY_HELLO: 409,
    Reason.NOT_LEADING: 421,
    Reason.NEWER_EPOCH: 421,
    Reason.TOO_OFTEN: 429,
    Reason.OVERLOADED: 503,
    Reason.NOT_TAKEN: 503,
}


class Hello(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first request of a connection. Its head bears the token."""

    node: str
    boot_id: str
    session: str  # of the agent's sequence numbers: made with its spool, anew after each boot
    protocol_min: int = PROTOCOL_MIN
    protocol_max: int = PROTOCOL_MAX
    version: str = ""  # of the agent's program, to show
    epoch: int = 0  # the highest that this agent has obeyed


class Order(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that an agent shall do or follow, until an answer no longer lists it. `body` is msgpack of `kind`."""

    kind: str
    id: str
    body: Raw = Raw(b"\xc0")


class Orders(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All orders of one node. `version` changes whenever they do, and is compared for equality only."""

    version: str = ""
    items: tuple[Order, ...] = ()


class Welcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to Hello."""

    protocol: int
    epoch: int
    report_every_s: float = REPORT_EVERY_S
    slow_down_s: float = 0.0
    max_body_bytes: int = MAX_BODY_BYTES
    version: str = ""  # of the controller's program, to show


class Dropped(Struct, frozen=True, omit_defaults=True):
    """Reports that an agent had to give up, since its process began."""

    progress: int = 0
    events: int = 0


class Numbered(Struct, frozen=True, array_like=True):
    sequence: int
    report: Report


class Batch(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an agent tells. `records` ascend by sequence number; gaps are what it dropped.

    `after`: the last number that this agent sent before these on the same connection; if that one was not
    taken, neither are these, which otherwise would hide it. 0: everything that is not acknowledged begins here.
    `hold_s`: the answer may wait so long for new orders, or until the next request comes. `full_after`: the
    sequence number up to which `full` replaces what sampled checks said. `now`: the node's clocks, where nothing is
    left to be told after this: what was told before is still so then.
    """

    records: tuple[Numbered, ...] = ()
    after: int = 0
    full: Report | None = None
    full_after: int = 0
    orders: str = ""  # version of the orders in force
    hold_s: float = 0.0
    dropped: Dropped = Dropped()
    now: Now | None = None


class RawNumbered(Struct, frozen=True, array_like=True):
    sequence: int
    report: Raw


class RawBatch(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A Batch whose reports stay encoded: as the agent sends them, and to find the one that is damaged."""

    records: tuple[RawNumbered, ...] = ()
    after: int = 0
    full: Raw = Raw(b"\xc0")
    full_after: int = 0
    orders: str = ""
    hold_s: float = 0.0
    dropped: Dropped = Dropped()
    now: Now | None = None


class Ack(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to Batch: all records up to `sequence` need not be sent again.

    `refused` lists those that were unreadable or spoke for another node; they need not come again either.
    `spread_s`: if this connection is lost, wait up to so long by chance: so many others lose theirs too.
    """

    epoch: int
    sequence: int = 0
    refused: tuple[int, ...] = ()
    slow_down_s: float = 0.0
    spread_s: float = 0.0
    orders: Orders | None = None  # None: those in force stay


class Refusal(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer of any status but 200."""

    reason: str
    text: str = ""
    slow_down_s: float = 0.0
    leader: str = ""  # HOST:PORT
    epoch: int = 0
    protocol_min: int = PROTOCOL_MIN
    protocol_max: int = PROTOCOL_MAX


class Arrived(Struct, frozen=True, kw_only=True):
    """What the controller gets of one report. `sequence` is 0 for a full one, which may come more than once.

    A full report replaces what is known of each check that it names, and says nothing of those that it does
    not (an agent that has just begun has not run them). `late`: the report is older than the last full one
    of this agent, so what its sampled checks say is history; its events, exits, matches and iterations count.
    """

    node: str
    node_uid: str
    session: str
    sequence: int
    full: bool
    late: bool
    report: Report


class Alive(Struct, frozen=True):
    """What each request of an agent says, also when it has nothing to tell. `now`: see Batch."""

    node: str
    node_uid: str
    boot_id: str
    now: Now | None = None


def agree(ours: tuple[int, int], theirs: tuple[int, int]) -> int | None:
    """The highest protocol that both ranges have."""
    highest = min(ours[1], theirs[1])
    return highest if highest >= max(ours[0], theirs[0]) else None


encoder = msgspec.msgpack.Encoder()
