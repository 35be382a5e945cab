"""Which pod is which rank of a job, and which pods are no ranks. Pure.

A rank here is a pod's: of a pod with eight GPUs the agent finds eight processes, each with a RANK of its own.
"""

from collections.abc import Collection, Iterable, Sequence

import msgspec
from msgspec import Struct, structs

from sentinel.core.job.kinds import Finished, JobKind, Role
from sentinel.core.job.paths import Json, annotation, label, number, numbers, read, rows, text
from sentinel.core.job.state import PodGroup, Seen, asks_gpu, ended_pod, groups_of


class RankPod(Struct, frozen=True, kw_only=True):
    name: str
    uid: str
    node: str
    group: str  # as the object names it; "": none
    role: Role
    rank: int | None  # of the job; None: it is no rank
    index: int | None  # in its group
    ended: str  # "", "succeeded", "failed"
    by_order: bool = (
        False  # the kind numbers nothing: the order of names does, and holds for this incarnation only
    )


def selector(row: JobKind, job: Json) -> str | None:
    """The label selector of its pods. None: they are known by their owner alone, or not yet, or not any more.

    What was known before a stop is still to be looked for by UID: a RayJob forgets its cluster before the pods go.
    """
    if not row.pods:
        return None
    filled, rest = "", row.pods
    while "{" in rest:
        before, _, rest = rest.partition("{")
        path, _, rest = rest.partition("}")
        value = text(job, "metadata.name" if path == "name" else path)
        if not value:
            return None
        filled += before + value
    return filled + rest


def ranks(seen: Seen) -> tuple[RankPod, ...]:
    """Every pod, ranks first and in their order. Of several pods of one rank the one that lives, else the newest."""
    groups = {group.name.lower(): group for group in groups_of(seen.row, seen.job)}
    gpus = any(asks_gpu(pod.get("spec")) for pod in seen.pods)
    newest = sorted(seen.pods, key=_age, reverse=True)
    found = [_one(seen, pod, groups, gpus) for pod in newest]
    kept: dict[object, RankPod] = {}
    for pod in found:
        place: object = (
            pod.uid if pod.index is None and pod.rank is None else (pod.group.lower(), pod.rank, pod.index)
        )
        if place not in kept or (kept[place].ended and not pod.ended):
            kept[place] = pod
    numbered = _numbered(list(kept.values()), list(groups.values()), _replaced(seen))
    return tuple(sorted(numbered, key=lambda one: (one.rank is None, one.rank or 0, one.role, one.name)))


def _replaced(seen: Seen) -> set[str]:
    """The uids of pods in whose place an owner of an unknown kind makes others, under other names: a ReplicaSet leaves
    those that have failed, and waits for none that is being ended."""
    if not seen.row.fallback:
        return set()
    return {
        text(pod, "metadata.uid")
        for pod in seen.pods
        if ended_pod(pod) == "failed" or read(pod, "metadata.deletionTimestamp") is not None
    }


def _age(pod: Json) -> tuple[str, str]:
    return text(pod, "metadata.creationTimestamp"), text(pod, "metadata.name")


def _one(seen: Seen, pod: Json, groups: dict[str, PodGroup], gpus: bool) -> RankPod:
    row = seen.row
    named = label(pod, row.role_label) or annotation(pod, row.role_label) if row.role_label else ""
    group = groups.get(named.lower()) if row.role_label else next(iter(groups.values()), None)
    if row.role_label and not named:
        role = Role.HELPER  # of a kind that says it of its ranks
    elif group is not None:
        role = group.role
    else:
        role = row.role(named)
        if role is Role.RANK and gpus and named.lower() not in row.roles and not asks_gpu(pod.get("spec")):
            role = Role.HELPER
    index = _first(pod, row.index)
    outer = _first(pod, row.outer)
    if index is not None and outer is not None and group is not None:
        index += outer * group.each
    return RankPod(
        name=text(pod, "metadata.name"),
        uid=text(pod, "metadata.uid"),
        node=text(pod, "spec.nodeName"),
        group=group.name if group is not None else named,
        role=role,
        rank=_first(pod, row.rank) if role is Role.RANK else None,
        index=index,
        ended=ended_pod(pod),
    )


def _numbered(pods: list[RankPod], groups: Sequence[PodGroup], gone: Collection[str]) -> list[RankPod]:
    """Ranks count on from group to group; where a pod has no number at all the order of names decides, but for those
    that are `gone`."""
    offsets, count = {}, 0
    for group in groups:
        if group.role is Role.RANK:
            offsets[group.name.lower()] = count
            count += group.pods or sum(one.group.lower() == group.name.lower() for one in pods)
    found = []
    blind = [one for one in pods if one.role is Role.RANK and one.rank is None and one.index is None]
    blind = [one for one in blind if one.uid not in gone]
    order = {one.uid: n for n, one in enumerate(sorted(blind, key=lambda one: (one.group, one.name)))}
    for one in pods:
        if one.uid in order:
            one = structs.replace(one, rank=order[one.uid], by_order=True)
        elif one.role is Role.RANK and one.rank is None and one.index is not None:
            one = structs.replace(one, rank=offsets.get(one.group.lower(), 0) + one.index)
        found.append(one)
    return found


def _first(pod: Json, sources: Iterable[str]) -> int | None:
    for source in sources:
        kind, _, name = source.partition(":")
        value = {"label": label, "annotation": annotation, "env": _env}[kind](pod, name)
        if value.isascii() and value.isdecimal() and len(value) < 10:
            return int(value)
    return None


def _env(pod: Json, name: str) -> str:
    """The value of a variable; `NAME#a.b`: of a field of the JSON in it."""
    name, _, path = name.partition("#")
    for container in rows(pod, "spec.containers"):
        for variable in rows(container, "env"):
            if variable.get("name") == name and isinstance(value := variable.get("value"), str):
                return _inside(value, path) if path else value
    return ""


def _inside(document: str, path: str) -> str:
    try:
        held = msgspec.json.decode(document)
    except msgspec.DecodeError:
        return ""
    found = number(held, path)
    return text(held, path) if found is None else str(found)


def ended_early(seen: Seen) -> list[Json]:
    """Pods that have ended and stand in the way of a start, of a kind that makes no new ones beside them."""
    if seen.row.finished is not Finished.BLOCK:
        return []
    return [pod for pod in seen.pods if ended_pod(pod) and read(pod, "metadata.deletionTimestamp") is None]


def done_for_good(seen: Seen, found: list[RankPod]) -> set[int]:
    if seen.row.finished is not Finished.STAY:
        return set()
    done = {one.rank for one in found if one.rank is not None and one.ended == "succeeded"}
    return done | (numbers(text(seen.job, seen.row.finished_at)) if seen.row.finished_at else set())
