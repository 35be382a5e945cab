"""The diagram and the table in docs/recovery.md, from the code: `python -m sentinel.docs.recovery FILE`."""

import re
import sys
from pathlib import Path

from sentinel.core.model import Phase
from sentinel.core.recovery.transitions import TRANSITIONS

BEGIN, END = (
    "<!-- generated from sentinel.core.recovery.transitions.TRANSITIONS -->",
    "<!-- end of the generated part -->",
)
# What every phase shares would hide the paths in the diagram; the table has it.
_LEFT_OUT = ("DeadlinePassed", "EndRequested")


def diagram() -> str:
    """Mermaid, which code hosts draw: phases as states, events on the arrows."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (phase, event), (_, targets) in TRANSITIONS.items():
        for target in targets:
            if target != phase and event.__name__ not in _LEFT_OUT:
                arrows.setdefault((phase.value, target.value), []).append(event.__name__)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {Phase.DETECTED.value}"]
    lines += [f"    {a} --> {b}: {', '.join(events)}" for (a, b), events in arrows.items()]
    lines += [f"    {phase.value} --> [*]" for phase in Phase if phase.final]
    return "\n".join([*lines, "```"])


def table() -> str:
    lines = ["| in phase | the event | leads to |", "|---|---|---|"]
    for (phase, event), (_, targets) in TRANSITIONS.items():
        to = ", ".join(target.value for target in targets)
        lines.append(f"| {phase.value} | `{event.__name__}` | {to} |")
    return "\n".join(lines)


def renewed(text: str) -> str:
    """`text` with the generated part made again. Raises ValueError where the markers are missing."""
    return replaced(text, BEGIN, END, f"{diagram()}\n\n{table()}")


def replaced(text: str, begin: str, end: str, part: str) -> str:
    """`text` with `part` between these markers. Raises ValueError where they are missing."""
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"no {begin!r} … {end!r}")
    return pattern.sub(lambda _: f"{begin}\n\n{part}\n\n{end}", text)


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(renewed(file.read_text("utf-8")), "utf-8")
