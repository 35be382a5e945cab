"""One code on more nodes than chance gives: one incident, one message, and a person's word about it."""

import pytest
from msgspec import structs

from sentinel.core import fleet, fleet_causes
from sentinel.core.fleet_events import DoTell, Reason
from sentinel.core.fleet_isolate import standing
from sentinel.core.fleet_model import Brake, EndedBy, OrderKind, Say, State
from sentinel.core.fleet_settings import FleetSettings
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
    """Messages: of equal keys there is one."""
    return [*dict.fromkeys(one.key for one in world.effects if isinstance(one, DoTell))]


# ---------------------------------------------------------------- one cause


def test_the_third_node_with_one_code_within_minutes_makes_it_one_incident() -> None:
    world = a_world()
    for name in NAMES[:5]:
        breaks(world, name)
        world.passes(60.0)
    assert world.out() == {"n000", "n001"}
    assert held(world) == dict.fromkeys(NAMES[2:5], Brake.COMMON_CAUSE)
    assert told(world) == ["n000-0001/FatalFinding", "n001-0001/FatalFinding", f"common-cause/{XID}"]
    (cause,) = fleet.standing_causes(world.records.values())
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


def test_when_it_ends_by_itself_nobody_was_isolated_and_who_still_has_it_is() -> None:
    """The rule was taken back: of the two that are out, and of the one that really has it, nothing is held back."""
    world = a_world()
    breaks(world, *NAMES[:8])
    world.passes(60.0)
    for name in NAMES[2:7]:
        world.shows(name)
    world.shows("n000")
    world.shows("n001")
    world.settle()
    world.passes(SETTINGS.release_after_s)
    world.settle()
    assert held(world) == {"n007": Brake.COMMON_CAUSE}, "n000 and n001 have not been repaired: three have it"
    for name in ("n000", "n001"):
        world.reboot(name, "boot-2")
    world.settle()
    world.passes(SETTINGS.release_after_s)
    world.settle()
    assert world.out() == set()
    assert [one.ended_by for one in world.records.values() if not one.state.open] == [EndedBy.WELL] * 7


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
    world.passes(fleet_causes.GO_ON_S)
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
    assert fleet_causes.by_chance(nodes, FleetSettings()) >= least
    assert fleet_causes.by_chance(nodes, FleetSettings()) <= 3 * least


def test_chance_is_never_below_what_administrators_say() -> None:
    assert fleet_causes.by_chance(10, structs.replace(SETTINGS, cause_nodes=8)) == 8
