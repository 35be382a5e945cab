"""The jobs on an agent's node: their pods' logs are followed, and what the controller asks of them is done."""

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog
from msgspec import Struct

from sentinel.agent.fence import NodeFence
from sentinel.agent.files import NodeFiles
from sentinel.agent.holds import Holds
from sentinel.cluster.base import RankProcess
from sentinel.cluster.local import stacks
from sentinel.cluster.local.look import RankLook, looked_at
from sentinel.cluster.local.pods import Pods
from sentinel.cluster.local.processes import (
    GONE,
    Proc,
    catches_signal,
    runs_no_more,
    where,
    why_not_sent,
)
from sentinel.cluster.local.processes import scan as scan_processes
from sentinel.cluster.local.relaunch import Relaunches
from sentinel.core.agents.orders import ASK, FOLLOW, Ask, Follow, PodRank, What
from sentinel.core.model import ProtectedJob
from sentinel.core.reports import Answer, Report
from sentinel.transport.wire import Order, Orders
from sentinel.util.clock import system_now

if TYPE_CHECKING:
    from sentinel.agent.node import NodeAgent
    from sentinel.agent.ranks import Agent
    from sentinel.logs.ruleset import RuleSet

log = structlog.get_logger(__name__)

FILE = "positions.json"
MAX_LET_GO = 100  # jobs
MAX_LEFT = 20  # processes named of a pod that does not end


class _Position(Struct, frozen=True, array_like=True):
    job: str
    incarnation: int
    rank: int
    blob: bytes


def numbered(found: Mapping[int, Mapping[int, Proc]]) -> dict[int, Proc]:
    """The only process of a pod has the pod's number: without LOCAL_RANK its own is not known."""
    whole: dict[int, Proc] = {}
    for rank, procs in found.items():
        whole |= {rank: next(iter(procs.values()))} if len(procs) == 1 else procs
    return whole


class NodeJobs:
    """`ordered` is called with all orders whenever they have changed; `run` is a service of the agent."""

    def __init__(self, agent: "NodeAgent", send: Callable[[Report], None]) -> None:
        self._node = agent
        self._send = send
        self._pods = Pods()
        self._relaunches = Relaunches()
        self._files = NodeFiles()
        self._holds = Holds(self._pods, lambda job, gone: self._reader().rank_ended(job, gone))
        self._agent: Agent | None = None
        self._follows: dict[str, str] = {}  # job -> id of the order by which it is followed
        self._followed: dict[str, Follow] = {}
        self.fence = NodeFence(agent, self._pods, self._followed.values)
        self._asked: dict[str, asyncio.Task[None]] = {}  # id of an order -> its work
        self._unknown: set[str] = set()
        self._rulesets: dict[bytes, RuleSet] = {}
        self._positions: dict[tuple[str, int, int], bytes] = {}
        self._let_go: dict[
            str, None
        ] = {}  # jobs that are not followed and whose positions are kept, the newest last
        self._work = asyncio.Event()

    # ------------------------------------------------------------ orders

    def ordered(self, orders: Orders) -> None:
        """Everything that is asked now. What is no longer listed has ended."""
        follows: dict[str, tuple[str, Follow]] = {}
        asks: dict[str, Ask] = {}
        for order in orders.items:
            try:
                if order.kind == FOLLOW:
                    body = msgspec.msgpack.decode(order.body, type=Follow)
                    follows[body.job.name] = (order.id, body)
                elif order.kind == ASK:
                    asks[order.id] = msgspec.msgpack.decode(order.body, type=Ask)
                else:
                    self._not_known(order, "of a newer controller")
            except msgspec.DecodeError as error:
                self._not_known(order, str(error))
        for job in self._follows.keys() - follows.keys():
            self._forget(job)
        for job, (id, body) in follows.items():
            if self._follows.get(job) != id:
                self._follow(id, body)
        self.fence.ordered()
        for id in self._asked.keys() - asks.keys():
            self._asked.pop(id).cancel()
        for id, ask in asks.items():
            if id not in self._asked:
                self._asked[id] = asyncio.create_task(self._do(id, ask), name=f"{ask.what} {ask.job}")

    def _not_known(self, order: Order, why: str) -> None:
        if order.id not in self._unknown:
            self._unknown = {order.id, *list(self._unknown)[:100]}
            log.info("order_not_known", kind=order.kind, id=order.id, why=why)

    def _follow(self, id: str, body: Follow) -> None:
        job = body.job
        known = self._followed.get(job.name)
        if known is not None and known.job.incarnation == job.incarnation:
            old = {pod.container_id for pod in known.pods} - {pod.container_id for pod in body.pods}
            self._pods.forget(old)
            self._relaunches.forget(old)
        else:
            self._holds.forget(job.name)
        self._follows[job.name], self._followed[job.name] = id, body
        self._let_go.pop(job.name, None)
        folder = self._node.settings.pod_logs
        ranks = [
            RankProcess(rank=pod.rank, pid=0, start_ticks=0, log_path=pod.log_path(folder), cri=True)
            for pod in body.pods
        ]
        self._reader().follow(job, ranks)
        log.info("job_followed", job=job.name, incarnation=job.incarnation, pods=len(ranks))
        self._work.set()

    def _forget(self, job: str) -> None:
        self._reader().save_positions()
        del self._follows[job]
        body = self._followed.pop(job)
        self._pods.forget(pod.container_id for pod in body.pods)
        self._relaunches.forget(pod.container_id for pod in body.pods)
        self._reader().forget(job)
        self._node.link.forget(job)
        self._holds.forget(job)
        self._files.forget(job)
        self._keep_positions(job)
        if not self._follows:
            self._rulesets.clear()
            self._work.clear()
        log.info("job_let_go", job=job)

    # ------------------------------------------------------------ reading logs

    async def run(self) -> None:
        """Until cancelled. With no job on the node it sleeps."""
        try:
            while True:
                await self._work.wait()
                self._reader().poll()
                self._holds.look(self._followed.values(), system_now())
                await asyncio.sleep(self._reader().poll_s)
        finally:
            self._files.close()
            if self._agent is not None:
                self._agent.save_positions()

    def _reader(self) -> "Agent":
        """Made when the first job comes: a node without jobs loads none of it."""
        if self._agent is None:
            from sentinel.agent.ranks import Agent

            self._positions = self._load()
            self._agent = Agent(
                self._node.link.node,
                self._node.runner.boot_id,
                system_now,
                self._send,
                self._ruleset,
                metrics=self._node.metrics,
                output=lambda rank, data: None,
                look=self._look,
                read_kernel_log=lambda: self._node.runner.check_anew("kernel"),
                load_positions=self._of,
                save_positions=self._save,
            )
        return self._agent

    def _ruleset(self, job: ProtectedJob) -> "RuleSet":
        """Jobs with the same rules of their own share one."""
        from sentinel.logs.ruleset import load_ruleset
        from sentinel.rules.tables import RuleError

        extra, formats = job.policy.rules, job.policy.timing_formats
        key = msgspec.json.encode((extra, formats))
        if key not in self._rulesets:
            cache = self._node.folder / "cache"
            try:
                self._rulesets[key] = load_ruleset(extra, self._node.settings.rules_dir, cache, formats)
            except RuleError as error:
                log.warning("rules_left_out", job=job.name, error=str(error))
                self._rulesets[key] = load_ruleset((), "", cache)
        return self._rulesets[key]

    def _look(self, job: str, incarnation: int) -> Mapping[int, RankLook]:
        body = self._followed.get(job)
        if body is None or body.job.incarnation != incarnation:
            return {}
        found = self._pods.ranks(body.pods)
        ids = {pod.rank: pod.container_id for pod in body.pods}
        restarts = {rank: self._relaunches.count(ids[rank], own) for rank, own in found.items() if own}
        return looked_at(found, scan_processes(), restarts)

    # ------------------------------------------------------------ positions

    @property
    def _file(self) -> Path:
        return self._node.folder / FILE

    def _load(self) -> dict[tuple[str, int, int], bytes]:
        try:
            found = msgspec.json.decode(self._file.read_bytes(), type=list[_Position])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            log.warning("positions_unreadable", error=str(error))  # the logs are read from their beginning
            return {}
        for one in found:
            self._keep_positions(one.job)
        return {(one.job, one.incarnation, one.rank): one.blob for one in found}

    def _keep_positions(self, job: str) -> None:
        """A new leader may order one job of a node after the other: a log is not read from its beginning again for
        that, where an old line would tell of a save."""
        self._let_go.pop(job, None)
        self._let_go[job] = None
        while len(self._let_go) > MAX_LET_GO:
            oldest = next(iter(self._let_go))
            del self._let_go[oldest]
            self._positions = {key: blob for key, blob in self._positions.items() if key[0] != oldest}

    def _of(self, job: str) -> dict[tuple[int, int], bytes]:
        return {key[1:]: blob for key, blob in self._positions.items() if key[0] == job}

    def _save(self, changed: dict[tuple[str, int, int], bytes]) -> None:
        self._positions |= changed
        known = self._follows.keys() | self._let_go.keys()
        rows = [_Position(*key, blob) for key, blob in self._positions.items() if key[0] in known]
        draft = self._file.with_suffix(".new")
        try:
            draft.write_bytes(msgspec.json.encode(rows))
            os.replace(draft, self._file)
        except OSError as error:
            self._node.metrics.record_failed()
            log.warning("positions_not_saved", error=str(error))

    # ------------------------------------------------------------ what is asked

    async def _do(self, id: str, ask: Ask) -> None:
        try:
            answer = await self._answer(id, ask)
        except Exception as error:  # the named boundary of one question: the controller hears that it failed
            log.exception("order_broke", id=id, what=ask.what)
            refused = {pod.rank: f"the agent failed: {error!r}" for pod in ask.pods}
            answer = Answer(order=id, refused=refused)
        self._send(
            Report(
                node=self._node.link.node,
                boot_id=self._node.runner.boot_id,
                sequence=0,
                now=system_now(),
                answers=(answer,),
            )
        )

    async def _answer(self, id: str, ask: Ask) -> Answer:
        if ask.what is What.DRAIN:
            await self._reader().drain(ask.job)
            return Answer(order=id)
        if ask.what is What.PROCESSES:
            left = {proc.pid: proc for procs in self._pods.members(ask.pods).values() for proc in procs}
            # What the kubelet has started again runs in a container whose id nobody has told.
            left |= {proc.pid: proc for proc in self._pods.processes(pod.uid for pod in ask.pods)}
            all_left = list(left.values())
            able = sum(not (proc.dead or runs_no_more(proc.pid)) for proc in all_left)
            return Answer(order=id, texts=tuple(where(proc) for proc in all_left[:MAX_LEFT]), able=able)
        if ask.what is What.RELEASE:
            let_go, refused = self._holds.release(ask.pods)
            log.info("let_go", job=ask.job, ranks=let_go, refused=refused)
            return Answer(order=id, sent=tuple(let_go), refused=refused)
        found = self._pods.ranks(ask.pods)
        if ask.what is What.FILES:
            return await self._looked(id, ask, found)
        if ask.what is What.STACKS:
            return Answer(order=id, texts=await stacks.collect(numbered(found)))
        signo = signal.Signals[ask.signal]
        if ask.what is What.HANDLERS:
            capable = {
                rank: all(catches_signal(proc.pid, signo) for proc in procs.values())
                for rank, procs in found.items()
            }
            return Answer(order=id, capable=capable)
        return self._signalled(id, ask, found, signo)

    async def _looked(self, id: str, ask: Ask, found: Mapping[int, Mapping[int, Proc]]) -> Answer:
        first = ask.pods[0].rank
        if not (procs := found.get(first)):
            return Answer(order=id, refused={first: "gone"})
        seen = await self._files.look(ask.job, procs[min(procs)], ask.pattern)
        return (
            Answer(order=id, refused={first: seen}) if isinstance(seen, str) else Answer(order=id, files=seen)
        )

    def _signalled(
        self, id: str, ask: Ask, found: Mapping[int, Mapping[int, Proc]], signo: signal.Signals
    ) -> Answer:
        sent, refused = [], {}
        pods: tuple[PodRank, ...] = ask.pods[:1] if ask.first else ask.pods
        for pod in pods:
            procs = found.get(pod.rank, {})
            wanted = [procs[number] for number in sorted(procs)][: 1 if ask.first else None]
            if any(not catches_signal(proc.pid, signo) for proc in wanted):
                # Some that save and some that do not would hang in a collective save.
                refused[pod.rank] = f"does not catch {signo.name}"
                continue
            failed = [why_not_sent(proc.pid, proc.start_ticks, signo) for proc in wanted] or [GONE]
            if any(failed):
                refused[pod.rank] = next(filter(None, failed))
            else:
                sent.append(pod.rank)
        log.info("signalled", job=ask.job, signal=signo.name, sent=sent, refused=refused)
        return Answer(order=id, sent=tuple(sent), refused=refused)
