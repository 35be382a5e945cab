"""Pods of an owner whose kind Sentinel does not know, as one job. Pure.

Nothing is read of the owner, nor written to it: what its pods have in common stands in for it.
"""

from collections.abc import Sequence

from msgspec import structs

from sentinel.core.job.kinds import JobKind
from sentinel.core.job.paths import Json, read, table
from sentinel.core.job.room import GPUS, requests
from sentinel.core.job.state import ended_pod
from sentinel.core.people.owners import OWNER

PREFIX = "sentinel.dev/"
ASKED = (
    OWNER,
)  # of Sentinel's annotations the one that means something on pods: the others are on objects it writes


def row_of_owner(fallback: JobKind, api_version: str, kind: str) -> JobKind:
    """The fallback row under the owner's name: what is told of the job names the owner."""
    group, _, version = api_version.rpartition("/")
    return structs.replace(fallback, kind=kind, group=group, version=version)


def stand_in(
    row: JobKind,
    namespace: str,
    name: str,
    uid: str,
    pods: Sequence[Json],
    ranks: int = 0,
    gpus: bool = False,
) -> Json:
    """The owner as far as its pods tell of it. `ranks`: how many it has had at once, of which none may be missing where
    the rest is to count as the end of the job; `gpus`: each of them asks for GPUs."""
    meta: Json = {"namespace": namespace, "name": name, "uid": uid}
    if labels := _alike(pods, "metadata.labels"):
        meta["labels"] = labels
    notes = _alike(pods, "metadata.annotations")
    if notes := {key: value for key, value in notes.items() if _means_something(key)}:
        meta["annotations"] = notes
    job: Json = {"apiVersion": row.api_version, "kind": row.kind, "metadata": meta}
    of_ranks = [pod for pod in pods if not gpus or any(requests(pod).get(gpu) for gpu in GPUS)]
    if of_ranks and len(of_ranks) >= ranks and all(map(_done, pods)):
        job["status"] = {"phase": "Succeeded"}
    return job


def _means_something(note: str) -> bool:
    return note in ASKED or not note.startswith(PREFIX)


def _alike(pods: Sequence[Json], path: str) -> dict[str, str]:
    """What all of them have."""
    found = [table(pod, path) for pod in pods]
    return {k: v for k, v in found[0].items() if all(one.get(k) == v for one in found)} if found else {}


def _done(pod: Json) -> bool:
    """It ended well by itself: one that was told to end has saved, and is made again."""
    return ended_pod(pod) == "succeeded" and read(pod, "metadata.deletionTimestamp") is None
