"""Planned work: a node that is drained is held out of service at once, and its protected jobs are to move. Pure.

Who moves them is the controller of jobs, by the rules of a chosen stop: what cannot move with a proved save stays, and
the node waits for it. A drain is a person's hold (`Kind.HOLD`) with `drain`, and stands until a person takes it back.
"""

from sentinel.core.fleet.desk import Desk
from sentinel.core.fleet.events import Draining, Reason
from sentinel.core.fleet.isolate import Candidate, end, opening
from sentinel.core.fleet.model import EndedBy, Kind, NodePicture, NodeQuarantine, Order, State

MAX_LEFT = 50  # jobs that a record names


def left_on(node: NodePicture) -> tuple[str, ...]:
    """The protected jobs of which pods are there; a pod of which the job is not known stands for itself."""
    found = {pod.job or f"pod {pod.namespace}/{pod.name}" for pod in node.pods if pod.protected}
    return tuple(sorted(found)[:MAX_LEFT])


def begin(desk: Desk, name: str, order: Order, by: str) -> None:
    """`by`: who, and why, in a sentence that ends behind it."""
    node, hold = desk.picture.nodes.get(name), desk.open(name, Kind.HOLD)
    if node is None or (hold is not None and (hold.drain or hold.state is not State.ACTIVE)):
        return
    left = left_on(node)
    sentence = f"Node {name} is drained {by}. {_left(left)}"
    if hold is not None:
        desk.put(name, hold.id, _draining(Reason.DRAIN_ORDERED, sentence, left, order))
        return
    one = Candidate(Kind.HOLD, node, (), None)
    mode = desk.mode(node.pool)
    event = opening(desk, one, mode, Reason.DRAIN_ORDERED, sentence, order=order.id, by=order.by, drain=left)
    desk.put(name, event.id, event)


def take_back(desk: Desk, name: str, order: Order, by: str) -> None:
    """What was held before it was drained stays held."""
    hold = desk.open(name, Kind.HOLD)
    if hold is None or not hold.drain:
        return
    sentence = f"The drain of node {name} was taken back {by}."
    if _began_as_drain(hold):
        end(desk, hold, Reason.DRAIN_TAKEN_BACK, sentence, EndedBy.PERSON, order)
        return
    event = Draining(
        reason=Reason.DRAIN_TAKEN_BACK,
        sentence=f"{sentence} It is still held.",
        drain=False,
        order=order.id,
        by=order.by,
    )
    desk.put(name, hold.id, event)


def goes_on(desk: Desk, node: NodePicture) -> None:
    """Jobs have left, or others are known to be there."""
    hold = desk.open(node.name, Kind.HOLD)
    if hold is None or not hold.drain or hold.state is not State.ACTIVE or hold.node_uid != node.uid:
        return
    left = left_on(node)
    if left != hold.jobs_left:
        reason = Reason.JOBS_LEFT if left else Reason.DRAINED
        desk.put(node.name, hold.id, _draining(reason, f"Node {node.name}: {_left(left)}", left))


def _draining(reason: Reason, sentence: str, left: tuple[str, ...], order: Order | None = None) -> Draining:
    return Draining(
        reason=reason,
        sentence=sentence,
        drain=True,
        jobs_left=left,
        order=order.id if order is not None else "",
        by=order.by if order is not None else "",
    )


def _left(jobs: tuple[str, ...]) -> str:
    if not jobs:
        return "No protected job is left on it."
    named = ", ".join(jobs[:3]) + (f" and {len(jobs) - 3} more" if len(jobs) > 3 else "")
    return f"{len(jobs)} protected job{'' if len(jobs) == 1 else 's'} left: {named}."


def _began_as_drain(hold: NodeQuarantine) -> bool:
    return bool(hold.story) and hold.story[0].reason == Reason.DRAIN_ORDERED.value
