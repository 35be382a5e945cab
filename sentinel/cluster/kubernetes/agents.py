"""What the leader orders of the agents on the nodes of jobs, and what they answer.

Orders stand until they are taken back, so an agent that was away, or began anew, gets them with its next answer. A
question is taken back when its answer came or its time is over: an agent that is not heard holds up nobody.
"""

import asyncio
import secrets
from collections.abc import Callable, Container, Iterable, Mapping
from time import monotonic

import msgspec
import structlog
from msgspec import Raw, structs

from sentinel.core.agents.orders import ASK, FOLLOW, Ask, Follow, PodRank
from sentinel.core.model import ProtectedJob
from sentinel.core.reports import Answer
from sentinel.transport.wire import Arrived, Order, Orders

log = structlog.get_logger(__name__)

# Until then a node of which nothing is ordered follows what an earlier leader ordered: jobs are taken up one by one.
KNOWN_AFTER_S = 60.0
MAX_PER_NODE = 200  # orders; the pods of a node are fewer


class Agents:
    """`changed` gets a node whose orders are others now: `transport.server.Server.orders_changed`."""

    def __init__(self, changed: Callable[[str], None], known_after_s: float = KNOWN_AFTER_S) -> None:
        self._changed = changed
        self._follows: dict[str, dict[str, Order]] = {}  # node -> job -> order
        self._asks: dict[str, dict[str, Order]] = {}  # node -> id -> order
        self._answers: dict[tuple[str, str], asyncio.Future[Answer]] = {}  # (node, id)
        self._versions: dict[str, Orders] = {}
        self._nodes: dict[str, frozenset[str]] = {}  # job -> where it is followed
        self._mine = secrets.token_hex(4)  # versions and ids of another leader are not ours
        self._count = 0
        self._known_from_s = monotonic() + known_after_s

    # ------------------------------------------------------------ what the transport asks and tells

    def orders(self, node: str) -> Orders:
        """Without a version: not known yet."""
        if (found := self._versions.get(node)) is not None:
            return found
        return Orders(version=f"{self._mine}-0" if monotonic() >= self._known_from_s else "")

    def arrived(self, arrived: Arrived) -> None:
        for answer in arrived.report.answers:
            waiting = self._answers.get((arrived.node, answer.order))
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)

    # ------------------------------------------------------------ what the controller asks

    def follow(
        self, job: ProtectedJob, pods: Mapping[str, Iterable[PodRank]], observed: Container[str] = ()
    ) -> None:
        """These are the pods of the job's running incarnation, by node; on other nodes it is let go. Nothing ends by
        itself on nodes that are only `observed`."""
        lost = job.policy.lost_node
        self_fence_s = lost.self_fence_s if lost is not None and job.policy.mode == "enforce" else None
        # Without `lost_node`: an older agent would not read one that has no forceAfter.
        policy = structs.replace(job.policy, lost_node=None)
        slim = ProtectedJob(name=job.name, policy=policy, incarnation=job.incarnation, size=job.size)
        there = frozenset(pods)
        for node in self._nodes.get(job.name, frozenset()) - there:
            self._take_back(node, job.name)
        for node, some in pods.items():
            after_s = None if node in observed else self_fence_s
            body = msgspec.msgpack.encode(Follow(job=slim, pods=tuple(some), self_fence_s=after_s))
            known = self._follows.get(node, {}).get(job.name)
            if known is None or bytes(known.body) != body:
                order = Order(kind=FOLLOW, id=self._new_id(), body=Raw(body))
                self._follows.setdefault(node, {})[job.name] = order
                self._tell(node)
        self._nodes[job.name] = there

    def forget(self, job: str) -> None:
        for node in self._nodes.pop(job, frozenset()):
            self._take_back(node, job)

    async def ask(self, asks: Mapping[str, Ask], within_s: float) -> dict[str, Answer]:
        """By node; one that does not answer in time is left out."""
        ids: dict[str, str] = {}
        for node, ask in asks.items():
            if len(self._asks.get(node, {})) >= MAX_PER_NODE:
                log.warning("too_many_orders", node=node, what=ask.what)
                continue
            id = ids[node] = self._new_id()
            order = Order(kind=ASK, id=id, body=Raw(msgspec.msgpack.encode(ask)))
            self._asks.setdefault(node, {})[id] = order
            self._answers[node, id] = asyncio.get_running_loop().create_future()
            self._tell(node)
        waited = [self._answers[node, id] for node, id in ids.items()]
        try:
            if waited:
                await asyncio.wait(waited, timeout=within_s)
            return {
                node: self._answers[node, id].result()
                for node, id in ids.items()
                if self._answers[node, id].done()
            }
        finally:
            for node, id in ids.items():
                if not self._answers.pop((node, id)).done():
                    log.warning("not_answered", node=node, what=asks[node].what, job=asks[node].job)
                left = self._asks.get(node, {})
                left.pop(id, None)
                if not left:
                    self._asks.pop(node, None)
                self._tell(node)

    # ------------------------------------------------------------ inside

    def _new_id(self) -> str:
        self._count += 1
        return f"{self._mine}-{self._count}"

    def _take_back(self, node: str, job: str) -> None:
        there = self._follows.get(node, {})
        if there.pop(job, None) is not None:
            if not there:
                del self._follows[node]
            self._tell(node)

    def _tell(self, node: str) -> None:
        items = (*self._follows.get(node, {}).values(), *self._asks.get(node, {}).values())
        if items:
            self._versions[node] = Orders(version=self._new_id(), items=items)
        elif node in self._versions:
            # Not forgotten: the agent still has to hear that nothing is asked any more.
            self._versions[node] = structs.replace(self._versions[node], version=self._new_id(), items=())
        self._changed(node)
