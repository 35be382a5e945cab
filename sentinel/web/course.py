"""The step time of a job over the time that it is watched, as a plot with the job's incidents in it.

SVG without a style of its own, which the pages' policy forbids: page.css says how it looks, in both modes. It is
stretched to the width there is, so its words stand beside it.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import floor, log10

from sentinel.core.model import Incident
from sentinel.core.timing.course import CoursePoint
from sentinel.core.timing.statistics import median
from sentinel.notify.plot import FEWEST, GAP
from sentinel.notify.text import step_time
from sentinel.web.html import card, esc
from sentinel.web.view import View
from sentinel.web.words import ratio, when

WIDE, HIGH = 1000.0, 100.0  # of the drawing, in its own units
CUT = 4.0  # times the usual: what is longer is drawn so high, or nothing else would be seen
_ROUND = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)


def course(view: View) -> str:
    """ "" with too few points."""
    points = view.course
    if len(points) < FEWEST:
        return ""
    start_s = points[0].wall_s
    end_s = max(points[-1].wall_s, points[-1].wall_s if view.state.final else view.at_wall_s)
    usual = median([one.step_ms for one in points])
    top = _top(min(CUT * usual, max(one.step_ms for one in points)))
    marked = [one for one in view.incidents if (one.closed_wall_s or view.at_wall_s) >= start_s]

    def x(wall_s: float) -> float:
        return WIDE * min(1.0, max(0.0, (wall_s - start_s) / ((end_s - start_s) or 1.0)))

    def y(step_ms: float) -> float:
        return HIGH * (1.0 - min(1.0, step_ms / top))

    line = area = ""
    for run in _runs(points):
        drawn = [(x(one.wall_s), y(one.step_ms)) for one in run]
        line += "M" + "L".join(f"{across:.1f} {down:.1f}" for across, down in drawn) + "h.5"
        known = [(x(one.wall_s), y(one.step_ms * one.ratio)) for one in run if one.ratio is not None]
        if known:
            over = "L".join(f"{across:.1f} {down:.1f}" for across, down in known)
            area += f"M{known[0][0]:.1f} {HIGH:.0f}L{over}L{known[-1][0]:.1f} {HIGH:.0f}z"
    told = _told(points, usual, start_s, view)
    marks = "".join(_mark(one, x(one.opened_wall_s), x(one.closed_wall_s or end_s), view) for one in marked)
    grid = f"M0 {HIGH / 2:.0f}H{WIDE:.0f}"
    keys = _key("step", "step time") + (_key("work", "hardware time") if area else "")
    if marked:
        keys += _key("mark", "1 incident" if len(marked) == 1 else f"{len(marked)} incidents")
    times = ", ".join(when(one.opened_wall_s, view.at_wall_s) for one in reversed(marked))
    spoken = f"{told} Incidents: {times}." if marked else told
    heights = "".join(f"<span>{text}</span>" for text in (step_time(top), step_time(top / 2), "0"))
    content = (
        f'<p class="lead soft">{esc(told)}</p><div class="plot">'
        f'<div class="axis" aria-hidden="true">{heights}</div>'
        f'<svg viewBox="0 0 {WIDE:.0f} {HIGH:.0f}" preserveAspectRatio="none" role="img" aria-label="{esc(spoken)}">'
        f'{marks}<path class="work" d="{area}"/><path class="grid" d="{grid}"/><path class="step" d="{line}"/></svg>'
        f'<p class="ends" aria-hidden="true"><span>{when(start_s, view.at_wall_s)}</span>'
        f'<span>{when(end_s, view.at_wall_s)}</span></p><p class="ends keys" aria-hidden="true">{keys}</p></div>'
    )
    return card("Step time", content)


def _runs(points: Sequence[CoursePoint]) -> Iterable[list[CoursePoint]]:
    """Without the long times between them: no line is drawn where no iteration was seen."""
    apart = [after.wall_s - before.wall_s for before, after in pairwise(points)]
    limit = GAP * median(apart)
    run = [points[0]]
    for gap_s, one in zip(apart, points[1:], strict=True):
        if gap_s > limit:
            yield run
            run = []
        run.append(one)
    yield run


def _told(points: Sequence[CoursePoint], usual: float, start_s: float, view: View) -> str:
    longest = max(points, key=lambda one: one.step_ms)
    now = "at the end" if view.state.final else "lately"
    told = f"{step_time(points[-1].step_ms)} {now}, {step_time(usual)} usually, at most {step_time(longest.step_ms)} "
    told += f"around {when(longest.wall_s, view.at_wall_s)}, since {when(start_s, view.at_wall_s)}."
    ratios = [one.ratio for one in points if one.ratio is not None]
    return told + (f" Hardware ratio {ratio(ratios[-1])}, usually {ratio(median(ratios))}." if ratios else "")


def _mark(incident: Incident, start: float, end: float, view: View) -> str:
    """From when it was opened until it was closed."""
    title = f"{when(incident.opened_wall_s, view.at_wall_s)}: {incident.verdict.sentence}"
    band = f'<rect x="{start:.1f}" y="0" width="{max(0.0, end - start):.1f}" height="{HIGH:.0f}"/>'
    edge = f'<path d="M{start:.1f} 0V{HIGH:.0f}"/>'
    return f'<g class="mark"><title>{esc(title)}</title>{band}{edge}</g>'


def _key(css: str, text: str) -> str:
    return f'<span><i class="{css}"></i>{text}</span>'


def _top(longest_ms: float) -> float:
    """A round number that is not less."""
    scale = 10.0 ** floor(log10(longest_ms)) if longest_ms > 0 else 1.0
    return scale * next((one for one in _ROUND if one * scale >= longest_ms * 1.02), 2 * _ROUND[-1])
