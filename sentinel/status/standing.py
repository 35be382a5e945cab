"""What stands in a cluster beside its nodes and jobs: who leads, whether it is paused, what was said of codes."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sentinel.cluster.kubernetes.client import Client
    from sentinel.cluster.kubernetes.objects import ConfigMap, Lease

LOOK_S = 0.3  # between two looks for an answer
PAUSED = "Paused: new isolations and removals wait; releases go on. `sentinel pause --off` ends it."
GOES_ON = "Not paused any more: what waited goes on."


async def lease(client: "Client", namespace: str) -> "Lease | None":
    """The controllers' Lease; None: no controller ever led here."""
    from sentinel.cluster.kubernetes.objects import LEASES, Lease

    return await client.find(LEASES.path(namespace, "sentinel-controller"), Lease)


async def paused(client: "Client", namespace: str) -> "ConfigMap | None":
    from sentinel.cluster.kubernetes.objects import CONFIG_MAPS, ConfigMap
    from sentinel.cluster.kubernetes.pause import NAME

    return await client.find(CONFIG_MAPS.path(namespace, NAME), ConfigMap)


async def said(client: "Client", namespace: str) -> "ConfigMap | None":
    from sentinel.cluster.kubernetes.codes import NAME
    from sentinel.cluster.kubernetes.objects import CONFIG_MAPS, ConfigMap

    return await client.find(CONFIG_MAPS.path(namespace, NAME), ConfigMap)
