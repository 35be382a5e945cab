"""A year of a fleet in seconds: faults and repairs with the statistics of a published one, over the pure core.

400 servers in 345 days had 584 faults: one in 236 node-days. Repairs took 20 h in the median and 13 days at the 90th
percentile. Of the nodes that came back 31 % failed again within 7 days. At most 8.75 % were down at once, and a planned
test found 14 within 5 minutes. The shape of the distributions between these points (exponential, log-normal) is ours.
"""

import heapq
import math
import random
from collections.abc import Iterator

from msgspec import Struct, structs

from sentinel.core.fleet import rounds
from sentinel.core.fleet.events import DoTell
from sentinel.core.fleet.marks import write
from sentinel.core.fleet.model import Brake, NodePicture, OrderKind, Repair, Say
from sentinel.core.fleet.record import step
from sentinel.core.fleet.settings import FleetSettings
from sentinel.core.health import Finding
from sentinel.core.now import Now
from tests.core.fleet_world import World, a_finding, a_nic_finding

HOUR_S, DAY_S = 3600.0, 86_400.0
FAULT_EVERY_S = 236 * DAY_S  # with those of nodes that had come back
REPAIR_S, REPAIR_P90_S = 20 * HOUR_S, 13 * DAY_S
AGAIN, AGAIN_S = 0.31, 7 * DAY_S
# Of those that fail again some were not repaired, and the others fail by chance as any node.
NOT_REPAIRED = 0.295
FIRST_EVERY_S = FAULT_EVERY_S / (1 - NOT_REPAIRED)
TEST_NODES, TEST_S = 14, 300.0
P90 = 1.2816  # standard deviations of a normal distribution
LOOK_S = 600.0  # between two rounds while something is held back
LONGEST_REPAIR_S = 120 * DAY_S
ANSWER_S = 1800.0  # after which a person has read a mail and says that the faults of many nodes are real


class Fault(Struct):
    """`isolated_s`: None: not yet. `left`: by a repair that was none; `asked`: a person must release it."""

    node: str
    found_s: float
    planned: bool
    left: bool = False
    isolated_s: float | None = None
    asked: bool = False


class Year:
    """`run` it once. Times are seconds since its beginning."""

    def __init__(
        self, nodes: int, settings: FleetSettings, *, days: float = 365.0, seed: int = 1, test: bool = True
    ) -> None:
        self.chance = random.Random(seed)
        self.days = days
        self.world = World([], settings)
        self.begun = self.world.now
        names = [f"n{number:05}" for number in range(nodes)]
        self.world.picture = structs.replace(
            self.world.picture,
            nodes={name: NodePicture(name=name, uid=f"uid-{name}", api_boot_id="boot-0") for name in names},
        )
        self.faults: list[Fault] = []
        self.messages = 0
        self.asked: list[str] = []  # nodes that waited for a person's word
        self.standing: dict[str, Fault] = {}  # found, and not repaired yet
        self.returns: list[tuple[float, str]] = []
        self.repairs_s: list[float] = []
        self.wrong: list[str] = []  # nodes that were isolated and had no fault
        self.repaired = 0  # of those that came back
        self._left: set[str] = set()  # nodes that came back and were not repaired
        self.most_down = 0
        self.boots = 0
        self._events: list[tuple[float, int, str, str]] = []
        self._order = 0
        for name in names:
            self._at(self.chance.expovariate(1 / FIRST_EVERY_S), "breaks", name)
        if test:
            begins_s = self.chance.uniform(0.2, 0.8) * days * DAY_S
            for name in self.chance.sample(names, min(TEST_NODES, nodes)):
                self._at(begins_s + self.chance.uniform(0, TEST_S), "is found", name)

    def _at(self, time_s: float, what: str, node: str) -> None:
        self._order += 1
        heapq.heappush(self._events, (time_s, self._order, what, node))

    def run(self) -> None:
        while self._events:
            time_s, _, what, node = heapq.heappop(self._events)
            if time_s > self.days * DAY_S:
                return
            self.world.now = Now(self.begun.mono_s + time_s, self.begun.wall_s + time_s)
            if what == "look":
                self._round(time_s, "")
            elif what in ("breaks", "is found"):
                if node not in self.standing:
                    self._break(time_s, node, what == "is found")
            elif what == "is repaired":
                self._repair(time_s, node)
            elif what == "is answered":
                self.world.say(node, Say.GO_ON)
                self._round(time_s, "")
            else:
                self._round(time_s, node)

    # ------------------------------------------------------------ what happens

    def _break(self, time_s: float, node: str, planned: bool) -> None:
        fault = Fault(node, time_s, planned, node in self._left)
        self._left.discard(node)
        self.faults.append(fault)
        self.standing[node] = fault
        self.most_down = max(self.most_down, len(self.standing))
        self._boot(node)
        self.world.shows(node, fault_of(self.chance, self.world.booted[node][0], planned=planned))
        self._round(time_s, node)

    def _boot(self, node: str) -> None:
        self.boots += 1
        self.world.found[node] = {"kernel": (), "infiniband": ()}
        self.world.booted[node] = (f"boot-{self.boots}", self.world.now.mono_s - 1000.0)
        self.world.change(node, api_boot_id=f"boot-{self.boots}")

    def _repair(self, time_s: float, node: str) -> None:
        """It has booted anew, and nothing is found."""
        self._boot(node)
        self.world.shows(node)
        if self.world.of(node).needs.repair is Repair.PERSON:
            self.world.order(OrderKind.RELEASE, node)
        self._round(time_s, node)
        self.world.picture = structs.replace(self.world.picture, orders=())
        self._at(time_s + self.world.settings.release_after_s + 1.0, "is looked at", node)
        del self.standing[node]
        self.returns.append((time_s, node))
        if self.chance.random() < NOT_REPAIRED:
            self._left.add(node)
            self._at(time_s + self.chance.uniform(HOUR_S, AGAIN_S), "breaks", node)
        else:
            self.repaired += 1
            self._at(time_s + HOUR_S + self.chance.expovariate(1 / FIRST_EVERY_S), "breaks", node)

    def _round(self, time_s: float, node: str) -> None:
        world = self.world
        if node:
            world.report(node)
        decisions = rounds.decide(
            world.picture, world.records, world.settings, world.now, {node} if node else ()
        )
        for decision in decisions:
            before = world.records.get(decision.record)
            isolated = before is not None and before.isolating
            record, effects = step(before, decision.event, world.now, 1)
            world.records[record.id] = record
            self.messages += sum(isinstance(effect, DoTell) for effect in effects)
            if record.held_by is Brake.COMMON_CAUSE:
                self.asked.append(decision.node)
                self._at(time_s + ANSWER_S, "is answered", record.cause[0])
            if record.isolating and not isolated and decision.node not in self.standing:
                self.wrong.append(decision.node)
            own = [one for one in world.records.values() if one.node == decision.node]
            if (wanted := write(world.node(decision.node), own)) is not None:
                world.write(wanted)
            fault = self.standing.get(decision.node)
            if fault is not None and fault.isolated_s is None and record.isolating:
                fault.isolated_s, fault.asked = time_s, record.needs.repair is Repair.PERSON
                repair_s = self.chance.lognormvariate(
                    math.log(REPAIR_S), math.log(REPAIR_P90_S / REPAIR_S) / P90
                )
                self.repairs_s.append(min(repair_s, LONGEST_REPAIR_S))
                self._at(time_s + self.repairs_s[-1], "is repaired", decision.node)
        if any(fault.isolated_s is None for fault in self.standing.values()):
            settling_s = world.settings.network_settle_s
            self._at(time_s + (settling_s if decisions else LOOK_S), "look", "")

    # ------------------------------------------------------------ what came of it

    def waits_s(self) -> Iterator[float]:
        """From the finding to the isolation; infinite: it never came."""
        for fault in self.faults:
            yield math.inf if fault.isolated_s is None else fault.isolated_s - fault.found_s


def fault_of(chance: random.Random, boot: str, *, planned: bool) -> Finding:
    """What is found is of many kinds. Shares: of the interruptions of a published training run of 54 days. A planned
    test is of the servers: links that fail in it together would be one fault of their network."""
    codes = ["XID 79", "XID 48", "XID 95", "XID 63", "XID 119", "link"]
    code = chance.choices(codes, [40, 10, 15, 10, 15, 0 if planned else 10])[0]
    return a_nic_finding(boot_id=boot) if code == "link" else a_finding(code, boot_id=boot)
