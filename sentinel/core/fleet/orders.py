"""What people order: release, acknowledge, hold, drain, confirm-dead. Pure.

An order stands in the picture until it was followed; its id in a record keeps it from being followed twice.
"""

from collections.abc import Mapping

from msgspec import Struct

from sentinel.core.fleet import drain, fence, words
from sentinel.core.fleet.desk import Desk
from sentinel.core.fleet.events import Acknowledged, Reason
from sentinel.core.fleet.isolate import Candidate, end, opening
from sentinel.core.fleet.model import EndedBy, FleetPicture, Kind, NodeQuarantine, Order, OrderKind, State
from sentinel.core.fleet.node import FOR_FINDINGS
from sentinel.core.fleet.settings import FleetSettings
from sentinel.core.fleet.silence import Silence, raw
from sentinel.core.now import Now

_FOLLOWED = {
    OrderKind.RELEASE: Reason.RELEASED_BY_PERSON,
    OrderKind.ACKNOWLEDGE: Reason.ACKNOWLEDGED,
    OrderKind.HOLD: Reason.HELD_BY_PERSON,
    OrderKind.CONFIRM_DEAD: Reason.UNREACHABLE,
    OrderKind.DRAIN: Reason.DRAIN_ORDERED,
    OrderKind.DRAIN_OFF: Reason.DRAIN_TAKEN_BACK,
}


def obey(desk: Desk, name: str) -> None:
    for order in desk.picture.orders:
        if order.node != name or any(order.id in record.orders for record in desk.of(name)):
            continue
        who = order.by or "a person"
        if order.kind is OrderKind.RELEASE:
            for record in desk.of(name):
                if record.state.open and record.kind.isolates and not _later(record, order):
                    sentence = f"Node {name} was released by {who}{_why(order)}."
                    if record.findings:
                        sentence += " What isolated it acts again only when it occurs anew."
                    end(desk, record, Reason.RELEASED_BY_PERSON, sentence, EndedBy.PERSON, order)
        elif order.kind is OrderKind.ACKNOWLEDGE:
            _acknowledge(desk, name, order, who)
        elif order.kind is OrderKind.HOLD:
            node = desk.picture.nodes.get(name)
            if node is not None and desk.open(name, Kind.HOLD) is None:
                mode = desk.mode(node.pool)
                sentence = (
                    f"Node {name} is kept out of service by {who}{_why(order)}. No running pod was touched."
                )
                one = Candidate(Kind.HOLD, node, (), None)
                event = opening(desk, one, mode, Reason.HELD_BY_PERSON, sentence, order=order.id, by=order.by)
                desk.put(name, event.id, event)
        elif order.kind is OrderKind.DRAIN:
            drain.begin(desk, name, order, f"by {who}{_why(order)}")
        elif order.kind is OrderKind.DRAIN_OFF:
            drain.take_back(desk, name, order, f"by {who}{_why(order)}")
        else:
            fence.confirm_dead(desk, name, order.id, order.by, _why(order))


def _later(record: NodeQuarantine, order: Order) -> bool:
    """It was decided after the order was given, which did not mean it."""
    return order.seen_wall_s is not None and record.since_wall_s > order.seen_wall_s


def _acknowledge(desk: Desk, name: str, order: Order, who: str) -> None:
    sentence = f"The isolation of node {name} was acknowledged by {who}{_why(order)}."
    event = Acknowledged(reason=Reason.ACKNOWLEDGED, sentence=sentence, order=order.id, by=order.by)
    for record in desk.of(name):
        isolated = record.state is State.ACTIVE and record.kind in FOR_FINDINGS
        if isolated and not record.acknowledged and not _later(record, order):
            desk.put(name, record.id, event)


def _why(order: Order) -> str:
    """In a sentence that ends behind it."""
    return f": {order.why.rstrip('. ')}" if order.why else ""


class Answer(Struct, frozen=True):
    """What became of an order: it can be taken away now, and the person told."""

    order: Order
    done: bool
    sentence: str


def answers(
    picture: FleetPicture, records: Mapping[str, NodeQuarantine], settings: FleetSettings, now: Now
) -> tuple[Answer, ...]:
    """After a round was saved: what was followed, and where there was nothing to follow. The others still wait."""
    found = []
    for order in picture.orders:
        followed = [record for record in records.values() if order.id in record.orders]
        if followed:
            found.append(Answer(order, True, _followed(order, followed[-1])))
        elif order.kind is OrderKind.RELEASE:
            found.append(Answer(order, False, f"Node {order.node} is not isolated by Sentinel."))
        elif order.kind is OrderKind.ACKNOWLEDGE:
            known = any(
                one.node == order.node and one.acknowledged and one.state.open for one in records.values()
            )
            what = "acknowledged already" if known else "not isolated by Sentinel for a finding"
            found.append(Answer(order, False, f"Node {order.node} is {what}."))
        elif order.kind is OrderKind.HOLD:
            there = order.node in picture.nodes
            what = f"is held already (`sentinel status {order.node}`)" if there else "is not in the cluster"
            found.append(Answer(order, False, f"Node {order.node} {what}."))
        elif order.kind is OrderKind.DRAIN:
            there = order.node in picture.nodes
            what = (
                f"is drained already (`sentinel status {order.node}`)" if there else "is not in the cluster"
            )
            found.append(Answer(order, False, f"Node {order.node} {what}."))
        elif order.kind is OrderKind.DRAIN_OFF:
            found.append(Answer(order, False, f"Node {order.node} is not drained."))
        elif not _judged(order, picture, settings, now):
            continue
        else:
            limit = words.minutes(max(settings.lease_s, settings.agent_silent_s))
            sentence = (
                f"Node {order.node} is not silent: its agent or its kubelet was heard in the last {limit}."
            )
            found.append(Answer(order, False, sentence))
    return tuple(found)


def _followed(order: Order, record: NodeQuarantine) -> str:
    """What the record told when it followed the order; more may have come after it."""
    own = [line.sentence for line in record.story if line.reason == _FOLLOWED[order.kind].value]
    return own[-1] if own else record.sentence


def _judged(order: Order, picture: FleetPicture, settings: FleetSettings, now: Now) -> bool:
    """Is it known whether the node is silent? Not before it was listened for long enough."""
    node = picture.nodes.get(order.node)
    if node is None:
        return picture.complete
    return raw(node, picture, settings, now).silence is not Silence.UNJUDGED
