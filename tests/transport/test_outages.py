"""Controllers and agents that are killed or frozen, in processes of their own."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from cryptography.hazmat.primitives import serialization
from structlog.testing import capture_logs

from sentinel.transport.wire import Orders
from tests.conftest import REPO
from tests.rig.processes import free_port
from tests.transport.conftest import fill
from tests.transport.world import World, finding, go, report
from tests.waits import eventually

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    yield
    while Process.running:
        Process.running.pop().kill()


class Process:
    running: ClassVar[list["Process"]] = []

    def __init__(self, program: str, *words: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"tests.transport.{program}", *map(str, words)],
            cwd=REPO,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.running.append(self)

    async def line(self) -> str:
        assert self.process.stdout is not None
        return await asyncio.get_running_loop().run_in_executor(None, self.process.stdout.readline)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> list[str]:
        """SIGKILL; what it had still said."""
        self.process.kill()
        if self.process.stdout is None or self.process.stdout.closed:
            return []
        said = self.process.communicate()[0].split("\n")[:-1]
        return said


def world_of(folder: Path) -> World:
    world = World(folder)
    pem = world.issuer.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "issuer.key").write_bytes(pem)
    return world


def took(folder: Path) -> list[list[str]]:
    path = folder / "took"
    return [line.split(" ", 3) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


async def controller(folder: Path, port: int, epoch: int) -> Process:
    process = Process("controller", folder, port, epoch)
    assert await process.line() == "ready\n"
    return process


def test_a_controller_that_is_killed_misses_nothing_when_its_successor_comes(tmp_path: Path) -> None:
    async def story() -> None:
        async with world_of(tmp_path) as world:
            port = free_port()
            first = await controller(tmp_path, port, 1)
            agent = world.client(port)
            world.run(agent)
            agent.send(report(finding("one", event=True)))
            await eventually(lambda: agent.spool.waiting == 0 and agent.status.heard_s)
            first.kill()
            await eventually(lambda: not agent.status.address)
            for k in range(20):
                agent.send(report(finding(f"while away {k}", event=True)))
            assert agent.spool.waiting == 20
            second = await controller(tmp_path, port, 2)
            await eventually(lambda: agent.spool.waiting == 0)
            lines = took(tmp_path)
            assert [row[3] for row in lines if row[0] == "2" and row[2] != "full"] == [
                f"while away {k}" for k in range(20)
            ]
            assert next(row[2:] for row in lines if row[0] == "2") == ["full", "while away 19"]
            second.kill()

    go(story())


def test_a_frozen_leader_is_left_for_its_successor_and_its_late_orders_are_not_obeyed(tmp_path: Path) -> None:
    async def story() -> None:
        async with world_of(tmp_path) as world:
            one, two = free_port(), free_port()
            frozen = await controller(tmp_path, one, 1)
            got: list[Orders] = []
            agent = world.client(one, two, on_orders=got.append, answer_s=5.0)
            world.run(agent)
            await eventually(lambda: [o.version for o in got] == ["1"])
            frozen.signal(signal.SIGSTOP)
            agent.send(report(finding("after the freeze", event=True)))
            successor = await controller(tmp_path, two, 2)
            await eventually(lambda: agent.spool.waiting == 0 and agent.status.epoch == 2)
            assert [o.version for o in got] == ["1", "2"]
            frozen.signal(signal.SIGCONT)  # it still believes that it leads
            successor.kill()
            await eventually(lambda: any("NewerEpoch" in event.get("problem", "") for event in logged))
            agent.send(report(finding("for the third", event=True)))
            third = await controller(tmp_path, two, 3)
            await eventually(lambda: agent.spool.waiting == 0 and agent.status.epoch == 3)
            assert [o.version for o in got] == ["1", "2", "3"]
            epochs = {row[3]: row[0] for row in took(tmp_path) if row[2] != "full"}
            assert epochs == {"after the freeze": "2", "for the third": "3"}
            frozen.kill()
            third.kill()

    with capture_logs() as logged:
        go(story())


def test_an_agent_that_is_killed_again_and_again_loses_no_event_and_none_is_taken_twice(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with world_of(tmp_path) as world:
            port = free_port()
            leader = await controller(tmp_path, port, 1)
            world.write_token()
            said: list[int] = []
            for _ in range(4):
                process = Process("agent", tmp_path, port, (said[-1] if said else 0) + 1)
                said.append(int(await process.line()))
                for _ in range(100):
                    said.append(int(await process.line()))
                said += [int(line) for line in process.kill()]
            agent = world.client(port)  # the last of them
            world.run(agent)
            await eventually(lambda: agent.status.heard_s and agent.spool.waiting == 0)
            came = [int(row[3].split()[1]) for row in took(tmp_path) if row[2] != "full"]
            assert set(said) <= set(came)
            assert len(came) == len(set(came))
            assert came == sorted(came)
            leader.kill()

    go(story())


def test_an_agent_whose_disk_is_full_goes_on_telling(tmpfs: Path) -> None:
    async def story() -> None:
        async with World(tmpfs.parent) as world:
            _, port = await world.serve(epoch=7)
            agent = world.client(port, folder=str(tmpfs / "agent"))
            fill(tmpfs)
            world.run(agent)
            for k in range(1500):
                agent.send(report(finding(f"event {k}", event=True, evidence=("x" * 500,))))
            assert agent.spool.disk_errors > 0
            await eventually(lambda: agent.spool.waiting == 0 and agent.status.heard_s)
            assert agent.spool.lost().events == 0
            assert [a.report.checks[0].findings[0].code for a in world.numbered()] == [
                f"event {k}" for k in range(1500)
            ]
            assert agent.status.epoch == 7  # known, though the disk could not keep it

    go(story())


def test_the_agents_side_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys, sentinel.transport.client; "
        "print([m for m in ('cryptography', 'jwt', 'kubernetes', 'pydantic', 'aiohttp') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"


def test_a_missing_token_or_bundle_is_said_and_waited_for(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            _, port = await world.serve()
            agent = world.client(port)
            token, bundle = tmp_path / "token-node-1", world.bundle
            kept, trusted = token.read_text(), bundle.read_bytes()
            token.unlink()
            world.run(agent)
            await eventually(lambda: "no token in" in agent.status.problem)
            token.write_text(kept)
            bundle.write_bytes(b"not a certificate")
            await eventually(lambda: "no certificate authority in" in agent.status.problem)
            bundle.write_bytes(trusted)
            await eventually(world.full)

    go(story())


def test_a_name_that_nobody_knows_is_said(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            await world.serve()
            agent = world.client(addresses=("nobody.invalid:9443", "no port", ""))
            world.run(agent)
            await eventually(lambda: "no address behind nobody.invalid:9443" in agent.status.problem)

    go(story())


def test_an_agents_end_that_broke_goes_on_when_it_is_begun_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            _, port = await world.serve()
            agent = world.client(port)
            for turn in range(3):
                task = world.run(agent)
                agent.send(report(finding(f"event {turn}", event=True)))
                await eventually(lambda: agent.spool.waiting == 0 and agent.status.heard_s)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            assert [a.report.checks[0].findings[0].code for a in world.numbered()] == [
                f"event {k}" for k in range(3)
            ]
            assert len({a.session for a in world.arrived}) == 1
            assert agent.spool.disk_errors == 0

    go(story())


def test_a_server_with_another_authority_gets_neither_token_nor_report(tmp_path: Path) -> None:
    async def story() -> None:
        (tmp_path / "thief").mkdir()
        async with World(tmp_path) as world, World(tmp_path / "thief") as thief:
            await world.serve()
            _, port = await thief.serve()
            agent = world.client(port)
            agent.send(report(finding()))
            world.run(agent)
            await eventually(lambda: "certificate verify failed" in agent.status.problem)
            assert not thief.arrived
            assert agent.spool.waiting == 1

    go(story())


def test_the_next_agent_of_a_node_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    """A rolling restart of the agents: nothing is told twice, nothing is missed, no connection is left over."""

    async def story() -> None:
        async with World(tmp_path) as world:
            server, port = await world.serve()
            for turn in range(3):
                agent = world.client(port)
                task = world.run(agent)
                agent.send(report(finding(f"event {turn}", event=True)))
                await eventually(lambda: agent.spool.waiting == 0 and agent.status.heard_s)  # noqa: B023
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            assert [a.report.checks[0].findings[0].code for a in world.numbered()] == [
                f"event {k}" for k in range(3)
            ]
            await eventually(lambda: not server._lobby.connections)
            assert not os.path.exists(tmp_path / "agent-node-1" / "epoch.new")

    go(story())
