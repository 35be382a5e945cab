"""An agent and the pods of a job on its node: real processes in real control groups, logs as a kubelet keeps them."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from sentinel.core.agents.orders import ASK, FOLLOW, Ask, Follow, PodRank, What
from sentinel.core.model import ProtectedJob
from sentinel.core.policy_model import Checkpoint, Policy, Proof, Resume
from sentinel.core.reports import Answer, Iteration
from sentinel.transport.server import Server
from sentinel.transport.wire import Order, Orders
from tests.e2e.agent_node import Node
from tests.e2e.box import Box, Running
from tests.e2e.test_agent_controller import reports_to
from tests.gate.rights import needs_root
from tests.transport.world import World, go
from tests.waits import eventually, until

V1 = Path("/sys/fs/cgroup/memory")
ROOT = V1 if V1.is_dir() else Path("/sys/fs/cgroup")
CHECKPOINT = Checkpoint(signal="SIGUSR1", proof=Proof(log_pattern="saved checkpoint"))
JOB = ProtectedJob(
    name="research/llama", policy=Policy(resume=Resume(checkpoint=CHECKPOINT), restart=None), incarnation=3
)

# A rank with a helper that inherits all of it. Logs as containerd writes them.
RANK = """
    import os, signal, sys, time
    log = open(sys.argv[1], "a", buffering=1)
    def say(text):
        log.write(f"2026-01-01T00:00:00.000000000Z stdout F {text}\\n")
    if sys.argv[2] != "deaf":
        signal.signal(signal.SIGUSR1, lambda *_: say(f"saved checkpoint by {os.getpid()}"))
    else:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if os.fork():
        say(f"ready {os.getpid()}")
    while True:
        signal.pause()
"""
# As torchrun does: when its first rank is lost all of them are ended and started again.
LAUNCHER = """
    import os, subprocess, sys
    while True:
        started = [
            subprocess.Popen([sys.executable, "-ISu", "-c", *sys.argv[1:]], start_new_session=True,
                             env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(2)
        ]
        started[0].wait()
        for rank in started:
            os.killpg(rank.pid, 9)
            rank.wait()
"""


class Pod:
    """What a kubelet makes of a pod: a control group with the id of its container, and a log."""

    def __init__(self, rank: int, logs: Path) -> None:
        uid = f"77f06c5c-0000-4000-8000-{os.getpid():06d}{rank:06d}"
        id = f"{os.getpid():032x}{rank:032x}"
        self.order = PodRank(
            rank=rank, namespace="research", pod=f"llama-{rank}", uid=uid, container="main", container_id=id
        )
        self.group = ROOT / f"sentinel-test-pod{uid}" / id
        self.group.mkdir(parents=True)
        self.log = Path(self.order.log_path(str(logs)))
        self.log.parent.mkdir(parents=True)
        self.log.touch()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.others: list[Path] = []  # control groups of other containers

    def train(self, how: str = "saves") -> None:
        """A launcher with two ranks, each with a helper that inherited everything."""
        script = 'echo $$ > "$0/cgroup.procs"; exec "$@"'
        words = [
            sys.executable,
            "-ISu",
            "-c",
            textwrap.dedent(LAUNCHER),
            textwrap.dedent(RANK),
            str(self.log),
            how,
        ]
        self.processes.append(subprocess.Popen(["sh", "-c", script, str(self.group), *words]))

    def container(self, id: str, program: str = "sleep") -> subprocess.Popen[bytes]:
        """Another container of the pod, whose id the agent was not told: one process."""
        self.others.append(self.group.parent / id)
        self.others[-1].mkdir()
        script = 'echo $$ > "$0/cgroup.procs"; exec "$1" 600'
        self.processes.append(subprocess.Popen(["sh", "-c", script, str(self.others[-1]), program]))
        return self.processes[-1]

    def say(self, text: str) -> None:
        with self.log.open("a") as file:
            file.write(f"2026-01-01T00:00:00.000000000Z stdout F {text}\n")

    def ready(self) -> set[int]:
        return {int(line.split()[-1]) for line in self.log.read_text().splitlines() if " ready " in line}

    def pids(self) -> set[int]:
        groups = (self.group, *self.others)
        return {int(pid) for group in groups for pid in (group / "cgroup.procs").read_text().split()}

    def close(self) -> None:
        until(self._killed)  # and reaped by init
        for process in self.processes:
            process.wait(180)
        for group in (*self.others, self.group):
            group.rmdir()
        self.group.parent.rmdir()

    def _killed(self) -> bool:
        """A launcher may have started more meanwhile."""
        left = self.pids()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.processes:
            process.poll()
        return not left


class Site:
    """A controller's end in this process, an agent, and pods on its node."""

    def __init__(self, world: World, node: Node, logs: Path) -> None:
        self.world, self.node, self.logs = world, node, logs
        self.server: Server
        self.port = 0
        self.agent: Running
        self.pods: list[Pod] = []

    def pod(self) -> Pod:
        self.pods.append(Pod(len(self.pods), self.logs))
        return self.pods[-1]

    async def serve(self, **link: str) -> None:
        """`link`: more of the agent's settings of its controller."""
        self.server, self.port = await self.world.serve()
        reports_to(self.world, self.node, self.port, **link)
        self.node.settings(listen="127.0.0.1:0", podLogs=str(self.logs))
        await self.start()

    async def start(self) -> None:
        self.agent = await asyncio.to_thread(self.node.start)

    def give(self, *orders: Order) -> None:
        version = str(sum(hash(order.id) for order in orders))
        self.world.orders["node-1"] = Orders(version=version, items=orders)
        self.server.orders_changed("node-1")

    def follow(self) -> Order:
        body = Follow(job=JOB, pods=tuple(pod.order for pod in self.pods))
        return Order(kind=FOLLOW, id="follow-1", body=Raw(msgspec.msgpack.encode(body)))

    def ask(self, id: str, what: What, **more: Any) -> Order:
        pods = tuple(pod.order for pod in self.pods)
        body = Ask(what=what, job=JOB.name, incarnation=3, pods=pods, **more)
        return Order(kind=ASK, id=id, body=Raw(msgspec.msgpack.encode(body)))

    async def answer(self, *orders: Order) -> Answer:
        """What the last of these brought."""
        self.give(*orders)
        found: list[Answer] = []

        def come() -> list[Answer]:
            found[:] = [
                one for a in self.world.arrived for one in a.report.answers if one.order == orders[-1].id
            ]
            return found

        await eventually(come)
        (answer,) = found
        return answer

    def iterations(self, rank: int) -> list[float | None]:
        """By their end-to-end times, which `timing` makes out of the number of the step."""
        told: list[Iteration] = [
            iteration
            for arrived in self.world.numbered()
            for one in arrived.report.ranks
            if (one.job, one.incarnation, one.rank) == (JOB.name, 3, rank)
            for iteration in one.iterations
        ]
        return [one.e2e_ms for one in told]

    def proofs(self) -> list[str]:
        return [
            match.line
            for a in self.world.numbered()
            for match in a.report.matches
            if match.failure == "proof"
        ]


@pytest.fixture
def node(box: Box) -> Node:
    return Node(box)


@pytest.fixture
@needs_root
def world(tmp_path: Path) -> World:
    """Its pods are control groups."""
    (tmp_path / "world").mkdir()
    return World(tmp_path / "world")


@contextlib.asynccontextmanager
async def serving(node: Node, world: World, logs: Path, **link: str) -> AsyncIterator[Site]:
    """With an agent that runs; its pods end with it."""
    site = Site(world, node, logs)
    async with world:
        try:
            await site.serve(**link)
            yield site
        finally:
            for pod in site.pods:
                pod.close()


def timing(step: int) -> str:
    return f"this iteration hardware time is 0.521 and e2e time is {step} ms."


def test_logs_of_pods_are_followed_and_a_new_agent_reads_on(node: Node, world: World, tmp_path: Path) -> None:
    async def story() -> None:
        async with serving(node, world, tmp_path / "pods") as site:
            first, second = site.pod(), site.pod()
            site.give(site.follow())
            first.say(timing(1))
            second.say(timing(1))
            first.say("saved checkpoint at step 1")
            await eventually(lambda: site.iterations(0) == [1] and site.iterations(1) == [1])
            await eventually(lambda: len(site.proofs()) == 1)
            assert "saved checkpoint at step 1" in site.proofs()[0]
            site.agent.send(signal.SIGTERM)
            assert await asyncio.to_thread(site.agent.code) == 0
            world.arrived.clear()
            first.say(timing(2))
            await site.start()
            await eventually(lambda: 2 in site.iterations(0))
            assert not site.proofs()  # an old checkpoint proves no later save

            await site.answer(site.ask("a", What.PROCESSES))  # the job has gone elsewhere
            first.say(timing(3))
            await site.answer(site.ask("b", What.DRAIN))
            assert 3 not in site.iterations(0)
            site.give(site.follow())  # as a new leader does that takes up one job after the other
            await eventually(lambda: 3 in site.iterations(0))
            assert not site.proofs()

    go(story())


def test_a_signal_reaches_the_ranks_and_neither_launcher_nor_helpers(
    node: Node, world: World, tmp_path: Path
) -> None:
    async def story() -> None:
        async with serving(node, world, tmp_path / "pods") as site:
            first, second = site.pod(), site.pod()
            for pod in site.pods:
                pod.train()
            await eventually(lambda: all(len(pod.ready()) == 2 and len(pod.pids()) == 5 for pod in site.pods))
            follow = site.follow()
            capable = await site.answer(follow, site.ask("a", What.HANDLERS, signal="SIGUSR1"))
            assert capable.capable == {0: True, 1: True}
            sent = await site.answer(follow, site.ask("b", What.SIGNAL, signal="SIGUSR1"))
            assert (sent.sent, sent.refused) == ((0, 1), {})
            await eventually(lambda: len(site.proofs()) == 4)
            savers = {int(line.split()[-1]) for line in site.proofs()}
            assert savers == first.ready() | second.ready()
            only = await site.answer(follow, site.ask("c", What.SIGNAL, signal="SIGUSR1", first=True))
            assert only.sent == (0,)
            await eventually(lambda: len(site.proofs()) == 5)
            left = await site.answer(follow, site.ask("d", What.PROCESSES))
            assert (len(left.texts), left.able) == (10, 10)
            stacks = await site.answer(follow, site.ask("e", What.STACKS))
            assert len(stacks.texts) == 2
            first.say(timing(7))
            await site.answer(follow, site.ask("f", What.DRAIN))
            assert site.iterations(0) == [7]  # told before the answer

    go(story())


def test_ranks_that_would_die_of_the_signal_are_spared_and_pods_that_are_gone_are_said_to_be(
    node: Node, world: World, tmp_path: Path
) -> None:
    async def story() -> None:
        async with serving(node, world, tmp_path / "pods") as site:
            deaf, again = site.pod(), site.pod()
            deaf.train("deaf")
            again.container("f" * 64)  # the kubelet has started it again, and nobody has told its id
            await eventually(lambda: len(deaf.ready()) == 2 and len(deaf.pids()) == 5 and again.pids())
            left = await site.answer(site.ask("0", What.PROCESSES))
            assert (len(left.texts), left.able) == (6, 6)
            sent = await site.answer(site.ask("a", What.SIGNAL, signal="SIGUSR1"))
            assert sent.sent == ()
            assert sent.refused == {0: "does not catch SIGUSR1", 1: "gone"}
            assert deaf.ready() <= deaf.pids()
            capable = await site.answer(site.ask("b", What.HANDLERS, signal="SIGUSR1"))
            assert capable.capable == {0: False}
            broken = await site.answer(site.ask("c", What.SIGNAL, signal="SIGNOTHING"))
            assert set(broken.refused) == {0, 1}

    go(story())


def test_ranks_that_a_launcher_in_the_pod_starts_again_are_counted(
    node: Node, world: World, tmp_path: Path
) -> None:
    async def story() -> None:
        async with serving(node, world, tmp_path / "pods") as site:
            first, _ = site.pod(), site.pod()
            for pod in site.pods:
                pod.train()
            await eventually(lambda: all(len(pod.ready()) == 2 for pod in site.pods))
            site.give(site.follow())
            looked = len(world.arrived)
            await eventually(lambda: _looked_at(site, looked))  # it knows the ranks as they are now
            os.kill(min(first.ready()), signal.SIGKILL)
            await eventually(lambda: _restarts(site, 0) == 1)
            assert _restarts(site, 1) == 0

    go(story())


def _restarts(site: Site, rank: int) -> int:
    """That its launcher has made, as the agent tells."""
    told = [one for arrived in site.world.numbered() for one in arrived.report.ranks if one.rank == rank]
    return max((one.restarts for one in told), default=0)


def _looked_at(site: Site, since: int) -> bool:
    ranks = [one for arrived in site.world.arrived[since:] for one in arrived.report.ranks]
    told = [one for one in ranks if one.io_bytes is not None]
    return {one.rank for one in told} == {0, 1}
