"""What the watches tell of a job, counted: it says when a job that stops or starts is worth reading again.

Nothing is decided by it: what a job is now is read. Of a job of hundreds of pods each reading lists all of them.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct, structs

from sentinel.cluster.kubernetes.objects import Pod
from sentinel.cluster.kubernetes.reflector import Change
from sentinel.core.job.paths import Json, read
from sentinel.core.job.state import ENDED_PHASES, STARTED_PHASES


class Changes(Struct, frozen=True):
    """How many the watch has told of a job: of itself, and of its pods."""

    edits: int = 0
    of_pods: int = 0
    started: int = 0  # containers of pods, at least one change for each pod that began to run
    leaving: int = 0  # pods that were told to end, or have ended
    ended: int = 0  # pods that have ended, or are gone

    def edit(self) -> "Changes":
        return structs.replace(self, edits=self.edits + 1)

    def of_pod(self, change: Change[Pod]) -> "Changes":
        before, after = change.before, change.after
        return Changes(
            edits=self.edits,
            of_pods=self.of_pods + 1,
            started=self.started + bool(_begun(after) - _begun(before)),
            leaving=self.leaving + (_leaves(after) and not _leaves(before)),
            ended=self.ended + (_ended(after) and not _ended(before)),
        )

    def since(self, was: "Changes") -> "Changes":
        return Changes(
            *(now - then for now, then in zip(structs.astuple(self), structs.astuple(was), strict=True))
        )

    def something(self) -> bool:
        return bool(self.edits or self.of_pods)


def _begun(pod: Pod | None) -> set[str]:
    """Names of its containers; "": it as a whole."""
    if pod is None:
        return set()
    status = pod.status
    found = {
        one.name for one in status.container_statuses if "running" in one.state or "terminated" in one.state
    }
    return found | {""} if status.phase in STARTED_PHASES else found


def _leaves(pod: Pod | None) -> bool:
    return _ended(pod) or (pod is not None and pod.metadata.deletion_timestamp is not None)


def _ended(pod: Pod | None) -> bool:
    return pod is None or pod.status.phase in ENDED_PHASES


def all_may_run(missing: int) -> Callable[[Changes], bool]:
    """So many ranks did not run: is it worth while to read the job again?"""
    return lambda since: since.edits > 0 or since.started >= missing


def all_may_end(alive: Sequence[Json]) -> Callable[[Changes], bool]:
    """These pods lived: is it worth while to read the job again? Also when all of them are told to end, since from then
    on their time runs."""
    untold = sum(read(pod, "metadata.deletionTimestamp") is None for pod in alive)
    return lambda since: since.edits > 0 or since.ended >= len(alive) or 0 < untold <= since.leaving
