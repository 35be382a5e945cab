"""`python -m tests.bench [--quick] [NAME ...]`: run benches, print goal against measured, keep the JSON.

Exits 1 when a goal was missed or a bench could not measure, 2 on a name that is not there.
"""

import argparse
import datetime
import importlib
import json
import sys
import time
import traceback
from pathlib import Path

from tests.bench.harness import Row, counts_s, machine

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "bench-results"


def show(rows: list[Row]) -> None:
    """One line a goal: `ratio` at most 1 passes, whichever way the goal points."""
    for row in rows:
        goal, measured = f"{row['goal']:.4g} {row['unit']}", f"{row['measured']:.4g} {row['unit']}"
        beside = f"{row['beside'][0]}: {row['beside'][1]:.4g} {row['unit']}" if row["beside"] else ""
        verdict = "pass" if row["passed"] else "FAIL"
        print(f"  {row['name']:<44} {goal:>14} {measured:>14} {row['ratio']:>7.2f}  {verdict}  {beside}")


def main() -> int:
    names = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(names)}; none: all")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions: a look, not a measurement")
    args = parser.parse_args()
    if unknown := set(args.names) - set(names):
        print(f"no such bench: {', '.join(sorted(unknown))}; there are: {', '.join(names)}", file=sys.stderr)
        return 2

    print(f"  {'':<44} {'goal':>14} {'measured':>14} {'ratio':>7}")
    missed: list[str] = []
    for name in args.names or names:
        print(name, flush=True)
        begun_s, before_s = time.monotonic(), counts_s()
        try:
            rows: list[Row] = importlib.import_module(f"tests.bench.bench_{name}").run(args.quick)
        except Exception:  # noqa: BLE001 - one bench that breaks must not hide the others; it counts as missed
            traceback.print_exc()
            missed.append(name)
            continue
        show(rows)
        missed += [row["name"] for row in rows if not row["passed"]]
        RESULTS.mkdir(exist_ok=True)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        here = {**machine(), "counts_s": [round(before_s, 3), round(counts_s(), 3)]}
        document = {"bench": name, "at": now, "quick": args.quick, "machine": here, "rows": rows}
        document["took_s"] = round(time.monotonic() - begun_s, 1)
        (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    print(f"missed: {', '.join(missed)}" if missed else "all goals met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
