"""A node that came back is on probation: less isolates it, and a second time is for a person."""

import pytest
from msgspec import structs

from sentinel.checks.xid import severities
from sentinel.core.fleet_conditions import OWN
from sentinel.core.fleet_events import Reason
from sentinel.core.fleet_model import Brake, EndedBy, Kind, Mode, OrderKind, Repair, Say, State
from sentinel.core.fleet_release import WEARING
from sentinel.core.fleet_settings import Allowance, FleetSettings, Limit
from sentinel.core.health import Component, Finding, Severity
from tests.core.fleet_world import OPEN, World, a_finding, a_full_disk, a_nic_finding

DAY_S = 86_400.0
WEEK_S = OPEN.repeat_window_s


def degraded(world: World, code: str = "XID 94", **changes: object) -> Finding:
    """Of a GPU, just now."""
    now_s = world.now.wall_s
    seen = {
        "first_seen_wall_s": now_s,
        "last_seen_wall_s": now_s,
        "severity": Severity.DEGRADED,
        "action": "RUN_DIAGNOSTICS",
    }
    return a_finding(code, **(seen | {"boot_id": world.booted["n1"][0]} | changes))


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


# ---------------------------------------------------------------- less is enough


def test_a_degraded_finding_of_what_failed_before_isolates_and_says_why() -> None:
    world = came_back()
    assert not world.out()
    later(world, 2 * DAY_S)
    world.shows("n1", degraded(world))
    world.settle()
    record = world.of("n1")
    assert world.out() == {"n1"}
    assert record.story[0].reason == Reason.ON_PROBATION
    assert record.story[0].sentence == (
        "Node n1 was taken out of service: XID 94 of GPU 0000:18:00.0 (the GPU has fallen off the bus). It came back "
        "2 days ago after XID 79 of GPU 0000:18:00.0 (the GPU has fallen off the bus): on probation this is enough. "
        "No running pod was touched."
    )
    assert record.needs.repair is Repair.PERSON
    (own,) = (one for one in world.node("n1").conditions if one.type == OWN)
    assert (own.status, own.reason) == ("False", "OnProbation")
    assert "AcceleratedHardwareReady" not in {
        one.type for one in world.node("n1").conditions if one.status == "False"
    }


def test_one_error_of_memory_that_wears_out_is_enough() -> None:
    world = came_back()
    world.shows("n1", degraded(world, severity=Severity.WARNING))
    world.settle()
    assert world.out() == {"n1"}


def test_what_wears_out_is_what_the_table_of_severities_lets_become_fatal_by_count() -> None:
    rows = [row for row in severities().repeats if row.severity is Severity.FATAL and row.count > 1]
    assert {row.code for row in rows} == WEARING


@pytest.mark.parametrize(
    "other",
    [
        {"component": Component.NIC, "code": "nic-cable"},
        {"severity": Severity.WARNING, "code": "XID 31"},
        {"severity": Severity.INFO, "code": "XID 63"},
    ],
    ids=["another component", "a warning", "a note"],
)
def test_other_findings_are_as_on_any_node(other: dict[str, object]) -> None:
    world = came_back()
    world.shows("n1", degraded(world, **other))
    world.settle()
    assert not world.out()


def test_a_full_disk_is_no_fault_of_a_disk_that_was_replaced() -> None:
    world = World(["n1"], OPEN)
    world.shows("n1", a_finding(component=Component.DISK, entity="nvme0n1", check="disk", action=""))
    world.settle()
    world.order(OrderKind.RELEASE, "n1")
    world.shows("n1")
    world.settle()
    world.passes(1.0)
    full = a_full_disk(first_seen_wall_s=world.now.wall_s)
    world.shows("n1", full)
    world.settle()
    assert world.of("n1", Kind.DISK).state is State.ACTIVE
    assert len([one for one in world.records.values() if one.kind is Kind.FAULT]) == 1


def test_a_node_that_never_failed_is_not_isolated_for_less() -> None:
    world = World(["n1"], OPEN)
    world.shows("n1", degraded(world))
    world.settle()
    assert not world.records


def test_what_was_there_when_it_came_back_does_not_take_it_out_again() -> None:
    world = World(["n1"], OPEN)
    old = degraded(world, "XID 92")
    world.shows("n1", a_finding(action=""), old)
    world.settle()
    world.passes(1.0)
    world.shows("n1", old)
    world.settle()
    later(world, OPEN.release_after_s + 1)
    assert not world.out()
    later(world, 3600.0)
    assert not world.out()
    assert len(world.records) == 1
    world.shows("n1", structs.replace(old, count=2, last_seen_wall_s=world.now.wall_s))
    world.settle()
    assert world.out() == {"n1"}, "it came again"


def test_after_the_window_it_is_a_node_as_any_other() -> None:
    world = came_back()
    later(world, WEEK_S + 1)
    world.shows("n1", degraded(world))
    world.settle()
    assert not world.out()
    world.shows("n1", a_finding(boot_id=world.booted["n1"][0]))
    world.settle()
    assert world.out() == {"n1"}
    assert world.of("n1").needs.repair is Repair.REBOOT


def test_what_a_person_says_is_a_mistake_was_no_fault() -> None:
    world = World(["n1"], OPEN)
    world.shows("n1", a_finding())
    world.settle()
    world.say("XID 79", Say.IGNORE)
    world.settle()
    assert not world.out()
    world.passes(1.0)
    world.shows("n1", degraded(world))
    world.settle()
    assert not world.out()


def test_a_code_that_is_ignored_isolates_nobody_on_probation_and_gives_it_back() -> None:
    world = came_back()
    world.shows("n1", degraded(world))
    world.settle()
    world.say("XID 94", Say.IGNORE)
    world.settle()
    assert not world.out()
    assert world.of("n1").reason == Reason.CODE_IGNORED


def test_who_uncordons_it_lives_with_that_finding_until_it_occurs_anew() -> None:
    world = came_back()
    found = degraded(world)
    world.shows("n1", found)
    world.settle()
    world.change("n1", unschedulable=False)
    world.settle()
    assert world.of("n1").ended_by is EndedBy.UNCORDONED
    later(world, 3600.0)
    assert not world.out()
    world.shows("n1", structs.replace(found, count=2, last_seen_wall_s=world.now.wall_s))
    world.settle()
    assert world.out() == {"n1"}
    assert world.of("n1").needs.repair is Repair.PERSON


def test_brakes_pause_and_observe_mode_hold_as_for_any_isolation() -> None:
    none = Allowance(per_window=Limit(1))
    world = came_back(structs.replace(OPEN, isolations=none))
    world.shows("n1", degraded(world))
    world.settle()
    assert world.of("n1").held_by is Brake.PER_WINDOW
    assert not world.out()
    world = came_back()
    world.settings = structs.replace(OPEN, mode=Mode.OBSERVE)
    world.shows("n1", degraded(world))
    world.settle()
    assert (world.of("n1").mode, world.out()) == (Mode.OBSERVE, set())


def test_who_was_only_observed_was_never_out() -> None:
    world = came_back(structs.replace(OPEN, mode=Mode.OBSERVE), out=False)
    world.settings = OPEN
    world.shows("n1", degraded(world))
    world.settle()
    assert not world.out()
    world.shows("n1", a_finding(boot_id=world.booted["n1"][0]))
    world.settle()
    assert (world.out(), world.of("n1").needs.repair) == ({"n1"}, Repair.REBOOT)


# ---------------------------------------------------------------- a second time is for a person


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
