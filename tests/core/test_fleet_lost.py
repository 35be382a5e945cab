"""Nodes that fall silent together are one loss: which of them, when it is told, and in which words."""

from sentinel.core.fleet.events import Reason
from sentinel.core.fleet.lost import (
    GAP_S,
    LONGEST_S,
    MANY,
    NAMED,
    RETURN_S,
    SETTLE_S,
    SETTLED_S,
    due_wall_s,
    line,
    losses,
    nodes_of,
    told,
)
from sentinel.core.fleet.model import Kind, NodeMail, NodeQuarantine
from sentinel.core.now import Now
from tests.core.fleet_world import OPEN, World, a_finding, a_pod

LONG_S = OPEN.agent_silent_s + 1
RACK = [f"rack-{number}" for number in range(20)]
OTHERS = [f"other-{number}" for number in range(80)]


def lost(*names: str, pods: bool = False) -> World:
    """A fleet in which these fall silent at once."""
    world = World([*RACK, *OTHERS])
    for name in names if pods else ():
        world.change(name, pods=(a_pod(f"worker-{name}"),))
    world.settle()
    silence(world, *names)
    return world


def silence(world: World, *names: str) -> None:
    world.silent |= set(names)
    world.passes(LONG_S)
    world.settle()


def heard(world: World, *names: str) -> None:
    world.silent -= set(names)
    world.passes(1.0)
    world.settle()


def groups(world: World) -> list[tuple[str, ...]]:
    return [loss.nodes for loss in losses(world.records.values())]


def silences(world: World) -> list[NodeQuarantine]:
    return [one for one in world.records.values() if one.kind is Kind.SILENCE]


def waiting(world: World, stage: Reason) -> list[NodeMail]:
    return [mail for one in silences(world) for mail in one.mails if mail.stage == stage]


# ---------------------------------------------------------------- which are one loss


def test_what_falls_silent_together_is_one_loss_and_each_node_keeps_its_own_record() -> None:
    world = lost(*RACK)
    assert groups(world) == [tuple(sorted(RACK))]
    assert len(world.records) == len(RACK)


def test_who_falls_silent_later_is_another_matter() -> None:
    world = lost("rack-0")
    silence(world, "rack-1")  # a minute later
    world.passes(GAP_S)
    silence(world, "rack-2")
    assert groups(world) == [("rack-0", "rack-1"), ("rack-2",)]


def test_a_loss_that_goes_on_and_on_is_told_anew_and_a_node_of_it_counts_once() -> None:
    world = lost("rack-0")
    for _ in range(int(LONGEST_S // LONG_S) + 5):  # it comes and goes, each time within a moment of the last
        heard(world, "rack-0")
        silence(world, "rack-0")
    first, *later = losses(world.records.values())
    assert first.nodes == ("rack-0",)
    assert not first.many
    assert len(first.records) > MANY
    assert first.records[-1].since_wall_s - first.records[0].since_wall_s <= LONGEST_S
    assert len(later) == 1


def test_isolations_are_no_part_of_it() -> None:
    world = lost("rack-0", "rack-1")
    world.shows("other-1", a_finding())
    world.settle()
    assert groups(world) == [("rack-0", "rack-1")]
    assert not told(world.records.values()), "two are not many"


# ---------------------------------------------------------------- when it is told


def test_a_mail_waits_until_nobody_else_falls_silent_but_not_for_ever() -> None:
    world = lost(*RACK)
    (loss,) = losses(world.records.values())
    now_s = world.now.wall_s
    first = NodeMail(stage=Reason.UNREACHABLE, wall_s=now_s)
    second = NodeMail(stage=Reason.UNREACHABLE, wall_s=now_s + 9.0)
    late = NodeMail(stage=Reason.UNREACHABLE, wall_s=now_s + SETTLED_S)
    world.passes(SETTLED_S)
    now, about = world.now, Reason.UNREACHABLE
    assert due_wall_s(loss, about, [first], now) == now_s + SETTLE_S
    assert due_wall_s(loss, about, [first, second], now) == now_s + 9.0 + SETTLE_S
    assert due_wall_s(loss, about, [first, second, late], now) == now_s + SETTLED_S


def test_a_clock_that_was_set_back_holds_no_mail() -> None:
    world = lost(*RACK)
    (loss,) = losses(world.records.values())
    mails = waiting(world, Reason.UNREACHABLE)
    before = Now(world.now.mono_s, world.now.wall_s - 3600.0)
    assert due_wall_s(loss, Reason.UNREACHABLE, mails, before) == before.wall_s
    assert due_wall_s(loss, Reason.SPEAKS_AGAIN, mails, before) == before.wall_s


def test_that_nodes_are_back_waits_for_the_last_of_them_but_not_for_ever() -> None:
    world = lost(*RACK)
    heard(world, *RACK[1:])
    (loss,) = losses(world.records.values())
    mails = waiting(world, Reason.SPEAKS_AGAIN)
    assert due_wall_s(loss, Reason.SPEAKS_AGAIN, mails, world.now) == mails[0].wall_s + RETURN_S
    heard(world, RACK[0])
    (loss,) = losses(world.records.values())
    assert due_wall_s(loss, Reason.SPEAKS_AGAIN, mails, world.now) == mails[0].wall_s


def test_that_one_node_of_few_is_back_waits_for_nobody() -> None:
    world = lost("rack-0", "rack-1")
    heard(world, "rack-0")
    (loss,) = losses(world.records.values())
    (mail,) = waiting(world, Reason.SPEAKS_AGAIN)
    assert due_wall_s(loss, Reason.SPEAKS_AGAIN, [mail], world.now) == mail.wall_s


# ---------------------------------------------------------------- in words


def test_a_line_says_how_many_which_and_what_runs_there() -> None:
    world = lost(*RACK, pods=True)
    said = line(Reason.UNREACHABLE, silences(world))
    assert said.startswith("20 nodes cannot be reached: agents and kubelets are silent. They may still run.")
    assert "Protected jobs have 20 pods there, which stay: nothing proves that the nodes are dead." in said
    assert said.count("rack-") == NAMED
    assert said.endswith(f" and {len(RACK) - NAMED} more.")
    few = line(Reason.UNREACHABLE, silences(lost(*RACK[:3])))
    assert few.endswith("They may still run. They are: rack-0, rack-1, rack-2.")


def test_silent_agents_alone_leave_their_nodes_alive() -> None:
    world = World([*RACK, *OTHERS])
    world.silent = set(RACK)
    for _ in range(4):
        world.passes(20.0)
        for name in RACK:
            world.change(name, lease_mono_s=world.now.mono_s)
        world.settle()
    said = line(Reason.AGENT_SILENT, silences(world))
    assert said.startswith("The agents of 20 nodes are silent; the kubelets are heard, so the nodes live.")


def test_what_status_says_ends_with_the_last_of_them() -> None:
    world = lost(*RACK)
    (said,) = told(world.records.values())
    assert said.startswith("LOST TOGETHER: 20 nodes fell silent within 1 s of each other. Look for what")
    heard(world, *RACK[1:])
    (said,) = told(world.records.values())
    assert "20 nodes fell silent within 1 s of each other, one of them is still silent." in said
    heard(world, RACK[0])
    assert told(world.records.values()) == []


def test_a_node_that_fell_silent_twice_is_one_node() -> None:
    world = lost("rack-0")
    heard(world, "rack-0")
    silence(world, "rack-0")
    assert len(world.records) == 2
    assert nodes_of(world.records.values()) == ("rack-0",)
