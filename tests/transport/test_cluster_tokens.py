"""Tokens that a real API server makes: judged by the keys that it publishes, and by its reviews."""

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sentinel.transport.auth import Authenticator, Denied, Review, Why, review_of
from tests.transport.world import AUDIENCE, World, finding, go, report, until

if TYPE_CHECKING:
    from tests.rig.control_plane import ControlPlane


class Cluster:
    """A namespace with an agents' service account, and the two callables that a controller gives."""

    def __init__(self, plane: "ControlPlane") -> None:
        self.plane = plane
        self.space = plane.namespace("transport")
        self.nodes = [f"{self.space}-{k}" for k in (1, 2)]
        for node in self.nodes:
            plane.node(node)
        self.reviews = 0

    def token(self, node: int = 0, account: str = "agent", audience: str = AUDIENCE) -> str:
        return self.plane.node_token(self.space, account, self.nodes[node], audience=audience)

    async def keys(self) -> bytes:
        def get() -> bytes:
            admin = self.plane.admin
            head = {"Accept": "application/jwk-set+json"}  # any other one is answered by 406
            if admin.token:
                head["Authorization"] = f"Bearer {admin.token}"
            asked = urllib.request.Request(f"{admin.url}/openid/v1/jwks", headers=head)
            with urllib.request.urlopen(asked, context=admin._context) as answer:
                return bytes(answer.read())

        return await asyncio.to_thread(get)

    async def no_keys(self) -> bytes:
        raise OSError("connection refused")

    async def review(self, token: str) -> Review:
        self.reviews += 1
        spec = {"token": token, "audiences": [AUDIENCE]}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {}, "spec": spec}
        return review_of(json.dumps(await asyncio.to_thread(self.plane.admin.create, body)).encode())

    def door(self, **more: Any) -> Authenticator:
        from tests.rig.control_plane import ISSUER

        subject = f"system:serviceaccount:{self.space}:agent"
        settings = {"issuer": ISSUER, "audience": AUDIENCE, "subjects": frozenset({subject})}
        return Authenticator(**settings | {"keys": self.keys, "review": self.review} | more)


@pytest.fixture
def cluster(control_plane: "ControlPlane") -> Cluster:
    return Cluster(control_plane)


def test_a_pods_token_is_known_by_published_keys_and_by_review_as_the_same_nodes(cluster: Cluster) -> None:
    async def story() -> None:
        uid = cluster.plane.admin.get(f"/api/v1/nodes/{cluster.nodes[0]}")["metadata"]["uid"]
        token = cluster.token()
        by_key = await cluster.door().identify(token)
        assert cluster.reviews == 0
        by_review = await cluster.door(keys=cluster.no_keys).identify(token)
        assert cluster.reviews == 1
        assert (
            (by_key.node, by_key.node_uid) == (by_review.node, by_review.node_uid) == (cluster.nodes[0], uid)
        )

    go(story())


@pytest.mark.parametrize("keys", ["keys", "no_keys"])
def test_other_accounts_other_audiences_and_tokens_of_no_node_are_refused_either_way(
    cluster: Cluster, keys: str
) -> None:
    async def story() -> None:
        door = cluster.door(keys=getattr(cluster, keys))
        cluster.token()  # makes the account
        unbound = cluster.plane.token(cluster.space, "agent", audience=AUDIENCE)
        wrong = {
            cluster.token(account="trainer"): Why.SUBJECT,
            cluster.token(audience="https://elsewhere"): Why.AUDIENCE,
            cluster.token(audience=""): Why.AUDIENCE,
            unbound: Why.NOT_NODE_BOUND,
        }
        for token, why in wrong.items():
            with pytest.raises(Denied) as denied:
                await door.identify(token)
            assert denied.value.why is why

    go(story())


def test_a_review_refuses_the_token_of_a_pod_that_is_gone(cluster: Cluster) -> None:
    async def story() -> None:
        token = cluster.token()
        path = f"/api/v1/namespaces/{cluster.space}/pods/agent-{cluster.nodes[0]}"
        await asyncio.to_thread(cluster.plane.admin.delete, path, gracePeriodSeconds=0)
        with pytest.raises(Denied) as denied:
            await cluster.door(keys=cluster.no_keys).identify(token)
        assert denied.value.why is Why.REVIEW_DENIED

    go(story())


def test_an_agent_with_a_pods_token_speaks_for_its_node_and_no_other(
    cluster: Cluster, tmp_path: Path
) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            _, port = await world.serve(authenticator=cluster.door())
            mine, other = cluster.nodes
            honest = world.client(port, node=mine, token=cluster.token(0))
            honest.send(report(finding(), node=mine))
            thief = world.client(port, node=other, token=cluster.token(0))
            thief.send(report(finding(), node=other))
            world.run(honest)
            world.run(thief)
            await until(lambda: world.numbered(mine) and "OtherNode" in thief.status.problem)
            assert not world.numbered(other)

    go(story())


def test_what_is_no_review_is_said(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="not a TokenReview"):
        review_of(b"<html>")
    assert review_of(b"{}") == Review(authenticated=False)
