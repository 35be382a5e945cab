"""One job as it is in the API server now, and the writes of a plan: what core/job/ rests on and asks for.

A decision about a job rests on one reading of it and all its pods, made when it is decided: the reflectors hold less,
and may be behind.
"""

import contextlib
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

import msgspec
import structlog
from msgspec import Struct

from sentinel.cluster.kubernetes.client import Client, Resource, decoded
from sentinel.cluster.kubernetes.errors import AlreadyExists, Conflict, Forbidden, NotFound, Refused
from sentinel.core.job.kinds import JobKind, KeepOff
from sentinel.core.job.owned_pods import stand_in
from sentinel.core.job.paths import Json, controller, text
from sentinel.core.job.ranks import selector
from sentinel.core.job.resume import map_name
from sentinel.core.job.state import Seen, living, named_queue
from sentinel.core.job.writes import Plan, Verb, Write

log = structlog.get_logger(__name__)

PODS_PAGE = 500
ABSENT_S = 30.0  # Kueue that is not installed is not looked for again so long
WORKLOADS = Resource("kueue.x-k8s.io", "v1beta1", "workloads")
POD_GROUPS = Resource("scheduling.volcano.sh", "v1beta1", "podgroups")
JOB_UID = "kueue.x-k8s.io/job-uid"
PODS_OWN = "Pod"  # an owner of an unknown kind is read where it is a pod itself
JOBS = Resource("batch", "v1", "jobs")
PODS = Resource("", "v1", "pods")
CONFIG_MAPS = Resource("", "v1", "configmaps")
MERGE = "application/merge-patch+json"


class JobRef(Struct, frozen=True):
    """Which object a job is. Another one of its name is another job."""

    row: JobKind
    namespace: str
    name: str
    uid: str

    @property
    def unread(self) -> bool:
        """Its pods alone tell of it: whoever made them is not of a kind that Sentinel may read."""
        return self.row.fallback and self.row.kind != PODS_OWN

    @property
    def path(self) -> str:
        return self.resource.path(self.namespace, self.name)

    @property
    def resource(self) -> Resource:
        return Resource(self.row.group, self.row.version, self.row.plural)


class _Page(Struct):
    metadata: dict[str, Any]
    items: list[Json] = []


class Queues:
    """Kueue's, by the Workloads of its jobs. Where it is not installed only jobs that name a queue ask each time."""

    def __init__(self, client: Client) -> None:
        self._client, self._absent_until_s = client, 0.0

    async def workload(self, ref: JobRef, job: Json) -> tuple[Json | None, bool]:
        """By the label that Kueue puts there, where there is one for this job; and whether Kueue is installed."""
        if not (ref.row.workload_queues or ref.row.gated_queues or ref.row.fallback):
            return None, False
        if monotonic() < self._absent_until_s and not named_queue(job):
            return None, False
        try:
            found = await _labelled(self._client, WORKLOADS, ref.namespace, f"{JOB_UID}={ref.uid}")
        except NotFound:
            self._absent_until_s = monotonic() + ABSENT_S
            return None, False
        return (found[0] if found else None), True

    async def job(self, uid: str) -> str:
        """Kind and name of a job of any namespace that is in a queue; "": it is gone."""
        try:
            found = await _labelled(self._client, WORKLOADS, "", f"{JOB_UID}={uid}")
        except (NotFound, Forbidden):
            return ""
        owner = controller(found[0]) if found else {}
        if not text(owner, "name"):
            return ""
        return f"{text(owner, 'kind')} {text(found[0], 'metadata.namespace')}/{text(owner, 'name')}"


async def read(client: Client, queues: Queues, ref: JobRef, ranks: int = 0, gpus: bool = False) -> Seen:
    """Raises NotFound where the job is gone or another one has its name; TemporaryError.
    `ranks`, `gpus`: see stand_in."""
    if ref.unread:
        found = await pods(client, ref, {})
        job = stand_in(ref.row, ref.namespace, ref.name, ref.uid, found, ranks, gpus)
    else:
        job = await _object(client, ref)
        found = await pods(client, ref, job)
    if not ref.unread and any(text(pod, "metadata.deletionTimestamp") for pod in found):
        job = await _object(
            client, ref
        )  # else who suspended it in between would seem to have ended its pods only
    workload, kueue = await queues.workload(ref, job)
    return Seen(
        row=ref.row,
        job=job,
        pods=tuple(found),
        children=tuple(await _children(client, ref)),
        workload=workload,
        pod_group=await _pod_group(client, ref, job, found),
        config_map=await _config_map(client, ref, job),
        kueue=kueue,
    )


async def _object(client: Client, ref: JobRef) -> Json:
    job = await client.get(ref.path, dict)
    if text(job, "metadata.uid") != ref.uid:
        raise NotFound(f"{ref.path}: another object has this name now", "NotFound")
    return job


async def gone(client: Client, ref: JobRef) -> bool:
    """Is there no such object any more? Raises TemporaryError, PermanentError."""
    try:
        await _object(client, ref)
    except NotFound:
        return True
    return False


async def pods(client: Client, ref: JobRef, job: Json) -> list[Json]:
    """All pods of a job, ended ones too."""
    wanted = selector(ref.row, job)
    found = await _labelled(client, PODS, ref.namespace, wanted or "")
    if wanted is not None:
        return found
    return [pod for pod in found if controller(pod).get("uid") == ref.uid]


async def _children(client: Client, ref: JobRef) -> list[Json]:
    if ref.row.keep_off is not KeepOff.CHILDREN and not ref.row.size_edit_blocks:
        return []
    found = await _labelled(client, JOBS, ref.namespace, "")
    return [one for one in found if controller(one).get("uid") == ref.uid]


async def _pod_group(client: Client, ref: JobRef, job: Json, pods: list[Json]) -> Json | None:
    """Named after the job and its uid, before Volcano v1.5 after the job alone. None too where it may not be read: then
    it is not known that its job waits in a queue, and it is taken for one that does not come up."""
    if not ref.row.pod_group or living(tuple(pods)) or text(job, ref.row.phase) != "Pending":
        return None
    for name in (f"{ref.name}-{ref.uid}", ref.name):
        with contextlib.suppress(NotFound, Forbidden):
            group = await client.get(POD_GROUPS.path(ref.namespace, name), dict)
            if controller(group).get("uid") == ref.uid:
                return group
    return None


async def _config_map(client: Client, ref: JobRef, job: Json) -> Json | None:
    """What tells the job's program of its restart, where the job asks for it. None too where it may not be read: then
    its write is refused, and that is said."""
    if not (name := map_name(job)):
        return None
    try:
        return await client.get(CONFIG_MAPS.path(ref.namespace, name), dict)
    except (NotFound, Forbidden):
        return None


async def _labelled(client: Client, resource: Resource, namespace: str, labels: str) -> list[Json]:
    return await listed(client, resource, namespace, {"labelSelector": labels} if labels else {})


async def listed(
    client: Client, resource: Resource, namespace: str, selectors: Mapping[str, str]
) -> list[Json]:
    """All of them, page by page. `namespace` "": of all."""
    query = {"limit": str(PODS_PAGE), **selectors}
    path, found = resource.path(namespace), list[Json]()
    head = {"apiVersion": f"{resource.group}/{resource.version}" if resource.group else resource.version}
    while True:
        page = decoded(_Page, await client.call("GET", path, query=query), path)
        found += [head | one for one in page.items]  # the objects of a list do not say what they are
        if not page.metadata.get("continue"):
            return found
        query["continue"] = page.metadata["continue"]


async def carry_out(client: Client, plan: Plan, epoch: Callable[[], int]) -> None:
    """The writes of a plan in their order. What is done already is done. Raises Conflict (read again, decide again),
    other TemporaryErrors, PermanentErrors, and NotLeading before a write that another leader might contradict."""
    answered = ""
    for write in plan.writes:
        epoch()
        try:
            answered = await _write(client, write, answered)
        except (Forbidden, NotFound, Refused) as error:
            if not write.optional:
                raise
            log.warning("not_written", what=write.plural, name=write.name, error=str(error))


async def delete_pod(client: Client, pod: Json, grace_s: int, epoch: Callable[[], int]) -> None:
    """It has this grace from now on, also where it is being deleted already. Gone, or another of its name: done."""
    epoch()
    body = {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "gracePeriodSeconds": grace_s,
        "preconditions": {"uid": text(pod, "metadata.uid")},
    }
    path = PODS.path(text(pod, "metadata.namespace"), text(pod, "metadata.name"))
    with contextlib.suppress(Conflict):
        await client.call("DELETE", path, body, missing_is_fine=True)


async def _write(client: Client, write: Write, answered: str) -> str:
    path = Resource(write.group, write.version, write.plural).path(write.namespace, write.name)
    body = write.request(answered)
    match write.verb:
        case Verb.PATCH:
            whole = f"{path}/{write.part}" if write.part else path
            content = await client.call("PATCH", whole, body, how=MERGE)
            return text(msgspec.json.decode(content), "metadata.resourceVersion")
        case Verb.CREATE:
            try:
                await client.call("POST", path.rpartition("/")[0], body)
            except AlreadyExists:
                pass  # its name tells for which state it was made: the same decision was carried out before
        case Verb.EVICT:
            with contextlib.suppress(NotFound):
                await client.call("POST", f"{path}/eviction", body)
        case Verb.DELETE:
            await client.call("DELETE", path, body, missing_is_fine=True)
    return ""
