"""One node: is it still the same, what does it show of what Sentinel wrote, what do its findings say? Pure."""

from sentinel.core.fleet import probation, release, words
from sentinel.core.fleet.desk import Desk
from sentinel.core.fleet.events import End, Found, Isolate, Marked, Moved, Reason, Remember
from sentinel.core.fleet.isolate import MAX_FINDINGS, Candidate, end, kept, opening, worst
from sentinel.core.fleet.model import (
    Baseline,
    EndedBy,
    Ignored,
    Kind,
    Mark,
    Mode,
    NodePicture,
    NodeQuarantine,
    Say,
    State,
    Wrote,
)
from sentinel.core.health import Finding

FOR_FINDINGS = (Kind.FAULT, Kind.DISK)


def quiet(desk: Desk, node: NodePicture) -> bool:
    """Most nodes, most of the time: nothing is found, nothing was written, there is no record."""
    if desk.known(node.name) and any(one.state.open or one.ignored for one in desk.of(node.name)):
        return False
    return plain(node)


def plain(node: NodePicture) -> bool:
    """Nothing is found, and it bears no mark of Sentinel's."""
    # Others' taints say nothing here: nodes with GPUs often have one for good.
    if node.taints and node.mark is not None:
        return False
    for check in node.checks.values():  # noqa: SIM110 - half the time of any(): ten thousand nodes, 30 checks each
        if check.findings:
            return False
    return True


def gone(desk: Desk, name: str) -> None:
    if not desk.picture.complete:
        return
    for record in desk.of(name):
        if record.state.open and record.kind in FOR_FINDINGS:
            sentence = f"The isolation of node {name} has ended: the node is gone from the cluster."
            end(desk, record, Reason.NODE_GONE, sentence, EndedBy.NODE_GONE)


def doubled(desk: Desk, name: str) -> None:
    """Two open records of one kind for one node object, left by a race or copied by a person: one stays.

    It is the one that the node bears the mark of, else one that is in force, else the first.
    """
    opened = [record for record in desk.of(name) if record.state.open]
    if len(opened) < 2:
        return
    node = desk.picture.nodes.get(name)
    marked = node.mark.number if node is not None and node.mark is not None else -1
    kept: dict[tuple[Kind, str], str] = {}
    for record in sorted(
        opened, key=lambda one: (one.number != marked, one.state is not State.ACTIVE, one.number)
    ):
        stays = kept.setdefault((record.kind, record.node_uid), record.id)
        if stays != record.id:
            sentence = f"The record {record.id} is one too many: {stays} is about the same."
            end(desk, record, Reason.DOUBLED, sentence, EndedBy.DOUBLED)


def impossible(desk: Desk, name: str) -> None:
    """What no rule makes was written by a person. A silence is never held back: if it lasts, it begins anew."""
    for record in desk.of(name):
        if record.kind is Kind.SILENCE and record.state is State.HELD:
            sentence = f"The record {record.id} has ended: a silence is never held back, a person wrote that."
            end(desk, record, Reason.NOT_NEEDED, sentence, EndedBy.PERSON)


def same_object(desk: Desk, node: NodePicture) -> None:
    """A node object of the same name: the same machine (by its boot id) stays isolated, another one begins anew."""
    boot_id = node.boot_id or node.api_boot_id
    for record in desk.of(node.name):
        if not record.state.open or not record.kind.isolates or record.node_uid == node.uid:
            continue
        if record.kind is Kind.HOLD or release.same_machine(record, node):
            sentence = f"Node {node.name} has a new node object: what was decided about it goes on."
            event = Moved(
                reason=Reason.NODE_RECREATED, sentence=sentence, node_uid=node.uid, boot_id=record.boot_id
            )
            desk.put(node.name, record.id, event)
        elif boot_id:
            sentence = f"The isolation of node {node.name} has ended: another machine has its name now."
            end(desk, record, Reason.NODE_REPLACED, sentence, EndedBy.NODE_REPLACED)


def _isolating(desk: Desk, node: NodePicture) -> list[NodeQuarantine]:
    return [record for record in desk.of(node.name) if record.isolating and record.node_uid == node.uid]


def overridden(desk: Desk, node: NodePicture) -> None:
    """What the node no longer shows of what Sentinel wrote was taken away by a person."""
    mark = node.mark
    if mark is not None and all(record.number != mark.number for record in desk.of(node.name)):
        _adopt(desk, node, mark.number)
    isolating = _isolating(desk, node)
    if mark is not None and all(record.number != mark.number for record in isolating):
        return  # of a record that has ended: it will be replaced or taken away
    uncordoned = mark is not None and mark.cordoned and not node.unschedulable
    if not uncordoned and (mark is not None or not any(record.wrote.taint for record in isolating)):
        return
    did = "uncordoned it" if uncordoned else "took Sentinel's taint away"
    left = " It is still unschedulable." if node.unschedulable else ""
    for record in isolating:
        sentence = (
            f"The isolation of node {node.name} has ended: a person {did}. "
            f"What isolated it acts again only when it occurs anew.{left}"
        )
        reason = Reason.UNCORDONED if uncordoned else Reason.TAINT_REMOVED
        end(desk, record, reason, sentence, EndedBy.UNCORDONED)


def seen(desk: Desk, node: NodePicture) -> None:
    """The node shows what was written: from now on it counts when it is taken away."""
    mark, isolating = node.mark, _isolating(desk, node)
    if mark is None or all(record.number != mark.number for record in isolating):
        return
    for record in isolating:
        if not record.wrote.taint:
            wrote = Wrote(taint=True, unschedulable=mark.cordoned)
            sentence = f"Node {node.name} shows Sentinel's taint."
            desk.put(node.name, record.id, Marked(reason=Reason.MARK_SEEN, sentence=sentence, wrote=wrote))


def _adopt(desk: Desk, node: NodePicture, number: int) -> None:
    """The node's mark names a record that is missing: it was deleted. What stands keeps the node out."""
    if any(record.isolating and record.node_uid == node.uid for record in desk.of(node.name)):
        return  # another record keeps it out, and replaces the mark
    faults = (*release.standing(node, Kind.FAULT, desk.ignored), *_on_probation(desk, node, None))
    kind = Kind.DISK if not faults and release.standing(node, Kind.DISK) else Kind.FAULT
    sentence = (
        f"Node {node.name} has Sentinel's taint, and its record was deleted: it was made anew. "
        f"`sentinel release {node.name}` is the way to bring it back."
    )
    record = desk.open(node.name, kind)
    if record is not None:  # held back or observed: it is out of service already, so no brake is asked
        if record.node_uid == node.uid:
            running = words.running_there(node)
            event = Isolate(
                reason=Reason.MARK_FOUND, sentence=sentence, mode=Mode.ENFORCE, running_there=running
            )
            desk.put(node.name, record.id, event)
        return
    id = f"{node.name}-{number:04d}"
    new = opening(
        desk,
        Candidate(kind, node, faults or release.standing(node, kind), None),
        Mode.ENFORCE,
        Reason.MARK_FOUND,
        sentence,
        id=id if number and id not in desk.records else desk.next_id(node.name),
        adopted=True,
    )
    desk.put(node.name, new.id, new)


def findings(desk: Desk, node: NodePicture) -> list[Candidate]:
    """Goes on with what is open, and gives what is to be isolated."""
    for ended in desk.of(node.name):
        _live_with(desk, ended, node)
    candidates: list[Candidate] = []
    for kind in FOR_FINDINGS:
        standing = release.standing(node, kind, desk.ignored)
        found = release.acting(standing, node, desk.of(node.name))
        record = desk.open(node.name, kind)
        if kind is Kind.FAULT:
            found = (*found, *_on_probation(desk, node, record))
        if record is not None and not found and node.boot_id and _only_ignored(desk, record):
            _let_go(desk, record)
        elif record is None:
            if found:
                candidates.append(Candidate(kind, node, found, None))
        elif record.node_uid == node.uid:
            record = _go_on(desk, record, node, found)
            waits = record.state is State.HELD or (
                record.mode is Mode.OBSERVE and desk.mode(node.pool) is Mode.ENFORCE
            )
            if found and record.state.open and waits:
                candidates.append(Candidate(kind, node, found, record))
    return candidates


def _on_probation(desk: Desk, node: NodePicture, record: NodeQuarantine | None) -> tuple[Finding, ...]:
    """What is less than fatal and isolates this node, or keeps it out. `record`: the open one."""
    lesser = [one for one in node.findings if probation.lesser(one) and one.code not in desk.ignored]
    if not lesser:
        return ()
    kept = probation.kept_out(record, lesser) if record is not None and _in_force(desk, record) else ()
    records = desk.of(node.name)
    came_back = probation.returns(records, node, desk.settings, desk.now)
    last = probation.last_ended(records, node)
    new = [one for one in probation.acting(came_back, last, lesser) if one not in kept]
    known = [one for one in new if probation.from_boot(one, node) or desk.many_show(one)]
    if known and record is None and last is not None:
        _live_on(desk, last, node, last.ignored, probation.with_known(last.baseline, known))
    return (*kept, *(one for one in new if one not in known))


def _in_force(desk: Desk, record: NodeQuarantine) -> bool:
    """Is its node out, or as much out as its mode has it?"""
    return record.state is State.ACTIVE and (
        record.mode is Mode.ENFORCE or desk.mode(record.pool) is Mode.OBSERVE
    )


def _only_ignored(desk: Desk, record: NodeQuarantine) -> bool:
    """Is it for nothing but what people ignore?"""
    codes = probation.isolating_codes(record)
    return bool(codes) and codes <= desk.ignored


def _let_go(desk: Desk, record: NodeQuarantine) -> None:
    """Nothing is kept of what it ignores: the findings act again when the word is taken back."""
    codes = probation.isolating_codes(record)
    word = next(one for one in desk.picture.codes if one.say is Say.IGNORE and one.code in codes)
    back = "is back in service" if record.isolating else "stays in service"
    sentence = f"Node {record.node} {back}: {', '.join(sorted(codes))} is ignored, by {word.who}."
    ended = EndedBy.PERSON
    desk.put(
        record.node, record.id, End(reason=Reason.CODE_IGNORED, sentence=sentence, ended_by=ended, by=word.by)
    )


def _live_with(desk: Desk, ended: NodeQuarantine, node: NodePicture) -> None:
    """Keeps what does not act on this machine, whatever its object and boot are by now."""
    if ended.state.open or not release.same_machine(ended, node):
        return  # of an open one what it ignores means nothing: a person opened it again
    if (
        ended.ended_wall_s is None and ended.kind in FOR_FINDINGS
    ):  # a person wrote its state: it ends as by an order
        left = release.ignoring(ended, node)
        baseline = probation.baseline(node, desk.ignored) if ended.kind is Kind.FAULT else None
    elif ended.ignored:
        left, baseline = release.remembered(ended, node), ended.baseline
    else:
        return
    _live_on(desk, ended, node, left, baseline)


def _live_on(
    desk: Desk,
    ended: NodeQuarantine,
    node: NodePicture,
    left: tuple[Ignored, ...],
    baseline: Baseline | None,
) -> None:
    uid, boot_id = node.uid, node.boot_id or node.api_boot_id
    if (left, baseline, uid, boot_id) == (
        ended.ignored,
        ended.baseline,
        ended.node_uid,
        ended.boot_id,
    ) and ended.ended_wall_s is not None:
        return
    sentence = f"What stands on node {node.name} and does not act is known."
    event = Remember(
        reason=Reason.OCCURRENCES,
        sentence=sentence,
        ignored=left,
        baseline=baseline,
        node_uid=uid,
        boot_id=boot_id,
    )
    desk.put(node.name, ended.id, event)


def _go_on(
    desk: Desk, record: NodeQuarantine, node: NodePicture, found: tuple[Finding, ...]
) -> NodeQuarantine:
    if not found:
        lesser = probation.only_lesser(record)
        out = record.state is State.ACTIVE and (not lesser or _in_force(desk, record))
        if lesser and not out and probation.settling(record, desk.picture, desk.settings, desk.now):
            return record  # what comes and goes makes one record
        follows = release.judge(record, node, found, out=out).event
        return record if follows is None else desk.put(node.name, record.id, follows)
    known = {finding.key: finding.severity.order for finding in record.findings}
    fresh = [finding for finding in found if finding.severity.order > known.get(finding.key, -1)]
    if len(known) >= MAX_FINDINGS:
        # Of thousands the record names the first, and each code as severe as it is.
        codes: dict[str, int] = {}
        for one in record.findings:
            codes[one.code] = max(one.severity.order, codes.get(one.code, -1))
        room = len(codes) < MAX_FINDINGS
        fresh = [
            finding
            for finding in fresh
            if (finding.severity.order > codes[finding.code] if finding.code in codes else room)
        ]
    dropped = {one.code for one in record.findings if one.code in desk.ignored}
    if record.kind is Kind.FAULT and dropped and not fresh:
        return _forget_ignored(desk, record, node, found)
    if not fresh and record.well_from is None:
        return record
    # What was fatal stays so: it says which repair was needed.
    there = {
        finding.key: finding
        for finding in sorted(found, key=lambda one: one.severity.order)
        if finding.severity.order >= known.get(finding.key, -1)
    }
    earlier = [finding for finding in record.findings if finding.key not in there]
    every = kept(tuple(sorted((*there.values(), *earlier), key=lambda one: -one.severity.order)))
    needs = release.needs(record.kind, every, record.repeats, desk.settings)
    again = "" if fresh else " again"
    sentence = f"Node {node.name} has {words.findings(fresh or found)}{again}."
    event = Found(
        reason=Reason.FOUND_MORE if fresh else Reason.FOUND_AGAIN,
        sentence=sentence,
        severity=worst(every),
        findings=every,
        needs=needs,
        sampled=release.sampled(node, found) if node.boot_id else Mark("", 0.0),
    )
    return desk.put(node.name, record.id, event)


def _forget_ignored(
    desk: Desk, record: NodeQuarantine, node: NodePicture, found: tuple[Finding, ...]
) -> NodeQuarantine:
    """It stays out for the others; no repair is asked for what people call a mistake."""
    left = tuple(one for one in record.findings if one.code not in desk.ignored) or kept(found)
    codes = sorted({one.code for one in record.findings} & desk.ignored)
    event = Found(
        reason=Reason.CODE_IGNORED,
        sentence=f"Node {node.name} still has {words.findings(left)}: {', '.join(codes)} is ignored.",
        severity=worst(left),
        findings=left,
        needs=release.needs(record.kind, left, record.repeats, desk.settings),
        sampled=release.sampled(node, found) if node.boot_id else Mark("", 0.0),
    )
    return desk.put(node.name, record.id, event)
