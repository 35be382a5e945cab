"""`sentinel replay --kernel FILE…`: each distinct fault in saved kernel logs, NVIDIA's action, what would follow.

The lines pass the code that reads /dev/kmsg: they are folded, escalated and ended in the same book, by the log's
own clock. Exit codes: 0 read, whether there were faults or not; 1 a file cannot be read or holds no kernel log;
64 the command line is wrong.
"""

import argparse
import io
import os
import stat
import time
import zlib
from collections import deque
from collections.abc import Iterable

import msgspec
from msgspec import Struct

from sentinel.checks.disk.media import on_media
from sentinel.checks.findings import LATEST_WINS, NOTHING, FindingBook
from sentinel.checks.repeats import Key
from sentinel.checks.xid import actions, catalogue, finding_of
from sentinel.console.tables import complain, put, put_document, table
from sentinel.core.health import Component, Finding, Severity
from sentinel.core.now import Now
from sentinel.logs.kernel import KernelLog
from sentinel.logs.kernel_file import GZIP, NotALog, SavedLine, saved_lines, unpacked
from sentinel.logs.kernel_prefix import KernelLine
from sentinel.notify.text import count
from sentinel.replay.saved import NoLog, oldest_first, open_log
from sentinel.web.words import printable

USAGE = 64
MAX_FAULTS = 10_000  # distinct ones that are remembered
MAX_EVENTS = 10_000
OLDEST_S = 1e9  # of a file: archives that are made to be equal set its time to 1970 or so
EXPIRE_EVERY_S = 600.0  # of the log's own time
SHOWN_CHARS = 160

BOOT, OVER, TIME = "a new boot", "the kernel says so", "time"


class Seen(Struct):
    """One distinct fault, as bad as it became."""

    worst: Finding
    first: KernelLine
    last: KernelLine
    count: int = 0
    ended: str = ""


class Event(Struct, frozen=True):
    """One time of a fault."""

    finding: Finding
    line: KernelLine


class Fault(Struct, frozen=True, kw_only=True):
    """One distinct fault, with every key whatever its value. Times: seconds since 1970, or since the boot."""

    entity: str
    component: str
    code: str
    severity: str
    bucket: str  # NVIDIA's immediate and investigatory action, of an Xid
    action: str  # what Sentinel takes from it
    do: str
    would: str
    summary: str
    count: int
    first_wall_s: float | None
    last_wall_s: float | None
    first_uptime_s: float | None
    last_uptime_s: float | None
    pid: int | None
    process: str
    cgroup: str
    job: str
    uuid: str
    ended_by: str  # "" : stands at the end of the log
    evidence: tuple[str, ...]


class Answer(Struct, frozen=True, kw_only=True):
    files: list[str]
    lines: int
    unbelieved: int  # lines that other programs wrote
    boots: int
    faults: list[Fault]
    not_shown: int  # distinct faults beyond MAX_FAULTS
    notes: list[str]


class KernelReplay:
    """Folds the lines of saved logs by the log's own clock."""

    def __init__(self) -> None:
        self.seen: dict[Key, Seen] = {}
        self.events: deque[Event] = deque(maxlen=MAX_EVENTS)  # the newest
        self.booted_wall_s: deque[float] = deque(maxlen=MAX_EVENTS)
        self.lines = self.known = self.unbelieved = self.not_shown = 0
        self.boots = 1
        self._told = KernelLog()
        self._book = FindingBook("boot 1")
        self._now = Now(0.0, 0.0)
        self._boot_began_s = 0.0  # on our clock, where lines tell only the time since their boot
        self._expired_s = 0.0

    def take(self, saved: SavedLine) -> None:
        line = saved.line
        self.lines += 1
        self.known += line.prefixed
        if saved.boots and line.wall_s is not None:
            self.booted_wall_s.append(line.wall_s)
        self._pass_to(line, saved.boots)
        if not line.from_kernel:
            self.unbelieved += 1
            return
        event = self._told.take(line.text, line.uptime_s)
        if event is None:
            return
        finding = on_media(finding_of(event, self._now.wall_s, self._now.mono_s, self._book.boot_id))
        if saved.count > 1:
            finding = msgspec.structs.replace(finding, count=finding.count * saved.count)
        self._book.add([finding], self._now)
        stands = self._book.get(finding.key)
        known = self.seen.get(finding.key)
        if finding.over:
            if known is not None and stands is None:
                known.ended = known.ended or OVER
            return
        if finding.severity is not Severity.INFO:
            self.events.append(Event(finding, line))
        self._note(stands or finding, finding.count, line, known)
        if finding.code in LATEST_WINS and finding.action == NOTHING:
            self._mark_ended(OVER)

    def _note(self, finding: Finding, count: int, line: KernelLine, known: Seen | None) -> None:
        if known is None:
            if len(self.seen) >= MAX_FAULTS:
                self.not_shown += 1
                return
            known = self.seen[finding.key] = Seen(finding, line, line)
        elif finding.severity.order >= known.worst.severity.order:
            known.worst = finding
        known.last, known.ended = line, ""
        known.count += count

    def _pass_to(self, line: KernelLine, boots: bool) -> None:
        if boots and (self.lines > 1 or self.seen):
            self.boots += 1
            state = self._book.state()
            self._book = FindingBook(f"boot {self.boots}")
            self._book.restore(state, self._now)
            self._boot_began_s = self._now.mono_s
            self._told = KernelLog()
            self._mark_ended(BOOT)
        at_s = line.wall_s
        if at_s is None:
            at_s = self._now.mono_s if line.uptime_s is None else self._boot_began_s + line.uptime_s
        self._now = Now(max(at_s, self._now.mono_s), max(at_s, self._now.mono_s))
        if self._now.mono_s - self._expired_s > EXPIRE_EVERY_S:
            self._expired_s = self._now.mono_s
            self._book.fold("", [], self._now)
            self._mark_ended(TIME)

    def _mark_ended(self, why: str) -> None:
        for key, seen in self.seen.items():
            if not seen.ended and self._book.get(key) is None:
                seen.ended = why

    def faults(self) -> list[Fault]:
        """The worst first, then by when they began."""
        self._mark_ended(TIME)
        order = sorted(self.seen.values(), key=lambda seen: -seen.worst.severity.order)
        return [_fault(seen) for seen in order]


def _fault(seen: Seen) -> Fault:
    worst = seen.worst
    row = actions().get(worst.action)
    return Fault(
        entity=worst.entity,
        component=worst.component.value,
        code=worst.code,
        severity=worst.severity.value,
        bucket=_bucket(worst.code),
        action=worst.action,
        do=row.do if row else "",
        would=would(worst),
        summary=worst.summary,
        count=seen.count,
        first_wall_s=seen.first.wall_s,
        last_wall_s=seen.last.wall_s,
        first_uptime_s=seen.first.uptime_s,
        last_uptime_s=seen.last.uptime_s,
        pid=worst.pid,
        process=worst.process,
        cgroup=worst.cgroup,
        job=worst.job,
        uuid=worst.uuid,
        ended_by=seen.ended,
        evidence=worst.evidence,
    )


def _bucket(code: str) -> str:
    kind, _, number = code.partition(" ")
    row = catalogue().get(int(number)) if kind == "XID" else None
    return ", then ".join(action for action in (row.immediate, row.investigatory) if action) if row else ""


def would(finding: Finding) -> str:
    """What Sentinel does about a finding of this severity."""
    what = (
        "the GPU" if finding.component is Component.GPU and finding.entity.startswith("GPU ") else "the node"
    )
    return {
        Severity.INFO: "records it",
        Severity.WARNING: "tells it; no job is touched",
        Severity.DEGRADED: f"starts nothing new on {what}; saves and moves its job when there is room",
        Severity.FATAL: f"isolates {what} at once; saves and moves its job",
    }[finding.severity]


# ---------------------------------------------------------------- command


def main(args: argparse.Namespace) -> int:
    others = (args.logs, args.rank, args.policy, args.exit_code, args.signal, args.flight_recorder)
    if any(others):
        complain("--kernel stands alone: it takes no logs of a job, no policy and no exit code")
        return USAGE
    if args.kernel.count("-") > 1:
        complain("standard input (-) can be read only once")
        return USAGE
    replay = KernelReplay()
    notes: list[str] = []
    files = oldest_first(args.kernel)
    bad = [f"{path}: {why}" for path in files if (why := read(path, replay, notes))]
    if not replay.known and not replay.seen and not bad:
        forms = "dmesg, syslog, and what journalctl prints (short, json, export)"
        why = f"no line of a kernel log; read are {forms}" if replay.lines else "empty"
        bad.append(f"{', '.join(files)}: {why}")
    for why in bad:
        complain(why)
    if bad and not replay.seen:
        return 1
    answer = Answer(
        files=files,
        lines=replay.lines,
        unbelieved=replay.unbelieved,
        boots=replay.boots,
        faults=replay.faults(),
        not_shown=replay.not_shown,
        notes=notes,
    )
    if args.output == "json":
        put_document(answer)
    else:
        put(as_text(answer))
    return 1 if bad else 0


def read(path: str, replay: KernelReplay, notes: list[str]) -> str:
    """Replay one file; returns why it cannot be read, "" where it was."""
    before, known = replay.lines, replay.known
    try:
        with open_log(path) as file:
            binary = b"\0" in file.peek()
            for saved in saved_lines(unpacked(file), _written_s(file)):
                replay.take(saved)
            if replay.lines == before:
                notes.append(f"{path}: empty")
            elif replay.known == known and binary:
                return "binary, not a log"
            elif _cut_off(file):
                notes.append(f"{path}: ends in the middle of a line, which may be cut off")
    except EOFError:
        notes.append(f"{path}: cut off; what could be unpacked was read")
    except zlib.error as error:
        return f"damaged: {error}"
    except (NoLog, NotALog, OSError) as error:
        return str(getattr(error, "strerror", None) or error)
    return ""


def _written_s(file: io.BufferedReader) -> float:
    """No line of it is younger: Unix seconds, which tell the year of stamps that have none."""
    known, now_s = os.fstat(file.fileno()), time.time()
    plain = stat.S_ISREG(known.st_mode) and known.st_mtime > OLDEST_S
    return min(known.st_mtime, now_s) if plain else now_s


def _cut_off(file: io.BufferedReader) -> bool:
    """A plain file whose last line has no end: of `..., 79` may be left `..., 7`."""
    if not file.seekable():
        return False
    file.seek(0)
    if file.peek(2).startswith(GZIP):
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"


# ---------------------------------------------------------------- for people


def as_text(answer: Answer) -> str:
    """A table of all faults, then what each of those that matter means."""
    boots = f", {answer.boots} boots" if answer.boots > 1 else ""
    told = f"{count(answer.lines, 'line')}{boots}, {count(len(answer.faults), 'distinct fault')}"
    head = [f"{', '.join(answer.files)}: {told}"]
    if answer.unbelieved:
        head.append(f"not believed, because other programs wrote them: {count(answer.unbelieved, 'line')}")
    if answer.not_shown:
        head.append(f"not shown: {count(answer.not_shown, 'line')} about further faults")
    head += answer.notes
    if not answer.faults:
        return "\n".join([*head, "No fault."]) + "\n"
    rows = [
        (
            fault.severity,
            f"{fault.entity} {fault.code}",
            fault.action,
            str(fault.count),
            *_times(fault),
            _end(fault),
        )
        for fault in answer.faults
    ]
    heads = ("SEVERITY", "WHAT", "ACTION", "TIMES", "FIRST", "LAST", "ENDED BY")
    lines = [*head, "", *table(heads, rows, right=("TIMES",))]
    for fault in answer.faults:
        if fault.severity != Severity.INFO:
            lines += ["", *explained(fault)]
    return "\n".join(lines) + "\n"


def explained(fault: Fault) -> Iterable[str]:
    who = f" by pid {fault.pid}" if fault.pid is not None else ""
    who += f" ({fault.process})" if fault.process else ""
    who += f", {fault.job}" if fault.job else ""
    uuid = f" {fault.uuid}" if fault.uuid else ""
    yield printable(f"{fault.severity}: {fault.entity}{uuid}{who}: {fault.summary}")
    yield f"    Sentinel: {fault.would}"
    bucket = f" (NVIDIA: {fault.bucket})" if fault.bucket else ""
    yield f"    {fault.action}: {fault.do}{bucket}"
    for text in fault.evidence[:2]:
        yield "    > " + printable(text[:SHOWN_CHARS])


def _times(fault: Fault) -> tuple[str, str]:
    return (
        _moment(fault.first_wall_s, fault.first_uptime_s),
        _moment(fault.last_wall_s, fault.last_uptime_s),
    )


def _moment(wall_s: float | None, uptime_s: float | None) -> str:
    if wall_s is not None:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall_s))
    return "" if uptime_s is None else f"{uptime_s:.1f} s after boot"


def _end(fault: Fault) -> str:
    return fault.ended_by or "stands"
