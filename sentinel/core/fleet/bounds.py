"""How much one agent can say: a record made of it must fit the API server, and its numbers must be numbers. Pure.

What agents of Sentinel tell is far below these bounds. An agent that is broken, or is not ours, must not break the
controller of all nodes.
"""

import math
from collections.abc import Iterable
from itertools import islice

from msgspec import structs

from sentinel.core.agents.self_fence import MAX_PODS
from sentinel.core.health import CheckResult, Finding
from sentinel.core.now import Now
from sentinel.core.reports import Report

MAX_CHECKS = 200  # names of checks, of one node
MAX_FINDINGS = 1000  # of one result
MAX_NAME, MAX_TEXT, MAX_EVIDENCE = 200, 500, 10  # characters, characters, lines
MAX_WALL_S = 4_102_444_800.0  # the year 2100: records hold times as text
MAX_MONO_S = 1e11
MAX_COUNT = 1 << 53

_NAMES = ("check", "entity", "code", "action", "process", "cgroup", "job", "uuid", "boot_id")
_WALLS = ("first_seen_wall_s", "last_seen_wall_s")


def bounded(report: Report) -> Report:
    """The report, cut to what is bounded; itself where nothing is. Raises ValueError: nothing of it can be ordered."""
    now = report.now
    if not is_mono(now.mono_s):
        raise ValueError("the time since boot is no number")
    checks = tuple(
        _result(one)
        for one in report.checks[:MAX_CHECKS]
        if is_mono(one.at_mono_s) and len(one.check) <= MAX_NAME
    )
    same = len(checks) == len(report.checks) and all(
        after is before for after, before in zip(checks, report.checks, strict=True)
    )
    fences = _fences(report.fences)
    if (
        same
        and fences is report.fences
        and len(report.boot_id) <= MAX_NAME
        and now.wall_s == _wall(now.wall_s)
    ):
        return report
    here = Now(now.mono_s, _wall(now.wall_s))
    return structs.replace(report, checks=checks, fences=fences, boot_id=report.boot_id[:MAX_NAME], now=here)


def is_mono(mono_s: float) -> bool:
    """Is this a time since boot?"""
    return 0.0 <= mono_s <= MAX_MONO_S  # false for NaN


def _wall(wall_s: float) -> float:
    return 0.0 if math.isnan(wall_s) else min(max(wall_s, 0.0), MAX_WALL_S)


def _fences(told: dict[str, float] | None) -> dict[str, float] | None:
    """What is no time is no promise."""
    if told is None or (
        len(told) <= MAX_PODS and all(is_mono(s) and len(uid) <= MAX_NAME for uid, s in told.items())
    ):
        return told
    good = ((uid, s) for uid, s in told.items() if is_mono(s) and len(uid) <= MAX_NAME)
    return dict(islice(good, MAX_PODS))


def _result(one: CheckResult) -> CheckResult:
    if not one.findings:
        return one
    found = tuple(_finding(finding) for finding in _worst(one.findings))
    same = len(found) == len(one.findings) and all(
        after is before for after, before in zip(found, one.findings, strict=True)
    )
    return one if same else structs.replace(one, findings=found)


def _worst(found: tuple[Finding, ...]) -> Iterable[Finding]:
    if len(found) <= MAX_FINDINGS:
        return found
    return sorted(found, key=lambda finding: -finding.severity.order)[:MAX_FINDINGS]


def _finding(one: Finding) -> Finding:
    changes: dict[str, object] = {
        name: text[:MAX_NAME] for name in _NAMES if len(text := getattr(one, name)) > MAX_NAME
    }
    for name in _WALLS:
        if (wall_s := getattr(one, name)) != _wall(wall_s):
            changes[name] = _wall(wall_s)
    if not is_mono(one.seen_mono_s):
        changes["seen_mono_s"] = 0.0
    if len(one.summary) > MAX_TEXT:
        changes["summary"] = one.summary[:MAX_TEXT]
    if len(one.evidence) > MAX_EVIDENCE or any(len(line) > MAX_TEXT for line in one.evidence):
        changes["evidence"] = tuple(line[:MAX_TEXT] for line in one.evidence[:MAX_EVIDENCE])
    if not -MAX_COUNT <= one.count <= MAX_COUNT:
        changes["count"] = MAX_COUNT
    if one.pid is not None and not 0 <= one.pid <= MAX_COUNT:
        changes["pid"] = None
    return structs.replace(one, **changes) if changes else one
