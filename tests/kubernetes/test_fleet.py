"""The nodes as the leading controller sees and writes them, while its watches are behind."""

import asyncio
import json
import secrets
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import Struct
from msgspec.structs import astuple, replace

from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.errors import Refused
from sentinel.cluster.kubernetes.fleet import KubernetesFleet
from sentinel.cluster.kubernetes.reflector import Change
from sentinel.cluster.kubernetes.reflector import Kind as ChangeKind
from sentinel.core.agents.epochs import Epochs
from sentinel.core.fleet.marks import MarkWrite
from sentinel.core.fleet.model import QUARANTINE_TAINT, Kind, Needs, NodeMark, NodeQuarantine, State
from sentinel.core.fleet.settings import FleetSettings
from sentinel.core.people.protection import Judged
from sentinel.util.clock import system_now
from sentinel.util.errors import TemporaryError
from tests.kubernetes.conftest import EPOCH, NAMESPACE, NODES, rank, run
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
        spec = (await asyncio.to_thread(admin.get, f"/api/v1/nodes/{name}"))["spec"]
        assert QUARANTINE_TAINT not in [one["key"] for one in spec.get("taints", ())]
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


def deep_bytes(one: object) -> int:
    """With all that hangs on it, also what it shares with others."""
    parts: Sequence[object] = ()
    if isinstance(one, Struct):
        parts = astuple(one)
    elif isinstance(one, dict):
        parts = [*one, *one.values()]
    elif isinstance(one, (list, tuple)):
        parts = one
    return sys.getsizeof(one) + sum(map(deep_bytes, parts))


def fatten_node(admin: "Api", name: str) -> dict[str, Any]:
    """As a node of a real cluster is after a year; its annotations."""
    notes = {f"example.com/config-{number}": f"{number:064d}" * 256 for number in range(4)}
    notes["weave.works/kured-reboot-in-progress"] = "2026-11-28T00:00:00Z"
    admin.patch(f"{NODES}/{name}", {"metadata": {"annotations": notes}})
    images = [{"names": [f"registry/image-{number}@sha256:{number:064d}"]} for number in range(200)]
    told = {"status": "False", "reason": "Well", "message": "it is well " * 20}
    conditions = [{"type": f"Example{number}", **told} for number in range(20)]
    admin.patch(f"{NODES}/{name}/status", {"status": {"images": images, "conditions": conditions}})
    return notes


def pods(admin: "Api", namespace: str, node: str) -> tuple[str, str]:
    """The names of a lean and of a fat one with the same resources."""
    for name in ("lean", "fatt"):
        pod = rank(name, namespace, node)
        (container,) = pod["spec"]["containers"]
        container["resources"] = {"limits": {"nvidia.com/gpu": "8"}}
        if name == "fatt":
            container["image"] = "registry/" + "a" * 200
            container["env"] = [{"name": f"NAME_{number}", "value": "x" * 200} for number in range(200)]
            container["args"] = [f"--option-{number}={number:064d}" for number in range(200)]
            pod["spec"]["volumes"] = [{"name": f"volume-{number}", "emptyDir": {}} for number in range(50)]
            pod["metadata"]["annotations"] = {"example.com/config": "x" * 50_000}
        admin.create(pod)
    return "lean", "fatt"


def test_of_a_fat_node_and_a_fat_pod_hardly_more_is_kept_than_of_lean_ones(
    installed: "ControlPlane", name: str, behind_proxy: str, admin: "Api", epoch: int
) -> None:
    fat = f"{name[:-1]}x"  # as long a name
    installed.node(fat)
    notes = fatten_node(admin, fat)
    namespace = installed.namespace("fat")
    lean_pod, fat_pod = pods(admin, namespace, name)
    for path in (f"{NODES}/{fat}", f"/api/v1/namespaces/{namespace}/pods/{fat_pod}"):
        assert len(json.dumps(admin.get(path))) > 60_000
        assert admin.get(path)["metadata"]["managedFields"]

    async def test(fleet: KubernetesFleet, changed: list[str]) -> None:
        kept = fleet.pods.followed.objects
        await eventually(lambda: fleet.node(fat) and f"{namespace}/{fat_pod}" in kept, "they are not seen")
        more = deep_bytes(fleet.nodes()[fat]) - deep_bytes(fleet.nodes()[name])
        assert more < 2048, f"{more} bytes, of which the names of annotations are some"
        more = deep_bytes(kept[f"{namespace}/{fat_pod}"]) - deep_bytes(kept[f"{namespace}/{lean_pod}"])
        assert more < 256
        # What is needed of it is there, and what is not kept stays as it is on the node.
        found = fleet.node(fat)
        assert found is not None
        assert found.claims == ("kured",)
        await fleet.mark(isolation(fleet, fat))
        shown = (await asyncio.to_thread(admin.get, f"{NODES}/{fat}"))["metadata"]["annotations"]
        assert {**shown, **notes} == shown
        assert shown["sentinel.dev/epoch"] == str(EPOCH)

    followed(behind_proxy, name, test)
