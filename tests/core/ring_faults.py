"""Where the ranks of a training job are, what connects them, and what may be slow there: for `rings`."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from msgspec import Struct

HOST = 8  # ranks of a host


class Layout(Struct, frozen=True):
    """Ranks in Megatron's order: tensor fastest, then data, pipeline slowest."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1

    @property
    def ranks(self) -> int:
        return self.tensor * self.pipeline * self.data

    def rank(self, tensor: int, stage: int, replica: int) -> int:
        return tensor + self.tensor * (replica + self.data * stage)

    def place(self, rank: int) -> tuple[int, int, int]:
        """Its tensor rank, stage and replica."""
        rest, tensor = divmod(rank, self.tensor)
        stage, replica = divmod(rest, self.data)
        return tensor, stage, replica

    def tensor_group(self, rank: int) -> list[int]:
        _, stage, replica = self.place(rank)
        return [self.rank(t, stage, replica) for t in range(self.tensor)]

    def data_group(self, rank: int) -> list[int]:
        tensor, stage, _ = self.place(rank)
        return [self.rank(tensor, stage, d) for d in range(self.data)]


def host_of(rank: int) -> int:
    return rank // HOST


def hosts(layout: Layout) -> list[int]:
    """The host of each rank."""
    return [host_of(rank) for rank in range(layout.ranks)]


def ring(members: Sequence[int]) -> list[tuple[int, int]]:
    closed = [*members, members[0]] if len(members) > 2 else members
    return list(pairwise(closed))


def links(layout: Layout) -> Iterator[tuple[str, int, int]]:
    """All that is used: "tensor", "data" or "pipeline", and its two ranks."""
    for rank in range(layout.ranks):
        tensor, stage, replica = layout.place(rank)
        if not tensor:
            yield from (("tensor", *link) for link in ring(layout.tensor_group(rank)))
        if not replica:
            yield from (("data", *link) for link in ring(layout.data_group(rank)))
        if stage:
            yield "pipeline", layout.rank(tensor, stage - 1, replica), rank


class Fault(Struct, frozen=True, kw_only=True):
    """What is slow from iteration `since` on, and as before from iteration `until` on."""

    since: int = 0
    until: int | None = None

    def at(self, step: int) -> bool:
        return self.since <= step and (self.until is None or step < self.until)

    def card(self, rank: int) -> float:
        """By which factor its kernels take longer."""
        return 1.0

    def link(self, a: int, b: int) -> float:
        """By which factor a transfer between two ranks takes longer."""
        return 1.0

    def loading(self, rank: int) -> tuple[float, float]:
        """The factor of the time that its loader takes, and ms that the rank itself takes on top."""
        return 1.0, 0.0


class SlowCard(Fault, frozen=True):
    rank: int
    factor: float

    def card(self, rank: int) -> float:
        return self.factor if rank == self.rank else 1.0


class SlowHost(Fault, frozen=True):
    """All cards of a host: a power cap, heat."""

    host: int
    factor: float

    def card(self, rank: int) -> float:
        return self.factor if host_of(rank) == self.host else 1.0


class SlowLink(Fault, frozen=True, kw_only=True):
    """Between two ranks, or all between two hosts. It matters where `links` has it."""

    factor: float
    ranks: tuple[int, int] | None = None
    hosts: tuple[int, int] | None = None

    def link(self, a: int, b: int) -> float:
        hit = {a, b} == set(self.ranks or ()) or {host_of(a), host_of(b)} == set(self.hosts or ())
        return self.factor if hit else 1.0


class SlowNic(Fault, frozen=True):
    """What leaves a host or comes to it; with `rank`, only by the network card of that rank."""

    host: int
    factor: float
    rank: int | None = None

    def link(self, a: int, b: int) -> float:
        ends = {a, b} if host_of(a) != host_of(b) else set()
        hit = any(host_of(end) == self.host and self.rank in (None, end) for end in ends)
        return self.factor if hit else 1.0


class SlowData(Fault, frozen=True, kw_only=True):
    """`factor`: the loader works longer, which prefetching hides for as long as it keeps up with the iterations.
    `extra_ms`: the rank itself does (it puts batches together, copies them), which nothing hides."""

    factor: float = 1.0
    extra_ms: float = 0.0
    rank: int | None = None
    host: int | None = None

    def loading(self, rank: int) -> tuple[float, float]:
        hit = rank == self.rank or host_of(rank) == self.host
        return (self.factor, self.extra_ms) if hit else (1.0, 0.0)
