"""A scrape of a leading controller: how long it takes, how much it is, and for how long it holds up everything else.

The leader's own page in this process, with all of its numbers: nodes of which one in a hundred has a finding and one in
two hundred an isolation, and jobs of eight ranks that step between two scrapes. In a storm each tenth node has both,
which is as many as are told one by one, and each job an incident. Beside each the same request answered with the text
of the scrape before it, which is what bytes alone cost. A real controller at a real API server adds the numbers of its
watches, a few dozen series.
"""

import asyncio
import time
from collections.abc import Iterable

import aiohttp
from msgspec import structs

from sentinel.controller.jobs.numbers import JobMeter
from sentinel.controller.nodes import numbers as fleet_numbers
from sentinel.core.decision.picture import JobPicture
from sentinel.core.fleet.model import (
    CheckPicture,
    FleetPicture,
    Kind,
    Needs,
    NodePicture,
    NodeQuarantine,
    State,
)
from sentinel.core.fleet.settings import FleetSettings
from sentinel.core.health import CheckState
from sentinel.core.model import Incident, JobState, ProtectedJob
from sentinel.core.now import Now
from sentinel.core.policy_model import Policy
from sentinel.core.reports import Iteration, RankReport
from sentinel.metrics.exposition import CONTENT_TYPE
from sentinel.metrics.registry import Metrics
from sentinel.web.server import Route, serve_routes
from tests.bench.harness import Row, at_most
from tests.notify.mail_world import an_incident
from tests.samples import lost_gpu

FLEETS = ((1_000, 200, False), (10_000, 2_000, False), (10_000, 2_000, True))  # nodes, jobs, in a storm
STORM = 10  # each so many of the nodes
RANKS, SCRAPES, LOOK_S = 8, 20, 0.001
MILLI, MIB = 1000.0, float(1 << 20)
FOUND = lost_gpu(event=False)


def now() -> Now:
    return Now(time.monotonic(), time.time())


def nodes(count: int, each: int) -> dict[str, NodePicture]:
    found = CheckPicture(CheckState.FOUND, 1.0, (FOUND,))
    made = {}
    for number in range(count):
        checks = {"kernel": found} if number % each == 0 else {}
        name = f"node-{number:05d}"
        made[name] = NodePicture(
            name=name, uid=name, gpus=8, agent_mono_s=1.0, lease_mono_s=1.0, checks=checks
        )
    return made


def isolations(names: Iterable[str], each: int) -> dict[str, NodeQuarantine]:
    return {
        f"{name}-0001": NodeQuarantine(
            id=f"{name}-0001",
            kind=Kind.FAULT,
            node=name,
            node_uid=name,
            state=State.ACTIVE,
            reason="FatalFinding",
            needs=Needs(sentence="a reboot"),
            since_wall_s=time.time(),
        )
        for name in list(names)[::each]
    }


class Jobs:
    def __init__(self, count: int) -> None:
        self.pictures: dict[str, JobPicture] = {}
        self._step = 0
        for number in range(count):
            name = f"team-{number % 40}/pytorchjob.kubeflow.org/train-{number}"
            policy = Policy(name="all", emails=(f"team-{number % 40}@example.com",))
            job = ProtectedJob(name=name, policy=policy, state=JobState.RUNNING, incarnation=1, size=RANKS)
            picture = JobPicture(structs.replace(job, created_wall_s=time.time()), {})
            picture.timing.start(1, RANKS, now())
            self.pictures[name] = picture
        for _ in range(40):
            self.step()

    def step(self) -> None:
        self._step += 1
        told = [Iteration(time.monotonic(), self._step, 300.0 + self._step % 7, 400.0 + self._step % 5)]
        for name, picture in self.pictures.items():
            for rank in range(RANKS):
                picture.timing.fold(RankReport(job=name, incarnation=1, rank=rank, iterations=told))


class Lag:
    """The longest time for which nothing else had its turn."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def watch(self) -> None:
        while True:
            before_s = time.perf_counter()
            await asyncio.sleep(LOOK_S)
            self.longest_s = max(self.longest_s, time.perf_counter() - before_s - LOOK_S)


async def scraped(session: aiohttp.ClientSession, url: str) -> tuple[float, int]:
    begun_s = time.perf_counter()
    async with session.get(url) as answer:
        body = await answer.read()
    return (time.perf_counter() - begun_s) * MILLI, len(body)


async def measured(
    node_count: int, job_count: int, storm: bool, scrapes: int
) -> tuple[list[float], float, int, list[float]]:
    """Milliseconds of each scrape, of the longest hold, the bytes, and milliseconds of the same bytes alone."""
    metrics, jobs = Metrics(), Jobs(job_count)
    picture = FleetPicture(nodes=nodes(node_count, STORM if storm else 100))
    records = isolations(picture.nodes, STORM if storm else 200)
    plain = {name for name, node in picture.nodes.items() if not node.checks}
    settings, text = FleetSettings(), b""
    opened_s = time.time() - 60.0

    def incidents(name: str) -> list[Incident]:
        return [an_incident(job=name, id=f"{name}-0001", opened_wall_s=opened_s)] if storm else []

    meter = JobMeter(metrics, jobs.pictures.keys, jobs.pictures, incidents, lambda: 0, now)
    metrics.leads()

    def numbers() -> tuple[int, str, bytes]:
        nonlocal text
        fleet_numbers.measure(metrics, picture, records, settings, now(), plain)
        text = metrics.render()
        return 200, CONTENT_TYPE, text

    routes = (Route("/metrics", numbers), Route("/bytes", lambda: (200, CONTENT_TYPE, text)))
    server = await serve_routes("127.0.0.1:0", routes, metrics)
    took, bare, size, hold_ms = [], [], 0, 0.0
    try:
        async with aiohttp.ClientSession() as session:
            for number in range(scrapes + 1):
                jobs.step()
                lag = Lag()
                watching = asyncio.create_task(lag.watch())
                await asyncio.sleep(0)
                await meter.count()
                ms, size = await scraped(session, f"{server.url}/metrics")
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
                if number:  # the first one makes all of the text
                    took.append(ms)
                    hold_ms = max(hold_ms, lag.longest_s * MILLI)
                    bare.append((await scraped(session, f"{server.url}/bytes"))[0])
    finally:
        await server.close()
    return took, hold_ms, size, bare


def run(quick: bool) -> list[Row]:
    rows = []
    for node_count, job_count, storm in FLEETS:
        scrapes = 5 if quick else SCRAPES
        took, hold_ms, size, bare = asyncio.run(measured(node_count, job_count, storm, scrapes))
        fleet = f"{node_count:,} nodes, {job_count:,} jobs{', in a storm' if storm else ''}"
        rows += [
            at_most(f"scrape, {fleet}, slowest", 100.0, max(took), "ms", ("the bytes alone", max(bare))),
            at_most(f"scrape, {fleet}, longest hold of the loop", 50.0, hold_ms, "ms"),
            at_most(f"scrape, {fleet}, size", 16.0, size / MIB, "MiB"),
        ]
    return rows
