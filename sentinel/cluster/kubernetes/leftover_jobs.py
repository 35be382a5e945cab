"""What a Sentinel that is gone has left on jobs, and how those go on that it had stopped to start them again.

One that a person has stopped, or that was given up, stays stopped. One that runs is not touched, since its kind may
make its pods anew for that: what it bears goes with it.
"""

import asyncio
from collections.abc import AsyncIterator

import msgspec
from msgspec import Struct, structs

from sentinel.cluster.kubernetes.client import Client, Resource
from sentinel.cluster.kubernetes.errors import Conflict
from sentinel.cluster.kubernetes.job_io import JOB_UID, WORKLOADS, JobRef, Queues, carry_out
from sentinel.cluster.kubernetes.job_io import read as read_job
from sentinel.cluster.kubernetes.job_records import job_name, namespace_of, object_of
from sentinel.cluster.kubernetes.leftover import Leads, objects, ordered
from sentinel.cluster.kubernetes.names import object_name
from sentinel.cluster.kubernetes.objects import PROTECTED_JOBS, Custom
from sentinel.cluster.kubernetes.orders import PREFIX
from sentinel.core.decision.incidents import resume_env
from sentinel.core.job import start as job_start
from sentinel.core.job.kinds import JobKind, Means, row_of
from sentinel.core.job.orders import JobOrderKind
from sentinel.core.job.paths import (
    Json,
    annotate,
    annotation,
    controller,
    copied,
    label,
    read,
    table,
    text,
    write,
)
from sentinel.core.job.resume import ASKS_FOR_MAP
from sentinel.core.job.resume import told as told_of
from sentinel.core.job.state import (
    ASKS_FOR_START,
    STOPPED,
    Seen,
    claimed,
    groups_of,
    mark_of,
    marked_in_vain,
    standing,
)
from sentinel.core.job.writes import Plan, Refusal, patch
from sentinel.core.model import StoredJob
from sentinel.core.people.owners import OWNER
from sentinel.rules.job_kinds import job_table
from sentinel.util.documents import from_document
from sentinel.util.errors import PermanentError, TemporaryError

OWNERS = (OWNER, ASKS_FOR_MAP)  # annotations of jobs that Sentinel only reads
ENDING = (JobOrderKind.STOP, JobOrderKind.CANCEL)
TRIES = 5
OBEYS_S = 1.0  # between two looks whether an operator has followed a command


class OnJob(Struct, frozen=True, kw_only=True):
    """`mark`: Sentinel stopped it, for this incarnation (NAMESPACE/KIND/NAME:NUMBER); "": it did not, or no more.
    `stays`: why it is not started, in a sentence; "": it is, or runs. `problem`: why that cannot be told now."""

    title: str
    job: str = ""  # NAMESPACE/KIND/NAME as its record has it; "": not known
    mark: str = ""
    stays: str = ""
    problem: str = ""
    stopped: bool = True
    ref: JobRef | None = None  # None: only its Workload in Kueue is to be written
    workload: Json = {}


class Jobs:
    """What jobs bear. `unread`: the kinds that could not be listed, and why."""

    def __init__(self, client: Client, epoch: Leads) -> None:
        self.unread: dict[str, TemporaryError | PermanentError] = {}
        self._client, self._epoch = client, epoch

    async def find(self) -> list[OnJob]:
        """Those that bear anything of Sentinel's, of every kind that is installed, or by their Workloads."""
        marked = {
            label(one, JOB_UID) or text(one, "metadata.uid"): one
            async for one in self._all(WORKLOADS)
            if _marked(one)
        }
        found = list[OnJob]()
        for of_kind in job_table().followed:
            head = {"kind": of_kind.kind, "apiVersion": f"{of_kind.group}/{of_kind.version}".lstrip("/")}
            async for job in self._all(Resource(of_kind.group, of_kind.version, of_kind.plural)):
                row = row_of(job_table().rows, head | job) or of_kind
                workload = marked.pop(text(job, "metadata.uid"), None)
                if (left := _on_job(row, head | job, workload)) is not None:
                    found.append(left)
        found += [self._by_workload(one) for one in marked.values() if not _finished(one)]
        return [await self._judged(one) for one in found]

    async def _all(self, resource: Resource) -> AsyncIterator[Json]:
        try:
            async for one in objects(self._client, resource):
                yield msgspec.json.decode(one)
        except (TemporaryError, PermanentError) as error:
            self.unread[_called(resource.plural, resource.group)] = error

    def _by_workload(self, workload: Json) -> OnJob:
        """Of a job that was not found: of a kind that Sentinel does not know, or that could not be listed."""
        owner, namespace = controller(workload), text(workload, "metadata.namespace")
        kind, group = text(owner, "kind"), text(owner, "apiVersion").rpartition("/")[0]
        plurals = [row.plural for row in job_table().followed if (row.kind, row.group) == (kind, group)]
        unread = any(_called(plural, group) in self.unread for plural in plurals)
        return OnJob(
            title=f"Workload {namespace}/{text(workload, 'metadata.name')}",
            job=job_name(namespace, _called(kind, group), text(owner, "name")) if owner else "",
            mark=annotation(workload, STOPPED),
            problem="its job could not be listed" if unread or (self.unread and not owner) else "",
            stopped=read(workload, "spec.active") is False,
            workload=workload,
        )

    async def _judged(self, one: OnJob) -> OnJob:
        """Is it to be started? Its record tells: a job that was stopped for good bears the mark of its stop too."""
        if not one.mark or not one.stopped or one.problem:
            return one
        if one.job not in ("", one.mark.rpartition(":")[0]):
            return structs.replace(one, stays=f"It stays stopped: its mark is that of {one.mark}.")
        try:
            record, ordered = await self._read(one.mark)
        except (TemporaryError, PermanentError) as error:
            return structs.replace(one, problem=str(error))
        if record is None:
            why = "its record is gone, and nobody knows whether it was to go on"
        elif ordered:
            why = f"a person has ordered: {ordered}"
        elif record.state.final:
            why = f"it is {record.state.value}"
        elif record.incident is None or record.incident.phase.final or record.incident.end_state:
            why = "its record tells of no recovery that would start it"
        else:
            return one
        return structs.replace(one, stays=f"It stays stopped: {why}.")

    async def start(self, one: OnJob) -> None:
        """Start what Sentinel had stopped, off no node any more, and tell its program as a controller would. Of one
        that is not stopped any more the mark goes. Raises PermanentError with why it cannot be started, NotFound where
        it is gone, TemporaryErrors."""
        if one.problem:
            raise PermanentError(one.problem, "NotJudged")
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
        """What core/job/resume.py tells the program; nothing where the job's record is gone."""
        record, _ = await self._read(mark)
        if record is None or record.incident is None:
            return {}
        incarnation = int(mark.rpartition(":")[2]) + 1
        return told_of(resume_env(record, structs.replace(record.incident, incarnation=incarnation)))

    async def _read(self, mark: str) -> tuple[StoredJob | None, str]:
        """The record of the job that a mark names, and the order to end it that stands there or "". None: there is
        none, or the mark is no mark. Raises PermanentError where it cannot be read, TemporaryErrors."""
        job, _, incarnation = mark.rpartition(":")
        if not incarnation.isdecimal() or job.count("/") < 2:
            return None, ""
        try:
            path = PROTECTED_JOBS.path(namespace_of(job), object_name(object_of(job)))
            if (found := await self._client.find(path, Custom)) is None:
                return None, ""
            return from_document(StoredJob, found.spec), _ordered(found.metadata.annotations)
        except (msgspec.ValidationError, ValueError) as error:
            raise PermanentError(f"its record cannot be read: {error}", "Unreadable") from None


def _called(kind: str, group: str) -> str:
    """As kubectl takes it."""
    return f"{kind}.{group}" if group else kind


def _ordered(annotations: dict[str, str]) -> str:
    """The order to end a job that stands at its record: not taken up, or not followed."""
    taken = ordered(annotations)
    return next((kind.value for kind in ENDING if PREFIX + kind in annotations or taken == kind), "")


def _on_job(row: JobKind, job: Json, workload: Json | None) -> OnJob | None:
    """None: it bears nothing of Sentinel's, or has ended."""
    seen = Seen(row=row, job=job, workload=workload)
    now = standing(seen)
    templates = [template for group in groups_of(row, job) for template in group.templates]
    waits = claimed(seen, now)
    if now.over or not (waits or any(map(_marked, (job, workload or {}, *templates)))):
        return None
    switched = marked_in_vain(seen)  # what is left is its mark
    return OnJob(
        title=f"{row.kind} {now.namespace}/{now.name}",
        job=job_name(now.namespace, _called(row.kind, row.group), now.name),
        mark=mark_of(seen),
        stays="It stays suspended: its owner has left its start to Sentinel, and must start it."
        if waits
        else "",
        stopped=now.stopped and not switched,
        ref=None if switched else JobRef(row, now.namespace, now.name, now.uid),
        workload=workload or {},
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
    if read(workload, "spec.active") is False:
        write(draft, "spec.active", True)
    annotate(draft, STOPPED, "")
    return Plan(writes=tuple(patch(workload, draft, WORKLOADS.plural)))
