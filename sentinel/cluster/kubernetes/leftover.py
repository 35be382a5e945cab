"""What a Sentinel that is gone has left of itself, and how it is taken away again. Others' things stay.

- Isolations that are in force end, so that a new installation judges the node anew.
- Of a node go the taint, `unschedulable` where the taint says that Sentinel set it and nobody else claims the node, the
  conditions that Sentinel wrote, and its annotations.
- A job that Sentinel had stopped is started. One that runs is not touched, since its kind may make its pods anew for
  that: what it bears goes with it.
"""

import asyncio

import msgspec
from msgspec import Struct, convert, structs

from sentinel.clock import system_now
from sentinel.cluster.kubernetes.client import JSON_PATCH, Client, Resource
from sentinel.cluster.kubernetes.errors import Conflict, NotFound
from sentinel.cluster.kubernetes.job_io import JOB_UID, WORKLOADS, JobRef, Queues, carry_out, listed
from sentinel.cluster.kubernetes.job_io import read as read_job
from sentinel.cluster.kubernetes.job_records import namespace_of, object_of
from sentinel.cluster.kubernetes.names import object_name
from sentinel.cluster.kubernetes.nodes import Operation, preconditions
from sentinel.cluster.kubernetes.objects import (
    INCIDENTS,
    JOB_POLICIES,
    NODES,
    PROTECTED_JOBS,
    QUARANTINES,
    Custom,
    Node,
)
from sentinel.cluster.kubernetes.picture import node_picture
from sentinel.cluster.kubernetes.record_conditions import of_quarantine
from sentinel.cluster.kubernetes.store import Store
from sentinel.core import job_start
from sentinel.core.epochs import Epochs
from sentinel.core.fleet_conditions import OURS, OWN
from sentinel.core.fleet_events import End, Reason
from sentinel.core.fleet_marks import unmark
from sentinel.core.fleet_model import QUARANTINE_TAINT, EndedBy, NodeQuarantine
from sentinel.core.fleet_record import step
from sentinel.core.incidents import resume_env
from sentinel.core.job_kinds import JobKind, Means, row_of
from sentinel.core.job_paths import Json, annotate, annotation, copied, label, table, text, write
from sentinel.core.job_resume import ASKS_FOR_MAP
from sentinel.core.job_resume import told as told_of
from sentinel.core.job_state import (
    ASKS_FOR_START,
    STOPPED,
    Seen,
    claimed,
    groups_of,
    mark_of,
    standing,
)
from sentinel.core.job_writes import Plan, Refusal, patch
from sentinel.core.model import StoredJob
from sentinel.core.owners import OWNER
from sentinel.documents import from_document
from sentinel.errors import PermanentError, TemporaryError
from sentinel.job_kinds import job_table

PREFIX = "sentinel.dev/"
OWNERS = (OWNER, ASKS_FOR_MAP)  # annotations of jobs that Sentinel only reads
TRIES = 5  # a node changes by itself now and then: its kubelet writes conditions
OBEYS_S = 1.0  # between two looks whether an operator has followed a command
KINDS = (PROTECTED_JOBS, INCIDENTS, QUARANTINES, JOB_POLICIES)


# ---------------------------------------------------------------- isolations


class Isolations:
    """The records of nodes that Sentinel keeps out of service."""

    def __init__(self, client: Client) -> None:
        epochs = Epochs()
        self._store = Store(
            client,
            QUARANTINES,
            NodeQuarantine,
            key=lambda one: one.id,
            epoch=lambda: epochs.top,  # the last leader's: it is over
            epochs=epochs,
        )

    async def in_force(self) -> list[NodeQuarantine]:
        try:
            return [one for one in await self._store.load() if one.isolating]
        except NotFound:  # the custom resources are gone
            return []

    async def end(self, record: NodeQuarantine) -> None:
        """Nothing is mailed of it. Raises TemporaryErrors, PermanentErrors."""
        sentence = f"The isolation of node {record.node} has ended: Sentinel was uninstalled."
        event = End(reason=Reason.UNINSTALLED, sentence=sentence, ended_by=EndedBy.UNINSTALLED)
        now = system_now()
        ended = structs.replace(step(record, event, now, record.epoch)[0], mails=record.mails)
        await self._store.save(ended)
        await self._store.show(ended, of_quarantine(ended), now.wall_s)


# ---------------------------------------------------------------- nodes


class OnNode(Struct, frozen=True, kw_only=True):
    """`found`: each thing in words. `stays`: why it is out of service afterwards all the same, in a sentence."""

    name: str
    found: tuple[str, ...] = ()
    changes: tuple[Operation, ...] = ()  # of the node
    conditions: tuple[Operation, ...] = ()  # of its status
    stays: str = ""


def on_node(node: Node) -> OnNode:
    """What must be written so that it looks as if Sentinel had never been there."""
    meta = node.metadata
    found, changes, conditions, stays = list[str](), list[Operation](), list[Operation](), ""
    # The last one first: what is removed moves those behind it.
    for place, taint in reversed(list(enumerate(node.spec.taints))):
        if taint.key == QUARANTINE_TAINT:
            found.append(f"taint {taint.key}={taint.value}")
            changes.append({"op": "remove", "path": f"/spec/taints/{place}"})
    if found:
        back = unmark(node_picture(node, None, pool_label="", conditions=()))
        stays = back.sentence
        if back.unschedulable is not None:
            found.append("unschedulable by Sentinel")
            changes.append({"op": "add", "path": "/spec/unschedulable", "value": back.unschedulable})
    for name in sorted(meta.annotations):
        if name.startswith(PREFIX):
            found.append(f"annotation {name}")
            changes.append({"op": "remove", "path": f"/metadata/annotations/{name.replace('/', '~1')}"})
    for place, condition in reversed(list(enumerate(node.status.conditions))):
        if condition.type == OWN or condition.reason.startswith(OURS):
            found.append(f"condition {condition.type}")
            conditions.append({"op": "remove", "path": f"/status/conditions/{place}"})
    return OnNode(
        name=meta.name,
        found=tuple(found),
        changes=tuple(changes),
        conditions=tuple(conditions),
        stays=stays,
    )


async def nodes(client: Client) -> list[OnNode]:
    """Those that bear anything of Sentinel's."""
    found = (on_node(convert(one, Node)) for one in await listed(client, NODES, "", {}))
    return [one for one in found if one.found]


async def clear_node(client: Client, one: OnNode) -> None:
    """Read and written until nothing is left. Raises Conflict where it changes on and on, NotFound, other
    TemporaryErrors, PermanentErrors."""
    for tried in range(TRIES):
        try:
            return await _clear(client, NODES.path(name=one.name))
        except Conflict:
            if tried == TRIES - 1:
                raise


async def _clear(client: Client, path: str) -> None:
    node = await client.get(path, Node)
    left = on_node(node)
    if left.conditions:
        operations = [*preconditions(node.metadata), *left.conditions]
        node = await client.patch(f"{path}/status", operations, Node, how=JSON_PATCH)
    if left.changes:
        operations = [*preconditions(node.metadata), *left.changes]
        await client.patch(path, operations, Node, how=JSON_PATCH)


# ---------------------------------------------------------------- jobs


class OnJob(Struct, frozen=True, kw_only=True):
    """`mark`: Sentinel stopped it, for this incarnation (NAMESPACE/KIND/NAME:NUMBER); "": it did not, or no more."""

    title: str
    found: tuple[str, ...]
    mark: str
    waits: bool = False  # its owner has created it for Sentinel to start
    ref: JobRef | None = None  # None: only its Workload in Kueue is known
    workload: Json = {}


def on_job(row: JobKind, job: Json, workload: Json | None) -> OnJob | None:
    """None: it bears nothing of Sentinel's, or has ended."""
    seen = Seen(row=row, job=job, workload=workload)
    now = standing(seen)
    templates = [template for group in groups_of(row, job) for template in group.templates]
    found = [
        *_marks(job, ""),
        *_marks(workload or {}, " of its Workload"),
        *(mark for template in templates for mark in _marks(template, " of its pods")),
    ]
    waits = claimed(seen, now)
    if now.over or not (found or waits):
        return None
    return OnJob(
        title=f"{row.kind} {now.namespace}/{now.name}",
        found=tuple(found),
        mark=mark_of(seen),
        waits=waits,
        ref=JobRef(row, now.namespace, now.name, now.uid),
    )


def _marks(obj: Json, whose: str) -> list[str]:
    return [
        f"annotation {name}{whose}"
        for name, value in sorted(table(obj, "metadata.annotations").items())
        if name.startswith(PREFIX) and name not in OWNERS and (name, value) != (ASKS_FOR_START, "true")
    ]


async def jobs(client: Client) -> list[OnJob]:
    """Those that bear anything of Sentinel's, of every kind that is installed, or by their Workloads."""
    marked = {
        label(one, JOB_UID) or text(one, "metadata.uid"): one
        for one in await _all(client, WORKLOADS)
        if _marks(one, "")
    }
    found = list[OnJob]()
    for of_kind in job_table().followed:
        for job in await _all(client, Resource(of_kind.group, of_kind.version, of_kind.plural)):
            row = row_of(job_table().rows, {"kind": of_kind.kind, **job}) or of_kind
            if (left := on_job(row, job, marked.pop(text(job, "metadata.uid"), None))) is not None:
                found.append(left)
    for one in marked.values():
        title = f"Workload {text(one, 'metadata.namespace')}/{text(one, 'metadata.name')}"
        mark = annotation(one, STOPPED)
        found.append(OnJob(title=title, found=tuple(_marks(one, "")), mark=mark, workload=one))
    return found


async def _all(client: Client, resource: Resource) -> list[Json]:
    try:
        return await listed(client, resource, "", {})
    except NotFound:  # its kind is not installed
        return []


async def start_again(client: Client, one: OnJob) -> None:
    """Start what Sentinel had stopped, off no node any more, and tell its program as a controller would. Raises
    PermanentError with why it cannot be started, NotFound where it is gone, TemporaryErrors."""
    if one.ref is None:
        return await carry_out(client, _activation(one.workload), lambda: 0)
    queues, told = Queues(client), await _told(client, one.mark)
    for _ in range(TRIES):
        plan = job_start.start(await read_job(client, queues, one.ref), told=told)
        if isinstance(plan, Refusal):
            raise PermanentError(f"not started: {plan.sentence.removeprefix(f'{one.title}: ')}", plan.reason)
        try:
            await carry_out(client, plan, lambda: 0)
        except Conflict:
            continue
        if one.ref.row.stop is not Means.COMMAND or not plan.writes:
            return
        await asyncio.sleep(OBEYS_S)  # its mark goes when its operator has started it
    raise TemporaryError("it changes on and on, or its operator does not follow: try again")


def _activation(workload: Json) -> Plan:
    draft = copied(workload)
    write(draft, "spec.active", True)
    annotate(draft, STOPPED, "")
    return Plan(writes=tuple(patch(workload, draft, WORKLOADS.plural)))


async def _told(client: Client, mark: str) -> dict[str, str]:
    """What core/job_resume.py tells the program; nothing where the job's record is gone."""
    job, _, incarnation = mark.rpartition(":")
    try:
        path = PROTECTED_JOBS.path(namespace_of(job), object_name(object_of(job)))
        stored = from_document(StoredJob, (await client.get(path, Custom)).spec)
        next_one = int(incarnation) + 1
    except (NotFound, msgspec.ValidationError, ValueError):
        return {}
    if stored.incident is None:
        return {}
    return told_of(resume_env(stored, structs.replace(stored.incident, incarnation=next_one)))


# ---------------------------------------------------------------- records


class _Counted(Struct):
    class Meta(Struct, rename="camel"):
        remaining_item_count: int = 0

    metadata: Meta
    items: list[msgspec.Raw] = []


async def records(client: Client) -> dict[str, int]:
    """How many there are of each kind."""
    counts = {}
    for kind in KINDS:
        try:
            page = await client.call("GET", kind.path(), query={"limit": "1"})
        except NotFound:
            continue
        found = msgspec.json.decode(page, type=_Counted)
        counts[kind.plural] = len(found.items) + found.metadata.remaining_item_count
    return counts
