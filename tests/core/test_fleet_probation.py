"""A node that came back is on probation: less isolates it, and a second time is for a person."""

import re
from pathlib import Path

import pytest
from msgspec import structs

from sentinel import checks
from sentinel.checks.xid import severities
from sentinel.core.fleet_conditions import OWN
from sentinel.core.fleet_events import Reason
from sentinel.core.fleet_model import Brake, Kind, Mode, OrderKind, Repair, Say, State
from sentinel.core.fleet_probation import PARTS, WEARING
from sentinel.core.fleet_settings import Allowance, FleetSettings, Limit
from sentinel.core.health import CheckState, Component, Finding, Severity
from tests.core.fleet_world import OPEN, World, a_finding, a_full_disk, a_nic_finding

DAY_S = 86_400.0
WEEK_S = OPEN.repeat_window_s


def degraded(world: World, code: str = "XID 94", /, **changes: object) -> Finding:
    """Of a GPU, once in the present boot of n1."""
    seen = {"severity": Severity.DEGRADED, "action": "RUN_DIAGNOSTICS", "boot_id": world.booted["n1"][0]}
    code = str(changes.pop("code", code))
    return a_finding(code, **(seen | changes))


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
    others = {one.status for one in world.node("n1").conditions if one.type != OWN}
    assert others == {"True"}, "no repair system is asked for a restart"


def test_one_error_of_memory_that_wears_out_is_enough() -> None:
    world = came_back()
    world.shows("n1", degraded(world, severity=Severity.WARNING, action="RESTART_APP"))
    world.settle()
    assert world.out() == {"n1"}


def test_what_wears_out_is_what_the_table_of_severities_lets_become_fatal_by_count() -> None:
    rows = [row for row in severities().repeats if row.severity is Severity.FATAL and row.count > 1]
    assert {row.code for row in rows} == WEARING


def test_actions_about_a_part_are_actions_that_findings_ask_for() -> None:
    written = {row.name for row in severities().actions}
    for path in Path(checks.__path__[0]).glob("*.py"):
        written |= set(re.findall(r'"([A-Z]+(?:_[A-Z0-9]+)+)"', path.read_text()))
    assert PARTS - written == set()


@pytest.mark.parametrize(
    "other",
    [
        {"component": Component.NIC, "code": "nic-cable", "action": "CHECK_CABLE"},
        {"severity": Severity.WARNING, "code": "XID 31"},
        {"severity": Severity.INFO, "code": "XID 94"},
        {"code": "driver-mismatch", "action": "RESTART_BM"},
        {"code": "temperature", "action": "CHECK_COOLING"},
    ],
    ids=["another component", "a warning", "a note", "a driver", "a warm room"],
)
def test_other_findings_are_as_on_any_node(other: dict[str, object]) -> None:
    world = came_back()
    world.shows("n1", degraded(world, **other))
    world.settle()
    assert not world.out()


def test_a_full_disk_is_no_fault_of_a_disk_that_was_replaced() -> None:
    world = World(["n1"], OPEN)
    disk = a_finding(component=Component.DISK, entity="nvme0n1", check="disk", action="")
    world.shows("n1", disk)
    world.settle()
    world.shows("n1")
    world.order(OrderKind.RELEASE, "n1")
    world.settle()
    world.passes(1.0)
    world.shows("n1", a_full_disk())
    world.settle()
    assert world.of("n1", Kind.DISK).state is State.ACTIVE
    assert len([one for one in world.records.values() if one.kind is Kind.FAULT]) == 1


def test_a_node_that_never_failed_is_not_isolated_for_less() -> None:
    world = World(["n1"], OPEN)
    world.shows("n1", degraded(world))
    world.settle()
    assert not world.records


def test_what_stood_when_it_came_back_acts_only_when_it_occurs_anew() -> None:
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
    assert len(world.records) == 1
    world.shows("n1", structs.replace(old, count=2))
    world.settle()
    assert world.out() == {"n1"}, "it came again"


def test_a_sampled_one_that_stood_acts_when_it_was_gone_and_came_again() -> None:
    """A boot in between changes nothing, though agents begin to count its time anew."""
    world = World(["n1"], OPEN)
    narrow = degraded(
        world, "pcie-width", check="infiniband", event=False, action="CHECK_PCIE", first_seen_wall_s=1.0
    )
    world.shows("n1", a_finding(), narrow)
    world.settle()
    world.reboot("n1", "boot-2", narrow)
    world.settle()
    later(world, OPEN.release_after_s + 1)
    assert not world.out()
    world.reboot("n1", "boot-3", structs.replace(narrow, first_seen_wall_s=world.now.wall_s))
    world.settle()
    assert not world.out()
    world.report("n1", infiniband=CheckState.UNKNOWN)
    world.settle()
    world.shows("n1", narrow)
    world.settle()
    assert not world.out(), "who cannot look has not seen it gone"
    world.shows("n1")
    world.settle()
    world.shows("n1", narrow)
    world.settle()
    assert world.out() == {"n1"}


def test_of_a_check_that_had_not_looked_when_it_came_back_nothing_is_known() -> None:
    world = World(["n1"], OPEN)
    world.shows("n1", a_finding())
    world.settle()
    world.report("n1", infiniband=CheckState.UNKNOWN)
    world.order(OrderKind.RELEASE, "n1")
    world.settle()
    world.shows("n1", degraded(world, "pcie-width", check="infiniband", event=False))
    world.settle()
    assert not world.out()
    world.shows("n1", degraded(world))
    world.settle()
    assert world.out() == {"n1"}


def test_who_comes_back_before_its_agent_was_heard_is_isolated_for_nothing_less() -> None:
    """As under a new leader."""
    world = World(["n1"], OPEN)
    world.shows("n1", a_finding())
    world.settle()
    world.change("n1", boot_id="", checks={})
    world.order(OrderKind.RELEASE, "n1")
    world.settle()
    world.shows("n1", degraded(world, "XID 92"))
    world.settle()
    assert (world.out(), world.of("n1").baseline) == (set(), None)


def test_what_many_nodes_show_is_no_sign_of_one_repair_also_where_they_were_well_before() -> None:
    names = [f"n{number}" for number in range(1, 9)]
    world = World(names, structs.replace(OPEN, cause_nodes=3))
    fails_and_returns(world)
    for name in ("n2", "n3"):
        world.shows(name, degraded(world, boot_id="boot-1"))
    world.shows("n1", degraded(world))
    world.settle()
    assert not world.out()
    world.shows("n3")
    world.settle()
    assert world.out() == {"n1"}
    for name in names[1:]:
        world.shows(name, degraded(world, boot_id="boot-1"))
    world.settle()
    assert world.out() == {"n1"}, "who is out stays out"


def test_a_network_incident_holds_back_what_is_less_as_well() -> None:
    names = [f"n{number}" for number in range(1, 9)]
    settings = structs.replace(OPEN, network_nodes=4, network_window_s=300.0)
    world = World(names, settings)
    down = a_nic_finding()
    for name in names:
        world.shows(name, down)
        world.settle()
        world.passes(settings.network_window_s + 1)
        world.settle()
        world.shows(name)
        world.order(OrderKind.RELEASE, name)
        world.settle()
    lame = a_nic_finding(severity=Severity.DEGRADED, action="CHECK_LINK")
    for name in names:
        world.shows(name, lame)
    world.settle()
    assert {one.held_by for one in world.records.values() if one.state.open} == {Brake.NETWORK_INCIDENT}
    assert not world.out()


def test_a_common_cause_holds_back_what_is_less_as_well() -> None:
    names = ["n1", "n2", "n3"]
    world = World(names, structs.replace(OPEN, cause_nodes=3))
    for name in names:
        world.shows(name, a_finding())
        world.settle()
        world.passes(3600.0)
        world.shows(name)
        world.order(OrderKind.RELEASE, name)
        world.settle()
    for name in names:  # each shows it alone, and yet it is the third within minutes
        world.shows(name, degraded(world))
        world.settle()
        world.shows(name)
    assert world.out() == {"n1", "n2"}
    assert world.of("n3").cause == ("XID 94",)


def test_the_end_of_the_window_gives_back_nobody_who_still_shows_it() -> None:
    world = came_back(structs.replace(OPEN, repeat_limit=9))
    later(world, WEEK_S - 60.0)
    world.shows("n1", degraded(world))
    world.settle()
    assert world.out() == {"n1"}
    later(world, 3600.0)
    assert world.out() == {"n1"}
    world.shows("n1")
    world.settle()
    later(world, OPEN.release_after_s + 1)
    assert not world.out()


def test_who_is_held_back_until_the_window_ends_is_not_said_to_be_well() -> None:
    none = Allowance(per_window=Limit(1), window_s=30 * DAY_S)
    world = came_back(structs.replace(OPEN, isolations=none))
    later(world, WEEK_S - 60.0)
    world.shows("n1", degraded(world))
    world.settle()
    assert world.of("n1").held_by is Brake.PER_WINDOW
    later(world, 3600.0)
    record = world.of("n1")
    assert (record.state, record.reason) == (State.RELEASED, Reason.NOT_NEEDED)
    assert record.sentence == (
        "Node n1 stays in service: XID 94 of GPU 0000:18:00.0 (the GPU has fallen off the bus) isolates it no more."
    )


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


def test_what_turns_fatal_after_that_is_written_as_fatal() -> None:
    world = came_back(structs.replace(OPEN, repeat_limit=9))
    world.shows("n1", degraded(world))
    world.settle()
    world.shows("n1", degraded(world, severity=Severity.FATAL, count=3))
    world.settle()
    record = world.of("n1")
    assert (record.severity, [one.severity for one in record.findings]) == (Severity.FATAL, [Severity.FATAL])
    (own,) = (one for one in world.node("n1").conditions if one.type == OWN)
    assert own.reason == "FatalFinding"


def test_what_a_person_says_is_a_mistake_was_no_fault() -> None:
    world = World(["n1"], OPEN)
    world.shows("n1", a_finding())
    world.settle()
    world.say("XID 79", Say.IGNORE)
    world.settle()
    assert not world.out()
    world.shows("n1", degraded(world))
    world.settle()
    assert not world.out()
    world.shows("n1", a_finding("XID 48"))
    world.settle()
    assert (world.out(), world.of("n1").needs.repair) == ({"n1"}, Repair.REBOOT)


def test_a_code_that_is_ignored_isolates_nobody_on_probation_and_gives_it_back() -> None:
    world = came_back()
    world.shows("n1", degraded(world))
    world.settle()
    world.say("XID 94", Say.IGNORE)
    world.settle()
    assert not world.out()
    assert world.of("n1").reason == Reason.CODE_IGNORED


def test_a_full_disk_is_out_whatever_is_ignored() -> None:
    world = World(["n1"], OPEN)
    world.shows("n1", a_full_disk())
    world.settle()
    world.say("disk-space", Say.IGNORE)
    world.settle()
    assert world.out() == {"n1"}


@pytest.mark.parametrize("by", ["release", "uncordon", "record"])
def test_who_gives_it_back_lives_with_that_finding_until_it_occurs_anew(by: str) -> None:
    """And with what came in that very round, which no record names yet; but not with what turns fatal."""
    world = came_back()
    found = degraded(world)
    world.shows("n1", found)
    world.settle()
    world.shows("n1", found, other := degraded(world, "XID 92", entity="GPU 0000:3b:00.0"))
    if by == "release":
        world.order(OrderKind.RELEASE, "n1")
    elif by == "uncordon":
        world.change("n1", unschedulable=False)
    else:
        record = world.of("n1")
        world.records[record.id] = structs.replace(record, state=State.RELEASED)
    world.settle()
    assert not world.out()
    later(world, 3600.0)
    assert not world.out()
    world.shows("n1", structs.replace(found, severity=Severity.FATAL), other)
    world.settle()
    assert world.out() == {"n1"}


def test_what_a_person_lives_with_as_fatal_is_lived_with_when_it_is_less() -> None:
    world = World(["n1"], OPEN)
    fatal = a_finding("XID 94", count=3)
    world.shows("n1", fatal)
    world.settle()
    world.order(OrderKind.RELEASE, "n1")
    world.settle()
    assert not world.out()
    world.shows("n1", structs.replace(fatal, severity=Severity.DEGRADED, action="RUN_DIAGNOSTICS"))
    world.settle()
    later(world, DAY_S)
    assert not world.out()


def test_brakes_pause_and_observe_mode_hold_as_for_any_isolation() -> None:
    none = Allowance(per_window=Limit(1))
    world = came_back(structs.replace(OPEN, isolations=none))
    world.shows("n1", degraded(world))
    world.settle()
    assert world.of("n1").held_by is Brake.PER_WINDOW
    assert not world.out()
    later(world, 3700.0)
    assert world.out() == {"n1"}
    assert "on probation this is enough" in world.of("n1").sentence
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


def test_a_record_that_is_deleted_is_made_anew_with_what_is_less() -> None:
    world = came_back()
    world.shows("n1", degraded(world))
    world.settle()
    del world.records[world.of("n1").id]
    world.settle()
    assert [one.code for one in world.of("n1").findings] == ["XID 94"]
    assert world.out() == {"n1"}


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
