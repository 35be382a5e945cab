"""`python -m tests.trainers.report docs/trainers.md`: what `make test-trainers` found, as a page.

Each test writes rows of one kind, and each kind is a table of its own: a function of TABLES makes it of the rows.
Where they are not of all that a table of the page tells, it stays as it was, and what is missing is said.
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sentinel.rules.failures import failure_classes

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
them is broken in the middle. It saves each 5 steps, the policy says `resume` and `hang.after: 10s`; two rows have no
policy. Each cell: what the verdict says, which rank it names by its number in the job, and the seconds from the fault
until the job iterated again from its checkpoint. Those of a hang hold the 10 s (30 s with Lightning, whose end takes
longer on a busy machine). deepspeed tells of the process that it finds first to have ended, which may be the one that
lost the other: then its cell says so. A rank that exits without a word does so by `sys.exit(1)`: with gloo torch 2.15
aborts at the end of a program now and then, and its cell may say that instead. For that reason a training that is
through ends by `os._exit(0)` here; what Sentinel does with one that aborts then is in [triage.md](triage.md). An empty
cell was not run.
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


GPUS = """\
The same training over NCCL on a GPU that both ranks share, with the faults that only a GPU knows. `make test-trainers`
runs these where there is one. Where a rank loops the stacks are in the mail, but no rank is named: the other one waits
for its GPU, which may be its own doing. Six of these trials ran at a time on one card, so the seconds are long. NCCL's
watchdog ends its process a minute after it has told of the timeout; below mp.spawn nothing in the log tells whom it had
waited for. An empty cell was not run.
"""
TRAINERS = """\
Two ranks with what `sentinel.integrations` has for each ([save.md](save.md)). *Steps read*: the last one is known to
Sentinel. *Asked by the signal*: one rank alone gets it, and all save so many steps later. *Save proved*: how long
Sentinel waited for the proof where it stopped the job. *Weights*: those of a training that was stopped so and resumed,
and of one that was not. *Evaluation*: how long it went on, and after what silence the policy calls a hang.
"""


def trainers(rows: list[Row]) -> str:
    lines = ["| | steps read | asked by the signal | save proved | weights | evaluation |", "|---" * 6 + "|"]
    for row in sorted(rows, key=lambda row: row["order"]):
        lines.append(
            f"| {row['trainer']} | all {row['steps']} | {row['late']} step{'s' * (row['late'] != 1)} later "
            f"| after {row['proved_s']:.1f} s | the same | {row['evaluation_s']} s, left alone ({row['hang_s']} s) |"
        )
    return "\n".join(lines)


# The kind of a row -> heading, what stands above the table, and what makes it.
TABLES: dict[str, tuple[str, str, Callable[[list[Row]], str]]] = {
    "trainers": ("Trainers", TRAINERS, trainers),
    "launchers": ("Launchers and faults", LAUNCHERS, launchers),
    "gpus": ("Faults on a GPU", GPUS, launchers),
}


def page(rows: list[Row], before: str) -> tuple[str, list[str]]:
    """The page, and what it had told already of which there are no rows."""
    parts, missing = [HEAD], []
    for kind, (heading, about, table) in TABLES.items():
        own = [row for row in rows if row["kind"] == kind]
        made = f"Made with {versions(own)}.\n\n{table(own)}\n" if own else ""
        there = re.search(rf"^## {re.escape(heading)}\n.*?^(Made with .*?)(?=^## |\Z)", before, re.M | re.S)
        kept = there[1].rstrip("\n") + "\n" if there else ""
        lost = sorted(cells(kept) - cells(made))
        missing += [f"{heading}: {row}: {column}" for row, column in lost]
        if made or kept:
            parts.append(f"## {heading}\n\n{about}\n{kept if lost else made}")
    return "\n".join(parts), missing


def cells(text: str) -> set[tuple[str, str]]:
    """(row, column) of each cell of a table that tells something."""
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    heads, *rows = lines or [[""]]
    return {
        (row[0].strip(), head.strip())
        for row in rows
        for head, cell in zip(heads[1:], row[1:], strict=True)
        if cell.strip()
    }


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
    text, missing = page(rows, target.read_text() if target.exists() else "")
    target.write_text(text)
    if missing:
        print(f"{target}: of these nothing new is known, so their tables stay as they were", end=" ")
        print("(one that is deleted there is made of what was run):", *missing, sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
