"""What the rest of the node has to do with an incident: broken memory, a stuck driver, a network card that is down."""

from msgspec import structs

from sentinel.core.health import Component, Finding, Severity
from sentinel.core.model import Cause, Restartable
from sentinel.core.signals import TimingSignal
from sentinel.core.triage.case import (
    CLASS_OF_SYMPTOM,
    Case,
    Why,
    class_of_finding,
    finding_clause,
    recent,
    with_note,
)

STUCK, DRIVER_STUCK = ("hung-task", "hung-task-lasting"), "d-state-nvidia"
_OWN = (Component.SYSTEM, Component.KERNEL)


def by_node(case: Case, root: Why | None) -> Why | None:
    """A fatal fault of the machine itself, told just now. It explains an end that nothing else explains for sure.

    Where the kernel names a rank's process (its memory is broken) nothing else is believed.
    """
    fatal = [
        item
        for item in case.findings
        if item.component in _OWN
        and item.severity is Severity.FATAL
        and class_of_finding(item, case.failures)[0].role == "root"
    ]
    found = sorted(
        (item for item in fatal if recent(item, case)), key=lambda item: case.rank_of_pid(item.pid) is None
    )
    if not found or not case.lost:
        return None
    finding = found[0]
    rank = case.rank_of_pid(finding.pid)
    unclear = root is None or root.cls.restart is Restartable.ONCE
    if rank is None and not unclear:
        return None
    cls, phrase = class_of_finding(finding, case.failures)
    if rank is None:
        rank = root.rank if root is not None else case.lost[0].rank
    return Why(
        cls=cls,
        rank=rank,
        entity=finding.node,
        finding=finding,
        code=finding.code,
        clause=finding_clause(finding, phrase),
    )


def by_stuck_process(case: Case, signal: TimingSignal) -> Why | None:
    """A rank that the kernel says is stuck in it, or a driver in which processes are stuck."""
    for finding in case.findings:
        its_rank = case.rank_of_pid(finding.pid)
        stuck = finding.code in STUCK and its_rank is not None
        if (stuck or finding.code == DRIVER_STUCK) and finding.severity.order >= Severity.WARNING.order:
            cls = structs.replace(case.failures[CLASS_OF_SYMPTOM[signal.symptom]], cause=Cause.NODE)
            rank = its_rank if stuck else signal.rank
            return with_note(Why(cls=cls, rank=rank, entity=finding.node, finding=finding), finding)
    return None


def by_network(case: Case, signal: TimingSignal) -> Why | None:
    """A job that hangs since a network card failed."""
    finding = _network(case)
    if finding is None:
        return None
    cls = structs.replace(case.failures[CLASS_OF_SYMPTOM[signal.symptom]], cause=Cause.NETWORK)
    return with_note(Why(cls=cls, rank=signal.rank, entity=finding.node, finding=finding), finding)


def named_network(why: Why, case: Case) -> Why:
    """The card over which ranks could not reach each other, where they say no more than that."""
    finding = (
        _network(case)
        if why.cls.role in ("symptom", "cascade", "report") or why.cls.id == "network"
        else None
    )
    if finding is None:
        return why
    cls, phrase = class_of_finding(finding, case.failures)
    return structs.replace(
        why, cls=cls, finding=finding, code=finding.code, clause=finding_clause(finding, phrase)
    )


def _network(case: Case) -> Finding | None:
    """The worst finding about a network card that came up just before: an old one did not keep the job from running."""
    found = [
        item
        for item in case.findings
        if item.component is Component.NIC
        and item.severity.order >= Severity.DEGRADED.order
        and recent(item, case)
    ]
    return max(found, key=lambda item: (item.severity.order, -item.first_seen_wall_s), default=None)
