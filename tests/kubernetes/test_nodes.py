"""Sentinel's mark and conditions on real node objects: one request, with preconditions, and only what changes."""

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from sentinel.cluster.kubernetes import nodes
from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.errors import Conflict, NotLeading, Superseded, Unanswered
from sentinel.cluster.kubernetes.objects import Node
from sentinel.core.fleet.marks import MarkWrite
from sentinel.core.fleet.model import QUARANTINE_TAINT, NodeCondition, NodeMark, Taint
from sentinel.util.errors import PermanentError
from tests.kubernetes.conftest import run
from tests.kubernetes.proxy import Fault, Proxy

if TYPE_CHECKING:
    from tests.rig.api import Api
    from tests.rig.control_plane import ControlPlane

Test = Callable[[Client, str], Coroutine[Any, Any, None]]
OTHER = {"key": "example.com/mine", "value": "x", "effect": "NoSchedule"}


@pytest.fixture
def name(installed: "ControlPlane") -> str:
    made = f"n-{secrets.token_hex(4)}"
    installed.node(made)
    return made


def as_controller(config: str, test: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
    async def with_client() -> None:
        async with await Client.connect(config) as client:
            await test(client)

    run(with_client())


def isolate(node: Node, number: int = 1, *, cordon: bool = True) -> MarkWrite:
    return MarkWrite(
        node=node.metadata.name,
        node_uid=node.metadata.uid,
        resource_version=node.metadata.resource_version,
        taint=NodeMark(number, cordon).taint(),
        unschedulable=True if cordon else None,
    )


def release(node: Node, *, uncordon: bool = True) -> MarkWrite:
    return MarkWrite(
        node=node.metadata.name,
        node_uid=node.metadata.uid,
        resource_version=node.metadata.resource_version,
        remove_taint=True,
        unschedulable=False if uncordon else None,
    )


def spec_of(admin: "Api", name: str) -> dict[str, Any]:
    found: dict[str, Any] = admin.get(f"/api/v1/nodes/{name}")["spec"]
    return found


def own(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [taint for taint in spec.get("taints", []) if taint["key"] == QUARANTINE_TAINT]


@pytest.mark.parametrize("tainted", [False, True], ids=["alone", "beside another's taint"])
def test_taint_and_cordon_come_and_go_in_one_request_each(
    name: str, admin: "Api", controller: str, epoch: int, tainted: bool
) -> None:
    if tainted:
        admin.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": [OTHER]}})

    async def test(client: Client) -> None:
        node = await nodes.read(client, name)
        before = int(node.metadata.resource_version)
        marked = await nodes.mark(client, node, isolate(node), epoch)
        seen = spec_of(admin, name)
        assert seen["unschedulable"] is True
        assert own(seen) == [{"key": QUARANTINE_TAINT, "value": "0001.cordoned", "effect": "NoSchedule"}]
        assert (OTHER in seen["taints"]) is tainted
        assert int(marked.metadata.resource_version) > before
        assert nodes.epoch_of(marked.metadata) == epoch
        # Others act on a node that is unschedulable (a taint of Kubernetes' own): read anew.
        fresh = await nodes.read(client, name)
        with_retries = await again(
            client, name, lambda one: nodes.mark(client, one, release(one), epoch), fresh
        )
        seen = spec_of(admin, name)
        assert not seen.get("unschedulable")
        assert not own(seen)
        assert (OTHER in seen.get("taints", [])) is tainted
        assert with_retries.metadata.name == name

    as_controller(controller, test)


async def again(
    client: Client, name: str, write: Callable[[Node], Coroutine[Any, Any, Node]], node: Node
) -> Node:
    """As callers do: after a Conflict read and decide again."""
    while True:
        try:
            return await write(node)
        except Conflict:
            node = await nodes.read(client, name)


def test_what_the_node_shows_already_is_not_written_again(
    name: str, admin: "Api", controller: str, epoch: int
) -> None:
    async def test(client: Client) -> None:
        await again(
            client,
            name,
            lambda one: nodes.mark(client, one, isolate(one), epoch),
            await nodes.read(client, name),
        )
        node = await nodes.read(client, name)
        same = await nodes.mark(client, node, isolate(node), epoch)
        assert same is node
        renumbered = await again(
            client, name, lambda one: nodes.mark(client, one, isolate(one, 2), epoch), node
        )
        assert (
            NodeMark.of(
                next(
                    Taint(one.key, one.value) for one in renumbered.spec.taints if one.key == QUARANTINE_TAINT
                )
            ).number
            == 2
        )
        assert len(own(spec_of(admin, name))) == 1

    as_controller(controller, test)


def test_only_what_sentinel_set_is_taken_back(name: str, admin: "Api", controller: str, epoch: int) -> None:
    admin.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": True}})

    async def test(client: Client) -> None:
        node = await nodes.read(client, name)
        await again(
            client, name, lambda one: nodes.mark(client, one, isolate(one, cordon=False), epoch), node
        )
        await again(
            client,
            name,
            lambda one: nodes.mark(client, one, release(one, uncordon=False), epoch),
            await nodes.read(client, name),
        )
        seen = spec_of(admin, name)
        assert seen["unschedulable"] is True
        assert not own(seen)

    as_controller(controller, test)


def test_a_node_that_changed_since_is_not_written(
    name: str, admin: "Api", controller: str, epoch: int
) -> None:
    async def test(client: Client) -> None:
        node = await nodes.read(client, name)
        admin.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {"touched": "yes"}}})
        with pytest.raises(Conflict):
            await nodes.mark(client, node, isolate(node), epoch)
        with pytest.raises(Conflict):
            await nodes.set_conditions(client, node, [NodeCondition("SentinelHealthy", "False")], epoch, 0.0)
        other = msgspec.structs.replace(isolate(node), node_uid="another")
        with pytest.raises(Conflict):
            await nodes.mark(client, node, other, epoch)
        assert not own(spec_of(admin, name))

    as_controller(controller, test)


def test_a_node_that_was_replaced_under_its_name_is_not_written(
    name: str, installed: "ControlPlane", admin: "Api", controller: str, epoch: int
) -> None:
    async def test(client: Client) -> None:
        node = await nodes.read(client, name)
        admin.delete(f"/api/v1/nodes/{name}")
        installed.node(name)
        with pytest.raises(Conflict):
            await nodes.mark(client, node, isolate(node), epoch)
        assert not own(spec_of(admin, name))

    as_controller(controller, test)


def test_an_older_leader_writes_nothing(name: str, admin: "Api", controller: str, epoch: int) -> None:
    async def test(client: Client) -> None:
        node = await nodes.read(client, name)
        with pytest.raises(Superseded):  # the API server's own refusal
            await nodes.mark(client, node, isolate(node), epoch - 1)
        fenced = await again(client, name, lambda one: nodes.fence(client, one, epoch), node)
        assert await nodes.fence(client, fenced, epoch) is fenced
        with pytest.raises(Conflict):
            await nodes.mark(client, node, isolate(node), epoch)  # as it was before the fence
        with pytest.raises(NotLeading):
            await nodes.mark(client, fenced, isolate(fenced), epoch - 1)

    as_controller(controller, test)


def test_a_mark_whose_answer_was_lost_is_there_and_repeating_it_is_no_harm(
    name: str, admin: "Api", proxy: Proxy, behind_proxy: str, epoch: int
) -> None:
    async def test(client: Client) -> None:
        node = await nodes.read(client, name)
        proxy.faults = [Fault(method="PATCH", lose_reply=True)]
        with pytest.raises(Unanswered):
            await nodes.mark(client, node, isolate(node), epoch)
        assert own(spec_of(admin, name))
        with pytest.raises(Conflict):
            await nodes.mark(client, node, isolate(node), epoch)
        now = await nodes.read(client, name)
        assert await nodes.mark(client, now, isolate(now), epoch) is now

    as_controller(behind_proxy, test)


def test_a_taint_that_would_touch_running_pods_is_never_written(
    name: str, controller: str, epoch: int
) -> None:
    async def test(client: Client) -> None:
        node = await nodes.read(client, name)
        bad = msgspec.structs.replace(isolate(node), taint=Taint(QUARANTINE_TAINT, "x", "NoExecute"))
        with pytest.raises(PermanentError, match="NoExecute"):
            await nodes.mark(client, node, bad, epoch)

    as_controller(controller, test)


def test_conditions_are_written_on_change_and_those_of_others_stay(
    name: str, admin: "Api", controller: str, epoch: int
) -> None:
    theirs = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ok"}
    admin.patch(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [theirs]}})

    def condition(kind: str) -> dict[str, Any]:
        found = admin.get(f"/api/v1/nodes/{name}")["status"]["conditions"]
        return next(one for one in found if one["type"] == kind)

    async def test(client: Client) -> None:
        async def write(status: str, message: str, wall_s: float) -> Node:
            wanted = [NodeCondition("SentinelHealthy", status, "FatalFinding", message)]
            return await again(
                client,
                name,
                lambda one: nodes.set_conditions(client, one, wanted, epoch, wall_s),
                await nodes.read(client, name),
            )

        await write("False", "XID 79", 1e9)
        assert condition("SentinelHealthy")["lastTransitionTime"] == "2001-09-09T01:46:40Z"
        assert condition("Ready")["reason"] == "KubeletReady"
        before = await nodes.read(client, name)
        wanted = [NodeCondition("SentinelHealthy", "False", "FatalFinding", "XID 79")]
        assert await nodes.set_conditions(client, before, wanted, epoch, 2e9) is before
        await write("False", "XID 79, again", 1.1e9)
        assert condition("SentinelHealthy")["message"] == "XID 79, again"
        assert condition("SentinelHealthy")["lastTransitionTime"] == "2001-09-09T01:46:40Z"
        await write("True", "", 1.2e9)
        assert condition("SentinelHealthy")["lastTransitionTime"] != "2001-09-09T01:46:40Z"

    as_controller(controller, test)


def test_a_pod_is_removed_by_its_uid_and_no_other_of_its_name(
    name: str, installed: "ControlPlane", admin: "Api", controller: str, epoch: int
) -> None:
    space = installed.namespace("force")
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "rank-0", "namespace": space},
        "spec": {
            "nodeName": name,
            "containers": [{"name": "a", "image": "x"}],
            "tolerations": [{"operator": "Exists"}],
        },
    }
    first = admin.create(pod)["metadata"]["uid"]
    path = f"/api/v1/namespaces/{space}/pods/rank-0"

    async def test(client: Client) -> None:
        await nodes.remove_pod(client, f"{space}/rank-0/{first}")
        assert admin.find(path) is None
        await nodes.remove_pod(client, f"{space}/rank-0/{first}")
        second = await asyncio.to_thread(admin.create, pod)
        await nodes.remove_pod(client, f"{space}/rank-0/{first}")
        assert admin.find(path)["metadata"]["uid"] == second["metadata"]["uid"]

    as_controller(controller, test)
