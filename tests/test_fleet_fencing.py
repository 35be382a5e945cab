"""The controller's loop and the program that powers silent nodes off: saved, called, and what its end leads to."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

from msgspec import structs

from sentinel.core.fleet.model import FenceState, NodeQuarantine, Proof
from sentinel.core.fleet.settings import FenceHook
from tests.core.fleet_world import OPEN, a_pod
from tests.test_fleet_controller import Led, leading
from tests.waits import eventually

HOOK = FenceHook(command=("/bin/false",), after_s=100.0)


class Fenced(Led):
    """n1 runs a rank of a protected job and is heard no more."""

    def __init__(self, folder: Path, text: str) -> None:
        program = folder / "fence-node"
        program.write_text(f'#!/bin/sh\necho "$$" >> {folder}/called\n{text}\n')
        program.chmod(0o755)
        super().__init__(structs.replace(OPEN, fence=structs.replace(HOOK, command=(str(program),))))
        self.folder = folder
        self.gone: list[str] = []
        self.cluster.remove = self._remove  # type: ignore[method-assign]
        self.join("n1", "uid", "boot-1", pods=(a_pod(),))

    async def _remove(self, pods: Iterable[str]) -> None:
        self.gone += pods
        self.cluster.world.change("n1", pods=())
        self.controller.changed("n1")

    @property
    def called(self) -> list[str]:
        """The process ids of its calls."""
        told = self.folder / "called"
        return told.read_text().split() if told.exists() else []

    @property
    def record(self) -> NodeQuarantine:
        return self.cluster.records["n1-0001"]

    async def falls_silent(self) -> None:
        self.passes(HOOK.after_s)
        await self.rounds(1)

    async def until(self, what: Callable[[], bool]) -> None:
        """Round by round."""

        async def came() -> bool:
            await self.rounds(1)
            return what()

        await eventually(came)

    async def comes_to(self, state: FenceState) -> None:
        def there() -> bool:
            known = self.cluster.records.get("n1-0001")
            return known is not None and known.fence is not None and known.fence.state is state

        await self.until(there)

    async def calls(self, times: int) -> list[str]:
        """The process ids of its calls once there are so many."""
        await self.until(lambda: len(self.called) >= times)
        return self.called

    def reasons(self) -> list[str]:
        return [line.reason for line in self.record.story]


def fenced(
    folder: Path, text: str, test: Callable[[Fenced], Coroutine[Any, Any, None]], *, leads: int = 1
) -> None:
    async def story() -> None:
        one = Fenced(folder, text)
        for _ in range(leads):
            async with leading(one):
                await test(one)
            one.controller.stand_by()

    asyncio.run(story())


def test_a_call_is_made_once_it_is_saved_and_its_success_removes_the_pods(tmp_path: Path) -> None:
    async def test(fleet: Fenced) -> None:
        fleet.cluster.refuse = lambda record: record.fence is not None
        await fleet.falls_silent()
        await fleet.rounds(3)
        assert not fleet.cluster.records
        assert fleet.called == []
        fleet.cluster.refuse = lambda record: False
        await fleet.comes_to(FenceState.OFF)
        await fleet.until(lambda: bool(fleet.gone))
        assert fleet.gone == [a_pod().id]
        assert len(fleet.called) == 1
        assert [one.proof for one in fleet.record.removals] == [Proof.FENCED]
        assert fleet.cluster.events == ["n1 Unreachable", "n1 Fencing", "n1 Fenced", "n1 RemovedByForce"]
        assert [text.partition(":")[0] for text in fleet.told][1:] == [
            "Node n1 is fenced, try 1 of 3",
            "1 pod on node n1 is removed by force",
        ]

    fenced(tmp_path, "exit 0", test)


def test_a_failure_is_told_with_what_it_said_and_the_pods_stay(tmp_path: Path) -> None:
    async def test(fleet: Fenced) -> None:
        await fleet.falls_silent()
        await fleet.comes_to(FenceState.FAILED)
        await fleet.rounds(3)
        assert not fleet.gone
        assert len(fleet.called) == 1
        assert "exit code 7: no route to the BMC." in fleet.told[-1]
        assert [mail.stage for mail in fleet.record.mails] == ["Unreachable", "Fencing", "FenceFailed"]

    fenced(tmp_path, "echo no route to the BMC >&2; exit 7", test)


def test_a_node_that_is_heard_while_the_program_runs_ends_the_program_and_keeps_its_pods(
    tmp_path: Path,
) -> None:
    async def test(fleet: Fenced) -> None:
        await fleet.falls_silent()
        (pid,) = await fleet.calls(1)
        fleet.hears("n1", "uid", "boot-1")
        await eventually(lambda: not Path(f"/proc/{pid}").exists())
        await fleet.rounds(3)
        assert not fleet.gone
        assert len(fleet.called) == 1
        assert fleet.reasons()[-2:] == ["Fencing", "SpeaksAgain"]

    fenced(tmp_path, "exec sleep 1000", test)


def test_a_node_that_is_heard_while_its_call_is_saved_is_not_called(tmp_path: Path) -> None:
    async def test(fleet: Fenced) -> None:
        save = fleet.cluster.save

        async def saved(record: NodeQuarantine) -> None:
            await save(record)
            fleet.hears("n1", "uid", "boot-1")

        fleet.cluster.save = saved  # type: ignore[method-assign]
        await fleet.falls_silent()
        await fleet.rounds(3)
        assert fleet.reasons() == ["Unreachable", "Fencing", "SpeaksAgain"]
        assert fleet.called == []

    fenced(tmp_path, "exit 0", test)


def test_who_does_not_surely_lead_calls_nothing(tmp_path: Path) -> None:
    async def test(fleet: Fenced) -> None:
        fleet.cluster.leads = False
        await fleet.falls_silent()
        await fleet.rounds(3)
        assert fleet.record.fence is not None
        assert fleet.called == []

    fenced(tmp_path, "exit 0", test)


def test_when_leadership_ends_the_program_is_killed_and_the_next_leader_calls_it_again(
    tmp_path: Path,
) -> None:
    leaderships = 0

    async def test(fleet: Fenced) -> None:
        nonlocal leaderships
        leaderships += 1
        before = fleet.called

        async def ended() -> bool:
            return all(not Path(f"/proc/{pid}").exists() for pid in before)

        await eventually(ended)
        await fleet.falls_silent()
        await fleet.calls(leaderships)
        await fleet.rounds(2)
        assert len(fleet.called) == leaderships
        assert fleet.record.fence is not None
        assert (fleet.record.fence.tries, fleet.record.fence.state) == (1, FenceState.CALLED)

    fenced(tmp_path, "exec sleep 1000", test, leads=2)
    assert leaderships == 2
