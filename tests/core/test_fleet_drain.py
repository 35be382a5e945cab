"""A node that is drained: out of service at once, empty when its protected jobs have left, back on a person's word."""

from msgspec import structs

from sentinel.core.fleet import rounds
from sentinel.core.fleet.model import Kind, NodeQuarantine, OrderKind, PodPicture, State
from tests.core.fleet_world import World


def a_pod(name: str, job: str, *, protected: bool = True) -> PodPicture:
    return PodPicture(uid=name, namespace="research", name=name, job=job, protected=protected)


def with_pods(world: World, *pods: PodPicture) -> None:
    nodes = dict(world.picture.nodes)
    nodes["n1"] = structs.replace(nodes["n1"], pods=pods)
    world.picture = structs.replace(world.picture, nodes=nodes)


def the_hold(world: World) -> NodeQuarantine:
    (record,) = [one for one in world.records.values() if one.kind is Kind.HOLD and one.state.open]
    return record


def answered(world: World) -> list[tuple[bool, str]]:
    found = rounds.answers(world.picture, world.records, world.settings, world.now)
    return [(one.done, one.sentence) for one in found]


TWO = (
    a_pod("a-0", "PyTorchJob research/a"),
    a_pod("a-1", "PyTorchJob research/a"),
    a_pod("b-0", "Job research/b"),
)


def test_a_drained_node_takes_nothing_new_and_names_the_jobs_that_are_left_until_none_is() -> None:
    world = World()
    with_pods(world, *TWO, a_pod("web", "", protected=False))
    world.order(OrderKind.DRAIN, "n1", "a new power supply")
    world.decide()
    told = answered(world)
    world.settle()
    assert world.out() == {"n1"}
    assert the_hold(world).jobs_left == ("Job research/b", "PyTorchJob research/a")
    ((done, sentence),) = told
    assert done
    assert sentence == (
        "Node n1 is drained by anna: a new power supply. 2 protected jobs left: Job research/b, PyTorchJob research/a."
    )
    with_pods(world, TWO[2])
    world.settle()
    assert the_hold(world).sentence == "Node n1: 1 protected job left: Job research/b."
    with_pods(world)
    world.settle()
    record = the_hold(world)
    assert (record.reason, record.jobs_left, record.state) == ("Drained", (), State.ACTIVE)
    assert [mail.stage for mail in record.mails] == ["DrainOrdered", "Drained"]
    assert world.out() == {"n1"}, "empty, and still out of service"
    world.order(OrderKind.DRAIN_OFF, "n1")
    world.settle()
    assert not world.out()
    assert not world.node().unschedulable


def test_a_node_that_was_held_before_it_was_drained_stays_held() -> None:
    world = World()
    world.order(OrderKind.HOLD, "n1")
    world.settle()
    with_pods(world, *TWO)
    world.order(OrderKind.DRAIN, "n1")
    world.settle()
    assert (the_hold(world).drain, len(the_hold(world).jobs_left)) == (True, 2)
    world.order(OrderKind.DRAIN_OFF, "n1")
    world.settle()
    assert (the_hold(world).drain, the_hold(world).jobs_left) == (False, ())
    assert the_hold(world).sentence.endswith("It is still held.")
    assert world.out() == {"n1"}
    world.order(OrderKind.RELEASE, "n1")
    world.settle()
    assert not world.out()


def test_what_is_drained_already_and_what_is_not_is_said() -> None:
    world = World()
    world.order(OrderKind.DRAIN_OFF, "n1")
    world.order(OrderKind.DRAIN, "no-such-node")
    world.decide()
    assert answered(world) == [
        (False, "Node n1 is not drained."),
        (False, "Node no-such-node is not in the cluster."),
    ]
    world = World()
    world.order(OrderKind.DRAIN, "n1")
    world.settle()
    world.order(OrderKind.DRAIN, "n1")
    world.decide()
    assert answered(world)[-1] == (False, "Node n1 is drained already (`sentinel status n1`).")


def test_a_release_ends_a_drain_too() -> None:
    world = World()
    with_pods(world, *TWO)
    world.order(OrderKind.DRAIN, "n1")
    world.settle()
    world.order(OrderKind.RELEASE, "n1")
    world.settle()
    assert not world.out()
