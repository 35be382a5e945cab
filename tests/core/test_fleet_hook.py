"""The program that powers silent nodes off: when it is called, how often, and what its end means for their pods."""

import pytest
from msgspec import structs

from sentinel.core.fleet import hook
from sentinel.core.fleet.events import DoRemove, DoTell, Reason
from sentinel.core.fleet.hook import AGAIN_S, FenceCall
from sentinel.core.fleet.model import (
    Brake,
    EndedBy,
    Fence,
    FenceOutcome,
    FenceState,
    Kind,
    Mode,
    NodeQuarantine,
    OrderKind,
    Proof,
    State,
)
from sentinel.core.fleet.settings import Allowance, FenceHook, FleetSettings, Limit
from tests.core.fleet_world import OPEN, World, a_pod

NAMES = [f"n{number}" for number in range(8)]
HOOK = FenceHook(command=("/opt/fence", "--now"), after_s=180.0)
FENCES = structs.replace(OPEN, fence=HOOK)
SILENT_S = OPEN.agent_silent_s + 1
AFTER_S = HOOK.after_s - SILENT_S
ONE_IN_AN_HOUR = Allowance(per_window=Limit(1), window_s=3600.0)


def a_world(settings: FleetSettings = FENCES) -> World:
    """n0 runs a rank of a protected job and has just been judged to be silent."""
    world = World(NAMES, settings)
    world.change("n0", pods=(a_pod(),), provider_id="cloud:///i-0")
    world.settle()
    cut_off(world, "n0", seconds=SILENT_S)
    return world


def cut_off(world: World, *names: str, seconds: float) -> None:
    world.silent |= set(names)
    world.passes(seconds)
    world.settle()


def called(settings: FleetSettings = FENCES) -> World:
    """The program runs for n0."""
    world = a_world(settings)
    cut_off(world, seconds=AFTER_S)
    assert fence(world).runs
    return world


def ends(world: World, *, off: bool, number: int = 1, record: str = "n0-0001") -> None:
    how = "exit code 0" if off else "exit code 3: no route to the BMC"
    world.picture = structs.replace(world.picture, fenced=(FenceOutcome(record, number, off, how),))
    world.settle()


def taken_over(world: World) -> None:
    """By another leader, who has heard nobody yet."""
    world.picture = structs.replace(
        world.picture, epoch=2, watching_since_mono_s=world.now.mono_s, paused="", fenced=()
    )
    for name in NAMES:
        world.change(name, agent_mono_s=None, lease_mono_s=None, boot_id="", checks={})
    for name in NAMES[1:]:
        world.report(name)
    world.settle()


def silence(world: World, node: str = "n0") -> NodeQuarantine:
    return world.of(node, Kind.SILENCE)


def fence(world: World, node: str = "n0") -> Fence:
    found = silence(world, node).fence
    assert found is not None
    return found


def calls(world: World) -> tuple[FenceCall, ...]:
    return hook.calls(world.picture, world.records, world.settings, world.now)


def removed(world: World) -> list[DoRemove]:
    return [effect for effect in world.effects if isinstance(effect, DoRemove)]


def story(world: World) -> list[str]:
    return [line.reason for line in silence(world).story]


# ---------------------------------------------------------------- called


def test_a_node_that_is_silent_for_so_long_is_fenced_and_its_pods_go_when_it_is_off() -> None:
    world = a_world()
    cut_off(world, seconds=AFTER_S - 1.0)
    assert silence(world).fence is None
    assert calls(world) == ()
    cut_off(world, seconds=1.0)
    assert calls(world) == (FenceCall("n0-0001", 1, "n0", "uid-n0", "cloud:///i-0"),)
    assert not removed(world)
    ends(world, off=True)
    (effect,) = removed(world)
    assert (effect.pods, effect.proof) == (("research/worker-0/uid-worker-0",), Proof.FENCED)
    assert story(world) == [Reason.UNREACHABLE, Reason.FENCING, Reason.FENCED, Reason.REMOVED_BY_FORCE]
    assert calls(world) == ()


def test_without_a_program_nothing_is_called() -> None:
    world = a_world(OPEN)
    cut_off(world, seconds=86_400.0)
    assert silence(world).fence is None
    assert story(world) == [Reason.UNREACHABLE, Reason.UNFENCED]


def test_a_node_without_protected_pods_is_not_fenced() -> None:
    world = World(NAMES, FENCES)
    world.change("n0", pods=(a_pod(protected=False),))
    world.settle()
    cut_off(world, "n0", seconds=86_400.0)
    assert silence(world).fence is None


def test_a_node_whose_kubelet_is_heard_is_not_fenced() -> None:
    world = a_world()
    for _ in range(20):
        world.passes(20.0)
        world.change("n0", lease_mono_s=world.now.mono_s)
        world.settle()
    assert silence(world).fence is None


def test_nodes_that_went_silent_together_are_not_fenced() -> None:
    world = World(NAMES, FENCES)
    for name in NAMES[:3]:
        world.change(name, pods=(a_pod(f"worker-{name}"),))
    cut_off(world, *NAMES[:3], seconds=86_400.0)
    assert not world.records


def test_a_node_that_is_proved_dead_is_not_fenced() -> None:
    world = a_world()
    world.order(OrderKind.CONFIRM_DEAD, "n0")
    cut_off(world, seconds=AFTER_S)
    assert [effect.proof for effect in removed(world)] == [Proof.PERSON]
    assert silence(world).fence is None


# ---------------------------------------------------------------- failure


def test_a_program_that_fails_is_called_three_times_and_the_pods_stay() -> None:
    world = called()
    for number in (1, 2, 3):
        ends(world, off=False, number=number)
        assert "exit code 3: no route to the BMC." in silence(world).story[2 * number].sentence
        assert calls(world) == ()
        cut_off(world, seconds=AGAIN_S - 1.0)
        assert fence(world).tries == number, "before 10 minutes are over"
        cut_off(world, seconds=1.0)
    assert (fence(world).tries, fence(world).state) == (3, FenceState.FAILED)
    assert story(world) == [Reason.UNREACHABLE, *[Reason.FENCING, Reason.FENCE_FAILED] * 3, Reason.UNFENCED]
    assert not removed(world)
    cut_off(world, seconds=86_400.0)
    assert fence(world).tries == 3
    told = [effect.key for effect in world.effects if isinstance(effect, DoTell)]
    assert [key for key in told if "FenceFailed" in key] == [f"n0-0001/FenceFailed/{n}" for n in (1, 2, 3)]


def test_an_outcome_of_an_earlier_call_says_nothing_of_the_present_one() -> None:
    world = called()
    ends(world, off=False)
    cut_off(world, seconds=AGAIN_S)
    ends(world, off=True, number=1)
    assert fence(world).runs
    assert not removed(world)


def test_what_the_records_say_that_runs_is_called_again_by_the_next_leader_once_it_has_judged() -> None:
    world = called()
    taken_over(world)
    assert calls(world) == (), "it has not listened for long enough"
    cut_off(world, seconds=SILENT_S)
    assert [one.number for one in calls(world)] == [1], "the same try"
    world.picture = structs.replace(world.picture, paused="anna")
    assert calls(world) == ()


# ---------------------------------------------------------------- heard again


def test_the_success_of_a_program_removes_no_pods_of_a_node_that_speaks() -> None:
    world = called()
    world.silent.clear()
    world.passes(1.0)
    world.settle()
    assert silence(world).ended_by is EndedBy.RETURNED
    assert calls(world) == ()
    ends(world, off=True)
    cut_off(world, "n0", seconds=SILENT_S)
    assert not removed(world)
    assert silence(world).id == "n0-0002"
    cut_off(world, seconds=AFTER_S)
    assert [(one.record, one.number) for one in calls(world)] == [("n0-0002", 1)], "it is off now, maybe"


def test_a_node_that_speaks_when_the_program_ends_keeps_its_pods() -> None:
    world = called()
    world.silent.clear()
    world.passes(1.0)
    ends(world, off=True)
    assert not removed(world)
    assert silence(world).ended_by is EndedBy.RETURNED


@pytest.mark.parametrize("by", [Proof.FENCED, Proof.PERSON])
def test_a_kubelet_that_is_heard_takes_back_the_word_that_the_machine_is_off(by: Proof) -> None:
    world = called()
    world.picture = structs.replace(world.picture, paused="anna")  # it is not removed yet
    if by is Proof.FENCED:
        ends(world, off=True)
    else:
        world.order(OrderKind.CONFIRM_DEAD, "n0")
        world.settle()
    world.passes(1.0)
    world.change("n0", lease_mono_s=world.now.mono_s)
    world.settle()
    world.picture = structs.replace(world.picture, paused="", fenced=())
    assert silence(world).reason == Reason.AGENT_SILENT
    cut_off(world, seconds=SILENT_S)
    assert silence(world).reason == Reason.UNREACHABLE
    assert not removed(world)


@pytest.mark.parametrize("by", [Proof.FENCED, Proof.PERSON])
def test_a_new_leader_believes_that_it_is_off_once_it_has_listened_itself(by: Proof) -> None:
    world = called()
    world.picture = structs.replace(world.picture, paused="anna")
    if by is Proof.FENCED:
        ends(world, off=True)
    else:
        world.order(OrderKind.CONFIRM_DEAD, "n0")
        world.settle()
    taken_over(world)
    assert not removed(world), "it may speak"
    cut_off(world, seconds=SILENT_S)
    assert [effect.proof for effect in removed(world)] == [by]


# ---------------------------------------------------------------- brakes


@pytest.mark.parametrize("brake", [Brake.PAUSED, Brake.PER_WINDOW, Brake.POOL_PER_WINDOW])
def test_without_room_for_a_removal_nothing_is_powered_off(brake: Brake) -> None:
    world = a_world()
    none = Allowance(per_window=Limit(0))
    if brake is Brake.PAUSED:
        world.picture = structs.replace(world.picture, paused="anna")
    elif brake is Brake.PER_WINDOW:
        world.settings = structs.replace(FENCES, removals=none)
    else:
        world.settings = structs.replace(FENCES, pool_removals=none)
    cut_off(world, seconds=AFTER_S)
    record = silence(world)
    assert (record.held_by, record.reason, record.fence) == (brake, Reason.REMOVAL_BRAKED, None)
    world.settings = FENCES
    world.picture = structs.replace(world.picture, paused="")
    world.settle()
    assert fence(world).runs
    assert silence(world).held_by is Brake.NONE


def two_silent(settings: FleetSettings) -> World:
    world = World(NAMES, settings)
    for name in ("n0", "n1"):
        world.change(name, pods=(a_pod(f"worker-{name}"),))
    world.settle()
    cut_off(world, "n0", "n1", seconds=HOOK.after_s)
    return world


def test_a_call_takes_the_room_of_the_removal_that_follows_it_and_no_more() -> None:
    world = two_silent(structs.replace(FENCES, removals=ONE_IN_AN_HOUR))
    assert fence(world).runs
    assert silence(world, "n1").held_by is Brake.PER_WINDOW
    ends(world, off=True)
    assert [effect.node for effect in removed(world)] == ["n0"]
    cut_off(world, seconds=3599.0)
    assert silence(world, "n1").fence is None
    cut_off(world, seconds=2.0)
    assert fence(world, "n1").runs


def test_a_pod_that_is_seen_after_the_removal_goes_in_the_same_room() -> None:
    world = called(structs.replace(FENCES, removals=ONE_IN_AN_HOUR))
    ends(world, off=True)
    world.change("n0", pods=(a_pod("worker-late"),))
    cut_off(world, seconds=1.0)
    assert [effect.pods for effect in removed(world)][1:] == [("research/worker-late/uid-worker-late",)]


@pytest.mark.parametrize("before_s", [10.0, -10.0])
@pytest.mark.parametrize("by", [Proof.POLICY, Proof.SELF_FENCED])
def test_the_other_pods_of_a_machine_that_is_off_go_though_some_went_by_their_policy(
    by: Proof, before_s: float
) -> None:
    """Before the program is called, or while it runs: one node takes room once, and no other takes more of it."""
    at_s = HOOK.after_s - before_s
    ends_s = min(at_s - 60.0, at_s / 1.5)  # see removal_after_s
    own = {"force_after_s": at_s} if by is Proof.POLICY else {"self_fence_s": ends_s}
    other = a_pod("other", job="other", **own)
    world = World(NAMES, structs.replace(FENCES, removals=ONE_IN_AN_HOUR, pool_removals=ONE_IN_AN_HOUR))
    world.change("n0", pods=(a_pod(), other), fences={other.uid: ends_s})
    world.change("n1", pods=(a_pod("worker-n1"),))
    world.settle()
    cut_off(world, "n0", seconds=SILENT_S)
    cut_off(world, seconds=min(at_s, HOOK.after_s) - SILENT_S)
    cut_off(world, seconds=abs(before_s))
    assert [effect.proof for effect in removed(world)] == [by]
    assert fence(world).runs
    ends(world, off=True)
    assert [effect.proof for effect in removed(world)] == [by, Proof.FENCED]
    assert silence(world).held_by is Brake.NONE
    cut_off(world, "n1", seconds=HOOK.after_s)
    assert silence(world, "n1").held_by is Brake.PER_WINDOW
    cut_off(world, seconds=3600.0 - HOOK.after_s)
    assert fence(world, "n1").runs, "all of it was one act"


def test_two_removals_of_one_node_at_one_moment_take_room_once() -> None:
    one = a_pod("one", job="one", force_after_s=180.0)
    two = a_pod("two", job="two", self_fence_s=120.0)
    world = World(NAMES, structs.replace(OPEN, removals=ONE_IN_AN_HOUR))
    world.change("n0", pods=(one, two), fences={two.uid: 120.0})
    world.settle()
    cut_off(world, "n0", seconds=SILENT_S)
    cut_off(world, seconds=180.0)
    assert {effect.proof for effect in removed(world)} == {Proof.POLICY, Proof.SELF_FENCED}


def test_calls_again_take_no_more_room_and_keep_it() -> None:
    world = two_silent(structs.replace(FENCES, removals=ONE_IN_AN_HOUR))
    ends(world, off=False)
    cut_off(world, seconds=AGAIN_S)
    assert fence(world).tries == 2
    cut_off(world, seconds=3600.0 - AGAIN_S)
    assert silence(world, "n1").fence is None, "an hour after the second call there is room"
    cut_off(world, seconds=AGAIN_S)
    assert fence(world, "n1").runs


def test_a_removal_long_after_the_call_asks_the_brake_again() -> None:
    world = two_silent(structs.replace(FENCES, removals=ONE_IN_AN_HOUR))
    for number in (1, 2, 3):
        ends(world, off=False, number=number)
        cut_off(world, seconds=AGAIN_S)
    cut_off(world, seconds=3600.0)
    assert fence(world, "n1").runs
    world.order(OrderKind.CONFIRM_DEAD, "n0")
    world.settle()
    assert not removed(world)
    assert silence(world).held_by is Brake.PER_WINDOW


# ---------------------------------------------------------------- observed


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": Mode.OBSERVE},
        {"observe_pools": frozenset({""})},
        {"observe_namespaces": frozenset({"research"})},
    ],
)
def test_what_is_only_observed_would_be_fenced_and_is_not(changes: dict[str, object]) -> None:
    world = a_world(structs.replace(FENCES, **changes))
    cut_off(world, seconds=86_400.0)
    assert (fence(world).mode, fence(world).tries) == (Mode.OBSERVE, 1)
    assert "would be fenced (observe mode)" in silence(world).story[1].sentence
    assert calls(world) == ()
    assert story(world) == [Reason.UNREACHABLE, Reason.FENCING, Reason.UNFENCED]
    ends(world, off=True)
    assert not removed(world)


@pytest.mark.parametrize("force_after_s", [None, 100.0])
def test_a_node_is_not_powered_off_for_others_under_a_pod_that_is_only_observed(
    force_after_s: float | None,
) -> None:
    """Nor when that it would be removed is said already."""
    world = World(NAMES, structs.replace(FENCES, observe_namespaces=frozenset({"spared"})))
    spared = a_pod("other", namespace="spared", force_after_s=force_after_s)
    world.change("n0", pods=(a_pod(), spared))
    cut_off(world, "n0", seconds=HOOK.after_s)
    assert fence(world).mode is Mode.OBSERVE


def test_a_controller_that_only_observes_calls_nothing_that_an_earlier_one_began() -> None:
    world = called()
    world.settings = structs.replace(FENCES, mode=Mode.OBSERVE)
    assert calls(world) == ()
    world.settle()
    assert silence(world).reason == Reason.UNFENCED
    assert silence(world).state is State.ACTIVE
