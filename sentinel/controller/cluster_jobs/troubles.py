"""What the leader of the jobs cannot do, in sentences."""

from collections.abc import Mapping

from sentinel.controller.cluster_jobs.looks import Tracked
from sentinel.controller.troubles import TRIES, Trouble, several

NOT_READY = ("jobs",)  # without these it does not do its work


def of_jobs(unread: str, tracked: Mapping[str, Tracked], unwritten: Mapping[str, str]) -> dict[str, Trouble]:
    """By a name that stays the same. `unread`: why no record can be read; `unwritten`: job -> why its own is not
    written."""
    if unread:
        return {"jobs": Trouble(f"no job is looked after, for their records cannot be read: {unread}")}
    found = {}
    if failing := {name: one.problem for name, one in tracked.items() if one.failures >= TRIES}:
        found["job looks"] = _trouble("nothing is decided about {jobs}", failing)
    if unwritten:
        text = "what was decided about {jobs} cannot be written, and waits"
        found["job records"] = _trouble(text, unwritten)
    return found


def _trouble(text: str, problems: Mapping[str, str]) -> Trouble:
    jobs = tuple(sorted(problems))
    return Trouble(f"{text.format(jobs=several(jobs, 'job'))}: {problems[jobs[0]]}", jobs)
