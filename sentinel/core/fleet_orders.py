"""What people order: release, hold, confirm-dead. Pure.

An order stands in the picture until it was followed; its id in a record keeps it from being followed twice.
"""

from collections.abc import Mapping

from msgspec import Struct

from sentinel.core import fleet_fence as fence
from sentinel.core.fleet_desk import Desk
from sentinel.core.fleet_events import Reason
from sentinel.core.fleet_isolate import Candidate, end, opening
from sentinel.core.fleet_model import EndedBy, FleetPicture, Kind, NodeQuarantine, Order, OrderKind


def obey(desk: Desk, name: str) -> None:
    for order in desk.picture.orders:
        if order.node != name or any(order.id in record.orders for record in desk.of(name)):
            continue
        who = order.by or "a person"
        if order.kind is OrderKind.RELEASE:
            for record in desk.of(name):
                later = order.seen_wall_s is not None and record.since_wall_s > order.seen_wall_s
                if record.state.open and record.kind.isolates and not later:
                    sentence = (
                        f"Node {name} was released by {who}. "
                        "What isolated it acts again only when it occurs anew."
                    )
                    end(desk, record, Reason.RELEASED_BY_PERSON, sentence, EndedBy.PERSON, order)
        elif order.kind is OrderKind.HOLD:
            node = desk.picture.nodes.get(name)
            if node is not None and desk.open(name, Kind.HOLD) is None:
                mode = desk.mode(node.pool)
                why = f": {order.why}" if order.why else ""
                sentence = f"Node {name} is kept out of service by {who}{why}. No running pod was touched."
                one = Candidate(Kind.HOLD, node, (), None)
                event = opening(desk, one, mode, Reason.HELD_BY_PERSON, sentence, order=order.id, by=order.by)
                desk.put(name, event.id, event)
        else:
            fence.confirm_dead(desk, name, order.id, order.by)


class Answer(Struct, frozen=True):
    """What became of an order: it can be taken away now, and the person told."""

    order: Order
    done: bool
    sentence: str


def answers(picture: FleetPicture, records: Mapping[str, NodeQuarantine]) -> tuple[Answer, ...]:
    """After a round was saved: every order was followed, or there was nothing to follow."""
    found = []
    for order in picture.orders:
        followed = [record for record in records.values() if order.id in record.orders]
        if followed:
            found.append(Answer(order, True, followed[-1].sentence))
        elif order.kind is OrderKind.RELEASE:
            found.append(Answer(order, False, f"Node {order.node} is not isolated by Sentinel."))
        elif order.kind is OrderKind.HOLD:
            there = order.node in picture.nodes
            what = "is held already" if there else "is not in the cluster"
            found.append(Answer(order, False, f"Node {order.node} {what}."))
        else:
            found.append(Answer(order, False, f"Node {order.node} is not silent: it is not dead."))
    return tuple(found)
