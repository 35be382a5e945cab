"""`sentinel code`: what people say of findings' codes, in a ConfigMap beside the controller.

Each of its values is JSON, `{"code": "XID 31", "say": "ignore", "who": "anna", "why": "the rule is wrong", "at":
"2026-11-24T13:00:00Z"}`; the key names nothing. It stands until the key is taken away.
"""

import asyncio
import contextlib
import hashlib
import re
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from sentinel.cluster.kubernetes.client import Client
from sentinel.cluster.kubernetes.objects import CONFIG_MAPS, ConfigMap
from sentinel.cluster.kubernetes.reflector import Reflector
from sentinel.core.fleet.model import CodeWord, Say
from sentinel.util.clock import Clock

NAME = "sentinel-codes"
FOLLOWED = "sentinel.dev/codes"  # annotation of the Lease: the resourceVersion that the leader goes by; none: of none
WAIT_S = 10.0
MAX_WORDS = 100
MAX_TEXT = 300
KEPT_S = 30 * 86_400.0  # a go-on counts for what was found before its day was over


class _Word(Struct, forbid_unknown_fields=True):
    code: str
    say: Say
    who: str = ""
    why: str = ""
    at: datetime | None = None


class Said(Struct, frozen=True):
    """What one version of the ConfigMap says. `troubles`: which of it cannot be read, a sentence for each."""

    words: tuple[CodeWord, ...] = ()
    troubles: tuple[str, ...] = ()


class Codes:
    """`reflector.run` follows it until it is cancelled."""

    def __init__(self, client: Client, namespace: str, clock: Clock) -> None:
        self.reflector = Reflector(
            client,
            CONFIG_MAPS,
            ConfigMap,
            lambda _: None,
            namespace=namespace,
            fields=f"metadata.name={NAME}",
            clock=clock,
        )
        self._read: tuple[ConfigMap | None, Said] = (None, Said())

    async def known(self) -> None:
        """For a moment: see `unread`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                await self.reflector.wait_synced()

    @property
    def unread(self) -> str:
        """Why it is not known yet what people say: nothing new is done to nodes then. "": it is."""
        if self.reflector.lists:
            return ""
        return f"what people say of codes cannot be read yet: {self.reflector.problem or 'no answer'}"

    @property
    def said(self) -> Said:
        """What was read last counts while the API server is away."""
        found = next(iter(self.reflector.objects.values()), None)
        if found is not self._read[0]:
            self._read = (found, Said() if found is None else read(found))
        return self._read[1]

    @property
    def version(self) -> str:
        """Of what `said` was read from."""
        found = next(iter(self.reflector.objects.values()), None)
        return "" if found is None else found.metadata.resource_version


def key_of(code: str) -> str:
    """Readable, and another one for each code."""
    unique = hashlib.blake2b(code.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{re.sub(r'[^a-zA-Z0-9]+', '-', code)[:100].strip('-')}.{unique}".lstrip(".")


def keys_of(found: ConfigMap, code: str) -> set[str]:
    """Under which something is said of this code: a person may have named them as he likes."""
    keys = set()
    for key, text in found.data.items():
        with contextlib.suppress(ValueError):
            if _word(text).code == code:
                keys.add(key)
    return keys | ({key_of(code)} & found.data.keys())


def stale(found: ConfigMap, now_wall_s: float) -> set[str]:
    """Keys of words that hold no more."""
    keys = set()
    for key, text in found.data.items():
        with contextlib.suppress(ValueError):
            word = _word(text)
            if word.say is Say.GO_ON and now_wall_s - word.at_wall_s > KEPT_S:
                keys.add(key)
    return keys


def written(code: str, say: Say, who: str, why: str, now: datetime) -> str:
    """The value for one word."""
    word = _Word(code=code, say=say, who=who, why=why, at=now.astimezone(UTC).replace(microsecond=0))
    return msgspec.json.encode(word).decode()


def read(found: ConfigMap) -> Said:
    words, troubles = [], []
    for key, text in sorted(found.data.items()):
        try:
            words.append(_word(text))
        except ValueError as error:
            troubles.append(
                f"the ConfigMap {NAME} says nothing readable in {key[:80]}: {str(error)[:MAX_TEXT]}"
            )
    if len(words) > MAX_WORDS:
        troubles.append(f"the ConfigMap {NAME} names {len(words)} codes: only the first {MAX_WORDS} count")
    return Said(tuple(words[:MAX_WORDS]), tuple(troubles))


def _word(text: str) -> CodeWord:
    """Raises ValueError."""
    one = msgspec.json.decode(text, type=_Word)
    if not one.code.strip() or len(one.code) > MAX_TEXT:
        raise ValueError(f"a code has 1 to {MAX_TEXT} characters")
    if one.say is Say.GO_ON and (one.at is None or one.at.tzinfo is None):
        raise ValueError('go-on holds for a day: "at" must say from when, as 2026-11-24T13:00:00Z')
    at_wall_s = one.at.timestamp() if one.at is not None else 0.0
    by, why = one.who.strip()[:MAX_TEXT], one.why.strip()[:MAX_TEXT]
    return CodeWord(code=one.code, say=one.say, by=by, why=why, at_wall_s=at_wall_s)
