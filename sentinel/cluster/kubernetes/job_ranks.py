"""The ranks of the jobs of a cluster, reached through the agents of their nodes."""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from sentinel.cluster.base import RankProcess, SignalOutcome
from sentinel.cluster.kubernetes.agents import Agents
from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.errors import NotFound
from sentinel.cluster.kubernetes.job_room import Rooms
from sentinel.cluster.kubernetes.known_jobs import KnownJobs
from sentinel.core.agents.orders import Ask, What
from sentinel.core.model import ProtectedJob
from sentinel.core.reports import Answer, Files
from sentinel.util.errors import TemporaryError

ANSWER_S = 10.0  # of an agent
STACKS_S = 20.0  # of one that looks at all ranks of its node
DRAIN_S = 5.0


class JobRanks(KnownJobs):
    """What is asked of ranks, and told to them; nothing of their objects and pods is changed here."""

    def __init__(self, client: Client, agents: Agents, rooms: Rooms) -> None:
        super().__init__(client, agents, rooms)
        self.observed: Callable[[str], bool] = lambda node: False

    async def signal_ranks(
        self, job: str, incarnation: int, ranks: Iterable[int], name: str
    ) -> SignalOutcome:
        wanted = sorted(ranks)
        known = self._known(job)
        answers = await self._ask(job, incarnation, What.SIGNAL, ANSWER_S, wanted, name)
        sent = sorted(rank for answer in answers.values() for rank in answer.sent)
        refused = {rank: why for answer in answers.values() for rank, why in answer.refused.items()}
        for rank in wanted:
            if rank not in sent:
                refused.setdefault(rank, "its agent does not answer" if rank in known.pods else "gone")
        return SignalOutcome(sent=tuple(sent), refused=refused)

    async def save_capable(self, job: str, incarnation: int, name: str) -> dict[int, bool]:
        answers = await self._ask(job, incarnation, What.HANDLERS, ANSWER_S, None, name)
        dark = {rank: node for rank, node in self.nodes(job).items() if node not in answers}
        if dark:
            rank, node = min(dark.items())
            others = f" and of {len(dark) - 1} more" if len(dark) > 1 else ""
            raise TemporaryError(f"nobody answers on {node}, the node of rank {rank}{others}")
        return {rank: catches for answer in answers.values() for rank, catches in answer.capable.items()}

    async def files(self, job: str, incarnation: int, cwd: str, pattern: str) -> Files:
        """As the first rank's process sees them: `cwd` is its own. Raises TemporaryError: it cannot be told."""
        first = sorted(self._known(job).pods)[:1]
        answers = await self._ask(job, incarnation, What.FILES, ANSWER_S, first, pattern=pattern)
        for answer in answers.values():
            for why in answer.refused.values():
                raise TemporaryError(why)
            return answer.files
        raise TemporaryError("no agent tells of the first rank's files")

    async def stacks(self, job: str, incarnation: int, ranks: Iterable[int]) -> tuple[str, ...]:
        answers = await self._ask(job, incarnation, What.STACKS, STACKS_S, sorted(ranks))
        return tuple(line for answer in answers.values() for line in answer.texts)

    async def drain(self, job: str) -> None:
        """Wait until the agents have read the logs to their end and told it; one that is not heard holds up nobody."""
        with contextlib.suppress(NotFound):
            await self._ask(job, 0, What.DRAIN, DRAIN_S)

    async def let_go(self, job: str, incarnation: int) -> tuple[int, ...]:
        """End what keeps its containers after their commands have ended: the ranks that were held (docs/hold.md)."""
        answers = await self._ask(job, incarnation, What.RELEASE, ANSWER_S)
        return tuple(sorted(rank for answer in answers.values() for rank in answer.sent))

    def follow(self, job: ProtectedJob, ranks: list[RankProcess]) -> None:
        """The agents read the logs of these from now on."""
        by_node = self._by_node(job.name)
        self._agents.follow(job, by_node, {node for node in by_node if self.observed(node)})

    async def _ask(
        self,
        job: str,
        incarnation: int,
        what: What,
        within_s: float,
        only: Sequence[int] | None = None,
        signal: str = "",
        pattern: str = "",
    ) -> Mapping[str, Answer]:
        """All nodes of the job at once; those that do not answer in time are left out."""
        asks = {
            node: Ask(
                what=what,
                job=job,
                incarnation=incarnation,
                pods=tuple(pods),
                signal=signal,
                pattern=pattern,
            )
            for node, pods in self._by_node(job, only).items()
        }
        return await self._agents.ask(asks, within_s) if asks else {}
