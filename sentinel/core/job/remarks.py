"""What of its policy a job cannot have: said in the policy's status, before it is needed. Pure."""

from sentinel.core.job import hold
from sentinel.core.job.kinds import Role
from sentinel.core.job.paths import Json, annotation
from sentinel.core.job.pin import pinned
from sentinel.core.job.sizes import not_elastic
from sentinel.core.job.state import (
    ASKS_FOR_START,
    STARTED,
    Seen,
    claimed,
    groups_of,
    main_container,
    standing,
)
from sentinel.core.job.stop import grace_refused
from sentinel.core.job.writes import title
from sentinel.core.policy_model import Policy, Precheck


def remarks(seen: Seen, asked: Policy) -> dict[str, str]:
    """What of a policy a job of this kind, or as it is written, cannot have: said before it is needed."""
    found: dict[str, str] = {}
    if asked.debug_hold_s is not None and not hold.available(_trains(seen)):
        found["HoldUnavailable"] = (
            f"{title(seen.job)}: nothing keeps its containers after they have failed, since they do not run the hold "
            f"wrapper; {_instead(seen)}"
        )
    if asked.resume is not None and (refused := grace_refused(seen, asked.graceful_stop_s)) is not None:
        found["GraceTooShort"] = refused.sentence
    if asked.resume is not None and (node := pinned(seen)):
        found["PinnedToNode"] = (
            f"{title(seen.job)}: its pods can run on {node} only: it is not moved when that goes bad, and after a "
            "fault it waits for that node."
        )
    if asked.elastic is not None:
        found |= _of_elastic(seen, asked)
    if (asked.precheck != Precheck() or asked.elastic is not None) and not _waits_for_check(seen):
        found["PrecheckOnlyTells"] = (
            f"{title(seen.job)}: the pre-check before its first start is told as an event, and holds nothing back: the "
            f'job was not created suspended with the annotation {ASKS_FOR_START}: "true"'
            + (", or it is for its queue to start." if standing(seen).queue else ".")
        )
    return found


def _instead(seen: Seen) -> str:
    """What is kept of a job that is given up, where no container can be."""
    if hold.keeps(seen):
        return "its pods and their logs are kept as long."
    return (
        "its kind makes pods that have failed anew, so a job that is given up is stopped at once, and of its pods and "
        f"their logs stays what a stopped {seen.row.kind} keeps."
    )


def _waits_for_check(seen: Seen) -> bool:
    """Does it, or did it, leave its first start to Sentinel?"""
    return claimed(seen, standing(seen)) or annotation(seen.job, ASKS_FOR_START) == STARTED


def _trains(seen: Seen) -> list[Json]:
    """The containers that train, of its templates of ranks; where those stand elsewhere, of its pods."""
    groups = [group for group in groups_of(seen.row, seen.job) if group.role is Role.RANK]
    templates = [template for group in groups for template in group.templates]
    return [main_container(one) for one in templates or seen.pods]


def _of_elastic(seen: Seen, asked: Policy) -> dict[str, str]:
    if (refused := not_elastic(seen)) is not None:
        return {"SizeFixed": f"{refused.sentence} `elastic` does nothing for it."}
    checkpoint = asked.resume.checkpoint if asked.resume else None
    grows = asked.elastic is not None and asked.elastic.allow_grow
    if grows and (checkpoint is None or checkpoint.proof is None):
        return {
            "GrowNeedsProof": f"{title(seen.job)}: it may become smaller and does not grow again while it runs, since "
            "nothing proves a save (resume.checkpoint.proof)."
        }
    return {}
