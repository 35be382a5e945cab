"""What keeps a controller from its work, told to people: when it has stood for a while, again when it is about more
than was told, and when it is over."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from sentinel.util.clock import Clock

STANDS_S = 20.0  # what is over sooner mended itself: a watch that broke, a leader that begins
# Nothing more is said of a trouble for as long as STANDS_S, then twice as long after each time, up to this.
MOST_REST_S = 3600.0
MOST = 20  # lines that stand at once: more say nothing more
FORGOTTEN_S = 3600.0  # a name that was gone for so long is a new one when it is back
NAMED = 3  # nodes or jobs of one trouble; of the others the number is told
TRIES = 3  # what fails less often in a row is tried again, and nobody need know
UNTOLD_S = 4 * 86_400.0  # that nobody got a mail is told so long after its cause: it is tried for three days


def several(names: Sequence[str], noun: str = "") -> str:
    """`n1, n2, n3 and 4 more nodes`; without a noun: `and 4 more`."""
    text = ", ".join(names[:NAMED])
    more = len(names) - NAMED
    if more <= 0:
        return text
    return f"{text} and {more} more" + (f" {noun}{'' if more == 1 else 's'}" if noun else "")


class Trouble(Struct, frozen=True):
    """`of`: the names it is about, where others may join them. The text may change without being told again."""

    text: str
    of: tuple[str, ...] = ()


def shared(text: str, problems: Mapping[str, str], noun: str) -> Trouble:
    """About all that have a problem, by name, with that of the first one. `text` names them at `{names}`."""
    names = tuple(sorted(problems))
    return Trouble(f"{text.format(names=several(names, noun))}: {problems[names[0]]}", names)


def untold(problems: Mapping[str, str], noun: str) -> dict[str, Trouble]:
    """`problems`: name -> why nobody got a mail about it."""
    return {f"{noun} mails": shared("nobody got the mail about {names}", problems, noun)} if problems else {}


def alone(texts: Mapping[str, str]) -> dict[str, Trouble]:
    """Troubles that nothing can join; what has no text is none."""
    return {key: Trouble(text) for key, text in texts.items() if text}


class _Told(Struct):
    text: str = ""
    rest_s: float = STANDS_S
    again_s: float = 0.0
    of: dict[str, float] = {}  # those that were told -> when each was last there
    joined: dict[str, float] = {}  # those that were not -> since when each is there

    def look(self, of: Iterable[str], now_s: float) -> None:
        self.of |= dict.fromkeys(self.of.keys() & of, now_s)
        self.of = {name: last_s for name, last_s in self.of.items() if now_s - last_s < FORGOTTEN_S}
        self.joined = {name: self.joined.get(name, now_s) for name in of if name not in self.of}

    def due(self, now_s: float) -> list[str]:
        """Those to tell now."""
        if now_s < self.again_s:
            return []
        return [name for name, since_s in self.joined.items() if now_s - since_s >= STANDS_S]

    def tell(self, text: str, names: Iterable[str], now_s: float) -> None:
        self.text = text
        self.of |= dict.fromkeys(names, now_s)
        self.again_s = now_s + self.rest_s
        self.rest_s = min(2 * self.rest_s, MOST_REST_S)


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
            text = f"in trouble for {stood_s:.0f} s: {trouble.text}"
            if (told := self._told.get(key)) is not None:
                told.look(trouble.of, now_s)
                if new := told.due(now_s):
                    self._say(f"{text}; new: {several(new)}")
                    told.tell(trouble.text, new, now_s)
            elif stood_s >= STANDS_S and len(self._told) < MOST:
                self._say(text)
                self._told[key] = told = _Told()
                told.tell(trouble.text, trouble.of, now_s)
