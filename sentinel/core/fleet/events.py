"""What is decided about nodes (events of their records), why (Reason), and what is to be performed (effects)."""

from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from sentinel.core.fleet.model import (
    Baseline,
    Brake,
    EndedBy,
    Ignored,
    Kind,
    Mark,
    Mode,
    Needs,
    NodeMail,
    Proof,
    Removal,
    SelfFence,
    Wrote,
)
from sentinel.core.health import Finding, Severity


class Reason(StrEnum):
    """Why something was decided: also the reason of node events and conditions."""

    FATAL_FINDING = "FatalFinding"
    ON_PROBATION = "OnProbation"  # less than a fatal finding, on a node that came back lately
    DISK_FULL = "DiskFull"
    HELD_BY_PERSON = "HeldByPerson"
    DRAIN_ORDERED = "DrainOrdered"
    JOBS_LEFT = "JobsLeft"  # on a node that is drained
    DRAINED = "Drained"
    DRAIN_TAKEN_BACK = "DrainTakenBack"
    MARK_FOUND = "MarkFound"  # the node has our taint, and its record is missing
    BRAKED = "Braked"
    NETWORK_INCIDENT = "NetworkIncident"
    NETWORK_SETTLING = "NetworkSettling"
    SETTLING = "Settling"
    COMMON_CAUSE = "CommonCause"  # more nodes have it than chance gives
    CODE_IGNORED = "CodeIgnored"  # a person says that it isolates nobody
    PAUSED = "Paused"
    ROOM_AGAIN = "RoomAgain"
    FOUND_MORE = "FoundMore"
    FOUND_AGAIN = "FoundAgain"
    MARK_SEEN = "MarkSeen"
    FINDINGS_GONE = "FindingsGone"
    RELEASED = "Released"
    NOT_NEEDED = "NotNeeded"  # what was held back ended by itself, or isolates no more
    ACKNOWLEDGED = "Acknowledged"
    RELEASED_BY_PERSON = "ReleasedByPerson"
    UNCORDONED = "Uncordoned"
    TAINT_REMOVED = "TaintRemoved"
    UNINSTALLED = "Uninstalled"  # `sentinel uninstall`: who leads after it judges the node anew
    NODE_GONE = "NodeGone"
    NODE_REPLACED = "NodeReplaced"
    NODE_RECREATED = "NodeRecreated"
    OCCURRENCES = "Occurrences"  # which findings stand that a person chose to live with
    AGENT_SILENT = "AgentSilent"
    UNREACHABLE = "Unreachable"
    UNFENCED = "Unfenced"
    FENCING = "Fencing"
    FENCED = "Fenced"
    FENCE_FAILED = "FenceFailed"
    REMOVAL_BRAKED = "RemovalBraked"
    REMOVED_BY_FORCE = "RemovedByForce"
    DOUBLED = "Doubled"  # another record says the same
    SPEAKS_AGAIN = "SpeaksAgain"
    DEAD = "Dead"
    TOLD = "Told"  # a mail has gone, or was given up


# ---------------------------------------------------------------- events


class Said(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What every event carries."""

    reason: Reason
    sentence: str  # could stand in an e-mail


class Open(Said, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """It is decided: at once, or held back by a brake."""

    id: str
    kind: Kind
    node: str
    node_uid: str
    pool: str
    mode: Mode
    needs: Needs
    held_by: Brake = Brake.NONE
    cause: tuple[str, ...] = ()
    severity: Severity = Severity.INFO
    findings: tuple[Finding, ...] = ()
    running_there: tuple[str, ...] = ()
    boot_id: str = ""
    sampled: Mark = Mark("", 0.0)
    repeats: int = 0
    order: str = ""
    by: str = ""
    pods: tuple[str, ...] = ()
    self_fences: tuple[SelfFence, ...] = ()
    adopted: bool = False  # the node is isolated already: made anew from its mark
    drain: tuple[str, ...] | None = None  # it is to be drained of these jobs; None: it is not


class HeldBack(Said, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """A brake, or another one than before, holds it back."""

    brake: Brake
    mode: Mode
    cause: tuple[str, ...] = ()  # codes that many nodes have


class Isolate(Said, frozen=True, kw_only=True, tag=True):
    """There is room now, or what was only observed is enforced from now on."""

    mode: Mode
    running_there: tuple[str, ...] = ()


class Found(Said, frozen=True, kw_only=True, tag=True):
    """Other findings than the record knows, or the same ones again after they seemed to be gone."""

    severity: Severity
    findings: tuple[Finding, ...]
    needs: Needs
    sampled: Mark


class Well(Said, frozen=True, kw_only=True, tag=True):
    """All its checks looked again and found nothing."""

    since: Mark


class Marked(Said, frozen=True, kw_only=True, tag=True):
    """The node shows what Sentinel wrote."""

    wrote: Wrote


class Moved(Said, frozen=True, kw_only=True, tag=True):
    """The same machine has a new node object, or a person's hold goes over to its successor."""

    node_uid: str
    boot_id: str


class Noted(Said, frozen=True, kw_only=True, tag=True):
    """What is known of a silent node has changed."""

    brake: Brake = Brake.NONE
    order: str = ""  # by which a person said that it is dead
    by: str = ""


class Acknowledged(Said, frozen=True, kw_only=True, tag=True):
    """A person has seen the isolation and lets it stand."""

    order: str
    by: str


class Draining(Said, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The node is to be drained, or not any more, or other jobs than before are left on it."""

    drain: bool
    jobs_left: tuple[str, ...] = ()
    order: str = ""
    by: str = ""


class Removed(Said, frozen=True, kw_only=True, tag=True):
    """Pods of a silent node are removed by force."""

    removal: Removal


class FenceBegun(Said, frozen=True, kw_only=True, tag=True):
    """The administrators' program is called, which powers a silent node off."""

    number: int  # which call for this silence: 1 for the first
    mode: Mode


class FenceEnded(Said, frozen=True, kw_only=True, tag=True):
    """That program ended: the node is off, or it failed."""

    off: bool


class End(Said, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """It is over: well, released, uncordoned, gone, heard again."""

    ended_by: EndedBy
    ignored: tuple[Ignored, ...] = ()
    baseline: Baseline | None = None
    order: str = ""
    by: str = ""


class Told(Said, frozen=True, kw_only=True, tag=True):
    """A mail of this record has gone, or was given up."""

    mail: NodeMail


class Remember(Said, frozen=True, kw_only=True, tag=True):
    """Which findings do not act still, on which object of the node and in which boot.

    `ignored`: those that a person lives with.
    """

    ignored: tuple[Ignored, ...]
    baseline: Baseline | None
    node_uid: str
    boot_id: str


Event: TypeAlias = (
    Open
    | HeldBack
    | Isolate
    | Found
    | Well
    | Marked
    | Moved
    | Noted
    | Acknowledged
    | Draining
    | Removed
    | FenceBegun
    | FenceEnded
    | End
    | Remember
    | Told
)


class Decision(Struct, frozen=True):
    """One event for the record `record` of `node`."""

    node: str
    record: str
    event: Event

    @property
    def reason(self) -> Reason:
        return self.event.reason

    @property
    def sentence(self) -> str:
        return self.event.sentence

    @property
    def takes(self) -> bool:
        """Does it take room of a brake?"""
        return isinstance(self.event, (Open, Isolate, Removed, FenceBegun))


# ---------------------------------------------------------------- effects: idempotent, performed after the save


class DoMark(Struct, frozen=True, tag=True):
    """Make the node's taint and `unschedulable` what the records say: `marks.write` tells how."""

    node: str


class DoConditions(Struct, frozen=True, tag=True):
    """Make the node's conditions what the records say: `conditions.writes` tells which."""

    node: str


class DoEvent(Struct, frozen=True, tag=True):
    """An event on the node: best effort, the record's story holds the same."""

    node: str
    node_uid: str
    reason: str
    message: str
    warning: bool


class DoTell(Struct, frozen=True, tag=True):
    """Tell the administrators. Equal keys are one message."""

    key: str
    sentence: str
    reason: Reason


class DoRemove(Struct, frozen=True, tag=True):
    """Delete these pods with no grace. `pods`: NAMESPACE/NAME/UID."""

    node: str
    pods: tuple[str, ...]
    proof: Proof


Effect: TypeAlias = DoMark | DoConditions | DoEvent | DoTell | DoRemove
