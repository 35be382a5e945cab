"""With how many pods of ranks a job can be started: the sizes that its kind, its bounds and its state allow. Pure."""

from collections.abc import Sequence

from msgspec import structs

from sentinel.core.job.change import set_size, sizes
from sentinel.core.job.kinds import Resize
from sentinel.core.job.paths import copied
from sentinel.core.job.ranks import done_for_good, ranks
from sentinel.core.job.state import Seen, gating_queue, queue_of, size_of
from sentinel.core.job.writes import Reason, Refusal, title


def never_changes(seen: Seen) -> Refusal | None:
    """Why a job of its kind keeps the size that it has."""
    row = seen.row
    if row.resize is Resize.FIXED:
        return Refusal(Reason.SIZE_FIXED, f"{title(seen.job)}: the size of a {row.kind} cannot be changed.")
    if row.resize is Resize.RECREATE:
        return Refusal(
            Reason.SIZE_BY_RECREATING,
            f"{title(seen.job)}: a {row.kind} takes another size only when it is deleted and created anew.",
        )
    return None


def not_elastic(seen: Seen) -> Refusal | None:
    """Why Sentinel starts it with no other size than that which it asks for."""
    if (refused := never_changes(seen)) is not None:
        return refused
    if queue_of(seen) or gating_queue(seen):
        return Refusal(
            Reason.SIZE_FIXED, f"{title(seen.job)}: Kueue has admitted one size, which stays as it is."
        )
    if not seen.row.holds:
        return Refusal(
            Reason.SIZE_FIXED,
            f"{title(seen.job)}: nothing holds a {seen.row.kind} stopped, and Sentinel changes the size of a stopped "
            "job only.",
        )
    size = size_of(seen)
    if size is None:
        return Refusal(Reason.SIZE_FIXED, f"{title(seen.job)}: how many pods it asks for stands elsewhere.")
    found = sizes(seen.row, seen.job, size, size)
    return found if isinstance(found, Refusal) else None


def resizable(seen: Seen, least: int, most: int) -> Sequence[int] | Refusal:
    """The numbers of pods of ranks with which Sentinel can start it, the smallest first; none: not within these."""
    if (refused := not_elastic(seen)) is not None:
        return refused
    if done_for_good(seen, [one for one in ranks(seen) if one.rank is not None]):
        return Refusal(Reason.SIZE_FIXED, f"{title(seen.job)}: some of its ranks have ended well already.")
    return sizes(seen.row, seen.job, least, most)


def resized(seen: Seen, size: int) -> Seen:
    """As if it asked for so many pods of ranks, of which `resizable` named the number."""
    draft = copied(seen.job)
    set_size(seen.row, draft, size)
    return structs.replace(seen, job=draft)
