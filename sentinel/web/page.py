"""One job as HTML: the whole page of `sentinel run`, and a page of a cluster's."""

from collections.abc import Sequence

from sentinel.core.health import Finding, Severity
from sentinel.core.model import Incident, JobState, Phase
from sentinel.web.course import course
from sentinel.web.html import badge, banner, card, document, esc, link, sections, short, table, tiles
from sentinel.web.view import RankRow, View, matter, open_incident
from sentinel.web.words import NONE, duration, lost, milliseconds, number, ratio, when

MAX_RANKS = 1024  # rows of a page
MOST_FINDINGS = 100

STATE_CLASS = {
    JobState.RUNNING: "good",
    JobState.SUCCEEDED: "good",
    JobState.QUEUED: "busy",
    JobState.EXPIRED: "busy",
    JobState.ERROR: "bad",
}
_PHASE_CLASS = {
    Phase.RECOVERED: "good",
    Phase.ENDED: "",
    Phase.CANCELLED: "",
    Phase.EXHAUSTED: "bad",
    Phase.FAILED: "bad",
}
_SEVERITY_CLASS = {
    Severity.INFO: "",
    Severity.WARNING: "busy",
    Severity.DEGRADED: "busy",
    Severity.FATAL: "bad",
}


def page(view: View) -> str:
    """The whole page."""
    return document(view.name, fragment(view), view.version)


def fragment(view: View) -> str:
    """The sections of the page of `sentinel run`."""
    return sections(job_sections(view))


def job_sections(view: View) -> list[tuple[str, str]]:
    """One job, wherever it runs: each section with its id."""
    return [
        ("job", _head(view)),
        ("warnings", _banners(view)),
        ("numbers", tiles(_tiles(view))),
        ("course", course(view)),
        ("ranks", card("Ranks", _ranks(view.ranks))),
        ("incidents", card("Incidents", _incidents(view), "Nothing has happened to this job.")),
        ("findings", card("Health findings", findings(view.findings, view.at_wall_s), "No findings stand.")),
        ("events", card("Events", _events(view))),
    ]


def _head(view: View) -> str:
    told = ": ".join(part for part in (view.reason, view.sentence) if part)
    command = " ".join(view.command)
    observing = badge("observe: decides and touches nothing", "busy") if view.mode == "observe" else ""
    incident = open_incident(view)
    phase = badge(incident.phase, "busy") if incident else ""
    name = esc(view.name).replace("/", "/<wbr>")  # where a phone may break it
    return (
        f'<div class="top"><h1>{name}</h1>{badge(view.state, STATE_CLASS.get(view.state, ""))}'
        f"{phase}{observing}</div>"
        + (f'<p class="lead">{esc(told)}</p>' if told else "")
        + (f'<p class="lead soft"><code>{esc(command)}</code></p>' if command else "")
        + _wrong(view)
    )


def _wrong(view: View) -> str:
    """Of a job that is being recovered or was given up: what happened to it, and what to do."""
    wrong = matter(view)
    if wrong is None:
        return ""
    verdict = wrong.verdict
    told = f"{when(wrong.opened_wall_s, view.at_wall_s)}: {verdict.sentence} {verdict.advice}".rstrip()
    return banner("bad" if wrong.phase.final else "busy", told)


def _banners(view: View) -> str:
    told: list[tuple[str, str]] = []
    if view.protector is None and not view.state.final:
        told.append(("bad", f"Nobody protects this job. Run: sentinel attach {view.name}"))
    elif view.protector and not view.protector.healthy:
        age = duration(view.protector.loop_age_s)
        told.append(("bad", f"Sentinel's control loop has not turned for {age}: it decides nothing now."))
    told += [("busy", f"Degraded: {mode}") for mode in view.degraded]
    if view.save_note:
        told.append(("busy", f"Not save-capable: {view.save_note}"))
    told += [("busy", note) for note in view.notes]
    if view.excluded:
        told.append(("busy", f"Not used by this job: {', '.join(view.excluded)}"))
    return "".join(banner(kind, text) for kind, text in told)


def _tiles(view: View) -> list[tuple[str, str, str]]:
    pace = f"{view.rate:.3g} iterations/s" if view.rate else ""
    hardware = f"hardware {milliseconds(view.hardware_ms)}" if view.hardware_ms is not None else ""
    saved = view.checkpoint
    proof = f"saved {when(saved.wall_s, view.at_wall_s)}" if saved else ""
    size = f"{view.size} rank{'s' if view.size != 1 else ''}"
    if view.size != view.original_size:
        size += f" of {view.original_size}"
    shown = [
        _how_far(view, pace),
        ("Step time", milliseconds(view.step_ms), hardware),
        ("Hardware ratio", ratio(view.ratio), ""),
        ("Restarts left", f"{view.restarts.left} of {view.restarts.allowed}", _spent(view)),
        ("Time left", duration(view.time_left_s), f"ran {duration(view.run_s)}"),
        ("Incarnation", number(view.incarnation), size),
    ]
    if saved:
        shown.append(("Proved checkpoint", number(saved.step), proof))
    if view.exit_code is not None:
        shown.append(("Exit code", number(view.exit_code), ""))
    return shown


def _how_far(view: View, pace: str) -> tuple[str, str, str]:
    if view.step is None and view.iterations is not None:
        return "Iterations since its start", number(view.iterations), pace
    return "Iteration", number(view.step), pace


def _spent(view: View) -> str:
    spent = (
        (view.restarts.used_infrastructure, "infrastructure"),
        (view.restarts.used_job, "job"),
        (view.restarts.used_free, "free"),
    )
    return ", ".join(f"{count} {name}" for count, name in spent if count)


def _ranks(rows: tuple[RankRow, ...]) -> str:
    told = any(row.step is not None for row in rows)
    names = ("Iteration" if told else "Iterations", "Step time", "Hardware", "Ratio", "Rate", "Last")
    heads = [("Rank", "number"), ("State", ""), *((name, "number") for name in names)]
    nodes, pids = any(row.node for row in rows), any(row.pid is not None for row in rows)
    heads += [("Node", "")] * nodes + [("PID", "number")] * pids
    more = len(rows) - MAX_RANKS
    left_out = f'<p class="soft lead">{more} more ranks: the JSON has them all.</p>' if more > 0 else ""
    return table(heads, (_rank(row, told, nodes, pids) for row in rows[:MAX_RANKS])) + left_out


def _rank(row: RankRow, told: bool, nodes: bool, pids: bool) -> str:
    step_ms = row.e2e_ms if row.e2e_ms is not None else row.step_ms
    bar = ""
    if row.ratio is not None:
        share = min(1.0, max(0.0, row.ratio))
        bar = f'<meter min="0" max="1" value="{share:.3f}" aria-label="hardware ratio">{share:.2f}</meter>'
    cells = (
        number(row.step if told else row.iterations),
        milliseconds(step_ms),
        milliseconds(row.hardware_ms),
        ratio(row.ratio),
        NONE if row.rate is None else f"{row.rate:.3g}/s",
        NONE if row.last_age_s is None else f"{duration(row.last_age_s)} ago",
    )
    numbers = "".join(
        f'<td class="number">{bar if index == 3 else ""}{esc(cell)}</td>' for index, cell in enumerate(cells)
    )
    kind = "good" if row.state == "running" else ""
    ends = f"<td>{link(row.node, 'nodes', row.node) if row.node else ''}</td>" * nodes
    ends += f'<td class="number">{number(row.pid)}</td>' * pids
    return f'<td class="number">{row.rank}</td><td>{badge(row.state, kind)}</td>{numbers}{ends}'


def _incidents(view: View) -> str:
    newest = view.incidents[0].id if view.incidents else ""
    return "".join(_incident(item, view.at_wall_s, item.id == newest) for item in view.incidents)


def _incident(item: Incident, now_wall_s: float, opened: bool) -> str:
    verdict = item.verdict
    facts = [
        f"{verdict.symptom}, cause: {verdict.cause}",
        f"class: {verdict.failure}",
        f"scope: {verdict.scope}",
    ]
    if verdict.who is not None:
        facts.append(f"rank {verdict.who}")
    if verdict.entity:
        facts.append(verdict.entity)
    if verdict.confidence:
        facts.append(verdict.confidence)
    story = "".join(
        f'<li><span class="soft mono">{when(step.wall_s, now_wall_s)}</span> <b>{esc(step.phase)}</b> '
        f'{esc(step.sentence or step.reason)} <span class="soft">{esc(step.reason)}</span></li>'
        for step in item.steps
    )
    evidence = "\n".join(esc(line) for line in verdict.evidence)
    stacks = "\n\n".join("\n".join(esc(line) for line in text.splitlines()) for text in item.stacks)
    outcome = ": ".join(part for part in (item.reason, item.sentence) if part)
    kind = _PHASE_CLASS.get(item.phase, "busy")
    name = esc(f"incident-{item.id}")
    return (
        f'<details id="{name}"{" open" if opened else ""}><summary id="{name}-title">'
        f'<span class="mono">{when(item.opened_wall_s, now_wall_s)}</span>{badge(item.phase, kind)}'
        f"{esc(verdict.sentence)}</summary>"
        f'<p class="lead soft">{esc(" · ".join(facts))}</p>'
        + (f'<p class="lead">{esc(outcome)}</p>' if outcome else "")
        + (f'<p class="lead"><b>What to do:</b> {esc(verdict.advice)}</p>' if verdict.advice else "")
        + _lost(item)
        + (f'<ol class="story">{story}</ol>' if story else "")
        + (f'<pre aria-label="evidence">{evidence}</pre>' if evidence else "")
        + (f'<pre aria-label="stacks">{stacks}</pre>' if stacks else "")
        + "</details>"
    )


def _lost(item: Incident) -> str:
    told = []
    if item.save is not None:
        save = item.save
        said = (
            f"proved by {save.proved_by}"
            if save.proved_by
            else f"skipped, {save.skipped}"
            if save.skipped
            else ""
        )
        told.append(f"Save: {said or 'nothing proved it'}.")
    if item.lost is not None:
        if item.lost.resumed_from is not None:
            told.append(f"Resumed from iteration {item.lost.resumed_from}.")
        told.append(f"Lost: {lost(item.lost)}.")
    return f'<p class="lead">{esc(" ".join(told))}</p>' if told else ""


def findings(found: Sequence[Finding], now_wall_s: float) -> str:
    """The first of them, and how many there are besides: a broken agent may tell thousands."""
    heads = [("Severity", ""), ("Where", ""), ("Code", ""), ("What", ""), ("Seen", ""), ("Times", "number")]
    rows = (
        f"<td>{badge(item.severity, _SEVERITY_CLASS[item.severity])}</td><td>{short(_where(item))}</td>"
        f'<td>{esc(item.code)}</td><td class="text">{short(item.summary)}</td>'
        f'<td class="soft">{when(item.last_seen_wall_s, now_wall_s)}</td><td class="number">{item.count}</td>'
        for item in found[:MOST_FINDINGS]
    )
    more = len(found) - MOST_FINDINGS
    return table(heads, rows, "log") + (f'<p class="lead soft">and {more} more</p>' if more > 0 else "")


def _where(item: Finding) -> str:
    return f"{item.node}: {item.entity}" if item.node else item.entity


def _events(view: View) -> str:
    rows = (
        f'<td class="soft mono">{when(event.wall_s, view.at_wall_s)}</td>'
        f"<td>{badge(event.reason, 'busy' if event.warning else '')}</td>"
        f'<td class="text">{esc(event.sentence)}</td>'
        for event in view.events
    )
    return table([("Time", ""), ("Reason", ""), ("What", "")], rows, "log")
