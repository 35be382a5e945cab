"""The tables in docs/job-kinds.md, from rules/job_kinds.toml: `python -m sentinel.docs.job_kinds FILE`."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from sentinel.core.job.kinds import ANY, Finished, JobKind, KeepOff, Loss, Means, Resize, Role
from sentinel.docs.recovery import replaced
from sentinel.rules.job_kinds import JobTable, job_table

BEGIN, END = "<!-- generated from rules/job_kinds.toml -->", "<!-- end of the generated part -->"

KEPT_OFF = {
    KeepOff.TEMPLATE: "affinity in the templates",
    KeepOff.STOPPED: "affinity in the templates, while stopped",
    KeepOff.UNSTARTED: "affinity in the template, while suspended, start time cleared",
    KeepOff.CHILDREN: "affinity in its Jobs, while suspended, start time cleared",
    KeepOff.SELECTOR: "not kept off: waits while that node takes pods",
    KeepOff.NONE: "nothing",
}
SIZED = {
    Resize.ANY_TIME: "at any time",
    Resize.STOPPED: "while stopped",
    Resize.FIXED: "never",
    Resize.RECREATE: "only recreated",
}
DONE = {Finished.STAY: "stay ended", Finished.AGAIN: "run again", Finished.BLOCK: "run again once deleted"}
LOST = {
    Loss.REPLACED: "made anew",
    Loss.GROUP: "its group is made anew",
    Loss.JOB: "all are made anew",
    Loss.FAILS: "the job fails",
}


def tables(table: JobTable) -> str:
    rows = table.rows
    parts = [
        _table(
            (
                "kind",
                "stopped and started by",
                "kept off a node by",
                "size changes",
                "ranks that had ended well",
            ),
            (
                (_name(row), _means(row), KEPT_OFF[row.keep_off], SIZED[row.resize], DONE[row.finished])
                for row in rows
            ),
        ),
        _table(
            ("kind", "its pods", "rank", "no ranks", "a lost pod"),
            (
                (_name(row), _code(row.pods) or "by their owner", _rank(row), _others(row), _lost(row))
                for row in rows
            ),
        ),
        _table(
            ("kind", "ended well", "failed", "own limits on restarts", "tried", "source"),
            (
                (
                    _name(row),
                    _ends(row, row.succeeded),
                    _ends(row, row.failed),
                    _limits(row),
                    row.tried,
                    row.source,
                )
                for row in rows
            ),
        ),
        _table(
            ("trap", "what happens", "what Sentinel does", "kinds"),
            (
                (
                    _code(trap.id),
                    trap.text,
                    trap.so,
                    ", ".join(_short(row, rows) for row in rows if trap.id in row.traps),
                )
                for trap in table.traps.values()
            ),
        ),
    ]
    titles = ("Means", "Pods and ranks", "Ends and limits", "Traps")
    return "\n\n".join(f"## {title}\n\n{part}" for title, part in zip(titles, parts, strict=True))


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    cells = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(cell or "–" for cell in line) + " |" for line in cells)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _name(row: JobKind) -> str:
    return "pods of any other owner" if row.fallback else _code(row.title)


def _short(row: JobKind, rows: Sequence[JobKind]) -> str:
    """Its kind alone where no other has that name."""
    if row.fallback:
        return "pods"
    alike = {(one.group, one.version, one.title) for one in rows if one.kind == row.kind and not one.fallback}
    return row.kind if len(alike) == 1 else row.title


def _means(row: JobKind) -> str:
    if row.stop is Means.SUSPEND:
        return _code(row.suspend)
    if row.stop is Means.SCALE:
        return "0 replicas, and back"
    if row.stop is Means.COMMAND:
        return "Volcano's commands"
    return (
        f"{_code(row.suspend)}, then eviction" if row.suspend else "eviction; its operator starts it at once"
    )


def _rank(row: JobKind) -> str:
    sources = [_code(source) for source in row.rank]
    if row.index:
        first = " × pods of each + ".join(_code(one[0]) for one in (row.outer, row.index) if one)
        sources.append(first)
    return " or ".join(sources) or "by the order of names"


def _others(row: JobKind) -> str:
    return ", ".join(f"{name}: {role}" for name, role in row.roles.items() if role is not Role.RANK)


def _lost(row: JobKind) -> str:
    if not row.on_loss:
        return LOST[Loss.REPLACED]
    said: dict[Loss, list[str]] = {}
    for policy, loss in row.on_loss.items():
        said.setdefault(loss, []).append("else" if policy == ANY else policy)
    return "; ".join(f"{', '.join(policies)}: {LOST[loss]}" for loss, policies in said.items())


def _ends(row: JobKind, ends: Sequence[str]) -> str:
    if not ends:
        return ""
    return f"{_code(row.phase)} {', '.join(ends)}" if row.phase else ", ".join(ends)


def _limits(row: JobKind) -> str:
    costs = f"; a start costs {row.start_costs}" if row.start_costs else ""
    return ", ".join(_code(one.at) for one in row.limits) + costs


def renewed(text: str) -> str:
    """`text` with the generated part made again. Raises ValueError where the markers are missing."""
    return replaced(text, BEGIN, END, tables(job_table()))


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(renewed(file.read_text("utf-8")), "utf-8")
