"""What `sentinel status` reads of a cluster: nodes, their records, who leads, is it paused."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import Struct, structs

from sentinel.cluster.kubernetes import codes
from sentinel.cluster.kubernetes.client import Client, Resource, decoded
from sentinel.cluster.kubernetes.errors import Expired, Forbidden, NotFound
from sentinel.cluster.kubernetes.lease import ADDRESS, UNHEARD
from sentinel.cluster.kubernetes.objects import NODES, QUARANTINES, Custom, Node
from sentinel.cluster.kubernetes.orders import ASKS
from sentinel.cluster.kubernetes.pause import PAUSED, told
from sentinel.core.fleet import causes, lost
from sentinel.core.fleet.marks import CLAIM_TAINTS, claims_of
from sentinel.core.fleet.model import QUARANTINE_TAINT, CodeWord, Kind, Mode, NodeQuarantine, State
from sentinel.core.health import Finding
from sentinel.core.now import Now
from sentinel.status import standing
from sentinel.util.documents import from_document, time_of, time_text, to_document
from sentinel.util.errors import PermanentError
from sentinel.web.fleet_view import STATES, FleetView, LeaderView, Row

if TYPE_CHECKING:
    from sentinel.cluster.kubernetes.objects import Lease

T = TypeVar("T")
PAGE = 500
LIST_S = 60.0
MOST_NAMED = 3  # findings of one node
STALE_S = 15.0  # a leader renews its Lease every 2 s, and leads no more after 10
AHEAD_S = 5.0  # so much may its clock be ahead of this machine's
RENEWED_S = 5.0  # within this a leader renews, whatever the clocks say


class _Continue(Struct):
    continue_: str = msgspec.field(name="continue", default="")


async def listed(client: Client, resource: Resource, kind: type[T], namespace: str = "") -> list[T]:
    """All objects, in pages; at once where the pages' version was compacted meanwhile."""

    class Page(Struct):
        metadata: _Continue
        items: list[kind] = []  # type: ignore[valid-type]

    found: list[T] = []
    query = {"limit": str(PAGE)}
    while True:
        path = resource.path(namespace)
        try:
            page = decoded(Page, await client.call("GET", path, query=query, deadline_s=LIST_S), path)
        except Expired:
            found, query = [], {}
            continue
        found += page.items
        if not page.metadata.continue_:
            return found
        query["continue"] = page.metadata.continue_


async def records(client: Client) -> tuple[dict[str, NodeQuarantine], list[str]]:
    """By object's name; and which cannot be read. Raises PermanentError("Unreachable") where the kind is missing."""
    try:
        objects = await listed(client, QUARANTINES, Custom)
    except NotFound:
        raise PermanentError(
            f"Sentinel is not installed in the cluster at {client.url}: it has no Quarantine resource",
            "Unreachable",
        ) from None
    found, troubles = {}, []
    for one in objects:
        try:
            found[one.metadata.name] = from_document(NodeQuarantine, one.spec)
        except msgspec.ValidationError as error:
            troubles.append(f"quarantine {one.metadata.name} cannot be read: {error}")
    return found, troubles


async def view(client: Client, namespace: str, now_wall_s: float, only: str = "") -> FleetView | None:
    """`only`: one node; None where neither it nor a record of it is there."""
    found, troubles = await records(client)
    nodes = {one.metadata.name: one for one in await _nodes(client, only)}
    leader, paused = None, ""
    words: tuple[CodeWord, ...] = ()
    try:
        leader = await leader_of(client, namespace, now_wall_s)
        config = await standing.paused(client, namespace)
        paused = told(config) if config is not None else ""
        if (words_there := await standing.said(client, namespace)) is not None:
            words, unreadable = (said := codes.read(words_there)).words, said.troubles
            troubles += unreadable
    except Forbidden as error:
        troubles.append(
            f"who leads, whether it is paused, or what is said of codes, may not be read: {error}"
        )
    notes = [
        *lost.told(found.values()),
        *causes.told(found.values(), words, Now(0.0, now_wall_s)),
    ]
    if only:
        if only not in nodes and all(one.node != only for one in found.values()):
            return None
        found = {name: one for name, one in found.items() if one.node == only}
        nodes = {name: one for name, one in nodes.items() if name == only}
    read = joined(nodes, found, every=bool(only))
    return structs.replace(read, leader=leader, paused=paused, notes=notes, troubles=troubles)


def joined(
    nodes: Mapping[str, Node],
    found: Mapping[str, NodeQuarantine],
    *,
    every: bool = False,
    documents: bool = True,
) -> FleetView:
    """Nodes and their records. `every`: those too that have ended. Without `documents` quarantines are left out."""
    rows = _rows(nodes, found.values())
    bad = {row.node for row in rows}
    counts = {"in service": len(nodes.keys() - bad)}
    for row in _worst(rows):
        counts[row.state] = counts.get(row.state, 0) + 1
    shown = sorted(
        (one for one in found.values() if every or one.state.open), key=lambda one: (one.node, one.number)
    )
    return FleetView(
        nodes=len(nodes),
        counts=counts,
        rows=rows,
        quarantines=[to_document(one) for one in shown] if documents else [],
    )


async def _nodes(client: Client, only: str) -> list[Node]:
    if not only:
        return await listed(client, NODES, Node)
    found = await client.find(NODES.path(name=only), Node)
    return [] if found is None else [found]


async def leader_of(client: Client, namespace: str, now_wall_s: float) -> LeaderView | None:
    """By its clock and this machine's; where these say that it is gone, it is watched for a renewal: clocks differ."""
    first = await standing.lease(client, namespace)
    if first is None:
        return None
    read = _read(first, now_wall_s)
    if read.leads or not read.name:
        return read
    loop = asyncio.get_running_loop()
    end_s = loop.time() + RENEWED_S
    while loop.time() < end_s:
        await asyncio.sleep(standing.LOOK_S)
        now = await standing.lease(client, namespace)
        if now is not None and now.spec.holder_identity and now.spec.renew_time != first.spec.renew_time:
            return structs.replace(_read(now, now_wall_s), leads=True)
    return read


def _read(found: "Lease", now_wall_s: float) -> LeaderView:
    spec, notes = found.spec, found.metadata.annotations
    try:
        age_s = now_wall_s - time_of(spec.renew_time) if spec.renew_time else None
    except ValueError:
        age_s = None
    return LeaderView(
        name=spec.holder_identity or "",
        epoch=spec.lease_transitions or 0,
        address=notes.get(ADDRESS, ""),
        renewed_s=age_s,
        leads=bool(spec.holder_identity) and age_s is not None and -AHEAD_S <= age_s < STALE_S,
        paused=notes.get(PAUSED, ""),
        unheard=int(unheard) if (unheard := notes.get(UNHEARD, "")).isdecimal() else 0,
    )


def _rows(nodes: Mapping[str, Node], found: Iterable[NodeQuarantine]) -> list[Row]:
    rows = []
    ours = set()
    for record in found:
        node = nodes.get(record.node)
        ended_with = record.ignored and node is not None and node.metadata.uid == record.node_uid
        if not record.state.open and not ended_with:
            continue
        row = _of_record(record, node)
        if record.isolating:
            ours.add(record.node)
        rows.append(row)
    for name, node in nodes.items():
        if asked := [kind for key, kind in ASKS.items() if key in node.metadata.annotations]:
            rows.append(Row(node=name, state="ordered", why=", ".join(asked)))
        if node.spec.unschedulable and name not in ours:
            who = {CLAIM_TAINTS[taint.key] for taint in node.spec.taints if taint.key in CLAIM_TAINTS}
            who |= set(claims_of(node.metadata.labels, node.metadata.annotations))
            if any(taint.key == QUARANTINE_TAINT for taint in node.spec.taints):
                continue
            why = f"by {', '.join(sorted(who)) or 'a person or another tool'}"
            rows.append(Row(node=name, state="cordoned", why=why, unschedulable=True))
    order = list(STATES)
    rows.sort(key=lambda row: (order.index(row.state), row.since_wall_s, row.node))
    return rows


def _of_record(record: NodeQuarantine, node: Node | None) -> Row:
    since_wall_s = record.since_wall_s if record.state.open else record.ended_wall_s or 0.0
    return Row(
        node=record.node,
        state=_state(record),
        pool=record.pool,
        since=time_text(since_wall_s) if since_wall_s else "",
        since_wall_s=since_wall_s,
        why=_why(record),
        waits_for=record.needs.sentence if record.state is State.ACTIVE else "",
        by=record.by,
        acknowledged=record.acknowledged,
        held_by=record.held_by.value,
        unschedulable=node is not None and node.spec.unschedulable,
        node_gone=node is None,
        record=record.id,
    )


def _state(record: NodeQuarantine) -> str:
    if not record.state.open:
        return "given back"
    if record.kind is Kind.SILENCE:
        return "agent silent" if record.reason == "AgentSilent" else "unreachable"
    if record.state is State.HELD:
        return "held back"
    if record.mode is Mode.OBSERVE:
        return "observed"
    if record.drain:
        return "draining" if record.jobs_left else "drained"
    return {Kind.DISK: "disk full", Kind.HOLD: "on hold"}.get(record.kind, "isolated")


def _why(record: NodeQuarantine) -> str:
    if record.kind is Kind.HOLD:
        said = record.sentence
        for prefix in ("is kept out of service ", "is drained "):
            said = said.removeprefix(f"Node {record.node} {prefix}")
        return said.removeprefix(f"Node {record.node}: ").removesuffix(" No running pod was touched.")
    named = [_finding(one) for one in record.findings[:MOST_NAMED]]
    if len(record.findings) > MOST_NAMED:
        named.append(f"{len(record.findings) - MOST_NAMED} more")
    return "; ".join(named) or record.sentence


def _finding(one: Finding) -> str:
    """Its code stands in most summaries already."""
    what = one.summary if one.summary.startswith(one.code) else f"{one.code} {one.summary}"
    return f"{one.entity}: {what}".strip()


def _worst(rows: list[Row]) -> list[Row]:
    """Each node once; rows are sorted by importance."""
    seen: dict[str, Row] = {}
    for row in rows:
        seen.setdefault(row.node, row)
    return list(seen.values())
