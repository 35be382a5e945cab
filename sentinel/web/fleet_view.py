"""What a person is shown of a cluster: `sentinel status`, its JSON and the controller's page show these."""

from typing import Any

from msgspec import Struct

from sentinel import __version__
from sentinel.core.fleet.brakes import Use
from sentinel.core.fleet.model import NodeQuarantine
from sentinel.core.health import Finding
from sentinel.core.model import JobState

# By importance: the state of a row, and how it is told of.
STATES = {
    "ordered": "with an order that waits for a controller",
    "unreachable": "unreachable",
    "held back": "in service though it should not be",
    "isolated": "isolated",
    "agent silent": "agent silent",
    "disk full": "isolated for a full disk",
    "draining": "being drained",
    "drained": "drained",
    "on hold": "on hold",
    "observed": "would be isolated (observe mode)",
    "given back": "given back by a person with findings",
    "cordoned": "cordoned by others",
}


class Row(Struct, kw_only=True, omit_defaults=True):
    """One thing about one node that a person should know."""

    node: str
    state: str  # of STATES
    pool: str = ""
    since: str = ""  # RFC 3339
    since_wall_s: float = 0.0
    why: str = ""
    waits_for: str = ""  # what must hold before it ends
    by: str = ""
    acknowledged: bool = False  # a person lets the isolation stand
    held_by: str = ""  # the brake
    unschedulable: bool = False
    node_gone: bool = False
    record: str = ""


class LeaderView(Struct, kw_only=True, omit_defaults=True):
    name: str = ""
    epoch: int = 0
    address: str = ""
    renewed_s: float | None = None  # ago, by this machine's clock
    leads: bool = False
    paused: str = ""  # as the leader goes by it
    unheard: int = 0  # nodes of which no agent has told it anything


def unheard(nodes: int) -> str:
    which = "1 node" if nodes == 1 else f"{nodes} nodes"
    return f"No agent of {which} has reported yet: of the health of these nothing is known."


class FleetView(Struct, kw_only=True):
    leader: LeaderView | None = None  # None: no controller ever led
    paused: str = ""
    nodes: int
    counts: dict[str, int]  # by state; "in service" are those without a row
    rows: list[Row]
    notes: list[str] = []  # what many nodes have at once, and what people say of it
    troubles: list[str] = []
    quarantines: list[dict[str, Any]]  # the open ones; of one node all of them


# By importance: the state of a row, and how it is told of. The others are states of jobs.
JOB_STATES = {
    "ordered": "with an order that waits for a controller",
    "recovering": "being recovered",
    "error": "given up",
    "queued": "waiting for a start",
    "expired": "expired",
    "stopped": "stopped",
    "running": "running",
    "succeeded": "succeeded",
}


class JobRow(Struct, kw_only=True, omit_defaults=True):
    """One job, as a table has it."""

    namespace: str
    kind: str  # pytorchjob.kubeflow.org
    name: str
    state: str  # of JOB_STATES
    job_state: JobState
    size: int
    original_size: int
    incarnation: int
    restarts_used: int
    restarts_left: int
    step: int | None = None
    phase: str = ""  # of the open recovery
    incident: str = ""  # its id
    reason: str = ""
    sentence: str = ""
    mode: str = "enforce"
    ordered: str = ""  # what a person ordered and nobody has answered yet
    created_wall_s: float = 0.0


class JobsView(Struct, kw_only=True):
    counts: dict[str, int]  # by state
    rows: list[JobRow]  # by importance
    troubles: list[str] = []


# ---------------------------------------------------------------- the page of a controller


class Standing(Struct, kw_only=True):
    """What stands above every page of a controller."""

    leads: bool  # this controller does
    leader: LeaderView
    nodes: int
    counts: dict[str, int]  # of nodes, by state
    jobs: dict[str, int]  # by state
    paused: str = ""
    notes: list[str] = []  # FleetView.notes
    troubles: list[str] = []  # why less is known or decided than could be
    at_wall_s: float = 0.0
    version: str = __version__


class BrakeUse(Struct, frozen=True):
    """How much of one allowance is used."""

    brake: str  # isolations | full-disks | removals
    use: Use


class NodeRow(Struct, kw_only=True, omit_defaults=True):
    """One node in the table of all."""

    node: str
    state: str  # of STATES, or "in service"
    pool: str = ""
    heard_s: float | None = None  # seconds since its agent was heard; None: not by this leader
    findings: int = 0
    why: str = ""
    gone: bool = False


class Page(Struct, frozen=True):
    """Which of many rows: `start` counts from 0."""

    start: int
    size: int
    found: int
    all: int
    text: str = ""  # what was looked for


class NodeView(Struct, kw_only=True):
    """One node with its history."""

    node: str
    pool: str
    there: bool  # its object
    uid: str
    boot_id: str
    heard_s: float | None
    unschedulable: bool
    rows: list[Row]
    findings: tuple[Finding, ...]
    jobs: tuple[str, ...]  # protected ones with ranks there
    records: tuple[NodeQuarantine, ...]  # the newest first
