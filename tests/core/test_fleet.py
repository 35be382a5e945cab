"""Isolation of nodes and how it ends."""

import msgspec
import pytest
from msgspec import structs

from sentinel.core import fleet
from sentinel.core.fleet_events import DoEvent, DoMark, DoTell, Reason
from sentinel.core.fleet_fold import fold
from sentinel.core.fleet_marks import claims_of, out_of_service_by, write
from sentinel.core.fleet_model import (
    EndedBy,
    FleetPicture,
    Kind,
    Mode,
    NodeMark,
    Order,
    OrderKind,
    Repair,
    State,
    Taint,
)
from sentinel.core.fleet_settings import Allowance, Limit, pool_of
from sentinel.core.model import CheckState, Now, Severity
from tests.core.fleet_world import OPEN, World, a_finding, a_full_disk, a_nic_finding, a_pod


def isolated() -> World:
    """n1 is out of service for an XID 79."""
    world = World(["n1", "n2"])
    world.shows("n1", a_finding())
    world.settle()
    assert world.out() == {"n1"}
    return world


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
    assert record.running_there == ("job llama, pod research/worker-0",)
    assert (record.boot_id, record.since_wall_s, record.epoch) == ("boot-1", world.now.wall_s, 1)
    world.perform()
    assert world.node("n1").unschedulable
    assert world.node("n1").pods == (a_pod(),), "no running pod is touched"
    assert world.out() == {"n1"}


@pytest.mark.parametrize("severity", [Severity.INFO, Severity.WARNING, Severity.DEGRADED])
def test_only_a_fatal_finding_isolates(severity: Severity) -> None:
    world = World()
    world.shows("n1", a_finding(severity=severity))
    assert world.decide() == ()


def test_what_is_found_later_joins_the_record() -> None:
    world = isolated()
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
    world = isolated()
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
    world = isolated()
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
    world = isolated()
    world.found["n1"] = dict.fromkeys(world.found["n1"], ())
    world.silent.add("n1")
    world.passes(10 * OPEN.release_after_s)
    world.settle()
    assert world.out() == {"n1"}


def test_a_new_leader_waits_for_the_agent_and_goes_on_where_the_old_one_stood() -> None:
    world = isolated()
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
    world = isolated()
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
    assert "3 times" in world.of("n1").needs.sentence
    world.order(OrderKind.RELEASE, "n1")
    world.settle()
    assert not world.out()
    assert world.of("n1").ended_by is EndedBy.PERSON


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


# ---------------------------------------------------------------- people


def test_a_person_releases_a_node_and_the_same_finding_acts_only_when_it_occurs_anew() -> None:
    world = isolated()
    world.order(OrderKind.RELEASE, "n1")
    world.settle()
    assert not world.out()
    assert (world.of("n1").ended_by, world.of("n1").by) == (EndedBy.PERSON, "anna")
    world.passes(3600.0)
    world.settle()
    assert not world.out(), "it stands, and a person chose to live with it"
    world.shows("n1", a_finding(count=2))
    world.settle()
    assert world.out() == {"n1"}


def test_a_person_who_uncordons_a_node_overrides_the_isolation() -> None:
    world = isolated()
    world.change("n1", unschedulable=False)
    world.settle()
    record = world.of("n1")
    assert (record.state, record.ended_by) == (State.OVERRIDDEN, EndedBy.UNCORDONED)
    assert not world.out()
    assert not world.node("n1").unschedulable
    world.passes(60.0)
    world.settle()
    assert not world.out()
    world.shows("n1")
    world.settle()
    world.shows("n1", a_finding())
    world.settle()
    assert world.out() == {"n1"}, "it was gone and came again"


def test_a_person_who_takes_the_taint_away_overrides_it_and_keeps_the_cordon() -> None:
    world = isolated()
    world.change("n1", taints=())
    world.settle()
    assert world.of("n1").state is State.OVERRIDDEN
    assert world.node("n1").unschedulable
    assert "still unschedulable" in world.of("n1").sentence


def test_a_taint_that_a_person_took_away_is_not_written_again_before_it_is_judged() -> None:
    world = isolated()
    assert write(world.change("n1", taints=()), list(world.records.values())) is None


def test_a_full_disk_that_a_person_lives_with_acts_again_after_it_was_under() -> None:
    world = World()
    world.shows("n1", a_full_disk())
    world.settle()
    world.change("n1", unschedulable=False)
    world.settle()
    assert not world.out()
    world.shows("n1", a_full_disk(severity=Severity.WARNING))
    world.settle()
    world.shows("n1", a_full_disk())
    world.settle()
    assert world.out() == {"n1"}


def test_an_agent_that_counts_anew_hides_no_new_occurrence() -> None:
    world = World()
    world.shows("n1", a_finding(count=7))
    world.settle()
    world.order(OrderKind.RELEASE, "n1")
    world.settle()
    world.shows("n1", a_finding(count=1))
    world.settle()
    assert not world.out()
    world.shows("n1", a_finding(count=2))
    world.settle()
    assert world.out() == {"n1"}


def test_a_new_xid_in_a_new_boot_is_a_new_occurrence() -> None:
    world = isolated()
    world.order(OrderKind.RELEASE, "n1")
    world.settle()
    world.reboot("n1", "boot-2", a_finding(boot_id="boot-2"))
    world.settle()
    assert world.out() == {"n1"}


def test_a_person_holds_a_node_until_a_person_releases_it() -> None:
    world = World()
    world.order(OrderKind.HOLD, "n1")
    world.settle()
    assert world.out() == {"n1"}
    world.passes(10 * OPEN.release_after_s)
    world.settle()
    assert world.out() == {"n1"}
    world.order(OrderKind.RELEASE, "n1")
    world.settle()
    assert not world.out()
    assert not world.node().unschedulable


def test_an_order_is_followed_once_and_answered() -> None:
    world = isolated()
    world.order(OrderKind.RELEASE, "n1")
    world.order(OrderKind.RELEASE, "n2")
    world.decide()
    first, second = fleet.answers(world.picture, world.records)
    assert first.done
    assert not second.done
    assert "not isolated" in second.sentence
    # It still stands in the picture, and the node is isolated anew: that is not what the person meant.
    world.passes(1.0)
    world.shows("n1", a_finding(count=2))
    world.shows("n2", a_finding())
    world.decide()
    world.decide()  # the marks are seen
    assert world.decide() == ()
    assert world.out() == {"n1", "n2"}


# ---------------------------------------------------------------- others' cordons


def test_the_cordon_of_somebody_else_stays() -> None:
    world = World()
    world.change("n1", unschedulable=True)
    world.shows("n1", a_finding("XID 48", action="RESET_GPU"))
    world.settle()
    assert world.out() == {"n1"}
    assert out_of_service_by(world.node()) == ("Sentinel", "somebody who cordoned it")
    world.passes(1.0)
    world.shows("n1")
    world.settle()
    world.passes(OPEN.release_after_s)
    world.settle()
    assert not world.out()
    assert world.node().unschedulable


def test_somebody_elses_uncordon_of_his_own_cordon_ends_nothing() -> None:
    world = World()
    world.change("n1", unschedulable=True)
    world.shows("n1", a_finding())
    world.settle()
    world.change("n1", unschedulable=False)
    world.settle()
    assert world.of("n1").state is State.ACTIVE
    assert world.out() == {"n1"}


@pytest.mark.parametrize(
    ("changes", "who"),
    [
        ({"taints": (Taint("ToBeDeletedByClusterAutoscaler"),)}, "cluster-autoscaler"),
        ({"taints": (Taint("karpenter.sh/disrupted"),)}, "Karpenter"),
        ({"claims": claims_of({}, ["weave.works/kured-reboot-in-progress"])}, "kured"),
        (
            {"claims": claims_of({"nvidia.com/gpu-driver-upgrade-state": "drain-required"}, [])},
            "the GPU operator's driver upgrade",
        ),
    ],
)
def test_what_another_tool_claims_stays_unschedulable(changes: dict[str, object], who: str) -> None:
    world = isolated()
    node = world.node("n1")
    taints = (*node.taints, *changes.get("taints", ()))  # type: ignore[misc]
    world.change("n1", **{**changes, "taints": taints})
    assert out_of_service_by(world.node("n1")) == ("Sentinel", who)
    world.order(OrderKind.RELEASE, "n1")
    world.settle()
    assert not world.out()
    assert world.node("n1").unschedulable
    assert out_of_service_by(world.node("n1")) == (who,)


def test_a_finished_driver_upgrade_claims_nothing() -> None:
    assert claims_of({"nvidia.com/gpu-driver-upgrade-state": "upgrade-done"}, ["some/annotation"]) == ()


# ---------------------------------------------------------------- nodes that change


def test_another_machine_under_the_same_name_begins_anew() -> None:
    world = isolated()
    world.leave("n1")
    world.join("n1", uid="uid-other", boot="boot-9")
    world.shows("n1")
    world.settle()
    assert world.of("n1").ended_by is EndedBy.NODE_REPLACED
    assert not world.out()


def test_a_new_object_of_the_same_machine_stays_isolated() -> None:
    world = isolated()
    world.leave("n1")
    world.join("n1", uid="uid-again")
    world.settle()
    assert world.out() == {"n1"}
    assert (len(world.records), world.of("n1").node_uid) == (1, "uid-again")
    assert Reason.NODE_RECREATED in world.reasons()


def test_a_node_whose_machine_is_not_known_yet_is_not_judged() -> None:
    world = isolated()
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
    world = isolated()
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
    world = isolated()
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
    world = isolated()
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


def test_a_record_that_a_person_sets_to_released_gives_the_node_back() -> None:
    world = isolated()
    world.shows("n1")
    world.records["n1-0001"] = structs.replace(world.of("n1"), state=State.RELEASED)
    world.settle()
    assert not world.out()


def test_a_deleted_record_of_an_ended_isolation_is_no_reason_to_act() -> None:
    world = isolated()
    world.reboot("n1", "boot-2")
    world.settle()
    world.passes(OPEN.release_after_s)
    world.settle()
    world.records.clear()
    world.settle()
    assert not world.records


def test_a_mark_that_is_not_readable_is_replaced() -> None:
    world = isolated()
    world.change("n1", taints=(Taint("sentinel.dev/quarantined", "who knows"),))
    world.settle()
    mark = world.node("n1").mark
    assert mark is not None
    assert mark.number == 1


def test_a_leader_that_was_superseded_decides_nothing() -> None:
    world = isolated()
    world.records = {key: structs.replace(record, epoch=5) for key, record in world.records.items()}
    world.shows("n2", a_finding())
    assert world.decide() == ()
    assert fleet.superseded(world.picture, world.records)


def test_ended_records_are_kept_for_the_longest_window_and_as_long_as_they_are_needed() -> None:
    world = isolated()
    world.order(OrderKind.RELEASE, "n1")
    world.settle()
    world.passes(OPEN.keep_s + 1)
    world.settle()
    assert not fleet.prunable(world.of("n1"), world.picture, OPEN, world.now), "its finding still stands"
    world.shows("n1")
    world.settle()
    assert fleet.prunable(world.of("n1"), world.picture, OPEN, world.now)
    assert not fleet.prunable(isolated().of("n1"), world.picture, OPEN, world.now)
    mark = NodeMark(1, True).taint()
    world.change("n1", taints=(mark,))
    assert not fleet.prunable(world.of("n1"), world.picture, OPEN, world.now), "the mark is still there"


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
