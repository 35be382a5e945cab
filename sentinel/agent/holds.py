"""Containers on an agent's node that are kept after their commands have ended in error (docs/hold.md): told, let go."""

import signal
from collections.abc import Callable, Iterable

import structlog
from msgspec import Struct

from sentinel.cluster.local.pods import Held, Pods
from sentinel.cluster.local.processes import why_not_sent
from sentinel.core.agents.orders import Follow, PodRank
from sentinel.core.job import hold
from sentinel.core.now import Now
from sentinel.core.reports import RankExit

log = structlog.get_logger(__name__)

SEARCH_S, SEARCH_MAX_S = 1.0, 30.0  # how often a wrapper that is not found is searched for: ever less often


class _Search(Struct):
    next_s: float
    pause_s: float


class Holds:
    """`tell(job, exit)` hears of each end once, and once more after a restart of the agent."""

    def __init__(self, pods: Pods, tell: Callable[[str, RankExit], None]) -> None:
        self._pods, self._tell = pods, tell
        self._told: dict[str, set[str]] = {}  # job -> ids of containers
        self._searches: dict[str, _Search] = {}  # job -> of wrappers that are not found yet

    def look(self, follows: Iterable[Follow], now: Now) -> None:
        """What is kept since the last look is told; what was kept for as long as its policy asks is let go."""
        for follow in follows:
            pods = [pod for pod in follow.pods if pod.hold]
            if not pods:
                continue
            job = follow.job
            for rank, held in self._pods.held(pods, search=self._due(job.name, pods, now)).items():
                (pod,) = (pod for pod in pods if pod.rank == rank)
                told = self._told.setdefault(job.name, set())
                if pod.container_id not in told:
                    told.add(pod.container_id)
                    log.info("held", job=job.name, rank=rank, code=held.code)
                    self._tell(job.name, hold.rank_exit(rank, job.incarnation, held.since_s, held.code))
                over = now.mono_s - held.since_s >= (job.policy.debug_hold_s or 0.0)
                if over and job.policy.mode == "enforce":
                    _end(held)

    def forget(self, job: str) -> None:
        self._told.pop(job, None)
        self._searches.pop(job, None)

    def release(self, pods: Iterable[PodRank]) -> tuple[list[int], dict[int, str]]:
        """End what keeps these: the ranks that were let go, and why others were not."""
        wanted = list(pods)
        found = self._pods.held(wanted, search=True)
        failed = {rank: why for rank, held in found.items() if (why := _end(held))}
        let_go = sorted(found.keys() - failed.keys())
        return let_go, {
            pod.rank: failed.get(pod.rank, "not held") for pod in wanted if pod.rank not in let_go
        }

    def _due(self, job: str, pods: list[PodRank], now: Now) -> bool:
        if not self._pods.unknown(pods):
            self._searches.pop(job, None)
            return False
        search = self._searches.setdefault(job, _Search(now.mono_s, SEARCH_S))
        if now.mono_s < search.next_s:
            return False
        search.next_s, search.pause_s = now.mono_s + search.pause_s, min(2 * search.pause_s, SEARCH_MAX_S)
        return True


def _end(held: Held) -> str:
    """The wrapper then ends with its command's code. Why not, if it may not be ended."""
    return why_not_sent(held.wrapper.pid, held.wrapper.start_ticks, signal.SIGTERM)
