"""Kinds of jobs as data: the types of rules/job_kinds.toml, and which row an object belongs to. Pure.

A new kind is one row. What a row can say is all that the functions of state.py, ranks.py and job_actions know of a
kind: none of them names one.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct

from sentinel.core.job.paths import Json, read

ANY = "*"  # every name that is not written


class Means(StrEnum):
    """How a job is stopped and started."""

    SUSPEND = "suspend"  # a field
    COMMAND = "command"  # an object that its operator obeys and deletes
    SCALE = "scale"  # its number of replicas set to 0, and back
    EVICT = "evict"  # its pods are evicted, and its operator makes new ones at once


class KeepOff(StrEnum):
    """How its pods are kept off a node that is still schedulable."""

    TEMPLATE = "template"  # affinity in its pod templates, at any time; new pods only
    STOPPED = "stopped"  # the same, only while it is stopped
    UNSTARTED = "unstarted"  # the same, only while suspended with its start time cleared
    CHILDREN = "children"  # in the batch Jobs that it owns
    SELECTOR = "selector"  # node labels that the pods need, nothing else
    NONE = "none"


class Resize(StrEnum):
    ANY_TIME = "any time"
    STOPPED = "stopped"  # only while it is stopped
    FIXED = "fixed"
    RECREATE = "recreate"  # the field can be written, and breaks the job


class Role(StrEnum):
    RANK = "rank"
    LAUNCHER = "launcher"  # starts or drives ranks: it gets no save signal
    SERVER = "parameter server"  # holds no GPU
    HELPER = "helper"


class Loss(StrEnum):
    """What a kind does by itself when one of its pods is gone."""

    REPLACED = "replaced"
    GROUP = "group"  # all pods of its group are made anew
    JOB = "job"  # all pods of the job are made anew
    FAILS = "fails"  # the job fails for good


class Finished(StrEnum):
    """What becomes of ranks that had ended well when the job is stopped and started."""

    STAY = "stay"
    AGAIN = "again"
    BLOCK = "block"  # never again as long as their pods are there, and the job waits for them for ever


class Group(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pods of one template. Paths are relative to `at`, and to the object where they begin with `spec.`."""

    at: str  # spec | spec.tasks[] (each of a list) | spec.tfReplicaSpecs.* (each of a map, named by its key)
    name: str = ""  # in a list: the field that names it
    called: str = ""  # where it is only one: its name
    size: str = ""  # "": always one pod
    default: int = 1
    each: str = ""  # pods for each of `size`
    each_grows: bool = False  # of a single one (`size` 1) this number changes
    together: tuple[
        str, ...
    ] = ()  # fields that must change with `size`, in the same patch, to the same number
    gang: tuple[str, ...] = ()  # fields that hold how many must run at once: of it; `spec.…`: of the job
    least: str = ""
    most: str = ""
    templates: tuple[str, ...] = ()
    policy: str = ""  # its restart policy


class Limit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A limit of the kind's own on restarts. How `used` is counted: a path of the status (a number), or

    `indexes:PATH` (a list such as 0,3-5), `annotation:NAME` (the largest of the pods'), `restarts` (of containers).
    """

    at: str
    default: int | None = None  # None: no limit where it is not written
    used: str = ""  # "": nothing says it
    short: int = 0  # the job fails when so many less than the limit were used
    unless: str = ""  # does not hold where this field is written
    counts_pods: bool = False  # each pod that failed: with one more than the limit the job fails for good


class JobKind(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of rules/job_kinds.toml. Paths are those of the object."""

    kind: str
    group: str
    version: str
    plural: str
    source: str  # where it was read or tried
    tried: str  # "run": with its operator; "schema": only against its schema
    pod_label: str = ""  # whose value is the job's name, where its pods' owners do not lead to it
    when: dict[str, str] = {}  # fields by which kinds of one resource are told apart
    fallback: bool = False  # for pods whose owner is of no other kind

    # pods and ranks
    pods: str = ""  # a label selector; {name} and {status.…} are fields of the job. "": by their owner alone
    role_label: str = ""  # its value is the name of the pod's group, in any case
    roles: dict[str, Role] = {}  # names of groups, in lower case and in the order of their ranks
    rank: tuple[str, ...] = ()  # the rank itself: label:…, annotation:…, env:NAME, env:NAME#JSON.path
    index: tuple[str, ...] = ()  # its number in its group
    outer: tuple[str, ...] = ()  # the number of its part of the group, each of `Group.each` pods
    groups: tuple[Group, ...] = ()
    gives: dict[str, dict[str, str]] = {}  # group -> what an init container of its operator requests

    # stopping and starting
    stop: Means
    suspend: str = ""
    stop_needs: dict[str, bool] = {}  # fields without which a stop is refused or is no stop
    starts_apart: bool = False  # nothing else may change in the patch that starts it
    status_follows: dict[
        str, str
    ] = {}  # fields of the status that are renewed from those of the spec only while it runs
    start_costs: int = 0  # of its own restarts (the first of `limits`)
    spare: tuple[str, ...] = ()  # groups whose pods are never evicted
    finished: Finished = Finished.AGAIN
    finished_at: str = ""  # indexes that have ended well
    size_edit_blocks: bool = False  # a stop is not carried out while `size` differs from what runs
    workload_queues: bool = False  # Kueue owns `suspend` of those that it admits
    gated_queues: bool = False  # Kueue holds back their pods, and fixes what their templates ask for
    pod_group: bool = False  # Volcano makes their pods when its queue lets in their PodGroup

    # changing
    keep_off: KeepOff = KeepOff.NONE
    untouched: tuple[str, ...] = ()  # groups whose template is not changed
    resize: Resize = Resize.FIXED
    elastic: str = ""  # of several groups of ranks the one whose size changes

    # ends and limits
    succeeded: tuple[str, ...] = ()  # types of conditions, or values of `phase`
    failed: tuple[str, ...] = ()
    ending: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()  # values of `phase` that say so
    phase: str = ""  # "": status.conditions
    limits: tuple[Limit, ...] = ()
    on_loss: dict[str, Loss] = {}  # by restart policy, or where groups have none by group; {}: replaced
    policy_default: dict[str, str] = {}  # by group: the restart policy where none is written
    events: tuple[str, ...] = ()  # lists of {event, action}: Volcano's own rules

    traps: tuple[str, ...]

    @property
    def full(self) -> str:
        """As kubectl names one of several kinds of the same name: Job.batch."""
        return f"{self.kind}.{self.group}" if self.group else self.kind

    @property
    def title(self) -> str:
        """One row and no other."""
        told_apart = "".join(f" ({value})" for value in self.when.values())
        return f"{self.full}/{self.version}{told_apart}"

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def holds(self) -> bool:
        """Once stopped, does it stay so until it is started?"""
        return self.stop is not Means.EVICT or bool(self.suspend)

    def role(self, group: str) -> Role:
        """Of a group's name. Names that are not written are those of ranks."""
        return self.roles.get(group.lower(), self.roles.get(ANY, Role.RANK))


class Trap(Struct, frozen=True, forbid_unknown_fields=True):
    """A way in which a kind does not do what one would think, and what is done about it."""

    id: str
    text: str
    so: str


def row_of(rows: Iterable[JobKind], obj: Json) -> JobKind | None:
    """The row of an object, or the fallback; None where there is none either."""
    fallback = None
    for row in rows:
        if row.fallback:
            fallback = row
        elif (row.kind, row.api_version) == (obj.get("kind"), obj.get("apiVersion")) and all(
            read(obj, path) == wanted for path, wanted in row.when.items()
        ):
            return row
    return fallback


def problems_of(rows: Sequence[JobKind], traps: Mapping[str, Trap]) -> list[str]:
    """What in the table does not fit together, each named by its row."""
    problems = []
    seen: set[str] = set()
    for row in rows:
        problems += [f"{row.title}: {text}" for text in _misfits(row)]
        problems += [f"{row.title}: no trap {name!r}" for name in row.traps if name not in traps]
        if row.title in seen:
            problems.append(f"{row.title}: stands twice")
        seen.add(row.title)
    used = {name for row in rows for name in row.traps}
    problems += [f"trap {name!r}: no kind has it" for name in traps if name not in used]
    if sum(row.fallback for row in rows) > 1:
        problems.append("more than one fallback")
    return problems


def _misfits(row: JobKind) -> list[str]:
    wanted: list[tuple[Any, str]] = [
        (row.stop is not Means.SUSPEND or row.suspend, "stop by suspend needs the field"),
        (row.stop is not Means.SCALE or any(g.size for g in row.groups), "stop by scale needs a size"),
        (row.stop is not Means.COMMAND or row.stopped, "stop by command needs the phases that say stopped"),
        (not row.stopped or row.phase, "phases that say stopped need the path of the phase"),
        (
            row.resize in (Resize.FIXED, Resize.RECREATE) or any(g.size for g in row.groups),
            "no size to change",
        ),
        (
            row.keep_off not in (KeepOff.TEMPLATE, KeepOff.STOPPED, KeepOff.UNSTARTED)
            or any(g.templates for g in row.groups),
            "no template to change",
        ),
        (
            not row.on_loss or ANY in row.on_loss or any(g.policy for g in row.groups),
            "on_loss says nothing for *",
        ),
        (all(name == name.lower() for name in row.roles), "names in roles are in lower case"),
    ]
    return [text for good, text in wanted if not good]
