"""What to do about nodes: `decide(picture, records, settings, now)` gives events for their records. Pure.

    picture → decide → Decision (event, Reason, sentence) → record.step → saved → effects

One round looks at each node (does it still exist, what did people order, what do its findings say), then at silence,
and last at what is to be isolated: by severity, and as far as the brakes allow. Deciding again on the same picture
gives nothing new.
"""

from collections.abc import Collection, Mapping, Set

from sentinel.core.fleet import causes, drain, fence
from sentinel.core.fleet import node as one_node
from sentinel.core.fleet.causes import Incident, standing_causes
from sentinel.core.fleet.desk import Desk
from sentinel.core.fleet.events import Decision
from sentinel.core.fleet.isolate import Candidate, isolate
from sentinel.core.fleet.model import FleetPicture, NodeQuarantine
from sentinel.core.fleet.orders import Answer, answers, obey
from sentinel.core.fleet.prune import prunable, pruned
from sentinel.core.fleet.settings import FleetSettings
from sentinel.core.fleet.silence import hearing
from sentinel.core.now import Now

__all__ = [
    "Answer",
    "Decision",
    "answers",
    "decide",
    "incidents",
    "prunable",
    "pruned",
    "standing_causes",
]


def decide(
    picture: FleetPicture,
    records: Mapping[str, NodeQuarantine],
    settings: FleetSettings,
    now: Now,
    only: Collection[str] | None = None,
    quiet: Set[str] = frozenset(),
) -> tuple[Decision, ...]:
    """One round. `only`: the nodes of which something changed; None: all, and their silence (every few seconds).
    `quiet`: nodes that are known to be plain (node.py) and were heard just now, which saves looking at each.

    The events are for `record.step`, in this order. What takes room of a brake was counted with what gives room
    here: it must not be performed before that is saved.
    """
    desk = Desk(picture, records, settings, now, quiet)
    held = {record.node for record in desk.held()}
    names = {*only, *held} if only is not None else {*(picture.nodes.keys() - quiet), *desk.nodes()}
    candidates: list[Candidate] = []
    ordered = {order.node for order in picture.orders}
    loud = []
    for name in sorted((names | ordered) - picture.busy):
        node = picture.nodes.get(name)
        if node is not None and name not in ordered and one_node.quiet(desk, node):
            continue
        loud.append(name)
        one_node.impossible(desk, name)
        one_node.doubled(desk, name)
        if node is None:
            one_node.gone(desk, name)
            obey(desk, name)
            continue
        one_node.same_object(desk, node)
        obey(desk, name)
        one_node.overridden(desk, node)
        drain.goes_on(desk, node)
        candidates += one_node.findings(desk, node)
    if only is None:
        fence.judge_all(desk, hearing(picture, settings, now, quiet))
    else:
        for name in sorted({*only} - picture.busy):
            fence.judge_one(desk, name)
    isolate(desk, candidates)
    for name in loud:
        if (node := picture.nodes.get(name)) is not None:
            one_node.seen(desk, node)
    return tuple(desk.decisions)


def incidents(
    records: Mapping[str, NodeQuarantine], settings: FleetSettings, now: Now
) -> tuple[Incident, ...]:
    """The network incidents that the records show."""
    return causes.network_incidents({}, records.values(), settings, now)
