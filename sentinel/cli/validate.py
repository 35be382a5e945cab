"""`sentinel validate FILE…`: every problem of policies, settings and rule files, with file, line and path."""

import argparse
import difflib
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from sentinel.checks.xid import ActionRow, BucketRow, RecoveryRow, RepeatRow, XidRow
from sentinel.config.document import Document, parse, read_text
from sentinel.config.kinds import failure_problem
from sentinel.config.load import load_settings, policies_of, settings_of
from sentinel.config.problems import ConfigErrors, Problem, show
from sentinel.core.job_kinds import JobKind, Trap
from sentinel.core.policy_model import Policy
from sentinel.core.policy_words import policy_words
from sentinel.core.triage_rows import FailureClass
from sentinel.core.units import duration_text
from sentinel.logs.formats import TimingRow, check_row, owned_row
from sentinel.logs.kernel import KernelRule
from sentinel.logs.match import check_pattern
from sentinel.logs.ruleset import IgnoreRow, RuleRow
from sentinel.measures import MeasureRow
from sentinel.rules import CounterLimit
from sentinel.settings import Settings

SUFFIXES = (".yaml", ".yml", ".toml")
MAX_FILES = 10_000

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="policy, settings or rule file, or a folder of them"
    )
    parser.add_argument("--settings", metavar="FILE", help="hold policies against the caps of these settings")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")


def main(args: argparse.Namespace) -> int:
    """0: all good; 1: problems."""
    good, problems = validate(args.files, args.settings)
    if args.output == "json":
        answer = {"ok": not problems, "files": good, "problems": problems}
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(answer), indent=2) + b"\n")
        return 1 if problems else 0
    for document in good:
        print(f"{document.file}: {document.summary}")
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        count = len({problem.file for problem in problems})
        print(f"{len(problems)} problem(s) in {count} file(s)", file=sys.stderr)
    return 1 if problems else 0


def validate(files: Iterable[str], settings_file: str | None = None) -> tuple[list[Good], list[Problem]]:
    """All good documents and all problems of files and folders."""
    good: list[Good] = []
    problems: list[Problem] = []
    settings = Settings()
    try:
        if settings_file is not None:
            settings = load_settings(Path(settings_file))
    except ConfigErrors as errors:
        problems += errors.problems
    for name in files:
        path = Path(name)
        found = list(_below(path)) if path.is_dir() else [path]
        if not found:
            problems.append(
                Problem(file=name, found="no such file in it", expected=f"{', '.join(SUFFIXES)} files")
            )
        for file in found:
            try:
                good += _rule_file(file) if file.suffix == ".toml" else _yaml_file(file, settings)
            except ConfigErrors as errors:
                problems += errors.problems
    return good, problems


def _below(folder: Path) -> Iterator[Path]:
    """What Prometheus reads (`rules/prometheus`) is for `promtool` to judge."""
    found = (path for path in sorted(folder.rglob("*")) if path.suffix in SUFFIXES and path.is_file())
    files = (path for path in found if "prometheus" not in path.relative_to(folder).parts[:-1])
    for count, path in enumerate(files):
        if count >= MAX_FILES:
            return
        yield path


# ---------------------------------------------------------------- policies and settings


def _yaml_file(path: Path, settings: Settings) -> list[Good]:
    file = str(path)
    good: list[Good] = []
    problems: list[Problem] = []
    policies: list[Document] = []
    for document in parse(read_text(path), file):
        if isinstance(document.data, dict) and document.data.get("kind") == "Settings":
            try:
                good.append(Good(file=file, kind="Settings", summary=settings_words(settings_of(document))))
            except ConfigErrors as errors:
                problems += errors.problems
        else:
            policies.append(document)
    try:
        for policy in policies_of(policies, settings):
            problems += _unmatchable(policy, policies)
            good.append(Good(file=file, kind="JobPolicy", summary=policy_words(policy)))
    except ConfigErrors as errors:
        problems += errors.problems
    if problems:
        raise ConfigErrors(problems)
    return good


def judged_policy(document: Document, settings: Settings) -> tuple[Policy, str]:
    """One policy, and what it says in words. Raises ConfigErrors."""
    (policy,) = policies_of([document], settings)
    if problems := list(_unmatchable(policy, [document])):
        raise ConfigErrors(problems)
    return policy, policy_words(policy)


def _unmatchable(policy: Policy, documents: list[Document]) -> Iterator[Problem]:
    """Patterns that RE2 takes and the engine that scans logs does not."""
    document = next(one for one in documents if one.data["metadata"]["name"] == policy.name)
    checkpoint = policy.resume.checkpoint if policy.resume else None
    patterns: list[tuple[tuple[str | int, ...], str]] = [
        (("spec", "logRules", index, "pattern"), rule.pattern) for index, rule in enumerate(policy.log_rules)
    ]
    if checkpoint and checkpoint.proof and checkpoint.proof.log_pattern:
        path = ("spec", "resume", "checkpoint", "proof", "logPattern")
        patterns.append((path, checkpoint.proof.log_pattern))
    for place, pattern in patterns:
        problem = check_pattern(pattern)
        if problem:
            yield document.problem(place, f"a pattern for logs: {problem}", show(pattern))
    for index, form in enumerate(policy.timing_formats):
        row = owned_row(form)
        for problem in check_row(row):
            where, _, said = problem.partition(": ")
            place = ("spec", "timingFormats", index, where)
            yield document.problem(place, f"a timing format: {said}", show(getattr(row, where)))


def settings_words(settings: Settings) -> str:
    mail = f"mails through {settings.mail.host}" if settings.mail.host else "mails into a folder"
    page = f"page on {settings.listen}" if settings.listen else "no page"
    caps = settings.caps
    return (
        f"settings: {mail}, {page}, owners may ask at most {caps.max_resumes} resumes, "
        f"{caps.max_restarts} restarts and {duration_text(caps.graceful_stop_s)} to stop"
    )


# ---------------------------------------------------------------- rule files


def _rule_file(path: Path) -> list[Good]:
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
