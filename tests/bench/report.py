"""`python -m tests.bench.report docs`: the kept results of `make bench` as a page, benchmarks.md, and its pictures.

They hold what the command printed and nothing else; each part says when. Exits 1 where one was never measured whole.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from tests.bench import curve

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "bench-results"

HEAD = """\
# Benchmarks

`make bench` measures, prints these numbers, keeps them as JSON and exits 1 on a miss; this page is made from the
JSON by `python -m tests.bench.report docs`. Every feature is on; the policy asks for `resume` with
its budgets raised where a bench breaks a job more often than an owner would accept, and is the default one in all
else. A ratio of at most 1 passes. What ran beside a measurement ran on the same machine in the same minutes, unless
it says that it is quoted. What exactly is measured stands at the head of each `tests/bench/bench_NAME.py`.

A load average above what a bench itself causes (about 2) says that other programs took their share of the cores:
shares of CPU and step times then say more about those than about Sentinel. How long Python takes to count says how fast
the machine was then: on one that is half as fast each share of a core is twice as large.
"""


def table(document: dict[str, Any], about: str) -> str:
    machine = document["machine"]
    taken = (
        f"{document['at'][:16].replace('T', ' ')} UTC, {document['took_s']:.0f} s: {machine['cores']} cores of "
        f"{machine['cpu']}, Linux {machine['kernel']}, Python {machine['python']}, load average at the end "
        f"{machine['load_1min']:.1f}"
    )
    if counted := machine.get("counts_s"):
        taken += (
            f"; Python counts to ten million in {counted[0]:.2f} s before it and {counted[1]:.2f} s after it"
        )
    lines = [f"## {document['bench']}", "", about, "", f"{taken}.", ""]
    lines += ["| | goal | measured | ratio | | beside it |", "|---|---|---|---|---|---|"]
    for row in document["rows"]:
        unit = row["unit"]
        beside = f"{row['beside'][0]}: {row['beside'][1]:.4g} {unit}" if row["beside"] else ""
        verdict = "pass" if row["passed"] else "**FAIL**"
        goal, measured = (f"{row[key]:.4g} {unit}".strip() for key in ("goal", "measured"))
        lines.append(f"| {row['name']} | {goal} | {measured} | {row['ratio']:.2f} | {verdict} | {beside} |")
    return "\n".join(lines) + "\n"


def fleet_curve(rows: list[dict[str, Any]]) -> str:
    """What the controller costs by the number of agents."""
    kept: list[tuple[float, float]] = []
    closed: list[tuple[float, float]] = []
    for row in rows:
        if found := re.fullmatch(r"(\d+) agents: CPU", row["name"]):
            kept += [] if kept else [(0.0, row["beside"][1])]
            kept.append((float(found[1]), row["measured"]))
        elif found := re.fullmatch(r"(\d+) agents that connect each .*: CPU", row["name"]):
            closed += [] if closed else [(0.0, row["beside"][1])]
            closed.append((float(found[1]), row["measured"]))
    lines = {"connected, a report every 10 s": kept, "a connection for each report, every 120 s": closed}
    return curve.svg("CPU of the leading controller, % of a core", "agents", lines)


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        print("usage: python -m tests.bench.report DIRECTORY", file=sys.stderr)
        return 64
    docs = Path(argv[0])
    page = docs / "benchmarks.md"
    before = sections(page.read_text()) if page.exists() else {}
    pages, missing = [HEAD], []
    for name in sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py")):
        path = RESULTS / f"{name}.json"
        document = json.loads(path.read_text()) if path.exists() else None
        if document is not None and not document["quick"]:
            pages.append(section(name, document, docs))
        elif name in before:
            pages.append(before[name])
        else:
            missing.append(name)
    page.write_text("\n".join(pages))
    for name in missing:
        print(f"{name}: no result of a whole run: `make bench only={name}`", file=sys.stderr)
    return 1 if missing else 0


def section(name: str, document: dict[str, Any], docs: Path) -> str:
    source = (HERE / f"bench_{name}.py").read_text()
    about = source.split('"""')[1].split("\n\n")[0].replace("\n", " ").strip()
    text = table(document, about)
    if name != "fleet":
        return text
    (docs / "images/fleet-cost.svg").write_text(fleet_curve(document["rows"]))
    return f"{text}\n![CPU of the leading controller by the number of agents](images/fleet-cost.svg)\n"


def sections(page: str) -> dict[str, str]:
    """Those of an earlier page, each with its date: what was not measured since stands as it was."""
    found = re.split(r"^(?=## )", page, flags=re.MULTILINE)[1:]
    return {one.partition("\n")[0].removeprefix("## "): one.rstrip("\n") + "\n" for one in found}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
