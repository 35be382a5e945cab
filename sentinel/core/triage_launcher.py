"""What a launcher (torchrun, mp.spawn, accelerate) says of the processes that it started, in its own log. Pure.

To Sentinel the launcher is one rank, and what its processes print is that rank's log.
"""

import re

from msgspec import structs

from sentinel.core.triage_case import Case, Why, finding_clause
from sentinel.core.triage_rows import Row

# How launchers number their processes: `[rank1]: ` and `[default1]:` before a line, torchrun's own report, mp.spawn's.
_INNER = re.compile(
    r"^\[(?:rank|default)(\d+)\]:|\blocal_rank: (\d+)\b|\bprocess (\d+) terminated\b|^-- Process (\d+) terminated"
)


def inner_rank(line: str) -> int | None:
    """The number, among the processes of a launcher, of the one that a line is about."""
    found = _INNER.search(line)
    return next(int(number) for number in found.groups() if number is not None) if found else None


def named_inner(why: Why, row: Row, case: Case) -> Why:
    """With which of a launcher's processes it was."""
    number = inner_rank(row.match.line)
    if number is None or (case.size > 1 and number == row.match.rank):  # a rank may say its own number
        return why
    note = f"It was rank {number} of those that a launcher had started."
    return structs.replace(why, note=f"{why.note} {note}".strip())


def by_silent_end(case: Case) -> Why | None:
    """A process of the launcher that ended without a word, while others complain that it is gone."""
    told = next((row for row in case.of("cascade") if _ended(row) is not None), None)
    if told is None or case.size > 1:
        return None
    gone = _ended(told)
    complaining = {
        n for row in case.rows if _ended(row) is None and (n := inner_rank(row.match.line)) is not None
    }
    # The launcher counts on its own machine, its ranks on all of them: these are the same on the first machine only.
    first_machine = 0 in complaining if gone else 1 in complaining and len(complaining) > 1
    if gone in complaining or not first_machine:
        return None
    return named_inner(Why(cls=told.cls, rank=told.match.rank), told, case)


def _ended(row: Row) -> int | None:
    return inner_rank(row.match.line) if row.cls.id == "rank-exit" else None


def killed_for_memory(why: Why, case: Case) -> Why | None:
    """A line names the pid of a process that was killed, of a data loader or a launcher, and so does the kernel, which
    did it for memory."""
    if why.cls.id not in ("dataloader", "killed"):
        return None
    told = " ".join(row.match.line for row in case.rows if row.match.rank == why.rank and row.cls is why.cls)
    pids = set(re.findall(r"\d+", told))
    cls = case.failures["host-oom"]
    for finding in case.findings:
        if finding.pid is not None and str(finding.pid) in pids and finding.code in cls.codes:
            clause = finding_clause(finding, "")
            return structs.replace(why, cls=cls, finding=finding, code=finding.code, clause=clause)
    return None
