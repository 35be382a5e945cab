"""What Kubernetes said of given pods, read when somebody asks why they are not up: `core.pod_wait`.

Nothing of it is kept. Each list makes the API server look through all events of the namespace, so few pods are asked
for: those of a job that do not come up mostly wait for the same.
"""

import asyncio
from collections.abc import Iterable, Sequence
from itertools import islice

import structlog
from msgspec import Struct

from sentinel.cluster.kubernetes.client import Client, Resource
from sentinel.core.job.paths import Json, text
from sentinel.core.job.pod_told import preempted, preemptor
from sentinel.core.job.pod_wait import event_wall_s, needs_events
from sentinel.util.errors import PermanentError, TemporaryError

log = structlog.get_logger(__name__)

EVENTS = Resource("", "v1", "events")  # only these can be selected by the uid of what they are about
MAX_PODS = 8
MAX_EVENTS = 100  # of one pod, of which the API server keeps those of an hour
DEADLINE_S = 5.0
PREEMPTION_LOOKS, PREEMPTION_S = 6, 1.0


class _Page(Struct):
    items: list[Json] = []


class PodEvents:
    """Best effort: what cannot be read is logged and left out."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def why(self, pods: Iterable[Json]) -> dict[str, list[Json]]:
        """Of those for which only events tell why they are not up, by uid."""
        return await self.of(pod for pod in pods if needs_events(pod))

    async def of(self, pods: Iterable[Json]) -> dict[str, list[Json]]:
        """Of these pods, of many of the first MAX_PODS; by uid, the oldest event first."""
        asked = {text(pod, "metadata.uid"): pod for pod in islice(pods, MAX_PODS)}
        found = await asyncio.gather(*(self._read(pod) for pod in asked.values()))
        return {uid: events for uid, events in zip(asked, found, strict=True) if events}

    async def preempted(self, pods: Sequence[Json]) -> dict[str, list[Json]]:
        """Of pods that the scheduler may have preempted, by uid. Where one says that it was, its event is waited for:
        the scheduler tells it beside what it does."""
        said = [text(pod, "metadata.uid") for pod in pods if preempted(pod)]
        found = await self.of(pods)
        for _ in range(PREEMPTION_LOOKS - 1):
            if all(preemptor(found.get(uid, ())) for uid in said):
                break
            await asyncio.sleep(PREEMPTION_S)
            found = await self.of(pods)
        return found

    async def _read(self, pod: Json) -> list[Json]:
        namespace, uid = text(pod, "metadata.namespace"), text(pod, "metadata.uid")
        query = {"fieldSelector": f"involvedObject.uid={uid}", "limit": str(MAX_EVENTS)}
        try:
            page = await self._client.get(EVENTS.path(namespace), _Page, query, deadline_s=DEADLINE_S)
        except (TemporaryError, PermanentError) as error:
            log.warning("events_not_read", pod=f"{namespace}/{text(pod, 'metadata.name')}", why=str(error))
            return []
        return sorted(page.items, key=event_wall_s)
