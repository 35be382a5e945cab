"""Many nodes against a model: findings, people, reboots, lost writes, new leaders, in any order."""

import inspect
import os
import random
from collections import Counter
from collections.abc import Callable

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from msgspec import structs

from sentinel.core.fleet import rounds
from sentinel.core.fleet.events import (
    Decision,
    DoRemove,
    End,
    FenceBegun,
    Isolate,
    Open,
    Reason,
    Removed,
    Told,
)
from sentinel.core.fleet.hook import TRIES
from sentinel.core.fleet.marks import outstanding
from sentinel.core.fleet.model import (
    EndedBy,
    FenceOutcome,
    FleetPicture,
    Kind,
    Mode,
    NodeQuarantine,
    OrderKind,
    Proof,
    State,
)
from sentinel.core.fleet.record import MAX_STORY, TRANSITIONS, step
from sentinel.core.fleet.release import acting, standing
from sentinel.core.fleet.settings import Allowance, FenceHook, FleetSettings, Limit
from sentinel.core.health import Finding
from sentinel.core.now import Now
from tests.core.fleet_world import World, a_finding, a_full_disk, a_nic_finding, a_pod

NAMES = [f"n{number}" for number in range(7)]
POOLS = {name: "a" if number < 4 else "b" for number, name in enumerate(NAMES)}
AT_A_TIME, POOL_AT_A_TIME, PER_WINDOW, POOL_PER_WINDOW, REMOVALS = 3, 2, 5, 4, 1
SETTINGS = FleetSettings(
    isolations=Allowance(at_a_time=Limit(AT_A_TIME), per_window=Limit(PER_WINDOW)),
    pool_isolations=Allowance(at_a_time=Limit(POOL_AT_A_TIME), per_window=Limit(POOL_PER_WINDOW)),
    disks=Allowance(at_a_time=Limit(2), per_window=Limit(4)),
    pool_disks=Allowance(at_a_time=Limit(1), per_window=Limit(4)),
    removals=Allowance(per_window=Limit(REMOVALS)),
    pool_removals=Allowance(per_window=Limit(REMOVALS)),
    network_nodes=3,
    fence=FenceHook(command=("/opt/fence",)),
)
names = st.sampled_from(NAMES)
findings = st.sampled_from(
    [
        a_finding(),
        a_finding("XID 48", action="RESET_GPU"),
        a_finding("XID 95", entity="GPU 0000:2a:00.0", action="RESET_GPU"),
        a_nic_finding(),
        a_full_disk(),
    ]
)


class Fleet(RuleBasedStateMachine):
    """One cluster under one leader after the other. Each rule ends in a round; the invariants are checked after it."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World([], SETTINGS)
        self.known: set[str] = set()  # records that nobody has deleted
        self.cordoned: set[str] = set()  # by others, while Sentinel had no cordon of its own there
        self.boots = Counter[str]()
        self.occurrences = 0
        self.rounds = 0
        self.writes = True
        self.walked: set[tuple[State | None, type]] = set()

    @initialize()
    def the_nodes_join(self) -> None:
        for name in NAMES:
            self.world.join(name, pool=POOLS[name])

    # ------------------------------------------------------------ nodes

    def there(self, name: str) -> bool:
        return name in self.world.picture.nodes

    def report(self, name: str) -> None:
        if self.there(name) and name not in self.world.silent:
            self.world.report(name)

    @rule(name=names, finding=findings)
    def something_is_found(self, name: str, finding: Finding) -> None:
        self.occurrences += 1
        boot = self.world.booted[name][0]
        finding = structs.replace(
            finding, boot_id=boot if finding.event else "", count=self.occurrences if finding.event else 1
        )
        found = self.world.found[name]
        kept = tuple(one for one in found[finding.check] if one.key != finding.key)
        found[finding.check] = (*kept, finding)
        self.report(name)
        self.round()

    @rule(name=names)
    def a_card_goes_from_bad_to_worse(self, name: str) -> None:
        self.something_is_found(name, a_finding("XID 48", action="RESET_GPU"))
        self.something_is_found(name, a_finding())

    @rule(name=names)
    def it_is_gone_again(self, name: str) -> None:
        self.world.found[name] = dict.fromkeys(self.world.found[name], ())
        self.report(name)
        self.round()

    @rule(name=names)
    def a_node_is_restarted(self, name: str) -> None:
        self.boots[name] += 1
        boot = f"boot-{name}-{self.boots[name]}"
        world = self.world
        world.booted[name] = (boot, world.now.mono_s)
        found = world.found[name]
        found["kernel"] = ()  # its repair
        if self.there(name):
            world.change(name, api_boot_id=boot)
        self.report(name)
        self.round()

    @rule(name=names)
    def a_node_goes_silent_or_is_heard_again(self, name: str) -> None:
        self.world.silent ^= {name}
        self.report(name)
        self.round()

    @rule(name=names, same=st.booleans())
    def a_node_object_is_deleted_or_made(self, name: str, same: bool) -> None:
        world = self.world
        if self.there(name):
            world.picture = structs.replace(world.picture, orphans={name: world.node(name).pods})
            world.leave(name)
        else:
            self.boots[name] += 0 if same else 1
            boot = world.booted[name][0] if same else f"boot-{name}-{self.boots[name]}"
            self.occurrences += 1
            world.join(name, uid=f"uid-{name}-{self.occurrences}", boot=boot, pool=POOLS[name])
            world.silent.discard(name)
        self.cordoned.discard(name)
        self.round()

    @rule(name=names)
    def a_node_object_is_replaced_at_once(self, name: str) -> None:
        """Deleted, and registered again by the same kubelet before anybody looked."""
        if self.there(name):
            self.occurrences += 1
            boot = self.world.booted[name][0]
            self.world.join(name, uid=f"uid-{name}-{self.occurrences}", boot=boot, pool=POOLS[name])
            self.world.silent.discard(name)
            self.cordoned.discard(name)
        self.round()

    @rule(name=names, force_after_s=st.sampled_from([None, 100.0]))
    def a_pod_runs_there(self, name: str, force_after_s: float | None) -> None:
        if self.there(name) and name not in self.world.silent:
            self.occurrences += 1
            self.world.change(name, pods=(a_pod(f"w-{self.occurrences}", force_after_s=force_after_s),))
        self.round()

    @rule(name=names, same=st.booleans())
    def a_pod_runs_there_that_its_agent_ends(self, name: str, same: bool) -> None:
        """`same`: the agent has confirmed it, and not another one."""
        if self.there(name) and name not in self.world.silent:
            self.occurrences += 1
            pod = a_pod(f"w-{self.occurrences}", self_fence_s=120.0)
            self.world.change(name, pods=(pod,), fences={pod.uid if same else "another": 120.0})
        self.round()

    @rule(seconds=st.sampled_from([1.0, 30.0, 130.0, 700.0, 4000.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.passes(seconds)
        self.round()

    @rule(off=st.booleans())
    def the_fencing_program_ends(self, off: bool) -> None:
        ended = [
            FenceOutcome(one.id, one.fence.tries, off, "exit code")
            for one in self.world.records.values()
            if one.fence is not None and one.fence.runs
        ]
        self.world.picture = structs.replace(self.world.picture, fenced=tuple(ended))
        self.round()
        self.world.picture = structs.replace(self.world.picture, fenced=())

    # ------------------------------------------------------------ people and others

    @rule(name=names, kind=st.sampled_from(OrderKind))
    def a_person_orders(self, name: str, kind: OrderKind) -> None:
        self.world.order(kind, name)
        self.round()

    @rule(name=names)
    def a_person_uncordons(self, name: str) -> None:
        if self.there(name):
            self.world.change(name, unschedulable=False)
            self.cordoned.discard(name)
        self.round()

    @rule(name=names)
    def a_person_takes_the_taint_away(self, name: str) -> None:
        if self.there(name) and self.world.node(name).mark is not None:
            ours = self.world.node(name)
            if ours.unschedulable:
                self.cordoned.add(name)  # what he leaves cordoned is his
            self.world.change(name, taints=())
        self.round()

    @rule(name=names)
    def somebody_cordons(self, name: str) -> None:
        if self.there(name) and not self.world.node(name).unschedulable:
            mark = self.world.node(name).mark
            self.world.change(name, unschedulable=True)
            if mark is None or not mark.cordoned:
                self.cordoned.add(name)
        self.round()

    @rule()
    def a_person_pauses_or_goes_on(self) -> None:
        picture = self.world.picture
        self.world.picture = structs.replace(picture, paused="" if picture.paused else "anna")
        self.round()

    @rule(pool=st.sampled_from(["a", "b"]))
    def a_pool_is_observed_or_no_longer(self, pool: str) -> None:
        pools = self.world.settings.observe_pools ^ {pool}
        self.world.settings = structs.replace(self.world.settings, observe_pools=pools)
        self.round()

    @rule(which=st.integers(0, 200))
    def a_person_deletes_a_record(self, which: int) -> None:
        """Seldom enough for records to grow old."""
        if which < len(self.world.records):
            record = sorted(self.world.records)[which]
            del self.world.records[record]
            self.known.discard(record)
        self.round()

    @rule(name=names)
    def a_node_is_repaired(self, name: str) -> None:
        self.world.silent.discard(name)
        self.world.found[name] = dict.fromkeys(self.world.found[name], ())
        self.a_node_is_restarted(name)
        self.time_passes(700.0)
        self.time_passes(1.0)

    @rule(name=names, force_after_s=st.sampled_from([None, 100.0]), kind=st.sampled_from(OrderKind))
    def a_node_is_lost(self, name: str, force_after_s: float | None, kind: OrderKind) -> None:
        self.world.silent.clear()
        self.time_passes(400.0)
        self.a_pod_runs_there(name, force_after_s)
        self.a_node_goes_silent_or_is_heard_again(name)
        self.time_passes(130.0)
        self.a_person_orders(name, kind)

    @rule(name=names, off=st.booleans())
    def a_node_is_lost_and_fenced(self, name: str, off: bool) -> None:
        self.time_passes(4000.0)
        self.world.silent.clear()
        self.time_passes(1.0)
        self.a_pod_runs_there(name, None)
        self.a_node_goes_silent_or_is_heard_again(name)
        self.time_passes(130.0)
        self.the_fencing_program_ends(off)

    # ------------------------------------------------------------ the controller

    @rule(gap=st.sampled_from([1.0, 20.0, 500.0]))
    def another_leader_takes_over(self, gap: float) -> None:
        """It has the records, other clocks, and what agents tell it when they come."""
        world = self.world
        old = world.now
        world.now = Now(3.0 + old.mono_s % 7, old.wall_s + gap)
        moved = world.now.mono_s - old.mono_s - gap
        world.booted = {name: (boot, since + moved) for name, (boot, since) in world.booted.items()}
        pods = {name: node.pods for name, node in world.picture.nodes.items()}
        nodes = {
            name: structs.replace(
                node,
                lease_mono_s=None,
                agent_mono_s=None,
                boot_id="",
                booted_wall_s=0.0,
                told_mono_s=0.0,
                checks={},
                pods=pods[name],
            )
            for name, node in world.picture.nodes.items()
        }
        world.picture = structs.replace(
            world.picture,
            nodes=nodes,
            epoch=world.picture.epoch + 1,
            watching_since_mono_s=world.now.mono_s,
            orders=tuple(structs.replace(one, seen_wall_s=world.now.wall_s) for one in world.picture.orders),
        )
        self.round()

    @rule(name=names)
    def agents_come_back(self, name: str) -> None:
        for one in (name, *NAMES[:3]):
            self.report(one)
        self.round()

    @rule()
    def writes_are_lost_or_no_longer(self) -> None:
        """The controller is killed after it has saved, or the API refuses its writes."""
        self.writes = not self.writes
        self.round()

    @rule()
    def mails_go(self) -> None:
        """Each thing once for each record, and nothing is decided otherwise for it."""
        for record in list(self.world.records.values()):
            stages = [mail.stage for mail in record.mails]
            assert len(stages) == len(set(stages))
            for mail in record.mails:
                if mail.state == "waiting":
                    sent = structs.replace(mail, state="sent")
                    told = Told(reason=Reason.TOLD, sentence="A mail has gone.", mail=sent)
                    self.apply(Decision(record.node, record.id, told))
        assert all(mail.state == "sent" for one in self.world.records.values() for mail in one.mails)
        self.round()

    # ------------------------------------------------------------ rounds and what must hold

    def round(self) -> None:
        for _ in range(4):  # what is seen of a write is news for the next round
            before = dict(self.world.records)
            decisions = self.decided(before)
            for decision in decisions:
                self.apply(decision)
            if self.writes:
                self.world.perform()
                self.perform_removals()
            again = rounds.decide(self.world.picture, self.world.records, self.world.settings, self.world.now)
            if not self.writes and self.rounds % 3:
                assert again == (), "deciding twice on the same picture gave something new"
            if not again:
                break
        assert not again, "it never comes to rest"
        world = self.world
        answered = {
            answer.order.id
            for answer in rounds.answers(world.picture, world.records, world.settings, world.now)
        }
        left = tuple(order for order in world.picture.orders if order.id not in answered)
        assert all(order.kind is OrderKind.CONFIRM_DEAD for order in left), "it waits until it is judged"
        world.picture = structs.replace(world.picture, orders=left)
        self.check()

    def forget_old_records(self) -> None:
        world = self.world
        for record in list(world.records.values()):
            if rounds.prunable(record, world.picture, world.settings, world.now):
                del world.records[record.id]
                self.known.discard(record.id)

    def decided(self, before: dict[str, NodeQuarantine]) -> tuple[Decision, ...]:
        """What is decided, and again from the same inputs as they would be read from a file."""
        world = self.world
        self.rounds += 1
        only = list(world.picture.nodes) if self.rounds % 3 == 0 else None  # as when each of them had news
        decisions = rounds.decide(world.picture, before, world.settings, world.now, only)
        if not decisions:
            return ()
        picture = msgspec.json.decode(msgspec.json.encode(world.picture), type=FleetPicture)
        read = msgspec.json.decode(msgspec.json.encode(before), type=dict[str, NodeQuarantine])
        rules = msgspec.json.decode(msgspec.json.encode(world.settings), type=FleetSettings)
        again = {key: read[key] for key in sorted(read, reverse=True)}
        assert rounds.decide(picture, again, rules, world.now, only) == decisions
        return decisions

    def apply(self, decision: Decision) -> None:
        world, event = self.world, decision.event
        before = world.records.get(decision.record)
        assert decision.sentence.endswith(".")
        assert decision.sentence[0].isupper() or decision.sentence[0].isdigit()
        after, effects = step(before, event, world.now, world.picture.epoch)
        self.walked.add((None if before is None else before.state, type(event)))
        world.records[after.id] = after
        world.effects = list(effects)
        self.known.add(after.id)
        isolated = isinstance(event, Open | Isolate) and after.state is State.ACTIVE
        if isolated and event.reason is not Reason.MARK_FOUND:  # what is out of service already asks no brake
            self.check_brakes(after)
        if isinstance(event, Removed):
            self.check_removal(after, effects)
        if isinstance(event, FenceBegun):
            self.check_fence(after)
        if isinstance(event, End) and event.ended_by is EndedBy.WELL:
            self.check_well(before)

    def perform_removals(self) -> None:
        for removal in outstanding(self.world.picture, self.world.records)[1]:
            self.world.remove(removal)

    def check_brakes(self, record: NodeQuarantine) -> None:
        """What was just isolated was allowed to be."""
        if record.kind not in (Kind.FAULT, Kind.DISK):
            return
        assert not self.world.picture.paused
        most = (
            (AT_A_TIME, POOL_AT_A_TIME, PER_WINDOW, POOL_PER_WINDOW)
            if record.kind is Kind.FAULT
            else (2, 1, 4, 4)
        )
        counted = [
            one
            for one in self.world.records.values()
            if one.kind is record.kind and (one.mode is Mode.ENFORCE or record.mode is Mode.OBSERVE)
        ]
        stand = [
            one
            for one in counted
            if one.state is State.ACTIVE
            and not one.acknowledged
            and self.world.now.wall_s - (one.acted_wall_s or one.since_wall_s) < SETTINGS.proven_after_s
        ]
        begun = [one for one in counted if one.acted_wall_s > self.world.now.wall_s - 3600.0]
        assert len(stand) <= most[0]
        assert len([one for one in stand if one.pool == record.pool]) <= most[1]
        assert len(begun) <= most[2]
        assert len([one for one in begun if one.pool == record.pool]) <= most[3]

    def check_removal(self, record: NodeQuarantine, effects: tuple[object, ...]) -> None:
        world = self.world
        assert not world.picture.paused
        removal = record.removals[-1]
        if removal.mode is Mode.OBSERVE:
            assert not any(isinstance(effect, DoRemove) for effect in effects)
        self.check_room()
        if self.there(record.node) and removal.proof is not Proof.NEW_BOOT:
            assert record.node in world.silent or world.node(record.node).agent_mono_s is None
        if removal.proof is Proof.POLICY:
            pods = {pod.id: pod for pod in world.node(record.node).pods}
            assert all(pods[name].force_after_s for name in removal.pods)
        if removal.proof is Proof.SELF_FENCED:
            assert {*removal.pods} <= {one.pod for one in record.self_fences}
            heard_s = world.node(record.node).agent_mono_s or 0.0
            assert world.now.mono_s - heard_s >= 180.0

    def check_fence(self, record: NodeQuarantine) -> None:
        """Never a machine that speaks, nor while it is paused, and no more than pods may be removed from."""
        world = self.world
        assert record.fence is not None
        if record.fence.mode is Mode.ENFORCE:
            assert not world.picture.paused
            assert record.mode is Mode.ENFORCE
            assert record.node in world.silent or world.node(record.node).agent_mono_s is None
        assert record.fence.tries <= TRIES
        self.check_room()

    def check_room(self) -> None:
        """The calls and the removals of one silence are one act."""
        since = self.world.now.wall_s - 3600.0
        acts = 0
        for one in self.world.records.values():
            times = [removal.at_wall_s for removal in one.removals if removal.mode is Mode.ENFORCE]
            if one.fence is not None and one.fence.mode is Mode.ENFORCE:
                times.append(one.fence.begun_wall_s)
            acts += any(at > since for at in times)
        assert acts <= REMOVALS

    def check_well(self, record: NodeQuarantine | None) -> None:
        """Nothing is released that is still faulty as far as its node has told, and it has told since."""
        assert record is not None
        node = self.world.node(record.node)
        assert not acting(standing(node, record.kind), node, self.of(record.node))
        if record.state is State.ACTIVE:
            assert node.agent_mono_s is not None
            mark = record.sampled
            assert mark.boot_id != node.boot_id or node.told_mono_s > mark.mono_s
            assert record.well_from is not None
            assert node.told_mono_s - record.well_from.mono_s >= record.needs.well_for_s

    def of(self, node: str) -> list[NodeQuarantine]:
        return [record for record in self.world.records.values() if record.node == node]

    def check(self) -> None:
        world = self.world
        assert self.known == set(world.records), "a record was lost"
        for record in world.records.values():
            assert len(record.story) <= MAX_STORY
            assert (record.ended_wall_s is None) == record.state.open
            assert bool(record.held_by) <= (record.state is State.HELD or record.kind is Kind.SILENCE)
        opened = Counter((record.node, record.kind) for record in world.records.values() if record.state.open)
        assert all(count == 1 for count in opened.values())
        if self.writes:
            isolating = {record.node for record in world.records.values() if record.isolating}
            adoptable = {
                name
                for name, node in world.picture.nodes.items()
                if node.mark is not None and all(one.number != node.mark.number for one in self.of(name))
            }
            assert world.out() == isolating & set(world.picture.nodes)
            assert not adoptable, "a mark that no record explains"
        for name in self.cordoned & set(world.picture.nodes):
            assert world.node(name).unschedulable, "somebody else's cordon was taken away"


def test_a_long_walk_goes_through_every_row_of_the_table() -> None:
    """Far deeper than hypothesis goes, which in turn finds the shortest way to a fault."""
    chance = random.Random(int(os.environ.get("FLEET_SEED", "5")))
    walked: set[tuple[State | None, type]] = set()
    fleet_walk = Fleet()
    fleet_walk.the_nodes_join()
    kinds = [
        a_finding(),
        a_finding("XID 48", action="RESET_GPU"),
        a_finding("XID 95", entity="GPU 0000:2a:00.0", action="RESET_GPU"),
        a_nic_finding(),
        a_full_disk(),
    ]
    draws: dict[str, Callable[[], object]] = {
        "name": lambda: chance.choice(NAMES),
        "finding": lambda: chance.choice(kinds),
        "kind": lambda: chance.choice(list(OrderKind)),
        "pool": lambda: chance.choice("ab"),
        "same": lambda: chance.random() < 0.5,
        "off": lambda: chance.random() < 0.5,
        "force_after_s": lambda: chance.choice([None, 100.0]),
        "seconds": lambda: chance.choice([1.0, 30.0, 130.0, 700.0, 4000.0]),
        "gap": lambda: chance.choice([1.0, 20.0, 500.0]),
        "which": lambda: chance.randrange(200),
    }
    rules = [
        method
        for name in sorted(vars(Fleet))
        if hasattr(method := getattr(fleet_walk, name), "hypothesis_stateful_rule")
    ]
    fleet_walk.walked = walked
    for _ in range(int(os.environ.get("FLEET_STEPS", "1500"))):
        method = chance.choice(rules)
        wanted = list(inspect.signature(method).parameters)
        method(**{name: draws[name]() for name in wanted})
        fleet_walk.forget_old_records()
    assert walked == set(TRANSITIONS)


TestFleet = Fleet.TestCase
TestFleet.settings = settings(
    max_examples=int(os.environ.get("FLEET_EXAMPLES", "60")),
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    report_multiple_bugs=False,
    database=None,
    suppress_health_check=list(HealthCheck),
)
