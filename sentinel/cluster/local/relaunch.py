"""Whether a launcher inside a pod (torchrun) has started its ranks again by itself."""

from collections.abc import Iterable, Mapping

from sentinel.cluster.local.processes import Proc, environ, is_same, rank_pair, read_proc

# torchrun sets it for its workers, from 0 on: torch/distributed/elastic/agent/server/local_elastic_agent.py
TORCHRUN = "TORCHELASTIC_RESTART_COUNT"


class Relaunches:
    """Remembers which processes the ranks of each container were when they were looked at last."""

    def __init__(self) -> None:
        self._known: dict[str, dict[int, Proc]] = {}  # by container id
        self._counts: dict[str, int] = {}

    def count(self, container_id: str, ranks: Mapping[int, Proc]) -> int:
        """How often its ranks were started again, as far as is known. `ranks`: as `Pods.ranks` finds them; a program
        that no launcher has numbered is left out."""
        ranks = {rank: _started(proc) for rank, proc in ranks.items() if rank_pair(proc.pid) is not None}
        known = self._known.get(container_id, {})
        newest = max((proc.start_ticks for proc in known.values()), default=-1)
        fresh = [proc for proc in ranks.values() if proc.start_ticks > newest]
        count = self._counts.get(container_id, 0)
        if fresh:
            gone = any(not is_same(proc.pid, proc.start_ticks) for proc in known.values())
            # What was not seen, between two looks or before this agent began, torchrun's own number tells.
            count = max(count + gone, *(_told(proc) for proc in fresh))
            self._known[container_id] = ranks
            self._counts[container_id] = count
        return count

    def forget(self, container_ids: Iterable[str]) -> None:
        for id in container_ids:
            self._known.pop(id, None)
            self._counts.pop(id, None)


def _started(proc: Proc) -> Proc:
    """What its launcher has started: programs that a rank's own script runs one after the other are no restart."""
    pair = rank_pair(proc.pid)
    while (parent := read_proc(proc.ppid)) is not None and rank_pair(parent.pid) == pair:
        proc = parent
    return proc


def _told(proc: Proc) -> int:
    said = environ(proc.pid).get(TORCHRUN, "")
    return int(said) if said.isascii() and said.isdecimal() and len(said) < 7 else 0
