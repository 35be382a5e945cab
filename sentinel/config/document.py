"""YAML text → plain data in which every value knows its line and column.

Bounded against hostile files: size, depth and the number of values after aliases are expanded.
"""

import os
import re
from collections.abc import Hashable
from typing import Any

import yaml
from msgspec import Struct

from sentinel.config.problems import ConfigErrors, Problem, show

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_VALUES = 20_000

Path_ = tuple[str | int, ...]
Mark = tuple[int, int]  # line, column, from 1

_TAG = "tag:yaml.org,2002:"
_SCALARS = yaml.constructor.SafeConstructor
_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_BASE):  # type: ignore[misc]
    """Numbers like 5e-05, as Go and Helm write small ones, are texts in YAML 1.1."""


_LOADER: Any = _Loader
_LOADER.add_implicit_resolver(
    _TAG + "float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


class Document(Struct, frozen=True):
    """One YAML document. `marks` has the place of each value, `keys` that of each key."""

    file: str
    data: Any
    marks: dict[Path_, Mark]
    keys: dict[Path_, Mark]

    def problem(self, path: Path_, expected: str, found: str = "", *, at_key: bool = False) -> Problem:
        """A problem at `path`, or at the nearest place above it that the file has."""
        line, column = (self.keys if at_key else self.marks).get(path, (0, 0))
        above = path
        while not line and above:
            above = above[:-1]
            line, column = self.marks.get(above, (0, 0))
        return Problem(
            file=self.file, line=line, column=column, path=dotted(path), found=found, expected=expected
        )


def dotted(path: Path_) -> str:
    """("spec", "logRules", 0, "id") -> "spec.logRules[0].id"; odd keys are quoted."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if re.fullmatch(r"[\w-]{1,60}", part) else show(part)
            text += f".{name}" if text else name
    return text


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a file. Raises ConfigErrors for one that is missing, unreadable, too big, binary or empty."""
    file = os.fspath(path)

    def refuse(found: str, expected: str, line: int = 0) -> ConfigErrors:
        return ConfigErrors([Problem(file=file, line=line, column=line, found=found, expected=expected)])

    try:
        with open(path, "rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise refuse("no such file", "a YAML file") from None
    except IsADirectoryError:
        raise refuse("a directory", "a YAML file") from None
    except (OSError, ValueError) as error:
        raise refuse(getattr(error, "strerror", None) or str(error), "a readable YAML file") from None
    if len(raw) > MAX_BYTES:
        raise refuse(f"more than {MAX_BYTES >> 20} MiB", "a policy or settings file")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise refuse(f"byte 0x{raw[error.start]:02x} that is not UTF-8", "text in UTF-8", line) from None
    if "\0" in text:
        raise refuse("a binary file", "text in UTF-8")
    return text


def parse(text: str, file: str) -> list[Document]:
    """All documents of a YAML text. Raises ConfigErrors (syntax, bounds, duplicate keys, an empty file)."""
    try:
        _check_depth(text, file)
        nodes = [node for node in yaml.compose_all(text, Loader=_LOADER) if node is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        said = " ".join(filter(None, (error.problem, error.context)))
        raise ConfigErrors(
            [Problem(file=file, line=line, column=column, found=f"bad syntax ({said})", expected="YAML")]
        ) from None
    except yaml.YAMLError as error:  # a character that YAML does not allow
        said = str(error).splitlines()[0]
        line = text.count("\n", 0, getattr(error, "position", 0)) + 1
        raise ConfigErrors(
            [Problem(file=file, line=line, column=1, found=f"bad syntax ({said})", expected="YAML")]
        ) from None
    documents = []
    problems: list[Problem] = []
    for node in nodes:
        builder = _Builder(file)
        data = builder.build(node, (), 0)
        problems += builder.problems
        documents.append(Document(file, data, builder.marks, builder.keys))
    if problems:
        raise ConfigErrors(problems)
    if all(document.data is None for document in documents):
        expected = "a JobPolicy or Settings document"
        raise ConfigErrors([Problem(file=file, found="an empty file", expected=expected)])
    return documents


def _check_depth(text: str, file: str) -> None:
    """Before composing, which recurses."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                mark: Any = event.start_mark
                line, column = mark.line + 1, mark.column + 1
                expected = f"at most {MAX_DEPTH} levels of nesting"
                raise ConfigErrors(
                    [Problem(file=file, line=line, column=column, found="more", expected=expected)]
                )
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


class _Builder:
    """Walks the nodes of one document. Aliases are walked each time they occur, and so are bounded by count."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.marks: dict[Path_, Mark] = {}
        self.keys: dict[Path_, Mark] = {}
        self.problems: list[Problem] = []
        self._values = 0
        self._scalars = _SCALARS()

    def build(self, node: Any, path: Path_, depth: int) -> Any:
        mark = (node.start_mark.line + 1, node.start_mark.column + 1)
        self.marks[path] = mark
        self._values += 1
        if self._values > MAX_VALUES or depth > MAX_DEPTH:  # also ends an alias that contains itself
            if self._values <= MAX_VALUES + 1 or depth > MAX_DEPTH:
                self._refuse(mark, path, "aliases that expand to more", f"at most {MAX_VALUES} values")
            self._values = MAX_VALUES + 2
            return None
        if not isinstance(node, yaml.ScalarNode) and node.tag not in (_TAG + "map", _TAG + "seq"):
            self._refuse(mark, path, f"the tag {show(node.tag)}", "a plain value")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(child, (*path, index), depth + 1) for index, child in enumerate(node.value)]
        return self._scalar(node, mark, path)

    def _mapping(self, node: Any, path: Path_, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            mark = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            if self._values > MAX_VALUES:
                break
            if not isinstance(key_node, yaml.ScalarNode):
                self._refuse(mark, path, "a key that is no plain word", "a name")
                continue
            key = key_node.value  # as written: `on` and `1` are names here
            if key in result:
                first = self.keys[(*path, key)][0]
                self._refuse(mark, (*path, key), f"the key again (first in line {first})", "each key once")
                continue
            self.keys[(*path, key)] = mark
            result[key] = self.build(value_node, (*path, key), depth + 1)
        return result

    def _scalar(self, node: Any, mark: Mark, path: Path_) -> Hashable:
        tag = node.tag.removeprefix(_TAG)
        text: str = node.value
        try:
            if tag == "null":
                return None
            if tag == "bool":
                return bool(self._scalars.construct_yaml_bool(node))
            if tag == "int" and ":" not in text:  # 1:30 is no number here
                return int(self._scalars.construct_yaml_int(node))
            if tag == "float" and ":" not in text:
                return float(self._scalars.construct_yaml_float(node))
        except (ValueError, KeyError):
            self._refuse(mark, path, show(text), "a number")
            return None
        if tag not in ("str", "timestamp", "int", "float", "value", "merge"):
            self._refuse(mark, path, f"the tag {show(node.tag)}", "a plain value")
        return text

    def _refuse(self, mark: Mark, path: Path_, found: str, expected: str) -> None:
        if len(self.problems) < 50:
            self.problems.append(
                Problem(
                    file=self.file,
                    line=mark[0],
                    column=mark[1],
                    path=dotted(path),
                    found=found,
                    expected=expected,
                )
            )
