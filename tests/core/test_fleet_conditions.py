"""Node conditions: Sentinel's own at detection, those that repair systems act on when that harms nobody."""

from msgspec import structs

from sentinel.core.fleet.conditions import ISOLATED, OWN, RETURNED, writes
from sentinel.core.fleet.model import Mode, NodeCondition, OrderKind
from sentinel.core.fleet.settings import Allowance, Limit
from tests.core.fleet_world import OPEN, World, a_finding, a_full_disk, a_nic_finding, a_pod

GPU = "AcceleratedHardwareReady"


def condition(world: World, type: str, node: str = "n1") -> NodeCondition | None:
    return next((one for one in world.node(node).conditions if one.type == type), None)


def status(world: World, type: str) -> tuple[str, str] | None:
    found = condition(world, type)
    return None if found is None else (found.status, found.reason)


def a_faulty_world() -> World:
    """n1 is isolated, and a rank still runs there."""
    world = World()
    world.change("n1", pods=(a_pod(),))
    world.shows("n1", a_finding("XID 48", action="RESET_GPU"))
    world.settle()
    return world


def test_a_well_node_gets_no_condition() -> None:
    world = World()
    world.settle()
    assert world.node().conditions == ()


def test_at_detection_only_sentinels_own_is_written() -> None:
    world = a_faulty_world()
    assert status(world, OWN) == ("False", "FatalFinding")
    found = condition(world, OWN)
    assert found is not None
    assert "XID 48" in found.message
    assert {one.type for one in world.node().conditions} == {OWN}


def test_what_repair_acts_on_is_written_when_the_last_protected_pod_has_left() -> None:
    world = a_faulty_world()
    world.change("n1", pods=(a_pod(), a_pod("log-shipper", protected=False)))
    world.settle()
    assert status(world, GPU) is None
    world.change("n1", pods=(a_pod("log-shipper", protected=False),))
    world.settle()
    assert status(world, GPU) == ("False", ISOLATED)
    assert status(world, "NetworkingReady") is None


def test_what_was_written_stays_though_a_pod_comes_that_tolerates_everything() -> None:
    world = a_faulty_world()
    world.change("n1", pods=())
    world.settle()
    world.change("n1", pods=(a_pod("worker-1"),))
    world.settle()
    assert status(world, GPU) == ("False", ISOLATED)


def test_or_when_its_deadline_has_passed() -> None:
    world = a_faulty_world()
    world.change("n1", pods=(a_pod(deadline_mono_s=world.now.mono_s + 100),))
    world.settle()
    assert status(world, GPU) is None
    world.passes(101.0)
    world.settle()
    assert status(world, GPU) == ("False", ISOLATED)


def test_when_the_node_is_back_they_say_so() -> None:
    world = a_faulty_world()
    world.change("n1", pods=())
    world.passes(1.0)
    world.shows("n1")
    world.settle()
    world.passes(OPEN.release_after_s)
    world.settle()
    assert status(world, GPU) == ("True", RETURNED)
    assert status(world, OWN) == ("True", "NoFatalFinding")


def test_they_are_written_on_change_only() -> None:
    world = a_faulty_world()
    world.passes(60.0)
    records = list(world.records.values())
    assert writes(world.node(), records, OPEN, world.now) == ()


def test_a_condition_that_somebody_else_writes_is_his() -> None:
    world = World()
    theirs = NodeCondition(GPU, "True", "NvidiaAcceleratedHardwareIsReady")
    world.change("n1", conditions=(theirs,))
    world.shows("n1", a_finding())
    world.settle()
    assert condition(world, GPU) == theirs


def test_a_full_disk_is_no_reason_to_repair_a_node() -> None:
    world = World()
    world.shows("n1", a_full_disk())
    world.settle()
    assert status(world, OWN) == ("False", "DiskFull")
    assert status(world, "StorageReady") is None


def test_what_is_held_back_is_told_and_nothing_may_act_on_it() -> None:
    none = Allowance(at_a_time=Limit(0), per_window=Limit(0))
    world = World(["n1"], structs.replace(OPEN, isolations=none))
    world.shows("n1", a_finding())
    world.settle()
    found = condition(world, OWN)
    assert found is not None
    assert "Still in service" in found.message
    assert status(world, GPU) is None


def test_a_network_finding_has_its_own_name() -> None:
    world = World()
    world.shows("n1", a_nic_finding())
    world.settle()
    world.passes(OPEN.network_settle_s)
    world.settle()
    assert status(world, "NetworkingReady") == ("False", ISOLATED)


def test_while_paused_nothing_new_is_said_of_a_fault() -> None:
    world = a_faulty_world()
    world.picture = structs.replace(world.picture, paused="anna")
    world.change("n1", pods=())
    world.settle()
    assert status(world, GPU) is None
    world.order(OrderKind.RELEASE, "n1")
    world.shows("n1")
    world.settle()
    assert status(world, OWN) == ("True", "NoFatalFinding")


def test_in_observe_mode_no_condition_is_written() -> None:
    world = World(["n1"], structs.replace(OPEN, mode=Mode.OBSERVE))
    world.shows("n1", a_finding())
    world.settle()
    assert world.node().conditions == ()


def test_a_fault_that_a_person_lives_with_is_still_told() -> None:
    world = a_faulty_world()
    world.change("n1", unschedulable=False)
    world.settle()
    assert status(world, OWN) == ("False", "Overridden")
    world.shows("n1")
    world.settle()
    assert status(world, OWN) == ("True", "NoFatalFinding")


def test_a_node_that_is_not_heard_is_unknown() -> None:
    world = World(["n1", "n2", "n3", "n4"])
    world.silent.add("n1")
    world.passes(OPEN.agent_silent_s + 1)
    world.settle()
    assert status(world, OWN) == ("Unknown", "Unreachable")
    world.silent.clear()
    world.passes(1.0)
    world.settle()
    assert status(world, OWN) == ("True", "NoFatalFinding")
