"""Where the data tables live and how they are read: TOML and TSV, validated at load, all errors at once."""

import os
import tomllib
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


class RuleError(Exception):
    """A data table does not fit its schema. `problems` lists every one, each with file and path."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@cache
def data_dir(kind: str) -> Path:
    """The folder `rules` or `examples`: inside an installed wheel, else beside the source tree."""
    package = Path(__file__).parent.parent
    installed = package / "_data" / kind
    return installed if installed.is_dir() else package.parent / kind


@lru_cache(maxsize=2)
def _document(path: str, mtime_ns: int, size: int) -> dict[str, Any]:
    """A file with several tables is read once: parsing takes longest."""
    with open(path, "rb") as file:
        return tomllib.load(file)


def load_rows(path: str | os.PathLike[str], table: str, row_type: type[T]) -> list[T]:
    """Read the array of tables `table` of a TOML file as `row_type`.

    Raises RuleError that names every bad row (file, table[index], what was expected).
    """
    try:
        status = os.stat(path)
        document = _document(os.fspath(path), status.st_mtime_ns, status.st_size)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise RuleError([f"{path}: {error}"]) from None
    rows: list[Any] = document.get(table, [])
    if not isinstance(rows, list):
        raise RuleError([f"{path}: {table}: expected an array of tables, [[{table}]]"])
    good: list[T] = []
    problems: list[str] = []
    for index, row in enumerate(rows):
        try:
            good.append(msgspec.convert(row, row_type))
        except msgspec.ValidationError as error:
            problems.append(f"{path}: {table}[{index}]: {error}")
    if problems:
        raise RuleError(problems)
    return good


class CounterLimit(msgspec.Struct, frozen=True):
    """A row of rules/network.toml: growth by more than `count` within `window_s` is a warning."""

    name: str
    at: str  # "infiniband" or "ethernet"
    count: float
    window_s: float
    source: str


def counter_limits() -> list[CounterLimit]:
    """The shipped limits of error counters. Raises RuleError."""
    return load_rows(data_dir("rules") / "network.toml", "counter", CounterLimit)
