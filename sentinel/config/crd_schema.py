"""Structural schemas (OpenAPI v3, as CustomResourceDefinitions have it) from pydantic sections and core records."""

from enum import EnumType
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Struct
from pydantic.fields import FieldInfo

from sentinel.config import policy_schema
from sentinel.config.crd_words import WORDS
from sentinel.config.kinds import Checked
from sentinel.config.reference import meaning_of, written_default
from sentinel.config.section import Section
from sentinel.util.documents import Field, fields_of

Schema = dict[str, Any]

# Defaults that are told and not filled in by the API server: administrators cap them, so that the default is theirs
# where it is lower, or they may be written only beside another field.
TOLD_ONLY = frozenset({"maxResumes", "maxRestarts", "gracefulStop", "ifUnproved"})
MAX_ITEMS = 1000  # of a list that people write: the API server needs a bound to judge what rules on it cost
_SCALARS: dict[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer", "format": "int64"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    bytes: {"type": "string", "format": "byte"},
    Any: {},
}
# Fields of core records that a document on Kubernetes never has: local jobs only.
LOCAL_ONLY = frozenset({("StoredJob", "launch")})


def of_section(section: type[Section], rules: dict[str, list[Schema]], path: str = "spec") -> Schema:
    """The schema of what people write. `rules`: path -> validation rules (CEL)."""
    properties: Schema = {}
    required = []
    for name, field in section.model_fields.items():
        alias = str(field.alias)
        properties[alias] = {
            "description": field.description or "",
            **_of_annotation(field.annotation, field.metadata, rules, f"{path}.{alias}"),
        }
        _add_default(properties[alias], section, name, field)
        if field.is_required():
            required.append(alias)
    result: Schema = {"type": "object", "properties": properties}
    if required:
        result["required"] = required
    if path in rules:
        result["x-kubernetes-validations"] = rules[path]
    return result


def of_record(record: type[Struct]) -> Schema:
    """The schema of what Sentinel writes. Fields that this version does not know are kept: the controller may be
    newer than the definitions that were installed."""
    words = _words(record)
    properties: Schema = {}
    required = []
    for one in fields_of(record):
        if (record.__name__, one.name) in LOCAL_ONLY:
            continue
        if not words.get(one.document_name):
            raise LookupError(
                f"sentinel/config/crd_words.py has no words for {record.__name__}.{one.document_name}"
            )
        properties[one.document_name] = {"description": words[one.document_name], **_of_field(one)}
        if one.default is msgspec.NODEFAULT:
            required.append(one.document_name)
    result: Schema = {"type": "object", "properties": properties}
    if required:
        result["required"] = required
    result["x-kubernetes-preserve-unknown-fields"] = True
    return result


def _of_annotation(hint: Any, marks: list[Any], rules: dict[str, list[Schema]], path: str) -> Schema:
    shape = next((mark.shape for mark in marks if isinstance(mark, Checked)), None)
    if shape is not None:
        return dict(shape)
    if get_origin(hint) is Literal:
        return {"type": "string", "enum": list(get_args(hint))}
    if get_origin(hint) is Annotated:
        inner, *inner_marks = get_args(hint)
        return _of_annotation(inner, inner_marks, rules, path)
    if isinstance(hint, type) and issubclass(hint, Section):
        return of_section(hint, rules, path)
    if get_origin(hint) is tuple:
        items = _of_annotation(get_args(hint)[0], [], rules, path + "[]")
        keyed: Schema = {}
        if "id" in items.get("properties", {}):
            keyed = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"]}
        return {"type": "array", "maxItems": MAX_ITEMS, "items": items, **keyed}
    if get_origin(hint) is dict:
        return {"type": "object", "additionalProperties": _of_annotation(get_args(hint)[1], [], rules, path)}
    return dict(_SCALARS[hint])


def _add_default(shape: Schema, section: type[Section], name: str, field: FieldInfo) -> None:
    """As the core has it, written as people write it."""
    known = {} if section.core is None else {one.name: one for one in msgspec.structs.fields(section.core)}
    default = known[name].default if name in known else None
    meaning = meaning_of(field)
    if isinstance(default, Struct) or default in (msgspec.NODEFAULT, "", ()):
        return
    if default is None and not (meaning and meaning.none):
        return
    told = meaning.none.strip("`") if default is None and meaning else written_default(default, field)
    shape["description"] += f" Default: {told}."  # `kubectl explain` does not show defaults by itself
    if field.alias not in TOLD_ONLY:
        as_text = default is None or (meaning and meaning.unit)
        shape["default"] = told if as_text else msgspec.to_builtins(default)


def _of_field(one: Field) -> Schema:
    shape = _of_hint(one.type, one.time)
    # null is written where leaving the field out means something else.
    if shape.pop("nullable", False) and one.default is not None:
        shape["nullable"] = True
    # A field that is left out is shown with its value all the same: `kubectl get` prints it.
    if one.default not in (msgspec.NODEFAULT, None, "", (), 0, False, {}) and not isinstance(
        one.default, Struct
    ):
        shape["default"] = msgspec.to_builtins(one.default)
    return shape


def _of_hint(hint: Any, is_time: bool) -> Schema:
    if get_origin(hint) in (Union, UnionType):
        inner = next(one for one in get_args(hint) if one is not type(None))
        return {**_of_hint(inner, is_time), "nullable": True}
    if get_origin(hint) in (tuple, list):
        return {"type": "array", "items": _of_hint(get_args(hint)[0], is_time)}
    if get_origin(hint) is dict:
        return {"type": "object", "additionalProperties": _of_hint(get_args(hint)[1], is_time)}
    if isinstance(hint, EnumType):
        return {"type": "string", "enum": msgspec.to_builtins(list(hint.__members__.values()))}
    if isinstance(hint, type) and issubclass(hint, Struct):
        shape = of_record(hint)
        words = _words(hint).get("")
        return {"description": words, **shape} if words else shape
    return {"type": "string", "format": "date-time"} if is_time else dict(_SCALARS[hint])


def _words(record: type[Struct]) -> dict[str, str]:
    """Of a record that people's sections fill: those of the sections."""
    words: dict[str, str] = {}
    names = {one.name: one.document_name for one in fields_of(record)}
    for section in vars(policy_schema).values():
        if isinstance(section, type) and issubclass(section, Section) and section.core is record:
            words |= {
                names[name]: field.description or ""
                for name, field in section.model_fields.items()
                if name in names
            }
    return words | WORDS.get(record.__name__, {})
