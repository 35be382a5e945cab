"""`python -m tests.trainers.report docs/trainers.md`: what `make test-trainers` found, as a page.

Each test writes rows of one kind, and each kind is a table of its own: a function of TABLES makes it of the rows.
A kind of which there are none keeps the table that the page had.
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sentinel.failures import failure_classes

REPO = Path(__file__).parents[2]
ROWS = REPO / "build/trainer-rows"
Row = dict[str, Any]

HEAD = """\
# Tried with real trainers

`make test-trainers` runs real training programs under `sentinel run` and writes this page: nothing here is written by
hand.
"""
LAUNCHERS = """\
Two ranks of a small training (DistributedDataParallel over gloo, on the CPU) are started by each launcher, and one of
them is broken in the middle. It saves each 5 steps, the policy says `resume` and `hang.after: 10s`. Each cell: what the
verdict says, which rank it names by its number in the job, and the seconds from the fault until the job iterated again
from its checkpoint. Those of a hang hold the 10 s. An empty cell was not run.
"""


def launchers(rows: list[Row]) -> str:
    """Faults down, launchers across. The least number of `order` comes first."""
    across = sorted({(row["order"][0], row["launcher"]) for row in rows})
    down = sorted({(row["order"][1], row["fault"]) for row in rows})
    cells = {(row["launcher"], row["fault"]): launcher_cell(row) for row in rows}
    lines = ["| | " + " | ".join(launcher for _, launcher in across) + " |", "|---" * (len(across) + 1) + "|"]
    for _, fault in down:
        lines.append(f"| {fault} | " + " | ".join(cells.get((one, fault), "") for _, one in across) + " |")
    return "\n".join(lines)


def launcher_cell(row: Row) -> str:
    who = "no rank" if row["rank"] is None else f"rank {row['rank']}"
    what = f"{row['seconds']:.0f} s" if row["restarted"] else "not restarted"
    return f"{failure_classes()[row['failure']].title}; {who}; {what}"


# The kind of a row -> heading, what stands above the table, and what makes it.
TABLES: dict[str, tuple[str, str, Callable[[list[Row]], str]]] = {
    "launchers": ("Launchers and faults", LAUNCHERS, launchers),
}


def page(rows: list[Row], before: str) -> str:
    parts = [HEAD]
    for kind, (heading, about, table) in TABLES.items():
        if own := [row for row in rows if row["kind"] == kind]:
            parts.append(f"## {heading}\n\n{about}\nMade with {versions(own)}.\n\n{table(own)}\n")
        elif kept := re.search(
            rf"^## {re.escape(heading)}\n.*?(?=^## |\Z)", before, re.MULTILINE | re.DOTALL
        ):
            parts.append(kept.group().rstrip("\n") + "\n")
    return "\n".join(parts)


def versions(rows: list[Row]) -> str:
    """Of all runs that the rows are from."""
    return ", ".join(
        sorted({f"{name} {version}" for row in rows for name, version in row["versions"].items()})
    )


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        print("usage: python -m tests.trainers.report PAGE", file=sys.stderr)
        return 64
    target = Path(argv[0])
    rows = [json.loads(path.read_text()) for path in sorted(ROWS.glob("*.json"))]
    target.write_text(page(rows, target.read_text() if target.exists() else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
