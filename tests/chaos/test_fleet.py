"""Nodes break while everything else does too: brakes hold, no record is lost, nothing faulty comes back."""

import asyncio
import os
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sentinel.core.fleet.model import NodeQuarantine, State
from tests.chaos.fleet_nodes import KINDS, SimNode
from tests.chaos.fleet_weather import Weather
from tests.chaos.fleet_world import LEAST_NODES, World
from tests.chaos.world import seeded
from tests.kubernetes.conftest import NODES

if TYPE_CHECKING:
    from tests.rig.control_plane import ControlPlane

INCIDENTS = int(os.environ.get("CHAOS_INCIDENTS") or 200)
SIZE = int(os.environ.get("CHAOS_NODES") or LEAST_NODES)
LANE = 4  # of them fall silent, which takes long, beside all others; two are of one pool
AT_ONCE = (SIZE * 12 // 38, SIZE * 24 // 38)  # nodes that break in one episode
SPELL_S = (0.5, 3.0)  # for which the weather is bad
ALL_TELL = 0.7  # of the episodes: where some agents only say that they live, each return takes 10 s
SILENT_S = (
    180.0  # until a node is judged: 30 s after the last change of leader, which may come again and again
)
FROZEN_S = 13.0  # longer than the Lease
CALM_S = 45.0  # silence is judged only after leases were followed for 20 s without a break, which bad weather makes
PEOPLE = (
    "uncordon",
    "cordon",
    "taint",
    "delete",
    "edit",
    "agent",
    "flap",
    "replace",
    "recreate",
    "leave",
    "",
)
UPHEAVALS = ("kill leader", "kill standby", "kill both", "freeze leader", "freeze standby", "api", "etcd")


class Chaos:
    def __init__(self, world: World) -> None:
        self.world, self.rng = world, world.rng
        names = list(world.nodes)
        self.lane = [world.nodes[name] for name in names[:LANE]]
        self.regular = [world.nodes[name] for name in names[LANE:]]
        self.count: Counter[str] = Counter()
        self.incidents = 0
        self.unjudged_s: float | None = None  # since when a node is silent and nobody says so

    # ------------------------------------------------------------ one node

    async def strike(self, node: SimNode) -> None:
        """Something breaks, and it may be that somebody or something else meddles with it."""
        rng = self.rng
        finding, act = rng.choice(KINDS), rng.choice(PEOPLE)
        delays = [rng.uniform(0.0, 1.5) for _ in range(2)]
        more = rng.choice(KINDS) if rng.random() < 0.2 else None
        await asyncio.sleep(delays[0])
        self.world.note(f"{node.name}: {finding.code}, then {act or 'nothing'}")
        node.breaks(finding)
        self.incidents += 1
        self.count[finding.code] += 1
        self.count[act] += 1
        await asyncio.sleep(delays[1])
        if more is not None:
            node.breaks(more)
        await self.meddle(node, act)

    async def meddle(self, node: SimNode, act: str) -> None:
        world = self.world
        opened = [one for one in world.of(node) if one.state.open]
        if act == "uncordon":
            await world.uncordon(node)
        elif act == "cordon":
            await world.cordon(node)
        elif act == "taint":
            await world.take_taint(node)
        elif act == "delete" and opened:
            await world.delete_record(opened[0])
        elif act == "edit" and opened:
            await world.edit_record(node, opened[0])
        elif act == "agent":
            await node.restart_agent()
        elif act == "flap":
            node.repaired()
        elif act in ("replace", "recreate", "leave"):
            await world.leave(node)
            if act == "replace":
                self.other_machine(node)
            if act != "leave":
                await world.join(node)

    def other_machine(self, node: SimNode) -> None:
        node.machine, node.boots, node.found = node.machine + 1, 0, {}

    async def mend(self, node: SimNode) -> None:
        """A person or a repair system sees to it."""
        await asyncio.sleep(self.rng.uniform(0.0, 1.0))
        world = self.world
        if not node.uid:
            self.other_machine(node)
            await world.join(node)
        node.repaired()
        reboot = any(one.needs.repair == "reboot" for one in world.of(node) if one.state.open)
        if node.found or reboot or self.rng.random() < 0.2:
            await node.stop()
            node.reboots()
            early = self.rng.random() < 0.5  # the agent speaks before the kubelet has said it
            if early:
                node.start((world.folder / f"{node.name}.token").read_text())
            await asyncio.sleep(self.rng.uniform(0.0, 0.5))
            await world.boot(node)
            if not early:
                node.start((world.folder / f"{node.name}.token").read_text())
        if node.cordoned and self.rng.random() < 0.7:
            await world.uncordon(node)

    # ------------------------------------------------------------ the machinery

    async def upheaval(self, what: str) -> None:
        world = self.world
        self.count[what] += 1
        self.world.note(what)
        leader = await world.leader()
        other = next(one for one in world.controllers if one is not leader)
        await asyncio.sleep(self.rng.uniform(0.0, 1.5))
        if what == "api":
            world.plane.api_server.freeze()
            await asyncio.sleep(self.rng.uniform(1.0, 4.0))
            world.plane.api_server.thaw()
        elif what == "etcd":
            await asyncio.to_thread(world.plane.compact_etcd)
            world.weather(Weather.BLIND, Weather.BLIND)
        elif what.startswith("kill"):
            killed = {"leader": [leader], "standby": [other], "both": [leader, other]}[what.split()[1]]
            for one in killed:
                one.kill()
            await asyncio.sleep(self.rng.uniform(0.0, 2.0))
            for one in killed:
                one.start()
        elif what.startswith("freeze"):
            one = leader if what.endswith("leader") else other
            one.freeze(True)
            await asyncio.sleep(FROZEN_S)
            one.freeze(False)

    async def episode(self, upheaval: str) -> None:
        world, rng = self.world, self.rng
        victims = rng.sample(self.regular, rng.randint(*AT_ONCE))
        skies = [rng.choice(list(Weather)) for _ in range(4)]
        world.all_tell = rng.random() < ALL_TELL
        world.note(f"weather {skies[0]}, {skies[1]}; {len(victims)} nodes; {upheaval or 'no upheaval'}")
        world.weather(*skies[:2])
        works = [self.strike(node) for node in victims]
        if upheaval:
            works.append(self.upheaval(upheaval))
        await asyncio.gather(*works, asyncio.sleep(rng.uniform(*SPELL_S)))
        world.weather(Weather.CALM, Weather.CALM)
        await world.rest()
        world.note(f"mending under {skies[2]}, {skies[3]}")
        world.weather(*skies[2:])
        await asyncio.gather(*map(self.mend, victims), asyncio.sleep(rng.uniform(*SPELL_S)))
        world.weather(Weather.CALM, Weather.CALM)
        await world.rest()
        since_s = self.unjudged_s
        if since_s is not None and time.monotonic() - since_s > CALM_S:
            await world.until(  # the next one may be silent at once
                lambda: self.unjudged_s != since_s, lambda: "the silent: not told in the calm", 2 * CALM_S
            )

    # ------------------------------------------------------------ the lane of the silent

    async def silences(self) -> None:
        """One after the other, beside everything else: nodes that are not heard any more, all of them at once."""
        fates = ["fenced"] * LANE  # more of them at once than brakes let go
        while True:
            await self.silence(fates)
            fates = [self.rng.choice(["returns", "fenced", "rebooted"]) for _ in self.lane]

    async def silence(self, fates: list[str]) -> None:
        world = self.world
        pods = [await world.pod(node) for node in self.lane]
        for node, how in zip(self.lane, fates, strict=True):
            world.note(f"{node.name} falls silent, then {how}")
            node.silent = True
            await node.stop()
        self.unjudged_s = time.monotonic()
        for node in self.lane:
            await self._told_silent(node)
        self.unjudged_s = None
        assert set(pods) <= world.audit.pods.keys(), "a pod of a node that may live was removed"
        await asyncio.gather(*map(self.fate, self.lane, pods, fates))

    async def fate(self, node: SimNode, pod: str, how: str) -> None:
        """What becomes of a silent node in the end."""
        world = self.world
        self.incidents += 1
        self.count[f"silent, {how}"] += 1
        if how == "fenced":
            world.audit.proofs[node.name] = time.time()
            fence = [{"key": "node.kubernetes.io/out-of-service", "value": "off", "effect": "NoExecute"}]
            await world.patch(f"{NODES}/{node.name}", {"spec": {"taints": fence}})
            await world.until(lambda: pod not in world.audit.pods, lambda: f"{node.name}: {pod} stays")
            await world.patch(f"{NODES}/{node.name}", {"spec": {"taints": None}})
        if how != "returns":
            world.audit.proofs[node.name] = time.time()
            node.reboots()
            await world.boot(node)
        node.silent = False
        node.start((world.folder / f"{node.name}.token").read_text())
        await world.until(lambda: not self.open(node), lambda: f"{node.name}: its silence does not end")
        if how == "returns":
            assert pod in world.audit.pods
        await world.call("DELETE", f"/api/v1/namespaces/{pod.partition('/')[0]}/pods/{pod.partition('/')[2]}")
        world.audit.proofs.pop(node.name, None)

    async def _told_silent(self, node: SimNode) -> None:
        await self.world.until(
            lambda: any(one.reason in ("Unreachable", "Unfenced") for one in self.open(node)),
            lambda: f"{node.name}: nobody says that it is not heard",
            SILENT_S,
        )

    def open(self, node: SimNode) -> list[NodeQuarantine]:
        return [one for one in self.world.of(node) if one.state in (State.ACTIVE, State.HELD)]


@pytest.mark.timeout(600 + 3 * INCIDENTS)
def test_whatever_breaks_around_them_nodes_leave_and_come_back_by_the_rules(
    plane: "ControlPlane", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed, rng = seeded()
    begun = time.monotonic()

    async def story() -> None:
        world = World(plane, tmp_path, rng, SIZE)
        chaos = Chaos(world)
        try:
            await world.begin()
            await world.rest()
            lane = asyncio.create_task(chaos.silences())
            world.tasks.append(lane)
            upheavals: list[str] = []
            while chaos.incidents < INCIDENTS:
                if not upheavals:
                    upheavals = [*UPHEAVALS, *[""] * 8]
                    rng.shuffle(upheavals)
                await chaos.episode(upheavals.pop())
                if lane.done():
                    lane.result()
            world.lag_s = 0.0
            await world.rest()
        except BaseException as error:  # a note: what a worker prints is lost
            error.add_note(f"CHAOS_SEED={seed}, after {chaos.incidents} incidents\n{world.story()}")
            raise
        finally:
            await world.end()
        with capsys.disabled():
            took_s = time.monotonic() - begun
            print(f"\nCHAOS_SEED={seed}: {chaos.incidents} incidents in {took_s:.0f} s: {dict(chaos.count)}")
            audit = world.audit
            print(f"{audit.seen} writes looked at, {audit.isolations} isolations", end=", ")
            print(f"pods of {audit.removals} nodes removed by force, {audit.braked} times held back")

    asyncio.run(story())
