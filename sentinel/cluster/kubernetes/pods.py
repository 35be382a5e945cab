"""Pods by their nodes, and which of them belong to protected jobs.

Until policies and a pod's job are known the pod counts as protected, so that no repair harms one: but the nodes' own.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any

from msgspec import structs

from sentinel.cluster.kubernetes import kept
from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.jobs import Jobs
from sentinel.cluster.kubernetes.objects import PODS, Pod
from sentinel.cluster.kubernetes.picture import nodes_own, pod_picture
from sentinel.cluster.kubernetes.policies import Judge, Policies
from sentinel.cluster.kubernetes.reflector import Change, Pace, Reflector, State
from sentinel.core.fleet.model import PodPicture
from sentinel.core.people.protection import Job, Protection, protection
from sentinel.util.clock import Clock

GONE_LOOK_S = 5.0
SETTLE_S = 0.5  # many changes of jobs and policies are one look at the pods
BATCH = 2000  # pods that are looked at before other tasks get their turn


class Pods:
    """`run` follows pods, jobs and policies until it is cancelled. `changed` gets the node of pods that changed."""

    def __init__(
        self,
        client: Client,
        judge: Judge,
        epoch: Callable[[], int],
        changed: Callable[[str], None],
        clock: Clock,
        pace: Pace = Pace(),  # noqa: B008  frozen
    ) -> None:
        self.policies = Policies(client, judge, epoch, self._policies_changed, clock, pace)
        self.jobs = Jobs(client, self._jobs_changed, clock, pace=pace)
        self.followed = Reflector(client, PODS, Pod, self._pod_changed, keep=kept.pod, clock=clock, pace=pace)
        self._changed = changed
        # For whoever looks after jobs: a namespace whose policies or jobs are others now, and a job whose pods are, or
        # which asks for something else.
        self.namespace_changed: Callable[[str], None] = lambda namespace: None
        self.job_changed: Callable[[Job, Change[Pod] | None], None] = lambda job, of_pod: None
        self.jobs.edited = lambda job: self.job_changed(job, None)
        self._on: dict[str, dict[str, PodPicture]] = {}  # node -> uid -> pod
        self._stop_s: dict[str, float] = {}  # uid -> Protection.stop_s
        self._dirty: set[str] = set()  # namespaces; "": all of them
        self._wake = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for one in (self.followed.run, self.jobs.run, self.policies.run, self._look_again, self._forget):
                group.create_task(one())

    async def lead(self) -> None:
        """What only the leader does: judge policies, and say so."""
        await self.policies.lead(self.jobs.of, self.jobs.alone)

    @property
    def others(self) -> list[Reflector[Any]]:
        """Policies, and the kinds of jobs that are installed."""
        return [self.policies.followed, *(one for one in self.jobs.followed if one.state is not State.ABSENT)]

    def nodes(self) -> Collection[str]:
        """Those to which pods are bound."""
        return self._on.keys()

    def version(self, pod: str) -> str:
        """The resourceVersion of NAMESPACE/NAME/UID as the watch told it last; "": it is gone."""
        key, _, uid = pod.rpartition("/")
        one = self.followed.objects.get(key)
        return one.metadata.resource_version if one is not None and one.metadata.uid == uid else ""

    def on(self, node: str, isolated_mono_s: float | None = None) -> tuple[PodPicture, ...]:
        """`isolated_mono_s`: since when the node is isolated, by which the time of its jobs to stop is counted."""
        there = tuple(self._on.get(node, {}).values())
        if isolated_mono_s is None:
            return there
        return tuple(
            pod
            if (stop_s := self._stop_s.get(pod.uid)) is None
            else structs.replace(pod, deadline_mono_s=isolated_mono_s + stop_s)
            for pod in there
        )

    # ------------------------------------------------------------ what is heard

    def _pod_changed(self, change: Change[Pod]) -> None:
        other = self.jobs.pod_changed(change)
        self._tell_job(change)
        one_of = change.after or change.before
        if other and one_of is not None and self.policies.pick_pods(one_of.metadata.namespace):
            self._jobs_changed(one_of.metadata.namespace)
        for one in (change.before, change.after):
            if one is None or not one.spec.node_name:
                continue
            there = self._on.setdefault(one.spec.node_name, {})
            if one is change.after and (pod := self._picture(one)) is not None:
                there[pod.uid] = pod
            else:
                there.pop(one.metadata.uid, None)
                self._stop_s.pop(one.metadata.uid, None)
            if not there:
                del self._on[one.spec.node_name]

    def _tell_job(self, change: Change[Pod]) -> None:
        before, after = change.before, change.after
        if before is not None and after is not None and _doing(before) == _doing(after):
            return
        one = after or before
        found = None if one is None else self.jobs.of_pod(one.metadata)
        if found is not None and found.job is not None:
            self.job_changed(found.job, change)

    def _picture(self, one: Pod) -> PodPicture | None:
        found = self.jobs.of_pod(one.metadata)
        held: Protection | None = Protection()
        if self.policies.known:
            policies = self.policies.of(one.metadata.namespace)
            if found.job is not None:
                held = protection(policies, found.job)
            elif not policies or not found.of_known_kind:
                held = None
        pod = pod_picture(one, found.title, held)
        if pod is not None and held is not None and held.stop_s is not None:
            self._stop_s[pod.uid] = held.stop_s
        else:
            self._stop_s.pop(one.metadata.uid, None)
        return pod

    def _policies_changed(self, namespace: str) -> None:
        self.namespace_changed(namespace)
        self._dirty.add(namespace)
        self._wake.set()

    def _jobs_changed(self, namespace: str) -> None:
        self._policies_changed(namespace)
        self.policies.wake()

    # ------------------------------------------------------------ what follows from it

    async def _forget(self) -> None:
        while True:
            await asyncio.sleep(GONE_LOOK_S)
            for namespace in self.jobs.forget_gone():
                self._jobs_changed(namespace)

    async def _look_again(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(SETTLE_S)
            self._wake.clear()
            dirty, self._dirty = self._dirty, set()
            pods = [
                one
                for one in self.followed.objects.values()
                if one.spec.node_name
                and ("" in dirty or one.metadata.namespace in dirty)
                and not nodes_own(one)
            ]
            for start in range(0, len(pods), BATCH):
                self._look_at(pods[start : start + BATCH])
                await asyncio.sleep(0)

    def _look_at(self, pods: Sequence[Pod]) -> None:
        for one in pods:
            there = self._on.get(one.spec.node_name, {})
            known = there.get(one.metadata.uid)
            if known is None:
                continue  # it has ended, or gone since
            stop_s = self._stop_s.get(known.uid)
            pod = self._picture(one)
            if pod is not None and (pod != known or self._stop_s.get(pod.uid) != stop_s):
                there[pod.uid] = pod
                self._changed(one.spec.node_name)


def _doing(one: Pod) -> object:
    """What of a pod says that its job should be looked at."""
    status = one.status
    return (
        status.phase,
        one.spec.node_name,
        one.metadata.deletion_timestamp,
        [(each.restart_count, *each.state) for each in status.container_statuses],
    )
