"""The nodes as the leading controller sees and writes them, while its watches are behind."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from sentinel.clock import system_now
from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.errors import Refused
from sentinel.cluster.kubernetes.fleet import KubernetesFleet
from sentinel.cluster.kubernetes.reflector import Change
from sentinel.cluster.kubernetes.reflector import Kind as ChangeKind
from sentinel.core.epochs import Epochs
from sentinel.core.fleet_marks import MarkWrite
from sentinel.core.fleet_model import Kind, Needs, NodeMark, NodeQuarantine, State
from sentinel.core.fleet_settings import FleetSettings
from sentinel.core.protection import Judged
from sentinel.errors import TemporaryError
from tests.kubernetes.conftest import EPOCH, NAMESPACE, run
from tests.kubernetes.proxy import Fault, Proxy
from tests.waits import eventually

if TYPE_CHECKING:
    from tests.rig.api import Api
    from tests.rig.control_plane import ControlPlane


async def unjudged(documents: Sequence[dict[str, Any]]) -> list[Judged]:
    raise AssertionError("there are no policies")


@pytest.fixture
def name(installed: "ControlPlane", admin: "Api") -> str:
    made = f"n-{secrets.token_hex(4)}"
    installed.node(made)
    return made


def followed(
    behind_proxy: str, name: str, test: Callable[[KubernetesFleet, list[str]], Awaitable[None]]
) -> None:
    """`test` gets a fleet that knows the node, and the names of the nodes that it says have changed."""

    async def story() -> None:
        changed: list[str] = []
        async with await Client.connect(behind_proxy) as client:
            fleet = KubernetesFleet(
                client,
                FleetSettings(),
                lambda: EPOCH,
                Epochs(),
                "test",
                changed.append,
                system_now,
                NAMESPACE,
                unjudged,
            )
            task = asyncio.create_task(fleet.run())
            try:
                await eventually(lambda: fleet.complete and fleet.node(name), "the node is not seen")
                await test(fleet, changed)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    run(story())


def a_record(fleet: KubernetesFleet, name: str) -> NodeQuarantine:
    return NodeQuarantine(
        id=f"{name}-0001",
        kind=Kind.FAULT,
        node=name,
        node_uid=fleet.uid_of(name),
        state=State.ACTIVE,
        needs=Needs(sentence="a person"),
    )


async def a_record_of_an_earlier_leader(fleet: KubernetesFleet, name: str, admin: "Api") -> None:
    await fleet.save(a_record(fleet, name))
    place = f"/apis/sentinel.dev/v1alpha1/quarantines/{name}-0001"
    earlier = {"metadata": {"annotations": {"sentinel.dev/epoch": str(EPOCH - 1)}}}
    await asyncio.to_thread(admin.patch, place, earlier)
    await fleet.take_over()


def isolation(fleet: KubernetesFleet, name: str) -> MarkWrite:
    node = fleet.node(name)
    assert node is not None
    return MarkWrite(
        node=name,
        node_uid=node.uid,
        resource_version=node.resource_version,
        taint=NodeMark(1, True).taint(),
        unschedulable=True,
    )


def test_a_refused_write_is_decided_anew_on_what_the_node_is_and_not_on_what_the_watch_has_told(
    name: str, proxy: Proxy, behind_proxy: str, admin: "Api", epoch: int
) -> None:
    async def test(fleet: KubernetesFleet, changed: list[str]) -> None:
        proxy.hush(True)
        await asyncio.to_thread(admin.patch, f"/api/v1/nodes/{name}", {"metadata": {"labels": {"a": "b"}}})
        changed.clear()
        await fleet.mark(isolation(fleet, name))
        assert changed == [name]
        await fleet.mark(isolation(fleet, name))
        assert changed == [name]
        assert (await asyncio.to_thread(admin.get, f"/api/v1/nodes/{name}"))["spec"]["unschedulable"]
        proxy.hush(False)

    followed(behind_proxy, name, test)


def test_a_write_that_is_refused_for_a_node_that_is_gone_is_not_sent_again_and_again(
    name: str, proxy: Proxy, behind_proxy: str, admin: "Api", installed: "ControlPlane", epoch: int
) -> None:
    async def test(fleet: KubernetesFleet, changed: list[str]) -> None:
        proxy.hush(True)
        await asyncio.to_thread(admin.delete, f"/api/v1/nodes/{name}")
        changed.clear()
        await fleet.mark(isolation(fleet, name))
        await asyncio.to_thread(installed.node, name)
        await fleet.mark(isolation(fleet, name))
        assert name not in changed, "its watch tells what became of it"
        assert "taints" not in (await asyncio.to_thread(admin.get, f"/api/v1/nodes/{name}"))["spec"]
        proxy.hush(False)

    followed(behind_proxy, name, test)


def test_a_new_leader_fences_the_node_as_it_is_though_its_watch_is_behind(
    name: str, proxy: Proxy, behind_proxy: str, admin: "Api", epoch: int
) -> None:
    """Else its predecessor, who read it later, may still write to it."""

    async def test(fleet: KubernetesFleet, changed: list[str]) -> None:
        node = fleet.node(name)
        assert node is not None
        await fleet.save(a_record(fleet, name))
        proxy.hush(True)
        await asyncio.to_thread(admin.patch, f"/api/v1/nodes/{name}", {"metadata": {"labels": {"a": "b"}}})
        await fleet.claim(name)
        found = await asyncio.to_thread(admin.get, f"/api/v1/nodes/{name}")
        assert found["metadata"]["annotations"]["sentinel.dev/epoch"] == str(EPOCH)
        proxy.hush(False)
        await asyncio.to_thread(admin.delete, f"/apis/sentinel.dev/v1alpha1/quarantines/{name}-0001")

    followed(behind_proxy, name, test)


@pytest.mark.parametrize("answer", [403, 422])
def test_an_object_that_takes_no_write_of_anybody_is_claimed(
    name: str, proxy: Proxy, behind_proxy: str, admin: "Api", epoch: int, answer: int
) -> None:
    """A webhook that refuses it, a definition that became stricter since it was written, a right that is missing."""

    async def test(fleet: KubernetesFleet, changed: list[str]) -> None:
        await a_record_of_an_earlier_leader(fleet, name, admin)
        proxy.faults = [
            Fault(method="PATCH", path=f"/nodes/{name}", answer=answer, times=1000),
            Fault(method="PATCH", path=f"/quarantines/{name}-0001", answer=answer, times=1000),
        ]
        asked = len(proxy.seen)
        await fleet.claim(name)
        tried = proxy.seen[asked:]
        assert any(f"PATCH /api/v1/nodes/{name}" in seen for seen in tried)
        assert any("PATCH" in seen and f"/quarantines/{name}-0001" in seen for seen in tried)

    followed(behind_proxy, name, test)


@pytest.mark.parametrize("path", ["/nodes/{}", "/quarantines/{}-0001"])
def test_a_node_is_not_claimed_while_its_predecessor_may_still_write_there(
    name: str, proxy: Proxy, behind_proxy: str, admin: "Api", epoch: int, path: str
) -> None:
    async def test(fleet: KubernetesFleet, changed: list[str]) -> None:
        await a_record_of_an_earlier_leader(fleet, name, admin)
        proxy.faults = [Fault(method="PATCH", path=path.format(name), answer=500)]
        with pytest.raises(TemporaryError):
            await fleet.claim(name)
        await fleet.claim(name)
        for place in (f"/api/v1/nodes/{name}", f"/apis/sentinel.dev/v1alpha1/quarantines/{name}-0001"):
            found = await asyncio.to_thread(admin.get, place)
            assert found["metadata"]["annotations"]["sentinel.dev/epoch"] == str(EPOCH)

    followed(behind_proxy, name, test)


def test_a_pod_that_may_not_be_removed_holds_up_no_other(
    name: str, proxy: Proxy, behind_proxy: str, epoch: int
) -> None:
    async def test(fleet: KubernetesFleet, changed: list[str]) -> None:
        proxy.faults = [Fault(method="DELETE", path="/pods/a-first", answer=422, times=1000)]
        with pytest.raises(Refused):
            await fleet.remove(["default/a-first/uid", "default/b-second/uid"])
        assert any("DELETE /api/v1/namespaces/default/pods/b-second" in seen for seen in proxy.seen)

    followed(behind_proxy, name, test)


def test_versions_that_are_no_numbers_are_taken_as_the_watch_tells_them(
    name: str, proxy: Proxy, behind_proxy: str, epoch: int
) -> None:
    async def test(fleet: KubernetesFleet, changed: list[str]) -> None:
        await fleet.mark(isolation(fleet, name))
        there = fleet._nodes.objects[name]
        odd = replace(there, metadata=replace(there.metadata, resource_version="1-abc"))
        fleet._nodes._give(Change(ChangeKind.CHANGED, name, there, odd))
        node = fleet.node(name)
        assert node is not None
        assert node.resource_version == "1-abc"

    followed(behind_proxy, name, test)
