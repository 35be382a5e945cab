"""What `sentinel explain` says: for a person in a hurry, and as JSON with stable keys."""

import time
from collections.abc import Iterator

from sentinel.console.tables import pairs
from sentinel.explain.job import Answer, Explanation, Kernel, Line
from sentinel.notify.text import count
from sentinel.replay.kernel import SHOWN_CHARS, explained
from sentinel.replay.records import lines as records_lines
from sentinel.web.words import duration, number, printable

MOST_LOGS = 4
MOST_SKIPPED = 10
MOST_FAULTS = 8


def as_text(answer: Answer) -> str:
    parts = [_job(job) for job in answer.jobs if not job.quiet]
    for records in answer.records:
        parts.append(
            [
                *(records_lines(records) if records.files else []),
                *map(printable, records.notes),
            ]
        )
    parts += [_kernel(kernel) for kernel in answer.kernels]
    quiet = [path for job in answer.jobs if job.quiet for path in job.logs]
    last = [f"nothing is known in: {_named(quiet)}"] if quiet else []
    parts.append([*last, *map(printable, answer.notes), *_skipped(answer)])
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _named(paths: list[str]) -> str:
    more = f" and {len(paths) - MOST_LOGS} more" if len(paths) > MOST_LOGS else ""
    return printable(", ".join(paths[:MOST_LOGS])) + more


def _job(job: Explanation) -> list[str]:
    ranks = "1 rank" if job.ranks == 1 else f"{job.ranks} ranks"
    steps = f", the last is step {number(job.last_step)}" if job.last_step is not None else ""
    span = "" if job.start_s is None or job.end_s is None else f", over {duration(job.end_s - job.start_s)}"
    head = [f"{_named(job.logs)}: {ranks}, {count(job.iterations, 'iteration')}{steps}{span}"]
    head += ["", printable(job.sentence)]
    rows: list[tuple[str, str]] = []
    if job.verdict is not None:
        why, of_rank = job.verdict, ""
        if job.ranks > 1 and why.rank is not None:
            of_rank = f", rank {why.rank}"
        rows.append(("cause", f"{why.cause}; class {why.failure}; of the {why.scope}{of_rank}"))
        rows += [("restart", job.restart), ("to do", job.change), ("certainty", why.confidence)]
    rows += [("note", note) for note in job.notes]
    lines = [*head, *(f"  {line}" for line in pairs([(name, printable(text)) for name, text in rows]))]
    if job.lines:
        lines += ["", "  What happened first stands first:", *(f"    {text}" for text in _lines(job.lines))]
    if job.earlier:
        lines += [
            "",
            "  Before that, and lived through:",
            *(f"    {printable(text)}" for text in job.earlier),
        ]
    return lines


def _lines(found: list[Line]) -> Iterator[str]:
    for line in found:
        at = "" if line.at_s is None else time.strftime("%Y-%m-%d %H:%M:%S  ", time.localtime(line.at_s))
        at = at if line.stamped or not at else f"after {at}"
        where = line.path if line.number is None else f"{line.path}:{line.number}"
        yield printable(f"{at}{where}  {line.what}")
        yield printable(f"    {line.text.splitlines()[0][:SHOWN_CHARS] if line.text else ''}")


def _kernel(kernel: Kernel) -> list[str]:
    if not kernel.faults:
        return [f"{_named(kernel.logs)}: no fault is known in it."]
    lines = [f"{_named(kernel.logs)}: {count(len(kernel.faults), 'distinct fault')}, the worst first"]
    for fault in kernel.faults[:MOST_FAULTS]:
        lines += ["", *explained(fault)]
    if (more := len(kernel.faults) - MOST_FAULTS) > 0:
        lines += ["", f"and {count(more, 'more fault')}: sentinel replay --kernel tells all"]
    return lines


def _skipped(answer: Answer) -> Iterator[str]:
    for one in answer.skipped[:MOST_SKIPPED]:
        yield printable(f"not read: {one.path}: {one.why}")
    if (more := len(answer.skipped) - MOST_SKIPPED) > 0:
        yield f"not read: {more} more"
