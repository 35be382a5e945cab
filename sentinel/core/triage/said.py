"""What a line of a program says of the world outside it: a host that did not answer, a port in use. Pure.

A program may go on after such a failure (it tries again, takes its cache, another port): it explains an end only
where it is the last that is said of it. Lines that are read together have one time, so their order alone counts.
"""

import re
from collections.abc import Sequence, Set
from itertools import takewhile

from msgspec import structs

from sentinel.core.reports import RankExit, signal_of
from sentinel.core.triage.case import Case, Why
from sentinel.core.triage.launcher import (
    in_whole_job,
    inner_rank,
    named_inner,
    of_worker,
    process_of,
    report_of,
)
from sentinel.core.triage.rows import ABORTED, Row

UNREACHABLE, PORT, LOCKED, OOM = "unreachable", "port-in-use", "locked-memory", "host-oom"
SURVIVED = (UNREACHABLE, PORT, LOCKED)
# Exceptions that programs catch, print, and do without.
CAUGHT = (
    "import-error",
    "syntax-error",
    "user-exception",
    "memory-refused",
    "no-terminal",
    "access-denied",
)
# Lines in which a parent, or a launcher, tells how a process ended that it had started.
_OF_A_CHILD = ("terminated", "interrupted", "killed", "segfault", "dataloader")
_CHILD = re.compile(r"\b(?:CalledProcessError|RayTaskError|RayActorError|ActorDiedError)\b")
_ABORTS = re.compile(
    r"\bCould not load library |\bstd::bad_alloc\b|\bDefaultCPUAllocator\b"
)  # words before abort()

# What libstdc++ prints of an exception that nobody has caught: in the second line its own words.
_THROWN = re.compile(r"\bterminate called after throwing an instance of ")
_WHAT = re.compile(r"^.{0,60}\bwhat\(\): ")

SIGABRT = 6
ENDS_S = 10.0  # that a program takes at most from what it raises to its end

_HOST = re.compile(
    r"\bhost='([\w.-]+)', port=(\d+)|\bconnect to host ([\w.-]+):(\d+)|\bConnection to ([\w.-]+) timed out"
    r"|\b[Ff]ailed to resolve '([\w.-]+)'|\bhttps?://([\w.-]+)(?::(\d+))?"
)
_PORT = re.compile(
    r"\bport: (\d+)|(?:bind to|listen on) \S+:(\d+)\b|bind on address \('[^']*', (\d+)|\b[Pp]ort (\d+)\b"
)


def survived(row: Row, roots: Sequence[Row], dead: Set[int], case: Case) -> bool:
    """Did its rank get on after this failure? `roots`: what may explain the end; `dead`: ranks whose end says itself
    why."""
    if row.cls.id not in SURVIVED:
        return False
    rank = row.match.rank
    ended = case.exit_of(rank) is not None
    if rank in dead or not (ended or _all_waited(case)):
        return True
    may = {id(other) for other in roots if other.match.rank == rank or not ended}
    later = (o for o in _after(row, case) if id(o) in may or (o.match.rank == rank and o.cls.complains))
    return any(_is_about_another(other, row) for other in later)


def outlived(row: Row, case: Case) -> bool:
    """Did its rank get on after this exception? It raised another one later, was ended by a signal, or lives."""
    if row.cls.id not in CAUGHT:
        return False
    rank, exit_ = row.match.rank, case.exit_of(row.match.rank)
    if exit_ is None:
        return bool(case.lost) and not _all_waited(case)
    if exit_.signal is not None or signal_of(exit_.code) is not None:
        ends_so = any(_ends_so(other, row) for other in _after(row, case))
        return not ends_so and not _ABORTS.search(row.match.line)
    later = [other for other in _after(row, case) if other.match.rank == rank]
    children = {
        other.match.line for other in later if other.cls.role == "report" or other.cls.id in _OF_A_CHILD
    }
    return any(
        other.cls.role == "generic"
        and not other.chained
        and other.match.line != row.match.line
        and other.match.line not in children
        and not _CHILD.search(other.match.line)
        and _one_process(other.match.line, row.match.line)
        for other in later
    )


def told_by_what(row: Row, case: Case) -> bool:
    """Does the line behind it say what was thrown? A crash is one of which no more is known."""
    if row.cls.id != "segfault" or _THROWN.search(row.match.line) is None:
        return False
    own = (other.match.line for other in _after(row, case) if other.match.rank == row.match.rank)
    behind = next((line for line in own if _THROWN.search(line) is None), "")
    return _WHAT.match(behind) is not None


def ended_by_abort(why: Why, case: Case, exit_: RankExit | None = None) -> Why:
    """What libstdc++ says of a program that ends while threads of it still run, as those of gloo may, where nothing
    else is known of an end by SIGABRT. `exit_`: that end, where it is not the rank's. Where others complain that they
    lost a rank, who had aborted before they did is the one; no GPU is to blame for it."""
    if why.cls.complains:
        before = takewhile(lambda row: not row.cls.complains, case.rows)
        first = (row for row in before if row.cls.role == "abort")
        return next((_as_said(row, case) for row in first if _aborted(row.match.rank, case)), why)
    if why.rank is None or (why.cls.role != "report" and why.cls.id != "unknown"):
        return why
    if not _aborted(why.rank, case, exit_):
        return why
    report = report_of(why.rank, case)
    may = {None, why.worker, None if report is None else inner_rank(report.match.line)}
    for row in case.rows:
        if row.cls.role != "abort" or row.match.rank != why.rank or _has_a_reason(row, case):
            continue
        number = process_of(row.match.line)
        if why.worker is None or number in may:
            told = structs.replace(why, cls=row.cls, clause="")
            return told if why.worker is not None else of_worker(told, number)
    return why


def _as_said(row: Row, case: Case) -> Why:
    """The rank that said it, and of a launcher's processes the one whose line it is, else that of its report."""
    why, number = Why(cls=row.cls, rank=row.match.rank), process_of(row.match.line)
    report = report_of(row.match.rank, case)
    if report is not None and number in (None, inner_rank(report.match.line)):
        told = named_inner(why, report, case)
        why = told if told.worker is not None else why
    return why if why.worker is not None else of_worker(why, in_whole_job(number, row, case))


def _aborted(rank: int, case: Case, exit_: RankExit | None = None) -> bool:
    """Did this rank end so, or a process of it by what it, a launcher, reports?"""
    exit_, report = exit_ or case.exit_of(rank), report_of(rank, case)
    if exit_ is not None and SIGABRT in (exit_.signal, signal_of(exit_.code)):
        return True
    return report is not None and report.cls.id == ABORTED


def _has_a_reason(row: Row, case: Case) -> bool:
    """The same process had told before why it ends, of an exception or of another rank that was lost. Where the ranks
    of a launcher write into one file without a mark, who dies first has said so before others can complain of it."""
    before = takewhile(lambda other: other is not row, case.rows)
    explains = (o for o in before if o.cls.complains or o.cls.role == "generic" or o.cls.id in CAUGHT)
    return any(_ends_so(row, other) for other in explains)


def _ends_so(aborts: Row, why: Row) -> bool:
    """Is it that word, of a process that has told just before why it ends?"""
    return (
        aborts.cls.role == "abort"
        and aborts.match.rank == why.match.rank
        and aborts.match.at_s - why.match.at_s <= ENDS_S
        and _one_process(aborts.match.line, why.match.line)
    )


def _one_process(one: str, other: str) -> bool:
    numbers = {number for line in (one, other) if (number := process_of(line)) is not None}
    return len(numbers) < 2


def _after(row: Row, case: Case) -> Sequence[Row]:
    place = next(k for k, other in enumerate(case.rows) if other is row)  # not one that is equal
    return case.rows[place + 1 :]


def _all_waited(case: Case) -> bool:
    """Who was lost complains of others: it may have waited for the one that could not get on."""
    complaining = {row.match.rank for row in case.of("symptom", "cascade", "report")}
    return all(exit_.rank in complaining for exit_ in case.lost)


def _is_about_another(other: Row, row: Row) -> bool:
    if other.cls.id in SURVIVED or other.match.line == row.match.line:
        return False
    nccls = row.cls.id == LOCKED and "NCCL WARN" in row.match.line  # NCCL gives up after it, and says so
    return not (nccls and other.cls.id == "nccl-abort")


def clause_of(row: Row, case: Case) -> str:
    """What the line, and those of the same kind beside it, tell more than the sentence of the class."""
    told = [one.match.line for one in case.rows if one.match.rank == row.match.rank and one.cls is row.cls]
    if row.cls.id == UNREACHABLE:
        host = next((name for line in told if (name := _host_in(line))), "")
        return f"the program could not reach {host}" if host else ""
    if row.cls.id == PORT:
        found = next((found for line in told if (found := _PORT.search(line))), None)
        port = next((number for number in found.groups() if number), "") if found else ""
        return row.cls.sentence.replace("a port ", f"port {port} ", 1) if port else ""
    if row.cls.id == OOM:  # the kernel's own word, by pid or control group, is believed before all lines
        return "its log says that processes were killed because memory ran out"
    return ""


def _host_in(line: str) -> str:
    found = _HOST.search(line)
    if found is None:
        return ""
    name, port, other, other_port, silent, unknown, url, url_port = found.groups()
    host = name or other or silent or unknown or url
    number = port or other_port or url_port or ""
    return host if number in ("", "80", "443") else f"{host}:{number}"
