"""`python -m tests.bench.report > docs/benchmarks.md`: the kept results of `make bench` as a page.

The page holds what the command printed and nothing else. Exits 1 where a result is missing or of a quick run.
"""

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "bench-results"

HEAD = """\
# Benchmarks

`make bench` measures, prints these numbers, keeps them as JSON and exits 1 on a miss; this page is made from the
JSON by `python -m tests.bench.report > docs/benchmarks.md`. Every feature is on; the policy asks for `resume` with
its budgets raised where a bench breaks a job more often than an owner would accept, and is the default one in all
else. A ratio of at most 1 passes. What ran beside a measurement ran on the same machine in the same minutes, unless
it says that it is quoted. What exactly is measured stands at the head of each `tests/bench/bench_NAME.py`.

A load average above what a bench itself causes (about 2) says that other programs took their share of the cores:
shares of CPU and step times then say more about those than about Sentinel.
"""


def table(document: dict[str, Any], about: str) -> str:
    machine = document["machine"]
    taken = (
        f"{document['at'][:16].replace('T', ' ')} UTC, {document['took_s']:.0f} s: {machine['cores']} cores of "
        f"{machine['cpu']}, Linux {machine['kernel']}, Python {machine['python']}, load average at the end "
        f"{machine['load_1min']:.1f}."
    )
    lines = [f"## {document['bench']}", "", about, "", taken, ""]
    lines += ["| | goal | measured | ratio | | beside it |", "|---|---|---|---|---|---|"]
    for row in document["rows"]:
        unit = row["unit"]
        beside = f"{row['beside'][0]}: {row['beside'][1]:.4g} {unit}" if row["beside"] else ""
        verdict = "pass" if row["passed"] else "**FAIL**"
        goal, measured = (f"{row[key]:.4g} {unit}".strip() for key in ("goal", "measured"))
        lines.append(f"| {row['name']} | {goal} | {measured} | {row['ratio']:.2f} | {verdict} | {beside} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    names = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
    pages = [HEAD]
    for name in names:
        path = RESULTS / f"{name}.json"
        document = json.loads(path.read_text()) if path.exists() else None
        if document is None or document["quick"]:
            print(f"{name}: no result of a whole run: `make bench only={name}`", file=sys.stderr)
            return 1
        source = (HERE / f"bench_{name}.py").read_text()
        about = source.split('"""')[1].split("\n\n")[0].replace("\n", " ").strip()
        pages.append(table(document, about))
    sys.stdout.write("\n".join(pages))
    return 0


if __name__ == "__main__":
    sys.exit(main())
