"""One job with its story, for people."""

from collections.abc import Iterable

from sentinel.console.tables import pairs, table
from sentinel.core.model import Incident
from sentinel.web.view import View, matter
from sentinel.web.words import NONE, duration, lost, milliseconds, number, printable, ratio, when

EVENTS_SHOWN = 20
EVIDENCE_SHOWN = 6
STACK_LINES = 12  # of each rank


def restarts(used: int, left: int) -> str:
    return f"{used} used, {left} left"


def details(view: View, protected_by: str, more: Iterable[tuple[str, str]] = ()) -> list[str]:
    """One job with its story. `more`: lines of its head."""
    why = ": ".join(part for part in (view.reason, view.sentence) if part)
    saved = view.checkpoint
    used = restarts(view.restarts.used, view.restarts.left)
    size = str(view.size) if view.size == view.original_size else f"{view.size} of {view.original_size}"
    lines = pairs(
        (
            ("Job", view.name),
            ("State", f"{view.state.value}{' (' + why + ')' if why else ''}"),
            *_matter(view),
            ("Exit code", "" if view.exit_code is None else str(view.exit_code)),
            ("Command", " ".join(view.command)),
            ("Mode", "" if view.mode == "enforce" else view.mode),
            ("Protected by", protected_by),
            ("Page", view.protector.url if view.protector else ""),
            *more,
            ("Run", f"{view.incarnation}, ranks: {size}"),
            _how_far(view),
            ("Step time", "" if view.step_ms is None else milliseconds(view.step_ms)),
            ("Hardware ratio", "" if view.ratio is None else ratio(view.ratio)),
            ("Restarts", f"{used} of {view.restarts.allowed}"),
            ("Time", f"ran {duration(view.run_s)}, left {duration(view.time_left_s)}"),
            ("Checkpoint", f"iteration {number(saved.step)}, proved by {saved.proof}" if saved else ""),
            ("Not save-capable", view.save_note),
            ("Not used", ", ".join(view.excluded)),
        )
    )
    for title, told in (("Notes", view.notes), ("Degraded", view.degraded)):
        if told:
            lines += ["", f"{title}:", *(f"  {printable(line)}" for line in told)]
    return lines + _ranks(view) + _findings(view) + _incidents(view) + _events(view)


def _how_far(view: View) -> tuple[str, str]:
    if view.step is None and view.iterations is not None:
        return "Iterations", f"{number(view.iterations)} since its start"
    return "Iteration", "" if view.step is None else number(view.step)


def _matter(view: View) -> list[tuple[str, str]]:
    wrong = matter(view)
    if wrong is None:
        return []
    since = when(wrong.opened_wall_s, view.at_wall_s)
    return [("What happened", f"{since} {wrong.verdict.sentence}"), ("What to do", wrong.verdict.advice)]


def _ranks(view: View) -> list[str]:
    if not view.ranks:
        return []
    told = any(row.step is not None for row in view.ranks)
    step = "STEP" if told else "STEPS"
    heads = ("RANK", "STATE", "PID", step, "STEP TIME", "HARDWARE", "RATIO", "LAST")
    rows = [
        (
            str(row.rank),
            row.state,
            number(row.pid),
            number(row.step if told else row.iterations),
            milliseconds(row.e2e_ms if row.e2e_ms is not None else row.step_ms),
            milliseconds(row.hardware_ms),
            ratio(row.ratio),
            NONE if row.last_age_s is None else f"{duration(row.last_age_s)} ago",
        )
        for row in view.ranks
    ]
    return ["", *table(heads, rows, right=("RANK", "PID", step, "STEP TIME", "HARDWARE", "RATIO", "LAST"))]


def _findings(view: View) -> list[str]:
    if not view.findings:
        return []
    rows = [(item.severity.value, item.entity, item.code, item.summary) for item in view.findings]
    return ["", *table(("SEVERITY", "WHERE", "CODE", "WHAT"), rows)]


def _incidents(view: View) -> list[str]:
    lines: list[str] = []
    for item in view.incidents:
        lines += ["", f"Incident {printable(item.id)} · {item.phase.value}", *_incident(item, view.at_wall_s)]
    return lines


def _incident(item: Incident, now_wall_s: float) -> list[str]:
    verdict = item.verdict
    lines = pairs(
        (
            ("  Verdict", verdict.sentence),
            ("  Cause", f"{verdict.cause.value} ({verdict.failure}), seen as: {verdict.symptom.value}"),
            ("  Rank", number(verdict.who) if verdict.who is not None else ""),
            ("  To do", verdict.advice),
            ("  Outcome", item.sentence),
            ("  Lost", "" if item.lost is None else lost(item.lost)),
        )
    )
    lines += [f"    {printable(line)}" for line in verdict.evidence[:EVIDENCE_SHOWN]]
    lines += _stacks(item)
    rows = [
        (when(step.wall_s, now_wall_s), step.phase.value, step.sentence or step.reason) for step in item.steps
    ]
    return lines + [f"  {line}" for line in table(("TIME", "PHASE", "WHAT"), rows)] if rows else lines


def _stacks(item: Incident) -> list[str]:
    """Where each rank stood: of its threads the first lines, which are the innermost calls."""
    lines: list[str] = []
    for text in item.stacks:
        own = text.splitlines()
        lines += [f"    {printable(line)}" for line in own[:STACK_LINES]]
        if len(own) > STACK_LINES:
            lines.append(f"      … {len(own) - STACK_LINES} more lines: on the page, in the mail, by -o json")
    return ["  Stacks", *lines] if lines else []


def _events(view: View) -> list[str]:
    if not view.events:
        return []
    newest = view.events[:EVENTS_SHOWN]
    rows = [(when(event.wall_s, view.at_wall_s), event.reason, event.sentence) for event in reversed(newest)]
    return ["", *table(("TIME", "EVENT", "WHAT"), rows)]
