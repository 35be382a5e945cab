"""A cluster's controller at a real API server and etcd, with the permissions that `deploy/` gives it.

Kernel line: written into /dev/kmsg of a node with the real agent → the node is unschedulable, as a watch of the API
server tells anybody: the agent's reading, TLS, the decision, the record that is saved first, the write. Beside it one
bare PATCH of a node by the administrator, taken between two lines.

Many at once: 500 agents report a lost card in one moment, brakes open; until the last of the nodes is unschedulable.
Beside it a bare client that sends the same writes, 16 at a time as the controller does, in the same order (record,
then node), as the same watch tells: ten times each, in turns. Each run is compared with the bare one just before it:
the machine is not as fast in every minute. Then, with so many records open, the leader is killed
(-9) while 20 more nodes have a fault that its successor has to hear of.

Load: agents as light as they can be (tests/bench/fleet_agents.py) in processes of their own, each with a token of its
own over TLS, that report eight ranks every 10 s; all nodes' leases are renewed every 10 s; 2 000 jobs of five pods.
These come under policies at the end: then each agent follows its pod, and three iterations in each report count; when
everything was told about that, it is measured. CPU is all that the controller uses, the watches of nodes, leases and
pods included. A decision is timed from the report's being sent to the line of the controller's log, for faults of
single nodes under the full load, jobs included. Agents that close their connection between reports (30 000) come
every 120 s. Under the same load: from an urgent report's being sent to its acknowledgement, as the agents see it; the
longest callback of the leader's event loop meanwhile, for nothing else has its turn in it; and a full collection of
Python's garbage, asked for at the end.

Rush: all connections end, and all 10 000 agents come again in the same moment, until the full report of each was taken.

Take-over: the leader of the 10 000 is killed (-9), until the other one leads, and until it has heard all 10 000 again
and goes on with all 2 000 jobs; silences that it has recorded by then are counted.
"""

import contextlib
import datetime
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from sentinel.util.works import AT_ONCE
from tests.bench.bench_kmsg import fault, new_address, write
from tests.bench.fleet_bare import QUARANTINES
from tests.bench.fleet_bulk import SPACES, node_name
from tests.bench.fleet_watch import Watch
from tests.bench.fleet_world import ROOT, WITHIN_S, Controller, Crowd, World
from tests.bench.harness import Row, at_most, wait_idle, wait_until
from tests.kubernetes.conftest import NAMESPACE
from tests.waits import until

SUBJECT = [sys.executable, "-m", "tests.bench.kmsg_subject"]
MIB = float(1 << 20)
EVERY_S = 10.0
VISIT_EVERY_S = 120.0
JOBS, PODS = 2000, 5
NEW = 20  # nodes with a fault that only the new leader hears of
RUSH_S = 30.0  # an agent that was not heard for a minute is silent
HELD_MS = 50.0
FULL_COLLECTION_MS = 1000.0  # an agent waits for 8 s, the leader renews its Lease within 8 s
SPARE = 400  # nodes without a job: on them are the faults whose decisions are timed
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


# ---------------------------------------------------------------- kernel line -> unschedulable


@contextlib.contextmanager
def agent(world: World, controller: Controller, number: int) -> "Iterator[subprocess.Popen[bytes]]":
    """The real one, at the machine's own /dev/kmsg, whose user facility it lets in."""
    folder = world.rig.folder / "agent"
    folder.mkdir()
    (folder / "token").write_text(world.token(number))
    link = {
        "addresses": [f"127.0.0.1:{controller.port}"],
        "node": node_name(number),
        "tokenFile": str(folder / "token"),
        "caFile": str(world.bundle()),
    }
    head = {"apiVersion": "sentinel.dev/v1alpha1", "kind": "Settings", "listen": "127.0.0.1:0"}
    (folder / "settings.yaml").write_text(json.dumps({**head, "controller": link}))
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [*SUBJECT, "sentinel", "agent", "--settings", str(folder / "settings.yaml")],
            cwd=ROOT,
            env={**os.environ, "SENTINEL_STATE_DIR": str(folder / "state")},
            stdout=log,
            stderr=log,
        )
    try:
        said = folder / "log"
        wait_until(lambda: b"watches this node" in said.read_bytes(), WITHIN_S, "the agent to be ready")
        yield process
    finally:
        process.kill()
        process.wait()


def kernel_line(world: World, controller: Controller, count: int) -> list[Row]:
    ours, bare = [], []
    name, other = node_name(0), node_name(1)
    admin = world.admin
    line = fault(new_address())
    with agent(world, controller, 0) as watches, Watch(admin, name) as watch:
        wait_idle(watches.pid, "the agent's first look at everything else")
        for number in range(count + 1):
            begun_s = write([line]) / 1e9
            seen_s = watch.wait_out(1, WITHIN_S)
            if number:  # the first one makes connections
                ours.append((seen_s - begun_s) * 1000)
            begun_s = time.monotonic()
            admin.patch(f"/api/v1/nodes/{other}", {"metadata": {"annotations": {"bench": str(number)}}})
            bare.append((time.monotonic() - begun_s) * 1000)
            wait_until(lambda: _shown(world, name), WITHIN_S, "its condition")
            admin.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": None}})
            wait_until(lambda: name not in watch.marked, WITHIN_S, "the node to be given back")
            _forget_all_but_the_last(world, name)
            time.sleep(random.uniform(0.3, 0.9))  # an agent speaks four times a second at most
    return [
        at_most(
            f"kernel line → unschedulable, {what}", goal, percentile(ours, share), "ms",
            ("one bare PATCH", percentile(bare, share)),
        )
        for what, share, goal in (("median", 0.5, 50.0), ("p99", 0.99, 150.0))
    ]  # fmt: skip


def _shown(world: World, node: str) -> bool:
    """Does the record say in its status that the node is isolated? That is written last."""
    found = [one for one in world.admin.items(QUARANTINES) if one["spec"]["node"] == node]
    newest = max(found, key=lambda one: str(one["metadata"]["name"]))
    told = newest.get("status", {}).get("conditions", [])
    return any((one["type"], one["status"]) == ("Isolated", "True") for one in told)


def _forget_all_but_the_last(world: World, node: str) -> None:
    """No node is isolated a hundred times in practice."""

    def ended() -> list[dict[str, Any]]:
        found = [one for one in world.admin.items(QUARANTINES) if one["spec"]["node"] == node]
        return [] if any("endedBy" not in one["spec"] for one in found) else found

    wait_until(lambda: bool(ended()), WITHIN_S, "the end of the isolation")
    for one in sorted(ended(), key=lambda one: one["metadata"]["name"])[:-1]:
        world.admin.delete(f"{QUARANTINES}/{one['metadata']['name']}")


# ---------------------------------------------------------------- many at once


def bare(world: World, nodes: range) -> float:
    """Seconds, by the same watch. No controller may lead meanwhile: it would have its own opinion of these records."""
    lease = world.admin.find(f"{LEASES}/sentinel-controller")
    epoch = lease["spec"]["leaseTransitions"]
    words = [world.admin.url, world.admin.ca, world.controller_token, epoch, AT_ONCE, nodes.start, nodes.stop]
    command = [sys.executable, "-m", "tests.bench.fleet_bare", *map(str, words)]
    with Watch(world.admin) as watch:
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=WITHIN_S)
        return watch.wait_out(len(nodes), WITHIN_S) + wall_offset_s() - float(done.stdout)


def wall_offset_s() -> float:
    return time.time() - time.monotonic()


def clean(world: World, count: int) -> None:
    """As if nothing had happened to the first so many nodes."""
    world.admin.delete(QUARANTINES)
    world.bulk.restore(range(count))


def many(world: World, controller: Controller, count: int) -> float:
    crowd = world.crowd(range(count), EVERY_S, "keep", controller)
    try:
        crowd.do("grow", count)
        wait_idle(controller.pid, "the controller with its new agents", share=0.3)
        with Watch(world.admin) as watch:
            sent = crowd.do("fault", 0, count)
            return watch.wait_out(count, WITHIN_S) + wall_offset_s() - float(sent[1])
    finally:
        crowd.close()


def first_of_an_heir(world: World, count: int) -> Row:
    """The leader of so many open records is killed while NEW other nodes have a fault: until the first of them is out
    of service."""
    pair = [Controller(world, f"heir-{k}") for k in (0, 1)]
    pair[0].wait("leads, epoch")
    crowd = world.crowd(range(count + NEW), EVERY_S, "keep", *pair)
    try:
        crowd.do("grow", count + NEW)
        with Watch(world.admin) as watch:
            crowd.do("fault", 0, count)
            watch.wait_out(count, WITHIN_S)
            wait_idle(pair[0].pid, "the leader that has told all of it", share=0.3)
            crowd.do("hurt", count, count + NEW)
            begun_s = time.monotonic()
            pair[0].kill()
            pair[1].wait("leads, epoch")
            leads_s = time.monotonic() - begun_s
            watch.wait_out(count + 1, WITHIN_S)
            first_s = min(
                watch.out[node_name(k)] for k in range(count, count + NEW) if node_name(k) in watch.out
            )
    finally:
        crowd.close()
    pair[1].stop()
    clean(world, count + NEW)
    assert first_s > begun_s, "the leader heard of it before it was killed"
    name = f"leader of {count} open records killed → first new isolation"
    return at_most(name, 12.0, first_s - begun_s, "s", ("the other one leads", leads_s))


# ---------------------------------------------------------------- load


class Cost:
    def __init__(self, controller: Controller, seconds: float) -> None:
        before_s, begun_s = controller.cpu_s(), time.monotonic()
        time.sleep(seconds)
        self.share = (controller.cpu_s() - before_s) / (time.monotonic() - begun_s) * 100
        self.mib = controller.memory_bytes() / MIB


def protect(world: World) -> float:
    """All jobs under policies, one in each namespace. Seconds until each is followed, and its record says so."""
    begun_s = time.monotonic()
    head = {"apiVersion": "sentinel.dev/v1alpha1", "kind": "JobPolicy", "spec": {"jobs": {}}}
    world.admin.apply([{**head, "metadata": {"name": "all", "namespace": space}} for space in SPACES])

    def followed() -> bool:
        found = world.admin.items("/apis/sentinel.dev/v1alpha1/protectedjobs")
        said = [one for one in found if one.get("status", {}).get("conditions")]  # written last
        return sum(one["spec"].get("state") == "running" for one in said) == JOBS

    until(followed, "not all jobs are followed", WITHIN_S, every_s=2.0, error=TimeoutError)
    return time.monotonic() - begun_s


def all_told(world: World) -> None:
    """Waits until no more events come: of 2 000 jobs that appear at once they are written for two minutes."""
    counts = [-1]

    def no_more() -> bool:
        counts.append(len(world.admin.items("/apis/events.k8s.io/v1/events")))
        return counts[-1] == counts[-2]

    until(no_more, lambda: f"events still come: {counts[-2:]}", WITHIN_S, every_s=3.0, error=TimeoutError)


def followed_again(controller: Controller) -> None:
    """Waits until a new leader goes on with all jobs. Raises TimeoutError."""

    def count() -> int:
        return len(controller.events("job_adopted"))

    until(lambda: count() >= JOBS, lambda: f"{count()} jobs are followed", WITHIN_S, 0.2, TimeoutError)


def decisions(crowds: list[Crowd], controller: Controller, each: int, count: int) -> list[float]:
    """ms from the report of a fault to the decision, one node at a time, under whatever else goes on."""
    sent: dict[str, float] = {}
    last = each * len(crowds)
    for number in random.sample(range(last - SPARE, last), count):
        answer = crowds[number // each].do("fault", number % each, number % each + 1)
        sent[node_name(number)] = float(answer[1])
        time.sleep(random.uniform(0.2, 0.6))
    wait_until(lambda: len(_decided(controller, sent)) == count, WITHIN_S, "all decisions")
    return [(at_s - sent[node]) * 1000 for node, at_s in _decided(controller, sent).items()]


def _decided(controller: Controller, nodes: dict[str, float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in controller.events("fleet_decided"):
        at_s = datetime.datetime.fromisoformat(one["timestamp"]).timestamp()
        if one["node"] in nodes and one["reason"] == "FatalFinding" and at_s >= nodes[one["node"]]:
            found.setdefault(one["node"], at_s)
    return found


def load(world: World, controllers: list[Controller], sizes: list[int], quick: bool) -> list[Row]:
    leader, each, rows = controllers[0], sizes[-1] // 2, []
    world.bulk.nodes(sizes[-1])
    world.bulk.jobs(JOBS, PODS, sizes[-1] - SPARE)
    wait_idle(leader.pid, "the leader with its new nodes and jobs", share=0.3, window_s=5.0)
    idle = Cost(leader, 10.0 if quick else 20.0)
    crowds = [world.crowd(range(k * each, (k + 1) * each), EVERY_S, "keep", *controllers) for k in (0, 1)]
    try:
        costs = []
        for size in sizes:
            for crowd in crowds:
                crowd.ask("grow", size // 2)
            for crowd in crowds:
                crowd.answer()
            for crowd in crowds:
                crowd.do("once")
            costs.append(Cost(leader, 10.0 if quick else 20.0))
        for size, cost in zip(sizes, costs, strict=True):
            beside = ("no agents", idle.share)
            rows.append(at_most(f"{size} agents: CPU", 25.0, cost.share, "% of a core", beside))
            rows.append(at_most(f"{size} agents: memory (PSS)", 500.0, cost.mib, "MiB"))
        each_ms = [
            max(0.001, cost.share - idle.share) * 10 / (size / EVERY_S)
            for size, cost in zip(sizes, costs, strict=True)
        ]
        some = (f"with {sizes[-2]}", each_ms[-2])
        name = f"CPU of one report, with {sizes[-1]} agents"
        rows.append(at_most(name, 1.3 * each_ms[-2], each_ms[-1], "ms", some))
        protect(world)
        all_told(world)
        cost, what = Cost(leader, 10.0 if quick else 20.0), f"{sizes[-1]} agents, {JOBS} jobs followed"
        beside = ("no jobs followed", costs[-1].share)
        rows.append(at_most(f"{what}: CPU", 25.0, cost.share, "% of a core", beside))
        rows.append(
            at_most(f"{what}: memory (PSS)", 500.0, cost.mib, "MiB", ("no jobs followed", costs[-1].mib))
        )
        took_ms = decisions(crowds, leader, each, 30 if quick else 200)
        beside = ("median", statistics.median(took_ms))
        rows.append(
            at_most("report → decision under that load, p99", 100.0, percentile(took_ms, 0.99), "ms", beside)
        )
        leader.begin_look()
        rows += [acknowledged(crowds, 100 if quick else 1000), *held(leader, what)]
        rows += rush(world, leader, crowds)
        rows += takeover(world, controllers, crowds)
    finally:
        for crowd in crowds:
            crowd.close()
    return rows


def acknowledged(crowds: list[Crowd], count: int) -> Row:
    for crowd in crowds:
        crowd.ask("acks", count // len(crowds))
    took_ms = [float(one) for crowd in crowds for one in crowd.answer()[0].split(",")]
    beside = ("median", statistics.median(took_ms))
    return at_most(
        "urgent report → acknowledged, under that load, p99", 50.0, percentile(took_ms, 0.99), "ms", beside
    )


def held(controller: Controller, what: str) -> list[Row]:
    """Since its look began."""
    seen = controller.look()
    by_clock = (f"by the clock; {seen.what}", seen.clock_ms)
    by_itself = (f"the longest of {seen.full_collections} so far", seen.longest_collection_ms)
    full_ms = seen.full_collection_ms
    return [
        at_most(f"{what}: longest callback, its CPU", HELD_MS, seen.cpu_ms, "ms", by_clock),
        at_most(f"{what}: full garbage collection", FULL_COLLECTION_MS, full_ms, "ms", by_itself),
    ]


def rush(world: World, controller: Controller, crowds: list[Crowd]) -> list[Row]:
    before = silences(world)
    size = sum(crowd.size for crowd in crowds)
    for crowd in crowds:
        crowd.do("mark")
    for crowd in crowds:
        crowd.ask("rush")
    took_s = max(float(crowd.answer()[0]) for crowd in crowds)
    for crowd in crowds:
        crowd.do("once")
    return [
        at_most(f"{size} agents that come in one moment → all heard", RUSH_S, took_s, "s"),
        at_most("silences recorded until then", 0.0, len(silences(world) - before), "records"),
    ]


def silences(world: World) -> set[str]:
    return {
        one["metadata"]["name"] for one in world.admin.items(QUARANTINES) if one["spec"]["kind"] == "silence"
    }


def takeover(world: World, controllers: list[Controller], crowds: list[Crowd]) -> list[Row]:
    before = silences(world)
    for crowd in crowds:
        crowd.do("mark")
        crowd.ask("back")
    begun_s = time.monotonic()
    controllers[0].kill()
    controllers[1].wait("leads, epoch")
    took_s = time.monotonic() - begun_s
    for crowd in crowds:
        crowd.answer()
    heard_s = time.monotonic() - begun_s

    followed_again(controllers[1])
    followed_s = time.monotonic() - begun_s
    return [
        at_most("leader killed → the other one leads", 15.0, took_s, "s"),
        at_most("leader killed → all agents heard again", 60.0, heard_s, "s"),
        at_most("leader killed → all jobs followed again", 60.0, followed_s, "s"),
        at_most("silences recorded until then", 0.0, len(silences(world) - before), "records"),
    ]


def visits(world: World, controller: Controller, sizes: list[int], seconds: float) -> list[Row]:
    """Agents that connect for each report: what one visit costs, with few and with many."""
    each_ms, rows = [], []
    followed_again(controller)
    all_told(world)
    idle = Cost(controller, seconds)
    for size in sizes:
        half = size // 2
        crowds = [
            world.crowd(range(k * half, (k + 1) * half), VISIT_EVERY_S, "close", controller) for k in (0, 1)
        ]
        try:
            for crowd in crowds:
                crowd.do("grow", half)
            share = Cost(controller, seconds).share
        finally:
            for crowd in crowds:
                crowd.close()
        each_ms.append((share - idle.share) * 10 / (size / VISIT_EVERY_S))
        name = f"{size} agents that connect each {VISIT_EVERY_S:g} s: CPU"
        rows.append(at_most(name, 100.0, share, "% of a core", ("no agents", idle.share)))
    most = sizes[-1]
    name = f"{most} agents, closed between reports: CPU of one visit"
    few = (f"with {sizes[0]} agents", each_ms[0])
    return [*rows, at_most(name, 1.3 * each_ms[0], each_ms[-1], "ms", few)]


# ---------------------------------------------------------------- all of it


def run(quick: bool = False) -> list[Row]:
    sizes = [200, 600, 2000] if quick else [1000, 3000, 10_000]
    faults, lines = (100, 20) if quick else (500, 150)
    rows: list[Row] = []
    with World() as world:
        world.bulk.nodes(sizes[0])
        first = Controller(world, "first")
        first.wait("leads, epoch")
        rows += kernel_line(world, first, lines)
        first.stop()
        runs = []  # seconds of a bare client and of a controller, just after
        for turn in range(2 if quick else 10):
            alone_s = bare(world, range(faults))
            clean(world, faults)
            one = Controller(world, f"many-{turn}")
            one.wait("leads, epoch")
            runs.append((alone_s, many(world, one, faults)))
            one.stop()
            clean(world, faults)
        runs.sort(key=lambda run: run[1] / run[0])
        for what, (alone_s, took_s) in (("median", runs[len(runs) // 2]), ("worst", runs[-1])):
            name = f"{faults} nodes at once → last cordon, {what} of {len(runs)} runs"
            beside = ("a bare client just before it", alone_s)
            rows.append(at_most(name, 1.3 * alone_s, took_s, "s", beside))
        rows.append(first_of_an_heir(world, faults))
        pair = [Controller(world, "fourth", looked_at=True), Controller(world, "fifth")]
        pair[0].wait("leads, epoch")
        rows += load(world, pair, sizes, quick)
        pair[1].stop()
        if not quick:  # a few visits in a few seconds cost less than the rounds beside them vary by
            many_agents = [10_000, 30_000]
            world.bulk.nodes(many_agents[-1])
            patient = Controller(world, "sixth", agent_silent="10m")
            patient.wait("leads, epoch")
            rows += visits(world, patient, many_agents, 30.0)
            patient.stop()
    return rows
