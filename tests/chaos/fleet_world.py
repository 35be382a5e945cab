"""A cluster under fault: the real API server behind bad ways, two real controllers, many nodes, people."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentinel.core.fleet.model import Kind, Mode, NodeQuarantine, State
from tests.chaos.fleet_audit import TAINT, Audit, Limits
from tests.chaos.fleet_controllers import Controller
from tests.chaos.fleet_nodes import SimNode
from tests.chaos.fleet_weather import Weather, weather
from tests.e2e.box import Box
from tests.kubernetes.conftest import (
    LEADER,
    NAMESPACE,
    NODE_LEASES,
    NODES,
    QUARANTINES,
    protect_all,
    rank,
    undriven,
)
from tests.rig.api import ApiError
from tests.waits import eventually

if TYPE_CHECKING:
    from tests.rig.control_plane import ControlPlane

POOLS = ("a", "a", "b", "")
GRACE_S = 5.0  # what an agent has told is known within
LEAST_NODES = 38
DEADLINE_S = 120.0
LAG_S = 25.0  # of the status of a record: after one that could not be written the next waits for 10 s


class World:
    """Everything that the test does goes through here, so that the audit knows who wrote what."""

    def __init__(
        self,
        plane: "ControlPlane",
        folder: Path,
        rng: random.Random,
        nodes: int,
        fleet: Mapping[str, Any] | None = None,
        *,
        hasty: bool = False,
    ) -> None:
        """`fleet`: more of the controllers' settings. `hasty`: nodes are silent after seconds."""
        self.plane, self.rng, self.folder = plane, rng, folder
        self.limits = Limits().times(max(1.0, nodes / LEAST_NODES))
        self.audit = Audit(plane.admin, self.limits)
        self.audit.was_faulty = self._was_faulty
        self.box = Box(folder / "box")
        self.controllers = [
            Controller(plane, self.box, folder / name, name, self.limits, fleet, hasty=hasty)
            for name in ("one", "two")
        ]
        self.renew_s = 1.0 if hasty else 4.0  # between a kubelet's renewals
        self.addresses = tuple(f"127.0.0.1:{one.port}" for one in self.controllers)
        self.bundle = folder / "ca.crt"
        self.nodes = {
            name: SimNode(name, POOLS[k % len(POOLS)], folder, self.addresses, str(self.bundle))
            for k, name in enumerate(f"node-{k:02d}" for k in range(nodes))
        }
        self.steps: list[str] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.pods = 0
        self.lag_s = LAG_S
        self.all_tell = False

    def note(self, text: str) -> None:
        self.steps.append(f"{time.strftime('%H:%M:%S', time.gmtime())} {text}")

    # ------------------------------------------------------------ what people and kubelets write

    async def call(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        """As administrator. None: the object is gone, or it was changed meanwhile."""
        done = asyncio.get_running_loop().create_future()
        self.audit.calls.add(done)
        try:
            answer = await asyncio.to_thread(self.plane.admin.call, method, path, body, **more)
            meta = answer.get("metadata", {}) if isinstance(answer, dict) else {}
            if version := meta.get("resourceVersion"):
                self.audit.own.add(int(version))
        except ApiError as error:
            if error.status in (404, 409):
                return None
            raise
        finally:
            self.audit.calls.discard(done)
            done.set_result(None)
        return answer

    async def patch(self, path: str, body: Any) -> Any:
        return await self.call("PATCH", path, body, kind="application/merge-patch+json")

    async def join(self, node: SimNode) -> None:
        """Its kubelet makes the node object, and the agent's pod gets a token for it."""
        labels = {"sentinel.dev/pool": node.pool} if node.pool else {}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node.name, "labels": labels}}
        made = await self.call("POST", NODES, body)
        node.uid = made["metadata"]["uid"]
        node.cordoned = False
        self.audit.proofs.pop(node.name, None)
        await self.boot(node)
        token = await asyncio.to_thread(
            self.plane.node_token,
            NAMESPACE,
            "sentinel-agent",
            node.name,
            audience="sentinel-controller",
            seconds=86400,
        )
        node.start(token)

    async def boot(self, node: SimNode) -> None:
        info = dict.fromkeys(
            (
                *("machineID", "systemUUID", "kernelVersion", "osImage", "containerRuntimeVersion"),
                *("kubeletVersion", "kubeProxyVersion", "operatingSystem", "architecture"),
            ),
            "",
        )
        body = {"status": {"nodeInfo": {**info, "bootID": node.boot_id}}}
        await self.patch(f"{NODES}/{node.name}/status", body)

    async def leave(self, node: SimNode) -> None:
        await node.stop()
        node.uid = ""
        await self.call("DELETE", f"{NODES}/{node.name}")

    async def kubelets(self) -> None:
        """Renew the leases of all nodes that are heard."""
        while True:
            for node in list(self.nodes.values()):
                if node.uid and not node.silent:
                    await self._renew(node.name)
            await asyncio.sleep(self.renew_s)

    async def _renew(self, name: str) -> None:
        text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()) + f".{int(time.time() % 1 * 1e6):06d}Z"
        spec = {"renewTime": text, "leaseDurationSeconds": 40, "holderIdentity": name}
        if await self.patch(f"{NODE_LEASES}/{name}", {"spec": spec}) is None:
            body = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": name},
                "spec": spec,
            }
            await self.call("POST", NODE_LEASES, body)

    async def beats(self) -> None:
        """Most agents have something to tell now and then; the rest only say that they live, but for `all_tell`."""
        while True:
            await asyncio.sleep(0.7)
            for k, node in enumerate(self.nodes.values()):
                if node.uid and (k % 4 or self.all_tell):
                    node.tell()

    # ------------------------------------------------------------ life

    async def begin(self) -> None:
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-node-lease"}}
        await self.call("POST", "/api/v1/namespaces", space)
        self.tasks.append(asyncio.create_task(self.audit.follow()))
        for one in self.controllers:
            one.start()
        path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/sentinel-ca"
        found: Any = await eventually(
            lambda: asyncio.to_thread(self.plane.admin.find, path),
            "no controller makes certificates",
            DEADLINE_S,
            every_s=0.1,
        )
        self.bundle.write_text(found["data"]["ca.crt"])
        policies = "/apis/sentinel.dev/v1alpha1/namespaces/default/jobpolicies"
        await self.call("POST", policies, protect_all("default"))
        # Of the control plane that is shared, where an earlier world may have made it.
        (job,) = await asyncio.to_thread(self.plane.admin.apply, [undriven("default")])
        self.job_uid = job["metadata"]["uid"]
        for node in self.nodes.values():
            await self.join(node)
        self.tasks += [asyncio.create_task(self.kubelets()), asyncio.create_task(self.beats())]

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for node in self.nodes.values():
            await node.stop()
        for one in self.controllers:
            one.end()
        self.box.close()

    async def leader(self) -> Controller:
        """Who leads as the Lease says; the first where nobody does."""
        lease = await asyncio.to_thread(self.plane.admin.find, LEADER)
        holder = ((lease or {}).get("spec", {}).get("holderIdentity") or "").rpartition("-")[0]
        return next((one for one in self.controllers if one.name == holder), self.controllers[0])

    def weather(self, *kinds: Weather) -> None:
        for one, kind in zip(self.controllers, kinds, strict=True):
            one.proxy.weather = weather(kind, random.Random(self.rng.random()))
            one.proxy.hush(False)
            if kind in (Weather.BLIND, Weather.STORM):
                one.proxy.cut_watches()
                one.proxy.hush(self.rng.random() < 0.5)

    # ------------------------------------------------------------ what must hold at rest

    def of(self, node: SimNode) -> list[NodeQuarantine]:
        return [one for one in self.audit.records.values() if one.node == node.name]

    def unrest(self) -> str:
        """Why the cluster does not yet show what it must; "": it does."""
        for node in self.nodes.values():
            if why := self._unrest_of(node):
                return f"{node.name}: {why}"
        return ""

    def _unrest_of(self, node: SimNode) -> str:
        own = self.of(node)
        opened = [one for one in own if one.state.open and one.kind is not Kind.SILENCE]
        shown = self.audit.nodes.get(node.name)
        if (shown["metadata"]["uid"] if shown is not None else "") != node.uid:
            return "the audit has not seen what became of it yet"
        if shown is None:
            return f"it is gone, and {opened[0].id} is open" if opened else ""
        if len({one.kind for one in opened}) != len(opened):
            return "two open records of one kind"
        if any(one.node_uid != node.uid for one in opened):
            return "an open record of another node object"
        isolating = [one for one in opened if one.state is State.ACTIVE and one.mode is Mode.ENFORCE]
        taints = [one for one in shown["spec"].get("taints", []) if one["key"] == TAINT]
        unschedulable = shown["spec"].get("unschedulable", False)
        if bool(isolating) != bool(taints):
            return f"taints {taints}, records {[one.id for one in isolating]}"
        if isolating and not unschedulable and taints[0].get("value", "").endswith(".cordoned"):
            return "isolated and schedulable"
        if not isolating and unschedulable != node.cordoned:
            return f"unschedulable is {unschedulable}, a person's cordon {node.cordoned}"
        for one in own:
            shows = self.audit.conditions.get(one.id, {})
            if time.monotonic() - self.audit.changed_s[one.id] < self.lag_s:
                continue  # a later rest sees it: this one does not wait for it
            if shows.get("Isolated") != str(one.isolating) or shows.get("Ended") != str(not one.state.open):
                return f"the status of {one.id} lags: {shows}"
        numbers = {f"{one.number:04d}" for one in isolating}
        if taints and taints[0].get("value", "").partition(".")[0] not in numbers:
            return f"the taint {taints[0]} is of another record than {numbers}"
        return self._unrest_of_findings(node, opened)

    def _unrest_of_findings(self, node: SimNode, opened: list[NodeQuarantine]) -> str:
        for kind in (Kind.FAULT, Kind.DISK):
            found = [one for one in node.found.values() if (one.check == "disk") is (kind is Kind.DISK)]
            record = next((one for one in opened if one.kind is kind), None)
            lived = {key for one in self.of(node) for ignored in one.ignored for key in [ignored.key]}
            acting = [one for one in found if one.key not in lived or not node.acts]
            if acting and record is None:
                return f"{acting[0].code} is found, and no record says so"
            if (
                acting
                and record is not None
                and not {one.key for one in acting} <= {one.key for one in record.findings}
            ):
                return f"{record.id} does not name all of {[one.code for one in acting]}"
            if record is not None and record.state is State.HELD and acting and self._room(record):
                return f"{record.id} is held back by {record.held_by}, and there is room"
            if not found and record is not None and record.needs.repair != "person":
                return f"nothing is found any more, and {record.id} is open ({record.reason})"
        return ""

    def _room(self, record: NodeQuarantine) -> bool:
        """Counted by what the audit knows. What the window holds back goes on soon: rest is waited for."""
        standing = [
            one
            for one in self.audit.records.values()
            if one.kind is record.kind and one.state is State.ACTIVE and one.mode is Mode.ENFORCE
        ]
        own = [one for one in standing if one.pool == record.pool]
        if record.kind is Kind.DISK:
            return len(standing) < self.limits.disks
        return len(standing) < self.limits.at_a_time and len(own) < self.limits.pool_at_a_time

    def _was_faulty(self, name: str, wall_s: float, record: NodeQuarantine) -> str:
        node = self.nodes[name]
        for finding in record.findings:
            if finding.code in node.found and node.since[finding.code] < wall_s - GRACE_S:
                return f"{finding.code} stood for {wall_s - node.since[finding.code]:.1f} s"
        if record.needs.repair == "reboot" and record.boot_id == node.boot_id:
            return "it was not rebooted"
        return ""

    async def rest(self) -> None:
        """Until everything holds, and what must be released by a person is. Raises AssertionError."""
        released = asyncio.create_task(self._released())
        try:
            begun, last = time.monotonic(), ""

            def still() -> str:
                nonlocal last
                now = self.unrest()
                last = now or last
                return now

            await self.until(lambda: not still(), self.unrest)
            self.note(f"at rest after {time.monotonic() - begun:.1f} s; last: {last}")
        finally:
            released.cancel()
            await asyncio.gather(released, return_exceptions=True)
        self.audit.check_epochs()
        self.check()

    async def _released(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            for node in self.nodes.values():
                for record in self.of(node):
                    if record.state is State.ACTIVE and record.needs.repair == "person" and not node.found:
                        await self.uncordon(node)

    def check(self) -> None:
        if self.audit.problems:
            raise AssertionError(self.audit.problems[0])

    async def until(
        self, holds: Callable[[], object], why: Callable[[], str], deadline_s: float = DEADLINE_S
    ) -> None:
        def held() -> object:
            if not (found := holds()):
                self.check()
                for task in self.tasks:
                    if task.done():
                        task.result()
            return found

        def story() -> str:
            said = why()
            name = said.partition(":")[0]
            told = [
                line for key, lines in self.audit.stories.items() if key.startswith(name) for line in lines
            ]
            return "\n".join([f"not at rest: {said}", *sorted(told)[-60:]])

        await eventually(held, story, deadline_s, every_s=0.05)

    def story(self) -> str:
        logs = [f"--- {one.name}\n{one.runs.err[-2500:]}" for one in self.controllers if one.runs is not None]
        return "\n".join(["steps:", *self.steps[-60:], *logs])

    async def pod(self, node: SimNode) -> str:
        """A worker that runs there."""
        self.pods += 1
        name = f"worker-{self.pods}"
        pod = rank(name, "default", node.name, self.job_uid)
        await self.call("POST", "/api/v1/namespaces/default/pods", pod)
        await self.until(lambda: f"default/{name}" in self.audit.pods, lambda: f"{node.name}: no pod")
        return f"default/{name}"

    # ------------------------------------------------------------ people

    async def uncordon(self, node: SimNode) -> None:
        node.acts.append((time.time(), "uncordon"))
        node.cordoned = False
        await self.patch(f"{NODES}/{node.name}", {"spec": {"unschedulable": False}})

    async def delete_record(self, record: NodeQuarantine) -> None:
        self.audit.deleted.add(record.id)
        if await self.call("DELETE", f"{QUARANTINES}/{record.id}") is None:
            self.audit.deleted.discard(record.id)

    async def cordon(self, node: SimNode) -> None:
        """Of a node that is in service, as he sees it: else it would not be his."""
        shown = self.audit.nodes.get(node.name)
        if shown is None or shown["spec"].get("unschedulable") or shown["spec"].get("taints"):
            return
        version = shown["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version}, "spec": {"unschedulable": True}}
        if await self.patch(f"{NODES}/{node.name}", body) is not None:
            node.cordoned = True

    async def take_taint(self, node: SimNode) -> None:
        """What he leaves unschedulable is his."""
        shown = self.audit.nodes.get(node.name)
        taints = shown["spec"].get("taints", []) if shown is not None else []
        if shown is None or all(one["key"] != TAINT for one in taints):
            return
        version = shown["metadata"]["resourceVersion"]
        left = [one for one in taints if one["key"] != TAINT]
        body = {"metadata": {"resourceVersion": version}, "spec": {"taints": left or None}}
        if await self.patch(f"{NODES}/{node.name}", body) is not None:
            node.acts.append((time.time(), "took the taint"))
            node.cordoned = shown["spec"].get("unschedulable", False)

    async def edit_record(self, node: SimNode, record: NodeQuarantine) -> None:
        """He gives the node back by way of its record, and lives with what is found."""
        node.acts.append((time.time(), "set its record to released"))
        body = {"spec": {"state": "released"}}
        await self.patch(f"{QUARANTINES}/{record.id}", body)
