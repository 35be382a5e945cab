"""`lostNode.selfFence`: when an agent ends a job's ranks, and when the controller takes that for done."""

import pytest
from msgspec import structs

from sentinel.core.agents import self_fence
from sentinel.core.agents.orders import Follow, PodRank
from sentinel.core.fleet.bounds import bounded
from sentinel.core.fleet.events import Reason
from sentinel.core.fleet.fold import fold
from sentinel.core.fleet.model import Kind, Mode, NodePicture, Proof, Taint
from sentinel.core.fleet.settings import Allowance, Limit
from sentinel.core.health import Severity
from sentinel.core.model import ProtectedJob
from sentinel.core.now import Now
from sentinel.core.people.protection import protection
from sentinel.core.policy_model import LostNode, Policy
from sentinel.core.reports import Report
from tests.core.fleet_world import OPEN, World, a_finding, a_pod
from tests.core.test_fleet_silence import NAMES, cut_off, removed
from tests.core.test_protection import JOB, asked

T_S = 240.0
WAITS_S = 360.0  # half as long again


def follow(job: str, *uids: str, self_fence_s: float | None = T_S) -> Follow:
    pods = tuple(
        PodRank(rank=rank, namespace="research", pod=uid, uid=uid, container="main", container_id=uid)
        for rank, uid in enumerate(uids)
    )
    return Follow(job=ProtectedJob(name=job, policy=Policy()), pods=pods, self_fence_s=self_fence_s)


# ---------------------------------------------------------------- the agent's side


def test_ranks_end_after_their_own_time_and_those_of_other_jobs_never() -> None:
    slow, quick, other = (
        follow("slow", "a", "b"),
        follow("quick", "c", self_fence_s=120.0),
        follow("other", "d"),
    )
    other = structs.replace(other, self_fence_s=None)
    orders = (slow, quick, other)
    assert self_fence.due(orders, 119.0) == ()
    assert self_fence.due(orders, 120.0) == (quick,)
    assert self_fence.due(orders, 1e9) == (slow, quick)
    assert self_fence.fences(orders) == {"a": T_S, "b": T_S, "c": 120.0}


def test_what_delays_the_agent_is_less_than_what_the_controller_waits_longer() -> None:
    """An answer that is held, or one of the API server after the kubelet's last renewal; a question; a look."""
    held_s, renewed_s, question_s = 30.0, 10.0, 5.0
    for seconds in (self_fence.LEAST_S, 600.0, 86400.0):
        pace = self_fence.pace(seconds)
        late_s = max(held_s, renewed_s) + question_s + pace.look_s
        assert self_fence.removal_after_s(seconds) >= seconds + late_s
        assert pace.ask_after_s + 2 * pace.ask_every_s < seconds  # asked more than once before it acts


# ---------------------------------------------------------------- the controller's side


def fenced(**changes: object) -> World:
    """n0 has two ranks of a job with selfFence; its agent has confirmed one of them. Then it is cut off."""
    world = World(NAMES, structs.replace(OPEN, **changes))
    pods = (a_pod(self_fence_s=T_S), a_pod("worker-1", self_fence_s=T_S))
    world.change("n0", pods=pods, fences={"uid-worker-0": T_S, "uid-worker-1": T_S})
    world.settle()
    cut_off(world, "n0")
    return world


def test_pods_go_when_their_agent_was_given_longer_than_it_needs() -> None:
    world = fenced()
    already_s = world.now.mono_s - (world.node("n0").agent_mono_s or 0.0)
    cut_off(world, seconds=WAITS_S - already_s - 1.0)
    assert not removed(world)
    cut_off(world, seconds=1.0)
    (effect,) = removed(world)
    assert effect.proof is Proof.SELF_FENCED
    assert len(effect.pods) == 2
    said = world.of("n0", Kind.SILENCE).sentence
    assert "two writers are possible if that agent was dead, or only its kubelet was" in said


@pytest.mark.parametrize(
    ("pod", "fences"),
    [
        ({"self_fence_s": T_S}, {}),  # an agent that does not know it, or cannot
        ({"self_fence_s": T_S}, {"uid-another": T_S}),
        ({"self_fence_s": None}, {"uid-worker-0": T_S}),  # the owner asks it no more
    ],
)
def test_without_the_agents_word_and_the_policys_no_pod_goes(
    pod: dict[str, float | None], fences: dict[str, float]
) -> None:
    world = World(NAMES)
    world.change("n0", pods=(a_pod(**pod),), fences=fences)
    cut_off(world, "n0")
    cut_off(world, seconds=10 * WAITS_S)
    assert not removed(world)


def test_a_pod_that_came_after_the_agents_last_word_stays() -> None:
    world = fenced()
    late = a_pod("worker-2", self_fence_s=T_S)
    world.change("n0", pods=(*world.node("n0").pods, late))
    cut_off(world, seconds=WAITS_S)
    (effect,) = removed(world)
    assert late.id not in effect.pods


@pytest.mark.parametrize(("told_s", "asked_s"), [(T_S, 2 * T_S), (2 * T_S, T_S)])
def test_of_two_times_the_longer_one_counts(told_s: float, asked_s: float) -> None:
    """The policy was changed while the agent could not be told."""
    world = World(NAMES)
    world.change("n0", pods=(a_pod(self_fence_s=asked_s),), fences={"uid-worker-0": told_s})
    cut_off(world, "n0")
    cut_off(world, seconds=WAITS_S)
    assert not removed(world)
    cut_off(world, seconds=WAITS_S)
    assert len(removed(world)) == 1


def test_a_leader_that_never_heard_the_agent_goes_by_the_record_and_by_its_own_time() -> None:
    world = fenced()
    world.change("n0", agent_mono_s=None, fences={})
    world.picture = structs.replace(world.picture, watching_since_mono_s=world.now.mono_s)
    cut_off(world, seconds=WAITS_S - 1.0)
    assert not removed(world)
    cut_off(world, seconds=2.0)
    assert [one.proof for one in removed(world)] == [Proof.SELF_FENCED]


@pytest.mark.parametrize("taken_over", [False, True])
def test_the_promise_of_an_agent_that_was_dead_before_its_node_was_cut_off_counts_for_nothing(
    taken_over: bool,
) -> None:
    world = World(NAMES)
    world.change("n0", pods=(a_pod(self_fence_s=T_S),), fences={"uid-worker-0": T_S})
    world.settle()
    world.silent.add("n0")
    for _ in range(20):
        world.passes(30.0)
        world.change("n0", lease_mono_s=world.now.mono_s)
        world.settle()
    assert [line.reason for line in world.of("n0", Kind.SILENCE).story] == [Reason.AGENT_SILENT]
    if taken_over:
        world.change("n0", agent_mono_s=None, fences={})
        world.picture = structs.replace(world.picture, watching_since_mono_s=world.now.mono_s)
    cut_off(world, seconds=10 * WAITS_S)
    assert not removed(world)
    assert world.of("n0", Kind.SILENCE).reason == Reason.UNFENCED


def test_no_promise_is_written_down_of_an_agent_that_was_dead_while_nobody_was_judged() -> None:
    """All agents died together, so no record told of it; then one of the nodes is cut off."""
    world = World(NAMES)
    world.change("n0", pods=(a_pod(self_fence_s=T_S),), fences={"uid-worker-0": T_S})
    world.settle()
    world.silent |= set(NAMES)
    for _ in range(20):
        world.passes(30.0)
        for name in NAMES:
            world.change(name, lease_mono_s=world.now.mono_s)
        world.settle()
    for _ in range(40):
        world.passes(30.0)
        for name in NAMES[1:]:
            world.change(name, lease_mono_s=world.now.mono_s)
        world.settle()
    assert not world.of("n0", Kind.SILENCE).self_fences
    assert not removed(world)


def test_nothing_goes_while_many_are_silent_together() -> None:
    world = fenced()
    cut_off(world, *NAMES, seconds=0.0)
    world.picture = structs.replace(world.picture, watching_since_mono_s=world.now.mono_s)
    cut_off(world, seconds=10 * WAITS_S)
    assert not removed(world)


@pytest.mark.parametrize("changes", [{"mode": Mode.OBSERVE}, {"observe_namespaces": frozenset({"research"})}])
def test_what_is_only_observed_is_only_recorded(changes: dict[str, object]) -> None:
    world = fenced(**changes)
    cut_off(world, seconds=WAITS_S)
    assert not removed(world)
    (removal,) = world.of("n0", Kind.SILENCE).removals
    assert (removal.mode, removal.proof) == (Mode.OBSERVE, Proof.SELF_FENCED)


def test_the_brakes_of_removals_hold_it_back() -> None:
    world = fenced(removals=Allowance(per_window=Limit(0)))
    cut_off(world, seconds=WAITS_S)
    assert not removed(world)
    world.settings = OPEN
    world.settle()
    assert len(removed(world)) == 1


def test_a_proof_of_death_needs_no_time() -> None:
    world = fenced()
    world.change("n0", taints=(Taint("node.kubernetes.io/out-of-service", effect="NoExecute"),))
    world.settle()
    assert [one.proof for one in removed(world)] == [Proof.OUT_OF_SERVICE]


def test_a_node_that_speaks_again_tells_what_its_agent_did() -> None:
    world = fenced()
    ended = a_finding(
        self_fence.ENDED,
        entity="research/llama",
        severity=Severity.WARNING,
        last_seen_wall_s=world.now.wall_s + T_S,
    )
    cut_off(world, seconds=T_S)
    world.silent.clear()
    world.shows("n0", ended)
    world.settle()
    said = world.of("n0", Kind.SILENCE).sentence
    assert said == "Node n0 is heard again. Cut off, its agent had ended the ranks of research/llama there."


# ---------------------------------------------------------------- what agents confirm, and what policies ask


def told(fences: dict[str, float] | None, at_s: float, boot: str = "boot-1") -> Report:
    return Report(node="n0", boot_id=boot, sequence=0, now=Now(at_s, 1000.0 + at_s), fences=fences)


def test_the_last_word_of_this_boot_counts() -> None:
    node = fold(NodePicture(name="n0", uid="u"), told({"a": T_S}, 10.0), Now(1.0, 1.0))
    node = fold(node, told(None, 11.0), Now(2.0, 2.0))
    assert node.fences == {"a": T_S}
    node = fold(node, told({}, 9.0), Now(3.0, 3.0))  # late
    assert node.fences == {"a": T_S}
    assert fold(node, told({}, 12.0), Now(4.0, 4.0)).fences == {}
    booted = structs.replace(told(None, 1.0, "boot-2"), now=Now(1.0, 9000.0))
    assert fold(node, booted, Now(4.0, 4.0)).fences == {}


def test_what_is_no_time_is_no_promise() -> None:
    kept = bounded(told({"a": T_S, "b": float("nan"), "c": -1.0, "d" * 1000: T_S}, 1.0))
    assert kept.fences == {"a": T_S}


def test_a_policy_that_only_observes_fences_nothing() -> None:
    policy = Policy(lost_node=LostNode(self_fence_s=T_S))
    held = protection([asked(policy=policy)], JOB)
    assert held is not None
    assert (held.self_fence_s, held.force_after_s) == (T_S, None)
    watched = protection([asked(policy=structs.replace(policy, mode="observe"))], JOB)
    assert watched is not None
    assert watched.self_fence_s is None
