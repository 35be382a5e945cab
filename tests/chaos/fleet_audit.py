"""What the API server tells of every write, looked at by somebody who knows nothing of the controller's own counts."""

import asyncio
import json
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp

from sentinel.cluster.kubernetes.objects import Custom
from sentinel.core.fleet.model import EndedBy, Kind, Mode, NodeQuarantine, Proof, Removal, State
from sentinel.core.fleet.record import MAX_STORY
from sentinel.util.documents import from_document
from tests.kubernetes.conftest import NODES, QUARANTINES
from tests.rig.api import Api
from tests.waits import eventually

EPOCH = "sentinel.dev/epoch"
TAINT = "sentinel.dev/quarantined"
PODS = "/api/v1/pods"


@dataclass(frozen=True)
class Limits:
    """The brakes as the settings of the run say them, for isolations for findings where nothing else is said."""

    at_a_time: int = 9
    pool_at_a_time: int = 6
    per_window: int = 11
    pool_per_window: int = 8
    window_s: float = 5.0
    disks: int = 3
    removals: int = 2  # nodes whose pods go by force within the window: fewer than fall silent at once
    pool_removals: int = 1
    keep_s: float = 60.0  # of ended records: the longest window that reads them

    def times(self, more: float) -> "Limits":
        """For so many times as many nodes."""
        counts = ("at_a_time", "pool_at_a_time", "per_window", "pool_per_window", "disks")
        return replace(self, **{name: round(getattr(self, name) * more) for name in counts})


@dataclass
class Write:
    """One event of a watch."""

    at_s: float
    kind: str
    name: str
    type: str
    version: int
    uid: str
    epoch: int
    object: dict[str, Any]


@dataclass
class Audit:
    """`follow` runs until it is cancelled. `problems` is what must never have happened, each with its story."""

    api: Api
    limits: Limits
    own: set[int] = field(default_factory=set)  # versions that the test itself wrote
    deleted: set[str] = field(default_factory=set)  # records that a person deleted
    proofs: dict[str, float] = field(default_factory=dict)  # node -> since when a proof of its death is there
    was_faulty: Callable[[str, float, NodeQuarantine], str] = lambda node, wall_s, record: ""
    problems: list[str] = field(default_factory=list)
    calls: set["asyncio.Future[None]"] = field(default_factory=set)  # of the test, that are under way
    records: dict[str, NodeQuarantine] = field(default_factory=dict)  # as they are now
    changed_s: dict[str, float] = field(default_factory=dict)  # when each of them last was, monotonic
    conditions: dict[str, dict[str, str]] = field(default_factory=dict)  # of each record: type -> status
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    stories: dict[str, list[str]] = field(default_factory=dict)  # of each record and node: its writes
    isolations: int = 0
    removals: int = 0
    braked: int = 0  # removals that a brake held back
    seen: int = 0  # writes
    _acts: dict[str, tuple[float, str]] = field(default_factory=dict)  # record -> when it was isolated, pool
    _removed: dict[str, tuple[float, str]] = field(default_factory=dict)  # the same of its newest removal
    _writes: list[Write] = field(default_factory=list)
    _versions: dict[str, tuple[int, int, Any]] = field(
        default_factory=dict
    )  # uid -> generation and epoch of the spec, status
    _highest: int = 0
    _forgotten: int | None = None  # the version after which the API server shows no epoch of before

    async def follow(self) -> None:
        context = ssl.create_default_context(cafile=str(self.api.ca))
        context.check_hostname = False
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context),
            headers={"Authorization": f"Bearer {self.api.token}"},
            timeout=aiohttp.ClientTimeout(total=None),
            read_bufsize=1 << 20,
        ) as session:
            await asyncio.gather(*(self._kind(session, path) for path in (QUARANTINES, NODES, PODS)))

    async def _kind(self, session: aiohttp.ClientSession, path: str) -> None:
        async def listed() -> str:
            async with session.get(self.api.url + path) as answer:
                return str((await answer.json())["metadata"].get("resourceVersion", ""))

        version = await eventually(listed, f"{path} is not served")  # definitions were just made
        while True:
            query = f"?watch=1&allowWatchBookmarks=true&resourceVersion={version}"
            async with session.get(self.api.url + path + query) as answer:
                rest = b""
                async for packet in answer.content.iter_any():
                    *lines, rest = (rest + packet).split(b"\n")
                    if self.calls:  # one of them may be what this tells of
                        await asyncio.wait(set(self.calls))
                    for line in lines:
                        event = json.loads(line)
                        assert event["type"] != "ERROR", event
                        version = event["object"]["metadata"]["resourceVersion"]
                        if event["type"] != "BOOKMARK":
                            self._event(path, event["type"], event["object"])

    # ------------------------------------------------------------ each write

    def _event(self, path: str, what: str, one: dict[str, Any]) -> None:
        meta = one["metadata"]
        text = meta.get("annotations", {}).get(EPOCH, "0")
        write = Write(
            at_s=time.time(),
            kind=path,
            name=meta["name"],
            type=what,
            version=int(meta["resourceVersion"]),
            uid=meta["uid"],
            epoch=self._epoch(one, int(text) if text.isdecimal() else 0),
            object=one,
        )
        self.seen += 1
        if path == PODS:
            self._pod(write)
            return
        self._writes.append(write)
        if path == QUARANTINES:
            self._record(write)
        else:
            self._node(write)

    def _epoch(self, one: dict[str, Any], of_spec: int) -> int:
        """A write of the status alone names its epoch there: the one of the spec may be of somebody else."""
        meta, status = one["metadata"], one.get("status", {})
        now = (meta.get("generation", 0), of_spec, status)
        known, self._versions[meta["uid"]] = self._versions.get(meta["uid"]), now
        alone = known is not None and known[:2] == now[:2] and known[2] != status
        return int(status.get("epoch", of_spec)) if alone else of_spec

    def _wrong(self, what: str, name: str, told: Sequence[str] = ()) -> None:
        story = told or self.stories.get(name, [])
        self.problems.append("\n".join([what, *(f"    {line}" for line in story[-60:])]))

    def _told(self, name: str, write: Write, text: str) -> None:
        at = time.strftime("%H:%M:%S", time.gmtime(write.at_s)) + f"{write.at_s % 1:.3f}"[1:]
        who = "test" if write.version in self.own else f"epoch {write.epoch}"
        story = self.stories.setdefault(name, [])
        story.append(f"{at} {write.version} {name} {write.type} by {who}: {text}")
        del story[:-100]

    def _node(self, write: Write) -> None:
        before = self.nodes.get(write.name)
        taints = write.object["spec"].get("taints", [])
        ours = [(one.get("value", ""), one["effect"]) for one in taints if one["key"] == TAINT]
        unschedulable = write.object["spec"].get("unschedulable", False)
        self._told(write.name, write, f"taint {ours} unschedulable {unschedulable}")
        known = [] if before is None else before["spec"].get("taints", [])
        for one in taints:
            ours_or_new = one["key"].startswith("sentinel") or write.version not in self.own
            if one["effect"] == "NoExecute" and one not in known and ours_or_new:
                self._wrong(f"NoExecute was written to {write.name}: {one}", write.name)
        if write.type == "DELETED":
            self.nodes.pop(write.name, None)
            self.proofs[write.name] = 0.0
        else:
            self.nodes[write.name] = write.object

    def _pod(self, write: Write) -> None:
        key = f"{write.object['metadata']['namespace']}/{write.name}"
        if write.type != "DELETED":
            self.pods[key] = write.object
            return
        self.pods.pop(key, None)
        node = write.object["spec"].get("nodeName", "")
        if write.version not in self.own and node not in self.proofs:
            self._wrong(f"pod {key} on {node} was removed without a proof", node)

    def _record(self, write: Write) -> None:
        custom = Custom(metadata=None, spec=write.object.get("spec", {}))  # type: ignore[arg-type]
        record = from_document(NodeQuarantine, custom.spec)
        before = self.records.get(write.name)
        self._told(write.name, write, f"{record.node} {record.state} {record.held_by} {record.reason}")
        person = write.version in self.own
        if write.type == "DELETED":
            self._gone(write, record)
            return
        self.records[write.name] = record
        if record != before:
            self.changed_s[write.name] = time.monotonic()
        self.conditions[write.name] = {
            said["type"]: said["status"] for said in write.object.get("status", {}).get("conditions", [])
        }
        if before is not None and not person:
            self._continuous(write.name, before, record)
        isolating = record.state is State.ACTIVE and record.mode is Mode.ENFORCE
        was = before is not None and before.state is State.ACTIVE and before.mode is Mode.ENFORCE
        if isolating and not was and record.kind in (Kind.FAULT, Kind.DISK) and not person:
            self._isolated(write, record)
        well = record.ended_by is EndedBy.WELL and before is not None and before.state is State.ACTIVE
        if well and not person and (why := self.was_faulty(record.node, record.ended_wall_s or 0.0, record)):
            self._wrong(f"{record.node} was released though {why}", write.name)
        known = before.removals if before is not None else ()
        for removal in record.removals[len(known) :]:  # the proof of an earlier one may be gone by now
            if removal.proof is Proof.POLICY or record.node not in self.proofs:
                self._wrong(f"{record.node}: pods are removed without a proof: {removal}", write.name)
            self._counted(write, record, removal)
        if record.kind is Kind.SILENCE and record.held_by and not (before is not None and before.held_by):
            self.braked += 1

    def _gone(self, write: Write, record: NodeQuarantine) -> None:
        self.records.pop(write.name, None)
        self.changed_s.pop(write.name, None)
        ended = record.ended_wall_s
        if write.name in self.deleted:
            self.deleted.discard(write.name)
            self._acts.pop(write.name, None)  # brakes are counted from records: who deletes one makes room
        elif ended is None or write.at_s - ended < self.limits.keep_s - 1.0:
            self._wrong(f"record {write.name} is lost", write.name)

    def _continuous(self, name: str, before: NodeQuarantine, after: NodeQuarantine) -> None:
        """Its story goes on where it stood."""
        known, told = list(before.story), list(after.story)
        if len(told) < MAX_STORY and told[: len(known)] != known:
            self._wrong(f"the story of {name} is not continued", name)
        if after.state is not before.state and (len(told) == len(known) or told[-1].state is not after.state):
            self._wrong(f"the story of {name} does not say how it became {after.state}", name)

    def _isolated(self, write: Write, record: NodeQuarantine) -> None:
        """Counted as of this write: the versions of records are the order in which they were written."""
        self.isolations += 1
        if record.reason == "MarkFound":
            return  # out of service already: its record was made anew
        if not -0.5 <= write.at_s - record.acted_wall_s <= 30.0:
            self._wrong(f"{write.name} says that it was isolated at another time than it was", write.name)
        # Who deletes a record makes room, also where it is made anew at once: another node may have taken it meanwhile.
        standing = [
            one
            for one in self.records.values()
            if one.kind is record.kind
            and one.state is State.ACTIVE
            and one.mode is Mode.ENFORCE
            and one.acted_wall_s
        ]
        own = [one for one in standing if one.pool == record.pool]
        limits = self.limits
        told = sorted(line for one in standing for line in self.stories[one.id])
        if record.kind is Kind.DISK:
            if len(standing) > limits.disks:
                self._wrong(f"{len(standing)} nodes with full disks at a time", write.name, told)
            return
        if len(standing) > limits.at_a_time:
            self._wrong(f"{len(standing)} isolations at a time", write.name, told)
        if len(own) > limits.pool_at_a_time:
            self._wrong(f"{len(own)} isolations at a time in pool {record.pool!r}", write.name, told)
        self._acts = {id: act for id, act in self._acts.items() if act[0] > record.acted_wall_s - 60.0}
        self._acts[record.id] = (record.acted_wall_s, record.pool)
        recent = [
            pool for at_s, pool in self._acts.values() if 0 <= record.acted_wall_s - at_s < limits.window_s
        ]
        if len(recent) > limits.per_window:
            self._wrong(f"{len(recent)} isolations within {limits.window_s:g} s", write.name)
        if recent.count(record.pool) > limits.pool_per_window:
            self._wrong(f"{recent.count(record.pool)} in pool {record.pool!r} within the window", write.name)

    def _counted(self, write: Write, record: NodeQuarantine, removal: Removal) -> None:
        """All removals of one silence within the window are one."""
        self.removals += 1
        at_s, limits = removal.at_wall_s, self.limits
        if not -0.5 <= write.at_s - at_s <= 30.0:
            self._wrong(f"{write.name} says that pods went at another time than they did", write.name)
        self._removed[record.id] = (at_s, record.pool)
        recent = {
            id: pool for id, (then_s, pool) in self._removed.items() if 0 <= at_s - then_s < limits.window_s
        }
        told = sorted(line for id in recent for line in self.stories[id])
        own = sum(pool == record.pool for pool in recent.values())
        if len(recent) > limits.removals:
            self._wrong(f"pods of {len(recent)} nodes removed within {limits.window_s:g} s", write.name, told)
        if own > limits.pool_removals:
            self._wrong(f"pods of {own} nodes of pool {record.pool!r} removed within it", write.name, told)

    # ------------------------------------------------------------ at rest

    def forgotten(self) -> None:
        """The test has just taken the last sign of an epoch from the API server: whoever leads next counts anew, until
        an agent tells how far others had counted."""
        self._forgotten = max(self.own)

    def check_epochs(self) -> None:
        """No write of an earlier leader came after one of a later leader, in the order of the API server's versions."""
        for write in sorted(self._writes, key=lambda one: one.version):
            if self._forgotten is not None and write.version > self._forgotten:
                self._highest, self._forgotten = 0, None
            if write.version in self.own or write.type == "DELETED":
                continue
            if write.epoch < self._highest:
                self._wrong(f"a write of epoch {write.epoch} came after one of {self._highest}", write.name)
            self._highest = max(self._highest, write.epoch)
        self._writes.clear()
