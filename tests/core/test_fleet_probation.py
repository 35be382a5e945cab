"""A node that came back is on probation: a second time is for a person."""

from msgspec import structs

from sentinel.core.fleet_model import Mode, OrderKind, Repair, Say
from sentinel.core.fleet_settings import FleetSettings
from tests.core.fleet_world import OPEN, World, a_finding, a_nic_finding

DAY_S = 86_400.0
WEEK_S = OPEN.repeat_window_s


def came_back(settings: FleetSettings = OPEN, *, out: bool = True) -> World:
    """Its GPU failed, and it was restarted and well for long enough. `out`: was it out of service?"""
    world = World(["n1", "n2"], settings)
    fails_and_returns(world, out=out)
    return world


def fails_and_returns(world: World, *, out: bool = True) -> None:
    boots = len(world.records)
    world.reboot("n1", f"boot-{boots}a", a_finding(boot_id=f"boot-{boots}a"))
    world.settle()
    assert world.out() == ({"n1"} if out else set())
    world.reboot("n1", f"boot-{boots}b")
    world.settle()
    world.passes(OPEN.release_after_s + 1)
    world.settle()
    world.passes(1.0)


def later(world: World, seconds: float) -> None:
    world.passes(seconds)
    world.settle()


def test_what_a_person_says_is_a_mistake_was_no_fault() -> None:
    world = World(["n1"], OPEN)
    world.shows("n1", a_finding())
    world.settle()
    world.say("XID 79", Say.IGNORE)
    world.settle()
    assert not world.out()
    world.shows("n1", a_finding("XID 48"))
    world.settle()
    assert (world.out(), world.of("n1").needs.repair) == ({"n1"}, Repair.REBOOT)


def test_who_was_only_observed_was_never_out() -> None:
    world = came_back(structs.replace(OPEN, mode=Mode.OBSERVE), out=False)
    world.settings = OPEN
    world.shows("n1", a_finding(boot_id=world.booted["n1"][0]))
    world.settle()
    assert (world.out(), world.of("n1").needs.repair) == ({"n1"}, Repair.REBOOT)


def test_after_the_window_it_is_a_node_as_any_other() -> None:
    world = came_back()
    later(world, WEEK_S + 1)
    world.shows("n1", a_finding(boot_id=world.booted["n1"][0]))
    world.settle()
    assert world.out() == {"n1"}
    assert world.of("n1").needs.repair is Repair.REBOOT


def test_a_second_fault_within_the_window_of_its_return_waits_for_a_person() -> None:
    """However long its repair took."""
    world = World(["n1"], OPEN)
    world.shows("n1", a_finding())
    world.settle()
    later(world, 13 * DAY_S)
    world.reboot("n1", "boot-2")
    world.settle()
    later(world, OPEN.release_after_s + 1)
    assert not world.out()
    later(world, 6 * DAY_S)
    world.shows("n1", a_nic_finding(boot_id="boot-2"))
    world.settle()
    world.passes(OPEN.network_settle_s)
    world.settle()
    assert world.out() == {"n1"}
    record = world.of("n1")
    assert record.needs.repair is Repair.PERSON
    assert record.needs.sentence == (
        "a person must release it: it was isolated again within 7 days of its return"
    )
    world.shows("n1")
    later(world, DAY_S)
    assert world.out() == {"n1"}
    world.order(OrderKind.RELEASE, "n1")
    world.settle()
    assert not world.out()


def test_how_often_is_a_setting() -> None:
    world = came_back(structs.replace(OPEN, repeat_limit=3))
    fails_and_returns(world)
    assert not world.out()
    world.shows("n1", a_finding(boot_id=world.booted["n1"][0]))
    world.settle()
    assert world.of("n1").needs.sentence == (
        "a person must release it: it was isolated 3 times, the last time within 7 days of its return"
    )
