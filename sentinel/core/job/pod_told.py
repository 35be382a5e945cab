"""Who ended a pod from outside: from its conditions, its reason, its deletion and its events as plain JSON. Pure."""

from collections.abc import Sequence

from msgspec import Struct

from sentinel.core.job.paths import Json, number, rows, text, wall_s
from sentinel.core.job.pod_words import words

# Times of Kubernetes are whole seconds, by the clock of the API server here and by that of the node there.
SKEW_S = 2.0
# The kubelet's last word to the API server sets the time of deletion anew, with a grace of 0. It comes when volumes are
# unmounted: an end so long before it was no answer to the deletion.
LAST_WORD_S = 300.0

# Reasons of the condition DisruptionTarget (https://kubernetes.io/docs/concepts/workloads/pods/disruptions/), and of
# `status.reason` where the kubelet itself ended the pod.
PREEMPTED = "PreemptionByScheduler"
_DISRUPTED = {
    PREEMPTED: ("pod-preempted", "preempted by the scheduler for a pod of higher priority"),
    "EvictionByEvictionAPI": ("pod-evicted", "evicted through the API"),
    "DeletionByTaintManager": ("taint-eviction", "evicted by a NoExecute taint of its node"),
    "DeletionByPodGC": ("node-lost", "removed, since its node is gone"),
}
_BY_KUBELET = {
    "Preempting": ("pod-preempted", "preempted by the kubelet for a critical pod"),
    "Terminated": ("node-shutdown", "ended by the shutdown of its node"),
    "Shutdown": ("node-shutdown", "ended by the shutdown of its node"),  # before 1.22
    "NodeShutdown": ("node-shutdown", "refused by its node, which is shutting down"),
    "NodeLost": ("node-lost", "given up, since its node does not answer"),
    "DeadlineExceeded": ("pod-deadline", "ended by its own activeDeadlineSeconds"),
}
# Of an Evicted pod: the node's shortage, or else the pod's own limit of local storage (pkg/kubelet/eviction). A kubelet
# that starts during a shortage also refuses pods that run there already.
_PRESSURE = ("The node was low on resource", "The node had condition")
# Queues that delete pods: Kueue 0.14 of plain pods and of groups of them (pkg/controller/jobs/pod; its reason goes on
# with why, as in WorkloadEvictedDueToPreempted), and Volcano 1.10 (pkg/scheduler/cache), whose condition the kubelet
# overwrites, and whose event stays.
_QUEUES = (("TerminationTarget", "WorkloadEvicted"), ("Ready", "Evict"))
# What they say of a pod, as (reason, how the message begins): all that is left of one that went between two looks.
_QUEUE_EVENTS = (("Stopped", "Preempted to accommodate"), ("Evict", ""))


class Told(Struct, frozen=True):
    """Somebody outside ends the pod."""

    failure: str  # class of rules/failures.toml
    how: str  # after "it was"
    wall_s: float | None = None  # None: not known, but before its end
    exact: bool = True  # else it may have been LAST_WORD_S earlier

    def after(self, finished_wall_s: float | None) -> bool:
        """Had the container ended by itself before?"""
        if self.wall_s is None or finished_wall_s is None:
            return False
        return finished_wall_s < self.wall_s - (SKEW_S if self.exact else LAST_WORD_S)


def told(pod: Json, events: Sequence[Json] = ()) -> Told | None:
    """None: nobody did, as far as the pod tells."""
    reason, said = text(pod, "status.reason"), _said(text(pod, "status.message"))
    if reason == "Evicted":
        pressed = any(shortage in text(pod, "status.message") for shortage in _PRESSURE)
        return Told("node-pressure" if pressed else "storage-limit", f"evicted by the kubelet{said}")
    if reason in _BY_KUBELET:
        failure, how = _BY_KUBELET[reason]
        return Told(failure, f"{how}{said}")
    if (found := _by_condition(pod, events)) is not None:
        return found
    if reason and not rows(pod, "status.containerStatuses"):
        return Told("pod-rejected", f"refused by its node: {reason}{said}")
    return _deleted(pod, events)


def _by_condition(pod: Json, events: Sequence[Json]) -> Told | None:
    for one in rows(pod, "status.conditions"):
        kind, why, at_s = text(one, "type"), text(one, "reason"), wall_s(one, "lastTransitionTime")
        said = _said(text(one, "message"))
        if any(kind == its_kind and why.startswith(its_why) for its_kind, its_why in _QUEUES):
            return Told("pod-preempted", f"taken back by its queue{said}", at_s)
        if kind == "DisruptionTarget" and one.get("status") == "True":
            failure, how = _DISRUPTED.get(why, ("pod-deleted", f"ended from outside: {why}{said}"))
            if why == PREEMPTED and (by := preemptor(events)):
                how = f"preempted by pod {by}"
            return Told(failure, how, at_s)
    return None


def _deleted(pod: Json, events: Sequence[Json]) -> Told | None:
    """By a person, its owner or the garbage collector: the object does not say by whom."""
    at_s = wall_s(pod, "metadata.deletionTimestamp")
    if at_s is None:
        return None
    how = taken_back(events)
    failure, how = ("pod-preempted", how) if how else ("pod-deleted", "deleted")
    grace_s = number(pod, "metadata.deletionGracePeriodSeconds") or 0
    return Told(failure, how, at_s - grace_s, exact=grace_s > 0)


def taken_back(events: Sequence[Json]) -> str:
    """After "it was": by its queue, as that says; "": they do not tell."""
    for event in events:
        reason, message = text(event, "reason"), text(event, "message")
        if any(reason == its and message.startswith(begins) for its, begins in _QUEUE_EVENTS):
            return f"taken back by its queue{_said(message)}"
    return ""


def preempted(pod: Json) -> bool:
    """By the scheduler, whose event says for whom."""
    return any(text(one, "reason") == PREEMPTED for one in rows(pod, "status.conditions"))


def preemptor(events: Sequence[Json]) -> str:
    """namespace/name; "": they do not tell. https://pkg.go.dev/k8s.io/api/events/v1#Event has it as `related`."""
    for event in events:
        name = text(event, "related.name")
        if text(event, "reason") == "Preempted" and name:
            return f"{text(event, 'related.namespace')}/{name}"
    return ""


def _said(message: str) -> str:
    return f" ({words(message).rstrip('.')})" if message.strip() else ""
