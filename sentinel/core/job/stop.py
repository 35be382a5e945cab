"""Stopping a job of any kind by the kind's own means: the writes, or why not. Pure.

Each function rests on one reading of the job (`Seen`), and says nothing of what comes of its writes: whether a job is
stopped is known from its pods (`state.living`), read again.
"""

from collections.abc import Collection, Sequence

from sentinel.core.job.kinds import JobKind, Loss, Means
from sentinel.core.job.limits import limits, on_loss
from sentinel.core.job.paths import Json, annotate, copied, label, number, read, text, write
from sentinel.core.job.ranks import ranks
from sentinel.core.job.state import (
    KUEUE,
    SIZE,
    STOPPED,
    Seen,
    Standing,
    groups_of,
    in_line,
    let_run_by,
    living,
    longest_grace_s,
    mark_of,
    names,
    needs_owner,
    standing,
    switched_on,
)
from sentinel.core.job.writes import Plan, Reason, Refusal, Write, check, command, evict, listed, patch, title

ABORT, RESUME = "AbortJob", "ResumeJob"  # Volcano's
# What Sentinel did meanwhile.
STOPS, RECOVERS = "Sentinel was stopping it", "Sentinel's recovery of it waited"
SUSPENDED_AGAIN = (
    "It was started while Sentinel was stopping it, and suspended again since: the stop goes on."
)
# Not now, which is not never.
LATER = frozenset(
    {Reason.NOT_OURS, Reason.STILL_RUNNING, Reason.QUEUE_UNKNOWN, Reason.CHILDREN_UNKNOWN, Reason.NOT_STOPPED}
)


def stop(
    seen: Seen, mark: str, grace_s: int | None = None, only: Collection[str] | None = None
) -> Plan | Refusal:
    """Every rank ends, and the job is not started by anybody until `start`, where its kind can hold that.

    `mark`: the incident, which says that Sentinel stopped it. `grace_s` is heard by kinds that evict, and by no other.
    `only`: the uids of pods to evict, where its operator makes others again meanwhile.
    """
    now = standing(seen)
    if now.over:
        return over(seen, now)
    waits = now.stopped_by == KUEUE  # which would start it when its turn comes
    if now.stopped and not waits and (living(seen.pods) == [] or not evicts(seen.row)):
        return Plan(sentence=f"It is stopped already, by {now.stopped_by or 'somebody'}.")
    if (refusal := _stop_refused(seen, now)) is not None:
        return refusal
    if now.queue:
        return switched(seen, active=False, mark=mark)
    draft = copied(seen.job)
    if not now.stopped and seen.row.holds:
        annotate(draft, STOPPED, mark)
    match seen.row.stop:
        case Means.SUSPEND:
            write(draft, seen.row.suspend, True)
        case Means.SCALE:
            for group in groups_of(seen.row, draft):
                annotate(draft, SIZE, str(group.size))
                write(group.spec, group.where.size, 0)
        case Means.COMMAND:
            return Plan(writes=(*_checked(seen, draft), command(seen.job, ABORT)))
        case Means.EVICT:
            if seen.row.suspend:
                write(draft, seen.row.suspend, True)
            there = [pod for pod in _to_evict(seen) if only is None or text(pod, "metadata.uid") in only]
            evictions = [evict(pod, grace_s) for pod in there]
            return Plan(writes=(*patch(seen.job, draft, seen.row.plural), *evictions))
    return Plan(writes=tuple(patch(seen.job, draft, seen.row.plural)))


def grace_refused(seen: Seen, asked_s: float) -> Refusal | None:
    """Is the graceful stop that a policy asks for longer than the kind's own stop can give?"""
    if evicts(seen.row):
        return None  # an eviction names its own grace
    longest_s = longest_grace_s(seen)
    if longest_s is None or asked_s <= longest_s:
        return None
    return Refusal(
        Reason.GRACE_TOO_SHORT,
        f"{title(seen.job)}: its pods get {longest_s} s to end (terminationGracePeriodSeconds), and the policy's "
        f"gracefulStop is {asked_s:g} s: a stop cannot lengthen it.",
    )


def evicts(row: JobKind) -> bool:
    return row.stop is Means.EVICT


def _stop_refused(seen: Seen, now: Standing) -> Refusal | None:
    row, job = seen.row, seen.job
    for path, wanted in row.stop_needs.items():
        if read(job, path) is not wanted:
            said = str(wanted).lower()
            return Refusal(Reason.FIELD_NEEDED, f"{title(job)}: it can be stopped only with {path}: {said}.")
    if (used := retries_used(seen)) is not None:
        return used
    if (edited := _size_edited(seen)) is not None:
        return edited
    if not evicts(row) or now.queue:
        return None
    if needs_owner(seen):
        return Refusal(Reason.NO_OWNER, no_owner(title(job)))
    fatal = sorted({text(pod, "metadata.name") for pod in _to_evict(seen) if _fails(seen, pod)})
    if fatal:
        return Refusal(
            Reason.EVICTION_FAILS,
            f"{title(job)}: a {row.kind} is stopped by evicting its pods, and with its restart policy the eviction of "
            f"{listed(fatal)} would fail it for good.",
        )
    return None


def no_owner(pod: str) -> str:
    return f"{pod} has no owner: evicted, nobody would make it again."


def _size_edited(seen: Seen) -> Refusal | None:
    if not seen.row.size_edit_blocks:
        return None
    for group in groups_of(seen.row, seen.job):
        made = [
            number(one, "spec.parallelism") or 0
            for one in seen.children
            if _group_of(seen, one) == group.name
        ]
        if made and group.size is not None and sum(made) != group.size:
            return Refusal(
                Reason.SIZE_EDITED,
                f"{title(seen.job)}: {group.where.size} says {group.size} and {sum(made)} run. It was edited, which "
                f"the kind does not apply, and a stop would do nothing: put {sum(made)} back first.",
            )
    return None


def _group_of(seen: Seen, obj: Json) -> str:
    return label(obj, seen.row.role_label)


def spared(seen: Seen) -> set[str]:
    """The uids of pods that run on through a stop, since their end would be the job's."""
    return {one.uid for one in ranks(seen) if one.group.lower() in seen.row.spare}


def _to_evict(seen: Seen) -> list[Json]:
    left = spared(seen)
    return [
        pod
        for pod in living(seen.pods)
        if text(pod, "metadata.uid") not in left and read(pod, "metadata.deletionTimestamp") is None
    ]


def _fails(seen: Seen, pod: Json) -> bool:
    return on_loss(seen, _group_of(seen, pod)) is Loss.FAILS


# ---------------------------------------------------------------- started again by others


def resumed(seen: Seen, *, stopped: bool) -> bool:
    """Has somebody else let it run? It may wait for its turn in its queue. `stopped`: it was stopped, as is known."""
    now = standing(seen)
    return stopped and not now.over and (switched_on(seen) or (seen.row.holds and not now.stopped))


def marked(seen: Seen, mark: str) -> bool:
    """Does its mark tell that it was stopped? A kind obeys a command some time after the mark was written."""
    return mark_of(seen) == mark and seen.row.stop is not Means.COMMAND


def theirs(seen: Seen, meanwhile: str) -> str:
    """Of what somebody else has let run: who, and what becomes of it."""
    told = f"It was started by {let_run_by(seen)}, while {meanwhile}. {in_line(seen) or 'It is left to run.'}"
    ending = [pod for pod in living(seen.pods) if read(pod, "metadata.deletionTimestamp") is not None]
    return f"{told} Pods that still end: {listed(names(ending))}." if ending else told


# ---------------------------------------------------------------- queues and commands


def switched(seen: Seen, *, active: bool, mark: str) -> Plan | Refusal:
    workload = seen.workload
    if workload is None:
        return _no_workload(seen, standing(seen))
    draft = copied(workload)
    write(draft, "spec.active", active)
    annotate(draft, STOPPED, mark)
    return Plan(writes=tuple(patch(workload, draft, "workloads")))


def _no_workload(seen: Seen, now: Standing) -> Refusal:
    return Refusal(
        Reason.QUEUE_UNKNOWN,
        f"{title(seen.job)} belongs to Kueue's queue {now.queue}, and its Workload is not known: only through it may "
        "the job be stopped and started.",
    )


def _checked(seen: Seen, draft: Json) -> Sequence[Write]:
    """A command has no precondition: the write before it, which leaves the mark, checks the job."""
    return patch(seen.job, draft, seen.row.plural) or [check(seen.job, seen.row.plural)]


def retries_used(seen: Seen) -> Refusal | None:
    if not seen.row.start_costs:
        return None
    own = next(iter(limits(seen)), None)
    if own is None or own.left is None or own.left >= seen.row.start_costs:
        return None
    return Refusal(
        Reason.RETRIES_USED,
        f"{title(seen.job)}: {own.used} of its {own.at} ({own.limit}) are used, and a start costs one: it would fail.",
    )


def never_stops(seen: Seen, mark: str) -> Refusal | None:
    """Of one that runs, by its kind's own means."""
    if standing(seen).stopped:
        return None
    refused = stop(seen, mark)
    return None if isinstance(refused, Plan) or refused.reason in {*LATER, Reason.ENDED} else refused


def failed(seen: Seen) -> str:
    """Why no start can be of use any more: its kind has failed it for good."""
    now = standing(seen)
    return f"{over(seen, now).sentence} It cannot be started again." if now.ended == "failed" else ""


def over(seen: Seen, now: Standing) -> Refusal:
    how = now.ended or "about to end"
    left = f" Pods that run on: {listed(now.left_over)}." if now.left_over else ""
    return Refusal(Reason.ENDED, f"{title(seen.job)} has {how} ({now.why_ended}).{left}")
