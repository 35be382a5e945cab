"""The brakes: never too many at once, by severity, counted from the records."""

import math

import pytest
from msgspec import structs

from sentinel.core.fleet import brakes as fleet_brakes
from sentinel.core.fleet import rounds
from sentinel.core.fleet.events import DoTell, Reason
from sentinel.core.fleet.model import Brake, EndedBy, Kind, Mode, OrderKind, State
from sentinel.core.fleet.settings import Allowance, Limit
from sentinel.core.health import CheckState
from sentinel.core.now import Now
from tests.core.fleet_world import OPEN, World, a_finding, a_full_disk, a_nic_finding

NAMES = [f"n{number}" for number in range(10)]


def allowing(at_a_time: int, per_window: int = 1000, *, window_s: float = 3600.0) -> Allowance:
    return Allowance(at_a_time=Limit(at_a_time), per_window=Limit(per_window), window_s=window_s)


def a_world(**brakes: Allowance) -> World:
    return World(NAMES, structs.replace(OPEN, **brakes))


def heal(world: World, name: str) -> None:
    """Restarted, and nothing is found any more."""
    world.reboot(name, f"boot-{world.now.mono_s}")
    world.settle()
    world.passes(OPEN.release_after_s + 1)


def held(world: World) -> dict[str, Brake]:
    return {record.node: record.held_by for record in world.records.values() if record.state is State.HELD}


def test_more_than_allowed_at_a_time_are_held_back_said_and_go_on_by_themselves() -> None:
    world = a_world(isolations=allowing(2))
    for name in NAMES[:4]:
        world.shows(name, a_finding())
    world.settle()
    assert world.out() == {"n0", "n1"}
    assert held(world) == {"n2": Brake.AT_A_TIME, "n3": Brake.AT_A_TIME}
    assert "at a time" in world.of("n2").sentence
    assert any(isinstance(one, DoTell) and "n2" in one.sentence for one in world.effects)
    heal(world, "n0")
    world.settle()
    assert world.out() == {"n1", "n2"}, "who waits longest goes first"
    assert world.of("n2").story[-1].reason == Reason.ROOM_AGAIN


def test_an_isolation_that_stood_for_hours_takes_no_room_from_others() -> None:
    """A repair takes days. What is wrong is taken back within hours."""
    world = a_world(isolations=allowing(1))
    for name in NAMES[:3]:
        world.shows(name, a_finding())
    world.settle()
    assert world.out() == {"n0"}
    world.passes(OPEN.proven_after_s - 1.0)
    world.settle()
    assert world.out() == {"n0"}
    world.passes(1.0)
    world.settle()
    assert world.out() == {"n0", "n1"}, "n1 is young itself"
    tally = fleet_brakes.isolations(
        Kind.FAULT, world.records.values(), world.picture, world.settings, world.now
    )
    assert [one.used for one in tally.uses() if one.window == "at-a-time"] == [1]


def test_a_clock_that_was_set_back_makes_nothing_older() -> None:
    world = a_world(isolations=allowing(1))
    for name in NAMES[:2]:
        world.shows(name, a_finding())
    world.settle()
    world.now = Now(world.now.mono_s, world.now.wall_s - 30 * 86_400.0)
    world.settle()
    assert world.out() == {"n0"}


def test_a_record_made_anew_of_a_marked_node_is_as_old_as_it_is_known() -> None:
    world = a_world(isolations=allowing(1))
    world.shows("n0", a_finding())
    world.settle()
    world.records.clear()
    world.settle()
    assert world.of("n0").acted_wall_s == 0.0
    world.shows("n1", a_finding())
    world.settle()
    assert world.out() == {"n0"}
    world.passes(OPEN.proven_after_s)
    world.settle()
    assert world.out() == {"n0", "n1"}


def test_what_a_person_has_acknowledged_takes_no_room_from_others() -> None:
    world = a_world(isolations=allowing(1))
    for name in NAMES[:3]:
        world.shows(name, a_finding())
    world.settle()
    world.order(OrderKind.ACKNOWLEDGE, "n0", "it is at the vendor's")
    world.settle()
    assert world.out() == {"n0", "n1"}
    record = world.of("n0")
    assert (record.state, record.acknowledged, record.by) == (State.ACTIVE, True, "anna")
    assert record.sentence == "The isolation of node n0 was acknowledged by anna: it is at the vendor's."
    assert not [one for one in world.effects if isinstance(one, DoTell) and "acknowledged by" in one.sentence]
    heal(world, "n0")
    world.settle()
    assert "n0" not in world.out(), "it comes back as any other"


def test_the_window_counts_what_was_begun_within_it() -> None:
    world = a_world(isolations=allowing(1000, 2, window_s=7200.0))
    for name in NAMES[:3]:
        world.shows(name, a_finding())
    world.settle()
    assert held(world) == {"n2": Brake.PER_WINDOW}
    world.order(OrderKind.RELEASE, "n0")
    world.settle()
    assert held(world) == {"n2": Brake.PER_WINDOW}, "what has ended was still begun"
    world.passes(7201.0)
    world.settle()
    assert world.out() == {"n1", "n2"}


def test_each_pool_has_its_own_limit() -> None:
    world = World([], structs.replace(OPEN, pool_isolations=allowing(1)))
    for name in NAMES[:2]:
        world.join(name, pool="a")
    for name in NAMES[2:4]:
        world.join(name, pool="b")
    for name in NAMES[:4]:
        world.shows(name, a_finding())
    world.settle()
    assert world.out() == {"n0", "n2"}
    assert held(world) == {"n1": Brake.POOL_AT_A_TIME, "n3": Brake.POOL_AT_A_TIME}


@pytest.mark.parametrize(("nodes", "most"), [(1, 2), (39, 2), (40, 2), (60, 3), (100, 5)])
def test_a_limit_is_the_larger_of_floor_and_share(nodes: int, most: int) -> None:
    assert Limit(2, 0.05).of(nodes) == most


def test_the_most_severe_is_served_first_and_then_who_waits_longest() -> None:
    world = a_world(isolations=allowing(0))
    for name in ("n5", "n3", "n1"):
        world.shows(name, a_finding())
        world.settle()
        world.passes(5.0)
    world.shows("n3", a_finding(), a_nic_finding())  # worse than a card alone
    world.settle()
    served = []
    for room in (1, 2, 3):
        world.settings = structs.replace(OPEN, isolations=allowing(room))
        world.settle()
        served.append(world.out())
    assert served == [{"n3"}, {"n3", "n5"}, {"n1", "n3", "n5"}]


def test_full_disks_have_an_allowance_of_their_own() -> None:
    world = a_world(isolations=allowing(1), disks=allowing(2))
    for name in NAMES[:4]:
        world.shows(name, a_full_disk())
    for name in NAMES[5:7]:
        world.shows(name, a_finding())
    world.settle()
    assert world.out() == {"n0", "n1", "n5"}
    assert held(world) == {"n2": Brake.AT_A_TIME, "n3": Brake.AT_A_TIME, "n6": Brake.AT_A_TIME}


def test_what_is_held_back_and_ends_by_itself_was_never_touched() -> None:
    world = a_world(isolations=allowing(0))
    world.shows("n0", a_finding())
    world.settle()
    world.passes(1.0)
    world.shows("n0")
    world.settle()
    record = world.of("n0")
    assert (record.state, record.ended_by, record.acted_wall_s) == (State.RELEASED, EndedBy.WELL, 0.0)
    assert record.reason == Reason.NOT_NEEDED
    assert not world.out()


def test_what_was_held_back_is_not_isolated_for_what_is_no_longer_known() -> None:
    """A new leader has not heard the agent yet."""
    world = a_world(isolations=allowing(0))
    world.shows("n0", a_finding())
    world.settle()
    world.settings = OPEN
    world.change("n0", checks={}, agent_mono_s=None)
    world.settle()
    assert not world.out()
    world.report("n0")
    world.settle()
    assert world.out() == {"n0"}


def test_releases_go_on_whatever_the_brakes_hold() -> None:
    world = a_world(isolations=allowing(3))
    for name in NAMES[:3]:
        world.shows(name, a_finding())
    world.settle()
    world.settings = structs.replace(OPEN, isolations=allowing(0, 0))
    heal(world, "n0")
    world.settle()
    assert world.out() == {"n1", "n2"}


def test_a_person_holds_a_node_whatever_the_brakes_say() -> None:
    world = a_world(isolations=allowing(0), disks=allowing(0))
    world.order(OrderKind.HOLD, "n3")
    world.settle()
    assert world.out() == {"n3"}
    world.settings = structs.replace(OPEN, isolations=allowing(1))
    world.shows("n4", a_finding())
    world.settle()
    assert world.out() == {"n3", "n4"}, "a person's hold takes no room"


def test_a_new_leader_counts_the_same() -> None:
    world = a_world(isolations=allowing(1000, 2))
    for name in NAMES[:2]:
        world.shows(name, a_finding())
    world.settle()
    world.now = Now(3.0, world.now.wall_s + 30.0)
    world.booted = dict.fromkeys(world.booted, ("boot-1", -20_000.0))
    world.picture = structs.replace(world.picture, epoch=2, watching_since_mono_s=3.0)
    world.shows("n2", a_finding())
    world.settle()
    assert held(world) == {"n2": Brake.PER_WINDOW}


def test_a_clock_that_was_set_back_frees_no_room() -> None:
    world = a_world(isolations=allowing(1000, 1))
    world.shows("n0", a_finding())
    world.settle()
    world.now = Now(world.now.mono_s + 1, world.now.wall_s - 7200.0)
    world.shows("n1", a_finding())
    world.settle()
    assert held(world) == {"n1": Brake.PER_WINDOW}


def test_what_is_only_observed_takes_no_room_from_what_is_enforced() -> None:
    world = World([], structs.replace(OPEN, isolations=allowing(2), observe_pools=frozenset({"new"})))
    for name in NAMES[:3]:
        world.join(name, pool="new")
    for name in NAMES[3:5]:
        world.join(name, pool="old")
    for name in NAMES[:5]:
        world.shows(name, a_finding())
    world.settle()
    assert world.out() == {"n3", "n4"}
    assert held(world) == {"n2": Brake.AT_A_TIME}, "the observed ones are braked as if they were enforced"


def test_what_was_observed_waits_for_room_when_it_is_to_be_enforced() -> None:
    world = World(NAMES, structs.replace(OPEN, mode=Mode.OBSERVE))
    for name in NAMES[:2]:
        world.shows(name, a_finding())
    world.settle()
    world.settings = structs.replace(OPEN, isolations=allowing(1))
    world.settle()
    assert world.out() == {"n0"}
    assert held(world) == {"n1": Brake.AT_A_TIME}


def test_pause_stops_every_new_isolation_and_no_release() -> None:
    world = a_world()
    world.shows("n0", a_finding())
    world.settle()
    world.picture = structs.replace(world.picture, paused="anna")
    world.shows("n1", a_finding())
    world.settle()
    assert held(world) == {"n1": Brake.PAUSED}
    assert not world.node("n1").conditions
    heal(world, "n0")
    world.settle()
    assert not world.out()
    world.picture = structs.replace(world.picture, paused="")
    world.settle()
    assert world.out() == {"n1"}


# ---------------------------------------------------------------- network incidents


def test_many_nodes_with_one_network_finding_are_one_incident_and_none_is_isolated() -> None:
    world = a_world()
    for name in NAMES[:6]:
        world.shows(name, a_nic_finding())
        world.settle()
        world.passes(1.0)
    world.passes(60.0)
    world.settle()
    assert not world.out()
    assert set(held(world).values()) == {Brake.NETWORK_INCIDENT}
    (incident,) = rounds.incidents(world.records, OPEN, world.now)
    assert (incident.code, incident.nodes) == ("ib-port-down", tuple(NAMES[:6]))
    told = {one.key for one in world.effects if isinstance(one, DoTell)}
    assert told == {"network-incident/ib-port-down"}, "one message"


def test_an_incident_that_is_over_isolates_nobody_and_who_still_has_it_is_isolated() -> None:
    world = a_world()
    for name in NAMES[:6]:
        world.shows(name, a_nic_finding())
    world.settle()
    world.passes(60.0)
    for number, name in enumerate(NAMES[:5], start=1):
        world.shows(name)
        world.settle()
        assert held(world) == dict.fromkeys(NAMES[number:6], Brake.NETWORK_INCIDENT), (
            "ports come up one by one"
        )
        world.passes(5.0)
    (incident,) = rounds.incidents(world.records, OPEN, world.now)
    assert incident.nodes == ("n5",)
    world.passes(60.0)
    world.settle()
    assert world.out() == {"n5"}
    assert not rounds.incidents(world.records, OPEN, world.now)
    assert held(world) == {}


def test_few_nodes_with_a_network_finding_are_isolated_after_a_moment() -> None:
    world = a_world()
    for name in NAMES[: OPEN.network_nodes - 1]:
        world.shows(name, a_nic_finding())
    world.settle()
    assert set(held(world).values()) == {Brake.NETWORK_SETTLING}
    assert not [one for one in world.effects if isinstance(one, DoTell)], "nothing is said before it is known"
    world.passes(OPEN.network_settle_s)
    world.settle()
    assert world.out() == set(NAMES[: OPEN.network_nodes - 1])


def test_nodes_that_wait_for_a_new_card_are_no_incident() -> None:
    world = a_world()
    for name in NAMES[:5]:
        world.shows(name, a_nic_finding())
        world.settle()
        world.passes(3600.0)
        world.settle()
    assert world.out() == set(NAMES[:5])


def test_what_is_found_days_apart_is_no_incident_though_it_is_held_back() -> None:
    """For want of room: each waits for its own repair, and they have nothing to do with each other."""
    world = World(NAMES, structs.replace(OPEN, isolations=allowing(1), proven_after_s=math.inf))
    for name in NAMES[:6]:
        world.shows(name, a_nic_finding())
        world.settle()
        world.passes(5 * 86_400.0)
        world.settle()
    assert world.out() == {"n0"}
    assert held(world) == dict.fromkeys(NAMES[1:6], Brake.AT_A_TIME)
    assert not rounds.incidents(world.records, world.settings, world.now)


def test_an_incident_lasts_and_what_is_found_hours_after_it_is_another_matter() -> None:
    world = a_world()
    for name in NAMES[:5]:
        world.shows(name, a_nic_finding())
        world.settle()
        world.passes(1.0)
    world.passes(6 * 3600.0)
    world.settle()
    assert held(world) == dict.fromkeys(NAMES[:5], Brake.NETWORK_INCIDENT)
    world.shows("n7", a_nic_finding())
    world.settle()
    world.passes(OPEN.network_settle_s)
    world.settle()
    assert world.out() == {"n7"}
    assert held(world) == dict.fromkeys(NAMES[:5], Brake.NETWORK_INCIDENT)


def test_a_node_whose_gpu_fails_too_is_isolated_during_the_incident() -> None:
    world = a_world()
    for name in NAMES[:6]:
        world.shows(name, a_nic_finding())
    world.shows("n7", a_nic_finding(), a_finding())
    world.settle()
    assert world.out() == {"n7"}


def test_a_clock_that_was_set_back_does_not_hold_a_network_finding_for_hours() -> None:
    world = a_world()
    world.shows("n0", a_nic_finding())
    world.settle()
    world.now = Now(world.now.mono_s + 1, world.now.wall_s - 7200.0)
    world.settle()
    assert world.out() == {"n0"}


def test_a_round_over_few_nodes_serves_those_that_were_held_back_too() -> None:
    world = a_world(isolations=allowing(1))
    for name in NAMES[:2]:
        world.shows(name, a_finding())
    world.settle()
    world.order(OrderKind.RELEASE, "n0")
    decisions = rounds.decide(world.picture, world.records, world.settings, world.now, only=["n0"])
    assert [(one.node, one.reason) for one in decisions] == [
        ("n0", Reason.RELEASED_BY_PERSON),
        ("n1", Reason.ROOM_AGAIN),
    ]
    assert Kind.FAULT in {record.kind for record in world.records.values()}


def test_what_a_check_had_found_that_is_no_more_isolates_nobody_and_a_person_ends_what_it_has_isolated() -> (
    None
):
    world = a_world(isolations=allowing(1))
    for name in NAMES[:2]:
        world.shows(name, a_finding())
    world.settle()
    assert held(world) == {"n1": Brake.AT_A_TIME}
    for name in NAMES[:2]:
        world.shows(name)
        world.report(name, kernel=CheckState.ABSENT)
    for _ in range(3):
        world.passes(OPEN.proven_after_s, report=False)
        world.settle()
    assert world.out() == {"n0"}
    assert held(world) == {"n1": Brake.AT_A_TIME}
    for name in NAMES[:2]:
        world.order(OrderKind.RELEASE, name)
    world.settle()
    assert not world.out()
    assert not held(world)
