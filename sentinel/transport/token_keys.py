"""The keys with which the cluster signs service-account tokens, as it publishes them (a JWKS, RFC 7517)."""

import asyncio
from collections.abc import Awaitable, Callable

import jwt
import msgspec
import structlog
from msgspec import Struct

log = structlog.get_logger(__name__)

# What API servers sign with: RSA keys RS256, EC keys the one of their curve. Never one that the token picks.
ALGORITHMS = {"RSA": ("RS256",), "P-256": ("ES256",), "P-384": ("ES384",), "P-521": ("ES512",)}
AGE_S = 600.0  # they are read again after so long
PAUSE_S = 10.0  # and at most so often, whatever tokens come
DEADLINE_S = 5.0
MAX_BYTES = 1 << 20

Keys = Callable[[], Awaitable[bytes]]


class Key(Struct, frozen=True):
    key: jwt.PyJWK
    algorithms: tuple[str, ...]


class PublishedKeys:
    """`fetch` reads the JWKS; it raises OSError if it cannot, and the keys that are known go on judging."""

    def __init__(self, fetch: Keys, mono_s: Callable[[], float]) -> None:
        self.fetched = 0
        self.failures = 0
        self._fetch = fetch
        self._mono_s = mono_s
        self._keys: dict[str, Key] = {}
        self._read_s: float | None = None
        self._asked_s: float | None = None
        self._fetching: asyncio.Task[None] | None = None

    def known(self, kid: str) -> Key | None:
        """The key of this name. It goes on judging while newer ones are on their way: nobody waits for the API server.
        None: `get` may find it."""
        key = self._keys.get(kid)
        if key is None:
            self._ask()
        else:
            self.renew()
        return key

    def renew(self) -> None:
        """Where they are too old, or not there yet: whoever comes then need not wait for them."""
        if self._read_s is None or self._mono_s() - self._read_s > AGE_S:
            self._ask()

    def _ask(self) -> None:
        now_s = self._mono_s()
        may_ask = self._asked_s is None or now_s - self._asked_s >= PAUSE_S
        if may_ask and self._fetching is None:
            self._asked_s = now_s
            self._fetching = asyncio.create_task(self._refresh())

    async def get(self, kid: str) -> Key | None:
        """The key of this name; None: published keys cannot judge this token."""
        key = self.known(kid)
        if key is None and self._fetching is not None:
            await asyncio.shield(self._fetching)
            key = self._keys.get(kid)
        return key

    async def _refresh(self) -> None:
        try:
            async with asyncio.timeout(DEADLINE_S):
                text = await self._fetch()
            self._keys = parse(text)
            self._read_s = self._mono_s()
            self.fetched += 1
        except (OSError, ValueError, TimeoutError, msgspec.DecodeError) as error:
            self.failures += 1
            log.warning("token_keys_unavailable", error=repr(error)[:300])
        finally:
            self._fetching = None


def parse(text: bytes) -> dict[str, Key]:
    """The signing keys of a JWKS by `kid`; those that are not in ALGORITHMS are left out. Raises ValueError,
    msgspec.DecodeError."""
    if len(text) > MAX_BYTES:
        raise ValueError("the published keys are too large")
    rows = msgspec.json.decode(text, type=dict[str, list[dict[str, str | list[str]]]]).get("keys", [])
    keys: dict[str, Key] = {}
    for row in rows:
        family = row.get("crv") if row.get("kty") == "EC" else row.get("kty")
        algorithms = ALGORITHMS.get(str(family), ())
        if not algorithms:
            continue
        try:
            keys[str(row.get("kid", ""))] = Key(jwt.PyJWK(row), algorithms)
        except (jwt.PyJWKError, jwt.InvalidKeyError):
            continue
    if not keys:
        raise ValueError("no key that signs tokens was published")
    return keys
