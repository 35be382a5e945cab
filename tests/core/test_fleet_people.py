"""People and other tools: orders, uncordons, cordons of others."""

import pytest
from msgspec.structs import replace

from sentinel.core.fleet import rounds
from sentinel.core.fleet.marks import claims_of, out_of_service_by, write
from sentinel.core.fleet.model import (
    Brake,
    EndedBy,
    Ignored,
    Kind,
    Needs,
    OrderKind,
    State,
    Taint,
)
from sentinel.core.fleet.settings import Allowance, Limit
from sentinel.core.health import Severity
from tests.core.fleet_world import OPEN, World, a_finding, a_full_disk, a_pod, an_isolated_node

# ---------------------------------------------------------------- people


@pytest.mark.parametrize(
    "edited",
    [
        {"kind": Kind.SILENCE, "state": State.HELD},
        {"state": State.HELD, "held_by": Brake.NONE},
        {"state": State.HELD, "held_by": Brake.NONE, "findings": ()},
        {"ignored": (Ignored(check="kernel", key=a_finding().key),)},
        {"state": State.ACTIVE, "ended_by": EndedBy.WELL, "ended_wall_s": 5.0},
        {"node": "n2"},
        {"node_uid": "", "boot_id": "", "needs": Needs(sentence="", well_for_s=-5.0)},
    ],
)
@pytest.mark.parametrize("silent", [False, True])
def test_a_record_that_a_person_edited_to_nonsense_breaks_no_round_and_gives_no_faulty_node_back(
    edited: dict[str, object], silent: bool
) -> None:
    world = an_isolated_node()
    world.change("n1", pods=(a_pod(),))
    world.records["n1-0001"] = replace(world.of("n1"), **edited)
    if silent:
        world.silent = {"n1"}
        world.passes(120.0)
    for _ in range(5):
        world.decide()
        world.passes(3.0)
    world.settle()
    if not silent:
        assert "n1" in world.out()
    world.shows("n2", a_finding())
    world.settle()
    assert "n2" in world.out(), "the others are decided about"


def test_a_person_releases_a_node_and_the_same_finding_acts_only_when_it_occurs_anew() -> None:
    world = an_isolated_node()
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


def test_an_acknowledgement_is_answered_and_means_what_was_seen() -> None:
    world = World(["n1", "n2"], replace(OPEN, isolations=Allowance(at_a_time=Limit(1), per_window=Limit(9))))
    world.shows("n1", a_finding())
    world.shows("n2", a_finding())

    def answered(name: str) -> tuple[bool, str]:
        world.order(OrderKind.ACKNOWLEDGE, name)
        world.decide()
        (answer,) = rounds.answers(world.picture, world.records, world.settings, world.now)
        world.picture = replace(world.picture, orders=())
        return answer.done, answer.sentence

    world.order(OrderKind.ACKNOWLEDGE, "n1")
    (early,) = world.picture.orders
    world.picture = replace(world.picture, orders=())
    world.passes(5.0)
    world.decide()
    world.picture = replace(world.picture, orders=(early,))
    world.decide()
    world.picture = replace(world.picture, orders=())
    assert not world.of("n1").acknowledged, "it was isolated after the order was given"
    assert answered("n2") == (False, "Node n2 is not isolated by Sentinel for a finding."), "a brake holds it"
    assert answered("n1") == (True, "The isolation of node n1 was acknowledged by anna.")
    assert answered("n1") == (False, "Node n1 is acknowledged already.")
    assert answered("n3") == (False, "Node n3 is not isolated by Sentinel for a finding.")
    world.order(OrderKind.HOLD, "n3")
    world.join("n3")
    world.settle()
    assert answered("n3")[0] is False, "a person holds it"


def test_a_person_who_uncordons_a_node_overrides_the_isolation() -> None:
    world = an_isolated_node()
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
    world = an_isolated_node()
    world.change("n1", taints=())
    world.settle()
    assert world.of("n1").state is State.OVERRIDDEN
    assert world.node("n1").unschedulable
    assert "still unschedulable" in world.of("n1").sentence


def test_a_taint_that_a_person_took_away_is_not_written_again_before_it_is_judged() -> None:
    world = an_isolated_node()
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
    world = an_isolated_node()
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
    world = an_isolated_node()
    world.order(OrderKind.RELEASE, "n1")
    world.order(OrderKind.RELEASE, "n2")
    world.decide()
    first, second = rounds.answers(world.picture, world.records, world.settings, world.now)
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
    world = an_isolated_node()
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
