"""What is told of silent nodes in one line, and what is told before it."""

from sentinel.controller.nodes.pending import LINE_S, Telling
from sentinel.core.fleet.events import DoTell, Reason
from sentinel.core.fleet.model import Kind, Needs, NodeQuarantine, State


class Cluster:
    def __init__(self) -> None:
        self.records: dict[str, NodeQuarantine] = {}

    def record(self, id: str) -> NodeQuarantine | None:
        return self.records.get(id)


class Told:
    """Silences by the first letter of their nodes, and the lines about them."""

    def __init__(self) -> None:
        self.cluster, self.lines = Cluster(), list[str]()
        self.telling = Telling(self.cluster, self.lines.append, lambda: None)  # type: ignore[arg-type]

    def says(self, node: str, reason: Reason) -> None:
        id = f"{node}-0001"
        needs = Needs(sentence="it is heard")
        record = NodeQuarantine(
            id=id, kind=Kind.SILENCE, node=node, node_uid="uid", state=State.ACTIVE, needs=needs
        )
        self.cluster.records[id] = record
        self.telling.saved(record, [DoTell(f"{id}/{reason}", f"{node} {reason}", reason)])
        self.telling.shown(node, None, None)


def test_few_are_told_each_by_itself_when_a_turn_brought_no_other() -> None:
    told = Told()
    told.says("a", Reason.UNREACHABLE)
    told.telling.turn(0.0)
    told.says("b", Reason.UNREACHABLE)
    told.telling.turn(3.0)
    assert not told.lines
    told.telling.turn(6.0)
    assert told.lines == ["a Unreachable", "b Unreachable"]


def test_many_are_one_line_and_it_does_not_wait_for_ever() -> None:
    told = Told()
    for number in range(20):
        told.says(f"n{number:02}", Reason.UNREACHABLE)
        told.telling.turn(3.0 * number)
        if told.lines:
            break
    assert 3.0 * number == LINE_S
    assert len(told.lines) == 1
    assert told.lines[0].startswith("5 nodes cannot be reached")


def test_it_waits_while_others_are_left_to_the_next_round() -> None:
    told = Told()
    told.says("a", Reason.UNREACHABLE)
    for seconds in (0.0, 0.1, 0.2, 3.0):
        told.telling.turn(seconds, more=True)
    assert not told.lines
    told.telling.turn(3.1)
    assert told.lines == ["a Unreachable"]


def test_what_came_first_of_a_node_is_told_first() -> None:
    told = Told()
    told.says("a", Reason.SPEAKS_AGAIN)
    told.says("b", Reason.UNREACHABLE)
    told.says("b", Reason.SPEAKS_AGAIN)
    told.says("c", Reason.UNREACHABLE)
    told.says("c", Reason.REMOVED_BY_FORCE)
    told.telling.say()
    assert told.lines.index("b Unreachable") < told.lines.index("b SpeaksAgain")
    assert told.lines.index("c Unreachable") < told.lines.index("c RemovedByForce")
    assert len(told.lines) == 5


def test_one_thing_is_told_once() -> None:
    told = Told()
    told.says("a", Reason.UNREACHABLE)
    told.telling.say()
    told.says("a", Reason.UNREACHABLE)
    told.telling.say()
    assert told.lines == ["a Unreachable"]
