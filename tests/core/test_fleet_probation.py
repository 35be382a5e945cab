"""A node that came back is on probation: less isolates it, and a second time is for a person."""

import re
from pathlib import Path

import pytest
from msgspec import structs

from sentinel import checks
from sentinel.checks.xid import severities
from sentinel.core.fleet.conditions import OWN
from sentinel.core.fleet.events import DoTell, Reason
from sentinel.core.fleet.model import Brake, Kind, Mode, OrderKind, Repair, Say, State
from sentinel.core.fleet.probation import BOOT_S, MAX_KNOWN, PARTS, PROGRAMS, WEARING, many
from sentinel.core.fleet.settings import Allowance, FleetSettings, Limit
from sentinel.core.health import CheckState, Component, Finding, Severity
from sentinel.core.now import Now
from tests.core.fleet_world import OPEN, World, a_finding, a_full_disk, a_nic_finding

DAY_S = 86_400.0
WEEK_S = OPEN.repeat_window_s
SETTLE_S = OPEN.probation_settle_s


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


def settles(world: World) -> None:
    """Until it is known that not many nodes show it."""
    world.settle()
    later(world, SETTLE_S)


# ---------------------------------------------------------------- less is enough


def test_a_degraded_finding_of_what_failed_before_isolates_and_says_why() -> None:
    world = came_back()
    later(world, 2 * DAY_S)
    world.shows("n1", degraded(world))
    settles(world)
    record = world.of("n1")
    assert world.out() == {"n1"}
    assert record.reason == Reason.ON_PROBATION
    assert record.sentence == (
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
    settles(world)
    assert world.out() == {"n1"}


def test_what_wears_out_is_what_the_table_of_severities_lets_become_fatal_by_count() -> None:
    rows = [row for row in severities().repeats if row.severity is Severity.FATAL and row.count > 1]
    assert {row.code for row in rows} == WEARING


def test_actions_about_a_part_are_actions_that_findings_ask_for() -> None:
    written = {row.name for row in severities().actions}
    for path in Path(checks.__path__[0]).rglob("*.py"):
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
        *({"code": code, "action": "RESET_GPU"} for code in sorted(PROGRAMS)),
    ],
    ids=["another component", "a warning", "a note", "a driver", "a warm room", "a program"],
)
def test_other_findings_are_as_on_any_node(other: dict[str, object]) -> None:
    world = came_back()
    world.shows("n1", degraded(world, **other))
    settles(world)
    assert not world.out()


def test_a_full_disk_is_no_fault_of_a_disk_that_was_replaced() -> None:
    world = World(["n1"], OPEN)
    disk = a_finding(component=Component.DISK, entity="nvme0n1", check="disk", action="")
    world.shows("n1", disk)
    settles(world)
    world.shows("n1")
    world.order(OrderKind.RELEASE, "n1")
    settles(world)
    world.passes(1.0)
    world.shows("n1", a_full_disk())
    settles(world)
    assert world.of("n1", Kind.DISK).state is State.ACTIVE
    assert len([one for one in world.records.values() if one.kind is Kind.FAULT]) == 1


def test_a_node_that_never_failed_is_not_isolated_for_less() -> None:
    world = World(["n1"], OPEN)
    world.shows("n1", degraded(world))
    settles(world)
    assert not world.records


def test_what_stood_when_it_came_back_acts_only_when_it_occurs_anew() -> None:
    world = World(["n1"], OPEN)
    old = degraded(world, "XID 92")
    world.shows("n1", a_finding(action=""), old)
    settles(world)
    world.passes(1.0)
    world.shows("n1", old)
    settles(world)
    later(world, OPEN.release_after_s + 1)
    assert not world.out()
    later(world, 3600.0)
    assert len(world.records) == 1
    world.shows("n1", structs.replace(old, count=2))
    settles(world)
    assert world.out() == {"n1"}, "it came again"


def test_a_sampled_one_that_stood_never_acts_also_when_a_boot_hid_it() -> None:
    """Its time begins anew with each boot, and checks that wait for drivers say for minutes that all is well."""
    world = World(["n1"], OPEN)
    narrow = degraded(world, "pcie-width", check="infiniband", event=False, action="CHECK_PCIE")
    world.shows("n1", a_finding(), structs.replace(narrow, severity=Severity.WARNING))
    world.settle()
    world.shows("n1", structs.replace(narrow, severity=Severity.WARNING))
    world.order(OrderKind.RELEASE, "n1")
    settles(world)
    for boot in ("boot-2", "boot-3"):
        world.reboot("n1", boot)
        settles(world)
        world.shows("n1", narrow)
        settles(world)
        assert not world.out()
    assert len(world.records) == 1


def test_what_shows_first_soon_after_a_boot_was_there_before() -> None:
    """A node comes back while a check still waits for its driver."""
    world = came_back()
    slow = degraded(world, "port-rate", check="infiniband", event=False, action="CHECK_PCIE")
    later(world, BOOT_S - OPEN.release_after_s - 60.0)
    world.shows("n1", slow)
    settles(world)
    later(world, DAY_S)
    assert (world.out(), len(world.records)) == (set(), 1)
    world.shows("n1", slow, other := degraded(world, "pcie-width", check="infiniband", event=False))
    settles(world)
    assert (world.out(), world.of("n1").findings) == ({"n1"}, (other,))


def test_of_a_check_that_had_not_looked_when_it_came_back_nothing_is_known() -> None:
    world = World(["n1"], OPEN)
    world.shows("n1", a_finding())
    settles(world)
    world.report("n1", infiniband=CheckState.UNKNOWN)
    world.order(OrderKind.RELEASE, "n1")
    world.settle()
    world.shows("n1", degraded(world, "pcie-width", check="infiniband", event=False))
    settles(world)
    assert not world.out()
    world.shows("n1", degraded(world))
    settles(world)
    assert world.out() == {"n1"}


def test_who_comes_back_before_its_agent_was_heard_is_isolated_for_nothing_less() -> None:
    """As under a new leader."""
    world = World(["n1"], OPEN)
    world.shows("n1", a_finding())
    settles(world)
    world.change("n1", boot_id="", checks={})
    world.order(OrderKind.RELEASE, "n1")
    world.settle()
    world.shows("n1", degraded(world, "XID 92"))
    settles(world)
    assert (world.out(), world.of("n1").baseline) == (set(), None)


def test_what_many_nodes_show_is_no_sign_of_one_repair_also_when_the_others_are_mended_first() -> None:
    names = [f"n{number}" for number in range(1, 9)]
    world = World(names, structs.replace(OPEN, cause_nodes=3))
    fails_and_returns(world)
    world.shows("n1", degraded(world))  # the first of them
    world.settle()
    assert world.of("n1").held_by is Brake.SETTLING
    for name in ("n2", "n3"):
        world.shows(name, degraded(world, boot_id="boot-1"))
    settles(world)
    assert (world.out(), world.of("n1").reason) == (set(), Reason.NOT_NEEDED)
    for name in ("n2", "n3"):
        world.shows(name)
    settles(world)
    assert not world.out()
    assert not [one for one in world.effects if isinstance(one, DoTell) and "n1-0002" in one.key]
    world.shows("n1", degraded(world, count=2))
    settles(world)
    assert world.out() == {"n1"}
    for name in names[1:]:
        world.shows(name, degraded(world, boot_id="boot-1"))
    settles(world)
    assert world.out() == {"n1"}, "who is out stays out"


def test_a_new_leader_waits_until_others_have_told_what_they_show() -> None:
    names = [f"n{number}" for number in range(1, 9)]
    world = World(names, structs.replace(OPEN, cause_nodes=3))
    fails_and_returns(world)
    for name in names:
        world.change(name, boot_id="", checks={}, agent_mono_s=None)
    world.picture = structs.replace(world.picture, watching_since_mono_s=world.now.mono_s)
    later(world, 10.0)
    for name in names:
        world.shows(name, degraded(world, boot_id=world.booted[name][0]))
        world.settle()
        assert not world.out()
    later(world, DAY_S)
    assert not world.out()


def test_how_many_are_many() -> None:
    standard = FleetSettings()
    assert [many(Component.GPU, nodes, standard) for nodes in (1, 300, 400, 10_000)] == [3, 3, 4, 100]
    assert many(Component.NIC, 10_000, standard) == standard.network_nodes


def test_a_person_who_says_that_it_is_real_is_heard() -> None:
    names = [f"n{number}" for number in range(1, 9)]
    world = World(names, structs.replace(OPEN, cause_nodes=3))
    fails_and_returns(world)
    world.say("XID 94", Say.GO_ON)
    for name in names:
        world.shows(name, degraded(world, boot_id=world.booted[name][0]))
    settles(world)
    assert world.out() == {"n1"}, "the others never failed"


@pytest.mark.parametrize(
    "settings",
    [
        structs.replace(OPEN, cause_nodes=3),
        structs.replace(OPEN, isolations=Allowance(at_a_time=Limit(2), per_window=Limit(2))),
    ],
    ids=["common cause", "allowance"],
)
def test_what_is_less_takes_no_place_of_what_is_fatal(settings: FleetSettings) -> None:
    world = World(["n1", "n2", "n3", "n4"], settings)
    for name in ("n1", "n2"):
        world.shows(name, a_finding("XID 48"))
        world.settle()
        world.passes(3600.0)
        world.shows(name)
        world.order(OrderKind.RELEASE, name)
        settles(world)
    for name in ("n1", "n2"):
        world.shows(name, degraded(world))
    settles(world)
    assert world.out() == {"n1", "n2"}
    world.shows("n3", a_finding("XID 94"))
    world.settle()
    assert world.out() == {"n1", "n2", "n3"}


def test_the_end_of_the_window_gives_back_nobody_who_still_shows_it() -> None:
    world = came_back(structs.replace(OPEN, repeat_limit=9))
    later(world, WEEK_S - SETTLE_S - 60.0)
    world.shows("n1", degraded(world))
    settles(world)
    assert world.out() == {"n1"}
    later(world, 3600.0)
    assert world.out() == {"n1"}
    world.shows("n1")
    settles(world)
    later(world, OPEN.release_after_s + 1)
    assert not world.out()


def test_who_is_held_back_until_the_window_ends_is_not_said_to_be_well() -> None:
    none = Allowance(per_window=Limit(1), window_s=30 * DAY_S)
    world = came_back(structs.replace(OPEN, isolations=none))
    later(world, WEEK_S - SETTLE_S - 60.0)
    world.shows("n1", degraded(world))
    settles(world)
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
    settles(world)
    assert not world.out()
    world.shows("n1", a_finding(boot_id=world.booted["n1"][0]))
    settles(world)
    assert world.out() == {"n1"}
    assert world.of("n1").needs.repair is Repair.REBOOT


def test_what_turns_fatal_after_that_is_written_as_fatal() -> None:
    world = came_back(structs.replace(OPEN, repeat_limit=9))
    world.shows("n1", degraded(world))
    settles(world)
    world.shows("n1", degraded(world, severity=Severity.FATAL, count=3))
    settles(world)
    record = world.of("n1")
    assert (record.severity, [one.severity for one in record.findings]) == (Severity.FATAL, [Severity.FATAL])
    (own,) = (one for one in world.node("n1").conditions if one.type == OWN)
    assert own.reason == "FatalFinding"


def test_what_a_person_says_is_a_mistake_was_no_fault() -> None:
    world = World(["n1"], OPEN)
    world.shows("n1", a_finding())
    settles(world)
    world.say("XID 79", Say.IGNORE)
    world.settle()
    assert not world.out()
    world.shows("n1", degraded(world))
    settles(world)
    assert not world.out()
    world.shows("n1", a_finding("XID 48"))
    settles(world)
    assert (world.out(), world.of("n1").needs.repair) == ({"n1"}, Repair.REBOOT)


def test_a_code_that_is_ignored_isolates_nobody_on_probation_and_gives_it_back() -> None:
    world = came_back()
    world.shows("n1", degraded(world))
    settles(world)
    world.say("XID 94", Say.IGNORE)
    world.settle()
    assert not world.out()
    assert world.of("n1").reason == Reason.CODE_IGNORED


def test_a_full_disk_is_out_whatever_is_ignored() -> None:
    world = World(["n1"], OPEN)
    world.shows("n1", a_full_disk())
    settles(world)
    world.say("disk-space", Say.IGNORE)
    world.settle()
    assert world.out() == {"n1"}


@pytest.mark.parametrize("by", ["release", "uncordon", "record"])
def test_who_gives_it_back_lives_with_that_finding_until_it_occurs_anew(by: str) -> None:
    """And with what came in that very round, which no record names yet; but not with what turns fatal."""
    world = came_back()
    found = degraded(world)
    world.shows("n1", found)
    settles(world)
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
    settles(world)
    assert world.out() == {"n1"}


def test_what_a_person_lives_with_as_fatal_is_lived_with_when_it_is_less() -> None:
    world = World(["n1"], OPEN)
    fatal = a_finding("XID 94", count=3)
    world.shows("n1", fatal)
    settles(world)
    world.order(OrderKind.RELEASE, "n1")
    world.settle()
    assert not world.out()
    world.shows("n1", structs.replace(fatal, severity=Severity.DEGRADED, action="RUN_DIAGNOSTICS"))
    settles(world)
    later(world, DAY_S)
    assert not world.out()


def test_a_release_of_what_was_held_back_or_made_anew_is_no_less_a_release() -> None:
    none = Allowance(per_window=Limit(1))
    for settings in (OPEN, structs.replace(OPEN, isolations=none)):
        world = came_back(settings)
        world.shows("n1", degraded(world))
        settles(world)
        if settings is OPEN:
            del world.records[world.of("n1").id]
            world.settle()
            assert world.of("n1").reason == Reason.MARK_FOUND
        else:
            assert world.of("n1").held_by is Brake.PER_WINDOW
        world.order(OrderKind.RELEASE, "n1")
        settles(world)
        later(world, DAY_S)
        assert (world.out(), world.of("n1").state) == (set(), State.RELEASED)


def test_what_was_only_observed_takes_nobody_out_when_it_is_enforced() -> None:
    world = came_back(structs.replace(OPEN, mode=Mode.OBSERVE), out=False)
    world.shows("n1", degraded(world))
    settles(world)
    assert world.of("n1").reason == Reason.ON_PROBATION
    world.settings = OPEN
    settles(world)
    assert (world.out(), world.of("n1").reason) == (set(), Reason.NOT_NEEDED)


def test_a_clock_that_was_set_back_brings_no_older_word_back() -> None:
    world = came_back()
    world.shows("n1", found := degraded(world))
    settles(world)
    world.now = Now(world.now.mono_s, world.now.wall_s - 4000.0)
    world.change("n1", unschedulable=False)
    settles(world)
    assert not world.out()
    world.shows("n1", found)
    settles(world)
    assert not world.out()


def test_a_node_with_more_findings_than_are_written_down_is_isolated_for_nothing_less() -> None:
    world = World(["n1"], OPEN)
    old = [degraded(world, f"XID {number}", severity=Severity.INFO) for number in range(MAX_KNOWN + 1)]
    world.shows("n1", a_finding(), *old)
    world.settle()
    world.shows("n1", *old)
    world.order(OrderKind.RELEASE, "n1")
    world.settle()
    assert world.of("n1").baseline is None
    world.shows("n1", *(structs.replace(one, severity=Severity.DEGRADED) for one in old))
    settles(world)
    assert not world.out()


def test_a_full_record_learns_what_turned_fatal_and_forgets_no_repair() -> None:
    world = came_back(structs.replace(OPEN, repeat_limit=9))
    found = [degraded(world, entity=f"GPU {number}") for number in range(40)]
    world.shows("n1", *found)
    settles(world)
    record = world.of("n1")
    assert (len(record.findings), record.needs.repair) == (32, Repair.NONE)
    fatal = structs.replace(found[39], severity=Severity.FATAL, action="RESTART_BM", count=3)
    world.shows("n1", *found[:39], fatal)
    settles(world)
    assert (world.of("n1").severity, world.of("n1").needs.repair) == (Severity.FATAL, Repair.REBOOT)
    lines = len(world.of("n1").story)
    for _ in range(3):
        world.shows("n1", *found)
        settles(world)
        world.shows("n1", *found[:39], fatal)
        settles(world)
    assert (len(world.of("n1").story), world.of("n1").needs.repair) == (lines, Repair.REBOOT)


def test_what_comes_and_goes_is_one_record_and_isolates() -> None:
    world = came_back()
    flaps = degraded(world, "pcie-width", check="infiniband", event=False)
    later(world, BOOT_S)
    for _ in range(11):
        world.shows("n1", flaps)
        later(world, 15.0)
        world.shows("n1")
        later(world, 15.0)
    world.shows("n1", flaps)
    world.settle()
    assert (world.out(), world.of("n1").number) == ({"n1"}, 2)


def test_what_many_show_and_goes_on_to_occur_is_written_down_ever_more_seldom() -> None:
    names = [f"n{number}" for number in range(1, 9)]
    world = World(names, structs.replace(OPEN, cause_nodes=3))
    fails_and_returns(world)
    for name in ("n2", "n3"):
        world.shows(name, degraded(world, boot_id="boot-1"))
    world.decided.clear()
    for count in range(1, 101):
        world.shows("n1", degraded(world, count=count))
        world.settle()
    assert len(world.decided) < 10
    assert not world.out()


def test_the_wait_begins_anew_with_each_finding() -> None:
    world = came_back()
    world.shows("n1", degraded(world, "XID 92"))
    world.settle()
    later(world, SETTLE_S - 1.0)
    world.shows("n1", degraded(world))
    world.settle()
    later(world, 10.0)
    assert not world.out()
    later(world, SETTLE_S)
    assert world.out() == {"n1"}


def test_an_observed_disk_that_is_free_again_is_well_as_before() -> None:
    world = World(["n1"], structs.replace(OPEN, mode=Mode.OBSERVE))
    world.shows("n1", a_full_disk())
    world.settle()
    world.settings = OPEN
    world.passes(1.0)
    world.shows("n1")
    world.settle()
    assert (world.of("n1", Kind.DISK).state, world.of("n1", Kind.DISK).reason) == (
        State.ACTIVE,
        Reason.FINDINGS_GONE,
    )


def test_what_is_ignored_acts_again_when_the_word_is_taken_back() -> None:
    world = came_back()
    world.shows("n1", degraded(world))
    settles(world)
    world.say("XID 94", Say.IGNORE)
    settles(world)
    assert not world.out()
    world.say("XID 94", None)
    settles(world)
    assert world.out() == {"n1"}


def test_no_repair_is_asked_for_what_people_ignore_while_another_finding_keeps_it_out() -> None:
    world = came_back(structs.replace(OPEN, repeat_limit=9))
    fatal = a_finding("XID 48", boot_id=world.booted["n1"][0])
    world.shows("n1", fatal, less := degraded(world))
    settles(world)
    assert (world.of("n1").severity, world.of("n1").needs.repair) == (Severity.FATAL, Repair.REBOOT)
    world.say("XID 48", Say.IGNORE)
    settles(world)
    record = world.of("n1")
    assert (world.out(), record.findings, record.needs.repair) == ({"n1"}, (less,), Repair.NONE)
    assert record.sentence.endswith("XID 48 is ignored.")
    assert {one.status for one in world.node("n1").conditions if one.type != OWN} == {"True"}
    world.say("XID 48", None)
    settles(world)
    assert world.of("n1").needs.repair is Repair.REBOOT


def test_it_is_said_after_which_fault_it_came_back() -> None:
    world = came_back(structs.replace(OPEN, repeat_limit=9))
    world.shows("n1", a_nic_finding())
    settles(world)
    world.shows("n1")
    world.order(OrderKind.RELEASE, "n1")
    settles(world)
    world.shows("n1", degraded(world))
    settles(world)
    assert "after XID 79 of GPU" in world.of("n1").sentence


def test_brakes_pause_and_observe_mode_hold_as_for_any_isolation() -> None:
    none = Allowance(per_window=Limit(1))
    world = came_back(structs.replace(OPEN, isolations=none))
    world.shows("n1", degraded(world))
    settles(world)
    assert world.of("n1").held_by is Brake.PER_WINDOW
    assert not world.out()
    later(world, 3700.0)
    assert world.out() == {"n1"}
    assert "on probation this is enough" in world.of("n1").sentence
    world = came_back()
    world.settings = structs.replace(OPEN, mode=Mode.OBSERVE)
    world.shows("n1", degraded(world))
    settles(world)
    assert (world.of("n1").mode, world.out()) == (Mode.OBSERVE, set())


def test_who_was_only_observed_was_never_out() -> None:
    world = came_back(structs.replace(OPEN, mode=Mode.OBSERVE), out=False)
    world.settings = OPEN
    world.shows("n1", degraded(world))
    settles(world)
    assert not world.out()
    world.shows("n1", a_finding(boot_id=world.booted["n1"][0]))
    settles(world)
    assert (world.out(), world.of("n1").needs.repair) == ({"n1"}, Repair.REBOOT)


def test_a_record_that_is_deleted_is_made_anew_with_what_is_less() -> None:
    world = came_back()
    world.shows("n1", degraded(world))
    settles(world)
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
