"""Changes to a draft of a job: its size, and what keeps its pods off nodes. Pure.

A draft is a copy that is edited in place; the patch is what then differs from the object that was read.
"""

from collections.abc import Sequence

from sentinel.core.job.kinds import JobKind, KeepOff, Role
from sentinel.core.job.paths import Json, annotate, number, read, rows, text, write
from sentinel.core.job.state import (
    CHOSEN_LAST,
    KEPT_OFF,
    SIZE,
    PodGroup,
    chosen_last,
    groups_of,
    kept_off,
    was_size,
)
from sentinel.core.job.writes import Reason, Refusal, listed, title

HOSTNAME = "kubernetes.io/hostname"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
MOST_WEIGHT = 100  # of a preference


# ---------------------------------------------------------------- size


def set_size(row: JobKind, draft: Json, total: int) -> Refusal | None:
    """Change the one elastic group so that there are `total` pods of ranks, in all its fields at once."""
    found = _elastic(row, draft)
    if isinstance(found, Refusal):
        return found
    group, others = found
    new = _split(draft, group, total - others)
    if isinstance(new, Refusal):
        return new
    size, each = new
    before = was_size(draft, group) or group.size
    if (misfit := _misfit(draft, group, before, size)) is not None:
        return misfit
    if each != group.each:
        write(group.spec, group.where.each, each)
    if was_size(draft, group):
        annotate(draft, SIZE, str(size))
    else:
        for path in (group.where.size, *group.where.together):
            write(group.spec, path, size)
    _set_gang(row, draft, group, before, size)
    return None


def sizes(row: JobKind, job: Json, least: int, most: int) -> Sequence[int] | Refusal:
    """The numbers of pods of ranks from `least` to `most` that `set_size` takes, the smallest first."""
    found = _elastic(row, job)
    if isinstance(found, Refusal):
        return found
    group, others = found
    size = was_size(job, group) or group.size
    if size is None:
        return Refusal(Reason.SIZE_FIXED, f"{title(job)}: how many pods it asks for stands elsewhere.")
    if group.where.each_grows and size == 1:
        return range(max(least, others + 1), most + 1)
    if (misfit := _misfit(job, group, size, size)) is not None:
        return misfit
    lowest, highest = (_bound(job, group, path) for path in (group.where.least, group.where.most))
    each = max(1, group.each)
    first = max(lowest or 1, 1, -(-(least - others) // each))
    last = (most - others) // each
    last = last if highest is None else min(last, highest)
    return range(others + first * each, others + last * each + 1, each)


def _elastic(row: JobKind, draft: Json) -> tuple[PodGroup, int] | Refusal:
    """The group whose size changes, and how many pods of ranks the others have."""
    groups = [group for group in groups_of(row, draft) if group.role is Role.RANK]
    elastic = groups if len(groups) == 1 else [g for g in groups if g.name.lower() == row.elastic]
    if len(elastic) != 1:
        named = listed([group.name for group in groups]) or "none"
        return Refusal(
            Reason.WHICH_GROUP, f"{title(draft)}: which group of ranks is to change is not said: {named}."
        )
    group = elastic[0]
    return group, sum(other.pods or 0 for other in groups if other is not group)


def _split(draft: Json, group: PodGroup, pods: int) -> tuple[int, int] | Refusal:
    """`size` and `each` of so many pods."""
    size = was_size(draft, group) or group.size
    if pods < 1:
        return Refusal(
            Reason.OUT_OF_BOUNDS,
            f"{title(draft)}: {_called(group)} would have {pods} pods: it needs one at least.",
        )
    if group.where.each_grows and size == 1:
        return 1, pods
    if pods % max(1, group.each):
        return Refusal(
            Reason.SIZE_DOES_NOT_FIT,
            f"{title(draft)}: {pods} pods are no multiple of the {group.each} that go together.",
        )
    return pods // max(1, group.each), group.each


def _misfit(draft: Json, group: PodGroup, before: int | None, size: int) -> Refusal | None:
    for path in group.where.together:
        if (there := number(group.spec, path)) != before:
            return Refusal(
                Reason.SIZE_FIXED,
                f"{title(draft)}: {group.where.size} is {before} and {path} is {there}: only where both are one "
                "number can it change.",
            )
    least, most = (_bound(draft, group, path) for path in (group.where.least, group.where.most))
    if (least is not None and size < least) or (most is not None and size > most):
        return Refusal(
            Reason.OUT_OF_BOUNDS,
            f"{title(draft)}: {size} is out of the bounds {least} to {most} of {_called(group)}.",
        )
    return None


def _bound(draft: Json, group: PodGroup, path: str) -> int | None:
    return number(draft if path.startswith("spec.") else group.spec, path) if path else None


def _set_gang(row: JobKind, draft: Json, group: PodGroup, before: int | None, size: int) -> None:
    """How many must run at once: all of them again where it was all, else never more than there are."""
    after = groups_of(row, draft)
    now = sum(one.pods or 0 for one in after)
    was = now - (size - (before or 0)) * group.each
    for path in group.where.gang:
        of, all_before, all_now = (
            (draft, was, now) if path.startswith("spec.") else (group.spec, before or 0, size)
        )
        least = number(of, path)
        if least is not None:
            write(of, path, all_now if least >= all_before else min(least, all_now))


def _called(group: PodGroup) -> str:
    return group.name or "the job"


# ---------------------------------------------------------------- off nodes


def keep_off(
    row: JobKind,
    how: KeepOff,
    draft: Json,
    hosts: Sequence[str],
    last: Sequence[str] = (),
) -> Refusal | None:
    """Its new pods are kept off `hosts` (values of the label kubernetes.io/hostname), and off no others any more.

    `last`: hosts that its pods get only where there is no other room; of a kind that cannot say so it means nothing.
    """
    prefers = how not in (KeepOff.NONE, KeepOff.SELECTOR) and (last or chosen_last(draft))
    if not hosts and not kept_off(draft) and not prefers:
        return None
    if how is KeepOff.NONE:
        return Refusal(
            Reason.CANNOT_KEEP_OFF,
            f"{title(draft)}: nothing in a {row.kind} can keep its pods off {listed(sorted(hosts))}.",
        )
    if how is KeepOff.SELECTOR:
        return _no_label(row, draft, hosts) if hosts else None
    avoid_in(draft, changeable(row, draft), hosts, last)
    return None


def changeable(row: JobKind, draft: Json) -> list[Json]:
    """The pod templates of a draft that may be changed when it is started. Of other kinds none may be, or those are
    other objects'."""
    if row.keep_off not in (KeepOff.TEMPLATE, KeepOff.STOPPED, KeepOff.UNSTARTED):
        return []
    groups = [group for group in groups_of(row, draft) if group.name.lower() not in row.untouched]
    return [template for group in groups for template in group.templates]


def avoid_in(draft: Json, templates: Sequence[Json], hosts: Sequence[str], last: Sequence[str] = ()) -> None:
    """In place of what an earlier start wrote. See keep_off."""
    before, after = _expression(kept_off(draft)), _expression(hosts)
    liked, likes = _preference(chosen_last(draft)), _preference(last)
    for template in templates:
        _forget(template, before)
        _forget_preference(template, liked)
        if hosts:
            _avoid(template, after)
        if last:
            path = f"spec.affinity.nodeAffinity.{PREFERRED}"
            write(template, path, [*rows(template, path), likes])
    annotate(draft, KEPT_OFF, ",".join(sorted(set(hosts))))
    annotate(draft, CHOSEN_LAST, ",".join(sorted(set(last))))


def _expression(hosts: Sequence[str]) -> Json:
    return {"key": HOSTNAME, "operator": "NotIn", "values": sorted(set(hosts))}


def _preference(hosts: Sequence[str]) -> Json:
    return {"weight": MOST_WEIGHT, "preference": {"matchExpressions": [_expression(hosts)]}}


def _avoid(template: Json, ours: Json) -> None:
    """Terms are alternatives, so it goes into each of them. An empty one fits no node, and stays so."""
    path = f"spec.affinity.nodeAffinity.{REQUIRED}"
    terms = read(template, f"{path}.nodeSelectorTerms")
    if not isinstance(terms, list) or not terms:
        write(template, f"{path}.nodeSelectorTerms", [{"matchExpressions": [ours]}])
        return
    for term in terms:
        if isinstance(term, dict) and any(term.values()):
            term["matchExpressions"] = [*rows(term, "matchExpressions"), ours]


def _forget(template: Json, ours: Json) -> None:
    """Take away what an earlier recovery wrote."""
    path = f"spec.affinity.nodeAffinity.{REQUIRED}"
    terms = rows(template, f"{path}.nodeSelectorTerms")
    if not any(ours in rows(term, "matchExpressions") for term in terms):
        return
    left = [found for term in terms if (found := _without(term, ours)) or not term]
    write(template, f"{path}.nodeSelectorTerms", left or None)
    _tidy(template, path)


def _forget_preference(template: Json, ours: Json) -> None:
    path = f"spec.affinity.nodeAffinity.{PREFERRED}"
    if ours in (there := rows(template, path)):
        write(template, path, _but_last(there, ours) or None)
        _tidy(template)


def _tidy(template: Json, *paths: str) -> None:
    """Take away what was left empty."""
    for path in (*paths, "spec.affinity.nodeAffinity", "spec.affinity"):
        if read(template, path) == {}:
            write(template, path, None)


def _but_last(there: list[Json], ours: Json) -> list[Json]:
    """Without the last one that is equal: an owner may have written the same before."""
    last = len(there) - 1 - there[::-1].index(ours)
    return there[:last] + there[last + 1 :]


def _without(term: Json, ours: Json) -> Json:
    expressions = rows(term, "matchExpressions")
    if ours not in expressions:
        return term
    kept = {**term, "matchExpressions": _but_last(expressions, ours)}
    return {name: value for name, value in kept.items() if value}


def _no_label(row: JobKind, draft: Json, hosts: Sequence[str]) -> Refusal:
    return Refusal(
        Reason.LABEL_NEEDED,
        f"{title(draft)}: a {row.kind} knows node selectors only: without a label that other nodes have and "
        f"{listed(sorted(hosts))} not, nothing keeps it off.",
    )


def started(job: Json) -> bool:
    """Is a batch Job's start time set, which fixes its template?"""
    return bool(text(job, "status.startTime"))
