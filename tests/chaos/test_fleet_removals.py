"""Pods go by force from a node that is dead while its leader is killed or frozen: its successor ends what it began."""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sentinel.core.fleet.model import Fence, FenceState, Kind, NodeQuarantine, Proof
from tests.chaos.fleet_controllers import Controller
from tests.chaos.fleet_nodes import SimNode
from tests.chaos.fleet_world import World
from tests.chaos.test_fleet_steps import leads, let_go
from tests.kubernetes.conftest import NODES, QUARANTINES, rank
from tests.kubernetes.proxy import Fault

if TYPE_CHECKING:
    from tests.rig.control_plane import ControlPlane

PODS = "/api/v1/namespaces/default/pods"
RECORD = "/quarantines"
NO_MORE = "leads no more"  # as a controller says it
# Each write: method, path, and what its body says. The reasons stand in the story of the record.
CALL, ENDED = ("", RECORD, b'"Fencing"'), ("", RECORD, b'"Fenced"')
REMOVAL, GONE = ("PATCH", RECORD, b'"RemovedByForce"'), ("DELETE", PODS, b"")
# It runs until it is let go, and says each call; killed leaders leave it behind.
PROGRAM = """#!/bin/sh
echo "$SENTINEL_RECORD" >>{folder}/called
while [ ! -e {folder}/go ]; do sleep 0.05; done
exit 0
"""


class Site:
    """node-00 is lost, with what ran there; the others live."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world, self.folder = world, folder
        self.lost = world.nodes["node-00"]
        self.alive = world.nodes["node-01"]

    @property
    def record(self) -> NodeQuarantine | None:
        """Of its silence. There is one at most."""
        found = [one for one in self.world.of(self.lost) if one.kind is Kind.SILENCE and one.state.open]
        assert len(found) < 2, found
        return found[0] if found else None

    def removed(self) -> list[str]:
        """Ids of pods, as often as the record says that they were removed."""
        return [pod for one in self.record.removals for pod in one.pods] if self.record else []

    async def worker(self, node: SimNode, name: str) -> str:
        """The id of a pod that runs there."""
        made = await self.world.call("POST", PODS, rank(name, "default", node.name, self.world.job_uid))
        return f"default/{name}/{made['metadata']['uid']}"

    async def falls_silent(self) -> None:
        self.lost.silent = True
        await self.lost.stop()

    async def is_proved_dead(self) -> None:
        self.world.audit.proofs[self.lost.name] = time.time()
        fence = [{"key": "node.kubernetes.io/out-of-service", "value": "off", "effect": "NoExecute"}]
        await self.world.patch(f"{NODES}/{self.lost.name}", {"spec": {"taints": fence}})

    async def comes_back(self) -> None:
        world = self.world
        self.lost.reboots()
        await world.boot(self.lost)
        self.lost.silent = False
        self.lost.start((world.folder / f"{self.lost.name}.token").read_text())
        await world.until(lambda: self.record is None, lambda: "node-00: its silence does not end")

    async def removed_once(self, pod: str) -> None:
        def done() -> bool:
            return pod in self.removed() and pod.rpartition("/")[0] not in self.world.audit.pods

        await self.world.until(done, lambda: f"node-00: {pod} stays")
        assert self.removed().count(pod) == 1
        await self.world.rest()

    def asked(self, pod: str) -> int:
        """How often leaders asked that it be deleted."""
        _, name, _ = pod.split("/")
        asked = f"DELETE {PODS}/{name}"
        return sum(
            one.partition("?")[0] == asked for each in self.world.controllers for one in each.proxy.seen
        )

    # ------------------------------------------------------------ what befalls a leader

    def kills(self, leader: Controller, step: tuple[str, str, bytes], *, done: bool) -> None:
        """At its next such write: `done`, or lost with it."""
        assert leader.runs is not None
        method, path, says = step
        fault = Fault(method=method, path=path, says=says)
        if done:
            fault.lose_reply, fault.when_passed = True, leader.runs.process.kill
        else:
            fault.lose_request, fault.when_come = True, leader.runs.process.kill
        leader.proxy.faults.append(fault)

    async def is_followed(self, leader: Controller) -> Controller:
        """It is killed, or will be; who leads then."""
        assert leader.runs is not None
        await asyncio.to_thread(leader.runs.process.wait, 120)
        leader.proxy.faults.clear()
        await let_go(self.world)
        follows = await leads(self.world, after=leader)
        leader.start()  # not before: it might lead again
        return follows

    def freezes(self, leader: Controller, step: tuple[str, str, bytes]) -> Fault:
        method, path, says = step
        fault = Fault(method=method, path=path, says=says, hold=True, when_come=lambda: leader.freeze(True))
        leader.proxy.faults.append(fault)
        return fault

    async def is_frozen(self, leader: Controller, fault: Fault) -> Controller:
        """Between its check and the arrival of its write, for longer than the Lease; who leads then."""
        await self.world.until(lambda: fault.times == 0, lambda: "node-00: nothing was sent")
        return await leads(self.world, after=leader)

    async def thaws(self, leader: Controller, fault: Fault) -> None:
        """What it had sent arrives, and it sees that it leads no more."""
        passed = threading.Event()
        fault.when_passed = passed.set
        leader.proxy.release()
        await self.world.until(passed.is_set, lambda: "node-00: nothing was passed on")
        assert leader.runs is not None
        runs, said = leader.runs, leader.runs.err.count(NO_MORE)
        leader.freeze(False)
        await self.world.until(lambda: runs.err.count(NO_MORE) > said, lambda: "node-00: it leads still")
        leader.proxy.faults.clear()
        await self.world.rest()

    async def written(self) -> dict[str, Any]:
        """Of the record, what is no book-keeping, as the API server has it."""
        assert self.record is not None
        spec = (await asyncio.to_thread(self.world.plane.admin.get, f"{QUARANTINES}/{self.record.id}"))[
            "spec"
        ]
        return {key: spec.get(key) for key in ("story", "removals", "fence", "state")}

    # ------------------------------------------------------------ the program that powers it off

    @property
    def calls(self) -> int:
        told = self.folder / "called"
        return len(told.read_text().splitlines()) if told.exists() else 0

    async def called(self, times: int) -> None:
        await self.world.until(
            lambda: self.calls >= times, lambda: f"node-00: {self.calls} calls and not {times}"
        )
        assert self.calls == times

    def goes_off(self) -> None:
        self.world.audit.proofs[self.lost.name] = time.time()
        (self.folder / "go").touch()

    @property
    def fence(self) -> Fence | None:
        return self.record.fence if self.record is not None else None


def told(
    plane: "ControlPlane",
    folder: Path,
    test: Callable[[Site], Coroutine[None, None, None]],
    *,
    program: bool = False,
) -> None:
    async def story() -> None:
        fleet = {}
        if program:
            path = folder / "fence-node"
            path.write_text(PROGRAM.format(folder=folder))
            path.chmod(0o755)
            fleet = {"fence": {"command": [str(path)], "after": "1s"}}
        world = World(plane, folder, random.Random(1), 3, fleet, hasty=True)
        world.all_tell = True
        site = Site(world, folder)
        try:
            await world.begin()
            await leads(world)
            await world.rest()
            await test(site)
        except BaseException as error:
            error.add_note(world.story())
            raise
        finally:
            (folder / "go").touch()  # programs that killed leaders left behind end
            await world.end()

    asyncio.run(story())


def test_a_removal_during_which_the_leader_is_killed_is_made_once(
    plane: "ControlPlane", tmp_path: Path
) -> None:
    async def test(site: Site) -> None:
        world = site.world
        lives = await site.worker(site.alive, "lives")
        await site.falls_silent()
        await world.until(lambda: site.record is not None, lambda: "node-00: nobody says that it is silent")
        await site.is_proved_dead()
        asked = {(REMOVAL, False): 1, (REMOVAL, True): 1, (GONE, False): 2, (GONE, True): 1}
        for number, ((step, done), times) in enumerate(asked.items()):
            leader = await leads(world)
            site.kills(leader, step, done=done)
            pod = await site.worker(site.lost, f"worker-{number}")
            world.note(f"{leader.name} is killed at {step}, {'done' if done else 'not done'}")
            await site.is_followed(leader)
            await site.removed_once(pod)
            assert site.asked(pod) == times
        assert len(site.removed()) == len(asked)
        assert lives.rpartition("/")[0] in world.audit.pods
        await world.patch(f"{NODES}/node-00", {"spec": {"taints": None}})
        await site.comes_back()

    told(plane, tmp_path, test)


@pytest.mark.parametrize("step", [REMOVAL, GONE], ids=["its record", "the removal itself"])
def test_a_removal_of_a_frozen_leader_comes_too_late_and_spares_whoever_has_the_name_now(
    plane: "ControlPlane", tmp_path: Path, step: tuple[str, str, bytes]
) -> None:
    async def test(site: Site) -> None:
        world = site.world
        await site.falls_silent()
        await world.until(lambda: site.record is not None, lambda: "node-00: nobody says that it is silent")
        await site.is_proved_dead()
        leader = await leads(world)
        fault = site.freezes(leader, step)
        pod = await site.worker(site.lost, "worker")
        await site.is_frozen(leader, fault)
        await site.removed_once(pod)
        namesake = await site.worker(site.alive, "worker")
        before = await site.written()
        await site.thaws(leader, fault)
        found = await asyncio.to_thread(world.plane.admin.items, PODS)
        assert [one["metadata"]["uid"] for one in found] == [namesake.rpartition("/")[2]]
        assert await site.written() == before

    told(plane, tmp_path, test)


def test_a_node_is_powered_off_and_emptied_once_however_often_its_leader_is_killed(
    plane: "ControlPlane", tmp_path: Path
) -> None:
    async def test(site: Site) -> None:
        world = site.world
        leader = await leads(world)
        pod = await site.worker(site.lost, "worker")
        site.kills(leader, CALL, done=False)
        await site.falls_silent()
        heir = await site.is_followed(leader)
        assert site.calls == 0, "it was called before that was saved"

        site.kills(heir, CALL, done=True)
        heir = await site.is_followed(heir)
        await site.called(1)
        assert heir.runs is not None
        heir.kill()  # while the program runs, which nobody ends then
        heir = await site.is_followed(heir)
        await site.called(2)
        assert site.fence is not None
        assert (site.fence.tries, site.fence.state) == (1, FenceState.CALLED)

        site.kills(heir, ENDED, done=False)
        site.goes_off()
        heir = await site.is_followed(heir)
        site.kills(heir, ENDED, done=True)
        heir = await site.is_followed(heir)
        assert site.calls == 3, "what became of a call was lost: it is made again"
        await site.removed_once(pod)
        assert site.calls == 3, "the record says that it is off"
        assert site.fence is not None
        assert (site.fence.tries, site.fence.state) == (1, FenceState.OFF)
        assert site.record is not None
        assert [one.proof for one in site.record.removals] == [Proof.FENCED]
        assert set((tmp_path / "called").read_text().split()) == {site.record.id}
        reasons = [line.reason for line in site.record.story]
        if reasons[0] == "AgentSilent":  # its kubelet was heard a moment later than its agent
            del reasons[0]
        assert reasons == ["Unreachable", "Fencing", "Fenced", "RemovedByForce"]
        await site.comes_back()

    told(plane, tmp_path, test, program=True)


@pytest.mark.parametrize(("step", "calls"), [(CALL, 1), (ENDED, 2)], ids=["its call", "its end"])
def test_what_a_frozen_leader_says_of_the_fencing_program_comes_too_late(
    plane: "ControlPlane", tmp_path: Path, step: tuple[str, str, bytes], calls: int
) -> None:
    """`calls`: by now, of both leaders; the second one does not know what became of the first one's."""

    async def test(site: Site) -> None:
        world = site.world
        leader = await leads(world)
        pod = await site.worker(site.lost, "worker")
        fault = site.freezes(leader, step)
        site.goes_off()
        await site.falls_silent()
        await site.is_frozen(leader, fault)
        await site.removed_once(pod)
        before = await site.written()
        await site.thaws(leader, fault)
        assert await site.written() == before
        assert site.removed() == [pod]
        assert (site.calls, site.asked(pod)) == (calls, 1)
        await site.comes_back()

    told(plane, tmp_path, test, program=True)
