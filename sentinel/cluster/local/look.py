"""What the processes of ranks do: looked at where their logs are silent."""

from collections.abc import Mapping

from msgspec import Struct

from sentinel.cluster.local.processes import Proc, is_srun, numbered, started, tree_use
from sentinel.core.reports import Worker
from sentinel.core.stacks.workers import CHILDREN


class RankLook(Struct, frozen=True):
    """`state` as in /proc/PID/stat; `io_bytes` read and written by the rank and its helpers. `restarts`: how often a
    launcher inside has started it again, where that is known. `workers`: the ranks that it has started, where it is a
    launcher, else itself if it has a number. `children`: what a program without numbers has started."""

    state: str
    io_bytes: int
    restarts: int
    workers: tuple[Worker, ...]
    children: tuple[int, ...] = ()


def looked_at(
    ranks: Mapping[int, Mapping[int, Proc]], table: Mapping[int, Proc], restarts: Mapping[int, int]
) -> dict[int, RankLook]:
    """`ranks`: of each rank of a job the program's own, by their numbers; more than one has a launcher started."""
    found = {}
    for rank, own in ranks.items():
        uses = tree_use({number: proc.pid for number, proc in own.items()}, table)
        if not own:
            continue
        first = own[min(own)]
        workers = tuple(
            Worker(number=number, pid=proc.pid, state=proc.state)
            for number, proc in sorted(own.items())
            if len(own) > 1
            or (numbered(proc.pid) and not is_srun(proc))  # in a batch script it has that one's number
        )
        found[rank] = RankLook(
            state=first.state if len(own) == 1 else "",  # else each has its own
            io_bytes=sum(use.io_bytes for use in uses.values()),
            restarts=restarts.get(rank, 0),
            workers=workers,
            children=() if workers else tuple(proc.pid for proc in started(first, table)[-CHILDREN:]),
        )
    return found
