"""One code on more nodes than chance gives: one incident, one message, and a person's word about it."""

import pytest
from msgspec import structs

from sentinel.core.fleet import causes, rounds
from sentinel.core.fleet.events import DoTell, Reason
from sentinel.core.fleet.isolate import standing
from sentinel.core.fleet.model import Brake, EndedBy, Mode, OrderKind, Say, State
from sentinel.core.fleet.settings import FleetSettings
from sentinel.core.now import Now
from tests.core.fleet_world import OPEN, World, a_finding, a_full_disk, a_nic_finding

SETTINGS = structs.replace(OPEN, cause_nodes=3)
NAMES = [f"n{number:03}" for number in range(300)]
XID = "XID 31"


def a_world(nodes: int = 20, settings: FleetSettings = SETTINGS) -> World:
    return World(NAMES[:nodes], settings)


def breaks(world: World, *names: str, code: str = XID, **changes: object) -> None:
    for name in names:
        world.shows(name, a_finding(code, **changes))
        world.settle()


def held(world: World) -> dict[str, Brake]:
    return {one.node: one.held_by for one in world.records.values() if one.state is State.HELD}


def told(world: World) -> list[str]:
    """Messages: of equal keys there is one. That of a common cause names the hour."""
    keys = (one.key for one in world.effects if isinstance(one, DoTell))
    return [
        *dict.fromkeys(key.rpartition("/")[0] if key.startswith("common-cause/") else key for key in keys)
    ]


# ---------------------------------------------------------------- one cause


def test_the_third_node_with_one_code_within_minutes_makes_it_one_incident() -> None:
    world = a_world()
    for name in NAMES[:5]:
        breaks(world, name)
        world.passes(60.0)
    assert world.out() == {"n000", "n001"}
    assert held(world) == dict.fromkeys(NAMES[2:5], Brake.COMMON_CAUSE)
    assert told(world) == ["n000-0001/FatalFinding", "n001-0001/FatalFinding", f"common-cause/{XID}"]
    (cause,) = rounds.standing_causes(world.records.values())
    assert (cause.code, cause.nodes) == (XID, tuple(NAMES[2:5]))


def test_of_many_at_once_only_the_worst_few_are_isolated() -> None:
    """A driver gone wrong: all of them in one round, and one of them with two faults of the kind."""
    world = a_world(300)
    for name in NAMES:
        world.shows(name, a_finding(XID))
    world.shows("n250", a_finding(XID), a_finding(XID, entity="GPU 0000:3b:00.0"))
    world.settle()
    assert world.out() == {"n000", "n250"}
    assert len(held(world)) == 298
    assert len(told(world)) == 3
    world.passes(3600.0)
    world.settle()
    assert world.out() == {"n000", "n250"}, "it lasts until a person says otherwise"


def test_what_is_found_further_apart_is_what_chance_gives() -> None:
    world = a_world()
    for name in NAMES[:5]:
        breaks(world, name)
        world.passes(SETTINGS.cause_window_s / 2 + 1.0)
    assert world.out() == set(NAMES[:5])


def test_a_driver_that_is_rolled_out_node_by_node_takes_out_no_more_than_chance_would_in_a_day() -> None:
    world = a_world(300)
    for name in NAMES[:40]:
        breaks(world, name)
        world.passes(3600.0)  # the older ones are counted as proven by then, and take no room from others
    assert world.out() == set(NAMES[:5])
    assert held(world) == dict.fromkeys(NAMES[5:40], Brake.COMMON_CAUSE)
    assert told(world)[-1] == f"common-cause/{XID}"


def test_another_code_is_another_matter_and_a_node_with_both_is_isolated() -> None:
    world = a_world()
    breaks(world, *NAMES[:4])
    world.shows("n004", a_finding(XID), a_finding("XID 79"))
    world.settle()
    assert world.out() == {"n000", "n001", "n004"}
    breaks(world, "n005", code="XID 79")
    assert "n005" in world.out()


def test_a_node_that_is_held_back_and_gets_another_fault_is_isolated_for_that() -> None:
    world = a_world()
    breaks(world, *NAMES[:3])
    assert set(held(world)) == {"n002"}
    world.shows("n002", a_finding(XID), a_finding("XID 79"))
    world.settle()
    assert "n002" in world.out()


def test_full_disks_have_an_allowance_of_their_own_and_the_network_its_own_rule() -> None:
    world = a_world()
    for name in NAMES[:6]:
        world.shows(name, a_full_disk())
    for name in NAMES[6:9]:
        world.shows(name, a_nic_finding())
    world.settle()
    world.passes(SETTINGS.network_settle_s)
    world.settle()
    assert world.out() == set(NAMES[:9])


def test_when_it_ends_by_itself_nothing_more_is_told_and_who_is_left_alone_with_it_is_isolated() -> None:
    world = a_world()
    breaks(world, *NAMES[:8])
    before = len(told(world))
    world.passes(SETTINGS.cause_window_s + 1.0)
    for name in NAMES[2:7]:
        world.shows(name)
    for name in NAMES[:2]:
        world.reboot(name, "boot-2")
    world.settle()
    assert len(told(world)) == before
    world.passes(SETTINGS.release_after_s)
    world.settle()
    assert {world.of(name).ended_by for name in NAMES[:7]} == {EndedBy.WELL}
    world.records = {id: one for id, one in world.records.items() if one.state.open}  # after a week
    world.settle()
    assert world.out() == {"n007"}


def test_who_follows_later_waits_with_the_others() -> None:
    world = a_world()
    breaks(world, *NAMES[:5])
    for name in NAMES[5:9]:
        world.passes(SETTINGS.cause_window_s + 60.0)
        breaks(world, name)
    assert world.out() == {"n000", "n001"}
    assert set(held(world)) == set(NAMES[2:9])


def test_nobody_takes_the_place_of_the_few_when_they_are_replaced_or_their_records_are_gone() -> None:
    world = a_world()
    breaks(world, *NAMES[:6])
    world.leave("n000")
    world.leave("n001")
    world.settle()
    world.join("n000", uid="uid-new", boot="boot-new")
    world.shows("n000")
    world.settle()
    assert not world.out()
    world.records = {id: one for id, one in world.records.items() if one.state.open}
    world.settle()
    assert not world.out()
    assert set(held(world)) == set(NAMES[2:6])


def test_a_brake_that_is_full_hides_no_common_cause() -> None:
    world = a_world(40, structs.replace(FleetSettings(), cause_nodes=3))
    breaks(world, "n000", "n001", code="XID 79")
    world.passes(1800.0)
    for name in NAMES[2:40]:
        world.shows(name, a_finding(XID))
    world.settle()
    assert set(held(world).values()) == {Brake.COMMON_CAUSE}
    assert world.out() == {"n000", "n001"}
    assert len(told(world)) <= 5


def test_where_a_brake_leaves_room_for_fewer_than_the_few_nobody_changes_places_for_ever() -> None:
    world = World(NAMES[:8], FleetSettings())
    breaks(world, "n000", code="XID 48")
    world.passes(3700.0)
    for name in NAMES[1:4]:
        world.shows(name, a_finding(XID))
    for _ in range(3):
        world.decide()
    before = len(world.decided)
    for _ in range(5):
        world.passes(3.0)
        assert not world.decide()
    assert len(world.decided) == before
    assert world.out() == {"n000", "n001"}
    assert held(world) == dict.fromkeys(NAMES[2:4], Brake.COMMON_CAUSE)


def test_who_waited_while_it_was_only_observed_waits_on_for_what_is_enforced_alone() -> None:
    world = World(["n1", "n2", "n3"], structs.replace(SETTINGS, mode=Mode.OBSERVE, cause_nodes=3))
    for name in ("n1", "n2"):
        world.change(name, pool="a")
    breaks(world, "n1", "n2", "n3")
    assert held(world) == {"n3": Brake.COMMON_CAUSE}
    world.settings = structs.replace(SETTINGS, observe_pools=frozenset({"a"}), cause_nodes=3)
    world.settle()
    assert world.out() == {"n3"}


def test_a_pause_changes_nothing_for_those_that_wait() -> None:
    world = a_world()
    breaks(world, *NAMES[:6])
    before = dict(world.records)
    for paused in ("anna", ""):
        world.picture = structs.replace(world.picture, paused=paused)
        world.settle()
        assert world.records == before


def test_the_network_of_nodes_that_have_a_common_cause_too_takes_none_of_them_out() -> None:
    world = a_world()
    for name in NAMES[:6]:
        world.shows(name, a_nic_finding())
    breaks(world, *NAMES[6:12])
    world.shows("n010", a_finding(XID), a_nic_finding())
    world.settle()
    assert world.out() == {"n006", "n007"}


def test_what_is_observed_takes_none_of_the_few_from_what_is_enforced() -> None:
    world = a_world(0, structs.replace(SETTINGS, observe_pools=frozenset({"lab"})))
    for name in NAMES[:2]:
        world.join(name, pool="lab")
    for name in NAMES[2:10]:
        world.join(name, pool="prod")
    breaks(world, *NAMES[:10])
    assert world.out() == {"n002", "n003"}


def test_a_node_with_more_findings_than_a_record_holds_is_judged_by_all_its_codes() -> None:
    world = a_world()
    for name in NAMES[:8]:
        found = [a_finding(f"XID {code}", entity=f"GPU {gpu}") for gpu in range(40) for code in (31, 45)]
        world.shows(name, *found)
        world.settle()
        world.shows(name, *found, a_finding("XID 13"))
        world.settle()
    assert world.out() == {"n000", "n001"}
    assert {one.code for one in world.of("n005").findings} == {"XID 31", "XID 45", "XID 13"}
    world.say("XID 31", Say.IGNORE)
    world.say("XID 45", Say.IGNORE)
    world.settle()
    assert world.out() == {"n000", "n001"}, "there is one more"


def test_a_person_who_gives_back_the_few_does_not_make_sentinel_take_others() -> None:
    world = a_world()
    breaks(world, *NAMES[:6])
    for name in ("n000", "n001"):
        world.order(OrderKind.RELEASE, name)
    world.settle()
    world.passes(60.0)
    world.settle()
    assert world.out() == set()
    assert held(world) == dict.fromkeys(NAMES[2:6], Brake.COMMON_CAUSE)


def test_a_new_leader_and_a_clock_that_was_set_back_hold_back_the_same() -> None:
    world = a_world()
    breaks(world, *NAMES[:5])
    world.picture = structs.replace(world.picture, epoch=2)
    world.settle()
    breaks(world, "n009")
    world.now = Now(world.now.mono_s + 5.0, world.now.wall_s - 7200.0)
    world.settle()
    assert world.out() == {"n000", "n001"}
    assert set(held(world)) == {*NAMES[2:5], "n009"}


def test_what_is_only_observed_is_held_back_alike_and_touches_nothing() -> None:
    world = a_world(settings=structs.replace(SETTINGS, observe_pools=frozenset({""})))
    breaks(world, *NAMES[:5])
    assert world.out() == set()
    assert set(held(world)) == set(NAMES[2:5])


def test_jobs_do_not_leave_the_nodes_that_are_held_back_for_it() -> None:
    world = a_world()
    breaks(world, *NAMES[:5])
    assert set(standing(world.records.values())) == {"n000", "n001"}


# ---------------------------------------------------------------- a person's word


def test_go_on_isolates_them_within_the_brakes_and_says_so_of_each() -> None:
    world = a_world()
    breaks(world, *NAMES[:6])
    world.say(XID, Say.GO_ON, "the cooling failed")
    world.settle()
    assert world.out() == set(NAMES[:6])
    breaks(world, "n007")
    assert "n007" in world.out()
    assert world.of("n005").reason == Reason.ROOM_AGAIN


def test_go_on_lasts_a_day_and_what_many_nodes_have_tomorrow_is_asked_anew() -> None:
    world = a_world()
    world.say(XID, Say.GO_ON)
    world.passes(causes.GO_ON_S)
    breaks(world, *NAMES[:4])
    assert set(held(world)) == {"n002", "n003"}


def test_go_on_counts_for_a_network_incident_too() -> None:
    world = a_world()
    for name in NAMES[:6]:
        world.shows(name, a_nic_finding())
    world.settle()
    world.passes(60.0)
    world.settle()
    assert set(held(world).values()) == {Brake.NETWORK_INCIDENT}
    world.say("ib-port-down", Say.GO_ON)
    world.settle()
    assert world.out() == set(NAMES[:6])


def test_an_ignored_code_gives_back_what_is_out_for_it_and_isolates_nobody() -> None:
    world = a_world()
    breaks(world, *NAMES[:6])
    before = len(told(world))
    world.say(XID, Say.IGNORE, "the new rule is wrong")
    world.settle()
    assert world.out() == set()
    assert held(world) == {}
    for name in NAMES[:6]:
        record = world.of(name)
        assert (record.reason, record.ended_by, record.by) == (Reason.CODE_IGNORED, EndedBy.PERSON, "anna")
    assert world.of("n000").sentence == (
        "Node n000 is back in service: XID 31 is ignored, by anna: the new rule is wrong."
    )
    assert "n005 stays in service" in world.of("n005").sentence
    assert len(told(world)) == before + 2, "of those that were out, and of nobody else"
    breaks(world, "n008")
    world.passes(7 * 86_400.0)
    world.settle()
    assert world.out() == set()
    breaks(world, "n009", code="XID 79")
    assert world.out() == {"n009"}


def test_a_node_that_is_out_for_more_than_the_ignored_code_stays_out() -> None:
    world = a_world()
    world.shows("n000", a_finding(XID), a_finding("XID 79"))
    world.settle()
    world.say(XID, Say.IGNORE)
    world.settle()
    assert world.out() == {"n000"}


def test_what_stands_acts_again_when_the_word_is_taken_back() -> None:
    world = a_world()
    breaks(world, "n000")
    world.say(XID, Say.IGNORE)
    world.settle()
    assert world.out() == set()
    world.say(XID, None)
    world.settle()
    assert world.out() == {"n000"}


# ---------------------------------------------------------------- chance


@pytest.mark.parametrize(
    ("nodes", "least"), [(1, 3), (400, 3), (1000, 3), (10_000, 5), (100_000, 9), (100_000_000, 1000)]
)
def test_larger_fleets_have_more_nodes_with_one_code_by_chance(nodes: int, least: int) -> None:
    (_, many), (_, within_a_day) = causes.limits(nodes, FleetSettings())
    assert least <= many <= 3 * least
    assert within_a_day >= 2 * many


def test_chance_is_never_below_what_administrators_say() -> None:
    settings = structs.replace(SETTINGS, cause_nodes=8)
    assert causes.limits(10, settings) == ((SETTINGS.cause_window_s, 8), (causes.SLOW_S, 16))
