"""Who an agent is: a Kubernetes service-account token that is bound to its node.

The cluster's published keys judge first (the JWKS of /openid/v1/jwks), so that the API server is not asked
for each of 10 000 agents that come back at once. A TokenReview judges where keys cannot: none could be had,
the token's key is not among them, or the token names no node (API servers before 1.30 put none in). What a
key has judged bad is never reviewed. A token that was judged good is remembered by its hash for
REMEMBERED_S: for so long it outlives its pod, its service account or its key. Documented at
kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin.
"""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from enum import StrEnum

import jwt
import msgspec
import structlog
from msgspec import Struct

from sentinel.transport.limits import Bucket
from sentinel.transport.token_keys import Key, Keys, PublishedKeys

log = structlog.get_logger(__name__)

REMEMBERED_S = 600.0
REFUSAL_REMEMBERED_S = 60.0
LEEWAY_S = 30.0  # between the clocks of the API server and of this machine
MAX_TOKEN = 8192
MAX_REMEMBERED = 100_000
REVIEWS_AT_ONCE = 8
REVIEWS_WAITING = 256  # more are told to come again
REVIEWS_PER_S = 100.0
REVIEWS_BURST = 500.0
REVIEW_DEADLINE_S = 10.0


class Why(StrEnum):
    NO_TOKEN = "NoToken"
    MALFORMED = "Malformed"
    ALGORITHM = "Algorithm"
    SIGNATURE = "Signature"
    ISSUER = "Issuer"
    AUDIENCE = "Audience"
    EXPIRED = "Expired"
    NOT_YET_VALID = "NotYetValid"
    SUBJECT = "Subject"
    NOT_NODE_BOUND = "NotNodeBound"
    REVIEW_DENIED = "ReviewDenied"
    REVIEW_UNAVAILABLE = "ReviewUnavailable"


class Denied(Exception):
    """A token is not taken. The text repeats nothing of it."""

    def __init__(self, why: Why, text: str) -> None:
        super().__init__(text)
        self.why = why
        self.text = text


class Identity(Struct, frozen=True):
    """A node that an agent may speak for. `until_s`: on the clock that the Authenticator was given."""

    node: str
    node_uid: str
    until_s: float


class Review(Struct, frozen=True, kw_only=True):
    """What a TokenReview said. `node`: of the token, or, where API servers put none in, of the token's pod."""

    authenticated: bool
    username: str = ""
    audiences: tuple[str, ...] = ()
    node: str = ""
    node_uid: str = ""
    error: str = ""


class _Ref(Struct, frozen=True):
    name: str = ""
    uid: str = ""


class _Bound(Struct, frozen=True):
    namespace: str = ""
    node: _Ref | None = None


class _Claims(Struct, frozen=True):
    sub: str
    exp: float
    iss: str = ""
    aud: str | list[str] = ""
    nbf: float = 0.0
    bound: _Bound = msgspec.field(default=_Bound(), name="kubernetes.io")


class _Header(Struct, frozen=True):
    alg: str = ""
    kid: str = ""


Reviewer = Callable[[str], Awaitable[Review]]


class Authenticator:
    """`keys` reads the JWKS, `review` makes a TokenReview for the audience; both raise OSError if they cannot.

    `subjects`: the service accounts of agents, as `system:serviceaccount:NAMESPACE:NAME`; a token for the
    right audience can be had by any pod. `now_s`: the wall clock, for tokens bear wall times.
    """

    def __init__(
        self,
        *,
        issuer: str,
        audience: str,
        subjects: frozenset[str],
        keys: Keys,
        review: Reviewer | None,
        now_s: Callable[[], float] = time.time,
        mono_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._issuer = issuer
        self._audience = audience
        self._subjects = subjects
        self._review = review
        self._now_s = now_s
        self._mono_s = mono_s
        self.keys = PublishedKeys(keys, mono_s)
        self._known: OrderedDict[bytes, tuple[Identity, float]] = OrderedDict()
        self._bad: OrderedDict[bytes, tuple[Denied, float]] = OrderedDict()
        self._reviews = asyncio.Semaphore(REVIEWS_AT_ONCE)
        self._reviewing: dict[bytes, asyncio.Future[Identity]] = {}
        self._bucket = Bucket(REVIEWS_BURST, mono_s())
        self._jws = jwt.PyJWS()
        self.counts: dict[str, int] = {}  # why -> refusals; besides "reviews"

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    # ------------------------------------------------------------ the two ways in

    def known(self, token: str) -> Identity | None:
        """Who this is, if the token was judged good a short time ago."""
        found = self._known.get(_hash(token))
        if found is None or self._mono_s() > found[1] or self._now_s() > found[0].until_s:
            return None
        return found[0]

    def valid(self, until_s: float) -> bool:
        """Whether a token that ends then is still good."""
        return self._now_s() <= until_s

    def at_once(self, token: str) -> Identity | None:
        """Who this is, where the published keys that are known say it. Raises Denied."""
        try:
            return self._at_once(token)
        except Denied as denied:
            self._count(denied.why.value)
            raise

    async def identify(self, token: str) -> Identity:
        """Who this is; others may be asked. Raises Denied."""
        try:
            return self._at_once(token) or await self._identify(token)
        except Denied as denied:
            self._count(denied.why.value)
            raise

    def _at_once(self, token: str) -> Identity | None:
        identity = self.known(token)
        if identity is not None:
            return identity
        bad = self._bad.get(_hash(token))
        if bad is not None and self._mono_s() <= bad[1]:
            raise Denied(bad[0].why, bad[0].text)
        header, claims = _read(token)
        self._check(claims)
        return self._signed(token, header, claims, self.keys.known(header.kid))

    def _signed(self, token: str, header: _Header, claims: _Claims, key: Key | None) -> Identity | None:
        """None: the key is not known, or the token is bound to no node."""
        node = claims.bound.node
        if key is None:
            return None
        self._verify(token, key, header)
        if node is None or not node.name:
            return None
        return self._remember(_hash(token), Identity(node.name, node.uid, claims.exp + LEEWAY_S))

    async def _identify(self, token: str) -> Identity:
        header, claims = _read(token)
        key = await self.keys.get(header.kid)
        if (identity := self._signed(token, header, claims, key)) is not None:
            return identity
        if self._review is None:
            why, text = (
                (Why.NOT_NODE_BOUND, "the token is bound to no node")
                if key is not None
                else (Why.SIGNATURE, "the token's key is not among the published ones")
            )
            raise Denied(why, text)
        return await self._reviewed(_hash(token), token, claims)

    def _remember(self, digest: bytes, identity: Identity) -> Identity:
        self._known[digest] = (identity, self._mono_s() + REMEMBERED_S)
        while len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)
        return identity

    def _check(self, claims: _Claims) -> None:
        """What needs no key: a token that says itself that it is not for us is refused before anything is asked."""
        now_s = self._now_s()
        audiences = [claims.aud] if isinstance(claims.aud, str) else claims.aud
        if claims.iss != self._issuer:
            raise Denied(Why.ISSUER, f"the token's issuer is not {self._issuer}")
        if self._audience not in audiences:
            raise Denied(Why.AUDIENCE, f"the token is not meant for the audience {self._audience}")
        if now_s > claims.exp + LEEWAY_S:
            raise Denied(Why.EXPIRED, f"the token expired {now_s - claims.exp:.0f} s ago")
        if now_s < claims.nbf - LEEWAY_S:
            raise Denied(Why.NOT_YET_VALID, f"the token is valid in {claims.nbf - now_s:.0f} s only")
        if claims.sub not in self._subjects:
            raise Denied(Why.SUBJECT, "the token is not one of the agents' service account")

    def _verify(self, token: str, key: Key, header: _Header) -> None:
        if header.alg not in key.algorithms:
            raise Denied(Why.ALGORITHM, f"the token's key signs with {' or '.join(key.algorithms)} only")
        try:
            self._jws.decode(token, key=key.key.key, algorithms=list(key.algorithms))
        except jwt.InvalidTokenError:
            raise Denied(Why.SIGNATURE, "the token's signature does not fit its key") from None

    # ------------------------------------------------------------ TokenReview

    async def _reviewed(self, digest: bytes, token: str, claims: _Claims) -> Identity:
        """One review of a token at a time, whoever asks; few at once, and not many in a second."""
        running = self._reviewing.get(digest)
        if running is not None:
            return await asyncio.shield(running)
        if len(self._reviewing) >= REVIEWS_WAITING or self._bucket.take(
            self._mono_s(), REVIEWS_PER_S, REVIEWS_BURST
        ):
            raise Denied(Why.REVIEW_UNAVAILABLE, "too many tokens wait for a review")
        task = asyncio.ensure_future(self._ask(digest, token, claims))
        self._reviewing[digest] = task
        task.add_done_callback(lambda done: self._review_done(digest, done))
        return await asyncio.shield(task)

    def _review_done(self, digest: bytes, done: "asyncio.Future[Identity]") -> None:
        self._reviewing.pop(digest, None)
        if not done.cancelled():
            done.exception()  # whoever asked may have gone: nothing is lost

    async def _ask(self, digest: bytes, token: str, claims: _Claims) -> Identity:
        assert self._review is not None
        async with self._reviews:
            self._count("reviews")
            try:
                async with asyncio.timeout(REVIEW_DEADLINE_S):
                    said = await self._review(token)
            except (OSError, TimeoutError) as error:
                log.warning("token_review_failed", error=type(error).__name__)
                raise Denied(Why.REVIEW_UNAVAILABLE, "the API server did not review the token") from None
        try:
            return self._remember(digest, self._judge(said, claims))
        except Denied as denied:
            self._bad[digest] = (denied, self._mono_s() + REFUSAL_REMEMBERED_S)
            while len(self._bad) > MAX_REMEMBERED // 10:
                self._bad.popitem(last=False)
            raise

    def _judge(self, said: Review, claims: _Claims) -> Identity:
        if not said.authenticated:
            raise Denied(Why.REVIEW_DENIED, "the API server does not take the token")
        if said.username not in self._subjects:
            raise Denied(Why.SUBJECT, "the token is not one of the agents' service account")
        if said.audiences and self._audience not in said.audiences:
            raise Denied(Why.AUDIENCE, f"the token is not meant for the audience {self._audience}")
        if not said.node:
            raise Denied(Why.NOT_NODE_BOUND, "the token is bound to no node")
        return Identity(said.node, said.node_uid, claims.exp + LEEWAY_S)


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _read(token: str) -> tuple[_Header, _Claims]:
    """What the token says of itself, unproved. Raises Denied."""
    if not token:
        raise Denied(Why.NO_TOKEN, "no token was shown")
    if len(token) > MAX_TOKEN or token.count(".") != 2:
        raise Denied(Why.MALFORMED, "what was shown is not a signed token")
    head, body, _ = token.split(".")
    try:
        header = msgspec.json.decode(jwt.utils.base64url_decode(head), type=_Header)
        claims = msgspec.json.decode(jwt.utils.base64url_decode(body), type=_Claims)
    except (msgspec.DecodeError, ValueError):
        raise Denied(Why.MALFORMED, "the token cannot be read") from None
    return header, claims
