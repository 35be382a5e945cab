"""A check that an administrator wrote: an executable with Nagios exit codes, or with JSON on its stdout."""

import math
import os
import re
import shlex
import stat
import subprocess
import threading
from collections.abc import Iterator

import msgspec
from msgspec import Struct

from sentinel.checks.base import Kept, Look, Measure, Unknown
from sentinel.checks.command import CommandHangs, Output, run
from sentinel.checks.table import OWN_PREFIX
from sentinel.core.health import Component, Finding, Severity
from sentinel.settings import OwnCheck

AT_ONCE = 4  # programs of own checks that run at the same time; more wait for their turn
MAX_BYTES = 1 << 16
MAX_FINDINGS = 64
MAX_MEASURES = 64
MAX_TEXT = 500

OK, WARNING, CRITICAL, UNKNOWN = 0, 1, 2, 3  # https://www.monitoring-plugins.org/doc/guidelines.html
_WORDS = {"ok": OK, "warning": WARNING, "critical": CRITICAL, "unknown": UNKNOWN}
_WORST = (OK, WARNING, UNKNOWN, CRITICAL)  # the later is worse: critical is proved, unknown is not

# 'label'=value[unit];warn;crit;min;max
_PERFDATA = re.compile(
    r"(?:'((?:[^']|'')+)'|([^\s'=]+))=([-+]?[0-9.]+(?:[eE][-+]?\d+)?)([a-zA-Z%]*)(?:;\S*)?(?=\s|$)"
)
# Unit of the program -> (base unit, factor); sizes in powers of 1000 unless they say otherwise, as Icinga reads them.
_UNITS: dict[str, tuple[str, float]] = {
    "": ("", 1.0),
    "c": ("count", 1.0),
    "%": ("ratio", 0.01),
    "s": ("seconds", 1.0),
    "ms": ("seconds", 1e-3),
    "us": ("seconds", 1e-6),
    "B": ("bytes", 1.0),
    "KB": ("bytes", 1e3),
    "MB": ("bytes", 1e6),
    "GB": ("bytes", 1e9),
    "TB": ("bytes", 1e12),
    "KiB": ("bytes", 2.0**10),
    "MiB": ("bytes", 2.0**20),
    "GiB": ("bytes", 2.0**30),
    "TiB": ("bytes", 2.0**40),
}

_places = threading.BoundedSemaphore(AT_ONCE)


class Memory(Struct):
    stuck: subprocess.Popen[bytes] | None = None  # the program, where even SIGKILL has not ended it


class Fault(Struct, frozen=True, forbid_unknown_fields=True):
    """One finding in a program's JSON."""

    summary: str
    entity: str = "node"
    severity: Severity = Severity.WARNING
    action: str = "CHECK_NODE"
    evidence: str = ""


class Answer(Struct, frozen=True, forbid_unknown_fields=True):
    """A program's JSON, or what its Nagios output comes to."""

    status: str | int | None = None  # a word or an exit code of Nagios; None: the exit code alone says it
    summary: str = ""
    findings: list[Fault] = []
    measures: dict[str, float] = {}
    units: dict[str, str] = {}  # of measures


def parse(output: Output) -> tuple[int, Answer]:
    """(Nagios status, answer) of a program that ended. Raises Unknown for what is neither."""
    if output.code not in (OK, WARNING, CRITICAL, UNKNOWN):
        how = f"signal {-output.code}" if output.code < 0 else f"exit code {output.code}"
        raise Unknown(f"ended with {how}, which says nothing: {output.first_line()}")
    if output.truncated:
        raise Unknown(f"printed more than {MAX_BYTES} bytes")
    text = output.stdout.decode(errors="replace")
    if not text.lstrip().startswith("{"):
        return output.code, parse_nagios(text, output.first_line())
    try:
        answer = msgspec.json.decode(output.stdout, type=Answer)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise Unknown(f"its JSON is not understood: {error}") from None
    told = _status(answer.status)
    return max(output.code, told, key=_WORST.index), answer


def parse_nagios(text: str, otherwise: str = "") -> Answer:
    """`TEXT | perfdata`, with more text and more perfdata on further lines."""
    first, _, rest = text.partition("\n")
    summary, _, perfdata = first.partition("|")
    perfdata += " " + rest.partition("|")[2]
    numbers, units = {}, {}
    for quoted, plain, value, unit in _PERFDATA.findall(perfdata):
        label = quoted.replace("''", "'") or plain
        try:
            number = float(value)
        except ValueError:
            continue
        base, factor = _UNITS.get(unit, (unit, 1.0))
        numbers[label], units[label] = number * factor, base
    return Answer(summary=summary.strip() or otherwise, measures=numbers, units=units)


def judge(own: OwnCheck, code: int, answer: Answer) -> list[Finding]:
    """Findings, none worse than the settings allow. A status that is not ok and names none is one itself."""
    cap = Severity(own.max_severity)
    found = [_finding(own, fault, cap) for fault in answer.findings[:MAX_FINDINGS]]
    if not found and code in (WARNING, CRITICAL):
        severity = Severity.WARNING if code == WARNING else Severity.FATAL
        found.append(_finding(own, Fault(answer.summary or "not ok", severity=severity), cap))
    return found


def _status(told: str | int | None) -> int:
    if told is None:
        return OK
    if isinstance(told, str) and told.casefold() in _WORDS:
        return _WORDS[told.casefold()]
    if isinstance(told, int) and told in (OK, WARNING, CRITICAL, UNKNOWN):
        return told
    raise Unknown(f"its JSON is not understood: status {told!r}")


def _finding(own: OwnCheck, fault: Fault, cap: Severity) -> Finding:
    return Finding(
        check=OWN_PREFIX + own.name,
        component=Component(own.component),
        entity=_clean(fault.entity),
        code=own.name,
        severity=min(fault.severity, cap, key=lambda severity: severity.order),
        action=_clean(fault.action),
        summary=_clean(fault.summary),
        evidence=(_clean(fault.evidence or shlex.join(own.command)),),
    )


def _clean(text: str) -> str:
    """Printed to terminals, mailed and kept: one line, bounded."""
    return "".join(c if c.isprintable() else " " for c in text).strip()[:MAX_TEXT]


def _measures(own: OwnCheck, answer: Answer) -> Iterator[Measure]:
    for label, value in list(answer.measures.items())[:MAX_MEASURES]:
        if math.isfinite(value):
            unit = answer.units.get(label, "")
            labels = (("check", own.name), ("label", _clean(label)), ("unit", _clean(unit)))
            yield Measure("sentinel_own_check_value", labels, value)


def _run(own: OwnCheck, kept: Kept) -> Output:
    stuck = kept.own(Memory).stuck
    if stuck is not None and stuck.poll() is None:
        raise CommandHangs(f"pid {stuck.pid} still hangs in the kernel", stuck)
    program = own.command[0]
    try:
        if os.stat(program).st_mode & stat.S_IWOTH:
            raise Unknown(f"{program} may be written by everybody: it is not run")
        if not _places.acquire(timeout=own.timeout_s):
            raise Unknown(f"no turn within {own.timeout_s:g} s: {AT_ONCE} own checks run already")
        try:
            return run(own.command, own.timeout_s, MAX_BYTES, {"LC_ALL": "C.UTF-8"})
        finally:
            _places.release()
    except OSError as error:
        raise Unknown(f"{program}: {error.strerror}") from None


def check(look: Look) -> list[Finding]:
    own = next(one for one in look.settings.own_checks if OWN_PREFIX + one.name == look.check)
    look.kept.measures = ()
    try:
        code, answer = parse(_run(own, look.kept))
    except CommandHangs as hang:
        look.kept.own(Memory).stuck = hang.stuck
        fault = Fault(
            "The check did not end in time and was killed", f"check {look.check}", evidence=str(hang)
        )
        raise Unknown(str(hang), (_finding(own, fault, Severity.WARNING),)) from None
    look.kept.measures = tuple(_measures(own, answer))
    look.kept.detail = _clean(answer.summary)
    found = judge(own, code, answer)
    if code == UNKNOWN:
        raise Unknown(_clean(answer.summary) or "it says that it does not know", tuple(found))
    return found
