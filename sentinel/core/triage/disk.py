"""What the file systems have to do with an incident: one that is full, hangs or broke explains a rank's end."""

import re
from collections.abc import Callable

from msgspec import structs

from sentinel.core.health import Component, Finding, Severity
from sentinel.core.model import Cause
from sentinel.core.reports import RankExit
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

FULL, BROKEN = "storage-full", "storage-io"
# By our own calls, and by the kernel's word.
HANGS = ("mount-hangs", "nfs-not-responding", "lustre-lost", "ceph-hung", "ceph-evicted")
SIGBUS = 7  # a page of a file in memory (of a data loader in /dev/shm) for which there was no room


def named_disk(why: Why, case: Case) -> Why:
    """The disk that a rank complained of, by the finding about it, which may know more than the rank said.

    A bare exception while a disk is full is taken for a failed write: the pre-check waits for room, and if it was
    something else, it comes again.
    """
    if why.cls.role == "generic":
        finding = _standing(case, lambda item: _is_full(item, case))
        finding = finding or _standing(case, lambda item: _named_in(why, item, case), Severity.WARNING)
        return why if finding is None else _because(why, finding, case)
    if why.cls.id not in (FULL, BROKEN):
        return why
    finding = _standing(case, lambda item: _is_full(item, case))
    if finding is None and why.cls.id == BROKEN:
        finding = _standing(case, lambda item: item.component is Component.DISK)
        # The rank itself told of an error: then a milder one that the kernel told just now is the same.
        finding = finding or _standing(case, lambda item: _broke_now(item, case), Severity.WARNING)
    return why if finding is None else _because(why, finding, case)


def by_full_disk(case: Case, rank: int) -> Why | None:
    """A rank that ended without a word, or by SIGBUS, while a disk that it needs was full: it could not write."""
    exit_ = case.exit_of(rank)
    if exit_ is None or not may_be_a_failed_write(exit_):
        return None
    finding = _standing(case, lambda item: _is_full(item, case))
    return None if finding is None else _because(Why(cls=case.failures[FULL], rank=rank), finding, case)


def by_hanging_mount(case: Case, signal: TimingSignal) -> Why | None:
    """A job that hangs while a file system that it needs does, or, less sure, while some file server does."""
    finding = _hanging(case)
    if finding is None:
        return None
    cls = case.failures[CLASS_OF_SYMPTOM[signal.symptom]]
    return with_note(
        Why(cls=structs.replace(cls, cause=Cause.STORAGE), rank=signal.rank, finding=finding), finding
    )


def named_mount(why: Why, case: Case) -> Why:
    """Ranks that waited for one that waits for its storage, as at a checkpoint, and gave up."""
    finding = _hanging(case) if why.cls.role == "symptom" else None
    if finding is None:
        return why
    cls = structs.replace(why.cls, cause=Cause.STORAGE)
    return with_note(structs.replace(why, cls=cls, finding=finding), finding)


def _hanging(case: Case) -> Finding | None:
    hanging = [item for item in case.findings if item.code in HANGS and _counts(item)]
    return min(hanging, key=lambda item: HANGS.index(item.code), default=None)


def _because(why: Why, finding: Finding, case: Case) -> Why:
    cls, phrase = class_of_finding(finding, case.failures)
    clause = finding_clause(finding, phrase)
    return structs.replace(why, cls=cls, finding=finding, code=finding.code, clause=clause)


def may_be_a_failed_write(exit_: RankExit) -> bool:
    """Exit codes of programs that could not even print why; none that a shell or a signal gives but SIGBUS."""
    if exit_.failure:
        return False
    if exit_.signal is not None or exit_.code is None:
        return exit_.signal == SIGBUS
    return 0 < exit_.code < 126 or exit_.code == 128 + SIGBUS


def _counts(finding: Finding) -> bool:
    return finding.severity.order >= Severity.DEGRADED.order


def _named_in(why: Why, finding: Finding, case: Case) -> bool:
    """The exception names a path of a file system that is missing, or broke: `No such file: '/data/x'`."""
    place = finding.entity
    if len(place) < 2 or place[0] != "/" or class_of_finding(finding, case.failures)[0].id != BROKEN:
        return False
    path = re.compile(rf"(?<![\w./-]){re.escape(place)}(?![\w.-])")
    return any(path.search(row.match.line) for row in case.rows if row.match.rank == why.rank)


def _broke_now(finding: Finding, case: Case) -> bool:
    event = finding.event and recent(finding, case)
    return event and class_of_finding(finding, case.failures)[0].id == BROKEN


def _is_full(finding: Finding, case: Case) -> bool:
    return finding.code in case.failures[FULL].codes


def _standing(
    case: Case, fits: Callable[[Finding], bool], least: Severity = Severity.DEGRADED
) -> Finding | None:
    """A finding that keeps jobs off: the one whose path a rank named, else the worst, else the newest."""
    found = [item for item in case.findings if fits(item) and item.severity.order >= least.order]
    lines = [row.match.line for row in case.rows if row.cls.id in (FULL, BROKEN)]

    def order(item: Finding) -> tuple[int, int, float]:
        told = any(item.entity in line for line in lines)
        return (len(item.entity) if told else 0, item.severity.order, item.first_seen_wall_s)

    return max(found, key=order, default=None)
