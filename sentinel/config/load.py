"""Policies and settings from YAML, with every problem of a file at once."""

import difflib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec
from pydantic import ValidationError

from sentinel.config.contradictions import Contradiction, policy_contradictions, settings_contradictions
from sentinel.config.document import Document, Path_, dotted, parse, read_text
from sentinel.config.policy_schema import JobPolicyDocument
from sentinel.config.problems import ConfigErrors, Problem, show
from sentinel.config.section import API_VERSION, Section
from sentinel.config.settings_schema import SettingsDocument
from sentinel.core.people.caps import capped
from sentinel.core.policy_model import Policy
from sentinel.settings import Caps, Settings

S = TypeVar("S", bound=Section)

_EXPECTED = {
    "missing": "a value",
    "string_type": "text (in quotes, if it looks like a number)",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}


def load_policies(source: str | Path, settings: Settings | None = None) -> list[Policy]:
    """All policies of a file (a Path) or a text (a str). Raises ConfigErrors."""
    text, file = (read_text(source), str(source)) if isinstance(source, Path) else (source, "policy")
    return policies_of(parse(text, file), settings or Settings())


def load_settings(source: str | Path) -> Settings:
    """The settings of a file (a Path) or a text (a str). Raises ConfigErrors."""
    text, file = (read_text(source), str(source)) if isinstance(source, Path) else (source, "settings")
    documents = parse(text, file)
    if len(documents) > 1:
        raise ConfigErrors([documents[1].problem((), "one Settings document", f"{len(documents)} documents")])
    problems = _wrong_kind(documents[0], "Settings")
    if problems:
        raise ConfigErrors(problems)
    return settings_of(documents[0])


def policies_of(documents: Iterable[Document], settings: Settings) -> list[Policy]:
    """The policies of parsed documents. Raises ConfigErrors that lists the problems of all of them."""
    policies: list[Policy] = []
    problems: list[Problem] = []
    for document in documents:
        try:
            policy = _policy(document, settings.caps)
        except ConfigErrors as errors:
            problems += errors.problems
            continue
        if any(policy.name == other.name for other in policies):
            path = ("metadata", "name")
            problems.append(document.problem(path, "a name that no other policy here has", show(policy.name)))
        policies.append(policy)
    if problems:
        raise ConfigErrors(problems)
    return policies


def settings_of(document: Document) -> Settings:
    parsed = _validated(document, SettingsDocument, settings_contradictions(document.data))
    return msgspec.convert(parsed.model_dump(exclude_unset=True, exclude={"api_version", "kind"}), Settings)


def _policy(document: Document, caps: Caps) -> Policy:
    problems = _wrong_kind(document, "JobPolicy")
    if problems:
        raise ConfigErrors(problems)
    parsed = _validated(document, JobPolicyDocument, policy_contradictions(document.data))
    asked: dict[str, Any] = parsed.spec.model_dump(exclude_unset=True, exclude={"jobs", "owner", "logs"})
    for section in (parsed.spec.owner, parsed.spec.logs):
        if section is not None:
            asked |= section.model_dump(exclude_unset=True)
    if "resume" in asked:
        asked["restart"] = None
    return capped(msgspec.convert({"name": parsed.metadata.name, **asked}, Policy), caps)


def _wrong_kind(document: Document, kind: str) -> list[Problem]:
    """A document of another kind is told as that, not by the many fields that do not fit."""
    data = document.data
    if not isinstance(data, dict):
        return [document.problem((), f"a {kind} document (a mapping)", show(data))]
    found = data.get("kind")
    if found == kind:
        return []
    if "kind" not in data:
        return [document.problem((), f"kind: {kind}", "no kind", at_key=True)]
    return [document.problem(("kind",), kind, show(found))]


def _validated(document: Document, schema: type[S], contradictions: Iterable[Contradiction]) -> S:
    problems = [
        document.problem(path, expected, show(_value(document.data, path)))
        for path, expected in contradictions
    ]
    try:
        parsed = schema.model_validate(document.data)
    except ValidationError as error:
        broken = {problem.path for problem in problems}
        for details in error.errors(include_url=False):
            problem = _problem(document, schema, details)
            if problem.path not in broken:
                problems.append(problem)
        raise ConfigErrors(problems) from None
    if problems:
        raise ConfigErrors(problems)
    return parsed


def _problem(document: Document, schema: type[Section], details: Mapping[str, Any]) -> Problem:
    path: Path_ = tuple(details["loc"])
    context = details.get("ctx") or {}
    match details["type"]:
        case "missing":
            return document.problem(path, _EXPECTED["missing"], "nothing")
        case "extra_forbidden":
            return document.problem(
                path, _known_keys(schema, path), f"the unknown key {show(path[-1])}", at_key=True
            )
        case "literal_error":
            expected = str(context.get("expected", API_VERSION)).replace("'", "")
        case "sentinel":
            expected = str(context["expected"])
        case other:
            expected = _EXPECTED.get(other, details["msg"])
    value = _value(document.data, path)
    if value is None and expected == "a mapping":
        expected = "a mapping ({} for the defaults)"
    return document.problem(path, expected, show(value))


def _value(data: Any, path: Path_) -> Any:
    try:
        for part in path:
            data = data[part]
    except (KeyError, IndexError, TypeError):
        return None
    return data


def sections(schema: type[Section]) -> dict[str, type[Section]]:
    """alias -> the section that stands under it, in lists too."""
    found = {}
    for field in schema.model_fields.values():
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, Section):
                found[str(field.alias)] = kind
    return found


@cache
def _places(schema: type[Section]) -> dict[str, str]:
    """key -> the dotted path of the first section where it is known, below the top level."""
    places: dict[str, str] = {}

    def walk(section: type[Section], path: Path_) -> None:
        for field in section.model_fields.values():
            if path:
                places.setdefault(str(field.alias), dotted(path))
        for alias, below in sections(section).items():
            walk(below, (*path, alias))

    walk(schema, ())
    return places


def _known_keys(schema: type[Section], path: Path_) -> str:
    section = schema
    for part in path[:-1]:
        if isinstance(part, str):
            section = sections(section)[part]
    known = [str(field.alias) for field in section.model_fields.values()]
    key = str(path[-1])
    here = {_folded(name): name for name in known}
    elsewhere = {_folded(name): f"{place}.{name}" for name, place in _places(schema).items()}
    if _folded(key) not in here and _folded(key) in elsewhere:
        return f"a known key; did you mean {elsewhere[_folded(key)]}?"
    near = difflib.get_close_matches(_folded(key), here, 1)
    if near:
        return f"a known key; did you mean {here[near[0]]}?"
    return f"one of {', '.join(known)}"


def _folded(key: str) -> str:
    return key.lower().replace("_", "").replace("-", "")
