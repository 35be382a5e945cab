"""`sentinel status` of a cluster, for people: what matters first, the rest counted."""

from collections.abc import Iterable
from typing import Any

from sentinel.console.tables import pairs, table
from sentinel.core.fleet.model import Brake
from sentinel.core.fleet.words import BRAKES
from sentinel.util.documents import time_of
from sentinel.web.fleet_view import STATES, FleetView, LeaderView, Row, unheard
from sentinel.web.words import duration, printable, when

MOST_ROWS = 30
MOST_RECORDS = 5


def overview(view: FleetView, now_wall_s: float, *, every: bool, besides: Iterable[str] = ()) -> list[str]:
    """`besides`: lines that stand above the table."""
    lines = [*_head(view), counted(view), *besides]
    rows = view.rows if every else view.rows[:MOST_ROWS]
    if rows:
        cells = [_cells(row, now_wall_s) for row in rows]
        heads = ["NODE", "POOL", "STATE", "SINCE", "WHY"]
        if not any(row.pool for row in rows):
            heads.remove("POOL")
            cells = [[cell for number, cell in enumerate(row) if number != 1] for row in cells]
        lines += ["", *_with_ends(table(heads, cells), rows)]
    if len(view.rows) > len(rows):
        lines.append(f"… and {len(view.rows) - len(rows)} more: `sentinel status --all`")
    return lines


def details(view: FleetView, node: str, now_wall_s: float) -> list[str]:
    """One node: how it stands, and the story of its newest records."""
    lines = [f"Node {printable(node)}", *(_facts(row, now_wall_s) for row in view.rows)]
    if not view.nodes:
        lines[0] += " is not in the cluster any more."
    elif not view.rows:
        lines[0] += " is in service: Sentinel knows nothing against it."
    newest = view.quarantines[::-1]
    for record in newest[:MOST_RECORDS]:
        lines += ["", *_record(record, now_wall_s)]
    if len(newest) > MOST_RECORDS:
        lines += ["", f"… and {len(newest) - MOST_RECORDS} older ones: `kubectl get quarantines`"]
    return lines


def _head(view: FleetView) -> list[str]:
    lines = [led(view.leader)]
    if view.leader and view.leader.leads and view.leader.unheard:
        lines.append(unheard(view.leader.unheard))
    if view.paused:
        follows = (
            ""
            if view.leader and view.leader.paused == view.paused
            else " (the leader has not heard of it yet)"
        )
        lines.append(
            f"PAUSED by {printable(view.paused)}{follows}. New isolations and removals wait, releases go on; "
            "`sentinel pause --off` ends it."
        )
    elif view.leader and view.leader.leads and view.leader.paused:
        lines.append(f"The leader still goes by a pause: {printable(view.leader.paused)}")
    lines += [printable(note) for note in view.notes]
    return lines


def led(leader: LeaderView | None) -> str:
    if leader is None:
        return "No controller has led here: no node is isolated or given back, and no job recovered."
    if not leader.leads:
        ago = "" if leader.renewed_s is None else f", last heard {duration(leader.renewed_s)} ago"
        was = f" ({printable(leader.name)} did{ago})" if leader.name else ""
        return f"No controller leads{was}: no node is isolated or given back, and no job recovered."
    return f"{printable(leader.name)} leads (epoch {leader.epoch}, {printable(leader.address)})."


def counted(view: FleetView) -> str:
    told = [f"{view.counts[state]} {words}" for state, words in STATES.items() if view.counts.get(state)]
    nodes = "1 node" if view.nodes == 1 else f"{view.nodes} nodes"
    if not told:
        return f"{nodes}, nothing is known against any of them." if view.nodes else "There are no nodes."
    return f"{nodes}: {', '.join(told)}; nothing is known against {view.counts['in service']}."


def _cells(row: Row, now_wall_s: float) -> list[str]:
    since = when(row.since_wall_s, now_wall_s) if row.since_wall_s else ""
    return [row.node, row.pool, row.state, since, row.why + (" (the node is gone)" if row.node_gone else "")]


def _with_ends(lines: list[str], rows: list[Row]) -> list[str]:
    """Under each row: what ends it."""
    told = lines[:1]
    for line, row in zip(lines[1:], rows, strict=True):
        told.append(line)
        if text := _ends(row):
            told.append(f"    {printable(text)}")
    return told


def _ends(row: Row) -> str:
    if row.held_by:
        brake = BRAKES.get(Brake(row.held_by), row.held_by)
        return f"waits: {brake}"
    if row.state in ("draining", "drained"):
        return f"`sentinel drain {row.node} --off` ends it"
    if row.state == "on hold":
        return f"`sentinel release {row.node}` ends it"
    if row.state == "given back":
        return f"by {row.by or 'a person'}; acts again only when it occurs anew"
    return f"back when: {row.waits_for}" if row.waits_for else ""


def _facts(row: Row, now_wall_s: float) -> str:
    since = f" since {when(row.since_wall_s, now_wall_s)}" if row.since_wall_s else ""
    ends = _ends(row)
    return f"  {row.state}{since}: {printable(row.why)}" + (f"\n    {printable(ends)}" if ends else "")


def _record(record: dict[str, Any], now_wall_s: float) -> list[str]:
    needs = record.get("needs", {}).get("sentence", "")
    open_ = record["state"] in ("held", "active")
    lines = pairs(
        (
            (f"Quarantine {record['id']}", f"{record['kind']}, {record['state']}"),
            ("  Mode", "" if record.get("mode", "enforce") == "enforce" else record["mode"]),
            ("  Held back by", record.get("heldBy", "")),
            ("  Ended by", record.get("endedBy", "")),
            ("  Ordered by", record.get("by", "")),
            ("  Back when", needs if open_ else ""),
        )
    )
    lines += [f"  Ran there: {printable(pod)}" for pod in record.get("runningThere", [])]
    for finding in record.get("findings", []):
        code = finding.get("code", "")
        seen = f"{finding.get('severity', '')}: {code} of {finding.get('entity', '')}"
        lines.append(
            f"  {printable(seen)}: {printable(finding.get('summary', '').removeprefix(f'{code}: '))}"
        )
    rows = [
        (when(time_of(line["time"]), now_wall_s), line.get("reason", ""), line.get("sentence", ""))
        for line in record.get("story", [])
    ]
    return [*lines, *(f"  {line}" for line in table(("TIME", "REASON", "WHAT"), rows))]
