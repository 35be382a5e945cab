"""`sentinel check [NAME...]`: look at this machine once and say what is wrong and what to do."""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Iterable

import msgspec

from sentinel.core.model import CheckResult, CheckState, Severity

OK, WARNING, CRITICAL, UNKNOWN = 0, 1, 2, 3  # Nagios order


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="checks or components (default: all but the slow ones)"
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=("table", "json"),
        default="table",
        help="table for people, json for programs",
    )
    parser.add_argument("--path", action="append", default=[], help="also watch the file system of this path")


def exit_code(results: Iterable[CheckResult]) -> int:
    """2 for degraded or fatal; else 3 where a check could not look; else 1 for a warning. Absent is neither."""
    code = OK
    unknown = False
    for result in results:
        unknown |= result.state is CheckState.UNKNOWN
        for finding in result.findings:
            if finding.severity.order >= Severity.DEGRADED.order:
                code = CRITICAL
            elif finding.severity is Severity.WARNING:
                code = max(code, WARNING)
    if code == CRITICAL:
        return CRITICAL
    return UNKNOWN if unknown else code


def table(results: Iterable[CheckResult]) -> str:
    """One line for each finding, or for each check without one: what, state, evidence, what to do."""
    rows = [("WHAT", "STATE", "EVIDENCE", "WHAT TO DO")]
    for result in results:
        if result.state is CheckState.UNKNOWN or not result.findings:
            rows.append((result.check, result.state.value, result.detail, ""))
        for finding in result.findings:
            times = f" ({finding.count} times)" if finding.count > 1 else ""
            evidence = finding.evidence[-1] if finding.evidence else ""
            rows.append(
                (
                    f"{finding.entity} {finding.code}",
                    finding.severity.value,
                    f"{finding.summary}: {evidence}{times}",
                    finding.action,
                )
            )
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = []
    for what, state, evidence, action in rows:
        line = f"{what:<{widths[0]}}  {state:<{widths[1]}}  {_printable(evidence)}"
        lines.append(line + (f"  -> {action}" if action and state != "STATE" else ""))
    lines[0] = f"{'WHAT':<{widths[0]}}  {'STATE':<{widths[1]}}  EVIDENCE  -> WHAT TO DO"
    return "\n".join(line.rstrip() for line in lines)


def _printable(text: str) -> str:
    """Kernel lines are printed to a terminal: no control characters."""
    return "".join(c if c.isprintable() else " " for c in text)


def main(args: argparse.Namespace) -> int:
    from sentinel.checks.runner import CheckRunner
    from sentinel.checks.table import CHECKS
    from sentinel.settings import Settings

    settings = getattr(args, "settings", None) or Settings()
    runner = CheckRunner(settings, (os.getcwd(), str(settings.state_path), *args.path))
    try:
        results = asyncio.run(runner.check_now(args.names))
    except KeyError as error:
        known = ", ".join(row.name for row in CHECKS)
        print(
            f"sentinel check: no check or component named {error.args[0]!r}; checks are {known}",
            file=sys.stderr,
        )
        return UNKNOWN
    finally:
        runner.close()
    code = exit_code(results)
    if args.output == "json":
        print(
            json.dumps({"exit": code, "checks": msgspec.to_builtins(results)}, ensure_ascii=False, indent=2)
        )
    else:
        print(table(results))
    return code
