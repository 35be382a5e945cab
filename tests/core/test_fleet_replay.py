"""What a controller decided, decided again from its recording; and what other settings would have decided."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from sentinel.cli.replay_fleet import ADDED, MISSING, compared, entries
from sentinel.controller.nodes.recording import Recorder
from sentinel.core.fleet.fold import hear, present
from sentinel.core.fleet.model import FenceOutcome, Kind, Mode, NodePicture, State
from sentinel.core.fleet.recording import Beat
from sentinel.core.fleet.replay import Replay, Replayed
from sentinel.core.fleet.settings import Allowance, FenceHook, FleetSettings, Limit
from sentinel.core.health import CheckState
from tests.core.fleet_world import OPEN, World, a_finding, a_full_disk, a_pod

BRAKED = structs.replace(OPEN, isolations=Allowance(at_a_time=Limit(1), per_window=Limit(1000)))


class Recorded(World):
    """A fleet whose rounds are recorded, as the controller does it."""

    def __init__(
        self, folder: Path, nodes: list[str], settings: FleetSettings = OPEN, size: int = 1 << 22
    ) -> None:
        self.recorder = Recorder(folder, size, "test")
        self.recorder.lead(1, settings)
        self.heard: dict[str, tuple[NodePicture, ...]] = {}
        super().__init__(nodes, settings)

    def report(self, name: str, **states: CheckState) -> None:
        """As the controller takes it."""
        node, report = self.picture.nodes[name], self.report_of(name, **states)
        known = self.heard.get(name, ())
        self.heard[name], before, after = hear(known, name, node.uid, report, self.now)
        if before is None or after.checks is not before.checks:
            before_mono_s = 0.0 if before is None else before.told_mono_s
            self.recorder.told(self.now, name, node.uid, before_mono_s, report)
        self.put(structs.replace(present(node, self.heard[name]), lease_mono_s=self.now.mono_s))

    def decide(self, *, write: bool = True) -> tuple[Any, ...]:
        picture, records = self.picture, dict(self.records)
        decisions = super().decide(write=False)
        # Every change of this small world makes another version of the node, as an API server would.
        self.recorder.round(
            _versioned(picture), self.heard, records, self.now, None, decisions, picture.nodes
        )
        if write:
            self.perform()
        return decisions


def _versioned(picture: Any) -> Any:
    nodes = {
        name: structs.replace(
            node,
            resource_version=str(
                hash((node.unschedulable, node.taints, node.conditions, node.api_boot_id, node.uid))
            ),
        )
        for name, node in picture.nodes.items()
    }
    return structs.replace(picture, nodes=nodes)


def a_story(folder: Path, settings: FleetSettings = OPEN) -> Recorded:
    """Three bad nodes one after the other, a full disk, one that falls silent, one that goes."""
    world = Recorded(folder, [f"n{number}" for number in range(1, 9)], settings)
    for number in (1, 2, 3):
        world.shows(f"n{number}", a_finding())
        world.settle()
        world.passes(10.0)
    world.shows("n4", a_full_disk())
    world.change("n5", pods=(a_pod(),))
    world.settle()
    world.silent.add("n5")
    for _ in range(20):
        world.passes(10.0)
        world.decide()
    world.silent.clear()
    world.passes(1.0)
    world.settle()
    world.reboot("n1", "boot-2")
    world.settle()
    for _ in range(8):
        world.passes(100.0)
        world.settle()
    world.leave("n2")
    world.settle()
    world.recorder.close()
    return world


def replayed(folder: Path, settings: FleetSettings | None = None) -> list[Replayed]:
    return list(Replay(settings).run(entries([str(folder)])))


def test_a_recording_tells_the_decisions_that_were_made(tmp_path: Path) -> None:
    world = a_story(tmp_path)
    rounds = replayed(tmp_path)
    assert [one for each in rounds for one in each.decided] == world.decided[-_count(rounds) :]
    assert all(each.decided == each.recorded for each in rounds)
    reasons = {one.reason.value for each in rounds for one in each.decided}
    assert {
        "FatalFinding",
        "DiskFull",
        "Unreachable",
        "Unfenced",
        "SpeaksAgain",
        "Released",
        "NodeGone",
    } <= reasons


def _count(rounds: list[Replayed]) -> int:
    return sum(len(each.decided) for each in rounds)


@pytest.mark.parametrize("crowded", [True, False])
def test_a_silence_that_was_not_judged_while_agents_waited_is_none_in_the_replay(
    tmp_path: Path, crowded: bool
) -> None:
    world = Recorded(tmp_path, ["n1", "n2", "n3", "n4", "n5"])
    world.change("n1", pods=(a_pod(),))
    world.settle()
    world.silent.add("n1")
    for _ in range(20):
        world.passes(10.0)
        if crowded:
            world.picture = structs.replace(world.picture, crowded_mono_s=world.now.mono_s - 1)
        world.decide()
    world.recorder.close()
    reasons = {one.reason.value for each in replayed(tmp_path) for one in each.decided}
    assert ("Unreachable" in reasons) is not crowded


def test_the_same_settings_in_a_world_of_their_own_come_to_the_same(tmp_path: Path) -> None:
    a_story(tmp_path)
    assert not [line for line in compared(replayed(tmp_path, OPEN)) if line.how in (ADDED, MISSING)]


def test_other_brakes_show_what_they_would_have_held_back(tmp_path: Path) -> None:
    a_story(tmp_path)
    lines = compared(replayed(tmp_path, BRAKED))
    held = {line.node for line in lines if line.reason == "Braked"}
    assert held == {"n2", "n3"}
    assert {(line.node, line.how) for line in lines if line.reason == "FatalFinding"} == {
        ("n1", "as recorded"),
        ("n2", MISSING),
        ("n3", MISSING),
    }


def test_a_node_that_other_settings_leave_in_service_is_not_cordoned_in_their_world(tmp_path: Path) -> None:
    a_story(tmp_path)
    replay = Replay(BRAKED)
    for _ in replay.run(entries([str(tmp_path)])):
        assert {
            node.name for node in replay._nodes.values() if node.unschedulable and node.mark is None
        } == set()


def test_a_return_that_was_timed_by_beats_alone_is_replayed(tmp_path: Path) -> None:
    """The node's clock goes on in what its agent sends, also where it has nothing new to tell."""
    world = Recorded(tmp_path, ["n1", "n2"])
    world.shows("n1", a_finding(action="RESET_GPU"))
    world.settle()
    world.passes(10.0)
    world.shows("n1")
    world.settle()
    for _ in range(70):
        world.passes(10.0, report=False)
        for name, node in list(world.picture.nodes.items()):
            at_s = world.now.mono_s
            world.change(name, agent_mono_s=at_s, lease_mono_s=at_s, told_mono_s=node.told_mono_s + 10.0)
        world.decide()
    world.recorder.close()
    rounds = replayed(tmp_path)
    assert "Released" in {one.reason.value for each in rounds for one in each.recorded}
    assert all(each.decided == each.recorded for each in rounds)


def test_the_time_that_an_agent_has_after_its_kubelet_came_back_is_replayed(tmp_path: Path) -> None:
    world = Recorded(tmp_path, [f"n{number}" for number in range(8)])
    world.change("n0", pods=(a_pod(),))
    world.settle()
    world.silent.add("n0")
    world.passes(OPEN.agent_silent_s + 1)
    world.settle()
    world.change("n0", kubelet_back_mono_s=world.now.mono_s)
    for _ in range(15):
        world.passes(5.0)
        world.change("n0", lease_mono_s=world.now.mono_s)
        world.decide()
    world.recorder.close()
    rounds = replayed(tmp_path)
    assert "AgentSilent" in {one.reason.value for each in rounds for one in each.recorded}
    assert all(each.decided == each.recorded for each in rounds)


def test_a_recording_in_observe_mode_isolates_when_it_is_replayed_enforcing(tmp_path: Path) -> None:
    observe = structs.replace(OPEN, mode=Mode.OBSERVE)
    world = a_story(tmp_path, observe)
    assert not world.out()
    assert all(each.decided == each.recorded for each in replayed(tmp_path))
    replay = Replay(OPEN)
    list(replay.run(entries([str(tmp_path)])))
    assert {one.mode for one in replay._records.values() if one.kind is Kind.FAULT} == {Mode.ENFORCE}


def test_nodes_that_are_heard_all_the_time_take_no_room(tmp_path: Path) -> None:
    world = Recorded(tmp_path, [f"n{number}" for number in range(50)])
    world.decide()
    for _ in range(100):
        world.passes(3.0, report=False)
        for name in world.picture.nodes:
            world.change(name, agent_mono_s=world.now.mono_s, lease_mono_s=world.now.mono_s)
        world.decide()
    world.recorder.close()
    found = list(entries([str(tmp_path)]))
    assert sum(isinstance(one, Beat) for one in found) == 50


def test_files_are_turned_and_each_can_be_replayed_alone(tmp_path: Path) -> None:
    world = Recorded(tmp_path, ["n1", "n2"], size=40_000)
    for number in range(400):
        world.change("n1", unschedulable=bool(number % 2))
        world.passes(3.0)
        world.decide()
        world.recorder._queue.join()
    world.recorder.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["fleet.0.jsonl", "fleet.1.jsonl", "fleet.2.jsonl"]
    assert 20_000 < sum(file.stat().st_size for file in files) < 41_000
    assert not world.recorder.lost
    for file in files:
        assert file.stat().st_mode & 0o777 == 0o600
        assert all(each.decided == each.recorded for each in replayed(file))


def test_a_large_fleet_does_not_begin_a_file_with_each_round(tmp_path: Path) -> None:
    world = Recorded(tmp_path, [f"n{number}" for number in range(60)], size=60_000)
    for _ in range(30):
        world.passes(3.0, report=False)
        world.decide()
        world.recorder._queue.join()
    world.recorder.close()
    (file,) = tmp_path.iterdir()
    assert len(replayed(file)) == 30


def test_a_disk_that_refuses_stops_nothing_and_is_tried_again(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("in the way")
    world = Recorded(place, ["n1"])
    world.decide()
    assert world.recorder._broke.wait(20)
    place.unlink()
    world.passes(3.0)
    world.decide()  # notices
    assert world.recorder.lost == 1
    world.passes(61.0)
    world.decide()
    world.recorder.close()
    assert len(replayed(place)) == 1


def test_a_line_that_was_cut_by_a_kill_ends_the_recording(tmp_path: Path) -> None:
    a_story(tmp_path)
    file = tmp_path / "fleet.0.jsonl"
    whole = replayed(file)
    file.write_bytes(file.read_bytes()[:-20])
    assert replayed(file) == whole[:-1]


def test_every_entry_survives_its_file(tmp_path: Path) -> None:
    a_story(tmp_path)
    for one in entries([str(tmp_path)]):
        assert msgspec.json.decode(msgspec.json.encode(one), type=type(one)) == one


def test_what_was_held_back_is_isolated_in_the_replay_when_there_is_room(tmp_path: Path) -> None:
    a_story(tmp_path, BRAKED)
    replay = Replay(OPEN)
    lines = compared(list(replay.run(entries([str(tmp_path)]))))
    assert {line.node for line in lines if line.how == ADDED and line.reason == "FatalFinding"} == {
        "n2",
        "n3",
    }
    assert all(one.state is not State.HELD for one in replay._records.values() if one.kind is Kind.FAULT)


def test_calls_of_the_fencing_program_and_how_they_ended_are_replayed(tmp_path: Path) -> None:
    settings = structs.replace(OPEN, fence=FenceHook(command=("/opt/fence",)))
    world = Recorded(tmp_path, [f"n{number}" for number in range(1, 9)], settings)
    world.change("n5", pods=(a_pod(),))
    world.settle()
    world.silent.add("n5")
    world.passes(130.0)
    world.settle()
    world.picture = structs.replace(world.picture, fenced=(FenceOutcome("n5-0001", 1, True, "exit code 0"),))
    world.settle()
    world.recorder.close()
    rounds = replayed(tmp_path)
    assert all(each.decided == each.recorded for each in rounds)
    reasons = [one.reason.value for each in rounds for one in each.decided]
    assert reasons == ["Unreachable", "Fencing", "Fenced", "RemovedByForce"]
    without = [line.reason for line in compared(replayed(tmp_path, OPEN)) if line.how == ADDED]
    assert without == ["Unfenced"]
