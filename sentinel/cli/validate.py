"""`sentinel validate FILE…`: every problem of policies, settings and rule files, with file, line and path."""

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from sentinel.config.document import Document, parse, read_text
from sentinel.config.load import load_settings, policies_of, settings_of
from sentinel.config.problems import ConfigErrors, Problem
from sentinel.core.people.policy_words import policy_words
from sentinel.core.units import duration_text
from sentinel.settings import Settings
from sentinel.validate.policies import unmatchable
from sentinel.validate.rule_files import Good, rule_file

SUFFIXES = (".yaml", ".yml", ".toml")
MAX_FILES = 10_000


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
                good += rule_file(file) if file.suffix == ".toml" else _yaml_file(file, settings)
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
            problems += unmatchable(policy, policies)
            good.append(Good(file=file, kind="JobPolicy", summary=policy_words(policy)))
    except ConfigErrors as errors:
        problems += errors.problems
    if problems:
        raise ConfigErrors(problems)
    return good


def settings_words(settings: Settings) -> str:
    mail = f"mails through {settings.mail.host}" if settings.mail.host else "mails into a folder"
    page = f"page on {settings.listen}" if settings.listen else "no page"
    caps = settings.caps
    return (
        f"settings: {mail}, {page}, owners may ask at most {caps.max_resumes} resumes, "
        f"{caps.max_restarts} restarts and {duration_text(caps.graceful_stop_s)} to stop"
    )
