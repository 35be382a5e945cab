"""Opening, holding back and ending isolations: by severity, and as far as the brakes allow. Pure."""

from collections.abc import Iterable

from msgspec import Struct

from sentinel.core import fleet_brakes as brakes
from sentinel.core import fleet_release as release
from sentinel.core import fleet_words as words
from sentinel.core.fleet_brakes import Act
from sentinel.core.fleet_desk import Desk
from sentinel.core.fleet_events import End, HeldBack, Isolate, Open, Reason
from sentinel.core.fleet_model import Brake, EndedBy, Kind, Mode, NodePicture, NodeQuarantine, Order
from sentinel.core.health import Finding, Severity

MAX_FINDINGS = 32  # of one record, which must fit the API server

_REASONS = {
    Brake.PAUSED: Reason.PAUSED,
    Brake.NETWORK_INCIDENT: Reason.NETWORK_INCIDENT,
    Brake.NETWORK_SETTLING: Reason.NETWORK_SETTLING,
}


class Candidate(Struct, frozen=True):
    """A node that is to be isolated. `record`: it was held back, or only observed, until now."""

    kind: Kind
    node: NodePicture
    findings: tuple[Finding, ...]
    record: NodeQuarantine | None

    def order(self) -> tuple[int, float, str]:
        """The most severe first: who has most fatal findings, for no others isolate. Then who waits longest."""
        fatal = sum(finding.severity is Severity.FATAL for finding in self.findings)
        return (-fatal, self.record.since_wall_s if self.record is not None else float("inf"), self.node.name)


def isolate(desk: Desk, candidates: list[Candidate]) -> None:
    by_network = {
        one.node.name: brakes.network_codes(one.findings) for one in candidates if one.kind is Kind.FAULT
    }
    found = brakes.network_incidents(by_network, desk.records.values(), desk.settings, desk.now)
    full: list[Candidate] = []
    for one in sorted(candidates, key=Candidate.order):
        mode = desk.mode(one.node.pool)
        brake = Brake.PAUSED if desk.picture.paused else Brake.NONE
        if not brake and one.kind is Kind.FAULT:
            since_wall_s = one.record.since_wall_s if one.record is not None else desk.now.wall_s
            codes = by_network[one.node.name]
            brake = brakes.network_brake(one.node.name, codes, since_wall_s, found, desk.settings, desk.now)
        if brake:
            _hold_back(desk, one, mode, brake)
        elif desk.isolations(one.kind).brake(one.node.pool, mode):
            full.append(one)
        else:
            desk.isolations(one.kind).add(Act(one.node.pool, desk.now.wall_s, mode, standing=True))
            _take_out(desk, one, mode)
    for one in full:  # which brake it is stands fast when everything is counted
        mode = desk.mode(one.node.pool)
        _hold_back(desk, one, mode, desk.isolations(one.kind).brake(one.node.pool, mode))


def _hold_back(desk: Desk, one: Candidate, mode: Mode, brake: Brake) -> None:
    record = one.record
    reason = _REASONS.get(brake, Reason.BRAKED)
    sentence = words.held(one.node.name, one.findings, brake)
    if record is None:
        new = opening(desk, one, mode, reason, sentence, held_by=brake)
        desk.put(one.node.name, new.id, new)
    elif (record.held_by, record.mode) != (brake, mode):
        event = HeldBack(reason=reason, sentence=sentence, brake=brake, mode=mode)
        desk.put(one.node.name, record.id, event)


def _take_out(desk: Desk, one: Candidate, mode: Mode) -> None:
    node, record = one.node, one.record
    sentence = words.isolated(node.name, one.findings, mode)
    if record is None:
        reason = Reason.FATAL_FINDING if one.kind is Kind.FAULT else Reason.DISK_FULL
        new = opening(desk, one, mode, reason, sentence)
        desk.put(node.name, new.id, new)
    else:
        event = Isolate(
            reason=Reason.ROOM_AGAIN, sentence=sentence, mode=mode, running_there=words.running_there(node)
        )
        desk.put(node.name, record.id, event)


def opening(
    desk: Desk,
    one: Candidate,
    mode: Mode,
    reason: Reason,
    sentence: str,
    *,
    held_by: Brake = Brake.NONE,
    id: str = "",
    adopted: bool = False,
    order: str = "",
    by: str = "",
    drain: tuple[str, ...] | None = None,
) -> Open:
    node = one.node
    earlier = desk.of(node.name) if one.kind is Kind.FAULT else ()
    repeats = release.repeats(earlier, node, desk.settings, desk.now)
    return Open(
        reason=reason,
        sentence=sentence,
        id=id or desk.next_id(node.name),
        kind=one.kind,
        node=node.name,
        node_uid=node.uid,
        pool=node.pool,
        mode=mode,
        held_by=held_by,
        severity=worst(one.findings),
        findings=one.findings[:MAX_FINDINGS],
        needs=release.needs(one.kind, one.findings, repeats, desk.settings),
        running_there=words.running_there(node),
        boot_id=node.boot_id or node.api_boot_id,
        sampled=release.sampled(node, one.findings),
        repeats=repeats,
        order=order,
        by=by,
        adopted=adopted,
        drain=drain,
    )


def worst(found: tuple[Finding, ...]) -> Severity:
    return max((finding.severity for finding in found), key=lambda one: one.order, default=Severity.INFO)


def end(
    desk: Desk,
    record: NodeQuarantine,
    reason: Reason,
    sentence: str,
    by: EndedBy,
    order: Order | None = None,
) -> None:
    person = by in (EndedBy.PERSON, EndedBy.UNCORDONED)
    event = End(
        reason=reason,
        sentence=sentence,
        ended_by=by,
        ignored=release.ignoring(record, desk.picture.nodes.get(record.node)) if person else (),
        order=order.id if order is not None else "",
        by=order.by if order is not None else "",
    )
    desk.put(record.node, record.id, event)


def standing(records: Iterable[NodeQuarantine]) -> dict[str, list[Finding]]:
    """Nodes that are isolated, or held back by a brake -> what was found there."""
    found: dict[str, list[Finding]] = {}
    for record in records:
        if record.state.open and record.findings:
            found.setdefault(record.node, []).extend(record.findings)
    return found
