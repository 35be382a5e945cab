"""A copy of the cluster that follows it, and knows when it does not."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from sentinel.cluster.kubernetes.client import Client, Resource
from sentinel.cluster.kubernetes.objects import LEASES, NODE_LEASES, NODES, PODS, Custom, Node, NodeLease, Pod
from sentinel.cluster.kubernetes.reflector import Change, Kind, Pace, Reflector, State
from sentinel.metrics.registry import Metrics
from tests.kubernetes.conftest import kubeconfig, run
from tests.kubernetes.proxy import Fault, Proxy
from tests.waits import eventually, until

if TYPE_CHECKING:
    from tests.rig.api import Api
    from tests.rig.control_plane import ControlPlane

QUICK = Pace(page=3, absent_s=0.2, backoff_s=(0.05, 0.2))


class Follower:
    """A reflector of the nodes with one label, and all changes it gave out."""

    def __init__(self, client: Client, label: str, pace: Pace = QUICK, resource: Resource = NODES) -> None:
        self.changes: list[Change[Node]] = []
        self.reflector = Reflector(
            client, resource, Node, self.changes.append, labels=f"test={label}", pace=pace
        )

    def replayed(self) -> dict[str, Node]:
        """What somebody has who only ever heard the changes."""
        copy: dict[str, Node] = {}
        for change in self.changes:
            assert copy.get(change.key) == change.before, "a change that does not follow from the one before"
            if change.after is None:
                del copy[change.key]
            else:
                copy[change.key] = change.after
        return copy


@asynccontextmanager
async def following(config: str, label: str, pace: Pace = QUICK) -> AsyncIterator[Follower]:
    async with await Client.connect(config) as client:
        follower = Follower(client, label, pace)
        task = asyncio.create_task(follower.reflector.run())
        try:
            await asyncio.wait_for(follower.reflector.wait_synced(), 120)
            yield follower
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            assert follower.replayed() == follower.reflector.objects


class Nodes:
    """Nodes of one test, made and changed by an administrator."""

    def __init__(self, admin: "Api") -> None:
        self.admin, self.label = admin, f"t{secrets.token_hex(4)}"

    def name(self, number: int) -> str:
        return f"{self.label}-{number}"

    def make(self, number: int) -> None:
        """Returns when the control plane has taken off the taint that each new node gets: that is a change too."""
        meta = {"name": self.name(number), "labels": {"test": self.label}}
        self.admin.create({"apiVersion": "v1", "kind": "Node", "metadata": meta})
        path = f"/api/v1/nodes/{self.name(number)}"
        until(lambda: not self.admin.get(path)["spec"].get("taints"), "the new node keeps its taint")

    def touch(self, number: int, value: str) -> None:
        self.admin.patch(
            f"/api/v1/nodes/{self.name(number)}", {"metadata": {"annotations": {"touched": value}}}
        )

    def delete(self, number: int) -> None:
        self.admin.delete(f"/api/v1/nodes/{self.name(number)}")


@pytest.fixture
def nodes(admin: "Api") -> Nodes:
    return Nodes(admin)


async def cut(proxy: Proxy, *faults: Fault) -> None:
    """The watch loses its connection, and its next attempts meet these faults."""
    await eventually(lambda: proxy.watches, "nobody watches")
    proxy.faults = list(faults)
    proxy.cut_watches()


def touched(follower: Follower, name: str) -> str:
    node = follower.reflector.objects.get(name)
    return node.metadata.annotations.get("touched", "") if node else ""


@pytest.mark.parametrize("pace", [QUICK, Pace(page=3, gather_s=0.1)])
def test_a_list_in_pages_then_every_change_in_order(nodes: Nodes, controller: str, pace: Pace) -> None:
    for number in range(8):
        nodes.make(number)

    async def test() -> None:
        async with following(controller, nodes.label, pace) as follower:
            assert len(follower.reflector.objects) == 8
            assert [change.kind for change in follower.changes] == [Kind.ADDED] * 8
            del_before = len(follower.changes)
            for value in "abcde":
                await asyncio.to_thread(nodes.touch, 0, value)
            await asyncio.to_thread(nodes.delete, 1)
            await asyncio.to_thread(nodes.make, 8)
            await eventually(lambda: nodes.name(8) in follower.reflector.objects, "the new node did not come")
            told = follower.changes[del_before:]
            values = [
                one.after.metadata.annotations["touched"]
                for one in told
                if one.after and "touched" in one.after.metadata.annotations
            ]
            assert list(dict.fromkeys(values)) == list("abcde")
            assert nodes.name(1) not in follower.reflector.objects
            assert follower.reflector.synced
            assert follower.reflector.age_s < 60

    run(test())


def test_a_cut_connection_is_resumed_without_a_new_list(
    nodes: Nodes, proxy: Proxy, behind_proxy: str
) -> None:
    nodes.make(0)

    async def test() -> None:
        async with following(behind_proxy, nodes.label) as follower:
            for value in ("1", "2", "3"):
                await asyncio.to_thread(nodes.touch, 0, value)
                await eventually(
                    lambda value=value: touched(follower, nodes.name(0)) == value, "a change was lost"
                )
                await cut(proxy)
            await asyncio.to_thread(nodes.touch, 0, "4")
            await eventually(lambda: touched(follower, nodes.name(0)) == "4", "not resumed")
            assert follower.reflector.lists == 1
            metrics = Metrics()
            follower.reflector.measure(metrics)
            assert b'sentinel_watch_objects{kind="nodes"} 1' in metrics.render()
            assert follower.reflector.breaks >= 3

    run(test())


def test_a_quiet_watch_goes_on_from_a_bookmark(nodes: Nodes, proxy: Proxy, behind_proxy: str) -> None:
    """Nothing of its own has changed for long: what it saw last may be forgotten by the server."""
    nodes.make(0)
    others = Nodes(nodes.admin)
    others.make(0)

    def versions() -> list[int]:
        """From which each watch went on."""
        watches = [parse_qs(urlsplit(seen).query) for seen in proxy.seen if "watch=1" in seen]
        return [int(one["resourceVersion"][0]) for one in watches]

    async def test() -> None:
        # A server tells a bookmark each minute, and shortly before it ends a watch.
        async with following(behind_proxy, nodes.label, Pace(watch_s=(5, 5), idle_s=30.0)) as follower:
            await asyncio.to_thread(others.touch, 0, "1")
            await eventually(lambda: len(set(versions())) > 1, "no watch went on from a bookmark")
            assert (follower.reflector.lists, follower.reflector.breaks) == (1, 0)
            told = [one.after.metadata.resource_version for one in follower.changes if one.after]
            assert len(set(told)) == len(follower.changes), "one version was told twice"
            await asyncio.to_thread(nodes.touch, 0, "2")
            await eventually(lambda: touched(follower, nodes.name(0)) == "2", "not resumed")

    run(test())


@pytest.mark.parametrize("way", ["an answer", "an event"])
def test_after_410_it_lists_anew_and_tells_what_differs(
    nodes: Nodes, proxy: Proxy, behind_proxy: str, installed: "ControlPlane", way: str
) -> None:
    for number in range(5):
        nodes.make(number)
    status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
    event = json.dumps({"type": "ERROR", "object": status}).encode()

    async def test() -> None:
        async with following(behind_proxy, nodes.label) as follower:
            # While nobody watches: one goes, one comes, one changes, one is replaced under its name.
            await cut(proxy, Fault(method="WATCH", answer=503, times=1000))
            await eventually(lambda: follower.reflector.state is State.BROKEN, "nobody noticed")
            old = follower.reflector.objects[nodes.name(3)].metadata.uid
            for action in (
                lambda: nodes.delete(1),
                lambda: nodes.make(7),
                lambda: nodes.touch(2, "x"),
                lambda: nodes.delete(3),
                lambda: nodes.make(3),
            ):
                await asyncio.to_thread(action)
            heard = len(follower.changes)
            if way == "an event":
                proxy.faults = [Fault(method="WATCH", line=event)]
            else:
                proxy.faults = [Fault(method="WATCH", answer=410)]
            await eventually(
                lambda: follower.reflector.synced and follower.reflector.lists > 1, "not listed anew"
            )
            told = [(change.kind, change.key) for change in follower.changes[heard:]]
            assert (Kind.GONE, nodes.name(1)) in told
            assert (Kind.ADDED, nodes.name(7)) in told
            assert (Kind.CHANGED, nodes.name(2)) in told
            assert told.index((Kind.GONE, nodes.name(3))) < told.index((Kind.ADDED, nodes.name(3)))
            assert follower.reflector.objects[nodes.name(3)].metadata.uid != old
            changed = [one for one in follower.changes[heard:] if one.before and one.after]
            assert all(
                one.before.metadata.resource_version != one.after.metadata.resource_version
                for one in changed
                if one.before and one.after
            ), "what is the same is not told again"

    run(test())


def test_a_compacted_version_is_listed_anew(
    nodes: Nodes, proxy: Proxy, behind_proxy: str, installed: "ControlPlane", controller_token: str
) -> None:
    """The real thing: etcd has forgotten the version, and a restarted API server has no memory of it either."""
    nodes.make(0)
    we = nodes.admin.with_token(controller_token)

    def may_read() -> bool:
        """A server that has just been started knows the rules a moment later."""
        from tests.rig.api import ApiError

        try:
            we.items("/api/v1/nodes")
        except ApiError:
            return False
        return True

    async def test() -> None:
        async with following(behind_proxy, nodes.label) as follower:
            await cut(proxy, Fault(method="WATCH", hold=True))
            await eventually(lambda: proxy.faults[0].times == 0, "nobody watches again")
            for value in "abc":
                await asyncio.to_thread(nodes.touch, 0, value)
            installed.api_server.kill()
            await asyncio.to_thread(installed.compact_etcd)
            await asyncio.to_thread(installed.api_server.start)
            await asyncio.to_thread(installed.wait_ready)
            await asyncio.to_thread(until, may_read, "the controller may not read nodes")
            proxy.release()
            await eventually(lambda: touched(follower, nodes.name(0)) == "c", "the newest was not seen")
            assert follower.reflector.lists > 1
            assert follower.reflector.breaks == 2, "it was listed for the 410, not for want of patience"

    run(test())


def test_pages_that_expire_midway_are_read_at_once(nodes: Nodes, proxy: Proxy, behind_proxy: str) -> None:
    for number in range(7):
        nodes.make(number)

    async def test() -> None:
        proxy.faults = [Fault(method="GET", path="continue=", answer=410)]
        async with following(behind_proxy, nodes.label) as follower:
            assert len(follower.reflector.objects) == 7
            assert "limit" not in [seen for seen in proxy.seen if "watch" not in seen][-1]

    run(test())


def test_a_watch_on_which_nothing_comes_any_more_is_given_up(
    nodes: Nodes, proxy: Proxy, behind_proxy: str
) -> None:
    """The connection stands and nobody speaks: what a lost peer behind a balancer looks like."""
    nodes.make(0)

    async def test() -> None:
        pace = Pace(idle_s=1.0, backoff_s=(0.05, 0.2))
        async with following(behind_proxy, nodes.label, pace) as follower:
            await eventually(lambda: any("watch=1" in seen for seen in proxy.seen), "no watch")
            proxy.mute(True)
            await eventually(lambda: follower.reflector.state is State.BROKEN, "nobody noticed")
            assert follower.reflector.age_s >= 0.9
            assert follower.reflector.followed_since_mono_s is None
            await asyncio.to_thread(nodes.touch, 0, "later")
            proxy.mute(False)
            await eventually(lambda: touched(follower, nodes.name(0)) == "later", "not resumed")
            assert follower.reflector.followed_since_mono_s is not None

    run(test())


def test_where_a_watch_tells_nothing_of_which_much_is_expected_it_is_listed_anew(
    nodes: Nodes, proxy: Proxy, behind_proxy: str
) -> None:
    """Nothing changes, or the watch hangs: a list tells. Where that does not come, nobody takes the copy for fresh."""
    nodes.make(0)

    async def test() -> None:
        pace = Pace(idle_s=60.0, quiet_s=0.5, backoff_s=(0.05, 0.2))
        async with following(behind_proxy, nodes.label, pace) as follower:
            reflector = follower.reflector
            since = reflector.followed_since_mono_s
            await eventually(lambda: reflector.lists > 2, "not listed anew")
            proxy.hush(True)
            await asyncio.to_thread(nodes.touch, 0, "later")
            await eventually(lambda: touched(follower, nodes.name(0)) == "later", "not seen")
            assert (reflector.breaks, reflector.state) == (0, State.SYNCED)
            assert reflector.followed_since_mono_s == since
            proxy.hush(False)
            proxy.mute(True)
            await eventually(lambda: reflector.age_s > 2.0, "there was a word")
            proxy.mute(False)
            await eventually(lambda: reflector.age_s < 1.0, "no word")

    run(test())


def test_a_server_that_always_refuses_the_version_is_not_asked_for_ever(
    nodes: Nodes, proxy: Proxy, behind_proxy: str
) -> None:
    nodes.make(0)

    async def test() -> None:
        async with following(behind_proxy, nodes.label) as follower:
            await cut(proxy, Fault(method="WATCH", answer=500, times=12))
            await eventually(lambda: proxy.faults[0].times == 0, "not tried")
            await eventually(lambda: follower.reflector.synced, "not back")
            assert follower.reflector.lists > 1

    run(test())


@pytest.mark.parametrize("line", [b"{half", b'{"type":"ADDED","object":{"metadata":{}}}', b"\xff\xfe"])
def test_an_event_that_cannot_be_read_breaks_the_watch_and_not_the_copy(
    nodes: Nodes, proxy: Proxy, behind_proxy: str, line: bytes
) -> None:
    nodes.make(0)

    async def test() -> None:
        async with following(behind_proxy, nodes.label) as follower:
            await cut(proxy, Fault(method="WATCH", line=line))
            await eventually(lambda: follower.reflector.breaks >= 2, "it was taken")
            await asyncio.to_thread(nodes.touch, 0, "after")
            await eventually(lambda: touched(follower, nodes.name(0)) == "after", "not resumed")

    run(test())


def definition(plural: str, group: str) -> dict[str, Any]:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": plural.capitalize(), "plural": plural, "singular": plural},
            "versions": [
                {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
            ],
        },
    }


def test_a_kind_that_is_installed_later_is_picked_up_and_one_that_goes_is_empty(
    installed: "ControlPlane", admin: "Api"
) -> None:
    group = f"{secrets.token_hex(4)}.example.com"
    plural = "gadgets"
    jobs = Resource(group, "v1", plural)
    namespace = installed.namespace("late")
    reader = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": f"reads-{group}"},
        "rules": [{"apiGroups": [group], "resources": [plural], "verbs": ["list", "watch"]}],
    }
    bound = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"reads-{group}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": f"reads-{group}"},
        "subjects": [
            {"kind": "ServiceAccount", "name": "sentinel-controller", "namespace": "sentinel-system"}
        ],
    }
    admin.apply([reader, bound])
    changes: list[Change[Custom]] = []

    async def test(config: str) -> None:
        async with await Client.connect(config) as client:
            reflector = Reflector(client, jobs, Custom, changes.append, pace=QUICK)
            task = asyncio.create_task(reflector.run())
            await asyncio.wait_for(reflector.wait_synced(), 120)
            assert reflector.state is State.ABSENT
            crd = definition(plural, group)
            await asyncio.to_thread(admin.create, crd)
            await eventually(lambda: reflector.state is State.SYNCED, "the kind was not picked up")
            one = {
                "apiVersion": f"{group}/v1",
                "kind": "Gadgets",
                "metadata": {"name": "a"},
                "spec": {"x": 1},
            }
            path = f"/apis/{group}/v1/namespaces/{namespace}/{plural}"
            await asyncio.to_thread(admin.call, "POST", path, one)
            await eventually(lambda: f"{namespace}/a" in reflector.objects, "the object was not seen")
            assert reflector.objects[f"{namespace}/a"].spec == {"x": 1}
            crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            await asyncio.to_thread(admin.delete, f"{crds}/{plural}.{group}")
            await eventually(lambda: reflector.state is State.ABSENT, "nobody noticed that it went")
            assert not reflector.objects
            assert changes[-1].kind is Kind.GONE
            task.cancel()

    token = installed.token("sentinel-system", "sentinel-controller")
    path = Path(installed.rig.folder) / f"{group}.kubeconfig"
    run(test(str(kubeconfig(path, installed.url, token, installed.identities.ca))))


def test_a_kind_that_is_not_ours_to_read_is_told(controller: str) -> None:
    async def test() -> None:
        async with await Client.connect(controller) as client:
            secret = Resource("", "v1", "secrets")
            reflector = Reflector(client, secret, Custom, lambda change: None, pace=QUICK)
            task = asyncio.create_task(reflector.run())
            await eventually(lambda: reflector.state is State.FORBIDDEN, "not told")
            assert "secrets" in reflector.problem
            assert not reflector.synced
            assert reflector.age_s == float("inf")
            task.cancel()

    run(test())


def test_pods_and_leases_are_read_to_what_is_needed(
    installed: "ControlPlane", admin: "Api", controller: str
) -> None:
    node, namespace = f"n{secrets.token_hex(4)}", installed.namespace("pods")
    installed.node(node)
    container = {"name": "train", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "rank-0", "namespace": namespace, "labels": {"test": node}},
        "spec": {"nodeName": node, "containers": [container]},
    }
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": node, "namespace": NODE_LEASES},
        "spec": {
            "holderIdentity": node,
            "renewTime": "2026-11-21T10:00:00.000000Z",
            "leaseDurationSeconds": 40,
        },
    }
    admin.create(pod)
    admin.create(lease)

    async def test() -> None:
        async with await Client.connect(controller) as client:
            pods = Reflector(client, PODS, Pod, lambda change: None, labels=f"test={node}")
            leases = Reflector(client, LEASES, NodeLease, lambda change: None, namespace=NODE_LEASES)
            tasks = [asyncio.create_task(one.run()) for one in (pods, leases)]
            await asyncio.wait_for(asyncio.gather(pods.wait_synced(), leases.wait_synced()), 120)
            found = pods.objects[f"{namespace}/rank-0"]
            assert found.spec.node_name == node
            assert found.spec.containers[0].resources.limits == {"nvidia.com/gpu": "8"}
            assert leases.objects[f"{NODE_LEASES}/{node}"].spec.renew_time == "2026-11-21T10:00:00.000000Z"
            for task in tasks:
                task.cancel()

    run(test())


def test_a_proxy_that_answers_404_does_not_take_all_nodes_away(
    nodes: Nodes, proxy: Proxy, behind_proxy: str
) -> None:
    """As a balancer without a server behind it does. Isolations of nodes that are gone end, and faulty ones return."""
    nodes.make(0)

    async def test() -> None:
        async with following(behind_proxy, nodes.label) as follower:
            proxy.faults = [Fault(path="/nodes", answer=404, body="default backend - 404", times=6)]
            proxy.cut_watches()
            await eventually(lambda: not follower.reflector.synced, "nobody noticed")
            assert follower.reflector.state is State.BROKEN
            assert "404" in follower.reflector.problem
            await eventually(lambda: follower.reflector.synced, "it is not followed again")
            assert Kind.GONE not in {change.kind for change in follower.changes}
            assert len(follower.reflector.objects) == 1

    run(test())
