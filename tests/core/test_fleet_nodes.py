"""Nodes that are replaced, renamed and restarted, late reports, and records in other hands."""

import msgspec
import pytest
from msgspec import structs

from sentinel.core.fleet import rounds
from sentinel.core.fleet.events import Reason
from sentinel.core.fleet.fold import fold
from sentinel.core.fleet.marks import write
from sentinel.core.fleet.model import (
    EndedBy,
    FleetPicture,
    Kind,
    NodeMark,
    Order,
    OrderKind,
    Repair,
    State,
    Taint,
)
from sentinel.core.fleet.settings import Allowance, Limit
from sentinel.core.health import Finding
from tests.core.fleet_world import OPEN, World, a_finding, a_full_disk, a_nic_finding, a_pod, an_isolated_node

# ---------------------------------------------------------------- nodes that change


def test_another_machine_under_the_same_name_begins_anew() -> None:
    world = an_isolated_node()
    world.leave("n1")
    world.join("n1", uid="uid-other", boot="boot-9")
    world.shows("n1")
    world.settle()
    assert world.of("n1").ended_by is EndedBy.NODE_REPLACED
    assert not world.out()


def test_a_new_object_of_the_same_machine_stays_an_isolated_node() -> None:
    world = an_isolated_node()
    world.leave("n1")
    world.join("n1", uid="uid-again")
    world.settle()
    assert world.out() == {"n1"}
    assert (len(world.records), world.of("n1").node_uid) == (1, "uid-again")
    assert Reason.NODE_RECREATED in world.reasons()


def test_a_node_whose_machine_is_not_known_yet_is_not_judged() -> None:
    world = an_isolated_node()
    world.leave("n1")
    world.put(
        structs.replace(world.node("n2"), name="n1", uid="uid-x", boot_id="", api_boot_id="", checks={})
    )
    assert world.decide() == ()


def test_nothing_is_written_to_a_node_object_that_the_record_does_not_mean() -> None:
    world = World()
    world.shows("n1", a_finding())
    world.decide(write=False)
    another = world.change("n1", uid="uid-x", boot_id="", api_boot_id="", checks={})
    assert write(another, list(world.records.values())) is None


def test_a_node_that_is_gone_ends_its_isolation_and_not_a_persons_hold() -> None:
    world = an_isolated_node()
    world.order(OrderKind.HOLD, "n1")
    world.settle()
    world.leave("n1")
    world.picture = structs.replace(world.picture, complete=False)
    assert world.decide() == (), "the list of nodes is not whole"
    world.picture = structs.replace(world.picture, complete=True)
    world.settle()
    assert world.of("n1").ended_by is EndedBy.NODE_GONE
    assert world.of("n1", Kind.HOLD).state is State.ACTIVE
    world.join("n1", uid="uid-other", boot="boot-9")
    world.shows("n1")
    world.settle()
    assert world.out() == {"n1"}


def test_a_renamed_node_is_isolated_under_its_new_name() -> None:
    world = an_isolated_node()
    world.leave("n1")
    world.join("n9", boot="boot-1")
    world.shows("n9", a_finding())
    world.settle()
    assert world.of("n1").ended_by is EndedBy.NODE_GONE
    assert world.out() == {"n9"}


def test_a_late_report_of_an_old_boot_changes_nothing() -> None:
    world = World()
    world.shows("n1", a_finding())
    late = world.report_of("n1")
    world.passes(100.0)
    world.reboot("n1", "boot-2")
    before = world.node()
    after = fold(before, late, world.now)
    assert structs.replace(after, agent_mono_s=None) == structs.replace(before, agent_mono_s=None)
    # Also where the kubelet's word of the new boot is not known yet.
    world.change("n1", api_boot_id="")
    assert fold(world.node(), late, world.now).boot_id == "boot-2"
    assert world.decide() == ()


def test_a_late_report_is_known_as_such_although_the_nodes_clock_was_set_back() -> None:
    world = World()
    late = world.report_of("n1")
    world.reboot("n1", "boot-2")
    back = structs.replace(late.now, wall_s=late.now.wall_s + 86_400.0)
    assert fold(world.node(), structs.replace(late, now=back), world.now).boot_id == "boot-2"
    # Where the kubelet's word is still of the old boot, the clock of the node decides.
    world.change("n1", boot_id="boot-0", api_boot_id="", booted_wall_s=0.0)
    assert fold(world.node(), late, world.now).boot_id == "boot-1"


def test_a_check_that_an_agent_no_longer_has_is_forgotten_with_its_next_full_report() -> None:
    world = World()
    world.shows("n1", a_full_disk())
    late = world.report_of("n1")
    world.passes(1.0)
    del world.found["n1"]["disk"]
    changes = fold(world.node(), world.report_of("n1"), world.now)
    assert "disk" in changes.checks
    full = fold(changes, world.report_of("n1"), world.now, full=True)
    assert "disk" not in full.checks
    assert fold(full, late, world.now, full=True).checks == full.checks, "a late one brings nothing back"


def test_a_picture_is_the_same_after_it_was_written_and_read() -> None:
    world = World()
    world.change("n1", pods=(a_pod(),))
    world.shows("n1", a_finding())
    world.order(OrderKind.HOLD, "n1")
    world.picture = structs.replace(
        world.picture, orders=(*world.picture.orders, Order(id="o", kind=OrderKind.RELEASE, node="n1"))
    )
    read = msgspec.json.decode(msgspec.json.encode(world.picture), type=FleetPicture)
    assert read == world.picture


# ---------------------------------------------------------------- records in other hands


def test_a_deleted_record_is_made_anew_from_the_mark() -> None:
    world = an_isolated_node()
    old = world.records.pop("n1-0001")
    world.settle()
    record = world.of("n1")
    assert (record.id, record.state, record.findings) == (old.id, State.ACTIVE, old.findings)
    assert record.story[0].reason == Reason.MARK_FOUND
    assert world.out() == {"n1"}
    world.reboot("n1", "boot-2")
    world.settle()
    world.passes(OPEN.release_after_s)
    world.settle()
    assert not world.out()
    assert not world.node("n1").unschedulable, "the mark says that Sentinel cordoned it"


@pytest.mark.parametrize("held", [True, False])
def test_a_node_whose_record_was_deleted_and_that_shows_nothing_waits_for_a_person(held: bool) -> None:
    world = World() if held else an_isolated_node()
    if held:
        world.order(OrderKind.HOLD, "n1")
    else:
        world.shows("n1")
        world.reboot("n1", "boot-2")
    world.settle()
    world.records.clear()
    world.settle()
    world.passes(OPEN.release_after_s * 10)
    world.settle()
    assert world.out() == {"n1"}
    assert "a person must release it: its record was deleted" in world.of("n1").needs.sentence
    world.order(OrderKind.RELEASE, "n1")
    world.settle()
    assert not world.out()


def test_a_record_that_was_made_anew_counts_in_no_window() -> None:
    world = World(["n1", "n2"], structs.replace(OPEN, isolations=Allowance(per_window=Limit(1))))
    world.shows("n1", a_finding())
    world.settle()
    world.passes(4000.0)
    world.records.clear()
    world.settle()
    assert world.of("n1").acted_wall_s == 0.0
    world.shows("n2", a_finding())
    world.settle()
    assert world.out() == {"n1", "n2"}


def test_a_deleted_record_is_not_made_anew_where_another_one_keeps_the_node_out() -> None:
    world = World()
    world.shows("n1", a_finding())
    world.settle()
    world.shows("n1", a_finding(), a_full_disk())
    world.settle()
    del world.records["n1-0001"]
    world.shows("n1", a_full_disk())
    world.settle()
    assert {record.kind for record in world.records.values()} == {Kind.DISK}
    assert Reason.MARK_FOUND not in world.reasons()
    mark = world.node().mark
    assert mark is not None
    assert mark.number == 2


def test_a_deleted_record_beside_one_that_is_held_back_or_observed() -> None:
    world = World(["n1"], structs.replace(OPEN, isolations=Allowance(per_window=Limit(0))))
    world.order(OrderKind.HOLD, "n1")
    world.settle()
    world.shows("n1", a_finding())
    world.settle()
    assert world.of("n1").state is State.HELD
    del world.records["n1-0001"]
    world.settle()
    assert (world.of("n1").state, world.of("n1").reason) == (State.ACTIVE, Reason.MARK_FOUND)
    assert world.out() == {"n1"}


@pytest.mark.parametrize("well", [True, False])
def test_a_record_that_a_person_sets_to_released_gives_the_node_back(well: bool) -> None:
    world = an_isolated_node()
    if well:
        world.shows("n1")
    world.records["n1-0001"] = structs.replace(world.of("n1"), state=State.RELEASED)
    world.settle()
    assert not world.out()
    record = world.of("n1")
    assert (len(world.records), record.ended_by, record.ended_wall_s) == (1, EndedBy.PERSON, world.now.wall_s)
    world.reboot("n1", "boot-2", a_finding(boot_id="boot-2"))
    world.settle()
    assert world.out() == {"n1"}, "it has occurred anew"


def another_machine(world: World, *found: Finding) -> None:
    world.leave("n1")
    world.settle()
    world.join("n1", uid="uid-other", boot="boot-other")
    world.shows("n1", *found)
    world.settle()


def test_the_isolations_of_a_machine_are_no_repeats_of_another_one_of_its_name() -> None:
    world = World(["n1"])
    for boot in ("boot-1", "boot-2"):
        world.reboot("n1", boot, a_finding(boot_id=boot))
        world.settle()
        world.order(OrderKind.RELEASE, "n1")
        world.settle()
    another_machine(world, a_finding(boot_id="boot-other"))
    assert world.out() == {"n1"}
    assert (world.of("n1").repeats, world.of("n1").needs.repair) == (0, Repair.REBOOT)


def test_what_a_person_lives_with_on_one_machine_isolates_another_one_of_its_name() -> None:
    world = World(["n1"])
    world.shows("n1", a_nic_finding())
    world.settle()
    world.passes(60.0)
    world.settle()
    assert world.out() == {"n1"}
    world.order(OrderKind.RELEASE, "n1")
    world.settle()
    assert not world.out()
    another_machine(world, a_nic_finding())
    assert not world.out(), "a network finding settles first"
    world.passes(60.0)
    world.settle()
    assert world.out() == {"n1"}
    assert (len(world.records), world.of("n1").node_uid) == (2, "uid-other")


def test_what_a_person_lives_with_stays_so_under_a_new_object_of_the_machine_and_after_its_next_boot() -> (
    None
):
    world = World(["n1"])
    world.shows("n1", a_nic_finding())
    world.settle()
    world.passes(60.0)
    world.settle()
    world.order(OrderKind.RELEASE, "n1")
    world.settle()
    world.leave("n1")
    world.settle()
    world.join("n1", uid="uid-again", boot="boot-1")
    world.settle()
    world.reboot("n1", "boot-2", a_nic_finding(boot_id="boot-2"))
    world.settle()
    world.passes(60.0)
    world.settle()
    assert not world.out()
    assert len(world.records) == 1


def test_a_deleted_record_of_an_ended_isolation_is_no_reason_to_act() -> None:
    world = an_isolated_node()
    world.reboot("n1", "boot-2")
    world.settle()
    world.passes(OPEN.release_after_s)
    world.settle()
    world.records.clear()
    world.settle()
    assert not world.records


def test_a_mark_that_is_not_readable_is_replaced() -> None:
    world = an_isolated_node()
    world.change("n1", taints=(Taint("sentinel.dev/quarantined", "who knows"),))
    world.settle()
    mark = world.node("n1").mark
    assert mark is not None
    assert mark.number == 1


def test_ended_records_are_kept_for_the_longest_window_and_as_long_as_they_are_needed() -> None:
    world = an_isolated_node()
    world.order(OrderKind.RELEASE, "n1")
    world.settle()
    world.passes(OPEN.keep_s + 1)
    world.settle()
    assert not rounds.prunable(world.of("n1"), world.picture, OPEN, world.now), "its finding still stands"
    world.shows("n1")
    world.settle()
    assert rounds.prunable(world.of("n1"), world.picture, OPEN, world.now)
    assert not rounds.prunable(an_isolated_node().of("n1"), world.picture, OPEN, world.now)
    mark = NodeMark(1, True).taint()
    world.change("n1", taints=(mark,))
    assert not rounds.prunable(world.of("n1"), world.picture, OPEN, world.now), "the mark is still there"
