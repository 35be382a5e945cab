"""`sentinel pause`: a ConfigMap beside the controller. While it is there, nothing new is done to nodes."""

import asyncio
import contextlib

from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.objects import CONFIG_MAPS, ConfigMap
from sentinel.cluster.kubernetes.reflector import Reflector
from sentinel.util.clock import Clock

NAME = "sentinel-pause"
PAUSED = "sentinel.dev/paused"  # annotation of the Lease: what the leader goes by
WAIT_S = 10.0
MAX_TEXT = 300


class Pause:
    """`run` follows it until it is cancelled."""

    def __init__(self, client: Client, namespace: str, clock: Clock) -> None:
        self.reflector = Reflector(
            client,
            CONFIG_MAPS,
            ConfigMap,
            lambda _: None,
            namespace=namespace,
            fields=f"metadata.name={NAME}",
            clock=clock,
        )

    async def known(self) -> None:
        """For a moment: what cannot be read counts as paused."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                await self.reflector.wait_synced()

    @property
    def text(self) -> str:
        """By whom and why; "": not paused. What was read last counts while the API server is away."""
        if self.reflector.lists == 0:
            return f"whether it is paused cannot be read yet: {self.reflector.problem or 'no answer'}"
        found = next(iter(self.reflector.objects.values()), None)
        return "" if found is None else told(found)


def told(found: ConfigMap) -> str:
    who = found.data.get("who", "").strip() or "a person"
    why = found.data.get("why", "").strip()
    return (f"{who}: {why}" if why else who)[:MAX_TEXT]
