"""Which ended records go, and which of two that say the same stays."""

from msgspec import structs

from sentinel.core.fleet import rounds
from sentinel.core.fleet.model import EndedBy, FleetPicture, Kind, Needs, NodeQuarantine, State
from sentinel.core.fleet.settings import FleetSettings
from sentinel.core.now import Now
from tests.core.fleet_world import World, a_finding, an_isolated_node

NOW = Now(1000.0, 2_000_000_000.0)
DAY_S = 86400.0
NOBODY = FleetPicture(nodes={}, complete=True)


def ended(number: int, ago_s: float) -> NodeQuarantine:
    return NodeQuarantine(
        id=f"n-{number:04d}",
        kind=Kind.FAULT,
        node="n",
        node_uid="u",
        state=State.RELEASED,
        needs=Needs(sentence=""),
        ended_wall_s=NOW.wall_s - ago_s,
    )


def pruned(*records: NodeQuarantine, **settings: int) -> list[str]:
    found = rounds.pruned(NOBODY, {one.id: one for one in records}, FleetSettings(**settings), NOW)  # type: ignore[arg-type]
    return [one.id for one in found]


def test_an_ended_record_goes_when_the_longest_window_that_reads_it_is_over() -> None:
    assert pruned(ended(1, 6.9 * DAY_S), ended(2, 7.1 * DAY_S)) == ["n-0002"]
    assert pruned(structs.replace(ended(1, 0.0), ended_wall_s=None, state=State.ACTIVE)) == []


def test_of_too_many_the_oldest_go_but_none_that_a_brake_still_counts() -> None:
    records = [ended(number, number * 1800.0) for number in range(1, 9)]  # the last hour holds two
    assert pruned(*records, keep_records=5) == ["n-0008", "n-0007", "n-0006"]
    assert pruned(*records, keep_records=0) == ["n-0008", "n-0007", "n-0006", "n-0005", "n-0004", "n-0003"]


def test_of_two_open_records_of_one_node_and_kind_one_stays() -> None:
    world: World = an_isolated_node()
    (record,) = world.records.values()
    double = structs.replace(record, id="n1-0007", acted_wall_s=record.acted_wall_s + 1.0)
    world.records[double.id] = double
    world.settle()
    assert world.out() == {"n1"}
    assert world.records[record.id].state is State.ACTIVE
    gone = world.records[double.id]
    assert (gone.state, gone.ended_by) == (State.RELEASED, EndedBy.DOUBLED)
    assert "n1-0001 is about the same" in gone.sentence


def test_of_two_records_the_one_that_the_node_shows_stays_and_no_double_makes_a_repeat_offender() -> None:
    world = an_isolated_node()
    (record,) = world.records.values()
    for number in (0, 5, 6):
        other = structs.replace(record, id=f"n1-{number:04d}")
        world.records[other.id] = other
    world.settle()
    assert [one.id for one in world.records.values() if one.state.open] == [record.id]
    world.shows("n1")
    world.passes(1.0)
    world.settle()
    world.passes(700.0)
    world.reboot("n1", "boot-2")
    world.settle()
    world.passes(700.0)
    world.settle()
    assert not world.out()
    world.shows("n1", a_finding(boot_id="boot-2"))
    world.settle()
    assert world.of("n1").repeats == 1
