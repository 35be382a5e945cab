"""Rule files as `sentinel validate` judges them."""

import difflib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from sentinel.checks.xid import ActionRow, BucketRow, RecoveryRow, RepeatRow, XidRow
from sentinel.config.document import read_text
from sentinel.config.kinds import failure_problem
from sentinel.config.problems import ConfigErrors, Problem, show
from sentinel.core.job.kinds import JobKind, Trap
from sentinel.core.triage.rows import FailureClass
from sentinel.logs.formats import TimingRow, check_row
from sentinel.logs.kernel import KernelRule
from sentinel.logs.match import check_pattern
from sentinel.logs.ruleset import IgnoreRow, RuleRow
from sentinel.metrics.measures import MeasureRow
from sentinel.rules.tables import CounterLimit

# Tables of rule files. `rule` is a log rule, or with `code` a kernel rule.
ROWS: dict[str, type[Struct]] = {
    "rule": RuleRow,
    "ignore": IgnoreRow,
    "timing": TimingRow,
    "bucket": BucketRow,
    "xid": XidRow,
    "recovery": RecoveryRow,
    "repeat": RepeatRow,
    "action": ActionRow,
    "class": FailureClass,
    "measure": MeasureRow,
    "counter": CounterLimit,
    "kind": JobKind,
    "trap": Trap,
}


class Good(Struct, frozen=True, kw_only=True):
    """One document without a problem, and what it says in words."""

    file: str
    kind: str
    summary: str


def rule_file(path: Path) -> list[Good]:
    file = str(path)
    text = read_text(path)
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        line, column = (int(place[1]), int(place[2])) if place else (0, 0)
        said = str(error).partition(" (at ")[0]
        problem = Problem(file=file, line=line, column=column, found=f"bad syntax ({said})", expected="TOML")
        raise ConfigErrors([problem]) from None
    except RecursionError:
        problem = Problem(file=file, found="endless nesting", expected="tables of rules")
        raise ConfigErrors([problem]) from None
    problems: list[Problem] = []
    counts: list[str] = []
    for table, rows in tables.items():
        if table not in ROWS:
            line = next(_lines_of(text, table), 0)
            expected = f"one of the tables {', '.join(ROWS)}"
            problems.append(
                Problem(file=file, line=line, column=int(line > 0), path=table, expected=expected)
            )
        elif not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            problems.append(Problem(file=file, path=table, found=show(rows), expected=f"[[{table}]] tables"))
        else:
            problems += _rows(file, text, table, rows)
            counts.append(f"{len(rows)} {table} row" + ("s" if len(rows) != 1 else ""))
    if not tables:
        problems.append(Problem(file=file, found="an empty file", expected=f"tables {', '.join(ROWS)}"))
    if problems:
        raise ConfigErrors(problems)
    return [Good(file=file, kind="rules", summary=f"rules: {', '.join(counts)}")]


def _rows(file: str, text: str, table: str, rows: list[dict[str, Any]]) -> Iterator[Problem]:
    lines = list(_lines_of(text, table))
    seen: set[str] = set()
    for index, row in enumerate(rows):
        kind: type[Struct] = KernelRule if table == "rule" and "code" in row else ROWS[table]
        line = lines[index] if index < len(lines) else 0
        for where, expected in _row_problems(row, kind, seen):
            path = f"{table}[{index}]" + (f".{where}" if where else "")
            found = show(row[where]) if where in row else ""
            yield Problem(file=file, line=line, column=1, path=path, found=found, expected=expected)


def _row_problems(row: dict[str, Any], kind: type[Struct], seen: set[str]) -> Iterator[tuple[str, str]]:
    """(key, what was expected) for all that is wrong with one row."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    wrong = False
    for key in row.keys() - fields.keys():
        near = difflib.get_close_matches(key, fields, 1)
        yield key, f"a known key; did you mean {near[0]}?" if near else f"one of {', '.join(fields)}"
        wrong = True
    for key, field in fields.items():
        if key not in row:
            if field.required:
                yield key, "a value"
                wrong = True
            continue
        try:
            msgspec.convert(row[key], field.type)
        except msgspec.ValidationError as error:
            yield key, str(error).removeprefix("Expected ").replace("`", "")
            wrong = True
    if wrong:
        return
    parsed = msgspec.convert(row, kind)
    match parsed:
        case RuleRow():
            if problem := check_pattern(parsed.pattern):
                yield "pattern", f"a pattern for logs: {problem}"
            if parsed.unless and (problem := check_pattern(parsed.unless)):
                yield "unless", f"a pattern for logs: {problem}"
            if problem := failure_problem(parsed.failure):
                yield "failure", problem
        case IgnoreRow():
            if problem := check_pattern(parsed.pattern):
                yield "pattern", f"a pattern for logs: {problem}"
        case TimingRow():
            for problem in check_row(parsed):
                where, _, said = problem.partition(": ")
                yield where, f"a timing format: {said}"
        case KernelRule():
            try:
                re.compile(parsed.pattern)
            except re.error as error:
                yield "pattern", f"a regular expression ({error})"
            return
    name = row.get("id")
    if isinstance(name, str):
        if name in seen:
            yield "id", "an id that no other row here has"
        seen.add(name)


def _lines_of(text: str, table: str) -> Iterator[int]:
    """Where the rows of a table begin."""
    header = re.compile(rf"\s*\[?\[\s*{re.escape(table)}\s*\]\]?|{re.escape(table)}\s*=")
    return (number for number, line in enumerate(text.splitlines(), 1) if header.match(line))
