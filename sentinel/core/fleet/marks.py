"""Sentinel's mark on a node (its taint, and `unschedulable`), and the cordons of others. Pure.

Taint and `unschedulable` are written in one request with the node's resourceVersion as precondition, and the taint
says so (NodeMark). A node that says `cordoned` and is schedulable was uncordoned by a person.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from sentinel.core.fleet.events import DoRemove
from sentinel.core.fleet.model import (
    OUT_OF_SERVICE,
    FleetPicture,
    Mode,
    NodeMark,
    NodePicture,
    NodeQuarantine,
    State,
    Taint,
)

# Taints by which others say that they keep a node out of service. Sources: kubernetes/autoscaler (utils/taints),
# karpenter v1 (karpenter.sh/disrupted) and v1beta1, medik8s Self Node Remediation, NVSentinel's fault quarantine.
CLAIM_TAINTS = {
    "ToBeDeletedByClusterAutoscaler": "cluster-autoscaler",
    "karpenter.sh/disrupted": "Karpenter",
    "karpenter.sh/disruption": "Karpenter",
    "medik8s.io/remediation": "medik8s node remediation",
    "AggregatedNodeHealth": "NVSentinel",
    OUT_OF_SERVICE: "whoever declared it out of service",
}
# The same by annotations: kured (--annotate-nodes), and node-drainers of NVIDIA's GPU operator by a label.
CLAIM_ANNOTATIONS = {"weave.works/kured-reboot-in-progress": "kured"}
GPU_UPGRADE_LABEL = "nvidia.com/gpu-driver-upgrade-state"
_GPU_UPGRADE_OVER = (
    "",
    "upgrade-done",
    "upgrade-required",
    "upgrade-failed",
)  # in these it keeps no cordon of its own


def claims_of(labels: Mapping[str, str], annotations: Iterable[str]) -> tuple[str, ...]:
    """NodePicture.claims: who says by annotations and labels that he keeps the node cordoned."""
    found = {CLAIM_ANNOTATIONS[name] for name in annotations if name in CLAIM_ANNOTATIONS}
    if labels.get(GPU_UPGRADE_LABEL, "") not in _GPU_UPGRADE_OVER:
        found.add("the GPU operator's driver upgrade")
    return tuple(sorted(found))


def claims(node: NodePicture) -> tuple[str, ...]:
    """Everybody else who says that he keeps this node out of service."""
    by_taint = {CLAIM_TAINTS[taint.key] for taint in node.taints if taint.key in CLAIM_TAINTS}
    return tuple(sorted({*by_taint, *node.claims}))


def out_of_service_by(node: NodePicture) -> tuple[str, ...]:
    """Who keeps new pods off this node: for `status`, and for whoever asks whether a node is to be had."""
    mark, others = node.mark, claims(node)
    who = ["Sentinel"] if mark is not None else []
    if node.unschedulable and (mark is None or not mark.cordoned) and not others:
        who.append("somebody who cordoned it")
    return (*who, *others)


class MarkWrite(Struct, frozen=True, kw_only=True):
    """One request to one node. None: that part stays as it is."""

    node: str
    node_uid: str
    resource_version: str  # refused when the node has changed since: then it is looked at again
    taint: Taint | None = None  # in the place of an older one of Sentinel's
    remove_taint: bool = False
    unschedulable: bool | None = None
    sentence: str = ""


def write(node: NodePicture, records: Sequence[NodeQuarantine]) -> MarkWrite | None:
    """What must be written so that the node shows what its records say. `records`: all of this node."""
    isolating = [record for record in records if record.isolating and record.node_uid == node.uid]
    mark = node.mark
    carrier = None if mark is None else next((one for one in records if one.number == mark.number), None)
    if isolating:
        if mark is None and any(record.wrote.taint for record in isolating):
            return None  # it was there: somebody took it away, which rounds.decide judges first
        if mark is not None and carrier in isolating:
            return None
        cordon = not node.unschedulable
        ours = cordon or (mark is not None and mark.cordoned)
        return MarkWrite(
            node=node.name,
            node_uid=node.uid,
            resource_version=node.resource_version,
            taint=NodeMark(isolating[0].number, ours).taint(),
            unschedulable=True if cordon else None,
            sentence="" if ours else "It was cordoned already: that stays when Sentinel's taint goes.",
        )
    if mark is None or carrier is None or carrier.state.open:
        return None  # a mark whose record is missing is for rounds.decide to judge
    return unmark(node)


def unmark(node: NodePicture) -> MarkWrite:
    """Its taint goes, and `unschedulable` where the taint says that Sentinel set it and nobody else claims the node."""
    others = claims(node)
    uncordon = node.mark is not None and node.mark.cordoned and node.unschedulable and not others
    left = node.unschedulable and not uncordon
    return MarkWrite(
        node=node.name,
        node_uid=node.uid,
        resource_version=node.resource_version,
        remove_taint=True,
        unschedulable=False if uncordon else None,
        sentence=f"It stays unschedulable: {', '.join(others) or 'somebody else'} cordoned it."
        if left
        else "",
    )


def by_node(records: Iterable[NodeQuarantine]) -> dict[str, list[NodeQuarantine]]:
    """Each node's in the order of their numbers, whatever the order in which they were read."""
    found: dict[str, list[NodeQuarantine]] = {}
    for record in records:
        found.setdefault(record.node, []).append(record)
    for own in found.values():
        if len(own) > 1:
            own.sort(key=lambda one: (one.number, one.id))
    return found


def outstanding(
    picture: FleetPicture, records: Mapping[str, NodeQuarantine]
) -> tuple[list[MarkWrite], list[DoRemove]]:
    """What the records say and the cluster does not show: after a take-over, a refused write, a lost answer."""
    writes, removals = [], []
    for name, own in by_node(records.values()).items():
        node = picture.nodes.get(name)
        if node is not None and (wanted := write(node, own)) is not None:
            writes.append(wanted)
        there = {pod.id for pod in picture.pods_of(name)}
        for record in own:
            for removal in record.removals if record.state is State.ACTIVE else ():
                left = tuple(pod for pod in removal.pods if pod in there)
                if left and removal.mode is Mode.ENFORCE:
                    removals.append(DoRemove(name, left, removal.proof))
    return writes, removals
