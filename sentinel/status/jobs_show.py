"""The jobs of a cluster for people: a table, or one job with its story."""

from sentinel.console.tables import table
from sentinel.core.now import Now
from sentinel.status import job_show
from sentinel.status.fleet_show import led
from sentinel.status.jobs_read import JobView, told_of
from sentinel.web.fleet_view import JOB_STATES, JobRow, JobsView
from sentinel.web.words import number, when

MOST_ROWS = 30


def overview(view: JobsView, *, every: bool) -> list[str]:
    rows = view.rows if every else view.rows[:MOST_ROWS]
    lines = [counted(view)]
    if rows:
        heads = ["NAMESPACE", "KIND", "NAME", "STATE", "SIZE", "RUN", "STEP", "RESTARTS", "WHY"]
        right = ("SIZE", "RUN", "STEP")
        lines += ["", *table(heads, [_cells(row) for row in rows], right=right)]
    if len(view.rows) > len(rows):
        lines.append(f"… and {len(view.rows) - len(rows)} more: `sentinel status --all`")
    return lines


def counted(view: JobsView) -> str:
    if not view.rows:
        return "No job is protected."
    told = ", ".join(
        f"{view.counts[state]} {words}" for state, words in JOB_STATES.items() if view.counts.get(state)
    )
    jobs = "1 protected job" if len(view.rows) == 1 else f"{len(view.rows)} protected jobs"
    return f"{jobs}: {told}."


def _cells(row: JobRow) -> list[str]:
    state = row.phase if row.state == "recovering" else row.state
    why = f"{row.ordered} ({row.job_state.value})" if row.state == "ordered" else row.sentence or row.reason
    return [
        row.namespace,
        row.kind.partition(".")[0],
        row.name,
        state + ("" if row.mode == "enforce" else f" ({row.mode}s)"),
        size(row),
        str(row.incarnation),
        number(row.step),
        job_show.restarts(row.restarts_used, row.restarts_left),
        why,
    ]


def size(row: JobRow) -> str:
    return str(row.size) if row.size == row.original_size else f"{row.size} of {row.original_size}"


def details(shown: JobView, now: Now) -> list[str]:
    more = [
        ("Policy", shown.policy.removeprefix("policy ")),
        ("Told by mail", ", ".join(shown.told) or "the administrators"),
        ("Held until", when(shown.held_until_wall_s, now.wall_s) if shown.held_until_wall_s else ""),
        ("Ordered", f"{shown.job.ordered}, which waits for a controller" if shown.job.ordered else ""),
        ("Last order", "" if shown.answer is None else str(shown.answer.get("sentence", ""))),
    ]
    return job_show.details(told_of(shown, now), led(shown.leader), more)
