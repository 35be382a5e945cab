"""The pages of a controller: what is asked for, read from what is known here, as HTML or JSON.

One rendering serves everybody who looks within a second, and who has it already is told so (ETag): ten people with
ten thousand nodes cost the loop little more than one.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec
from msgspec import Struct, structs

from sentinel.cluster.kubernetes.fleet import KubernetesFleet
from sentinel.cluster.kubernetes.lease import Election
from sentinel.cluster.kubernetes.objects import Node
from sentinel.controller.cluster_jobs.leading import LeadingJobs
from sentinel.controller.nodes.fold import FleetController
from sentinel.core.fleet import causes as fleet_causes
from sentinel.core.fleet import lost
from sentinel.core.fleet.settings import pool_of
from sentinel.core.now import Now
from sentinel.status import fleet_read, jobs_read
from sentinel.util.clock import Clock
from sentinel.web import fleet_page
from sentinel.web.fleet_view import (
    BrakeUse,
    FleetView,
    JobsView,
    LeaderView,
    NodeRow,
    NodeView,
    Page,
    Standing,
)
from sentinel.web.html import document
from sentinel.web.server import Asked, Place, Told

FRESH_S = 1.0  # a rendering serves so long
KEPT = 64  # renderings
PAGE = 100  # rows
MOST_RECORDS = 20
MAX_TEXT = 100
NOT_YET = Told(body=b"the API server has not answered yet\n", content_type="text/plain", status=503)

Render = Callable[["Seen", Asked], tuple[int, str, str]]  # status, title, sections


class Sources(Protocol):
    """Of a controller that has begun."""

    @property
    def fleet(self) -> KubernetesFleet: ...
    @property
    def controller(self) -> FleetController: ...
    @property
    def election(self) -> Election: ...
    @property
    def jobs(self) -> LeadingJobs: ...


class Seen(Struct):
    """What all pages show, as it was at one moment."""

    now: Now
    sources: Sources
    standing: Standing
    fleet: FleetView
    jobs: JobsView


class FleetSite:
    """`places` are what it serves. `sources` gives None until the API server has answered."""

    def __init__(
        self, sources: Callable[[], Sources | None], troubles: Callable[[], list[str]], clock: Clock
    ) -> None:
        self._sources, self._troubles, self._clock = sources, troubles, clock
        self._seen: Seen | None = None
        self._kept: OrderedDict[tuple[str, ...], tuple[float, Told]] = OrderedDict()

    def places(self) -> list[Place]:
        pages: dict[str, Render] = {
            "/": _fleet,
            "/nodes": _nodes,
            "/nodes/{node}": _node,
            "/jobs": _jobs,
            "/jobs/{namespace}/{kind}/{name}": _job,
        }
        found = [Place("/api/v1/status", self._status)]
        for path, render in pages.items():
            found.append(Place(path, self._answer(path, render, whole=True)))
            found.append(
                Place(f"/fragment{'' if path == '/' else path}", self._answer(path, render, whole=False))
            )
        return found

    def _answer(self, path: str, render: Render, *, whole: bool) -> Callable[[Asked], Awaitable[Told]]:
        async def answer(asked: Asked) -> Told:
            key = (
                path,
                str(whole),
                *asked.names.values(),
                asked.query.get("q", ""),
                asked.query.get("start", ""),
            )
            return self._once(key, lambda seen: _told(render, seen, asked, whole=whole))

        return answer

    async def _status(self, asked: Asked) -> Told:
        def body(seen: Seen) -> Told:
            shown = structs.replace(
                fleet_read.joined(seen.sources.fleet.nodes(), seen.sources.fleet.records),
                leader=seen.standing.leader,
                paused=seen.standing.paused,
                notes=seen.standing.notes,
                troubles=seen.standing.troubles,
            )
            told = {**msgspec.to_builtins(shown), "jobs": msgspec.to_builtins(seen.jobs)}
            return Told(body=msgspec.json.encode(told), content_type="application/json")

        return self._once(("status",), body)

    def _once(self, key: tuple[str, ...], make: Callable[[Seen], Told]) -> Told:
        now = self._clock()
        kept = self._kept.get(key)
        if kept is not None and now.mono_s - kept[0] < FRESH_S:
            return kept[1]
        seen = self._look(now)
        if seen is None:
            return NOT_YET
        told = make(seen)
        self._kept[key] = (now.mono_s, told)
        self._kept.move_to_end(key)
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return told

    def _look(self, now: Now) -> Seen | None:
        sources = self._sources()
        if sources is None:
            return None
        leads = sources.election.leading
        known = self._seen
        if known is not None and now.mono_s - known.now.mono_s < FRESH_S and known.standing.leads == leads:
            return known
        fleet = fleet_read.joined(sources.fleet.nodes(), sources.fleet.records, documents=False)
        jobs = jobs_read.view(sources.jobs.rows(now) if leads else [], [])
        holder = sources.election.leader
        leader = LeaderView(
            name=holder.identity,
            epoch=holder.epoch,
            address=holder.address,
            leads=leads,
            unheard=sources.controller.nodes.unheard if leads else 0,
        )
        standing = Standing(
            leads=leads,
            leader=leader,
            nodes=fleet.nodes,
            counts=fleet.counts,
            jobs=jobs.counts,
            paused=sources.fleet.paused,
            notes=notes(sources, now),
            troubles=self._troubles(),
            at_wall_s=now.wall_s,
        )
        self._seen = Seen(now, sources, standing, fleet, jobs)
        return self._seen


def notes(sources: Sources, now: Now) -> list[str]:
    """What many nodes have or lack at once, and what people say of it."""
    fleet = sources.fleet
    problem = fleet.codes_problem
    records = fleet.records.values()
    causes = fleet_causes.told(records, fleet.codes, now)
    return [*lost.told(records), *causes, *([problem] if problem else [])]


def _told(render: Render, seen: Seen, asked: Asked, *, whole: bool) -> Told:
    status, title, shown = render(seen, asked)
    text = document(title, shown, seen.standing.version, sign_in=True) if whole else shown
    body = text.encode()
    tag = "" if whole else hashlib.blake2b(body, digest_size=12).hexdigest()
    return Told(body=body, status=status, etag=tag)


# ---------------------------------------------------------------- one page each


def _fleet(seen: Seen, asked: Asked) -> tuple[int, str, str]:
    uses = [BrakeUse(*one) for one in seen.sources.controller.brake_uses()] if seen.standing.leads else []
    return 200, "Fleet", fleet_page.fleet(seen.standing, seen.fleet, seen.jobs, uses)


def _nodes(seen: Seen, asked: Asked) -> tuple[int, str, str]:
    """Those that matter first, then the others by name; only the rows of this page are made."""
    nodes, text = seen.sources.fleet.nodes(), _looked_for(asked)
    bad = {row.node: row for row in reversed(seen.fleet.rows)}
    names = list(dict.fromkeys(row.node for row in seen.fleet.rows))
    names += sorted(nodes.keys() - bad.keys())
    everything = len(names)
    settings = seen.sources.controller.settings

    def pool(name: str) -> str:
        one = nodes.get(name)
        return bad[name].pool if one is None and name in bad else pool_of(_labels(one), settings)

    if text:
        wanted = text.lower()
        names = [
            name
            for name in names
            if wanted in name.lower()
            or wanted in pool(name).lower()
            or wanted in (bad[name].state if name in bad else "in service")
        ]
    page = _page(asked, len(names), everything, text)
    rows = []
    for name in names[page.start : page.start + page.size]:
        row, heard = bad.get(name), seen.sources.controller.nodes.last_heard(name)
        at_s = None if heard is None else heard.agent_mono_s
        rows.append(
            NodeRow(
                node=name,
                state=row.state if row is not None else "in service",
                pool=pool(name),
                heard_s=None if at_s is None else max(0.0, seen.now.mono_s - at_s),
                findings=len(seen.sources.controller.for_jobs.findings(name)[1]),
                why=row.why if row is not None else "",
                gone=name not in nodes,
            )
        )
    return 200, "Nodes", fleet_page.nodes(seen.standing, page, rows)


def _jobs(seen: Seen, asked: Asked) -> tuple[int, str, str]:
    text = _looked_for(asked)
    wanted, found = text.lower(), seen.jobs.rows
    if text:
        found = [
            one for one in found if wanted in f"{one.namespace}/{one.name} {one.state} {one.phase}".lower()
        ]
    page = _page(asked, len(found), len(seen.jobs.rows), text)
    return 200, "Jobs", fleet_page.jobs(seen.standing, page, found[page.start : page.start + page.size])


def _job(seen: Seen, asked: Asked) -> tuple[int, str, str]:
    name = "/".join(asked.names[part] for part in ("namespace", "kind", "name"))
    view = seen.sources.jobs.view(name, seen.now) if seen.standing.leads else None
    if view is None:
        return 404, name, fleet_page.missing(seen.standing, f"job {name}")
    return 200, name, fleet_page.job(seen.standing, view)


def _node(seen: Seen, asked: Asked) -> tuple[int, str, str]:
    name, sources = asked.names["node"], seen.sources
    object_ = sources.fleet.nodes().get(name)
    records = sorted(sources.fleet.records_of(name), key=lambda one: -one.number)
    if object_ is None and not records:
        return 404, name, fleet_page.missing(seen.standing, f"node {name}")
    heard = sources.controller.nodes.last_heard(name)
    boot_id, found = sources.controller.for_jobs.findings(name)
    at_s = None if heard is None else heard.agent_mono_s
    view = NodeView(
        node=name,
        pool=pool_of(_labels(object_), sources.controller.settings),
        there=object_ is not None,
        uid="" if object_ is None else object_.metadata.uid,
        boot_id=boot_id,
        heard_s=None if at_s is None else max(0.0, seen.now.mono_s - at_s),
        unschedulable=object_ is not None and object_.spec.unschedulable,
        rows=[row for row in seen.fleet.rows if row.node == name],
        findings=tuple(sorted(found, key=lambda one: -one.severity.order)),
        jobs=sources.jobs.on(name) if seen.standing.leads else (),
        records=tuple(records[:MOST_RECORDS]),
    )
    return 200, name, fleet_page.node(seen.standing, view)


def _labels(node: Node | None) -> dict[str, str]:
    return {} if node is None else node.metadata.labels


def _looked_for(asked: Asked) -> str:
    return asked.query.get("q", "").strip()[:MAX_TEXT]


def _page(asked: Asked, found: int, everything: int, text: str) -> Page:
    given = asked.query.get("start", "")
    start = int(given) if given.isascii() and given.isdecimal() and len(given) < 8 else 0
    start = min(start, max(0, found - 1)) // PAGE * PAGE
    return Page(start, PAGE, found, everything, text)
