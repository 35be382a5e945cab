"""Opening, holding back and ending isolations: by severity, and as far as the brakes allow. Pure."""

from collections.abc import Iterable

from msgspec import Struct, structs

from sentinel.core.fleet import causes, probation, release, words
from sentinel.core.fleet.brakes import Act
from sentinel.core.fleet.desk import Desk
from sentinel.core.fleet.events import End, HeldBack, Isolate, Open, Reason
from sentinel.core.fleet.model import Brake, EndedBy, Kind, Mode, NodePicture, NodeQuarantine, Order
from sentinel.core.health import Finding, Severity

MAX_FINDINGS = 32  # of one record, which must fit the API server

_REASONS = {
    Brake.PAUSED: Reason.PAUSED,
    Brake.NETWORK_INCIDENT: Reason.NETWORK_INCIDENT,
    Brake.NETWORK_SETTLING: Reason.NETWORK_SETTLING,
    Brake.SETTLING: Reason.SETTLING,
    Brake.COMMON_CAUSE: Reason.COMMON_CAUSE,
}


class Candidate(Struct, frozen=True):
    """A node that is to be isolated. `record`: it was held back, or only observed, until now."""

    kind: Kind
    node: NodePicture
    findings: tuple[Finding, ...]
    record: NodeQuarantine | None

    @property
    def lesser(self) -> bool:
        """Is it isolated for less than a fatal finding, since it is on probation?"""
        return self.kind is Kind.FAULT and all(one.severity is not Severity.FATAL for one in self.findings)

    def order(self) -> tuple[int, float, str]:
        """The most severe first: who has most fatal findings, for no others isolate. Then who waits longest."""
        fatal = sum(finding.severity is Severity.FATAL for finding in self.findings)
        return (-fatal, self.record.since_wall_s if self.record is not None else float("inf"), self.node.name)


def isolate(desk: Desk, candidates: list[Candidate]) -> None:
    together = _Together(desk, [one for one in candidates if one.kind is Kind.FAULT and not one.lesser])
    full: list[Candidate] = []
    for one in sorted(candidates, key=Candidate.order):
        mode = desk.mode(one.node.pool)
        brake = Brake.NONE
        if one.lesser:
            brake = probation.settling(one.record, desk.picture, desk.settings, desk.now)
        elif one.kind is Kind.FAULT:
            brake = together.brake(one)
        if desk.picture.paused and brake is not Brake.COMMON_CAUSE:
            brake = Brake.PAUSED
        if one.kind is Kind.FAULT and not one.lesser and brake in (Brake.NONE, Brake.PAUSED):
            together.taken(one)
        if brake:
            cause = tuple(sorted(together.codes(one))) if brake is Brake.COMMON_CAUSE else ()
            _hold_back(desk, one, mode, brake, cause)
        elif desk.isolations(one.kind, lesser=one.lesser).brake(one.node.pool, mode):
            full.append(one)
        else:
            act = Act(one.node.pool, desk.now.wall_s, mode, standing=True)
            for lesser in {True, one.lesser}:
                desk.isolations(one.kind, lesser=lesser).add(act)
            _take_out(desk, one, mode)
    for one in full:  # which brake it is stands fast when everything is counted
        mode = desk.mode(one.node.pool)
        _hold_back(desk, one, mode, desk.isolations(one.kind, lesser=one.lesser).brake(one.node.pool, mode))


class _Together:
    """What many of the candidates for a fault have at once. What a person lets go on is left out."""

    def __init__(self, desk: Desk, candidates: list[Candidate]) -> None:
        self._desk = desk
        records, settings, now = desk.records.values(), desk.settings, desk.now
        self._network, self._asked = dict[str, frozenset[str]](), dict[str, causes.Asked]()
        self._since = {
            one.node.name: one.record.since_wall_s if one.record is not None else now.wall_s
            for one in candidates
        }
        for one in candidates:
            name, found = one.node.name, kept(one.findings)
            since_wall_s = self._since[name]
            if not causes.fatal_codes(found) & causes.going_on(desk.picture.codes, since_wall_s):
                self._network[name] = causes.network_codes(found)
                self._asked[name] = causes.Asked(
                    causes.cause_codes(found), since_wall_s, desk.mode(one.node.pool)
                )
        self._incidents = causes.network_incidents(self._network, records, settings, now)
        # What the network gives many nodes is no fault of a node that has something else too.
        network = {incident.code for incident in self._incidents}
        self._asked = {
            name: structs.replace(one, codes=one.codes - network)
            for name, one in self._asked.items()
            if one.codes
        }
        self._causes = causes.Causes(self._asked, records, len(desk.picture.nodes), settings)

    def brake(self, one: Candidate) -> Brake:
        name, now, settings = one.node.name, self._desk.now, self._desk.settings
        codes, since_wall_s = self._network.get(name, frozenset()), self._since[name]
        brake = causes.network_brake(name, codes, since_wall_s, self._incidents, settings, now)
        return brake or self._causes.brake(name)

    def codes(self, one: Candidate) -> frozenset[str]:
        return self._asked[one.node.name].codes

    def taken(self, one: Candidate) -> None:
        self._causes.taken(one.node.name)


def _hold_back(desk: Desk, one: Candidate, mode: Mode, brake: Brake, cause: tuple[str, ...] = ()) -> None:
    record = one.record
    reason = _REASONS.get(brake, Reason.BRAKED)
    sentence = words.held(one.node.name, one.findings, brake, after=_came_back(desk, one))
    if record is None:
        new = opening(desk, one, mode, reason, sentence, held_by=brake, cause=cause)
        desk.put(one.node.name, new.id, new)
    elif (record.held_by, record.mode) != (brake, mode) or (cause and record.cause != cause):
        event = HeldBack(reason=reason, sentence=sentence, brake=brake, mode=mode, cause=cause)
        desk.put(one.node.name, record.id, event)


def _take_out(desk: Desk, one: Candidate, mode: Mode) -> None:
    node, record = one.node, one.record
    sentence = words.isolated(node.name, one.findings, mode, after=_came_back(desk, one))
    if record is None:
        reason = Reason.FATAL_FINDING if one.kind is Kind.FAULT else Reason.DISK_FULL
        reason = Reason.ON_PROBATION if one.lesser else reason
        new = opening(desk, one, mode, reason, sentence)
        desk.put(node.name, new.id, new)
    else:
        reason = Reason.ON_PROBATION if one.lesser else Reason.ROOM_AGAIN
        event = Isolate(reason=reason, sentence=sentence, mode=mode, running_there=words.running_there(node))
        desk.put(node.name, record.id, event)


def _came_back(desk: Desk, one: Candidate) -> str:
    """Why less than a fatal finding is enough; "" where it is a fatal one."""
    came_back = one.lesser and probation.returns(desk.of(one.node.name), one.node, desk.settings, desk.now)
    if not came_back:
        return ""
    last = probation.last(came_back, one.findings)
    ago = words.ago(desk.now.wall_s - (last.ended_wall_s or 0.0))
    return f" It came back {ago} ago after {words.findings(last.findings)}: on probation this is enough."


def opening(
    desk: Desk,
    one: Candidate,
    mode: Mode,
    reason: Reason,
    sentence: str,
    *,
    held_by: Brake = Brake.NONE,
    cause: tuple[str, ...] = (),
    id: str = "",
    adopted: bool = False,
    order: str = "",
    by: str = "",
    drain: tuple[str, ...] | None = None,
) -> Open:
    node = one.node
    earlier = desk.of(node.name) if one.kind is Kind.FAULT else ()
    unknown = adopted and not one.findings  # perhaps somebody works on it
    repeats = len(probation.returns(earlier, node, desk.settings, desk.now))
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
        cause=cause,
        severity=worst(one.findings),
        findings=kept(one.findings),
        needs=release.UNKNOWN if unknown else release.needs(one.kind, one.findings, repeats, desk.settings),
        running_there=words.running_there(node),
        boot_id=node.boot_id or node.api_boot_id,
        sampled=release.sampled(node, one.findings),
        repeats=repeats,
        order=order,
        by=by,
        adopted=adopted,
        drain=drain,
    )


def kept(found: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Those that a record has: of each code one, and of the rest the first."""
    if len(found) <= MAX_FINDINGS:
        return found
    first: dict[str, Finding] = {}
    for one in found:
        first.setdefault(one.code, one)
    named = {one.key for one in first.values()}
    return (*first.values(), *(one for one in found if one.key not in named))[:MAX_FINDINGS]


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
    """Nodes that are isolated, or held back by a brake -> what was found there.

    Not what many nodes have at once: jobs do not leave their nodes for a rule or a driver that went wrong.
    """
    found: dict[str, list[Finding]] = {}
    for record in records:
        if record.state.open and record.findings and record.held_by is not Brake.COMMON_CAUSE:
            found.setdefault(record.node, []).extend(record.findings)
    return found
