"""Pods by the owner that made them, where that is of no known kind, and pods that nobody made: by the watch of pods."""

from collections import Counter
from collections.abc import Iterator

from msgspec import Struct, field

from sentinel.cluster.kubernetes.job_io import JobRef
from sentinel.cluster.kubernetes.objects import Labels, Meta, Owner, Pod
from sentinel.cluster.kubernetes.picture import NODES_OWN
from sentinel.core.job.kinds import JobKind
from sentinel.core.job.owned_pods import row_of_owner
from sentinel.core.job.state import ENDED_PHASES
from sentinel.core.people.protection import PODS, Job
from sentinel.util.clock import Clock

GONE_S = 300.0  # an owner without a pod for so long is taken for gone: it waits between its tries to make one


class _Owned(Struct):
    namespace: str
    ref: JobRef
    labels: Labels = {}  # that all its pods have; of none, those that the last ones had
    pods: dict[str, Labels] = field(default_factory=dict)  # by uid
    each: Counter[tuple[str, str]] = field(default_factory=Counter)  # how many pods have a label

    def put(self, meta: Meta) -> None:
        self.drop(meta.uid)
        self.pods[meta.uid] = meta.labels
        self.each.update(meta.labels.items())
        self._agree()

    def drop(self, uid: str) -> None:
        if (labels := self.pods.pop(uid, None)) is not None:
            for one in labels.items():
                self.each[one] -= 1
                if not self.each[one]:
                    del self.each[one]
            self._agree()

    def _agree(self) -> None:
        if self.pods:
            some = next(iter(self.pods.values()))
            self.labels = {k: v for k, v in some.items() if self.each[k, v] == len(self.pods)}

    @property
    def job(self) -> Job:
        return Job(self.ref.row.kind, self.ref.row.group, self.namespace, self.ref.name, self.labels, True)


class OwnedPods:
    def __init__(self, fallback: JobKind, clock: Clock) -> None:
        self._fallback, self._clock = fallback, clock
        self._owners: dict[str, _Owned] = {}  # by uid
        self._alone: dict[str, dict[str, Job]] = {}  # namespace -> uid -> pod
        self._empty: dict[str, float] = {}  # owner's uid -> since when, the longest first

    def changed(self, before: Pod | None, after: Pod | None) -> bool:
        """A pod that is of no known kind's job. True: what a policy could pick is another now."""
        news = False
        if before is not None and (after is None or _picked(before) != _picked(after)):
            news = self._drop(before)
        if after is not None and (before is None or _picked(before) != _picked(after)):
            news = self._put(after) or news
        return news

    def of_owner(self, uid: str) -> Job | None:
        one = self._owners.get(uid)
        return None if one is None else one.job

    def known(self, uid: str) -> bool:
        return uid in self._owners

    def refs(self, namespace: str) -> Iterator[tuple[Job, JobRef]]:
        return ((one.job, one.ref) for one in self._owners.values() if one.namespace == namespace)

    def alone(self, namespace: str) -> list[Job]:
        """Pods without an owner, which nobody would make again."""
        return list(self._alone.get(namespace, {}).values())

    def namespaces(self) -> set[str]:
        return {one.namespace for one in self._owners.values()}

    def forget_gone(self) -> set[str]:
        """Of owners that have had no pod for too long: the namespaces."""
        now_s, found = self._clock().mono_s, set[str]()
        for uid, since_s in list(self._empty.items()):
            if now_s - since_s < GONE_S:
                break
            del self._empty[uid]
            found.add(self._owners.pop(uid).namespace)
        return found

    def _put(self, pod: Pod) -> bool:
        meta = pod.metadata
        owner = controller(meta)
        if owner is None:
            if pod.status.phase in ENDED_PHASES:
                return False
            job = Job(PODS, "", meta.namespace, meta.name, meta.labels, True)
            self._alone.setdefault(meta.namespace, {})[meta.uid] = job
            return True
        if owner.kind in NODES_OWN:
            return False
        one = self._owners.get(owner.uid)
        before = None if one is None else one.labels
        if one is None:
            one = self._owners[owner.uid] = self._new(meta.namespace, owner)
        self._empty.pop(owner.uid, None)
        one.put(meta)
        return one.labels != before

    def _new(self, namespace: str, owner: Owner) -> _Owned:
        row = row_of_owner(self._fallback, owner.api_version, owner.kind)
        return _Owned(namespace, JobRef(row, namespace, owner.name, owner.uid))

    def _drop(self, pod: Pod) -> bool:
        meta = pod.metadata
        owner = controller(meta)
        if owner is None:
            there = self._alone.get(meta.namespace, {})
            known = there.pop(meta.uid, None) is not None
            if not there:
                self._alone.pop(meta.namespace, None)
            return known
        one = self._owners.get(owner.uid)
        if one is None:
            return False
        before = one.labels
        one.drop(meta.uid)
        if not one.pods:
            self._empty.setdefault(owner.uid, self._clock().mono_s)
        return one.labels != before


def controller(meta: Meta) -> Owner | None:
    return next((owner for owner in meta.owner_references if owner.controller), None)


def _picked(pod: Pod) -> object:
    meta = pod.metadata
    alone = controller(meta) is None
    return meta.uid, meta.labels, meta.owner_references, alone and pod.status.phase in ENDED_PHASES
