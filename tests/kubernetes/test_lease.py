"""One leads, by its own clock; the next one follows soon; what the last one sends late is refused."""

import asyncio
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.errors import NotLeading
from sentinel.cluster.kubernetes.lease import LONGEST_S, Election, Pace
from sentinel.core.agents.epochs import Epochs, Where, agent_of
from sentinel.util.clock import system_now
from tests.kubernetes.conftest import LEADER, QUARANTINES, new_lease, run
from tests.kubernetes.proxy import Fault, Proxy
from tests.waits import eventually

if TYPE_CHECKING:
    from tests.rig.api import Api
    from tests.rig.control_plane import ControlPlane

REPO = Path(__file__).parents[2]
QUICK = Pace(duration_s=6, margin_s=2.0, renew_s=0.3, look_s=0.1, deadline_s=1.5)


class Controller:
    """A process that takes part in the election (leading.py)."""

    def __init__(self, config: str, identity: str, *pace: str) -> None:
        command = [sys.executable, "-m", "tests.kubernetes.leading", config, identity, *pace]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, cwd=REPO, bufsize=1, **pipes)
        self.said: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.said.put(line.strip())

    def tell(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")

    def hear(self, wanted: str | tuple[str, ...], deadline_s: float = 120.0) -> str:
        """The next line that begins so (or so)."""
        end = time.monotonic() + deadline_s
        while True:
            line = self.said.get(timeout=max(0.01, end - time.monotonic()))
            if line.startswith(wanted):
                return line

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(180)


@pytest.fixture
def nobody_leads(admin: "Api") -> None:
    """A Lease that its last holder let go, so that nobody has to wait, and no record of a later epoch."""
    for record in admin.items(QUARANTINES):
        admin.delete(f"{QUARANTINES}/{record['metadata']['name']}")
    new_lease(admin, leaseDurationSeconds=1, leaseTransitions=0)


@pytest.fixture
def start(controller: str, nobody_leads: None) -> Iterator[Any]:
    started: list[Controller] = []

    def begin(identity: str, *pace: str) -> Controller:
        started.append(Controller(controller, identity, *pace))
        return started[-1]

    yield begin
    for one in started:
        one.end()


def epoch_in(line: str) -> int:
    return int(line.split()[1])


def test_after_kill_9_the_other_one_leads(start: Any) -> None:
    first = start("first")
    epoch = epoch_in(first.hear("lead"))
    second = start("second")
    second.hear("sees first")
    first.signal(signal.SIGKILL)
    assert epoch_in(second.hear("lead")) == epoch + 1


def test_a_leader_that_ends_lets_go_at_once(start: Any, admin: "Api") -> None:
    first = start("first", "long")
    epoch = epoch_in(first.hear("lead"))
    second = start("second", "long")
    second.hear("sees first")
    first.process.stdin.close()
    assert epoch_in(second.hear("lead", 50.0)) == epoch + 1  # the Lease itself would hold for a minute
    assert admin.get(LEADER)["spec"]["holderIdentity"] == "second"


def frozen(start: Any, work: str) -> tuple[Controller, Controller]:
    """A leader that is stopped between its check and its send of that, and the one that leads by now."""
    first = start("first", "quick")
    first.hear("lead")
    second = start("second", "quick")
    second.hear("sees first")
    first.tell(f"{work} frozen")
    first.hear("checked")
    second.hear("lead")
    return first, second


@pytest.mark.parametrize("what", ["mark", "record"])
def test_the_late_write_of_a_frozen_leader_is_refused(
    start: Any, installed: "ControlPlane", admin: "Api", what: str
) -> None:
    """Stopped between its check and its send; thawed when another one leads."""
    node = f"n-{secrets.token_hex(4)}"
    installed.node(node)
    first, second = frozen(start, f"{what} {node}")
    second.tell(f"fence {node}")
    second.hear("written")
    first.signal(signal.SIGCONT)
    assert first.hear("lost")
    assert first.hear(("refused", "written")).startswith("refused")
    found = admin.get(f"/api/v1/nodes/{node}")
    assert not found["spec"].get("unschedulable")
    assert admin.find(f"/apis/sentinel.dev/v1alpha1/quarantines/{node}-0001") is None


def test_the_late_removal_of_a_pod_by_a_frozen_leader_is_refused_when_its_node_has_spoken_since(
    start: Any, installed: "ControlPlane", admin: "Api"
) -> None:
    node = f"n-{secrets.token_hex(4)}"
    installed.node(node)
    spec = {
        "nodeName": node,
        "containers": [{"name": "a", "image": "x"}],
        "tolerations": [{"operator": "Exists"}],
    }
    head = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": node, "namespace": "default"}}
    admin.create({**head, "spec": spec})
    path = f"/api/v1/namespaces/default/pods/{node}"
    first, second = frozen(start, f"remove {node}")
    admin.patch(f"{path}/status", {"status": {"phase": "Running"}})
    first.signal(signal.SIGCONT)
    assert first.hear(("refused", "written")).startswith("refused Conflict")
    assert admin.find(path)["metadata"].get("deletionTimestamp") is None
    second.tell(f"remove {node}")
    assert second.hear(("refused", "written")) == "written"
    assert admin.find(path) is None


def leads_until_s(one: "Taking") -> float:
    """Monotonic, unless it renews."""
    return system_now().mono_s + one.election.left_s


class Taking:
    """An election in this process, and what it told."""

    def __init__(self, client: Client, identity: str, **options: Any) -> None:
        self.told: list[str] = []
        self.epochs = Epochs()
        self.election = Election(
            client, self.epochs, identity=identity, namespace="sentinel-system", pace=QUICK, **options
        )

    def begin(self) -> "asyncio.Task[None]":
        return asyncio.create_task(
            self.election.run(
                lambda epoch: self.told.append(f"lead {epoch}"), lambda why: self.told.append("lost")
            )
        )


def test_who_lets_go_writes_down_what_it_noted_last_and_its_successor_sees_it(
    nobody_leads: None, controller: str
) -> None:
    async def test() -> None:
        async with await Client.connect(controller) as client:
            notes: dict[str, str | None] = {"sentinel.dev/summary": "2026-11-26T08:00:00Z"}
            first, second = Taking(client, "first", notes=lambda: notes), Taking(client, "second")
            task = first.begin()
            await eventually(lambda: first.election.leading, "nobody leads")
            task.cancel()  # it renews no more
            await asyncio.gather(task, return_exceptions=True)
            notes["sentinel.dev/summary"] = "2026-11-27T08:00:00Z"
            await first.election.release()
            task = second.begin()
            await eventually(lambda: second.election.leading, "nobody follows")
            assert second.election.annotations["sentinel.dev/summary"] == "2026-11-27T08:00:00Z"
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await second.election.release()

    run(test())


def test_a_leader_stops_before_another_may_begin_when_the_api_hangs(
    nobody_leads: None, proxy: Proxy, behind_proxy: str, controller: str
) -> None:
    """By its own clock: it gets no answer at all. The other one reaches the server and waits it out."""

    async def test() -> None:
        async with await Client.connect(behind_proxy) as cut_off, await Client.connect(controller) as direct:
            first, second = Taking(cut_off, "first"), Taking(direct, "second")
            tasks = [first.begin()]
            await eventually(lambda: first.election.leading, "nobody leads")
            tasks.append(second.begin())
            await eventually(lambda: second.election.leader.identity == "first", "the leader is not known")
            proxy.faults = [Fault(path="leases", hang=True, times=10_000)]
            await eventually(lambda: second.election.leading, "nobody follows", every_s=0.0)
            assert not first.election.leading
            assert first.told == ["lead 1", "lost"]
            with pytest.raises(NotLeading):
                first.election.epoch()
            assert second.election.epoch() == 2
            proxy.faults = []
            await eventually(lambda: first.election.leader.identity == "second", "the loser does not follow")
            for task in tasks:
                task.cancel()
            await second.election.release()

    run(test())


def test_a_take_over_or_renewal_whose_answer_was_lost_is_ours(
    nobody_leads: None, proxy: Proxy, behind_proxy: str
) -> None:
    async def test() -> None:
        async with await Client.connect(behind_proxy) as client:
            only = Taking(client, "only")
            proxy.faults = [Fault(method="PATCH", path="leases", lose_reply=True, times=2)]
            task = only.begin()
            await eventually(lambda: proxy.faults[0].times == 0, "it was not asked")
            await eventually(lambda: only.election.leading and only.election.left_s > 1.5, "it does not lead")
            assert only.told == ["lead 1"], "a lost answer costs no epoch"
            task.cancel()
            await only.election.release()

    run(test())


def test_the_epoch_never_goes_back_not_even_when_a_person_deletes_the_lease(
    nobody_leads: None, controller: str, admin: "Api"
) -> None:
    async def test() -> None:
        async with await Client.connect(controller) as client:
            one = Taking(client, "one", address="https://one:8443")
            one.epochs.met(41, Where("quarantines", "n1-1"))
            task = one.begin()
            await eventually(lambda: one.election.leading, "nobody leads")
            assert one.election.epoch() == 42
            assert one.election.leader.address == "https://one:8443"
            await asyncio.to_thread(admin.call, "DELETE", LEADER)
            await eventually(lambda: one.told[-1] == "lead 43", "not taken again")
            assert one.told == ["lead 42", "lost", "lead 43"]
            task.cancel()
            await one.election.release()

    run(test())


def test_who_meets_a_later_epoch_leads_no_more_and_then_above_it(
    nobody_leads: None, controller: str, proxy: Proxy, behind_proxy: str
) -> None:
    """Also where a renewal is under way, whose answer would let it lead on by the old one."""

    async def test() -> None:
        async with await Client.connect(behind_proxy) as client, await Client.connect(controller) as direct:
            one, other = Taking(client, "one"), Taking(direct, "other")
            tasks = [one.begin()]
            await eventually(lambda: one.election.leading, "nobody leads")
            tasks.append(other.begin())
            come: list[str] = []
            proxy.faults = [
                Fault(method="PATCH", path="leases", hold=True, when_come=lambda: come.append(""))
            ]
            await eventually(lambda: come, "it is not renewed")
            one.epochs.met(7, agent_of("n1"))
            assert not one.election.leading
            with pytest.raises(NotLeading):
                one.election.epoch()
            proxy.release()
            await eventually(lambda: one.told[-1] == "lead 8", "not taken again")
            assert one.told == ["lead 1", "lost", "lead 8"]
            assert other.told == []
            await eventually(lambda: other.election.leader.epoch == 8, "the follower does not see it")
            for task in tasks:
                task.cancel()
            await one.election.release()

    run(test())


def test_a_lease_that_a_person_deleted_makes_no_second_leader(
    nobody_leads: None, controller: str, proxy: Proxy, behind_proxy: str, admin: "Api"
) -> None:
    """Not even while the leader cannot notice: its renewals hang."""

    async def test() -> None:
        async with await Client.connect(behind_proxy) as slow, await Client.connect(controller) as direct:
            first, second = Taking(slow, "first"), Taking(direct, "second")
            tasks = [first.begin()]
            await eventually(lambda: first.election.leading, "nobody leads")
            tasks.append(second.begin())
            await eventually(lambda: second.election.leader.identity == "first", "the leader is not known")
            proxy.faults = [Fault(path="leases", hang=True, times=10_000)]
            await asyncio.to_thread(admin.delete, LEADER)
            await eventually(lambda: second.election.leading, "nobody follows")
            assert not first.election.leading
            assert second.election.epoch() == 2
            for task in tasks:
                task.cancel()
            await second.election.release()

    run(test())


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_first_lease_ever_is_made(admin: "Api", proxy: Proxy, behind_proxy: str, method: str) -> None:
    """Also when the answer to that is lost."""
    if admin.find(LEADER):
        admin.delete(LEADER)

    async def test() -> None:
        async with await Client.connect(behind_proxy) as client:
            only = Taking(client, "only")
            proxy.faults = [Fault(method=method, path="leases", lose_reply=True)]
            task = only.begin()
            await eventually(lambda: only.election.leading, "it does not lead")
            assert only.told == ["lead 1"]
            task.cancel()
            await only.election.release()

    run(test())


def test_a_person_who_edits_the_lease_ends_no_leadership(
    nobody_leads: None, controller: str, admin: "Api"
) -> None:
    async def test() -> None:
        async with await Client.connect(controller) as client:
            one = Taking(client, "one")
            task = one.begin()
            await eventually(lambda: one.election.leading, "nobody leads")
            for value in "abc":
                patch = {"metadata": {"annotations": {"note": value}}}
                await asyncio.to_thread(admin.patch, LEADER, patch)
                before_s = leads_until_s(one)
                await eventually(lambda s=before_s: leads_until_s(one) > s + 0.5, "not renewed")
            assert one.told == ["lead 1"]
            task.cancel()
            await one.election.release()

    run(test())


def test_two_that_begin_at_once_have_one_leader(nobody_leads: None, controller: str) -> None:
    async def test() -> None:
        async with await Client.connect(controller) as client:
            several = [Taking(client, f"c{number}") for number in range(5)]
            tasks = [one.begin() for one in several]
            await eventually(lambda: any(one.election.leading for one in several), "nobody leads")
            (leader,) = (one for one in several if one.election.leading)

            def one_leads() -> bool:
                return sum(one.election.leading for one in several) <= 1

            def all_follow() -> bool:
                assert one_leads()
                return {one.election.leader.identity for one in several} == {leader.election.identity}

            await eventually(all_follow, "not all know who leads")
            for _ in range(2):
                before_s = leads_until_s(leader)

                def renewed(before_s: float = before_s) -> bool:
                    assert one_leads()
                    return leads_until_s(leader) > before_s + 0.5

                await eventually(renewed, "the leader does not renew")
            for task in tasks:
                task.cancel()
            for one in several:
                await one.election.release()

    run(test())


@pytest.mark.parametrize("nonsense", [{"leaseTransitions": 2147483647}, {"leaseDurationSeconds": 86400}])
def test_a_lease_that_a_person_wrote_nonsense_into_is_led_by_again(
    nobody_leads: None, controller: str, admin: "Api", nonsense: dict[str, int]
) -> None:
    """Its epoch cannot count on, and nobody waits a day for a leader that is gone."""

    async def test() -> None:
        async with await Client.connect(controller) as client:
            one = Taking(client, "one")
            task = one.begin()
            await eventually(lambda: one.election.leading, "nobody leads")
            await asyncio.to_thread(admin.patch, LEADER, {"spec": nonsense})

            def healed() -> bool:
                spec = admin.get(LEADER)["spec"]
                return (
                    one.election.leading
                    and spec["leaseTransitions"] < 1000
                    and spec["leaseDurationSeconds"] == QUICK.duration_s
                )

            await eventually(healed, "it stays as the person wrote it")
            task.cancel()
            await one.election.release()

    run(test())


def test_nobody_waits_longer_than_a_minute_for_a_leader_that_is_gone(
    nobody_leads: None, controller: str, admin: "Api"
) -> None:
    admin.patch(LEADER, {"spec": {"holderIdentity": "gone", "leaseDurationSeconds": 10**6}})

    async def test() -> None:
        async with await Client.connect(controller) as client:
            late = 0.0
            one = Taking(
                client, "one", clock=lambda: replace(system_now(), mono_s=system_now().mono_s + late)
            )
            task = one.begin()
            await eventually(lambda: one.election.leader.identity == "gone", "not seen")
            late = LONGEST_S + 1.0
            await eventually(lambda: one.election.leading, "nobody leads")
            task.cancel()
            await one.election.release()

    run(test())
