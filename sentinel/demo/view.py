"""What `sentinel demo` prints: coloured on a terminal, plain elsewhere and where NO_COLOR is set."""

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Protocol

from sentinel.core.model import Incident

INDENT = 25  # of what a phase says: behind the time and the phase
RED, GREEN, YELLOW, BOLD, DIM = "31", "32", "33", "1", "2"


class Row(Protocol):
    """One fault of the summary; see sentinel.cli.demo.Shown."""

    @property
    def fault(self) -> str: ...
    @property
    def detected_s(self) -> float | None: ...
    @property
    def recovered_s(self) -> float | None: ...
    @property
    def incident(self) -> Incident | None: ...
    @property
    def restarts(self) -> int: ...
    @property
    def subject(self) -> str: ...


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f} s"


class View:
    def __init__(self) -> None:
        self._colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self._columns = max(60, min(shutil.get_terminal_size((110, 24)).columns, 110))

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text

    def started(self, command: str, folder: str) -> None:
        print(f"$ {self._paint(BOLD, command)}")
        print(
            self._paint(DIM, f"  a small model, two ranks, real checkpoints; all files in {folder}"),
            flush=True,
        )

    def fault(self, name: str, what: str, step: int) -> None:
        print(f"\n{self._paint(YELLOW, name)}: {what}, at step {step}", flush=True)

    def step(self, after_s: float, phase: str, sentence: str) -> None:
        colour = GREEN if phase == "Recovered" else DIM
        first, *rest = textwrap.wrap(sentence, self._columns - INDENT) or [""]
        print(f"  {after_s:6.2f} s  {self._paint(colour, f'{phase:<12}')} {first}")
        print("".join(" " * INDENT + line + "\n" for line in rest), end="", flush=True)

    def trouble(self, sentence: str) -> None:
        print(self._paint(RED, f"  {sentence}"), flush=True)

    def summary(self, rows: Sequence[Row]) -> None:
        head = ("fault", "detected", "recovered", "steps lost", "restarts used", "mail")
        table = [head]
        for row in rows:
            lost = row.incident.lost.steps if row.incident and row.incident.lost else None
            cells = (_seconds(row.detected_s), _seconds(row.recovered_s), "-" if lost is None else str(lost))
            table.append((row.fault, *cells, str(row.restarts), row.subject or "none"))
        widths = [max(len(line[column]) for line in table) for column in range(len(head))]
        print()
        for number, line in enumerate(table):
            text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            failed = number > 0 and rows[number - 1].recovered_s is None
            print(self._paint(BOLD if number == 0 else RED if failed else "0", text))

    def result(self, loss: float | None, undisturbed: float | None, code: int | None, took_s: float) -> None:
        def shown(value: float | None) -> str:
            return "unknown" if value is None else f"{value:.6f}"

        ended = "did not end" if code is None else f"ended with exit code {code}"
        print(f"\nThe job {ended}. Loss on unseen data: {shown(loss)};", end=" ")
        print(f"of the same training undisturbed: {shown(undisturbed)}. Took {took_s:.0f} s.", flush=True)

    def mail(self, text: str) -> None:
        if text:
            print(f"\n{self._paint(DIM, 'The newest of the mails:')}\n")
            print("\n".join(f"    {line}".rstrip() for line in text.splitlines()), flush=True)

    def output(self, text: str) -> None:
        lines = text.splitlines()[-40:]
        print(f"\n{self._paint(RED, 'The end of what `sentinel run` printed:')}")
        print("\n".join(f"    {line}" for line in lines), flush=True)
