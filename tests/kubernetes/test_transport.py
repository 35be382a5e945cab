"""Agents and a controller as on a cluster: its tokens, its keys, its reviews, its Secret and ConfigMap."""

import asyncio
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sentinel.cluster.kubernetes import identity
from sentinel.cluster.kubernetes.client import Client
from sentinel.transport.auth import Authenticator, Denied, Review, Why
from sentinel.transport.certs import Certificates
from tests.kubernetes.conftest import NAMESPACE
from tests.transport.world import World, finding, go, report
from tests.waits import eventually

if TYPE_CHECKING:
    from tests.rig.control_plane import ControlPlane

AUDIENCE = "sentinel-controller"


class Cluster:
    def __init__(self, plane: "ControlPlane", kubeconfig: str) -> None:
        self.plane, self.kubeconfig = plane, kubeconfig
        self.nodes = [f"n-{secrets.token_hex(4)}" for _ in range(2)]
        self.uids = [plane.node(node)["metadata"]["uid"] for node in self.nodes]
        self.reviews = 0

    def token(self, node: int = 0, account: str = "sentinel-agent", audience: str = AUDIENCE) -> str:
        return self.plane.node_token(NAMESPACE, account, self.nodes[node], audience=audience)

    def door(self, client: Client, *, keys: bool = True) -> Authenticator:
        from tests.rig.control_plane import ISSUER

        ask = identity.reviewer(client, AUDIENCE)

        async def review(token: str) -> Review:
            self.reviews += 1
            return await ask(token)

        async def published() -> bytes:
            if not keys:
                raise OSError("connection refused")
            return await identity.published_keys(client)

        return Authenticator(
            issuer=ISSUER,
            audience=AUDIENCE,
            subjects=frozenset({f"system:serviceaccount:{NAMESPACE}:sentinel-agent"}),
            keys=published,
            review=review,
        )


@pytest.fixture
def cluster(installed: "ControlPlane", controller: str) -> Cluster:
    return Cluster(installed, controller)


def test_published_keys_and_reviews_know_the_same_node_and_keys_need_no_review(cluster: Cluster) -> None:
    async def story() -> None:
        token = cluster.token()
        async with await Client.connect(cluster.kubeconfig) as client:
            by_key = await cluster.door(client).identify(token)
            assert cluster.reviews == 0
            by_review = await cluster.door(client, keys=False).identify(token)
            assert cluster.reviews == 1
            assert (by_key.node, by_key.node_uid) == (cluster.nodes[0], cluster.uids[0])
            assert (by_review.node, by_review.node_uid) == (cluster.nodes[0], cluster.uids[0])

    go(story())


@pytest.mark.parametrize("keys", [True, False])
def test_other_accounts_other_audiences_and_tokens_of_no_node_are_refused_either_way(
    cluster: Cluster, keys: bool
) -> None:
    async def story() -> None:
        wrong = {
            cluster.token(account="trainer"): Why.SUBJECT,
            cluster.token(audience="https://elsewhere"): Why.AUDIENCE,
            cluster.token(audience=""): Why.AUDIENCE,
            cluster.plane.token(NAMESPACE, "sentinel-agent", audience=AUDIENCE): Why.NOT_NODE_BOUND,
        }
        async with await Client.connect(cluster.kubeconfig) as client:
            door = cluster.door(client, keys=keys)
            for token, why in wrong.items():
                with pytest.raises(Denied) as denied:
                    await door.identify(token)
                assert denied.value.why is why

    go(story())


def test_a_review_refuses_the_token_of_a_pod_that_is_gone(cluster: Cluster) -> None:
    async def story() -> None:
        token = cluster.token()
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/sentinel-agent-{cluster.nodes[0]}"
        await asyncio.to_thread(cluster.plane.admin.delete, path, gracePeriodSeconds=0)
        async with await Client.connect(cluster.kubeconfig) as client:

            async def refused() -> Why | None:
                try:
                    await cluster.door(client, keys=False).identify(token)
                except Denied as denied:
                    return denied.why
                return None  # the API server hears of the pod's end a moment after it has ended it

            assert await eventually(refused, "its token is good for ever") is Why.REVIEW_DENIED

    go(story(), 180.0)


def test_an_agent_that_trusts_the_config_map_speaks_for_its_pods_node_and_no_other(
    cluster: Cluster, tmp_path: Path
) -> None:
    async def story() -> None:
        mine, other = cluster.nodes
        async with await Client.connect(cluster.kubeconfig) as client, World(tmp_path) as world:
            store, publish = identity.SecretStore(client, NAMESPACE), identity.publisher(client, NAMESPACE)
            certificates = Certificates(store, publish, names=("sentinel-controller.sentinel-system.svc",))
            await certificates.renew()
            bundle: dict[str, Any] = await asyncio.to_thread(
                cluster.plane.admin.get, f"/api/v1/namespaces/{NAMESPACE}/configmaps/sentinel-ca"
            )
            world.bundle.write_text(bundle["data"]["ca.crt"])
            _, port = await world.serve(authenticator=cluster.door(client), tls=certificates.tls)
            honest = world.client(port, node=mine, token=cluster.token(0))
            honest.send(report(finding(), node=mine))
            thief = world.client(port, node=other, token=cluster.token(0))
            thief.send(report(finding(), node=other))
            world.run(honest)
            world.run(thief)
            await eventually(lambda: world.numbered(mine) and "OtherNode" in thief.status.problem)
            assert world.numbered(mine)[0].node_uid == cluster.uids[0]
            assert not world.numbered(other)

    go(story())
