"""The leader is killed or frozen at each write that it makes for one node: its successor ends what it began."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sentinel.core.fleet.model import State
from tests.chaos.fleet_controllers import Controller
from tests.chaos.fleet_nodes import XID_48, SimNode
from tests.chaos.fleet_world import DEADLINE_S, World
from tests.kubernetes.conftest import LEADER, NODES, QUARANTINES
from tests.kubernetes.proxy import Fault
from tests.waits import eventually

if TYPE_CHECKING:
    from tests.rig.control_plane import ControlPlane

RECORD, NODE, STATUS = "/quarantines", "/api/v1/nodes/node-00", "/api/v1/nodes/node-00/status"
# What is sent when the node breaks and when it is well again: method, path, and the how-manieth of them.
BREAKS = {
    "the record is made": ("POST", RECORD, 1),
    "the node is marked": ("PATCH", NODE, 1),
    "the mark was seen": ("PATCH", RECORD, 1),
    "its condition is written": ("PATCH", STATUS, 1),
}
MENDS = {
    "its findings are gone": ("PATCH", RECORD, 1),
    "the record ends": ("PATCH", RECORD, 2),
    "the mark is taken away": ("PATCH", NODE, 1),
}


class Trip:
    """`Proxy.weather` that does something at one request, once."""

    def __init__(self, step: tuple[str, str, int], fault: Fault) -> None:
        self.method, self.path, self.left = step
        self.fault = fault
        self.done = False

    def __call__(self, method: str, path: str) -> Fault | None:
        path = path.partition("?")[0]
        whole = path == self.path if self.path != RECORD else RECORD in path
        if self.done or method != self.method or not whole:
            return None
        self.left -= 1
        self.done = self.left == 0
        return self.fault if self.done else None


def of_one_node(
    plane: "ControlPlane", folder: Path, test: Callable[[World], Coroutine[None, None, None]]
) -> None:
    async def story() -> None:
        world = World(plane, folder, random.Random(1), 1)
        try:
            await world.begin()
            await leads(world)
            await test(world)
        except BaseException as error:
            error.add_note(world.story())
            raise
        finally:
            await world.end()

    asyncio.run(story())


async def leads(world: World, *, after: Controller | None = None) -> Controller:
    """Who leads by now, and is not `after`."""

    async def leader() -> Controller | None:
        lease = await asyncio.to_thread(world.plane.admin.find, LEADER)
        holder = ((lease or {}).get("spec", {}).get("holderIdentity") or "").rpartition("-")[0]
        return next((one for one in world.controllers if one.name == holder and one is not after), None)

    found: Controller = await eventually(leader, "nobody leads", DEADLINE_S, 0.1)
    return found


async def let_go(world: World) -> None:
    """Of a leader that is dead for sure nobody has to wait."""
    await world.patch(LEADER, {"spec": {"holderIdentity": None}})


def test_killed_before_or_after_any_write_it_is_taken_over_from_there(
    plane: "ControlPlane", tmp_path: Path
) -> None:
    async def test(world: World) -> None:
        node = world.nodes["node-00"]

        def breaks() -> None:
            node.breaks(XID_48)

        for steps, change in ((BREAKS, breaks), (MENDS, node.repaired)):
            for what, step in steps.items():
                for done in (False, True):
                    if steps is MENDS:
                        node.breaks(XID_48)
                        await world.rest()
                    leader = await leads(world)
                    world.note(f"{leader.name} is killed when {what}, {'done' if done else 'not done'}")
                    dead = leader.runs
                    assert dead is not None
                    kill = dead.process.kill
                    fault = (
                        Fault(lose_reply=True, when_passed=kill)
                        if done
                        else Fault(lose_request=True, when_come=kill)
                    )
                    leader.proxy.weather = Trip(step, fault)
                    change()
                    await asyncio.to_thread(dead.process.wait, 60)
                    leader.proxy.weather = lambda method, path: None
                    await let_go(world)
                    leader.start()
                    await world.rest()
                    await mended(world)

    of_one_node(plane, tmp_path, test)


async def mended(world: World) -> None:
    node = world.nodes["node-00"]
    node.repaired()
    await world.rest()
    assert not any(record.state.open for record in world.of(node))
    for record in world.of(node):  # a node that comes back too often would wait for a person
        await world.delete_record(record)
    await world.until(lambda: not world.of(node), lambda: "node-00: its records are not gone")


@pytest.mark.parametrize("what", [*BREAKS, *MENDS])
def test_what_a_frozen_leader_had_sent_comes_too_late(
    plane: "ControlPlane", tmp_path: Path, what: str
) -> None:
    """Stopped between its check and the arrival of its write, for longer than the Lease."""

    async def test(world: World) -> None:
        node = world.nodes["node-00"]
        if what in MENDS:
            node.breaks(XID_48)
            await world.rest()
        leader = await leads(world)
        fault = Fault(hold=True, when_come=lambda: leader.freeze(True))
        trip = leader.proxy.weather = Trip((BREAKS | MENDS)[what], fault)
        if what in MENDS:
            node.repaired()
        else:
            node.breaks(XID_48)
        await world.until(lambda: trip.done, lambda: "node-00: nothing was sent")
        await leads(world, after=leader)
        await world.rest()
        before = {record.id: record.state for record in world.of(node)}
        assert list(before.values()) == [State.RELEASED if what in MENDS else State.ACTIVE]
        leader.proxy.release()
        leader.freeze(False)
        await world.rest()
        assert before == {record.id: record.state for record in world.of(node)}
        await mended(world)

    of_one_node(plane, tmp_path, test)


@pytest.mark.parametrize("whose", ["agents", "agents and nodes"])
def test_after_a_reinstall_agents_and_nodes_obey_the_new_leader(
    plane: "ControlPlane", tmp_path: Path, whose: str
) -> None:
    """Lease and records were deleted: only agents' disks and nodes' annotations know how far leaders had counted."""

    async def test(world: World) -> None:
        node = world.nodes["node-00"]
        lease = await asyncio.to_thread(world.plane.admin.get, LEADER)
        count = lease["spec"]["leaseTransitions"]
        for one in world.controllers:
            one.kill()
        await world.patch(LEADER, {"spec": {"leaseTransitions": count + 700, "holderIdentity": None}})
        world.controllers[0].start()
        node.breaks(XID_48)
        await world.rest()
        await world.until(lambda: told(node) > count + 700, lambda: f"node-00: {told(node)} is told")
        node.repaired()
        await world.rest()
        world.controllers[0].kill()
        for record in world.of(node):
            await world.delete_record(record)
        if whose == "agents":
            await world.patch(f"{NODES}/node-00", {"metadata": {"annotations": {"sentinel.dev/epoch": None}}})
            world.audit.forgotten()
        await world.call("DELETE", LEADER)
        for one in world.controllers:
            one.start()
        node.breaks(XID_48)
        await world.until(
            lambda: any(record.isolating for record in world.of(node)), lambda: "node-00: it is not isolated"
        )
        await world.rest()
        assert told(node) > count + 701

    of_one_node(plane, tmp_path, test)


def told(node: SimNode) -> int:
    """The epoch that its agent obeys."""
    return 0 if node.client is None else node.client.status.epoch


def test_a_record_in_which_a_person_writes_a_later_epoch_stops_nobody(
    plane: "ControlPlane", tmp_path: Path
) -> None:
    """Whoever leads next begins above it; what no leader can have counted to is no epoch."""

    async def test(world: World) -> None:
        node = world.nodes["node-00"]
        node.breaks(XID_48)
        await world.rest()
        (record,) = world.of(node)
        path = f"{QUARANTINES}/{record.id}"
        for epoch in (5_000, 999_999_999, 2**40):
            await world.patch(path, {"spec": {"epoch": epoch}})
            await world.patch(path, {"metadata": {"annotations": {"sentinel.dev/epoch": str(epoch + 1)}}})
            node.repaired()
            await world.rest()
            node.breaks(XID_48)
            await world.rest()
            path = f"{QUARANTINES}/{next(one.id for one in world.of(node) if one.state.open)}"
        lease = await asyncio.to_thread(world.plane.admin.get, LEADER)
        epoch = lease["spec"]["leaseTransitions"]
        assert 5_001 < epoch < 6_000
        # By it agents refuse what an earlier leader may still ask.
        told = [one.client.status for one in world.nodes.values() if one.client is not None]
        await world.until(
            lambda: all(status.epoch == epoch for status in told), lambda: str([one.epoch for one in told])
        )
        assert told

    of_one_node(plane, tmp_path, test)
