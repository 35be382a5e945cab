"""What `sentinel explain` says: for a person in a hurry, and as JSON with stable keys."""

import time
from collections.abc import Iterator

import msgspec

from sentinel.cli.explain_job import Answer, Explanation, Line
from sentinel.cli.replay_kernel import SHOWN_CHARS, explained
from sentinel.cli.tables import pairs
from sentinel.notify.text import count
from sentinel.web.words import duration, number, printable

MOST_LOGS = 4
MOST_SKIPPED = 10


def as_json(answer: Answer) -> str:
    return msgspec.json.format(msgspec.json.encode(answer), indent=2).decode() + "\n"


def as_text(answer: Answer) -> str:
    parts = [_job(job) for job in answer.jobs]
    if answer.kernel_logs:
        parts.append(_kernel(answer))
    parts.append([*map(printable, answer.notes), *_skipped(answer)])
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _job(job: Explanation) -> list[str]:
    ranks = "1 rank" if job.ranks == 1 else f"{job.ranks} ranks"
    steps = f", the last is step {number(job.last_step)}" if job.last_step is not None else ""
    paths = printable(", ".join(job.logs[:MOST_LOGS]))
    more = f" and {len(job.logs) - MOST_LOGS} more" if len(job.logs) > MOST_LOGS else ""
    span = "" if job.start_s is None or job.end_s is None else f", over {duration(job.end_s - job.start_s)}"
    head = [f"{paths}{more}: {ranks}, {count(job.iterations, 'iteration')}{steps}{span}"]
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


def _kernel(answer: Answer) -> list[str]:
    paths = printable(", ".join(answer.kernel_logs[:MOST_LOGS]))
    if not answer.faults:
        return [f"{paths}: no fault is known in it."]
    lines = [f"{paths}: {count(len(answer.faults), 'distinct fault')}, the worst first"]
    for fault in answer.faults:
        lines += ["", *explained(fault)]
    return lines


def _skipped(answer: Answer) -> Iterator[str]:
    for one in answer.skipped[:MOST_SKIPPED]:
        yield printable(f"not read: {one.path}: {one.why}")
    if (more := len(answer.skipped) - MOST_SKIPPED) > 0:
        yield f"not read: {more} more"
