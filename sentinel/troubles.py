"""What keeps a controller from its work, told to people: when it has stood for a while, again when it is about more
than was told, and when it is over."""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from sentinel.clock import Clock

STANDS_S = 20.0  # what is over sooner mended itself: a watch that broke, a leader that begins
# Nothing more is said of a trouble for as long as STANDS_S, then twice as long after each time, up to this.
MOST_REST_S = 3600.0
MOST = 20  # lines that stand at once: more say nothing more
NAMED = 3  # nodes or jobs of one trouble; of the others the number is told
TRIES = 3  # what fails less often in a row is tried again, and nobody need know


def several(names: Sequence[str], noun: str) -> str:
    """`n1, n2, n3 and 4 more nodes`."""
    text = ", ".join(names[:NAMED])
    more = len(names) - NAMED
    return text if more <= 0 else f"{text} and {more} more {noun}{'' if more == 1 else 's'}"


class Trouble(Struct, frozen=True):
    """`of`: the names it is about, where others may join them. The text may change without being told again."""

    text: str
    of: tuple[str, ...] = ()


def alone(texts: Mapping[str, str]) -> dict[str, Trouble]:
    """Troubles that nothing can join."""
    return {key: Trouble(text) for key, text in texts.items()}


class _Told(Struct):
    text: str = ""
    of: frozenset[str] = frozenset()  # all that were told, gone meanwhile or not
    rest_s: float = STANDS_S
    again_s: float = 0.0


class Troubles:
    def __init__(self, say: Callable[[str], None], clock: Clock) -> None:
        self._say, self._clock = say, clock
        self._since: dict[str, float] = {}
        self._told: dict[str, _Told] = {}

    def look(self, standing: Mapping[str, Trouble]) -> None:
        """`standing`: all of them as they are now, each by a key that stays the same."""
        now_s = self._clock().mono_s
        for key in self._since.keys() - standing.keys():
            stood_s = now_s - self._since.pop(key)
            if (told := self._told.pop(key, None)) is not None:
                self._say(f"over after {stood_s:.0f} s: {told.text}")
        for key, trouble in standing.items():
            stood_s = now_s - self._since.setdefault(key, now_s)
            if self._is_due(key, trouble, stood_s, now_s):
                self._say(f"in trouble for {stood_s:.0f} s: {trouble.text}")
                told = self._told.setdefault(key, _Told())
                told.text, told.of = trouble.text, told.of.union(trouble.of)
                told.again_s = now_s + told.rest_s
                told.rest_s = min(2 * told.rest_s, MOST_REST_S)

    def _is_due(self, key: str, trouble: Trouble, stood_s: float, now_s: float) -> bool:
        if (told := self._told.get(key)) is None:
            return stood_s >= STANDS_S and len(self._told) < MOST
        return now_s >= told.again_s and not told.of.issuperset(trouble.of)
