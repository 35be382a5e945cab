"""How many mails an address gets in an hour, and when."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from sentinel.core.now import Now

WINDOW_S = 3600.0
STORM_S = 60.0  # what is told within it is one storm; of a storm there is at most one digest in as long


class Sent:
    """The mails of the last hour, by address. No two mails to one address bear the same time, so that of many records a
    digest counts once."""

    def __init__(self) -> None:
        self._mails: dict[str, dict[float, float]] = {}  # address -> time of a mail -> the same, monotonic

    def add(self, addresses: Sequence[str], now: Now) -> float:
        """One more mail. Its time, Unix seconds, for the records."""
        at_wall_s = round(now.wall_s, 3)
        while any(at_wall_s in self._mails.get(address, ()) for address in addresses):
            at_wall_s = round(at_wall_s + 0.001, 3)
        self.add_recorded(addresses, at_wall_s, now)
        return at_wall_s

    def add_recorded(self, addresses: Iterable[str], at_wall_s: float, now: Now) -> None:
        """As a record says, perhaps by the clock of another machine. What is counted already is not counted again."""
        ago_s = now.wall_s - at_wall_s
        if abs(ago_s) < WINDOW_S:
            for address in addresses:
                self._mails.setdefault(address, {}).setdefault(at_wall_s, now.mono_s - max(0.0, ago_s))

    def times(self, address: str, now: Now) -> list[float]:
        """Monotonic, the oldest first."""
        mails = self._mails.get(address, {})
        for at_wall_s in [one for one, at_s in mails.items() if at_s <= now.mono_s - WINDOW_S]:
            del mails[at_wall_s]
        return sorted(mails.values())


class _Told(Struct, frozen=True):
    at_s: float  # monotonic
    things: int
    over: bool  # of what is too much to go by itself


class Storms:
    """What was told within `STORM_S`, by all who got the mail: one of them may get others too, which are no storm of
    these."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, ...], list[_Told]] = {}

    def add(self, recipients: tuple[str, ...], things: int, now: Now, *, over: bool) -> None:
        self._told = {one: told for one in self._told if (told := self._lately(one, now))}
        self._told.setdefault(recipients, []).append(_Told(now.mono_s, things, over))

    def things(self, recipients: tuple[str, ...], now: Now) -> int:
        return sum(one.things for one in self._lately(recipients, now))

    def digest_in_s(self, recipients: tuple[str, ...], now: Now) -> float:
        """Seconds until their next digest may go."""
        digests = [one.at_s for one in self._lately(recipients, now) if one.over]
        return max(digests) + STORM_S - now.mono_s if digests else 0.0

    def _lately(self, recipients: tuple[str, ...], now: Now) -> list[_Told]:
        return [one for one in self._told.get(recipients, ()) if one.at_s > now.mono_s - STORM_S]


def at_once_of(most: int) -> int:
    """How many of the mails of an hour may go as they come. Of the others one goes now and then, with all that waits: a
    storm must not use up the hour and leave how it ended untold."""
    return (most + 1) // 2


def opens_s(times: Sequence[float], most: int) -> float:
    """When an address that got mails at `times`, the last hour, may get one more."""
    gone, at_once = len(times), at_once_of(most)
    if gone < at_once:
        return 0.0
    as_it_comes_s = times[gone - at_once] + WINDOW_S
    if most == at_once:
        return as_it_comes_s
    spread_s = times[-1] + WINDOW_S / (most - at_once)
    if gone >= most:
        spread_s = max(spread_s, times[gone - most] + WINDOW_S)
    return min(as_it_comes_s, spread_s)
