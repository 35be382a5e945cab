"""What the controller of a cluster's nodes asks of the cluster, and what it does to it."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Protocol

from sentinel.controller.nodes.known import Shown
from sentinel.core.fleet.events import DoEvent
from sentinel.core.fleet.marks import MarkWrite
from sentinel.core.fleet.model import CodeWord, NodeCondition, NodeQuarantine, PodPicture
from sentinel.core.fleet.orders import Answer


class FleetCluster(Shown, Protocol):
    """Where nodes and records live. Writes raise TemporaryError (Conflict: decide again) and PermanentError."""

    @property
    def records(self) -> Mapping[str, NodeQuarantine]:
        """By id, as they were last seen or saved. Does not change in the hands of who asked for it."""

    def records_of(self, node: str) -> Collection[NodeQuarantine]:
        """All records of this node, in no order."""

    def record(self, id: str) -> NodeQuarantine | None:
        """One of them."""

    @property
    def complete(self) -> bool:
        """Is every node known, so that one that is missing is gone?"""

    @property
    def watching_since_mono_s(self) -> float:
        """Since when no lease can have been missed."""

    @property
    def leases_mono_s(self) -> float:
        """When the API server said last how leases stand."""

    async def take_over(self) -> None:
        """Read all records."""

    async def claim(self, node: str) -> None:
        """See to it that no write of an earlier leader to this node and its open records comes after this."""

    @property
    def paused(self) -> str:
        """By whom or why; "": not paused."""

    @property
    def codes(self) -> tuple[CodeWord, ...]:
        """What people say of findings' codes."""

    @property
    def codes_problem(self) -> str:
        """What of that cannot be read, in a sentence; "": nothing."""

    def take_orders(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """By node, where people ordered something about it since: what makes it stand in `orders`."""

    async def answer(self, answer: Answer) -> None:
        """Tell who ordered it, and take it away."""

    def orphans(self) -> Mapping[str, tuple[PodPicture, ...]]:
        """Pods that are bound to nodes that are not there, by the names of those."""

    def check_leading(self) -> None:
        """Raises NotLeading (a PermanentError) where it is not sure that this process leads."""

    async def settle(self, record: NodeQuarantine) -> None:
        """Know what became of every save of it: brakes are counted from `records`."""

    def unsure(self, record: NodeQuarantine) -> bool:
        """Is it not known what became of a save of it?"""

    async def save(self, record: NodeQuarantine) -> None: ...
    async def show(self, record: NodeQuarantine) -> None:
        """Let the status of this saved record say what it says. Never while it is being saved."""

    async def delete(self, record: NodeQuarantine) -> None: ...
    async def mark(self, wanted: MarkWrite) -> None: ...
    async def set_conditions(self, node: str, wanted: tuple[NodeCondition, ...]) -> None: ...
    async def remove(self, pods: Iterable[str]) -> None: ...

    def event(self, effect: DoEvent) -> None:
        """Best effort; never waits."""
