"""What the findings about GPUs have to do with an incident: whose rank they hit, and whether they are to blame."""

from msgspec import structs

from sentinel.core.health import Component, Finding, Severity
from sentinel.core.model import Budget, Cause, Restartable
from sentinel.core.triage.case import Case, Why, class_of_finding, finding_clause, recent
from sentinel.core.triage.rows import FailureClass, same_entity


def rank_of(finding: Finding, case: Case) -> int | None:
    """The rank that a finding is about: by pid, else by the GPU that it uses. None: not this job's."""
    if (rank := case.rank_of_pid(finding.pid)) is not None:
        return rank
    users = [rank for rank, entity in case.entities.items() if same_entity(entity, finding.place)]
    dead = [e.rank for e in case.lost if e.rank in users]
    return dead[0] if dead else min(users, default=None)


def by_hardware(case: Case) -> Why | None:
    """A fatal or degraded finding, or a code that a class claims, about what this job uses."""
    best: tuple[tuple[int, float], Why] | None = None
    for finding in case.findings:
        cls, phrase = class_of_finding(finding, case.failures)
        severe = finding.severity.order >= Severity.DEGRADED.order
        claimed = finding.code in cls.codes and finding.severity.order >= Severity.WARNING.order
        if cls.role != "root" or not (severe or (claimed and cls.restart is not Restartable.ONCE)):
            continue  # blames nobody, or may be the program's own doing
        rank = rank_of(finding, case)
        if finding.component != Component.GPU or (rank is None and not _carries_all(finding, case)):
            continue
        if not bears(finding, rank, case):
            continue
        why = Why(
            cls=_blaming(cls),
            rank=rank,
            entity=finding.place,
            finding=finding,
            code=finding.code,
            clause=finding_clause(finding, phrase),
        )
        order = (-finding.severity.order, finding.first_seen_wall_s)
        if best is None or order < best[0]:
            best = (order, why)
    return best[1] if best else None


def _carries_all(finding: Finding, case: Case) -> bool:
    """No rank uses an NVSwitch as its own: it carries what the GPUs of its node say to each other."""
    return finding.entity.startswith("NVSwitch ") and case.size > 1


def _blaming(cls: FailureClass) -> FailureClass:
    """What may be the program's became this severe because programs of other jobs met it on the same GPU."""
    if cls.restart is not Restartable.ONCE:
        return cls
    return structs.replace(
        cls, cause=Cause.GPU, scope="node", budget=Budget.INFRASTRUCTURE, restart=Restartable.YES
    )


def bears(finding: Finding, rank: int | None, case: Case) -> bool:
    """Whether a finding can have to do with this incident at all.

    A fatal fault (off the bus, reset needed) lasts until the GPU or the node starts anew. A lesser sample
    with which the job has lived for long explains at most the end of the rank on that very GPU.
    """
    if finding.severity is Severity.FATAL or recent(finding, case):
        return True
    return not finding.event and (not case.lost or (rank is not None and case.exit_of(rank) is not None))


def overrides(hardware: Why, root: Why, case: Case) -> bool:
    """Fresh and hard evidence beats any text; a standing sample only an unclear end on the same GPU.

    What other programs met on this GPU says nothing about a program that explains its end by its own fault.
    """
    finding = hardware.finding
    assert finding is not None
    exit_ = case.exit_of(root.rank) if root.rank is not None else None
    if exit_ is not None and exit_.failure not in ("", "pod-deleted"):  # who deletes a pod may tidy up
        here = case.entities.get(exit_.rank, finding.node)
        if finding.node not in ("", here):
            return False  # what ended it from outside, on its own node, was not a card of another one
    shared = case.failures[hardware.cls.id].restart is Restartable.ONCE
    hard = finding.severity is Severity.FATAL or finding.event or finding.code in hardware.cls.codes
    if hard and not shared and recent(finding, case):
        return True
    if root.cls.role == "report":  # its launcher uses all the cards of a machine
        return finding.severity is Severity.FATAL or recent(finding, case)
    if root.cls.restart is Restartable.NO or root.cls.role != "root":
        return False
    return finding.severity is Severity.FATAL or hardware.rank == root.rank


def by_program_or_gpu(case: Case) -> Why | None:
    """The driver stopped a rank's kernel, which may be the program's own fault, and its log is silent.

    What another program did there before says nothing of this one, and what came after the ranks had begun to complain
    of each other is not why they did.
    """
    until_s = min((row.match.at_s for row in case.complaints), default=float("inf"))
    for finding in case.findings:
        before = case.rank_of_pid(finding.pid) is None and finding.seen_mono_s < case.started_s
        if finding.event and (before or finding.seen_mono_s > until_s):
            continue
        cls, phrase = class_of_finding(finding, case.failures)
        rank = rank_of(finding, case)
        ambiguous = cls.role == "root" and cls.restart is Restartable.ONCE
        if not ambiguous or rank is None or case.exit_of(rank) is None or not recent(finding, case):
            continue
        clause = finding_clause(finding, phrase)
        return Why(cls=cls, rank=rank, entity=finding.place, finding=finding, clause=clause)
    return None
