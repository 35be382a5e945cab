"""Whose token is taken, by whose word, and what is said of one that is not."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest

from sentinel.transport import auth, token_keys
from sentinel.transport.auth import Denied, Review, Why
from sentinel.transport.channel import Refused
from sentinel.transport.wire import Reason
from tests.transport.world import (
    AUDIENCE,
    SUBJECT,
    Issuer,
    World,
    authenticator,
    finding,
    go,
    jwks,
    report,
)
from tests.transport.world import Raw as Agent
from tests.waits import eventually


class Clock:
    def __init__(self) -> None:
        self.mono_s = 1000.0

    def mono(self) -> float:
        return self.mono_s

    def wall(self) -> float:
        return time.time() + self.mono_s - 1000.0


class Reviewer:
    """A TokenReview that can be counted, held up and broken."""

    def __init__(self, **said: Any) -> None:
        self.said = Review(
            **{"authenticated": True, "username": SUBJECT, "node": "node-1", "node_uid": "u"} | said
        )
        self.calls = 0
        self.at_once = 0
        self.most_at_once = 0
        self.broken = False
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self, token: str) -> Review:
        self.calls += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await self.open.wait()
        self.at_once -= 1
        if self.broken:
            raise OSError("connection refused")
        return self.said


async def why(door: auth.Authenticator, token: str) -> Why:
    with pytest.raises(Denied) as caught:
        await door.identify(token)
    assert len(token) < 20 or token[:20] not in caught.value.text  # never said back
    return caught.value.why


@pytest.mark.parametrize("kind", ["RS256", "ES256"])
def test_a_token_bound_to_a_node_speaks_for_it(kind: str) -> None:
    async def story() -> None:
        issuer = Issuer(kind)
        door = authenticator(issuer)
        token = issuer.token("node-7", "uid-7")
        assert door.known(token) is None
        who = await door.identify(token)
        assert (who.node, who.node_uid) == ("node-7", "uid-7")
        assert door.known(token) == who

    go(story())


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({"iss": "https://elsewhere"}, Why.ISSUER),
        ({"aud": ["https://kubernetes.default.svc"]}, Why.AUDIENCE),
        ({"life_s": -60.0}, Why.EXPIRED),
        ({"nbf": 4e9}, Why.NOT_YET_VALID),
        ({"sub": "system:serviceaccount:default:default"}, Why.SUBJECT),
        ({"node": None}, Why.NOT_NODE_BOUND),
    ],
)
def test_a_good_signature_is_not_enough(claims: dict[str, Any], expected: Why) -> None:
    async def story() -> None:
        issuer = Issuer()
        door = authenticator(issuer)
        assert await why(door, issuer.token(**claims)) is expected
        assert door.counts[expected.value] == 1

    go(story())


@pytest.mark.parametrize(
    "token", ["", "abc", "a.b.c", "..", "eyJhbGciOiJub25lIn0.e30.", "x" * 9000, "a.b.c.d"]
)
def test_garbage_is_no_token(token: str) -> None:
    async def story() -> None:
        assert await why(authenticator(Issuer()), token) in (Why.MALFORMED, Why.NO_TOKEN)

    go(story())


def test_a_forged_signature_is_refused_and_never_reviewed() -> None:
    async def story() -> None:
        review = Reviewer()
        issuer, thief = Issuer(), Issuer()  # the thief's key bears the same name
        door = authenticator(issuer, review=review)
        assert await why(door, thief.token()) is Why.SIGNATURE
        head, body, _ = issuer.token().split(".")
        assert await why(door, f"{head}.{body}.") is Why.SIGNATURE
        assert review.calls == 0

    go(story())


def test_the_token_does_not_choose_its_algorithm() -> None:
    """The classic forgeries: no signature at all, and the public key taken for a shared secret."""

    async def story() -> None:
        issuer = Issuer("RS256")
        door = authenticator(issuer)
        claims = jwt.decode(issuer.token(), options={"verify_signature": False})
        unsigned = jwt.encode(claims, None, algorithm="none", headers={"kid": issuer.kid})
        shared = jwt.encode(claims, str(issuer.jwk()["n"]), algorithm="HS256", headers={"kid": issuer.kid})
        for token in (unsigned, shared):
            assert await why(door, token) is Why.ALGORITHM

    go(story())


def test_a_new_key_is_fetched_once_and_not_for_each_token_that_names_an_unknown_one() -> None:
    async def story() -> None:
        clock, old, new = Clock(), Issuer(), Issuer(kid="key-2")
        published = [old]
        fetched = 0

        async def keys() -> bytes:
            nonlocal fetched
            fetched += 1
            await asyncio.sleep(0)
            return jwks(*published)

        door = authenticator(keys=keys, mono_s=clock.mono)
        await door.identify(old.token())
        published.append(new)
        clock.mono_s += token_keys.PAUSE_S
        await asyncio.gather(*(door.identify(new.token(f"node-{k}")) for k in range(100)))
        assert fetched == 2
        stranger = Issuer(kid="key-3")
        for _ in range(50):
            assert await why(door, stranger.token()) is Why.SIGNATURE
        assert fetched == 2
        clock.mono_s += token_keys.PAUSE_S
        assert await why(door, stranger.token()) is Why.SIGNATURE
        assert fetched == 3

    go(story())


def test_a_key_that_is_no_longer_published_is_soon_worth_nothing() -> None:
    async def story() -> None:
        clock, old, new = Clock(), Issuer(), Issuer(kid="key-2")
        published = [old]

        async def keys() -> bytes:
            return jwks(*published)

        door = authenticator(keys=keys, mono_s=clock.mono)
        token = old.token()
        await door.identify(token)
        published[:] = [new]
        clock.mono_s += max(token_keys.AGE_S, auth.REMEMBERED_S) + 1
        await door.identify(token)  # judged by the keys that are known, while newer ones are on their way
        await eventually(lambda: door.keys.fetched == 2)
        clock.mono_s += auth.REMEMBERED_S + 1
        assert await why(door, token) is Why.SIGNATURE

    go(story())


def test_once_the_keys_are_known_nobody_is_asked_about_a_token() -> None:
    """So that checking thousands of them is work of the turns that their connections have."""

    async def story() -> None:
        issuer = Issuer()
        door = authenticator(issuer)
        assert door.at_once(issuer.token()) is None
        await door.identify(issuer.token())
        known = door.at_once(issuer.token("node-2", "uid-2"))
        assert known is not None
        assert (known.node, known.node_uid) == ("node-2", "uid-2")
        assert door.at_once(issuer.token(None)) is None, "a review may say whose it is"
        with pytest.raises(Denied) as caught:
            door.at_once(Issuer().token())
        assert caught.value.why is Why.SIGNATURE
        assert door.counts == {Why.SIGNATURE.value: 1}

    go(story())


def test_when_no_keys_can_be_had_a_review_judges_and_each_token_once() -> None:
    async def story() -> None:
        clock, review = Clock(), Reviewer()

        async def keys() -> bytes:
            raise OSError("connection refused")

        door = authenticator(keys=keys, review=review, mono_s=clock.mono, now_s=clock.wall)
        token = Issuer().token()
        review.open.clear()
        waiting = [asyncio.create_task(door.identify(token)) for _ in range(50)]
        await eventually(lambda: review.calls)
        review.open.set()
        assert {who.node for who in await asyncio.gather(*waiting)} == {"node-1"}
        assert review.calls == 1
        await door.identify(token)
        assert review.calls == 1
        clock.mono_s += auth.REMEMBERED_S + 1
        await door.identify(token)
        assert review.calls == 2

    go(story())


def test_a_token_that_names_no_node_is_reviewed_as_older_api_servers_need_it() -> None:
    async def story() -> None:
        issuer, review = Issuer(), Reviewer(node="node-9")
        door = authenticator(issuer, review=review)
        assert (await door.identify(issuer.token(node=None))).node == "node-9"
        review.said = Review(authenticated=True, username=SUBJECT, audiences=(AUDIENCE,))
        assert await why(door, issuer.token(node=None, jti="2")) is Why.NOT_NODE_BOUND

    go(story())


def test_what_a_review_denied_is_remembered_and_what_it_could_not_say_is_not() -> None:
    async def story() -> None:
        clock, review, stranger = Clock(), Reviewer(authenticated=False), Issuer(kid="key-9")
        door = authenticator(Issuer(), review=review, mono_s=clock.mono, now_s=clock.wall)
        token = stranger.token()
        for _ in range(3):
            assert await why(door, token) is Why.REVIEW_DENIED
        assert review.calls == 1
        clock.mono_s += auth.REFUSAL_REMEMBERED_S + 1
        review.broken = True
        assert await why(door, token) is Why.REVIEW_UNAVAILABLE
        review.broken, review.said = False, Reviewer().said
        assert (await door.identify(token)).node == "node-1"

    go(story())


def test_reviews_are_few_at_once_and_a_flood_of_strange_tokens_makes_no_queue() -> None:
    async def story() -> None:
        clock, review = Clock(), Reviewer()
        issuer, stranger = Issuer(), Issuer(kid="key-9")
        door = authenticator(issuer, review=review, mono_s=clock.mono)
        review.open.clear()
        tokens = [stranger.token(f"node-{k}") for k in range(auth.REVIEWS_WAITING + 50)]
        asked = [asyncio.create_task(door.identify(token)) for token in tokens]
        await eventually(lambda: sum(task.done() for task in asked) == 50)
        await eventually(lambda: review.most_at_once == auth.REVIEWS_AT_ONCE)
        assert (await door.identify(issuer.token())).node == "node-1"  # the others never notice
        review.open.set()
        done = await asyncio.gather(*asked, return_exceptions=True)
        unavailable = [e for e in done if isinstance(e, Denied) and e.why is Why.REVIEW_UNAVAILABLE]
        assert len(unavailable) == 50
        assert review.most_at_once == auth.REVIEWS_AT_ONCE

    go(story())


def test_a_published_key_that_is_none_of_ours_or_damaged_is_left_out() -> None:
    good = json.loads(jwks(Issuer()))["keys"]
    secret = {"kty": "oct", "k": "AAAA", "kid": "s"}
    damaged = {"kty": "RSA", "kid": "r", "n": "!", "e": "AQAB"}
    text = json.dumps({"keys": [*good, secret, damaged]}).encode()
    assert set(token_keys.parse(text)) == {"key-1"}
    with pytest.raises(ValueError, match="no key"):
        token_keys.parse(b'{"keys": []}')


# ---------------------------------------------------------------- over the wire


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda issuer: issuer.token(life_s=-60.0), "Expired"),
        (lambda issuer: Issuer().token(), "Signature"),
        (lambda issuer: issuer.token(aud=["other"]), "Audience"),
        (lambda issuer: "not-a-token", "Malformed"),
    ],
)
def test_an_agent_is_told_what_is_wrong_with_its_token(tmp_path: Path, make: Any, said: str) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            server, port = await world.serve()
            token = make(world.issuer)
            agent = world.client(port, token=token)
            agent.send(report(finding()))
            world.run(agent)
            await eventually(lambda: agent.status.problem)
            assert f"NotAuthenticated: {said}" in agent.status.problem
            assert token not in agent.status.problem
            assert server.counts[Reason.NOT_AUTHENTICATED] >= 1
            assert not world.arrived

    go(story())


def test_an_agent_without_a_token_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            _, port = await world.serve()
            agent = await Agent(world, port).connect()
            with pytest.raises(Refused, match="NoToken"):
                await agent.post("/hello", b"")

    go(story())


def test_a_token_of_one_node_speaks_for_no_other(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            server, port = await world.serve()
            agent = world.client(port, node="node-1", token=world.issuer.token("node-2"))
            agent.send(report(finding()))
            world.run(agent)
            await eventually(lambda: "OtherNode" in agent.status.problem)
            assert not world.arrived
            assert server.nodes["node-2"].refused[Reason.OTHER_NODE] >= 1  # whose token it was is named

    go(story())


def test_a_report_about_another_node_is_left_out_and_the_others_are_taken(tmp_path: Path) -> None:
    import msgspec

    from sentinel.transport.wire import Ack, Batch, Numbered

    async def story() -> None:
        async with World(tmp_path) as world:
            _, port = await world.serve()
            agent = await Agent(world, port).connect()
            await agent.hello()
            records = (
                Numbered(1, report()),
                Numbered(2, report(finding(), node="node-2")),
                Numbered(3, report()),
            )
            ack = msgspec.msgpack.decode(await agent.report(Batch(records=records)), type=Ack)
            assert (ack.sequence, ack.refused) == (3, (2,))
            assert [a.sequence for a in world.arrived] == [1, 3]
            with pytest.raises(Refused, match="OtherNode"):
                await agent.report(Batch(full=report(node="node-2"), after=3))

    go(story())


def test_a_token_of_a_node_that_was_replaced_under_its_name_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            _, port = await world.serve(uid_of=lambda node: "uid-new")
            agent = await Agent(world, port).connect()
            with pytest.raises(Refused, match="ReplacedNode"):
                await agent.hello(world.issuer.token("node-1", "uid-old"))
            agent = await Agent(world, port).connect()
            await agent.hello(world.issuer.token("node-1", "uid-new"))

    go(story())


def test_a_connection_ends_with_its_token_and_goes_on_with_the_next_one(tmp_path: Path) -> None:
    async def story() -> None:
        from sentinel.transport.wire import Batch, encoder

        async with World(tmp_path) as world:
            clock = Clock()
            door = authenticator(world.issuer, mono_s=clock.mono, now_s=clock.wall)
            _, port = await world.serve(authenticator=door)
            agent = await Agent(world, port).connect()
            await agent.hello(world.issuer.token(life_s=100.0))
            clock.mono_s += 90.0
            await agent.post("/report", encoder.encode(Batch()), world.issuer.token(life_s=1000.0))
            clock.mono_s += 90.0
            await agent.report(Batch())
            clock.mono_s += 1000.0
            with pytest.raises(Refused, match="Expired"):
                await agent.report(Batch())

    go(story())
