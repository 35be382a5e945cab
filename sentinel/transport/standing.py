"""What is so now on this node: makes the full report of a new connection, and lets only changes through after it."""

import msgspec
from msgspec import structs

from sentinel.core.health import CheckResult, CheckState, Finding, Severity
from sentinel.core.now import Now
from sentinel.core.reports import PACED, RankReport, Report
from sentinel.transport.wire import MAX_RECORD_BYTES, encoder

# Evidence, count and times of a sampled finding move with each sample; they are told again only so often.
DETAIL_S = 60.0
URGENT = (Severity.FATAL, Severity.DEGRADED)


class Standing:
    """The newest result of each check, and how far each rank was heard of."""

    def __init__(self) -> None:
        self._checks: dict[str, CheckResult] = {}
        self._told: dict[str, CheckResult] = {}
        self._ranks: dict[tuple[str, int], RankReport] = {}
        self._fences: dict[str, float] = {}

    def fold(self, report: Report) -> Report | None:
        """What of a report the controller does not know yet; None: nothing."""
        checks = tuple(result for result in report.checks if self._changed(result))
        for rank in report.ranks:
            before = self._ranks.get((rank.job, rank.rank))
            if before is not None and before.incarnation == rank.incarnation:
                if not rank.iterations:
                    rank = structs.replace(rank, iterations=before.iterations, before=before.before)
                if rank.alive_s is None:
                    rank = structs.replace(rank, alive_s=before.alive_s, alive_line=before.alive_line)
            last = max(0, len(rank.iterations) - 1)  # the newest alone
            newest = structs.replace(rank, iterations=rank.iterations[last:], before=rank.before + last)
            self._ranks[rank.job, rank.rank] = newest
        for job, gone in report.exits:
            self._ranks.pop((job, gone.rank), None)
        fences = report.fences is not None and report.fences != self._fences
        if report.fences is not None:
            self._fences = report.fences
        if not (checks or report.ranks or report.matches or report.exits or report.answers or fences):
            return None
        return report if len(checks) == len(report.checks) else structs.replace(report, checks=checks)

    def _changed(self, result: CheckResult) -> bool:
        self._checks[result.check] = result
        told = self._told.get(result.check)
        if told is not None and _meaning(told) == _meaning(result):
            if result.at_mono_s - told.at_mono_s < DETAIL_S:
                return False
            if _details(told) == _details(result):
                return False
        self._told[result.check] = result
        return True

    def full(self, node: str, boot_id: str, now: Now, max_bytes: int = MAX_RECORD_BYTES) -> Report:
        self._told.update(self._checks)
        report = Report(
            node=node,
            boot_id=boot_id,
            sequence=0,
            now=now,
            ranks=tuple(structs.replace(rank, again=True) for rank in self._ranks.values()),
            checks=tuple(self._checks.values()),
            fences=self._fences,
        )
        return fit(report, min(max_bytes, MAX_RECORD_BYTES))[0]

    def forget(self, job: str) -> None:
        """The job is none of this node any more."""
        for key in [key for key in self._ranks if key[0] == job]:
            del self._ranks[key]


def _meaning(result: CheckResult) -> tuple[object, ...]:
    return (result.state, result.detail, *(_core(finding) for finding in result.findings))


def _core(finding: Finding) -> object:
    if finding.event:
        return finding
    return (finding.key, finding.severity, finding.action, finding.uuid, finding.job, finding.over)


def _details(result: CheckResult) -> tuple[object, ...]:
    return tuple((finding.summary, finding.evidence) for finding in result.findings)


def is_event(report: Report) -> bool:
    """Whether a full report cannot say it again."""
    return bool(
        report.exits
        or report.matches
        or report.answers
        or any(finding.event for result in report.checks for finding in result.findings)
    )


def is_urgent(report: Report) -> bool:
    """Whether it is sent at once, and not with the next report that is due."""
    return bool(
        report.exits
        or report.matches
        or report.answers
        or any(rank.before < PACED <= rank.before + len(rank.iterations) for rank in report.ranks)
        or any(
            finding.event or finding.severity in URGENT
            for result in report.checks
            if result.state is CheckState.FOUND
            for finding in result.findings
        )
    )


def fit(report: Report, max_bytes: int = MAX_RECORD_BYTES) -> tuple[Report, int]:
    """The report, cut until it fits, and how many parts that cost: of the longest list, old progress and mild
    findings first."""
    lost = 0
    while len(encoder.encode(report)) > max_bytes:
        report, cut = _cut(report)
        lost += cut
        if not cut:
            break
    return report, lost


def pieces(report: Report, max_bytes: int = MAX_RECORD_BYTES) -> list[Report]:
    """The same in several reports, each of which fits or is one part that does not."""
    if len(encoder.encode(report)) <= max_bytes:
        return [report]
    empty = structs.replace(report, ranks=(), matches=(), exits=(), checks=(), answers=())
    for field in ("ranks", "matches", "checks", "exits", "answers"):
        parts = getattr(report, field)
        rest = structs.replace(report, **{field: ()})
        if len(parts) > 1 or (parts and rest != empty):
            half = len(parts) // 2 if len(parts) > 1 else 1
            first = structs.replace(empty, **{field: parts[:half]})
            rest = structs.replace(report, **{field: parts[half:]})
            # Ends of ranks and answers come last: after everything that the ranks had written.
            return pieces(first, max_bytes) + pieces(rest, max_bytes)
    if report.ranks and len(report.ranks[0].iterations) > 1:
        rank = report.ranks[0]
        half = len(rank.iterations) // 2
        older, newer = (
            structs.replace(empty, ranks=(structs.replace(rank, iterations=part, before=before),))
            for part, before in (
                (rank.iterations[:half], rank.before),
                (rank.iterations[half:], rank.before + half),
            )
        )
        return pieces(older, max_bytes) + pieces(newer, max_bytes)
    return [report]


def _cut(report: Report) -> tuple[Report, int]:
    sizes = [(len(msgspec.msgpack.encode(result)), k) for k, result in enumerate(report.checks)]
    size, k = max(sizes, default=(0, 0))
    if size > len(msgspec.msgpack.encode(report.ranks)):
        result = report.checks[k]
        if len(result.findings) > 1:
            worst = sorted(result.findings, key=lambda finding: -finding.severity.order)
            kept = tuple(worst[: len(worst) // 2])
            lost = len(worst) - len(kept)
            said = (
                f"{result.detail}; {lost} milder findings did not fit"
                if result.detail
                else f"{lost} milder findings did not fit"
            )
            smaller = structs.replace(result, findings=kept, detail=said[:500])
        else:
            smaller, lost = structs.replace(result, findings=(), detail=result.detail[:500]), 1
            if smaller == result:
                return report, 0
        return structs.replace(report, checks=(*report.checks[:k], smaller, *report.checks[k + 1 :])), lost
    if report.ranks:
        kept_ranks = report.ranks[len(report.ranks) // 2 + 1 :]
        return structs.replace(report, ranks=kept_ranks), len(report.ranks) - len(kept_ranks)
    if report.matches:
        kept_matches = report.matches[len(report.matches) // 2 + 1 :]
        return structs.replace(report, matches=kept_matches), len(report.matches) - len(kept_matches)
    return report, 0
