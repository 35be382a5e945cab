"""With how many pods a job would be started now: as many as it wants, or as its policy lets it shrink to.

What is more than it had is room that others may want as well: pods of equal or higher priority that wait come first.
"""

from collections.abc import Collection, Sequence

from msgspec import Struct

from sentinel.cluster.base import Room
from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.job_io import PODS, listed
from sentinel.cluster.kubernetes.job_room import Rooms, pods_of
from sentinel.core.job.paths import Json, number, read, rows, text
from sentinel.core.job.room import Placement
from sentinel.core.job.sizes import resizable, resized
from sentinel.core.job.state import Seen, size_of, standing
from sentinel.core.job.writes import Refusal
from sentinel.core.model import ProtectedJob
from sentinel.util.clock import Clock

UNKNOWN_NEEDS = "What its pods need is not known, so no room was looked for."
IN_LINE = "What it needs is taken by other jobs: it takes its place in its queue."
FRESH_S = 3.0
UNBOUND = "spec.nodeName=,status.phase=Pending"


class _Fit(Struct, frozen=True):
    size: int
    pods: Sequence[Json]
    found: Placement


class Sizing:
    def __init__(self, client: Client, rooms: Rooms, clock: Clock) -> None:
        self._client, self._rooms, self._clock = client, rooms, clock
        self._unbound: tuple[float, list[Json]] = (float("-inf"), [])  # when they were read, and they

    async def room(
        self,
        job: ProtectedJob,
        seen: Seen,
        own: Collection[str],
        size: int,
        excluded: tuple[str, ...],
        bad: Collection[str],
    ) -> Room:
        """For `size` pods, or fewer of an elastic job, as if those with the uids `own` were gone. What is found is
        promised to it. Raises TemporaryError."""
        if not pods_of(seen):
            return Room(size=size_of(seen) or size, excluded=excluded, sentence=UNKNOWN_NEEDS)
        fit = await self._fit(job, seen, own, size, {*excluded, *bad})
        self._rooms.kept(job.name)
        # While it is stopped it is not even in line for what others have taken.
        if not fit.found.fits and standing(seen).queue:
            alone = await self._fit(job, seen, {*own, *self._rooms.counted()}, size, {*excluded, *bad})
            if alone.found.fits:
                return Room(size=alone.size, excluded=excluded, sentence=IN_LINE)
        if not fit.found.fits:
            return Room(size=0, reason="NoRoom", sentence=fit.found.sentence)
        self._rooms.promise(job.name, fit.pods, fit.found)
        used = len(set(fit.found.nodes.values()))
        sentence = f"There is room for {len(fit.pods)} pods on {used} node{'s' if used != 1 else ''}"
        if excluded:
            sentence += f", without {', '.join(excluded[:5])}"
        if fit.size < size:
            sentence += f"; it wants {size}"
        return Room(size=fit.size, excluded=excluded, sentence=f"{sentence}.")

    async def most(self, job: ProtectedJob, seen: Seen, own: Collection[str], bad: Collection[str]) -> int:
        """With how many pods it could run now, if it were stopped; 0: with none. Nothing is promised."""
        fit = await self._fit(job, seen, own, job.original_size, bad)
        return fit.size if fit.found.fits else 0

    async def _fit(
        self, job: ProtectedJob, seen: Seen, own: Collection[str], size: int, out: Collection[str]
    ) -> _Fit:
        """The largest size that fits; where none does, why the smallest does not."""
        sizes, waiting = _allowed(job, seen, size), list[Json]()
        had = job.size

        def at(wanted: int) -> _Fit:
            pods = pods_of(resized(seen, wanted) if wanted != size_of(seen) else seen)
            return _Fit(
                wanted, pods, self._rooms.find(job.name, pods, own, out, waiting if wanted > had else ())
            )

        best = at(sizes[-1])
        if sizes[-1] > had and (best.found.fits or at(min(n for n in sizes if n > had)).found.fits):
            waiting = await self._waiting(seen)
            best = at(sizes[-1])
        low, high = 0, len(sizes) - 1  # what fits with more fits with fewer
        if best.found.fits or not high:
            return best
        best = at(sizes[0])
        while best.found.fits and high - low > 1:
            middle = (low + high) // 2
            tried = at(sizes[middle])
            if tried.found.fits:
                low, best = middle, tried
            else:
                high = middle
        return best

    async def _waiting(self, seen: Seen) -> list[Json]:
        """Pods of others that wait for a node, and that the scheduler serves before this job's or beside them."""
        own = {text(pod, "metadata.uid") for pod in seen.pods}
        ours = [value for pod in seen.pods if (value := number(pod, "spec.priority")) is not None]
        least = min(ours, default=None)  # not known: everybody comes first
        return [
            pod
            for pod in await self._all_waiting()
            if text(pod, "metadata.uid") not in own
            and not rows(pod, "spec.schedulingGates")
            and read(pod, "metadata.deletionTimestamp") is None
            and (least is None or (number(pod, "spec.priority") or 0) >= least)
        ]

    async def _all_waiting(self) -> list[Json]:
        """The API server looks through all pods for it: once for all jobs that ask within some seconds."""
        if self._clock().mono_s - self._unbound[0] > FRESH_S:
            found = await listed(self._client, PODS, "", {"fieldSelector": UNBOUND})
            self._unbound = self._clock().mono_s, found
        return self._unbound[1]


def _allowed(job: ProtectedJob, seen: Seen, size: int) -> Sequence[int]:
    """The smallest first; never none."""
    elastic, asked = job.policy.elastic, size_of(seen)
    if elastic is None:
        return (asked or size,)  # what its object says: somebody may have changed it
    least = size if job.elastic_frozen else min(elastic.min_nodes, size)
    found = resizable(seen, least, size)
    return (asked or size,) if isinstance(found, Refusal) or not found else found
