"""Isolation of nodes, and how they come back."""

import pytest
from msgspec import structs

from sentinel.core.fleet.events import DoEvent, DoMark, DoTell, Reason
from sentinel.core.fleet.fold import fold
from sentinel.core.fleet.model import (
    EndedBy,
    Kind,
    Mode,
    OrderKind,
    Repair,
    State,
)
from sentinel.core.fleet.record import MAX_LINE
from sentinel.core.fleet.settings import Allowance, Limit, pool_of
from sentinel.core.fleet.words import MAX_RUNNING
from sentinel.core.health import CheckState, Severity
from sentinel.core.now import Now
from tests.core.fleet_world import OPEN, World, a_finding, a_full_disk, a_nic_finding, a_pod, an_isolated_node

# ---------------------------------------------------------------- isolation


def test_a_fatal_finding_isolates_its_node_at_once_with_its_story() -> None:
    world = World(["n1", "n2"])
    world.change("n1", pods=(a_pod(),))
    world.shows("n1", a_finding())
    (decision,) = world.decide(write=False)
    assert (decision.node, decision.reason) == ("n1", Reason.FATAL_FINDING)
    assert "XID 79 of GPU 0000:18:00.0" in decision.sentence
    assert DoMark("n1") in world.effects
    assert {type(effect) for effect in world.effects} >= {DoEvent, DoTell}
    record = world.of("n1")
    assert (record.state, record.severity, record.needs.repair) == (
        State.ACTIVE,
        Severity.FATAL,
        Repair.REBOOT,
    )
    assert record.running_there == ("pod research/worker-0 of llama",)
    assert (record.boot_id, record.since_wall_s, record.epoch) == ("boot-1", world.now.wall_s, 1)
    world.perform()
    assert world.node("n1").unschedulable
    assert world.node("n1").pods == (a_pod(),), "no running pod is touched"
    assert world.out() == {"n1"}


def test_a_record_of_a_node_with_hundreds_of_pods_and_long_findings_stays_small() -> None:
    world = World(["n1"])
    world.change("n1", pods=tuple(a_pod(f"worker-{number:03}") for number in range(500)))
    world.shows("n1", *(a_finding(f"XID {number}", summary="x" * 500) for number in range(60, 63)))
    world.decide()
    record = world.of("n1")
    assert len(record.running_there) == MAX_RUNNING + 1
    assert record.running_there[-1] == "400 more pods"
    assert len(record.sentence) > MAX_LINE
    assert [len(line.sentence) for line in record.story] == [MAX_LINE]


@pytest.mark.parametrize("severity", [Severity.INFO, Severity.WARNING, Severity.DEGRADED])
def test_only_a_fatal_finding_isolates(severity: Severity) -> None:
    world = World()
    world.shows("n1", a_finding(severity=severity))
    assert world.decide() == ()


def test_what_is_found_later_joins_the_record() -> None:
    world = an_isolated_node()
    world.shows("n1", a_finding(), a_finding("XID 48", action="RESET_GPU"))
    world.settle()
    assert {finding.code for finding in world.of("n1").findings} == {"XID 79", "XID 48"}
    assert world.of("n1").needs.repair is Repair.REBOOT
    assert len(world.records) == 1


def test_a_full_disk_isolates_and_comes_back_when_it_is_under() -> None:
    world = World()
    world.shows("n1", a_full_disk())
    world.settle()
    assert world.of("n1", Kind.DISK).state is State.ACTIVE
    assert world.out() == {"n1"}
    world.passes(30.0)
    world.shows("n1")
    world.settle()
    world.passes(OPEN.disk_release_after_s + 1)
    world.settle()
    assert world.of("n1", Kind.DISK).ended_by is EndedBy.WELL
    assert not world.out()
    assert not world.node().unschedulable


def test_a_full_file_server_is_no_nodes_matter() -> None:
    world = World()
    world.shows("n1", a_full_disk(code="network-disk-space"))
    assert world.decide() == ()


def test_a_node_with_two_isolations_is_marked_until_both_have_ended() -> None:
    world = World()
    world.shows("n1", a_finding(), a_full_disk())
    world.settle()
    assert {record.kind for record in world.records.values()} == {Kind.FAULT, Kind.DISK}
    world.reboot("n1", "boot-2", a_full_disk())
    world.settle()
    world.passes(OPEN.release_after_s + 1)
    world.settle()
    assert world.of("n1").state is State.RELEASED
    assert world.out() == {"n1"}, "its disk is still full"
    mark = world.node().mark
    assert mark is not None
    assert mark.number == world.of("n1", Kind.DISK).number
    world.shows("n1")
    world.settle()
    world.passes(OPEN.disk_release_after_s + 1)
    world.settle()
    assert not world.out()
    assert not world.node().unschedulable


# ---------------------------------------------------------------- release


def test_a_node_comes_back_when_it_was_restarted_and_its_findings_stay_gone() -> None:
    world = an_isolated_node()
    world.reboot("n1", "boot-2")
    world.settle()
    world.passes(OPEN.release_after_s - 1)
    world.settle()
    assert world.out() == {"n1"}, "not before the time is over"
    world.passes(2.0)
    world.settle()
    record = world.of("n1")
    assert (record.state, record.ended_by) == (State.RELEASED, EndedBy.WELL)
    assert not world.out()
    assert not world.node("n1").unschedulable


def test_without_the_restart_that_is_needed_it_does_not_come_back() -> None:
    world = an_isolated_node()
    world.shows("n1")
    for _ in range(3):
        world.passes(10 * OPEN.release_after_s)
        world.settle()
    assert world.out() == {"n1"}


def test_after_a_reset_that_the_agent_saw_it_comes_back_in_the_same_boot() -> None:
    world = World()
    world.shows("n1", a_finding("XID 48", action="RESET_GPU"))
    world.settle()
    world.passes(30.0)
    world.shows("n1")
    world.settle()
    world.passes(OPEN.release_after_s)
    world.settle()
    assert not world.out()


def test_silence_is_not_health() -> None:
    world = an_isolated_node()
    world.found["n1"] = dict.fromkeys(world.found["n1"], ())
    world.silent.add("n1")
    world.passes(10 * OPEN.release_after_s)
    world.settle()
    assert world.out() == {"n1"}


def test_a_new_leader_waits_for_the_agent_and_goes_on_where_the_old_one_stood() -> None:
    world = an_isolated_node()
    world.reboot("n1", "boot-2")
    world.settle()
    world.passes(OPEN.release_after_s / 2)
    # The new leader has other clocks, and knows of its agents only what they tell it.
    world.now = Now(5.0, world.now.wall_s + 5.0)
    shift = 10_000.0 + OPEN.release_after_s / 2
    world.booted = {name: (boot, since - shift) for name, (boot, since) in world.booted.items()}
    world.picture = structs.replace(world.picture, epoch=2, watching_since_mono_s=5.0)
    for name in ("n1", "n2"):
        world.change(name, checks={}, boot_id="", agent_mono_s=None, told_mono_s=0.0, lease_mono_s=None)
    world.settle()
    assert world.out() == {"n1"}
    world.passes(OPEN.release_after_s / 2 + 1)
    world.settle()
    assert not world.out()
    assert world.of("n1").epoch == 2


@pytest.mark.parametrize("state", [CheckState.UNKNOWN, CheckState.ABSENT])
def test_a_check_that_cannot_look_is_no_proof_of_health(state: CheckState) -> None:
    world = World()
    world.shows("n1", a_nic_finding())
    world.passes(OPEN.network_settle_s)
    world.settle()
    world.passes(OPEN.network_settle_s)
    world.settle()
    assert world.out() == {"n1"}
    world.found["n1"]["infiniband"] = ()
    for _ in range(4):
        world.passes(OPEN.release_after_s, report=False)
        world.report("n1", infiniband=state)
        world.settle()
    assert world.out() == {"n1"}


def test_a_late_sample_from_before_the_isolation_releases_nothing() -> None:
    world = World()
    early = world.report_of("n1")
    world.passes(5.0)
    world.shows("n1", a_nic_finding())
    world.settle()
    world.passes(OPEN.network_settle_s)
    world.settle()
    world.put(fold(world.node(), early, world.now))
    assert world.node().findings == (a_nic_finding(),), "what is newer stays"
    # Nor where a new leader hears of it first.
    world.change("n1", checks={}, boot_id="", told_mono_s=0.0)
    world.put(fold(world.node(), early, world.now))
    assert not world.node().findings
    assert world.decide() == ()


def test_a_restart_while_it_is_waited_begins_the_waiting_anew() -> None:
    world = an_isolated_node()
    world.reboot("n1", "boot-2")
    world.settle()
    world.passes(OPEN.release_after_s - 1)
    world.reboot("n1", "boot-3")
    world.settle()
    since = world.of("n1").well_from
    assert since is not None
    assert since.boot_id == "boot-3"
    world.passes(OPEN.release_after_s - 1)
    world.settle()
    assert world.out() == {"n1"}
    world.passes(2.0)
    world.settle()
    assert not world.out()


def test_a_finding_that_comes_back_begins_the_waiting_anew() -> None:
    world = World()
    bad = a_finding("XID 48", action="RESET_GPU")
    world.shows("n1", bad)
    world.settle()
    world.shows("n1")
    world.passes(1.0)
    world.settle()
    world.passes(OPEN.release_after_s - 2)
    world.shows("n1", structs.replace(bad, count=2))
    world.settle()
    world.passes(30.0)
    world.shows("n1")
    world.settle()
    world.passes(OPEN.release_after_s - 2)
    world.settle()
    assert world.out() == {"n1"}
    world.passes(3.0)
    world.settle()
    assert not world.out()


def test_a_repeat_offender_stays_until_a_person_releases_it() -> None:
    world = World()
    for number in range(OPEN.repeat_limit):
        world.reboot("n1", f"boot-{number}a", a_finding(boot_id=f"boot-{number}a"))
        world.settle()
        assert world.out() == {"n1"}
        world.reboot("n1", f"boot-{number}b")
        world.settle()
        world.passes(OPEN.release_after_s + 1)
        world.settle()
    assert world.out() == {"n1"}
    assert world.of("n1").needs.repair is Repair.PERSON
    assert world.of("n1").needs.sentence == (
        "a person must release it: it was isolated again within 7 days of its return"
    )
    world.order(OrderKind.RELEASE, "n1")
    world.settle()
    assert not world.out()
    assert world.of("n1").ended_by is EndedBy.PERSON


def test_the_record_says_why_a_person_ordered_it() -> None:
    world = World(["n1"], OPEN)
    world.shows("n1", a_finding())
    world.settle()
    world.order(OrderKind.RELEASE, "n1", "The card was replaced.")
    world.settle()
    assert world.of("n1").sentence == (
        "Node n1 was released by anna: The card was replaced. What isolated it acts again only when it occurs anew."
    )
    world.order(OrderKind.HOLD, "n1", "a look inside")
    world.settle()
    held = "Node n1 is kept out of service by anna: a look inside. No running pod was touched."
    assert world.records["n1-0002"].sentence == held
    world.order(OrderKind.RELEASE, "n1")
    world.settle()
    assert world.records["n1-0002"].sentence == "Node n1 was released by anna."


def test_what_was_only_held_back_makes_no_repeat_offender() -> None:
    none = Allowance(per_window=Limit(0))
    world = World(["n1"], structs.replace(OPEN, isolations=none))
    for _ in range(OPEN.repeat_limit):
        world.shows("n1", a_finding())
        world.settle()
        world.passes(1.0)
        world.shows("n1")
        world.settle()
    world.settings = OPEN
    world.shows("n1", a_finding())
    world.settle()
    assert (world.of("n1").repeats, world.of("n1").needs.repair) == (0, Repair.REBOOT)


# ---------------------------------------------------------------- observe


def test_in_observe_mode_everything_is_decided_and_nothing_is_touched() -> None:
    world = World(["n1", "n2"], structs.replace(OPEN, mode=Mode.OBSERVE))
    before = world.node("n1")
    world.shows("n1", a_finding())
    world.settle()
    record = world.of("n1")
    assert (record.state, record.mode) == (State.ACTIVE, Mode.OBSERVE)
    assert "observe mode" in record.sentence
    assert DoMark("n1") not in world.effects
    after = world.node("n1")
    assert (after.taints, after.unschedulable, after.conditions) == (
        before.taints,
        before.unschedulable,
        before.conditions,
    )
    world.reboot("n1", "boot-2")
    world.settle()
    world.passes(OPEN.release_after_s)
    world.settle()
    assert world.of("n1").ended_by is EndedBy.WELL


def test_one_pool_can_be_observed() -> None:
    world = World([], structs.replace(OPEN, observe_pools=frozenset({"new"})))
    world.join("n1", pool="new")
    world.join("n2", pool="old")
    for name in ("n1", "n2"):
        world.shows(name, a_finding())
    world.settle()
    assert world.out() == {"n2"}
    assert world.of("n1").mode is Mode.OBSERVE


def test_what_was_observed_is_enforced_when_the_mode_changes_and_not_the_reverse() -> None:
    world = World(["n1", "n2"], structs.replace(OPEN, mode=Mode.OBSERVE))
    world.shows("n1", a_finding())
    world.settle()
    world.settings = OPEN
    world.settle()
    assert world.out() == {"n1"}
    world.settings = structs.replace(OPEN, mode=Mode.OBSERVE)
    world.settle()
    assert world.out() == {"n1"}, "what was written stays until it is released"


def test_nodes_with_one_value_of_the_pool_label_are_one_pool() -> None:
    assert pool_of({"sentinel.dev/pool": "h100"}, OPEN) == "h100"
    assert pool_of({}, OPEN) == ""
