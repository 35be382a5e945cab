"""The diagram and the table in docs/fleet.md, from the code: `python -m sentinel.docs.fleet FILE`."""

import sys
from pathlib import Path

from sentinel.core.fleet.model import State
from sentinel.core.fleet.record import TRANSITIONS
from sentinel.docs.recovery import replaced

BEGIN, END = (
    "<!-- generated from sentinel.core.fleet.record.TRANSITIONS -->",
    "<!-- end of the generated part -->",
)
NEW = "(none)"


def diagram() -> str:
    """Mermaid, which code hosts draw: states, and events on the arrows between two of them."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (state, event), (_, targets) in TRANSITIONS.items():
        for target in targets:
            if target != state:
                start = "[*]" if state is None else state.value
                arrows.setdefault((start, target.value), []).append(event.__name__)
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f"    {a} --> {b}: {', '.join(events)}" for (a, b), events in arrows.items()]
    lines += [f"    {state.value} --> [*]" for state in State if not state.open]
    return "\n".join([*lines, "```"])


def table() -> str:
    lines = ["| in state | the event | which means | leads to |", "|---|---|---|---|"]
    for (state, event), (_, targets) in TRANSITIONS.items():
        means = " ".join((event.__doc__ or "").split("\n\n")[0].split())
        to = ", ".join(target.value for target in targets)
        lines.append(f"| {NEW if state is None else state.value} | `{event.__name__}` | {means} | {to} |")
    return "\n".join(lines)


def renewed(text: str) -> str:
    """`text` with the generated part made again. Raises ValueError where the markers are missing."""
    return replaced(text, BEGIN, END, f"{diagram()}\n\n{table()}")


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(renewed(file.read_text("utf-8")), "utf-8")
