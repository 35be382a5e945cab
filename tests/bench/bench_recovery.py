"""Jobs on Kubernetes: from a fault to all ranks stepping again.

On real kubelets a job of four ranks steps; one is killed (-9), and seconds count until each of the four new ones has
told a step. Beside it, in turns, the floor: a script that suspends the job, waits until no pod is left, resumes it and
waits for the same steps; it sees nothing, decides nothing and records nothing. The phases are those of the incident's
record. Each time the job has come further than before: what fails again without progress waits longer each time.

On fake nodes (kwok) 200 jobs of two pods lose one each at the same moment. Beside it the same 200 suspends and resumes
by a bare client, 16 at a time. Requests are those that the controller says it sent.
"""

import contextlib
import datetime
import itertools
import os
import re
import signal
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.harness import Row, at_most, cpu_seconds, process_tree
from tests.waits import until

if TYPE_CHECKING:
    from tests.kubernetes.real_training import Training
    from tests.rig.api import Api, Object

RANKS = 4
ABOVE_FLOOR_S = 2.0
WITHIN_S, CROWD_WITHIN_S = 180.0, 600.0
# The API server shares the cores, and hundreds of pods in one answer are work.
LOOK_S, CROWD_LOOK_S = 0.02, 0.25
PROGRESS = 10  # steps, which the leader has heard of
JOBS, PODS, FAKES = 200, 2, 50
AT_ONCE = 16
RECORDS = "/apis/sentinel.dev/v1alpha1/protectedjobs"


def wait(until_so: Callable[[], bool], what: Callable[[], str] | str) -> None:
    until(until_so, what, WITHIN_S, LOOK_S, TimeoutError)


def wait_for_crowd(until_so: Callable[[], bool], what: Callable[[], str] | str) -> None:
    until(until_so, what, CROWD_WITHIN_S, CROWD_LOOK_S, TimeoutError)


# ---------------------------------------------------------------- one job on real kubelets


def step_lines(training: "Training", pods: "list[Object]") -> int:
    """Of how many of these pods the log tells a step."""
    told = 0
    for pod in pods:
        node = next(one for one in training.cluster.nodes if one.name == pod["spec"]["nodeName"])
        told += any(" step: " in line for line in node.log_lines(pod, "main"))
    return told


def until_all_step(training: "Training", before: set[str]) -> float:
    """When each rank has told a step in a pod that is not one of these; monotonic seconds."""

    def step() -> bool:
        pods = [pod for pod in training.pods() if pod["metadata"]["uid"] not in before]
        return len(pods) == RANKS and step_lines(training, pods) == RANKS

    wait(step, lambda: f"not all ranks step: {training.record()}")
    return time.monotonic()


def uids(training: "Training") -> set[str]:
    return {pod["metadata"]["uid"] for pod in training.pods()}


def by_script(training: "Training") -> float:
    path = f"/apis/batch/v1/namespaces/{training.space}/jobs/train"
    known = training.record()["incarnation"]
    before, begun_s = uids(training), time.monotonic()
    training.admin.patch(path, {"spec": {"suspend": True}})
    pods = f"/api/v1/namespaces/{training.space}/pods"
    wait(lambda: not training.admin.items(pods), "pods are left")
    training.admin.patch(path, {"spec": {"suspend": False}})
    took_s = until_all_step(training, before) - begun_s
    wait(lambda: training.record()["incarnation"] > known, "the new pods are not followed")
    return took_s


def further(training: "Training") -> bool:
    """Is rank 0 beyond all that its earlier pods have done?"""
    line = training.line()
    uid, step = line[-1]
    return step > PROGRESS + max((done for other, done in line if other != uid), default=0)


def by_sentinel(training: "Training") -> tuple[float, dict[str, float]]:
    """The whole, and seconds until the first phase and in each."""
    wait(lambda: training.record().get("state") == "running", "the job is not followed")
    wait(lambda: further(training), "the job does not come further")
    before = uids(training)
    known = len(training.incidents())
    pod = next(pod for pod in training.pods() if pod["metadata"]["name"].startswith("train-0-"))
    node = next(one for one in training.cluster.nodes if one.name == pod["spec"]["nodeName"])
    begun_s, begun_wall_s = time.monotonic(), time.time()
    for pid in node.pids(pod):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    took_s = until_all_step(training, before) - begun_s
    wait(lambda: training.phases()[-1:] == ["Recovered"], "the recovery is not over")
    (incident,) = training.incidents()[known:]
    at_s = [(step["phase"], stamp(step["time"])) for step in incident["steps"]]
    phases = {"Detecting": at_s[0][1] - begun_wall_s}
    for (name, from_s), (_, to_s) in itertools.pairwise(at_s):
        phases[name] = phases.get(name, 0.0) + to_s - from_s
    return took_s, phases


def stamp(text: str) -> float:
    cut = re.sub(r"(\.\d{6})\d*Z$", r"\1+00:00", text)
    return datetime.datetime.fromisoformat(cut).timestamp()


def real(count: int) -> list[Row]:
    from tests.kubernetes.real_cluster import Cluster
    from tests.kubernetes.real_training import Training
    from tests.rig.control_plane import ControlPlane
    from tests.rig.processes import Rig

    with Rig() as rig, tempfile.TemporaryDirectory() as folder:
        training = Training(Cluster(ControlPlane(rig)), Path(folder))
        resume = {**training.policy()["spec"]["resume"], "maxResumes": 1000}
        training.start(ranks=RANKS, steps=1_000_000, verifyAfter="1s", resume=resume)
        wait(lambda: training.steps() > 0, "the job does not step")
        floor_s, own_s, phases = list[float](), list[float](), list[dict[str, float]]()
        for _ in range(count):
            took_s, split = by_sentinel(training)
            own_s.append(took_s)
            phases.append(split)
            floor_s.append(by_script(training))
    floor, own = statistics.median(floor_s), statistics.median(own_s)
    rows = [
        at_most(
            "a rank killed → all ranks step again",
            floor + ABOVE_FLOOR_S,
            own,
            "s",
            ("suspend and resume", floor),
        )
    ]
    for name in ("Detecting", "Stopping", "Prechecking", "Starting"):
        part = statistics.median(split.get(name, 0.0) for split in phases)
        rows.append(at_most(f"  of that: {name.lower()}", floor + ABOVE_FLOOR_S, part, "s"))
    return rows


# ---------------------------------------------------------------- many jobs on fake nodes


class Crowd:
    """Jobs on fake nodes, each in a namespace of its own."""

    def __init__(self, admin: "Api", kwok: Any, count: int) -> None:
        from tests.kubernetes.jobs_site import policy
        from tests.rig.operators.flow import template

        self.admin, self.kwok = admin, kwok
        self.spaces = [f"crowd-{n:03}" for n in range(count)]
        pods = template("crowd")
        pods["spec"]["restartPolicy"] = "Never"
        spec = {"completionMode": "Indexed", "parallelism": PODS, "completions": PODS, "template": pods}
        for space in self.spaces:
            made = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": spec}
            names = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}}
            admin.apply([names, policy(space, restart={"maxRestarts": 9})])
            admin.apply([made], namespace=space)
        wait_for_crowd(lambda: len(self.running()) == count, "not all jobs run")

    def running(self) -> dict[str, set[str]]:
        """Of the jobs of which all pods run: namespace -> UIDs."""
        found: dict[str, set[str]] = {}
        for pod in self.admin.items("/api/v1/pods", labelSelector="job-name=train"):
            if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]:
                found.setdefault(pod["metadata"]["namespace"], set()).add(pod["metadata"]["uid"])
        return {space: uids for space, uids in found.items() if len(uids) == PODS}

    def followed(self) -> int:
        """How many of them the leader follows."""
        from tests.rig.api import ApiError

        try:
            records = self.admin.items(RECORDS)
        except ApiError as error:
            if error.status != HTTPStatus.TOO_MANY_REQUESTS:
                raise
            return 0  # the leader has just told the API server which versions are stored
        return sum(one["spec"].get("state") == "running" for one in records)

    def until_new(self, before: dict[str, set[str]]) -> float:
        """When all jobs run with other pods than these; monotonic seconds."""
        wait_for_crowd(lambda: self._all_new(before), lambda: self._left(before))
        return time.monotonic()

    def _left(self, before: dict[str, set[str]]) -> str:
        """What of the first job that does not run again is there."""
        now = self.running()
        left = [space for space in self.spaces if space not in now or now[space] & before[space]]
        first = f"namespaces/{left[0]}"
        pods = self.admin.items(f"/api/v1/{first}/pods")
        told = [(pod["metadata"]["name"], pod["spec"].get("nodeName"), pod["status"]) for pod in pods]
        records = [
            self.admin.items(f"/apis/sentinel.dev/v1alpha1/{first}/{kind}")
            for kind in ("protectedjobs", "incidents")
        ]
        return f"{len(left)} of {len(self.spaces)} jobs do not run again, the first of them: {told} {records}"

    def _all_new(self, before: dict[str, set[str]]) -> bool:
        now = self.running()
        return len(now) == len(before) and not any(now[space] & before[space] for space in before)

    def lose_one_each(self) -> float:
        begun_s = time.monotonic()
        first = {
            pod["metadata"]["namespace"]: pod["metadata"]["name"]
            for pod in self.admin.items("/api/v1/pods", labelSelector="job-name=train")
        }
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for each in [pool.submit(self.kwok.end_pod, space, name, 1) for space, name in first.items()]:
                each.result()
        return begun_s

    def by_script(self) -> None:
        def one(space: str) -> None:
            path = f"/apis/batch/v1/namespaces/{space}/jobs/train"
            self.admin.patch(path, {"spec": {"suspend": True}})
            wait_for_crowd(lambda: not self.admin.items(f"/api/v1/namespaces/{space}/pods"), "pods are left")
            self.admin.patch(path, {"spec": {"suspend": False}})

        with ThreadPoolExecutor(AT_ONCE) as pool:
            for each in [pool.submit(one, space) for space in self.spaces]:
                each.result()


@contextlib.contextmanager
def controller(world: Any) -> "Iterator[Any]":
    made = world.controller("one")
    made.said("leads, epoch", 60.0)
    try:
        yield made
    finally:
        made.send(signal.SIGTERM)
        made.code()


def requests(page: str) -> float:
    with urllib.request.urlopen(f"{page}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return sum(float(n) for n in re.findall(r"^sentinel_api_request_seconds_count\{.*\} (\S+)$", text, re.M))


def many(count: int) -> list[Row]:
    from tests.e2e.box import Box
    from tests.kubernetes.conftest import install
    from tests.kubernetes.local_fleet import Fleet, Page
    from tests.rig.control_plane import ControlPlane
    from tests.rig.kwok import Kwok
    from tests.rig.processes import Rig

    with Rig() as rig, tempfile.TemporaryDirectory() as folder:
        plane = ControlPlane(rig)
        install(plane)
        kwok = Kwok(plane)
        kwok.nodes("crowd", FAKES)
        fleet = Fleet(plane, Box(Path(folder) / "box"), Path(folder))
        fleet.settings["listen"] = "127.0.0.1:0"
        crowd = Crowd(plane.admin, kwok, count)
        before = crowd.running()
        begun_s = time.monotonic()
        crowd.by_script()
        floor_s = crowd.until_new(before) - begun_s
        with controller(fleet) as leader:
            page = Page(leader).url
            wait_for_crowd(lambda: crowd.followed() == count, "not all jobs are followed")
            sent, cpu_s = requests(page), cpu_seconds(process_tree(leader.pid))
            before = crowd.running()
            own_s = -crowd.lose_one_each() + crowd.until_new(before)
            per_job = (requests(page) - sent) / count
            share = (cpu_seconds(process_tree(leader.pid)) - cpu_s) / count * 1000
    beside = ("a bare client's suspends and resumes", floor_s)
    return [
        at_most(f"{count} jobs lose a rank at once → last one runs", 3 * floor_s, own_s, "s", beside),
        at_most("  requests to the API for each", 30.0, per_job, "requests"),
        at_most("  CPU of the controller for each", 100.0, share, "ms"),
    ]


def run(quick: bool = False) -> list[Row]:
    return [*real(2 if quick else 7), *many(40 if quick else JOBS)]
