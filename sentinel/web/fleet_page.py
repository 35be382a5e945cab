"""A cluster as HTML: the fleet at a glance, its nodes, its jobs, one node, one job. The sections are those that the
script fetches and swaps (page.js); a page is one of them in `html.document`."""

from collections.abc import Iterable, Sequence
from urllib.parse import urlencode

from sentinel.core.fleet.model import Brake, EndedBy, Kind, NodeQuarantine, State
from sentinel.core.fleet.words import BRAKES
from sentinel.web.fleet_view import (
    JOB_STATES,
    STATES,
    BrakeUse,
    FleetView,
    JobRow,
    JobsView,
    NodeRow,
    NodeView,
    Page,
    Row,
    Standing,
    unheard,
)
from sentinel.web.html import badge, banner, card, esc, link, sections, short, table, tiles
from sentinel.web.page import STATE_CLASS, findings, job_sections
from sentinel.web.view import View
from sentinel.web.words import NONE, duration, number, when

MOST_TROUBLES = 20
TROUBLES_FIRST = 2  # the others are folded away: what is wrong with nodes stands on the first screen
SHOWN_FIRST = 25  # of what is wrong, on the first page
MOST_PODS = 20
_BAD = frozenset({"unreachable", "isolated", "held back", "disk full"})
_JOB_CLASS = {"recovering": "busy", "ordered": "busy"} | {
    state.value: css for state, css in STATE_CLASS.items()
}
_BRAKE_NAMES = {"isolations": "Isolations", "full-disks": "Full disks", "removals": "Removals by force"}


def fleet(standing: Standing, view: FleetView, jobs: JobsView, brakes: Iterable[BrakeUse]) -> str:
    wrong = view.rows[:SHOWN_FIRST]
    more = len(view.rows) - len(wrong)
    all_wrong = f'<p class="lead"><a href="/nodes">{more} more: all nodes</a></p>' if more > 0 else ""
    acting = [one for one in jobs.rows if one.state not in ("running", "succeeded")][:SHOWN_FIRST]
    shown = acting or jobs.rows[:SHOWN_FIRST]
    left = len(jobs.rows) - len(shown)
    all_jobs = f'<p class="lead"><a href="/jobs">All {len(jobs.rows)} jobs</a></p>' if left > 0 else ""
    return sections(
        [
            *_above(standing, "/"),
            ("numbers", tiles(_numbers(standing))),
            (
                "wrong",
                card(
                    "What is wrong with nodes",
                    _wrong(wrong, standing) + all_wrong,
                    "Nothing is known against any node.",
                ),
            ),
            (
                "jobs",
                card(
                    "Jobs" if shown is not acting else "Jobs that do not step",
                    _jobs(shown) + all_jobs,
                    _no_jobs(standing),
                ),
            ),
            ("brake", card("Brake", _brake(standing, brakes))),
        ]
    )


def nodes(standing: Standing, page: Page, rows: Sequence[NodeRow]) -> str:
    body = table(
        [
            ("Node", ""),
            ("Pool", ""),
            ("State", ""),
            ("Agent heard", "number"),
            ("Findings", "number"),
            ("Why", ""),
        ],
        (_node_row(row) for row in rows),
        "log",
    )
    return sections(
        [
            *_above(standing, "/nodes"),
            ("search", _search("/nodes", page.text, "Name, pool or state")),
            ("rows", card("Nodes", body + _pager("/nodes", page, "nodes"), "No such node.")),
        ]
    )


def jobs(standing: Standing, page: Page, rows: Sequence[JobRow]) -> str:
    return sections(
        [
            *_above(standing, "/jobs"),
            ("search", _search("/jobs", page.text, "Namespace, name or state")),
            ("rows", card("Jobs", _jobs(rows) + _pager("/jobs", page, "jobs"), _no_jobs(standing))),
        ]
    )


def job(standing: Standing, view: View) -> str:
    return sections([*_above(standing, "/jobs"), *job_sections(view)])


def node(standing: Standing, view: NodeView) -> str:
    where = f"pool {view.pool}" if view.pool else ""
    heard = "its agent has not been heard" if view.heard_s is None else f"agent heard {_ago(view.heard_s)}"
    facts = " · ".join(
        part for part in (where, heard, f"boot {view.boot_id}" if view.boot_id else "") if part
    )
    state = view.rows[0].state if view.rows else "in service"
    gone = "" if view.there else badge("not in the cluster any more", "bad")
    head = (
        f'<div class="top"><h1>{esc(view.node)}</h1>{_state(state)}{gone}{_orders(view, standing)}</div>'
        f'<p class="lead soft">{esc(facts)}</p>'
    )
    running = "".join(f"<li>{link(name, 'jobs', *name.split('/'))}</li>" for name in view.jobs)
    return sections(
        [
            *_above(standing, "/nodes"),
            ("node", head),
            ("standing", "".join(banner(_tone(row), _sentence(row, standing)) for row in view.rows)),
            ("running", card("Protected jobs there", f"<ul>{running}</ul>" if running else "", "None.")),
            (
                "findings",
                card("Findings", findings(view.findings, standing.at_wall_s), _no_findings(view, standing)),
            ),
            (
                "history",
                card("History", _history(view.records, standing), "Sentinel has never isolated it."),
            ),
        ]
    )


def missing(standing: Standing, what: str) -> str:
    """There is no such node or job, or none is known yet."""
    told = banner("busy", f"There is no {what} that this controller knows of.")
    return sections([*_above(standing, ""), ("missing", told)])


# ---------------------------------------------------------------- above every page


def _above(standing: Standing, here: str) -> list[tuple[str, str]]:
    places = (("/", "Fleet"), ("/nodes", "Nodes"), ("/jobs", "Jobs"))
    links = "".join(
        f'<a href="{path}"{" aria-current=page" if path == here else ""}>{name}</a>' for path, name in places
    )
    return [
        ("nav", f'<nav aria-label="Pages">{links}</nav>'),
        ("warnings", "".join(banner(kind, text) for kind, text in _warnings(standing)) + _troubles(standing)),
    ]


def _warnings(standing: Standing) -> list[tuple[str, str]]:
    told = []
    leader = standing.leader
    if not standing.leads:
        who = (
            f"{leader.name} leads ({leader.address}): what jobs do is shown there."
            if leader.name
            else "Nobody leads."
        )
        pod = leader.name.rpartition("-")[0]
        how = f" kubectl -n NAMESPACE port-forward pod/{pod} 9810" if pod else ""
        told.append(("busy", f"This controller stands by. {who}{how}"))
    if standing.paused:
        told.append(
            ("busy", f"PAUSED by {standing.paused}. New isolations and removals wait, releases go on.")
        )
    told += [("busy", note) for note in standing.notes[:MOST_TROUBLES]]
    if standing.leads and leader.unheard:
        told.append(("busy", unheard(leader.unheard)))
    return told


def _troubles(standing: Standing) -> str:
    shown = [banner("busy", one) for one in standing.troubles[:MOST_TROUBLES]]
    if len(standing.troubles) > MOST_TROUBLES:
        shown.append(banner("busy", f"{len(standing.troubles) - MOST_TROUBLES} more: see the log"))
    first, others = shown[:TROUBLES_FIRST], shown[TROUBLES_FIRST:]
    more = len(standing.troubles) - TROUBLES_FIRST
    folded = f'<details id="troubles"><summary id="troubles-title">{more} more troubles</summary>'
    return "".join(first) + (f"{folded}{''.join(others)}</details>" if others else "")


def _numbers(standing: Standing) -> list[tuple[str, str, str]]:
    counts, jobs = standing.counts, standing.jobs
    known = {state: counts[state] for state in STATES if counts.get(state)}
    shown = [("Nodes", number(standing.nodes), f"nothing known against {counts.get('in service', 0)}")]
    shown += [(state.capitalize(), number(count), "") for state, count in known.items()]
    if standing.leads:
        told = ", ".join(f"{jobs[state]} {state}" for state in JOB_STATES if jobs.get(state))
        shown.append(("Protected jobs", number(sum(jobs.values())), told))
    return shown


def _brake(standing: Standing, brakes: Iterable[BrakeUse]) -> str:
    rows = []
    for one in brakes:
        use = one.use
        share = min(1.0, use.used / use.limit) if use.limit else 1.0
        bar = f'<meter min="0" max="1" high="0.8" value="{share:.3f}" aria-label="used">{share:.2f}</meter>'
        rows.append(
            f"<td>{_BRAKE_NAMES.get(one.brake, esc(one.brake))}</td><td>{esc(use.pool or 'all nodes')}</td>"
            f'<td>{esc(use.window)}</td><td class="number">{bar}{use.used} of {use.limit}</td>'
        )
    if not standing.leads:
        return '<p class="soft lead">The leader counts it.</p>'
    order = (
        _button("unpause", "", "Go on", "Ends the pause: what waited goes on.")
        if standing.paused
        else _button(
            "pause", "", "Pause Sentinel", "New isolations and removals wait until somebody ends the pause."
        )
    )
    heads = [("What", ""), ("Where", ""), ("Counted", ""), ("Used", "number")]
    return f'<p class="row">{order}</p>{table(heads, rows)}'


# ---------------------------------------------------------------- nodes


def _wrong(rows: Iterable[Row], standing: Standing) -> str:
    heads = [("Node", ""), ("State", ""), ("Since", ""), ("Why, and what ends it", ""), ("", "")]
    cells = (
        f"<td>{link(row.node, 'nodes', row.node)}{' ' + badge('gone') if row.node_gone else ''}</td>"
        f'<td>{_state(row.state)}</td><td class="soft">{when(row.since_wall_s, standing.at_wall_s)}</td>'
        f'<td class="text">{short(row.why)}{_ends(row)}</td><td>{_release(row, standing)}</td>'
        for row in rows
    )
    return table(heads, cells, "log")


def _ends(row: Row) -> str:
    if row.held_by:
        return f'<br><span class="soft">waits: {esc(BRAKES.get(Brake(row.held_by), row.held_by))}</span>'
    return f'<br><span class="soft">back when: {short(row.waits_for)}</span>' if row.waits_for else ""


def _release(row: Row, standing: Standing) -> str:
    if not standing.leads or row.state not in ("isolated", "disk full", "on hold", "observed", "held back"):
        return ""
    return _button(
        "release",
        row.node,
        "Release",
        f"Brings {row.node} back. Its findings act again only when they occur anew.",
    )


def _orders(view: NodeView, standing: Standing) -> str:
    kept = any(
        row.state in ("isolated", "disk full", "on hold", "observed", "held back") for row in view.rows
    )
    held = any(row.state in ("on hold", "draining", "drained") for row in view.rows)
    if not standing.leads:
        return ""
    shown = ""
    if kept:
        what = f"Brings {view.node} back. Its findings act again only when they occur anew."
        shown += _button("release", view.node, "Release", what)
    if any(row.state in ("isolated", "disk full") and not row.acknowledged for row in view.rows):
        what = f"Says that {view.node} is out rightly: it takes no room of the brake from other nodes."
        shown += _button("acknowledge", view.node, "Acknowledge", what)
    if view.there and not held:
        what = f"Keeps {view.node} out of service until somebody releases it. No running pod is touched."
        shown += _button("hold", view.node, "Hold", what)
    return shown


def _button(order: str, node: str, text: str, what: str) -> str:
    """Shown to who is signed in; the script asks again before it does anything."""
    name = f"order-{order}-{node}" if node else f"order-{order}"
    return (
        f'<button type="button" class="act" id="{esc(name)}" data-order="{order}" data-node="{esc(node)}" '
        f'data-what="{esc(what)}">{text}</button>'
    )


def _state(state: str) -> str:
    kind = "bad" if state in _BAD else "good" if state == "in service" else "busy"
    return badge(state, kind)


def _tone(row: Row) -> str:
    return "bad" if row.state in _BAD else "busy"


def _sentence(row: Row, standing: Standing) -> str:
    since = f" since {when(row.since_wall_s, standing.at_wall_s)}" if row.since_wall_s else ""
    ends = f" Back when: {row.waits_for}." if row.waits_for else ""
    held = f" It waits: {BRAKES.get(Brake(row.held_by), row.held_by)}." if row.held_by else ""
    return f"{row.state.capitalize()}{since}: {row.why.rstrip('.')}.{held}{ends}"


def _ago(seconds: float) -> str:
    """Coarse: a page that changes each second for this alone would be sent each second."""
    return "just now" if seconds < 30 else f"{duration(seconds // 30 * 30)} ago"


def _node_row(row: NodeRow) -> str:
    heard = NONE if row.heard_s is None else _ago(row.heard_s)
    gone = " " + badge("gone") if row.gone else ""
    return (
        f"<td>{link(row.node, 'nodes', row.node)}{gone}</td><td>{esc(row.pool)}</td><td>{_state(row.state)}</td>"
        f'<td class="number soft">{heard}</td><td class="number">{row.findings or ""}</td>'
        f'<td class="text">{short(row.why)}</td>'
    )


def _no_findings(view: NodeView, standing: Standing) -> str:
    if not standing.leads:
        return "The leader hears the agents."
    return "Nothing was heard of its agent." if view.heard_s is None else "No findings stand."


def _history(records: Iterable[NodeQuarantine], standing: Standing) -> str:
    return "".join(_record(record, standing, first=number == 0) for number, record in enumerate(records))


def _record(record: NodeQuarantine, standing: Standing, *, first: bool) -> str:
    now_s = standing.at_wall_s
    kind = "bad" if record.isolating else "busy" if record.state.open else ""
    facts = [record.kind.value, f"mode {record.mode.value}"]
    if record.by:
        facts.append(f"ordered by {record.by}")
    if record.ended_by is not EndedBy.NONE:
        facts.append(f"ended by: {record.ended_by.value}")
    story = "".join(
        f'<li><span class="soft mono">{when(line.wall_s, now_s)}</span> <b>{esc(line.state.value)}</b> '
        f'{short(line.sentence)} <span class="soft">{esc(line.reason)}</span></li>'
        for line in record.story
    )
    ran = "".join(f"<li>{short(pod)}</li>" for pod in record.running_there[:MOST_PODS])
    more = len(record.running_there) - MOST_PODS
    ran += f"<li>{more} more</li>" if more > 0 else ""
    needs = record.needs.sentence if record.state is State.ACTIVE and record.kind is not Kind.SILENCE else ""
    name = esc(f"record-{record.id}")
    return (
        f'<details id="{name}"{" open" if first else ""}><summary id="{name}-title">'
        f'<span class="mono">{when(record.since_wall_s, now_s)}</span>{badge(record.state.value, kind)}'
        f"{short(record.sentence or record.id)}</summary>"
        f'<p class="lead soft">{esc(record.id)} · {esc(" · ".join(facts))}</p>'
        + (f'<p class="lead"><b>Back when:</b> {short(needs)}</p>' if needs else "")
        + (f'<ol class="story">{story}</ol>' if story else "")
        + findings(record.findings, now_s)
        + (f'<p class="lead">Ran there:</p><ul>{ran}</ul>' if ran else "")
        + "</details>"
    )


# ---------------------------------------------------------------- jobs


def _jobs(rows: Iterable[JobRow]) -> str:
    heads = [
        ("Job", ""),
        ("State", ""),
        ("Size", "number"),
        ("Iteration", "number"),
        ("Restarts left", "number"),
    ]
    return table([*heads, ("Why", "")], (_job_row(row) for row in rows), "log")


def _job_row(row: JobRow) -> str:
    size = str(row.size) if row.size == row.original_size else f"{row.size} of {row.original_size}"
    state = row.phase if row.state == "recovering" else row.state
    observed = " " + badge("observe") if row.mode != "enforce" else ""
    return (
        f"<td>{link(f'{row.namespace}/{row.name}', 'jobs', row.namespace, row.kind, row.name)} "
        f'<span class="soft">{esc(row.kind.partition(".")[0])}</span></td>'
        f"<td>{badge(state, _JOB_CLASS.get(row.state, ''))}{observed}</td>"
        f'<td class="number">{size}</td><td class="number">{number(row.step)}</td>'
        f'<td class="number">{row.restarts_left}</td><td class="text">{short(row.sentence or row.reason)}</td>'
    )


def _no_jobs(standing: Standing) -> str:
    return "No job is protected." if standing.leads else "The leader knows the jobs."


# ---------------------------------------------------------------- tables in pages


def _search(path: str, text: str, what: str) -> str:
    return (
        f'<form role="search" action="{path}" method="get"><label for="q">Find</label>'
        f'<input id="q" name="q" type="search" maxlength="100" placeholder="{what}" value="{esc(text)}">'
        '<button type="submit">Find</button></form>'
    )


def _pager(path: str, page: Page, what: str) -> str:
    if not page.found:
        return ""
    last = min(page.start + page.size, page.found)
    told = f"{page.start + 1} to {last} of {page.found}"
    told += f" found among {page.all} {what}" if page.text else f" {what}"

    def to(start: int, text: str, rel: str) -> str:
        query = urlencode({key: value for key, value in (("q", page.text), ("start", start)) if value})
        return f'<a id="{rel}" rel="{rel}" href="{path}{"?" + query if query else ""}">{text}</a>'

    before = to(max(0, page.start - page.size), "Back", "prev") if page.start else ""
    after = to(last, "Next", "next") if last < page.found else ""
    return f'<p class="pager soft"><span>{told}</span>{before}{after}</p>'
