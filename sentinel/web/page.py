"""The status page as HTML. Everything that is shown goes through `esc`: log lines are untrusted text."""

import base64
import hashlib
import html
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from sentinel.core.model import Finding, Incident, JobState, Phase, Severity
from sentinel.web.view import RankRow, View, open_incident
from sentinel.web.words import NONE, duration, milliseconds, number, printable, ratio, when

_STATE_CLASS = {
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


def esc(value: object) -> str:
    """Text for HTML and its attributes: no mark-up, no control characters, no reordering of the line."""
    return html.escape(printable(str(value)))


@cache
def assets() -> tuple[str, str]:
    """The page's style and script."""
    folder = Path(__file__).parent
    return (folder / "page.css").read_text("utf-8"), (folder / "page.js").read_text("utf-8")


@cache
def content_security_policy() -> str:
    """Only the one inline style and the one inline script, by their hashes, and requests to ourselves."""
    style, script = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in assets())
    return (
        f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def page(view: View) -> str:
    """The whole page. Without JavaScript the browser loads it again every five seconds."""
    style, script = assets()
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<noscript><meta http-equiv="refresh" content="5"></noscript>'
        f'<link rel="icon" href="data:,"><title>{esc(view.name)} · Sentinel</title>'
        f"<style>{style}</style></head><body>"
        '<a class="skip" href="#ranks">Skip to the ranks</a><div class="frame">'
        '<p class="banner bad" id="lost" role="alert" hidden>Sentinel does not answer: what is shown is old.</p>'
        f"<main>{fragment(view)}</main>"
        '<footer class="foot"><button type="button" id="pause" aria-pressed="false" hidden>Pause updates</button>'
        '<a href="/api/v1/status">JSON</a><a href="/metrics">Metrics</a><a href="/healthz">Health</a>'
        f"<span>Sentinel {esc(view.version)}</span></footer></div><script>{script}</script></body></html>"
    )


def fragment(view: View) -> str:
    """The sections of the page, each with an id: what the script fetches and swaps."""
    sections = (
        ("job", _head(view)),
        ("warnings", _banners(view)),
        ("numbers", _tiles(view)),
        ("ranks", _card("Ranks", _ranks(view.ranks))),
        ("incidents", _card("Incidents", _incidents(view), "Nothing has happened to this job.")),
        (
            "findings",
            _card("Health findings", _findings(view.findings, view.at_wall_s), "No findings stand."),
        ),
        ("events", _card("Events", _events(view))),
    )
    return "".join(f'<section id="{name}">{content}</section>' for name, content in sections)


def _card(title: str, content: str, empty: str = "") -> str:
    if not content and not empty:
        return ""
    body = content or f'<p class="soft lead">{empty}</p>'
    return f'<div class="card"><h2>{title}</h2>{body}</div>'


def _badge(text: str, kind: str = "") -> str:
    return f'<span class="badge {kind}">{esc(text)}</span>'


def _head(view: View) -> str:
    told = ": ".join(part for part in (view.reason, view.sentence) if part)
    command = " ".join(view.command)
    observing = _badge("observe: decides and touches nothing", "busy") if view.mode == "observe" else ""
    incident = open_incident(view)
    phase = _badge(incident.phase, "busy") if incident else ""
    return (
        f'<div class="top"><h1>{esc(view.name)}</h1>{_badge(view.state, _STATE_CLASS.get(view.state, ""))}'
        f"{phase}{observing}</div>"
        + (f'<p class="lead">{esc(told)}</p>' if told else "")
        + (f'<p class="lead soft"><code>{esc(command)}</code></p>' if command else "")
    )


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
    return "".join(f'<p class="banner {kind}">{esc(text)}</p>' for kind, text in told)


def _tiles(view: View) -> str:
    pace = f"{view.rate:.3g} iterations/s" if view.rate else ""
    hardware = f"hardware {milliseconds(view.hardware_ms)}" if view.hardware_ms is not None else ""
    saved = view.checkpoint
    proof = f"saved {when(saved.wall_s, view.at_wall_s)}" if saved else ""
    size = f"{view.size} rank{'s' if view.size != 1 else ''}"
    if view.size != view.original_size:
        size += f" of {view.original_size}"
    tiles = [
        ("Iteration", number(view.step), pace),
        ("Step time", milliseconds(view.step_ms), hardware),
        ("Hardware ratio", ratio(view.ratio), ""),
        ("Restarts left", f"{view.restarts.left} of {view.restarts.allowed}", _spent(view)),
        ("Time left", duration(view.time_left_s), f"ran {duration(view.run_s)}"),
        ("Incarnation", number(view.incarnation), size),
    ]
    if saved:
        tiles.append(("Proved checkpoint", number(saved.step), proof))
    if view.exit_code is not None:
        tiles.append(("Exit code", number(view.exit_code), ""))
    cells = "".join(
        f"<div><dt>{name}</dt><dd>{esc(value)}<small>{esc(note)}</small></dd></div>"
        for name, value, note in tiles
    )
    return f'<dl class="tiles">{cells}</dl>'


def _spent(view: View) -> str:
    spent = (
        (view.restarts.used_infrastructure, "infrastructure"),
        (view.restarts.used_job, "job"),
        (view.restarts.used_free, "free"),
    )
    return ", ".join(f"{count} {name}" for count, name in spent if count)


def _table(heads: Iterable[tuple[str, str]], rows: Iterable[str], kind: str = "") -> str:
    head = "".join(f'<th scope="col" class="{css}">{name}</th>' for name, css in heads)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    table = f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll">{table}</div>' if body else ""


def _ranks(rows: Iterable[RankRow]) -> str:
    names = ("Iteration", "Step time", "Hardware", "Ratio", "Rate", "Last", "PID")
    heads = [("Rank", "number"), ("State", ""), *((name, "number") for name in names)]
    return _table(heads, (_rank(row) for row in rows))


def _rank(row: RankRow) -> str:
    step_ms = row.e2e_ms if row.e2e_ms is not None else row.step_ms
    bar = ""
    if row.ratio is not None:
        share = min(1.0, max(0.0, row.ratio))
        bar = f'<meter min="0" max="1" value="{share:.3f}" aria-label="hardware ratio">{share:.2f}</meter>'
    cells = (
        number(row.step),
        milliseconds(step_ms),
        milliseconds(row.hardware_ms),
        ratio(row.ratio),
        NONE if row.rate is None else f"{row.rate:.3g}/s",
        NONE if row.last_age_s is None else f"{duration(row.last_age_s)} ago",
        number(row.pid),
    )
    numbers = "".join(
        f'<td class="number">{bar if index == 3 else ""}{esc(cell)}</td>' for index, cell in enumerate(cells)
    )
    kind = "good" if row.state == "running" else ""
    return f'<td class="number">{row.rank}</td><td>{_badge(row.state, kind)}</td>{numbers}'


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
    if verdict.rank is not None:
        facts.append(f"rank {verdict.rank}")
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
        f'<span class="mono">{when(item.opened_wall_s, now_wall_s)}</span>{_badge(item.phase, kind)}'
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
        steps = f"{item.lost.steps} iterations, " if item.lost.steps is not None else ""
        told.append(f"Lost: {steps}{duration(item.lost.seconds)}, {item.lost.gpu_seconds:.0f} GPU-seconds.")
    return f'<p class="lead">{esc(" ".join(told))}</p>' if told else ""


def _findings(findings: Iterable[Finding], now_wall_s: float) -> str:
    heads = [("Severity", ""), ("Where", ""), ("Code", ""), ("What", ""), ("Seen", ""), ("Times", "number")]
    rows = (
        f"<td>{_badge(item.severity, _SEVERITY_CLASS[item.severity])}</td><td>{esc(item.entity)}</td>"
        f'<td>{esc(item.code)}</td><td class="text">{esc(item.summary)}</td>'
        f'<td class="soft">{when(item.last_seen_wall_s, now_wall_s)}</td><td class="number">{item.count}</td>'
        for item in findings
    )
    return _table(heads, rows, "log")


def _events(view: View) -> str:
    rows = (
        f'<td class="soft mono">{when(event.wall_s, view.at_wall_s)}</td>'
        f"<td>{_badge(event.reason, 'busy' if event.warning else '')}</td>"
        f'<td class="text">{esc(event.sentence)}</td>'
        for event in view.events
    )
    return _table([("Time", ""), ("Reason", ""), ("What", "")], rows, "log")
