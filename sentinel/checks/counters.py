"""Counters of hardware as rates: only growth counts, and only as much of it as lies in a window."""

from msgspec import Struct

SLOTS = 16  # growth is kept in so many steps of a window: this bounds what is saved


class Tally(Struct, frozen=True, omit_defaults=True):
    """A counter's newest value, and how much it grew lately. Times are CLOCK_BOOTTIME."""

    value: int
    at_s: float
    grown: tuple[tuple[float, float], ...] = ()  # (when, how much), oldest first, at most SLOTS + 1


def counted(
    old: Tally | None, value: int | None, now_s: float, window_s: float, *, held: bool = False
) -> Tally | None:
    """The tally after one more reading; None (could not be read) leaves it as it is.

    A counter that went back was reset or has wrapped: how far it went in between is not known, and is not
    counted. Nor is growth while `held`. Where the readings are further apart than the window, the growth
    is taken to be even.
    """
    if value is None:
        return old
    if old is None:
        return Tally(value, now_s)
    growth = 0.0 if held else float(max(0, value - old.value))
    elapsed_s = now_s - old.at_s
    if elapsed_s > window_s:
        growth *= window_s / elapsed_s
    grown = tuple(entry for entry in old.grown if now_s - entry[0] < window_s)
    if growth:
        if grown and now_s - grown[-1][0] < window_s / SLOTS:
            grown = (*grown[:-1], (grown[-1][0], grown[-1][1] + growth))
        else:
            grown = (*grown, (now_s, growth))
    return Tally(value, now_s, grown)


def lately(tally: Tally | None) -> float:
    """Growth within the window that `counted` was given."""
    return sum(amount for _, amount in tally.grown) if tally else 0.0
