"""A small fleet for tests: nodes with agents, records, and a cluster that shows what was written."""

from collections.abc import Iterable

from msgspec import structs

from sentinel.core.fleet import conditions as fleet_conditions
from sentinel.core.fleet import marks, rounds
from sentinel.core.fleet.events import Decision, DoRemove, Effect, Reason
from sentinel.core.fleet.fold import fold
from sentinel.core.fleet.model import (
    QUARANTINE_TAINT,
    CodeWord,
    FleetPicture,
    Kind,
    Mode,
    NodePicture,
    NodeQuarantine,
    Order,
    OrderKind,
    PodPicture,
    Say,
)
from sentinel.core.fleet.record import step
from sentinel.core.fleet.settings import Allowance, FleetSettings, Limit
from sentinel.core.health import CheckResult, CheckState, Component, Finding, Severity
from sentinel.core.now import Now
from sentinel.core.reports import Report

WIDE = Allowance(at_a_time=Limit(1000), per_window=Limit(1000))
# Brakes that hold nothing back, for tests of something else.
OPEN = FleetSettings(
    isolations=WIDE,
    pool_isolations=WIDE,
    disks=WIDE,
    pool_disks=WIDE,
    removals=WIDE,
    pool_removals=WIDE,
    cause_nodes=100_000,
)


def a_finding(code: str = "XID 79", /, **changes: object) -> Finding:
    finding = Finding(
        check="kernel",
        component=Component.GPU,
        entity="GPU 0000:18:00.0",
        code=code,
        severity=Severity.FATAL,
        action="RESTART_BM",
        summary="the GPU has fallen off the bus",
        event=True,
        boot_id="boot-1",
    )
    return structs.replace(finding, **changes)


def a_nic_finding(**changes: object) -> Finding:
    wanted = {
        "check": "infiniband",
        "component": Component.NIC,
        "entity": "mlx5_0/1",
        "action": "CHECK_NIC",
        "summary": "the port is down",
        "event": False,
        **changes,
    }
    return a_finding("ib-port-down", **wanted)


def a_full_disk(**changes: object) -> Finding:
    wanted = {
        "check": "disk",
        "component": Component.DISK,
        "entity": "/scratch",
        "severity": Severity.DEGRADED,
        "action": "FREE_SPACE",
        "summary": "the file system is almost full",
        "event": False,
        **changes,
    }
    return a_finding("disk-space", **wanted)


def a_pod(name: str = "worker-0", **changes: object) -> PodPicture:
    pod = PodPicture(
        uid=f"uid-{name}",
        namespace="research",
        name=name,
        job="llama",
        protected=True,
        removal=Mode.ENFORCE,
    )
    return structs.replace(pod, **changes)


class World:
    """The cluster, its agents and the leading controller. What is decided is saved, performed and shown at once."""

    def __init__(
        self, nodes: Iterable[str] = ("n1",), settings: FleetSettings = OPEN, pool: str = ""
    ) -> None:
        self.settings = settings
        self.now = Now(10_000.0, 1_700_000_000.0)
        self.records: dict[str, NodeQuarantine] = {}
        self.picture = FleetPicture(nodes={}, epoch=1, complete=True, watching_since_mono_s=0.0)
        self.found: dict[str, dict[str, tuple[Finding, ...]]] = {}  # what the agents' checks see
        self.booted: dict[str, tuple[str, float]] = {}  # boot id, and when that was by our clock
        self.silent: set[str] = set()
        self.effects: list[Effect] = []
        self.decided: list[Decision] = []
        self.numbers = 0
        for name in nodes:
            self.join(name, pool=pool)

    # ------------------------------------------------------------ nodes

    def join(self, name: str, *, uid: str = "", boot: str = "boot-1", pool: str = "") -> None:
        """A node object comes up, with its kubelet and its agent."""
        self.put(NodePicture(name=name, uid=uid or f"uid-{name}", pool=pool, api_boot_id=boot))
        if self.booted.get(name, ("",))[0] != boot:
            self.booted[name] = (boot, self.now.mono_s - 1000.0)
        self.found.setdefault(name, {"kernel": (), "infiniband": (), "disk": ()})
        self.report(name)

    def put(self, node: NodePicture) -> None:
        self.picture = structs.replace(self.picture, nodes={**self.picture.nodes, node.name: node})

    def change(self, name: str, **changes: object) -> NodePicture:
        node = structs.replace(self.picture.nodes[name], **changes)
        self.put(node)
        return node

    def leave(self, name: str) -> None:
        nodes = {key: node for key, node in self.picture.nodes.items() if key != name}
        self.picture = structs.replace(self.picture, nodes=nodes)

    def report_of(self, name: str, **states: CheckState) -> Report:
        boot, since = self.booted[name]
        here_s = self.now.mono_s - since
        checks = tuple(
            CheckResult(
                check=check,
                state=states.get(check, CheckState.FOUND if found else CheckState.OK),
                findings=found,
                at_mono_s=here_s,
            )
            for check, found in self.found[name].items()
        )
        # Every node has a wall clock of its own.
        wall_s = self.now.wall_s + 77.0 * len(name)
        return Report(node=name, boot_id=boot, sequence=0, now=Now(here_s, wall_s), checks=checks)

    def report(self, name: str, **states: CheckState) -> None:
        """Kubelet and agent are heard."""
        node = fold(self.picture.nodes[name], self.report_of(name, **states), self.now)
        self.put(structs.replace(node, lease_mono_s=self.now.mono_s))

    def shows(self, name: str, *found: Finding) -> None:
        """From now on this is everything that the checks of the node find. It is reported at once."""
        self.found[name] = {
            check: tuple(one for one in found if one.check == check) for check in self.found[name]
        }
        self.report(name)

    def reboot(self, name: str, boot: str, *found: Finding) -> None:
        self.booted[name] = (boot, self.now.mono_s)
        self.change(name, api_boot_id=boot)
        self.shows(name, *found)

    def passes(self, seconds: float, *, report: bool = True) -> None:
        self.now = Now(self.now.mono_s + seconds, self.now.wall_s + seconds)
        for name in self.picture.nodes if report else ():
            if name not in self.silent:
                self.report(name)

    def order(self, kind: OrderKind, node: str, why: str = "") -> None:
        self.numbers += 1
        id, seen_wall_s = f"order-{self.numbers}", self.now.wall_s
        order = Order(id=id, kind=kind, node=node, by="anna", why=why, seen_wall_s=seen_wall_s)
        self.picture = structs.replace(self.picture, orders=(*self.picture.orders, order))

    def say(self, code: str, say: Say | None, why: str = "") -> None:
        """A person's word about a code; None: taken back."""
        word = (
            ()
            if say is None
            else (CodeWord(code=code, say=say, by="anna", why=why, at_wall_s=self.now.wall_s),)
        )
        others = tuple(one for one in self.picture.codes if one.code != code)
        self.picture = structs.replace(self.picture, codes=(*others, *word))

    # ------------------------------------------------------------ the controller

    def decide(self, *, write: bool = True) -> tuple[Decision, ...]:
        """One round: decided, saved, and (with `write`) performed and shown by the cluster."""
        decisions = rounds.decide(self.picture, self.records, self.settings, self.now)
        for decision in decisions:
            record, effects = step(
                self.records.get(decision.record), decision.event, self.now, self.picture.epoch
            )
            self.records[record.id] = record
            self.effects += effects
        self.decided += decisions
        if write:
            self.perform()
        return decisions

    def perform(self) -> None:
        writes, removals = marks.outstanding(self.picture, self.records)
        for wanted in writes:
            self.write(wanted)
        for removal in removals:
            self.remove(removal)
        for name, node in self.picture.nodes.items():
            own = [record for record in self.records.values() if record.node == name]
            conditions = fleet_conditions.writes(
                node, own, self.settings, self.now, paused=bool(self.picture.paused)
            )
            types = {condition.type for condition in conditions}
            kept = tuple(one for one in node.conditions if one.type not in types)
            self.change(name, conditions=(*kept, *conditions))

    def write(self, wanted: marks.MarkWrite) -> None:
        node = self.picture.nodes[wanted.node]
        taints = node.taints
        if wanted.taint is not None or wanted.remove_taint:
            taints = tuple(taint for taint in taints if taint.key != QUARANTINE_TAINT)
        if wanted.taint is not None:
            assert wanted.taint.effect == "NoSchedule"
            taints = (*taints, wanted.taint)
        cordoned = node.unschedulable if wanted.unschedulable is None else wanted.unschedulable
        self.change(node.name, taints=taints, unschedulable=cordoned)

    def remove(self, removal: DoRemove) -> None:
        node = self.picture.nodes.get(removal.node)
        if node is not None:
            self.change(node.name, pods=tuple(pod for pod in node.pods if pod.id not in removal.pods))
        orphans = {
            name: tuple(pod for pod in pods if pod.id not in removal.pods)
            for name, pods in self.picture.orphans.items()
        }
        self.picture = structs.replace(self.picture, orphans=orphans)

    def settle(self) -> None:
        """Rounds until nothing new is decided; orders that were followed are taken away."""
        for _ in range(5):
            if not self.decide():
                break
            self.picture = structs.replace(self.picture, orders=())
        assert not self.decide(), "it never comes to rest"
        self.picture = structs.replace(self.picture, orders=())

    # ------------------------------------------------------------ what there is

    def of(self, node: str, kind: Kind = Kind.FAULT) -> NodeQuarantine:
        """The newest record of this kind."""
        own = [record for record in self.records.values() if record.node == node and record.kind is kind]
        return max(own, key=lambda record: record.number)

    def node(self, name: str = "n1") -> NodePicture:
        return self.picture.nodes[name]

    def out(self) -> set[str]:
        """Nodes that Sentinel keeps out of service, as the cluster shows it."""
        return {name for name, node in self.picture.nodes.items() if node.mark is not None}

    def reasons(self) -> list[Reason]:
        return [decision.reason for decision in self.decided]


def an_isolated_node() -> World:
    """n1 is out of service for an XID 79."""
    world = World(["n1", "n2"])
    world.shows("n1", a_finding())
    world.settle()
    assert world.out() == {"n1"}
    return world
