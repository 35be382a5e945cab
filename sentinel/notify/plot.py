"""The step times around an incident as bars: drawn by tables in HTML, since readers strip pictures, and as one line of
text. Resident, so it imports nothing heavy."""

from collections.abc import Sequence

from msgspec import Struct

from sentinel.core.model import Pace
from sentinel.notify.text import step_time

FEWEST = 3  # points that are worth a plot
TALLEST = 56  # of a bar, in pixels
SEEN = 1.02  # times: a smaller change is not drawn
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


def plot(points: Sequence[Pace], opened_wall_s: float, *, changes: bool = False) -> Plot | None:
    """None: too little is known. The tallest bar is the longest step; times are told, so that nothing is read off.
    `changes`: how long steps take is what the incident is about. It changed among these, each of which may stand for
    many, and the bars show by how much: short steps are half as high as long ones, and single longer ones no higher."""
    known = [one for one in points if one.step_ms > 0]
    if len(known) < FEWEST:
        return None
    if changes:
        return _of_change(known)
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
        bars.append(_bar(one.step_ms / top, tone))
        line += _block(one.step_ms / top)
        last = one
    before = [one.step_ms for one in known if one.wall_s <= opened_wall_s]
    after = [one.step_ms for one in known if one.wall_s > opened_wall_s]
    told = [
        f"{name} {step_time(_median(some))}" for name, some in (("before", before), ("after", after)) if some
    ]
    return Plot(f"Step time {', '.join(told)}; longest {step_time(top)}", line, tuple(bars))


def _of_change(known: Sequence[Pace]) -> Plot:
    ordered = sorted(one.step_ms for one in known)
    least, top = ordered[len(ordered) // 10], ordered[-1 - len(ordered) // 10]
    if top < SEEN * least:
        return Plot(
            f"Step time {step_time(top)}", _block(1.0) * len(known), tuple(_bar(1.0, "bad") for _ in known)
        )
    base = max(0.0, 2 * least - top)
    heights = [min(1.0, max(0.0, (one.step_ms - base) / (top - base))) for one in known]
    tones = ["bad" if one.step_ms > (least + top) / 2 else "info" for one in known]
    bars = tuple(_bar(height, tone) for height, tone in zip(heights, tones, strict=True))
    return Plot(f"Step time {step_time(least)} to {step_time(top)}", "".join(map(_block, heights)), bars)


def _bar(height: float, tone: str) -> Bar:
    return Bar(max(2, round(TALLEST * height)), tone)


def _block(height: float) -> str:
    return _BLOCKS[min(len(_BLOCKS) - 1, int(len(_BLOCKS) * height))]


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
