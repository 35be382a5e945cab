"""The ranks that launchers (torchrun, mpirun) have started, where a launcher is a rank of the job. Pure."""

from collections.abc import Collection, Iterable, Iterator

from msgspec import Struct, structs

from sentinel.core.reports import Worker
from sentinel.core.signals import how_far
from sentinel.core.stacks import process_states

# Who prints half as often as the others is not behind them.
ALIKE = 0.5
# Of the processes without numbers the newest so many are known: more than a node has ranks.
CHILDREN = 256


class Found(Struct, frozen=True, gc=False):
    """The worker that stopped first: `rank` is its launcher."""

    rank: int
    number: int
    why: str


class Workers:
    """Of one incarnation, by the rank that is their launcher."""

    def __init__(self) -> None:
        self._known: dict[int, dict[int, Worker]] = {}
        self.children: dict[int, int] = {}  # pid -> rank; of those too that are gone: the newest CHILDREN

    def reset(self) -> None:
        self._known.clear()
        self.children.clear()

    def fold(self, rank: int, news: Iterable[Worker]) -> None:
        """Take in what was seen of processes, and what lines told."""
        own = self._known.setdefault(rank, {})
        for new in news:
            old = own.get(new.number)
            if old is None:
                own[new.number] = new
            elif new.pid:
                own[new.number] = structs.replace(old, pid=new.pid, state=new.state)
            else:
                own[new.number] = structs.replace(old, told=new.told, step=new.step)

    def started(self, rank: int, children: Iterable[int]) -> None:
        """Processes of a rank that carry no number; among them may be its ranks (`mp.spawn`)."""
        for pid in children:
            self.children.pop(pid, None)
            self.children[pid] = rank
        while len(self.children) > CHILDREN:
            del self.children[next(iter(self.children))]

    def below(self, rank: int) -> bool:
        """Has it started several?"""
        return len(self._known.get(rank, ())) > 1

    def running(self, rank: int) -> int:
        """How many of those that it has started are seen to run."""
        return sum(bool(one.pid) and not _gone(one) for _, one in self._all([rank]))

    def pids(self) -> dict[int, tuple[int, int]]:
        """Of each process that is, or was, a worker: its launcher, and its number."""
        return {one.pid: (rank, one.number) for rank, one in self._all(self._known) if one.pid}

    def progressed(self, rank: int) -> None:
        """Iterations came: who was gone by now was not needed for them."""
        own = self._known.get(rank, {})
        for number in [number for number, one in own.items() if _gone(one)]:
            del own[number]

    def first_stopped(self, ranks: Collection[int]) -> Found | None:
        """The one of all workers below `ranks` of which it is known that the others wait for it."""
        known = list(self._all(ranks))
        found = process_states.stopped(((rank, one), one.state) for rank, one in known)
        if len(found) == 1:
            (rank, one), why = next(iter(found.items()))
            return Found(rank, one.number, f"{self._called(rank, one)} is {why}")
        return self._behind(known)

    def states(self, ranks: Collection[int]) -> list[str]:
        """Of those that are seen to run."""
        return [one.state for _, one in self._all(ranks) if one.state] if self._known else []

    def gone(self, ranks: Collection[int]) -> list[str]:
        """Who has ended while its launcher has not. It may have been through: that blames nobody."""
        gone = [(rank, one) for rank, one in self._all(ranks) if _gone(one)]
        return [f"{self._called(rank, one)} has ended, its launcher has not" for rank, one in gone]

    def _behind(self, known: list[tuple[int, Worker]]) -> Found | None:
        # torchrun numbers the lines of its own machine, and processes in the whole job.
        seen = {rank for rank, one in known if one.pid}
        if any(rank in seen and one.told and not one.pid for rank, one in known):
            return None
        most = max((one.told for _, one in known), default=0)
        alike = [(rank, one) for rank, one in known if one.told > ALIKE * most]
        reached = max((one.step or 0 for _, one in alike), default=0)
        behind = [(rank, one) for rank, one in alike if one.told < most and (one.step or 0) < reached]
        if len(behind) != 1 or len(alike) < 2:
            return None
        rank, one = behind[0]
        why = f"{self._called(rank, one)} stopped after {_how_far(one)}, others reached {reached}"
        return Found(rank, one.number, why)

    def _called(self, rank: int, one: Worker) -> str:
        more = [f"pid {one.pid}"] if one.pid else []
        if sum(map(self.below, self._known)) > 1:
            more.append(f"below the launcher of rank {rank}")
        return f"rank {one.number} ({', '.join(more)})" if more else f"rank {one.number}"

    def _all(self, ranks: Iterable[int]) -> Iterator[tuple[int, Worker]]:
        """Of launchers: what has started one rank at most is that rank."""
        for rank in filter(self.below, ranks):
            yield from ((rank, one) for _, one in sorted(self._known[rank].items()))


def _how_far(one: Worker) -> str:
    """Where its lines name no steps both are the same count."""
    return how_far(one.step or 0, told=one.step != one.told)


def _gone(one: Worker) -> bool:
    return bool(one.pid) and not one.state
