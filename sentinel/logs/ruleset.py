"""Log rules and timing formats, shipped and added, checked and compiled together: one pass finds them all."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from msgspec import Struct

from sentinel.core.model import Cause, Restartable
from sentinel.core.policy_model import LogRule, TimingFormat
from sentinel.core.triage.rows import CHAINED
from sentinel.logs.formats import Format, TimingRow, check_row, owned_row
from sentinel.logs.match import LinePattern, Scanner, as_bytes, check_pattern
from sentinel.rules.failures import failure_classes
from sentinel.rules.tables import RuleError, data_dir, load_rows


class RuleRow(LogRule, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A log rule as written in a file. A line that `unless` is found in too does not mean it, nor does one
    that does not stand `below` what it belongs to."""

    unless: str = ""
    below: Literal["", "traceback", "not-spawn", "usage"] = ""


class IgnoreRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What matches is advice, not a failure: rules look at the rest of its line."""

    id: str
    pattern: str
    source: str


class RuleSet:
    """Compiled once, used by every rank's log. Pattern i < len(rules) is a rule, the others are formats."""

    def __init__(
        self,
        rules: Iterable[LogRule],
        ignores: Iterable[IgnoreRow],
        timing: Iterable[TimingRow],
        cache_dir: Path | None = None,
        owned: frozenset[str] = frozenset(),
        owned_formats: frozenset[str] = frozenset(),
    ) -> None:
        """What the job's owner named: ids of rules, to which the ignored lines do not apply, and of formats."""
        self.rules = tuple(rules)
        own = frozenset(index for index, rule in enumerate(self.rules) if rule.id in owned)
        self._whole = own | {k for k, rule in enumerate(self.rules) if rule.failure == CHAINED}
        self.below = {
            k: rule.below for k, rule in enumerate(self.rules) if isinstance(rule, RuleRow) and rule.below
        }
        self.formats = tuple(Format(row, index, row.id in owned_formats) for index, row in enumerate(timing))
        self.patterns = tuple(LinePattern(rule.pattern, rule.literal) for rule in self.rules)
        self._unless = {
            index: LinePattern(rule.unless)
            for index, rule in enumerate(self.rules)
            if isinstance(rule, RuleRow) and rule.unless
        }
        self.ignores = tuple(LinePattern(row.pattern) for row in ignores)
        expressions = [as_bytes(rule.pattern) for rule in self.rules]
        expressions += [
            as_bytes(form.row.hint or re.escape(form.row.literal) or form.row.pattern)
            for form in self.formats
        ]
        self.scanner = Scanner(expressions, cache_dir)

    def present(self, text: bytes) -> tuple[list[tuple[int, int]], list[Format]]:
        """What occurs in `text`: (rule index, where to begin looking), and the timing formats in table order."""
        rules: list[tuple[int, int]] = []
        formats: list[int] = []
        count = len(self.rules)
        for index, end in self.scanner.present(text):
            if index < count:
                rules.append((index, end))
            else:
                formats.append(index - count)
        return rules, [self.formats[index] for index in sorted(formats)]

    def ignored(self, line: bytes, rule: int) -> bool:
        """Is what rule number `rule` found in `line` only advice, or something else?"""
        unless = self._unless.get(rule)
        if unless is not None and unless.matches(line):
            return True
        if rule in self._whole:
            return False
        rest = line
        for pattern in self.ignores:
            rest = pattern.cut_from(rest)
        return rest != line and not self.patterns[rule].matches(rest)


def _quoted_xids() -> Iterable[LogRule]:
    """One rule for each class that names GPU faults by their Xid: a job's log may quote the driver.

    Those that may be the program's own doing, or blame nobody, need the kernel's word.
    """
    for cls in failure_classes().values():
        numbers = [code.removeprefix("XID ") for code in cls.codes if code.startswith("XID ")]
        if numbers and cls.cause is Cause.GPU and cls.restart is Restartable.YES:
            yield LogRule(
                id=f"xid-{cls.id}",
                pattern=rf"Xid \(PCI:[0-9a-fA-F:.]+\): (?:{'|'.join(numbers)})\b",
                failure=cls.id,
                source=cls.source,
                literal="Xid (PCI:",
            )


def load_ruleset(
    extra_rules: tuple[LogRule, ...] = (),
    extra_dir: str = "",
    cache_dir: Path | None = None,
    extra_formats: tuple[TimingFormat, ...] = (),
) -> RuleSet:
    """The shipped rules and formats with those of a policy and of the *.toml files in `extra_dir` (tables `rule`,
    `ignore`, `timing`). A row with the id of a shipped one replaces it.

    `cache_dir` keeps the compiled patterns. Raises RuleError that lists every problem.
    """
    shipped = data_dir("rules")
    files = [shipped / "log_rules.toml", shipped / "timing.toml"]
    problems: list[str] = []
    if extra_dir:
        folder = Path(extra_dir)
        if folder.is_dir():
            files += sorted(folder.glob("*.toml"))
        else:
            problems.append(f"{extra_dir}: not a folder")
    rules: dict[str, LogRule] = {rule.id: rule for rule in _quoted_xids()}
    ignores: dict[str, IgnoreRow] = {}
    timing: dict[str, TimingRow] = {}
    for file in files:
        trusted = file.parent == shipped  # their patterns are checked by the tests, not at every start
        try:
            for index, rule in enumerate(load_rows(file, "rule", RuleRow)):
                problems += [] if trusted else _rule_problems(f"{file}: rule[{index}]", rule)
                rules[rule.id] = rule
            for index, row in enumerate(load_rows(file, "ignore", IgnoreRow)):
                problem = None if trusted else check_pattern(row.pattern)
                problems += [f"{file}: ignore[{index}].pattern: {problem}"] if problem else []
                ignores[row.id] = row
            for index, entry in enumerate(load_rows(file, "timing", TimingRow)):
                problems += [] if trusted else [f"{file}: timing[{index}].{p}" for p in check_row(entry)]
                timing[entry.id] = entry
        except RuleError as error:
            problems += error.problems
    for index, extra in enumerate(extra_rules):
        problems += _rule_problems(f"logRules[{index}]", extra)
        rules[extra.id] = extra
    for index, form in enumerate(extra_formats):
        entry = owned_row(form, timing.get(form.id))
        problems += [f"timingFormats[{index}].{problem}" for problem in check_row(entry)]
        timing[form.id] = entry
    if problems:
        raise RuleError(problems)
    try:
        owned = frozenset(rule.id for rule in extra_rules)
        owned_formats = frozenset(form.id for form in extra_formats)
        return RuleSet(rules.values(), ignores.values(), timing.values(), cache_dir, owned, owned_formats)
    except ValueError as error:
        raise RuleError([str(error)]) from None


def _rule_problems(where: str, rule: LogRule) -> list[str]:
    problems = []
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,62}", rule.id):
        problems.append(f"{where}.id: {rule.id!r} is not made of a-z, 0-9 and -")
    unless = rule.unless if isinstance(rule, RuleRow) else ""
    for name, pattern in (("pattern", rule.pattern), ("unless", unless)):
        if (pattern or name == "pattern") and (problem := check_pattern(pattern)):
            problems.append(f"{where}.{name}: {problem}")
    if not re.fullmatch(r"(activity:)?[a-z0-9][a-z0-9-]{0,62}", rule.failure):
        problems.append(f"{where}.failure: {rule.failure!r} is neither a failure class nor activity:NAME")
    return problems
