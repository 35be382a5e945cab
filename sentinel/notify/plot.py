"""The step times around an incident as bars: drawn by tables in HTML, since readers strip pictures, and as one line of
text. Resident, so it imports nothing heavy."""

from collections.abc import Sequence

from msgspec import Struct

from sentinel.core.model import Pace
from sentinel.notify.text import step_time

FEWEST = 3  # points that are worth a plot
TALLEST = 56  # of a bar, in pixels
GAP = 5.0  # times the usual time from one iteration to the next: something lies between
_BLOCKS = "▁▂▃▄▅▆▇█"


class Bar(Struct, frozen=True):
    """`px` 0: nothing was seen there. `tone`: of a mail's colours."""

    px: int
    tone: str


class Plot(Struct, frozen=True, omit_defaults=True):
    title: str  # what the bars say, in numbers
    line: str
    bars: tuple[Bar, ...]


def plot(points: Sequence[Pace], opened_wall_s: float) -> Plot | None:
    """None: too little is known. The tallest bar is the longest step; times are told, so that nothing is read off."""
    known = [one for one in points if one.step_ms > 0]
    if len(known) < FEWEST:
        return None
    top = max(one.step_ms for one in known)
    usual = _median([one.step_ms for one in known])
    bars, line = [], ""
    last: Pace | None = None
    for one in known:
        if last is not None and one.wall_s - last.wall_s > GAP * max(one.step_ms, last.step_ms) / 1000:
            bars.append(Bar(0, "info"))
            line += " "
        slow = one.step_ms > 1.5 * usual
        tone = "bad" if slow else "info" if one.wall_s <= opened_wall_s else "good"
        bars.append(Bar(max(2, round(TALLEST * one.step_ms / top)), tone))
        line += _BLOCKS[min(len(_BLOCKS) - 1, int(len(_BLOCKS) * one.step_ms / top))]
        last = one
    before = [one.step_ms for one in known if one.wall_s <= opened_wall_s]
    after = [one.step_ms for one in known if one.wall_s > opened_wall_s]
    told = [
        f"{name} {step_time(_median(some))}" for name, some in (("before", before), ("after", after)) if some
    ]
    return Plot(f"Step time {', '.join(told)}; longest {step_time(top)}", line, tuple(bars))


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
