"""What keeps a controller from its work, told to people: once when it has stood for a while, once when it is over."""

from collections.abc import Callable, Mapping, Sequence

from sentinel.clock import Clock

STANDS_S = 20.0  # what is over sooner mended itself: a watch that broke, a leader that begins
MOST = 20  # lines that stand at once: more say nothing more
NAMED = 3  # nodes or jobs of one trouble; of the others the number is told
TRIES = 3  # what fails less often in a row is tried again, and nobody need know


def several(names: Sequence[str], noun: str) -> str:
    """`n1, n2, n3 and 4 more nodes`."""
    text = ", ".join(names[:NAMED])
    more = len(names) - NAMED
    return text if more <= 0 else f"{text} and {more} more {noun}{'' if more == 1 else 's'}"


class Troubles:
    def __init__(self, say: Callable[[str], None], clock: Clock) -> None:
        self._say, self._clock = say, clock
        self._since: dict[str, float] = {}
        self._said: dict[str, str] = {}

    def look(self, standing: Mapping[str, str]) -> None:
        """`standing`: all of them as they are now; a key that stays the same -> a sentence, which may change."""
        now_s = self._clock().mono_s
        for key in self._since.keys() - standing.keys():
            stood_s = now_s - self._since.pop(key)
            if (text := self._said.pop(key, None)) is not None:
                self._say(f"over after {stood_s:.0f} s: {text}")
        for key, text in standing.items():
            since_s = self._since.setdefault(key, now_s)
            if key not in self._said and now_s - since_s >= STANDS_S and len(self._said) < MOST:
                self._said[key] = text
                self._say(f"in trouble for {now_s - since_s:.0f} s: {text}")
