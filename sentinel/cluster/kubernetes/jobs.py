"""The jobs of a cluster, of every kind in rules/job_kinds.toml, and which of them a pod belongs to.

A pod leads to its job through the controllers in `ownerReferences`: the topmost object of a known kind is the job.
Where a controller is of a known kind and its object is not (not read yet, deleted, not ours to read), the pod's job is
unknown, which callers must take for protected. Pods of an owner of no known kind are a job together, named after it
(owned_pods.py), but where their labels say that they belong to a job of a known kind.
"""

import asyncio
from collections.abc import Callable, Iterable

from msgspec import Struct

from sentinel.cluster.kubernetes.client import Client, Resource
from sentinel.cluster.kubernetes.job_io import JobRef
from sentinel.cluster.kubernetes.objects import ConditionedJob, Meta, PhasedJob, Pod
from sentinel.cluster.kubernetes.objects import Job as JobObject
from sentinel.cluster.kubernetes.owned_pods import OwnedPods, controller
from sentinel.cluster.kubernetes.reflector import Change, Pace, Reflector, State
from sentinel.core.job.kinds import JobKind
from sentinel.core.job.paths import read
from sentinel.core.people.protection import Job
from sentinel.rules.job_kinds import job_table
from sentinel.util.clock import Clock

KNOWN_LOOK_S = 0.2
DEEPEST = 8  # owners above a pod; a loop among them ends here


class Found(Struct, frozen=True):
    """The job of a pod. `title` "": it has none. `job` None beside a title: its object is not known."""

    title: str = ""
    job: Job | None = None
    of_known_kind: bool = False


class Jobs:
    """`run` follows them until it is cancelled. `changed` gets the namespace of a job that came, went or was edited."""

    def __init__(
        self,
        client: Client,
        changed: Callable[[str], None],
        clock: Clock,
        kinds: Iterable[JobKind] = (),
        pace: Pace = Pace(),  # noqa: B008  frozen
    ) -> None:
        self._changed = changed
        self.edited: Callable[[Job], None] = lambda job: None
        self._by_uid: dict[str, tuple[JobKind, Meta]] = {}
        self._kinds: dict[tuple[str, str], JobKind] = {}
        self._followed: list[tuple[JobKind, Reflector[JobObject]]] = []
        for row in kinds or job_table().followed:
            self._kinds.setdefault((row.group, row.kind), row)
            resource = Resource(row.group, row.version, row.plural)
            made = PhasedJob if row.phase else ConditionedJob
            one: Reflector[JobObject] = Reflector(
                client, resource, made, self._changes(row), pace=pace, clock=clock
            )
            self._followed.append((row, one))
        self._labelled = [(row, one) for row, one in self._followed if row.pod_label]
        self._selectors = {_selector(row.pods) for row in self._kinds.values() if row.pods}
        self._owned = OwnedPods(job_table().fallback, clock)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _, one in self._followed:
                group.create_task(one.run())

    @property
    def followed(self) -> list[Reflector[JobObject]]:
        return [one for _, one in self._followed]

    def of(self, namespace: str) -> list[Job]:
        """Those that belong to no other job."""
        return [job for job, _ in self.refs(namespace)]

    def refs(self, namespace: str) -> list[tuple[Job, JobRef]]:
        """The same, with the object that each of them is."""
        known = [
            (_job(row, meta), JobRef(row, meta.namespace, meta.name, meta.uid))
            for row, meta in self._by_uid.values()
            if meta.namespace == namespace and not self._inside(meta)
        ]
        return [*known, *self._owned.refs(namespace)]

    def alone(self, namespace: str) -> list[Job]:
        """Pods that are part of no job, since nobody would make them again."""
        return self._owned.alone(namespace)

    def uid_known(self, uid: str) -> bool:
        """Is there an object with this uid?"""
        return uid in self._by_uid or self._owned.known(uid)

    def ref(self, record: str, uid: str) -> JobRef | None:
        """Of the job with this record, where it is of a kind whose objects are read."""
        namespace, kind, name = record.split("/", 2)
        rows = [row for row, _ in self._followed if f"{row.kind}.{row.group}".lower() == kind]
        return JobRef(rows[0], namespace, name, uid) if rows else None

    def namespaces(self) -> set[str]:
        return {meta.namespace for _, meta in self._by_uid.values()} | self._owned.namespaces()

    def pod_changed(self, change: Change[Pod]) -> bool:
        """True: there are other jobs now that are known by their pods alone."""
        before, after = (
            None if one is None or self._of_known_kind(one.metadata) else one
            for one in (change.before, change.after)
        )
        return self._owned.changed(before, after)

    def forget_gone(self) -> set[str]:
        """The namespaces of jobs that are known by their pods alone, and have had none for long."""
        return self._owned.forget_gone()

    async def wait_known(self) -> None:
        """Until each kind is either followed or known not to be installed."""
        while not all(one.synced or one.state is State.ABSENT for one in self.followed):  # noqa: ASYNC110
            await asyncio.sleep(KNOWN_LOOK_S)

    def of_pod(self, pod: Meta) -> Found:
        owner = first = controller(pod)
        title = f"{owner.kind} {pod.namespace}/{owner.name}" if owner is not None else ""
        top: Job | None = None
        for _ in range(DEEPEST):
            if owner is None:
                break
            held = self._by_uid.get(owner.uid)
            if held is None:
                if (owner.group, owner.kind) in self._kinds:
                    return Found(f"{owner.kind} {pod.namespace}/{owner.name}", None, of_known_kind=True)
                break
            row, meta = held
            top, owner = _job(row, meta), controller(meta)
        if top is not None:
            return Found(top.title, top, of_known_kind=True)
        for row, one in self._labelled:
            if name := pod.labels.get(row.pod_label):
                there = one.objects.get(f"{pod.namespace}/{name}")
                job = None if there is None else _job(row, there.metadata)
                return Found(f"{row.kind} {pod.namespace}/{name}", job, of_known_kind=True)
        return Found(title, None if first is None else self._owned.of_owner(first.uid))

    def _of_known_kind(self, pod: Meta) -> bool:
        """Does its owner, or do its labels, lead to a job of a known kind?"""
        owner = controller(pod)
        if owner is not None and (owner.group, owner.kind) in self._kinds:
            return True
        return any(
            all(pod.labels.get(key) == value if value else key in pod.labels for key, value in wanted)
            for wanted in self._selectors
        )

    def _inside(self, meta: Meta) -> bool:
        owner = controller(meta)
        return owner is not None and owner.uid in self._by_uid

    def _changes(self, row: JobKind) -> Callable[[Change[JobObject]], None]:
        def on_change(change: Change[JobObject]) -> None:
            before, after = change.before, change.after
            if after is not None:
                self._by_uid[after.metadata.uid] = (row, after.metadata)
            elif before is not None and self._by_uid.get(before.metadata.uid, (None,))[0] is row:
                del self._by_uid[before.metadata.uid]
            one = after or before
            if one is not None and _picking(before) != _picking(after):  # most changes are of a status
                self._changed(one.metadata.namespace)
            if before is not None and after is not None and _standing(row, before) != _standing(row, after):
                self.edited(_job(row, after.metadata))

        return on_change


def _standing(row: JobKind, one: JobObject) -> object:
    """What it asks for, and how it stands or ended. `generation` does not change with the status."""
    said: object = None
    if isinstance(one, PhasedJob):
        said = read({"status": one.status}, row.phase)
    elif isinstance(one, ConditionedJob) and one.status is not None:
        ends = (*row.succeeded, *row.failed, *row.ending)
        said = [c.type for c in one.status.conditions or () if c.status == "True" and c.type in ends]
    return one.metadata.generation, one.metadata.annotations, said


def _picking(one: JobObject | None) -> object:
    return None if one is None else (one.metadata.uid, one.metadata.labels, one.metadata.owner_references)


def _selector(pods: str) -> tuple[tuple[str, str], ...]:
    """Keys and values of a row's label selector; a value "" is that of a job."""
    terms = (term.partition("=") for term in pods.split(","))
    return tuple((key, "" if "{" in value else value) for key, _, value in terms)


def _job(row: JobKind, meta: Meta) -> Job:
    return Job(row.kind, row.group, meta.namespace, meta.name, meta.labels)
