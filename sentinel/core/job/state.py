"""What a job of any kind is now, from its object and its pods as plain JSON. Pure."""

import re
from collections.abc import Iterator

from msgspec import Struct

from sentinel.core.job.kinds import Group, JobKind, KeepOff, Means, Role
from sentinel.core.job.paths import (
    Json,
    annotation,
    controller,
    label,
    number,
    read,
    rows,
    table,
    text,
)

STOPPED = "sentinel.dev/stopped"  # for which incident Sentinel stopped it
SIZE = "sentinel.dev/size"  # how many replicas it had, of a kind that is stopped by 0 of them
KEPT_OFF = "sentinel.dev/kept-off"  # values of the hostname label that Sentinel's affinity keeps it off
# When the newest of the pods was created that had ended before Sentinel started it last: they may stay as long as the
# job does, and those that ended and are no newer are no ranks of what runs since.
ENDED_BEFORE = "sentinel.dev/ended-before"
CHOSEN_LAST = "sentinel.dev/chosen-last"  # those that its pods get only where there is no other room
# "true", of a job that was created suspended: Sentinel checks, sizes and starts it; then it says STARTED.
ASKS_FOR_START = "sentinel.dev/precheck"
STARTED = "started"
GATES = "kueue.x-k8s.io/"  # of pods that wait for Kueue: their names begin so
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"  # Kueue v0.14: a label, and an annotation in older versions
SENTINEL, KUEUE = "Sentinel", "Kueue"
_UIDS = re.compile(r"a workload \(UID: [^,)]*, JobUID: ([0-9a-f-]{36})\)")
DEFAULT_GRACE_S = 30  # of a pod that names none (Kubernetes)


class Seen(Struct, frozen=True, kw_only=True):
    """A job as it was read, with everything that a decision about it rests on."""

    row: JobKind
    job: Json
    pods: tuple[Json, ...] = ()  # all that are there, ended ones too
    children: tuple[
        Json, ...
    ] = ()  # batch Jobs that it owns, where its row keeps pods off nodes through them
    workload: Json | None = None  # of Kueue, for this job
    pod_group: Json | None = None  # of Volcano, for this job, read where none of its pods lives
    config_map: Json | None = None  # that tells its program of its restart, where the job asks for one
    kueue: bool = True  # is Kueue installed? Else the label of a queue means nothing
    preemptor: str = ""  # the job for which Kueue took its place back, where that is known


class PodGroup(Struct, frozen=True, kw_only=True):
    """What the object asks for. `size` None: it does not say (and a runtime elsewhere does)."""

    name: str
    role: Role
    size: int | None
    each: int
    where: Group
    spec: Json

    @property
    def pods(self) -> int | None:
        return None if self.size is None else self.size * self.each

    @property
    def templates(self) -> list[Json]:
        return [found for path in self.where.templates if (found := table(self.spec, path))]


class Standing(Struct, frozen=True, kw_only=True):
    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str
    size: int | None  # pods of ranks that it asks for
    stopped: bool  # it was told to stop, which says nothing of its pods
    stopped_by: str  # Sentinel, Kueue, the field manager that wrote it, or "": nobody knows
    mark: str  # the incident for which Sentinel stopped it
    queue: str  # Kueue's, whose `active` is the switch
    ended: str  # "", "succeeded", "failed"
    ending: bool  # it is decided how it ends, and pods still run
    why_ended: str  # reason and message of the kind
    kept_off: tuple[str, ...]
    left_over: tuple[str, ...]  # pods that run on after its end

    @property
    def over(self) -> bool:
        return bool(self.ended) or self.ending


def standing(seen: Seen) -> Standing:
    row, job = seen.row, seen.job
    ended, ending, why = _end(row, job)
    queue = queue_of(seen)
    stopped = _is_stopped(seen, bool(queue))
    return Standing(
        namespace=text(job, "metadata.namespace"),
        name=text(job, "metadata.name"),
        uid=text(job, "metadata.uid"),
        generation=number(job, "metadata.generation") or 0,
        resource_version=text(job, "metadata.resourceVersion"),
        size=size_of(seen),
        stopped=stopped,
        stopped_by=_stopped_by(seen, queue) if stopped else "",
        mark=mark_of(seen),
        queue=queue,
        ended=ended,
        ending=ending,
        why_ended=why,
        kept_off=kept_off(*(seen.children or (job,))),
        left_over=tuple(names(living(seen.pods))) if ended else (),
    )


# ---------------------------------------------------------------- groups and sizes


def groups_of(row: JobKind, job: Json) -> list[PodGroup]:
    """In the order of their ranks."""
    found = [_group(row, where, name, spec) for where in row.groups for name, spec in _specs(where, job)]
    order = list(row.roles)
    if any(group.where.at.endswith(".*") for group in found):  # a map has no order of its own
        found.sort(key=lambda g: order.index(g.name.lower()) if g.name.lower() in order else len(order))
    asking = [asks_gpu(*(read(template, "spec") for template in group.templates)) for group in found]
    found = [
        _with_role(group, Role.RANK) if asks and group.where.name and group.role is not Role.SERVER else group
        for group, asks in zip(found, asking, strict=True)
    ]  # where owners choose the names, a name is a hint
    if any(asking):  # the rest of such a job trains nothing, unless its row says so
        found = [
            _with_role(group, Role.HELPER)
            if group.templates and not asks and group.name.lower() not in row.roles
            else group
            for group, asks in zip(found, asking, strict=True)
        ]
    return found


def _specs(where: Group, job: Json) -> Iterator[tuple[str, Json]]:
    if where.at.endswith("[]"):
        for spec in rows(job, where.at[:-2]):
            yield text(spec, where.name), spec
    elif where.at.endswith(".*"):
        for name, spec in table(job, where.at[:-2]).items():
            if isinstance(spec, dict):
                yield name, spec
    elif isinstance(spec := read(job, where.at), dict):
        yield where.called, spec


def _group(row: JobKind, where: Group, name: str, spec: Json) -> PodGroup:
    size: int | None = where.default
    if where.size:
        size = number(spec, where.size)
        if size is None and where.templates:  # else the number stands in a runtime elsewhere
            size = where.default
    each = number(spec, where.each) if where.each else 1
    return PodGroup(
        name=name, role=row.role(name), size=size, each=1 if each is None else each, where=where, spec=spec
    )


def _with_role(group: PodGroup, role: Role) -> PodGroup:
    return PodGroup(
        name=group.name, role=role, size=group.size, each=group.each, where=group.where, spec=group.spec
    )


def size_of(seen: Seen) -> int | None:
    """Pods of ranks that the object asks for, or asked for before it was stopped by 0 replicas."""
    sizes = [
        group.pods if not (before := was_size(seen.job, group)) else before * group.each
        for group in groups_of(seen.row, seen.job)
        if group.role is Role.RANK
    ]
    return None if not sizes or None in sizes else sum(size for size in sizes if size is not None)


def was_size(job: Json, group: PodGroup) -> int:
    """0: it is not stopped by 0 replicas."""
    remembered = annotation(job, SIZE)
    return int(remembered) if group.size == 0 and remembered.isascii() and remembered.isdecimal() else 0


def asks_gpu(*specs: object) -> bool:
    """Does a pod of these specs ask for a GPU? Resource names of device plugins: nvidia.com/gpu, amd.com/gpu,

    nvidia.com/mig-1g.5gb, …
    """
    return any(
        "/" in resource and ("gpu" in resource.lower() or "/mig-" in resource)
        for spec in specs
        for containers in ("containers", "initContainers")
        for container in rows(spec, containers)
        for kind in ("limits", "requests")
        for resource in table(container, f"resources.{kind}")
    )


# ---------------------------------------------------------------- pods


def main_container(pod: Json) -> Json:
    """The container that trains, of a pod or a template: the one with GPUs, else the first; {}: none."""
    containers = rows(pod, "spec.containers")
    first = containers[0] if containers else {}
    return next((one for one in containers if asks_gpu({"containers": [one]})), first)


ENDED_PHASES = ("Succeeded", "Failed")  # status.phase of a pod whose containers have all ended for good
STARTED_PHASES = ("Running", *ENDED_PHASES)  # of one whose kubelet has started a container


def ended_pod(pod: Json) -> str:
    """ "" (it runs, or may yet), "succeeded", "failed"."""
    return {"Succeeded": "succeeded", "Failed": "failed"}.get(text(pod, "status.phase"), "")


def living(pods: tuple[Json, ...]) -> list[Json]:
    """A job is stopped when this is empty, whatever its conditions say."""
    return [pod for pod in pods if not ended_pod(pod)]


def ended_before(seen: Seen) -> list[Json]:
    """Pods that had ended when the job was started last, or that have ended by now where it is stopped."""
    until = annotation(seen.job, ENDED_BEFORE)
    stopped = standing(seen).stopped
    return [
        pod
        for pod in seen.pods
        if ended_pod(pod) and (stopped or text(pod, "metadata.creationTimestamp") <= until)
    ]


def names(pods: list[Json]) -> list[str]:
    return sorted(text(pod, "metadata.name") for pod in pods)


def longest_grace_s(seen: Seen) -> int | None:
    """The longest time for which the kind's own stop can let all ranks save and end: that of its pods.

    None: not known from the object (no pod is there, and its templates stand elsewhere).
    """
    specs = [pod.get("spec") for pod in living(seen.pods)]
    if not specs:
        found = groups_of(seen.row, seen.job)
        specs = [t.get("spec") for group in found if group.role is Role.RANK for t in group.templates]
    graces = [number(spec, "terminationGracePeriodSeconds") for spec in specs]
    return min((DEFAULT_GRACE_S if grace is None else grace for grace in graces), default=None)


# ---------------------------------------------------------------- stopped, and by whom


def queue_of(seen: Seen) -> str:
    """Kueue's queue; a Workload whose queue has no name shows as its own name."""
    if not (seen.row.workload_queues or seen.row.fallback) or not seen.kueue:
        return ""
    named = named_queue(seen.job)
    if seen.workload is None:
        return named
    return named or text(seen.workload, "spec.queueName") or text(seen.workload, "metadata.name")


def named_queue(job: Json) -> str:
    """Of Kueue, where that is installed."""
    return label(job, QUEUE_LABEL) or annotation(job, QUEUE_LABEL)


def mark_of(seen: Seen) -> str:
    return (annotation(seen.workload, STOPPED) if seen.workload else "") or annotation(seen.job, STOPPED)


def _is_stopped(seen: Seen, queued: bool) -> bool:
    row, job = seen.row, seen.job
    if row.suspend and read(job, row.suspend) is True:
        return True
    if row.stopped and text(job, row.phase) in row.stopped:
        return True
    if row.stop is Means.SCALE and any(group.size == 0 for group in groups_of(row, job)):
        return True
    return queued and deactivated(seen)


def in_line(seen: Seen) -> str:
    """What it waits for in its queue, in a sentence; "": it does not wait there."""
    now = standing(seen)
    if now.stopped_by != KUEUE or now.over:
        return ""
    said = [
        text(one, "message")
        for one in rows(seen.workload, "status.conditions")
        if one.get("status") == "False"
    ]
    sentence = f"It waits for its turn in Kueue's queue {now.queue}"
    return f"{sentence}: {said[0]}." if said and said[0] else f"{sentence}."


def took_back(seen: Seen) -> str:
    """In Kueue's words why it took back the place of the job, which is that of another one now; "": it did not.

    Kueue v0.14 names the other one by UIDs (pkg/scheduler/preemption).
    """
    for one in rows(seen.workload, "status.conditions"):
        if one.get("type") == "Preempted" and one.get("status") == "True":
            said = text(one, "message") or "Preempted"
            return _UIDS.sub(seen.preemptor, said) if seen.preemptor else said
    return ""


def preemptor_uid(seen: Seen) -> str:
    """Of the job for which Kueue took its place back; "": it did not, or does not tell."""
    found = _UIDS.search(took_back(seen))
    return found[1] if found else ""


def behind_gates(seen: Seen) -> str:
    """What its pods wait for that Kueue holds back one by one, in a sentence; "": none is."""
    held = [
        pod
        for pod in living(seen.pods)
        if any(text(gate, "name").startswith(GATES) for gate in rows(pod, "spec.schedulingGates"))
    ]
    if not held or not (queue := gating_queue(seen)):
        return ""
    return f"{len(held)} of its {len(seen.pods)} pods wait for their turn in Kueue's queue {queue}."


def ungrouped(seen: Seen) -> str:
    """What it waits for in Volcano's queue, which makes its pods when it lets in its PodGroup; "": it does not wait.

    Volcano v1.10 (pkg/controllers/job, pkg/scheduler/actions/enqueue).
    """
    group = seen.pod_group
    if group is None or living(seen.pods) or text(group, "status.phase") not in ("", "Pending"):
        return ""
    return f"It waits for its turn in Volcano's queue {text(group, 'spec.queue')}."


def gating_queue(seen: Seen) -> str:
    """Of Kueue, which lets its pods in and leaves the job itself alone."""
    return named_queue(seen.job) if seen.row.gated_queues and seen.kueue else ""


def keeps_off(seen: Seen) -> KeepOff:
    """How its pods are kept off a node: what is in a queue of gates keeps its templates."""
    return KeepOff.NONE if gating_queue(seen) else seen.row.keep_off


def claimed(seen: Seen, now: Standing) -> bool:
    """Does the owner of a job that waits suspended ask Sentinel to start it? What is in a queue is the queue's."""
    return (
        now.stopped
        and bool(seen.row.suspend)
        and not now.queue
        and not now.over
        and not now.mark
        and annotation(seen.job, ASKS_FOR_START) == "true"
    )


def deactivated(seen: Seen) -> bool:
    return seen.workload is not None and read(seen.workload, "spec.active") is False


def marked_in_vain(seen: Seen) -> bool:
    """Does its Workload bear Sentinel's mark without being switched off? Sentinel itself wipes it when it starts it."""
    return seen.workload is not None and bool(annotation(seen.workload, STOPPED)) and not deactivated(seen)


def switched_on(seen: Seen) -> bool:
    """Has a person, or another tool, set its Workload going, which Sentinel had stopped?"""
    return marked_in_vain(seen) and not _by_kueue(seen)


def _by_kueue(seen: Seen) -> bool:
    """Kueue may write the whole Workload anew, `spec.active` with it, when the job asks for other pods."""
    by = _writer(seen.workload or {}, "spec.active")
    return bool(by) and by == _writer(seen.workload or {}, "spec.podSets")


def _stopped_by(seen: Seen, queue: str) -> str:
    if queue:
        if not deactivated(seen):
            return KUEUE  # it waits for its turn, or was preempted
        return SENTINEL if mark_of(seen) else _writer(seen.workload or {}, "spec.active")
    return SENTINEL if mark_of(seen) else _writer(seen.job, seen.row.suspend)


def let_run_by(seen: Seen) -> str:
    """Who has let a job run that was stopped: a field manager, or "somebody"."""
    queued = bool(queue_of(seen)) and seen.workload is not None
    by = _writer(seen.workload or {}, "spec.active") if queued else _writer(seen.job, seen.row.suspend)
    return by or "somebody"


def _writer(obj: Json, path: str) -> str:
    """The field manager that wrote the field last; "" where the server does not say."""
    fields = ".".join(f"f:{name}" for name in path.split("."))
    found = [
        (text(entry, "time"), text(entry, "manager"))
        for entry in rows(obj, "metadata.managedFields")
        if path and read(entry.get("fieldsV1"), fields) is not None
    ]
    return max(found, default=("", ""))[1]


def chosen_last(obj: Json) -> tuple[str, ...]:
    """The hosts that its pods get only where there is no other room."""
    return tuple(sorted({name for name in annotation(obj, CHOSEN_LAST).split(",") if name}))


def kept_off(*objs: Json) -> tuple[str, ...]:
    """The hosts that all of them are kept off."""
    named = [{name for name in annotation(obj, KEPT_OFF).split(",") if name} for obj in objs]
    return tuple(sorted(set.intersection(*named)))


# ---------------------------------------------------------------- ends


def _end(row: JobKind, job: Json) -> tuple[str, bool, str]:
    """How it ended, whether it is about to, and why."""
    if row.phase:
        phase = text(job, row.phase)
        above = row.phase.rpartition(".")[0]
        why = _sentence(phase, text(job, f"{above}.reason"), text(job, f"{above}.message"))
        ended = "succeeded" if phase in row.succeeded else "failed" if phase in row.failed else ""
        return ended, phase in row.ending, why if ended or phase in row.ending else ""
    true = {text(one, "type"): one for one in rows(job, "status.conditions") if one.get("status") == "True"}
    for kinds, ended in ((row.succeeded, "succeeded"), (row.failed, "failed"), (row.ending, "")):
        for kind in kinds:
            if kind in true:
                one = true[kind]
                return ended, not ended, _sentence(kind, text(one, "reason"), text(one, "message"))
    return "", False, ""


def _sentence(*parts: str) -> str:
    return ": ".join(part for part in parts if part)


def needs_owner(seen: Seen) -> bool:
    """Is it a pod that nobody makes again?"""
    return seen.row.fallback and seen.job.get("kind") == "Pod" and not controller(seen.job)
