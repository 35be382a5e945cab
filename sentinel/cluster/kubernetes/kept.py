"""What is kept of the objects of a large cluster: what many of them say alike is kept once. Pure.

Of ten thousand nodes and pods each says its kubelet's five conditions, the same labels, owners and containers.
"""

from collections.abc import Callable, Container
from functools import lru_cache
from sys import intern

import msgspec
from msgspec import structs

from sentinel.cluster.kubernetes.objects import GROUP, Labels, Node, Owner, Pod
from sentinel.cluster.kubernetes.objects import Container as PodContainer

ALIKE = 4096  # different ones that are remembered; of what comes after them a pod has its own copy
OURS = f"{GROUP}/"  # begins the names of annotations whose values are read

_containers = msgspec.msgpack.Decoder(tuple[PodContainer, ...])


def node(types: Container[str]) -> Callable[[Node], Node]:
    """With only the conditions of these types. Of annotations of others, which are large, only the names: those are
    claims, and that there are any must be known to who writes one."""

    def kept(one: Node) -> Node:
        status = structs.replace(
            one.status, conditions=tuple(told for told in one.status.conditions if told.type in types)
        )
        notes = {
            intern(key): value if key.startswith(OURS) else ""
            for key, value in one.metadata.annotations.items()
        }
        meta = structs.replace(one.metadata, labels=_interned(one.metadata.labels), annotations=notes)
        return structs.replace(one, metadata=meta, status=status)

    return kept


def pod(one: Pod) -> Pod:
    meta = structs.replace(
        one.metadata,
        labels=_interned(one.metadata.labels),
        owner_references=tuple(map(_owner, one.metadata.owner_references)),
    )
    spec = structs.replace(
        one.spec,
        node_name=intern(one.spec.node_name),
        containers=_alike(msgspec.msgpack.encode(one.spec.containers)),
        init_containers=_alike(msgspec.msgpack.encode(one.spec.init_containers)),
    )
    return structs.replace(one, metadata=meta, spec=spec)


def _interned(labels: Labels) -> Labels:
    return {intern(key): intern(value) for key, value in labels.items()}


@lru_cache(ALIKE)
def _owner(one: Owner) -> Owner:
    return one


@lru_cache(ALIKE)
def _alike(containers: bytes) -> tuple[PodContainer, ...]:
    return _containers.decode(containers)
