"""A picture of what something costs by how many there are: one line for each series, straight axes from zero, SVG."""

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 320, 60, 20, 40, 50
COLOURS = ("#2563eb", "#c2410c", "#15803d")

Point = tuple[float, float]


def svg(title: str, across: str, series: Mapping[str, Sequence[Point]]) -> str:
    """`series`: name -> (x, y), both at least 0. Raises ValueError where there is no point."""
    points = [one for some in series.values() for one in some]
    if not points:
        raise ValueError("there is nothing to draw")
    most_x, most_y = (_round_up(max(one[k] for one in points)) for k in (0, 1))
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(x: float, y: float) -> str:
        return f"{LEFT + wide * x / most_x:.1f},{TOP + high * (1 - y / most_y):.1f}"

    parts = [_text(LEFT, 22, title, "start", bold=True), _text(LEFT + wide / 2, HEIGHT - 10, across)]
    for k in range(6):
        x, y = most_x * k / 5, most_y * k / 5
        right, height = place(most_x, y), float(place(0, y).partition(",")[2])
        parts.append(f'<path d="M{place(0, y)}L{right}" stroke="#d1d5db"/>')
        parts.append(_text(LEFT - 8, height + 4, f"{y:g}", "end"))
        parts.append(_text(float(place(x, 0).partition(",")[0]), HEIGHT - BOTTOM + 18, f"{x:,.0f}"))
    for k, (name, some) in enumerate(series.items()):
        colour = COLOURS[k % len(COLOURS)]
        way = "L".join(place(*one) for one in some)
        parts.append(f'<path d="M{way}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for one in some:
            left, _, top = place(*one).partition(",")
            parts.append(f'<circle cx="{left}" cy="{top}" r="4" fill="{colour}"/>')
        parts.append(_text(LEFT + 12, TOP + 16 + 18 * k, name, "start", colour))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12">\n<rect width="100%" height="100%" fill="#ffffff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _text(
    x: float, y: float, words: str, anchor: str = "middle", colour: str = "#111827", *, bold: bool = False
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"{weight}>{escape(words)}</text>'
    )


def _round_up(value: float) -> float:
    """The next of 1, 1.5, 2, 3, 4, 5, 6, 8, 10 times a power of ten."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(unit * k for k in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if unit * k >= value)
