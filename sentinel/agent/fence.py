"""Ends the ranks of jobs with `lostNode.selfFence` when this node reaches nobody: see core/agents/self_fence.py."""

import asyncio
import math
import signal
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import structlog

from sentinel import rights
from sentinel.cluster.local.pods import Pods
from sentinel.cluster.local.processes import send_signal
from sentinel.core.agents import self_fence
from sentinel.core.agents.orders import Follow
from sentinel.core.units import duration_text
from sentinel.util.clock import system_now

if TYPE_CHECKING:
    from sentinel.agent.node import NodeAgent

log = structlog.get_logger(__name__)

ENDED = self_fence.ENDED
UNABLE = "cannot-self-fence"
ENTITY = "selfFence"


class NodeFence:
    """`follows`: the orders in force. `ordered` is called whenever they have changed, `reached` with each answer of a
    controller; `run` is a service of the agent. An agent that has just begun knows no order and ends nothing.

    Nothing is confirmed before the API server has answered, and what is confirmed is taken back when it does not while
    a controller does: who cannot reach it anyway would take controllers that are away for being cut off.
    """

    def __init__(self, agent: "NodeAgent", pods: Pods, follows: Callable[[], Collection[Follow]]) -> None:
        self._agent, self._pods, self._follows = agent, pods, follows
        # CLOCK_BOOTTIME, which counts while the machine is suspended.
        self._controller_s = self._reached_s = system_now().mono_s
        self._asked_s = -math.inf
        self._where = ("", "")  # the API server and its authority
        self._able = False  # it answered, when it was to
        self._why = ""  # it did not
        self._kept: frozenset[str] = frozenset()  # uids of the pods that a controller may count on
        self._told = 0  # number of the report that said so last
        self._pace = self_fence.Pace()
        self._wanted = asyncio.Event()

    def reached(self) -> None:
        """A controller has answered, whether it leads or not."""
        self._controller_s = self._reached_s = system_now().mono_s

    def ordered(self) -> None:
        """What is asked of this node is confirmed, so that the controller counts on it; or it cannot be done."""
        wanted = self_fence.fences(self._follows())
        where = self._address(), self._agent.settings.controller.api_server_ca_file
        if where != self._where or not wanted:
            self._where, self._able, self._why, self._asked_s = where, False, "", -math.inf
        self._pace = self_fence.pace(min(wanted.values(), default=self_fence.LEAST_S))
        self._tell()
        (self._wanted.set if wanted else self._wanted.clear)()

    def _tell(self) -> None:
        wanted = self_fence.fences(self._follows())
        if wanted and not self._able and self._why:
            text = "Jobs ask for selfFence, and this agent cannot end them or tell whether it is cut off"
            self._agent.notice(UNABLE, ENTITY, text, self._why, "CHECK_SETTINGS")
        else:
            self._agent.well(UNABLE, ENTITY)
        promised = dict(wanted) if self._able else {}
        self._told = self._agent.link.fences(promised)
        if self._able:
            self._kept = frozenset(promised)
        self._agent.metrics.self_fence_pods(len(self._kept & wanted.keys()))

    def _address(self) -> str:
        from sentinel.transport import api_server

        return self._agent.settings.controller.api_server or api_server.address_of_pods()

    # ------------------------------------------------------------ alone

    async def run(self) -> None:
        """Until cancelled. Without a job that asks for it, it sleeps."""
        while True:
            await self._wanted.wait()
            await self._look()
            await asyncio.sleep(self._pace.look_s)

    async def _look(self) -> None:
        """The API server is asked before anything is ended: an agent that stood still was silent, but not cut off."""
        now_s = system_now().mono_s
        alone = now_s - self._reached_s >= self._pace.ask_after_s
        every_s = self._pace.ask_every_s if alone or not self._able else self._pace.check_every_s
        if now_s - self._asked_s >= every_s:
            self._asked_s = now_s
            await self._ask(now_s)
        if not self._able and self._kept and self._agent.link.took(self._told):
            self._kept = frozenset()  # only now: who was cut off before it could take its word back keeps it
            self._agent.metrics.self_fence_pods(0)
        alone_s = system_now().mono_s - self._reached_s
        for follow in self_fence.due(self._follows(), alone_s):
            self._end(follow, alone_s)

    async def _ask(self, now_s: float) -> None:
        from sentinel.transport import api_server

        where = self._where
        if not rights.may(rights.KILL):
            why = "ranks of other users are ended with CAP_KILL alone"
        elif where[0]:
            why = await api_server.answers(*where)
        else:
            why = "controller.apiServer is not set, and this is no pod"
        if where != self._where or not self._wanted.is_set():
            return  # other settings or orders meanwhile
        before, self._why = (self._able, self._why), why
        if not why:
            self._reached_s = max(self._reached_s, now_s)
            self._able = True
        elif system_now().mono_s - self._controller_s < self._pace.ask_after_s:
            self._able = False
        if why and before[1] != why:
            log.warning("api_server_unreachable", problem=why)
        if before != (self._able, why):
            self._tell()

    def _end(self, follow: Follow, alone_s: float) -> None:
        """Again and again: the kubelet may start containers anew, with other ids in the same pods."""
        kept = [pod.uid for pod in follow.pods if pod.uid in self._kept]
        found = self._pods.processes(kept) if kept else ()
        ended = sum(send_signal(one.pid, one.start_ticks, signal.SIGKILL) for one in found)
        if not ended:
            return
        job = follow.job.name
        self._agent.metrics.self_fenced(ended)
        log.warning("self_fenced", job=job, processes=ended, alone_s=round(alone_s))
        self._agent.notice(
            ENDED,
            job,
            f"The agent ended the ranks of {job} on this node: it had reached neither a controller nor the API server",
            f"{ended} processes killed after {duration_text(round(alone_s))}; selfFence is "
            f"{duration_text(follow.self_fence_s or 0.0)}; {self._why or 'no controller'}",
            "NONE",
            event=True,
        )
