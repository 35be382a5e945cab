"""The controller's loop over a cluster in memory: whom it believes, what it tells, and when silence counts."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from math import inf
from typing import Any

import msgspec
import pytest
from msgspec import structs

from sentinel.controller.nodes import status as fleet_status
from sentinel.controller.nodes.fold import SILENCES, FleetController
from sentinel.controller.nodes.known import AT_A_TIME, GONE_S
from sentinel.controller.nodes.status import SHOW_AGAIN_S, RecordStatus
from sentinel.core.fleet import rounds as fleet_rounds
from sentinel.core.fleet.bounds import MAX_CHECKS
from sentinel.core.fleet.conditions import OWN
from sentinel.core.fleet.events import DoEvent
from sentinel.core.fleet.isolate import MAX_FINDINGS
from sentinel.core.fleet.marks import MarkWrite
from sentinel.core.fleet.model import (
    CodeWord,
    FleetPicture,
    Kind,
    Mode,
    Needs,
    NodeCondition,
    NodePicture,
    NodeQuarantine,
    Order,
    OrderKind,
    PodPicture,
    Say,
    State,
)
from sentinel.core.fleet.orders import Answer
from sentinel.core.fleet.recording import FRESH_S
from sentinel.core.fleet.settings import Allowance, FleetSettings, Limit
from sentinel.core.health import CheckResult, CheckState, Finding, Severity
from sentinel.core.now import Now
from sentinel.core.reports import Report
from sentinel.transport.wire import Alive, Arrived
from sentinel.util.documents import from_document, to_document
from sentinel.util.errors import PermanentError, TemporaryError
from tests.core.fleet_world import OPEN, World, a_finding, a_pod
from tests.waits import eventually, turns


class Cluster:
    """What the fake shows and takes. `refuse` makes saves of records fail."""

    def __init__(self) -> None:
        self.world = World([])
        self.records: dict[str, NodeQuarantine] = {}
        self.complete = True
        self.watching_since_mono_s = 0.0
        self.leases_mono_s: float | None = None
        self.refuse: Callable[[NodeQuarantine], bool] = lambda record: False
        self.events: list[str] = []
        self.orders: tuple[Order, ...] = ()
        self.paused = ""
        self.codes: tuple[CodeWord, ...] = ()
        self.codes_problem = ""
        self.saved: list[NodeQuarantine] = []
        self.shown: list[NodeQuarantine] = []  # as their status says them
        self.refuse_status = False
        self.status_hangs = False
        self.leads = True
        self.claimed: list[str] = []
        self.not_known: set[str] = set()  # records: what became of a save of theirs

    def names(self) -> Collection[str]:
        return self.world.picture.nodes.keys()

    def lease_mono_s(self, name: str) -> float | None:
        there = self.node(name)
        return there.lease_mono_s if there is not None else None

    def node(self, name: str) -> NodePicture | None:
        return self.world.picture.nodes.get(name)

    def records_of(self, node: str) -> Collection[NodeQuarantine]:
        return [one for one in self.records.values() if one.node == node]

    def record(self, id: str) -> NodeQuarantine | None:
        return self.records.get(id)

    def take_orders(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        return {}

    async def answer(self, answer: Answer) -> None:
        raise AssertionError(f"nobody ordered this: {answer}")

    async def take_over(self) -> None:
        pass

    async def claim(self, node: str) -> None:
        self.claimed.append(node)

    def check_leading(self) -> None:
        if not self.leads:
            raise PermanentError("another one leads", "NotLeading")

    def unsure(self, record: NodeQuarantine) -> bool:
        return record.id in self.not_known

    async def settle(self, record: NodeQuarantine) -> None:
        if record.id in self.not_known:
            raise TemporaryError("the API server is away", 0.0)

    async def save(self, record: NodeQuarantine) -> None:
        if self.refuse(record):
            raise TemporaryError("the API server is away", 0.0)
        assert from_document(NodeQuarantine, to_document(record)) == record
        self.records = {**self.records, record.id: record}
        self.saved.append(record)

    async def show(self, record: NodeQuarantine) -> None:
        if self.refuse_status:
            raise TemporaryError("the API server is away", 0.0)
        if self.status_hangs:
            await asyncio.Event().wait()
        self.shown.append(record)

    async def delete(self, record: NodeQuarantine) -> None:
        self.records = {id: one for id, one in self.records.items() if id != record.id}

    def orphans(self) -> dict[str, tuple[PodPicture, ...]]:
        return self.world.picture.orphans

    async def mark(self, wanted: MarkWrite) -> None:
        node = self.world.node(wanted.node)
        taints = () if wanted.remove_taint else (wanted.taint,) if wanted.taint else node.taints
        unschedulable = node.unschedulable if wanted.unschedulable is None else wanted.unschedulable
        self.world.change(wanted.node, taints=taints, unschedulable=unschedulable)

    async def set_conditions(self, node: str, wanted: tuple[NodeCondition, ...]) -> None:
        there = {one.type: one for one in self.world.node(node).conditions}
        self.world.change(node, conditions=tuple((there | {one.type: one for one in wanted}).values()))

    async def remove(self, pods: Iterable[str]) -> None:
        raise AssertionError(f"pods were removed: {list(pods)}")

    def event(self, effect: DoEvent) -> None:
        self.events.append(f"{effect.node} {effect.reason}")


class Led:
    """A controller that leads the cluster, on a clock that stands still unless it is moved."""

    def __init__(self, settings: FleetSettings = OPEN) -> None:
        self.cluster = Cluster()
        self.now = Now(50_000.0, 1_700_000_000.0)
        self.told: list[str] = []
        self.crowded_ago_s = inf
        self.controller = FleetController(
            self.cluster, settings, lambda: self.now, self.told.append, lambda: self.crowded_ago_s
        )

    def join(self, name: str, uid: str, boot: str, **changes: Any) -> None:
        there = NodePicture(
            name=name, uid=uid, api_boot_id=boot, lease_mono_s=self.now.mono_s, resource_version="1"
        )
        self.cluster.world.put(structs.replace(there, **changes))
        self.controller.changed(name)

    def hears(self, name: str, uid: str, boot: str, *found: Finding, at_s: float = 100.0) -> None:
        state = CheckState.FOUND if found else CheckState.OK
        result = CheckResult(check="kernel", state=state, findings=found, at_mono_s=at_s)
        report = Report(node=name, boot_id=boot, sequence=1, now=Now(at_s, self.now.wall_s), checks=(result,))
        self.controller.arrived(
            Arrived(node=name, node_uid=uid, session="s", sequence=1, full=False, late=False, report=report)
        )

    def promises(self, name: str, fences: dict[str, float] | None, at_s: float, **how: bool) -> None:
        """What the node's agent ends by itself; None: an agent that does not know of it."""
        report = Report(
            node=name, boot_id="boot-1", sequence=1, now=Now(at_s, self.now.wall_s), fences=fences
        )
        kind = {"full": False, "late": False} | how
        self.controller.arrived(
            Arrived(node=name, node_uid="uid", session="s", sequence=1, report=report, **kind)
        )

    def fences(self, name: str) -> dict[str, float]:
        node = self.controller.nodes.joined(name)
        return {} if node is None else node.fences

    def beats(self, name: str, uid: str, boot: str, at_s: float) -> None:
        self.controller.nodes.alive(Alive(name, uid, boot, Now(at_s, self.now.wall_s)))

    def passes(self, seconds: float) -> None:
        self.now = Now(self.now.mono_s + seconds, self.now.wall_s + seconds)

    async def rounds(self, count: int = 2) -> None:
        """As many more about everything; the last one has ended when another one has begun."""
        for seconds in (*[3.1] * count, 0.0):
            wanted = self.controller.rounds + 1
            self.passes(seconds)
            self.controller.changed("nobody")
            await eventually(lambda wanted=wanted: self.controller.rounds >= wanted)

    def states(self) -> dict[str, str]:
        return {id: f"{one.kind.value} {one.state.value}" for id, one in self.cluster.records.items()}


@contextlib.asynccontextmanager
async def leading(one: Led) -> AsyncIterator[Led]:
    """It leads meanwhile; what ends that is raised."""
    tried = asyncio.current_task()
    assert tried is not None
    task = asyncio.create_task(one.controller.lead(1))
    task.add_done_callback(lambda task: task.cancelled() or tried.cancel())
    await turns()
    try:
        yield one
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def led(test: Callable[[Led], Coroutine[Any, Any, None]], settings: FleetSettings = OPEN) -> None:
    async def story() -> None:
        async with leading(Led(settings)) as one:
            await test(one)

    asyncio.run(story())


def test_what_was_told_of_a_machine_is_not_believed_of_another_one_of_its_name() -> None:
    async def test(fleet: Led) -> None:
        fleet.join("n1", "uid-old", "boot-old")
        fleet.hears("n1", "uid-old", "boot-old", a_finding(boot_id="boot-old"))
        await fleet.rounds()
        assert fleet.states() == {"n1-0001": "fault active"}
        fleet.cluster.world.leave("n1")
        fleet.join("n1", "uid-new", "boot-new")
        await fleet.rounds()
        assert fleet.cluster.records["n1-0001"].ended_by == "node-replaced"
        assert fleet.states() == {"n1-0001": "fault released"}
        assert not fleet.cluster.world.node("n1").taints

    led(test)


def test_what_an_agent_tells_of_a_new_boot_counts_once_the_kubelet_names_that_boot() -> None:
    """It tells it once. The API may be away meanwhile, or its watch broken."""

    async def test(fleet: Led) -> None:
        fleet.join("n1", "uid", "boot-1")
        fleet.hears("n1", "uid", "boot-1", a_finding())
        await fleet.rounds()
        fleet.hears("n1", "uid", "boot-2", at_s=5.0)
        fleet.hears("n1", "uid", "boot-2", at_s=5000.0)
        fleet.hears("n1", "uid", "boot-1", a_finding(), at_s=200.0)  # of the spool
        await fleet.rounds()
        fleet.cluster.world.change("n1", api_boot_id="boot-2")
        await fleet.rounds()
        fleet.hears("n1", "uid", "boot-2", at_s=9000.0)
        await fleet.rounds()
        assert fleet.states() == {"n1-0001": "fault released"}

    led(test)


def test_a_leader_counts_silence_from_when_it_leads() -> None:
    """As a standby it watched leases for hours and heard no agent."""

    async def test(fleet: Led) -> None:
        fleet.join("n1", "uid", "boot-1", pods=(a_pod(force_after_s=10.0),), lease_mono_s=40_000.0)
        for number in range(2, 12):
            fleet.join(f"n{number}", "uid", "boot-1")
            fleet.hears(f"n{number}", "uid", "boot-1")
        await fleet.rounds(12)
        assert fleet.states() == {}
        for number in range(2, 12):
            fleet.cluster.world.change(f"n{number}", lease_mono_s=fleet.now.mono_s)
            fleet.hears(f"n{number}", "uid", "boot-1", at_s=200.0)
        fleet.cluster.world.change("n1", pods=())
        fleet.cluster.world.change("n1", pods=(a_pod(),))
        await fleet.rounds(10)
        assert fleet.states() == {"n1-0001": "silence active"}

    led(test)


def test_nobody_is_silent_while_agents_wait_to_be_let_in() -> None:
    async def test(fleet: Led) -> None:
        async def a_while() -> None:
            for number in range(1, 6):  # all but the first one speak
                if number > 1 or "n1" not in fleet.cluster.world.picture.nodes:
                    fleet.join(f"n{number}", "uid", "boot-1", pods=(a_pod(f"worker-{number}"),))
                    fleet.hears(f"n{number}", "uid", "boot-1", at_s=fleet.now.mono_s)
            await fleet.rounds(10)

        fleet.crowded_ago_s = 1.0
        for _ in range(4):
            await a_while()
        assert fleet.states() == {}
        fleet.crowded_ago_s = inf
        await a_while()
        assert fleet.states() == {"n1-0001": "silence active"}

    led(test)


def test_what_an_agent_ends_by_itself_holds_for_as_long_as_it_says_so_on_each_connection() -> None:
    async def test(fleet: Led) -> None:
        fleet.join("n1", "uid", "boot-1")
        fleet.promises("n1", {}, 100.0, full=True)
        fleet.promises("n1", {"a": 120.0}, 101.0)
        assert fleet.fences("n1") == {"a": 120.0}
        fleet.hears("n1", "uid", "boot-1", at_s=102.0)
        assert fleet.fences("n1") == {"a": 120.0}
        fleet.promises("n1", None, 103.0, full=True)  # an older version has taken its place
        assert fleet.fences("n1") == {}
        fleet.promises("n1", {"a": 120.0}, 104.0, late=True)  # of the spool of the agent before it
        assert fleet.fences("n1") == {}
        fleet.promises("n1", {"a": 120.0}, 105.0, full=True)  # the connection alone was another one
        assert fleet.fences("n1") == {"a": 120.0}

    led(test)


def test_pods_that_their_agent_ends_by_itself_go_when_the_node_is_silent_for_longer() -> None:
    async def test(fleet: Led) -> None:
        gone: list[str] = []

        async def remove(pods: Iterable[str]) -> None:
            gone.extend(pods)

        fleet.cluster.remove = remove  # type: ignore[method-assign]
        for number in range(1, 6):
            fleet.join(f"n{number}", "uid", "boot-1")
        pods = (a_pod(self_fence_s=120.0), a_pod("worker-1", self_fence_s=120.0))
        fleet.join("n1", "uid", "boot-1", pods=pods)
        fleet.promises("n1", {"uid-worker-0": 120.0}, 100.0)

        async def others(seconds: float) -> None:
            fleet.passes(seconds)
            for number in range(2, 6):
                fleet.cluster.world.change(f"n{number}", lease_mono_s=fleet.now.mono_s)
                fleet.hears(f"n{number}", "uid", "boot-1", at_s=fleet.now.mono_s)
            await fleet.rounds()

        for _ in range(8):
            await others(15.0)
        assert fleet.states() == {"n1-0001": "silence active"}
        assert not gone  # the agent ends them about now
        for _ in range(4):
            await others(15.0)
        assert set(gone) == {"research/worker-0/uid-worker-0"}

    led(test)


def test_an_agent_with_nothing_new_to_tell_is_not_silent_and_its_node_comes_back() -> None:
    async def test(fleet: Led) -> None:
        for number in range(1, 6):
            fleet.join(f"n{number}", "uid", "boot-1", pods=(a_pod(f"w-{number}"),))
            fleet.hears(f"n{number}", "uid", "boot-1")
        fleet.hears("n1", "uid", "boot-1", a_finding(action=""))
        await fleet.rounds()
        fleet.hears("n1", "uid", "boot-1", at_s=101.0)
        for at_s in range(110, 750, 10):
            fleet.beats("n1", "uid", "boot-1", at_s)
            for number in range(1, 6):
                fleet.cluster.world.change(f"n{number}", lease_mono_s=fleet.now.mono_s)
                if number != 2:
                    fleet.beats(f"n{number}", "uid", "boot-1", at_s)
            await fleet.rounds(1)
        assert fleet.states() == {"n1-0001": "fault released", "n2-0001": "silence active"}

    led(test)


def test_only_what_was_saved_is_told_and_nothing_of_it_is_lost_for_what_was_not() -> None:
    async def test(fleet: Led) -> None:
        for name in ("n1", "n2", "n3"):
            fleet.join(name, "uid", "boot-1")
        fleet.hears("n1", "uid", "boot-1", a_finding())
        fleet.hears("n2", "uid", "boot-1", a_finding())
        await fleet.rounds()
        fleet.cluster.refuse = lambda record: record.node in ("n2", "n3")
        fleet.told.clear()
        fleet.cluster.events.clear()
        fleet.cluster.world.change("n1", unschedulable=False)
        fleet.cluster.world.change("n2", unschedulable=False)
        fleet.hears("n3", "uid", "boot-1", a_finding())
        await fleet.rounds()
        assert fleet.cluster.records["n1-0001"].state is State.OVERRIDDEN
        assert fleet.cluster.events == ["n1 Uncordoned"]
        assert [text.partition(" has")[0] for text in fleet.told] == ["The isolation of node n1"]
        fleet.cluster.refuse = lambda record: False
        await eventually(lambda: len(fleet.cluster.events) == 3)
        assert sorted(fleet.cluster.events) == ["n1 Uncordoned", "n2 Uncordoned", "n3 FatalFinding"]

    led(test)


def test_cordons_wait_for_no_flood_of_conditions() -> None:
    async def test(fleet: Led) -> None:
        writes: list[str] = []
        mark, conditions = fleet.cluster.mark, fleet.cluster.set_conditions

        async def marked(wanted: MarkWrite) -> None:
            writes.append(f"cordon {wanted.node}")
            await mark(wanted)

        async def told(node: str, wanted: tuple[NodeCondition, ...]) -> None:
            if "condition" not in writes:  # many are to be told of when another node breaks
                fleet.hears("late", "uid", "boot-1", a_finding())
            writes.append("condition")
            await conditions(node, wanted)

        fleet.cluster.mark, fleet.cluster.set_conditions = marked, told  # type: ignore[method-assign]
        names = [f"n{number}" for number in range(60)]
        for name in [*names, "late"]:
            fleet.join(name, "uid", "boot-1")
        for name in names:
            fleet.hears(name, "uid", "boot-1", a_finding())
        await eventually(lambda: writes.count("condition") == 61)
        assert writes.index("condition") == 60
        assert writes.index("cordon late") < 80

    led(test)


def test_a_flood_of_silent_nodes_holds_up_no_cordon() -> None:
    async def test(fleet: Led) -> None:
        for number in range(1000):
            fleet.join(f"n{number}", "uid", "boot-1", pods=(a_pod(),))
        for number in range(200, 1000):
            fleet.hears(f"n{number}", "uid", "boot-1")
        save = fleet.cluster.save

        async def saved(record: NodeQuarantine) -> None:
            if not fleet.cluster.records:
                fleet.hears("n999", "uid", "boot-1", a_finding(), at_s=200.0)
            await save(record)

        fleet.cluster.save = saved  # type: ignore[method-assign]
        fleet.passes(59.0)
        for number in range(200, 1000):
            fleet.hears(f"n{number}", "uid", "boot-1", at_s=150.0)
        fleet.passes(3.1)
        fleet.controller.changed("nobody")
        await eventually(lambda: len(fleet.cluster.records) == 201)
        kinds = [record.kind.value for record in fleet.cluster.saved]
        assert kinds.index("fault") <= 2 * SILENCES
        assert kinds.count("silence") == 200

    led(test)


def test_what_falls_silent_together_is_one_line() -> None:
    async def test(fleet: Led) -> None:
        names = [f"n{number}" for number in range(40)]
        for name in names:
            fleet.join(name, "uid", "boot-1", pods=(a_pod(f"worker-{name}"),))
            fleet.hears(name, "uid", "boot-1")
        fleet.passes(50.0)
        for name in names[9:]:
            fleet.hears(name, "uid", "boot-1", at_s=150.0)
        await fleet.rounds(9)
        lost = [text for text in fleet.told if "cannot be reached" in text]
        assert len(fleet.cluster.records) == 9
        assert lost == [
            "9 nodes cannot be reached: agents and kubelets are silent. They may still run. Protected jobs have 9 pods "
            "there, which stay: nothing proves that the nodes are dead. They are: n0, n1, n2, n3, n4, n5, n6, n7, n8."
        ]
        for name in names[:2]:
            fleet.hears(name, "uid", "boot-1", at_s=300.0)
        await fleet.rounds(5)
        assert [text for text in fleet.told if "heard again" in text] == [
            "Node n0 is heard again; its kubelet is still silent.",
            "Node n1 is heard again; its kubelet is still silent.",
        ]
        for name in names[2:9]:
            fleet.hears(name, "uid", "boot-1", at_s=300.0)
        await eventually(lambda: "silence active" not in fleet.states().values())

    led(test)


def test_of_a_silence_that_is_being_saved_nothing_is_told_and_it_counts_for_the_others() -> None:
    async def test(fleet: Led) -> None:
        names = [f"n{number}" for number in range(9)]
        for name in names:
            fleet.join(name, "uid", "boot-1")
            fleet.hears(name, "uid", "boot-1")
        fleet.passes(50.0)
        for name in names[2:]:
            fleet.hears(name, "uid", "boot-1", at_s=150.0)
        await fleet.rounds(5)
        assert set(fleet.states()) == {"n0-0001", "n1-0001"}
        goes_on, save = asyncio.Event(), fleet.cluster.save

        async def saved(record: NodeQuarantine) -> None:
            if record.node == "n0":
                await goes_on.wait()
            await save(record)

        fleet.cluster.save = saved  # type: ignore[method-assign]
        for name in names[:2]:
            fleet.hears(name, "uid", "boot-1", at_s=300.0)
        await eventually(lambda: fleet.states()["n1-0001"] == "silence released")
        told = {one.id: one for one in fleet.controller.to_tell()}
        assert told["n0-0001"].state.open
        assert not [mail for mail in told["n0-0001"].mails if mail.state == "waiting"]
        assert [mail.stage for mail in told["n1-0001"].mails] == ["Unreachable", "SpeaksAgain"]
        goes_on.set()
        await eventually(lambda: "silence active" not in fleet.states().values())

    led(test)


def test_what_was_to_be_told_of_silent_nodes_is_told_when_the_leader_ends() -> None:
    fleet = Led()

    async def story() -> None:
        async with leading(fleet):
            for name in ("n0", "n1", "n2", "n3"):
                fleet.join(name, "uid", "boot-1")
                fleet.hears(name, "uid", "boot-1")
            fleet.passes(50.0)
            for name in ("n1", "n2", "n3"):
                fleet.hears(name, "uid", "boot-1", at_s=150.0)
            fleet.passes(11.0)
            fleet.controller.changed("nobody")
            await eventually(lambda: bool(fleet.cluster.events))

    asyncio.run(story())
    assert [text for text in fleet.told if "cannot be reached" in text] == [
        "Node n0 cannot be reached: its agent and its kubelet are silent. It may still run."
    ]


def test_book_keeping_is_saved_after_what_takes_a_node_out_of_service() -> None:
    async def test(fleet: Led) -> None:
        for name in ("n1", "n2"):
            fleet.join(name, "uid", "boot-1")
        mark = fleet.cluster.mark

        async def marked(wanted: MarkWrite) -> None:
            await mark(wanted)
            if wanted.node == "n1":  # it shows the taint, which its record is to note
                fleet.hears("n2", "uid", "boot-1", a_finding())

        fleet.cluster.mark = marked  # type: ignore[method-assign]
        fleet.hears("n1", "uid", "boot-1", a_finding())
        await eventually(lambda: len(fleet.cluster.saved) >= 3)
        assert [(one.node, one.wrote.taint) for one in fleet.cluster.saved[:3]] == [
            ("n1", False),
            ("n2", False),
            ("n1", True),
        ]

    led(test)


def test_what_was_decided_on_a_record_that_a_person_has_changed_since_is_not_saved() -> None:
    """He gives n1 back by way of its record while another node's is on its way; a finding of n1 was decided about."""

    async def test(fleet: Led) -> None:
        for name in ("n1", "n2"):
            fleet.join(name, "uid", "boot-1")
        fleet.hears("n1", "uid", "boot-1", a_finding())
        await fleet.rounds()
        save = fleet.cluster.save

        async def saved(record: NodeQuarantine) -> None:
            if record.node == "n2" and record.state is State.ACTIVE and not edited:
                person = structs.replace(fleet.cluster.records["n1-0001"], state=State.RELEASED)
                edited.append(person)
                fleet.cluster.records = {**fleet.cluster.records, person.id: person}
                fleet.controller.changed("n1")
            await save(record)

        edited: list[NodeQuarantine] = []
        fleet.cluster.save = saved  # type: ignore[method-assign]
        fleet.cluster.saved.clear()
        fleet.hears("n2", "uid", "boot-1", a_finding())
        fleet.hears("n1", "uid", "boot-1", a_finding(), a_finding(code="XID 48"), at_s=200.0)
        await eventually(lambda: edited)
        await fleet.rounds()
        assert {one.state for one in fleet.cluster.saved if one.id == "n1-0001"} <= {State.RELEASED}
        assert fleet.cluster.records["n1-0001"].state is State.RELEASED
        assert fleet.states()["n2-0001"] == "fault active"

    led(test)


def test_what_became_of_a_mail_is_saved_on_the_record_as_the_last_round_left_it() -> None:
    async def test(fleet: Led) -> None:
        fleet.join("n1", "uid", "boot-1")
        fleet.hears("n1", "uid", "boot-1", a_finding())
        await eventually(lambda: "n1-0001" in fleet.cluster.records)
        (mail,) = fleet.cluster.records["n1-0001"].mails
        fleet.controller.record_mail("n1-0001", structs.replace(mail, state="sent"))
        await eventually(lambda: fleet.cluster.records["n1-0001"].mails[0].state == "sent")
        assert fleet.controller.failures == 0

    led(test)


def test_a_mail_of_a_record_that_was_deleted_and_made_anew_keeps_its_node_busy_with_nothing() -> None:
    """The new one has other mails. What became of the old one's was tried to be written into it for ever."""

    async def test(fleet: Led) -> None:
        fleet.join("n1", "uid", "boot-1")
        fleet.hears("n1", "uid", "boot-1", a_finding())
        await eventually(lambda: "n1-0001" in fleet.cluster.records)
        await fleet.rounds()
        (mail,) = fleet.cluster.records["n1-0001"].mails
        anew = structs.replace(fleet.cluster.records["n1-0001"], mails=())
        fleet.cluster.records = {"n1-0001": anew}
        fleet.controller.record_mail("n1-0001", structs.replace(mail, state="sent"))

        async def its_status_is_written() -> bool:
            await fleet.rounds(1)
            return fleet.cluster.shown[-1] == fleet.cluster.records["n1-0001"] == anew

        await eventually(its_status_is_written)
        assert not fleet.controller.mails.unsaved

    led(test)


HUGE = 1e300


def test_an_agent_that_tells_nonsense_has_its_node_taken_out_and_breaks_nothing() -> None:
    """A time that no calendar holds, text without end, and another part of the node each time."""
    odd = a_finding(
        first_seen_wall_s=HUGE,
        last_seen_wall_s=float("nan"),
        seen_mono_s=float("inf"),
        summary="x" * 100_000,
        evidence=("y" * 10_000,) * 100,
        count=1 << 63,
    )

    async def test(fleet: Led) -> None:
        for name in ("n1", "n2"):
            fleet.join(name, "uid", "boot-1")
        fleet.hears("n1", "uid", "boot-1", odd)
        fleet.hears("n2", "uid", "boot-1", a_finding())
        await eventually(lambda: fleet.cluster.world.out() == {"n1", "n2"})
        for number in range(MAX_FINDINGS + 5):
            fleet.hears(
                "n1", "uid", "boot-1", structs.replace(odd, entity=f"GPU {number}"), at_s=101.0 + number
            )
            await fleet.rounds(1)
        record = fleet.cluster.records["n1-0001"]
        assert len(record.findings) == MAX_FINDINGS
        assert len(msgspec.json.encode(to_document(record))) < 500_000
        assert fleet.controller.failures == 0
        saved = len(fleet.cluster.saved)
        fleet.hears("n1", "uid", "boot-1", structs.replace(odd, entity="GPU new"), at_s=400.0)
        await fleet.rounds()
        own = [one for one in fleet.cluster.saved[saved:] if one.node == "n1"]
        assert own == [], "it is as full as it may be"

    led(test)


def test_a_report_whose_time_is_no_number_is_refused_and_the_node_is_judged_by_the_others() -> None:
    async def test(fleet: Led) -> None:
        fleet.join("n1", "uid", "boot-1")
        for at_s in (float("nan"), float("inf"), -1.0):
            with pytest.raises(ValueError, match="no number"):
                fleet.hears("n1", "uid", "boot-1", a_finding(action=""), at_s=at_s)
        fleet.beats("n1", "uid", "boot-1", at_s=float("inf"))
        fleet.hears("n1", "uid", "boot-1", a_finding(action=""), at_s=100.0)
        await fleet.rounds()
        fleet.beats("n1", "uid", "boot-1", at_s=HUGE)
        fleet.hears("n1", "uid", "boot-1", at_s=200.0)
        await fleet.rounds()
        fleet.beats("n1", "uid", "boot-1", at_s=900.0)
        await fleet.rounds()
        assert fleet.states() == {"n1-0001": "fault released"}, "it is well for ten minutes of its own clock"

    led(test)


def test_an_order_is_answered_by_what_its_round_has_seen_however_long_that_round_took_to_save() -> None:
    """A node that was not silent for long enough when the round looked may be so by the time its answer is due."""

    async def test(fleet: Led) -> None:
        answers: list[str] = []

        async def answer(found: Answer) -> None:
            fleet.cluster.orders = ()
            answers.append(found.sentence)

        fleet.cluster.answer = answer  # type: ignore[method-assign]
        for name in ("n1", "n2", "n3", "n4"):
            fleet.join(name, "uid", "boot-1")
        fleet.cluster.world.change("n1", lease_mono_s=None)
        await fleet.rounds()
        fleet.cluster.orders = (Order(id="a", kind=OrderKind.CONFIRM_DEAD, node="n1", by="anna"),)
        await fleet.rounds()
        save = fleet.cluster.save

        async def slow(record: NodeQuarantine) -> None:
            fleet.passes(max(OPEN.lease_s, OPEN.agent_silent_s))
            await save(record)

        fleet.cluster.save = slow  # type: ignore[method-assign]
        fleet.hears("n2", "uid", "boot-1", a_finding())
        await fleet.rounds()
        assert answers == ["Node n1 is dead, says anna. Its pods may be removed by force."]

    led(test)


def test_what_breaks_over_one_record_holds_up_no_other_node() -> None:
    async def test(fleet: Led) -> None:
        for name in ("n1", "n2"):
            fleet.join(name, "uid", "boot-1")
        save = fleet.cluster.save

        async def broken(record: NodeQuarantine) -> None:
            if record.node == "n1":
                raise KeyError("a bug")
            await save(record)

        fleet.cluster.save = broken  # type: ignore[method-assign]
        fleet.hears("n1", "uid", "boot-1", a_finding())
        fleet.hears("n2", "uid", "boot-1", a_finding())
        await eventually(lambda: fleet.cluster.world.out() == {"n2"})
        await eventually(lambda: fleet.controller.failures >= 2)
        fleet.cluster.save = save  # type: ignore[method-assign]
        await eventually(lambda: fleet.cluster.world.out() == {"n1", "n2"})

    led(test)


TWO_AT_A_TIME = structs.replace(
    OPEN,
    isolations=Allowance(at_a_time=Limit(at_least=2, share=0.0), per_window=Limit(at_least=9, share=0.0)),
)


def isolated(fleet: Led, *names: str) -> Callable[[], bool]:
    return lambda: fleet.cluster.world.out() >= {*names}


def test_a_write_to_one_node_that_hangs_holds_up_no_other_node() -> None:
    async def test(fleet: Led) -> None:
        held, mark = asyncio.Event(), fleet.cluster.mark

        async def marked(wanted: MarkWrite) -> None:
            if wanted.node == "n1":
                await held.wait()
            await mark(wanted)

        fleet.cluster.mark = marked  # type: ignore[method-assign]
        for name in ("n1", "n2", "n3"):
            fleet.join(name, "uid", "boot-1")
        fleet.hears("n1", "uid", "boot-1", a_finding())
        await eventually(lambda: "n1-0001" in fleet.cluster.records)
        fleet.hears("n2", "uid", "boot-1", a_finding())
        await eventually(isolated(fleet, "n2"))
        await fleet.rounds()
        fleet.hears("n3", "uid", "boot-1", a_finding())
        await eventually(isolated(fleet, "n3"))
        assert not isolated(fleet, "n1")()
        assert not any("n1" in text for text in fleet.told), "it is not out of service yet"
        leaving = fleet.controller.for_jobs.isolated
        assert (leaving("n1"), leaving("n4")) == (True, False), "who moves jobs waits for that"
        held.set()
        await eventually(isolated(fleet, "n1"))
        await eventually(lambda: any("n1 was taken out" in text for text in fleet.told))

    led(test)


def test_a_record_that_is_refused_again_and_again_holds_up_no_other_node() -> None:
    """It would end, and give room; what waits for that room waits on, and nothing else does."""

    async def test(fleet: Led) -> None:
        for name in ("n1", "n2", "n3", "n4"):
            fleet.join(name, "uid", "boot-1")
        fleet.hears("n1", "uid", "boot-1", a_finding())
        await eventually(isolated(fleet, "n1"))
        await fleet.rounds()
        fleet.cluster.refuse = lambda record: record.node == "n1"
        fleet.cluster.world.change("n1", unschedulable=False)
        fleet.controller.changed("n1")
        fleet.hears("n2", "uid", "boot-1", a_finding())
        await eventually(isolated(fleet, "n2"))
        fleet.hears("n3", "uid", "boot-1", a_finding())
        await eventually(lambda: fleet.states().get("n3-0001") == "fault held")
        await fleet.rounds(3)
        assert fleet.states()["n3-0001"] == "fault held"
        fleet.cluster.refuse = lambda record: False
        await eventually(isolated(fleet, "n3"))
        assert fleet.states()["n1-0001"] == "fault overridden"

    led(test, TWO_AT_A_TIME)


def test_a_save_of_which_nothing_is_known_counts_as_done_and_holds_up_its_node_alone() -> None:
    async def test(fleet: Led) -> None:
        for name in ("n1", "n2", "n3"):
            fleet.join(name, "uid", "boot-1")
        fleet.cluster.not_known.add("n1-0001")
        fleet.hears("n1", "uid", "boot-1", a_finding())
        await eventually(lambda: fleet.controller.failures)
        fleet.hears("n2", "uid", "boot-1", a_finding())
        await eventually(isolated(fleet, "n2"))
        fleet.hears("n3", "uid", "boot-1", a_finding())
        await eventually(lambda: fleet.states().get("n3-0001") == "fault held")
        await fleet.rounds(3)
        assert "n1-0001" not in fleet.states()
        assert fleet.states()["n3-0001"] == "fault held", "n1 may be out of service"
        fleet.cluster.not_known.clear()  # it had not been written

        async def one_more() -> bool:
            await fleet.rounds(1)
            return len(fleet.cluster.world.out()) == 2 and "n1-0001" in fleet.states()

        await eventually(one_more)

    led(test, TWO_AT_A_TIME)


@pytest.mark.parametrize("known", [True, False])
def test_room_that_an_isolation_gives_is_there_once_its_end_is_saved(known: bool) -> None:
    """`known`: that it was not saved. Else it may have been, or not."""

    async def test(fleet: Led) -> None:
        for name in ("n1", "n2", "n3"):
            fleet.join(name, "uid", "boot-1")
        for name in ("n1", "n2"):
            fleet.hears(name, "uid", "boot-1", a_finding())
        await eventually(isolated(fleet, "n1", "n2"))
        await fleet.rounds()
        fleet.cluster.refuse = lambda record: record.node == "n1" and known
        if not known:
            fleet.cluster.not_known.add("n1-0001")
        fleet.cluster.world.change("n1", unschedulable=False)
        fleet.controller.changed("n1")
        fleet.hears("n3", "uid", "boot-1", a_finding())  # heard before it is decided about n1
        await eventually(lambda: fleet.states().get("n3-0001") == "fault held")
        await fleet.rounds(3)
        assert fleet.states()["n3-0001"] == "fault held"
        assert fleet.controller.failures
        fleet.cluster.refuse = lambda record: False
        fleet.cluster.not_known.clear()

        async def has_room() -> bool:
            await fleet.rounds(1)
            return isolated(fleet, "n3")()

        await eventually(has_room)
        assert fleet.states()["n1-0001"] == "fault overridden"

    led(test, TWO_AT_A_TIME)


def test_what_is_heard_while_a_node_is_written_is_decided_about_when_that_has_ended() -> None:
    async def test(fleet: Led) -> None:
        held, asked, mark = asyncio.Event(), asyncio.Event(), fleet.cluster.mark

        async def hangs(wanted: MarkWrite) -> None:
            asked.set()
            await held.wait()
            await mark(wanted)

        fleet.cluster.mark = hangs  # type: ignore[method-assign]
        fleet.join("n1", "uid", "boot-1")
        fleet.hears("n1", "uid", "boot-1", a_finding())
        await eventually(asked.is_set)
        fleet.controller.changed("n1")
        await turns()
        held.set()
        await eventually(lambda: fleet.cluster.records["n1-0001"].wrote.taint, deadline_s=30)

    led(test)


def test_nothing_is_decided_one_by_one_while_what_was_decided_waits() -> None:
    async def test(fleet: Led) -> None:
        held, save = asyncio.Event(), fleet.cluster.save

        async def saved(record: NodeQuarantine) -> None:
            await held.wait()
            await save(record)

        fleet.cluster.save = saved  # type: ignore[method-assign]
        names = [f"n{number}" for number in range(40)]
        for name in names:
            fleet.join(name, "uid", "boot-1")
        for name in names[:-1]:
            fleet.hears(name, "uid", "boot-1", a_finding())
        await turns()
        rounds = fleet.controller.rounds
        fleet.hears(names[-1], "uid", "boot-1", a_finding())
        await turns()
        assert fleet.controller.rounds == rounds
        held.set()
        await eventually(isolated(fleet, *names))

    led(test)


@pytest.mark.parametrize("how", ["hangs", "fails", "breaks"])
def test_records_that_cannot_be_claimed_keep_nobody_from_leading(how: str) -> None:
    async def story() -> None:
        fleet, order = Led(), list[str]()
        async with leading(fleet):
            for name in (out := [f"n{number}" for number in range(1, 33)]):
                fleet.join(name, "uid", "boot-1")
                fleet.hears(name, "uid", "boot-1", a_finding())
            await eventually(isolated(fleet, *out))
            # Nothing is being saved when it ends: its successor settles that by and by, and this clock stands still.
            await eventually(lambda: all(one.wrote.taint for one in fleet.cluster.records.values()))
        mark, claim = fleet.cluster.mark, fleet.cluster.claim
        fleet.cluster.claimed.clear()

        async def marked(wanted: MarkWrite) -> None:
            order.append(f"mark {wanted.node}")
            await mark(wanted)

        async def claimed(node: str) -> None:
            order.append(f"claim {node}")
            if node != "n1":
                return await claim(node)
            if how == "hangs":
                await asyncio.Event().wait()
            raise TemporaryError("500", 0.0) if how == "fails" else KeyError("a bug")

        fleet.cluster.mark, fleet.cluster.claim = marked, claimed  # type: ignore[method-assign]
        fleet.join("n40", "uid", "boot-1")
        fleet.hears("n40", "uid", "boot-1", a_finding())
        for name in ("n1", "n2"):
            fleet.cluster.world.change(name, unschedulable=False)
            fleet.controller.changed(name)
        async with leading(fleet):
            await eventually(isolated(fleet, "n40"))
            before = order[: order.index("mark n40")]
            assert sum(one.startswith("claim") for one in before) <= 8, "nothing waits for all claims"
            await eventually(lambda: fleet.states()["n2-0001"] == "fault overridden")
            await eventually(lambda: len(fleet.cluster.claimed) == 31)
            await fleet.rounds()
            assert fleet.states()["n1-0001"] == "fault active", "its predecessor may still write to it"
            fleet.cluster.claim = claim  # type: ignore[method-assign]

            async def claimed_at_last() -> bool:
                await fleet.rounds(1)
                return fleet.states()["n1-0001"] == "fault overridden"

            if how != "hangs":
                await eventually(claimed_at_last)

    asyncio.run(story())


def test_that_a_node_is_out_of_service_is_told_when_it_shows_that() -> None:
    async def test(fleet: Led) -> None:
        mark = fleet.cluster.mark

        async def refused(wanted: MarkWrite) -> None:
            raise PermanentError("403 nodes is forbidden", "Forbidden")

        fleet.cluster.mark = refused  # type: ignore[method-assign]
        for name in ("n1", "n2"):
            fleet.join(name, "uid", "boot-1")
            fleet.hears(name, "uid", "boot-1", a_finding())
        await eventually(lambda: len(fleet.told) == 2)
        await fleet.rounds(3)
        assert fleet.told == [
            f"Node {name} is to be out of service, and cannot be marked yet: 403 nodes is forbidden"
            for name in ("n1", "n2")
        ]
        assert (fleet.cluster.events, [*fleet.controller.to_tell()]) == ([], [])
        fleet.hears("n2", "uid", "boot-1", at_s=200.0)
        fleet.cluster.records = {
            **fleet.cluster.records,
            "n2-0001": structs.replace(fleet.cluster.records["n2-0001"], state=State.RELEASED),
        }
        fleet.controller.changed("n2")
        fleet.cluster.mark = mark  # type: ignore[method-assign]
        await eventually(lambda: fleet.cluster.events)
        assert fleet.cluster.events == ["n1 FatalFinding"]
        assert "Node n1 was taken out of service" in fleet.told[2]
        await eventually(lambda: [one.id for one in fleet.controller.to_tell()][:1] == ["n1-0001"])

    led(test)


def test_what_agents_tell_is_bounded_and_let_go_of_when_their_nodes_are_gone() -> None:
    async def test(fleet: Led) -> None:
        fleet.join("n1", "uid", "boot-1")
        for number in range(1000):
            result = CheckResult(check=f"check-{number}", state=CheckState.OK, at_mono_s=100.0)
            report = Report(
                node="n1", boot_id="boot-1", sequence=1, now=Now(100.0, fleet.now.wall_s), checks=(result,)
            )
            fleet.controller.arrived(
                Arrived(
                    node="n1", node_uid="uid", session="s", sequence=1, full=False, late=False, report=report
                )
            )
        assert len(fleet.controller.nodes.heard["n1"][0].checks) == MAX_CHECKS
        fleet.cluster.world.leave("n1")
        await fleet.rounds()
        assert "n1" in fleet.controller.nodes.heard, "its object may not be seen yet"
        fleet.passes(GONE_S)
        await fleet.rounds()
        assert not fleet.controller.nodes.heard

    led(test)


def test_the_status_of_records_follows_them_and_a_refused_one_is_tried_again_later() -> None:
    async def test(fleet: Led) -> None:
        fleet.cluster.refuse_status = True
        fleet.join("n1", "uid", "boot-1")
        fleet.hears("n1", "uid", "boot-1", a_finding())
        await fleet.rounds(2)
        assert fleet.states() == {"n1-0001": "fault active"}
        assert fleet.controller.failures == 1, "one try, and a pause"
        fleet.cluster.refuse_status = False
        fleet.passes(SHOW_AGAIN_S)
        await fleet.rounds(2)
        assert fleet.cluster.shown == [fleet.cluster.records["n1-0001"]]
        edited = structs.replace(fleet.cluster.records["n1-0001"], sentence="a person was here")
        fleet.cluster.records = {"n1-0001": edited}
        await fleet.rounds(2)
        assert fleet.cluster.shown[1:] == [edited], "whoever changed it"

    led(test)


def test_the_status_of_a_record_is_written_as_it_is_when_its_turn_comes() -> None:
    """Its watch may have told of it meanwhile: an older one that was said as its status stayed for ever."""
    cluster = Cluster()
    before = NodeQuarantine(
        id="n1-0001",
        kind=Kind.FAULT,
        node="n1",
        node_uid="uid",
        state=State.ACTIVE,
        needs=Needs(sentence="a person"),
    )
    cluster.records = {before.id: before}
    status = RecordStatus(cluster, lambda: Now(1.0, 1.0))
    status.look_over()
    assert [*status.due()] == [before]
    after = structs.replace(before, state=State.RELEASED)
    cluster.records = {after.id: after}
    asyncio.run(status.write(before.id))
    assert cluster.shown == [after]
    status.look_over()
    assert [*status.due()] == []
    cluster.records = {}
    asyncio.run(status.write(before.id))
    assert cluster.shown == [after]


def test_no_cordon_waits_long_for_a_status_that_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_status, "SHOW_S", 0.05)

    async def test(fleet: Led) -> None:
        fleet.cluster.status_hangs = True
        for number in range(1, 4):
            fleet.join(f"n{number}", "uid", "boot-1")
            fleet.hears(f"n{number}", "uid", "boot-1", a_finding())
            await fleet.rounds()
        assert set(fleet.states().values()) == {"fault active"}
        fleet.cluster.status_hangs = False

        async def all_shown() -> bool:
            fleet.passes(SHOW_AGAIN_S)
            await fleet.rounds(1)
            return {one.id for one in fleet.cluster.shown} == fleet.states().keys()

        await eventually(all_shown)

    led(test)


def test_a_leader_that_is_stopped_while_something_changes_leads_no_more() -> None:
    """The wait of its loop ends and is cancelled in one turn: that it is cancelled must not be forgotten."""

    async def story() -> None:
        fleet = Led()
        task = asyncio.create_task(fleet.controller.lead(1))
        fleet.join("n1", "uid", "boot-1")
        await fleet.rounds()
        await turns()  # its loop waits
        fleet.controller.changed("n1")
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=10.0)
        try:
            assert done, "it goes on"
        finally:
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(story())


def test_a_fault_that_is_told_while_many_nodes_are_looked_at_waits_for_none_of_them() -> None:
    async def test(fleet: Led) -> None:
        names, order = [f"n{number}" for number in range(5 * AT_A_TIME)], list[str]()
        for name in names:
            fleet.join(name, name, "boot-1")
            fleet.hears(name, name, "boot-1")
        await fleet.rounds()
        node, save = fleet.cluster.node, fleet.cluster.save

        def looked(name: str) -> NodePicture | None:
            if name == names[AT_A_TIME] and name not in order:
                fleet.hears("n1", "n1", "boot-1", a_finding(), at_s=101.0)
            order.append(name)
            return node(name)

        async def saved(record: NodeQuarantine) -> None:
            order.append("saved")
            await save(record)

        fleet.cluster.node, fleet.cluster.save = looked, saved  # type: ignore[method-assign]
        fleet.passes(FRESH_S)
        fleet.controller.changed("nobody")
        await eventually(lambda: names[-1] in order and "saved" in order)
        assert order.index("saved") < order.index(names[-1])

    led(test)


def test_who_moves_jobs_is_told_which_nodes_are_drained_and_why() -> None:
    def told(world: World) -> dict[str, str]:
        one = Led()
        one.cluster.records = dict(world.records)
        return one.controller.for_jobs.draining()

    world = World()
    world.order(OrderKind.HOLD, "n2")
    world.order(OrderKind.DRAIN, "n1", "a new switch")
    world.settle()
    assert told(world) == {"n1": "Node n1 is drained by anna: a new switch. No protected job is left on it."}
    world.order(OrderKind.DRAIN_OFF, "n1")
    world.settle()
    assert told(world) == {}

    watched = World(settings=structs.replace(OPEN, mode=Mode.OBSERVE))
    watched.order(OrderKind.DRAIN, "n1")
    watched.settle()
    assert told(watched) == {}, "what is only observed moves no job"


def test_who_moves_jobs_is_told_of_which_nodes_anything_is_found() -> None:
    async def test(fleet: Led) -> None:
        ailing = fleet.controller.nodes.ailing
        for name in ("n1", "n2"):
            fleet.join(name, "uid", "boot-1")
            fleet.hears(name, "uid", "boot-1", at_s=1.0)
        assert not ailing
        fleet.hears("n1", "uid", "boot-1", a_finding(), at_s=2.0)
        fleet.promises("n1", None, at_s=3.0)  # says nothing of checks
        assert ailing == {"n1"}
        fleet.hears("n1", "uid", "boot-2", at_s=1.0)
        assert not ailing, "the boot that was heard last"
        fleet.beats("n1", "uid", "boot-1", at_s=4.0)
        assert ailing == {"n1"}
        fleet.hears("n1", "uid", "boot-1", at_s=5.0)
        assert not ailing
        fleet.hears("n2", "uid", "boot-1", a_finding(), at_s=6.0)
        fleet.controller.nodes.forget()
        assert not ailing

    led(test)


def test_nodes_that_a_whole_round_need_not_look_at_would_have_given_it_nothing() -> None:
    """By chance: reports, heartbeats, leases and objects of twenty nodes come or stay away. Each whole round decides
    and writes what it would if it had looked at every node."""
    one, rng = Led(), random.Random(7)
    names = [f"node-{number}" for number in range(20)]
    controller, skipped, decided = one.controller, 0, 0
    spared = fleet_rounds.decide

    def decide(picture: FleetPicture, *rest: Any) -> Any:
        nonlocal skipped, decided
        records, settings, now, only, quiet = rest
        found = spared(picture, *rest)
        if only is None:
            known = {name: controller.nodes.joined(name) for name in names}
            every = {name: node for name, node in known.items() if node is not None}
            assert found == spared(structs.replace(picture, nodes=every), records, settings, now)
            assert picture.nodes.keys() == every.keys()
            assert all(not controller._conditions(every[name], []) for name in quiet)
            skipped, decided = skipped + len(quiet - set(controller.nodes.looked)), decided + len(found)
        return found

    def happens(number: int) -> None:
        name, uid, boot = names[number], f"uid-{number % 3}", "b1"
        if number < 3 and rng.random() < 0.1:
            if one.cluster.node(name) is not None:
                one.cluster.world.leave(name)
            else:
                one.join(name, uid, boot)
            controller.changed(name)
        if one.cluster.node(name) is None:
            return
        if number % 5 or rng.random() < 0.01:  # every fifth one falls silent for a long time, again and again
            at_s = one.now.mono_s
            one.cluster.world.change(name, lease_mono_s=at_s)  # of which nobody is told
            if rng.random() < 0.005:
                one.hears(name, uid, boot, *([a_finding()] if rng.random() < 0.7 else []), at_s=at_s)
            elif rng.random() < 0.5:
                one.beats(name, uid, boot, at_s)
        if rng.random() < 0.02:
            row = NodeCondition(OWN, rng.choice(["True", "False"]), "Somebody", "wrote this")
            one.cluster.world.change(name, conditions=(row,))
            controller.changed(name)

    async def story() -> None:
        for number, name in enumerate(names):
            one.join(name, f"uid-{number % 3}", "b1")
            one.hears(name, f"uid-{number % 3}", "b1")
        for _ in range(400):
            for number in range(len(names)):
                happens(number)
            if rng.random() < 0.3:
                await controller.nodes.look_ahead(3.0, lambda: asyncio.sleep(0))
                for name in controller.nodes.looked:
                    assert controller.nodes.pictures[name] == controller.nodes.joined(name)
            controller._round(1, whole=rng.random() < 0.7)
            await eventually(lambda: not controller._works.keys)
            one.passes(rng.choice([0.3, 1.0, 3.0]))
        assert skipped > 300
        assert decided > 50

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet_rounds, "decide", decide)
        asyncio.run(story())


# ---------------------------------------------------------------- many nodes with one finding


def test_jobs_hear_of_what_many_nodes_have_as_a_warning_until_a_person_says_what_it_is() -> None:
    async def test(fleet: Led) -> None:
        names = [f"n{number}" for number in range(5)]
        for name in names:
            fleet.join(name, f"uid-{name}", "boot-1")
            fleet.hears(name, f"uid-{name}", "boot-1", a_finding("XID 31"))
        await eventually(lambda: sum(one == "fault held" for one in fleet.states().values()) == 3)
        held = {one.node for one in fleet.cluster.records.values() if one.state is State.HELD}

        def severity(name: str) -> list[Severity]:
            return [one.severity for one in fleet.controller.for_jobs.findings(name)[1]]

        for name in names:
            assert severity(name) == [Severity.WARNING if name in held else Severity.FATAL]
        fleet.cluster.codes = (CodeWord(code="XID 31", say=Say.GO_ON, at_wall_s=fleet.now.wall_s),)
        await fleet.rounds()
        assert set(fleet.states().values()) == {"fault active"}
        assert {one for name in names for one in severity(name)} == {Severity.FATAL}
        fleet.cluster.codes = (CodeWord(code="XID 31", say=Say.IGNORE),)
        await fleet.rounds()
        assert set(fleet.states().values()) == {"fault released"}
        assert not [one for name in names for one in severity(name)]

    led(test, structs.replace(OPEN, cause_nodes=3))


def test_a_finding_that_is_too_many_for_its_record_is_decided_about_with_the_others_of_its_code() -> None:
    async def test(fleet: Led) -> None:
        names = [f"n{number}" for number in range(3)]
        fleet.cluster.codes = (CodeWord(code="XID 31", say=Say.GO_ON, at_wall_s=fleet.now.wall_s),)
        many = [a_finding("XID 31", entity=f"GPU {number}") for number in range(MAX_FINDINGS + 8)]
        for name in names:
            fleet.join(name, f"uid-{name}", "boot-1")
            fleet.hears(name, f"uid-{name}", "boot-1", *many)
        await eventually(lambda: [*fleet.states().values()] == ["fault active"] * 3)
        for name in names:
            found = fleet.controller.for_jobs.findings(name)[1]
            assert [one.severity for one in found] == [Severity.FATAL] * len(many)

    led(test, structs.replace(OPEN, cause_nodes=3))


def test_jobs_are_told_of_nodes_that_came_back_lately() -> None:
    async def test(fleet: Led) -> None:
        returned = fleet.controller.for_jobs.returned
        for name in ("n1", "n2"):
            fleet.join(name, f"uid-{name}", "boot-1")
            fleet.hears(name, f"uid-{name}", "boot-1", *[a_finding()] * (name == "n1"))
        await fleet.rounds()
        assert fleet.states() == {"n1-0001": "fault active"}
        assert returned("n1") == ""
        fleet.cluster.world.change("n1", unschedulable=False)
        fleet.controller.changed("n1")
        await eventually(lambda: fleet.states() == {"n1-0001": "fault overridden"})
        assert returned("n1").startswith("0 s ago after XID 79 of ")
        fleet.passes(3 * 86_400.0)
        await fleet.rounds()
        assert (
            returned("n1") == "3 days ago after XID 79 of GPU 0000:18:00.0 (the GPU has fallen off the bus)"
        )
        assert returned("n2") == returned("nobody") == ""
        fleet.passes(5 * 86_400.0)
        await fleet.rounds()
        assert returned("n1") == ""

    led(test)


def test_words_that_cannot_be_read_are_a_trouble_of_the_leader() -> None:
    async def test(fleet: Led) -> None:
        fleet.cluster.codes_problem = "the ConfigMap sentinel-codes says nothing readable in a: no JSON"
        assert fleet.controller.troubles()["codes"].text == fleet.cluster.codes_problem

    led(test)
