"""What `sentinel status` shows, once or again and again: on a terminal one picture takes the place of the one before,
without flicker and never larger than the screen; in a pipe they follow one another."""

import shutil
import sys
from collections.abc import Iterable, Sequence

from sentinel.console.tables import complain, put
from sentinel.web.words import fit, printable, when

WATCH_S = 2.0

_HOME, _TO_END_OF_LINE, _TO_END, _CLEAR = "\x1b[H", "\x1b[K", "\x1b[J", "\x1b[2J"


class Shown:
    """`every_s` 0: shown once."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._screen = every_s > 0 and sys.stdout is not None and sys.stdout.isatty()
        self._lines: Sequence[str] = ()
        self._looked_wall_s = 0.0
        self._first = True

    @property
    def anything(self) -> bool:
        return not self._first

    def show(self, lines: Sequence[str], troubles: Iterable[str], now_wall_s: float) -> None:
        """Raises BrokenPipeError when nobody reads."""
        self._lines, self._looked_wall_s = lines, now_wall_s
        if self._screen:
            self._draw([*lines, *(printable(one) for one in troubles)], f"{when(now_wall_s, now_wall_s)}")
            return
        self._first = False
        put("\n".join(lines) + "\n")
        for one in troubles:
            complain(one)

    def blind(self, why: str) -> None:
        """Nothing new can be seen: what was seen last stays, and it is said that it is old."""
        if self._screen:
            seen = when(self._looked_wall_s)
            self._draw([printable(f"Since {seen} nothing is seen: {why}"), "", *self._lines], f"seen {seen}")
        else:
            complain(why)

    def _draw(self, lines: Sequence[str], told: str) -> None:
        columns, rows = shutil.get_terminal_size()
        foot = f"{told}, again every {self._every_s:.0f} s; Ctrl-C ends it"
        room = max(1, rows - 2)
        if len(lines) > room:
            foot += f"; {len(lines) - room} more lines have no room: make the window larger, or name one job or node"
            lines = lines[:room]
        drawn = "".join(f"{fit(line, columns)}{_TO_END_OF_LINE}\r\n" for line in lines)
        start = _CLEAR + _HOME if self._first else _HOME
        self._first = False
        put(f"{start}{drawn}{fit(foot, columns)}{_TO_END_OF_LINE}{_TO_END}")

    def end(self) -> None:
        """The next thing that is written begins a line of its own."""
        if self._screen and not self._first:
            put("\n")
