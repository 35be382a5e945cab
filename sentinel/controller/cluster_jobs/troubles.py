"""What the leader of the jobs cannot do, in sentences."""

from collections.abc import Mapping
from typing import Protocol

from sentinel.controller.cluster_jobs.looks import Tracked
from sentinel.controller.troubles import TRIES, UNTOLD_S, Trouble, shared, untold
from sentinel.core.model import Incident, ProtectedJob
from sentinel.core.now import Now

NOT_READY = ("jobs",)  # without these it does not do its work


class Records(Protocol):
    @property
    def unwritten(self) -> Mapping[str, str]:
        """Job -> why its own is not written."""

    def newest(self) -> list[tuple[ProtectedJob, Incident | None]]:
        """Each job with its newest incident."""


def of_jobs(
    unread: str, tracked: Mapping[str, Tracked], records: Records | None, now: Now
) -> dict[str, Trouble]:
    """By a name that stays the same. `unread`: why no record can be read. `records`: None where nobody leads them."""
    if unread:
        return {"jobs": Trouble(f"no job is looked after, for their records cannot be read: {unread}")}
    found = {}
    if failing := {name: one.problem for name, one in tracked.items() if one.failures >= TRIES}:
        found["job looks"] = shared("nothing is decided about {names}", failing, "job")
    if records is not None and (unwritten := records.unwritten):
        text = "what was decided about {names} cannot be written, and waits"
        found["job records"] = shared(text, unwritten, "job")
    return found | untold({} if records is None else _unsent(records, now), "job")


def _unsent(records: Records, now: Now) -> dict[str, str]:
    """Job -> why nobody got a mail about its newest incident."""
    return {
        job.name: mail.error
        for job, incident in records.newest()
        if incident is not None and now.wall_s - incident.opened_wall_s < UNTOLD_S
        for mail in incident.mails
        if mail.state == "failed"
    }
