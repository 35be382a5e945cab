"""What checks measure, for /metrics: per card and port, under the names that dashboards for other exporters know.

Each name is a row of rules/measures.toml. One that has none is shown too, but untyped and without help.
"""

from collections.abc import Iterable
from functools import cache
from typing import Protocol

from msgspec import Struct

from sentinel.metrics import exposition
from sentinel.rules.tables import data_dir, load_rows

MAX_SERIES = 20_000  # 16 cards with 18 links each, and as many ports, are under 5,000


class Measured(Protocol):
    """One number of a check."""

    @property
    def name(self) -> str: ...
    @property
    def labels(self) -> tuple[tuple[str, str], ...]: ...
    @property
    def value(self) -> float: ...


class MeasureRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One name. `source` is the exporter that uses it for the same number, "" where it is ours alone."""

    name: str
    kind: str  # counter | gauge
    labels: list[str]
    help: str
    source: str = ""


@cache
def rows() -> dict[str, MeasureRow]:
    """The shipped table by name. Raises RuleError."""
    return {row.name: row for row in load_rows(data_dir("rules") / "measures.toml", "measure", MeasureRow)}


def render(measured: Iterable[Measured]) -> bytes:
    """The text format 0.0.4, all series of one name together. Counters keep other exporters' names, which do not end in
    `_total`."""
    by_name: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    count = 0
    for measure in measured:
        series = by_name.setdefault(measure.name, {})
        if measure.labels not in series:
            count += 1
            if count > MAX_SERIES:
                break
        series[measure.labels] = measure.value
    lines: list[str] = []
    for name, series in by_name.items():
        row = rows().get(name)
        if row is not None:
            lines.append(exposition.header(name, row.kind, row.help))
        else:
            lines.append(f"# TYPE {name} untyped\n")
        for labels, value in series.items():
            names, texts = tuple(key for key, _ in labels), tuple(text for _, text in labels)
            lines.append(f"{exposition.series(name, names, texts)} {exposition.number(value)}\n")
    return "".join(lines).encode(errors="replace")


def markdown() -> str:
    """The part of docs/metrics.md about measures."""
    lines = [
        "",
        "## Per card and port",
        "",
        "What the checks measured at their last sample (`rules/measures.toml`). Names of other exporters mean what",
        "they mean there, so that dashboards made for those show these too.",
        "",
        "| metric | kind | labels | meaning | name used by |",
        "|---|---|---|---|---|",
    ]
    for row in rows().values():
        labels = ", ".join(f"`{label}`" for label in row.labels)
        lines.append(
            f"| `{row.name}` | {row.kind} | {labels} | {row.help} | {row.source or 'Sentinel alone'} |"
        )
    return "\n".join(lines) + "\n"
