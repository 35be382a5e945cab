"""An agent and containers that are kept after their commands have ended in error: real processes and control groups."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw, structs

from sentinel.core.agents.orders import FOLLOW, Follow, What
from sentinel.core.reports import RankExit
from sentinel.transport.wire import Order
from tests.e2e import test_node_jobs
from tests.e2e.agent_node import Node
from tests.e2e.held import hold_script
from tests.e2e.test_node_jobs import JOB, Pod, Site, serving
from tests.transport.world import World, go
from tests.waits import eventually

node, world = test_node_jobs.node, test_node_jobs.world

# A rank of the job, and an orphan of it that the first process of the container takes in and that catches the signal.
TRAINS = """
import os, signal, sys, time
if os.fork() == 0:
    if os.fork() == 0:
        signal.signal(signal.SIGUSR1, lambda *_: print("the orphan has it", flush=True))
        print("orphan", flush=True)
        while True:
            signal.pause()
    os._exit(0)
os.wait()
signal.signal(signal.SIGUSR1, lambda *_: print("saved checkpoint", flush=True))
signal.signal(signal.SIGUSR2, lambda *_: os._exit(int(sys.argv[1])))
print("trains", flush=True)
while True:
    signal.pause()
"""
SUBREAPER = "import ctypes, os, sys; ctypes.CDLL(None).prctl(36, 1); os.execvp(sys.argv[1], sys.argv[1:])"


class HeldPod(Pod):
    """A pod whose container runs the wrapper, which gets the orphans as it does where it is the first process."""

    def __init__(self, rank: int, logs: Path, script: Path) -> None:
        super().__init__(rank, logs)
        self.script = script
        self.order = structs.replace(self.order, hold=True)
        self.out = script.parent / f"out-{rank}"

    def run(self, code: int) -> None:
        inside = 'echo $$ > "$0/cgroup.procs"; exec "$@"'
        wrapper = ["sh", str(self.script), "--", sys.executable, "-ISu", "-c", TRAINS, str(code)]
        words = ["sh", "-c", inside, str(self.group), sys.executable, "-ISc", SUBREAPER, *wrapper]
        env = {"PATH": "/usr/bin:/bin", "RANK": str(self.order.rank), "LOCAL_RANK": "0"}
        with self.out.open("ab") as out:
            self.processes.append(subprocess.Popen(words, env=env, stdout=out, stderr=out))

    @property
    def said(self) -> str:
        return self.out.read_text()

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        return self.processes[-1]


def add(site: Site, script: Path, code: int) -> HeldPod:
    pod = HeldPod(len(site.pods), site.logs, script)
    site.pods.append(pod)
    pod.run(code)
    return pod


def follow(site: Site, id: str, **policy: Any) -> Order:
    job = structs.replace(JOB, policy=structs.replace(JOB.policy, **policy))
    body = Follow(job=job, pods=tuple(pod.order for pod in site.pods))
    return Order(kind=FOLLOW, id=id, body=Raw(msgspec.msgpack.encode(body)))


def exits(site: Site) -> list[RankExit]:
    return [gone for a in site.world.numbered() for job, gone in a.report.exits if job == JOB.name]


def test_the_true_end_is_told_once_while_the_container_is_kept_and_it_is_let_go_when_asked(
    node: Node, world: World, tmp_path: Path
) -> None:
    async def story() -> None:
        script = hold_script(tmp_path)
        async with serving(node, world, tmp_path / "pods") as site:
            first, second = add(site, script, 3), add(site, script, 0)
            await eventually(
                lambda: all("trains" in pod.said and "orphan" in pod.said for pod in (first, second))
            )
            kept = follow(site, "follow-1", debug_hold_s=3600.0)
            capable = await site.answer(kept, site.ask("a", What.HANDLERS, signal="SIGUSR1"))
            assert capable.capable == {0: True, 1: True}
            sent = await site.answer(kept, site.ask("b", What.SIGNAL, signal="SIGUSR1"))
            assert sent.sent == (0, 1)
            await eventually(lambda: all("saved checkpoint" in pod.said for pod in (first, second)))
            assert not any("the orphan has it" in pod.said for pod in (first, second))
            first.say("step 7, and that was the last")
            await site.answer(kept, site.ask("c", What.SIGNAL, signal="SIGUSR2"))

            await eventually(lambda: exits(site))
            (gone,) = exits(site)
            assert (gone.rank, gone.incarnation, gone.code) == (0, 3, 3)
            assert await asyncio.to_thread(second.process.wait, 20) == 0  # a good end is not held
            assert first.process.poll() is None
            none = await site.answer(kept, site.ask("d", What.HANDLERS, signal="SIGUSR1"))
            assert 0 not in none.capable  # neither the wrapper nor the orphan is a rank

            site.agent.send(signal.SIGTERM)
            assert await asyncio.to_thread(site.agent.code) == 0
            world.arrived.clear()
            await site.start()
            await eventually(lambda: exits(site))
            answer = await site.answer(kept, site.ask("e", What.RELEASE))
            assert (answer.sent, answer.refused) == ((0,), {1: "not held"})
            assert await asyncio.to_thread(first.process.wait, 20) == 3
            again = await site.answer(kept, site.ask("f", What.RELEASE))
            assert again.sent == ()
            assert [one.code for one in exits(site)] == [3]

    go(story())


@pytest.mark.parametrize(("asked", "let_go"), [(None, True), (0.5, True), (3600.0, False)])
def test_nothing_is_kept_longer_than_its_policy_asks(
    node: Node, world: World, tmp_path: Path, asked: float | None, let_go: bool
) -> None:
    async def story() -> None:
        async with serving(node, world, tmp_path / "pods") as site:
            pod = add(site, hold_script(tmp_path), 9)
            await eventually(lambda: "trains" in pod.said)
            kept = follow(site, "follow-1", debug_hold_s=asked)
            await site.answer(kept, site.ask("a", What.SIGNAL, signal="SIGUSR2"))
            await eventually(lambda: [one.code for one in exits(site)] == [9])
            if not let_go:
                assert pod.process.poll() is None
                site.give(follow(site, "follow-2"))  # the policy was changed meanwhile
            assert await asyncio.to_thread(pod.process.wait, 20) == 9
            assert [one.code for one in exits(site)] == [9]

    go(story())


def test_a_policy_that_only_observes_lets_nothing_go(node: Node, world: World, tmp_path: Path) -> None:
    async def story() -> None:
        async with serving(node, world, tmp_path / "pods") as site:
            pod = add(site, hold_script(tmp_path), 9)
            await eventually(lambda: "trains" in pod.said)
            kept = follow(site, "follow-1", mode="observe")
            await site.answer(kept, site.ask("a", What.SIGNAL, signal="SIGUSR2"))
            await eventually(lambda: [one.code for one in exits(site)] == [9])
            await site.answer(kept, site.ask("b", What.DRAIN))
            assert pod.process.poll() is None

    go(story())
