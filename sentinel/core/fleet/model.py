"""The words of the fleet as frozen records: nodes as the controller sees them, and isolations of whole nodes.

Three clocks are kept apart. `mono_s` without more is the monotonic clock of the leading controller: it means nothing
to its successor, so no record holds it. `wall_s` is that controller's Unix clock: records hold it, windows of hours
are counted with it. `Mark` is a node's own CLOCK_BOOTTIME with its boot id, so that samples of one node are ordered
without comparing clocks of two machines.
"""

from enum import StrEnum

from msgspec import Struct, field

from sentinel.core.health import CheckState, Finding, Severity
from sentinel.core.model import Mailing

QUARANTINE_TAINT = "sentinel.dev/quarantined"  # always NoSchedule: it touches no running pod
OUT_OF_SERVICE = (
    "node.kubernetes.io/out-of-service"  # by which a person or a fencing tool says that a node is off
)


class Kind(StrEnum):
    """Why a node has a record. Each kind has an allowance of its own, and at most one open record per node."""

    FAULT = "fault"  # a fatal finding
    DISK = "disk-full"  # a disk over the administrator's threshold
    HOLD = "hold"  # a person keeps it out (`sentinel hold NODE`, `sentinel drain NODE`)
    SILENCE = "silence"  # unreachable: nothing is written to the node

    @property
    def isolates(self) -> bool:
        return self is not Kind.SILENCE


class State(StrEnum):
    HELD = "held"  # decided, and held back by a brake: `held_by` says which
    ACTIVE = "active"
    RELEASED = "released"
    OVERRIDDEN = "overridden"  # a person uncordoned it

    @property
    def open(self) -> bool:
        return self in (State.HELD, State.ACTIVE)


class Mode(StrEnum):
    ENFORCE = "enforce"
    OBSERVE = "observe"  # decided and recorded, not performed


class Brake(StrEnum):
    """What holds a decision back. It goes on by itself."""

    NONE = ""
    AT_A_TIME = "at-a-time"
    PER_WINDOW = "per-window"
    POOL_AT_A_TIME = "pool-at-a-time"
    POOL_PER_WINDOW = "pool-per-window"
    NETWORK_SETTLING = "network-settling"  # a moment, to see whether many nodes have it
    SETTLING = "settling"  # some minutes, to see whether many nodes show what is less than fatal
    NETWORK_INCIDENT = "network-incident"  # many nodes have it: one incident, not many isolations
    COMMON_CAUSE = (
        "common-cause"  # more nodes have one code than chance gives: until a person says what it is
    )
    PAUSED = "paused"  # `sentinel pause`


class Repair(StrEnum):
    """What must have been done before a node comes back."""

    NONE = "none"  # its findings must be gone
    RESET = "reset"  # of a GPU: seen by the finding's end, or by a new boot id
    REBOOT = "reboot"  # a new boot id
    PERSON = "person"  # a person releases it


class EndedBy(StrEnum):
    """How a record ended."""

    NONE = ""
    WELL = "well"  # its findings are gone, and what had to be done was done
    PERSON = "person"
    UNCORDONED = "uncordoned"  # a person took unschedulable or our taint away
    NODE_GONE = "node-gone"
    NODE_REPLACED = "node-replaced"
    RETURNED = "returned"  # a silent node speaks again
    DOUBLED = "doubled"  # another record of the same node and kind stays
    DEAD = "dead"  # a silent node is proved dead, and none of its pods is left
    UNINSTALLED = "uninstalled"  # `sentinel uninstall` gave the node back, whatever stood there


class Proof(StrEnum):
    """Why pods of a silent node may be removed by force."""

    NODE_GONE = "node-gone"
    NEW_BOOT = "new-boot-id"
    OUT_OF_SERVICE = "out-of-service-taint"
    PERSON = "confirm-dead"
    SELF_FENCED = (
        "self-fenced"  # its agent had confirmed that it ends them: not so if the agent itself was dead
    )
    FENCED = "fenced"  # the administrators' program powered it off
    POLICY = "policy"  # no proof: the job's policy says so, and names two writers as possible


class FenceState(StrEnum):
    """Of the last call of the administrators' program that powers a machine off."""

    CALLED = "called"
    OFF = "off"  # it says that the machine is off
    FAILED = "failed"


class Mark(Struct, frozen=True):
    """An instant on a node's own clock."""

    boot_id: str
    mono_s: float

    def before(self, other: "Mark") -> bool:
        """Instants of two boots: the one that is asked about later is the newer one."""
        return self.boot_id != other.boot_id or self.mono_s < other.mono_s


# ---------------------------------------------------------------- the picture

# `gc=False`: none of these can be part of a cycle, and each collection would else walk ten thousand nodes' checks.


class Taint(Struct, frozen=True, omit_defaults=True, gc=False):
    key: str
    value: str = ""
    effect: str = "NoSchedule"


class NodeMark(Struct, frozen=True):
    """What the value of Sentinel's taint says, as `0007` or `0007.cordoned`.

    `number`: of the record that the node was marked for (0: not readable). `cordoned`: the same request made the node
    unschedulable, so the node itself tells who did, whatever became of the record.
    """

    number: int
    cordoned: bool

    @classmethod
    def of(cls, taint: Taint) -> "NodeMark":
        number, _, word = taint.value.partition(".")
        return cls(int(number) if number.isdecimal() else 0, word == "cordoned")

    def taint(self) -> Taint:
        return Taint(QUARANTINE_TAINT, f"{self.number:04d}{'.cordoned' if self.cordoned else ''}")


class NodeCondition(Struct, frozen=True, omit_defaults=True, gc=False):
    type: str
    status: str  # True | False | Unknown
    reason: str = ""
    message: str = ""


class CheckPicture(Struct, frozen=True, omit_defaults=True, gc=False):
    """The newest result of one check. `at_mono_s`: of its sample, on the node's clock."""

    state: CheckState
    at_mono_s: float
    findings: tuple[Finding, ...] = ()


class PodPicture(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A pod that is bound to a node and has not ended."""

    uid: str
    namespace: str
    name: str
    job: str = ""
    protected: bool = False  # a repair would harm it: its job is protected, or may be, which is not known yet
    removal: Mode | None = None  # by force, if its node is lost: what the policy in force for its job allows
    deadline_mono_s: float | None = None  # when its job's time to save and stop is over; None: no limit
    force_after_s: float | None = None  # the policy's `lostNode: force after`; None: only after proof
    self_fence_s: float | None = None  # the policy's `lostNode: selfFence`

    @property
    def id(self) -> str:
        """The uid is the precondition of a deletion."""
        return f"{self.namespace}/{self.name}/{self.uid}"


class NodePicture(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One node: its object, its lease, and what its agent told."""

    name: str
    uid: str
    pool: str = ""
    resource_version: str = ""  # precondition of writes
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()
    provider_id: str = ""  # by which a cloud names the machine
    claims: tuple[str, ...] = ()  # others that say, by annotations or labels, that they keep it cordoned
    conditions: tuple[NodeCondition, ...] = ()  # only those types that Sentinel writes
    api_boot_id: str = ""  # status.nodeInfo.bootID: by the kubelet
    gpus: int = 0  # that the kubelet offers
    seen_mono_s: float = 0.0  # since when this node object is followed: before it could not be heard
    lease_mono_s: float | None = None  # when a renewal of the kubelet's lease was last seen
    kubelet_back_mono_s: float | None = None  # when it was first renewed after the kubelet's last silence
    agent_mono_s: float | None = None  # when the agent was last heard; None: not since we lead
    boot_id: str = ""  # of the agent's newest report
    booted_wall_s: float = (
        0.0  # when that boot began, by the node's wall clock: tells a late report of an older boot
    )
    told_mono_s: float = 0.0  # the node's clock in the newest report
    checks: dict[str, CheckPicture] = field(default_factory=dict)
    fences: dict[str, float] = field(default_factory=dict)  # Report.fences
    pods: tuple[PodPicture, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for check in self.checks.values() for finding in check.findings)

    @property
    def mark(self) -> NodeMark | None:
        """Sentinel's own taint."""
        for taint in self.taints:
            if taint.key == QUARANTINE_TAINT:
                return NodeMark.of(taint)
        return None


class OrderKind(StrEnum):
    RELEASE = "release"
    ACKNOWLEDGE = "acknowledge"
    HOLD = "hold"
    CONFIRM_DEAD = "confirm-dead"
    DRAIN = "drain"
    DRAIN_OFF = "drain-off"


class Order(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a person asked for. It stands in the picture until it was done; `id` keeps it from being done twice."""

    id: str
    kind: OrderKind
    node: str
    by: str = ""
    why: str = ""
    seen_wall_s: float | None = None  # when this leader first saw it: what is isolated later is not meant


class Say(StrEnum):
    """What a person says of a finding's code, for all nodes."""

    GO_ON = "go-on"  # the faults are real: many at once are no reason to hold them back
    IGNORE = "ignore"  # no node is isolated for it


class CodeWord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A person's word about one code. It stands until it is taken back; GO_ON for a day at most."""

    code: str
    say: Say
    by: str = ""
    why: str = ""
    at_wall_s: float = 0.0  # when it was said, by the clock of whoever said it

    @property
    def who(self) -> str:
        """By whom and why, for a sentence that ends behind it."""
        by = self.by or "a person"
        return f"{by}: {self.why.rstrip('. ')}" if self.why else by


class FenceOutcome(Struct, frozen=True):
    """How a call of the fencing program ended. It stands in the picture until its record says so."""

    record: str
    number: int  # which call
    off: bool  # exit code 0
    how: str  # in words, one line


class FleetPicture(Struct, frozen=True, kw_only=True, omit_defaults=True):
    nodes: dict[str, NodePicture]
    epoch: int = 0  # of our leadership
    complete: bool = False  # every node was listed: one that is missing is gone
    watching_since_mono_s: float = (
        0.0  # since when leases are watched without a gap: leading, and the API answers
    )
    leases_mono_s: float | None = None  # up to when leases are known; None: to now
    crowded_mono_s: float = (
        0.0  # when agents last waited to be let in: those that are not heard may be among them
    )
    paused: str = ""  # by whom or why; "": not paused
    orders: tuple[Order, ...] = ()
    codes: tuple[CodeWord, ...] = ()  # what people say of codes
    fenced: tuple[FenceOutcome, ...] = ()
    # Pods that are bound to nodes that are not there.
    orphans: dict[str, tuple[PodPicture, ...]] = field(default_factory=dict)
    # Nodes of which something is being written, or could not be: nothing is decided about them now.
    busy: frozenset[str] = frozenset()

    def pods_of(self, node: str) -> tuple[PodPicture, ...]:
        there = self.nodes.get(node)
        return there.pods if there is not None else self.orphans.get(node, ())


# ---------------------------------------------------------------- the record


class Needs(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What must hold before the node comes back: for people, and for the machine."""

    sentence: str
    repair: Repair = Repair.NONE
    well_for_s: float = 0.0  # its findings must be gone for so long, on the node's clock


class Wrote(Struct, frozen=True, omit_defaults=True):
    """What Sentinel itself set on the node, as the node showed it."""

    taint: bool = False
    unschedulable: bool = False


class Ignored(Struct, frozen=True, omit_defaults=True):
    """A finding that does not act: it acts again only when it occurs anew."""

    check: str
    key: tuple[str, str, str]
    event: bool = False
    count: int = 1
    boot_id: str = ""

    @classmethod
    def of(cls, finding: Finding) -> "Ignored":
        count, boot_id = finding.count, finding.boot_id
        return cls(finding.check, finding.key, finding.event, count, boot_id)

    def covers(self, finding: Finding) -> bool:
        """Is this the same one, and has it not occurred anew? A sampled finding has not."""
        same = finding.boot_id == self.boot_id and finding.count <= self.count
        return self.key == finding.key and (not finding.event or same)


class Baseline(Struct, frozen=True, omit_defaults=True):
    """What was known of a node when its isolation ended: on probation only what goes beyond it acts."""

    checks: tuple[str, ...]  # that had looked: of the others it is not known what they would have found
    findings: tuple[Ignored, ...] = ()


class Removal(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Pods that were removed by force."""

    at_wall_s: float
    pods: tuple[str, ...]  # PodPicture.id
    proof: Proof
    mode: Mode = Mode.ENFORCE


class SelfFence(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pod that the agent of its node had confirmed to end by itself."""

    pod: str  # PodPicture.id
    after_s: float  # without an answer of any controller or of the API server


class Fence(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Calls of the fencing program for a silent node. `begun_wall_s`: of the last one."""

    tries: int
    begun_wall_s: float
    state: FenceState = FenceState.CALLED
    mode: Mode = Mode.ENFORCE

    @property
    def runs(self) -> bool:
        """Is it under way? What is only observed is never called."""
        return self.state is FenceState.CALLED and self.mode is Mode.ENFORCE


class StoryLine(Struct, frozen=True, omit_defaults=True):
    wall_s: float
    state: State
    reason: str
    sentence: str


class NodeMail(Mailing, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that administrators are told of a record, at most once."""

    stage: str  # the Reason
    wall_s: float  # when it happened: the line of the story


class NodeQuarantine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One isolation of one node, or one silence of it. The record that `record.step` moves."""

    id: str  # NODE-0001
    kind: Kind
    node: str
    node_uid: str
    pool: str = ""
    mode: Mode = Mode.ENFORCE
    state: State
    held_by: Brake = Brake.NONE
    cause: tuple[str, ...] = ()  # codes that many nodes have: those for which it was held back last
    reason: str = ""  # of the present state: a Reason
    sentence: str = ""
    severity: Severity = Severity.INFO
    findings: tuple[Finding, ...] = ()
    needs: Needs
    running_there: tuple[str, ...] = ()  # "pod NAMESPACE/NAME of JOB"
    since_wall_s: float = 0.0  # when it was decided
    acted_wall_s: float = (
        0.0  # when the node was isolated; 0: not yet, or the record was made anew from the node
    )
    boot_id: str = ""  # at isolation
    sampled: Mark = Mark("", 0.0)  # the newest sample that showed its findings
    well_from: Mark | None = None  # the first sample since then that shows none of them
    wrote: Wrote = Wrote()
    acknowledged: bool = False  # a person has seen it and lets it stand
    repeats: int = 0  # earlier isolations of this node within the window of repeat offenders
    orders: tuple[str, ...] = ()  # ids of the persons' orders that this record has followed
    by: str = ""  # the person who ordered the last of them
    ignored: tuple[Ignored, ...] = ()  # of an ended record: what a person chose to live with
    baseline: Baseline | None = None  # of an ended record of a fault
    pods: tuple[str, ...] = ()  # of a silent node: its protected pods when it went silent
    self_fences: tuple[
        SelfFence, ...
    ] = ()  # of a silent node: those of its pods that its agent ends by itself
    removals: tuple[Removal, ...] = ()
    confirmed_dead: bool = False  # a person said so
    fence: Fence | None = None  # None: the fencing program was not called
    drain: bool = False  # of a hold: the protected jobs there are to move
    jobs_left: tuple[str, ...] = ()  # of a drain: those that are still there
    ended_wall_s: float | None = None
    ended_by: EndedBy = EndedBy.NONE
    epoch: int = 0
    story: tuple[StoryLine, ...] = ()
    mails: tuple[NodeMail, ...] = ()

    @property
    def number(self) -> int:
        """Of the records of its node; 0 where the id was not made here."""
        number = self.id.rpartition("-")[2]
        return int(number) if number.isdecimal() else 0

    @property
    def isolating(self) -> bool:
        """Is its node kept out of service by Sentinel?"""
        return self.state is State.ACTIVE and self.mode is Mode.ENFORCE and self.kind.isolates
