"""Objects of the API → the API's half of the fleet's picture. Pure; what agents told stays as it is."""

from collections.abc import Container

from msgspec import structs

from sentinel.cluster.kubernetes.objects import Node, Pod
from sentinel.core.fleet.marks import claims_of
from sentinel.core.fleet.model import NodeCondition, NodePicture, PodPicture, Taint
from sentinel.core.job.room import GPUS, quantity
from sentinel.core.job.state import ENDED_PHASES
from sentinel.core.people.protection import Protection

NODES_OWN = ("DaemonSet", "Node")  # owners of pods that come again wherever the node goes


def node_picture(
    one: Node, known: NodePicture | None, *, pool_label: str, conditions: Container[str]
) -> NodePicture:
    """`known`: what there was of this name. Of another node object under the same name nothing is kept.

    `conditions`: the types that Sentinel writes; the others change often and are not looked at.
    """
    meta, spec = one.metadata, one.spec
    before = (
        known if known is not None and known.uid == meta.uid else NodePicture(name=meta.name, uid=meta.uid)
    )
    return structs.replace(
        before,
        pool=meta.labels.get(pool_label, ""),
        resource_version=meta.resource_version,
        unschedulable=spec.unschedulable,
        taints=tuple(Taint(taint.key, taint.value, taint.effect) for taint in spec.taints),
        provider_id=spec.provider_id,
        claims=claims_of(meta.labels, meta.annotations),
        conditions=tuple(
            NodeCondition(told.type, told.status, told.reason, told.message)
            for told in one.status.conditions
            if told.type in conditions
        ),
        api_boot_id=one.status.node_info.boot_id,
        gpus=round(sum(quantity(one.status.allocatable.get(gpu, "0")) for gpu in GPUS)),
    )


def pod_picture(one: Pod, job: str, protection: Protection | None) -> PodPicture | None:
    """None: it is bound to no node, or all its processes have ended."""
    if not one.spec.node_name or one.status.phase in ENDED_PHASES:
        return None
    meta = one.metadata
    own = nodes_own(one)
    return PodPicture(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        job="" if own else job,
        protected=protection is not None and not own,
        removal=None if protection is None or own else protection.removal,
        force_after_s=None if protection is None or own else protection.force_after_s,
        self_fence_s=None if protection is None or own else protection.self_fence_s,
    )


def nodes_own(one: Pod) -> bool:
    """Does the node itself run it, and again wherever the node goes?"""
    return any(owner.controller and owner.kind in NODES_OWN for owner in one.metadata.owner_references)
