"""What `sentinel status` reads of a cluster's jobs: ProtectedJobs, and of one job its incidents."""

import asyncio
from typing import Any

import msgspec
from msgspec import Struct, structs

from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.errors import NotFound
from sentinel.cluster.kubernetes.job_records import object_of
from sentinel.cluster.kubernetes.objects import INCIDENTS, PROTECTED_JOBS, Custom
from sentinel.cluster.kubernetes.orders import ORDER, asks
from sentinel.core.job.orders import JobOrderKind
from sentinel.core.model import Incident, JobState, ProtectedJob, StoredJob, Symptom
from sentinel.core.now import Now
from sentinel.core.people.policy_words import policy_words
from sentinel.core.recovery.budget import restarts_left
from sentinel.status.fleet_read import listed
from sentinel.status.job_target import Target, missing
from sentinel.util.documents import from_document, to_document
from sentinel.util.errors import PermanentError
from sentinel.web.fleet_view import JOB_STATES, JobRow, JobsView, LeaderView
from sentinel.web.view import View, build_view

MOST_INCIDENTS = 20  # of one job
ASKS = asks(JobOrderKind)


class JobView(Struct, kw_only=True):
    """One job with its whole story. Records are as the cluster has them."""

    job: JobRow
    policy: str  # in words
    told: list[str]  # addresses
    answer: dict[str, Any] | None  # of the last order
    held_until_wall_s: float | None = None  # it has failed, and is kept so long for a look inside
    record: dict[str, Any]
    incidents: list[dict[str, Any]]  # the newest first
    leader: LeaderView | None = None
    troubles: list[str] = []


async def jobs(client: Client, now: Now, namespace: str = "") -> JobsView:
    """Those of one namespace, or of all. Raises Forbidden."""
    found, troubles = [], []
    for one in await _objects(client, namespace):
        try:
            stored = from_document(StoredJob, one.spec)
            found.append(row(here(stored, now), stored.incident, one.metadata.annotations, now))
        except (msgspec.ValidationError, ValueError) as error:
            troubles.append(
                f"protectedjob {one.metadata.namespace}/{one.metadata.name} cannot be read: {error}"
            )
    return view(found, troubles)


async def _objects(client: Client, namespace: str) -> list[Custom]:
    try:
        return await listed(client, PROTECTED_JOBS, Custom, namespace)
    except NotFound:
        raise PermanentError(
            f"Sentinel is not installed in the cluster at {client.url}: it has no ProtectedJob resource",
            "Unreachable",
        ) from None


def view(rows: list[JobRow], troubles: list[str]) -> JobsView:
    order = list(JOB_STATES)
    rows.sort(key=lambda one: (order.index(one.state), one.namespace, one.name, one.kind))
    counts: dict[str, int] = {}
    for one in rows:
        counts[one.state] = counts.get(one.state, 0) + 1
    return JobsView(counts=counts, rows=rows, troubles=troubles)


def row(job: ProtectedJob, newest: Incident | None, notes: dict[str, str], now: Now) -> JobRow:
    """`newest`: its newest incident. Raises ValueError for a record whose name is none of a cluster's job."""
    namespace, kind, name = job.name.split("/", 2)
    ordered = [kind for key, kind in ASKS.items() if key in notes] or ["order"] * (ORDER in notes)
    open_ = newest if newest is not None and not newest.phase.final else None
    recovers = open_ is not None and open_.verdict.symptom is not Symptom.FIRST_START
    state = "ordered" if ordered else "recovering" if recovers else job.state.value
    telling = open_ or job
    return JobRow(
        namespace=namespace,
        kind=kind,
        name=name,
        state=state,
        job_state=job.state,
        size=job.size,
        original_size=job.original_size,
        incarnation=job.incarnation,
        restarts_used=job.used,
        restarts_left=restarts_left(job, now),
        step=job.last_step if job.steps_told else None,
        phase=open_.phase.value if open_ is not None else "",
        incident=open_.id if open_ is not None else "",
        reason=telling.reason,
        sentence=telling.sentence,
        mode=job.policy.mode,
        ordered=", ".join(ordered),
        created_wall_s=job.created_wall_s,
    )


def here(job: StoredJob, now: Now) -> StoredJob:
    """With the start of the running incarnation on this machine's clock: records hold that of the controller's."""
    if job.state is not JobState.RUNNING or job.started_mono_s is None:
        return structs.replace(job, started_mono_s=None)
    return structs.replace(job, started_mono_s=now.mono_s - max(0.0, now.wall_s - job.started_wall_s))


async def one(client: Client, target: Target, now: Now) -> tuple[JobView | None, str]:
    """The job that is meant; None, and why there is none."""
    objects = await _objects(client, target.namespace)
    names = [str(one.spec.get("name", "")) for one in objects]
    fitting = [one for one, name in zip(objects, names, strict=True) if target.fits(name)]
    if len(fitting) != 1:
        return None, missing(target, names, [str(one.spec.get("name", "")) for one in fitting])
    (found,) = fitting
    try:
        stored = from_document(StoredJob, found.spec)
        shown = row(here(stored, now), stored.incident, found.metadata.annotations, now)
    except (msgspec.ValidationError, ValueError) as error:
        return None, f"protectedjob {found.metadata.namespace}/{found.metadata.name} cannot be read: {error}"
    incidents, troubles = await _incidents(client, stored)
    return (
        JobView(
            job=shown,
            policy=policy_words(stored.policy),
            told=list(stored.policy.emails),
            answer=_answer(found.metadata.annotations),
            held_until_wall_s=stored.hold_until_wall_s,
            record=found.spec,
            incidents=[to_document(one) for one in incidents],
            troubles=troubles,
        ),
        "",
    )


def told_of(shown: JobView, now: Now) -> View:
    """As the page of a job on one machine has it."""
    stored = from_document(StoredJob, shown.record)
    incidents = [from_document(Incident, one) for one in shown.incidents]
    return build_view(here(stored, now), now=now, incidents=incidents)


async def _incidents(client: Client, job: StoredJob) -> tuple[list[Incident], list[str]]:
    """The newest, by their numbers: those of a namespace may be many thousands. Old ones may have been deleted."""
    namespace = job.name.partition("/")[0]
    newest = job.incident
    numbers = range(job.incidents, max(0, job.incidents - MOST_INCIDENTS), -1)

    paths = [INCIDENTS.path(namespace, object_of(job.name, f"-{number:04d}")) for number in numbers]
    found, troubles = {}, []
    for one in await asyncio.gather(*(client.find(path, Custom) for path in paths)):
        if one is not None:
            try:
                incident = from_document(Incident, one.spec)
                found[incident.id] = incident
            except msgspec.ValidationError as error:
                troubles.append(f"incident {namespace}/{one.metadata.name} cannot be read: {error}")
    if newest is not None:  # its own object is written after this one
        found[newest.id] = newest
    return sorted(found.values(), key=lambda one: one.opened_wall_s, reverse=True), troubles


def _answer(notes: dict[str, str]) -> dict[str, Any] | None:
    from sentinel.cluster.kubernetes.orders import ANSWER, Said

    try:
        return msgspec.to_builtins(msgspec.json.decode(notes[ANSWER], type=Said)) if ANSWER in notes else None
    except msgspec.DecodeError:
        return None  # what a person wrote there
