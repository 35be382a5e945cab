"""A kind's own restarts: how many it has left, and what it does by itself when a pod is lost. Pure."""

from msgspec import Struct

from sentinel.core.job.kinds import ANY, Limit, Loss
from sentinel.core.job.paths import Json, annotation, number, numbers, read, rows, text
from sentinel.core.job.state import Seen, groups_of, standing


class OwnLimit(Struct, frozen=True, kw_only=True):
    """A limit of the kind's own on restarts. `used` None: nothing says it."""

    at: str
    limit: int | None
    used: int | None
    left: int | None


def limits(seen: Seen) -> tuple[OwnLimit, ...]:
    """Those that hold for this object, in the order of its row."""
    hold = (one for one in seen.row.limits if not one.unless or read(seen.job, one.unless) is None)
    return tuple(found for one in hold if (found := _limit(seen, one)).limit is not None)


def _limit(seen: Seen, row: Limit) -> OwnLimit:
    limit, used = number(seen.job, row.at), _used(seen, row.used)
    if limit is None:
        limit = row.default
    left = None if limit is None or used is None else max(0, limit - row.short - used)
    return OwnLimit(at=row.at, limit=limit, used=used, left=left)


def _used(seen: Seen, how: str) -> int | None:
    kind, _, rest = how.partition(":")
    if kind == "restarts":
        return sum(
            number(container, "restartCount") or 0
            for pod in seen.pods
            for container in rows(pod, "status.containerStatuses")
        )
    if kind == "indexes":
        return len(numbers(text(seen.job, rest)))
    if kind == "annotation":
        counts = [annotation(pod, rest) for pod in seen.pods]
        return max((int(count) for count in counts if count.isascii() and count.isdecimal()), default=0)
    return (number(seen.job, how) or 0) if how else None


def on_loss(seen: Seen, group: str) -> Loss:
    """What the kind does by itself when a pod of this group is lost or evicted."""
    row = seen.row
    for path in row.events:
        for one in _listed(seen.job, path):
            several = one.get("events")
            events = [one.get("event"), *(several if isinstance(several, list) else [])]
            if any(event in ("PodEvicted", "PodFailed", ANY) for event in events):
                action = text(one, "action")
                if action in ("RestartJob", "RestartTask"):
                    return Loss.JOB if action == "RestartJob" else Loss.GROUP
                if action in ("AbortJob", "TerminateJob", "CompleteJob"):
                    return Loss.FAILS
    if not row.on_loss:
        return Loss.REPLACED
    found = next((one for one in groups_of(row, seen.job) if one.name.lower() == group.lower()), None)
    key = group.lower()
    if found is not None and found.where.policy:
        defaults = row.policy_default
        key = text(found.spec, found.where.policy) or defaults.get(key, defaults.get(ANY, ANY))
    return row.on_loss.get(key, row.on_loss.get(ANY, Loss.FAILS))


def made_anew(seen: Seen, group: str, failed: int) -> bool:
    """Does the kind by itself run a pod of this group again once `failed` pods have failed? Else their end is that of
    the job, and they stay as they are."""
    if standing(seen).over or on_loss(seen, group) is Loss.FAILS:
        return False
    counted = (one for one in seen.row.limits if one.counts_pods)
    hold = [one for one in counted if not one.unless or read(seen.job, one.unless) is None]
    return not any(
        limit.limit is not None and max(failed, limit.used or 0) > limit.limit
        for limit in (_limit(seen, one) for one in hold)
    )


def _listed(job: Json, path: str) -> list[Json]:
    """The objects of a list, or of a list in each object of a list."""
    above, _, below = path.partition("[].")
    return (
        rows(job, above) if not below else [one for outer in rows(job, above) for one in rows(outer, below)]
    )
