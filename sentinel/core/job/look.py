"""One look at a job of a cluster: what of it runs, what has ended, and who says so. Pure."""

from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from sentinel.core.job.paths import Json, read, rows, table, text
from sentinel.core.job.pin import pinned
from sentinel.core.job.pod_end import PodEnd, end, restarted
from sentinel.core.job.pod_told import preemptor, taken_back
from sentinel.core.job.ranks import done_for_good, ranks
from sentinel.core.job.remarks import remarks
from sentinel.core.job.room import GPUS, requests
from sentinel.core.job.state import (
    ENDED_PHASES,
    KUEUE,
    SENTINEL,
    STARTED_PHASES,
    Seen,
    Standing,
    claimed,
    living,
    main_container,
    standing,
    took_back,
)
from sentinel.core.policy_model import Policy


class Place(Struct, frozen=True):
    """Where a rank of an incarnation runs: its pod, and how often the kubelet had started its container by then."""

    uid: str
    node: str
    restarts: int = 0


class Look(Struct, frozen=True, kw_only=True):
    standing: Standing
    up: bool  # every rank runs, but those that have ended well for good
    begun: bool  # some rank of it has run
    withdrawn: str  # why it is stopped, where somebody else than Sentinel stopped it
    asks_for_start: bool  # it was created suspended, for Sentinel to check and start
    ended: tuple[tuple[int, PodEnd], ...]  # by rank: since the incarnation began
    done: tuple[int, ...]  # ranks that had ended well before it began, for good
    replaced: bool  # every rank runs, some of them not in the pods that are known
    renewed: bool  # none of them in a pod that is known: its operator has started all of them again
    pods: int  # of ranks that there are
    vanishes: bool  # its owner is not known, and none of its pods stays: they end together, or are gone
    gpus: int  # that its pods ask for; one that failed and was replaced counts no more
    pinned: str  # the one node on which it can run
    labels: Mapping[str, str]
    notes: Mapping[str, str]  # annotations
    remarks: Mapping[str, str]  # reason -> what of its policy does not hold for it
    grows: bool = False  # pods of it came just now, of an owner that does not say how many it makes


def look(
    seen: Seen,
    places: Mapping[int, Place],
    size: int,
    before: Mapping[str, Json],
    asked: Policy,
    events: Mapping[str, Sequence[Json]],
) -> Look:
    """`places`: of the ranks of the incarnation that is known; empty where none is. `before`: by uid, pods as they were
    when they were seen last. `events`: by uid, of pods whose end only these explain."""
    now = standing(seen)
    by_uid = {text(pod, "metadata.uid"): pod for pod in seen.pods}
    known = ranks(seen)
    found = {one.rank: one for one in known if one.rank is not None}
    if seen.row.fallback and len(found) > size:
        now = structs.replace(now, size=len(found))
    up = all_up(seen, now.size or size)
    done = done_for_good(seen, list(found.values()))
    ended = []
    for rank, place in sorted(places.items()):
        pod = by_uid.get(place.uid)
        said = events.get(place.uid, ())
        gone = (
            _gone(place, before.get(place.uid), said)
            if pod is None
            else end(pod, events=said) or restarted(pod, place.restarts)
        )
        if gone is not None:
            ended.append((rank, gone))
    other = any(found[rank].uid != places[rank].uid for rank in found.keys() & places.keys())
    stays = {one.uid for one in found.values() if not one.ended} & {place.uid for place in places.values()}
    return Look(
        standing=now,
        up=up,
        begun=any(text(by_uid[one.uid], "status.phase") in STARTED_PHASES for one in found.values()),
        withdrawn=_withdrawn(seen, now),
        asks_for_start=claimed(seen, now),
        ended=tuple(ended),
        done=_done_before(done, places, size, {rank: by_uid[one.uid] for rank, one in found.items()}),
        replaced=up and bool(places) and other,
        renewed=up and bool(places) and other and not stays,
        pods=len(found),
        vanishes=seen.row.fallback and not any(map(_stays, living(seen.pods))),
        gpus=round(sum(requests(by_uid[one.uid]).get(gpu, 0.0) for one in known for gpu in GPUS)),
        pinned=pinned(seen),
        labels=table(seen.job, "metadata.labels"),
        notes=table(seen.job, "metadata.annotations"),
        remarks=remarks(seen, asked),
    )


def _done_before(
    done: set[int], places: Mapping[int, Place], size: int, pods: Mapping[int, Json]
) -> tuple[int, ...]:
    """Those of `done` that are of the incarnation of `size` ranks and ended well before it began. Where they would be
    too many, their numbers are others' (of a Job with more completions than pods at a time)."""
    ours = {place.uid for place in places.values()}
    before = {
        rank
        for rank in done - places.keys()
        if rank < size
        and (rank not in pods or (_stays(pods[rank]) and text(pods[rank], "metadata.uid") not in ours))
    }
    return tuple(sorted(before)) if len(before | places.keys()) <= size else ()


def _stays(pod: Json) -> bool:
    return read(pod, "metadata.deletionTimestamp") is None


def _gone(place: Place, pod: Json | None, events: Sequence[Json]) -> PodEnd | None:
    if pod is not None:
        return end(pod, gone=True, events=events)
    failure, text_ = "pod-deleted", "Its pod was deleted while it ran."
    if by := preemptor(events):
        failure, text_ = "pod-preempted", f"Its pod was preempted by pod {by}."
    elif how := taken_back(events):
        failure, text_ = "pod-preempted", f"Its pod was {how}."
    return PodEnd(
        pod="", node=place.node, container="", start=place.restarts, failure=failure, sentence=text_
    )


def _withdrawn(seen: Seen, now: Standing) -> str:
    if not now.stopped or now.stopped_by == SENTINEL or now.over:
        return ""
    if now.stopped_by == KUEUE and (why := took_back(seen)):
        return f"Kueue's queue {now.queue} took its place back: {why}. It runs on when its turn comes again."
    by = f"by {now.stopped_by}" if now.stopped_by else "by somebody"
    return f"It was stopped {by}, not by Sentinel, and waits to be started again."


def main_status(pod: Json) -> Json:
    """The status of the container that trains; {} where the kubelet has not told one."""
    name = text(main_container(pod), "name")
    return next((s for s in rows(pod, "status.containerStatuses") if s.get("name") == name), {})


def all_up(seen: Seen, size: int) -> bool:
    return not missing(seen, size)


def missing(seen: Seen, size: int) -> int:
    """How many ranks that a start brings up do not run yet. Those that ended well stay so, where the kind has it so."""
    found = [one for one in ranks(seen) if one.rank is not None]
    done = done_for_good(seen, found)
    by_uid = {text(pod, "metadata.uid"): pod for pod in seen.pods}
    up = {one.rank for one in found if one.rank is not None and has_run(by_uid[one.uid])}
    # Its size may stand elsewhere: then those that there are.
    wanted = standing(seen).size or max(size, len(found))
    return max(0, wanted - len(done) - len(up - done))


def failed_ranks(seen: Seen) -> list[int]:
    """Those whose pods have failed on a node. A launcher is none."""
    return [one.rank for one in ranks(seen) if one.rank is not None and one.node and one.ended == "failed"]


def has_run(pod: Json) -> bool:
    """Its training container runs, or did: what ended so soon is judged by its end, not waited for. What is being
    deleted is in the way of the pod that is to come."""
    if read(pod, "metadata.deletionTimestamp") is not None:
        return False
    phase = text(pod, "status.phase")
    if phase in ENDED_PHASES:
        return True
    if phase != "Running":
        return False
    status = main_status(pod)
    return not status or bool(
        {"running", "terminated"} & {*table(status, "state"), *table(status, "lastState")}
    )
