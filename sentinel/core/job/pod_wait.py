"""Why a pod is not up yet, and whether waiting will help: from the pod and its events as plain JSON. Pure.

The container's own state says most of it. What happens before a container is made (volumes, the sandbox, pulling)
stands in events only: `needs_events` says for which pods they are worth reading. Events are core/v1's.

Reasons are those of Kubernetes 1.34: pkg/kubelet/images/types.go, pkg/kubelet/kuberuntime, pkg/kubelet/events,
pkg/scheduler. tests/core/pods has what real ones printed.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from sentinel.core.job.paths import Json, read, rows, text, wall_s
from sentinel.core.job.pod_end import comes_back
from sentinel.core.job.pod_words import cut, words
from sentinel.core.job.state import ENDED_PHASES, main_container

MAX_GROUPS = 4  # of reasons in one explanation


class Reason(StrEnum):
    """The most important first: in this order they are told of a whole job."""

    IMAGE = "ImagePull"
    CONFIG = "ConfigMissing"
    CONTAINER = "ContainerNotStarted"
    CRASH_LOOP = "CrashLoop"
    VOLUME = "VolumeNotMounted"
    SANDBOX = "SandboxNotMade"
    NODE_GONE = "NodeGone"
    UNSCHEDULABLE = "Unschedulable"
    GATED = "SchedulingGated"
    INIT = "Initializing"
    NOT_READY = "NotReady"
    ENDING = "Ending"
    PULLING = "Pulling"
    CREATING = "Creating"
    PENDING = "Pending"  # no scheduler has looked at it yet


_ORDER = {reason: place for place, reason in enumerate(Reason)}
_CLASS = {
    Reason.IMAGE: "image-pull",
    Reason.CONFIG: "config-missing",
    Reason.CONTAINER: "container-start",
    Reason.VOLUME: "mount-failed",
    Reason.SANDBOX: "container-start",
    Reason.NODE_GONE: "node-lost",
    Reason.UNSCHEDULABLE: "unschedulable",
}
_IMAGE = ("ErrImagePull", "ImagePullBackOff", "ImageInspectError", "InvalidImageName", "ErrImageNeverPull")
_CONTAINER = (
    "CreateContainerError",
    "RunContainerError",
    "PreCreateHookError",
    "PreStartHookError",
    "PostStartHookError",
)
# Events of a pod whose containers are not made yet: the newest of these says what it waits for.
_VOLUME = ("FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedPrepareDynamicResources")
_SANDBOX = ("FailedCreatePodSandBox", "NetworkNotReady")
_EARLY = (*_VOLUME, *_SANDBOX, "Pulling", "NodeNotReady")
# Nobody but a person changes these: a name that is not there, a permission that is missing.
_NEVER = re.compile(
    r"\bnot found\b(?! in the list of registered)|is not a directory|is not a file|type check failed"
    r"|manifest unknown|(?<!connect: )no such file"  # a driver's socket may come yet, as its registration
    r"|repository does not exist|unauthorized|authentication required|authorization failed|access denied"
    r"|pull access denied|401 Unauthorized|403 Forbidden|couldn't find key|permission denied|exec format error"
    r"|invalid reference format|OOM-killed|pull policy of Never",
    re.IGNORECASE,
)
# Names, addresses and counts that differ from pod to pod, and from try to try.
_SINGULAR = re.compile(r"[0-9a-f]*\d[0-9a-f]*")
_VOLUME_NAME = re.compile(r"failed for volume (\S+)|unmounted volumes=\[([^]]+)\]")


class Wait(Struct, frozen=True, kw_only=True):
    """Why one pod is not up. `what` is a clause without the pod's name, equal for pods that wait for the same."""

    pod: str  # namespace/name
    reason: Reason
    what: str
    hopeless: bool = (
        False  # only a person's change to the job, its images, its configuration or the cluster helps
    )

    @property
    def sentence(self) -> str:
        return f"Pod {self.pod} is not up: {self.what}."

    @property
    def failure(self) -> str:
        """The class of rules/failures.toml; "": this is no failure, or its last end tells it."""
        return _CLASS.get(self.reason, "")


def waits(pod: Json, events: Sequence[Json] = (), nodes: Collection[str] | None = None) -> Wait | None:
    """None: it is up, or it has ended. `nodes`: names of those that there are, where that is known."""
    if text(pod, "status.phase") in ENDED_PHASES:
        return None
    found = _waits(pod, events, nodes)
    if found is None:
        return None
    reason, what, hopeless = found
    name = f"{text(pod, 'metadata.namespace')}/{text(pod, 'metadata.name')}"
    return Wait(pod=name, reason=reason, what=what, hopeless=hopeless)


def needs_events(pod: Json) -> bool:
    """Does only an event tell why it is not up?"""
    found = waits(pod)
    return found is not None and found.reason in (Reason.CREATING, Reason.NOT_READY, Reason.IMAGE)


def explain(
    pods: Sequence[Json], events: Mapping[str, Sequence[Json]], nodes: Collection[str] | None = None
) -> str:
    """Why a job is not up, the most important reasons first, counted. `events` by the pod's uid. "": all are up."""
    found = [wait for pod in pods if (wait := waits(pod, events.get(text(pod, "metadata.uid"), ()), nodes))]
    groups: dict[tuple[Reason, str], list[Wait]] = {}
    for wait in found:
        groups.setdefault((wait.reason, _SINGULAR.sub("#", wait.what)), []).append(wait)
    ordered = sorted(
        groups.values(), key=lambda same: (not same[0].hopeless, _ORDER[same[0].reason], -len(same))
    )
    if not ordered:
        return ""
    many = len(ordered) > 1
    said = [f"{same[0].what}{f' ({_pods(len(same))})' if many else ''}" for same in ordered[:MAX_GROUPS]]
    if left := sum(len(same) for same in ordered[MAX_GROUPS:]):
        said.append(f"other reasons ({_pods(left)})")
    are = "is" if len(found) == 1 else "are"
    return f"{len(found)} of {_pods(len(pods))} {are} not up: {'; '.join(said)}."


def not_made(events: Iterable[Json]) -> str:
    """Why no pods are made, by events of the objects that make them: a quota, an admission webhook. "": they do not
    tell. Job controllers and operators call such an event FailedCreate, or FailedCreatePod."""
    failed = [one for one in events if text(one, "reason").startswith("FailedCreate")]
    newest = max(failed, key=event_wall_s, default={})
    said = words(text(newest, "message").removeprefix("Error creating: "))
    return f"Pods are missing, which cannot be made: {said.rstrip('.')}." if said else ""


def _pods(count: int) -> str:
    return f"{count} pod{'' if count == 1 else 's'}"


# ---------------------------------------------------------------- one pod

_Found = tuple[Reason, str, bool]


def _waits(pod: Json, events: Sequence[Json], nodes: Collection[str] | None) -> _Found | None:
    node = text(pod, "spec.nodeName")
    if not node:
        return _unscheduled(pod)
    if nodes is not None and node not in nodes:
        return Reason.NODE_GONE, f"its node {node} is gone", True
    if text(pod, "metadata.deletionTimestamp"):
        return Reason.ENDING, "it is being deleted and has not ended yet", False
    return _initializing(pod, events) or _containers(pod, events)


def _unscheduled(pod: Json) -> _Found:
    gates = [text(gate, "name") for gate in rows(pod, "spec.schedulingGates")]
    if gates:
        return Reason.GATED, f"it is held back by scheduling gate {', '.join(gates)}", False
    found = _condition(pod, "PodScheduled")
    if text(found, "reason") in ("Unschedulable", "SchedulerError"):
        said = shortened(text(found, "message"))
        if nominated := text(pod, "status.nominatedNodeName"):
            said = f"it waits for pods of lower priority to leave node {nominated}"
        return Reason.UNSCHEDULABLE, said or "no node takes it", 'persistentvolumeclaim "' in said
    scheduler = text(pod, "spec.schedulerName") or "default-scheduler"
    return Reason.PENDING, f"scheduler {scheduler} has not looked at it yet", False


def shortened(message: str) -> str:
    """What a scheduler says, without what preemption could not do."""
    said = message.partition(" preemption: ")[0].partition(". ")[0]
    return cut(said.strip().rstrip(".,"))


def _initializing(pod: Json, events: Sequence[Json]) -> _Found | None:
    for status in rows(pod, "status.initContainerStatuses"):
        name = text(status, "name")
        beside = status.get("started") is True and _sidecar(pod, name)
        if beside or read(status, "state.terminated.exitCode") == 0:
            continue
        if read(status, "state.running") is not None:
            return Reason.INIT, f"init container {name} runs", False
        if (found := _waiting(pod, status, events, "init container")) is not None:
            return found
    return None


def _sidecar(pod: Json, name: str) -> bool:
    """An init container that runs beside the others."""
    return any(
        c.get("name") == name and c.get("restartPolicy") == "Always" for c in rows(pod, "spec.initContainers")
    )


def _containers(pod: Json, events: Sequence[Json]) -> _Found | None:
    statuses = rows(pod, "status.containerStatuses")
    if not statuses:
        return _early(pod, events)
    main = text(main_container(pod), "name")
    for status in sorted(statuses, key=lambda one: one.get("name") != main):
        if (found := _waiting(pod, status, events, "container")) is not None:
            return found
    for status in statuses:
        if read(status, "state.running") is not None and status.get("ready") is not True:
            name = text(status, "name")
            probe = "startup" if status.get("started") is False else "readiness"
            said = text(_newest(events, ("Unhealthy",)), "message").partition(" failed: ")[2].strip()
            more = f": {cut(said)}" if said else ""
            return (
                Reason.NOT_READY,
                f"container {name} runs, and its {probe} probe does not pass{more}",
                False,
            )
    return None


def _waiting(pod: Json, status: Json, events: Sequence[Json], kind: str) -> _Found | None:
    """Why this container is not running. None: it runs, or ended for good."""
    name, image = text(status, "name"), text(status, "image")
    why, message = text(status, "state.waiting.reason"), text(status, "state.waiting.message")
    ended = read(status, "state.terminated")
    last = ended or read(status, "lastState.terminated")
    if why in _IMAGE:
        return _image(image, message, events)
    if why == "CreateContainerConfigError":
        return Reason.CONFIG, f"{kind} {name} cannot be made: {words(message)}", bool(_NEVER.search(message))
    if why in _CONTAINER:
        said = words(message)
        return Reason.CONTAINER, f"{kind} {name} cannot be started: {said}", bool(_NEVER.search(message))
    if why == "CrashLoopBackOff" or (ended and comes_back(pod, name, read(ended, "exitCode"))):
        hopeless = text(last, "reason") == "StartError" and bool(_NEVER.search(text(last, "message")))
        return Reason.CRASH_LOOP, f"{kind} {name} ends again and again, {_last(last)}", hopeless
    return _early(pod, events) if why else None


def _last(last: object) -> str:
    code, reason = read(last, "exitCode"), text(last, "reason")
    if reason == "StartError":
        return f"the last time not started: {words(text(last, 'message'))}"
    return "the last time " + ("OOM killed" if reason == "OOMKilled" else f"with exit code {code}")


def _image(image: str, message: str, events: Sequence[Json]) -> _Found:
    said = words(message)
    if not said:  # the kubelet only says that it waits: then the last attempt's event tells why
        tried = _newest(
            [e for e in events if text(e, "message").startswith("Failed to pull image")], ("Failed",)
        )
        said = words(text(tried, "message"))
    hopeless = bool(_NEVER.search(said))
    return Reason.IMAGE, f"the image {image} cannot be pulled{f': {said}' if said else ''}", hopeless


def _early(pod: Json, events: Sequence[Json]) -> _Found:
    event = _newest(events, _EARLY)
    why, message = text(event, "reason"), text(event, "message")
    node = text(pod, "spec.nodeName")
    if why in _VOLUME:
        named = _VOLUME_NAME.search(message)
        volume = next((name for name in named.groups() if name), "").strip('"') if named else ""
        what = f"volume {volume} cannot be mounted" if volume else "its volumes cannot be mounted"
        return Reason.VOLUME, f"{what}: {words(message)}", bool(_NEVER.search(message))
    if why in _SANDBOX:
        return Reason.SANDBOX, f"node {node} cannot make its sandbox: {words(message)}", False
    if why == "Pulling":
        image = cut(message.removeprefix("Pulling image ")).strip('"')
        return Reason.PULLING, f"the image {image} is being pulled", False
    if why == "NodeNotReady":
        return Reason.NODE_GONE, f"its node {node} does not answer", False
    return Reason.CREATING, f"node {node} makes its containers", False


# ---------------------------------------------------------------- words


def _condition(pod: Json, kind: str) -> Json:
    return next((one for one in rows(pod, "status.conditions") if one.get("type") == kind), {})


def _newest(events: Iterable[Json], reasons: Sequence[str]) -> Json:
    return max((one for one in events if text(one, "reason") in reasons), key=event_wall_s, default={})


def event_wall_s(event: Json) -> float:
    """When it was last seen: the API has four fields for that, of which writers fill one or two."""
    fields = ("series.lastObservedTime", "lastTimestamp", "eventTime", "metadata.creationTimestamp")
    return max(wall_s(event, field) or 0.0 for field in fields)
