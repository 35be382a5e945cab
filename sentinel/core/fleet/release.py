"""Which findings isolate a node, and what must hold before it comes back. Pure.

Silence is not health: only samples that are newer than the isolation count, ordered by the node's own clock.
"""

from collections.abc import Iterable, Sequence, Set

from msgspec import Struct, structs

from sentinel.core.fleet import words
from sentinel.core.fleet.events import End, Reason, Well
from sentinel.core.fleet.model import (
    EndedBy,
    Ignored,
    Kind,
    Mark,
    Needs,
    NodePicture,
    NodeQuarantine,
    Repair,
)
from sentinel.core.fleet.settings import FleetSettings
from sentinel.core.health import CheckState, Finding, Severity

# Full for this node alone; a full file server (network-disk-space) is full for every node.
DISK_CODES = frozenset({"disk-space", "disk-inodes"})
_REPAIR_ORDER = (Repair.NONE, Repair.RESET, Repair.REBOOT, Repair.PERSON)
LOOKED = (CheckState.OK, CheckState.FOUND)  # absent is no health either: the card may have left the bus


def standing(node: NodePicture, kind: Kind, ignored: Set[str] = frozenset()) -> tuple[Finding, ...]:
    """The findings for which this node is isolated: fatal ones, or disks over the administrator's threshold.

    `ignored`: codes for whose faults a person lets no node be isolated.
    """
    if kind is Kind.DISK:
        ignored = frozenset()  # a word about a code is about faults
    found = (one for one in node.findings if isolates(kind, one) and one.code not in ignored)
    return tuple(sorted(found, key=lambda finding: (finding.first_seen_wall_s, finding.key)))


def isolates(kind: Kind, finding: Finding) -> bool:
    """On any node. What more does on one that came back lately says probation.py."""
    if kind is Kind.FAULT:
        return finding.severity is Severity.FATAL
    return kind is Kind.DISK and finding.code in DISK_CODES and finding.severity is Severity.DEGRADED


def sampled(node: NodePicture, found: Iterable[Finding]) -> Mark:
    """The newest sample among the checks that show these findings, on the node's clock."""
    times = [
        node.checks[name].at_mono_s for name in {finding.check for finding in found} if name in node.checks
    ]
    return Mark(node.boot_id, max(times, default=node.told_mono_s))


UNKNOWN = Needs(
    sentence="a person must release it: its record was deleted, and nothing that is found says why it is out",
    repair=Repair.PERSON,
)


def needs(kind: Kind, found: Sequence[Finding], repeats: int, settings: FleetSettings) -> Needs:
    if kind is Kind.HOLD:
        return Needs(sentence=words.needs(Repair.PERSON, 0.0), repair=Repair.PERSON)
    if kind is Kind.DISK:
        well_for_s = settings.disk_release_after_s
        sentence = f"the disk must be under its threshold for {words.minutes(well_for_s)}"
        return Needs(sentence=sentence, well_for_s=well_for_s)
    repair = max(
        (settings.repairs.get(finding.action, Repair.NONE) for finding in found),
        key=_REPAIR_ORDER.index,
        default=Repair.NONE,
    )
    if repeats + 1 >= settings.repeat_limit:
        again = "again" if repeats == 1 else f"{repeats + 1} times, the last time"
        within = words.minutes(settings.repeat_window_s)
        sentence = f"a person must release it: it was isolated {again} within {within} of its return"
        if not repeats:  # an administrator wants it so
            sentence = "a person must release it"
        return Needs(sentence=sentence, repair=Repair.PERSON, well_for_s=settings.release_after_s)
    sentence = words.needs(repair, settings.release_after_s)
    return Needs(sentence=sentence, repair=repair, well_for_s=settings.release_after_s)


def same_machine(record: NodeQuarantine, node: NodePicture) -> bool:
    """Is this node the machine that `record` is about, and not another one that has its name now?

    A node object stands for one machine, and a boot goes on under a new object of it.
    """
    since = record.well_from
    boots = {record.boot_id, record.sampled.boot_id, since.boot_id if since is not None else ""} - {""}
    return record.node_uid == node.uid or (node.boot_id or node.api_boot_id) in boots


# ---------------------------------------------------------------- is it well?


class Judgement(Struct, frozen=True):
    """`event`: what follows now, if anything. `sentence`: what is still waited for."""

    sentence: str
    event: Well | End | None = None


def judge(record: NodeQuarantine, node: NodePicture, found: Sequence[Finding], *, out: bool) -> Judgement:
    """May this node come back? `node` must be of the record's node object; `found`: what isolates it now. `out`: it
    must be well for some time first."""
    if record.needs.repair is Repair.PERSON and out:
        return Judgement(record.needs.sentence)
    if found:
        return Judgement(f"{words.findings(found)} stands")
    if unseen := _unseen(record, node):
        return Judgement(unseen)
    if not out:
        now_there = {finding.key for finding in node.findings}
        left = [finding for finding in record.findings if finding.key in now_there]
        why = f"{words.findings(record.findings)} ended by itself"
        if left:  # its severity fell, or its probation is over, or many nodes have it
            why = f"{words.findings(left)} isolates it no more"
        sentence = f"Node {record.node} stays in service: {why}."
        return Judgement("", End(reason=Reason.NOT_NEEDED, sentence=sentence, ended_by=EndedBy.WELL))
    if record.needs.repair is Repair.REBOOT and node.boot_id == record.boot_id:
        return Judgement("the node must be restarted")
    here = Mark(node.boot_id, node.told_mono_s)
    since = record.well_from
    if since is None or since.boot_id != here.boot_id:
        sentence = (
            f"The findings of node {record.node} are gone. It comes back when they stay gone for "
            f"{words.minutes(record.needs.well_for_s)}."
        )
        return Judgement("", Well(reason=Reason.FINDINGS_GONE, sentence=sentence, since=here))
    left_s = record.needs.well_for_s - (here.mono_s - since.mono_s)
    if left_s > 0:
        return Judgement(f"its findings must stay gone for {words.minutes(round(left_s))} more")
    sentence = (
        f"Node {record.node} is back in service: nothing of what isolated it ({words.findings(record.findings)}) "
        f"was seen for {words.minutes(record.needs.well_for_s)}."
    )
    return Judgement("", End(reason=Reason.RELEASED, sentence=sentence, ended_by=EndedBy.WELL))


def _unseen(record: NodeQuarantine, node: NodePicture) -> str:
    """Which of the checks that began the isolation has not looked again since; "": all have."""
    if not node.boot_id or not node.checks:
        return "nothing was heard of its agent yet"
    for name in sorted({finding.check for finding in record.findings}):
        result = node.checks.get(name)
        if result is None:
            return f"the check {name} has not reported yet"
        if result.state not in LOOKED:
            return f"the check {name} cannot look ({result.state.value})"
        if not record.sampled.before(Mark(node.boot_id, result.at_mono_s)):
            return f"the check {name} has not looked again yet"
    return ""


# ---------------------------------------------------------------- what a person chose to live with


def ignoring(record: NodeQuarantine, node: NodePicture | None) -> tuple[Ignored, ...]:
    """What stands while a person ends this isolation: it acts again only when it occurs anew."""
    found = {
        finding.key: finding
        for finding in record.findings
        if isolates(record.kind, finding) and not _reported(node, finding.check)
    }
    if node is not None:
        found |= {finding.key: finding for finding in standing(node, record.kind)}
    return tuple(Ignored.of(finding) for _, finding in sorted(found.items()))


def _reported(node: NodePicture | None, check: str) -> bool:
    return node is not None and check in node.checks


def acting(
    found: Iterable[Finding], node: NodePicture, records: Iterable[NodeQuarantine]
) -> tuple[Finding, ...]:
    """Those findings that no person chose to live with on this machine, or that have occurred anew since."""
    ignored = [
        one
        for record in records
        if not record.state.open and same_machine(record, node)
        for one in record.ignored
    ]
    return tuple(finding for finding in found if not any(one.covers(finding) for one in ignored))


def remembered(record: NodeQuarantine, node: NodePicture) -> tuple[Ignored, ...]:
    """What is left of `record.ignored`: what was seen to be gone acts when it comes again."""
    there = {finding.key: finding for finding in standing(node, record.kind)}
    left = []
    for one in record.ignored:
        check, finding = node.checks.get(one.check), there.get(one.key)
        if finding is None and check is not None and check.state in LOOKED:
            continue
        if finding is not None and finding.event and finding.count < one.count:
            one = structs.replace(one, count=finding.count)  # the agent has lost its book and counts anew
        left.append(one)
    return tuple(left)
