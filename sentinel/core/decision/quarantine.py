"""Isolation of single entities (locally GPUs): the records that say why one is left out, and how that ended. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import structs

from sentinel.core.health import Component, Finding, Severity
from sentinel.core.model import Quarantine
from sentinel.core.now import Now

WELL = "its findings are gone"
RELEASED = "released by a person"
REBOOTED = "the machine was started again, and its findings are gone"


def isolates(finding: Finding) -> bool:
    """Does this finding keep ranks off its entity?"""
    return finding.component == Component.GPU and finding.severity.order >= Severity.DEGRADED.order


def changes(
    active: Mapping[str, Quarantine],
    left_out: Collection[str],
    own: Collection[str],
    findings: Sequence[Finding],
    checks: Collection[str],
    released: Collection[str],
    now: Now,
    boot_id: str,
) -> list[Quarantine]:
    """The records that begin, change or end now. `left_out`: entities that the next ranks must not use; `own`:
    those that this Sentinel isolated; `checks`: those that have reported since it started; `released`: entities
    that a person released.

    Silence is not health: an isolation ends only when each check that began it has looked again.
    """
    standing: dict[str, list[Finding]] = {}
    for finding in findings:
        if isolates(finding):
            standing.setdefault(finding.entity, []).append(finding)
    changed = []
    for entity in left_out:
        if entity in standing and entity not in active:
            found = tuple(standing[entity])
            changed.append(
                Quarantine(
                    entity=entity,
                    since_wall_s=now.wall_s,
                    findings=found,
                    needs=_needs(found),
                    boot_id=boot_id,
                )
            )
    for entity, record in active.items():
        found = tuple(standing.get(entity, ()))
        if found:
            if _keys(found) - _keys(record.findings):
                changed.append(structs.replace(record, findings=found, needs=_needs(found)))
            continue
        ours = entity in left_out or entity in own or record.boot_id != boot_id  # others end theirs
        if ours and {finding.check for finding in record.findings} <= set(checks):
            by = RELEASED if entity in released else WELL if record.boot_id == boot_id else REBOOTED
            changed.append(structs.replace(record, ended_wall_s=now.wall_s, ended_by=by))
    return changed


def _keys(findings: Iterable[Finding]) -> set[tuple[str, str, str]]:
    return {finding.key for finding in findings}


def _needs(findings: Sequence[Finding]) -> str:
    actions = ", ".join(dict.fromkeys(f.action for f in findings if f.action))
    return f"{actions}; then no such finding may stand" if actions else "no such finding may stand"
