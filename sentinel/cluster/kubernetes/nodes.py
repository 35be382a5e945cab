"""Writes to nodes: Sentinel's mark (taint, `unschedulable`), its conditions, and the removal of pods by force.

Each is one request that holds the UID and the resourceVersion of the node that was decided about: a node that has
changed since refuses it (Conflict), and the caller reads and decides again. With it goes the epoch, as an annotation:
a leader never writes to a node that a later leader has written to, and `fence` is how a new leader makes sure that
what its predecessor may still send comes too late. What the node shows already is not written again.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import structlog

from sentinel.cluster.kubernetes.client import JSON_PATCH, Client
from sentinel.cluster.kubernetes.errors import Conflict, NotFound, NotLeading
from sentinel.cluster.kubernetes.objects import NODES, PODS, FullMeta, Node, Pod
from sentinel.core.agents.epochs import Epochs, Where, later
from sentinel.core.fleet.marks import MarkWrite
from sentinel.core.fleet.model import QUARANTINE_TAINT, NodeCondition
from sentinel.util.documents import time_text
from sentinel.util.errors import PermanentError

log = structlog.get_logger(__name__)

EPOCH = "sentinel.dev/epoch"  # of the leader that wrote last
STRATEGIC_PATCH = "application/strategic-merge-patch+json"

Operation = dict[str, Any]


async def read(client: Client, name: str) -> Node:
    """The node as it is now. Raises NotFound."""
    return await client.get(NODES.path(name=name), Node)


async def mark(client: Client, node: Node, wanted: MarkWrite, epoch: int) -> Node:
    """Set or take away Sentinel's taint and `unschedulable`, both in one request, as decided about `node`.

    Raises Conflict (read and decide again), Unanswered (read: it may be done), NotLeading.
    """
    if (node.metadata.uid, node.metadata.resource_version) != (wanted.node_uid, wanted.resource_version):
        raise Conflict(f"node {wanted.node} is not any more what was decided about", 0.0)
    changes = [*_taint(node, wanted), *_unschedulable(node, wanted)]
    return await _patch(client, node, changes, epoch) if changes else node


async def fence(client: Client, node: Node, epoch: int) -> Node:
    """A new leader's first write to a node of which its predecessor may have left a write under way."""
    return node if epoch_of(node.metadata) == epoch else await _patch(client, node, [], epoch)


async def set_conditions(
    client: Client, node: Node, wanted: Sequence[NodeCondition], epoch: int, wall_s: float
) -> Node:
    """Write those that differ from what the node shows. Same errors as `mark`."""
    present = {one.type: one for one in node.status.conditions}
    now = time_text(round(wall_s))
    changed = []
    for one in wanted:
        there = present.get(one.type)
        if there and (there.status, there.reason, there.message) == (one.status, one.reason, one.message):
            continue
        since = (there.last_transition_time if there and there.status == one.status else None) or now
        changed.append(
            {
                "type": one.type,
                "status": one.status,
                "reason": one.reason,
                "message": one.message,
                "lastTransitionTime": since,
                "lastHeartbeatTime": now,
            }
        )
    if not changed:
        return node
    not_older(node.metadata, epoch)
    meta = node.metadata
    body = {
        "metadata": {
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "annotations": {EPOCH: str(epoch)},
        },
        "status": {"conditions": changed},  # merged by type: those of others stay
    }
    return await client.patch(NODES.path(name=meta.name, part="status"), body, Node, how=STRATEGIC_PATCH)


async def remove_pod(client: Client, pod: str, version: str = "") -> None:
    """Delete with no grace: only where its processes are proved gone. `pod`: NAMESPACE/NAME/UID. Gone is done.

    The UID is a precondition: proof of death of one pod is none for another of its name, however late this comes. So is
    its resourceVersion, `version`, as it was when that was judged: its kubelet may speak again. Raises Conflict.
    """
    namespace, name, uid = pod.split("/")
    path = PODS.path(namespace, name)
    try:
        await client.delete(path, uid=uid, version=version, grace_s=0)
    except Conflict:
        with contextlib.suppress(NotFound):
            if (await client.get(path, Pod)).metadata.uid == uid:
                raise
        # Another pod of that name is there, or none: ours is gone.


def epoch_of(meta: FullMeta) -> int:
    """Of who wrote it last; 0 where it names none."""
    text = meta.annotations.get(EPOCH, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0


async def _patch(client: Client, node: Node, changes: list[Operation], epoch: int) -> Node:
    not_older(node.metadata, epoch)
    operations = [*preconditions(node.metadata), set_epoch(node.metadata, epoch), *changes]
    return await client.patch(NODES.path(name=node.metadata.name), operations, Node, how=JSON_PATCH)


def meet(epochs: Epochs, meta: FullMeta, kind: str) -> None:
    """Note whose epoch an object bears. One that is not believed is overwritten with the next write."""
    epoch, where = epoch_of(meta), Where(kind, meta.name, meta.namespace)
    before = epochs.unbelieved.get(where)
    if not epochs.met(epoch, where) and before != epoch:
        log.warning("epoch_not_believed", kind=kind, name=meta.name, epoch=epoch, known=epochs.top)


def forget(epochs: Epochs, namespace: str, name: str, kind: str) -> None:
    """It is gone."""
    epochs.forget(Where(kind, name, namespace))


def not_older(meta: FullMeta, epoch: int) -> None:
    """Raises NotLeading: a later leader wrote it."""
    if later(epoch_of(meta), epoch):
        raise NotLeading(f"{meta.name} was written by a later leader", "NotLeading")


def preconditions(meta: FullMeta) -> list[Operation]:
    """Replacing them by what was read is how a JSON patch asks for 409 where they differ."""
    return [
        {"op": "replace", "path": "/metadata/uid", "value": meta.uid},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": meta.resource_version},
    ]


def set_epoch(meta: FullMeta, epoch: int) -> Operation:
    if not meta.annotations:
        return {"op": "add", "path": "/metadata/annotations", "value": {EPOCH: str(epoch)}}
    return {"op": "add", "path": f"/metadata/annotations/{EPOCH.replace('/', '~1')}", "value": str(epoch)}


def _taint(node: Node, wanted: MarkWrite) -> list[Operation]:
    """Other people's taints are not sent, so that nothing of theirs can be changed."""
    taints = node.spec.taints
    ours = next((index for index, taint in enumerate(taints) if taint.key == QUARANTINE_TAINT), None)
    if wanted.remove_taint:
        return [] if ours is None else [{"op": "remove", "path": f"/spec/taints/{ours}"}]
    if wanted.taint is None:
        return []
    if wanted.taint.effect != "NoSchedule":
        raise PermanentError(f"never a taint {wanted.taint.effect}: it would touch running pods", "Refused")
    value = {"key": wanted.taint.key, "value": wanted.taint.value, "effect": wanted.taint.effect}
    if ours is None and not taints:
        return [{"op": "add", "path": "/spec/taints", "value": [value]}]
    if ours is None:
        return [{"op": "add", "path": "/spec/taints/-", "value": value}]
    if (taints[ours].value, taints[ours].effect) == (wanted.taint.value, wanted.taint.effect):
        return []
    return [{"op": "replace", "path": f"/spec/taints/{ours}", "value": value}]


def _unschedulable(node: Node, wanted: MarkWrite) -> list[Operation]:
    if wanted.unschedulable is None or wanted.unschedulable == node.spec.unschedulable:
        return []
    return [{"op": "add", "path": "/spec/unschedulable", "value": wanted.unschedulable}]
