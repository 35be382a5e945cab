"""Starting a job that was stopped, also with another size, and keeping it off nodes: the writes, or why not. Pure."""

from collections.abc import Mapping, Sequence

from sentinel.core.job.change import avoid_in, changeable, keep_off, set_size, started
from sentinel.core.job.kinds import Finished, KeepOff, Means
from sentinel.core.job.paths import Json, annotate, annotation, controller, copied, read, table, text, write
from sentinel.core.job.ranks import ended_early
from sentinel.core.job.resume import NOTHING, annotate_pods, write_map
from sentinel.core.job.sizes import never_changes
from sentinel.core.job.state import (
    ASKS_FOR_START,
    ENDED_BEFORE,
    KUEUE,
    SENTINEL,
    SIZE,
    STARTED,
    STOPPED,
    Seen,
    Standing,
    chosen_last,
    claimed,
    ended_pod,
    groups_of,
    in_line,
    keeps_off,
    kept_off,
    living,
    marked_in_vain,
    names,
    standing,
    was_size,
)
from sentinel.core.job.stop import RESUME, evicts, over, retries_used, switched
from sentinel.core.job.writes import (
    Plan,
    Reason,
    Refusal,
    Write,
    check,
    clear_start_time,
    command,
    delete,
    listed,
    patch,
    status_patch,
    title,
)


def begin(
    seen: Seen, size: int, hosts: Sequence[str], told: Mapping[str, str], last: Sequence[str]
) -> Plan | Refusal:
    """`start`, or where it was let go already and its queue starts it, what its pods are to be."""
    if in_line(seen):
        return keep_off_nodes(seen, hosts, told=told, last=last)
    return start(seen, size=size, hosts=hosts, last=last, told=told)


def start(
    seen: Seen,
    *,
    size: int | None = None,
    hosts: Sequence[str] = (),
    last: Sequence[str] = (),
    told: Mapping[str, str] = NOTHING,
) -> Plan | Refusal:
    """Start what Sentinel stopped, or what its owner asks Sentinel to start: with `size` pods of ranks, off `hosts`, in
    as few writes as the kind allows. `hosts`, `last`: see change.py; `told`: what its program shall know of
    the restart, see resume.py.
    """
    now = standing(seen)
    if now.over:
        return over(seen, now)
    if not now.stopped:
        return settle(seen)
    if (refused := not_ours(seen)) is not None:
        return refused
    if living(seen.pods) and not evicts(seen.row):
        return Refusal(
            Reason.STILL_RUNNING, f"{title(seen.job)}: pods are left: {listed(names(living(seen.pods)))}."
        )
    if (used := retries_used(seen)) is not None:
        return used
    draft = copied(seen.job)
    above = _prepared(seen, draft, size, hosts, told, last)
    if isinstance(above, Refusal):
        return above
    annotate(draft, ENDED_BEFORE, _ended_before(seen))
    return Plan(writes=(*above, *_let_run(seen, draft, now)), costs=seen.row.start_costs)


def _ended_before(seen: Seen) -> str:
    """For who leads next: which of its pods are none of what is started now."""
    # Those go first; and nothing is written to an owner that is not known.
    if seen.row.finished is Finished.BLOCK or seen.row.fallback:
        return ""
    return max((text(pod, "metadata.creationTimestamp") for pod in seen.pods if ended_pod(pod)), default="")


def not_ours(seen: Seen) -> Refusal | None:
    """To start: it is stopped, and not by Sentinel."""
    now = standing(seen)
    if not now.stopped or now.stopped_by == SENTINEL or claimed(seen, now):
        return None
    return Refusal(
        Reason.NOT_OURS,
        f"{title(seen.job)} waits in Kueue's queue {now.queue}."
        if now.stopped_by == KUEUE
        else f"{title(seen.job)} was stopped by {now.stopped_by or 'somebody'}, who starts it.",
    )


def _prepared(
    seen: Seen,
    draft: Json,
    size: int | None,
    hosts: Sequence[str],
    told: Mapping[str, str],
    last: Sequence[str] = (),
) -> list[Write] | Refusal:
    """Edit the draft; the writes that come before it."""
    row, asked = seen.row, standing(seen).size
    if size is not None and asked is not None and size != asked:  # else its size stands elsewhere, and stays
        refused = never_changes(seen) or set_size(row, draft, size)
        if refused is not None:
            return refused
    above = write_map(seen.job, seen.config_map, told)
    above += [
        delete(pod)
        for pod in ended_early(seen)
        if controller(pod).get("uid") == text(seen.job, "metadata.uid")
    ]
    if row.keep_off is KeepOff.CHILDREN:
        children = _children_changed(seen, hosts, told, last)
        return children if isinstance(children, Refusal) else [*above, *children]
    if (refused := keep_off(row, keeps_off(seen), draft, hosts, last)) is not None:
        return refused
    annotate_pods(changeable(row, draft), told)
    return above


def _let_run(seen: Seen, draft: Json, now: Standing) -> list[Write]:
    row, job = seen.row, seen.job
    if now.queue:
        above = _patched(seen, draft)
        switch = switched(seen, active=True, mark="")
        return [*above, *(switch.writes if isinstance(switch, Plan) else ())]
    if row.stop is Means.COMMAND:
        # The mark stays until `settle`: after a crash in between it is still known who stopped it.
        return [*(_patched(seen, draft) or [check(job, row.plural)]), command(job, RESUME)]
    changed = copied(draft)
    annotate(draft, STOPPED, "")
    if claimed(seen, now):  # once: who stops it after this start is not asking for another one
        annotate(draft, ASKS_FOR_START, STARTED)
    if row.suspend:
        write(draft, row.suspend, False)
    if row.starts_apart and (first := patch(job, changed, row.plural)):
        return [*first, *patch(changed, draft, row.plural, follows=True)]
    if row.stop is Means.SCALE:
        for group in groups_of(row, draft):
            write(group.spec, group.where.size, was_size(draft, group) or group.where.default)
        annotate(draft, SIZE, "")
    return _patched(seen, draft)


def _patched(seen: Seen, draft: Json) -> list[Write]:
    """What in the status stands against the change goes before it."""
    row, job = seen.row, seen.job
    template_changes = any(
        read(job, f"{group.at}.{path}") != read(draft, f"{group.at}.{path}")
        for group in row.groups
        for path in group.templates
    )
    if row.keep_off is KeepOff.UNSTARTED and template_changes and started(job):
        return [clear_start_time(job), *patch(job, draft, row.plural, follows=True)]
    behind: Json = {}
    for path, source in row.status_follows.items():
        if standing(seen).stopped and read(job, path) not in (None, read(draft, source)):
            write(behind, path, read(draft, source))
    if behind:
        return [status_patch(job, row.plural, behind), *patch(job, draft, row.plural, follows=True)]
    return patch(job, draft, row.plural)


def _children_changed(
    seen: Seen, hosts: Sequence[str], told: Mapping[str, str], last: Sequence[str]
) -> list[Write] | Refusal:
    if not seen.children:
        if not hosts:
            return []
        return Refusal(
            Reason.CHILDREN_UNKNOWN,
            f"{title(seen.job)}: the Jobs that it owns are not known yet, and only in them it can be kept off nodes.",
        )
    writes: list[Write] = []
    for child in seen.children:
        draft = copied(child)
        if (tuple(sorted(set(hosts))), tuple(sorted(set(last)))) != (kept_off(child), chosen_last(child)):
            avoid_in(draft, [table(draft, "spec.template")], hosts, last)
        annotate_pods([table(draft, "spec.template")], told)
        if changed := patch(child, draft, "jobs", follows=started(child)):
            writes += [*([clear_start_time(child)] if started(child) else []), *changed]
    return writes


def settle(seen: Seen) -> Plan:
    """Once it runs: a mark that is left over would make a later stop of somebody else look like Sentinel's, and what
    its owner asked of Sentinel before its start would be taken for asked again."""
    draft, above = copied(seen.job), list[Write]()
    if seen.workload is not None and marked_in_vain(seen):
        unmarked = copied(seen.workload)
        annotate(unmarked, STOPPED, "")
        above = patch(seen.workload, unmarked, "workloads")
    if not standing(seen).stopped:
        annotate(draft, STOPPED, "")
        if annotation(seen.job, ASKS_FOR_START) == "true":
            annotate(draft, ASKS_FOR_START, STARTED)
    return Plan(writes=(*above, *patch(seen.job, draft, seen.row.plural)), sentence="It runs already.")


# ---------------------------------------------------------------- nodes


def keep_off_nodes(
    seen: Seen,
    hosts: Sequence[str],
    told: Mapping[str, str] = NOTHING,
    last: Sequence[str] = (),
) -> Plan | Refusal:
    """Its new pods are kept off `hosts`, and off no others any more, and are told what `told` says: for kinds that are
    not held stopped."""
    row, now = seen.row, standing(seen)
    if now.over:
        return over(seen, now)
    waits = row.keep_off not in (KeepOff.TEMPLATE, KeepOff.NONE)
    if waits and (not now.stopped or living(seen.pods)):
        return Refusal(
            Reason.NOT_STOPPED,
            f"{title(seen.job)}: its pods can be kept off nodes only while it is stopped and no pod is left.",
        )
    draft = copied(seen.job)
    above = _prepared(seen, draft, None, hosts, told, last)
    return above if isinstance(above, Refusal) else Plan(writes=(*above, *_patched(seen, draft)))
