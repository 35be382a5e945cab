"""`sentinel check [NAME...]`: look at this machine once and say what is wrong and what to do."""

import argparse
import asyncio
import json
import os
import shutil
import socket
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sentinel.cli.options import add_settings, duration_s, read_settings
from sentinel.console.tables import GAP, put, put_json
from sentinel.core.health import CheckResult, CheckState, Severity
from sentinel.web.words import fit, printable, width

if TYPE_CHECKING:
    from sentinel.checks.runner import CheckRunner
    from sentinel.settings import Settings

OK, WARNING, CRITICAL, UNKNOWN = 0, 1, 2, 3  # Nagios order
WORDS = ("healthy", "warning", "critical", "unknown")
HEADS = ("WHAT", "STATE", "EVIDENCE", "WHAT TO DO")
WITHIN_S = 25.0  # below the 30 s of examples/slurm/prolog.sh; cards that sleep take most of it to wake
NARROW = 30  # columns that evidence needs beside the others; with less, it stands under them


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
    parser.add_argument("--deep", action="store_true", help="the slow checks too")
    parser.add_argument(
        "--within",
        type=duration_s,
        default=WITHIN_S,
        metavar="TIME",
        help=f"how long the quick checks may take together; cards that do not answer in it are "
        f"degraded (default: {WITHIN_S:g}s)",
    )
    parser.add_argument("--path", action="append", default=[], help="also watch the file system of this path")
    parser.add_argument(
        "--learn",
        action="store_true",
        help="print the hardware found here as `shapes:` for the settings, and keep it as not confirmed",
    )
    parser.add_argument(
        "--confirm", action="store_true", help="expect from now on what --learn has kept on this machine"
    )
    add_settings(parser)


def main(args: argparse.Namespace) -> int:
    settings = read_settings(args)
    if settings is None:
        return UNKNOWN
    from sentinel.util import journal

    journal.configure(None)  # no log event may land in what is printed
    if args.learn:
        return learn(settings)
    return confirm(settings) if args.confirm else look(settings, args)


def look(settings: "Settings", args: argparse.Namespace) -> int:
    """Run the checks that were asked for side by side and print what they say. Returns the exit code."""
    from sentinel.checks.command import end_all
    from sentinel.checks.node_root import node_root
    from sentinel.checks.runner import CheckRunner
    from sentinel.checks.table import all_checks

    root = node_root(settings.procfs)
    here = () if root else (os.getcwd(),)  # the node has another folder by that name
    runner = CheckRunner(settings, (*here, str(settings.state_path), *args.path), root=root)
    if problem := _take_up(runner, settings.state_path):
        print(f"sentinel check: what the agent of this machine knows is not told: {problem}", file=sys.stderr)
    checks = all_checks(settings)
    names = tuple(args.names)
    if args.deep:
        names += tuple(row.name for row in checks if not names or row.component.value in names)
    try:
        results = asyncio.run(runner.check_now(names, within_s=args.within))
    except KeyError as error:
        known = ", ".join(row.name for row in checks)
        print(
            f"sentinel check: no check or component named {error.args[0]!r}; checks are {known}",
            file=sys.stderr,
        )
        return UNKNOWN
    finally:
        runner.close()
        end_all()
    code = exit_code(results)
    if args.output == "json":
        document = {"exit": code, "checks": msgspec.to_builtins(results)}
        put_json(json.dumps(document, ensure_ascii=False, indent=2) + "\n")
    else:
        wide = (sys.stdout and sys.stdout.isatty()) or "COLUMNS" in os.environ
        put(
            table(results, shutil.get_terminal_size().columns if wide else None)
            + "\n"
            + summary(results, code)
        )
    return code


def _take_up(runner: "CheckRunner", state_path: Path) -> str:
    """What the agent of this machine knows, such as an Xid from before. Returns why that could not be read."""
    from sentinel.agent import state as node_state

    path = state_path / node_state.FOLDER / node_state.FILE
    try:
        snapshot = node_state.read(path.parent)
    except node_state.Damaged as damage:
        return f"{path} is damaged: {damage}"
    except OSError as error:
        return f"{path}: {error.strerror}"
    return "" if snapshot is None or runner.restore(snapshot) else f"{path} is damaged"


def learn(settings: "Settings") -> int:
    from sentinel.checks import shape as shapes
    from sentinel.checks.node_root import node_root

    earlier, found = shapes.load(settings), shapes.learn(settings, node_root(settings.procfs))
    put(shapes.manifest(found, socket.gethostname().split(".")[0].lower() or "node"))
    path = shapes.save(settings, found)
    replaced = "; it replaces what was confirmed" if earlier.source == "confirmed" else ""
    print(f"kept in {path}, not confirmed{replaced}: `sentinel check --confirm` confirms it", file=sys.stderr)
    return OK


def confirm(settings: "Settings") -> int:
    from sentinel.checks import shape as shapes

    found = shapes.load(settings)
    if not found.source:
        print("sentinel check: nothing was learnt here: `sentinel check --learn` first", file=sys.stderr)
        return UNKNOWN
    path = shapes.save(settings, msgspec.structs.replace(found, source="confirmed"))
    unused = "; not in force, since the settings have shapes" if settings.shapes else ""
    print(f"confirmed: {path}{unused}", file=sys.stderr)
    return OK


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


def table(results: Iterable[CheckResult], columns: int | None = None) -> str:
    """What, state, evidence, what to do: the worst first. Evidence is wrapped to `columns`; None: one line each."""
    worst_first = sorted(_rows(results), key=lambda row: -row[0])
    rows = [[printable(cell) for cell in row] for _, row in worst_first]
    limit = columns // 3 if columns else None
    widths = [max(width(row[column]) for row in (HEADS, *rows)) for column in (0, 1)]
    if limit is not None:
        widths[0] = min(widths[0], max(limit, 12))
    indent = sum(widths) + 2 * len(GAP)
    room = None if columns is None else columns - indent
    lines = [_line(HEADS[:2], widths) + GAP + f"{HEADS[2]}  -> {HEADS[3]}"]
    if room is not None and room < NARROW:
        lines = ["  ".join(HEADS[:2])]
    for what, state, evidence, action in rows:
        told = evidence + (f"  -> {action}" if action else "")
        if room is None:
            lines.append(_line((what, state), widths) + GAP + told)
        elif room < NARROW:
            lines += [fit(f"{what}  {state}", columns or 80), *_wrapped(told, columns or 80, "  ")]
        else:
            wrapped = _wrapped(told, room, "") or [""]
            lines.append(_line((fit(what, widths[0]), state), widths) + GAP + wrapped[0])
            lines += [" " * indent + line for line in wrapped[1:]]
    return "\n".join(line.rstrip() for line in lines)


def summary(results: list[CheckResult], code: int) -> str:
    """One last line: the verdict, and what stands behind it."""
    findings = [finding for result in results for finding in result.findings]
    counts = [
        (severity.value, sum(one.severity is severity for one in findings)) for severity in reversed(Severity)
    ]
    states = (CheckState.OK, CheckState.UNKNOWN, CheckState.ABSENT)
    for state in states:
        count = sum(result.state is state for result in results)
        counts.append((f"check{'s' if count > 1 else ''} {state.value}", count))
    absent = bool(results) and all(result.state is CheckState.ABSENT for result in results)
    verdict = "nothing of it is on this machine" if absent and not findings else WORDS[code]
    return f"{verdict}: {', '.join(f'{count} {name}' for name, count in counts if count)}\n"


def _rows(results: Iterable[CheckResult]) -> Iterable[tuple[int, tuple[str, str, str, str]]]:
    """(how bad, row) of each finding, and of each check without one."""
    for result in results:
        if result.state is CheckState.UNKNOWN or not result.findings:
            bad = {CheckState.UNKNOWN: 1, CheckState.ABSENT: -2}.get(result.state, -1)
            yield bad, (result.check, result.state.value, result.detail, "")
        for finding in result.findings:
            times = f" ({finding.count} times)" if finding.count > 1 else ""
            evidence = f": {finding.evidence[-1]}" if finding.evidence else ""
            what = f"{finding.entity} {finding.code}"
            # A warning outranks an unknown check, as in what needs to be done; an info does not.
            bad = finding.severity.order + (1 if finding.severity is not Severity.INFO else 0)
            yield (
                bad,
                (what, finding.severity.value, f"{finding.summary}{evidence}{times}", _to_do(finding.action)),
            )


def _to_do(action: str) -> str:
    """The action's name, and in words where the table of actions has them."""
    from sentinel.checks.xid import actions

    row = actions().get(action)
    return f"{action}: {row.do}" if row is not None else action


def _line(cells: Iterable[str], widths: Iterable[int]) -> str:
    return GAP.join(cell + " " * (size - width(cell)) for cell, size in zip(cells, widths, strict=True))


def _wrapped(text: str, columns: int, indent: str) -> list[str]:
    return textwrap.wrap(text, max(columns, 10), initial_indent=indent, subsequent_indent=indent)
