"""Jobs on fake nodes under a real control plane, with real controllers and agents; the jobs' logs are written here."""

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sentinel.core.health import Finding
from sentinel.core.reports import Report
from tests.e2e.box import Box, Running
from tests.kubernetes.conftest import NAMESPACE
from tests.kubernetes.light_agents import FORGED, FOUND, LOOKED, RANKS, SAVES, SIGNALLED, SPOKEN, Saves
from tests.kubernetes.light_agents import Ranks as Told
from tests.kubernetes.local_fleet import AUDIENCE, Fleet, Page
from tests.rig.operators.flow import template

if TYPE_CHECKING:
    from tests.rig.api import Api, Object
    from tests.rig.control_plane import ControlPlane
    from tests.rig.kwok import Kwok

NODES = "train"
REPO = Path(__file__).parents[2]
CUSTOM = "/apis/sentinel.dev/v1alpha1"
CHECKPOINT = {"signal": "SIGUSR1", "timeout": "30s", "proof": {"logPattern": "saved checkpoint"}}

_MANY = {"perWindow": {"atLeast": 100, "share": 0}}
UNBRAKED = {"stops": _MANY, "poolStops": _MANY}  # of stops of jobs that step, which count from all records


def policy(space: str, **spec: Any) -> "Object":
    """For every job of a namespace, with the shortest times."""
    asked = {"jobs": {}, "owner": {"emails": ["owner@example.com"]}, "verifyAfter": "1s", **spec}
    head = {"apiVersion": "sentinel.dev/v1alpha1", "kind": "JobPolicy"}
    return {**head, "metadata": {"name": "all", "namespace": space}, "spec": asked}


class JobRecords:
    """What Sentinel has written of the only job of a namespace."""

    admin: "Api"
    space: str

    def record(self) -> "Object":
        """{} where there is none."""
        found = self.admin.items(f"{CUSTOM}/namespaces/{self.space}/protectedjobs")
        return found[0]["spec"] if found else {}

    def incidents(self) -> "list[Object]":
        """The newest of a job as its record holds it: its own object is written later."""
        here = f"{CUSTOM}/namespaces/{self.space}"
        records = [one["spec"].get("incident") for one in self.admin.items(f"{here}/protectedjobs")]
        found = {one["spec"]["id"]: one["spec"] for one in self.admin.items(f"{here}/incidents")}
        found |= {one["id"]: one for one in records if one}
        return [one for _, one in sorted(found.items())]

    def incident(self) -> "Object":
        """The only one."""
        found = self.incidents()
        assert len(found) == 1, self.records_told()
        return found[0]

    def phases(self) -> list[str]:
        """Of the newest incident."""
        found = self.incidents()
        return [step["phase"] for step in found[-1].get("steps", [])] if found else []

    def records_told(self) -> str:
        found = self.admin.items(f"{CUSTOM}/namespaces/{self.space}/protectedjobs")
        notes = [one["metadata"].get("annotations", {}) for one in found]
        return json.dumps([self.record(), notes, self.incidents()], indent=1)


class JobSite(JobRecords, Fleet):
    """Three fake nodes of eight GPUs."""

    def __init__(self, plane: "ControlPlane", kwok: "Kwok", box: Box, tmp_path: Path) -> None:
        super().__init__(plane, box, tmp_path)
        self.kwok = kwok
        self.logs = tmp_path / "pods"
        self.space = plane.namespace()

    def close(self) -> None:
        """What would take room from the next test."""
        for kind in ("/apis/batch/v1", ""):
            plural = "jobs" if kind else "pods"
            self.admin.delete(
                f"{kind or '/api/v1'}/namespaces/{self.space}/{plural}", propagationPolicy="Background"
            )
        for node in self.admin.items("/api/v1/nodes", labelSelector=f"rig={NODES}"):
            if node["spec"].get("unschedulable"):
                change = {"spec": {"unschedulable": None}}
                self.admin.patch(f"/api/v1/nodes/{node['metadata']['name']}", change)
        self.until(lambda: not self.admin.items(f"/api/v1/namespaces/{self.space}/pods"))

    def protect(self, **spec: Any) -> None:
        self.admin.apply([policy(self.space, **spec)])
        path = f"{CUSTOM}/namespaces/{self.space}/jobpolicies/all"

        def accepted() -> bool:
            told = self.admin.get(path).get("status", {}).get("conditions", [])
            return any(one["type"] == "Accepted" and one["status"] == "True" for one in told)

        self.until(accepted)

    def create(self, job: "Object") -> str:
        """Its path."""
        job["metadata"]["namespace"] = self.space
        self.admin.create(job)
        return self.admin.path_of(job)

    def pods(self, phase: str = "Running", labels: str = "job-name") -> "list[Object]":
        """By default those of the job."""
        found = self.admin.items(f"/api/v1/namespaces/{self.space}/pods", labelSelector=labels)
        return sorted(
            (pod for pod in found if pod["status"].get("phase") == phase),
            key=lambda pod: pod["metadata"]["name"],
        )

    def finish(self) -> None:
        """Every rank ends well."""
        for pod in self.pods():
            self.kwok.end_pod(self.space, pod["metadata"]["name"], 0)

    def block(self, name: str = "blocker", **spec: Any) -> str:
        """A pod of nobody that takes a whole node; its path."""
        before = len(self.pods(labels="!job-name"))
        pod = template(NODES)
        pod["spec"] |= spec
        pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "8"}}
        made = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.space},
            **pod,
        }
        self.admin.create(made)
        self.until(lambda: len(self.pods(labels="!job-name")) > before)
        return self.admin.path_of(made)

    def order(self, what: str, text: str) -> None:
        """As `kubectl annotate` does it."""
        path = f"{CUSTOM}/namespaces/{self.space}/protectedjobs"
        (one,) = self.admin.items(path)
        change = {"metadata": {"annotations": {f"sentinel.dev/{what}": text}}}
        self.admin.patch(f"{path}/{one['metadata']['name']}", change)

    def state(self, *states: str) -> "Callable[[], bool]":
        return lambda: self.record().get("state") in states

    def until_findings(self, controller: Running, there: bool) -> None:
        """It has heard of what agents find; not `there`: that they find nothing any more."""
        page = Page(controller)

        def told() -> bool:
            return any(n for (name, _), n in page.numbers().items() if name == "sentinel_fleet_findings")

        self.until(lambda: told() is there)

    def story(self) -> str:
        return f"{super().story()}\n{self.records_told()}"


class Agents:
    """Of fake nodes, by default all with the label `rig: train`, in one process."""

    def __init__(self, site: JobSite, controller: Running, nodes: Iterable[str] = ()) -> None:
        self.folder = site.folder / "agents"
        labelled = site.admin.items("/api/v1/nodes", labelSelector=f"rig={NODES}")
        for name in nodes or [node["metadata"]["name"] for node in labelled]:
            (self.folder / name).mkdir(parents=True, exist_ok=True)
            token = site.plane.node_token(NAMESPACE, "sentinel-agent", name, audience=AUDIENCE)
            (self.folder / name / "token").write_text(token)
        bundle = site.until(lambda: site.found(f"/api/v1/namespaces/{NAMESPACE}/configmaps/sentinel-ca"))
        ca = site.folder / "agents-ca.crt"
        ca.write_text(bundle["data"]["ca.crt"])
        address = f"127.0.0.1:{site.ports[controller.pid]}"
        command = [sys.executable, "-m", "tests.kubernetes.light_agents", address, str(ca), str(self.folder)]
        self._out = (site.folder / "agents.log").open("w")
        self.process = subprocess.Popen(
            command,
            cwd=REPO,
            stdout=self._out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "E2E_BOX": site.box.env["E2E_BOX"]},
        )

    def find(self, node: str, finding: Finding | None) -> None:
        """What a check of the node finds from now on."""
        if finding is None:
            (self.folder / node / FOUND).unlink(missing_ok=True)
            return
        self._write(node, FOUND, finding)

    def find_anything(self) -> bool:
        return any((folder / FOUND).exists() for folder in self.folder.iterdir())

    def ranks(self, node: str, ranks: Told | None) -> None:
        """What the logs of ranks there say; None: nothing more."""
        if ranks is None:
            (self.folder / node / RANKS).unlink(missing_ok=True)
            return
        self._write(node, RANKS, ranks)

    def forge(self, node: str, report: Report) -> None:
        """What its agent tells besides: once, and by its own clock."""
        self._write(node, FORGED, report)

    def never_save(self) -> None:
        """Ranks on all nodes take the signal, and are never done."""
        self.store(Saves(line=""))

    def store(self, saves: Saves) -> None:
        """How ranks on all nodes save from now on, and what their store shows."""
        for folder in self.folder.iterdir():
            self._write(folder.name, SAVES, saves)

    def looked(self) -> bool:
        """Has an agent seen the store, since `hush`?"""
        return any((folder / LOOKED).exists() for folder in self.folder.iterdir())

    def signalled(self, node: str) -> bool:
        """Were ranks there told to save, since `hush`?"""
        return (self.folder / node / SIGNALLED).exists()

    def spoke(self, node: str) -> bool:
        """Has its agent told what ranks of a job there say, since `hush`? An answer to an order comes behind that."""
        return (self.folder / node / SPOKEN).exists()

    def hush(self) -> None:
        """What was written last may not have been told yet: it would be told of the next job that comes there."""
        for folder in self.folder.iterdir():
            self.find(folder.name, None)
            self.ranks(folder.name, None)
            for name in (SAVES, SIGNALLED, LOOKED, SPOKEN):
                (folder / name).unlink(missing_ok=True)

    def _write(self, node: str, name: str, what: Finding | Told | Saves | Report) -> None:
        path = self.folder / node / name
        written = path.with_suffix(".new")
        written.write_bytes(msgspec.json.encode(what))
        written.rename(path)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._out.close()


class Ranks(threading.Thread):
    """What the pods of the job print, where a kubelet would write it: an iteration of 250 ms, four times a second."""

    def __init__(self, site: JobSite, logs: Path) -> None:
        super().__init__(daemon=True)
        self._site, self._logs = site, logs
        self._ended = threading.Event()
        self._step = 0

    def run(self) -> None:
        while not self._ended.wait(0.25):
            self._step += 1
            pods = []
            with contextlib.suppress(OSError):  # a connection that was closed: the pods train on
                pods = self._site.pods()
            for pod in pods:
                times = "this iteration hardware time is 200.0 and e2e time is 250.0 ms."
                self.say(pod, f"step: {self._step}", times)

    def say(self, pod: "Object", *lines: str) -> None:
        meta = pod["metadata"]
        log = self._logs / f"{meta['namespace']}_{meta['name']}_{meta['uid']}" / "main" / "0.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as file:
            file.write("".join(f"2026-01-01T00:00:00.000000000Z stdout F {line}\n" for line in lines))

    def end(self) -> None:
        self._ended.set()
        self.join()
