"""What a Sentinel that is gone has left of itself, and how it is taken away again. Others' things stay.

- Isolations that are in force end, so that a new installation judges the node anew.
- Of a node go the taint, `unschedulable` where the taint says that Sentinel set it and nobody else claims the node, the
  conditions that Sentinel wrote, and its annotations. A person's hold stays: as a cordon.
- A job that Sentinel had stopped to start it again is started. One that a person has stopped, or that was given up,
  stays so. One that runs is not touched, since its kind may make its pods anew for that: what it bears goes with it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from msgspec import Struct, structs

from sentinel.clock import system_now
from sentinel.cluster.kubernetes.client import JSON_PATCH, Client, Resource, decoded
from sentinel.cluster.kubernetes.errors import Conflict, Forbidden, NotFound, Refused
from sentinel.cluster.kubernetes.job_io import JOB_UID, WORKLOADS, JobRef, Queues, carry_out
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
from sentinel.cluster.kubernetes.store import KINDS, LIST_S, PAGE, Store
from sentinel.core import job_start
from sentinel.core.epochs import Epochs
from sentinel.core.fleet_conditions import ISOLATED, OWN, RETURNED
from sentinel.core.fleet_events import End, Reason
from sentinel.core.fleet_marks import unmark
from sentinel.core.fleet_model import QUARANTINE_TAINT, EndedBy, Kind, NodeQuarantine
from sentinel.core.fleet_record import step
from sentinel.core.incidents import resume_env
from sentinel.core.job_kinds import JobKind, Means, row_of
from sentinel.core.job_paths import Json, annotate, annotation, copied, label, read, table, text, write
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
RECORDS = (PROTECTED_JOBS, INCIDENTS, QUARANTINES, JOB_POLICIES)

Leads = Callable[[], int]  # the epoch, right before each write; raises NotLeading


class _Page(Struct):
    metadata: dict[str, Any]
    items: list[msgspec.Raw] = []


async def _objects(client: Client, resource: Resource) -> AsyncIterator[msgspec.Raw]:
    """All of them, a page in memory at a time. None where the kind is not installed."""
    query, path = {"limit": str(PAGE)}, resource.path()
    while True:
        try:
            content = await client.call("GET", path, query=query, deadline_s=LIST_S)
        except NotFound:
            return
        page = decoded(_Page, content, path)
        for one in page.items:
            yield one
        if not page.metadata.get("continue"):
            return
        query["continue"] = page.metadata["continue"]


# ---------------------------------------------------------------- isolations


class Isolations:
    """The records of nodes that Sentinel keeps out of service."""

    def __init__(self, client: Client, epochs: Epochs, epoch: Leads) -> None:
        self._store = Store(
            client, QUARANTINES, NodeQuarantine, key=lambda one: one.id, epoch=epoch, epochs=epochs
        )

    async def load(self) -> None:
        try:
            await self._store.load()
        except NotFound:  # the custom resources are gone
            return

    @property
    def in_force(self) -> list[NodeQuarantine]:
        return [one for one in self._store.records.values() if one.isolating]

    @property
    def unreadable(self) -> dict[str, str]:
        """The record's name -> why."""
        return {name: why for (_, name), why in self._store.unreadable.items()}

    @property
    def held(self) -> dict[str, str]:
        """The node -> who holds it."""
        return {
            one.node: one.by or "a person"
            for one in self._store.records.values()
            if one.kind is Kind.HOLD and (one.isolating or one.ended_by is EndedBy.UNINSTALLED)
        }

    async def end(self, record: NodeQuarantine) -> None:
        """Nothing is mailed of it. Raises TemporaryErrors, PermanentErrors."""
        sentence = f"The isolation of node {record.node} has ended: Sentinel was uninstalled."
        event = End(reason=Reason.UNINSTALLED, sentence=sentence, ended_by=EndedBy.UNINSTALLED)
        ended = structs.replace(step(record, event, system_now(), record.epoch)[0], mails=record.mails)
        try:
            await self._store.save(ended)
        except Refused as error:
            raise PermanentError(
                f"{error}; apply the deploy/crds of this version first", "OldCrds"
            ) from error
        await self._show(ended)

    async def show(self) -> None:
        """Of those that have ended so: a run before this one may not have come to it. Raises as `end`."""
        for record in self._store.records.values():
            if record.ended_by is EndedBy.UNINSTALLED:
                await self._show(record)

    async def _show(self, record: NodeQuarantine) -> None:
        await self._store.show(record, of_quarantine(record), system_now().wall_s)


# ---------------------------------------------------------------- nodes


class OnNode(Struct, frozen=True, kw_only=True):
    """`found`: each thing in words. `stays`: why it is out of service afterwards all the same, in a sentence."""

    name: str
    found: tuple[str, ...] = ()
    changes: tuple[Operation, ...] = ()  # of the node
    conditions: tuple[Operation, ...] = ()  # of its status
    stays: str = ""


def on_node(node: Node, holder: str = "") -> OnNode:
    """What must be written so that it looks as if Sentinel had never been there. `holder`: who holds it out of service
    by Sentinel."""
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
        if back.unschedulable is not None and holder:
            stays = f"It stays unschedulable: {holder} holds it out of service."
        elif back.unschedulable is not None:
            found.append("unschedulable by Sentinel")
            changes.append({"op": "add", "path": "/spec/unschedulable", "value": back.unschedulable})
    for name in sorted(meta.annotations):
        if name.startswith(PREFIX):
            found.append(f"annotation {name}")
            changes.append({"op": "remove", "path": f"/metadata/annotations/{name.replace('/', '~1')}"})
    for place, condition in reversed(list(enumerate(node.status.conditions))):
        if condition.type == OWN or condition.reason in (ISOLATED, RETURNED):
            found.append(f"condition {condition.type}")
            conditions.append({"op": "remove", "path": f"/status/conditions/{place}"})
    return OnNode(
        name=meta.name,
        found=tuple(found),
        changes=tuple(changes),
        conditions=tuple(conditions),
        stays=stays,
    )


async def nodes(client: Client, held: dict[str, str]) -> list[OnNode]:
    """Those that bear anything of Sentinel's. `held`: the node -> who holds it."""
    found = list[OnNode]()
    async for one in _objects(client, NODES):
        node = msgspec.json.decode(one, type=Node)
        if (left := on_node(node, held.get(node.metadata.name, ""))).found:
            found.append(structs.replace(left, changes=(), conditions=()))  # decided again when it is written
    return found


async def clear_node(client: Client, name: str, holder: str, epoch: Leads) -> None:
    """Read and written until nothing is left. Raises Conflict where it changes on and on, NotFound, other
    TemporaryErrors, PermanentErrors."""
    for tried in range(TRIES):
        try:
            return await _clear(client, NODES.path(name=name), holder, epoch)
        except Conflict:
            if tried == TRIES - 1:
                raise


async def _clear(client: Client, path: str, holder: str, epoch: Leads) -> None:
    node = await client.get(path, Node)
    left = on_node(node, holder)
    for where, changes in ((f"{path}/status", left.conditions), (path, left.changes)):
        if changes:
            epoch()
            operations = [*preconditions(node.metadata), *changes]
            node = await client.patch(where, operations, Node, how=JSON_PATCH)


# ---------------------------------------------------------------- jobs


class OnJob(Struct, frozen=True, kw_only=True):
    """`mark`: Sentinel stopped it, for this incarnation (NAMESPACE/KIND/NAME:NUMBER); "": it did not, or no more.
    `stays`: why it is not started, in a sentence; "": it is, or runs."""

    title: str
    mark: str = ""
    stays: str = ""
    stopped: bool = True
    ref: JobRef | None = None  # None: only its Workload in Kueue is known
    workload: Json = {}


class Jobs:
    """What jobs bear. `unread`: the kinds that could not be listed, and why."""

    def __init__(self, client: Client, epoch: Leads) -> None:
        self.unread: dict[str, PermanentError] = {}
        self._client, self._epoch = client, epoch

    async def find(self) -> list[OnJob]:
        """Those that bear anything of Sentinel's, of every kind that is installed, or by their Workloads."""
        marked = {
            label(one, JOB_UID) or text(one, "metadata.uid"): one
            async for one in self._all(WORKLOADS, "Workload")
            if _marked(one)
        }
        found = list[OnJob]()
        for of_kind in job_table().followed:
            head = {"kind": of_kind.kind, "apiVersion": f"{of_kind.group}/{of_kind.version}".lstrip("/")}
            async for job in self._all(
                Resource(of_kind.group, of_kind.version, of_kind.plural), of_kind.kind
            ):
                row = row_of(job_table().rows, head | job) or of_kind
                if (
                    left := _on_job(row, head | job, marked.pop(text(job, "metadata.uid"), None))
                ) is not None:
                    found.append(left)
        for one in marked.values():
            if not _finished(one):
                title = f"Workload {text(one, 'metadata.namespace')}/{text(one, 'metadata.name')}"
                found.append(OnJob(title=title, mark=annotation(one, STOPPED), workload=one))
        return [await self._judged(one) for one in found]

    async def _all(self, resource: Resource, kind: str) -> AsyncIterator[Json]:
        try:
            async for one in _objects(self._client, resource):
                yield msgspec.json.decode(one)
        except Forbidden as error:
            self.unread[kind] = error

    async def _judged(self, one: OnJob) -> OnJob:
        """Is it to be started? Its record tells: a job that was stopped for good bears the mark of its stop too."""
        if not one.mark or not one.stopped:
            return one
        record = await self._record(one.mark)
        if record is None:
            why = "its record is gone, and nobody knows whether it was to go on"
        elif record.state.final:
            why = f"it is {record.state.value}"
        elif record.incident is None or record.incident.phase.final or record.incident.end_state:
            why = "its record tells of no recovery that would start it"
        else:
            return one
        return structs.replace(one, stays=f"It stays stopped: {why}.")

    async def start(self, one: OnJob) -> None:
        """Start what Sentinel had stopped, off no node any more, and tell its program as a controller would. Of one
        that runs the mark goes. Raises PermanentError with why it cannot be started, NotFound where it is gone,
        TemporaryErrors."""
        if one.ref is None:
            return await carry_out(self._client, _activation(one.workload), self._epoch)
        queues, told = Queues(self._client), await self._told(one.mark)
        for _ in range(TRIES):
            plan = job_start.start(await read_job(self._client, queues, one.ref), told=told)
            if isinstance(plan, Refusal):
                raise PermanentError(
                    f"not started: {plan.sentence.removeprefix(f'{one.title}: ')}", plan.reason
                )
            try:
                await carry_out(self._client, plan, self._epoch)
            except Conflict:
                continue
            if one.ref.row.stop is not Means.COMMAND or not plan.writes:
                return
            await asyncio.sleep(OBEYS_S)  # its mark goes when its operator has started it
        raise TemporaryError("it changes on and on, or its operator does not follow: try again")

    async def _told(self, mark: str) -> dict[str, str]:
        """What core/job_resume.py tells the program; nothing where the job's record is gone."""
        record = await self._record(mark)
        if record is None or record.incident is None:
            return {}
        incarnation = int(mark.rpartition(":")[2]) + 1
        return told_of(resume_env(record, structs.replace(record.incident, incarnation=incarnation)))

    async def _record(self, mark: str) -> StoredJob | None:
        """Of the job that a mark names. None: there is none that can be read, or the mark is no mark."""
        job, _, incarnation = mark.rpartition(":")
        if not incarnation.isdecimal():
            return None
        try:
            path = PROTECTED_JOBS.path(namespace_of(job), object_name(object_of(job)))
            return from_document(StoredJob, (await self._client.get(path, Custom)).spec)
        except (NotFound, msgspec.ValidationError, ValueError):
            return None


def _on_job(row: JobKind, job: Json, workload: Json | None) -> OnJob | None:
    """None: it bears nothing of Sentinel's, or has ended."""
    seen = Seen(row=row, job=job, workload=workload)
    now = standing(seen)
    templates = [template for group in groups_of(row, job) for template in group.templates]
    waits = claimed(seen, now)
    if now.over or not (waits or any(map(_marked, (job, workload or {}, *templates)))):
        return None
    return OnJob(
        title=f"{row.kind} {now.namespace}/{now.name}",
        mark=mark_of(seen),
        stays="It stays suspended: its owner has left its start to Sentinel, and must start it."
        if waits
        else "",
        stopped=now.stopped,
        ref=JobRef(row, now.namespace, now.name, now.uid),
    )


def _marked(obj: Json) -> bool:
    """Does it bear an annotation that Sentinel wrote?"""
    return any(
        name.startswith(PREFIX) and name not in OWNERS and (name, value) != (ASKS_FOR_START, "true")
        for name, value in table(obj, "metadata.annotations").items()
    )


def _finished(workload: Json) -> bool:
    conditions = read(workload, "status.conditions") or []
    return any((one.get("type"), one.get("status")) == ("Finished", "True") for one in conditions)


def _activation(workload: Json) -> Plan:
    draft = copied(workload)
    write(draft, "spec.active", True)
    annotate(draft, STOPPED, "")
    return Plan(writes=tuple(patch(workload, draft, WORKLOADS.plural)))


# ---------------------------------------------------------------- records


class _Counted(Struct):
    class Meta(Struct, rename="camel"):
        remaining_item_count: int = 0

    metadata: Meta
    items: list[msgspec.Raw] = []


async def records(client: Client) -> dict[str, int]:
    """The kind -> how many there are."""
    counts = {}
    for kind in RECORDS:
        try:
            page = await client.call("GET", kind.path(), query={"limit": "1"})
        except NotFound:
            continue
        found = msgspec.json.decode(page, type=_Counted)
        counts[KINDS[kind.plural]] = len(found.items) + found.metadata.remaining_item_count
    return counts
