"""What is wrong in files that people write: every problem at once, each with its place. Imports next to nothing."""

from collections.abc import Sequence

from msgspec import Struct


class Problem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing wrong at one place. `line` and `column` count from 1; 0: the file as a whole."""

    file: str
    line: int = 0
    column: int = 0
    path: str = ""  # inside the file: spec.resume.maxResumes
    found: str = ""
    expected: str = ""

    def __str__(self) -> str:
        place = self.file + (f":{self.line}:{self.column}" if self.line else "")
        what = f"found {self.found}, expected {self.expected}" if self.found else f"expected {self.expected}"
        return ": ".join(part for part in (place, self.path, what) if part)


SHOWN = 100


class ConfigErrors(Exception):
    """A file does not say what it must. `problems` lists all of them, in the order of the file."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = sorted(problems, key=lambda one: (one.file, one.line, one.column))
        lines = [str(problem) for problem in self.problems[:SHOWN]]
        if len(self.problems) > SHOWN:
            lines.append(f"and {len(self.problems) - SHOWN} more problems")
        super().__init__("\n".join(lines))


def show(value: object, limit: int = 60) -> str:
    """A found value for a message: on one line, escaped, short; mappings and lists by their kind only."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return text if len(text) <= limit else text[: limit - 4] + "..." + text[-1]
