"""Tables in pages that people write otherwise: `python -m scripts.doc_tables` makes them anew where they stand."""

import json
import re
import tomllib
from pathlib import Path

import msgspec

from sentinel.logs.formats import TimingRow
from sentinel.notify.webhook import Message
from sentinel.rules.failures import failure_classes
from sentinel.rules.tables import data_dir, load_rows

REPO = Path(__file__).parents[1]
NAMES = {
    "hardware": "hardware time",
    "e2e": "end-to-end time",
    "rate": "rate",
    "step": "step",
    "epoch": "epoch",
}


def timing_table() -> str:
    """Of docs/timing.md."""
    with open(REPO / "tests/logs/timing_lines.toml", "rb") as file:
        lines = tomllib.load(file)["line"]
    examples = {line["format"]: line["line"] for line in reversed(lines)}
    rows = []
    for row in load_rows(data_dir("rules") / "timing.toml", "timing", TimingRow):
        groups = re.findall(r"\?P<(\w+)>", row.pattern)
        told = [NAMES[name] for name in NAMES if any(group.split("_")[0] == name for group in groups)]
        told = [name for name in told if name != "epoch" or "step" not in told]
        if row.id not in examples:
            raise ValueError(f"tests/logs/timing_lines.toml: no line of the format {row.id!r}")
        found = re.search(row.pattern, re.sub(r"\x1b\[[0-9;]*m", "", examples[row.id]))
        if not found:
            raise ValueError(
                f"tests/logs/timing_lines.toml: the first line of {row.id!r} is none of that format"
            )
        shown = re.sub(r"  +", " ", found.group()).strip()
        shown = shown if len(shown) <= 90 else f"{shown[:44]} … {shown[-42:]}"
        rows.append([f"`{row.id}`", ", ".join(told) or "that a step ended", f"`{shown}`", row.source])
    return _table(["format", "tells", "looks like", "printed by"], rows)


def failure_table() -> str:
    """Of docs/triage.md."""
    rows = [
        [f"`{cls.id}`", cls.title, cls.cause.value, cls.scope, cls.role, cls.restart.value, cls.budget.value]
        for cls in failure_classes().values()
    ]
    return _table(["class", "what it is", "cause", "scope", "role", "restart", "budget"], rows)


def schema() -> str:
    """docs/webhook.schema.json."""
    found = {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(Message)}
    return json.dumps(found, indent=1) + "\n"


def _table(heads: list[str], rows: list[list[str]]) -> str:
    lines = []
    for row in (heads, ["---"] * len(heads), *rows):
        cells = [cell.replace("|", r"\|") for cell in row]
        lines.append(f"| {' | '.join(cells)} |\n")
    return "".join(lines)


def replaced(text: str, table: str) -> str:
    """`text` with `table` in the place of the one with the same heads. Raises ValueError where there is none."""
    heads = table.partition("\n")[0] + "\n"
    before, found, rest = text.partition(heads)
    if not found:
        raise ValueError(f"no table with the heads {heads.strip()}")
    lines = rest.splitlines(keepends=True)
    old = next((i for i, line in enumerate(lines) if not line.startswith("|")), len(lines))
    return before + table + "".join(lines[old:])


def main() -> None:
    for page, table in (("timing", timing_table()), ("triage", failure_table())):
        path = REPO / "docs" / f"{page}.md"
        path.write_text(replaced(path.read_text("utf-8"), table), "utf-8")
    (REPO / "docs/webhook.schema.json").write_text(schema(), "utf-8")


if __name__ == "__main__":
    main()
