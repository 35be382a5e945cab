"""`status.conditions` of custom resources: what holds, since when, and of which version of the object it is said."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from sentinel.cluster.kubernetes.client import Client, Resource
from sentinel.cluster.kubernetes.objects import Custom
from sentinel.util.documents import time_text


class Says(Struct, frozen=True):
    """One condition. `reason`: one CamelCase word; `message`: for people."""

    type: str
    status: bool | None  # None: unknown
    reason: str
    message: str = ""

    @property
    def word(self) -> str:
        return "Unknown" if self.status is None else str(self.status)


async def write(
    client: Client,
    resource: Resource,
    one: Custom,
    says: Sequence[Says],
    epoch: int,
    wall_s: float,
    *,
    observed: bool = True,
) -> Custom:
    """Put these beside the conditions of other types; nothing is sent where nothing differs.

    `lastTransitionTime` moves only with the status. `observed`: say of which generation; a record that Sentinel itself
    writes is not observed. Raises Conflict where the object has changed since it was read.
    """
    meta = one.metadata
    seen = {"observedGeneration": meta.generation} if observed else {}
    present = {
        str(there.get("type")): there for there in one.status.get("conditions", []) if isinstance(there, dict)
    }
    wanted = dict(present)
    for said in says:
        there = present.get(said.type, {})
        same = there.get("status") == said.word
        wanted[said.type] = {
            "type": said.type,
            "status": said.word,
            "reason": said.reason,
            "message": said.message,
            "lastTransitionTime": there["lastTransitionTime"] if same else time_text(round(wall_s)),
            **seen,
        }
    if wanted == present and one.status.get("observedGeneration") == seen.get("observedGeneration"):
        return one
    body: dict[str, Any] = {
        "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
        # A write of the status cannot set an annotation, by which other writes name their epoch.
        "status": {**seen, "epoch": epoch, "conditions": list(wanted.values())},
    }
    return await client.patch(resource.path(meta.namespace, meta.name, "status"), body, Custom)
