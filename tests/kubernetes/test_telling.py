"""Events, conditions of custom resources, tokens and certificates: what is written besides nodes and records."""

import asyncio
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from sentinel.cluster.kubernetes import conditions, identity
from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.conditions import Says
from sentinel.cluster.kubernetes.errors import Conflict
from sentinel.cluster.kubernetes.events import PER_OBJECT, REPORTER, SERIES_S, About, Events
from sentinel.cluster.kubernetes.objects import JOB_POLICIES, Custom
from sentinel.core.now import Now
from sentinel.transport import certs
from sentinel.util.errors import TemporaryError
from tests.kubernetes.conftest import NAMESPACE, run, space_of
from tests.kubernetes.proxy import Fault, Proxy
from tests.waits import eventually

if TYPE_CHECKING:
    from tests.rig.api import Api
    from tests.rig.control_plane import ControlPlane


class HandClock:
    def __init__(self) -> None:
        self.mono_s = 1000.0

    def __call__(self) -> Now:
        return Now(self.mono_s, 1.8e9 + self.mono_s)


def events_of(admin: "Api", name: str) -> list[dict[str, Any]]:
    """Sentinel's about this object: the controller manager has events of its own about a new node."""
    return [
        one
        for one in admin.items("/apis/events.k8s.io/v1/namespaces/default/events")
        if one["regarding"]["name"] == name and one.get("reportingController") == REPORTER
    ]


def test_an_event_about_a_node_is_where_kubectl_describe_looks(
    installed: "ControlPlane", admin: "Api", controller: str
) -> None:
    name = f"n-{secrets.token_hex(4)}"
    uid = installed.node(name)["metadata"]["uid"]

    async def test() -> None:
        async with await Client.connect(controller) as client:
            events = Events(client, "controller-0")
            task = asyncio.create_task(events.run())
            assert events.tell(
                About("v1", "Node", name, uid),
                "Quarantined",
                "XID\t79 \x1b[31m\u202e" + "é" * 3000,
                warning=True,
            )
            await eventually(lambda: events.written == 1, "not written")
            task.cancel()

    run(test())
    (found,) = events_of(admin, name)
    assert (found["reason"], found["type"], found["regarding"]["uid"]) == ("Quarantined", "Warning", uid)
    assert found["note"].startswith("XID 79  [31m é"), "no terminal is steered"
    assert len(found["note"].encode()) <= 1024


def test_repeats_and_floods_are_dropped_and_counted(controller: str) -> None:
    async def test() -> None:
        async with await Client.connect(controller) as client:
            clock = HandClock()
            events = Events(client, "c", clock)
            node, other = About("v1", "Node", "a", "1"), About("v1", "Node", "b", "2")
            assert events.tell(node, "Found", "x")
            assert not events.tell(node, "Found", "x"), "the same again, which is counted"
            assert [events.tell(node, "Found", str(n)) for n in range(30)].count(True) == PER_OBJECT - 1
            assert events.tell(other, "Found", "x"), "one node's flood does not silence another"
            assert events.dropped == 31 - PER_OBJECT
            clock.mono_s += 601.0
            assert events.tell(node, "Found", "x")

    run(test())


def test_what_happens_again_is_one_event_that_counts(
    installed: "ControlPlane", admin: "Api", controller: str
) -> None:
    """As `kubectl describe` has it: `x40 over 5m`. Written at most once a minute, and anew where it was deleted."""
    name = f"n-{secrets.token_hex(4)}"

    async def test() -> None:
        async with await Client.connect(controller) as client:
            clock = HandClock()
            events = Events(client, "c", clock)
            task = asyncio.create_task(events.run())
            node = About("v1", "Node", name, "1")

            async def again(count: int, after_s: float) -> None:
                for _ in range(count):
                    clock.mono_s += after_s / count
                    assert not events.tell(node, "Flaps", "mlx5_0/1 was down")
                    await asyncio.sleep(0)

            assert events.tell(node, "Flaps", "mlx5_0/1 was down")
            await eventually(lambda: events.written == 1, "not written")
            assert "series" not in events_of(admin, name)[0]
            await again(39, 300.0)
            await eventually(lambda: _count(events_of(admin, name)) == 40, "not counted")
            assert events.written <= 1 + 300 / SERIES_S
            (one,) = events_of(admin, name)
            admin.delete(f"/apis/events.k8s.io/v1/namespaces/default/events/{one['metadata']['name']}")
            await again(1, 61.0)
            await eventually(lambda: len(events_of(admin, name)) == 1, "not written anew")
            assert events.dropped == 0
            task.cancel()

    run(test())


def _count(found: list[dict[str, Any]]) -> int:
    return sum(one.get("series", {}).get("count", 1) for one in found)


def test_events_are_tried_again_and_given_up(
    installed: "ControlPlane", admin: "Api", proxy: Proxy, behind_proxy: str
) -> None:
    name = f"n-{secrets.token_hex(4)}"

    async def test() -> None:
        async with await Client.connect(behind_proxy) as client:
            events = Events(client, "c")
            task = asyncio.create_task(events.run())
            proxy.faults = [Fault(method="POST", answer=503), Fault(method="POST", path="never")]
            events.tell(About("v1", "Node", name, "1"), "Found", "again")
            await eventually(lambda: events.written == 1, "not tried again")
            proxy.faults = [Fault(method="POST", answer=403)]
            events.tell(About("v1", "Node", name, "1"), "Found", "refused")
            await eventually(lambda: events.dropped == 1, "not given up")
            events.tell(About("v1", "Node", name, "1"), "Found", "the next")
            await eventually(lambda: events.written == 2, "the next one waits for ever")
            task.cancel()

    run(test())


@pytest.fixture
def space(installed: "ControlPlane") -> Iterator[str]:
    with space_of(installed, "conditions") as made:
        yield made


def test_a_policys_condition_says_what_of_which_version_and_since_when(
    space: str, admin: "Api", controller: str, epoch: int
) -> None:
    head = {"apiVersion": "sentinel.dev/v1alpha1", "kind": "JobPolicy"}
    admin.create({**head, "metadata": {"name": "p", "namespace": space}, "spec": {"resume": {}}})
    path = JOB_POLICIES.path(space, "p")

    async def test() -> None:
        async with await Client.connect(controller) as client:

            def policy() -> Custom:
                return msgspec.convert(admin.get(path), Custom)

            async def write(*says: Says, wall_s: float) -> Custom:
                return await conditions.write(client, JOB_POLICIES, policy(), says, epoch, wall_s)

            await write(Says("Accepted", True, "Valid"), wall_s=1e9)
            first = policy()
            assert first.status["conditions"] == [
                {
                    "type": "Accepted",
                    "status": "True",
                    "reason": "Valid",
                    "message": "",
                    "lastTransitionTime": "2001-09-09T01:46:40Z",
                    "observedGeneration": 1,
                }
            ]
            assert (await write(Says("Accepted", True, "Valid"), wall_s=2e9)).metadata == first.metadata
            admin.patch(path, {"spec": {"mode": "observe"}})
            await write(Says("Accepted", True, "Valid"), wall_s=1.1e9)
            second = policy().status
            assert second["observedGeneration"] == second["conditions"][0]["observedGeneration"] == 2
            assert second["conditions"][0]["lastTransitionTime"] == "2001-09-09T01:46:40Z"
            await write(
                Says("Accepted", False, "Conflicted", "with policy q"),
                Says("Saves", None, "New"),
                wall_s=1.2e9,
            )
            both = {one["type"]: one for one in policy().status["conditions"]}
            assert both["Accepted"]["lastTransitionTime"] != "2001-09-09T01:46:40Z"
            assert both["Saves"]["status"] == "Unknown"
            with pytest.raises(Conflict):
                await conditions.write(
                    client, JOB_POLICIES, first, [Says("Accepted", False, "X")], epoch, 1.3e9
                )

    run(test())


def test_the_api_server_judges_a_token_and_names_its_node(installed: "ControlPlane", controller: str) -> None:
    node = f"n-{secrets.token_hex(4)}"
    uid = installed.node(node)["metadata"]["uid"]
    token = installed.node_token(NAMESPACE, "sentinel-agent", node, audience="sentinel-controller")

    async def test() -> None:
        async with await Client.connect(controller) as client:
            review = identity.reviewer(client, "sentinel-controller")
            found = await review(token)
            assert found.authenticated
            assert found.username == f"system:serviceaccount:{NAMESPACE}:sentinel-agent"
            assert (found.node, found.node_uid) == (node, uid)
            assert found.audiences == ("sentinel-controller",)
            assert not (await review("no token")).authenticated
            assert not (await identity.reviewer(client, "another")(token)).authenticated
            assert b'"keys"' in await identity.published_keys(client)

    run(test())


def test_a_token_that_names_only_its_pod_is_followed_to_the_node(
    installed: "ControlPlane", controller: str
) -> None:
    """As API servers before 1.30 answer."""
    node = f"n-{secrets.token_hex(4)}"
    installed.node(node)
    installed.node_token(NAMESPACE, "sentinel-agent", node)
    pod = installed.admin.get(f"/api/v1/namespaces/{NAMESPACE}/pods/sentinel-agent-{node}")["metadata"]

    async def test() -> None:
        async with await Client.connect(controller) as client:
            extra = {
                "authentication.kubernetes.io/pod-name": [pod["name"]],
                "authentication.kubernetes.io/pod-uid": [pod["uid"]],
            }
            user = identity._User(f"system:serviceaccount:{NAMESPACE}:sentinel-agent", extra)
            assert await identity._node_of_pod(client, user) == node
            extra["authentication.kubernetes.io/pod-uid"] = ["another"]
            assert await identity._node_of_pod(client, user) == ""

    run(test())


def test_certificates_are_kept_in_a_secret_that_two_controllers_share(admin: "Api", controller: str) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE}/secrets/sentinel-controller-tls"
    if admin.find(path):
        admin.delete(path)

    async def test() -> None:
        async with await Client.connect(controller) as client:
            one = identity.SecretStore(client, NAMESPACE)
            other = identity.SecretStore(client, NAMESPACE)
            assert await one.get() is None
            await one.put({"a": b"\x00\xff"}, None)
            with pytest.raises(certs.Conflict):
                await other.put({"a": b"2"}, None)
            data, version = await other.get() or ({}, "")
            assert data == {"a": b"\x00\xff"}
            await other.put({"b": b"3"}, version)
            with pytest.raises(certs.Conflict):
                await one.put({"a": b"4"}, version)
            assert (await one.get() or ({}, ""))[0] == {"b": b"3"}
            publish = identity.publisher(client, NAMESPACE)
            place = f"/api/v1/namespaces/{NAMESPACE}/configmaps/sentinel-ca"

            async def told() -> tuple[str, str]:
                found = await asyncio.to_thread(admin.get, place)
                return found["data"]["ca.crt"], found["metadata"]["resourceVersion"]

            await publish(b"bundle 1")
            await publish(b"bundle 2")
            bundle, version = await told()
            assert bundle == "bundle 2"
            await publish(b"bundle 2")
            assert await told() == (bundle, version), "nothing is written where nothing differs"
            await asyncio.to_thread(admin.patch, place, {"data": {"ca.crt": "of somebody else"}})
            await publish(b"bundle 2")
            assert (await told())[0] == "bundle 2"
            await asyncio.to_thread(admin.delete, place)
            await publish(b"bundle 2")
            assert (await told())[0] == "bundle 2"

            bundles = identity.BundleStore(client, NAMESPACE)
            found, seen = await bundles.get() or ({}, "")
            assert found == {"ca.crt": b"bundle 2"}
            await publish(b"bundle 3")
            for stale in (seen, None):  # with what it read it would take away what the other has added
                with pytest.raises(certs.Conflict):
                    await bundles.put(found, stale)
            assert (await told())[0] == "bundle 3"
            _, seen = await bundles.get() or ({}, "")
            await asyncio.to_thread(admin.delete, place)
            with pytest.raises(certs.Conflict):
                await bundles.put(found, seen)
            await publish(b"bundle 2")

    run(test())


def test_where_the_api_server_is_away_the_transport_hears_what_it_expects(
    proxy: Proxy, behind_proxy: str
) -> None:
    async def test() -> None:
        async with await Client.connect(behind_proxy) as client:
            proxy.faults = [Fault(answer=503, times=3)]
            for asked in (
                identity.published_keys(client),
                identity.reviewer(client, "a")("t"),
                identity.SecretStore(client, NAMESPACE).get(),
            ):
                with pytest.raises(OSError, match="503"):
                    await asked

    run(test())


def test_a_namespace_that_is_not_there_is_named(installed: "ControlPlane") -> None:
    anybody = installed.user_kubeconfig("may-do-all", "system:masters")

    async def test() -> None:
        async with await Client.connect(str(anybody)) as client:
            with pytest.raises(TemporaryError, match="there is no namespace nowhere: make it"):
                await identity.SecretStore(client, "nowhere").put({"a": b"b"}, None)

    run(test())
