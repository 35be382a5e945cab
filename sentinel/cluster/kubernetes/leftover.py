"""What a Sentinel that is gone has left on nodes and jobs, and how it is taken away again. Others' things stay.

Of a node: the taint, `unschedulable` where the taint says that Sentinel set it and nobody else claims the node, the
conditions that Sentinel wrote, and its annotations. Of a job: that it is stopped, and what keeps its pods off nodes. A
job that runs is not touched, since its kind may make its pods anew for that: what it bears goes with it.
"""

from msgspec import Struct, convert

from sentinel.cluster.kubernetes.client import JSON_PATCH, Client, Resource
from sentinel.cluster.kubernetes.errors import Conflict, NotFound
from sentinel.cluster.kubernetes.job_io import WORKLOADS, JobRef, Queues, carry_out, listed
from sentinel.cluster.kubernetes.job_io import read as read_job
from sentinel.cluster.kubernetes.nodes import Operation, preconditions
from sentinel.cluster.kubernetes.objects import (
    INCIDENTS,
    JOB_POLICIES,
    NODES,
    PROTECTED_JOBS,
    QUARANTINES,
    Node,
)
from sentinel.core import job_start
from sentinel.core.fleet_conditions import OURS, OWN
from sentinel.core.fleet_marks import CLAIM_TAINTS, claims_of
from sentinel.core.fleet_model import QUARANTINE_TAINT, NodeMark, Taint
from sentinel.core.job_change import SELECTED
from sentinel.core.job_kinds import JobKind
from sentinel.core.job_paths import Json, annotation, controller, text
from sentinel.core.job_state import CHOSEN_LAST, KEPT_OFF, SIZE, STOPPED, Seen, standing
from sentinel.core.job_writes import Refusal
from sentinel.job_kinds import job_table

PREFIX = "sentinel.dev/"
TRIES = 5  # a node changes by itself now and then: its kubelet writes conditions


class OnNode(Struct, frozen=True, kw_only=True):
    """`found`: each thing in words. `stays`: why it is out of service afterwards all the same."""

    name: str
    found: tuple[str, ...] = ()
    changes: tuple[Operation, ...] = ()  # of the node
    conditions: tuple[Operation, ...] = ()  # of its status
    stays: str = ""


class OnJob(Struct, frozen=True, kw_only=True):
    ref: JobRef
    title: str
    found: tuple[str, ...]
    stopped: bool  # by Sentinel, which would have started it again


def on_node(node: Node) -> OnNode:
    """What must be written so that it looks as if Sentinel had never been there."""
    meta, taints = node.metadata, node.spec.taints
    others = sorted(
        {CLAIM_TAINTS[taint.key] for taint in taints if taint.key in CLAIM_TAINTS}
        | set(claims_of(meta.labels, meta.annotations))
    )
    found, changes, stays = list[str](), list[Operation](), ""
    # The last one first: what is removed moves those behind it.
    for place, taint in reversed(list(enumerate(taints))):
        if taint.key == QUARANTINE_TAINT:
            cordoned = NodeMark.of(Taint(taint.key, taint.value)).cordoned and node.spec.unschedulable
            found.append(f"taint {taint.key}={taint.value}")
            changes.append({"op": "remove", "path": f"/spec/taints/{place}"})
            if cordoned and others:
                stays = f"it stays unschedulable: {', '.join(others)} keeps it so"
            elif cordoned:
                found.append("unschedulable by Sentinel")
                changes.append({"op": "add", "path": "/spec/unschedulable", "value": False})
            elif node.spec.unschedulable:
                stays = f"it stays unschedulable: {', '.join(others) or 'somebody else'} cordoned it"
    for name in sorted(meta.annotations):
        if name.startswith(PREFIX):
            found.append(f"annotation {name}")
            changes.append({"op": "remove", "path": f"/metadata/annotations/{name.replace('/', '~1')}"})
    conditions = list[Operation]()
    for place, condition in reversed(list(enumerate(node.status.conditions))):
        if condition.type == OWN or condition.reason.startswith(OURS):
            found.append(f"condition {condition.type}")
            conditions.append({"op": "remove", "path": f"/status/conditions/{place}"})
    return OnNode(
        name=meta.name,
        found=tuple(found),
        changes=tuple(changes),
        conditions=tuple(conditions),
        stays=stays,
    )


async def nodes(client: Client) -> list[OnNode]:
    """Those that bear anything of Sentinel's."""
    found = (on_node(convert(one, Node)) for one in await listed(client, NODES, "", {}))
    return [one for one in found if one.found]


async def clear_node(client: Client, name: str) -> OnNode:
    """Read and written until nothing is left; what was there the last time. Raises Conflict where it changes on and on,
    other TemporaryErrors, PermanentErrors."""
    path = NODES.path(name=name)
    for tried in range(TRIES):
        node = await client.get(path, Node)
        left = on_node(node)
        try:
            if left.conditions:
                where = NODES.path(name=name, part="status")
                operations = [*preconditions(node.metadata), *left.conditions]
                node = await client.patch(where, operations, Node, how=JSON_PATCH)
            if left.changes:
                operations = [*preconditions(node.metadata), *left.changes]
                await client.patch(path, operations, Node, how=JSON_PATCH)
            return left
        except Conflict:
            if tried == TRIES - 1:
                raise
    raise AssertionError("unreachable")


def on_job(row: JobKind, job: Json, workload: Json | None) -> OnJob | None:
    """None: it bears nothing that means anything, or has ended."""
    if standing(Seen(row=row, job=job, workload=workload)).over:
        return None
    mark = annotation(job, STOPPED) or (annotation(workload, STOPPED) if workload else "")
    found = [f"stopped by Sentinel for incident {mark}"] if mark else []
    for name, what in (
        (KEPT_OFF, "is kept off"),
        (CHOSEN_LAST, "chooses last"),
        (SELECTED, "asks for the labels"),
        (SIZE, "had replicas:"),
    ):
        if value := annotation(job, name):
            found.append(f"{what} {value}")
    if not found:
        return None
    namespace, name, uid = (text(job, f"metadata.{field}") for field in ("namespace", "name", "uid"))
    return OnJob(
        ref=JobRef(row, namespace, name, uid),
        title=f"{row.kind} {namespace}/{name}",
        found=tuple(found),
        stopped=bool(mark),
    )


async def jobs(client: Client) -> list[OnJob]:
    """Of every kind that is installed, those that bear anything of Sentinel's."""
    marked = {
        str(controller(one).get("uid")): one
        for one in await _all(client, WORKLOADS)
        if annotation(one, STOPPED)
    }
    found = list[OnJob]()
    for row in job_table().followed:
        for job in await _all(client, Resource(row.group, row.version, row.plural)):
            if (left := on_job(row, job, marked.get(text(job, "metadata.uid")))) is not None:
                found.append(left)
    return found


async def _all(client: Client, resource: Resource) -> list[Json]:
    try:
        return await listed(client, resource, "", {})
    except NotFound:  # its kind is not installed
        return []


async def start_again(client: Client, one: OnJob) -> str:
    """Start what Sentinel had stopped, off no node any more. Why it was not, in a sentence; "": it was."""
    seen = await read_job(client, Queues(client), one.ref)
    if not standing(seen).stopped:
        return ""
    plan = job_start.start(seen)
    if isinstance(plan, Refusal):
        return plan.sentence
    await carry_out(client, plan, lambda: 0)
    return ""


async def records(client: Client) -> dict[str, int]:
    """How many there are of each kind."""
    kinds = (PROTECTED_JOBS, INCIDENTS, QUARANTINES, JOB_POLICIES)
    return {kind.plural: len(await _all(client, kind)) for kind in kinds}
