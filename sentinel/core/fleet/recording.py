"""What a leading controller decided from, as entries of a recording, and what it decided. Pure.

A recording begins with all that is known (Start, then Heard, Shown, Beat and Record of everything) and goes on with
what changes; each Round is one call of `rounds.decide`. Most nodes are heard every few seconds: that is not written
down. Such a node counts as heard right now, until a Beat says from when on it was not.
"""

from typing import TypeAlias

from msgspec import Struct

from sentinel.core.fleet.events import Decision
from sentinel.core.fleet.model import CodeWord, FenceOutcome, NodePicture, NodeQuarantine, Order, PodPicture
from sentinel.core.fleet.settings import FleetSettings
from sentinel.core.now import Now
from sentinel.core.reports import Report

VERSION = 1
NOW = -1.0  # a Beat's time: all the time
FRESH_S = 15.0  # heard so shortly ago is heard now; the shortest time after which silence is judged is 20 s


class Start(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="start"):
    version: int = VERSION
    program: str  # its version
    epoch: int
    now: Now
    settings: FleetSettings


class Heard(Struct, frozen=True, omit_defaults=True, tag="heard"):
    """What an agent had told before the recording, in each boot, the last first."""

    node: str
    boots: tuple[NodePicture, ...]


class Told(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="told"):
    """A report that said something new, as it arrived. `before_mono_s`: the node's clock in the one before."""

    now: Now
    node: str
    uid: str
    before_mono_s: float
    report: Report


class Shown(Struct, frozen=True, omit_defaults=True, tag="shown"):
    """What the cluster shows of a node, without what is heard of it; None: it is gone."""

    node: str
    picture: NodePicture | None


class Beat(Struct, frozen=True, omit_defaults=True, tag="beat"):
    """When agent and kubelet were heard, by the controller's clock: NOW, None (never), or exactly.

    `told_mono_s`: the node's clock in the agent's last word, where a record waits for it.
    """

    node: str
    agent_mono_s: float | None
    lease_mono_s: float | None
    told_mono_s: float | None = None

    @property
    def live(self) -> bool:
        return self.agent_mono_s == NOW and self.lease_mono_s == NOW and self.told_mono_s is None


class Record(Struct, frozen=True, omit_defaults=True, tag="record"):
    """A record as it was read or saved; None: it is gone."""

    id: str
    record: NodeQuarantine | None


class Round(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="round"):
    """One round of decisions. `only`: see rounds.decide."""

    now: Now
    only: tuple[str, ...] | None = None
    complete: bool = False
    watching_since_mono_s: float = 0.0
    leases_mono_s: float | None = None
    crowded_mono_s: float = 0.0
    paused: str = ""
    orders: tuple[Order, ...] = ()
    codes: tuple[CodeWord, ...] = ()
    fenced: tuple[FenceOutcome, ...] = ()
    orphans: dict[str, tuple[PodPicture, ...]] = {}
    busy: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()


Entry: TypeAlias = Start | Heard | Told | Shown | Beat | Record | Round
