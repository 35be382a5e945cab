"""Records as documents: what a frozen record looks like in a custom resource, and back, with nothing lost.

Names are camelCase and say their unit in full, as Kubernetes' conventions have it (`took_s` -> `tookSeconds`). Wall
clock times lose their suffix and become RFC 3339 (`since_wall_s` -> `since`), exact to the nanosecond. Fields that
have their default are left out. What a newer Sentinel wrote and this one does not know is kept by `merged`.
"""

import base64
import re
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

T = TypeVar("T", bound=Struct)

Document = dict[str, Any]

_UNITS = {"_mono_s": "_monotonic_seconds", "_s": "_seconds", "_ms": "_milliseconds"}
_AS_THEY_ARE = frozenset({str, bool, int, float, type(None)})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d*)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


class Field(Struct, frozen=True):
    """One field of a record and of its document. `time`: seconds here, RFC 3339 there."""

    name: str
    document_name: str
    type: Any
    time: bool
    default: Any  # msgspec.NODEFAULT: the field is required


def document_name(name: str) -> str:
    """`took_s` -> `tookSeconds`; `since_wall_s` -> `since`; `wall_s` -> `time`; `mono_s` -> `monotonicSeconds`."""
    if name == "wall_s":
        return "time"
    spaced = "_" + name
    if spaced.endswith("_wall_s"):
        spaced = spaced.removesuffix("_wall_s")
    else:
        suffix = next((unit for unit in _UNITS if spaced.endswith(unit)), "")
        spaced = spaced.removesuffix(suffix) + _UNITS.get(suffix, "")
    first, *rest = spaced.strip("_").split("_")
    return first + "".join(word.capitalize() for word in rest)


@cache
def fields_of(record: type[Struct]) -> tuple[Field, ...]:
    """The fields of a record's document, in order."""
    hints = get_type_hints(record)
    found = []
    for one in msgspec.structs.fields(record):
        default = one.default
        if one.default_factory is not msgspec.NODEFAULT:
            default = one.default_factory()
        is_time = one.name == "wall_s" or one.name.endswith("_wall_s")
        found.append(Field(one.name, document_name(one.name), hints[one.name], is_time, default))
    names = [one.document_name for one in found]
    if len(names) != len(set(names)):
        raise TypeError(f"two fields of {record.__name__} have one name in its document")
    return tuple(found)


def to_document(record: Struct) -> Document:
    """Plain data that JSON can hold. A field with its default is left out."""
    document: Document = {}
    for one in fields_of(type(record)):
        value = getattr(record, one.name)
        if one.default is msgspec.NODEFAULT or value != one.default:
            document[one.document_name] = _plain(value, one.time)
    return document


def from_document(record: type[T], document: Document) -> T:
    """Raises msgspec.ValidationError, whose text names the path. Unknown fields are passed over."""
    return msgspec.convert(_named(record, document), record)


def merged(record: type[Struct], old: Document, new: Document) -> Document:
    """`new`, with what `old` holds in fields that `record` does not have. Objects in lists are not looked into:
    nothing says which of them was which."""
    known = {one.document_name: one for one in fields_of(record)}
    result = {name: value for name, value in old.items() if name not in known}
    for name, value in new.items():
        below = _struct_in(known[name].type) if name in known else None
        before = old.get(name)
        if below is not None and isinstance(value, dict) and isinstance(before, dict):
            value = merged(below, before, value)
        result[name] = value
    return result


def time_text(wall_s: float) -> str:
    """RFC 3339 in UTC, with as many digits as it takes to get the same number back."""
    whole = int(wall_s // 1)
    nanoseconds = round((wall_s - whole) * 1e9)
    if nanoseconds == 1_000_000_000:
        whole, nanoseconds = whole + 1, 0
    moment = (_EPOCH + timedelta(seconds=whole)).isoformat().removesuffix("+00:00")
    fraction = f".{nanoseconds:09d}".rstrip("0") if nanoseconds else ""
    return f"{moment}{fraction}Z"


def time_of(text: str) -> float:
    """Seconds since 1970 of an RFC 3339 time. Raises ValueError."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"no RFC 3339 time: {text!r}")
    day, clock, fraction, zone = match.groups()
    moment = datetime.fromisoformat(f"{day}T{clock}{'+00:00' if zone in 'Zz' else zone}")
    return (moment - _EPOCH) // timedelta(seconds=1) + int((fraction or "0").ljust(9, "0")) / 1e9


def _plain(value: Any, is_time: bool) -> Any:
    if type(value) in _AS_THEY_ARE and not is_time:  # most of them
        return value
    if isinstance(value, Struct):
        return to_document(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [_plain(one, is_time) for one in value]
    if isinstance(value, dict):
        return {str(name): _plain(one, is_time) for name, one in value.items()}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return time_text(value) if is_time and value is not None else value


def _named(record: type[Struct], document: Any) -> Any:
    """The document under the names of the record, ready for msgspec to convert."""
    if not isinstance(document, dict):
        return document
    return {
        one.name: _read(one.type, document[one.document_name], one.time)
        for one in fields_of(record)
        if one.document_name in document
    }


def _read(hint: Any, value: Any, is_time: bool) -> Any:
    if type(value) in _AS_THEY_ARE and not is_time:
        return value
    if isinstance(value, list):
        inner = _item_in(hint)
        return [_read(inner, one, is_time) for one in value]
    if isinstance(value, dict):
        below = _struct_in(hint)
        if below is not None:
            return _named(below, value)
        inner = get_args(_plain_hint(hint))[-1]
        return {name: _read(inner, one, is_time) for name, one in value.items()}
    if is_time and isinstance(value, str):
        try:
            return time_of(value)
        except ValueError as error:
            raise msgspec.ValidationError(f"expected an RFC 3339 time, found {value!r}") from error
    return value


def _plain_hint(hint: Any) -> Any:
    """`X | None` -> `X`."""
    if get_origin(hint) in (Union, UnionType):
        return next(one for one in get_args(hint) if one is not type(None))
    return hint


@cache
def _item_in(hint: Any) -> Any:
    """`tuple[X, ...] | None` -> `X`."""
    return next((one for one in get_args(_plain_hint(hint)) if one is not ...), Any)


@cache
def _struct_in(hint: Any) -> type[Struct] | None:
    hint = _plain_hint(hint)
    return hint if isinstance(hint, type) and issubclass(hint, Struct) else None
