"""What timing alone has to say."""

from msgspec import Struct

from sentinel.core.model import Symptom


class TimingSignal(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Returned as long as it holds. `key` is stable, so that the caller tells each one once.

    `value` and `threshold` are ratios 0..1 or quotients (SLOW by growth, STRAGGLER), seconds for HANG.
    """

    symptom: Symptom
    key: str
    sentence: str
    rank: int | None = None  # None: the job, or logs do not tell which rank
    worker: int | None = None  # of those that `rank`, a launcher, has started
    value: float = 0.0
    threshold: float = 0.0
    evidence: tuple[str, ...] = ()
    confidence: str = ""
    doubt: str = ""  # why this may be a job that is well


def how_far(step: int, told: bool) -> str:
    """How far a rank came: "iteration 237", or "237 iterations" where its log names none and they are counted from its
    start. Reads behind "after" and "made"."""
    if told:
        return f"iteration {step}"
    return "1 iteration" if step == 1 else f"{step} iterations"


def names(ranks: list[int]) -> str:
    """ "rank 3", "ranks 0-6", "ranks 0-3 and 5": how people read a set of ranks."""
    parts: list[str] = []
    ordered = sorted(set(ranks))
    start = 0
    while start < len(ordered):
        end = start
        while end + 1 < len(ordered) and ordered[end + 1] == ordered[end] + 1:
            end += 1
        first, last = ordered[start], ordered[end]
        parts.append(
            str(first) if first == last else f"{first}-{last}" if last > first + 1 else f"{first}, {last}"
        )
        start = end + 1
    if len(parts) > 6:  # a mail needs no list of a thousand ranks
        parts = [*parts[:5], f"{len(parts) - 5} more"]
    word = "rank" if len(ordered) == 1 else "ranks"
    return f"{word} {', '.join(parts)}"


def times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def length(seconds: float) -> str:
    """A length of time for people: "1.5 s", "12 min", "3.2 h"."""
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
