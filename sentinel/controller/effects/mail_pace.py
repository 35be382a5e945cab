"""How many mails an address gets in an hour, and when."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from sentinel.core.now import Now

WINDOW_S = 3600.0
STORM_S = 60.0  # what is told within it is one storm; of a storm there is at most one digest in as long


class _Mail(Struct, frozen=True):
    at_s: float  # monotonic
    tells: int  # things
    over: bool  # of what is too much to go by itself


class Sent:
    """The mails of the last hour, by address. No two mails to one address bear the same time, so that of many records a
    digest counts once."""

    def __init__(self) -> None:
        self._mails: dict[str, dict[float, _Mail]] = {}  # address -> time of a mail, Unix seconds -> it

    def add(self, addresses: Sequence[str], now: Now, *, tells: int = 1, over: bool = False) -> float:
        """One more mail. Its time, Unix seconds, for the records."""
        at_wall_s = round(now.wall_s, 3)
        while any(at_wall_s in self._mails.get(address, ()) for address in addresses):
            at_wall_s = round(at_wall_s + 0.001, 3)
        self._add(addresses, at_wall_s, now, tells, over)
        return at_wall_s

    def add_recorded(self, addresses: Iterable[str], at_wall_s: float, now: Now) -> None:
        """As a record says, perhaps by the clock of another machine. What is counted already is not counted again."""
        self._add(addresses, at_wall_s, now, tells=1, over=False)

    def _add(self, addresses: Iterable[str], at_wall_s: float, now: Now, tells: int, over: bool) -> None:
        ago_s = now.wall_s - at_wall_s
        if abs(ago_s) < WINDOW_S:
            mail = _Mail(now.mono_s - max(0.0, ago_s), tells, over)
            for address in addresses:
                self._mails.setdefault(address, {}).setdefault(at_wall_s, mail)

    def times(self, address: str, now: Now) -> list[float]:
        """Monotonic, the oldest first."""
        mails = self._mails.get(address, {})
        for at_wall_s in [one for one, mail in mails.items() if mail.at_s <= now.mono_s - WINDOW_S]:
            del mails[at_wall_s]
        return sorted(mail.at_s for mail in mails.values())

    def told_lately(self, address: str, now: Now) -> int:
        """Things told within `STORM_S`."""
        mails = self._mails.get(address, {}).values()
        return sum(mail.tells for mail in mails if mail.at_s > now.mono_s - STORM_S)

    def digest_in_s(self, address: str, now: Now) -> float:
        """Seconds until the next digest of a storm may go."""
        over = [mail.at_s for mail in self._mails.get(address, {}).values() if mail.over]
        return max(0.0, max(over) + STORM_S - now.mono_s) if over else 0.0


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
