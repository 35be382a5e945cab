"""Silent nodes: unreachable is not dead, and pods are removed by force only where that is proved to be safe."""

import pytest
from msgspec import structs

from sentinel.controller.nodes.numbers import unjudged
from sentinel.core.fleet import rounds
from sentinel.core.fleet.events import DoRemove, DoTell, Reason
from sentinel.core.fleet.model import (
    Brake,
    EndedBy,
    FleetPicture,
    Kind,
    Mode,
    NodePicture,
    OrderKind,
    Proof,
    State,
    Taint,
)
from sentinel.core.fleet.settings import Allowance, FenceHook, Limit
from sentinel.core.fleet.silence import Silence, hearing, proof_of_death, raw
from sentinel.core.now import Now
from tests.core.fleet_world import OPEN, World, a_finding, a_pod

NAMES = [f"n{number}" for number in range(8)]
LONG_S = OPEN.agent_silent_s + 1
FENCED = Taint("node.kubernetes.io/out-of-service", effect="NoExecute")


def a_world() -> World:
    """n0 runs a rank of a protected job, and everything is heard."""
    world = World(NAMES)
    world.change("n0", pods=(a_pod(), a_pod("sidecar", protected=False)))
    world.settle()
    return world


def cut_off(world: World, *names: str, seconds: float = LONG_S) -> None:
    """Neither agent nor kubelet is heard any more."""
    world.silent |= set(names)
    world.passes(seconds)
    world.settle()


def unreachable() -> World:
    world = a_world()
    cut_off(world, "n0")
    return world


def removed(world: World) -> list[DoRemove]:
    return [effect for effect in world.effects if isinstance(effect, DoRemove)]


def test_whoever_may_have_waited_to_be_let_in_is_silent_only_a_minute_after_the_crowd_has_gone() -> None:
    world = a_world()
    world.silent = {"n0"}
    for _ in range(5):
        world.passes(LONG_S)
        world.picture = structs.replace(world.picture, crowded_mono_s=world.now.mono_s - 1)
        world.settle()
    assert not world.records
    assert raw(world.picture.nodes["n0"], world.picture, OPEN, world.now).silence is Silence.UNJUDGED
    assert raw(world.picture.nodes["n1"], world.picture, OPEN, world.now).silence is Silence.SPEAKS
    assert [*unjudged(world.picture, world.records, OPEN, world.now)] == ["agents-wait"]
    cut_off(world, "n0")
    assert world.of("n0", Kind.SILENCE).state is State.ACTIVE
    assert not unjudged(world.picture, world.records, OPEN, world.now)


def test_a_lease_is_not_stale_for_what_the_api_server_has_not_told_of_it() -> None:
    """The watch of leases hangs: every kubelet goes on renewing, one agent dies, and nobody tells of any lease."""
    world = World(NAMES, structs.replace(OPEN, fence=FenceHook(command=("/bin/off",), after_s=1.0)))
    world.change("n0", pods=(a_pod(force_after_s=1.0),))
    world.settle()
    told_s = world.now.mono_s
    world.silent = {"n0"}
    leases = {name: node.lease_mono_s for name, node in world.picture.nodes.items()}

    def hangs(seconds: float) -> None:
        world.passes(seconds)
        for name, lease_s in leases.items():
            world.change(name, lease_mono_s=lease_s)
        world.picture = structs.replace(world.picture, leases_mono_s=told_s)
        world.settle()

    for _ in range(20):
        hangs(10.0)
    assert not world.records
    assert not world.effects
    assert raw(world.picture.nodes["n0"], world.picture, OPEN, world.now).silence is Silence.UNJUDGED
    world.picture = structs.replace(world.picture, leases_mono_s=None)
    cut_off(world, "n0", seconds=1.0)
    assert world.of("n0", Kind.SILENCE).state is State.ACTIVE


def test_agent_and_kubelet_silent_is_unreachable_and_none_of_its_pods_is_touched() -> None:
    world = unreachable()
    record = world.of("n0", Kind.SILENCE)
    assert record.state is State.ACTIVE
    assert [line.reason for line in record.story] == [Reason.UNREACHABLE, Reason.UNFENCED]
    assert "confirm-dead n0" in record.sentence
    cut_off(world, seconds=86_400.0)
    assert not removed(world)
    assert len(world.node("n0").pods) == 2
    assert world.out() == set(), "nothing is written to a silent node"


def test_a_node_that_is_heard_again_ends_its_silence() -> None:
    world = unreachable()
    world.silent.clear()
    world.passes(1.0)
    world.settle()
    assert world.of("n0", Kind.SILENCE).ended_by is EndedBy.RETURNED


@pytest.mark.parametrize("kubelet_lives", [False, True])
@pytest.mark.parametrize(
    "anew", ["the watch was cut", "another controller leads", "one that just started leads"]
)
@pytest.mark.parametrize("lease_s", [OPEN.lease_s, 2 * OPEN.agent_silent_s])
def test_a_silence_goes_on_when_leases_are_watched_anew(
    kubelet_lives: bool, anew: str, lease_s: float
) -> None:
    """None of that says that a node is heard."""
    world = a_world()
    world.settings = structs.replace(OPEN, lease_s=lease_s)
    world.silent.add("n0")

    def pass_by(seconds: float) -> None:
        while seconds > 0:
            world.passes(min(seconds, 5.0))
            seconds -= 5.0
            if kubelet_lives:
                world.change("n0", lease_mono_s=world.now.mono_s)
            world.settle()

    pass_by(max(LONG_S, lease_s) + 5.0)
    first = world.of("n0", Kind.SILENCE)
    for _ in range(3):
        world.picture = structs.replace(world.picture, watching_since_mono_s=world.now.mono_s)
        if "leads" in anew:
            first_look = world.now.mono_s if "started" in anew else None
            world.change("n0", agent_mono_s=None, lease_mono_s=first_look)
        pass_by(max(LONG_S, lease_s) + 5.0)
    record = world.of("n0", Kind.SILENCE)
    assert (record.number, record.state) == (1, State.ACTIVE)
    assert record.reason == (Reason.AGENT_SILENT if kubelet_lives else Reason.UNFENCED)
    assert [line.reason for line in record.story] == [line.reason for line in first.story]
    world.silent.clear()
    world.report("n0")
    world.settle()
    assert world.of("n0", Kind.SILENCE).ended_by is EndedBy.RETURNED


def test_a_word_of_death_counts_no_more_once_the_kubelet_was_heard_also_soon_after_a_watch_was_cut() -> None:
    world = unreachable()
    world.order(OrderKind.CONFIRM_DEAD, "n0")
    world.settle()
    assert len(removed(world)) == 1
    world.picture = structs.replace(world.picture, watching_since_mono_s=world.now.mono_s)
    world.passes(5.0)
    world.change("n0", lease_mono_s=world.now.mono_s, pods=(a_pod("worker-1"),))
    world.settle()
    for _ in range(3):
        world.passes(LONG_S)
        world.settle()
    assert len(removed(world)) == 1, "worker-1 came while the kubelet lived"
    record = world.of("n0", Kind.SILENCE)
    assert (record.number, record.reason, record.confirmed_dead) == (2, Reason.UNFENCED, False)


def test_in_a_round_over_few_nodes_a_silence_ends_and_none_begins() -> None:
    world = unreachable()
    world.silent.clear()
    world.report("n0")
    decisions = rounds.decide(world.picture, world.records, OPEN, world.now, only=["n0", "n1"])
    assert [one.reason for one in decisions] == [Reason.SPEAKS_AGAIN]


def test_an_agent_alone_that_is_silent_is_only_told() -> None:
    world = a_world()
    world.silent.add("n0")
    for _ in range(10):
        world.passes(20.0)
        world.change("n0", lease_mono_s=world.now.mono_s)
        world.settle()
    record = world.of("n0", Kind.SILENCE)
    assert record.reason == Reason.AGENT_SILENT
    assert "Protected jobs have 1 pod there." in record.sentence
    assert len([one for one in world.effects if isinstance(one, DoTell)]) == 1
    assert not removed(world)
    assert record.confirmed_dead is False


def test_an_agent_is_given_time_after_its_kubelet_is_heard_again_since_that_starts_it() -> None:
    """A node that was started again is told as heard again, not first as one whose agent is silent."""
    world = unreachable()

    def pass_by(seconds: float) -> None:
        until_s = world.now.mono_s + seconds
        while world.now.mono_s < until_s:
            world.passes(5.0)
            world.change("n0", lease_mono_s=world.now.mono_s)
            world.settle()

    world.change("n0", kubelet_back_mono_s=world.now.mono_s)
    pass_by(OPEN.agent_silent_s)
    assert world.of("n0", Kind.SILENCE).reason == Reason.UNFENCED
    pass_by(5.0)
    assert world.of("n0", Kind.SILENCE).reason == Reason.AGENT_SILENT

    world = unreachable()
    world.change("n0", kubelet_back_mono_s=world.now.mono_s)
    pass_by(30.0)
    world.silent.clear()
    world.report("n0")
    world.settle()
    record = world.of("n0", Kind.SILENCE)
    assert [line.reason for line in record.story] == [
        Reason.UNREACHABLE,
        Reason.UNFENCED,
        Reason.SPEAKS_AGAIN,
    ]

    world = unreachable()
    world.order(OrderKind.CONFIRM_DEAD, "n0")
    world.settle()
    world.change("n0", kubelet_back_mono_s=world.now.mono_s)
    pass_by(OPEN.agent_silent_s)
    record = world.of("n0", Kind.SILENCE)
    assert (record.number, record.ended_by) == (1, EndedBy.RETURNED), "a machine that was powered off and on"
    pass_by(5.0)
    record = world.of("n0", Kind.SILENCE)
    assert (record.number, record.reason) == (2, Reason.AGENT_SILENT)


def test_a_kubelet_alone_that_is_silent_leaves_the_node_alive() -> None:
    world = a_world()
    for _ in range(10):
        world.passes(20.0)
        world.change("n0", lease_mono_s=9_999.0)
        world.settle()
    assert not world.records


def test_a_node_that_has_no_agent_and_runs_nothing_protected_is_meant_so() -> None:
    world = a_world()
    world.join("cpu")
    world.silent.add("cpu")
    world.change("cpu", agent_mono_s=None, boot_id="", checks={})
    for _ in range(10):
        world.passes(20.0)
        world.change("cpu", lease_mono_s=world.now.mono_s)
        world.settle()
    assert not world.records


def test_a_missing_agent_where_protected_jobs_run_is_told() -> None:
    world = a_world()
    world.silent.add("n0")
    world.change("n0", agent_mono_s=None, boot_id="", checks={})
    world.passes(LONG_S)
    world.change("n0", lease_mono_s=world.now.mono_s)
    world.settle()
    assert world.of("n0", Kind.SILENCE).reason == Reason.AGENT_SILENT


def test_a_node_that_is_being_taken_away_falls_silent_without_a_word() -> None:
    world = a_world()
    for name in ("n0", "n1"):
        world.change(name, taints=(Taint("ToBeDeletedByClusterAutoscaler"),))
    cut_off(world, "n0", "n1")
    assert {record.node for record in world.records.values()} == {"n0"}, "protected jobs run there"


# ---------------------------------------------------------------- nobody is judged


def test_nobody_is_judged_before_leases_were_watched_for_a_full_duration() -> None:
    world = a_world()
    world.silent = {"n0"}
    world.passes(1000.0)
    # A new leader, or the API is back: what it sees first is old.
    world.picture = structs.replace(world.picture, watching_since_mono_s=world.now.mono_s)
    world.passes(OPEN.lease_s - 1)
    assert world.decide() == ()
    world.passes(OPEN.agent_silent_s)
    world.settle()
    assert world.of("n0", Kind.SILENCE).reason == Reason.UNFENCED


def test_a_quarter_of_the_nodes_that_goes_silent_together_is_not_judged() -> None:
    world = a_world()
    cut_off(world, "n0", "n1", "n2")
    assert not world.records
    assert hearing(world.picture, OPEN, world.now).mass.startswith("3 of 8 nodes")


def test_nodes_that_went_silent_at_other_times_are_judged() -> None:
    world = a_world()
    for name in ("n0", "n1", "n2", "n3"):
        cut_off(world, name, seconds=OPEN.together_s + LONG_S)
    assert {record.node for record in world.records.values()} == {"n0", "n1", "n2", "n3"}


def test_kubelets_that_fall_silent_together_are_a_mass_whenever_their_agents_did() -> None:
    world = a_world()
    names = ("n1", "n2", "n3", "n4")
    for name in names:
        world.change(name, pods=(a_pod(f"of-{name}", force_after_s=300.0),))
    for name in names:
        world.silent.add(name)
        for _ in range(90):
            world.passes(5.0)
            for one in world.silent:
                world.change(one, lease_mono_s=world.now.mono_s)
        world.settle()
    assert {one.reason for one in world.records.values()} == {Reason.AGENT_SILENT}
    for _ in range(20):
        world.passes(30.0)
        world.settle()
    assert hearing(world.picture, OPEN, world.now).mass
    assert not removed(world)


def test_a_mass_of_which_the_first_were_told_stays_one_when_a_watch_is_cut() -> None:
    world = a_world()
    for name in ("n1", "n2", "n3", "n4"):
        world.change(name, pods=(a_pod(f"of-{name}", force_after_s=3000.0),))
    world.settle()
    cut_off(world, "n1", "n2")
    assert len(world.records) == 2
    cut_off(world, "n3", "n4", seconds=6.0)
    for _ in range(2):
        for _ in range(15):
            world.passes(LONG_S)
            world.settle()
        assert hearing(world.picture, OPEN, world.now).mass
        world.picture = structs.replace(world.picture, watching_since_mono_s=world.now.mono_s)
    for _ in range(60):
        world.passes(LONG_S)
        world.settle()
    assert not removed(world)


def test_one_of_two_nodes_is_judged() -> None:
    world = World(["n0", "n1"])
    cut_off(world, "n0")
    assert world.of("n0", Kind.SILENCE).state is State.ACTIVE


def test_a_restart_of_all_agents_causes_nothing() -> None:
    world = a_world()
    world.silent = set(NAMES)
    for _ in range(20):
        world.passes(30.0)
        for name in NAMES:
            world.change(name, lease_mono_s=world.now.mono_s)
        world.settle()
    world.silent.clear()
    world.passes(1.0)
    world.settle()
    assert not world.records


# ---------------------------------------------------------------- proof of death


def test_a_node_object_that_is_gone_proves_it() -> None:
    world = unreachable()
    world.leave("n0")
    world.picture = structs.replace(world.picture, orphans={"n0": (a_pod(),)})
    world.settle()
    (effect,) = removed(world)
    assert (effect.pods, effect.proof) == (("research/worker-0/uid-worker-0",), Proof.NODE_GONE)
    assert world.of("n0", Kind.SILENCE).ended_by is EndedBy.DEAD


@pytest.mark.parametrize(
    ("changes", "proof"),
    [
        ({"api_boot_id": "boot-2", "boot_id": ""}, Proof.NEW_BOOT),
        ({"taints": (FENCED,)}, Proof.OUT_OF_SERVICE),
    ],
)
def test_what_proves_death(changes: dict[str, object], proof: Proof) -> None:
    world = unreachable()
    world.change("n0", **changes)
    world.settle()
    (effect,) = removed(world)
    assert effect.proof is proof
    assert effect.pods == ("research/worker-0/uid-worker-0",), "what Sentinel does not protect is not its own"
    (removal,) = world.of("n0", Kind.SILENCE).removals
    assert removal.proof is proof


def test_a_new_boot_proves_that_a_node_that_had_been_heard_was_dead() -> None:
    world = unreachable()
    assert world.node("n0").boot_id == "boot-1", "as its agent had told it"
    world.change("n0", api_boot_id="boot-2")
    world.settle()
    (effect,) = removed(world)
    assert (effect.pods, effect.proof) == (("research/worker-0/uid-worker-0",), Proof.NEW_BOOT)


def test_a_boot_that_the_kubelet_names_later_than_the_agent_proves_nothing() -> None:
    world = a_world()
    world.change("n0", api_boot_id="boot-0")
    cut_off(world, "n0")
    world.change("n0", api_boot_id="boot-1")
    world.settle()
    assert not removed(world)


@pytest.mark.parametrize(
    "changes",
    [{"api_boot_id": "boot-2"}, {"taints": (FENCED,)}, None],
    ids=["new-boot", "out-of-service", "node-gone"],
)
@pytest.mark.parametrize("removal", [None, Mode.OBSERVE])
def test_what_no_policy_in_force_names_is_never_removed(
    changes: dict[str, object] | None, removal: Mode | None
) -> None:
    """No policy is known yet, the one that picks it was refused, or it only observes."""
    world = unreachable()
    pods = (a_pod(removal=removal),)
    if changes is None:
        world.leave("n0")
        world.picture = structs.replace(world.picture, orphans={"n0": pods})
    else:
        world.change("n0", pods=pods, **changes)
    world.settle()
    assert not removed(world)
    told = [one.mode for one in world.of("n0", Kind.SILENCE).removals]
    assert told == ([] if removal is None else [Mode.OBSERVE])


def test_a_node_that_is_missing_from_a_list_that_is_not_whole_is_not_gone() -> None:
    world = unreachable()
    world.leave("n0")
    record = world.of("n0", Kind.SILENCE)
    assert proof_of_death(record, world.picture, OPEN, world.now) is Proof.NODE_GONE
    world.picture = structs.replace(world.picture, complete=False)
    assert proof_of_death(record, world.picture, OPEN, world.now) is None
    assert world.decide() == ()


def test_a_new_boot_says_nothing_of_pods_that_came_after_it() -> None:
    world = unreachable()
    world.change("n0", api_boot_id="boot-2", boot_id="", pods=(a_pod("worker-9"),))
    world.settle()
    assert not removed(world)


def test_a_person_says_that_it_is_dead() -> None:
    world = unreachable()
    world.order(OrderKind.CONFIRM_DEAD, "n0")
    world.decide()
    (answer,) = rounds.answers(world.picture, world.records, world.settings, world.now)
    assert answer.done
    (effect,) = removed(world)
    assert effect.proof is Proof.PERSON


def test_a_person_is_believed_also_when_too_many_are_silent_to_be_judged() -> None:
    world = a_world()
    cut_off(world, "n0", "n1", "n2")
    world.order(OrderKind.CONFIRM_DEAD, "n0")
    world.settle()
    assert [effect.node for effect in removed(world)] == ["n0"]
    assert len(world.records) == 1


def test_a_person_is_not_believed_of_a_node_that_is_heard() -> None:
    world = a_world()
    world.order(OrderKind.CONFIRM_DEAD, "n0")
    world.decide()
    (answer,) = rounds.answers(world.picture, world.records, world.settings, world.now)
    assert not answer.done
    assert not removed(world)
    assert not world.records


def test_a_person_waits_for_the_answer_while_nobody_can_tell_whether_the_node_is_silent() -> None:
    world = unreachable()
    world.records.clear()
    world.picture = structs.replace(world.picture, watching_since_mono_s=world.now.mono_s)
    world.change("n0", agent_mono_s=None)  # a new leader
    world.order(OrderKind.CONFIRM_DEAD, "n0")
    world.decide()
    assert rounds.answers(world.picture, world.records, world.settings, world.now) == ()
    for seconds in (OPEN.lease_s + 1.0, OPEN.agent_silent_s - OPEN.lease_s):
        assert rounds.answers(world.picture, world.records, world.settings, world.now) == ()
        world.passes(seconds)
        world.decide()
    (answer,) = rounds.answers(world.picture, world.records, world.settings, world.now)
    assert answer.done


def test_what_was_confirmed_of_one_silence_does_not_count_for_the_next() -> None:
    world = unreachable()
    world.change("n0", pods=())
    world.order(OrderKind.CONFIRM_DEAD, "n0")
    world.settle()
    world.silent.clear()
    world.passes(1.0)
    world.change("n0", pods=(a_pod("worker-1"),))
    world.settle()
    cut_off(world, "n0")
    assert not removed(world)
    assert world.of("n0", Kind.SILENCE).reason == Reason.UNFENCED


def test_another_machine_of_the_same_name_loses_no_pods() -> None:
    world = unreachable()
    world.leave("n0")
    world.join("n0", uid="uid-new", boot="boot-9")
    world.silent.clear()
    world.change("n0", pods=(a_pod("worker-1"),))
    world.settle()
    assert not removed(world)
    assert world.of("n0", Kind.SILENCE).ended_by is EndedBy.NODE_REPLACED


# ---------------------------------------------------------------- the policy's word, and brakes


def with_word(force_after_s: float = 600.0) -> World:
    world = a_world()
    world.change("n0", pods=(a_pod(force_after_s=force_after_s), a_pod("worker-1")))
    cut_off(world, "n0")
    return world


def test_on_the_policys_word_its_pods_go_after_that_time_and_no_others() -> None:
    world = with_word()
    assert not removed(world)
    cut_off(world, seconds=600.0)
    (effect,) = removed(world)
    assert (effect.pods, effect.proof) == (("research/worker-0/uid-worker-0",), Proof.POLICY)
    assert [pod.name for pod in world.node("n0").pods] == ["worker-1"]


def test_on_the_policys_word_nothing_goes_while_nobody_is_judged() -> None:
    world = with_word()
    cut_off(world, *NAMES, seconds=0.0)
    world.picture = structs.replace(world.picture, watching_since_mono_s=world.now.mono_s)
    cut_off(world, seconds=600.0)
    assert not removed(world)


@pytest.mark.parametrize("brake", [Brake.PAUSED, Brake.PER_WINDOW, Brake.POOL_PER_WINDOW])
def test_removals_are_braked_said_and_go_on_by_themselves(brake: Brake) -> None:
    world = unreachable()
    none = Allowance(per_window=Limit(0))
    if brake is Brake.PAUSED:
        world.picture = structs.replace(world.picture, paused="anna")
    elif brake is Brake.PER_WINDOW:
        world.settings = structs.replace(OPEN, removals=none)
    else:
        world.settings = structs.replace(OPEN, pool_removals=none)
    world.order(OrderKind.CONFIRM_DEAD, "n0")
    world.settle()
    assert not removed(world)
    record = world.of("n0", Kind.SILENCE)
    assert (record.held_by, record.reason) == (brake, Reason.REMOVAL_BRAKED)
    world.settings = OPEN
    world.picture = structs.replace(world.picture, paused="")
    world.settle()
    assert len(removed(world)) == 1
    assert world.of("n0", Kind.SILENCE).held_by is Brake.NONE


def test_removals_within_the_window_are_counted_from_the_records() -> None:
    world = World(NAMES, structs.replace(OPEN, removals=Allowance(per_window=Limit(1), window_s=3600.0)))
    for name in ("n0", "n1"):
        world.change(name, pods=(a_pod(f"worker-{name}"),))
        world.change(name, taints=(FENCED,))
    cut_off(world, "n0", "n1")
    assert [effect.node for effect in removed(world)] == ["n0"]
    cut_off(world, seconds=3601.0)
    assert [effect.node for effect in removed(world)] == ["n0", "n1"]


@pytest.mark.parametrize("changes", [{"mode": Mode.OBSERVE}, {"observe_namespaces": frozenset({"research"})}])
def test_in_observe_mode_a_removal_is_recorded_and_nothing_is_removed(changes: dict[str, object]) -> None:
    world = World(NAMES, structs.replace(OPEN, **changes))
    world.change("n0", pods=(a_pod(),), taints=(FENCED,))
    cut_off(world, "n0")
    assert not removed(world)
    (removal,) = world.of("n0", Kind.SILENCE).removals
    assert removal.mode is Mode.OBSERVE
    assert len(world.node("n0").pods) == 1


def test_a_faulty_node_that_goes_silent_stays_isolated() -> None:
    world = a_world()
    world.shows("n0", a_finding())
    world.settle()
    cut_off(world, "n0")
    assert world.out() == {"n0"}
    world.silent.clear()
    world.now = Now(world.now.mono_s + 1, world.now.wall_s + 1)
    world.reboot("n0", "boot-2")
    world.settle()
    assert world.of("n0", Kind.SILENCE).state is State.RELEASED
    world.passes(OPEN.release_after_s)
    world.settle()
    assert world.out() == set()


def test_a_node_that_has_just_come_is_not_judged_before_it_could_be_heard() -> None:
    """Its lease and its agent come some seconds after its node object."""
    node = NodePicture(name="new", uid="u", seen_mono_s=10_000.0)
    picture = FleetPicture(nodes={"new": node}, watching_since_mono_s=1.0)
    silences = [
        raw(node, picture, OPEN, Now(mono_s=node.seen_mono_s + after_s, wall_s=0.0)).silence
        for after_s in (0.1, OPEN.lease_s - 1, LONG_S)
    ]
    assert silences == [Silence.UNJUDGED, Silence.UNJUDGED, Silence.UNREACHABLE]
