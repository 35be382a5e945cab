"""What to do about nodes: `decide(picture, records, settings, now)` gives events for their records. Pure.

    picture → decide → Decision (event, Reason, sentence) → fleet_record.step → saved → effects

One round looks at each node (does it still exist, what did people order, what do its findings say), then at silence,
and last at what is to be isolated: by severity, and as far as the brakes allow. Deciding again on the same picture
gives nothing new.
"""

from collections.abc import Collection, Mapping

from sentinel.core import fleet_brakes as brakes
from sentinel.core import fleet_fence as fence
from sentinel.core import fleet_node as one_node
from sentinel.core.fleet_brakes import NetworkIncident
from sentinel.core.fleet_desk import Desk
from sentinel.core.fleet_events import Decision
from sentinel.core.fleet_isolate import Candidate, isolate
from sentinel.core.fleet_model import FleetPicture, NodeQuarantine
from sentinel.core.fleet_orders import Answer, answers, obey
from sentinel.core.fleet_settings import FleetSettings
from sentinel.core.fleet_silence import hearing
from sentinel.core.model import Now

__all__ = ["Answer", "Decision", "answers", "decide", "incidents", "prunable", "superseded"]


def superseded(picture: FleetPicture, records: Mapping[str, NodeQuarantine]) -> bool:
    """Has a later leader written records already? Then nothing more is decided here."""
    return any(record.epoch > picture.epoch for record in records.values())


def decide(
    picture: FleetPicture,
    records: Mapping[str, NodeQuarantine],
    settings: FleetSettings,
    now: Now,
    only: Collection[str] | None = None,
) -> tuple[Decision, ...]:
    """One round. `only`: the nodes of which something changed; None: all, and their silence (every few seconds).

    The events are for `fleet_record.step`, in this order; where one of them cannot be saved the rest must not be
    performed, since their brakes were counted with it.
    """
    if superseded(picture, records):
        return ()
    desk = Desk(picture, records, settings, now)
    held = {record.node for record in desk.held()}
    names = {*only, *held} if only is not None else {*picture.nodes, *desk.nodes()}
    candidates: list[Candidate] = []
    ordered = {order.node for order in picture.orders}
    loud = []
    for name in sorted(names | ordered):
        node = picture.nodes.get(name)
        if node is not None and name not in ordered and one_node.quiet(desk, node):
            continue
        loud.append(name)
        if node is None:
            one_node.gone(desk, name)
            obey(desk, name)
            continue
        one_node.same_object(desk, node)
        obey(desk, name)
        one_node.overridden(desk, node)
        candidates += one_node.findings(desk, node)
    if only is None:
        fence.judge_all(desk, hearing(picture, settings, now))
    else:
        for name in sorted(only):
            fence.judge_one(desk, name)
    isolate(desk, candidates)
    for name in loud:
        if (node := picture.nodes.get(name)) is not None:
            one_node.seen(desk, node)
    return tuple(desk.decisions)


def incidents(
    records: Mapping[str, NodeQuarantine], settings: FleetSettings, now: Now
) -> tuple[NetworkIncident, ...]:
    """The network incidents that the records show: starts of jobs wait while there is one."""
    return brakes.network_incidents({}, records.values(), settings, now)


def prunable(record: NodeQuarantine, picture: FleetPicture, settings: FleetSettings, now: Now) -> bool:
    """May this ended record be deleted? Not while a window reads it, its mark is left, or a person lives with it."""
    node = picture.nodes.get(record.node)
    return (
        record.ended_wall_s is not None
        and now.wall_s - record.ended_wall_s > settings.keep_s
        and not (record.ignored and node is not None)
        and (node is None or node.mark is None or node.mark.number != record.number)
    )
