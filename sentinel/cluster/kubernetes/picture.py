"""Objects of the API → the API's half of the fleet's picture. Pure; what agents told stays as it is."""

from collections.abc import Container

from msgspec import structs

from sentinel.cluster.kubernetes.objects import Node, Pod
from sentinel.core.fleet_marks import claims_of
from sentinel.core.fleet_model import NodeCondition, NodePicture, PodPicture, Taint

ENDED = ("Succeeded", "Failed")
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
        claims=claims_of(meta.labels, meta.annotations),
        conditions=tuple(
            NodeCondition(told.type, told.status, told.reason, told.message)
            for told in one.status.conditions
            if told.type in conditions
        ),
        api_boot_id=one.status.node_info.boot_id,
    )


def pod_picture(one: Pod) -> PodPicture | None:
    """None: it is bound to no node, or all its processes have ended.

    Which pods are protected jobs' is not known here: all but the node's own count, so that no repair harms one.
    """
    if not one.spec.node_name or one.status.phase in ENDED:
        return None
    meta = one.metadata
    owner = next((owner for owner in meta.owner_references if owner.controller), None)
    own = owner is not None and owner.kind in NODES_OWN
    return PodPicture(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        job="" if owner is None or own else f"{owner.kind} {meta.namespace}/{owner.name}",
        protected=not own,
    )
