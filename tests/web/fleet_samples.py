"""A cluster of any size as a controller's pages are given it, and a server of those pages in a thread."""

import asyncio
import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from msgspec import structs

from sentinel.cluster.kubernetes.objects import FullMeta, Node, NodeSpec
from sentinel.controller.daemon.site import FleetSite
from sentinel.core.fleet.brakes import Use
from sentinel.core.fleet.model import (
    Brake,
    EndedBy,
    Kind,
    Needs,
    NodePicture,
    NodeQuarantine,
    State,
    StoryLine,
)
from sentinel.core.fleet.settings import FleetSettings
from sentinel.core.health import Finding, Severity
from sentinel.core.model import Incident, JobState, ProtectedJob
from sentinel.core.now import Now
from sentinel.metrics.registry import Metrics
from sentinel.status import jobs_read
from sentinel.web.fleet_view import JobRow
from sentinel.web.server import Place, Server, serve_routes
from sentinel.web.view import View, build_view
from tests.web import samples

TIMEOUT_S = 120.0
WALL_S = samples.WALL_S
POOL = "sentinel.dev/pool"
JOB = "research/pytorchjob.kubeflow.org/llama-70b"
HOSTILE_NODE = "<img src=x onerror=alert(1)>"  # no cluster takes this name; a page must bear it all the same


class World:
    """`Sources` of a FleetSite: what a leading controller would know."""

    def __init__(self, size: int = 40, jobs: int = 12) -> None:
        self.now = Now(mono_s=9000.0, wall_s=WALL_S)
        self.leads = True
        self.paused = ""
        self.troubles: list[str] = []
        self.events = samples.events()
        self.course = samples.course(until_s=WALL_S - 7800)
        self.nodes: dict[str, Node] = {}
        self.records: dict[str, NodeQuarantine] = {}
        self.found: dict[str, list[Finding]] = {}
        for number in range(size):
            self.add(f"gpu-{number:05d}", "h100" if number % 3 else "a100")
        self.jobs = [_job(number) for number in range(jobs)]
        self.election = SimpleNamespace(
            leading=True,
            leader=SimpleNamespace(
                identity="sentinel-controller-7c9-x2-1f", epoch=4, address="10.0.3.7:8443"
            ),
        )
        self.fleet = SimpleNamespace(
            nodes=lambda: self.nodes,
            records=self.records,
            records_of=lambda node: [one for one in self.records.values() if one.node == node],
            paused="",
            codes=(),
            codes_problem="",
        )
        self.controller = SimpleNamespace(
            settings=FleetSettings(),
            nodes=SimpleNamespace(unheard=0, last_heard=self._heard),
            for_jobs=SimpleNamespace(findings=lambda name: ("boot-4f1a", self.found.get(name, []))),
            brake_uses=lambda: [
                ("isolations", Use("at-a-time", "", len(self.records), 4)),
                ("isolations", Use("per-window", "", len(self.records), 8)),
                ("removals", Use("per-window", "", 0, 2)),
            ],
        )
        self.jobs_seen = SimpleNamespace(rows=self._rows, view=self._view, on=self._on, since=lambda _: [])

    def add(self, name: str, pool: str) -> None:
        self.nodes[name] = Node(
            metadata=FullMeta(name=name, uid=f"uid-{name}", labels={POOL: pool}), spec=NodeSpec()
        )

    def isolate(
        self, name: str, *, line: str = "GPU has fallen off the bus.", **changes: Any
    ) -> NodeQuarantine:
        found = structs.replace(samples.finding(), summary=line, node="")
        self.found[name] = [found]
        story = (
            StoryLine(
                WALL_S - 640, State.ACTIVE, "FatalFinding", f"Node {name} was taken out of service: XID 79."
            ),
            StoryLine(WALL_S - 200, State.ACTIVE, "JobsLeft", "The last protected pod has left it."),
        )
        given: dict[str, Any] = {
            "id": f"{name}-0001",
            "kind": Kind.FAULT,
            "node": name,
            "node_uid": f"uid-{name}",
            "state": State.ACTIVE,
            "severity": Severity.FATAL,
            "needs": Needs(sentence="the node must be restarted; then no such finding may stand for 10 min"),
            "findings": (found,),
            "since_wall_s": WALL_S - 640,
            "sentence": f"Node {name} was taken out of service: XID 79 of GPU 0000:18:00.0.",
            "story": story,
            "running_there": (f"job {JOB}, pod research/llama-70b-worker-3",),
        }
        record = NodeQuarantine(**(given | changes))
        self.records[record.id] = record
        if name in self.nodes and record.isolating:
            self.nodes[name] = structs.replace(self.nodes[name], spec=NodeSpec(unschedulable=True))
        return record

    def _heard(self, name: str) -> NodePicture | None:
        return (
            NodePicture(name=name, uid="", agent_mono_s=self.now.mono_s - 4.0) if name in self.nodes else None
        )

    def _rows(self, now: Now) -> list[JobRow]:
        return [jobs_read.row(job, newest, {}, now) for job, newest in self.jobs]

    def _view(self, name: str, now: Now) -> View | None:
        known = {job.name: (job, newest) for job, newest in self.jobs}
        if name not in known:
            return None
        job, newest = known[name]
        nodes = [*self.nodes] or [""]
        rows = [
            samples.rank_row(rank, ratio=2201.5 / (3300.0 + 40 * rank), node=nodes[rank % len(nodes)])
            for rank in range(job.size)
        ]
        return build_view(
            job,
            now=now,
            boot_id=job.boot_id,
            incidents=[newest] if newest is not None else [],
            events=[structs.replace(event, job=name) for event in self.events],
            ranks=rows,
            course=self.course,
            protector=samples.view().protector,
        )

    def _on(self, name: str) -> tuple[str, ...]:
        return (JOB,) if name in list(self.nodes)[:8] else ()


class Sources:
    """The names that a FleetSite asks for."""

    def __init__(self, world: World) -> None:
        self.fleet, self.controller = world.fleet, world.controller
        self.election, self.jobs = world.election, world.jobs_seen


def _job(number: int) -> tuple[ProtectedJob, Incident | None]:
    if number == 0:
        newest = structs.replace(samples.incident(2), job=JOB, id=f"{JOB}-0002")
        steps = newest.steps[:-1]
        said: dict[str, Any] = {
            "reason": steps[-1].reason,
            "sentence": "There is room for 8 pods on 8 nodes, without gpu-00009.",
        }
        job = samples.job(name=JOB, size=8, original_size=8, launch=None, degraded=(), **said)
        return job, structs.replace(newest, phase=steps[-1].phase, steps=steps, **said)
    state, sentence = _ENDS[number % 5]
    name = f"research/job.batch/run-{number:04d}"
    said = {"state": state, "sentence": sentence, "degraded": ()}
    return samples.job(name=name, size=4, original_size=4, launch=None, **said), None


_RUNS = (JobState.RUNNING, "All ranks of the job run.")
_ENDS = (
    _RUNS,
    _RUNS,
    _RUNS,
    (JobState.ERROR, "Rank 0: ModuleNotFoundError: No module named 'flash_attn'. A restart cannot help."),
    (JobState.SUCCEEDED, "All ranks ended with exit code 0."),
)


def troubled(size: int = 40, jobs: int = 12) -> World:
    """With one of each thing that a person should see."""
    world = World(size, jobs)
    names = list(world.nodes)
    world.isolate(names[3])
    world.isolate(names[7], state=State.HELD, held_by=Brake.AT_A_TIME)
    held = "Node {} is kept out of service by anna@example.com: new NIC. No running pod was touched."
    hold: Mapping[str, Any] = {"kind": Kind.HOLD, "by": "anna@example.com", "findings": ()}
    given_back = Needs(sentence="a person gives it back")
    world.isolate(names[5], sentence=held.format(names[5]), needs=given_back, **hold)
    silent = f"Node {names[9]} cannot be reached: its agent and its kubelet are silent. It may still run."
    heard = Needs(sentence="it is heard again, or proved dead and gone")
    world.isolate(
        names[9], kind=Kind.SILENCE, reason="Unreachable", findings=(), sentence=silent, needs=heard
    )
    ended: Mapping[str, Any] = {
        "state": State.RELEASED,
        "ended_by": EndedBy.WELL,
        "ended_wall_s": WALL_S - 86_000,
    }
    world.isolate(names[3], **(dict(ended) | {"id": f"{names[3]}-0000", "since_wall_s": WALL_S - 90_000}))
    return world


class Site:
    """The pages over a real socket."""

    def __init__(self, world: World, places: list[Place] | None = None) -> None:
        self.world, self.metrics = world, Metrics()
        self.site = FleetSite(lambda: Sources(world), lambda: world.troubles, lambda: world.now)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        served = serve_routes("127.0.0.1:0", [], self.metrics, places=[*self.site.places(), *(places or [])])
        self.server: Server = self._do(served)
        self.url = self.server.url

    def later(self, seconds: float = 2.0) -> None:
        """Renderings of before are not fresh any more."""
        now = self.world.now
        self.world.now = Now(mono_s=now.mono_s + seconds, wall_s=now.wall_s + seconds)

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_S)

    def close(self) -> None:
        try:
            self._do(self.server.close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(TIMEOUT_S)
            self._loop.close()
